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
//! A copy has the property too, but another guid. Where an imported pool does not have it, it is
//! set before anything of the pool is mounted or shared, and names all datasets that are there: any
//! of them may have been shared by an earlier release, also where it cannot be for now. Of a pool
//! that was created here clients know nothing; there it is set with the first share. Where it
//! cannot be set, as the pool is read-only or suspended, it holds all the same until the pool goes.

use api::{Failure, FailureKind};
use pool::PoolError;
use serve_iscsi::LunIdentity;

use service::error::{from_dataset, from_pool};
use service::pools::{Arrival, OpenPool};

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

/// What clients remember a dataset by. What they know already is noted in the pool, and on disk,
/// when this is answered.
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

/// Notes what clients may know of a pool that was imported, where that is not noted yet.
///
/// # Errors
/// Where it cannot be stored. It holds all the same, and is stored with the next share.
pub async fn note(open: &OpenPool) -> Result<(), PoolError> {
    match open.arrival {
        Arrival::Created => Ok(()),
        Arrival::Imported | Arrival::AtStart => known_alone(open).await.map(drop),
    }
}

/// Checks a value of a pool's property before somebody sets it by hand.
///
/// # Errors
/// Where it would have the property forgotten: at the next import all datasets were taken for
/// those that clients know by their own guid.
pub fn check_property(property: &str, value: &str) -> Result<(), Failure> {
    if property != PROPERTY || value == "none" || KnownAlone::parse(value).is_some() {
        return Ok(());
    }
    let message = format!(
        "'{value}' does not say which datasets clients know: use GUID:TXG, or 'none', after which \
         they have to find all of the pool's datasets anew"
    );
    Err(Failure::new(FailureKind::Invalid, message))
}

async fn known_alone(open: &OpenPool) -> Result<Option<KnownAlone>, PoolError> {
    if let Some(property) = open.pool.properties().get(PROPERTY) {
        return Ok(KnownAlone::parse(&property.value));
    }
    let known = KnownAlone {
        pool: open.pool.guid().get(),
        until_txg: match open.arrival {
            Arrival::Created => 0,
            Arrival::Imported | Arrival::AtStart => open.arrived_at.get(),
        },
    };
    if !open.pool.is_read_only() {
        let value = format!("{}:{}", known.pool, known.until_txg);
        open.pool.properties().set(PROPERTY, &value).await?;
    }
    Ok(Some(known))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use access::Access;
    use device::World;
    use filesystem::ZplInit;
    use parking_lot::Mutex;
    use pool::{
        CreateSpec, FeatureChoice, HostIdentity, ImportSpec, LeafSpec, Pool, ScanSpec, VdevClass,
        VdevLayout, VdevSpec,
    };
    use service::background::Background;
    use service::events::Events;
    use service::jobs::Jobs;

    use super::*;

    const POOL_BYTES: u64 = 256 << 20;

    fn host() -> HostIdentity {
        HostIdentity {
            hostid: 0,
            hostname: "test".into(),
        }
    }

    fn opened(world: &World, pool: Arc<Pool>, arrival: Arrival) -> OpenPool {
        let events = Arc::new(Events::default());
        let jobs = Jobs::new(Arc::clone(&events));
        OpenPool {
            arrival,
            arrived_at: pool.synced_txg(),
            admin: Arc::default(),
            background: Background::new(&jobs, &events),
            access: Arc::new(Access::new(Arc::clone(pool.dsl()), world.clone())),
            next_guid: Mutex::new(None),
            is_settled: true.into(),
            receives: Arc::default(),
            pool,
        }
    }

    async fn created(world: &World, path: &str) -> OpenPool {
        let spec = CreateSpec {
            name: "tank".into(),
            vdevs: vec![VdevSpec {
                layout: VdevLayout::Leaf(LeafSpec {
                    path: path.into(),
                    is_file: true,
                }),
                class: VdevClass::Normal,
            }],
            properties: Vec::new(),
            features: FeatureChoice::All,
            root_properties: Vec::new(),
            root_init: Arc::new(ZplInit::new()),
            altroot: None,
            force: false,
            host: host(),
            events: None,
            cache: None,
        };
        let pool = Pool::create(world, spec).await.expect("created");
        opened(world, pool, Arrival::Created)
    }

    async fn imported(world: &World, path: &str, read_only: bool) -> OpenPool {
        let spec = ScanSpec {
            paths: vec![path.into()],
            ..ScanSpec::default()
        };
        let mut found = pool::scan(world, &spec).await.expect("found");
        let mut spec = ImportSpec::new(found.remove(0), host());
        spec.read_only = read_only;
        let pool = Pool::import(world, spec).await.expect("imported");
        opened(world, pool, Arrival::Imported)
    }

    async fn make(open: &OpenPool, name: &str) {
        let datasets = open.pool.dsl().datasets();
        let made = datasets.create(name, &[], Arc::new(ZplInit::new())).await;
        made.expect("a dataset");
    }

    /// Goal: what may have been shared before is known by its own guid at whatever time it is
    /// shared again, also where the pool was read-only meanwhile; what is made since is not, nor
    /// anything of a pool that was created here.
    #[tokio::test]
    async fn what_was_there_is_what_it_was_whenever_it_is_shared() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(POOL_BYTES).unwrap();
        let path = path.to_str().unwrap();
        let world = World::system(2);
        let has_pool = async |open: &OpenPool, name| of(open, name).await.unwrap().pool.is_some();

        let open = created(&world, path).await;
        make(&open, "tank/old").await;
        open.pool.export(false).await.unwrap();
        // As an earlier release left it. Nothing can be stored, and it stays what it is.
        let open = imported(&world, path, true).await;
        note(&open).await.unwrap();
        assert!(!has_pool(&open, "tank/old").await);
        assert!(!has_pool(&open, "tank/old").await);
        open.pool.export(false).await.unwrap();
        // Nothing can be shared as it comes.
        let open = imported(&world, path, false).await;
        note(&open).await.unwrap();
        make(&open, "tank/new").await;
        open.pool.export(false).await.unwrap();
        let open = imported(&world, path, false).await;
        note(&open).await.unwrap();
        assert!(!has_pool(&open, "tank/old").await && has_pool(&open, "tank/new").await);
        open.pool.export(false).await.unwrap();

        std::fs::File::create(path)
            .unwrap()
            .set_len(POOL_BYTES)
            .unwrap();
        let open = created(&world, path).await;
        note(&open).await.unwrap();
        assert!(has_pool(&open, "tank").await);
        open.pool.export(false).await.unwrap();
    }

    #[test]
    fn nobody_has_what_clients_know_forgotten_unaware() {
        for taken in ["none", "1:0", "18446744073709551615:100"] {
            assert_eq!(check_property(PROPERTY, taken), Ok(()), "{taken}");
        }
        for refused in ["", "1", "off"] {
            check_property(PROPERTY, refused).unwrap_err();
        }
        assert_eq!(check_property("comment", ""), Ok(()));
    }

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
