//! Tests of transaction groups.

use std::time::Duration;

use device::sim::SimWorld;

use super::*;
use crate::testing::simulate;

fn manager(limits: TxgLimits) -> Arc<TxgManager> {
    TxgManager::new(SimWorld::new(1).world(), Txg::new(10), limits)
}

/// A sync loop that takes `write` per txg.
fn sync_loop(manager: &Arc<TxgManager>, write: Duration) {
    let manager = manager.clone();
    tokio::spawn(async move {
        loop {
            match manager.wait_for_work().await {
                Work::Stopped => return,
                Work::Timeout { assigned: false } => {
                    manager.skip_timeout();
                    continue;
                }
                _ => {}
            }
            let txg = manager.quiesce().await;
            tokio::time::sleep(write).await;
            manager.synced(txg);
        }
    });
}

#[test]
fn a_txg_is_closed_only_when_nobody_holds_it() {
    simulate(async {
        let manager = manager(TxgLimits::default());
        let first = manager.assign(0).await.expect("open");
        let second = manager.assign(0).await.expect("open");
        assert_eq!((first.txg(), second.txg()), (Txg::new(11), Txg::new(11)));
        let closing = tokio::spawn({
            let manager = manager.clone();
            async move { manager.quiesce().await }
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!closing.is_finished());
        // Newcomers wait for the next one.
        assert!(manager.try_assign(0).is_none());
        let late = tokio::spawn({
            let manager = manager.clone();
            async move { manager.assign(0).await.map(|tx| tx.txg()) }
        });
        drop(first);
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!closing.is_finished() && !late.is_finished());
        drop(second);
        assert_eq!(closing.await.expect("no panic"), Txg::new(11));
        assert_eq!(late.await.expect("no panic").expect("open"), Txg::new(12));
        assert_eq!(manager.syncing_txg(), Some(Txg::new(11)));
        manager.synced(Txg::new(11));
        assert_eq!(
            (manager.synced_txg(), manager.open_txg()),
            (Txg::new(11), Txg::new(12))
        );
    });
}

#[test]
fn giving_up_to_close_a_txg_leaves_it_open() {
    simulate(async {
        let manager = manager(TxgLimits::default());
        let held = manager.assign(0).await.expect("open");
        let closing = tokio::time::timeout(Duration::from_secs(1), manager.quiesce()).await;
        assert!(closing.is_err());
        let again = manager.assign(0).await.expect("still open");
        assert_eq!(again.txg(), held.txg());
    });
}

#[test]
fn waiting_for_a_txg_makes_it_sync() {
    simulate(async {
        let manager = manager(TxgLimits::default());
        sync_loop(&manager, Duration::from_millis(50));
        let started = tokio::time::Instant::now();
        let tx = manager.assign(0).await.expect("open");
        let txg = tx.txg();
        drop(tx);
        manager.wait_synced(txg).await.expect("synced");
        assert!(started.elapsed() < Duration::from_secs(1));
        // A future one takes as many as it takes.
        manager
            .wait_synced(Txg::new(txg.get() + 3))
            .await
            .expect("synced");
        manager
            .wait_open(Txg::new(txg.get() + 6))
            .await
            .expect("open");
        assert!(manager.open_txg() >= Txg::new(txg.get() + 6));
        // Nobody wants anything: the timeout closes what was used, and only that.
        let idle = manager.open_txg();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(manager.open_txg(), idle);
        let tx = manager.assign(0).await.expect("open");
        drop(tx);
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(manager.synced_txg(), idle);
    });
}

#[test]
fn much_dirty_data_delays_and_then_stops_writers() {
    simulate(async {
        let limits = TxgLimits {
            dirty_max_bytes: 100 << 20,
            ..TxgLimits::default()
        };
        let manager = manager(limits);
        let clock = tokio::time::Instant::now;
        let write = async |bytes: u64| {
            let started = clock();
            let tx = manager.assign(bytes).await.expect("open");
            tx.dirtied(bytes);
            drop(tx);
            started.elapsed()
        };
        for _ in 0..60 {
            assert_eq!(write(1 << 20).await, Duration::ZERO);
        }
        assert_eq!(manager.dirty_bytes(), 60 << 20);
        assert!(manager.try_assign(0).is_none());
        let mut before = Duration::ZERO;
        for percent in 61..=98 {
            let delay = write(1 << 20).await;
            assert!(
                delay >= before || delay < Duration::from_millis(2),
                "{percent}: {delay:?} after {before:?}"
            );
            assert!(delay <= Duration::from_millis(101), "{percent}: {delay:?}");
            before = delay;
        }
        assert!(before >= Duration::from_millis(3), "{before:?}");
        // Full: waits until something is written.
        write(1 << 20).await;
        write(1 << 20).await;
        let blocked = tokio::spawn({
            let manager = manager.clone();
            async move { manager.assign(1 << 20).await.map(|tx| tx.txg()) }
        });
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!blocked.is_finished());
        assert_eq!(manager.wait_for_work().await, Work::Wanted);
        let closed = manager.quiesce().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!blocked.is_finished());
        manager.sync_progress(closed, 50 << 20);
        assert_eq!(
            blocked.await.expect("no panic").expect("open"),
            closed.next()
        );
        manager.synced(closed);
        assert_eq!(manager.dirty_bytes(), 0);
    });
}

#[test]
fn a_huge_write_gets_through_alone() {
    simulate(async {
        let limits = TxgLimits {
            dirty_max_bytes: 1 << 20,
            ..TxgLimits::default()
        };
        let manager = manager(limits);
        let tx = manager.assign(1 << 30).await.expect("open");
        tx.dirtied(1 << 30);
    });
}

#[test]
fn dirty_data_closes_the_txg() {
    simulate(async {
        let manager = manager(TxgLimits {
            dirty_max_bytes: 100 << 20,
            ..TxgLimits::default()
        });
        let waiting = tokio::spawn({
            let manager = manager.clone();
            async move { manager.wait_for_work().await }
        });
        let tx = manager.assign(0).await.expect("open");
        tx.dirtied(29 << 20);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        tx.dirtied(2 << 20);
        assert_eq!(waiting.await.expect("no panic"), Work::Wanted);
    });
}

#[test]
fn whole_blocks_close_the_txg_sooner_than_changed_ones() {
    simulate(async {
        let manager = manager(TxgLimits {
            dirty_max_bytes: 1 << 30,
            ..TxgLimits::default()
        });
        manager.set_dirty_max_bytes(10 << 30);
        let wait = || {
            let manager = manager.clone();
            tokio::spawn(async move { manager.wait_for_work().await })
        };
        let waiting = wait();
        let tx = manager.assign(0).await.expect("open");
        tx.dirtied(1 << 30);
        tx.dirtied_whole(99 << 20);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        assert_eq!(manager.dirty_bytes(), (1 << 30) + (99 << 20));
        tx.dirtied_whole(2 << 20);
        assert_eq!(waiting.await.expect("no panic"), Work::Wanted);
        // The next one begins with nothing.
        drop(tx);
        let closed = manager.quiesce().await;
        manager.synced(closed);
        assert_eq!(manager.dirty_bytes(), 0);
        let waiting = wait();
        let tx = manager.assign(0).await.expect("open");
        tx.dirtied_whole(99 << 20);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        // Less may be dirty from now on.
        manager.set_dirty_max_bytes(300 << 20);
        tx.dirtied(1);
        assert_eq!(waiting.await.expect("no panic"), Work::Wanted);
    });
}

#[test]
fn suspension_holds_back_or_refuses() {
    simulate(async {
        let manager = manager(TxgLimits::default());
        let error = ZioError::Suspended {
            reason: "a test".to_owned(),
        };
        manager.set_suspended(Some(error.clone()), FailMode::Continue);
        assert!(matches!(
            manager.assign(0).await,
            Err(ZioError::Suspended { .. })
        ));
        manager.set_suspended(Some(error), FailMode::Wait);
        let waiting = tokio::spawn({
            let manager = manager.clone();
            async move { manager.assign(0).await.map(|tx| tx.txg()) }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished());
        manager.set_suspended(None, FailMode::Wait);
        assert!(waiting.await.expect("no panic").is_ok());
    });
}

#[test]
fn stopping_ends_every_wait() {
    simulate(async {
        let manager = manager(TxgLimits::default());
        let waits = [
            tokio::spawn({
                let manager = manager.clone();
                async move { manager.wait_synced(Txg::new(50)).await }
            }),
            tokio::spawn({
                let manager = manager.clone();
                async move { manager.wait_open(Txg::new(50)).await }
            }),
        ];
        let work = tokio::spawn({
            let manager = manager.clone();
            async move {
                loop {
                    if manager.wait_for_work().await == Work::Stopped {
                        return Work::Stopped;
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        manager.stop(ZioError::Closing);
        for wait in waits {
            assert!(matches!(
                wait.await.expect("no panic"),
                Err(ZioError::Closing)
            ));
        }
        assert_eq!(work.await.expect("no panic"), Work::Stopped);
        assert!(matches!(manager.assign(0).await, Err(ZioError::Closing)));
    });
}

#[test]
fn a_syncing_tx_holds_nothing() {
    simulate(async {
        let manager = manager(TxgLimits::default());
        let txg = manager.quiesce().await;
        let tx = Tx::syncing(txg);
        assert!(tx.is_syncing());
        tx.dirtied(1 << 20);
        assert_eq!(manager.dirty_bytes(), 0);
        manager.synced(txg);
        drop(tx);
    });
}
