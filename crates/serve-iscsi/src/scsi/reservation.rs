//! Persistent reservations (SPC-5 section 5.14) as a pure state machine.
//!
//! A registration binds a key to an I_T nexus; at most one reservation exists, held by one
//! registrant or (the "all registrants" types) by all. Nothing survives a restart (APTPL is not
//! supported); registrations do survive the loss of a nexus, so they are kept by the name of the
//! initiator port, not by session.

use super::sense::Sense;
use std::collections::BTreeMap;

/// Most registrations of a logical unit.
pub(crate) const REGISTRATIONS_MAX: usize = 1024;

/// An initiator port: its iSCSI name and ISID (RFC 7143 section 4.4.3.2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct InitiatorPort {
    pub(crate) name: String,
    pub(crate) isid: [u8; 6],
}

/// Reservation types, by their codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Type {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrantsOnly = 5,
    ExclusiveAccessRegistrantsOnly = 6,
    WriteExclusiveAllRegistrants = 7,
    ExclusiveAccessAllRegistrants = 8,
}

impl Type {
    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::WriteExclusive,
            3 => Self::ExclusiveAccess,
            5 => Self::WriteExclusiveRegistrantsOnly,
            6 => Self::ExclusiveAccessRegistrantsOnly,
            7 => Self::WriteExclusiveAllRegistrants,
            8 => Self::ExclusiveAccessAllRegistrants,
            _ => return None,
        })
    }

    /// All registrants hold the reservation.
    fn is_all_registrants(self) -> bool {
        matches!(
            self,
            Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants
        )
    }

    /// Registrants that are not holders have access nevertheless.
    fn is_registrants_only(self) -> bool {
        matches!(
            self,
            Self::WriteExclusiveRegistrantsOnly | Self::ExclusiveAccessRegistrantsOnly
        )
    }

    /// Others may still read.
    fn lets_others_read(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive
                | Self::WriteExclusiveRegistrantsOnly
                | Self::WriteExclusiveAllRegistrants
        )
    }
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reservation {
    kind: Type,
    /// The holder; `None` for the "all registrants" types.
    holder: Option<InitiatorPort>,
}

/// Why an action was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Status RESERVATION CONFLICT.
    Conflict,
    Check(Sense),
}

/// What an action does to others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Unit attentions to establish, by port.
    pub(crate) attentions: Vec<(InitiatorPort, Sense)>,
    /// Ports whose commands are to be aborted.
    pub(crate) abort: Vec<InitiatorPort>,
}

/// The parameter list of PERSISTENT RESERVE OUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutParameters {
    pub(crate) key: u64,
    pub(crate) action_key: u64,
}

impl OutParameters {
    /// Length of the list in bytes.
    pub(crate) const BYTES: usize = 24;

    /// Reads a list. SPEC_I_PT and APTPL are refused; ALL_TG_PT is taken, there is one port.
    pub(crate) fn decode(list: &[u8]) -> Result<Self, Sense> {
        let list: &[u8; Self::BYTES] = list
            .try_into()
            .map_err(|_| Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        if list[20] & 0x09 != 0 {
            return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST);
        }
        let u64_at = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&list[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        Ok(Self {
            key: u64_at(0),
            action_key: u64_at(8),
        })
    }
}

/// Service actions of PERSISTENT RESERVE OUT, by their codes.
mod action {
    pub(super) const REGISTER: u8 = 0;
    pub(super) const RESERVE: u8 = 1;
    pub(super) const RELEASE: u8 = 2;
    pub(super) const CLEAR: u8 = 3;
    pub(super) const PREEMPT: u8 = 4;
    pub(super) const PREEMPT_AND_ABORT: u8 = 5;
    pub(super) const REGISTER_AND_IGNORE_EXISTING_KEY: u8 = 6;
}

/// Registrations and the reservation of a logical unit.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    generation: u32,
    registrants: BTreeMap<InitiatorPort, u64>,
    reservation: Option<Reservation>,
}

impl Reservations {
    /// Whether anybody is registered.
    pub(crate) fn has_registrants(&self) -> bool {
        !self.registrants.is_empty()
    }

    /// Whether there is a reservation.
    pub(crate) fn is_reserved(&self) -> bool {
        self.reservation.is_some()
    }

    fn is_holder(&self, port: &InitiatorPort) -> bool {
        match &self.reservation {
            None => false,
            Some(Reservation { holder: None, .. }) => self.registrants.contains_key(port),
            Some(Reservation { holder, .. }) => holder.as_ref() == Some(port),
        }
    }

    /// Whether the reservation lets a port's command pass (SPC-5 table 71, SBC-4 table 13).
    pub(crate) fn allows(&self, port: &InitiatorPort, is_write: bool) -> bool {
        let Some(reservation) = &self.reservation else {
            return true;
        };
        let kind = reservation.kind;
        self.is_holder(port)
            || (kind.is_registrants_only() && self.registrants.contains_key(port))
            || (!is_write && kind.lets_others_read())
    }

    /// Carries out a PERSISTENT RESERVE OUT.
    pub(crate) fn perform(
        &mut self,
        port: &InitiatorPort,
        action: u8,
        scope_and_type: u8,
        parameters: OutParameters,
    ) -> Result<Effects, Refusal> {
        // RESERVE, RELEASE and PREEMPT name a type; the only scope is the logical unit.
        let kind = || {
            if scope_and_type >> 4 != 0 {
                return Err(Refusal::Check(Sense::cdb_field(2)));
            }
            Type::from_code(scope_and_type & 0x0f).ok_or(Refusal::Check(Sense::cdb_field(2)))
        };
        let OutParameters { key, action_key } = parameters;
        match action {
            action::REGISTER => self.register(port, Some(key), action_key),
            action::REGISTER_AND_IGNORE_EXISTING_KEY => self.register(port, None, action_key),
            action::RESERVE => self.reserve(port, key, kind()?),
            action::RELEASE => self.release(port, key, kind()?),
            action::CLEAR => self.clear(port, key),
            action::PREEMPT | action::PREEMPT_AND_ABORT => {
                // The type matters only if a reservation comes of it.
                let kind = kind();
                let aborts = action == action::PREEMPT_AND_ABORT;
                self.preempt(port, key, action_key, kind, aborts)
            }
            _ => Err(Refusal::Check(Sense::cdb_field(1))),
        }
    }

    fn check_key(&self, port: &InitiatorPort, key: u64) -> Result<(), Refusal> {
        if self.registrants.get(port) == Some(&key) {
            Ok(())
        } else {
            Err(Refusal::Conflict)
        }
    }

    fn others<'a>(&'a self, port: &'a InitiatorPort) -> impl Iterator<Item = &'a InitiatorPort> {
        self.registrants.keys().filter(move |other| *other != port)
    }

    /// REGISTER, and REGISTER AND IGNORE EXISTING KEY (without `key`).
    fn register(
        &mut self,
        port: &InitiatorPort,
        key: Option<u64>,
        new_key: u64,
    ) -> Result<Effects, Refusal> {
        let present = self.registrants.get(port).copied();
        if let Some(key) = key
            && key != present.unwrap_or(0)
        {
            return Err(Refusal::Conflict);
        }
        let mut effects = Effects::default();
        match (present, new_key) {
            (None, 0) => return Ok(effects),
            (Some(_), 0) => {
                let was_holder = self.is_holder(port);
                self.registrants.remove(port);
                if was_holder {
                    effects = self.lose_holder(port);
                }
            }
            (None, _) if self.registrants.len() == REGISTRATIONS_MAX => {
                return Err(Refusal::Check(Sense::INSUFFICIENT_REGISTRATION_RESOURCES));
            }
            (_, new_key) => {
                self.registrants.insert(port.clone(), new_key);
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// A holder has gone: the reservation goes with it, if it was the last (SPC-5 5.14.11.2.2).
    fn lose_holder(&mut self, port: &InitiatorPort) -> Effects {
        let mut effects = Effects::default();
        let Some(reservation) = &self.reservation else {
            return effects;
        };
        if reservation.kind.is_all_registrants() {
            if self.registrants.is_empty() {
                self.reservation = None;
            }
            return effects;
        }
        if reservation.kind.is_registrants_only() {
            effects.attentions = self
                .others(port)
                .map(|other| (other.clone(), Sense::RESERVATIONS_RELEASED))
                .collect();
        }
        self.reservation = None;
        effects
    }

    fn reserve(&mut self, port: &InitiatorPort, key: u64, kind: Type) -> Result<Effects, Refusal> {
        self.check_key(port, key)?;
        match &self.reservation {
            Some(present) if !self.is_holder(port) || present.kind != kind => {
                return Err(Refusal::Conflict);
            }
            Some(_) => {}
            None => {
                self.reservation = Some(Reservation {
                    kind,
                    holder: (!kind.is_all_registrants()).then(|| port.clone()),
                });
            }
        }
        Ok(Effects::default())
    }

    fn release(&mut self, port: &InitiatorPort, key: u64, kind: Type) -> Result<Effects, Refusal> {
        self.check_key(port, key)?;
        let mut effects = Effects::default();
        if !self.is_holder(port) {
            return Ok(effects);
        }
        let present = self.reservation.as_ref().map(|present| present.kind);
        if present != Some(kind) {
            return Err(Refusal::Check(
                Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION,
            ));
        }
        if kind.is_registrants_only() || kind.is_all_registrants() {
            effects.attentions = self
                .others(port)
                .map(|other| (other.clone(), Sense::RESERVATIONS_RELEASED))
                .collect();
        }
        self.reservation = None;
        Ok(effects)
    }

    fn clear(&mut self, port: &InitiatorPort, key: u64) -> Result<Effects, Refusal> {
        self.check_key(port, key)?;
        let attentions = self
            .others(port)
            .map(|other| (other.clone(), Sense::RESERVATIONS_PREEMPTED))
            .collect();
        self.registrants.clear();
        self.reservation = None;
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects {
            attentions,
            abort: Vec::new(),
        })
    }

    /// PREEMPT and PREEMPT AND ABORT (SPC-5 section 5.14.11.2.4 and 5.14.11.2.6).
    fn preempt(
        &mut self,
        port: &InitiatorPort,
        key: u64,
        victim_key: u64,
        kind: Result<Type, Refusal>,
        aborts: bool,
    ) -> Result<Effects, Refusal> {
        self.check_key(port, key)?;
        let takes_over = match &self.reservation {
            None => false,
            Some(Reservation { holder: None, .. }) => victim_key == 0,
            Some(Reservation {
                holder: Some(holder),
                ..
            }) => self.registrants.get(holder) == Some(&victim_key),
        };
        if victim_key == 0 && !takes_over {
            return Err(Refusal::Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
        }
        let takes_all = takes_over && victim_key == 0;
        let victims: Vec<InitiatorPort> = self
            .registrants
            .iter()
            .filter(|(other, other_key)| {
                (takes_all || **other_key == victim_key) && !(takes_over && *other == port)
            })
            .map(|(other, _)| other.clone())
            .collect();
        if victims.is_empty() && !takes_over {
            return Err(Refusal::Conflict);
        }
        let mut effects = Effects::default();
        if takes_over {
            let kind = kind?;
            let old_kind = self.reservation.as_ref().map(|old| old.kind);
            for victim in &victims {
                self.registrants.remove(victim);
            }
            // Who stays registered learns that the old kind of reservation is gone.
            if old_kind != Some(kind) {
                effects.attentions.extend(
                    self.others(port)
                        .map(|other| (other.clone(), Sense::RESERVATIONS_RELEASED)),
                );
            }
            self.reservation = Some(Reservation {
                kind,
                holder: (!kind.is_all_registrants()).then(|| port.clone()),
            });
        } else {
            for victim in &victims {
                self.registrants.remove(victim);
            }
            // All registrants held it, and none are left.
            if self.registrants.is_empty() {
                self.reservation = None;
            }
        }
        for victim in victims {
            if victim == *port {
                continue;
            }
            if aborts {
                effects.abort.push(victim.clone());
            }
            effects
                .attentions
                .push((victim, Sense::REGISTRATIONS_PREEMPTED));
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// The parameter data of PERSISTENT RESERVE IN.
    pub(crate) fn report(&self, action: u8) -> Vec<u8> {
        let mut data = Vec::new();
        let scope_and_type = |reservation: &Reservation| reservation.kind as u8;
        if action == 2 {
            // REPORT CAPABILITIES: ATP_C; TMV; all types.
            data.extend_from_slice(&[0, 8, 0x04, 0x80, 0xea, 0x01, 0, 0]);
            return data;
        }
        data.extend_from_slice(&self.generation.to_be_bytes());
        data.extend_from_slice(&[0; 4]);
        match action {
            // READ KEYS
            0 => {
                for key in self.registrants.values() {
                    data.extend_from_slice(&key.to_be_bytes());
                }
            }
            // READ RESERVATION
            1 => {
                if let Some(reservation) = &self.reservation {
                    let key = reservation
                        .holder
                        .as_ref()
                        .and_then(|holder| self.registrants.get(holder))
                        .copied()
                        .unwrap_or(0);
                    data.extend_from_slice(&key.to_be_bytes());
                    data.extend_from_slice(&[0; 5]);
                    data.push(scope_and_type(reservation));
                    data.extend_from_slice(&[0; 2]);
                }
            }
            // READ FULL STATUS
            _ => {
                for (port, key) in &self.registrants {
                    let is_holder = self.is_holder(port);
                    data.extend_from_slice(&key.to_be_bytes());
                    data.extend_from_slice(&[0; 4]);
                    data.push(u8::from(is_holder));
                    data.push(match &self.reservation {
                        Some(reservation) if is_holder => scope_and_type(reservation),
                        _ => 0,
                    });
                    data.extend_from_slice(&[0; 4]);
                    // Relative target port.
                    data.extend_from_slice(&[0, 1]);
                    let transport_id = transport_id(port);
                    data.extend_from_slice(&(transport_id.len() as u32).to_be_bytes());
                    data.extend_from_slice(&transport_id);
                }
            }
        }
        let length = data.len() as u32 - 8;
        data[4..8].copy_from_slice(&length.to_be_bytes());
        data
    }
}

/// The TransportID of an initiator port with its ISID (SPC-5 section 7.6.4.6).
fn transport_id(port: &InitiatorPort) -> Vec<u8> {
    let mut id = vec![0x45, 0, 0, 0];
    id.extend_from_slice(port.name.as_bytes());
    id.extend_from_slice(b",i,0x");
    for byte in port.isid {
        id.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    id.push(0);
    id.resize(id.len().next_multiple_of(4).max(24), 0);
    let length = (id.len() - 4) as u16;
    id[2..4].copy_from_slice(&length.to_be_bytes());
    id
}

#[cfg(test)]
mod tests {
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
            let parameters = OutParameters { key, action_key };
            self.reservations
                .perform(&port(who), action, kind, parameters)
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
            OutParameters::decode(&[0; 23]),
            Err(Sense::PARAMETER_LIST_LENGTH_ERROR)
        );
        let mut list = [0; 24];
        list[20] = 1;
        assert_eq!(
            OutParameters::decode(&list),
            Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST)
        );
        list[20] = 4;
        list[7] = 1;
        list[15] = 2;
        let expected = OutParameters {
            key: 1,
            action_key: 2,
        };
        assert_eq!(OutParameters::decode(&list), Ok(expected));
    }
}
