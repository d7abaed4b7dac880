//! Names of pools that are being made or taken in: for as long as that takes, nobody else gets
//! them.
//!
//! A pool is known to the server only when it is open. Without this two requests could open the
//! same devices, or two pools of one name, of which the second would put the first out of the
//! server's hands with what is mounted of it. OpenZFS holds `spa_namespace_lock` meanwhile, which
//! stops all pools when one waits for its devices; here only those wait that want the same.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What is spoken for: names, and guids in digits (no pool's name begins with one).
#[derive(Default)]
pub struct PoolNames {
    held: Mutex<Held>,
    changed: Notify,
}

#[derive(Default)]
struct Held {
    keys: BTreeSet<String>,
    closed: bool,
}

/// Names that are spoken for until this is dropped.
pub struct Claim<'a> {
    names: &'a PoolNames,
    keys: Vec<String>,
    /// Whether somebody else had one of them before: what was found out about the pool may be over.
    pub waited: bool,
}

impl PoolNames {
    /// Takes all of `keys` if nobody has any of them, and waits for nobody.
    pub fn try_claim(&self, keys: Vec<String>) -> Option<Claim<'_>> {
        let mut held = self.held.lock();
        if held.closed || keys.iter().any(|key| held.keys.contains(key)) {
            return None;
        }
        held.keys.extend(keys.iter().cloned());
        drop(held);
        Some(Claim {
            names: self,
            keys,
            waited: false,
        })
    }

    /// Waits until nobody else has any of `keys`, and takes all. `None` once the server leaves.
    pub async fn claim(&self, keys: Vec<String>) -> Option<Claim<'_>> {
        let mut waited = false;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut held = self.held.lock();
                if held.closed {
                    return None;
                }
                if !keys.iter().any(|key| held.keys.contains(key)) {
                    held.keys.extend(keys.iter().cloned());
                    return Some(Claim {
                        names: self,
                        keys,
                        waited,
                    });
                }
            }
            waited = true;
            changed.await;
        }
    }

    /// Gives nobody a name any more, and waits until all are given back.
    pub async fn close(&self) {
        self.held.lock().closed = true;
        self.changed.notify_waiters();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.held.lock().keys.is_empty() {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut held = self.names.held.lock();
        for key in &self.keys {
            held.keys.remove(key);
        }
        drop(held);
        self.names.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn keys(keys: &[&str]) -> Vec<String> {
        keys.iter().map(|&key| key.to_owned()).collect()
    }

    /// Goal: only who wants the same waits; once closed nobody gets anything, and that waits for
    /// who has something.
    #[tokio::test]
    async fn who_wants_the_same_waits() {
        let names = PoolNames::default();
        let first = names.claim(keys(&["tank", "1"])).await.expect("free");
        assert!(!first.waited);
        drop(names.claim(keys(&["other", "2"])).await.expect("free"));
        assert!(names.try_claim(keys(&["renamed", "1"])).is_none());
        drop(names.try_claim(keys(&["renamed", "2"])).expect("free"));
        let second = async {
            let claim = names.claim(keys(&["renamed", "1"])).await.expect("free");
            assert!(claim.waited);
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let third = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(first);
            tokio::task::yield_now().await;
            names.close().await;
            assert!(names.held.lock().keys.is_empty());
            assert!(names.claim(keys(&["new"])).await.is_none());
        };
        tokio::join!(second, third);
    }
}
