//! Turns a golden pool into one that a big-endian machine wrote: every block of metadata is swapped by
//! its type and written anew behind the last metaslab, with the checksum that such a
//! machine computes; data stays where it is, but with that checksum. Space maps are not kept up: such a
//! pool can only be read.
//!
//! The layouts are spelled out here once more (include/sys/zap_impl.h, zap_leaf.h, dnode.h, dmu_objset.h,
//! dsl_dataset.h, sa_impl.h, zfs_znode.h, zfs_acl.h), so that a mistake in the reader's is seen.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use codec::checksum::{compute, label_verifier, seal};
use codec::compress::{ZstdLevel, compress, decompress};
use device::World;
use format::{
    BlockPointer, ByteswapKind, Checksum, Endian, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET,
    LABEL_START_BYTES, LABEL_UBERBLOCK_OFFSET, LABEL_UBERBLOCK_RING_BYTES, ObjectId, ObjectType,
    Txg, Uberblock, label_offset, uberblock_shift, uberblock_slot, uberblock_slot_offset,
};
use object::Zap;
use pool::Pool;

const DSL_DATASET: u8 = 16;
const ZNODE: u8 = 17;
const SA: u8 = 44;

/// An attribute: how it is swapped, and its length (zero is variable).
type Attribute = (u64, usize);
/// The attributes of each layout of a filesystem.
type Layouts = HashMap<u64, Vec<Attribute>>;
/// What tells blocks apart: the first place and the birth.
type Key = [u64; 3];

fn key(bp: &BlockPointer) -> Key {
    let words = bp.words();
    [words[0], words[1], words[10]]
}

/// The layouts of all filesystems of a pool, by their roots.
pub async fn layouts(pool: &Pool, names: &[String]) -> HashMap<Key, Layouts> {
    let mut out = HashMap::new();
    for name in names {
        let dataset = pool.dsl().open_dataset(name).await.expect("open");
        let objset = dataset.objset();
        let master = Zap::hold(objset, ObjectId::new(1)).await.expect("master");
        let mut found = Layouts::new();
        if let Some(id) = master.lookup_u64("SA_ATTRS").await.expect("lookup") {
            let attrs = Zap::hold(objset, ObjectId::new(id)).await.expect("SA");
            let zap = async |name: &str| {
                let id = attrs.lookup_u64(name).await.expect("lookup").expect(name);
                let zap = Zap::hold(objset, ObjectId::new(id)).await.expect(name);
                zap.all().await.expect(name)
            };
            let mut registry = HashMap::new();
            for entry in zap("REGISTRY").await {
                let word = entry.value.as_u64().expect("a word");
                let attribute = (word >> 16 & 0xff, (word >> 24 & 0xffff) as usize);
                registry.insert(word & 0xffff, attribute);
            }
            for entry in zap("LAYOUTS").await {
                let number = entry.name_str().parse().expect("a number");
                let words = entry.value.to_u64s();
                let attributes = words.iter().map(|number| registry[number]).collect();
                found.insert(number, attributes);
            }
        }
        out.insert(key(&objset.root()), found);
    }
    out
}

fn swap(bytes: &mut [u8], unit: usize) {
    bytes.chunks_exact_mut(unit).for_each(<[u8]>::reverse);
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn swap_zap(block: &mut [u8]) {
    const BLOCK_LEAF: u64 = 1 << 63;
    const BLOCK_MICRO: u64 = (1 << 63) + 3;
    let kind = u64::from_le_bytes(block[..8].try_into().expect("a word"));
    match kind {
        BLOCK_MICRO => {
            swap(&mut block[..64], 8);
            for entry in block[64..].chunks_exact_mut(64) {
                entry[..8].reverse();
                entry[8..12].reverse();
                entry[12..14].reverse();
            }
        }
        BLOCK_LEAF => {
            let chunks = 48 + block.len() / 32 * 2;
            swap(&mut block[..24], 8);
            block[24..28].reverse();
            swap(&mut block[28..36], 2);
            swap(&mut block[48..chunks], 2);
            for chunk in block[chunks..].chunks_exact_mut(24) {
                match chunk[0] {
                    252 => {
                        swap(&mut chunk[2..12], 2);
                        chunk[12..16].reverse();
                        chunk[16..24].reverse();
                    }
                    // Pieces of names and values, and what is free.
                    _ => chunk[22..24].reverse(),
                }
            }
        }
        // Headers and pointer tables.
        _ => swap(block, 8),
    }
}

/// ACEs as filesystems have them since version 3.
fn swap_aces(bytes: &mut [u8]) {
    let mut at = 0;
    while at + 8 <= bytes.len() {
        let flags = u16_at(bytes, at + 2);
        bytes[at..at + 2].reverse();
        bytes[at + 2..at + 4].reverse();
        bytes[at + 4..at + 8].reverse();
        at += 8;
        let of_nobody_special = !matches!(flags & 0x7040, 0x1000 | 0x2040 | 0x4000);
        if of_nobody_special && at + 8 <= bytes.len() {
            bytes[at..at + 8].reverse();
            at += 8;
        }
    }
}

/// ACEs of the first filesystem versions.
fn swap_old_aces(bytes: &mut [u8]) {
    for ace in bytes.chunks_exact_mut(12) {
        ace[..4].reverse();
        ace[4..8].reverse();
        ace[8..10].reverse();
        ace[10..12].reverse();
    }
}

/// What follows is a symbolic link's target.
fn swap_znode(bytes: &mut [u8]) {
    let version = u16_at(bytes, 188);
    swap(&mut bytes[..184], 8);
    bytes[184..188].reverse();
    swap(&mut bytes[188..192], 2);
    if version == 0 {
        swap_old_aces(&mut bytes[192..264]);
    } else {
        swap_aces(&mut bytes[192..264]);
    }
}

fn swap_attributes(bytes: &mut [u8], layouts: &Layouts) {
    if bytes.len() < 8 || bytes[..4] != 0x002f_505au32.to_le_bytes() {
        return;
    }
    let info = u16_at(bytes, 4);
    let (layout, head) = ((info & 0x3ff) as u64, (info >> 10) * 8);
    let mut lengths = (6..head)
        .step_by(2)
        .map(|at| u16_at(bytes, at))
        .collect::<Vec<_>>();
    lengths.reverse();
    bytes[..4].reverse();
    swap(&mut bytes[4..head], 2);
    let mut at = head;
    // Layout 1 has no attributes.
    for (how, length) in layouts.get(&layout).into_iter().flatten() {
        let length = match length {
            0 => lengths.pop().expect("a length in the head"),
            length => *length,
        };
        let value = &mut bytes[at..at + length];
        match how {
            0 => swap(value, 8),
            1 => swap(value, 4),
            2 => swap(value, 2),
            4 => swap_aces(value),
            _ => {}
        }
        at += length.next_multiple_of(8);
    }
    assert!(
        layouts.contains_key(&layout) || layout == 1,
        "layout {layout}"
    );
}

pub struct Rewriter {
    disks: Vec<File>,
    next: u64,
    done: HashMap<Key, BlockPointer>,
    layouts: HashMap<Key, Layouts>,
    /// Blocks of metadata that were written.
    pub metadata: usize,
    /// Blocks of data that got a new checksum.
    pub data: usize,
}

impl Rewriter {
    /// Of a pool whose one top-level vdev is a disk or a mirror.
    pub fn new(paths: &[PathBuf], layouts: HashMap<Key, Layouts>) -> Self {
        let open = |path: &PathBuf| File::options().read(true).write(true).open(path);
        Self {
            disks: paths
                .iter()
                .map(|path| open(path).expect("a disk"))
                .collect(),
            // Disks of 64 MiB have three metaslabs of 16 MiB; behind the last one nothing is allocated.
            next: 48 << 20,
            done: HashMap::new(),
            layouts,
            metadata: 0,
            data: 0,
        }
    }

    fn stored(&self, bp: &BlockPointer) -> Vec<u8> {
        let dva = bp.dva(0).expect("a place");
        assert_eq!((dva.vdev().get(), bp.is_gang()), (0, false));
        let mut out = vec![0; bp.psize_bytes() as usize];
        self.disks[0]
            .read_exact_at(&mut out, LABEL_START_BYTES + dva.offset_bytes())
            .expect("read");
        out
    }

    /// The pointer to the same block in big endian.
    fn block(&mut self, bp: &BlockPointer, layouts: &Layouts) -> BlockPointer {
        // Pools move between machines: what is left as it is, is read as well.
        if bp.is_hole() || bp.is_embedded() || bp.is_dedup() {
            return *bp;
        }
        if let Some(done) = self.done.get(&key(bp)) {
            return *done;
        }
        let stored = self.stored(bp);
        let object_type = bp.object_type();
        let is_data = bp.level() == 0
            && object_type.byteswap() == ByteswapKind::Uint8
            && object_type.code() != SA;
        let mut words = *bp.words();
        words[6] &= !(1 << 63);
        let content = if is_data {
            self.data += 1;
            stored
        } else {
            self.metadata += 1;
            let lsize = bp.lsize_bytes() as usize;
            let mut content = decompress(bp.compression(), &stored, lsize).expect("decompress");
            self.swap_block(bp, &mut content, layouts);
            let sectors = |bytes: usize| bytes.div_ceil(512) as u64;
            let kind = bp.compression();
            let smaller = compress(kind, ZstdLevel::DEFAULT, &content, lsize - lsize / 8);
            match smaller.expect("compress") {
                Some(mut smaller) => {
                    smaller.resize(smaller.len().next_multiple_of(512), 0);
                    content = smaller;
                }
                // Compression off.
                None => words[6] = words[6] & !(0x7f << 32) | 2 << 32,
            }
            for disk in &self.disks {
                disk.write_all_at(&content, LABEL_START_BYTES + self.next)
                    .expect("write");
            }
            words[..6].fill(0);
            words[0] = sectors(content.len()).next_multiple_of(8);
            words[1] = self.next / 512;
            words[6] = words[6] & !(0xffff << 16) | (sectors(content.len()) - 1) << 16;
            self.next += (content.len() as u64).next_multiple_of(4096);
            assert!(self.next < 59 << 20, "the disk is full");
            content
        };
        let kind = bp.checksum_kind();
        if kind != Checksum::Off {
            let sum = compute(kind, Endian::Big, &content, None).expect("checksum");
            words[12..].copy_from_slice(&sum);
        }
        let new = BlockPointer::from_words(words);
        self.done.insert(key(bp), new);
        new
    }

    fn pointers(&mut self, bytes: &mut [u8], layouts: &Layouts) {
        for raw in bytes.chunks_exact_mut(128) {
            let old = BlockPointer::decode_slice(raw, Endian::Little).expect("128 bytes");
            let new = self.block(&old, layouts);
            for (bytes, word) in raw.chunks_exact_mut(8).zip(new.words()) {
                bytes.copy_from_slice(&word.to_be_bytes());
            }
        }
    }

    fn swap_block(&mut self, bp: &BlockPointer, content: &mut [u8], layouts: &Layouts) {
        if bp.level() > 0 {
            return self.pointers(content, layouts);
        }
        if bp.object_type().code() == SA {
            return swap_attributes(content, layouts);
        }
        match bp.object_type().byteswap() {
            ByteswapKind::Uint64 => swap(content, 8),
            ByteswapKind::Uint32 => swap(content, 4),
            ByteswapKind::Uint16 => swap(content, 2),
            ByteswapKind::Zap => swap_zap(content),
            ByteswapKind::Acl => swap_aces(content),
            ByteswapKind::OldAcl => swap_old_aces(content),
            ByteswapKind::Dnode => self.dnodes(content, layouts),
            ByteswapKind::Objset => {
                let layouts = self.layouts.get(&key(bp)).cloned().unwrap_or_default();
                self.dnodes(&mut content[..512], &layouts);
                // The log's head, type and flags; then come two MACs.
                swap(&mut content[512..720], 8);
                if content.len() > 1024 {
                    self.dnodes(&mut content[1024..], &layouts);
                }
            }
            other => panic!("a block of {other:?}"),
        }
    }

    fn dnodes(&mut self, block: &mut [u8], layouts: &Layouts) {
        let mut at = 0;
        while at + 512 <= block.len() {
            let size = 512 * (1 + usize::from(block[at + 12]));
            let dnode = &mut block[at..at + size];
            at += size;
            if dnode[0] == 0 {
                continue;
            }
            let (pointers, bonus_type, flags) = (usize::from(dnode[3]), dnode[4], dnode[7]);
            let bonus = 64 + 128 * pointers;
            let bonus = bonus..bonus + u16_at(dnode, 10);
            swap(&mut dnode[8..12], 2);
            swap(&mut dnode[16..64], 8);
            self.pointers(&mut dnode[64..bonus.start], layouts);
            if flags & 4 != 0 {
                self.pointers(&mut dnode[size - 128..], layouts);
            }
            let bonus = &mut dnode[bonus];
            if bonus.is_empty() {
                continue;
            }
            match bonus_type {
                DSL_DATASET => {
                    swap(&mut bonus[..128], 8);
                    self.pointers(&mut bonus[128..256], layouts);
                    swap(&mut bonus[256..], 8);
                }
                ZNODE => swap_znode(bonus),
                SA => swap_attributes(bonus, layouts),
                other => match ObjectType::from_code(other).byteswap() {
                    ByteswapKind::Uint64 => swap(bonus, 8),
                    ByteswapKind::Uint8 => {}
                    other => panic!("a bonus of {other:?}"),
                },
            }
        }
    }

    /// Makes the pool's newest state big-endian; the older ones are gone then.
    pub async fn rewrite(&mut self, world: &World, first: &Path, ashift: u32) -> Uberblock {
        let device = world
            .opener
            .open(first.to_str().expect("UTF-8"), true)
            .await;
        let device = device.expect("open");
        let labels = vdev::read_labels(&*device).await.expect("labels");
        let mut newest = labels.best_uberblock(Txg::new(u64::MAX)).expect("newest");
        newest.root = self.block(&newest.root, &Layouts::new());
        let slot_bytes = 1usize << uberblock_shift(ashift);
        let mut slot = newest.encode().to_vec();
        swap(&mut slot, 8);
        slot.resize(slot_bytes, 0);
        for disk in &self.disks {
            let size = disk.metadata().expect("size").len();
            for label in 0..4 {
                let start = label_offset(size, label).expect("a label");
                let at = start + LABEL_CONFIG_OFFSET;
                let mut config = vec![0; LABEL_CONFIG_BYTES];
                disk.read_exact_at(&mut config, at).expect("read");
                seal(
                    Checksum::Label,
                    Endian::Big,
                    &label_verifier(at),
                    &mut config,
                )
                .expect("seal");
                disk.write_all_at(&config, at).expect("write");
                let ring = vec![0; LABEL_UBERBLOCK_RING_BYTES as usize];
                disk.write_all_at(&ring, start + LABEL_UBERBLOCK_OFFSET)
                    .expect("write");
                let number = uberblock_slot(ashift, newest.txg, false);
                let at = start + uberblock_slot_offset(ashift, number);
                let mut slot = slot.clone();
                seal(Checksum::Label, Endian::Big, &label_verifier(at), &mut slot).expect("seal");
                disk.write_all_at(&slot, at).expect("write");
            }
        }
        newest
    }
}
