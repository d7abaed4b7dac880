//! Labels against crashes, wrong devices and damage.

use device::sim::{Fault, FaultEffect, PowerCut, SimDisk};
use format::{LABEL_COUNT, label_offset};

use super::*;
use crate::testing::{DISK_BYTES, uberblock};

#[test]
fn labels_come_back_as_they_were_written() {
    simulate(async {
        let sim = SimWorld::new(3);
        let tops = vec![
            group(&sim, "raidz", 1, "r", 3, 10),
            leaf(&sim, "single", 20),
        ];
        let pool = TestTree::create(sim, tops, 12).await;
        for txg in 4..80 {
            let config = pool_config(txg);
            let sync = LabelSync {
                is_recorded: &|| true,
                uberblock: &uberblock(txg),
                multihost: false,
                config: (txg % 7 == 0).then_some(&config),
            };
            pool.tree.sync_labels(&sync).await.expect("written");
        }
        let tree = pool.reopen().await;
        let uberblocks = tree.uberblocks().await;
        // 32 slots of 4 KiB; the newest in front.
        let txgs: Vec<u64> = uberblocks
            .iter()
            .map(|uberblock| uberblock.txg.get())
            .collect();
        assert_eq!(txgs, (48..80).rev().collect::<Vec<_>>());
        for (_, labels) in tree.read_all_labels().await {
            for label in &labels.labels {
                let config = label.config.as_ref().expect("a configuration");
                assert_eq!(config.u64("txg"), Some(77));
                assert_eq!(config.u64("vdev_children"), Some(2));
            }
            assert_eq!(
                labels
                    .config(Txg::new(76))
                    .and_then(|config| config.u64("txg")),
                None
            );
        }
        assert_eq!(tree.tops()[0].state().0, VdevState::Healthy);
        assert_eq!(
            tree.tops()[0].asize_bytes(),
            3 * ((64 << 20) - (4 << 20) - (512 << 10))
        );
    });
}

#[test]
fn a_crash_at_any_write_leaves_a_state_that_labels_describe() {
    for seed in 0..120u64 {
        simulate(async move {
            let sim = SimWorld::new(seed);
            let tops = vec![group(&sim, "mirror", 0, "m", 2, 10)];
            let pool = TestTree::create(sim, tops, 9).await;
            for name in ["m0", "m1"] {
                pool.disk(name).set_latency(Latency::default());
            }
            // Before txg 4 there was none.
            let mut done = 3;
            pool.sim
                .cut_power_at(SimOp::Write, 1 + seed % 40, PowerCut::Random);
            for txg in 4..10 {
                let config = pool_config(txg);
                let sync = LabelSync {
                    is_recorded: &|| true,
                    uberblock: &uberblock(txg),
                    multihost: false,
                    config: Some(&config),
                };
                if pool.tree.sync_labels(&sync).await.is_err() || !pool.sim.is_powered() {
                    break;
                }
                done = txg;
            }
            pool.sim.kill_tasks().await;
            pool.sim.power_on();
            let tree = pool.reopen().await;
            assert_eq!(tree.tops()[0].state().0, VdevState::Healthy, "seed {seed}");
            let best = tree
                .uberblocks()
                .await
                .first()
                .map_or(3, |best| best.txg.get());
            assert!(
                best == done || best == done + 1,
                "seed {seed}: {best} after {done}"
            );
            // Some label describes the state of the newest uberblock.
            for (_, labels) in tree.read_all_labels().await {
                let config = labels
                    .config(Txg::new(best.max(1)))
                    .expect("a configuration");
                let txg = config.u64("txg").expect("a txg");
                assert!(
                    txg == best || best == done,
                    "seed {seed}: label {txg}, uberblock {best}"
                );
            }
        });
    }
}

#[test]
fn the_wrong_device_is_refused() {
    simulate(async {
        let sim = SimWorld::new(3);
        let tops = vec![group(&sim, "mirror", 0, "m", 2, 10)];
        let pool = TestTree::create(sim, tops, 12).await;
        let mut config = pool.tree.to_config(Scope::Mos);
        pool.tree.close();
        // Each child claims to be where the other is.
        let tops = config.get_mut("children");
        let Some(format::NvValue::ListArray(tops)) = tops else {
            panic!("children")
        };
        let Some(format::NvValue::ListArray(leaves)) = tops[0].get_mut("children") else {
            panic!("children")
        };
        leaves[0].set("path", "m1");
        leaves[1].set("path", "m0");
        let tree = VdevTree::open(pool.sim.world(), &config, OpenOptions::default())
            .await
            .expect("opens");
        let (state, aux) = tree.find(Guid::new(12)).expect("the second").state();
        assert_eq!((state, aux), (VdevState::CantOpen, VdevAux::BadLabel));
        assert_eq!(tree.tops()[0].state().0, VdevState::CantOpen);
        // By guid they are found.
        let options = OpenOptions {
            paths: [(11, "m0"), (12, "m1")]
                .map(|(guid, path)| (Guid::new(guid), path.to_owned()))
                .into(),
            ..OpenOptions::default()
        };
        tree.close();
        let tree = VdevTree::open(pool.sim.world(), &config, options)
            .await
            .expect("opens");
        assert_eq!(tree.tops()[0].state().0, VdevState::Healthy);
    });
}

#[test]
fn damaged_configurations_are_errors() {
    simulate(async {
        let sim = SimWorld::new(3);
        let broken: Vec<fn(&mut format::NvList)> = vec![
            |top| {
                top.remove("type");
            },
            |top| {
                top.set("nparity", 9u64);
            },
            |top| {
                top.remove("children");
            },
            |top| {
                top.set("nparity", 3u64);
            },
        ];
        for damage in broken {
            let mut top = group(&sim, "raidz", 1, "r", 3, 10);
            damage(&mut top);
            let config = crate::testing::root(vec![top], 9);
            let result = VdevTree::open(sim.world(), &config, OpenOptions::default()).await;
            assert!(result.is_err());
        }
    });
}

/// Nothing of a label can be read or written any more.
fn lose_label(disk: &SimDisk, index: usize) {
    let start = label_offset(DISK_BYTES, index).expect("a label");
    for op in [SimOp::Read, SimOp::Write] {
        let fault = Fault::new(op, FaultEffect::Error);
        disk.inject(fault.within(start..start + format::LABEL_BYTES));
    }
}

async fn sync(tree: &VdevTree, txg: u64, has_config: bool) -> Result<(), VdevError> {
    let config = pool_config(txg);
    let sync = LabelSync {
        is_recorded: &|| true,
        uberblock: &uberblock(txg),
        multihost: false,
        config: has_config.then_some(&config),
    };
    tree.sync_labels(&sync).await
}

fn newest(uberblocks: &[format::Uberblock]) -> Option<u64> {
    uberblocks.first().map(|uberblock| uberblock.txg.get())
}

#[test]
fn any_label_of_a_single_disk_may_be_lost() {
    for lost in 0..LABEL_COUNT {
        simulate(async move {
            let sim = SimWorld::new(3);
            let tops = vec![leaf(&sim, "single", 20)];
            let pool = TestTree::create(sim, tops, 12).await;
            lose_label(&pool.disk("single"), lost);
            for txg in 4..8 {
                let written = sync(&pool.tree, txg, txg != 6).await;
                written.unwrap_or_else(|error| panic!("without label {lost}: {error}"));
                // Time for the look whether the device works.
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                assert_eq!(pool.tree.tops()[0].state().0, VdevState::Healthy, "{lost}");
            }
            let tree = pool.reopen().await;
            assert_eq!(tree.tops()[0].state().0, VdevState::Healthy, "{lost}");
            assert_eq!(newest(&tree.uberblocks().await), Some(7), "{lost}");
            let labels = tree.read_all_labels().await;
            let config = labels[&20].config(Txg::new(7)).expect("a configuration");
            assert_eq!(config.u64("txg"), Some(7), "{lost}");
            sync(&tree, 8, true).await.expect("written");
        });
    }
}

#[test]
fn a_configuration_that_no_label_of_a_pair_took_is_not_there() {
    simulate(async {
        let sim = SimWorld::new(3);
        let tops = vec![leaf(&sim, "single", 20)];
        let pool = TestTree::create(sim, tops, 12).await;
        sync(&pool.tree, 4, true).await.expect("written");
        lose_label(&pool.disk("single"), 0);
        lose_label(&pool.disk("single"), 2);
        let refused = sync(&pool.tree, 5, true).await;
        assert!(matches!(refused, Err(VdevError::NotDurable { .. })));
        // The look whether the device works lets go of it.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        // The uberblock comes after the first pair: the state before is the newest.
        let tree = pool.reopen().await;
        assert_eq!(tree.tops()[0].state().0, VdevState::Healthy);
        assert_eq!(newest(&tree.uberblocks().await), Some(4));
    });
}

#[test]
fn labels_with_a_bad_sector_each_tell_what_is_left_of_them() {
    simulate(async {
        let sim = SimWorld::new(3);
        let tops = vec![leaf(&sim, "single", 20)];
        let pool = TestTree::create(sim, tops, 12).await;
        for txg in 4..8 {
            sync(&pool.tree, txg, true).await.expect("written");
        }
        let disk = pool.disk("single");
        // Configurations in three of them, and the newest uberblock in the fourth.
        for (index, at) in [(0, 16 << 10), (1, 20 << 10), (2, 100 << 10)] {
            let start = label_offset(DISK_BYTES, index).expect("a label");
            disk.make_unreadable(start + at, 512);
        }
        let start = label_offset(DISK_BYTES, 3).expect("a label");
        disk.make_unreadable(start + (128 << 10) + 7 * 4096, 512);
        let tree = pool.reopen().await;
        assert_eq!(tree.tops()[0].state().0, VdevState::Healthy);
        assert_eq!(newest(&tree.uberblocks().await), Some(7));
    });
}

/// A disk with data, and three that hold intent logs.
async fn with_logs(sim: SimWorld) -> TestTree {
    let mut tops = vec![leaf(&sim, "data", 20)];
    for index in 0..3 {
        let mut log = leaf(&sim, &format!("log{index}"), 30 + index);
        log.set("is_log", 1u64);
        tops.push(log);
    }
    TestTree::create(sim, tops, 12).await
}

#[test]
fn a_pool_goes_on_without_all_of_its_logs() {
    simulate(async {
        let pool = with_logs(SimWorld::new(3)).await;
        sync(&pool.tree, 4, true).await.expect("written");
        for guid in 30..33 {
            let guid = Guid::new(guid);
            pool.tree.take_out(guid, false, false).expect("offline");
        }
        for txg in 5..9 {
            sync(&pool.tree, txg, false).await.expect("written");
        }
    });
}

#[test]
fn each_group_is_where_an_import_without_logs_finds_it() {
    simulate(async {
        let pool = with_logs(SimWorld::new(3)).await;
        sync(&pool.tree, 4, true).await.expect("written");
        for txg in 5..9 {
            sync(&pool.tree, txg, false).await.expect("written");
            let labels = pool.tree.read_all_labels().await;
            let best = labels[&20].best_uberblock(Txg::new(u64::MAX));
            let best = best.map(|uberblock| uberblock.txg.get());
            assert_eq!(best, Some(txg), "on the disk with data");
        }
    });
}

#[test]
fn an_uberblock_on_logs_alone_does_not_count() {
    simulate(async {
        let pool = with_logs(SimWorld::new(3)).await;
        sync(&pool.tree, 4, true).await.expect("written");
        let disk = pool.disk("data");
        for index in 0..LABEL_COUNT {
            let start = label_offset(DISK_BYTES, index).expect("a label");
            let fault = Fault::new(SimOp::Write, FaultEffect::Error);
            let ring = start + (128 << 10)..start + (256 << 10);
            disk.inject(fault.within(ring));
        }
        for has_config in [true, false] {
            let refused = sync(&pool.tree, 5, has_config).await;
            assert!(matches!(refused, Err(VdevError::NotDurable { .. })));
        }
    });
}
