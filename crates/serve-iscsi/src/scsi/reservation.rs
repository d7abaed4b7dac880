//! Persistent reservations (SPC-5 section 5.14) as a pure state machine.
//!
//! A registration binds a key to an I_T nexus; at most one reservation exists, held by one
//! registrant or (the "all registrants" types) by all. Registrations survive the loss of a nexus,
//! so they are kept by the name of the initiator port, not by session. They survive a restart where
//! the last registration asked for it (APTPL, "activate persist through power loss") and the unit
//! has a place to keep them: [`Reservations::stored`] is what is kept there.

use super::sense::Sense;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

#[cfg(test)]
mod tests;

/// Most registrations of a logical unit.
pub(crate) const REGISTRATIONS_MAX: usize = 1024;

/// An initiator port: its iSCSI name and ISID (RFC 7143 section 4.4.3.2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct InitiatorPort {
    pub(crate) name: String,
    pub(crate) isid: [u8; 6],
}

/// Which initiator ports a TransportID names (SPC-5 section 7.6.4.6): one, or without an ISID all
/// that are known of an initiator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransportId {
    name: String,
    isid: Option<[u8; 6]>,
}

impl TransportId {
    /// Reads one from the start of `list`; answers how long it is, too.
    fn decode(list: &[u8]) -> Result<(Self, usize), Sense> {
        const BAD: Sense = Sense::INVALID_FIELD_IN_PARAMETER_LIST;
        const ISCSI: u8 = 0x05;
        let (header, rest) = list.split_at_checked(4).ok_or(BAD)?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let text = rest.get(..length).ok_or(BAD)?;
        if header[0] & 0x0f != ISCSI || length < 20 || !length.is_multiple_of(4) {
            return Err(BAD);
        }
        let end = text.iter().position(|byte| *byte == 0).ok_or(BAD)?;
        let text = std::str::from_utf8(&text[..end]).map_err(|_| BAD)?;
        let (name, isid) = match header[0] >> 6 {
            0 => (text, None),
            1 => {
                let (name, isid) = text.split_once(",i,0x").ok_or(BAD)?;
                (name, Some(parse_isid(isid).ok_or(BAD)?))
            }
            _ => return Err(BAD),
        };
        if name.is_empty() || name.len() > crate::text::ISCSI_NAME_BYTES_MAX {
            return Err(BAD);
        }
        let name = name.to_ascii_lowercase();
        Ok((Self { name, isid }, 4 + length))
    }

    /// The ports that it names, of those that are `known` where it names none itself.
    fn ports<'a>(&self, known: impl Iterator<Item = &'a InitiatorPort>) -> BTreeSet<InitiatorPort> {
        match self.isid {
            Some(isid) => BTreeSet::from([InitiatorPort {
                name: self.name.clone(),
                isid,
            }]),
            None => known
                .filter(|port| port.name == self.name)
                .cloned()
                .collect(),
        }
    }
}

/// Twelve hexadecimal digits.
fn parse_isid(text: &str) -> Option<[u8; 6]> {
    if text.len() != 12 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let number = u64::from_str_radix(text, 16).ok()?;
    let mut isid = [0; 6];
    isid.copy_from_slice(&number.to_be_bytes()[2..]);
    Some(isid)
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OutParameters {
    pub(crate) key: u64,
    pub(crate) action_key: u64,
    /// What is registered is to survive a restart (APTPL).
    persists: bool,
    /// Initiator ports that are to be registered as well (SPEC_I_PT); `None` without that bit.
    others: Option<Vec<TransportId>>,
    /// Whom REGISTER AND MOVE gives the reservation to.
    receiver: Option<Receiver>,
}

/// Who is to hold the reservation after REGISTER AND MOVE.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Receiver {
    id: TransportId,
    /// The one that gives it away loses its registration.
    unregisters: bool,
}

impl OutParameters {
    /// Length of the list in bytes, without TransportIDs.
    pub(crate) const BYTES: usize = 24;
    /// Longest list that is taken, in bytes.
    pub(crate) const BYTES_MAX: usize = 64 << 10;

    /// Whether a list of a service action may have this length.
    pub(crate) fn may_have_length(action: u8, list_bytes: usize) -> bool {
        match action {
            action::REGISTER | action::REGISTER_AND_MOVE => {
                (Self::BYTES..=Self::BYTES_MAX).contains(&list_bytes)
            }
            _ => list_bytes == Self::BYTES,
        }
    }

    /// Reads a list. ALL_TG_PT is taken: there is one target port.
    pub(crate) fn decode(action: u8, list: &[u8]) -> Result<Self, Sense> {
        const BAD: Sense = Sense::INVALID_FIELD_IN_PARAMETER_LIST;
        const LENGTH: Sense = Sense::PARAMETER_LIST_LENGTH_ERROR;
        const SPEC_I_PT: u8 = 0x08;
        const APTPL: u8 = 0x01;
        const UNREG: u8 = 0x02;
        let (fixed, rest) = list.split_first_chunk::<{ Self::BYTES }>().ok_or(LENGTH)?;
        let u64_at = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&fixed[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        let mut parameters = Self {
            key: u64_at(0),
            action_key: u64_at(8),
            ..Self::default()
        };
        if action == action::REGISTER_AND_MOVE {
            let length = u32::from_be_bytes([fixed[20], fixed[21], fixed[22], fixed[23]]);
            if length as usize != rest.len() {
                return Err(LENGTH);
            }
            parameters.persists = fixed[17] & APTPL != 0;
            let (id, id_bytes) = TransportId::decode(rest)?;
            // The only target port is 1.
            if fixed[18..20] != [0, 1] || id_bytes != rest.len() {
                return Err(BAD);
            }
            parameters.receiver = Some(Receiver {
                id,
                unregisters: fixed[17] & UNREG != 0,
            });
            return Ok(parameters);
        }
        parameters.persists = fixed[20] & APTPL != 0;
        if fixed[20] & SPEC_I_PT == 0 {
            return if rest.is_empty() {
                Ok(parameters)
            } else {
                Err(LENGTH)
            };
        }
        if action != action::REGISTER {
            return Err(BAD);
        }
        let (length, mut rest) = rest.split_first_chunk::<4>().ok_or(LENGTH)?;
        if u32::from_be_bytes(*length) as usize != rest.len() {
            return Err(LENGTH);
        }
        let mut others = Vec::new();
        while !rest.is_empty() {
            let (id, id_bytes) = TransportId::decode(rest)?;
            others.push(id);
            rest = &rest[id_bytes..];
        }
        parameters.others = Some(others);
        Ok(parameters)
    }
}

/// Whether a service action aborts commands of others.
pub(super) fn aborts(action: u8) -> bool {
    action == action::PREEMPT_AND_ABORT
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
    pub(super) const REGISTER_AND_MOVE: u8 = 7;
}

/// Registrations and the reservation of a logical unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    /// There is a place that outlives the process.
    can_persist: bool,
    /// They are kept there (PTPL_A).
    persists: bool,
    generation: u32,
    registrants: BTreeMap<InitiatorPort, u64>,
    reservation: Option<Reservation>,
}

impl Reservations {
    /// Says whether there is a place where they can be kept over a restart.
    pub(crate) fn set_can_persist(&mut self, can_persist: bool) {
        self.can_persist = can_persist;
    }

    /// What is to be kept over a restart: the type of the reservation (0 for none), then for each
    /// registrant its key, ISID, name, and `h` where it holds the reservation. `None` if nothing
    /// is.
    pub(crate) fn stored(&self) -> Option<String> {
        if !self.persists || self.registrants.is_empty() {
            return None;
        }
        let reservation = self.reservation.as_ref();
        let mut text = format!("1 {}", reservation.map_or(0, |present| present.kind as u8));
        for (port, key) in &self.registrants {
            let _ = write!(text, " {key:016x},");
            for byte in port.isid {
                let _ = write!(text, "{byte:02x}");
            }
            text.push(',');
            for byte in port.name.bytes() {
                match byte {
                    b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b':' => text.push(byte.into()),
                    _ => {
                        let _ = write!(text, "%{byte:02x}");
                    }
                }
            }
            let holder = reservation.and_then(|present| present.holder.as_ref());
            if holder == Some(port) {
                text.push_str(",h");
            }
        }
        Some(text)
    }

    /// What [`Self::stored`] gave before a restart; `None` if it cannot have been that. The
    /// generation begins anew (SPC-5 section 6.15.2).
    pub(crate) fn restore(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        if words.next() != Some("1") {
            return None;
        }
        let code = words.next()?.parse::<u8>().ok()?;
        let mut restored = Self {
            can_persist: true,
            persists: true,
            ..Self::default()
        };
        let mut holder = None;
        for word in words {
            let mut fields = word.split(',');
            let key = u64::from_str_radix(fields.next()?, 16).ok()?;
            let isid = parse_isid(fields.next()?)?;
            let name = unescape(fields.next()?)?;
            let port = InitiatorPort { name, isid };
            match fields.next() {
                None => {}
                Some("h") if holder.is_none() => holder = Some(port.clone()),
                Some(_) => return None,
            }
            if fields.next().is_some() || restored.registrants.insert(port, key).is_some() {
                return None;
            }
        }
        if code != 0 {
            let kind = Type::from_code(code)?;
            if kind.is_all_registrants() == holder.is_some() {
                return None;
            }
            restored.reservation = Some(Reservation { kind, holder });
        } else if holder.is_some() {
            return None;
        }
        let is_sane = (1..=REGISTRATIONS_MAX).contains(&restored.registrants.len());
        is_sane.then_some(restored)
    }

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

    /// Carries out a PERSISTENT RESERVE OUT. `known` are the initiator ports that have a session;
    /// nothing changes where it fails.
    pub(crate) fn perform<'a>(
        &mut self,
        port: &InitiatorPort,
        action: u8,
        scope_and_type: u8,
        parameters: OutParameters,
        known: impl Iterator<Item = &'a InitiatorPort>,
    ) -> Result<Effects, Refusal> {
        // RESERVE, RELEASE and PREEMPT name a type; the only scope is the logical unit.
        let kind = || {
            if scope_and_type >> 4 != 0 {
                return Err(Refusal::Check(Sense::cdb_field(2)));
            }
            Type::from_code(scope_and_type & 0x0f).ok_or(Refusal::Check(Sense::cdb_field(2)))
        };
        const BAD: Refusal = Refusal::Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST);
        let OutParameters {
            key, action_key, ..
        } = parameters;
        let registers = matches!(
            action,
            action::REGISTER | action::REGISTER_AND_IGNORE_EXISTING_KEY | action::REGISTER_AND_MOVE
        );
        if registers && parameters.persists && !self.can_persist {
            return Err(BAD);
        }
        let was_registered = self.registrants.contains_key(port);
        let effects = match action {
            action::REGISTER => match parameters.others {
                None => self.register(port, Some(key), action_key),
                Some(others) => {
                    let known: Vec<&InitiatorPort> = known.collect();
                    let ports = others.iter().flat_map(|id| id.ports(known.iter().copied()));
                    self.register_others(port, key, action_key, ports.collect())
                }
            },
            action::REGISTER_AND_IGNORE_EXISTING_KEY => self.register(port, None, action_key),
            action::REGISTER_AND_MOVE => {
                let receiver = parameters.receiver.ok_or(BAD)?;
                let mut ports = receiver.id.ports(known);
                ports.extend(receiver.id.ports(self.registrants.keys()));
                let mut ports = ports.into_iter();
                let to = ports.next().ok_or(BAD)?;
                // A name alone must not be ambiguous.
                if ports.next().is_some() {
                    return Err(BAD);
                }
                self.register_and_move(port, key, action_key, to, receiver.unregisters)
            }
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
        }?;
        // One that is not registered, and does not become it, has no say.
        if registers && (was_registered || self.registrants.contains_key(port)) {
            self.persists = parameters.persists;
        }
        Ok(effects)
    }

    /// REGISTER with SPEC_I_PT (SPC-5 section 5.14.7): registers others too, all or none.
    fn register_others(
        &mut self,
        port: &InitiatorPort,
        key: u64,
        new_key: u64,
        others: BTreeSet<InitiatorPort>,
    ) -> Result<Effects, Refusal> {
        if self.registrants.contains_key(port) {
            self.check_key(port, key)?;
            return Err(Refusal::Check(Sense::INVALID_FIELD_IN_CDB));
        }
        if key != 0 {
            return Err(Refusal::Conflict);
        }
        if new_key == 0 {
            return Ok(Effects::default());
        }
        if others
            .iter()
            .any(|other| self.registrants.contains_key(other))
        {
            return Err(Refusal::Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
        }
        let mut ports = others;
        ports.insert(port.clone());
        if self.registrants.len() + ports.len() > REGISTRATIONS_MAX {
            return Err(Refusal::Check(Sense::INSUFFICIENT_REGISTRATION_RESOURCES));
        }
        self.registrants
            .extend(ports.into_iter().map(|port| (port, new_key)));
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects::default())
    }

    /// REGISTER AND MOVE (SPC-5 section 5.14.8).
    fn register_and_move(
        &mut self,
        port: &InitiatorPort,
        key: u64,
        new_key: u64,
        to: InitiatorPort,
        unregisters: bool,
    ) -> Result<Effects, Refusal> {
        self.check_key(port, key)?;
        let Some(reservation) = &mut self.reservation else {
            return Err(Refusal::Conflict);
        };
        // Also where all registrants hold it.
        if reservation.holder.as_ref() != Some(port) {
            return Err(Refusal::Conflict);
        }
        if new_key == 0 || to == *port {
            return Err(Refusal::Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
        }
        if self.registrants.len() == REGISTRATIONS_MAX && !self.registrants.contains_key(&to) {
            return Err(Refusal::Check(Sense::INSUFFICIENT_REGISTRATION_RESOURCES));
        }
        reservation.holder = Some(to.clone());
        self.registrants.insert(to, new_key);
        if unregisters {
            self.registrants.remove(port);
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects::default())
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
            // REPORT CAPABILITIES: SIP_C, ATP_C, PTPL_C; TMV, PTPL_A; all types.
            let capabilities = 0x0c | u8::from(self.can_persist);
            let state = 0x80 | u8::from(self.persists);
            data.extend_from_slice(&[0, 8, capabilities, state, 0xea, 0x01, 0, 0]);
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

/// A name as [`Reservations::stored`] writes it.
fn unescape(text: &str) -> Option<String> {
    let mut name = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            name.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            name.push(*byte);
        }
    }
    let name = String::from_utf8(name).ok()?;
    (!name.is_empty() && name.len() <= crate::text::ISCSI_NAME_BYTES_MAX).then_some(name)
}

/// Reads a parameter list, and what might be stored of reservations: for fuzzers.
pub(crate) fn decode_for_fuzzing(data: &[u8]) {
    let Some((action, list)) = data.split_first() else {
        return;
    };
    let _ = OutParameters::decode(action % 8, list);
    if let Ok(text) = std::str::from_utf8(list)
        && let Some(restored) = Reservations::restore(text)
    {
        // What is read once is read again.
        let stored = restored.stored().expect("there are registrants");
        assert_eq!(Reservations::restore(&stored), Some(restored));
    }
}
