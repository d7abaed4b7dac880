//! Persistent reservations: access, keys, who is told, what is kept over a restart.

use super::*;

fn port(name: &str) -> InitiatorPort {
    InitiatorPort {
        name: name.into(),
        isid: [0, 0, 0, 0, 0, 1],
    }
}

struct World {
    reservations: Reservations,
    a: InitiatorPort,
    b: InitiatorPort,
    c: InitiatorPort,
}

impl World {
    /// A and B are registered, with keys 10 and 11; C is not.
    fn new() -> Self {
        let mut world = Self {
            reservations: Reservations::default(),
            a: port("a"),
            b: port("b"),
            c: port("c"),
        };
        world.act("a", action::REGISTER, 0, 0, 10).unwrap();
        world.act("b", action::REGISTER, 0, 0, 11).unwrap();
        world
    }

    fn act(
        &mut self,
        who: &str,
        action: u8,
        kind: u8,
        key: u64,
        action_key: u64,
    ) -> Result<Effects, Refusal> {
        let parameters = OutParameters {
            key,
            action_key,
            ..OutParameters::default()
        };
        self.give(who, action, kind, parameters)
    }

    fn give(
        &mut self,
        who: &str,
        action: u8,
        kind: u8,
        parameters: OutParameters,
    ) -> Result<Effects, Refusal> {
        let known = [self.a.clone(), self.b.clone(), self.c.clone()];
        self.reservations
            .perform(&port(who), action, kind, parameters, known.iter())
    }

    /// Who may (read, write): holder A, registrant B, stranger C.
    fn access(&self) -> [(bool, bool); 3] {
        [&self.a, &self.b, &self.c].map(|port| {
            (
                self.reservations.allows(port, false),
                self.reservations.allows(port, true),
            )
        })
    }
}

/// The access of holder, registrant and stranger under every type (SPC-5 table 71).
#[test]
fn types_give_access_as_the_table_says() {
    const ALL: (bool, bool) = (true, true);
    const READ: (bool, bool) = (true, false);
    const NONE: (bool, bool) = (false, false);
    let table = [
        (1, [ALL, READ, READ]),
        (3, [ALL, NONE, NONE]),
        (5, [ALL, ALL, READ]),
        (6, [ALL, ALL, NONE]),
        (7, [ALL, ALL, READ]),
        (8, [ALL, ALL, NONE]),
    ];
    for (kind, expected) in table {
        let mut world = World::new();
        assert_eq!(world.access(), [ALL; 3]);
        world.act("a", action::RESERVE, kind, 10, 0).unwrap();
        assert_eq!(world.access(), expected, "type {kind}");
        // Only a holder can release; all registrants hold 7 and 8.
        world.act("b", action::RELEASE, kind, 11, 0).unwrap();
        assert_eq!(world.reservations.is_reserved(), kind < 7, "type {kind}");
    }
    for kind in [0, 2, 4, 9, 15, 0x11] {
        let refusal = World::new().act("a", action::RESERVE, kind, 10, 0);
        assert_eq!(refusal, Err(Refusal::Check(Sense::cdb_field(2))));
    }
}

#[test]
fn wrong_keys_conflict() {
    let mut world = World::new();
    for (who, action, key) in [
        ("a", action::REGISTER, 99),
        ("c", action::REGISTER, 99),
        ("a", action::RESERVE, 99),
        ("c", action::RESERVE, 0),
        ("a", action::RELEASE, 99),
        ("a", action::CLEAR, 99),
        ("a", action::PREEMPT, 99),
    ] {
        let refusal = world.act(who, action, 1, key, 11);
        assert_eq!(refusal, Err(Refusal::Conflict), "{who} {action}");
    }
    // Ignoring the key is the way out.
    world
        .act("a", action::REGISTER_AND_IGNORE_EXISTING_KEY, 0, 99, 12)
        .unwrap();
    world.act("a", action::RESERVE, 1, 12, 0).unwrap();
    assert_eq!(
        world.act("b", action::RESERVE, 1, 11, 0),
        Err(Refusal::Conflict)
    );
    // Reserving again is fine for the holder, with the same type only.
    world.act("a", action::RESERVE, 1, 12, 0).unwrap();
    assert_eq!(
        world.act("a", action::RESERVE, 3, 12, 0),
        Err(Refusal::Conflict)
    );
    assert_eq!(
        world.act("a", action::RELEASE, 3, 12, 0),
        Err(Refusal::Check(
            Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION
        ))
    );
}

#[test]
fn holder_that_unregisters_releases() {
    let mut world = World::new();
    world.act("a", action::RESERVE, 5, 10, 0).unwrap();
    let effects = world.act("a", action::REGISTER, 0, 10, 0).unwrap();
    assert_eq!(
        effects.attentions,
        [(port("b"), Sense::RESERVATIONS_RELEASED)]
    );
    assert!(!world.reservations.is_reserved());
    // With "all registrants" the last one does.
    let mut world = World::new();
    world.act("a", action::RESERVE, 8, 10, 0).unwrap();
    world.act("a", action::REGISTER, 0, 10, 0).unwrap();
    assert!(world.reservations.is_reserved());
    world.act("b", action::REGISTER, 0, 11, 0).unwrap();
    assert!(!world.reservations.is_reserved());
}

#[test]
fn preempt_takes_the_reservation_over_and_can_abort() {
    let mut world = World::new();
    world.act("a", action::RESERVE, 1, 10, 0).unwrap();
    let effects = world
        .act("b", action::PREEMPT_AND_ABORT, 3, 11, 10)
        .unwrap();
    assert_eq!(effects.abort, [port("a")]);
    assert_eq!(
        effects.attentions,
        [(port("a"), Sense::REGISTRATIONS_PREEMPTED)]
    );
    assert!(world.reservations.allows(&port("b"), true));
    assert!(!world.reservations.allows(&port("a"), false));
    // A key that nobody has, and key 0.
    assert_eq!(
        world.act("b", action::PREEMPT, 3, 11, 77),
        Err(Refusal::Conflict)
    );
    assert_eq!(
        world.act("b", action::PREEMPT, 3, 11, 0),
        Err(Refusal::Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST))
    );
    // One's own key, as holder: the reservation changes its type.
    world.act("b", action::PREEMPT, 1, 11, 11).unwrap();
    assert!(world.reservations.allows(&port("a"), false));
    // Key 0 preempts all when all registrants hold.
    let mut world = World::new();
    world.act("a", action::RESERVE, 7, 10, 0).unwrap();
    let effects = world.act("b", action::PREEMPT, 7, 11, 0).unwrap();
    assert_eq!(
        effects.attentions,
        [(port("a"), Sense::REGISTRATIONS_PREEMPTED)]
    );
}

#[test]
fn clear_tells_everybody_else() {
    let mut world = World::new();
    world.act("a", action::RESERVE, 1, 10, 0).unwrap();
    let effects = world.act("b", action::CLEAR, 0, 11, 0).unwrap();
    assert_eq!(
        effects.attentions,
        [(port("a"), Sense::RESERVATIONS_PREEMPTED)]
    );
    assert!(!world.reservations.has_registrants());
}

#[test]
fn reports_have_the_standard_layout() {
    let mut world = World::new();
    world.act("a", action::RESERVE, 1, 10, 0).unwrap();
    let keys = world.reservations.report(0);
    assert_eq!(keys[..8], [0, 0, 0, 2, 0, 0, 0, 16]);
    assert_eq!(
        keys[8..],
        [[0, 0, 0, 0, 0, 0, 0, 10], [0, 0, 0, 0, 0, 0, 0, 11]].concat()
    );
    let reservation = world.reservations.report(1);
    assert_eq!(reservation.len(), 24);
    assert_eq!(reservation[15], 10);
    assert_eq!(reservation[21], 1);
    let full = world.reservations.report(3);
    assert_eq!(full.len(), 8 + 2 * (24 + 24));
    assert_eq!(full[8 + 12], 1);
    assert_eq!(full[8 + 24], 0x45);
    assert_eq!(&full[8 + 28..8 + 46], b"a,i,0x000000000001");
    assert_eq!(
        OutParameters::decode(action::RESERVE, &[0; 23]),
        Err(Sense::PARAMETER_LIST_LENGTH_ERROR)
    );
    let mut list = [0; 24];
    list[20] = 8;
    assert_eq!(
        OutParameters::decode(action::RESERVE, &list),
        Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST)
    );
    list[20] = 4;
    list[7] = 1;
    list[15] = 2;
    let expected = OutParameters {
        key: 1,
        action_key: 2,
        ..OutParameters::default()
    };
    assert_eq!(OutParameters::decode(action::RESERVE, &list), Ok(expected));
}

/// A parameter list of REGISTER with SPEC_I_PT, or of REGISTER AND MOVE.
fn list_of(action: u8, key: u64, action_key: u64, flags: u8, ids: &[Vec<u8>]) -> Vec<u8> {
    let mut list = vec![0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    let ids = ids.concat();
    let length = (ids.len() as u32).to_be_bytes();
    if action == action::REGISTER_AND_MOVE {
        list[17] = flags;
        list[19] = 1;
        list[20..24].copy_from_slice(&length);
    } else {
        list[20] = flags;
        list.extend_from_slice(&length);
    }
    list.extend_from_slice(&ids);
    list
}

fn decoded(action: u8, list: &[u8]) -> OutParameters {
    OutParameters::decode(action, list).expect("a list")
}

#[test]
fn others_are_registered_all_or_none() {
    let mut world = World::new();
    let (c, d) = (transport_id(&port("c")), transport_id(&port("d")));
    // A TransportID without ISID names all ports that are known.
    let mut by_name = vec![0x05, 0, 0, 20, b'c'];
    by_name.resize(24, 0);
    for ids in [vec![c.clone(), d.clone()], vec![by_name, d.clone()]] {
        world = World::new();
        world.act("b", action::REGISTER, 0, 11, 0).unwrap();
        let list = list_of(action::REGISTER, 0, 7, 0x08, &ids);
        let parameters = decoded(action::REGISTER, &list);
        world.give("b", action::REGISTER, 0, parameters).unwrap();
        for who in ["b", "c", "d"] {
            assert_eq!(world.reservations.registrants.get(&port(who)), Some(&7));
        }
    }
    // Who is registered already cannot be once more, and nobody else is then.
    world.act("b", action::REGISTER, 0, 7, 0).unwrap();
    let e = transport_id(&port("e"));
    let list = list_of(action::REGISTER, 0, 8, 0x08, &[e, d]);
    let refusal = world.give("b", action::REGISTER, 0, decoded(action::REGISTER, &list));
    let bad = Refusal::Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(refusal, Err(bad));
    assert!(!world.reservations.registrants.contains_key(&port("e")));
    // Nor may a registrant name others.
    let list = list_of(action::REGISTER, 10, 8, 0x08, &[c]);
    let refusal = world.give("a", action::REGISTER, 0, decoded(action::REGISTER, &list));
    assert_eq!(refusal, Err(Refusal::Check(Sense::INVALID_FIELD_IN_CDB)));
}

#[test]
fn lists_of_ports_are_read_to_their_end_or_refused() {
    let id = transport_id(&port("c"));
    let good = list_of(action::REGISTER, 0, 7, 0x08, std::slice::from_ref(&id));
    assert!(OutParameters::decode(action::REGISTER, &good).is_ok());
    for length in 0..good.len() {
        assert!(OutParameters::decode(action::REGISTER, &good[..length]).is_err());
    }
    let bad = Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    let action = action::REGISTER_AND_IGNORE_EXISTING_KEY;
    assert_eq!(OutParameters::decode(action, &good), bad);
    // Another protocol's, one without its end, one that is too long, another target port.
    for (at, byte) in [(28, 0x46), (28, 0x85), (31, 24), (31, 19)] {
        let mut list = good.clone();
        list[at] = byte;
        assert_eq!(OutParameters::decode(action::REGISTER, &list), bad, "{at}");
    }
    let mut list = list_of(action::REGISTER_AND_MOVE, 0, 7, 0, &[id]);
    list[19] = 2;
    assert_eq!(OutParameters::decode(action::REGISTER_AND_MOVE, &list), bad);
}

#[test]
fn a_reservation_moves_to_another_port() {
    let mut world = World::new();
    let give = |world: &mut World, who: &str, key, new_key, flags, to: &str| {
        let ids = [transport_id(&port(to))];
        let list = list_of(action::REGISTER_AND_MOVE, key, new_key, flags, &ids);
        let parameters = decoded(action::REGISTER_AND_MOVE, &list);
        world.give(who, action::REGISTER_AND_MOVE, 0, parameters)
    };
    let conflict = Err(Refusal::Conflict);
    let bad = Err(Refusal::Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
    // There is nothing to move; then it is another's, or its key is not said.
    assert_eq!(give(&mut world, "a", 10, 30, 0, "c"), conflict);
    world.act("a", action::RESERVE, 1, 10, 0).unwrap();
    assert_eq!(give(&mut world, "b", 11, 30, 0, "c"), conflict);
    assert_eq!(give(&mut world, "a", 9, 30, 0, "c"), conflict);
    assert_eq!(give(&mut world, "a", 10, 0, 0, "c"), bad);
    assert_eq!(give(&mut world, "a", 10, 30, 0, "a"), bad);
    give(&mut world, "a", 10, 30, 0, "c").unwrap();
    assert!(world.reservations.is_holder(&port("c")));
    assert_eq!(world.reservations.registrants.get(&port("a")), Some(&10));
    // To one that is registered, who gives it away losing its registration.
    give(&mut world, "c", 30, 31, 0x02, "b").unwrap();
    assert!(world.reservations.is_holder(&port("b")));
    assert_eq!(world.reservations.registrants.get(&port("b")), Some(&31));
    assert!(!world.reservations.registrants.contains_key(&port("c")));
    // What all registrants hold is nobody's to give away.
    let mut world = World::new();
    world.act("a", action::RESERVE, 7, 10, 0).unwrap();
    assert_eq!(give(&mut world, "a", 10, 30, 0, "c"), conflict);
}

#[test]
fn what_is_kept_over_a_restart_comes_back() {
    let persists = |key, action_key, persists| OutParameters {
        key,
        action_key,
        persists,
        ..OutParameters::default()
    };
    // Only where there is a place for it.
    let mut world = World::new();
    let refusal = world.give("c", action::REGISTER, 0, persists(0, 5, true));
    let bad = Refusal::Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(refusal, Err(bad));
    assert_eq!(world.reservations.report(2)[2..4], [0x0c, 0x80]);
    for kind in [0, 1, 5, 7] {
        world.reservations = Reservations::default();
        world.reservations.set_can_persist(true);
        world.act("a", action::REGISTER, 0, 0, 10).unwrap();
        assert_eq!(world.reservations.stored(), None);
        world
            .give("b", action::REGISTER, 0, persists(0, 11, true))
            .unwrap();
        let odd = "iqn.x y,%é\u{0}";
        world
            .give(odd, action::REGISTER, 0, persists(0, u64::MAX, true))
            .unwrap();
        if kind != 0 {
            world.act("b", action::RESERVE, kind, 11, 0).unwrap();
        }
        assert_eq!(world.reservations.report(2)[2..4], [0x0d, 0x81]);
        let text = world.reservations.stored().expect("something to keep");
        assert!(
            text.bytes()
                .all(|byte| byte.is_ascii_graphic() || byte == b' ')
        );
        let mut restored = Reservations::restore(&text).expect("what was kept");
        restored.generation = world.reservations.generation;
        assert_eq!(restored, world.reservations, "{text}");
        // One that registers nobody has no say, whichever way it is asked.
        for (action, others) in [
            (action::REGISTER, None),
            (action::REGISTER, Some(Vec::new())),
            (action::REGISTER_AND_IGNORE_EXISTING_KEY, None),
        ] {
            let parameters = OutParameters {
                others,
                ..persists(0, 0, false)
            };
            world.give("c", action, 0, parameters).unwrap();
            assert_eq!(world.reservations.stored().as_ref(), Some(&text));
        }
        // The last registration decides.
        world
            .give("b", action::REGISTER, 0, persists(11, 12, false))
            .unwrap();
        assert_eq!(world.reservations.stored(), None);
    }
    for text in [
        "",
        "1",
        "2 0",
        "1 0",
        "1 2 0a,000000000001,a,h",
        "1 1 0a,000000000001,a",
        "1 7 0a,000000000001,a,h",
        "1 0 0a,000000000001,a,h",
        "1 1 0a,00,a,h",
        "1 1 x,000000000001,a,h",
        "1 0 0a,000000000001,",
        "1 0 0a,000000000001,%f",
        "1 0 0a,000000000001,%ff",
        "1 0 0a,000000000001,a,x",
        "1 0 0a,000000000001,a 0b,000000000001,a",
        "1 1 0a,000000000001,a,h 0b,000000000001,b,h",
    ] {
        assert_eq!(Reservations::restore(text), None, "{text}");
    }
}
