//! What sessions may have, and what they cannot do to each other: windows, memory, aborts, logins.

use super::super::memory::WINDOW_IDLE;
use super::*;

/// The window that an initiator is told of with an answer to a ping, and ExpCmdSN.
fn window(initiator: &mut Initiator) -> (u32, u32) {
    let mut nop = Header::new(0x40);
    nop.set_initiator_task_tag(1);
    initiator.send_raw(nop, &[]).unwrap();
    let sent = initiator.sent();
    let header = &sent.last().unwrap().header;
    let (expected, highest) = (header.u32_at(28), header.u32_at(32));
    (highest.wrapping_add(1).wrapping_sub(expected), expected)
}

#[test]
fn window_grows_to_its_end_with_the_commands_in_flight_and_opens_again() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    let mut in_flight = 0;
    loop {
        let (granted, _) = window(&mut a);
        if granted == 0 {
            break;
        }
        assert!(granted <= 2 * in_flight.max(WINDOW_IDLE), "{granted}");
        for _ in 0..granted {
            a.write(in_flight, &write10(in_flight, 1), &[7; BLOCK]);
            in_flight += 1;
        }
    }
    assert_eq!(in_flight, COMMANDS_MAX);
    a.run();
    assert_eq!(a.sent().len(), COMMANDS_MAX as usize);
    assert_eq!(window(&mut a).0, COMMANDS_MAX);
    // Once it has been idle, what it does not use any more goes back, while it goes on.
    let before = world.targets.memory_used_bytes();
    a.session.ping(LineId::FIRST);
    a.sent();
    for _ in 0..COMMANDS_MAX {
        assert_eq!(a.command_on(0, 0, &[0; 6]).status(), 0);
    }
    assert_eq!(window(&mut a).0, WINDOW_IDLE);
    let slots = u64::from(COMMANDS_MAX - WINDOW_IDLE - 32);
    assert!(world.targets.memory_used_bytes() + slots * (64 << 10) <= before);
}

#[test]
fn what_others_hold_keeps_a_window_small_and_data_waiting() {
    let world = World::with_targets(TargetSet::with_memory_bytes(64 << 20));
    let mut greedy: Vec<Initiator> = (0..3).map(|n| world.initiator(n, parameters())).collect();
    // Each asks for as many long writes as its window lets it; data comes for none of them.
    let length = 4 << 20;
    let ask = |a: &mut Initiator| {
        let mut r2ts = Vec::new();
        for tag in 0..10 {
            let header = command_header(tag, 0, WRITE, length, &write10(0, 8192));
            r2ts.extend(a.send(header, &[]));
        }
        r2ts
    };
    let asked: Vec<Vec<Sent>> = greedy.iter_mut().map(ask).collect();
    let counts: Vec<usize> = asked.iter().map(Vec::len).collect();
    assert!(
        counts.iter().all(|count| (1..10).contains(count)),
        "{counts:?}"
    );
    // One that comes later gets its data all the same, and the total is what it may be.
    let mut late = world.initiator(9, parameters());
    let header = command_header(1, 0, WRITE, length, &write10(0, 8192));
    assert_eq!(late.send(header, &[])[0].opcode(), 0x31);
    assert!(world.targets.memory_used_bytes() <= 64 << 20);
    // What waits goes on as others end, to the last.
    late.session.close();
    drop(late);
    let mut open: VecDeque<(usize, Sent)> = VecDeque::new();
    for (n, r2ts) in asked.into_iter().enumerate() {
        open.extend(r2ts.into_iter().map(|r2t| (n, r2t)));
    }
    let mut ended = 0;
    while let Some((n, r2t)) = open.pop_front() {
        let a = &mut greedy[n];
        let (tag, at) = (r2t.header.initiator_task_tag(), r2t.header.u32_at(40));
        let data = vec![1; r2t.header.u32_at(44) as usize];
        let transfer_tag = r2t.header.target_tag();
        let mut sent = a.data_out(tag, transfer_tag, 0, at as usize, true, &data);
        a.run();
        sent.extend(a.sent());
        for (m, other) in greedy.iter_mut().enumerate() {
            other.session.memory_came_free();
            open.extend(other.sent().into_iter().map(|sent| (m, sent)));
        }
        for sent in sent {
            match sent.opcode() {
                0x31 => open.push_back((n, sent)),
                0x21 => ended += 1,
                _ => {}
            }
        }
        open.retain(|(_, sent)| sent.opcode() == 0x31);
        assert!(world.targets.memory_used_bytes() <= 64 << 20);
    }
    assert_eq!(ended, 30);
}

#[test]
fn long_reads_wait_until_what_was_read_has_been_taken() {
    let world = World::with_targets(TargetSet::with_memory_bytes(64 << 20));
    let mut a = world.initiator(1, parameters());
    // The initiator asks for 16 MiB time and again, and takes nothing.
    let length = 16 << 20;
    let mut header = command_header(0, 0, READ, length, &read10(0, 32768));
    for tag in 0..8 {
        header.set_initiator_task_tag(tag);
        header.set_u32(24, a.cmd_sn);
        a.cmd_sn += 1;
        a.send_raw(header, &[]).unwrap();
        a.run();
        assert!(a.session.lines.out(LineId::FIRST).unwrap().length_bytes() <= 17 << 20);
        assert!(world.targets.memory_used_bytes() <= 64 << 20);
    }
    assert!(!a.session.lines.out(LineId::FIRST).unwrap().is_empty());
    let mut answered = 0;
    loop {
        let sent = a.sent();
        a.run();
        if sent.is_empty() {
            break;
        }
        answered += sent.iter().filter(|s| s.header.flags() & 1 != 0).count();
    }
    assert_eq!(answered, 8);
}

#[test]
fn it_shows_when_an_initiator_keeps_commands_from_going_on() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    assert_eq!(a.session.awaited(LineId::FIRST), [None, None]);
    let header = command_header(1, 0, WRITE, 1024, &write10(0, 2));
    let r2t = a.send(header, &[]).remove(0);
    let [Some(before), None] = a.session.awaited(LineId::FIRST) else {
        panic!("data is not awaited");
    };
    // Pings that it answers are no data.
    a.session.ping(LineId::FIRST);
    a.sent();
    window(&mut a);
    assert_eq!(a.session.awaited(LineId::FIRST), [Some(before), None]);
    let tag = r2t.header.target_tag();
    assert!(a.data_out(1, tag, 0, 0, false, &[1; 512]).is_empty());
    assert_eq!(a.session.awaited(LineId::FIRST), [Some(before + 1), None]);
    assert!(a.data_out(1, tag, 1, 512, true, &[1; 512]).is_empty());
    // A command that its storage keeps waiting is not the initiator's doing.
    let running = started(&mut a);
    assert_eq!(a.session.awaited(LineId::FIRST), [None, None]);
    // An answer that it does not take is.
    a.session.complete(running[0], Outcome::good());
    let [None, Some(before)] = a.session.awaited(LineId::FIRST) else {
        panic!("nothing waits to be sent");
    };
    a.session.sent(LineId::FIRST, 10);
    assert_eq!(a.session.awaited(LineId::FIRST), [None, Some(before + 1)]);
}

#[test]
fn no_session_begins_without_memory_for_it() {
    let world = World::with_targets(TargetSet::with_memory_bytes(64 << 20));
    let mut kept = Vec::new();
    let status = loop {
        let number = kept.len() as u8;
        let port = crate::scsi::InitiatorPort {
            name: "iqn.i".into(),
            isid: [number; 6],
        };
        let (sender, _control) = mpsc::unbounded_channel();
        let peer = "127.0.0.1:2".parse().unwrap();
        let (iqn, base) = (Some(IQN.into()), base_bytes(&parameters()));
        let register = world.targets.register(iqn, port, None, peer, sender, base);
        match block_on(register) {
            Ok(session) => kept.push(session),
            Err(status) => break status,
        }
        assert!(kept.len() < 100);
    };
    assert_eq!(status, crate::login::LoginStatus::OutOfResources);
    drop(kept);
    assert_eq!(world.targets.memory_used_bytes(), 0);
}

#[test]
fn aborts_that_wait_are_bounded() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    a.write(1, &write10(0, 1), &[1; BLOCK]);
    let running = started(&mut a);
    for _ in 0..32 {
        assert!(a.task_management(2, 0, 0).is_empty());
    }
    assert_eq!(a.task_management(2, 0, 0)[0].header.0[2], 255);
    a.session.complete(running[0], Outcome::good());
    assert_eq!(a.sent().len(), 32);
    assert_eq!(a.task_management(2, 0, 0)[0].header.0[2], 0);
}

/// TARGET COLD RESET would end the sessions of others.
#[test]
fn no_initiator_ends_the_sessions_of_others() {
    let world = World::new();
    let mut a = world.initiator(1, parameters());
    let mut b = world.initiator(2, parameters());
    assert_eq!(a.task_management(7, 0, 0)[0].header.0[2], 5);
    assert!(a.session.next_action().is_none());
    assert!(b.control.try_recv().is_err());
    assert!(!a.session.is_closing());
    // Nor does a login with another name or ISID, or to discover.
    for (iqn, name, isid) in [
        (Some(IQN.into()), "iqn.i3", [0; 6]),
        (Some(IQN.into()), "iqn.i2", [1; 6]),
        (None, "iqn.i2", [0; 6]),
    ] {
        let port = crate::scsi::InitiatorPort {
            name: name.into(),
            isid,
        };
        let (sender, _control) = mpsc::unbounded_channel();
        let peer = "127.0.0.1:2".parse().unwrap();
        block_on(world.targets.register(iqn, port, None, peer, sender, 0)).unwrap();
        assert!(b.control.try_recv().is_err(), "{name} {isid:?}");
    }
}

/// A login that began before the target wanted CHAP, or another secret, does not end the session
/// that it would take over, nor does it get in.
#[test]
fn login_is_held_against_the_target_as_it_is_at_its_end() {
    let world = World::new();
    let mut b = world.initiator(2, parameters());
    let credentials = |secret: &str| crate::ChapCredentials {
        user: "alice".into(),
        secret: secret.into(),
    };
    let options = TargetOptions {
        authentication: crate::Authentication::Chap {
            initiator: credentials("alicesecret12"),
            target: None,
        },
        ..TargetOptions::default()
    };
    world.targets.set_options(IQN, options).unwrap();
    let log_in = |proven: Option<crate::ChapCredentials>| {
        let port = crate::scsi::InitiatorPort {
            name: "iqn.i2".into(),
            isid: [0; 6],
        };
        let (sender, _control) = mpsc::unbounded_channel();
        let peer = "127.0.0.1:2".parse().unwrap();
        let iqn = Some(IQN.into());
        let register = world
            .targets
            .register(iqn, port, proven.as_ref(), peer, sender, 0);
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(register).poll(context).map_ok(|_| ())
    };
    let refused = std::task::Poll::Ready(Err(crate::login::LoginStatus::AuthorizationFailure));
    assert_eq!(log_in(None), refused);
    assert_eq!(log_in(Some(credentials("anothersecret"))), refused);
    assert!(b.control.try_recv().is_err());
    assert!(log_in(Some(credentials("alicesecret12"))).is_pending());
    assert!(matches!(b.control.try_recv(), Ok(Control::Close)));
}
