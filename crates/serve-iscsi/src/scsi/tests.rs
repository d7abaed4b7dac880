//! Commands on a unit: what reaches the storage, and what comes back.

use super::*;
use crate::lun::{Extent, LogicalUnit, LunError, LunIdentity};
use crate::memory::MemoryUnit;
use bytes::Bytes;
use futures::executor::block_on;
use futures::future::{BoxFuture, FutureExt, ready};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const BLOCK: u64 = 512;
const BLOCKS: u64 = 8192;

/// A unit in memory that notes what is asked of it, and fails when told to.
struct Recorder {
    memory: MemoryUnit,
    calls: Mutex<Vec<String>>,
    failure: Mutex<Option<LunError>>,
    state: Arc<UnitState>,
}

impl Recorder {
    fn note<T: Send + 'static>(
        &self,
        call: String,
        result: Result<T, LunError>,
    ) -> BoxFuture<'static, Result<T, LunError>> {
        self.calls.lock().push(call);
        let failure = self.failure.lock().clone();
        Box::pin(ready(failure.map_or(result, Err)))
    }
}

/// The result of a future of the memory unit, which never waits.
fn at_once<T>(future: BoxFuture<'_, T>) -> T {
    future.now_or_never().expect("memory does not wait")
}

impl LogicalUnit for Recorder {
    fn capacity_bytes(&self) -> u64 {
        self.memory.capacity_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.memory.block_bytes()
    }

    fn identity(&self) -> LunIdentity {
        self.memory.identity()
    }

    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Vec<Bytes>, LunError>> {
        let result = at_once(self.memory.read(offset, length));
        self.note(format!("read {offset} {length}"), result)
    }

    fn write(
        &self,
        offset: u64,
        data: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>> {
        let call = format!("write {offset} {} {durable}", data.len());
        let result = at_once(self.memory.write(offset, data, durable));
        self.note(call, result)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), LunError>> {
        self.note("flush".into(), Ok(()))
    }

    fn unmap(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), LunError>> {
        let result = at_once(self.memory.unmap(offset, length));
        self.note(format!("unmap {offset} {length}"), result)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>> {
        let result = at_once(self.memory.unmap(offset, length));
        self.note(format!("zero {offset} {length} {durable}"), result)
    }

    fn extent_at(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<Extent, LunError>> {
        self.memory.extent_at(offset, length)
    }
}

struct World {
    storage: Arc<Recorder>,
    unit: Arc<Unit>,
}

const A: NexusId = NexusId(1);
const B: NexusId = NexusId(2);

impl World {
    /// A unit with two nexuses that have met their first unit attention.
    fn new() -> Self {
        let identity = LunIdentity::new("S", [1; 16]);
        Self::on(Arc::new(Recorder {
            memory: MemoryUnit::new(BLOCKS * BLOCK, BLOCK as u32, identity),
            calls: Mutex::default(),
            failure: Mutex::default(),
            state: Arc::default(),
        }))
    }

    /// A unit of this storage, with nexuses of the same ports as the one before it.
    fn on(storage: Arc<Recorder>) -> Self {
        let is_read_only = Arc::new(AtomicBool::new(false));
        let unit = Unit::new(
            storage.clone(),
            storage.state.clone(),
            "iqn.t",
            0,
            1,
            is_read_only,
        )
        .unwrap();
        let unit = Arc::new(unit);
        for nexus in [A, B] {
            let port = InitiatorPort {
                name: format!("iqn.{}", nexus.0),
                isid: [0; 6],
            };
            unit.attach(nexus, port, Sense::POWER_ON_OR_RESET);
            let outcome = unit.admit(nexus, &[0; 16]).unwrap_err();
            assert_eq!(outcome.sense, Some(Sense::POWER_ON_OR_RESET));
        }
        Self { storage, unit }
    }

    fn run(&self, nexus: NexusId, cdb: &[u8], data: &[u8]) -> Outcome {
        let mut whole = [0; 16];
        whole[..cdb.len()].copy_from_slice(cdb);
        let command = match self.unit.admit(nexus, &whole) {
            Ok(command) => command,
            Err(outcome) => return outcome,
        };
        match self.unit.execute_now(nexus, &command, data) {
            Some(outcome) => outcome,
            None => self.execute(nexus, command, data),
        }
    }

    /// Carries a command out that waits.
    fn execute(&self, nexus: NexusId, command: Command, data: &[u8]) -> Outcome {
        let unit = self.unit.clone();
        let data = Bytes::copy_from_slice(data);
        block_on(unit.execute(nexus, &|_| None, command, data, &CopyStop::default())).outcome
    }

    fn good(&self, cdb: &[u8], data: &[u8]) -> Vec<u8> {
        let outcome = self.run(A, cdb, data);
        assert_eq!((outcome.status, outcome.sense), (0, None), "{cdb:x?}");
        outcome.data.concat()
    }

    fn sense(&self, cdb: &[u8], data: &[u8]) -> Sense {
        self.run(A, cdb, data).sense.expect("sense data")
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.storage.calls.lock())
    }
}

/// A 16-byte CDB with an address and a count.
fn cdb16(opcode: u8, flags: u8, lba: u64, count: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[1] = flags;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

#[test]
fn commands_reach_the_storage_as_the_table_says() {
    let world = World::new();
    let block = [1; 512];
    let table: [(&[u8], &[u8], &[&str]); 12] = [
        (&cdb16(0x88, 0, 2, 3), &[], &["read 1024 1536"]),
        (&cdb16(0x88, 0, 2, 0), &[], &[]),
        (&cdb16(0x8a, 0, 2, 1), &block, &["write 1024 512 false"]),
        (&cdb16(0x8a, 0x08, 2, 1), &block, &["write 1024 512 true"]),
        (
            &cdb16(0x8e, 0x02, 2, 1),
            &block,
            &["write 1024 512 true", "read 1024 512"],
        ),
        (&cdb16(0x91, 0, 0, 0), &[], &["flush"]),
        (&[0x1b, 0, 0, 0, 0, 0], &[], &["flush"]),
        (&[0x1b, 0, 0, 0, 1, 0], &[], &[]),
        (&cdb16(0x93, 0x08, 4, 8), &[0; 512], &["unmap 2048 4096"]),
        (&cdb16(0x93, 0x09, 4, 8), &[], &["unmap 2048 4096"]),
        (
            &cdb16(0x93, 0x00, 4, 8),
            &[0; 512],
            &["zero 2048 4096 false"],
        ),
        // Blocks that are not zero cannot be unmapped.
        (&cdb16(0x93, 0x08, 4, 2), &block, &["write 2048 1024 false"]),
    ];
    for (cdb, data, calls) in table {
        world.good(cdb, data);
        assert_eq!(world.calls(), calls, "{cdb:x?}");
    }
}

#[test]
fn long_patterns_are_written_in_pieces() {
    let world = World::new();
    let mut block = [7; 512];
    block[0] = 1;
    world.good(&cdb16(0x93, 0, 0, 5000), &block);
    assert_eq!(
        world.calls(),
        [
            "write 0 1048576 false",
            "write 1048576 1048576 false",
            "write 2097152 462848 false"
        ]
    );
    world.good(&cdb16(0x8f, 0x06, 0, 5000), &block);
    let miscompare = world.sense(&cdb16(0x8f, 0x06, 0, 5001), &block);
    let expected = Sense::MISCOMPARE_DURING_VERIFY.with_information(5000 * 512);
    assert_eq!(miscompare, expected);
}

#[test]
fn compare_and_write_writes_only_what_compared_equal() {
    let world = World::new();
    let mut cdb = cdb16(0x89, 0, 5, 0);
    cdb[13] = 1;
    let pair = |old: u8, new: u8| [[old; 512], [new; 512]].concat();
    world.good(&cdb, &pair(0, 1));
    let mut near = pair(1, 9);
    near[100] = 2;
    let expected = Sense::MISCOMPARE_DURING_VERIFY.with_information(100);
    assert_eq!(world.sense(&cdb, &near), expected);
    assert_eq!(world.good(&cdb16(0x88, 0, 5, 1), &[]), [1; 512]);
    world.good(&cdb16(0x8b, 0, 5, 1), &[0x80; 512]);
    assert_eq!(world.good(&cdb16(0x88, 0, 5, 1), &[]), [0x81; 512]);
}

#[test]
fn compare_and_write_is_atomic_between_threads() {
    let world = World::new();
    let mut cdb = cdb16(0x89, 0, 0, 0);
    cdb[13] = 1;
    let command = world.unit.admit(A, &cdb).unwrap();
    let counted = |n: u32| {
        let mut block = vec![0; 512];
        block[..4].copy_from_slice(&n.to_be_bytes());
        block
    };
    // Each thread raises a counter; none may be lost.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut done = 0;
                while done < 50 {
                    let now = block_on(world.storage.memory.read(0, 512))
                        .unwrap()
                        .concat();
                    let now = u32::from_be_bytes([now[0], now[1], now[2], now[3]]);
                    let data = [counted(now), counted(now + 1)].concat();
                    done += u32::from(world.execute(A, command, &data).status == 0);
                }
            });
        }
    });
    assert_eq!(world.good(&cdb16(0x88, 0, 0, 1), &[]), counted(200));
}

#[test]
fn unmap_checks_all_before_it_does_any() {
    let world = World::new();
    let list = |ranges: &[(u64, u32)]| {
        let mut list = vec![0; 8];
        list[2..4].copy_from_slice(&(16 * ranges.len() as u16).to_be_bytes());
        for (lba, count) in ranges {
            list.extend_from_slice(&lba.to_be_bytes());
            list.extend_from_slice(&count.to_be_bytes());
            list.extend_from_slice(&[0; 4]);
        }
        list
    };
    let cdb = |list: &[u8]| {
        let [high, low] = (list.len() as u16).to_be_bytes();
        [0x42, 0, 0, 0, 0, 0, 0, high, low, 0]
    };
    let good = list(&[(1, 2), (5, 0), (100, 1)]);
    world.good(&cdb(&good), &good);
    assert_eq!(world.calls(), ["unmap 512 1024", "unmap 51200 512"]);
    let bad = list(&[(1, 2), (BLOCKS, 1)]);
    let expected = Sense::LBA_OUT_OF_RANGE.with_information(BLOCKS);
    assert_eq!(world.sense(&cdb(&bad), &bad), expected);
    let bad = list(&[(u64::MAX, 2)]);
    assert_eq!(world.sense(&cdb(&bad), &bad).code, (0x21, 0));
    let bad = list(&[(0, 1); 257]);
    assert_eq!(
        world.sense(&cdb(&bad), &bad),
        Sense::INVALID_FIELD_IN_PARAMETER_LIST
    );
    assert_eq!(
        world.sense(&cdb(&[0; 7]), &[0; 7]),
        Sense::PARAMETER_LIST_LENGTH_ERROR
    );
    world.good(&cdb(&[]), &[]);
    assert_eq!(world.calls(), [""; 0]);
}

#[test]
fn lba_status_follows_the_storage() {
    let world = World::new();
    // The memory unit has chunks of 32 blocks.
    world.good(&cdb16(0x8a, 0, 32, 1), &[1; 512]);
    let mut cdb = cdb16(0x9e, 0x12, 0, 1024);
    let data = world.good(&cdb, &[]);
    let descriptors: Vec<(u8, u8, u8)> = data[8..]
        .chunks_exact(16)
        .map(|d| (d[7], d[11], d[12]))
        .collect();
    assert_eq!(descriptors, [(0, 32, 1), (32, 32, 0), (64, 0xc0, 1)]);
    cdb = cdb16(0x9e, 0x12, BLOCKS, 1024);
    assert_eq!(world.sense(&cdb, &[]).code, (0x21, 0));
}

#[test]
fn ranges_and_lengths_are_checked_at_their_ends() {
    let world = World::new();
    let max = u64::from(TRANSFER_BYTES_MAX) / BLOCK;
    let lba_error = |lba| Some(Sense::LBA_OUT_OF_RANGE.with_information(lba));
    let invalid = Some(Sense::INVALID_FIELD_IN_CDB);
    let table = [
        (0x88, BLOCKS - 1, 1, None),
        (0x88, BLOCKS, 0, None),
        (0x88, BLOCKS, 1, lba_error(BLOCKS)),
        (0x88, BLOCKS + 1, 0, lba_error(BLOCKS + 1)),
        (0x88, u64::MAX, u32::MAX, lba_error(u64::MAX)),
        (0x88, 1, u32::MAX, lba_error(1)),
        (0x93, 0, 0, invalid),
    ];
    for (opcode, lba, count, expected) in table {
        let found = world.unit.admit(A, &cdb16(opcode, 0, lba, count));
        let found = found.err().and_then(|outcome| outcome.sense);
        assert_eq!(found, expected, "{opcode:x} {lba} {count}");
    }
    world.storage.memory.set_capacity_bytes(1 << 40);
    assert!(world.unit.admit(A, &[0; 16]).is_err());
    assert!(world.unit.admit(A, &cdb16(0x88, 0, 0, max as u32)).is_ok());
    assert!(
        world
            .unit
            .admit(A, &cdb16(0x88, 0, 0, max as u32 + 1))
            .is_err()
    );
}

#[test]
fn failures_of_the_storage_reach_the_initiator() {
    let world = World::new();
    *world.storage.failure.lock() = Some(LunError::NoSpace {
        offset_bytes: 0,
        length_bytes: 512,
    });
    let write = cdb16(0x8a, 0, 0, 1);
    assert_eq!(
        world.sense(&write, &[1; 512]),
        Sense::SPACE_ALLOCATION_FAILED
    );
    *world.storage.failure.lock() = Some(LunError::UnrecoveredRead { offset_bytes: 1024 });
    let expected = Sense::UNRECOVERED_READ_ERROR.with_information(2);
    assert_eq!(world.sense(&cdb16(0x88, 0, 0, 8), &[]), expected);
    assert_eq!(world.sense(&cdb16(0x8f, 0, 0, 8), &[]), expected);
    *world.storage.failure.lock() = Some(LunError::Busy);
    let outcome = world.run(A, &write, &[1; 512]);
    assert_eq!((outcome.status, outcome.sense), (status::BUSY, None));
}

#[test]
fn modes_change_what_writes_do() {
    let world = World::new();
    let select = |page: &[u8]| {
        let list = [&[0, 0, 0, 0], page].concat();
        let cdb = [0x15, 0x10, 0, 0, list.len() as u8, 0];
        world.good(&cdb, &list);
    };
    let mut caching = world.good(&[0x1a, 0x08, 0x08, 0, 255, 0], &[])[4..].to_vec();
    caching[2] = 0;
    select(&caching);
    // What was written before is stable when this is answered, and all that comes after.
    assert_eq!(world.calls(), ["flush"]);
    select(&caching);
    assert_eq!(world.calls(), [""; 0]);
    world.good(&cdb16(0x8a, 0, 0, 1), &[1; 512]);
    assert_eq!(world.calls(), ["write 0 512 true"]);
    world.good(&cdb16(0x93, 8, 8, 8), &[0; 512]);
    assert_eq!(world.calls(), ["unmap 4096 4096", "flush"]);
    let mut list = [0; 24];
    list[3] = 16;
    list[7] = 16;
    list[19] = 8;
    let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    world.good(&unmap, &list);
    assert_eq!(world.calls(), ["unmap 0 4096", "flush"]);
    let mut control = world.good(&[0x1a, 0x08, 0x0a, 0, 255, 0], &[])[4..].to_vec();
    control[2] |= 4;
    control[4] |= 8;
    select(&control);
    let outcome = world.run(A, &cdb16(0x8a, 0, 0, 1), &[1; 512]);
    assert_eq!(outcome.sense, Some(Sense::WRITE_PROTECTED));
    assert!(outcome.is_descriptor_sense);
    // The other nexus is told, once, and a reset sets all back.
    let told = |nexus| world.run(nexus, &[0; 6], &[]).sense;
    assert_eq!(told(B), Some(Sense::MODE_PARAMETERS_CHANGED));
    assert_eq!(told(B), None);
    world.unit.reset();
    assert_eq!(told(A), Some(Sense::POWER_ON_OR_RESET));
    world.good(&cdb16(0x8a, 0, 0, 1), &[1; 512]);
    assert_eq!(world.calls(), ["write 0 512 false"]);
}

/// Goal: a volume that is offered anew is reserved as it was, and its modes are as they were set;
/// what belonged to a session ended with it.
#[test]
fn reservations_and_modes_outlive_the_unit() {
    let world = World::new();
    let mut list = [0; 24];
    list[15] = 7;
    let reserve_out = |action: u8, kind: u8| [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    world.good(&reserve_out(0, 0), &list);
    list[7] = 7;
    world.good(&reserve_out(1, 3), &list);
    let mut caching = world.good(&[0x1a, 0x08, 0x08, 0, 255, 0], &[]);
    (caching[0], caching[2]) = (0, 0);
    caching[6] &= !4;
    world.good(&[0x15, 0x10, 0, 0, caching.len() as u8, 0], &caching);
    assert!(!world.storage.state.is_default());
    // Never two at once: one would not know what the other's sessions have.
    let read_only = Arc::new(AtomicBool::new(false));
    let second = Unit::new(
        world.storage.clone(),
        world.storage.state.clone(),
        "iqn.u",
        0,
        1,
        read_only,
    );
    assert!(matches!(second, Err(crate::TargetError::BadLun { .. })));
    let World { storage, unit } = world;
    drop(unit);
    let world = World::on(storage);
    let status = |nexus, cdb: &[u8]| world.run(nexus, cdb, &[1; 512]).status;
    assert_eq!(
        status(B, &cdb16(0x8a, 0, 0, 1)),
        status::RESERVATION_CONFLICT
    );
    assert_eq!(status(A, &cdb16(0x8a, 0, 0, 1)), 0);
    assert_eq!(
        world.calls().last().map(String::as_str),
        Some("write 0 512 true")
    );
    // RESERVE is a session's.
    list[15] = 0;
    world.good(&reserve_out(0, 0), &list);
    world.good(&[0x16, 0, 0, 0, 0, 0], &[]);
    let World { storage, unit } = world;
    drop(unit);
    let world = World::on(storage);
    assert_eq!(world.run(B, &cdb16(0x8a, 0, 0, 1), &[1; 512]).status, 0);
}

#[test]
fn reserve_keeps_others_out_until_release_or_reset_or_the_end() {
    let world = World::new();
    let status_of = |nexus, opcode: u8| world.run(nexus, &[opcode, 0, 0, 0, 36, 0], &[]).status;
    let conflict = status::RESERVATION_CONFLICT;
    let (test, inquiry, reserve, release) = (0x00, 0x12, 0x16, 0x17);
    assert_eq!(status_of(A, reserve), 0);
    assert_eq!((status_of(A, test), status_of(B, test)), (0, conflict));
    assert_eq!(
        (status_of(B, inquiry), status_of(B, reserve)),
        (0, conflict)
    );
    // The wrong one's release does nothing.
    assert_eq!((status_of(B, release), status_of(B, test)), (0, conflict));
    assert_eq!((status_of(A, release), status_of(B, test)), (0, 0));
    assert_eq!(status_of(A, reserve), 0);
    world.unit.detach(A);
    assert_eq!(status_of(B, test), 0);
}

#[test]
fn request_sense_takes_the_unit_attention() {
    let world = World::new();
    world.unit.establish(None, Sense::CAPACITY_CHANGED);
    let request = |descriptor| world.good(&[3, descriptor, 0, 0, 252, 0], &[]);
    let fixed = request(0);
    assert_eq!(
        (fixed[0], fixed[2], fixed[12], fixed[13]),
        (0x70, 6, 0x2a, 9)
    );
    assert_eq!(request(1)[..4], [0x72, 0, 0, 0]);
    // Standard inquiry does not.
    world.unit.establish(None, Sense::CAPACITY_CHANGED);
    world.good(&[0x12, 0, 0, 0, 96, 0], &[]);
    assert_eq!(world.sense(&[0; 6], &[]), Sense::CAPACITY_CHANGED);
}

#[test]
fn units_of_odd_shape_are_refused() {
    let make = |capacity, block, physical| {
        let memory = MemoryUnit::new(capacity, block, LunIdentity::new("S", [0; 16]));
        let memory = memory.with_physical_block_bytes(physical);
        Unit::new(
            Arc::new(memory),
            Arc::default(),
            "iqn.t",
            0,
            1,
            Arc::default(),
        )
        .is_ok()
    };
    assert!(make(1 << 20, 512, 4096));
    assert!(make(1 << 20, 4096, 4096));
    assert!(!make(1 << 20, 1024, 4096));
    assert!(!make(1000, 512, 4096));
    assert!(!make(0, 512, 4096));
    assert!(!make(1 << 20, 4096, 512));
    assert!(!make(1 << 20, 512, 3000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any CDB of any operation code, with any data: no panic, no read or write out of range,
    /// and no answer longer than it was asked for.
    #[test]
    fn any_command_is_survived(
        mut cdb: [u8; 16],
        opcode in prop_oneof![
            4 => proptest::sample::select(testing_opcodes()),
            1 => any::<u8>(),
        ],
        is_near in any::<bool>(),
        random in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let world = World::new();
        cdb[0] = opcode;
        if is_near {
            cdb[2..8].fill(0);
            cdb[10..13].fill(0);
        }
        if let Ok(command) = world.unit.admit(A, &cdb) {
            let length = command.data_out_bytes(512);
            prop_assert!(length <= u64::from(TRANSFER_BYTES_MAX));
            let mut data = random.clone();
            data.resize(length as usize, 0x5a);
            let outcome = match world.unit.execute_now(A, &command, &data) {
                Some(outcome) => outcome,
                None => world.execute(A, command, &data),
            };
            prop_assert_eq!(outcome.status == status::CHECK_CONDITION, outcome.sense.is_some());
            let internal = outcome.sense == Some(Sense::INTERNAL_TARGET_FAILURE);
            prop_assert!(!internal, "{:x?}", cdb);
        }
        for call in world.calls() {
            let mut words = call.split(' ').skip(1).map(|word| word.parse::<u64>());
            if let (Some(Ok(offset)), Some(Ok(length))) = (words.next(), words.next()) {
                prop_assert!(offset + length <= BLOCKS * BLOCK, "{}", call);
                prop_assert!(offset % BLOCK == 0 && length % BLOCK == 0, "{}", call);
            }
        }
    }
}
