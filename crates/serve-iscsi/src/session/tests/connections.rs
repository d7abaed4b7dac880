//! Sessions with several connections.

use super::*;
use crate::lun::LogicalUnit;

/// An initiator with a second connection, whose CID is 5.
fn two_connections(world: &World) -> (Initiator, LineId) {
    let several = Parameters {
        connections_max: 2,
        ..parameters()
    };
    let mut a = world.initiator(1, several);
    assert!(a.session.has_room_for_line());
    let second = a.session.add_line(&several, 5, 100).expect("room");
    assert!(!a.session.has_room_for_line());
    assert_eq!(a.session.lines.of_connection(5), Some(second));
    (a, second)
}

fn with_number(mut header: Header, cmd_sn: u32) -> Header {
    header.set_u32(24, cmd_sn);
    header
}

#[test]
fn commands_are_taken_in_order_over_connections_and_answered_where_they_came() {
    let world = World::new();
    let (mut a, second) = two_connections(&world);
    let first = LineId::FIRST;
    let next = a.cmd_sn;
    // Many come by the second, ahead of the one that is on its way by the first.
    for ahead in 1..=40 {
        let read = command_header(ahead, 0, READ, 512, &read10(ahead, 1));
        let read = with_number(read, next.wrapping_add(ahead));
        let within = ahead < memory::WINDOW_IDLE;
        assert!(a.send_by(second, read, &[]).is_ok());
        assert!(a.sent_by(second).is_empty(), "{within}");
    }
    let write = with_number(command_header(500, 0, WRITE, 512, &write10(0, 1)), next);
    a.send_by(first, write, &[7; 512]).unwrap();
    run_all(&mut a);
    let by_first = a.sent_by(first);
    assert_eq!(by_first.len(), 1);
    assert_eq!(by_first[0].header.initiator_task_tag(), 500);
    let by_second = a.sent_by(second);
    // Those within the window: the rest was ignored.
    assert_eq!(by_second.len(), memory::WINDOW_IDLE as usize - 1);
    let numbers = by_second.iter().map(|sent| sent.header.u32_at(24));
    // Each connection counts its own answers.
    assert!(numbers.eq(100..100 + by_second.len() as u32));
    a.cmd_sn = next + memory::WINDOW_IDLE;
}

#[test]
fn data_comes_by_the_connection_of_its_command() {
    let world = World::new();
    let (mut a, second) = two_connections(&world);
    let number = a.cmd_sn;
    let write = command_header(9, 0, WRITE, 512, &write10(3, 1));
    a.send_by(second, with_number(write, number), &[]).unwrap();
    assert!(a.sent_by(LineId::FIRST).is_empty());
    let asked = a.sent_by(second).remove(0);
    assert_eq!(asked.opcode(), 0x31);
    let mut data = Header::new(0x05);
    data.set_initiator_task_tag(9);
    data.set_target_tag(asked.header.target_tag());
    // By the other it is nobody's.
    a.send_by(LineId::FIRST, data, &[1; 512]).unwrap();
    run_all(&mut a);
    assert!(a.sent_by(second).is_empty());
    a.send_by(second, data, &[2; 512]).unwrap();
    run_all(&mut a);
    assert_eq!(a.sent_by(second)[0].header.0[3], 0);
    let stored = block_on(world.units[0].read(3 * BLOCK as u64, 512)).unwrap();
    assert_eq!(stored.concat(), [2; 512]);
}

#[test]
fn a_connection_that_logs_out_ends_alone_and_not_before_its_commands() {
    let world = World::new();
    let (mut a, second) = two_connections(&world);
    let number = a.cmd_sn;
    let write = command_header(9, 0, WRITE, 512, &write10(3, 1));
    a.send_by(second, with_number(write, number), &[1; 512])
        .unwrap();
    let Some(Action::Run { task, .. }) = a.session.next_action() else {
        panic!("a write to run");
    };
    assert!(a.session.tasks.run_for_line(second));
    // The first asks for the end of the second.
    let mut logout = Header::new(0x06);
    logout.0[1] = 0x80 | 1;
    logout.set_u16(20, 5);
    logout.set_initiator_task_tag(77);
    a.send_by(LineId::FIRST, with_number(logout, number + 1), &[])
        .unwrap();
    assert!(a.sent_by(LineId::FIRST).is_empty());
    assert!(!a.session.lines.is_closing(second));
    a.session.complete(task, Outcome::good());
    let sent = a.sent_by(LineId::FIRST);
    assert_eq!((sent[0].opcode(), sent[0].header.0[2]), (0x26, 0));
    assert_eq!(sent[0].header.initiator_task_tag(), 77);
    // The write was aborted: it has no answer.
    assert!(a.sent_by(second).is_empty());
    assert!(a.session.lines.is_closing(second) && !a.session.is_closing());
    a.session.remove_line(second);
    assert!(a.session.has_room_for_line());
    a.cmd_sn = number + 2;
    assert_eq!(a.command_on(0, 512, &read10(0, 1)).header.0[3], 0);
    // The last one takes the session with it.
    logout.set_u16(20, 0);
    a.send(logout, &[]);
    assert!(a.session.is_closing());
}

/// What waits for an older request when its connection logs out is aborted with it: the initiator
/// sends it again by another one.
#[test]
fn what_is_held_back_of_a_connection_that_logged_out_is_not_done() {
    for is_answered_late in [false, true] {
        let world = World::new();
        let (mut a, second) = two_connections(&world);
        let number = a.cmd_sn;
        let mut running = None;
        if is_answered_late {
            let write = command_header(8, 0, WRITE, 512, &write10(9, 1));
            a.send_by(second, with_number(write, number), &[1; 512])
                .unwrap();
            let Some(Action::Run { task, .. }) = a.session.next_action() else {
                panic!("a write to run");
            };
            running = Some(task);
            a.cmd_sn += 1;
        }
        let number = a.cmd_sn;
        // Two ahead of the logout and of a read; they come by the one that is logged out.
        for (ahead, tag) in [(2, 9), (3, 10)] {
            let write = command_header(tag, 0, WRITE, 512, &write10(3, 1));
            a.send_by(second, with_number(write, number + ahead), &[1; 512])
                .unwrap();
        }
        let mut logout = Header::new(0x06);
        logout.0[1] = 0x80 | 1;
        logout.set_u16(20, 5);
        logout.set_initiator_task_tag(77);
        a.send_by(LineId::FIRST, with_number(logout, number), &[])
            .unwrap();
        if !is_answered_late {
            assert!(a.session.lines.is_closing(second));
            a.session.remove_line(second);
        }
        // The initiator need not wait to send one of them again.
        let again = command_header(11, 0, WRITE, 512, &write10(4, 1));
        if !is_answered_late {
            a.send_by(LineId::FIRST, with_number(again, number + 3), &[2; 512])
                .unwrap();
        }
        let read = command_header(12, 0, READ, 512, &read10(3, 1));
        a.send_by(LineId::FIRST, with_number(read, number + 1), &[])
            .unwrap();
        if let Some(task) = running {
            assert!(a.session.next_action().is_none());
            a.session.complete(task, Outcome::good());
        }
        run_all(&mut a);
        let stored = |block: u64| block_on(world.units[0].read(block * BLOCK as u64, 512));
        assert_eq!(stored(3).unwrap().concat(), [0; 512]);
        let sent_again = if is_answered_late { 0 } else { 2 };
        assert_eq!(stored(4).unwrap().concat(), [sent_again; 512]);
        // The numbers are used up: what comes next is done.
        a.sent();
        a.cmd_sn = number + 4;
        assert_eq!(a.command_on(0, 512, &read10(0, 1)).status(), 0);
    }
}

#[test]
fn counters_say_what_was_read_and_written() {
    let world = World::new();
    let (mut a, second) = two_connections(&world);
    let number = a.cmd_sn;
    let write = command_header(9, 0, WRITE, 1024, &write10(3, 2));
    a.send_by(second, with_number(write, number), &[1; 1024])
        .unwrap();
    run_all(&mut a);
    a.sent_by(second);
    a.cmd_sn = number + 1;
    for _ in 0..3 {
        a.command_on(0, 512, &read10(3, 1));
    }
    let mut beyond = read10(u32::MAX, 1);
    beyond[1] = 0;
    a.command_on(0, 512, &beyond);
    let all = world.targets.traffic();
    assert_eq!(all.len(), 2);
    let of_unit = &all[0];
    assert_eq!((of_unit.lun, of_unit.clients.len()), (0, 1));
    let counts = of_unit.clients[0].counts;
    assert_eq!(counts, of_unit.total);
    assert_eq!((counts.reads, counts.read_bytes), (3, 3 * 512));
    assert_eq!((counts.writes, counts.written_bytes), (1, 1024));
    assert!(counts.write_time > std::time::Duration::ZERO);
    assert_eq!(all[1].total.reads, 0);
    // What a session has done outlives it.
    drop(a);
    let all = world.targets.traffic();
    assert!(all[0].clients.is_empty());
    assert_eq!((all[0].total.reads, all[0].total.writes), (3, 1));
    let ended: Vec<_> = all[0].ended.values().collect();
    assert_eq!(ended, [&all[0].total]);
}
