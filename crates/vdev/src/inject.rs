//! Faults that somebody asked for: what devices and blocks are made to do wrong, as
//! `zio_inject_fault` has it (module/zfs/zio_inject.c).
//!
//! Each tree has an [`Injector`]. While it has no faults, an operation costs one relaxed load. With
//! some, the device's operations go through it ([`crate::watch`]), right above the device, so that
//! everything above takes its errors for those of a device; and the pipeline asks it of each copy
//! of a block that it reads. What is spoilt is what was read, in memory: what seems bad for that
//! may be written anew, from what passed its checksum; but what is copied without a checksum - by a
//! removal, an expansion, a sequential rebuild - is copied as it was read. Writes are lost only by
//! faults that say so.
//!
//! Whether a fault comes that is to come a fraction of the time follows from its number and from
//! how often it could have come.
//!
//! Lock: `handlers`, for a few instructions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use device::Clock;
use format::{Bookmark, Guid, ObjectId, ObjectType, ObjsetId};
use parking_lot::Mutex;
use tokio::sync::watch;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultError {
    /// An operation fails, though it is done (`EIO`).
    Io,
    /// What was read fails its checksum (`ECKSUM`).
    Checksum,
    /// What was read does not decompress (`EINVAL`).
    Decompress,
    /// What was read is not what was encrypted (`EACCES`).
    Decrypt,
    /// An operation fails, and so does opening the device (`ENXIO`).
    Nxio,
    /// A device seems to be needed (`ECHILD`).
    Dtl,
    /// A bit of what was read is flipped (`EILSEQ`).
    Corrupt,
    /// An operation is not done, and seems to succeed (`ENOSYS`).
    Noop,
    /// An operation is not done, and fails (`EFAULT`).
    IoPrefail,
}

/// Which operations go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultIo {
    /// None that a device sees.
    Null,
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Frees, which devices do not see.
    Free,
    /// Claims, which devices do not see.
    Claim,
    /// Flushes.
    Flush,
    /// Discards.
    Trim,
    /// All of these.
    All,
    /// The question whether a device that failed still works.
    Probe,
}

impl FaultIo {
    /// Whether it is meant by `wanted` (`zio_match_iotype`).
    fn is_meant(self, wanted: FaultIo) -> bool {
        match self {
            FaultIo::Probe => wanted == FaultIo::Probe,
            _ => wanted == self || wanted == FaultIo::All,
        }
    }
}

/// A fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// Of a device, outside its labels (but for flushes and probes).
    Device {
        /// The device.
        leaf: Guid,
        /// What happens.
        error: FaultError,
        /// To which operations.
        io: FaultIo,
    },
    /// Reads and writes of a part of each label of a device fail.
    Label {
        /// The device.
        leaf: Guid,
        /// As it was asked for: the failure is an error of input or output.
        error: FaultError,
        /// First byte, from the label's begin.
        start: u64,
        /// Last byte.
        end: u64,
    },
    /// Reads and writes of a device take time: each of so many lanes has one at a time.
    Delay {
        /// The device.
        leaf: Guid,
        /// How long each takes at least, in nanoseconds.
        delay_ns: u64,
        /// How many go on at the same time.
        lanes: u64,
        /// Which operations: reads, writes or all.
        io: FaultIo,
    },
    /// Of blocks that are read.
    Block {
        /// The dataset; zero is the MOS.
        objset: ObjsetId,
        /// The object. Zero in the MOS stands for all objects there.
        object: ObjectId,
        /// Of blocks in the MOS of this type only.
        object_type: Option<ObjectType>,
        /// The level.
        level: i64,
        /// First block of that level.
        first: u64,
        /// Last block.
        last: u64,
        /// The copies, a bit each; none for all.
        copies: u8,
        /// What happens.
        error: FaultError,
    },
    /// Three fifths of the writes to all devices are not done, and seem to succeed.
    IgnoredWrites,
}

/// A fault that was asked for, and what came of it.
#[derive(Debug, Clone)]
pub struct Injected {
    /// Its number.
    pub id: u64,
    /// The fault.
    pub kind: FaultKind,
    /// How often it comes where it can, in hundredths; always without.
    pub percent: Option<f64>,
    /// How often it could have come.
    pub matched: u64,
    /// How often it came.
    pub injected: u64,
}

#[derive(Debug)]
struct Handler {
    told: Injected,
    /// Of a delay: when each lane is free.
    lanes: Vec<u64>,
}

/// The most lanes of a delay (`UINT16_MAX`, zio_inject.c).
pub const FAULT_LANES_MAX: u64 = 65534;

/// How many of a hundred writes ignored writes lose (`zio_handle_ignored_writes`).
const IGNORED_PERCENT: f64 = 60.0;

impl Handler {
    /// Counts that it could come; whether it does.
    fn comes(&mut self) -> bool {
        let told = &mut self.told;
        told.matched += 1;
        let percent = match told.kind {
            FaultKind::IgnoredWrites => Some(IGNORED_PERCENT),
            _ => told.percent,
        };
        let comes = percent.is_none_or(|percent| {
            let drawn = mixed(told.id.wrapping_shl(40) ^ told.matched) >> 11;
            (drawn as f64 / (1u64 << 53) as f64) * 100.0 < percent
        });
        told.injected += u64::from(comes);
        comes
    }
}

/// Bits that depend on all bits of a number (the finalizer of SplitMix64; Steele, Lea, Flood 2014).
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// An operation of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    /// The device.
    pub(crate) leaf: Guid,
    /// What it is.
    pub(crate) io: FaultIo,
    /// It begins in the room of the labels.
    pub(crate) in_labels: bool,
    /// Where in a label it begins.
    pub(crate) label_offset: Option<u64>,
}

/// What is done about an operation before the device gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// It is done.
    Go,
    /// It is not, and seems to have been.
    Lose,
    /// It is not, and fails.
    Refuse,
}

/// What is done about an operation that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing.
    Leave,
    /// It fails all the same.
    Fail,
    /// One bit of what was read is flipped: a number to find it by.
    Spoil(u64),
}

/// The faults of a pool.
pub struct Injector {
    on: AtomicBool,
    frozen: AtomicBool,
    /// That no transaction group is under way any more.
    held: watch::Sender<bool>,
    clock: Arc<dyn Clock>,
    handlers: Mutex<Vec<Handler>>,
}

impl Injector {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Injector {
            on: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            held: watch::Sender::new(false),
            clock,
            handlers: Mutex::default(),
        })
    }

    /// Whether there are faults.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Has the pool write no transaction groups any more, for good (`spa_freeze`,
    /// module/zfs/spa_misc.c).
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    /// Tells that no group is under way, and none will be.
    pub fn hold(&self) {
        self.held.send_replace(true);
    }

    /// Waits for that.
    pub async fn until_held(&self) {
        // It fails only without a sender, which is here.
        let _ = self.held.subscribe().wait_for(|held| *held).await;
    }

    /// Whether it writes none.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    /// Has a fault come from now on. Numbers are the caller's, and each is another one.
    pub fn add(&self, id: u64, kind: FaultKind, percent: Option<f64>) {
        let lanes = match &kind {
            FaultKind::Delay { lanes, .. } => vec![0; (*lanes).clamp(1, FAULT_LANES_MAX) as usize],
            _ => Vec::new(),
        };
        let mut handlers = self.handlers.lock();
        handlers.push(Handler {
            told: Injected {
                id,
                kind,
                percent,
                matched: 0,
                injected: 0,
            },
            lanes,
        });
        self.on.store(true, Ordering::Relaxed);
    }

    /// Ends a fault; whether there was one of this number. What waits goes on waiting.
    pub fn cancel(&self, id: u64) -> bool {
        let mut handlers = self.handlers.lock();
        let before = handlers.len();
        handlers.retain(|handler| handler.told.id != id);
        self.on.store(!handlers.is_empty(), Ordering::Relaxed);
        handlers.len() < before
    }

    /// The faults, in the order in which they came.
    pub fn list(&self) -> Vec<Injected> {
        let handlers = self.handlers.lock();
        handlers
            .iter()
            .map(|handler| handler.told.clone())
            .collect()
    }

    /// Whether opening a device is to fail (`zio_handle_device_injection`, asked by `vdev_open`).
    pub(super) fn fails_to_open(&self, device: Guid) -> bool {
        self.strikes_device(device, FaultError::Nxio)
    }

    /// Whether the pool is to seem to need a device (`vdev_dtl_required`, module/zfs/vdev.c).
    pub fn requires(&self, device: Guid) -> bool {
        self.strikes_device(device, FaultError::Dtl)
    }

    fn strikes_device(&self, device: Guid, what: FaultError) -> bool {
        self.is_on()
            && self.handlers.lock().iter_mut().any(|handler| {
                let is_meant = matches!(
                    handler.told.kind,
                    FaultKind::Device { leaf, error, .. } if leaf == device && error == what
                );
                is_meant && handler.comes()
            })
    }

    /// Until when an operation that begins now is to take (`zio_handle_io_delay`).
    pub(super) fn delayed_until_ns(&self, asked: &Asked) -> Option<u64> {
        if !matches!(asked.io, FaultIo::Read | FaultIo::Write) {
            return None;
        }
        let now_ns = self.clock.monotonic_ns();
        let mut handlers = self.handlers.lock();
        let mut soonest: Option<(u64, usize, usize)> = None;
        for (index, handler) in handlers.iter_mut().enumerate() {
            let FaultKind::Delay {
                leaf, delay_ns, io, ..
            } = handler.told.kind
            else {
                continue;
            };
            if leaf != asked.leaf || !asked.io.is_meant(io) {
                continue;
            }
            // What came of it counts for the one whose lane is taken.
            let counted = handler.told.injected;
            if !handler.comes() {
                continue;
            }
            handler.told.injected = counted;
            let free = handler.lanes.iter().enumerate();
            let Some((lane, free_ns)) = free.min_by_key(|(_, free_ns)| **free_ns) else {
                continue;
            };
            let until_ns = (*free_ns).max(now_ns).saturating_add(delay_ns);
            if soonest.is_none_or(|(soonest, ..)| until_ns < soonest) {
                soonest = Some((until_ns, index, lane));
            }
        }
        let (until_ns, index, lane) = soonest?;
        let handler = &mut handlers[index];
        handler.lanes[lane] = until_ns;
        handler.told.injected += 1;
        Some(until_ns)
    }

    /// Waits until a moment of the monotonic clock.
    pub(super) async fn wait_until(&self, until_ns: u64) {
        let now_ns = self.clock.monotonic_ns();
        if let Some(rest) = until_ns.checked_sub(now_ns).filter(|rest| *rest > 0) {
            self.clock
                .sleep(std::time::Duration::from_nanos(rest))
                .await;
        }
    }

    /// What is done about an operation before the device gets it (`zio_vdev_io_start`,
    /// `zio_handle_ignored_writes`).
    pub(super) fn before(&self, asked: &Asked) -> Before {
        for handler in self.handlers.lock().iter_mut() {
            let what = match handler.told.kind {
                FaultKind::IgnoredWrites if asked.io == FaultIo::Write => Before::Lose,
                FaultKind::Device { leaf, error, io } if asked.is_of(leaf, io) => match error {
                    FaultError::Noop => Before::Lose,
                    FaultError::IoPrefail => Before::Refuse,
                    _ => continue,
                },
                _ => continue,
            };
            if handler.comes() {
                return what;
            }
        }
        Before::Go
    }

    /// What is done about an operation that succeeded (`zio_vdev_io_done`).
    pub(super) fn after(&self, asked: &Asked) -> After {
        for handler in self.handlers.lock().iter_mut() {
            let what = match handler.told.kind {
                FaultKind::Device { leaf, error, io } if asked.is_of(leaf, io) => match error {
                    FaultError::Io | FaultError::Nxio => After::Fail,
                    FaultError::Corrupt if asked.io == FaultIo::Read => After::Spoil(0),
                    _ => continue,
                },
                FaultKind::Label {
                    leaf, start, end, ..
                } if leaf == asked.leaf
                    && matches!(asked.io, FaultIo::Read | FaultIo::Write | FaultIo::Probe)
                    && asked
                        .label_offset
                        .is_some_and(|offset| (start..=end).contains(&offset)) =>
                {
                    After::Fail
                }
                _ => continue,
            };
            if handler.comes() {
                return match what {
                    After::Spoil(_) => After::Spoil(mixed(
                        handler.told.matched.wrapping_shl(20) ^ handler.told.id,
                    )),
                    what => what,
                };
            }
        }
        After::Leave
    }

    /// Whether this is to happen to a copy of a block that is being read; a block as a whole has no
    /// copy (`zio_match_handler`). An object of the MOS is told by its type.
    pub fn strikes_block(
        &self,
        what: FaultError,
        bookmark: &Bookmark,
        kind: ObjectType,
        copy: Option<usize>,
    ) -> bool {
        let mut handlers = self.handlers.lock();
        handlers.iter_mut().any(|handler| {
            let FaultKind::Block {
                objset,
                object,
                object_type,
                level,
                first,
                last,
                copies,
                error,
            } = handler.told.kind
            else {
                return false;
            };
            if error != what || objset != bookmark.objset {
                return false;
            }
            let is_meant = if objset.is_zero() && object.is_zero() {
                object_type.is_none_or(|wanted| wanted == kind)
            } else {
                let is_copy =
                    copies == 0 || copy.is_some_and(|copy| copy < 8 && copies & (1 << copy) != 0);
                object == bookmark.object
                    && level == bookmark.level
                    && (first..=last).contains(&bookmark.block_id)
                    && is_copy
            };
            is_meant && handler.comes()
        })
    }
}

impl Asked {
    /// Whether a fault of a device and such operations is meant: labels are left alone, but where
    /// the place says nothing.
    fn is_of(&self, leaf: Guid, io: FaultIo) -> bool {
        let place_counts = !matches!(self.io, FaultIo::Flush | FaultIo::Probe);
        self.leaf == leaf && self.io.is_meant(io) && !(place_counts && self.in_labels)
    }
}

impl std::fmt::Debug for Injector {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list().entries(self.list()).finish()
    }
}

#[cfg(test)]
mod tests {
    use device::sim::SimWorld;

    use super::*;

    const LEAF: Guid = Guid::new(7);

    fn injector() -> Arc<Injector> {
        Injector::new(SimWorld::new(1).world().clock.clone())
    }

    fn asked(io: FaultIo) -> Asked {
        Asked {
            leaf: LEAF,
            io,
            in_labels: false,
            label_offset: None,
        }
    }

    fn of_device(error: FaultError, io: FaultIo) -> FaultKind {
        FaultKind::Device {
            leaf: LEAF,
            error,
            io,
        }
    }

    /// Goal: faults strike what they are for and nothing else, until they are cancelled.
    #[test]
    fn a_fault_strikes_what_it_is_for() {
        let faults = injector();
        assert!(!faults.is_on());
        faults.add(1, of_device(FaultError::Io, FaultIo::Write), None);
        faults.add(2, of_device(FaultError::Noop, FaultIo::Flush), None);
        assert!(faults.is_on());
        assert_eq!(faults.after(&asked(FaultIo::Write)), After::Fail);
        assert_eq!(faults.after(&asked(FaultIo::Read)), After::Leave);
        assert_eq!(faults.before(&asked(FaultIo::Write)), Before::Go);
        assert_eq!(faults.before(&asked(FaultIo::Flush)), Before::Lose);
        let other = Asked {
            leaf: Guid::new(8),
            ..asked(FaultIo::Write)
        };
        assert_eq!(faults.after(&other), After::Leave);
        let label = Asked {
            in_labels: true,
            label_offset: Some(100),
            ..asked(FaultIo::Write)
        };
        assert_eq!(faults.after(&label), After::Leave, "labels are left alone");
        let region = FaultKind::Label {
            leaf: LEAF,
            error: FaultError::Io,
            start: 100,
            end: 199,
        };
        faults.add(3, region, None);
        assert_eq!(faults.after(&label), After::Fail);
        assert!(!faults.fails_to_open(LEAF));
        faults.add(4, of_device(FaultError::Nxio, FaultIo::Probe), None);
        assert!(faults.fails_to_open(LEAF) && !faults.requires(LEAF));
        assert_eq!(faults.after(&asked(FaultIo::Probe)), After::Fail);
        assert_eq!(faults.after(&asked(FaultIo::Read)), After::Leave);
        let told = faults.list();
        assert_eq!((told[0].matched, told[0].injected), (1, 1));
        for id in 1..=4 {
            assert!(faults.cancel(id));
        }
        assert!(!faults.cancel(1) && !faults.is_on());
    }

    /// Goal: what is to come a fraction of the time does, the same in each run.
    #[test]
    fn a_fraction_comes_of_what_could_come() {
        let count = |percent| {
            let faults = injector();
            faults.add(3, of_device(FaultError::Io, FaultIo::All), Some(percent));
            for _ in 0..1000 {
                faults.after(&asked(FaultIo::Read));
            }
            let told = &faults.list()[0];
            assert_eq!(told.matched, 1000);
            told.injected
        };
        assert_eq!((count(100.0), count(0.0)), (1000, 0));
        let half = count(50.0);
        assert!((400..600).contains(&half), "{half}");
        assert_eq!(count(50.0), half);
    }

    /// Goal: a delay has as many lanes as it says, and several add up.
    #[tokio::test(start_paused = true)]
    async fn lanes_of_delays_are_taken_in_turn() {
        let faults = injector();
        let delay = |delay_ns, lanes| FaultKind::Delay {
            leaf: LEAF,
            delay_ns,
            lanes,
            io: FaultIo::Read,
        };
        faults.add(1, delay(10, 1), None);
        let base = faults.clock.monotonic_ns();
        let next = || faults.delayed_until_ns(&asked(FaultIo::Read)).unwrap() - base;
        assert_eq!((next(), next()), (10, 20));
        faults.add(2, delay(25, 2), None);
        let next = || faults.delayed_until_ns(&asked(FaultIo::Read)).unwrap() - base;
        assert_eq!((next(), next(), next()), (25, 25, 30));
        assert_eq!(faults.delayed_until_ns(&asked(FaultIo::Write)), None);
    }

    /// Goal: faults of blocks go by dataset, object, level, block and copy; in the MOS by type.
    #[test]
    fn blocks_are_struck_by_their_place() {
        let faults = injector();
        let kind = FaultKind::Block {
            objset: ObjsetId::new(5),
            object: ObjectId::new(9),
            object_type: None,
            level: 0,
            first: 2,
            last: 3,
            copies: 0b10,
            error: FaultError::Checksum,
        };
        faults.add(1, kind, None);
        let bookmark = |block_id| Bookmark {
            objset: ObjsetId::new(5),
            object: ObjectId::new(9),
            level: 0,
            block_id,
        };
        let data = ObjectType::PLAIN_FILE_CONTENTS;
        let struck = |error, block, copy| faults.strikes_block(error, &bookmark(block), data, copy);
        assert!(struck(FaultError::Checksum, 2, Some(1)));
        assert!(!struck(FaultError::Checksum, 2, Some(0)));
        assert!(!struck(FaultError::Checksum, 2, None));
        assert!(!struck(FaultError::Checksum, 4, Some(1)));
        assert!(!struck(FaultError::Io, 2, Some(1)));
        let in_mos = FaultKind::Block {
            objset: ObjsetId::new(0),
            object: ObjectId::new(0),
            object_type: Some(ObjectType::SPACE_MAP),
            level: 0,
            first: 0,
            last: u64::MAX,
            copies: 0,
            error: FaultError::Io,
        };
        faults.add(2, in_mos, None);
        let mos = Bookmark {
            object: ObjectId::new(77),
            ..Bookmark::default()
        };
        assert!(faults.strikes_block(FaultError::Io, &mos, ObjectType::SPACE_MAP, None));
        assert!(!faults.strikes_block(FaultError::Io, &mos, data, None));
    }
}
