//! The login phase as a state machine (RFC 7143 sections 6.3, 11.12, 11.13 and 12).
//!
//! Requests go in, responses come out; who may log in is asked of a [`Directory`]. When the
//! initiator is let in, [`Step::Establish`] is returned and its last response is held back until
//! the session has been registered (which may mean waiting for an older session of the same
//! initiator port to end) and has its handle, TSIH.
//!
//! Stages, by the request's CSG/NSG/T (anything else fails the login with status 0200h):
//!
//! | stage now | request | condition | next |
//! |---|---|---|---|
//! | Security | CSG 0, T 0 | | Security |
//! | Security | CSG 0, T 1, NSG 1 | authenticated | Operational |
//! | Security | CSG 0, T 1, NSG 3 | authenticated | full feature |
//! | Security | CSG 0, T 1 | not yet authenticated | Security (T 0 in the response) |
//! | Security (first request) | CSG 1 | no authentication wanted | Operational |
//! | Operational | CSG 1, T 0 | | Operational |
//! | Operational | CSG 1, T 1, NSG 3 | | full feature |
//!
//! Authentication, inside the security stage: `Open` —AuthMethod=None→ `Passed`;
//! `Open` —AuthMethod=CHAP→ `Chosen` —CHAP_A→ `Challenged` —CHAP_N, CHAP_R right→ `Passed`;
//! anything wrong fails the login with status 0201h.
//!
//! A target says whether it wants CHAP; without it nobody gets in then. A discovery session need
//! not authenticate, but may, with the credentials of any target: it is shown the targets that
//! what it has proven lets it into, and no other.

mod chap;
mod keys;
#[cfg(test)]
mod tests;

pub(crate) use chap::{Algorithm, BINARY_BYTES_MAX as CHAP_BYTES_MAX};
pub use chap::{Authentication, ChapCredentials};
pub(crate) use keys::{LOGIN_DATA_BYTES_MAX, Parameters, RECEIVE_DATA_BYTES_MAX};

use crate::pdu::{Header, Opcode, flag, target_opcode};
use crate::text::{self, ISCSI_NAME_BYTES_MAX};
use keys::Answer;

/// Most login requests of one connection; more is an attack.
const REQUESTS_MAX: u32 = 64;
/// Longest text of one login request (continued over PDUs), in bytes.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Most keys in all login requests of one connection.
const ALL_KEYS_MAX: usize = 512;
/// The only portal group: all addresses that the server listens on.
pub(crate) const PORTAL_GROUP_TAG: u16 = 1;

/// Status-Class and Status-Detail of a failed login (RFC 7143 section 11.13.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum LoginStatus {
    InitiatorError = 0x0200,
    AuthenticationFailure = 0x0201,
    AuthorizationFailure = 0x0202,
    NotFound = 0x0203,
    UnsupportedVersion = 0x0205,
    TooManyConnections = 0x0206,
    MissingParameter = 0x0207,
    SessionTypeNotSupported = 0x0209,
    SessionDoesNotExist = 0x020a,
    InvalidDuringLogin = 0x020b,
    ServiceUnavailable = 0x0301,
    OutOfResources = 0x0302,
}

/// Who may log in where.
pub(crate) trait Directory {
    /// Whether any target wants CHAP, so that authenticating a discovery session has a point.
    fn has_chap(&self) -> bool;
    /// What initiators prove to targets under this CHAP name.
    fn credentials_of(&self, user: &str) -> Vec<ChapCredentials>;
    /// Finds a target for an initiator: how to authenticate and the target's alias.
    fn find_target(
        &self,
        iqn: &str,
        initiator: &str,
    ) -> Result<(Authentication, Option<String>), LoginStatus>;
    /// Whether there is a session with this handle.
    fn has_session(&self, tsih: u16) -> bool;
    /// Connections that a session may have at most.
    fn connections_max(&self) -> u16;
    /// Fills `bytes` with randomness fit for challenges.
    fn fill_random(&self, bytes: &mut [u8]);
}

/// What a session is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionKind {
    Discovery,
    Normal { iqn: String },
}

/// A login that went through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Established {
    pub(crate) initiator: String,
    pub(crate) isid: [u8; 6],
    pub(crate) kind: SessionKind,
    /// What the initiator has shown that it knows.
    pub(crate) proven: Option<ChapCredentials>,
    pub(crate) parameters: Parameters,
    pub(crate) connection_id: u16,
    /// The handle of the session that the connection joins; a new one begins without.
    pub(crate) joins: Option<u16>,
    /// CmdSN of the first command.
    pub(crate) cmd_sn: u32,
    /// StatSN of the next response.
    pub(crate) stat_sn: u32,
}

/// What to do after a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send and go on.
    Reply(Header, Vec<u8>),
    /// Send, then close the connection.
    Refuse(Header, LoginStatus),
    /// Register the session, put its TSIH into the header ([`Login::set_tsih`]), send, and enter
    /// full feature phase.
    Establish(Box<Established>, Header, Vec<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Security,
    Operational,
}

#[derive(Debug)]
enum AuthState {
    Open,
    Chosen,
    Challenged {
        algorithm: Algorithm,
        identifier: u8,
        challenge: [u8; chap::CHALLENGE_BYTES],
    },
    /// With what the initiator has shown that it knows, if it was asked.
    Passed(Option<ChapCredentials>),
}

/// What an initiator has to prove.
#[derive(Debug)]
enum Proof {
    Nothing,
    /// It must know the one; the other is what we answer with when it challenges us.
    Chap {
        initiator: ChapCredentials,
        target: Option<ChapCredentials>,
    },
    /// It may show that it knows some target's credentials (discovery).
    AnyTargets,
}

impl From<Authentication> for Proof {
    fn from(authentication: Authentication) -> Self {
        match authentication {
            Authentication::None => Self::Nothing,
            Authentication::Chap { initiator, target } => Self::Chap { initiator, target },
        }
    }
}

/// What the first request said.
#[derive(Debug)]
struct Who {
    initiator: String,
    kind: SessionKind,
    proof: Proof,
    alias: Option<String>,
}

/// A connection in login phase.
#[derive(Debug)]
pub(crate) struct Login {
    stage: Stage,
    auth: AuthState,
    who: Option<Who>,
    isid: [u8; 6],
    connection_id: u16,
    joins: Option<u16>,
    initiator_task_tag: u32,
    cmd_sn: u32,
    stat_sn: u32,
    request_count: u32,
    /// Text of a request that goes on in the next PDU.
    text: Vec<u8>,
    seen_keys: Vec<String>,
    parameters: Parameters,
    has_declared: bool,
}

const CSG_SECURITY: u8 = 0;
const CSG_OPERATIONAL: u8 = 1;
const NSG_FULL_FEATURE: u8 = 3;

impl Login {
    pub(crate) fn new() -> Self {
        Self {
            stage: Stage::Security,
            auth: AuthState::Open,
            who: None,
            isid: [0; 6],
            connection_id: 0,
            joins: None,
            initiator_task_tag: 0,
            cmd_sn: 0,
            stat_sn: 0,
            request_count: 0,
            text: Vec::new(),
            seen_keys: Vec::new(),
            parameters: Parameters::default(),
            has_declared: false,
        }
    }

    /// The initiator's name, once it has said it (for logs).
    pub(crate) fn initiator(&self) -> Option<&str> {
        self.who.as_ref().map(|who| who.initiator.as_str())
    }

    /// Puts the session's handle into a held-back response.
    pub(crate) fn set_tsih(header: &mut Header, tsih: u16) {
        header.set_u16(14, tsih);
    }

    /// A refusal with this status, for a request of this connection.
    pub(crate) fn refusal(&mut self, status: LoginStatus) -> Step {
        let mut header = self.response_header(false, self.stage, NSG_FULL_FEATURE);
        header.0[1] = 0;
        header.set_u16(36, status as u16);
        Step::Refuse(header, status)
    }

    /// Takes one request.
    pub(crate) fn request(
        &mut self,
        header: &Header,
        data: &[u8],
        directory: &dyn Directory,
    ) -> Step {
        match self.try_request(header, data, directory) {
            Ok(step) => step,
            Err(status) => self.refusal(status),
        }
    }

    fn try_request(
        &mut self,
        header: &Header,
        data: &[u8],
        directory: &dyn Directory,
    ) -> Result<Step, LoginStatus> {
        if header.opcode() != Opcode::Login {
            return Err(LoginStatus::InvalidDuringLogin);
        }
        let is_first = self.request_count == 0;
        self.request_count += 1;
        self.initiator_task_tag = header.initiator_task_tag();
        if is_first {
            self.isid.copy_from_slice(&header.0[8..14]);
            self.connection_id = header.u16_at(20);
            self.cmd_sn = header.cmd_sn();
            self.stat_sn = header.exp_stat_sn();
            // Version-min above what we have: there is only version 0.
            if header.0[3] > 0 {
                return Err(LoginStatus::UnsupportedVersion);
            }
            let tsih = header.u16_at(14);
            if tsih != 0 {
                // Whether it may join it shows when it has proven who it is.
                if !directory.has_session(tsih) {
                    return Err(LoginStatus::SessionDoesNotExist);
                }
                self.joins = Some(tsih);
            }
            self.parameters.connections_limit = directory.connections_max().into();
        } else if header.0[8..14] != self.isid || header.u16_at(20) != self.connection_id {
            return Err(LoginStatus::InitiatorError);
        }
        if self.request_count > REQUESTS_MAX || self.text.len() + data.len() > TEXT_BYTES_MAX {
            return Err(LoginStatus::InitiatorError);
        }
        let is_transit = header.flags() & flag::FINAL != 0;
        let is_continued = header.flags() & flag::CONTINUE != 0;
        let csg = (header.flags() >> 2) & 3;
        let nsg = header.flags() & 3;
        if is_transit && is_continued {
            return Err(LoginStatus::InitiatorError);
        }
        match (self.stage, csg) {
            (Stage::Security, CSG_SECURITY) | (Stage::Operational, CSG_OPERATIONAL) => {}
            // Security may be skipped, from the start only.
            (Stage::Security, CSG_OPERATIONAL) if is_first => self.stage = Stage::Operational,
            _ => return Err(LoginStatus::InitiatorError),
        }
        self.text.extend_from_slice(data);
        if is_continued {
            let header = self.response_header(false, self.stage, csg);
            return Ok(Step::Reply(header, Vec::new()));
        }
        let text = std::mem::take(&mut self.text);
        let pairs = text::parse(&text).map_err(|_| LoginStatus::InitiatorError)?;
        for (key, _) in &pairs {
            if self.seen_keys.len() == ALL_KEYS_MAX || self.seen_keys.contains(key) {
                return Err(LoginStatus::InitiatorError);
            }
            self.seen_keys.push(key.clone());
        }
        let mut reply = Vec::new();
        let says = |key: &str| {
            let pair = pairs.iter().find(|(k, _)| k == key);
            pair.map(|(_, value)| value.as_str())
        };
        if self.who.is_none() {
            let who = identify(&says, directory)?;
            if let SessionKind::Normal { .. } = who.kind {
                text::append(
                    &mut reply,
                    "TargetPortalGroupTag",
                    &PORTAL_GROUP_TAG.to_string(),
                );
                if let Some(alias) = &who.alias {
                    text::append(&mut reply, "TargetAlias", alias);
                }
            }
            self.who = Some(who);
        }
        let stage_before = self.stage;
        if self.stage == Stage::Security {
            self.authenticate(&says, directory, &mut reply)?;
        } else if !self.is_authenticated() {
            return Err(LoginStatus::AuthenticationFailure);
        }
        self.negotiate(&pairs, &mut reply)?;

        let may_transit = is_transit && self.is_authenticated();
        let is_done = match (self.stage, nsg) {
            _ if !may_transit => false,
            (Stage::Security, CSG_OPERATIONAL) => {
                self.stage = Stage::Operational;
                false
            }
            (_, NSG_FULL_FEATURE) => true,
            _ => return Err(LoginStatus::InitiatorError),
        };
        if reply.len() > LOGIN_DATA_BYTES_MAX as usize {
            return Err(LoginStatus::InitiatorError);
        }
        let header = self.response_header(may_transit, stage_before, nsg);
        if !is_done {
            return Ok(Step::Reply(header, reply));
        }
        self.parameters.settle();
        let who = self.who.as_ref().ok_or(LoginStatus::MissingParameter)?;
        let established = Established {
            initiator: who.initiator.clone(),
            isid: self.isid,
            kind: who.kind.clone(),
            proven: match &self.auth {
                AuthState::Passed(proven) => proven.clone(),
                _ => None,
            },
            parameters: self.parameters,
            connection_id: self.connection_id,
            joins: self.joins,
            cmd_sn: self.cmd_sn,
            stat_sn: self.stat_sn,
        };
        Ok(Step::Establish(Box::new(established), header, reply))
    }

    fn is_authenticated(&self) -> bool {
        let wants_none = matches!(
            self.who,
            Some(Who {
                proof: Proof::Nothing | Proof::AnyTargets,
                ..
            })
        );
        match self.auth {
            AuthState::Passed(_) => true,
            AuthState::Open => wants_none,
            AuthState::Chosen | AuthState::Challenged { .. } => false,
        }
    }

    fn response_header(&mut self, is_transit: bool, stage: Stage, nsg: u8) -> Header {
        let mut header = Header::new(target_opcode::LOGIN_RESPONSE);
        let csg = match stage {
            Stage::Security => CSG_SECURITY,
            Stage::Operational => CSG_OPERATIONAL,
        };
        header.0[1] = csg << 2;
        if is_transit {
            header.0[1] |= flag::FINAL | nsg;
        }
        header.0[8..14].copy_from_slice(&self.isid);
        header.set_initiator_task_tag(self.initiator_task_tag);
        header.set_u32(24, self.stat_sn);
        self.stat_sn = self.stat_sn.wrapping_add(1);
        header.set_u32(28, self.cmd_sn);
        header.set_u32(32, self.cmd_sn);
        header
    }

    /// The security stage's keys (RFC 7143 section 12).
    fn authenticate<'a>(
        &mut self,
        says: &dyn Fn(&str) -> Option<&'a str>,
        directory: &dyn Directory,
        reply: &mut Vec<u8>,
    ) -> Result<(), LoginStatus> {
        const FAILED: LoginStatus = LoginStatus::AuthenticationFailure;
        let Some(who) = &self.who else {
            return Err(LoginStatus::MissingParameter);
        };
        if let Some(offered) = says("AuthMethod") {
            if !matches!(self.auth, AuthState::Open) {
                return Err(LoginStatus::InitiatorError);
            }
            let is_taken = |method: &&str| match who.proof {
                Proof::Nothing => *method == "None",
                Proof::Chap { .. } => *method == "CHAP",
                Proof::AnyTargets => *method == "None" || *method == "CHAP" && directory.has_chap(),
            };
            let method = offered.split(',').find(is_taken).ok_or(FAILED)?;
            text::append(reply, "AuthMethod", method);
            self.auth = match method {
                "CHAP" => AuthState::Chosen,
                _ => AuthState::Passed(None),
            };
        }
        match &self.auth {
            AuthState::Chosen => {
                let Some(offered) = says("CHAP_A") else {
                    return Ok(());
                };
                let algorithm = Algorithm::select(offered).ok_or(FAILED)?;
                let mut random = [0; chap::CHALLENGE_BYTES + 1];
                directory.fill_random(&mut random);
                let mut challenge = [0; chap::CHALLENGE_BYTES];
                challenge.copy_from_slice(&random[1..]);
                text::append(reply, "CHAP_A", algorithm.number());
                text::append(reply, "CHAP_I", &random[0].to_string());
                text::append(reply, "CHAP_C", &text::to_hex(&challenge));
                self.auth = AuthState::Challenged {
                    algorithm,
                    identifier: random[0],
                    challenge,
                };
                Ok(())
            }
            AuthState::Challenged {
                algorithm,
                identifier,
                challenge,
            } => {
                let name = says("CHAP_N").ok_or(FAILED)?;
                let response = says("CHAP_R")
                    .and_then(|value| text::binary(value, chap::BINARY_BYTES_MAX))
                    .ok_or(FAILED)?;
                let (known, target) = match &who.proof {
                    Proof::Chap { initiator, target } => (vec![initiator.clone()], target.as_ref()),
                    Proof::AnyTargets => (directory.credentials_of(name), None),
                    Proof::Nothing => (Vec::new(), None),
                };
                let is_right = |known: &ChapCredentials| {
                    let expected = algorithm.response(*identifier, &known.secret, challenge);
                    let is_name_right =
                        chap::equal_in_constant_time(name.as_bytes(), known.user.as_bytes());
                    chap::equal_in_constant_time(&response, &expected) && is_name_right
                };
                let proven = known.into_iter().find(is_right).ok_or(FAILED)?;
                match (says("CHAP_I"), says("CHAP_C")) {
                    (None, None) => {}
                    (Some(their_identifier), Some(their_challenge)) => {
                        let target = target.ok_or(FAILED)?;
                        let their_identifier = text::number(their_identifier)
                            .and_then(|number| u8::try_from(number).ok())
                            .ok_or(FAILED)?;
                        let their_challenge =
                            text::binary(their_challenge, chap::BINARY_BYTES_MAX).ok_or(FAILED)?;
                        // Our own challenge sent back would have us answer it for them, and one
                        // secret for both directions would allow the same (RFC 7143 9.2.1).
                        if their_challenge == challenge || target.secret == proven.secret {
                            return Err(FAILED);
                        }
                        let answer =
                            algorithm.response(their_identifier, &target.secret, &their_challenge);
                        text::append(reply, "CHAP_N", &target.user);
                        text::append(reply, "CHAP_R", &text::to_hex(&answer));
                    }
                    _ => return Err(FAILED),
                }
                self.auth = AuthState::Passed(Some(proven));
                Ok(())
            }
            AuthState::Open | AuthState::Passed(_) => Ok(()),
        }
    }

    /// All other keys.
    fn negotiate(
        &mut self,
        pairs: &[(String, String)],
        reply: &mut Vec<u8>,
    ) -> Result<(), LoginStatus> {
        let kind = self.who.as_ref().map(|who| &who.kind);
        let offered_in = match (kind, self.joins) {
            (Some(SessionKind::Discovery), _) => keys::Login::Discovery,
            (_, Some(_)) => keys::Login::Joining,
            (_, None) => keys::Login::Leading,
        };
        for (key, value) in pairs {
            match key.as_str() {
                "InitiatorName" | "TargetName" | "InitiatorAlias" | "SessionType"
                | "AuthMethod" | "CHAP_A" | "CHAP_I" | "CHAP_C" | "CHAP_N" | "CHAP_R" => continue,
                _ => {}
            }
            match self.parameters.offer(key, value, offered_in) {
                Some(Answer::Value(answer)) => text::append(reply, key, &answer),
                Some(Answer::Nothing) => {}
                Some(Answer::Violation) => return Err(LoginStatus::InitiatorError),
                None => text::append(reply, key, "NotUnderstood"),
            }
        }
        if self.stage == Stage::Operational && !self.has_declared {
            self.has_declared = true;
            text::append(
                reply,
                "MaxRecvDataSegmentLength",
                &RECEIVE_DATA_BYTES_MAX.to_string(),
            );
        }
        Ok(())
    }
}

/// Reads who logs in where from the first request's keys.
fn identify<'a>(
    says: &dyn Fn(&str) -> Option<&'a str>,
    directory: &dyn Directory,
) -> Result<Who, LoginStatus> {
    let initiator = says("InitiatorName").ok_or(LoginStatus::MissingParameter)?;
    if initiator.is_empty() || initiator.len() > ISCSI_NAME_BYTES_MAX {
        return Err(LoginStatus::InitiatorError);
    }
    let initiator = initiator.to_ascii_lowercase();
    let (kind, proof, alias) = match says("SessionType").unwrap_or("Normal") {
        "Discovery" => (SessionKind::Discovery, Proof::AnyTargets, None),
        "Normal" => {
            let iqn = says("TargetName").ok_or(LoginStatus::MissingParameter)?;
            let iqn = iqn.to_ascii_lowercase();
            let (authentication, alias) = directory.find_target(&iqn, &initiator)?;
            (SessionKind::Normal { iqn }, authentication.into(), alias)
        }
        _ => return Err(LoginStatus::SessionTypeNotSupported),
    };
    Ok(Who {
        initiator,
        kind,
        proof,
        alias,
    })
}
