//! Goal: trees change in use as OpenZFS changes them, and no block is lost on the way. Method:
//! small trees on simulated disks, blocks written before, during and after, and read with some of
//! the disks gone.

use std::sync::Arc;

use bytes::Bytes;
use device::BoxFuture;
use device::sim::{Latency, SimWorld};
use format::{BlockPointer, Dva, Guid, NvList, Txg, VdevId};

use crate::kind::MirrorRole;
use crate::testing::{TestTree, group, leaf, noise, simulate};
use crate::topology::TopologyError;
use crate::*;

const BLOCK: usize = 16 << 10;
/// The txg of blocks that are written before a change.
const BEFORE: Txg = Txg::new(20);
/// No txg that is open at a change reaches this.
const UNTIL: Txg = Txg::new(25);
/// The txg of blocks that are written long after.
const AFTER: Txg = Txg::new(30);

struct Same(Vec<u8>);

impl Verify for Same {
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(self.0 == *data))
    }
}

fn context(birth: Txg) -> IoContext {
    IoContext {
        birth,
        ..IoContext::default()
    }
}

async fn write(tree: &VdevTree, slot: u64, birth: Txg) {
    let data = Bytes::from(noise(BLOCK, slot + 1));
    let offset = slot * 12 * BLOCK as u64;
    let context = context(birth);
    let written = tree.write_block(VdevId::ZERO, offset, data, &context);
    written.await.expect("written");
}

async fn read(tree: &VdevTree, slot: u64, birth: Txg) -> bool {
    let offset = slot * 12 * BLOCK as u64;
    let verify = Same(noise(BLOCK, slot + 1));
    let context = context(birth);
    let read = tree.read_block(VdevId::ZERO, offset, BLOCK, &context, &verify);
    read.await.is_ok()
}

/// A new device on a disk of that name, opened.
async fn fresh(test: &TestTree, name: &str, guid: u64) -> Arc<Vdev> {
    let mut config = leaf(&test.sim, name, guid);
    config.set("ashift", 12u64).set("create_txg", 20u64);
    test.tree.prepare_leaf(&config).await.expect("opens")
}

async fn attach(test: &TestTree, to: u64, new: (&str, u64), role: MirrorRole) {
    let new = fresh(test, new.0, new.1).await;
    let parent = Guid::new(900 + new.guid().get());
    test.tree
        .attach(Guid::new(to), &new, role, parent, UNTIL)
        .expect("attached");
}

async fn detach(test: &TestTree, guid: u64) -> Result<Detached, TopologyError> {
    let guid = Guid::new(guid);
    test.tree.detach(guid, None, BEFORE, UNTIL).await
}

/// What a resilver would leave, in memory and on disk.
fn heal(test: &TestTree, guid: u64) {
    let vdev = test.tree.find(Guid::new(guid)).expect("a vdev");
    vdev.leaf()
        .expect("a leaf")
        .dirty_times()
        .set_missing(RangeSet::new());
    let recorded = vdev.recorded().expect("a device");
    recorded.set(RangeSet::new(), AFTER);
}

/// The device that can be detached, and what it is a part of.
fn replaced(tree: &VdevTree) -> Option<(u64, u64)> {
    let replaced = tree.topology().replaced()?;
    Some((replaced.old.get(), replaced.parent.get()))
}

/// The tree as text: types and guids.
fn shape(tree: &VdevTree) -> String {
    fn walk(vdev: &NvList, id: u64) -> String {
        assert_eq!(vdev.u64("id"), Some(id), "{vdev:?}");
        let name = vdev.string("type").expect("a type").to_owned();
        let guid = vdev.u64("guid").expect("a guid");
        let children = vdev.lists("children").unwrap_or(&[]).iter().zip(0..);
        let below: Vec<String> = children.map(|(child, id)| walk(child, id)).collect();
        match below.is_empty() {
            true => guid.to_string(),
            false => format!("{name}{guid}({})", below.join(" ")),
        }
    }
    let config = tree.to_config(Scope::Mos);
    let tops = config.lists("children").expect("children").iter().zip(0..);
    tops.map(|(top, id)| walk(top, id))
        .collect::<Vec<_>>()
        .join(" ")
}

async fn single() -> TestTree {
    let sim = SimWorld::new(1);
    let top = leaf(&sim, "a", 10);
    let test = TestTree::create(sim, vec![top], 12).await;
    let top = &test.tree.tops()[0];
    top.set_config("com.delphix:vdev_zap_top", 70u64);
    top.set_config("com.delphix:vdev_zap_leaf", 71u64);
    top.set_config("DTL", 72u64);
    top.set_config("create_txg", 4u64);
    let numbers = top.top().expect("a top-level vdev");
    numbers.set_metaslabs(73, top.metaslab_shift());
    test
}

async fn raidz() -> TestTree {
    let sim = SimWorld::new(1);
    let top = group(&sim, "raidz", 1, "r", 3, 10);
    TestTree::create(sim, vec![top], 12).await
}

#[test]
fn a_successor_is_known_before_its_label_tells_of_it() {
    simulate(async {
        let test = single().await;
        test.tree.expect_own_labels();
        attach(&test, 10, ("b", 11), MirrorRole::Replacing).await;
        let label = |txg| LabelSync {
            is_recorded: &|| true,
            uberblock: Box::leak(Box::new(crate::testing::uberblock(txg))),
            multihost: false,
            config: Some(Box::leak(Box::new(crate::testing::pool_config(txg)))),
        };
        test.tree.sync_labels(&label(22)).await.expect("written");
        heal(&test, 11);
        let gone = detach(&test, 10).await.expect("detached");
        assert_eq!(gone.renamed, Some((Guid::new(11), Guid::new(911))));
        // A scrub, reopen, online or clear in the very group.
        test.tree.look_again(None).await.expect("looked at");
        let state = test.tree.tops()[0].state();
        assert_eq!(state, (VdevState::Healthy, VdevAux::None));
        let known = test.tree.uberblocks_on_paths().await.expect("read");
        assert!(known.iter().any(|uberblock| uberblock.txg.get() == 22));
        // What it replaced is not it, although its label tells of the same top-level vdev.
        let (old, new) = (test.disk("a"), test.disk("b"));
        let (front, all) = (512 << 10, crate::testing::DISK_BYTES as usize);
        let kept = (new.peek(0, front), new.peek(0, all).split_off(all - front));
        for from in [0, all as u64 - front as u64] {
            new.poke(from, &old.peek(from, front));
        }
        test.tree.look_again(None).await.expect("looked at");
        let state = test.tree.tops()[0].state();
        assert_eq!(state, (VdevState::CantOpen, VdevAux::BadLabel));
        new.poke(0, &kept.0);
        new.poke(all as u64 - front as u64, &kept.1);
        test.tree.reopen(false).await.expect("reopened");
        test.tree.sync_labels(&label(23)).await.expect("written");
        test.tree.look_again(None).await.expect("looked at");
        assert_eq!(test.tree.tops()[0].state().0, VdevState::Healthy);
    });
}

#[test]
fn a_disk_becomes_a_mirror_and_a_disk_again() {
    simulate(async {
        let test = single().await;
        let sum = test.tree.guid_sum();
        let about = |tree: &VdevTree| {
            let config = tree.tops()[0].to_config(Scope::Mos);
            [
                "asize",
                "ashift",
                "metaslab_array",
                "metaslab_shift",
                "is_log",
            ]
            .map(|pair| config.u64(pair))
        };
        let before = about(&test.tree);
        write(&test.tree, 0, BEFORE).await;

        attach(&test, 10, ("b", 11), MirrorRole::Mirror).await;
        assert_eq!(shape(&test.tree), "mirror911(10 11)");
        assert_eq!(about(&test.tree), before);
        let config = test.tree.tops()[0].to_config(Scope::Mos);
        let children = config.lists("children").expect("children");
        // Each pair where OpenZFS has it.
        assert_eq!(config.u64("com.delphix:vdev_zap_top"), Some(70));
        assert_eq!(config.u64("com.delphix:vdev_zap_leaf"), None);
        assert_eq!(config.u64("create_txg"), Some(4));
        assert_eq!(children[0].u64("com.delphix:vdev_zap_leaf"), Some(71));
        assert_eq!(children[0].u64("DTL"), Some(72));
        assert_eq!(children[1].u64("create_txg"), Some(4));
        for child in children {
            for pair in [
                "asize",
                "metaslab_array",
                "com.delphix:vdev_zap_top",
                "is_log",
            ] {
                assert!(!child.contains(pair), "{pair}");
            }
        }
        // The new device has nothing yet, and nothing of the txgs that were open.
        assert!(test.tree.topology().is_required(Guid::new(10)));
        assert!(!test.tree.topology().is_required(Guid::new(11)));
        assert!(matches!(
            detach(&test, 10).await,
            Err(TopologyError::OnlyCopy { .. })
        ));
        write(&test.tree, 1, AFTER).await;
        assert!(read(&test.tree, 0, BEFORE).await && read(&test.tree, 1, AFTER).await);
        test.disk("a").set_gone(true);
        assert!(read(&test.tree, 1, AFTER).await);
        assert!(!read(&test.tree, 0, BEFORE).await);
        test.disk("a").set_gone(false);
        test.clear().await.expect("clear");
        assert!(read(&test.tree, 0, BEFORE).await);

        let gone = detach(&test, 11).await.expect("detached");
        assert_eq!(gone.vdev.guid(), Guid::new(11));
        assert_eq!(shape(&test.tree), "911");
        assert_eq!(gone.renamed, Some((Guid::new(10), Guid::new(911))));
        assert_eq!(about(&test.tree), before);
        let config = test.tree.tops()[0].to_config(Scope::Mos);
        assert_eq!(config.u64("com.delphix:vdev_zap_top"), Some(70));
        assert_eq!(config.u64("com.delphix:vdev_zap_leaf"), Some(71));
        let renamed = sum.get().wrapping_sub(10).wrapping_add(911);
        assert_eq!(test.tree.guid_sum(), Guid::new(renamed));
        assert!(read(&test.tree, 0, BEFORE).await && read(&test.tree, 1, AFTER).await);
        assert!(matches!(
            detach(&test, 911).await,
            Err(TopologyError::CannotDetach { .. })
        ));
    });
}

#[test]
fn mirrors_get_wider_and_narrower() {
    simulate(async {
        let sim = SimWorld::new(1);
        let top = group(&sim, "mirror", 0, "m", 2, 10);
        let test = TestTree::create(sim, vec![top], 12).await;
        write(&test.tree, 0, BEFORE).await;
        attach(&test, 11, ("b", 20), MirrorRole::Mirror).await;
        assert_eq!(shape(&test.tree), "mirror10(11 12 20)");
        heal(&test, 20);
        detach(&test, 11).await.expect("detached");
        assert_eq!(shape(&test.tree), "mirror10(12 20)");
        // A mirror's devices are replaced by more than one at once.
        attach(&test, 12, ("c", 30), MirrorRole::Replacing).await;
        assert_eq!(shape(&test.tree), "mirror10(replacing930(12 30) 20)");
        let mirrored = test
            .tree
            .topology()
            .check_attach(Guid::new(30), MirrorRole::Mirror, false);
        assert!(matches!(mirrored, Err(TopologyError::CannotAttach { .. })));
        attach(&test, 30, ("d", 40), MirrorRole::Replacing).await;
        assert_eq!(shape(&test.tree), "mirror10(replacing930(12 30 40) 20)");
        // What is above the last one that is left takes the place of the whole.
        heal(&test, 30);
        detach(&test, 20).await.expect("detached");
        assert_eq!(shape(&test.tree), "replacing10(12 30 40)");
        assert_eq!(test.tree.topology().replaced(), None);
        heal(&test, 40);
        assert_eq!(replaced(&test.tree), Some((12, 10)));
        detach(&test, 12).await.expect("detached");
        assert_eq!(replaced(&test.tree), Some((30, 10)));
        detach(&test, 30).await.expect("detached");
        assert_eq!(shape(&test.tree), "10");
        assert_eq!(test.tree.topology().replaced(), None);
    });
}

#[test]
fn a_lost_device_is_replaced_under_its_own_path() {
    simulate(async {
        let test = raidz().await;
        write(&test.tree, 0, BEFORE).await;
        test.disk("r1").set_gone(true);
        write(&test.tree, 1, BEFORE).await;
        assert_eq!(
            test.tree.find(Guid::new(12)).unwrap().state().0,
            VdevState::Removed
        );
        // Another disk in the same bay.
        test.sim
            .add_disk("r1", testing::DISK_BYTES)
            .set_latency(Latency::NONE);
        attach(&test, 12, ("r1", 20), MirrorRole::Replacing).await;
        assert_eq!(shape(&test.tree), "raidz10(11 replacing920(12 20) 13)");
        let path = |guid| test.tree.find(Guid::new(guid)).and_then(|vdev| vdev.path());
        assert_eq!(path(12).as_deref(), Some("r1/old"));
        assert_eq!(path(20).as_deref(), Some("r1"));
        let replacing = test.tree.find(Guid::new(920)).unwrap();
        assert_eq!(replacing.state().0, VdevState::Degraded);
        write(&test.tree, 2, AFTER).await;
        for (slot, birth) in [(0, BEFORE), (1, BEFORE), (2, AFTER)] {
            assert!(read(&test.tree, slot, birth).await, "{slot}");
        }
        // The one that is gone is needed as long as the new one lacks what is on others only once.
        assert_eq!(test.tree.topology().replaced(), None);
        heal(&test, 20);
        assert_eq!(replaced(&test.tree), Some((12, 920)));
        detach(&test, 12).await.expect("detached");
        assert_eq!(shape(&test.tree), "raidz10(11 20 13)");
    });
}

#[test]
fn a_replacement_that_is_given_up_gives_the_path_back() {
    simulate(async {
        let test = raidz().await;
        let twin = test.sim.add_disk("twin", testing::DISK_BYTES);
        twin.set_latency(Latency::NONE);
        let new = fresh(&test, "twin", 20).await;
        new.set_config("path", "r1");
        let role = MirrorRole::Replacing;
        test.tree
            .attach(Guid::new(12), &new, role, Guid::new(920), UNTIL)
            .expect("attached");
        let path = |guid| test.tree.find(Guid::new(guid)).and_then(|vdev| vdev.path());
        assert_eq!(path(12).as_deref(), Some("r1/old"));
        detach(&test, 20).await.expect("detached");
        assert_eq!(shape(&test.tree), "raidz10(11 12 13)");
        assert_eq!(path(12).as_deref(), Some("r1"));
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    simulate(async {
        let test = raidz().await;
        let tree = &test.tree;
        let guid = Guid::new(12);
        let check = |role, spare| tree.topology().check_attach(guid, role, spare);
        assert!(check(MirrorRole::Replacing, false).is_ok());
        assert!(check(MirrorRole::Spare, true).is_ok());
        assert!(matches!(
            check(MirrorRole::Mirror, false),
            Err(TopologyError::CannotAttach { .. })
        ));
        assert!(matches!(
            tree.topology()
                .check_attach(Guid::new(10), MirrorRole::Mirror, false),
            Err(TopologyError::NotADevice { .. })
        ));
        assert!(matches!(
            tree.topology()
                .check_attach(Guid::new(99), MirrorRole::Mirror, false),
            Err(TopologyError::NoSuchVdev { .. })
        ));
        assert!(matches!(
            detach(&test, 12).await,
            Err(TopologyError::CannotDetach { .. })
        ));
        let needed = crate::sizes::least_child_bytes(&tree.tops()[0]);
        assert!(tree.topology().check_fits(guid, "x", needed, 12).is_ok());
        assert!(matches!(
            tree.topology().check_fits(guid, "x", needed - 1, 12),
            Err(TopologyError::TooSmall { .. })
        ));
        assert!(matches!(
            tree.topology().check_fits(guid, "x", needed, 13),
            Err(TopologyError::Ashift { .. })
        ));
        let pinned = Some(Guid::new(77));
        assert!(matches!(
            tree.detach(guid, pinned, BEFORE, UNTIL).await,
            Err(TopologyError::Changed { .. })
        ));
    });
}

/// A write that only the device took that goes: the others failed it.
#[test]
fn a_device_stays_that_alone_took_a_write_under_way() {
    simulate(async {
        let sim = SimWorld::new(1);
        let top = group(&sim, "mirror", 0, "m", 2, 10);
        let test = TestTree::create(sim, vec![top], 12).await;
        write(&test.tree, 0, BEFORE).await;
        // It is under way for longer than the change takes.
        let slow = Latency {
            write: std::time::Duration::from_millis(500),
            ..Latency::NONE
        };
        test.disk("m0").set_latency(slow);
        let tree = test.tree.clone();
        let writing = tokio::spawn(async move { write(&tree, 1, BEFORE).await });
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        let changing = detach(&test, 12);
        let failing = async {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            test.disk("m0").set_gone(true);
        };
        let (changed, ()) = futures::join!(changing, failing);
        writing.await.expect("written");
        assert!(
            matches!(changed, Err(TopologyError::OnlyCopy { .. })),
            "{changed:?}"
        );
        assert_eq!(shape(&test.tree), "mirror10(11 12)");
        assert!(read(&test.tree, 1, BEFORE).await);
        // Without a write under way it is refused at once.
        assert!(test.tree.topology().check_detach(Guid::new(12)).is_err());
    });
}

#[test]
fn draid_spares_know_their_vdev_after_a_change() {
    simulate(async {
        let sim = SimWorld::new(1);
        let mut top = group(&sim, "draid", 1, "d", 5, 10);
        top.set("draid_ndata", 2u64)
            .set("draid_nspares", 1u64)
            .set("draid_ngroups", 4u64);
        for at in 0..5 {
            let name = format!("d{at}");
            sim.add_disk(&name, 256 << 20).set_latency(Latency::NONE);
        }
        // A spare stands in for the first device.
        let mut spare = NvList::new();
        spare
            .set("type", "dspare")
            .set("guid", 40u64)
            .set("top_guid", 10u64)
            .set("spareid", 0u64);
        let mut children = top.lists("children").expect("children").to_vec();
        let mut both = NvList::new();
        both.set("type", "spare").set("guid", 41u64).set(
            "children",
            format::NvValue::ListArray(vec![children[0].clone(), spare]),
        );
        children[0] = both;
        top.set("children", format::NvValue::ListArray(children));
        let test = TestTree::create(sim, vec![top], 12).await;
        write(&test.tree, 0, BEFORE).await;
        test.sim
            .add_disk("new", 256 << 20)
            .set_latency(Latency::NONE);
        attach(&test, 13, ("new", 50), MirrorRole::Replacing).await;
        assert_eq!(
            shape(&test.tree),
            "draid10(spare41(11 40) 12 replacing950(13 50) 14 15)"
        );
        let spare = test.tree.find(Guid::new(40)).expect("a spare");
        assert_eq!(spare.state().0, VdevState::Healthy);
        // What it has is on all others; of a device and its successor, one is enough.
        let is_whole = |bad: &[u64]| {
            let took_all = |leaf: &Arc<Vdev>| !bad.contains(&leaf.guid().get());
            let spares = spares_that_took_all(&test.tree.tops()[0], &took_all);
            spares.contains(&spare.guid())
        };
        assert!(is_whole(&[]) && is_whole(&[11]) && is_whole(&[11, 13]) && is_whole(&[50]));
        assert!(!is_whole(&[12]) && !is_whole(&[13, 50]) && !is_whole(&[15]));
        write(&test.tree, 1, AFTER).await;
        test.disk("d0").set_gone(true);
        assert!(read(&test.tree, 0, BEFORE).await && read(&test.tree, 1, AFTER).await);
        detach(&test, 50).await.expect("detached");
        let spare = test.tree.find(Guid::new(40)).expect("a spare");
        assert_eq!(spare.state().0, VdevState::Healthy);
    });
}

/// A raidz with a spare that stands in for its second device.
async fn spared() -> TestTree {
    let test = raidz().await;
    write(&test.tree, 0, BEFORE).await;
    stand_in(&test, 12, ("s", 20)).await;
    assert_eq!(shape(&test.tree), "raidz10(11 spare920(12 20) 13)");
    test
}

async fn stand_in(test: &TestTree, to: u64, (name, guid): (&str, u64)) {
    let mut config = leaf(&test.sim, name, guid);
    config.set("ashift", 12u64).set("is_spare", 1u64);
    let new = test.tree.prepare_leaf(&config).await.expect("opens");
    let parent = Guid::new(900 + guid);
    test.tree
        .attach(Guid::new(to), &new, MirrorRole::Spare, parent, UNTIL)
        .expect("a spare stands in");
}

fn flags(test: &TestTree, guid: u64) -> (Option<u64>, Option<u64>) {
    let vdev = test.tree.find(Guid::new(guid)).expect("a vdev");
    (vdev.config_u64("is_spare"), vdev.config_u64("unspare"))
}

/// A spare goes when it is told to, or becomes a device like any other when the one that it stood
/// in for goes.
#[test]
fn a_spare_returns_or_stays() {
    simulate(async {
        let test = spared().await;
        heal(&test, 20);
        assert_eq!(
            test.tree.topology().replaced(),
            None,
            "until somebody says so"
        );
        let gone = detach(&test, 20).await.expect("detached");
        assert_eq!(gone.unspared, None);
        assert_eq!(shape(&test.tree), "raidz10(11 12 13)");

        let test = spared().await;
        test.disk("r1").set_gone(true);
        write(&test.tree, 1, AFTER).await;
        heal(&test, 20);
        assert_eq!(test.tree.topology().replaced(), None);
        let gone = detach(&test, 12).await.expect("detached");
        assert_eq!(gone.unspared, Some(Guid::new(20)));
        assert_eq!(shape(&test.tree), "raidz10(11 20 13)");
        assert_eq!(flags(&test, 20), (None, None));
    });
}

/// A device that works again, and lacks nothing, gets its place back from a spare.
#[test]
fn a_device_that_is_back_sends_its_spare_away() {
    simulate(async {
        let test = spared().await;
        heal(&test, 20);
        test.disk("r1").set_gone(true);
        write(&test.tree, 1, AFTER).await;
        assert!(
            !test.tree.topology().unspare(Guid::new(12)),
            "it does not work"
        );
        assert!(
            !test.tree.topology().unspare(Guid::new(20)),
            "the spare itself"
        );
        assert!(
            !test.tree.topology().unspare(Guid::new(11)),
            "another device"
        );
        test.disk("r1").set_gone(false);
        test.tree.bring_back(Guid::new(12)).await.expect("back");
        assert!(test.tree.topology().unspare(Guid::new(12)));
        assert_eq!(flags(&test, 12), (None, Some(1)));
        let device = test.tree.find(Guid::new(12)).expect("a device");
        let missing = RangeSet::from_iter([(AFTER.get(), 1)]);
        device
            .leaf()
            .expect("a leaf")
            .dirty_times()
            .set_missing(missing);
        assert_eq!(
            test.tree.topology().replaced(),
            None,
            "it lacks what it missed"
        );
        heal(&test, 12);
        assert_eq!(replaced(&test.tree), Some((20, 920)));
        let gone = detach(&test, 20).await.expect("detached");
        assert_eq!(gone.unspared, None);
        assert_eq!(shape(&test.tree), "raidz10(11 12 13)");
        assert_eq!(flags(&test, 12), (None, None));
    });
}

/// A device is replaced while a spare stands in for it: both go when the new one lacks nothing.
#[test]
fn a_replacement_ends_with_the_spare() {
    simulate(async {
        let test = spared().await;
        heal(&test, 20);
        attach(&test, 12, ("b", 30), MirrorRole::Replacing).await;
        let both = "raidz10(11 spare920(replacing930(12 30) 20) 13)";
        assert_eq!(shape(&test.tree), both);
        let check = |guid, is_spare| {
            let role = match is_spare {
                true => MirrorRole::Spare,
                false => MirrorRole::Replacing,
            };
            test.tree
                .topology()
                .check_attach(Guid::new(guid), role, is_spare)
        };
        // One spare is enough, and another device does not take a spare's place.
        let twice = check(30, true);
        assert!(matches!(twice, Err(TopologyError::CannotReplace { .. })));
        let strange = check(20, false);
        assert!(matches!(strange, Err(TopologyError::OnlyBySpare { .. })));
        assert_eq!(test.tree.topology().replaced(), None);
        heal(&test, 30);
        let done = test.tree.topology().replaced().expect("it is done");
        let [old, parent, new] = [12, 930, 30].map(Guid::new);
        let unspares = Some(new);
        assert_eq!(
            done,
            Replaced {
                old,
                parent,
                unspares
            }
        );
        detach(&test, 12).await.expect("detached");
        assert_eq!(shape(&test.tree), "raidz10(11 spare920(30 20) 13)");
        assert!(test.tree.topology().unspare(new));
        assert_eq!(replaced(&test.tree), Some((20, 920)));
        detach(&test, 20).await.expect("detached");
        assert_eq!(shape(&test.tree), "raidz10(11 30 13)");
        assert_eq!(flags(&test, 30), (None, None));
    });
}

/// A spare that goes bad is replaced by another one; once that has everything, the first one is
/// free. What they stood in for goes: the last one stays for good.
#[test]
fn spares_stand_in_for_spares() {
    simulate(async {
        let test = spared().await;
        stand_in(&test, 20, ("t", 21)).await;
        let all = "raidz10(11 spare920(12 20 21) 13)";
        assert_eq!(shape(&test.tree), all);
        let third = test
            .tree
            .topology()
            .check_attach(Guid::new(12), MirrorRole::Spare, true);
        assert!(matches!(third, Err(TopologyError::CannotReplace { .. })));
        heal(&test, 20);
        assert_eq!(test.tree.topology().replaced(), None);
        heal(&test, 21);
        assert_eq!(replaced(&test.tree), Some((20, 920)));
        let gone = detach(&test, 12).await.expect("detached");
        assert_eq!(gone.unspared, Some(Guid::new(21)));
        // The next change waits for who still has the vdev.
        drop(gone);
        assert_eq!(shape(&test.tree), "raidz10(11 spare920(20 21) 13)");
        assert_eq!(flags(&test, 21), (None, Some(1)));
        assert_eq!(replaced(&test.tree), Some((20, 920)));
        let gone = detach(&test, 20).await.expect("detached");
        assert_eq!(gone.unspared, None);
        assert_eq!(shape(&test.tree), "raidz10(11 21 13)");
        assert_eq!(flags(&test, 21), (None, None));
    });
}

/// A spare that stands in for a device that is being replaced goes first.
#[test]
fn a_spare_within_a_replacement_goes_first() {
    simulate(async {
        let test = raidz().await;
        write(&test.tree, 0, BEFORE).await;
        attach(&test, 12, ("b", 30), MirrorRole::Replacing).await;
        stand_in(&test, 12, ("s", 20)).await;
        let all = "raidz10(11 replacing930(spare920(12 20) 30) 13)";
        assert_eq!(shape(&test.tree), all);
        heal(&test, 30);
        assert_eq!(replaced(&test.tree), Some((20, 920)));
        detach(&test, 20).await.expect("detached");
        assert_eq!(replaced(&test.tree), Some((12, 930)));
        detach(&test, 12).await.expect("detached");
        assert_eq!(shape(&test.tree), "raidz10(11 30 13)");
    });
}

/// What a failed read waits for: devices that are gone and may have the block, not one that was
/// attached after the block was written and has not got it yet.
#[test]
fn a_device_that_never_got_a_block_does_not_bring_it_back() {
    simulate(async {
        let test = single().await;
        attach(&test, 10, ("b", 11), MirrorRole::Mirror).await;
        let top = test.tree.tops()[0].id();
        let block = |birth| {
            let dva = Dva::new(VdevId::new(top as u32), 0, BLOCK as u64, false).expect("a DVA");
            let mut block = BlockPointer::HOLE;
            block.set_dva(0, Some(dva));
            block.set_birth(birth, birth);
            block
        };
        let attached = test.tree.find(Guid::new(11)).expect("a vdev");
        assert!(!test.tree.topology().may_come_back(&block(AFTER)));
        attached.close();
        // One that lacks everything for another reason may have it.
        assert!(test.tree.topology().may_come_back(&block(BEFORE)));
        attached.set_config(RESILVER_TXG, BEFORE.get());
        assert!(!test.tree.topology().may_come_back(&block(BEFORE)));
        assert!(test.tree.topology().may_come_back(&block(AFTER)));
        assert!(!test.tree.topology().tells_of(&block(BEFORE)));
        heal(&test, 11);
        assert!(test.tree.topology().may_come_back(&block(BEFORE)));
    });
}
