//! Dedup tables against the pointers that there are: every entry counts its references, every pointer with the D bit has an
//! entry, statistics are the sums of the entries.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use codec::compress::decompress;
use format::{
    BlockPointer, Checksum, Compression, DdtClass, DdtKey, DdtPhys, DdtPlace, DdtStat, ObjectId,
    decode_ddt_value_head,
};
use object::{ObjectSet, Zap};
use zio::pipeline::{DedupName, pointer_of_place};

use crate::verify::{Failure, Walk};

/// A shared block: its first place, and when it was written.
type Place = (u64, u64, u64);

fn place(block: &BlockPointer) -> Place {
    let words = block.words();
    (words[0], words[1], block.physical_birth().get())
}

/// Pointers with the D bit.
#[derive(Default)]
pub(crate) struct Shared {
    seen: HashSet<Place>,
    /// References that there are, and those that may be gone already; with one of the pointers.
    references: HashMap<Place, (u64, u64, BlockPointer)>,
}

impl Shared {
    /// Whether the block was not seen before.
    pub(crate) fn is_first(&mut self, block: &BlockPointer) -> bool {
        self.seen.insert(place(block))
    }

    /// One more reference.
    pub(crate) fn refer(&mut self, block: &BlockPointer) {
        let entry = self.references.entry(place(block));
        entry.or_insert((0, 0, *block)).0 += 1;
    }

    /// A reference in a tree of which a part is freed already.
    pub(crate) fn refer_perhaps(&mut self, block: &BlockPointer) {
        let entry = self.references.entry(place(block));
        entry.or_insert((0, 0, *block)).1 += 1;
    }
}

impl Walk<'_> {
    /// Compares all tables.
    pub(crate) async fn dedup_tables(&mut self, mos: &Arc<ObjectSet>) -> Result<(), Failure> {
        let mut references = std::mem::take(&mut self.shared.references);
        let root = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        let statistics = match root.lookup_u64("DDT-statistics").await? {
            Some(id) => Some(Zap::hold(mos, ObjectId::new(id)).await?),
            None => None,
        };
        for checksum in ["sha256", "sha512", "skein", "edonr", "blake3"] {
            let kind = (0..=u8::MAX)
                .map(Checksum::from_code)
                .find(|kind| kind.to_string() == checksum)
                .ok_or("no such checksum")?;
            let own = root.lookup_u64(format!("DDT-{checksum}")).await?;
            let holder = match own {
                Some(id) => Zap::hold(mos, ObjectId::new(id)).await?,
                None => root.clone(),
            };
            let mut entries = 0;
            for class in DdtClass::ALL {
                let name = format!("DDT-{checksum}-zap-{}", class.word());
                let Some(id) = holder.lookup_u64(&name).await? else {
                    continue;
                };
                let mut sum = DdtStat::default();
                for entry in Zap::hold(mos, ObjectId::new(id)).await?.all().await? {
                    let words: [u64; 5] = entry
                        .key_words()
                        .try_into()
                        .map_err(|_| "a key of a dedup table is not five words")?;
                    let key = DdtKey::from_words(words);
                    let value = value_of(&entry.value.data, own.is_some())?;
                    let name = DedupName {
                        checksum: kind,
                        key,
                    };
                    self.entry(&name, class, &value, &mut references, &mut sum)
                        .await?;
                    entries += 1;
                }
                let shown = match &statistics {
                    Some(statistics) => statistics.lookup(&name).await?,
                    None => None,
                };
                let shown = shown.map(|value| value.to_u64s()).unwrap_or_default();
                let mut total = DdtStat::default();
                for words in shown.chunks_exact(DdtStat::BYTES / 8) {
                    total.add(&DdtStat::from_words(words)?);
                }
                if (total.blocks, total.referenced_blocks) != (sum.blocks, sum.referenced_blocks) {
                    self.problem(format!("{name}: statistics are {total:?}, entries {sum:?}"));
                }
            }
            if own.is_some() && entries == 0 {
                self.problem(format!("the dedup table of {checksum} is empty"));
            }
        }
        for (_, (count, _, block)) in references {
            if count > 0 {
                self.problem(format!("in no dedup table, {count} pointers: {block:?}"));
            }
        }
        Ok(())
    }

    async fn entry(
        &mut self,
        name: &DedupName,
        class: DdtClass,
        value: &DdtPhys,
        references: &mut HashMap<Place, (u64, u64, BlockPointer)>,
        sum: &mut DdtStat,
    ) -> Result<(), Failure> {
        let mut total = 0;
        for one in value.places().iter().filter(|place| place.is_used()) {
            let DdtPlace {
                words: [first, ..],
                references: says,
                physical_birth,
            } = *one;
            let at = (first[0], first[1], physical_birth.get());
            let (sure, perhaps, _) = references.remove(&at).unwrap_or((0, 0, BlockPointer::HOLE));
            if says < sure || says > sure + perhaps {
                self.problem(format!(
                    "a dedup entry counts {says} references, there are {sure} (and perhaps {perhaps}): {name:?} {one:?}"
                ));
            }
            let block = pointer_of_place(name, one)?;
            self.claim(&block, true).await?;
            total += says;
            sum.blocks += 1;
        }
        sum.referenced_blocks += total;
        self.report.shared_references += total;
        if total == 0 || DdtClass::of_references(total) != class {
            self.problem(format!(
                "an entry of {total} references is in class {class:?}: {name:?}"
            ));
        }
        Ok(())
    }
}

fn value_of(stored: &[u8], flat: bool) -> Result<DdtPhys, Failure> {
    let (head, rest) = stored.split_first().ok_or("a dedup entry without value")?;
    let (kind, endian) = decode_ddt_value_head(*head);
    let bytes = if flat {
        DdtPhys::FLAT_BYTES
    } else {
        DdtPhys::TRADITIONAL_BYTES
    };
    let plain = match kind {
        Compression::Zle => decompress(kind, rest, bytes)?,
        _ => rest.to_vec(),
    };
    Ok(DdtPhys::decode(&plain, endian)?)
}
