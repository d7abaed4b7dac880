//! Copies within and between units (EXTENDED COPY), and what is told of them.

use super::*;
use crate::login::{Authentication, ChapCredentials};
use crate::lun::{LogicalUnit, LunError};
use crate::scsi::Done;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use tokio::sync::Semaphore;

/// A unit as a list names it: by its NAA designator.
fn unit_descriptor(n: u8) -> [u8; 32] {
    let mut descriptor = [0; 32];
    descriptor[0] = 0xe4;
    descriptor[4] = 1;
    descriptor[5] = 3;
    descriptor[7] = 16;
    descriptor[8..24].fill(n);
    descriptor[8] = 0x60 | (n & 0x0f);
    descriptor[30..32].copy_from_slice(&512u16.to_be_bytes());
    descriptor
}

fn segment(source: u16, destination: u16, count: u16, from: u64, to: u64) -> [u8; 28] {
    let mut segment = [0; 28];
    segment[0] = 0x02;
    segment[3] = 24;
    segment[4..6].copy_from_slice(&source.to_be_bytes());
    segment[6..8].copy_from_slice(&destination.to_be_bytes());
    segment[10..12].copy_from_slice(&count.to_be_bytes());
    segment[12..20].copy_from_slice(&from.to_be_bytes());
    segment[20..28].copy_from_slice(&to.to_be_bytes());
    segment
}

/// A parameter list of the short form, and the same of the long one.
fn lists(list_id: u8, units: &[[u8; 32]], segments: &[[u8; 28]]) -> [Vec<u8>; 2] {
    let (units, segments) = (units.concat(), segments.concat());
    let mut short = vec![0; 16];
    short[0] = list_id;
    short[2..4].copy_from_slice(&(units.len() as u16).to_be_bytes());
    short[8..12].copy_from_slice(&(segments.len() as u32).to_be_bytes());
    let mut long = vec![0; 48];
    long[0] = 1;
    long[3] = 0x20;
    long[16] = 0xff;
    long[23] = list_id;
    long[42..44].copy_from_slice(&(units.len() as u16).to_be_bytes());
    long[44..46].copy_from_slice(&(segments.len() as u16).to_be_bytes());
    for list in [&mut short, &mut long] {
        list.extend_from_slice(&units);
        list.extend_from_slice(&segments);
    }
    [short, long]
}

impl Initiator {
    fn copy(&mut self, lun: u8, list: &[u8], is_long: bool) -> Sent {
        let mut cdb = [0; 16];
        cdb[0] = 0x83;
        cdb[1] = u8::from(is_long);
        cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
        let header = command_header(50, lun, WRITE, list.len() as u32, &cdb);
        self.send(header, list);
        run_all(self);
        self.sent().pop().expect("an answer")
    }

    fn results(&mut self, lun: u8, action: u8, list_id: u8) -> Sent {
        let mut cdb = [0; 16];
        cdb[0] = 0x84;
        cdb[1] = action;
        cdb[if action == 5 { 5 } else { 2 }] = list_id;
        cdb[13] = 200;
        self.command_on(lun, 200, &cdb)
    }
}

fn fill(world: &World, unit: usize, lba: u64, data: Vec<u8>) {
    let write = world.units[unit].write(lba * BLOCK as u64, data.into(), false);
    block_on(write).unwrap();
}

fn stored(world: &World, unit: usize, lba: u64, count: usize) -> Vec<u8> {
    let read = world.units[unit].read(lba * BLOCK as u64, count * BLOCK);
    block_on(read).unwrap().concat()
}

fn pattern(count: usize, seed: u8) -> Vec<u8> {
    let bytes = (0..count * BLOCK).map(|n| (n / 7 + n / 512) as u8 ^ seed);
    bytes.collect()
}

#[test]
fn blocks_are_copied_between_units_and_the_result_is_kept() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    let data = pattern(40, 3);
    fill(&world, 0, 5, data.clone());
    let units = [unit_descriptor(0), unit_descriptor(1)];
    let segments = [segment(0, 1, 40, 5, 100), segment(0xffff, 1, 2, 5, 10)];
    for (is_long, list) in [false, true].into_iter().zip(lists(9, &units, &segments)) {
        fill(&world, 1, 0, vec![0; 200 * BLOCK]);
        let answer = a.copy(0, &list, is_long);
        assert_eq!(answer.status(), 0, "{:?}", answer.data);
        assert_eq!(stored(&world, 1, 100, 40), data);
        assert_eq!(stored(&world, 1, 10, 2), data[..2 * BLOCK]);
        let action = if is_long { 5 } else { 0 };
        let result = a.results(0, action, 9).data;
        let (status, segments) = match is_long {
            true => (result[5], &result[24..26]),
            false => (result[4], &result[5..7]),
        };
        assert_eq!((status, segments), (1, &[0, 2][..]));
        // Of another list, unit or initiator nothing is known.
        assert_eq!(a.results(0, action, 8).sense(), (5, 0x24, 0));
        assert_eq!(a.results(1, action, 9).sense(), (5, 0x24, 0));
        let mut b = world.initiator(2, parameters());
        assert_eq!(b.results(0, action, 9).sense(), (5, 0x24, 0));
    }
    let limits = a.results(0, 3, 0).data;
    assert_eq!(limits[43..46], [2, 0x02, 0xe4]);
}

#[test]
fn ranges_that_overlap_are_copied_as_they_were() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    // More than is read at once, both ways.
    let count = 3000;
    for (from, to) in [(0, 100), (100, 0), (7, 7)] {
        let data = pattern(count, from as u8);
        fill(&world, 0, from, data.clone());
        let list = lists(
            1,
            &[unit_descriptor(0)],
            &[segment(0, 0, count as u16, from, to)],
        );
        assert_eq!(a.copy(0, &list[0], false).status(), 0);
        assert!(stored(&world, 0, to, count) == data, "{from} to {to}");
    }
}

#[test]
fn what_may_not_be_copied_is_not() {
    let world = World::new();
    let known = ChapCredentials {
        user: "u".into(),
        secret: b"secret".to_vec(),
    };
    let guarded = TargetOptions {
        authentication: Authentication::Chap {
            initiator: known,
            target: None,
        },
        ..TargetOptions::default()
    };
    for (n, options) in [(7, guarded), (8, TargetOptions::default())] {
        let identity = LunIdentity::new(format!("S{n}"), [n; 16]);
        let unit = MemoryUnit::new(CAPACITY_BYTES, BLOCK as u32, identity);
        unit.set_read_only(n == 8);
        let luns = [(0, Arc::new(unit) as Arc<_>)].into();
        let iqn = format!("{IQN}{n}");
        world.targets.add(Target { iqn, luns, options }).unwrap();
    }
    let mut a = world.initiator(1, parameters());
    let mut try_list = |units: &[[u8; 32]], segments: &[[u8; 28]]| {
        let list = lists(3, units, segments);
        a.copy(0, &list[0], false)
    };
    let [own, guarded, read_only] = [0, 7, 8].map(unit_descriptor);
    let one = |from, to| [segment(from, to, 1, 0, 1)];
    // Another target's unit that it could log in to may be read, and written if it takes writes.
    assert_eq!(try_list(&[own, read_only], &one(1, 0)).status(), 0);
    assert_eq!(
        try_list(&[own, read_only], &one(0, 1)).sense(),
        (7, 0x27, 0)
    );
    // One with a secret that it has not proven is out of reach, as one that is not there.
    assert_eq!(
        try_list(&[own, guarded], &one(1, 0)).sense(),
        (0xa, 0x0d, 2)
    );
    let nobody = unit_descriptor(9);
    assert_eq!(try_list(&[own, nobody], &one(1, 0)).sense(), (0xa, 0x0d, 2));
    assert_eq!(try_list(&[own], &one(0, 4)).sense(), (0xa, 0x08, 4));
    let blocks = (CAPACITY_BYTES / BLOCK as u64) - 1;
    for (from, to) in [(blocks, 0), (0, blocks), (u64::MAX, 0), (0, u64::MAX)] {
        let beyond = [segment(0, 0, 2, from, to)];
        assert_eq!(try_list(&[own], &beyond).sense(), (0xa, 0, 0));
    }
    let mut other_blocks = own;
    other_blocks[30] = 0x10;
    assert_eq!(try_list(&[other_blocks], &one(0, 0)).sense(), (5, 0x26, 0));
    let mut wrong_kind = own;
    wrong_kind[0] = 0xe0;
    assert_eq!(try_list(&[wrong_kind], &one(0, 0)).sense(), (5, 0x26, 7));
    assert_eq!(try_list(&[own; 17], &one(0, 0)).sense(), (5, 0x26, 6));
    assert_eq!(try_list(&[own], &[one(0, 0)[0]; 65]).sense(), (5, 0x26, 8));
    // What another has reserved is not copied over.
    let mut b = world.initiator(2, parameters());
    assert_eq!(b.command_on(1, 0, &[0x16, 0, 0, 0, 0, 0]).status(), 0);
    let list = lists(3, &[own, unit_descriptor(1)], &one(0, 1));
    assert_eq!(a.copy(0, &list[0], false).sense(), (0xa, 0x0d, 2));
}

const GATED_IQN: &str = "iqn.2025-01.test:gated";

/// A unit whose writes wait until they are let through.
struct Gated {
    memory: MemoryUnit,
    gate: Semaphore,
    writes: AtomicUsize,
}

impl LogicalUnit for Gated {
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
        self.memory.read(offset, length)
    }

    fn write(
        &self,
        offset: u64,
        data: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>> {
        Box::pin(async move {
            self.gate.acquire().await.expect("never closed").forget();
            self.writes.fetch_add(1, Ordering::Relaxed);
            self.memory.write(offset, data, durable).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), LunError>> {
        self.memory.flush()
    }

    fn unmap(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), LunError>> {
        self.memory.unmap(offset, length)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>> {
        self.memory.write_zeroes(offset, length, durable)
    }
}

/// A copy of three pieces to another target's unit, of which one has been written and the next is
/// being written.
struct Copying {
    a: Initiator,
    /// A session of another initiator with the target that is written.
    b: Initiator,
    unit: Arc<Gated>,
    task: TaskId,
    copy: BoxFuture<'static, Done>,
}

fn poll<T>(future: &mut BoxFuture<'static, T>) -> Poll<T> {
    future.poll_unpin(&mut Context::from_waker(Waker::noop()))
}

impl Initiator {
    /// PERSISTENT RESERVE OUT; the answer where there is one at once.
    fn reserve_out(&mut self, action: u8, kind: u8, key: u64, action_key: u64) -> Vec<Sent> {
        let mut list = [0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&action_key.to_be_bytes());
        let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
        self.write(60, &cdb, &list)
    }

    fn one_run(&mut self) -> (TaskId, BoxFuture<'static, Done>) {
        let Some(Action::Run {
            task,
            unit,
            command,
            data,
            stop,
        }) = self.session.next_action()
        else {
            panic!("a command to run");
        };
        let run = self.nexus().execute(unit, command, data, stop);
        (task, run.boxed())
    }
}

impl Copying {
    fn begin(world: &World) -> Self {
        let identity = LunIdentity::new("S7".to_owned(), [7; 16]);
        let unit = Arc::new(Gated {
            memory: MemoryUnit::new(CAPACITY_BYTES, BLOCK as u32, identity),
            gate: Semaphore::new(1),
            writes: AtomicUsize::new(0),
        });
        let luns = [(0, unit.clone() as Arc<_>)].into();
        let (iqn, options) = (GATED_IQN.into(), TargetOptions::default());
        world.targets.add(Target { iqn, luns, options }).unwrap();
        let log_in = |number| world.initiator_of(GATED_IQN, 1, number, parameters());
        // The one that copies is registered there, and has no session any more.
        let mut before = log_in(1);
        assert_eq!(before.reserve_out(0, 0, 0, 10)[0].status(), 0);
        drop(before);
        let mut b = log_in(2);
        assert_eq!(b.reserve_out(0, 0, 0, 11)[0].status(), 0);
        // Write exclusive, registrants only.
        assert_eq!(b.reserve_out(1, 5, 11, 0)[0].status(), 0);
        let mut a = world.initiator(1, parameters());
        let units = [unit_descriptor(0), unit_descriptor(7)];
        let blocks = (3 * CHUNK_BYTES_MAX as usize / BLOCK) as u16;
        let [list, _] = lists(9, &units, &[segment(0, 1, blocks, 0, 0)]);
        let mut cdb = [0; 16];
        cdb[0] = 0x83;
        cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
        a.send(command_header(50, 0, WRITE, list.len() as u32, &cdb), &list);
        let (task, mut copy) = a.one_run();
        assert!(poll(&mut copy).is_pending());
        assert_eq!(unit.writes.load(Ordering::Relaxed), 1);
        Self {
            a,
            b,
            unit,
            task,
            copy,
        }
    }

    /// Whoever took the right to write away hears so only when the piece under way is written, and
    /// no other is.
    fn ends_before<T>(mut self, mut answer: BoxFuture<'static, T>) -> (Self, T) {
        assert!(poll(&mut answer).is_pending());
        assert!(poll(&mut self.copy).is_pending());
        self.unit.gate.add_permits(10);
        let mut done = poll(&mut self.copy);
        let Poll::Ready(answer) = poll(&mut answer) else {
            panic!("an answer");
        };
        if done.is_pending() {
            done = poll(&mut self.copy);
        }
        let Poll::Ready(done) = done else {
            panic!("the copy has ended");
        };
        assert_eq!(self.unit.writes.load(Ordering::Relaxed), 2);
        let sense = done.outcome.sense;
        assert_eq!(sense, Some(Sense::COPY_TARGET_NOT_REACHABLE));
        self.a.session.complete(self.task, done);
        (self, answer)
    }
}

#[test]
fn who_was_preempted_does_not_go_on_copying() {
    let world = World::new();
    let mut copying = Copying::begin(&world);
    assert!(copying.b.reserve_out(5, 5, 11, 10).is_empty());
    let (task, preempt) = copying.b.one_run();
    let (mut copying, done) = copying.ends_before(preempt);
    copying.b.session.complete(task, done);
    assert_eq!(copying.b.sent()[0].status(), 0);
}

#[test]
fn a_reset_ends_copies_to_the_unit() {
    let world = World::new();
    let mut copying = Copying::begin(&world);
    assert!(copying.b.task_management(5, 0, 0).is_empty());
    let Some(Action::AbortElsewhere { ticket, fenced, .. }) = copying.b.session.next_action()
    else {
        panic!("the unit is fenced");
    };
    let unit = fenced[0].clone();
    let fence = async move { unit.fence().await };
    let (mut copying, ()) = copying.ends_before(fence.boxed());
    copying.b.session.elsewhere_done(ticket);
    assert_eq!(copying.b.sent()[0].header.0[2], 0);
}

#[test]
fn a_copy_that_is_aborted_ends_after_the_piece_under_way() {
    let world = World::new();
    let mut copying = Copying::begin(&world);
    assert!(copying.a.task_management(1, 0, 50).is_empty());
    copying.unit.gate.add_permits(10);
    let Poll::Ready(done) = poll(&mut copying.copy) else {
        panic!("it has ended");
    };
    assert_eq!(copying.unit.writes.load(Ordering::Relaxed), 2);
    copying.a.session.complete(copying.task, done);
    let sent = copying.a.sent();
    assert_eq!((sent.len(), sent[0].opcode()), (1, 0x22));
    assert_eq!(sent[0].header.0[2], 0);
}
