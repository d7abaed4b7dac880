//! The targets.

use answers::nut::{Answer, parse_line, parse_number, parse_status};
use codec::compress::decompress;
use dataset::ResumeToken;
use device::sim::SimWorld;
use format::{
    Ace, BlockPointer, Bookmark, BootEnv, BpobjPhys, BptreeEntry, BptreePhys, BrtVdevPhys,
    Checksum, Compression, CondensingIndirectPhys, DNODE_SLOT_BYTES, DdtBookmark, DdtLogHeader,
    DdtLogRecord, DdtPhys, DdtStat, DeadlistPhys, DnodePhys, DslDatasetPhys, DslDirPhys, Eck,
    Endian, ErrorBookmark, ErrorScrubPhys, FatZapHeader, FormatError, HistoryPhys,
    IndirectBirthEntry, IndirectBirthPhys, IndirectMappingEntry, IndirectMappingPhys,
    L2DeviceHeader, L2LogBlock, LABEL_BOOT_ENV_BYTES, LogBody, LogCloneBody, LogHeader, LogRecords,
    LogWriteBody, MicroZap, NvList, ObjsetPhys, RebuildPhys, RedactBlock, RedactionListPhys,
    RemovingPhys, SaHeader, ScanPhys, SnapshotBookmark, SpaceMapPhys, SpaceMapRange,
    SpaceMapReader, TxgRing, Uberblock, ZPL_ATTRIBUTES, ZapFlags, ZapHasher, ZapKeyKind, ZapLeaf,
    ZilHeader, ZnodeAcl, ZnodePhys, decode_gang_header, decode_history_record, decode_label_config,
    decode_log_block,
};
use vdev::{IndirectMap, OpenOptions, Scope, VdevTree};

use crate::Target;

const ENDIANS: [Endian; 2] = [Endian::Little, Endian::Big];
/// Blocks decompress to this at most here, in bytes.
const OUTPUT_BYTES_MAX: usize = 256 << 10;

/// All decoders.
pub const TARGETS: &[Target] = &[
    target("nvlist", nvlist),
    target("label", label),
    target("uberblock", uberblock),
    target("block_pointer", block_pointer),
    target("dnode", dnode),
    target("objset", objset),
    target("zap_micro", zap_micro),
    target("zap_fat", zap_fat),
    target("zap_leaf", zap_leaf),
    target("system_attributes", system_attributes),
    target("znode", znode),
    target("space_map", space_map),
    target("log_block", log_block),
    target("dsl", dsl),
    target("block_lists", block_lists),
    target("gang_header", gang_header),
    target("dedup", dedup),
    target("history", history),
    target("indirect_map", indirect_map),
    target("vdev_tree", vdev_tree),
    target("lz4", lz4),
    target("lzjb", lzjb),
    target("zle", zle),
    target("gzip", gzip),
    target("zstd", zstd),
    target("iscsi", iscsi),
    target("stream", stream),
    target("nfs_records", nfs_records),
    target("nfs_arguments", nfs_arguments),
    target("nfs_compound", nfs_compound),
    target("sharenfs", sharenfs),
    target("access_lists", access_lists),
    target("cache_device", cache_device),
    target("resume_token", resume_token),
    target("ups", ups),
    target("zfs_list", zfs_list),
    target("smartctl", smartctl),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

fn nvlist(data: &[u8]) {
    if let Ok((list, length)) = NvList::decode_prefix(data) {
        assert!(length <= data.len());
        let _ = list.to_string();
    }
    let mut left = 1 << 16;
    let _ = NvList::decode_within(data, &mut |bytes| {
        let fits = bytes <= left;
        left = left.saturating_sub(bytes);
        fits
    });
}

fn stream(data: &[u8]) {
    use format::stream::{RECORD_BYTES, Record, stream_endian};
    for record in data.as_chunks::<RECORD_BYTES>().0 {
        let _ = stream_endian(record);
        for endian in ENDIANS {
            let Ok(decoded) = Record::decode(record, endian) else {
                continue;
            };
            let payload = decoded.payload_bytes();
            if payload.is_ok() {
                let again = Record::decode(&decoded.encode_as(endian), endian);
                assert_eq!(again.as_ref(), Ok(&decoded));
            }
        }
    }
}

fn label(data: &[u8]) {
    let _ = decode_label_config(data);
    let _ = Eck::decode_tail(data);
    if let Some(data) = data.first_chunk::<LABEL_BOOT_ENV_BYTES>() {
        let _ = BootEnv::decode(data);
    }
}

fn uberblock(data: &[u8]) {
    if let Ok(uberblock) = Uberblock::decode(data) {
        let _ = (uberblock.recency(), uberblock.root.to_string());
    }
}

fn block_pointer(data: &[u8]) {
    for endian in ENDIANS {
        for pointer in BlockPointer::decode_all(data, endian).take(64) {
            let is_valid = pointer.validate().is_ok();
            let _ = (
                pointer.to_string(),
                pointer.asize_bytes(),
                pointer.dvas().count(),
            );
            if is_valid {
                let _ = pointer.decoded();
                let again = BlockPointer::decode(&pointer.encode(), Endian::Little);
                assert_eq!(again.words(), pointer.words());
            }
        }
    }
}

fn dnode(data: &[u8]) {
    for endian in ENDIANS {
        for slot in data.chunks(DNODE_SLOT_BYTES).take(32).enumerate() {
            let from = &data[slot.0 * DNODE_SLOT_BYTES..];
            if let Ok(dnode) = DnodePhys::decode(from, endian) {
                let again = dnode.encode().expect("what was decoded can be encoded");
                let back = DnodePhys::decode(&again, Endian::Little);
                assert_eq!(back.as_ref(), Ok(&dnode));
            }
        }
    }
}

fn objset(data: &[u8]) {
    for endian in ENDIANS {
        let _ = ObjsetPhys::decode(data, endian);
        let _ = ZilHeader::decode(data, endian);
    }
}

fn zap_micro(data: &[u8]) {
    for endian in ENDIANS {
        let Ok((salt, _)) = MicroZap::salt_and_normalization(data, endian) else {
            continue;
        };
        let hasher = ZapHasher::new(salt, ZapFlags::NONE);
        if let Ok(zap) = MicroZap::decode(data.to_vec(), endian, |name| hasher.name(name)) {
            for entry in zap.iter() {
                assert!(zap.lookup(entry.hash, entry.name).is_some());
            }
        }
    }
}

fn zap_fat(data: &[u8]) {
    for endian in ENDIANS {
        if let Ok(header) = FatZapHeader::decode(data, endian) {
            let _ = (header.hasher().bits(), header.has_embedded_table());
            for index in [0, 1, 255, u64::from(u32::MAX), u64::MAX] {
                let _ = FatZapHeader::embedded_pointer(data, endian, index);
            }
        }
    }
}

fn zap_leaf(data: &[u8]) {
    for endian in ENDIANS {
        for keys in [ZapKeyKind::Name, ZapKeyKind::Words] {
            let Ok(leaf) = ZapLeaf::open(data.to_vec(), endian, keys) else {
                continue;
            };
            let _ = leaf.verify();
            for entry in leaf.entries().into_iter().flatten() {
                let _ = (leaf.value(&entry), leaf.value_u64(&entry));
                if let Ok(key) = leaf.key(&entry) {
                    let _ = leaf.lookup(entry.hash, key.as_key());
                }
            }
            let _ = leaf.lookup_closest(1 << 63, 0);
        }
    }
}

/// The first byte says how many attributes the layout has, then come their numbers, then the
/// buffer.
fn system_attributes(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else {
        return;
    };
    let (layout, buffer) = rest.split_at(rest.len().min(usize::from(count % 32)));
    let layout: Vec<u16> = layout.iter().map(|number| u16::from(*number)).collect();
    if let Ok(header) = SaHeader::decode(buffer) {
        let length = |number: u16| Some(ZPL_ATTRIBUTES.get(usize::from(number))?.length_bytes);
        if let Ok(places) = header.locate(buffer, &layout, length) {
            assert!(places.iter().all(|(_, place)| place.end <= buffer.len()));
        }
    }
}

fn znode(data: &[u8]) {
    for endian in ENDIANS {
        let _ = ZnodePhys::decode(data, endian);
        let _ = ZnodeAcl::decode(data, endian);
        for count in [0, 1, 6, u64::MAX] {
            let _ = Ace::decode_all(data, count, endian);
        }
    }
}

fn space_map(data: &[u8]) {
    for endian in ENDIANS {
        let _ = SpaceMapPhys::decode(data, endian);
        let mut reader = SpaceMapReader::new(SpaceMapRange::LOG);
        for block in data.chunks(4096) {
            let result = reader.read_block(block, endian, |entry| {
                let _ = entry;
                Ok::<_, FormatError>(())
            });
            if result.is_err() {
                break;
            }
        }
    }
}

fn log_block(data: &[u8]) {
    for kind in [Checksum::Zilog, Checksum::Zilog2] {
        if let Ok((link, records)) = decode_log_block(data, kind) {
            let _ = link.next.to_string();
            for endian in ENDIANS {
                for record in LogRecords::new(records, endian).take(10_000) {
                    let _ = record;
                }
            }
        }
    }
    for endian in ENDIANS {
        for record in LogRecords::new(data, endian).take(10_000) {
            let Ok(record) = record else { break };
            record_is_kept(&record.body);
        }
        if let Ok(header) = LogHeader::decode(data, endian) {
            let body = &data[LogHeader::BYTES..header.length_bytes];
            let pointer = LogWriteBody::pointer(body, endian).map(|(pointer, _)| pointer);
            if let Ok(LogBody::Write(write)) = LogBody::decode(body, header.kind, endian) {
                assert_eq!(pointer, Some(write.block));
            }
            let cloned: Vec<_> = LogCloneBody::pointers(body, endian).collect();
            if let Ok(LogBody::CloneRange { blocks, .. }) =
                LogBody::decode(body, header.kind, endian)
            {
                assert_eq!(cloned, *blocks);
            }
        }
    }
}

/// What a record says is what it says when it is written again, as far as we write such.
fn record_is_kept(body: &LogBody<'_>) {
    // Without the names of domains a record has another form, which is read but not written.
    let has_domains = matches!(body, LogBody::Create(create) if !create.domains.is_empty());
    if has_domains {
        return;
    }
    if let Ok(encoded) = body.encode() {
        let again = LogBody::decode(&encoded, body.kind(), Endian::Little);
        assert_eq!(again.as_ref(), Ok(body));
    }
}

fn dsl(data: &[u8]) {
    for endian in ENDIANS {
        let _ = DslDirPhys::decode(data, endian);
        let _ = DslDatasetPhys::decode(data, endian);
        let _ = ScanPhys::decode(data, endian);
        let _ = Bookmark::decode(data, endian);
        let _ = SnapshotBookmark::decode(data, endian);
        let _ = ErrorBookmark::decode(data, endian);
        let _ = ErrorScrubPhys::decode(data, endian);
        let words: Vec<u64> = endian.words(data).collect();
        if let Ok(ring) = TxgRing::from_words(&words) {
            assert_eq!(ring.to_words(), words[..TxgRing::WORDS]);
        }
    }
}

/// What a removed device leaves: entries of its mapping, then the births, as long as the input
/// lasts.
fn indirect_map(data: &[u8]) {
    for endian in ENDIANS {
        let entries = data.chunks(IndirectMappingEntry::BYTES);
        let entries = entries.map_while(|bytes| IndirectMappingEntry::decode(bytes, endian).ok());
        let births = data.chunks(IndirectBirthEntry::BYTES);
        let births = births.map_while(|bytes| IndirectBirthEntry::decode(bytes, endian).ok());
        let _ = IndirectMap::new(entries.collect(), births.take(4).collect());
        let _ = IndirectMappingPhys::decode(data, endian);
        let _ = IndirectBirthPhys::decode(data, endian);
        let _ = RemovingPhys::decode(data, endian);
        let _ = CondensingIndirectPhys::decode(data, endian);
        let _ = RebuildPhys::decode(data, endian);
    }
}

/// A configuration from a label or the MOS opened as vdevs, none of whose devices is there.
fn vdev_tree(data: &[u8]) {
    let Ok((config, _)) = NvList::decode_prefix(data) else {
        return;
    };
    let Some(tree) = config.list("vdev_tree") else {
        return;
    };
    // A label has only its own top-level vdev.
    let mut root = NvList::new();
    root.set("type", "root");
    root.set("guid", 1u64);
    root.set("children", vec![tree.clone()]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        for root in [tree, &root] {
            let options = OpenOptions {
                read_only: true,
                ..OpenOptions::default()
            };
            let world = SimWorld::new(1).world();
            let Ok(tree) = VdevTree::open(world, root, options).await else {
                continue;
            };
            for scope in [Scope::Mos, Scope::Label] {
                let _ = tree.to_config(scope).to_string();
            }
            for top in tree.tops() {
                let _ = (vdev::TopSpec::of(&top), top.state(), top.geometry());
            }
            let _ = (
                tree.topology().alloc_units().min_bytes,
                tree.guid_sum(),
                tree.leaves(),
            );
        }
    });
}

fn block_lists(data: &[u8]) {
    for endian in ENDIANS {
        let _ = BpobjPhys::decode(data, endian);
        let _ = DeadlistPhys::decode(data, endian);
        let _ = BptreeEntry::decode(data, endian);
        let _ = BptreePhys::decode(data, endian);
        let _ = RedactBlock::decode(data, endian).map(|entry| (entry.end(), entry.block_bytes()));
        let _ = RedactionListPhys::decode(data, endian);
    }
}

fn gang_header(data: &[u8]) {
    for endian in ENDIANS {
        for pointer in decode_gang_header(data, endian).into_iter().flatten() {
            let _ = pointer.validate();
        }
    }
}

fn dedup(data: &[u8]) {
    for endian in ENDIANS {
        let _ = DdtPhys::decode(data, endian);
        let _ = DdtLogHeader::decode(data, endian);
        let _ = DdtStat::decode(data, endian);
        let _ = DdtBookmark::decode(data, endian);
        let _ = BrtVdevPhys::decode(data, endian);
        let mut rest = data;
        while let Ok(Some((_, length))) = DdtLogRecord::decode(rest, endian) {
            assert!(length > 0, "a record without bytes would be read for ever");
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

/// Records, and the head of their ring; other values of the MOS as well.
fn history(data: &[u8]) {
    pool::decode_for_fuzzing(data);
    for endian in ENDIANS {
        let _ = HistoryPhys::decode(data, endian);
    }
    let mut rest = data;
    while let Ok(Some((_, length))) = decode_history_record(rest) {
        assert!(length > 0, "a record without bytes would be read for ever");
        rest = rest.get(length..).unwrap_or_default();
    }
}

/// The first two bytes say how long the output is to be, in units of 8 bytes.
fn decompresses(kind: Compression, data: &[u8]) {
    let Some((length, data)) = data.split_first_chunk::<2>() else {
        return;
    };
    let length = (usize::from(u16::from_le_bytes(*length)) * 8).min(OUTPUT_BYTES_MAX);
    if let Ok(out) = decompress(kind, data, length) {
        assert_eq!(out.len(), length);
    }
}

fn lz4(data: &[u8]) {
    decompresses(Compression::Lz4, data);
}

fn lzjb(data: &[u8]) {
    decompresses(Compression::Lzjb, data);
}

fn zle(data: &[u8]) {
    decompresses(Compression::Zle, data);
}

fn gzip(data: &[u8]) {
    decompresses(Compression::Gzip(6), data);
}

fn zstd(data: &[u8]) {
    decompresses(Compression::Zstd, data);
}

fn iscsi(data: &[u8]) {
    serve_iscsi::decode_for_fuzzing(data);
}

fn nfs_records(data: &[u8]) {
    serve_nfs::decode_records_for_fuzzing(data);
}

fn nfs_arguments(data: &[u8]) {
    serve_nfs::decode_arguments_for_fuzzing(data);
}

fn nfs_compound(data: &[u8]) {
    serve_nfs::decode_compound_for_fuzzing(data);
}

fn sharenfs(data: &[u8]) {
    serve_nfs::decode_policy_for_fuzzing(data);
}

/// Lists of access as records, files and clients have them; attributes of files.
fn access_lists(data: &[u8]) {
    filesystem::decode_for_fuzzing(data);
    access::decode_for_fuzzing(data);
}

fn resume_token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Some(token) = ResumeToken::decode(text) {
        assert_eq!(ResumeToken::decode(&token.encode()), Some(token));
    }
}

/// Lines of NUT's server.
fn ups(data: &[u8]) {
    for line in String::from_utf8_lossy(data).lines() {
        if let Some(Answer::Words(words)) = parse_line(line) {
            assert!(words.iter().map(String::len).sum::<usize>() <= line.len());
            for word in &words {
                let _ = (parse_status(word), parse_number(word));
            }
        }
    }
}

fn zfs_list(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for (name, set) in answers::zfs_list::parse(&text).into_iter().flatten() {
        assert!(text.contains(&name));
        assert!(set.snapshots.is_sorted_by_key(|point| point.txg));
    }
}

fn smartctl(data: &[u8]) {
    drives::decode_for_fuzzing(data);
}

/// The header and the log blocks of a cache device.
fn cache_device(data: &[u8]) {
    if let Ok(header) = L2DeviceHeader::decode(data) {
        assert_eq!(L2DeviceHeader::decode(&header.encode(0)), Ok(header));
    }
    // Most of a log block is entries: few bytes stand for many.
    let mut block = data.to_vec();
    block.resize(L2LogBlock::BYTES, 0);
    if let Ok(block) = L2LogBlock::decode(&block) {
        assert_eq!(L2LogBlock::decode(&block.encode()), Ok(block));
    }
}
