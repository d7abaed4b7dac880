//! What requests and answers have of the budget (see the head of `server`).

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is not worth giving back before all is, in bytes.
const REST_BYTES_MIN: usize = 4 << 10;

/// Memory that is given back when this is dropped: an address's, and the server's.
pub(super) struct Paid {
    of_address: OwnedSemaphorePermit,
    of_server: OwnedSemaphorePermit,
}

impl Paid {
    /// Pays where that can be done at once. Whoever waits already comes first: there is nothing
    /// left for others then.
    pub(super) fn try_pay(
        address: &Arc<Semaphore>,
        server: &Arc<Semaphore>,
        bytes: u32,
    ) -> Option<Self> {
        let of_address = Arc::clone(address).try_acquire_many_owned(bytes).ok()?;
        let of_server = Arc::clone(server).try_acquire_many_owned(bytes).ok()?;
        Some(Self {
            of_address,
            of_server,
        })
    }

    /// Pays, or waits until it can.
    pub(super) async fn pay(address: &Arc<Semaphore>, server: &Arc<Semaphore>, bytes: u32) -> Self {
        if let Some(paid) = Self::try_pay(address, server, bytes) {
            return paid;
        }
        // The address's first: who waits for its own does not hold what others wait for.
        let of_address = take(address, bytes).await;
        Self {
            of_address,
            of_server: take(server, bytes).await,
        }
    }

    /// Gives back what is beyond `bytes`, where that is much.
    pub(super) fn keep(&mut self, bytes: usize) {
        for permits in [&mut self.of_address, &mut self.of_server] {
            let rest = permits.num_permits().saturating_sub(bytes);
            if rest >= REST_BYTES_MIN {
                drop(permits.split(rest));
            }
        }
    }
}

async fn take(semaphore: &Arc<Semaphore>, bytes: u32) -> OwnedSemaphorePermit {
    let permits = Arc::clone(semaphore).acquire_many_owned(bytes).await;
    permits.expect("budgets are never closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: who waits for memory gets it before those who come later, also where these would take
    /// it without waiting; and much that is not needed is given back at once.
    #[tokio::test]
    async fn who_waits_is_paid_first() {
        let budget = Arc::new(Semaphore::new(100_000));
        let own = Arc::new(Semaphore::new(100_000));
        let mut first = Paid::pay(&own, &budget, 60_000).await;
        let mut waiting = Box::pin(Paid::pay(&own, &budget, 50_000));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        assert!(Paid::try_pay(&own, &budget, 1000).is_none());
        first.keep(59_000);
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        first.keep(10_000);
        let second = waiting.await;
        assert!(Paid::try_pay(&own, &budget, 1000).is_some());
        drop((first, second));
        assert_eq!(budget.available_permits(), 100_000);
        assert_eq!(own.available_permits(), 100_000);
    }
}
