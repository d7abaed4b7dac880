//! How many connections there may be, and how many of them may be strangers.
//!
//! A stranger is a connection that has not logged in to a target: it is in its login, or a
//! discovery session. Anybody can make one, so strangers have few places, and those from one
//! address only a part of these: whoever opens connections and says nothing keeps neither the
//! sessions that there are from living nor others from logging in. How long a connection may be
//! a stranger is limited too (see `connection`).

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Most connections at the same time.
const CONNECTIONS_MAX: usize = 4096;
/// Most strangers among them.
const STRANGERS_MAX: usize = 512;
/// Most strangers from one address.
const STRANGERS_OF_ADDRESS_MAX: usize = 64;

/// Why a connection finds no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    #[error("there are {CONNECTIONS_MAX} connections already")]
    Connections,
    #[error("{STRANGERS_MAX} connections have not logged in")]
    Strangers,
    #[error("{STRANGERS_OF_ADDRESS_MAX} connections from its address have not logged in")]
    StrangersOfAddress,
}

#[derive(Debug, Default)]
struct Counts {
    connections: usize,
    strangers: usize,
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
    /// Where the connection comes from, while it is a stranger.
    stranger_of: Option<IpAddr>,
}

/// What counts as one address: whoever has an IPv6 address has all 2^64 of its network.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
    }
}

impl Places {
    /// A place for a connection, which is a stranger at first.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr) -> Result<Place, Full> {
        let origin = origin(peer);
        let mut counts = self.counts.lock();
        let of_origin = counts.by_origin.get(&origin).copied().unwrap_or(0);
        if counts.connections >= CONNECTIONS_MAX {
            return Err(Full::Connections);
        }
        if counts.strangers >= STRANGERS_MAX {
            return Err(Full::Strangers);
        }
        if of_origin >= STRANGERS_OF_ADDRESS_MAX {
            return Err(Full::StrangersOfAddress);
        }
        counts.connections += 1;
        counts.strangers += 1;
        counts.by_origin.insert(origin, of_origin + 1);
        Ok(Place {
            places: self.clone(),
            stranger_of: Some(origin),
        })
    }
}

impl Place {
    /// The connection has logged in to a target.
    pub(super) fn is_known(&mut self) {
        let Some(origin) = self.stranger_of.take() else {
            return;
        };
        let mut counts = self.places.counts.lock();
        counts.strangers -= 1;
        if let Some(of_origin) = counts.by_origin.get_mut(&origin) {
            *of_origin -= 1;
            if *of_origin == 0 {
                counts.by_origin.remove(&origin);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.is_known();
        self.places.counts.lock().connections -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: usize) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + n as u32).into())
    }

    #[test]
    fn strangers_of_one_address_leave_places_to_others() {
        let places = Arc::new(Places::default());
        let take = |n| places.take(address(n));
        let mut kept: Vec<Place> = (0..STRANGERS_OF_ADDRESS_MAX)
            .map(|_| take(1).unwrap())
            .collect();
        assert_eq!(take(1).unwrap_err(), Full::StrangersOfAddress);
        kept.push(take(2).unwrap());
        // One that logs in is no stranger any more.
        kept[0].is_known();
        kept.push(take(1).unwrap());
        assert_eq!(take(1).unwrap_err(), Full::StrangersOfAddress);
        drop(kept);
        let counts = places.counts.lock();
        assert_eq!((counts.connections, counts.strangers), (0, 0));
        assert!(counts.by_origin.is_empty());
    }

    #[test]
    fn all_strangers_together_leave_places_to_who_has_logged_in() {
        let places = Arc::new(Places::default());
        let mut known = Vec::new();
        for n in 0..CONNECTIONS_MAX - STRANGERS_MAX {
            let mut place = places.take(address(n)).unwrap();
            place.is_known();
            known.push(place);
        }
        let strangers: Vec<Place> = (0..STRANGERS_MAX)
            .map(|n| places.take(address(n)).unwrap())
            .collect();
        assert_eq!(places.take(address(9)).unwrap_err(), Full::Connections);
        known.pop();
        assert_eq!(places.take(address(9)).unwrap_err(), Full::Strangers);
        drop(strangers);
        places.take(address(9)).unwrap();
    }

    #[test]
    fn a_network_of_ipv6_is_one_origin() {
        let parse = |text: &str| origin(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:1"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:10.0.0.1"), parse("10.0.0.1"));
    }
}
