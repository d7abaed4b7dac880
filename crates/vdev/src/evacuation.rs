//! Copying a range of a vdev that is being removed to a place on another one (disks and mirrors).
//!
//! A range is no block: no checksum tells what is right. So all devices of the vdev that have
//! everything are read. They hold the same, but for what rots; and what differs is no reason to
//! choose: every version is put on a device of its own, where a reader who has the checksum finds
//! the right one. Where there are more versions than devices, the copy is refused, since a scrub
//! can still tell them apart where they are. So it is where a device does not give what it has,
//! though it works: what another one has in its place may be wrong, and a scrub would tell.
//!
//! What is found wrong later, while the vdev is still being removed, is written anew there and in
//! the copy ([`Copies`]).
//!
//! A copy counts when a device of the other vdev has it that lacks nothing, and each of the others
//! has it or lacks its txg. A resilver goes by the txgs of blocks, and reads them where they were
//! until their vdev is gone: so the txgs of copies stay missing until then, and what lacks some of
//! them is resilvered from the first txg on (crate `scan`).
//!
//! Who else writes there: nobody. What is copied was written in earlier txgs and is not allocated
//! again while its vdev is being removed; the place was allocated for the copy.
//!
//! Source: module/zfs/vdev_removal.c (`spa_vdev_copy_segment`, `spa_vdev_copy_one_child`).

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use format::{Txg, VdevId};
use futures::future::join_all;

use crate::copies::{Copies, CopyPlace};
use crate::error::VdevError;
use crate::io::IoContext;
use crate::kind::VdevKind;
use crate::leaf::Leaf;
use crate::node::Vdev;
use crate::range_set::RangeSet;
use crate::report::Priority;
use crate::top_spec::AllocClass;
use crate::tree::VdevTree;

/// What became of a range ([`VdevTree::copy_out`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Copied {
    /// All devices have it that are to.
    Whole,
    /// No device gave it that has everything, or one that works did not.
    Unread {
        /// The last cause.
        cause: String,
    },
    /// The devices that have it disagree, and there are not as many to copy it to.
    Differs,
    /// No device that lacks nothing took it, or too few did.
    Unwritten {
        /// Why.
        cause: String,
    },
    /// The pool was suspended meanwhile: it is to be copied again.
    Halted,
}

fn has_all(leaf: &Arc<Leaf>) -> bool {
    leaf.dirty_times().missing().is_empty()
}

/// Whether each device below holds the same, at the same offsets: only such vdevs are copied from
/// and to, device by device.
fn holds_the_same(vdev: &Vdev) -> bool {
    match vdev.kind() {
        VdevKind::Leaf(_) => true,
        VdevKind::Mirror(_) => vdev.children().iter().all(|child| holds_the_same(child)),
        _ => false,
    }
}

/// The top-level vdevs that copies of the vdev `from` may go to.
fn targets(tree: &VdevTree, from: VdevId) -> impl Iterator<Item = Arc<Vdev>> {
    let is_target = move |top: &Arc<Vdev>| {
        top.vdev_id() != from
            && top.geometry().is_some()
            && top
                .top()
                .is_some_and(|about| about.class != AllocClass::Log)
    };
    tree.tops().into_iter().filter(is_target)
}

/// Reads a range from every device that has everything: the different versions of it.
async fn versions(top: &Arc<Vdev>, offset: u64, length: usize) -> Result<Vec<Bytes>, String> {
    let context = &IoContext {
        priority: Priority::Scrub,
        ..IoContext::default()
    };
    let gives = |vdev: &Arc<Vdev>| {
        vdev.leaf()
            .is_some_and(|leaf| leaf.is_readable() && has_all(leaf))
    };
    let mut from = top.leaves();
    from.retain(gives);
    let reads = from.iter().map(|vdev| async move {
        match vdev.read_part(offset, length, context).await {
            // Once more, as for every I/O (`zio_vdev_io_assess`, module/zfs/zio.c).
            Err(_) => vdev.read_part(offset, length, context).await,
            read => read,
        }
    });
    let mut found: Vec<Bytes> = Vec::new();
    let mut cause = "no device has everything".to_owned();
    for (vdev, read) in from.iter().zip(join_all(reads).await) {
        match read {
            Ok(data) if found.contains(&data) => {}
            Ok(data) => found.push(data),
            Err(failure) if gives(vdev) => return Err(failure.cause),
            // It is out of use by now.
            Err(failure) => cause = failure.cause,
        }
    }
    match found.is_empty() {
        true => Err(cause),
        false => Ok(found),
    }
}

/// Whether a device can be written and lacks nothing.
fn is_whole(vdev: &Vdev) -> bool {
    vdev.leaf()
        .is_some_and(|leaf| leaf.is_writeable() && has_all(leaf))
}

/// Writes the versions of a range: one to all devices, and then each further one to a device.
async fn write(top: &Arc<Vdev>, offset: u64, versions: &[Bytes], txg: Txg) -> Result<(), String> {
    let context = IoContext {
        priority: Priority::Async,
        birth: txg,
        ..IoContext::default()
    };
    let written = top.write_block(offset, versions[0].clone(), &context).await;
    written.map_err(|failure| failure.cause)?;
    let leaves = top.leaves();
    let whole: Vec<&Arc<Vdev>> = leaves.iter().filter(|vdev| is_whole(vdev)).collect();
    for (vdev, version) in whole.iter().zip(versions).skip(1) {
        let written = vdev.write_part(offset, version.clone(), &context).await;
        written.map_err(|failure| failure.cause)?;
    }
    let is_missing = |vdev: &Arc<Vdev>| {
        vdev.leaf()
            .is_some_and(|leaf| leaf.dirty_times().is_missing(txg))
    };
    let took = |vdev: &&Arc<Vdev>| is_whole(vdev) && !is_missing(vdev);
    let is_writeable = |vdev: &Arc<Vdev>| vdev.leaf().is_some_and(|leaf| leaf.is_writeable());
    // What was not told of a device is taken for what it has.
    if let Some(vdev) = leaves
        .iter()
        .find(|vdev| !is_writeable(vdev) && !is_missing(vdev))
    {
        return Err(format!("{} did not take it", vdev.display_name()));
    }
    match whole.into_iter().filter(took).count() {
        count if count > 0 && count >= versions.len() => Ok(()),
        _ => Err(format!("{} did not take it", top.display_name())),
    }
}

/// Whether each vdev that copies of the vdev `from` may go to has a device that can be written and
/// lacks nothing, and the devices of `from` that are there lack nothing: one that is resilvered
/// first may have what rots on another one.
pub fn takes_copies(tree: &VdevTree, from: VdevId) -> bool {
    let gives_all = |vdev: &Arc<Vdev>| {
        vdev.leaf()
            .is_none_or(|leaf| !leaf.is_readable() || has_all(leaf))
    };
    tree.top(from)
        .is_some_and(|top| top.leaves().iter().all(gives_all))
        && targets(tree, from).all(|top| has_whole(&top))
}

fn has_whole(top: &Arc<Vdev>) -> bool {
    top.state().0.is_usable() && top.leaves().iter().any(|vdev| is_whole(vdev))
}

/// What copies of the vdev `from` wait for, where [`takes_copies`] says no: the names of vdevs that
/// cannot take any, or of devices of `from` that lack something.
pub fn waits_for(tree: &VdevTree, from: VdevId) -> Vec<String> {
    let lacking = |vdev: &Arc<Vdev>| {
        vdev.leaf()
            .is_some_and(|leaf| leaf.is_readable() && !has_all(leaf))
    };
    let sources = tree.top(from).map_or_else(Vec::new, |top| top.leaves());
    let sources = sources.into_iter().filter(lacking);
    let targets = targets(tree, from).filter(|top| !has_whole(top));
    sources
        .chain(targets)
        .map(|vdev| vdev.display_name())
        .collect()
}

/// Says who knows of copies of what is repaired.
pub fn set_copies(tree: &VdevTree, copies: Arc<dyn Copies>) {
    tree.common.set_copies(copies);
}

/// A block was written anew, which may be in several places: its copies get the same.
pub(crate) async fn heal_copies(
    tree: &VdevTree,
    (id, offset): (VdevId, u64),
    data: Bytes,
    context: &IoContext,
) {
    let (Some(copies), Some(top)) = (tree.common.copies(), tree.top(id)) else {
        return;
    };
    let sector = 1usize << top.ashift().clamp(9, 16);
    let mut padded = BytesMut::from(&data[..]);
    padded.resize(data.len().next_multiple_of(sector), 0);
    let padded = padded.freeze();
    let length = padded.len() as u64;
    let places = match tree.topology.remap(id, offset, length) {
        Ok(Some(remapped)) => remapped.places,
        Ok(None) => vec![(id, offset, length)],
        Err(_) => return,
    };
    let mut at = 0;
    for (vdev, offset, length) in places {
        let mut from = at;
        at += length as usize;
        let mut places = copies.healed(vdev, offset, length);
        if places.is_empty() && tree.top(vdev).is_some_and(|top| top.kind().is_indirect()) {
            // It was removed since: where it was no longer counts.
            places.push(CopyPlace {
                vdev,
                offset,
                length,
                birth: context.birth,
            });
        }
        for place in places {
            let to = from + place.length as usize;
            let context = IoContext {
                birth: place.birth,
                ..*context
            };
            let part = padded.slice(from..to);
            from = to;
            let written = tree.write_block(place.vdev, place.offset, part, &context);
            if let Err(error) = written.await {
                tracing::warn!(cause = error.cause, "what was healed is wrong in its copy");
                copies.spoil();
            }
        }
    }
}

/// Whether a top-level vdev is a disk or a mirror, of which a removal can copy what it holds.
pub fn can_be_emptied(tree: &VdevTree, vdev: VdevId) -> bool {
    tree.top(vdev).is_some_and(|top| holds_the_same(&top))
}

/// Whether all devices of a vdev that copies of the vdev `from` may be on lack writes of some of
/// these txgs.
pub fn lacks_copies(tree: &VdevTree, from: VdevId, txgs: &RangeSet) -> bool {
    targets(tree, from).any(|top| top.leaves().iter().all(|vdev| lacks_some(vdev, txgs)))
}

/// How many versions of a range can be on a vdev; one of which no device is whole takes none, and
/// may take them later.
fn whole_count(top: &Arc<Vdev>) -> usize {
    let leaves = top.leaves();
    match leaves.iter().filter(|vdev| is_whole(vdev)).count() {
        0 => leaves.len(),
        count => count,
    }
}

/// Has devices that lack some of these txgs, of vdevs that copies of the vdev `from` may be on,
/// lack all txgs until then: whoever goes by the births of blocks, as OpenZFS does, gives them all.
/// Returns whether there are any.
pub fn lack_all(tree: &VdevTree, from: VdevId, txgs: &RangeSet) -> bool {
    let mut any = false;
    for vdev in targets(tree, from).flat_map(|top| top.leaves()) {
        let Some(leaf) = vdev.leaf() else { continue };
        leaf.dirty_times().change_missing(|missing| {
            let lacks =
                |range: std::ops::Range<u64>| txgs.overlaps(range.start, range.end - range.start);
            let end = missing.ranges().next_back().map_or(0, |range| range.end);
            if missing.ranges().any(lacks) {
                any = true;
                missing.add(1, end - 1);
            }
        });
    }
    any
}

/// Whether a device that copies of the vdev `from` may be on lacks writes of one of these txgs.
pub fn is_lacking(tree: &VdevTree, from: VdevId, txgs: &RangeSet) -> bool {
    let mut leaves = targets(tree, from).flat_map(|top| top.leaves());
    leaves.any(|vdev| lacks_some(&vdev, txgs))
}

fn lacks_some(vdev: &Vdev, txgs: &RangeSet) -> bool {
    vdev.leaf().is_some_and(|leaf| {
        let missing = leaf.dirty_times().missing();
        let mut ranges = missing.ranges();
        ranges.any(|range| txgs.overlaps(range.start, range.end - range.start))
    })
}

/// Copies a range of the vdev `from` (with its offset) to `to`, in whole sectors, in syncing
/// context of `txg`.
///
/// # Errors
/// [`VdevError::NoSuchVdev`], [`VdevError::VdevUnavailable`], [`VdevError::BadAddress`]: then
/// nothing was done.
pub async fn copy_out(
    tree: &VdevTree,
    from: (VdevId, u64),
    to: (VdevId, u64),
    length: u64,
    txg: Txg,
) -> Result<Copied, VdevError> {
    let source = tree.topology.check_range(from.0, from.1, length)?;
    let target = tree.topology.check_range(to.0, to.1, length)?;
    for top in [&source, &target] {
        if !holds_the_same(top) {
            return Err(VdevError::VdevUnavailable {
                vdev: top.display_name(),
                cause: "only disks and mirrors are copied from and to".to_owned(),
            });
        }
    }
    let mark = tree.common.halt.mark();
    let copied = match versions(&source, from.1, length as usize).await {
        Err(cause) => Copied::Unread { cause },
        Ok(versions) if versions.len() > whole_count(&target) => Copied::Differs,
        Ok(versions) => match write(&target, to.1, &versions, txg).await {
            Ok(()) => Copied::Whole,
            Err(cause) => Copied::Unwritten { cause },
        },
    };
    match tree.common.halt.is_unchanged(mark) {
        true => Ok(copied),
        false => Ok(Copied::Halted),
    }
}

#[cfg(test)]
mod tests {
    use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
    use format::LABEL_START_BYTES;

    use super::*;
    use crate::testing::{TestTree, group, noise, simulate};

    const FROM: VdevId = VdevId::new(0);
    const TO: VdevId = VdevId::new(1);
    const TXG: Txg = Txg::new(20);

    /// Two vdevs: disks `s0`, `s1`... and `t0`, `t1`...
    async fn tree(sources: u64, targets: u64) -> TestTree {
        let sim = SimWorld::new(7);
        let from = group(&sim, "mirror", 0, "s", sources, 10);
        let to = group(&sim, "mirror", 0, "t", targets, 20);
        TestTree::create(sim, vec![from, to], 9).await
    }

    fn put(test: &TestTree, disk: &str, offset: u64, data: &[u8]) {
        test.disk(disk).poke(LABEL_START_BYTES + offset, data);
    }

    async fn copy(test: &TestTree) -> Copied {
        let copied = copy_out(&test.tree, (FROM, 4096), (TO, 8192), 1024, TXG).await;
        copied.expect("both are there")
    }

    #[test]
    fn every_device_gets_a_copy() {
        simulate(async {
            let test = tree(2, 2).await;
            let data = noise(1024, 1);
            put(&test, "s0", 4096, &data);
            put(&test, "s1", 4096, &data);
            assert!(takes_copies(&test.tree, FROM));
            let leaves = test.tree.top(FROM).expect("it").leaves();
            let times = leaves[0].leaf().expect("a leaf").dirty_times();
            times.set_missing(RangeSet::from_iter([(7, 1)]));
            assert!(!takes_copies(&test.tree, FROM), "it is resilvered first");
            times.set_missing(RangeSet::new());
            assert_eq!(copy(&test).await, Copied::Whole);
            for disk in ["t0", "t1"] {
                assert_eq!(test.disk(disk).peek(LABEL_START_BYTES + 8192, 1024), data);
            }
        });
    }

    /// Goal: rot on one side never takes the place of what the other side has. Method: the sides
    /// differ; both versions are on the other vdev, or nothing is copied.
    #[test]
    fn versions_that_differ_are_all_kept() {
        simulate(async {
            for (targets, wanted) in [(2, Copied::Whole), (1, Copied::Differs)] {
                let test = tree(2, targets).await;
                let versions = [noise(1024, 1), noise(1024, 2)];
                put(&test, "s0", 4096, &versions[0]);
                put(&test, "s1", 4096, &versions[1]);
                assert_eq!(copy(&test).await, wanted);
                if targets == 2 {
                    for (disk, version) in ["t0", "t1"].iter().zip(&versions) {
                        let found = test.disk(disk).peek(LABEL_START_BYTES + 8192, 1024);
                        assert_eq!(&found, version);
                    }
                }
            }
        });
    }

    /// Goal: a copy counts while one device has it that lacks nothing, and what does not have it
    /// lacks its txg. Method: one side fails to take it, is gone or was taken out before; then so
    /// does the other one.
    #[test]
    fn a_copy_counts_while_one_device_has_it() {
        simulate(async {
            for is_gone in [false, true] {
                let test = tree(2, 2).await;
                let data = noise(1024, 1);
                put(&test, "s0", 4096, &data);
                put(&test, "s1", 4096, &data);
                let sides = test.tree.top(TO).expect("it").leaves();
                let fault = || Fault::new(SimOp::Write, FaultEffect::Error);
                match is_gone {
                    true => {
                        test.disk("t1").set_gone(true);
                        sides[1].close();
                    }
                    false => test.disk("t1").inject(fault()),
                }
                assert_eq!(copy(&test).await, Copied::Whole);
                let missing = |side: usize| {
                    let leaf = sides[side].leaf().expect("a leaf");
                    leaf.dirty_times().missing().contains(TXG.get(), 1)
                };
                assert!(!missing(0) && missing(1));
                assert!(takes_copies(&test.tree, FROM));
                assert!(waits_for(&test.tree, FROM).is_empty());
                let txgs = |txg| RangeSet::from_iter([(txg, 1)]);
                assert!(!lacks_copies(&test.tree, FROM, &txgs(TXG.get())));
                let found = test.disk("t0").peek(LABEL_START_BYTES + 8192, 1024);
                assert_eq!(found, data);
                test.disk("t0").inject(fault());
                assert!(matches!(copy(&test).await, Copied::Unwritten { .. }));
                assert!(!takes_copies(&test.tree, FROM));
                assert_eq!(waits_for(&test.tree, FROM), ["mirror-1"]);
                assert!(lacks_copies(&test.tree, FROM, &txgs(TXG.get())));
                assert!(!lacks_copies(&test.tree, FROM, &txgs(TXG.get() - 1)));
            }
        });
    }

    /// What differs needs as many devices that lack nothing as there are versions.
    #[test]
    fn versions_that_differ_need_devices_that_are_there() {
        simulate(async {
            let test = tree(2, 2).await;
            put(&test, "s0", 4096, &noise(1024, 1));
            put(&test, "s1", 4096, &noise(1024, 2));
            let sides = test.tree.top(TO).expect("it").leaves();
            test.disk("t0").set_gone(true);
            sides[0].close();
            assert_eq!(copy(&test).await, Copied::Differs);
        });
    }

    /// What lies across devices cannot be copied device by device.
    #[test]
    fn nothing_is_copied_to_or_from_vdevs_with_parity() {
        simulate(async {
            let sim = SimWorld::new(7);
            let from = group(&sim, "mirror", 0, "s", 2, 10);
            let to = group(&sim, "raidz", 1, "t", 3, 20);
            let test = TestTree::create(sim, vec![from, to], 9).await;
            for (from, to) in [(FROM, TO), (TO, FROM)] {
                let copied = copy_out(&test.tree, (from, 4096), (to, 8192), 1024, TXG);
                assert!(copied.await.is_err());
            }
            assert!(can_be_emptied(&test.tree, FROM));
            assert!(!can_be_emptied(&test.tree, TO));
        });
    }

    /// Goal: what one device has is never taken where another one has it as well and does not say
    /// so: it may be wrong, and only a scrub can tell. Method: a device fails for a moment, for
    /// good, and is gone.
    #[test]
    fn a_device_that_works_gives_what_it_has_or_nothing_is_copied() {
        simulate(async {
            let test = tree(2, 2).await;
            let data = noise(1024, 1);
            put(&test, "s0", 4096, &data);
            put(&test, "s1", 4096, &data);
            let range = LABEL_START_BYTES + 4096..LABEL_START_BYTES + 5120;
            let fault = || Fault::new(SimOp::Read, FaultEffect::Error).within(range.clone());
            test.disk("s0").inject(fault().times(1));
            assert_eq!(copy(&test).await, Copied::Whole);
            test.disk("s0").inject(fault());
            assert!(matches!(copy(&test).await, Copied::Unread { .. }));
            test.disk("s0").set_gone(true);
            let leaves = test.tree.top(FROM).expect("it").leaves();
            leaves[0].close();
            assert_eq!(copy(&test).await, Copied::Whole);
        });
    }

    /// Copies of a part of the vdev, as they are while it is being removed.
    #[derive(Debug, Default)]
    struct Half(std::sync::atomic::AtomicBool);

    impl Copies for Half {
        fn healed(&self, vdev: VdevId, offset: u64, length: u64) -> Vec<CopyPlace> {
            assert_eq!((vdev, offset, length), (FROM, 4096, 1024));
            let place = |offset| CopyPlace {
                vdev: TO,
                offset,
                length: 512,
                birth: TXG,
            };
            vec![place(8192), place(16384)]
        }

        fn spoil(&self) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// What is healed on a vdev that is being removed is healed in its copy, which may be in parts.
    #[test]
    fn what_is_healed_is_healed_in_its_copy() {
        simulate(async {
            let test = tree(1, 2).await;
            let copies = Arc::new(Half::default());
            set_copies(&test.tree, copies.clone());
            let data = Bytes::from(noise(1000, 1));
            let context = IoContext::default();
            let healed = test.tree.repair_block(FROM, 4096, data.clone(), &context);
            healed.await.expect("written");
            let peek = |disk: &str, offset: u64, length: usize| {
                test.disk(disk).peek(LABEL_START_BYTES + offset, length)
            };
            assert_eq!(peek("s0", 4096, 1000), data);
            for disk in ["t0", "t1"] {
                assert_eq!(peek(disk, 8192, 512), data[..512]);
                assert_eq!(peek(disk, 16384, 488), data[512..]);
            }
            assert!(!copies.0.load(std::sync::atomic::Ordering::Relaxed));
            for disk in ["t0", "t1"] {
                test.disk(disk).set_gone(true);
            }
            let healed = test.tree.repair_block(FROM, 4096, data, &context);
            healed.await.expect("written where it is");
            assert!(copies.0.load(std::sync::atomic::Ordering::Relaxed));
        });
    }
}
