//! Reading on past damage.
//!
//! The ordinary readers stop at the first block that cannot be read, as whoever goes on after that
//! must know what is missing. Here every step tells what was lost instead and where to go on: the
//! blocks of an object, the dnodes of an object set, the entries of a ZAP. For object sets that
//! nothing is written to: unwritten changes are not looked at.
//!
//! A ZAP whose header or pointer table is damaged still has its leaves, which say themselves what
//! they are (`ZBT_LEAF`, include/sys/zap_leaf.h) and which hashes are theirs: they are looked for
//! in every block. A block that was a leaf and is none any more is a hole, as the DMU frees it
//! (module/zfs/zap.c `zap_trunc`), so none is found twice.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use format::{BlockPointer, Endian, FatZapHeader, ObjectId, ZapKeyBuf, ZapKeyKind, ZapLeaf};

use crate::error::{ObjectError, OfObject, Result};
use crate::numbers::used_slots;
use crate::object::Object;
use crate::objset::ObjectSet;
use crate::tree::Block;
use crate::zap::{Zap, ZapValue};

/// Dnode slots in a block of dnodes.
const SLOTS_PER_BLOCK: u64 = 32;

/// Bytes of neighbouring blocks that are read together, as long as all is well.
const PIECE_BYTES: u64 = 1 << 20;

/// What comes next in an object.
#[derive(Debug)]
pub enum Written {
    /// A block that was written begins here; whether it can be read is another matter.
    Block {
        /// Its first byte.
        start_bytes: u64,
    },
    /// Nobody can tell what is here: a block of pointers cannot be read.
    Lost {
        /// From this byte on.
        start_bytes: u64,
        /// To before this byte; may be far behind the end of the file.
        end_bytes: u64,
        /// Why.
        error: ObjectError,
    },
    /// Nothing but holes up to the end.
    End,
}

/// A part of an object's content.
#[derive(Debug)]
pub enum Piece {
    /// Bytes that were written.
    Data {
        /// Where they begin.
        start_bytes: u64,
        /// They, in the blocks' pieces.
        data: Vec<Bytes>,
    },
    /// Bytes that cannot be read.
    Lost {
        /// Which.
        range: Range<u64>,
        /// Why.
        error: ObjectError,
    },
}

/// The objects of one block of dnodes.
#[derive(Debug)]
pub struct DnodeRun {
    /// Where to go on; `None` at the end.
    pub next: Option<u64>,
    /// Objects that exist, in order.
    pub objects: Vec<ObjectId>,
    /// Numbers of objects of which nobody can tell whether they exist, and why.
    pub lost: Option<(Range<u64>, ObjectError)>,
}

/// What is left of a ZAP.
#[derive(Debug, Default)]
pub struct SalvagedZap {
    /// Names and values.
    pub entries: Vec<(Bytes, ZapValue)>,
    /// What could not be read; nothing when the ZAP is whole.
    pub losses: Vec<ObjectError>,
}

impl SalvagedZap {
    /// The value of a name, if it is one integer.
    pub fn number(&self, name: &str) -> Option<u64> {
        let found = self
            .entries
            .iter()
            .find(|(there, _)| there == name.as_bytes());
        found.and_then(|(_, value)| value.as_u64())
    }

    /// The name of a value that is one integer.
    pub fn name_of(&self, number: u64) -> Option<&[u8]> {
        let found = self
            .entries
            .iter()
            .find(|(_, value)| value.as_u64() == Some(number));
        found.map(|(name, _)| &name[..])
    }
}

fn is_written(_: u8, pointer: &BlockPointer) -> bool {
    !pointer.is_hole()
}

impl Object {
    /// The next block at or after `offset_bytes` that was written, or the next range that is lost.
    pub async fn next_written(&self, offset_bytes: u64) -> Written {
        let block_bytes = self.dnode.block_bytes();
        let (tree, last) = {
            let state = self.dnode.lock();
            (state.tree.clone(), state.meta().max_block)
        };
        let from = offset_bytes / block_bytes;
        let found = self
            .objset()
            .blocks
            .next_in_tree_or_lost(self.id(), &tree, from, &is_written)
            .await;
        let bytes = |block: u64| block.saturating_mul(block_bytes);
        match found {
            Ok(Some(block)) if block <= last => Written::Block {
                start_bytes: bytes(block).max(offset_bytes),
            },
            Ok(_) => Written::End,
            Err(lost) if lost.first > last => Written::End,
            Err(lost) => Written::Lost {
                start_bytes: bytes(lost.first).max(offset_bytes),
                end_bytes: bytes(lost.end.min(last.saturating_add(1))),
                error: lost.error,
            },
        }
    }

    /// The next piece of the first `size_bytes` bytes at or after `offset_bytes`; what lies before
    /// it is a hole. `None` when nothing but a hole is left.
    pub async fn next_piece(&self, offset_bytes: u64, size_bytes: u64) -> Option<Piece> {
        if offset_bytes >= size_bytes {
            return None;
        }
        let start = match self.next_written(offset_bytes).await {
            Written::Block { start_bytes } => start_bytes,
            Written::Lost {
                start_bytes,
                end_bytes,
                error,
            } if start_bytes < size_bytes => {
                return Some(Piece::Lost {
                    range: start_bytes..end_bytes.min(size_bytes),
                    error,
                });
            }
            Written::Lost { .. } | Written::End => return None,
        };
        if start >= size_bytes {
            return None;
        }
        let block_bytes = self.dnode.block_bytes();
        let block_end = |at: u64| (at / block_bytes + 1).saturating_mul(block_bytes);
        let mut end = block_end(start);
        while end < size_bytes
            && end - start < PIECE_BYTES
            && matches!(
                self.next_written(end).await,
                Written::Block { start_bytes } if start_bytes == end
            )
        {
            end = block_end(end);
        }
        let end = end.min(size_bytes);
        let run = self.read(start, (end - start) as usize).await;
        if let Ok(data) = run {
            return Some(Piece::Data {
                start_bytes: start,
                data,
            });
        }
        // One of them is damaged: this one?
        let end = block_end(start).min(size_bytes);
        Some(match self.read(start, (end - start) as usize).await {
            Ok(data) => Piece::Data {
                start_bytes: start,
                data,
            },
            Err(error) => Piece::Lost {
                range: start..end,
                error,
            },
        })
    }

    /// Bytes of a block of data.
    pub fn data_block_bytes(&self) -> u64 {
        self.dnode.block_bytes()
    }
}

impl ObjectSet {
    /// The objects in the first block of dnodes at or after number `from`.
    pub async fn dnode_run(self: &Arc<Self>, from: u64) -> DnodeRun {
        let end = DnodeRun {
            next: None,
            objects: Vec::new(),
            lost: None,
        };
        if from >= ObjectId::LIMIT {
            return end;
        }
        let tree = self.meta_dnode.lock().tree.clone();
        let first_block = from / SLOTS_PER_BLOCK;
        let found = self
            .blocks
            .next_in_tree_or_lost(ObjectId::META_DNODE, &tree, first_block, &is_written)
            .await;
        let last = self.meta_dnode.lock().meta().max_block;
        let block = match found {
            Ok(Some(block)) if block <= last => block,
            Ok(_) => return end,
            Err(lost) if lost.first > last => return end,
            Err(lost) => {
                let behind = lost.end.min(last.saturating_add(1));
                let numbers = lost.first.saturating_mul(SLOTS_PER_BLOCK)
                    ..behind.saturating_mul(SLOTS_PER_BLOCK);
                return DnodeRun {
                    next: Some(numbers.end),
                    lost: Some((numbers, lost.error)),
                    ..end
                };
            }
        };
        let numbers = block * SLOTS_PER_BLOCK..(block + 1) * SLOTS_PER_BLOCK;
        let next = Some(numbers.end);
        match self.dnode_block(block).await {
            Ok(Block::Zeros) => DnodeRun { next, ..end },
            Ok(Block::Data(data, _)) => {
                let first = used_slots(&data).1;
                let objects = (0..SLOTS_PER_BLOCK)
                    .filter(|slot| first & (1 << slot) != 0)
                    .map(|slot| numbers.start + slot)
                    .filter(|number| *number >= from && *number != 0)
                    .map(ObjectId::new)
                    .collect();
                DnodeRun {
                    next,
                    objects,
                    lost: None,
                }
            }
            Err(error) => DnodeRun {
                next,
                lost: Some((numbers, error)),
                ..end
            },
        }
    }
}

/// All that can be read of the ZAP in `object`.
pub async fn salvage_zap(object: &Object) -> SalvagedZap {
    let whole = async {
        let zap = Zap::open(object.clone()).await?;
        zap.all().await
    };
    match whole.await {
        Ok(entries) => SalvagedZap {
            entries: entries
                .into_iter()
                .map(|entry| (entry.name, entry.value))
                .collect(),
            losses: Vec::new(),
        },
        Err(error) => {
            let mut found = SalvagedZap {
                losses: vec![error],
                ..SalvagedZap::default()
            };
            every_leaf(object, &mut found).await;
            found
        }
    }
}

async fn every_leaf(object: &Object, found: &mut SalvagedZap) {
    let block_bytes = object.data_block_bytes();
    let header = match object.block(0).await {
        Ok(Some(block)) => FatZapHeader::decode(&block, Endian::Little).ok(),
        _ => None,
    };
    let keys = header.map_or(ZapKeyKind::Name, |header| header.flags.key_kind());
    let mut names: HashSet<Bytes> = HashSet::new();
    let mut at = 0u64;
    loop {
        let start = match object.next_written(at).await {
            Written::Block { start_bytes } => start_bytes,
            Written::Lost {
                end_bytes, error, ..
            } => {
                found.losses.push(error);
                at = end_bytes;
                continue;
            }
            Written::End => return,
        };
        at = start.saturating_add(block_bytes);
        let block = match object.block(start / block_bytes).await {
            Ok(Some(block)) => block,
            Ok(None) => continue,
            Err(error) => {
                found.losses.push(error);
                continue;
            }
        };
        // Headers and pointer tables are no leaves.
        let Ok(leaf) = ZapLeaf::open(block, Endian::Little, keys) else {
            continue;
        };
        if let Err(error) = leaf_entries(object, &leaf, &mut names, &mut found.entries) {
            found.losses.push(error);
        }
    }
}

fn leaf_entries(
    object: &Object,
    leaf: &ZapLeaf<Bytes>,
    names: &mut HashSet<Bytes>,
    out: &mut Vec<(Bytes, ZapValue)>,
) -> Result<()> {
    for entry in leaf.entries().of(object.id())? {
        if !leaf.owns(entry.hash) {
            continue;
        }
        let name = match leaf.key(&entry).of(object.id())? {
            ZapKeyBuf::Name(name) => Bytes::from(name),
            ZapKeyBuf::Words(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        };
        let value = ZapValue::from_format(&leaf.value(&entry).of(object.id())?);
        if names.insert(name.clone()) {
            out.push((name, value));
        }
    }
    Ok(())
}
