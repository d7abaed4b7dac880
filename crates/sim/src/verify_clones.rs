//! Tables of cloned blocks against the pointers that there are: an entry counts the pointers beyond the first, a block of
//! one pointer has none, and what a table says in sum is the sum of its entries.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use format::{BlockPointer, BrtVdevPhys, Endian, ObjectId};
use object::{ObjectSet, Zap};
use pool::Pool;
use zio::CloneKey;

use crate::verify::{Failure, Walk};

/// A block: its first place, and when it was written.
type Place = (CloneKey, u64);

fn place(block: &BlockPointer) -> Option<Place> {
    let key = CloneKey::of(block).filter(|_| !block.is_dedup())?;
    Some((key, block.physical_birth().get()))
}

/// Pointers to blocks that may be cloned.
#[derive(Default)]
pub(crate) struct Clones {
    seen: HashSet<Place>,
    /// Pointers that there are.
    sure: HashMap<Place, u64>,
    /// Pointers in trees of which a part is freed already.
    perhaps: HashMap<CloneKey, u64>,
}

impl Clones {
    /// Whether the block was not seen before; one that cannot be cloned never was.
    pub(crate) fn is_first(&mut self, block: &BlockPointer) -> bool {
        place(block).is_none_or(|place| self.seen.insert(place))
    }

    /// One more pointer.
    pub(crate) fn refer(&mut self, block: &BlockPointer) {
        if let Some(place) = place(block) {
            *self.sure.entry(place).or_default() += 1;
        }
    }

    /// A pointer that may be gone.
    pub(crate) fn refer_perhaps(&mut self, block: &BlockPointer) {
        if let Some(key) = CloneKey::of(block) {
            *self.perhaps.entry(key).or_default() += 1;
        }
    }
}

impl Walk<'_> {
    /// Compares all tables.
    pub(crate) async fn clone_tables(
        &mut self,
        pool: &Pool,
        mos: &Arc<ObjectSet>,
    ) -> Result<(), Failure> {
        let clones = std::mem::take(&mut self.clones);
        let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        let mut stored: BTreeMap<CloneKey, u64> = BTreeMap::new();
        for top in pool.pipeline().tree().tops() {
            let vdev = top.vdev_id();
            let name = format!("com.fudosecurity:brt:vdev:{vdev}");
            let Some(array) = directory.lookup_u64(name).await? else {
                continue;
            };
            let array = mos.hold(ObjectId::new(array)).await?;
            let phys = BrtVdevPhys::decode(&array.bonus(), Endian::Little)?;
            let mut counts: BTreeMap<u64, u16> = BTreeMap::new();
            let mut entries = 0;
            for entry in Zap::hold(mos, phys.entries).await?.all().await? {
                let [offset_bytes] = entry.key_words()[..] else {
                    return Err("a key of a table of cloned blocks is not one word".into());
                };
                let count = entry
                    .value
                    .data
                    .first_chunk()
                    .map(|word| u64::from_le_bytes(*word));
                let count = count.ok_or("an entry of cloned blocks is no number")?;
                stored.insert(CloneKey { vdev, offset_bytes }, count);
                *counts
                    .entry(offset_bytes / phys.range_bytes.max(1))
                    .or_default() += 1;
                entries += 1;
            }
            if entries == 0 || entries != phys.total_count {
                self.problem(format!(
                    "vdev {vdev} says {} cloned blocks, has {entries}",
                    phys.total_count
                ));
            }
            let bytes = array.read_bytes(0, phys.size as usize * 2).await?;
            for (index, pair) in bytes.as_chunks::<2>().0.iter().enumerate() {
                let found = u16::from_le_bytes(*pair);
                let wanted = counts.get(&(index as u64)).copied().unwrap_or(0);
                if found != wanted {
                    self.problem(format!(
                        "vdev {vdev} says {found} cloned blocks in range {index}, has {wanted}"
                    ));
                }
            }
        }
        for ((key, birth), sure) in &clones.sure {
            let perhaps = clones.perhaps.get(key).copied().unwrap_or(0);
            let says = stored.remove(key).unwrap_or(0);
            self.report.cloned_references += says;
            if says + 1 < *sure || says + 1 > sure + perhaps {
                self.problem(format!(
                    "{says} references to a cloned block beyond the first, there are {sure} pointers (and perhaps {perhaps}): {key:?} of {birth}"
                ));
            }
        }
        for (key, count) in stored {
            let perhaps = clones.perhaps.get(&key).copied().unwrap_or(0);
            if count > perhaps {
                self.problem(format!(
                    "{count} references to a cloned block that nobody has: {key:?}"
                ));
            }
        }
        Ok(())
    }
}
