//! Labels against crashes, wrong devices and damage.

use device::sim::PowerCut;
use format::Uberblock;

use super::*;

fn uberblock(txg: u64) -> Uberblock {
    Uberblock {
        endian: format::Endian::Little,
        version: 5000,
        txg: Txg::new(txg),
        guid_sum: Guid::new(0),
        timestamp_seconds: txg,
        root: format::BlockPointer::HOLE,
        software_version: 5000,
        multihost: None,
        checkpoint_txg: Txg::ZERO,
        reflow_offset_bytes: 0,
        reflow_state: format::ReflowScratchState::NotInUse,
    }
}

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
