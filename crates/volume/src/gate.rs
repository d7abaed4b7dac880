//! Keeps changes of one object in the order of their txgs.
//!
//! Many writes of a volume are under way at once, on blocks that differ. While a txg is being
//! closed some of them are still in it and others already in the next one. The gate lets those of
//! the next one begin when those of the one before have ended, so that nobody works on an older
//! state of the object than somebody did before (`dn_assigned_txg` in OpenZFS's
//! module/zfs/dmu_tx.c).
//!
//! Who waits here holds a later txg than those it waits for, and those wait for nobody here, so
//! there is no deadlock.

use format::Txg;
use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Default)]
struct State {
    txg: Txg,
    inside: usize,
}

/// The gate of one object.
#[derive(Default)]
pub(crate) struct TxgGate {
    state: Mutex<State>,
    emptied: Notify,
}

/// A place inside; free again when dropped. Drop it after the transaction's last change.
pub(crate) struct Inside<'a>(&'a TxgGate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.inside -= 1;
        if state.inside == 0 {
            self.0.emptied.notify_waiters();
        }
    }
}

impl TxgGate {
    /// Goes in with a transaction of `txg`. `None`: somebody is in with a later one, so join the
    /// open txg anew.
    pub(crate) async fn enter(&self, txg: Txg) -> Option<Inside<'_>> {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            // Counts from here on, so that no wake-up is lost.
            emptied.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.txg > txg {
                    return None;
                }
                if state.inside == 0 || state.txg == txg {
                    state.txg = txg;
                    state.inside += 1;
                    return Some(Inside(self));
                }
            }
            emptied.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_later_txg_waits_for_an_earlier_one_and_never_the_other_way() {
        let gate = TxgGate::default();
        let first = gate.enter(Txg::new(5)).now_or_never().unwrap().unwrap();
        let second = gate.enter(Txg::new(5)).now_or_never().unwrap().unwrap();
        let mut later = Box::pin(gate.enter(Txg::new(6)));
        assert!((&mut later).now_or_never().is_none());
        drop(first);
        assert!((&mut later).now_or_never().is_none());
        drop(second);
        let inside = (&mut later).now_or_never().unwrap().unwrap();
        assert!(gate.enter(Txg::new(5)).now_or_never().unwrap().is_none());
        drop(inside);
        assert!(
            gate.enter(Txg::new(5)).now_or_never().unwrap().is_none(),
            "5 is over for good"
        );
    }
}
