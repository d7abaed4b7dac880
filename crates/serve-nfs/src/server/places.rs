//! How many connections there may be.
//!
//! Those of one address have a part of the places only, so that whoever opens connections and says
//! nothing does not keep others out. A client has as many as its mounts ask for (`nconnect`). They
//! share what memory their address may have.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

use super::Budget;

/// Most connections at the same time.
const CONNECTIONS_MAX: usize = 4096;
/// Most of them from one address.
const OF_ADDRESS_MAX: usize = 256;

/// Why a connection finds no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    #[error("there are {CONNECTIONS_MAX} connections already")]
    Connections,
    #[error("there are {OF_ADDRESS_MAX} connections from its address already")]
    OfAddress,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// By [`origin`], and what each may have; no count is zero.
    by_origin: HashMap<IpAddr, (usize, Budget)>,
}

/// All places of a server.
#[derive(Debug)]
pub(super) struct Places {
    counts: Mutex<Counts>,
    /// What all may have.
    budget: Budget,
}

/// A connection's place; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    origin: IpAddr,
    budget: Budget,
}

impl Place {
    /// The memory of all connections of its address.
    pub(super) fn budget(&self) -> Budget {
        self.budget.clone()
    }
}

/// What counts as one address: whoever has an IPv6 address has all 2^64 of its network.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
    }
}

impl Places {
    pub(super) fn new(budget: Budget) -> Self {
        let counts = Mutex::default();
        Self { counts, budget }
    }

    pub(super) fn take(self: &Arc<Self>, peer: IpAddr) -> Result<Place, Full> {
        let origin = origin(peer);
        let mut counts = self.counts.lock();
        if counts.all >= CONNECTIONS_MAX {
            return Err(Full::Connections);
        }
        let known = counts.by_origin.entry(origin);
        let (of_origin, budget) = known.or_insert_with(|| (0, self.budget.of_address()));
        if *of_origin >= OF_ADDRESS_MAX {
            return Err(Full::OfAddress);
        }
        *of_origin += 1;
        let budget = budget.clone();
        counts.all += 1;
        Ok(Place {
            places: Arc::clone(self),
            origin,
            budget,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.places.counts.lock();
        counts.all -= 1;
        if let Some((of_origin, _)) = counts.by_origin.get_mut(&self.origin) {
            *of_origin -= 1;
            if *of_origin == 0 {
                counts.by_origin.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_places_to_others() {
        let places = Arc::new(Places::new(Budget::new(0)));
        let take = |address: &str| places.take(address.parse().unwrap());
        let mut kept: Vec<Place> = (0..OF_ADDRESS_MAX)
            .map(|_| take("10.0.0.1").unwrap())
            .collect();
        assert_eq!(take("::ffff:10.0.0.1").unwrap_err(), Full::OfAddress);
        kept.push(take("10.0.0.2").unwrap());
        kept.remove(0);
        take("10.0.0.1").unwrap();
        drop(kept);
        let counts = places.counts.lock();
        assert!(counts.all == 0 && counts.by_origin.is_empty());
    }
}
