//! Logging in, with CHAP or without, and asking what targets there are.

use super::{DATA_BYTES_MAX, Initiator, InitiatorError, Result, TALK, within};
use crate::login::{Algorithm, CHAP_BYTES_MAX, ChapCredentials};
use crate::pdu::{Header, TAG_NONE, flag, target_opcode};
use crate::text;
use bytes::Bytes;
use tokio::net::TcpStream;

/// Answers to one login at most.
const ANSWERS_MAX: usize = 16;
/// Longest text of a login, or of a discovery, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Most keys in a discovery's text.
const KEYS_MAX: usize = 1 << 14;
/// Longest address of a portal, in bytes: a name of DNS in full, a port.
const ADDRESS_BYTES_MAX: usize = 255 + 6;
/// Stages (RFC 7143 section 11.12.3).
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// Who logs in.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The initiator's name.
    pub name: String,
    /// Tells sessions of one initiator apart, with the next (the middle of ISID, which is random,
    /// RFC 7143 section 11.12.5): a session of the same name and ISID would end.
    pub random: [u8; 3],
    /// The end of ISID.
    pub qualifier: u16,
    /// Without them it says that it has nothing to prove.
    pub credentials: Option<ChapCredentials>,
}

/// A target that discovery names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTarget {
    /// Its name.
    pub iqn: String,
    /// Where it is; nothing where it is only where one asked.
    pub portals: Vec<FoundPortal>,
}

/// An address of a target (`TargetAddress`, RFC 7143 section 13.8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPortal {
    /// Address or name, and port if there is one.
    pub address: String,
    /// The portal group.
    pub group: u16,
}

/// What a status of a login means (RFC 7143 section 11.13.5).
pub(super) fn meaning(status: &u16) -> String {
    let words = match status {
        0x0201 => "it wants another user or secret",
        0x0202 => "this initiator may not use it",
        0x0203 => "there is no such target",
        0x0206 | 0x0302 => "it has too many sessions",
        0x0301 => "it is not ready",
        _ => return format!("status {status:#06x}"),
    };
    words.to_owned()
}

impl Initiator {
    /// Asks at a portal what targets there are (`SendTargets=All`, RFC 7143 appendix C).
    ///
    /// # Errors
    /// As all of it; [`InitiatorError::Strange`] where something is named as no target can be.
    pub async fn discover(socket: TcpStream, who: &Identity) -> Result<Vec<FoundTarget>> {
        within(TALK, Self::discover_all(socket, who)).await
    }

    async fn discover_all(socket: TcpStream, who: &Identity) -> Result<Vec<FoundTarget>> {
        let mut session = Self::new(socket);
        session.establish(who, None).await?;
        let mut found = Vec::new();
        let mut target_tag = TAG_NONE;
        let tag = session.next_tag();
        let mut question = Bytes::from_static(b"SendTargets=All\0");
        loop {
            let mut header = Header::new(0x04);
            header.set_initiator_task_tag(tag);
            header.set_target_tag(target_tag);
            session.request(header, question).await?;
            let frame = session.answer().await?;
            if frame.header.0[0] & 0x3f != target_opcode::TEXT_RESPONSE {
                return Err(InitiatorError::Strange("no text answers a question"));
            }
            if found.len() + frame.data.len() > TEXT_BYTES_MAX {
                return Err(InitiatorError::Strange("it has too many targets"));
            }
            found.extend_from_slice(&frame.data);
            if frame.header.is_final() && frame.header.flags() & flag::CONTINUE == 0 {
                break;
            }
            target_tag = frame.header.target_tag();
            question = Bytes::new();
        }
        let targets = targets_of(&found)?;
        // It is not needed any more, however it ends.
        let _ = session.log_out().await;
        Ok(targets)
    }

    /// Logs in to a target.
    ///
    /// # Errors
    /// As all of it.
    pub async fn log_in(socket: TcpStream, iqn: &str, who: &Identity) -> Result<Self> {
        let mut session = Self::new(socket);
        within(TALK, session.establish(who, Some(iqn))).await?;
        Ok(session)
    }

    async fn establish(&mut self, who: &Identity, iqn: Option<&str>) -> Result<()> {
        let mut keys = Vec::new();
        text::append(&mut keys, "InitiatorName", &who.name);
        match iqn {
            Some(iqn) => {
                text::append(&mut keys, "TargetName", iqn);
                text::append(&mut keys, "SessionType", "Normal");
            }
            None => text::append(&mut keys, "SessionType", "Discovery"),
        }
        let method = match who.credentials {
            Some(_) => "CHAP,None",
            None => "None",
        };
        text::append(&mut keys, "AuthMethod", method);
        let mut stage = SECURITY;
        // With something to prove, the target says first whether it wants that.
        let mut is_ready = who.credentials.is_none();
        for _ in 0..ANSWERS_MAX {
            let next = match stage {
                SECURITY => OPERATIONAL,
                _ => FULL_FEATURE,
            };
            let sent = std::mem::take(&mut keys);
            let (header, said) = self.login_step(who, stage, next, is_ready, sent).await?;
            if header.is_final() {
                match header.flags() & 3 {
                    FULL_FEATURE => return self.begin(header),
                    OPERATIONAL if stage == SECURITY => {
                        stage = OPERATIONAL;
                        let length = DATA_BYTES_MAX.to_string();
                        text::append(&mut keys, "HeaderDigest", "None");
                        text::append(&mut keys, "DataDigest", "None");
                        text::append(&mut keys, "MaxRecvDataSegmentLength", &length);
                        text::append(&mut keys, "ErrorRecoveryLevel", "0");
                    }
                    _ => return Err(InitiatorError::Strange("it skips a stage of the login")),
                }
            } else if stage == SECURITY {
                (keys, is_ready) = prove(who.credentials.as_ref(), &said)?;
            }
        }
        Err(InitiatorError::Strange("the login does not end"))
    }

    /// One request of the login, and what is said to it.
    async fn login_step(
        &mut self,
        who: &Identity,
        stage: u8,
        next: u8,
        is_ready: bool,
        keys: Vec<u8>,
    ) -> Result<(Header, Vec<(String, String)>)> {
        let mut header = Header::new(0x43);
        header.0[1] = stage << 2;
        if is_ready || stage != SECURITY {
            header.0[1] |= flag::FINAL | next;
        }
        // The random type of ISID (10b), which is nobody's by its manufacturer.
        header.0[8] = 0x80;
        header.0[9..12].copy_from_slice(&who.random);
        header.set_u16(12, who.qualifier);
        header.set_initiator_task_tag(0);
        header.set_u16(20, 1);
        self.request(header, keys.into()).await?;
        let mut text = Vec::new();
        loop {
            let frame = self.answer().await?;
            let answer = frame.header;
            if answer.0[0] & 0x3f != target_opcode::LOGIN_RESPONSE {
                return Err(InitiatorError::Strange("no login response answers a login"));
            }
            if text.len() + frame.data.len() > TEXT_BYTES_MAX {
                return Err(InitiatorError::Strange("its login text is too long"));
            }
            text.extend_from_slice(&frame.data);
            let status = answer.u16_at(36);
            if status != 0 {
                let said = pairs(&text)?;
                let elsewhere = said.into_iter().find(|(key, _)| key == "TargetAddress");
                return Err(match elsewhere {
                    Some((_, address)) if status >> 8 == 1 => {
                        InitiatorError::Moved(moved_to(&address))
                    }
                    _ => InitiatorError::Refused(status),
                });
            }
            if answer.flags() & flag::CONTINUE == 0 {
                return Ok((answer, pairs(&text)?));
            }
            header.0[1] = stage << 2;
            self.request(header, Bytes::new()).await?;
        }
    }

    fn begin(&mut self, last: Header) -> Result<()> {
        self.max_cmd_sn = last.u32_at(32);
        Ok(())
    }
}

fn pairs(said: &[u8]) -> Result<Vec<(String, String)>> {
    text::pairs_up_to(said, KEYS_MAX)
        .map_err(|_| InitiatorError::Strange("its text is not key=value pairs"))
}

/// The next step of proving who one is, by what the target said (RFC 7143 section 12.1.3), and
/// whether that is the last.
fn prove(
    credentials: Option<&ChapCredentials>,
    said: &[(String, String)],
) -> Result<(Vec<u8>, bool)> {
    let says = |key: &str| {
        let pair = said.iter().find(|(said, _)| said == key);
        pair.map(|(_, value)| value.as_str())
    };
    let mut keys = Vec::new();
    let Some(credentials) = credentials else {
        return match says("AuthMethod") {
            Some("None") | None => Ok((keys, true)),
            Some(_) => Err(InitiatorError::Refused(0x0201)),
        };
    };
    if let (Some(identifier), Some(challenge)) = (says("CHAP_I"), says("CHAP_C")) {
        let algorithm = says("CHAP_A").and_then(Algorithm::select);
        let identifier = text::number(identifier).and_then(|number| u8::try_from(number).ok());
        let challenge = text::binary(challenge, CHAP_BYTES_MAX);
        let (Some(algorithm), Some(identifier), Some(challenge)) =
            (algorithm, identifier, challenge)
        else {
            return Err(InitiatorError::Strange("its challenge is not one of CHAP"));
        };
        let response = algorithm.response(identifier, &credentials.secret, &challenge);
        text::append(&mut keys, "CHAP_N", &credentials.user);
        text::append(&mut keys, "CHAP_R", &text::to_hex(&response));
        return Ok((keys, true));
    }
    match says("AuthMethod") {
        Some("CHAP") => {
            let both = [Algorithm::Sha256, Algorithm::Md5].map(Algorithm::number);
            text::append(&mut keys, "CHAP_A", &both.join(","));
            Ok((keys, false))
        }
        // It wants no proof.
        Some("None") => Ok((keys, true)),
        _ => Err(InitiatorError::Strange(
            "it names no way to prove who one is",
        )),
    }
}

/// Whether a target may be called so: it is shown, and copied. Letters, digits and `.-:` (RFC 7143
/// section 4.2.7.1), and the `_` that some have.
fn is_name(name: &str) -> bool {
    let is_fine = |c: char| c.is_alphanumeric() || ".-:_".contains(c);
    (1..=text::ISCSI_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_fine)
}

/// Whether a portal may be there: an address or name, and a port.
fn is_address(address: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || ".-:_[]%".contains(c);
    (1..=ADDRESS_BYTES_MAX).contains(&address.len()) && address.chars().all(is_fine)
}

/// Where a target sends its initiators, in words that can be shown.
pub(super) fn moved_to(address: &str) -> String {
    let address = address.split(',').next().unwrap_or_default();
    match is_address(address) {
        true => address.to_owned(),
        false => "what is no address".to_owned(),
    }
}

/// The targets in a discovery's answer: each `TargetName` with the addresses behind it. What can
/// be no address is left out.
pub(super) fn targets_of(said: &[u8]) -> Result<Vec<FoundTarget>> {
    let mut targets: Vec<FoundTarget> = Vec::new();
    for (key, value) in pairs(said)? {
        match (key.as_str(), targets.last_mut()) {
            ("TargetName", _) if !is_name(&value) => {
                return Err(InitiatorError::Strange("it names what no target is called"));
            }
            ("TargetName", _) => targets.push(FoundTarget {
                iqn: value,
                portals: Vec::new(),
            }),
            ("TargetAddress", Some(target)) => {
                let (address, group) = value.rsplit_once(',').unwrap_or((&value, "1"));
                if is_address(address) {
                    target.portals.push(FoundPortal {
                        address: address.to_owned(),
                        group: group.parse().unwrap_or(1),
                    });
                }
            }
            _ => {}
        }
    }
    Ok(targets)
}
