//! ZAPs that are made with all their entries at once.
//!
//! Each entry is hashed once and put where it stays, and each block is written once: making a ZAP
//! of ten thousand entries one by one looks up, locks and copies ten thousand times, splits leaves
//! and grows blocks on the way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::BoxFuture;
use format::{MicroInsert, MicroZap, ObjectId, ZapFill, ZapFlags, ZapHasher, fill_fat_zap};
use zio::Tx;

use super::fat::Fat;
use super::shared::Form;
use super::{Zap, ZapOptions};
use crate::error::{ObjectError, OfObject, Result};
use crate::objset::ObjectSet;
use crate::options::NewObject;

/// Bytes of an entry of a micro ZAP, and of its head (`mzap_ent_phys_t`).
const MICRO_ENTRY_BYTES: usize = 64;
const SECTOR_BYTES: usize = 512;

/// What is to be written.
enum Content {
    Micro(MicroZap),
    Fat(Vec<Vec<u8>>),
}

impl Zap {
    /// Creates a new object with a ZAP that has these entries, each a name of its own and one
    /// 64-bit integer, in any order. The ZAP is as if they had been added one by one.
    ///
    /// # Errors
    /// [`ObjectError::Misuse`] for options with flags or normalization, and for a name that is
    /// there twice; [`ObjectError::Format`] for a name that is none; as [`ObjectSet::allocate`].
    pub fn create_filled<'a>(
        objset: &'a Arc<ObjectSet>,
        tx: &'a Tx,
        options: ZapOptions,
        entries: &'a [(String, u64)],
    ) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let object = options.claim.unwrap_or(ObjectId::ZERO);
            if options.flags != 0 || options.normalization != 0 {
                return Err(ObjectError::Misuse {
                    object,
                    what: "a ZAP with flags or normalization that is filled at once",
                });
            }
            let salt = objset.world().random.next_u64() | 1;
            let sorted = sorted(object, salt, entries)?;
            if (entries.iter()).any(|(name, _)| name.len() > format::ZAP_MAX_NAME_BYTES) {
                // Before it is there: the txg that writes it writes the feature's marker as well.
                objset.long_names.store(true, Ordering::Relaxed);
            }
            let shift = match options.block_shift {
                0 => Fat::DEFAULT_SHIFT,
                shift => shift.into(),
            };
            let content = match micro(object, salt, &sorted)? {
                Some(micro) => Content::Micro(micro),
                None => Content::Fat(fill_fat_zap(shift, salt, 0, &sorted).of(object)?),
            };
            let new = NewObject {
                object_type: options.object_type,
                data_block_bytes: match &content {
                    Content::Micro(micro) => micro.as_bytes().len() as u32,
                    Content::Fat(_) => 1 << shift,
                },
                indirect_block_shift: options.indirect_block_shift,
                bonus_type: options.bonus_type,
                bonus: options.bonus,
                slots: options.slots,
            };
            let object = match options.claim {
                Some(id) => objset.claim(tx, id, new).await?,
                None => objset.allocate(tx, new).await?,
            };
            let zap = Self::handle(object)?;
            let mut form = zap.shared.form.write().await;
            *form = match content {
                Content::Micro(micro) => {
                    zap.put_micro(tx, &micro).await?;
                    zap.shared
                        .holds(micro.as_bytes().len(), zap.object.objset().charge());
                    Form::Micro(micro)
                }
                Content::Fat(blocks) => {
                    for (number, block) in (0..).zip(blocks) {
                        zap.fat().write_block(tx, number, block).await?;
                    }
                    Form::Fat
                }
            };
            drop(form);
            Ok(zap)
        })
    }
}

/// The entries by rising hash; each name must be there once.
fn sorted(object: ObjectId, salt: u64, entries: &[(String, u64)]) -> Result<Vec<ZapFill<'_>>> {
    let hasher = ZapHasher::new(salt, ZapFlags::NONE);
    let mut sorted: Vec<ZapFill<'_>> = entries
        .iter()
        .map(|(name, value)| ZapFill {
            hash: hasher.name(name.as_bytes()),
            name: name.as_bytes(),
            value: *value,
        })
        .collect();
    sorted.sort_unstable_by_key(|entry| (entry.hash, entry.name));
    if sorted.windows(2).any(|two| two[0].name == two[1].name) {
        return Err(ObjectError::Misuse {
            object,
            what: "a ZAP that is filled with two entries of one name",
        });
    }
    Ok(sorted)
}

/// The entries as a micro ZAP, if they fit one.
fn micro(object: ObjectId, salt: u64, entries: &[ZapFill<'_>]) -> Result<Option<MicroZap>> {
    let bytes = ((entries.len() + 1) * MICRO_ENTRY_BYTES).next_multiple_of(SECTOR_BYTES);
    if bytes > MicroZap::MAX_BLOCK_BYTES {
        return Ok(None);
    }
    let mut micro = MicroZap::new(bytes, salt, 0).of(object)?;
    for entry in entries {
        let added = micro.insert(entry.hash, entry.name, entry.value);
        match added.of(object)? {
            MicroInsert::Inserted => {}
            MicroInsert::NeedsFat | MicroInsert::Full => return Ok(None),
        }
    }
    Ok(Some(micro))
}
