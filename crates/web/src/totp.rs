//! Six digits that change every half minute (TOTP, RFC 6238, with HMAC-SHA-1 as every
//! authenticator app has it).

use api::Secret;
use device::Random;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

/// Seconds of a step.
pub(super) const STEP_S: u64 = 30;
/// Bytes of a secret (RFC 4226, section 4: 160 bits are recommended).
const SECRET_BYTES: usize = 20;
/// Base 32 (RFC 4648, section 6).
const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// A new secret, in base 32.
pub(super) fn secret(random: &dyn Random) -> Secret {
    let mut raw = [0; SECRET_BYTES];
    random.fill(&mut raw);
    let mut text = String::new();
    // Five bytes are eight characters.
    for five in raw.chunks_exact(5) {
        let bits = five
            .iter()
            .fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
        for place in (0..8).rev() {
            text.push(char::from(ALPHABET[(bits >> (5 * place) & 31) as usize]));
        }
    }
    Secret(text)
}

fn bytes_of(secret: &Secret) -> Vec<u8> {
    let (mut bits, mut count, mut out) = (0u64, 0, Vec::new());
    for byte in secret.0.bytes() {
        let Some(value) = ALPHABET.iter().position(|letter| *letter == byte) else {
            continue;
        };
        bits = bits << 5 | value as u64;
        count += 5;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count & 0xff) as u8);
        }
    }
    out
}

/// The six digits of a step (RFC 4226, section 5.3).
pub(super) fn code(secret: &Secret, step: u64) -> String {
    let mac = Hmac::<Sha1>::new_from_slice(&bytes_of(secret));
    let mut mac = mac.expect("HMAC takes keys of any length");
    mac.update(&step.to_be_bytes());
    let hash = mac.finalize().into_bytes();
    let at = usize::from(hash[19] & 15);
    let four = hash[at..at + 4]
        .iter()
        .fold(0u32, |four, byte| four << 8 | u32::from(*byte));
    format!("{:06}", (four & 0x7fff_ffff) % 1_000_000)
}

/// The step that six digits are of: this one, or the one before or after it, as clocks differ
/// (RFC 6238, section 5.2); later than `last`.
pub(super) fn step_of(secret: &Secret, given: &str, now_s: u64, last: Option<u64>) -> Option<u64> {
    let given: String = given.chars().filter(|c| !c.is_whitespace()).collect();
    let now = now_s / STEP_S;
    (now.saturating_sub(1)..=now + 1)
        .filter(|step| last.is_none_or(|last| *step > last))
        .find(|step| code(secret, *step) == given)
}

/// What an authenticator app is given.
pub(super) fn uri(secret: &Secret, user: &str, host: &str) -> Secret {
    let plain = |text: &str| -> String {
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-_.@".contains(*c);
        text.chars().filter(is_plain).collect()
    };
    let (user, host) = (plain(user), plain(host));
    Secret(format!(
        "otpauth://totp/Millpond%20{host}:{user}?secret={}&issuer=Millpond%20{host}",
        secret.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6238, appendix B (the last six of its eight digits).
    #[test]
    fn codes_are_those_of_the_rfc() {
        let secret = Secret("GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ".into());
        assert_eq!(bytes_of(&secret), b"12345678901234567890");
        for (time_s, expected) in [
            (59, "287082"),
            (1_111_111_109, "081804"),
            (1_234_567_890, "005924"),
            (20_000_000_000, "353130"),
        ] {
            assert_eq!(code(&secret, time_s / STEP_S), expected);
            for late in [0, STEP_S] {
                assert_eq!(
                    step_of(&secret, expected, time_s + late, None),
                    Some(time_s / STEP_S)
                );
            }
            assert_eq!(step_of(&secret, expected, time_s + 3 * STEP_S, None), None);
            let last = Some(time_s / STEP_S);
            assert_eq!(step_of(&secret, expected, time_s, last), None);
        }
        assert_eq!(step_of(&secret, "", 59, None), None);
    }

    #[test]
    fn secrets_are_random_and_of_base_32() {
        let world = device::World::system(1);
        let (one, other) = (secret(&*world.random), secret(&*world.random));
        assert_ne!(one.0, other.0);
        assert_eq!((one.0.len(), bytes_of(&one).len()), (32, 20));
    }
}
