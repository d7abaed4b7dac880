//! Remote procedure calls (RFC 5531): calls, credentials, replies. Knows nothing of files.
//!
//! A call that is no call ends its connection ([`CallError::NotACall`]); one that cannot be carried
//! out is answered as section 9 of the RFC has it.

pub mod record;

use std::sync::Arc;

use bytes::Bytes;

use crate::xdr::{Reader, Writer, XdrError};

/// `RPC_VERS`.
const RPC_VERSION: u32 = 2;
const CALL: u32 = 0;
const REPLY: u32 = 1;
const MSG_ACCEPTED: u32 = 0;
const MSG_DENIED: u32 = 1;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;
/// Longest body of a credential or a verifier (section 8.2).
const AUTH_BYTES_MAX: u32 = 400;
/// Longest name of a machine (appendix A).
const MACHINE_BYTES_MAX: u32 = 255;
/// Most groups that a credential names (appendix A).
pub const GROUPS_MAX: usize = 16;

/// `AUTH_NONE`.
pub const AUTH_NONE: u32 = 0;
/// `AUTH_SYS`.
pub const AUTH_SYS: u32 = 1;

/// Who calls, as the call says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Credential {
    /// Nobody says.
    None,
    /// A user of a machine that is believed (`AUTH_SYS`).
    Sys {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Groups besides.
        groups: Arc<[u32]>,
    },
}

/// Why a credential is not taken (`auth_stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AuthError {
    /// It is damaged, or of a flavor that is not known (`AUTH_BADCRED`).
    BadCredential = 1,
    /// A flavor that says more is asked for (`AUTH_TOOWEAK`).
    TooWeak = 5,
}

/// A call.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its number, which the reply repeats.
    pub xid: u32,
    /// Program.
    pub program: u32,
    /// The program's version.
    pub version: u32,
    /// Procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: Credential,
    /// The procedure's arguments.
    pub arguments: Reader,
}

/// Why a message is no call that can be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// It is not a call at all: whoever sends it does not speak RPC.
    NotACall,
    /// It is answered, and that is all.
    Answered(Vec<Bytes>),
}

impl From<XdrError> for CallError {
    fn from(_: XdrError) -> Self {
        CallError::NotACall
    }
}

impl Call {
    /// From a record.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn decode(record: Bytes) -> Result<Self, CallError> {
        let mut reader = Reader::new(record);
        let xid = reader.u32()?;
        if reader.u32()? != CALL {
            return Err(CallError::NotACall);
        }
        if reader.u32()? != RPC_VERSION {
            let mut reply = Writer::new();
            for word in [
                xid,
                REPLY,
                MSG_DENIED,
                RPC_MISMATCH,
                RPC_VERSION,
                RPC_VERSION,
            ] {
                reply.u32(word);
            }
            return Err(CallError::Answered(reply.finish()));
        }
        let (program, version, procedure) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let flavor = reader.u32()?;
        let body = reader.opaque(AUTH_BYTES_MAX)?;
        // The verifier says nothing with these flavors.
        let (_, _) = (reader.u32()?, reader.opaque(AUTH_BYTES_MAX)?);
        let credential = decode_credential(flavor, body);
        let credential =
            credential.ok_or_else(|| CallError::Answered(refuse(xid, AuthError::BadCredential)))?;
        Ok(Self {
            xid,
            program,
            version,
            procedure,
            credential,
            arguments: reader,
        })
    }
}

/// Appendix A. `None` where it is none that is known.
fn decode_credential(flavor: u32, body: Bytes) -> Option<Credential> {
    let mut reader = Reader::new(body);
    match flavor {
        AUTH_NONE => Some(Credential::None),
        AUTH_SYS => {
            let _stamp = reader.u32().ok()?;
            let _machine = reader.opaque(MACHINE_BYTES_MAX).ok()?;
            let (uid, gid) = (reader.u32().ok()?, reader.u32().ok()?);
            let count = reader.u32().ok()? as usize;
            if count > GROUPS_MAX {
                return None;
            }
            let groups: Result<Arc<[u32]>, _> = (0..count).map(|_| reader.u32()).collect();
            Some(Credential::Sys {
                uid,
                gid,
                groups: groups.ok()?,
            })
        }
        _ => None,
    }
}

/// A reply that refuses a call for its credential.
pub fn refuse(xid: u32, why: AuthError) -> Vec<Bytes> {
    let mut reply = Writer::new();
    for word in [xid, REPLY, MSG_DENIED, AUTH_ERROR, why as u32] {
        reply.u32(word);
    }
    reply.finish()
}

/// How a call that was accepted ended (`accept_stat`).
#[derive(Debug)]
pub enum Outcome {
    /// With this result.
    Success(Writer),
    /// There is no such program.
    NoProgram,
    /// The program has other versions.
    NoVersion {
        /// The lowest that there is.
        lowest: u32,
        /// The highest.
        highest: u32,
    },
    /// The program has no such procedure.
    NoProcedure,
    /// The arguments are not what the procedure takes.
    BadArguments,
    /// The credential is not taken for this.
    Refused(AuthError),
}

impl From<XdrError> for Outcome {
    fn from(error: XdrError) -> Self {
        tracing::debug!(%error, "arguments of an RPC are damaged");
        Outcome::BadArguments
    }
}

impl Outcome {
    /// The reply, in pieces.
    pub fn encode(self, xid: u32) -> Vec<Bytes> {
        let mut reply = Writer::new();
        for word in [xid, REPLY, MSG_ACCEPTED, AUTH_NONE, 0] {
            reply.u32(word);
        }
        match self {
            Self::Success(result) => {
                reply.u32(0);
                reply.append(result);
            }
            Self::NoProgram => reply.u32(1),
            Self::NoVersion { lowest, highest } => {
                for word in [2, lowest, highest] {
                    reply.u32(word);
                }
            }
            Self::NoProcedure => reply.u32(3),
            Self::BadArguments => reply.u32(4),
            Self::Refused(why) => return refuse(xid, why),
        }
        reply.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(flavor: u32, body: &[u8]) -> Writer {
        let mut writer = Writer::new();
        for word in [99, CALL, RPC_VERSION, 100_003, 3, 1, flavor] {
            writer.u32(word);
        }
        writer.opaque(body);
        writer.u32(AUTH_NONE);
        writer.opaque(b"");
        writer
    }

    fn decode(writer: Writer) -> Result<Call, CallError> {
        Call::decode(Bytes::from(writer.finish().concat()))
    }

    #[test]
    fn a_call_says_who_calls_for_what() {
        let mut body = Writer::new();
        body.u32(1);
        body.opaque(b"machine");
        for word in [1000, 100, 2, 4, 24] {
            body.u32(word);
        }
        let mut message = call(AUTH_SYS, &body.finish().concat());
        message.u32(77);
        let call = decode(message).unwrap();
        assert_eq!((call.xid, call.program, call.procedure), (99, 100_003, 1));
        let groups = Arc::from([4, 24]);
        let (uid, gid) = (1000, 100);
        assert_eq!(call.credential, Credential::Sys { uid, gid, groups });
        assert_eq!(call.arguments.clone().u32(), Ok(77));
    }

    #[test]
    fn what_cannot_be_carried_out_is_answered() {
        // RPCSEC_GSS.
        let refused = decode(call(6, b"")).unwrap_err();
        let expected = CallError::Answered(refuse(99, AuthError::BadCredential));
        assert_eq!(refused, expected);
        // Seventeen groups.
        let mut body = Writer::new();
        body.u32(1);
        body.opaque(b"");
        for word in [0, 0, 17].into_iter().chain(0..17) {
            body.u32(word);
        }
        assert_eq!(
            decode(call(AUTH_SYS, &body.finish().concat())).unwrap_err(),
            expected
        );
        let reply = Outcome::NoVersion {
            lowest: 3,
            highest: 4,
        };
        let reply = Bytes::from(reply.encode(99).concat());
        assert_eq!(reply.len(), 32);
        assert!(matches!(
            Call::decode(reply).unwrap_err(),
            CallError::NotACall
        ));
    }
}
