//! How many connections there may be, and how many of them may be strangers.
//!
//! A stranger is a connection that has shown nothing yet, as an iSCSI session before its login.
//! Anybody can make one, so strangers have a part of the places, and those from one address a part
//! of these: opening connections and saying nothing keeps neither the sessions that there are from
//! living nor others from coming in. For how long a connection may be a stranger is for the server
//! to limit. Where clients never log in (NFS), all connections are strangers.
//!
//! The strangers of one address share a value, which the server makes for the first of them: what
//! memory they may have together, for example.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// How many connections there may be at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceLimits {
    /// All.
    pub connections: usize,
    /// Strangers among them.
    pub strangers: usize,
    /// Strangers from one address.
    pub strangers_of_address: usize,
}

/// Why a connection finds no place. Shown in the log only: nobody can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// All places are taken.
    #[error("there are {0} connections already")]
    Connections(usize),
    /// All places of strangers are.
    #[error("{0} connections have not logged in")]
    Strangers(usize),
    /// All places of strangers from this address are.
    #[error("its address has {0} connections that have not logged in")]
    StrangersOfAddress(usize),
}

#[derive(Debug)]
struct Counts<T> {
    connections: usize,
    strangers: usize,
    /// Strangers by [`origin`], and what they share; no count is zero.
    by_origin: HashMap<IpAddr, (usize, T)>,
}

/// All places of a server.
pub struct Places<T> {
    limits: PlaceLimits,
    counts: Mutex<Counts<T>>,
    make: Box<dyn Fn() -> T + Send + Sync>,
}

/// A connection's place; dropping it gives it back.
pub struct Place<T> {
    places: Arc<Places<T>>,
    /// Where the connection comes from, while it is a stranger.
    stranger_of: Option<IpAddr>,
    shared: T,
}

/// Which address counts for the limits: an IPv6 one stands for the 2^64 of its network, which are
/// all one client's.
pub fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
    }
}

impl<T: Clone> Places<T> {
    /// With what strangers of one address share, made by `make` for the first of them.
    pub fn new(limits: PlaceLimits, make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self {
            limits,
            counts: Mutex::new(Counts {
                connections: 0,
                strangers: 0,
                by_origin: HashMap::new(),
            }),
            make: Box::new(make),
        }
    }

    /// A place for a connection, which is a stranger at first.
    ///
    /// # Errors
    /// [`Full`].
    pub fn take(self: &Arc<Self>, peer: IpAddr) -> Result<Place<T>, Full> {
        let origin = origin(peer);
        let limits = self.limits;
        let mut counts = self.counts.lock();
        if counts.connections >= limits.connections {
            return Err(Full::Connections(limits.connections));
        }
        if counts.strangers >= limits.strangers {
            return Err(Full::Strangers(limits.strangers));
        }
        let known = counts.by_origin.get(&origin);
        if known.is_some_and(|(of_origin, _)| *of_origin >= limits.strangers_of_address) {
            return Err(Full::StrangersOfAddress(limits.strangers_of_address));
        }
        counts.connections += 1;
        counts.strangers += 1;
        let known = counts.by_origin.entry(origin);
        let (of_origin, shared) = known.or_insert_with(|| (0, (self.make)()));
        *of_origin += 1;
        Ok(Place {
            places: self.clone(),
            stranger_of: Some(origin),
            shared: shared.clone(),
        })
    }
}

impl<T> Place<T> {
    /// What the strangers of the connection's address share.
    pub fn shared(&self) -> &T {
        &self.shared
    }

    /// The connection is no stranger any more.
    pub fn is_known(&mut self) {
        let Some(origin) = self.stranger_of.take() else {
            return;
        };
        let mut counts = self.places.counts.lock();
        counts.strangers -= 1;
        if let Some((of_origin, _)) = counts.by_origin.get_mut(&origin) {
            *of_origin -= 1;
            if *of_origin == 0 {
                counts.by_origin.remove(&origin);
            }
        }
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        self.is_known();
        self.places.counts.lock().connections -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PlaceLimits = PlaceLimits {
        connections: 4096,
        strangers: 512,
        strangers_of_address: 64,
    };

    fn places() -> Arc<Places<()>> {
        Arc::new(Places::new(LIMITS, || ()))
    }

    fn address(n: usize) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + n as u32).into())
    }

    fn refusal(places: &Arc<Places<()>>, n: usize) -> Full {
        places.take(address(n)).err().expect("no place")
    }

    #[test]
    fn strangers_of_one_address_leave_places_to_others() {
        let places = places();
        let take = |n| places.take(address(n));
        let mut kept: Vec<Place<()>> = (0..LIMITS.strangers_of_address)
            .map(|_| take(1).unwrap())
            .collect();
        assert_eq!(refusal(&places, 1), Full::StrangersOfAddress(64));
        kept.push(take(2).unwrap());
        // One that logs in is no stranger any more.
        kept[0].is_known();
        kept.push(take(1).unwrap());
        assert_eq!(refusal(&places, 1), Full::StrangersOfAddress(64));
        drop(kept);
        let counts = places.counts.lock();
        assert_eq!((counts.connections, counts.strangers), (0, 0));
        assert!(counts.by_origin.is_empty());
    }

    #[test]
    fn all_strangers_together_leave_places_to_who_has_logged_in() {
        let places = places();
        let mut known = Vec::new();
        for n in 0..LIMITS.connections - LIMITS.strangers {
            let mut place = places.take(address(n)).unwrap();
            place.is_known();
            known.push(place);
        }
        let strangers: Vec<Place<()>> = (0..LIMITS.strangers)
            .map(|n| places.take(address(n)).unwrap())
            .collect();
        assert_eq!(refusal(&places, 9), Full::Connections(4096));
        known.pop();
        assert_eq!(refusal(&places, 9), Full::Strangers(512));
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

    /// Goal: connections of one address share, for as long as there is one of them.
    #[test]
    fn strangers_of_one_address_share_a_value() {
        let places = Arc::new(Places::new(LIMITS, || Arc::new(())));
        let take = |text: &str| places.take(text.parse().unwrap()).expect("a place");
        let (one, two) = (take("10.0.0.1"), take("::ffff:10.0.0.1"));
        assert!(Arc::ptr_eq(one.shared(), two.shared()));
        assert!(!Arc::ptr_eq(one.shared(), take("10.0.0.2").shared()));
        let kept = one.shared().clone();
        drop((one, two));
        assert!(!Arc::ptr_eq(&kept, take("10.0.0.1").shared()));
    }
}
