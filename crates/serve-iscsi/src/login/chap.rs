//! CHAP (RFC 1994; in iSCSI, RFC 7143 section 12.1.3): credentials, challenges and responses.

use md5::Digest;

/// Length of the challenges that we send, in bytes.
pub(crate) const CHALLENGE_BYTES: usize = 16;
/// Longest challenge and response taken, in bytes (RFC 7143 section 12.1.3).
pub(crate) const BINARY_BYTES_MAX: usize = 1024;

/// A name and a secret for CHAP (RFC 1994, RFC 7143 section 12.1.3).
#[derive(Clone, PartialEq, Eq)]
pub struct ChapCredentials {
    /// The CHAP name.
    pub user: String,
    /// The secret; RFC 7143 asks for at least 96 random bits (12 bytes).
    pub secret: Vec<u8>,
}

impl std::fmt::Debug for ChapCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChapCredentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// How initiators prove who they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Authentication {
    /// They need not (`AuthMethod=None`).
    #[default]
    None,
    /// They must answer a CHAP challenge.
    Chap {
        /// What the initiator must know.
        initiator: ChapCredentials,
        /// What we answer with when the initiator challenges us; `None` refuses mutual CHAP.
        target: Option<ChapCredentials>,
    },
}

impl Authentication {
    /// What an initiator must know.
    pub(crate) fn initiator(&self) -> Option<&ChapCredentials> {
        match self {
            Self::None => None,
            Self::Chap { initiator, .. } => Some(initiator),
        }
    }
}

/// Hash algorithms of CHAP_A (numbers of the PPP authentication registry).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// 5, which everybody has.
    Md5,
    /// 7 (RFC 7143 erratum, open-iscsi 2.1).
    Sha256,
}

impl Algorithm {
    /// The first of the list offered that we have.
    pub(crate) fn select(offered: &str) -> Option<Self> {
        offered.split(',').find_map(|number| match number {
            "5" => Some(Self::Md5),
            "7" => Some(Self::Sha256),
            _ => None,
        })
    }

    /// Its number on the wire.
    pub(crate) fn number(self) -> &'static str {
        match self {
            Self::Md5 => "5",
            Self::Sha256 => "7",
        }
    }

    /// The response to a challenge: hash of identifier, secret and challenge.
    pub(crate) fn response(self, identifier: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        match self {
            Self::Md5 => md5::Md5::new()
                .chain_update([identifier])
                .chain_update(secret)
                .chain_update(challenge)
                .finalize()
                .to_vec(),
            Self::Sha256 => sha2::Sha256::new()
                .chain_update([identifier])
                .chain_update(secret)
                .chain_update(challenge)
                .finalize()
                .to_vec(),
        }
    }
}

/// Compares without telling by its duration where the difference is.
pub(crate) fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the hash is over identifier, secret, challenge in this order.
    /// Method: values computed with `printf '\x01secretchallenge' | md5sum` and `sha256sum`.
    #[test]
    fn responses_match_values_computed_elsewhere() {
        let md5 = Algorithm::Md5.response(1, b"secret", b"challenge");
        assert_eq!(
            crate::text::to_hex(&md5),
            "0x46e47770030e2b4e26a0db72a7efec00"
        );
        let sha = Algorithm::Sha256.response(1, b"secret", b"challenge");
        assert_eq!(
            crate::text::to_hex(&sha),
            "0x2dfa0526f4764864b7c3c5bc6596bcead3d8dbd984f4fc1d9f330299f0beced4"
        );
    }

    #[test]
    fn first_known_algorithm_is_taken() {
        assert_eq!(Algorithm::select("7,5"), Some(Algorithm::Sha256));
        assert_eq!(Algorithm::select("6,5"), Some(Algorithm::Md5));
        assert_eq!(Algorithm::select("6"), None);
    }

    #[test]
    fn comparison_sees_length_and_content() {
        assert!(equal_in_constant_time(b"ab", b"ab"));
        assert!(!equal_in_constant_time(b"ab", b"ac"));
        assert!(!equal_in_constant_time(b"ab", b"abc"));
    }
}
