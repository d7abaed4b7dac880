//! Dedup tables against the pointers that there are: every entry counts its references, every
//! pointer with the D bit has an entry, statistics are the sums of the entries. An entry that is in
//! a log counts as that has it, and is not in the statistics; the log knows where else it is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use codec::compress::decompress;
use format::{
    BlockPointer, Checksum, Compression, DdtClass, DdtKey, DdtLogHeader, DdtLogRecord, DdtPhys,
    DdtPlace, DdtStat, Endian, ObjectId, decode_ddt_value_head,
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
            let mut logged = match own {
                Some(_) => logged_entries(mos, &holder, checksum).await?,
                None => BTreeMap::new(),
            };
            let mut entries = logged.len();
            self.report.logged_entries += logged.len() as u64;
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
                    entries += 1;
                    if let Some(record) = logged.remove(&words) {
                        let says = (record.storage, usize::from(record.class));
                        if says != (0, class.index()) {
                            self.problem(format!("a log has {class:?} as {says:?}: {name:?}"));
                        }
                        let mut unused = DdtStat::default();
                        self.entry(&name, None, &record.value, &mut references, &mut unused)
                            .await?;
                        continue;
                    }
                    self.entry(&name, Some(class), &value, &mut references, &mut sum)
                        .await?;
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
            for (words, record) in logged {
                let key = DdtKey::from_words(words);
                let name = DedupName {
                    checksum: kind,
                    key,
                };
                if record.storage == 0 {
                    self.problem(format!(
                        "a log says what is in no table: {name:?} {record:?}"
                    ));
                }
                let mut unused = DdtStat::default();
                self.entry(&name, None, &record.value, &mut references, &mut unused)
                    .await?;
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

    /// Compares an entry: of the ZAP of a class, or of a log.
    async fn entry(
        &mut self,
        name: &DedupName,
        class: Option<DdtClass>,
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
                    "a dedup entry counts {says} references, there are {sure} (and perhaps \
                     {perhaps}): {name:?} {one:?}"
                ));
            }
            let block = pointer_of_place(name, one)?;
            self.claim(&block, true).await?;
            total += says;
            sum.blocks += 1;
        }
        sum.referenced_blocks += total;
        self.report.shared_references += total;
        if let Some(class) = class
            && (total == 0 || DdtClass::of_references(total) != class)
        {
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

/// What the logs of a table hold, less what is flushed: the last record of each key.
async fn logged_entries(
    mos: &Arc<ObjectSet>,
    directory: &Zap,
    checksum: &str,
) -> Result<BTreeMap<[u64; 5], DdtLogRecord>, Failure> {
    let mut logs = Vec::new();
    for number in 0..2 {
        let name = format!("DDT-log-{checksum}-{number}");
        if let Some(id) = directory.lookup_u64(name).await? {
            let object = mos.hold(ObjectId::new(id)).await?;
            let head = DdtLogHeader::decode(&object.bonus(), Endian::Little)?;
            logs.push((head, object));
        }
    }
    let is_flushing = |head: &DdtLogHeader| head.info >> 8 & 1 != 0;
    // The newer one comes last.
    logs.sort_by_key(|(head, _)| !is_flushing(head));
    let states: Vec<bool> = logs.iter().map(|(head, _)| is_flushing(head)).collect();
    if !states.is_empty() && states != [true, false] {
        return Err(format!("logs of {checksum} are being flushed: {states:?}").into());
    }
    let mut entries = BTreeMap::new();
    for (head, object) in logs {
        let has_checkpoint = head.info >> 9 & 1 != 0;
        if has_checkpoint && !is_flushing(&head) {
            return Err(format!("the active log of {checksum} has a checkpoint").into());
        }
        let block_bytes = u64::from(object.info().data_block_bytes);
        let mut offset = 0;
        while offset < head.length_bytes {
            let block = object.read_bytes(offset, block_bytes as usize).await?;
            let mut rest = &block[..];
            while let Some((record, length)) = DdtLogRecord::decode(rest, Endian::Little)? {
                rest = rest.get(length..).unwrap_or_default();
                let words = *record.key.words();
                if !has_checkpoint || words > *head.checkpoint.words() {
                    entries.insert(words, record);
                }
            }
            if rest.len() == block.len() {
                return Err(format!("a log of {checksum} has no record at {offset}").into());
            }
            offset += block_bytes;
        }
    }
    Ok(entries)
}
