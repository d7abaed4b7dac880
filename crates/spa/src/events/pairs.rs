//! The pairs of events, with OpenZFS's names and types (`zfs_event_create`, `zfs_ereport_start`,
//! module/zfs/zfs_fm.c; `fm_ereport_set`, module/zfs/fm.c).

use std::sync::Arc;

use format::{Bookmark, NvList, NvValue};
use vdev::{DeviceIo, Operation, Priority, Vdev, VdevState};

use super::{About, LoadState};
use crate::Spa;
use crate::diagnosis::ErrorKind;
use crate::props::Stored;
use crate::vdevprops::Limits;

/// What OpenZFS calls a wrong checksum, on Linux (`ECKSUM`: EBADE).
pub(super) const ECKSUM: i32 = 52;
/// EIO: what a reader of a lost block gets.
const EIO: i32 = 5;

/// Flags of an I/O that mean something here (`ZIO_FLAG_*`, include/sys/zio.h).
const FLAG_SCRUB: u64 = 1 << 4;
const FLAG_IO_RETRY: u64 = 1 << 15;

/// Pairs of the pool that all events have.
fn add_pool(pairs: &mut NvList, spa: &Spa, context: LoadState) {
    let (name, state) = {
        let identity = spa.identity.lock();
        (identity.name.clone(), identity.pool_state)
    };
    pairs
        .push("pool", name)
        .push("pool_guid", spa.guid().get())
        .push("pool_state", state)
        .push("pool_context", NvValue::Int32(context.code()));
}

/// Pairs of a `sysevent` or `resource`.
pub(super) fn resource(
    spa: &Spa,
    context: LoadState,
    class: &str,
    about: Option<&About>,
) -> NvList {
    let mut pairs = NvList::new();
    pairs
        .push("version", NvValue::UInt8(0))
        .push("class", class);
    add_pool(&mut pairs, spa, context);
    if let Some(about) = about {
        pairs
            .push("vdev_guid", about.guid.get())
            .push("vdev_state", about.state.code());
        if let Some(path) = &about.path {
            pairs.push("vdev_path", path.as_str());
        }
    }
    pairs
}

/// What an `ereport` is about.
pub(super) struct Error<'a> {
    /// From the top-level vdev down; none of the pool as a whole.
    path: &'a [Arc<Vdev>],
    /// What the vdev's state was, where that is the point.
    before: Option<VdevState>,
    /// With the system's number of its error.
    io: Option<(DeviceIo, i32)>,
    /// How many errors of its kind are too many, where they may be.
    limits: Option<(ErrorKind, Limits)>,
    block: Option<Bookmark>,
}

impl<'a> Error<'a> {
    /// The pool as a whole.
    pub(super) fn pool() -> Self {
        Error {
            path: &[],
            before: None,
            io: None,
            limits: None,
            block: None,
        }
    }

    /// A vdev, by the path to it, and the state that it had.
    pub(super) fn of_vdev(path: &'a [Arc<Vdev>], before: VdevState) -> Self {
        Error {
            path,
            before: Some(before),
            ..Self::pool()
        }
    }

    /// A block that is lost.
    pub(super) fn of_block(bookmark: Bookmark) -> Self {
        Error {
            block: Some(bookmark),
            ..Self::pool()
        }
    }

    /// An operation of a device.
    pub(super) fn of_io(
        path: &'a [Arc<Vdev>],
        kind: ErrorKind,
        io: DeviceIo,
        errno: i32,
        limits: Limits,
    ) -> Self {
        Error {
            path,
            io: Some((io, errno)),
            limits: Some((kind, limits)),
            ..Self::pool()
        }
    }

    /// An operation that a device does not answer.
    pub(super) fn of_waiting(path: &'a [Arc<Vdev>], io: DeviceIo) -> Self {
        Error {
            path,
            io: Some((io, 0)),
            ..Self::pool()
        }
    }
}

/// Pairs of an `ereport` of what happened at `at_ns` of the monotonic clock, in a pool that has
/// these spares: paths and guids.
pub(super) fn ereport(
    spa: &Spa,
    context: LoadState,
    class: &str,
    at_ns: u64,
    what: Error<'_>,
    spares: (Vec<String>, Vec<u64>),
) -> NvList {
    let vdev = what.path.last();
    let mut detector = NvList::new();
    detector
        .push("version", NvValue::UInt8(0))
        .push("scheme", "zfs")
        .push("pool", spa.guid().get());
    if let Some(vdev) = vdev {
        detector.push("vdev", vdev.guid().get());
    }
    let mut pairs = NvList::new();
    pairs
        .push("class", class)
        // Format 1: the time above twelve bits (`fm_ena_generate_cpu`).
        .push("ena", at_ns << 12 | 1)
        .push("detector", detector);
    add_pool(&mut pairs, spa, context);
    let failmode = match spa.props.get("failmode") {
        Some(Stored::Number(1)) => "continue",
        Some(Stored::Number(2)) => "panic",
        _ => "wait",
    };
    pairs.push("pool_failmode", failmode);
    if let Some(vdev) = vdev {
        add_vdev(&mut pairs, spa, what.path, vdev, spares);
    }
    let bookmark = match &what.io {
        Some((io, errno)) => {
            add_io(&mut pairs, io, *errno);
            (io.bookmark != Bookmark::default()).then_some(io.bookmark)
        }
        None => {
            if what.block.is_some() {
                pairs.push("zio_err", NvValue::Int32(EIO));
            }
            what.block
        }
    };
    if let Some(before) = what.before {
        pairs.push("prev_state", before.code());
    }
    if let Some(bookmark) = bookmark {
        pairs
            .push("zio_objset", bookmark.objset.get())
            .push("zio_object", bookmark.object.get())
            .push("zio_level", NvValue::Int64(bookmark.level))
            .push("zio_blkid", bookmark.block_id);
    }
    if let Some((kind, limits)) = &what.limits {
        let names = match kind {
            ErrorKind::Io => ["vdev_io_n", "vdev_io_t"],
            ErrorKind::Checksum => ["vdev_cksum_n", "vdev_cksum_t"],
            ErrorKind::SlowIo => ["vdev_slow_io_n", "vdev_slow_io_t"],
        };
        for (name, value) in names.into_iter().zip([limits.count, limits.within_s]) {
            if let Some(value) = value {
                pairs.push(name, value);
            }
        }
    }
    pairs
}

fn add_vdev(
    pairs: &mut NvList,
    spa: &Spa,
    path: &[Arc<Vdev>],
    vdev: &Arc<Vdev>,
    (paths, guids): (Vec<String>, Vec<u64>),
) {
    pairs
        .push("vdev_guid", vdev.guid().get())
        .push("vdev_type", vdev.kind().name());
    if let Some(path) = vdev.path() {
        pairs.push("vdev_path", path);
    }
    let ashift = path.first().map_or(0, |top| top.ashift());
    let counters = vdev.counters();
    pairs.push("vdev_ashift", u64::from(ashift));
    if let Some(leaf) = vdev.leaf() {
        pairs.push("vdev_complete_ts", leaf.last_io_ns());
    }
    pairs
        .push("vdev_read_errors", counters.read_errors)
        .push("vdev_write_errors", counters.write_errors)
        .push("vdev_cksum_errors", counters.checksum_errors)
        .push("vdev_delays", vdev.leaf().map_or(0, |leaf| leaf.slow_ios()));
    match path.len() {
        0 | 1 => {
            pairs
                .push("parent_guid", spa.guid().get())
                .push("parent_type", "root");
        }
        depth => {
            let parent = &path[depth - 2];
            pairs
                .push("parent_guid", parent.guid().get())
                .push("parent_type", parent.kind().name());
        }
    }
    pairs
        .push("vdev_spare_paths", NvValue::StringArray(paths))
        .push("vdev_spare_guids", NvValue::UInt64Array(guids));
}

fn add_io(pairs: &mut NvList, io: &DeviceIo, errno: i32) {
    let mut flags = 0;
    if io.scrub {
        flags |= FLAG_SCRUB;
    }
    if io.retried {
        flags |= FLAG_IO_RETRY;
    }
    pairs
        .push("zio_err", NvValue::Int32(errno))
        .push("zio_flags", flags)
        .push("zio_delay", io.took_ns)
        .push("zio_timestamp", io.begun_ns)
        .push("zio_delta", io.took_ns)
        .push("zio_priority", NvValue::UInt32(priority(io)))
        .push("zio_offset", io.offset_bytes)
        .push("zio_size", io.size_bytes);
}

/// The code of an I/O's class (`zio_priority_t`, include/sys/zio.h).
const fn priority(io: &DeviceIo) -> u32 {
    match (io.operation, io.priority) {
        (Operation::Read, _) if io.scrub => 4,
        (Operation::Read, Priority::Sync) => 0,
        (Operation::Read, Priority::Async) => 2,
        (Operation::Read, Priority::Scrub) => 4,
        (Operation::Write | Operation::Flush, Priority::Sync) if !io.scrub => 1,
        (Operation::Write | Operation::Flush, _) => 3,
    }
}
