//! Full feature phase without a socket: frames in, PDUs and actions out.

mod connections;
mod copies;
mod limits;

use super::memory::WINDOW_IDLE;
use super::*;
use crate::pdu::{BHS_BYTES, Framing, next_frame};
use crate::target::{Control, Registration};
use crate::{LunIdentity, MemoryUnit, Target, TargetOptions, TargetSet};
use futures::executor::block_on;
use proptest::prelude::*;
use tokio::sync::mpsc;

const IQN: &str = "iqn.2025-01.test:t";
const BLOCK: usize = 512;
const CAPACITY_BYTES: u64 = 64 << 20;

/// A target with two units, and sessions to it.
struct World {
    targets: TargetSet,
    units: [Arc<MemoryUnit>; 2],
}

/// An initiator's end of a session.
struct Initiator {
    session: Session,
    registration: Registration,
    control: mpsc::UnboundedReceiver<Control>,
    cmd_sn: u32,
}

/// A PDU that the target sent.
#[derive(Debug, Clone)]
struct Sent {
    header: Header,
    data: Bytes,
}

impl Sent {
    fn opcode(&self) -> u8 {
        self.header.0[0]
    }

    fn status(&self) -> u8 {
        self.header.0[3]
    }

    fn residual(&self) -> (u8, u32) {
        (self.header.flags() & 6, self.header.u32_at(44))
    }

    /// Sense key and code of a response.
    fn sense(&self) -> (u8, u8, u8) {
        assert_eq!((self.opcode(), self.status()), (0x21, 2), "{self:?}");
        (self.data[4] & 15, self.data[14], self.data[15])
    }
}

impl World {
    fn new() -> Self {
        Self::with_targets(TargetSet::new())
    }

    fn with_targets(targets: TargetSet) -> Self {
        let unit = |n: u8| {
            let identity = LunIdentity::new(format!("S{n}"), [n; 16]);
            Arc::new(MemoryUnit::new(CAPACITY_BYTES, BLOCK as u32, identity))
        };
        let units = [unit(0), unit(1)];
        let luns = (0..)
            .zip(units.iter().map(|unit| unit.clone() as Arc<_>))
            .collect();
        let (iqn, options) = (IQN.into(), TargetOptions::default());
        targets.add(Target { iqn, luns, options }).unwrap();
        Self { targets, units }
    }

    fn initiator(&self, number: u8, parameters: Parameters) -> Initiator {
        self.initiator_of(IQN, 2, number, parameters)
    }

    /// The same of another target, which has so many units.
    fn initiator_of(&self, iqn: &str, luns: u8, number: u8, parameters: Parameters) -> Initiator {
        let port = crate::scsi::InitiatorPort {
            name: format!("iqn.i{number}"),
            isid: [0; 6],
        };
        let (sender, control) = mpsc::unbounded_channel();
        let peer = "127.0.0.1:1".parse().unwrap();
        let iqn = Some(iqn.into());
        let base = base_bytes(&parameters);
        let register = self.targets.register(iqn, port, None, peer, sender, base);
        let (registration, share) = block_on(register).unwrap();
        let session = Session::new(
            registration.nexus.clone(),
            share,
            parameters,
            0,
            1,
            1,
            Box::new(|| {
                vec![(
                    IQN.into(),
                    vec!["127.0.0.1:3260,1".into(), "10.0.0.1:3261,1".into()],
                )]
            }),
        );
        let mut initiator = Initiator {
            session,
            registration,
            control,
            cmd_sn: 1,
        };
        // The unit attention that a new session meets on each unit.
        for lun in 0..luns {
            assert_eq!(initiator.command_on(lun, 0, &[0; 6]).sense(), (6, 0x29, 0));
        }
        initiator
    }
}

fn parameters() -> Parameters {
    Parameters {
        initial_r2t: false,
        ..Parameters::default()
    }
}

const READ: u8 = 0xc0;
const WRITE: u8 = 0xa0;

fn command_header(tag: u32, lun: u8, flags: u8, length: u32, cdb: &[u8]) -> Header {
    let mut header = Header::new(0x01);
    header.0[1] = flags;
    header.0[9] = lun;
    header.set_initiator_task_tag(tag);
    header.set_u32(20, length);
    header.0[32..32 + cdb.len()].copy_from_slice(cdb);
    header
}

fn read10(lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

fn write10(lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = read10(lba, blocks);
    cdb[0] = 0x2a;
    cdb
}

impl Initiator {
    /// Sends a PDU with its place in the order of requests.
    fn send(&mut self, mut header: Header, data: &[u8]) -> Vec<Sent> {
        let cmd_sn = self.cmd_sn;
        self.cmd_sn += 1;
        header.set_u32(24, cmd_sn);
        self.send_raw(header, data).unwrap();
        self.sent()
    }

    fn send_raw(&mut self, header: Header, data: &[u8]) -> Result<(), ProtocolError> {
        self.send_by(LineId::FIRST, header, data)
    }

    /// The same by one of several connections.
    fn send_by(
        &mut self,
        line: LineId,
        mut header: Header,
        data: &[u8],
    ) -> Result<(), ProtocolError> {
        header.set_data_bytes(data.len());
        let frame = Frame {
            header,
            data: Bytes::copy_from_slice(data),
            is_data_intact: true,
        };
        self.session.receive(line, frame)
    }

    /// What the target has sent since.
    fn sent(&mut self) -> Vec<Sent> {
        self.sent_by(LineId::FIRST)
    }

    fn sent_by(&mut self, line: LineId) -> Vec<Sent> {
        let mut bytes = BytesMut::new();
        let mut slices = [std::io::IoSlice::new(&[]); 64];
        while let Some(out) = self.session.lines.out(line).filter(|out| !out.is_empty()) {
            let count = out.fill(&mut slices);
            let piece: Vec<u8> = slices[..count].iter().flat_map(|s| s.to_vec()).collect();
            slices = [std::io::IoSlice::new(&[]); 64];
            bytes.extend_from_slice(&piece);
            self.session.sent(line, piece.len());
        }
        let framing = Framing {
            has_header_digest: false,
            has_data_digest: false,
            data_bytes_max: 1 << 24,
        };
        let mut sent = Vec::new();
        while bytes.len() >= BHS_BYTES {
            let Frame { header, data, .. } = next_frame(&mut bytes, framing).unwrap().unwrap();
            sent.push(Sent { header, data });
        }
        assert!(bytes.is_empty());
        sent
    }

    fn nexus(&self) -> Arc<Nexus> {
        self.registration.nexus.clone().expect("a nexus")
    }

    /// Runs what the session wants run, once.
    fn run(&mut self) {
        while let Some(action) = self.session.next_action() {
            let Action::Run {
                task,
                unit,
                command,
                data,
                stop,
            } = action
            else {
                panic!("{action:?}");
            };
            let done = block_on(self.nexus().execute(unit, command, data, stop));
            self.session.complete(task, done);
        }
    }

    /// A command without data from us, to its one answer.
    fn command_on(&mut self, lun: u8, length: u32, cdb: &[u8]) -> Sent {
        let flags = if length > 0 { READ } else { 0x80 };
        let mut sent = self.send(command_header(99, lun, flags, length, cdb), &[]);
        self.run();
        sent.extend(self.sent());
        // All data with the last PDU, which has the status.
        let data: Vec<u8> = sent.iter().flat_map(|sent| sent.data.to_vec()).collect();
        let header = sent.pop().expect("an answer").header;
        Sent {
            header,
            data: data.into(),
        }
    }

    /// A write with immediate data.
    fn write(&mut self, tag: u32, cdb: &[u8], data: &[u8]) -> Vec<Sent> {
        self.send(command_header(tag, 0, WRITE, data.len() as u32, cdb), data)
    }

    fn data_out(
        &mut self,
        tag: u32,
        transfer_tag: u32,
        sn: u32,
        at: usize,
        is_final: bool,
        data: &[u8],
    ) -> Vec<Sent> {
        let mut header = Header::new(0x05);
        header.0[1] = if is_final { 0x80 } else { 0 };
        header.set_initiator_task_tag(tag);
        header.set_target_tag(transfer_tag);
        header.set_u32(36, sn);
        header.set_u32(40, at as u32);
        self.send_raw(header, data).unwrap();
        self.sent()
    }

    fn task_management(&mut self, function: u8, lun: u8, referenced: u32) -> Vec<Sent> {
        let mut header = Header::new(0x42);
        header.0[1] = 0x80 | function;
        header.0[9] = lun;
        header.set_initiator_task_tag(0x7000);
        header.set_target_tag(referenced);
        header.set_u32(24, self.cmd_sn);
        self.send_raw(header, &[]).unwrap();
        self.sent()
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7) as u8).collect()
}

#[test]
fn reads_are_cut_to_pdus_and_bursts_and_end_with_the_status() {
    let world = World::new();
    let mut a = world.initiator(
        1,
        Parameters {
            send_data_bytes_max: 1024,
            burst_bytes_max: 2048,
            ..parameters()
        },
    );
    let data = pattern(6 * BLOCK);
    a.write(1, &write10(0, 6), &data);
    a.run();
    a.sent();
    let sent = a.send(command_header(2, 0, READ, 3072, &read10(0, 6)), &[]);
    assert_eq!(sent.len(), 3);
    // Opcode, flags (final at the end of each burst, status in the last), offset, DataSN.
    let fields = |s: &Sent| {
        (
            s.opcode(),
            s.header.flags(),
            s.header.u32_at(40),
            s.header.u32_at(36),
        )
    };
    assert_eq!(fields(&sent[0]), (0x25, 0x00, 0, 0));
    assert_eq!(fields(&sent[1]), (0x25, 0x80, 1024, 1));
    assert_eq!(fields(&sent[2]), (0x25, 0x81, 2048, 2));
    assert_eq!(sent[2].status(), 0);
    let all: Vec<u8> = sent.iter().flat_map(|s| s.data.to_vec()).collect();
    assert_eq!(all, data);
    // One status number for the command, the next for the next.
    let first = sent[2].header.u32_at(24);
    let next = a.command_on(0, 0, &[0; 6]);
    assert_eq!(next.header.u32_at(24), first + 1);
}

#[test]
fn residuals_tell_what_was_not_moved() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    let table = [
        (512, (0, 0), 512),
        (2048, (2, 1536), 512),
        (200, (4, 312), 200),
    ];
    for (length, residual, received) in table {
        let sent = a.command_on(0, length, &read10(0, 1));
        assert_eq!((sent.residual(), sent.data.len()), (residual, received));
    }
    // Nothing was moved by a command that failed.
    let failed = a.command_on(0, 512, &read10(u32::MAX, 1));
    assert_eq!(
        (failed.sense(), failed.residual()),
        ((5, 0x21, 0), (2, 512))
    );
    // No data goes to who does not want to read.
    let sent = a.send(command_header(3, 0, 0x80, 0, &read10(0, 1)), &[]);
    assert_eq!((sent[0].opcode(), sent[0].residual()), (0x21, (4, 512)));
    // A write of two blocks of which one is sent writes one.
    let sent = a.write(4, &write10(10, 2), &[7; BLOCK]);
    assert!(sent.is_empty());
    a.run();
    let sent = a.sent();
    assert_eq!((sent[0].status(), sent[0].residual()), (0, (4, 512)));
    let back = a.command_on(0, 1024, &read10(10, 2)).data;
    assert_eq!(back, [[7; BLOCK], [0; BLOCK]].concat());
    // And one that ends inside a block leaves the rest of it.
    a.write(5, &write10(10, 1), &[9; 100]);
    a.run();
    a.sent();
    let back = a.command_on(0, 512, &read10(10, 1)).data;
    assert_eq!(back, [vec![9; 100], vec![7; 412]].concat());
}

#[test]
fn writes_gather_immediate_unsolicited_and_solicited_data() {
    let world = World::new();
    let mut a = world.initiator(
        1,
        Parameters {
            first_burst_bytes_max: 1024,
            burst_bytes_max: 1024,
            outstanding_r2t_max: 2,
            ..parameters()
        },
    );
    let data = pattern(8 * BLOCK);
    let header = command_header(1, 0, WRITE & !0x80, 4096, &write10(3, 8));
    assert!(a.send(header, &data[..512]).is_empty());
    let r2ts = a.data_out(1, TAG_NONE, 0, 512, true, &data[512..1024]);
    let fields = |s: &Sent| {
        (
            s.opcode(),
            s.header.u32_at(36),
            s.header.u32_at(40),
            s.header.u32_at(44),
        )
    };
    assert_eq!(r2ts.len(), 2);
    assert_eq!(fields(&r2ts[0]), (0x31, 0, 1024, 1024));
    assert_eq!(fields(&r2ts[1]), (0x31, 1, 2048, 1024));
    let (one, two) = (r2ts[0].header.target_tag(), r2ts[1].header.target_tag());
    assert!(
        a.data_out(1, one, 0, 1024, false, &data[1024..1536])
            .is_empty()
    );
    let third = a.data_out(1, one, 1, 1536, true, &data[1536..2048]);
    assert_eq!(fields(&third[0]), (0x31, 2, 3072, 1024));
    assert!(
        a.data_out(1, two, 0, 2048, true, &data[2048..3072])
            .is_empty()
    );
    let three = third[0].header.target_tag();
    assert!(
        a.data_out(1, three, 0, 3072, true, &data[3072..])
            .is_empty()
    );
    a.run();
    let sent = a.sent();
    assert_eq!((sent[0].opcode(), sent[0].status()), (0x21, 0));
    assert_eq!(a.command_on(0, 4096, &read10(3, 8)).data, data);
}

#[test]
fn data_out_of_order_fails_the_command_alone() {
    let world = World::new();
    let mut a = world.initiator(
        1,
        Parameters {
            immediate_data: false,
            initial_r2t: true,
            ..parameters()
        },
    );
    let start = |a: &mut Initiator| {
        let sent = a.send(command_header(1, 0, WRITE, 1024, &write10(0, 2)), &[]);
        sent[0].header.target_tag()
    };
    let tag = start(&mut a);
    let sent = a.data_out(1, tag, 1, 0, true, &[1; 1024]);
    assert_eq!(sent[0].sense(), (0xb, 0x47, 5));
    let tag = start(&mut a);
    let sent = a.data_out(1, tag, 0, 0, true, &[1; 512]);
    assert_eq!(sent[0].sense(), (0xb, 0x0c, 0x0d));
    // What follows belongs to nothing any more.
    assert!(a.data_out(1, tag, 1, 512, true, &[1; 512]).is_empty());
    // Unsolicited data is not allowed here at all.
    let sent = a.write(2, &write10(0, 1), &[1; 512]);
    assert_eq!(sent[0].sense(), (0xb, 0x0c, 0x0c));
    a.run();
    assert_eq!(a.command_on(0, 1024, &read10(0, 2)).data, [0; 1024][..]);
}

#[test]
fn refusal_waits_for_unsolicited_data_to_end() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    let header = command_header(1, 0, WRITE & !0x80, 1024, &write10(u32::MAX, 2));
    assert!(a.send(header, &[]).is_empty());
    assert!(a.data_out(1, TAG_NONE, 0, 0, false, &[1; 512]).is_empty());
    let sent = a.data_out(1, TAG_NONE, 1, 512, true, &[1; 512]);
    assert_eq!(sent[0].sense(), (5, 0x21, 0));
}

#[test]
fn requests_are_taken_in_order_and_inside_the_window() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    let next = a.cmd_sn;
    let numbered = |tag, cmd_sn| {
        let mut header = command_header(tag, 0, 0x80, 0, &[0; 6]);
        header.set_u32(24, cmd_sn);
        header
    };
    // Behind the window, ahead of it: ignored.
    a.send_raw(numbered(1, next - 1), &[]).unwrap();
    a.send_raw(numbered(1, next + WINDOW_IDLE), &[]).unwrap();
    assert!(a.sent().is_empty());
    // Early ones wait for the missing one.
    a.send_raw(numbered(12, next + 2), &[]).unwrap();
    a.send_raw(numbered(11, next + 1), &[]).unwrap();
    assert!(a.sent().is_empty());
    a.send_raw(numbered(10, next), &[]).unwrap();
    let sent = a.sent();
    let tags: Vec<u32> = sent.iter().map(|s| s.header.initiator_task_tag()).collect();
    assert_eq!(tags, [10, 11, 12]);
    assert_eq!(sent[2].header.u32_at(28), next + 3);
    assert_eq!(sent[2].header.u32_at(32), next + 2 + WINDOW_IDLE);
    // Immediate ones overtake and do not count.
    let mut immediate = numbered(20, next + 3);
    immediate.0[0] |= 0x40;
    a.send_raw(immediate, &[]).unwrap();
    assert_eq!(a.sent()[0].header.u32_at(28), next + 3);
    // Too many that wait end the connection.
    let mut result = Ok(());
    a.session.max_cmd_sn += HELD_REQUESTS_MAX as u32;
    for ahead in 0..=HELD_REQUESTS_MAX as u32 {
        result = a.send_raw(numbered(30, next + 4 + ahead), &[]);
    }
    assert_eq!(result, Err(ProtocolError::MissingRequest));
}

#[test]
fn task_tags_in_use_are_rejected() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    a.write(1, &write10(0, 1), &[1; BLOCK]);
    let sent = a.write(1, &write10(1, 1), &[2; BLOCK]);
    assert_eq!((sent[0].opcode(), sent[0].header.0[2]), (0x3f, 0x07));
    assert_eq!(sent[0].data.len(), BHS_BYTES);
    let sent = a.send(command_header(TAG_NONE, 0, 0x80, 0, &[0; 6]), &[]);
    assert_eq!((sent[0].opcode(), sent[0].header.0[2]), (0x3f, 0x09));
}

/// Takes the tags of what the session wants run, without running it.
fn started(initiator: &mut Initiator) -> Vec<TaskId> {
    let mut ids = Vec::new();
    while let Some(action) = initiator.session.next_action() {
        match action {
            Action::Run { task, .. } => ids.push(task),
            other => panic!("{other:?}"),
        }
    }
    ids
}

#[test]
fn ordered_commands_wait_for_older_ones_and_hold_younger_ones_back() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    let ordered = 2;
    let head = 3;
    let write = |a: &mut Initiator, tag, lun, attribute: u8| {
        let header = command_header(tag, lun, WRITE | attribute, 512, &write10(0, 1));
        a.send(header, &[tag as u8; BLOCK]);
    };
    write(&mut a, 1, 0, 0);
    write(&mut a, 2, 0, ordered);
    write(&mut a, 3, 0, 0);
    write(&mut a, 4, 0, head);
    write(&mut a, 5, 1, 0);
    let ids = started(&mut a);
    let tags = |ids: &[TaskId]| ids.iter().map(|id| id.tag).collect::<Vec<_>>();
    assert_eq!(tags(&ids), [1, 4, 5]);
    a.session.complete(ids[1], Outcome::good());
    assert!(started(&mut a).is_empty());
    a.session.complete(ids[0], Outcome::good());
    let ids = started(&mut a);
    assert_eq!(tags(&ids), [2]);
    a.session.complete(ids[0], Outcome::good());
    assert_eq!(tags(&started(&mut a)), [3]);
}

#[test]
fn abort_is_answered_when_the_command_has_ended_and_the_command_is_not() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    a.write(1, &write10(0, 1), &[1; BLOCK]);
    let ids = started(&mut a);
    assert!(a.task_management(1, 0, 1).is_empty());
    a.session.complete(ids[0], Outcome::good());
    let sent = a.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].opcode(), sent[0].header.0[2]), (0x22, 0));
    // No such task; another unit's; no such unit; no such function.
    for (function, lun, tag, response) in [(1, 0, 1, 1), (5, 9, 0, 2), (8, 0, 0, 4), (3, 0, 0, 5)] {
        let sent = a.task_management(function, lun, tag);
        assert_eq!(sent[0].header.0[2], response, "function {function}");
    }
    // What still waits for data is gone at once.
    let header = command_header(2, 0, WRITE & !0x80, 1024, &write10(0, 2));
    a.send(header, &[]);
    let sent = a.task_management(2, 0, 0);
    assert_eq!(sent[0].header.0[2], 0);
    assert!(a.data_out(2, TAG_NONE, 0, 0, true, &[1; 1024]).is_empty());
}

#[test]
fn reset_reaches_other_sessions() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    let mut b = world.initiator(2, parameters());
    b.write(1, &write10(0, 1), &[1; BLOCK]);
    let running = started(&mut b);
    assert!(a.task_management(5, 0, 0).is_empty());
    let Some(Action::AbortElsewhere {
        ticket,
        nexuses,
        lun,
        fenced,
    }) = a.session.next_action()
    else {
        panic!("the other session was not asked");
    };
    assert_eq!((nexuses.len(), lun, fenced.len()), (1, Some(0), 1));
    b.session.abort_for(Ticket(1), lun);
    assert!(b.session.next_action().is_none());
    b.session.complete(running[0], Outcome::good());
    let Some(Action::Aborted { ticket: Ticket(1) }) = b.session.next_action() else {
        panic!("the abort was not acknowledged");
    };
    assert!(b.sent().is_empty());
    a.session.elsewhere_done(ticket);
    assert_eq!(a.sent()[0].header.0[2], 0);
    // Both learn of it, on this unit only.
    for initiator in [&mut a, &mut b] {
        assert_eq!(initiator.command_on(0, 0, &[0; 6]).sense(), (6, 0x29, 0));
        assert_eq!(initiator.command_on(1, 0, &[0; 6]).status(), 0);
    }
}

#[test]
fn pings_texts_and_logout_are_answered() {
    let world = World::new();
    let mut a = world.initiator(
        1,
        Parameters {
            send_data_bytes_max: 512,
            ..parameters()
        },
    );
    let mut nop = Header::new(0x00);
    nop.set_initiator_task_tag(3);
    let sent = a.send(nop, b"ping");
    assert_eq!((sent[0].opcode(), &sent[0].data[..]), (0x20, &b"ping"[..]));
    a.session.ping(LineId::FIRST);
    let sent = a.sent();
    assert_eq!(sent[0].header.initiator_task_tag(), TAG_NONE);
    assert_ne!(sent[0].header.target_tag(), TAG_NONE);
    // "All" is for discovery; one's own target may be asked about.
    let mut text = Header::new(0x04);
    text.set_target_tag(TAG_NONE);
    let sent = a.send(text, b"SendTargets=All\0");
    assert_eq!(&sent[0].data[..], b"SendTargets=Reject\0");
    let sent = a.send(text, b"SendTargets=\0");
    assert_eq!(
        &sent[0].data[..],
        b"TargetName=iqn.2025-01.test:t\0TargetAddress=127.0.0.1:3260,1\0\
          TargetAddress=10.0.0.1:3261,1\0"
    );
    let sent = a.send(text, b"nonsense");
    assert_eq!((sent[0].opcode(), sent[0].header.0[2]), (0x3f, 0x04));
    // There is nothing to recover, and no other connection.
    let mut logout = Header::new(0x06);
    for (reason, connection, response) in [(2, 0, 2), (1, 5, 1), (0, 0, 0)] {
        logout.0[1] = 0x80 | reason;
        logout.set_u16(20, connection);
        let sent = a.send(logout, &[]);
        assert_eq!((sent[0].opcode(), sent[0].header.0[2]), (0x26, response));
    }
    assert!(a.session.is_closing());
}

#[test]
fn long_target_lists_are_sent_in_pieces() {
    let list = || {
        (0..100)
            .map(|n| (format!("iqn.t{n}"), vec!["a:1,1".into()]))
            .collect()
    };
    let budget = Arc::new(crate::budget::Budget::new(64 << 20));
    let share = Share::open(&budget, base_bytes(&parameters())).unwrap();
    let session = Session::new(None, share, parameters(), 0, 1, 1, Box::new(list));
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    a.session = session;
    let line = a
        .session
        .lines
        .get_mut(LineId::FIRST)
        .expect("a connection");
    line.send_data_bytes_max = 512;
    a.cmd_sn = 1;
    let mut text = Header::new(0x04);
    let (mut tag, mut all) = (TAG_NONE, Vec::new());
    let mut request = &b"SendTargets=All\0"[..];
    loop {
        text.set_target_tag(tag);
        let sent = a.send(text, request).remove(0);
        assert!(sent.data.len() <= 512);
        all.extend_from_slice(&sent.data);
        tag = sent.header.target_tag();
        if sent.header.flags() == 0x80 {
            break;
        }
        assert_eq!(sent.header.flags(), 0x40);
        request = b"";
    }
    assert_eq!(tag, TAG_NONE);
    assert_eq!(crate::text::parse(&all).unwrap().len(), 200);
    // There are no units in a discovery session.
    let sent = a.send(command_header(1, 0, 0x80, 0, &[0; 6]), &[]);
    assert_eq!(sent[0].opcode(), 0x3f);
}

#[test]
fn units_that_are_not_there_say_so() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    assert_eq!(a.command_on(9, 0, &[0; 6]).sense(), (5, 0x25, 0));
    assert_eq!(a.command_on(9, 36, &[0x12, 0, 0, 0, 36, 0]).data[0], 0x7f);
    let luns = a
        .command_on(9, 64, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0])
        .data;
    assert_eq!(luns[..4], [0, 0, 0, 16]);
    assert_eq!(luns[17], 1);
}

#[test]
fn changes_of_the_unit_are_told_once() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    let mut b = world.initiator(2, parameters());
    world.units[0].set_capacity_bytes(CAPACITY_BYTES * 2);
    for initiator in [&mut a, &mut b] {
        assert_eq!(initiator.command_on(0, 0, &[0; 6]).sense(), (6, 0x2a, 9));
        let capacity = initiator.command_on(0, 8, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(capacity.data[..4], [0, 3, 0xff, 0xff]);
    }
    let unit = world.units[1].clone();
    world.targets.add_lun(IQN, 5, unit).unwrap();
    assert_eq!(a.command_on(0, 0, &[0; 6]).sense(), (6, 0x3f, 0x0e));
    assert_eq!(a.command_on(5, 0, &[0; 6]).sense(), (6, 0x3f, 0x0e));
    assert_eq!(a.command_on(5, 0, &[0; 6]).status(), 0);
    world.units[0].set_read_only(true);
    a.write(1, &write10(0, 1), &[1; BLOCK]);
    let sent = a.sent();
    assert!(sent.is_empty());
    a.run();
    assert!(a.sent().is_empty());
}

#[test]
fn same_port_ends_the_older_session_first() {
    let world = World::new();
    let mut old = world.initiator(1, parameters());
    let port = crate::scsi::InitiatorPort {
        name: "iqn.i1".into(),
        isid: [0; 6],
    };
    let (sender, _control) = mpsc::unbounded_channel();
    let peer = "127.0.0.1:2".parse().unwrap();
    let iqn = Some(IQN.into());
    let register = world.targets.register(iqn, port, None, peer, sender, 0);
    let mut register = Box::pin(register);
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(register.as_mut().poll(context).is_pending());
    assert!(matches!(old.control.try_recv(), Ok(Control::Close)));
    let old_tsih = old.registration.tsih();
    drop(old);
    let (new, _) = block_on(register).unwrap();
    assert_ne!(new.tsih(), old_tsih);
    assert_eq!(world.targets.sessions().len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever an initiator sends after login: no panic, the books stay right, and a session
    /// that was not closed for it still works.
    #[test]
    fn hostile_frames_do_no_harm(
        frames in proptest::collection::vec(
            (
                any::<[u8; 48]>(),
                proptest::sample::select(vec![0x00u8, 0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x1c]),
                0..4u32,
                0..6u32,
                proptest::sample::select(vec![0u32, 1, 512, 1024, 8192, 70_000]),
                proptest::sample::select(crate::scsi::testing_opcodes()),
                0..3usize,
                any::<bool>(),
            ),
            1..60,
        ),
    ) {
        let world = World::new();
        let mut a = world.initiator(1, parameters());
        for (random, opcode, tag, transfer_tag, length, scsi_opcode, pieces, runs) in frames {
            let mut header = Header(random);
            header.0[0] = opcode | (random[0] & 0x40);
            header.0[4] = 0;
            header.0[8..16].copy_from_slice(&[0, random[9] & 1, 0, 0, 0, 0, 0, 0]);
            header.set_initiator_task_tag(tag);
            header.set_target_tag(if transfer_tag == 5 { TAG_NONE } else { transfer_tag });
            if opcode == 0x01 {
                header.set_u32(20, length);
                header.0[32] = scsi_opcode;
                // Addresses that are mostly there.
                header.0[34..40].fill(0);
                header.0[42..44].fill(0);
            }
            if opcode == 0x05 {
                header.set_u32(36, tag & 1);
                header.set_u32(40, length & 512);
            }
            header.set_u32(24, a.session.exp_cmd_sn.wrapping_add(u32::from(random[30] % 8 == 0)));
            let sent = a.send_raw(header, &vec![random[1]; 512 * pieces]);
            if sent.is_err() || a.session.is_closing() {
                break;
            }
            if runs {
                run_all(&mut a);
            }
            a.sent();
        }
        run_all(&mut a);
        a.sent();
        let (_, waiting_count, waiting) = a.session.tasks.counts();
        prop_assert_eq!(waiting_count, waiting);
        a.session.close();
        run_all(&mut a);
        prop_assert_eq!(a.session.tasks.len(), 0);
        prop_assert_eq!(a.session.memory.in_use(), (0, 0, 0, 0));
        prop_assert_eq!(a.session.tasks.counts(), (0, 0, 0));
    }
}

fn run_all(initiator: &mut Initiator) {
    while let Some(action) = initiator.session.next_action() {
        match action {
            Action::Run {
                task,
                unit,
                command,
                data,
                stop,
            } => {
                let done = block_on(initiator.nexus().execute(unit, command, data, stop));
                initiator.session.complete(task, done);
            }
            Action::AbortElsewhere { ticket, .. } => initiator.session.elsewhere_done(ticket),
            Action::Aborted { .. } => {}
        }
    }
}
