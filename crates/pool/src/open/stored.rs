//! What the object directory of an existing pool points to, as far as the pool itself keeps it. All
//! of it but the checksum salt is something that a pool can do without: what cannot be read is left
//! out, and said ([`lost`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use device::World;
use format::{ObjectId, ScanPhys, Txg};
use object::{ObjectSet, Zap};
use scan::Scan;
use spa::history::{History, HistoryLog};
use spa::identity::Pairs;
use spa::props::{PropValues, Stored};
use spa::{TxgTimeLog, damaged, directory, features, lost, vdevprops};
use vdev::{TopSpec, Vdev, VdevTree};

use super::Ground;
use crate::auxiliary::{self, Auxiliary, Places};
use crate::deferred::Salt;
use crate::{ImportSpec, PoolError, multihost, vdevs};

/// Refuses to write a pool on RAID-Z that counts space with parity: what is used would be counted
/// in two ways.
pub(super) async fn check_space_unit(
    pool: &str,
    directory: &Zap,
    tree: &VdevTree,
) -> Result<(), PoolError> {
    let has_parity =
        |top: &Arc<Vdev>| TopSpec::of(top).is_some_and(|spec| spec.deflate_ratio != 512);
    if !tree.tops().iter().any(has_parity) || !vdevs::counts_raw_space(directory).await? {
        return Ok(());
    }
    Err(PoolError::UnsupportedForWrite {
        pool: pool.to_owned(),
        features: vec![features::RAW_SPACE.to_owned()],
    })
}

/// Refuses to write a pool in which software from before version 25 has a scrub or resilver under
/// way, which that keeps elsewhere (`dsl_scan_init`, module/zfs/dsl_scan.c). It would go on with it
/// after us, at its own place, and take devices to be whole that were attached meanwhile.
pub(super) async fn check_old_scan(
    pool: &str,
    version: u64,
    directory: &Zap,
) -> Result<(), PoolError> {
    let is_there = directory.lookup(directory::OLD_SCAN).await?.is_some();
    if version >= ScanPhys::FIRST_VERSION || !is_there {
        return Ok(());
    }
    Err(PoolError::UnsupportedForWrite {
        pool: pool.to_owned(),
        features: vec![features::OLD_SCAN.to_owned()],
    })
}

/// What the object directory points to.
pub(super) struct Directory {
    pub(super) pairs: Pairs,
    pub(super) props: PropValues,
    pub(super) auxiliary: Auxiliary,
    pub(super) salt: Salt,
    /// The object that lists frees that were put off; zero without.
    pub(super) deferred_frees: ObjectId,
}

/// Reads what the object directory points to.
pub(super) async fn load_directory(
    mos: &Arc<ObjectSet>,
    pairs: Pairs,
    ground: &Ground,
    history: &HistoryLog,
    world: &World,
    spec: &ImportSpec,
    multihost_was_on: bool,
) -> Result<Directory, PoolError> {
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    let object = async |name: &str| -> Result<ObjectId, PoolError> {
        Ok(ObjectId::new(
            directory.lookup_u64(name).await?.unwrap_or(0),
        ))
    };
    let mut out = Directory {
        pairs,
        props: PropValues::default(),
        auxiliary: Auxiliary::default(),
        salt: Salt::default(),
        deferred_frees: ObjectId::ZERO,
    };
    out.pairs.object = object(directory::CONFIG).await?;
    out.pairs.all_vdev_zaps = object(directory::VDEV_ZAP_MAP).await?;
    if !out.pairs.all_vdev_zaps.is_zero() {
        let read = async { Zap::hold(mos, out.pairs.all_vdev_zaps).await?.all().await };
        if let Err(error) = read.await {
            lost(
                &out.pairs.name,
                "its list of what is kept about vdevs",
                &error,
            );
            out.pairs.all_vdev_zaps = ObjectId::ZERO;
        }
    }
    out.deferred_frees = object(directory::SYNC_BPLIST).await?;
    out.props.object = object(directory::POOL_PROPS).await?;
    let id = object(directory::HISTORY).await?;
    if !id.is_zero() {
        match History::open(mos, id).await {
            Ok(opened) => history.set(opened),
            Err(error) => lost(&out.pairs.name, "its history", &error),
        }
    }
    match directory.lookup(directory::CHECKSUM_SALT).await? {
        Some(value) => {
            let salt: [u8; 32] = value.data.as_ref().try_into().map_err(|_| {
                damaged(
                    &out.pairs.name,
                    "the checksum salt",
                    format!("it has {} bytes", value.data.len()),
                )
            })?;
            ground.pipeline.set_salt(salt);
        }
        None => {
            let mut salt = [0; 32];
            world.random.fill(&mut salt);
            ground.pipeline.set_salt(salt);
            out.salt.set_missing(salt);
        }
    }
    if !out.props.object.is_zero() {
        let read = async { Zap::hold(mos, out.props.object).await?.all().await };
        let entries = match read.await {
            Ok(entries) => entries,
            Err(error) => {
                lost(&out.pairs.name, "what was set of its properties", &error);
                out.props.object = ObjectId::ZERO;
                if multihost_was_on {
                    let on = Stored::Number(1);
                    out.props.stored.insert(multihost::NAME.to_owned(), on);
                }
                Vec::new()
            }
        };
        for entry in entries {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let stored = match (entry.value.as_u64(), entry.value.as_str()) {
                (Some(number), _) => Stored::Number(number),
                (None, Some(text)) => Stored::Text(text.to_owned()),
                (None, None) => continue,
            };
            out.props.stored.insert(name, stored);
        }
    }
    out.props.vdevs = vdevprops::load(mos, &ground.tree).await;
    let places = Places {
        pool: &out.pairs.name,
        world,
        tree: &ground.tree,
        paths: &spec.found.paths,
        read_only: spec.read_only,
        in_use: BTreeSet::new(),
    };
    out.auxiliary = auxiliary::read(mos, &places).await?;
    Ok(out)
}

/// Takes over the scan that the object directory tells of, in a pool whose state was `written_by`
/// software up to that version.
pub(super) async fn load_scan(
    name: &str,
    scan: &Scan,
    mos: &Arc<ObjectSet>,
    synced: Txg,
    written_by: u64,
) -> Result<(), PoolError> {
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    let scrubbed = directory.lookup_u64(directory::LAST_SCRUBBED_TXG).await?;
    let value = directory.lookup(directory::SCAN).await?;
    let mut queue = Some(BTreeMap::new());
    let object = value.as_ref().map_or(ObjectId::ZERO, Scan::stored_queue);
    if !object.is_zero() {
        let read = async { Zap::hold(mos, object).await?.all().await };
        queue = match read.await {
            Ok(entries) => {
                let datasets = entries.into_iter().filter_map(|entry| {
                    let dataset = u64::from_str_radix(&entry.name_str(), 16);
                    Some((dataset.ok()?, entry.value.as_u64()?))
                });
                Some(datasets.collect())
            }
            Err(error) => {
                lost(name, "how far its scan has come", &error);
                None
            }
        };
    }
    scan.load(
        value.as_ref(),
        queue,
        Txg::new(scrubbed.unwrap_or(0)),
        synced,
        written_by < ScanPhys::FIRST_VERSION,
    )
}

/// Takes over what the object directory says of when transaction groups were written.
pub(super) async fn load_txg_times(
    name: &str,
    mos: &Arc<ObjectSet>,
) -> Result<TxgTimeLog, PoolError> {
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    let times = TxgTimeLog::default();
    times.load(name, &directory).await;
    Ok(times)
}
