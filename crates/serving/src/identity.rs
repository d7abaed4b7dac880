//! What clients remember shared datasets by: iSCSI initiators by a unit's serial number and
//! designator (pages 80h and 83h), NFS clients by file handles and the filesystem's number.
//!
//! A dataset's guid is not enough. After `zpool split`, or where a pool's devices were copied, two
//! datasets have the same one and go different ways: multipath software takes them for one disk,
//! and handles of one reach files of the other. So the pool's guid belongs to an identity.
//!
//! Earlier releases told the dataset's guid alone, and clients that know a dataset by that must
//! find it again. The pool's property `millpond:identities` says for which datasets it still holds:
//! `GUID:TXG` are those that were created up to that transaction group, in the pool of that guid.
//! A copy has the property too, but another guid. It is set when a dataset of the pool is shared
//! for the first time: one that is shared as its pool comes was so before this release.

use std::sync::atomic::Ordering;

use api::Failure;
use pool::PoolError;
use serve_iscsi::LunIdentity;

use service::error::{from_dataset, from_pool};
use service::pools::OpenPool;

/// The pool's user property.
const PROPERTY: &str = "millpond:identities";

/// What clients remember a dataset by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The pool's guid; none where clients know the dataset without.
    pool: Option<u64>,
    /// The dataset's guid.
    dataset: u64,
}

impl Identity {
    /// In one number: the dataset's guid, or one of it and the pool's. Within a pool no two are the
    /// same.
    pub fn number(self) -> u64 {
        match self.pool {
            None => self.dataset,
            Some(pool) => mix(mix(pool) ^ self.dataset),
        }
    }

    /// As a unit says it. Designators begin with four bytes that are ours, and differ in the
    /// highest bit of the fifth by whether the pool's guid is in them.
    pub fn unit(self) -> LunIdentity {
        let mut naa = *b"\x60MILLPND\0\0\0\0\0\0\0\0";
        naa[8..].copy_from_slice(&self.number().to_be_bytes());
        let serial = match self.pool {
            None => format!("{:016x}", self.dataset),
            Some(pool) => {
                naa[4..8].copy_from_slice(&mix(pool).to_be_bytes()[..4]);
                naa[4] |= 0x80;
                format!("{pool:016x}{:016x}", self.dataset)
            }
        };
        LunIdentity::new(serial, naa)
    }
}

/// Spreads the bits of a number over all of another one: a bijection, so that what differs stays
/// different (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Which datasets clients know by their own guid alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownAlone {
    /// In the pool of this guid.
    pool: u64,
    /// Those that were created up to this transaction group.
    until_txg: u64,
}

impl KnownAlone {
    /// Reads the property; `None` is nobody's.
    fn parse(text: &str) -> Option<Self> {
        let (pool, until_txg) = text.split_once(':')?;
        Some(Self {
            pool: pool.parse().ok()?,
            until_txg: until_txg.parse().ok()?,
        })
    }

    fn has(self, pool: u64, createtxg: u64) -> bool {
        self.pool == pool && createtxg <= self.until_txg
    }
}

/// What clients remember a dataset by. The first time that this is asked of a pool, it is noted in
/// it what they know already, which is on disk when this is answered.
///
/// # Errors
/// Where the dataset cannot be found, or nothing can be noted: what was told then would be another
/// identity at the next start.
pub async fn of(open: &OpenPool, name: &str) -> Result<Identity, Failure> {
    let doing = format!("cannot tell clients which dataset '{name}' is");
    let info = open.pool.dsl().directories().lookup(name).await;
    let info = info.map_err(|error| from_dataset(&doing, &error))?;
    let known = known_alone(open).await;
    let known = known.map_err(|error| from_pool(&doing, &error))?;
    let pool = open.pool.guid().get();
    let is_known = known.is_some_and(|known| known.has(pool, info.createtxg.get()));
    Ok(Identity {
        pool: (!is_known).then_some(pool),
        dataset: info.guid.get(),
    })
}

async fn known_alone(open: &OpenPool) -> Result<Option<KnownAlone>, PoolError> {
    if let Some(property) = open.pool.properties().get(PROPERTY) {
        return Ok(KnownAlone::parse(&property.value));
    }
    let mut known = KnownAlone {
        pool: open.pool.guid().get(),
        until_txg: 0,
    };
    if !open.is_settled.load(Ordering::Acquire) {
        known.until_txg = open.pool.synced_txg().get();
    }
    if !open.pool.is_read_only() {
        let value = format!("{}:{}", known.pool, known.until_txg);
        open.pool.properties().set(PROPERTY, &value).await?;
    }
    Ok(Some(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(pool: Option<u64>, dataset: u64) -> Identity {
        Identity { pool, dataset }
    }

    /// Goal: a copy of a dataset in another pool is another one to all clients, and one that they
    /// know from before is told as it was.
    #[test]
    fn copies_have_identities_of_their_own() {
        let all = [
            identity(None, 7),
            identity(None, 8),
            identity(Some(1), 7),
            identity(Some(1), 8),
            identity(Some(2), 7),
        ];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert_ne!(one.number(), other.number());
                assert_ne!(one.unit().naa, other.unit().naa);
                assert_ne!(one.unit().serial, other.unit().serial);
            }
        }
        let before = identity(None, 0x0123_4567_89ab_cdef).unit();
        assert_eq!(before.serial, "0123456789abcdef");
        assert_eq!(before.naa, *b"\x60MILLPND\x01\x23\x45\x67\x89\xab\xcd\xef");
    }

    #[test]
    fn what_clients_know_is_for_one_pool_and_what_was_there() {
        let known = KnownAlone::parse("18446744073709551615:100").unwrap();
        assert!(known.has(u64::MAX, 100));
        assert!(!known.has(u64::MAX, 101) && !known.has(5, 100));
        for none in ["none", "", "1", "1:", ":1", "1:2:3", "-1:2"] {
            assert_eq!(KnownAlone::parse(none), None, "{none}");
        }
    }
}
