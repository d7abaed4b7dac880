//! Tokens that say where an interrupted receive goes on (property `receive_resume_token`).
//!
//! A token is `1-CHECKSUM-LENGTH-DATA`, all hexadecimal: a packed nvlist of so many bytes,
//! compressed with zlib, behind the first word of the fletcher4 checksum of that
//! (`get_receive_resume_token_impl`, module/zfs/dsl_dataset.c;
//! `zfs_send_resume_token_to_nvlist`, lib/libzfs/libzfs_sendrecv.c).

use codec::checksum::Fletcher4;
use codec::compress::{ZstdLevel, compress, decompress};
use format::{Compression, Endian, Guid, NvEncoding, NvList, NvValue};

/// Longest list in a token, in bytes.
const LIST_BYTES_MAX: usize = 64 << 10;

/// Where an interrupted receive goes on, and what it is of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResumeToken {
    /// What the stream is the difference to.
    pub from_guid: Option<Guid>,
    /// The object that the next record is about.
    pub object: u64,
    /// And where in it, in bytes.
    pub offset_bytes: u64,
    /// Bytes that were received.
    pub stream_bytes: u64,
    /// The snapshot.
    pub to_guid: Guid,
    /// Its full name where it was sent.
    pub to_name: String,
    /// It was sent with `-L`.
    pub large_blocks: bool,
    /// It was sent with `-e`.
    pub embedded: bool,
    /// It was sent with `-c`.
    pub compressed: bool,
    /// It was sent with `-w`.
    pub raw: bool,
    /// Guids of the snapshots that what is received is redacted with, if it is.
    pub redact_snaps: Option<Vec<u64>>,
    /// Guids of the snapshots that the redaction bookmark is made with that it is the difference
    /// to.
    pub redacted_with: Option<Vec<u64>>,
}

impl ResumeToken {
    /// What it says, by the names that `zfs send -nvt` shows.
    pub fn list(&self) -> NvList {
        let mut list = NvList::new();
        if let Some(from) = self.from_guid {
            list.set("fromguid", from.get());
        }
        list.set("object", self.object);
        list.set("offset", self.offset_bytes);
        list.set("bytes", self.stream_bytes);
        list.set("toguid", self.to_guid.get());
        list.set("toname", self.to_name.as_str());
        for (name, is_set) in [
            ("largeblockok", self.large_blocks),
            ("embedok", self.embedded),
            ("compressok", self.compressed),
            ("rawok", self.raw),
        ] {
            if is_set {
                list.push(name, NvValue::Boolean);
            }
        }
        for (name, guids) in [
            ("redact_snaps", &self.redact_snaps),
            ("book_redact_snaps", &self.redacted_with),
        ] {
            if let Some(guids) = guids {
                list.set(name, NvValue::UInt64Array(guids.clone()));
            }
        }
        list
    }

    /// As text.
    pub fn encode(&self) -> String {
        let packed = self.list().encode(NvEncoding::Native).unwrap_or_default();
        // It may get longer by a few bytes.
        let longest = packed.len() + packed.len() / 100 + 64;
        let level = ZstdLevel::DEFAULT;
        let compressed = compress(Compression::Gzip(6), level, &packed, longest);
        let compressed = compressed.ok().flatten().unwrap_or_default();
        let mut text = format!("1-{:x}-{:x}-", checksum(&compressed), packed.len());
        for byte in &compressed {
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }

    /// From text; `None` for what is no token, or not a whole one.
    pub fn decode(text: &str) -> Option<Self> {
        let mut parts = text.trim().splitn(4, '-');
        if parts.next()? != "1" {
            return None;
        }
        let sum = u64::from_str_radix(parts.next()?, 16).ok()?;
        let length = usize::from_str_radix(parts.next()?, 16).ok()?;
        let digits = parts.next()?;
        if !digits.is_ascii() || digits.len() % 2 != 0 || length > LIST_BYTES_MAX {
            return None;
        }
        let compressed: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16))
            .collect::<Result<_, _>>()
            .ok()?;
        if checksum(&compressed) != sum {
            return None;
        }
        let packed = decompress(Compression::Gzip(6), &compressed, length).ok()?;
        let list = NvList::decode(&packed).ok()?;
        Some(ResumeToken {
            from_guid: list.u64("fromguid").map(Guid::new),
            object: list.u64("object")?,
            offset_bytes: list.u64("offset")?,
            stream_bytes: list.u64("bytes")?,
            to_guid: Guid::new(list.u64("toguid")?),
            to_name: list.string("toname")?.to_owned(),
            large_blocks: list.contains("largeblockok"),
            embedded: list.contains("embedok"),
            compressed: list.contains("compressok"),
            raw: list.contains("rawok"),
            redact_snaps: list.u64s("redact_snaps").map(<[u64]>::to_vec),
            redacted_with: list.u64s("book_redact_snaps").map(<[u64]>::to_vec),
        })
    }
}

/// The first word of the fletcher4 checksum; a last word that is not whole does not count
/// (`fletcher_4_native_varsize`, module/zcommon/zfs_fletcher.c).
fn checksum(data: &[u8]) -> u64 {
    let mut sum = Fletcher4::new(Endian::Little);
    sum.update(&data[..data.len() / 4 * 4]);
    sum.words()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What OpenZFS 2.3.2 gave out (shared/golden/streams/partial.json), and what it says of it.
    const GIVEN: &str = "1-92c8d2ab8-c0-789c636064000310a500c4ec50360710e72765a5269730303041946\
                         0caa7a515a796806498e0f26c48f2499525a9c540ba808705abfe92fcf4d2cc140686c\
                         042dd4f0b59766d354092e704cbe725e6a602f5e72466e6e917a526eb1b1a59783b14a\
                         7e6a530c000009e36182d";

    #[test]
    fn tokens_are_those_of_openzfs() {
        let token = ResumeToken::decode(GIVEN).expect("a token");
        let expected = ResumeToken {
            object: 2,
            offset_bytes: 0x20000,
            stream_bytes: 0x40c70,
            to_guid: Guid::new(0xb5ba_04a1_f22d_7151),
            to_name: "plain/rec/128K@send".into(),
            ..ResumeToken::default()
        };
        assert_eq!(token, expected);
        let again = ResumeToken {
            from_guid: Some(Guid::new(77)),
            large_blocks: true,
            raw: true,
            redact_snaps: Some(vec![4, 5]),
            redacted_with: Some(vec![1, 2, 3]),
            ..token
        };
        assert_eq!(ResumeToken::decode(&again.encode()), Some(again));
    }

    /// What is compressed is no multiple of four bytes long.
    #[test]
    fn bytes_behind_the_last_word_have_no_checksum() {
        let of_two = "1-da5e42724-f0-789c636064000310a500c4ec50360710e72765a52697303030419460caa7a\
                      515a796806498e0f26c48f2499525a9c540ba808705abfe92fcf4d2cc140686c042dd4f0b597\
                      66dd54092e704cbe725e6a602e9c4bc6cfd8cfcdc548744b839dc0c087727e7e71614a51617e\
                      76743c424a0ee80c9172596c3a4180062841c85";
        let of_three = "1-e1656ae2f-f0-789c636064000310a500c4ec50360710e72765a52697303030419460caa\
                        7a515a796806498e0f26c48f2499525a9c540ba808705abfe92fcf4d2cc140686c042dd4f0\
                        b59766dd54092e704cbe725e6a602e9c4bc6cfde2a26487fcbc549839dc0c087727e7e7161\
                        4a51617e76743c424a0ee80c9172596c3a4180083291d05";
        let token = ResumeToken {
            object: 2,
            offset_bytes: 0x20000,
            stream_bytes: 0x40c70,
            to_guid: Guid::new(0xb5ba_04a1_f22d_7151),
            to_name: "tank/home@a".into(),
            compressed: true,
            raw: true,
            ..ResumeToken::default()
        };
        assert_eq!(ResumeToken::decode(of_two), Some(token.clone()));
        let longer = ResumeToken {
            to_name: "tank/src@one".into(),
            ..token
        };
        assert_eq!(ResumeToken::decode(of_three), Some(longer));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for at in 0..GIVEN.len() {
            assert_eq!(ResumeToken::decode(&GIVEN[..at]), None, "{at}");
        }
        let flipped = GIVEN.replace("6c48f", "6c48e");
        for bad in ["", "1-", "2-0-0-", "1-zz-0-00", flipped.as_str()] {
            assert_eq!(ResumeToken::decode(bad), None, "{bad}");
        }
    }
}
