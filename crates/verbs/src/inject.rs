//! `zinject`: faults in pools, where the server was started with `--inject`.
//!
//! A fault stays until it is cancelled, or its pool is exported.

use api::{
    Empty, EventKind, Failure, FailureKind, InjectAdd, InjectAddReply, InjectCancel, InjectCommand,
    InjectError, InjectFault, InjectIo, InjectListReply, InjectRecord, InjectRegion, InjectState,
    InjectTune, ZpoolFreeze,
};
use device::BoxFuture;
use format::{
    Guid, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET, LABEL_UBERBLOCK_OFFSET,
    LABEL_UBERBLOCK_RING_BYTES, ObjectId, ObjectType, ObjsetId,
};
use pool::{FAULT_LANES_MAX, FaultError, FaultIo, FaultKind, Injected, RebuildState, RemovalState};

use access::User;
use service::error::from_pool;
use service::events::Events;
use service::pools::{OpenPool, Pools};
use serving::mounts::Mounts;

/// How many bytes each padding of a label has (`VDEV_PAD_SIZE`).
const PAD_BYTES: u64 = 8 << 10;

/// log2 of the size of a block pointer (`SPA_BLKPTRSHIFT`).
const POINTER_SHIFT: u32 = 7;

/// The longest delay of an operation or a command: a day.
const SECONDS_MAX: u64 = 24 * 60 * 60;

fn refused(kind: FailureKind, why: &str) -> Failure {
    Failure::new(kind, format!("failed to add handler: {why}"))
}

/// Asks for a fault.
pub fn add<'a>(
    pools: &'a Pools,
    mounts: &'a Mounts,
    events: &'a Events,
    call: InjectAdd,
) -> BoxFuture<'a, Result<InjectAddReply, Failure>> {
    Box::pin(async move {
        pools.injections.check_allowed()?;
        if call
            .percent
            .is_some_and(|percent| !(0.0..=100.0).contains(&percent))
        {
            return Err(refused(FailureKind::Invalid, "no such frequency"));
        }
        let Some(fault) = call.fault else {
            if call.flush_cache {
                empty_caches(pools, mounts).await;
            }
            return Ok(InjectAddReply::default());
        };
        let Some(name) = call.pool else {
            return Err(refused(FailureKind::Invalid, "no pool was named"));
        };
        let mut reply = InjectAddReply::default();
        match fault {
            InjectFault::PoolDelay { command, seconds } => {
                check_seconds(seconds)?;
                let is_here = pools.get(&name).is_ok();
                if command == InjectCommand::Import && is_here {
                    return Err(refused(FailureKind::Exists, "pool already imported"));
                }
                if command == InjectCommand::Export {
                    pools.get(&name)?;
                }
                reply.record = Some(pools.injections.delay(&name, command, seconds)?);
            }
            InjectFault::State { device, state } => {
                let open = pools.get(&name)?;
                let _admin = open.admin.lock().await;
                let leaf = leaf(&open, &device)?;
                let is_fault = state == InjectState::Fault;
                let done = pool::set_device_bad(&open.pool, leaf, is_fault);
                done.map_err(|error| from_pool("cannot change the state", &error))?;
                events.tell_of(&open.pool, EventKind::PoolChanged);
            }
            fault => {
                let open = pools.get(&name)?;
                let kind = engine_fault(&open, fault).await?;
                if spoils_reads(&kind) && copies_as_read(&open) {
                    let why = "a removal, an expansion or a sequential rebuild would copy what is \
                               spoilt for good; wait for its end";
                    return Err(refused(FailureKind::Busy, why));
                }
                let injector = pool::injector(&open.pool);
                let id = pools.injections.next_id();
                injector.add(id, kind, call.percent);
                let mut added = injector.list().into_iter();
                let added = added.find(|added| added.id == id);
                reply.record = added.and_then(|added| record(&name, &added));
            }
        }
        // Blocks that are read from now on are struck.
        if call.flush_cache {
            empty_caches(pools, mounts).await;
        }
        Ok(reply)
    })
}

/// Whether devices give something else than they have.
fn spoils_reads(kind: &FaultKind) -> bool {
    match kind {
        FaultKind::Device { error, io, .. } => match error {
            FaultError::Corrupt => true,
            FaultError::Noop => matches!(io, FaultIo::Read | FaultIo::All),
            _ => false,
        },
        _ => false,
    }
}

/// Whether something is under way that copies what it reads without knowing its checksum.
fn copies_as_read(open: &OpenPool) -> bool {
    let status = open.pool.status();
    let removal = status.removal.as_ref();
    let expansion = status.expansion.as_ref();
    let mut rebuilds = status.root.children.iter();
    removal.is_some_and(|at| at.state == RemovalState::Running)
        || expansion.is_some_and(|at| at.end_s.is_none())
        || rebuilds.any(|top| {
            let rebuild = top.rebuild.as_ref();
            rebuild.is_some_and(|at| at.state == RebuildState::Active)
        })
}

/// `zpool freeze`.
pub fn freeze<'a>(
    pools: &'a Pools,
    call: &'a ZpoolFreeze,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        pools.injections.check_allowed()?;
        let open = pools.get(&call.name)?;
        let _admin = open.admin.lock().await;
        let frozen = pool::freeze(&open.pool).await;
        frozen.map_err(|error| from_pool(&format!("cannot freeze '{}'", call.name), &error))?;
        Ok(Empty {})
    })
}

async fn empty_caches(pools: &Pools, mounts: &Mounts) {
    // First what would be read from there again.
    mounts.forget_pages().await;
    for open in pools.all() {
        pool::empty_cache(&open.pool);
    }
}

fn check_seconds(seconds: u64) -> Result<(), Failure> {
    match (1..=SECONDS_MAX).contains(&seconds) {
        true => Ok(()),
        false => Err(refused(FailureKind::Invalid, "a delay is of up to a day")),
    }
}

fn leaf(open: &OpenPool, device: &str) -> Result<Guid, Failure> {
    let pool = open.pool.name();
    pool::leaf_named(&open.pool, device).map_err(|_| {
        let message = format!("cannot find device '{device}' in pool '{pool}'");
        Failure::new(FailureKind::NotFound, message)
    })
}

/// A fault as the engine has it.
async fn engine_fault(open: &OpenPool, fault: InjectFault) -> Result<FaultKind, Failure> {
    Ok(match fault {
        InjectFault::Device { device, error, io } => FaultKind::Device {
            leaf: leaf(open, &device)?,
            error: error_of(error),
            io: io_of(io),
        },
        InjectFault::Label {
            device,
            error,
            region,
        } => {
            let (start, end) = bytes_of(region);
            FaultKind::Label {
                leaf: leaf(open, &device)?,
                error: error_of(error),
                start,
                end,
            }
        }
        InjectFault::Delay {
            device,
            delay_ms,
            lanes,
            io,
        } => {
            if !(1..=FAULT_LANES_MAX).contains(&lanes) {
                return Err(refused(FailureKind::Invalid, "invalid number of lanes"));
            }
            check_seconds(delay_ms.div_ceil(1000))?;
            if !matches!(io, InjectIo::Read | InjectIo::Write | InjectIo::All) {
                let why = "I/O type for a delay must be 'read' or 'write'";
                return Err(refused(FailureKind::Invalid, why));
            }
            FaultKind::Delay {
                leaf: leaf(open, &device)?,
                delay_ns: delay_ms * 1_000_000,
                lanes,
                io: io_of(io),
            }
        }
        InjectFault::Block {
            objset,
            object,
            object_type,
            level,
            first,
            last,
            bytes,
            copies,
            error,
        } => {
            let is_known = matches!(
                error,
                InjectError::Io
                    | InjectError::Checksum
                    | InjectError::Decompress
                    | InjectError::Decrypt
            );
            if !is_known {
                let why = "data error type must be 'checksum' or 'io'";
                return Err(refused(FailureKind::Invalid, why));
            }
            let last = last.unwrap_or(u64::MAX);
            let (first, last) = match bytes {
                true => blocks_of(open, (objset, object), level, (first, last)).await?,
                false => (first, last),
            };
            FaultKind::Block {
                objset: ObjsetId::new(objset),
                object: ObjectId::new(object),
                object_type: object_type.map(ObjectType::from_code),
                level,
                first,
                last,
                copies,
                error: error_of(error),
            }
        }
        InjectFault::State { .. } | InjectFault::PoolDelay { .. } => {
            return Err(refused(FailureKind::Invalid, "it is no fault that stays"));
        }
    })
}

/// The blocks of a level that bytes of an object are in (`zio_calculate_range`,
/// module/zfs/zio_inject.c).
async fn blocks_of(
    open: &OpenPool,
    (objset, object): (u64, u64),
    level: i64,
    (first, last): (u64, u64),
) -> Result<(u64, u64), Failure> {
    let failed = |why: String| refused(FailureKind::Invalid, &why);
    let directories = open.pool.dsl().directories();
    let name = directories.name_of(ObjectId::new(objset)).await;
    let name = name.map_err(|error| failed(error.to_string()))?;
    let user = User::Command { name: "zinject" };
    let lease = open.access.look(&name, user).await;
    let lease = lease.map_err(|error| failed(error.to_string()))?;
    let info = match lease.get().dataset() {
        Ok(dataset) => match dataset.objset().hold(ObjectId::new(object)).await {
            Ok(object) => Ok(object.info()),
            Err(error) => Err(failed(error.to_string())),
        },
        Err(error) => Err(failed(error.to_string())),
    };
    if let Err(error) = lease.close().await {
        tracing::debug!(%error, "a filesystem that was looked at did not close");
    }
    let info = info?;
    let levels = u32::try_from(level)
        .ok()
        .filter(|level| *level < u32::from(info.levels));
    let Some(level) = levels else {
        let why = "block level exceeds max level of object";
        return Err(refused(FailureKind::Invalid, why));
    };
    let block_bytes = u64::from(info.data_block_bytes).max(1);
    let shift = level * u32::from(info.indirect_block_shift).saturating_sub(POINTER_SHIFT);
    let block = |byte: u64| (byte / block_bytes).checked_shr(shift).unwrap_or(0);
    Ok((block(first), block(last)))
}

/// Which bytes of a label a part of it is (`translate_device`, cmd/zinject/translate.c).
fn bytes_of(region: InjectRegion) -> (u64, u64) {
    let (start, length) = match region {
        InjectRegion::Pad1 => (0, PAD_BYTES),
        InjectRegion::Pad2 => (PAD_BYTES, PAD_BYTES),
        InjectRegion::Nvlist => (LABEL_CONFIG_OFFSET, LABEL_CONFIG_BYTES as u64),
        InjectRegion::Uber => (LABEL_UBERBLOCK_OFFSET, LABEL_UBERBLOCK_RING_BYTES),
    };
    (start, start + length - 1)
}

const REGIONS: [InjectRegion; 4] = [
    InjectRegion::Nvlist,
    InjectRegion::Pad1,
    InjectRegion::Pad2,
    InjectRegion::Uber,
];

const ERRORS: [(InjectError, FaultError); 9] = [
    (InjectError::Io, FaultError::Io),
    (InjectError::Checksum, FaultError::Checksum),
    (InjectError::Decompress, FaultError::Decompress),
    (InjectError::Decrypt, FaultError::Decrypt),
    (InjectError::Nxio, FaultError::Nxio),
    (InjectError::Dtl, FaultError::Dtl),
    (InjectError::Corrupt, FaultError::Corrupt),
    (InjectError::Noop, FaultError::Noop),
    (InjectError::IoPrefail, FaultError::IoPrefail),
];

fn error_of(error: InjectError) -> FaultError {
    let found = ERRORS.iter().find(|(word, _)| *word == error);
    found.map_or(FaultError::Io, |(_, error)| *error)
}

fn error_told(error: FaultError) -> InjectError {
    let found = ERRORS.iter().find(|(_, own)| *own == error);
    found.map_or(InjectError::Io, |(word, _)| *word)
}

const IOS: [(InjectIo, FaultIo); 9] = [
    (InjectIo::Null, FaultIo::Null),
    (InjectIo::Read, FaultIo::Read),
    (InjectIo::Write, FaultIo::Write),
    (InjectIo::Free, FaultIo::Free),
    (InjectIo::Claim, FaultIo::Claim),
    (InjectIo::Flush, FaultIo::Flush),
    (InjectIo::Trim, FaultIo::Trim),
    (InjectIo::All, FaultIo::All),
    (InjectIo::Probe, FaultIo::Probe),
];

fn io_of(io: InjectIo) -> FaultIo {
    let found = IOS.iter().find(|(word, _)| *word == io);
    found.map_or(FaultIo::All, |(_, io)| *io)
}

fn io_told(io: FaultIo) -> InjectIo {
    let found = IOS.iter().find(|(_, own)| *own == io);
    found.map_or(InjectIo::All, |(word, _)| *word)
}

/// A fault as it is told; none that nobody can ask for.
fn record(pool: &str, injected: &Injected) -> Option<InjectRecord> {
    let device = |leaf: Guid| leaf.get().to_string();
    let fault = match &injected.kind {
        FaultKind::Device { leaf, error, io } => InjectFault::Device {
            device: device(*leaf),
            error: error_told(*error),
            io: io_told(*io),
        },
        FaultKind::Label {
            leaf, error, start, ..
        } => InjectFault::Label {
            device: device(*leaf),
            error: error_told(*error),
            region: *REGIONS
                .iter()
                .find(|region| bytes_of(**region).0 == *start)?,
        },
        FaultKind::Delay {
            leaf,
            delay_ns,
            lanes,
            io,
        } => InjectFault::Delay {
            device: device(*leaf),
            delay_ms: delay_ns / 1_000_000,
            lanes: *lanes,
            io: io_told(*io),
        },
        FaultKind::Block {
            objset,
            object,
            object_type,
            level,
            first,
            last,
            copies,
            error,
        } => InjectFault::Block {
            objset: objset.get(),
            object: object.get(),
            object_type: object_type.map(ObjectType::code),
            level: *level,
            first: *first,
            last: (*last != u64::MAX).then_some(*last),
            bytes: false,
            copies: *copies,
            error: error_told(*error),
        },
        FaultKind::IgnoredWrites => return None,
    };
    Some(InjectRecord {
        id: injected.id,
        pool: pool.to_owned(),
        fault,
        percent: injected.percent,
        matched: injected.matched,
        injected: injected.injected,
    })
}

/// The faults that were asked for, by their numbers.
pub fn list(pools: &Pools) -> Result<InjectListReply, Failure> {
    let mut records = pools.injections.delays();
    for open in pools.all() {
        let name = open.pool.name();
        let own = pool::injector(&open.pool).list();
        records.extend(own.iter().filter_map(|injected| record(&name, injected)));
    }
    records.sort_by_key(|record| record.id);
    Ok(InjectListReply { records })
}

/// Sets a tunable.
pub fn tune(pools: &Pools, call: &InjectTune) -> Result<Empty, Failure> {
    pools.injections.check_allowed()?;
    if !pools.injections.tune(&call.name, call.value) {
        let message = format!("cannot tune '{}': no such tunable is here", call.name);
        return Err(Failure::new(FailureKind::NotFound, message));
    }
    for open in pools.all() {
        pools.injections.tune_pool(&open.pool);
    }
    Ok(Empty {})
}

/// Ends a fault, or all.
pub fn cancel(pools: &Pools, call: &InjectCancel) -> Result<Empty, Failure> {
    let ids: Vec<u64> = match call.id {
        Some(id) => vec![id],
        None => list(pools)?
            .records
            .iter()
            .map(|record| record.id)
            .collect(),
    };
    for id in ids {
        let all = pools.all();
        let mut injectors = all.iter().map(|open| pool::injector(&open.pool));
        let was_there =
            pools.injections.cancel_delay(id) || injectors.any(|injector| injector.cancel(id));
        if !was_there && call.id.is_some() {
            let message = format!("failed to remove handler {id}: No such file or directory");
            return Err(Failure::new(FailureKind::NotFound, message));
        }
    }
    Ok(Empty {})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked for is told in the same words.
    #[test]
    fn words_go_to_the_engine_and_back() {
        for (word, _) in ERRORS {
            assert_eq!(error_told(error_of(word)), word);
        }
        for (word, _) in IOS {
            assert_eq!(io_told(io_of(word)), word);
        }
        assert_eq!(bytes_of(InjectRegion::Pad2), (8 << 10, (16 << 10) - 1));
        assert_eq!(bytes_of(InjectRegion::Nvlist).0, 16 << 10);
        assert_eq!(bytes_of(InjectRegion::Uber), (128 << 10, (256 << 10) - 1));
    }
}
