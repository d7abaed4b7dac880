//! What the MOS and filesystems hold.

use super::*;
use proptest::prelude::*;

#[test]
fn history_ring_wraps_behind_the_first_record() {
    let head = HistoryPhys {
        create_end_bytes: 100,
        physical_max_bytes: 1100,
        begin_bytes: 100,
        end_bytes: 1200,
        records_lost: 0,
    };
    assert_eq!(head.physical(100), Some(100));
    assert_eq!(head.physical(1099), Some(1099));
    assert_eq!(head.physical(1100), Some(100));
    assert_eq!(head.physical(99), None);
    assert_eq!(HistoryPhys::default().physical(5), None);
    let mut record = NvList::new();
    record.set("history command", "zpool create tank sda");
    let mut bytes = encode_history_record(&record).unwrap();
    let length = bytes.len();
    assert_eq!(decode_history_record(&bytes[..length - 1]).unwrap(), None);
    bytes.extend([1, 2, 3]);
    assert_eq!(
        decode_history_record(&bytes).unwrap(),
        Some((record, length))
    );
}

#[test]
fn words_structures_have_openzfs_s_sizes_and_offsets() {
    let mut directory = DslDirPhys {
        head_dataset: ObjectId::new(21),
        ..Default::default()
    };
    directory.used_breakdown[UsedBy::RefReservation as usize] = 5;
    directory.clones = ObjectId::new(6);
    let bytes = directory.encode();
    assert_eq!(
        (bytes.len(), bytes[8], bytes[17 * 8], bytes[18 * 8]),
        (256, 21, 5, 6)
    );
    assert_eq!(
        DslDirPhys::decode(&swapped(&bytes), Endian::Big).unwrap(),
        directory
    );
    assert!(DslDirPhys::decode(&bytes[..255], Endian::Little).is_err());

    let dataset = DslDatasetPhys {
        block: BlockPointer::regular(&block()).unwrap(),
        user_references: ObjectId::new(9),
        flags: DslDatasetPhys::FLAG_UNIQUE_ACCURATE,
        ..Default::default()
    };
    let bytes = dataset.encode();
    assert_eq!((bytes.len(), bytes[120], bytes[272]), (320, 4, 9));
    assert_eq!(bytes[128..256], dataset.block.encode());
    assert_eq!(
        DslDatasetPhys::decode(&bytes, Endian::Little).unwrap(),
        dataset
    );
    assert!(!dataset.is_snapshot());

    let scan = ScanPhys {
        bookmark: Bookmark::new(ObjsetId::new(1), ObjectId::new(2), -1, 3),
        flags: ScanPhys::FLAG_PAUSED,
        ..Default::default()
    };
    let words = scan.to_words();
    assert_eq!((words.len(), words[21], words[23]), (24, u64::MAX, 2));
    assert_eq!(ScanPhys::from_words(&words).unwrap(), scan);
    assert!(ScanPhys::from_words(&words[..23]).is_err());

    let bookmark = SnapshotBookmark {
        guid: Guid::new(1),
        ..Default::default()
    };
    assert_eq!(SnapshotBookmark::from_value(&[1, 0, 0]).unwrap(), bookmark);
    assert!(SnapshotBookmark::from_value(&[1, 0]).is_err());
    assert_eq!(BptreeEntry::BYTES, 168);
    assert_eq!(ZnodePhys::BYTES, ZnodePhys::ACL_OFFSET + ZnodeAcl::BYTES);
}

#[test]
fn bpobj_length_tells_its_version() {
    let new = BpobjPhys::new();
    assert_eq!(new.encode().len(), BpobjPhys::BYTES);
    for length in [16, 32, 48, 56] {
        let bytes: Vec<u8> = (0..length).collect();
        let head = BpobjPhys::decode(&bytes, Endian::Little).unwrap();
        assert_eq!(head.encode(), bytes);
        assert_eq!(head.sublists.is_some(), length >= 48);
    }
}

fn ranges() -> impl Strategy<Value = Vec<(bool, u64, u64)>> {
    proptest::collection::vec((any::<bool>(), 0u64..1 << 20, 1u64..100_000), 1..40)
}

pub(super) fn read_all(
    range: SpaceMapRange,
    bytes: &[u8],
    block: usize,
) -> Result<Vec<SpaceMapEntry>> {
    let mut reader = SpaceMapReader::new(range);
    let mut out = Vec::new();
    for block in bytes.chunks(block) {
        reader.read_block(block, Endian::Little, |entry| {
            out.push(entry);
            Ok::<_, FormatError>(())
        })?;
    }
    Ok(out)
}

#[test]
fn space_map_entries_are_as_openzfs_has_them() {
    let range = SpaceMapRange {
        start_bytes: 1 << 29,
        size_bytes: 1 << 29,
        shift: 12,
    };
    let mut writer = SpaceMapWriter::new(range, 4096, 0, true).unwrap();
    writer.debug(SpaceMapKind::Free, Txg::new(50), 2);
    writer
        .range(SpaceMapKind::Free, None, (1 << 29) + 8192, 12288)
        .unwrap();
    writer
        .range(SpaceMapKind::Allocate, None, 1 << 29, 1 << 28)
        .unwrap();
    let bytes = writer.into_bytes();
    let words: Vec<u64> = Endian::Little.words(&bytes).collect();
    assert_eq!(words[0], 2 << 62 | 1 << 60 | 2 << 50 | 50);
    assert_eq!(words[1], 2 << 16 | 1 << 15 | 2);
    // 65536 units are more than one word holds.
    assert_eq!(words[2], 3 << 62 | 65535 << 24);
    assert_eq!(words[3], 0);
    let entries = read_all(range, &bytes, 4096).unwrap();
    assert_eq!(entries[0].run_bytes, 12288);
    assert_eq!((entries[0].txg.get(), entries[0].sync_pass), (50, 2));

    // Without spacemap_v2 it takes two words of 32768 units.
    let mut old = SpaceMapWriter::new(range, 4096, 0, false).unwrap();
    old.range(SpaceMapKind::Allocate, None, 1 << 29, 1 << 28)
        .unwrap();
    let bytes = old.into_bytes();
    assert_eq!(
        Endian::Little.words(&bytes).collect::<Vec<_>>(),
        [0x7fff, 32768 << 16 | 0x7fff]
    );

    // A two-word entry does not cross a block's end.
    let vdev = Some(VdevId::new(3));
    let mut log = SpaceMapWriter::new(SpaceMapRange::LOG, 32, 24, true).unwrap();
    log.range(SpaceMapKind::Free, vdev, 512, 1024).unwrap();
    assert_eq!(log.length_bytes(), 48);
    let bytes = log.into_bytes();
    let words: Vec<u64> = Endian::Little.words(&bytes).collect();
    assert_eq!(words, [2 << 62, 3 << 62 | 1 << 24 | 3, 1 << 63 | 1]);

    assert!(SpaceMapWriter::new(range, 12, 0, true).is_err());
    let mut writer = SpaceMapWriter::new(range, 4096, 0, true).unwrap();
    assert!(writer.range(SpaceMapKind::Free, None, 0, 4096).is_err());
    assert!(
        writer
            .range(SpaceMapKind::Free, None, 1 << 29, 100)
            .is_err()
    );
    assert!(
        writer
            .range(SpaceMapKind::Free, None, 1 << 29, 1 << 30)
            .is_err()
    );
    assert_eq!(SpaceMapPhys::bucket(4096, 12), 0);
    assert_eq!(SpaceMapPhys::bucket(16383, 12), 1);
}

#[test]
fn space_map_head_has_both_lengths() {
    for with in [true, false] {
        let mut head = SpaceMapPhys::new(with);
        head.length_bytes = 64;
        head.allocated_bytes = -5;
        let bytes = head.encode();
        assert_eq!(bytes.len(), if with { 320 } else { 24 });
        assert_eq!(SpaceMapPhys::decode(&bytes, Endian::Little).unwrap(), head);
    }
    let mut head = SpaceMapPhys::new(true);
    head.histogram.as_mut().unwrap()[0] = 1;
    assert_eq!(head.encode()[64], 1);
}

#[test]
fn system_attributes_round_trip() {
    let word = SaRegistration {
        number: 20,
        length_bytes: 0,
        byteswap: SaByteswap::Uint8,
    };
    assert_eq!(word.encode(), 20 | 3 << 16);
    assert_eq!(SaRegistration::decode(word.encode()), word);
    let mode = ZplAttribute::Mode.info();
    let registered = SaRegistration {
        number: 5,
        length_bytes: mode.length_bytes,
        byteswap: mode.byteswap,
    };
    assert_eq!(registered.encode(), 5 | 8 << 24);

    assert_eq!([0, 1, 2, 5, 6].map(sa_header_bytes), [8, 8, 16, 16, 24]);
    let values: [(u16, &[u8]); 4] = [(8, &[1; 8]), (0, b"abc"), (0, b"defgh"), (16, &[2; 16])];
    let layout = [5, 17, 20, 0];
    let buffer = encode_sa(2, &values).unwrap();
    assert_eq!(buffer[..12], [0x5a, 0x50, 0x2f, 0, 2, 8, 3, 0, 5, 0, 0, 0]);
    assert_eq!(
        buffer.len(),
        sa_buffer_bytes(values.map(|(fixed, value)| (fixed, value.len())))
    );
    let header = SaHeader::decode(&buffer).unwrap();
    assert_eq!((header.layout, header.header_bytes), (2, 16));
    let generation = header.fixed(&buffer, SaFixedPlace::Generation);
    assert_eq!(generation.map(u64::to_le_bytes), Some(*b"defgh\0\0\0"));
    assert_eq!(header.fixed(&buffer, SaFixedPlace::Project), None);
    assert!(!SaHeader::is_unfilled(&buffer));
    assert!(SaHeader::is_unfilled(&[0; 8]) && SaHeader::is_unfilled(&[]));
    let length_of = |attribute| match attribute {
        5 => Some(8),
        0 => Some(16),
        17 | 20 => Some(0),
        _ => None,
    };
    let places = header.locate(&buffer, &layout, length_of).unwrap();
    for ((place, attribute), (_, value)) in places.iter().zip(layout).zip(values) {
        assert_eq!(place.0, attribute);
        assert_eq!(&buffer[place.1.clone()], value);
        assert!(place.1.start.is_multiple_of(8));
    }
    assert!(header.locate(&buffer, &[99], length_of).is_err());
    assert!(header.locate(&buffer[..30], &layout, length_of).is_err());
    assert!(encode_sa(2, &[(8, &[1; 7])]).is_err());
    assert_eq!(
        ZplAttribute::from_name("ZPL_DXATTR"),
        Some(ZplAttribute::Xattrs)
    );
    for (index, info) in ZPL_ATTRIBUTES.iter().enumerate() {
        assert_eq!(info.attribute as usize, index);
    }
}

#[test]
fn directory_entries_and_acls_round_trip() {
    let entry = DirectoryEntry {
        object: ObjectId::new(34),
        type_code: 8,
    };
    assert_eq!(entry.encode(), 8 << 60 | 34);
    assert_eq!(DirectoryEntry::decode(entry.encode()), entry);
    let ace = |who, kind| Ace {
        kind,
        flags: 3,
        mask: 0x1f,
        who,
        object_types: None,
    };
    let entries = [
        ace(AceWho::Owner, 0),
        ace(AceWho::OwningGroup, 1),
        ace(AceWho::Everyone, 0),
        ace(AceWho::Id(1000), 0),
        Ace {
            object_types: Some([[1; 16], [2; 16]]),
            ..ace(AceWho::Id(7), 5)
        },
    ];
    let bytes = Ace::encode_all(&entries);
    assert_eq!(bytes.len(), 8 * 3 + 16 + 48);
    assert_eq!(bytes[..8], [0, 0, 3, 0x10, 0x1f, 0, 0, 0]);
    assert_eq!(Ace::decode_all(&bytes, 5, Endian::Little).unwrap(), entries);
    assert!(Ace::decode_all(&bytes, 6, Endian::Little).is_err());
    assert!(Ace::decode_all(&bytes, u64::MAX, Endian::Little).is_err());
    let acl = ZnodeAcl {
        object: ObjectId::new(1),
        size: 2,
        version: 1,
        count: 3,
        entries: [9; 72],
    };
    assert_eq!(
        ZnodeAcl::decode(&acl.encode(), Endian::Little).unwrap(),
        acl
    );
}

#[test]
fn dedup_entries_and_logs_round_trip() {
    let key = DdtKey::new([1, 2, 3, 4], 1 << 17, 4096, Compression::Lz4, false).unwrap();
    assert_eq!(key.words()[4], 15 << 32 | 7 << 16 | 255);
    assert_eq!((key.lsize_bytes(), key.psize_bytes()), (1 << 17, 4096));
    assert_eq!(
        (key.compression(), key.is_encrypted()),
        (Compression::Lz4, false)
    );
    let place = DdtPlace {
        words: [dva(0, 4096, 4096).unwrap().to_words(), [0; 2], [0; 2]],
        references: 2,
        physical_birth: Txg::new(9),
    };
    let flat = DdtPhys::Flat {
        place,
        class_start_seconds: 1,
    };
    let old = DdtPhys::Traditional(Box::new([DdtPlace::default(), place, place, place]));
    for (value, bytes) in [(flat, 72), (old, 256)] {
        assert_eq!(value.encode().len(), bytes);
        assert_eq!(
            DdtPhys::decode(&value.encode(), Endian::Little).unwrap(),
            value
        );
        let record = DdtLogRecord {
            storage: 0,
            class: 2,
            key,
            value,
        };
        let mut log = record.encode();
        assert_eq!(
            log[..8],
            [
                1,
                (log.len() & 0xff) as u8,
                (log.len() >> 8) as u8,
                0,
                0,
                0,
                0,
                2
            ]
        );
        let length = log.len();
        log.extend([0; 8]);
        assert_eq!(
            DdtLogRecord::decode(&log, Endian::Little).unwrap(),
            Some((record, length))
        );
        assert_eq!(
            DdtLogRecord::decode(&log[length..], Endian::Little).unwrap(),
            None
        );
    }
    let head = encode_ddt_value_head(Compression::Zle);
    assert_eq!(
        decode_ddt_value_head(head),
        (Compression::Zle, Endian::Little)
    );
}

#[test]
fn vdev_structures_round_trip() {
    let pointers = [BlockPointer::regular(&block()).unwrap(); 3];
    let header = encode_gang_header(&pointers[..2], GANG_HEADER_BYTES).unwrap();
    let back = decode_gang_header(&header, Endian::Little).unwrap();
    assert_eq!(back, [pointers[0], pointers[1], BlockPointer::HOLE]);
    assert!(encode_gang_header(&[pointers[0]; 4], 512).is_err());
    assert_eq!(gang_pointers(4096), 31);

    let entry = IndirectMappingEntry {
        source_offset_bytes: 1 << 20,
        destination: dva(2, 8192, 4096).unwrap(),
    };
    assert_eq!(
        IndirectMappingEntry::decode(&entry.encode(), Endian::Little).unwrap(),
        entry
    );
    for length in [24, 32] {
        let bytes: Vec<u8> = (0..length).collect();
        let head = IndirectMappingPhys::decode(&bytes, Endian::Little).unwrap();
        assert_eq!(head.encode(), bytes);
    }
}

#[test]
fn feature_table_is_that_of_openzfs() {
    assert_eq!(FEATURES.len(), 48);
    for (index, info) in FEATURES.iter().enumerate() {
        assert_eq!(info.feature as usize, index);
        assert!(info.guid.ends_with(&format!(":{}", info.name)));
        assert_eq!(Feature::from_guid(info.guid), Some(info.feature));
        assert_eq!(Feature::from_name(info.name), Some(info.feature));
        // What is needed to read the MOS cannot be left to writers.
        assert!(!(info.in_label && info.read_only_compatible));
    }
    let count = |matches: fn(&&FeatureInfo) -> bool| FEATURES.iter().filter(matches).count();
    assert_eq!(count(|info| info.read_only_compatible), 22);
    assert_eq!(count(|info| info.in_2_3), 44);
    assert_eq!(count(|info| info.in_2_3 && info.read_only_compatible), 20);
    assert_eq!(count(|info| info.activate_on_enable), 5);
    assert_eq!(count(|info| info.in_label), 8);
    assert_eq!(count(|info| info.per_dataset), 15);
    // A feature's guid is told by its dependencies' being there, never by itself.
    assert!(
        FEATURES
            .iter()
            .all(|info| !info.depends.contains(&info.feature))
    );
    assert_eq!(Feature::BookmarkWritten.info().depends.len(), 3);
}

proptest! {
    #[test]
    fn damaged_attributes_are_located_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 8..200),
        layout in proptest::collection::vec(0u16..24, 0..30),
    ) {
        let mut bytes = bytes;
        bytes[..4].copy_from_slice(&0x2f_505a_u32.to_le_bytes());
        if let Ok(header) = SaHeader::decode(&bytes) {
            let length = |number: u16| Some(ZPL_ATTRIBUTES.get(usize::from(number))?.length_bytes);
            if let Ok(places) = header.locate(&bytes, &layout, length) {
                prop_assert!(places.iter().all(|(_, place)| place.end <= bytes.len()));
            }
        }
    }

    #[test]
    fn space_maps_say_what_was_added(
        ranges in ranges(), two_words: bool, log: bool, block_words in 2u64..9, skip in 0u64..20,
    ) {
        let (log, two_words) = (log && two_words, two_words);
        let range = if log {
            SpaceMapRange::LOG
        } else {
            SpaceMapRange { start_bytes: 1 << 40, size_bytes: 1 << 40, shift: 12 }
        };
        let mut writer =
            SpaceMapWriter::new(range, block_words * 8, skip * 8, two_words).unwrap();
        let unit = 1u64 << range.shift;
        let mut expected = Vec::new();
        for (index, (free, offset, run)) in ranges.into_iter().enumerate() {
            let kind = if free { SpaceMapKind::Free } else { SpaceMapKind::Allocate };
            let vdev = log.then(|| VdevId::new(index as u32));
            let (offset, run) = (range.start_bytes + offset * unit, run * unit);
            writer.range(kind, vdev, offset, run).unwrap();
            expected.push((kind, offset, run));
        }
        let end = writer.length_bytes();
        let mut bytes = Vec::new();
        for _ in 0..skip {
            bytes.extend((2u64 << 62).to_le_bytes());
        }
        bytes.extend(writer.into_bytes());
        prop_assert_eq!(bytes.len() as u64, end);
        // Long ranges may be in parts; put them together again.
        let mut found: Vec<(SpaceMapKind, u64, u64)> = Vec::new();
        let mut at = 0;
        for entry in read_all(range, &bytes, block_words as usize * 8).unwrap() {
            if let Some(last) = found.last_mut()
                && last.2 < expected[at].2
            {
                prop_assert_eq!(last.1 + last.2, entry.offset_bytes);
                last.2 += entry.run_bytes;
                continue;
            }
            at = found.len();
            found.push((entry.kind, entry.offset_bytes, entry.run_bytes));
        }
        prop_assert_eq!(found, expected);
    }
}
