//! Keys that are no names: integers written in hexadecimal digits, and arrays of integers.

use format::{ZapFlags, ZapKey};
use zio::Tx;

use super::fat::Matches;
use super::{Form, Zap, ZapValue};
use crate::error::{ObjectError, Result, damaged};

/// The hexadecimal digits of a number, as the name of an entry.
struct Digits {
    bytes: [u8; 16],
    start: usize,
}

impl Digits {
    fn of(key: u64) -> Self {
        let (mut bytes, mut start, mut left) = ([0; 16], 16, key);
        loop {
            start -= 1;
            bytes[start] = b"0123456789abcdef"[(left & 0xf) as usize];
            left >>= 4;
            if left == 0 {
                return Self { bytes, start };
            }
        }
    }
}

impl AsRef<[u8]> for Digits {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl Zap {
    /// An entry named by the hexadecimal digits of `key` (`zap_lookup_int_key`).
    ///
    /// # Errors
    /// As [`Self::lookup_u64`].
    pub async fn lookup_int(&self, key: u64) -> Result<Option<u64>> {
        self.lookup_u64(Digits::of(key)).await
    }

    /// Adds an entry named by the hexadecimal digits of `key` (`zap_add_int_key`).
    ///
    /// # Errors
    /// As [`Self::add`].
    pub async fn add_int(&self, tx: &Tx, key: u64, value: u64) -> Result<()> {
        self.add_u64(tx, Digits::of(key), value).await
    }

    /// Sets an entry named by the hexadecimal digits of `key` (`zap_update_int_key`).
    ///
    /// # Errors
    /// As [`Self::update`].
    pub async fn update_int(&self, tx: &Tx, key: u64, value: u64) -> Result<()> {
        self.update_u64(tx, Digits::of(key), value).await
    }

    /// Removes an entry named by the hexadecimal digits of `key` (`zap_remove_int`).
    ///
    /// # Errors
    /// As [`Self::remove`].
    pub async fn remove_int(&self, tx: &Tx, key: u64) -> Result<()> {
        self.remove(tx, Digits::of(key)).await
    }

    /// All entries of a ZAP whose keys are hexadecimal digits and whose values are one 64-bit
    /// integer each: key and value, in no order.
    ///
    /// # Errors
    /// As [`Self::entries`]; where an entry is of another kind.
    pub async fn all_ints(&self) -> Result<Vec<(u64, u64)>> {
        let mut out = Vec::new();
        let mut add = |name: &[u8], value: Option<u64>| {
            let key = std::str::from_utf8(name).ok();
            let key = key.and_then(|text| u64::from_str_radix(text, 16).ok());
            let (Some(key), Some(value)) = (key, value) else {
                let name = String::from_utf8_lossy(name);
                let detail = format!("'{name}' is not a number with a number as its value");
                return Err(damaged(self.id(), "zap entry", detail));
            };
            out.push((key, value));
            Ok(())
        };
        match &*self.read().await? {
            Form::Micro(micro) => micro
                .iter()
                .try_for_each(|entry| add(entry.name, Some(entry.value)))?,
            _ => self.fat().visit_u64(&mut add).await?,
        }
        Ok(out)
    }

    /// Hash of a key of words, in a ZAP that has such keys.
    async fn words_hash(&self, form: &Form, key: &[u64]) -> Result<u64> {
        let header = match form {
            Form::Fat => self.fat().header().await?,
            _ => return Err(self.wrong_keys()),
        };
        if !header.flags.contains(ZapFlags::UINT64_KEY) {
            return Err(self.wrong_keys());
        }
        Ok(header.hasher().words(key))
    }

    fn wrong_keys(&self) -> ObjectError {
        ObjectError::Misuse {
            object: self.id(),
            what: "a key of integers in a ZAP of names",
        }
    }

    /// The value of a key of integers.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub async fn lookup_u64_key(&self, key: &[u64]) -> Result<Option<ZapValue>> {
        let form = self.read().await?;
        let hash = self.words_hash(&form, key).await?;
        self.fat_value(hash, ZapKey::Words(key), &Matches::Exactly)
            .await
    }

    /// Has in memory, if the cache keeps it, what leads to a key of integers, for whoever is about
    /// to ask for it or to change it. The ZAP's lock is not held while that is read, so that others
    /// change the ZAP, and a txg writes it, meanwhile: what is read may be out of date, so there is
    /// no answer. It harms nobody: each block is looked up under the lock of the object's state,
    /// and what the cache keeps of an old one goes by the old one's place, birth and checksum, for
    /// which no newer pointer asks.
    ///
    /// # Errors
    /// Of reading blocks. Other errors may be of what was out of date.
    pub async fn read_ahead_u64_key(&self, key: &[u64]) -> Result<()> {
        let fat = self.fat();
        let header = fat.header().await?;
        fat.find(header.hasher().words(key)).await?;
        Ok(())
    }

    /// Adds or replaces the value of a key of integers.
    ///
    /// # Errors
    /// As [`Self::update`].
    pub async fn update_u64_key(&self, tx: &Tx, key: &[u64], value: ZapValue) -> Result<()> {
        let form = self.write().await?;
        let hash = self.words_hash(&form, key).await?;
        let (fat, key, value) = (self.fat(), ZapKey::Words(key), self.checked(&value)?);
        if !fat.update(tx, hash, key, &value).await? {
            fat.insert(tx, hash, key, &value, None).await?;
        }
        Ok(())
    }

    /// Removes a key of integers.
    ///
    /// # Errors
    /// As [`Self::remove`].
    pub async fn remove_u64_key(&self, tx: &Tx, key: &[u64]) -> Result<()> {
        let form = self.write().await?;
        let hash = self.words_hash(&form, key).await?;
        if self.fat().remove(tx, hash, ZapKey::Words(key)).await? {
            Ok(())
        } else {
            Err(self.missing(format!("{key:x?}").as_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Digits;

    #[test]
    fn digits_are_those_of_the_number() {
        for key in [0, 1, 0xf, 0x10, 0xab_cdef, 1 << 48, u64::MAX] {
            assert_eq!(Digits::of(key).as_ref(), format!("{key:x}").as_bytes());
        }
    }
}
