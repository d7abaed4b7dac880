//! How many connections there may be.
//!
//! Those of one address have a part of the places only, so that whoever opens connections and says
//! nothing does not keep others out. A client has as many as its mounts ask for (`nconnect`).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

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
    /// By [`origin`]; no entry is zero.
    by_origin: HashMap<IpAddr, usize>,
}

/// All places of a server.
#[derive(Debug, Default)]
pub(super) struct Places {
    counts: Mutex<Counts>,
}

/// A connection's place; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    origin: IpAddr,
}

/// What counts as one address: whoever has an IPv6 address has all 2^64 of its network.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
    }
}

impl Places {
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr) -> Result<Place, Full> {
        let origin = origin(peer);
        let mut counts = self.counts.lock();
        let of_origin = counts.by_origin.get(&origin).copied().unwrap_or(0);
        if counts.all >= CONNECTIONS_MAX {
            return Err(Full::Connections);
        }
        if of_origin >= OF_ADDRESS_MAX {
            return Err(Full::OfAddress);
        }
        counts.all += 1;
        counts.by_origin.insert(origin, of_origin + 1);
        Ok(Place {
            places: Arc::clone(self),
            origin,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.places.counts.lock();
        counts.all -= 1;
        if let Some(of_origin) = counts.by_origin.get_mut(&self.origin) {
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
        let places = Arc::new(Places::default());
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
