//! Layouts against numbers worked out by hand from OpenZFS's headers, round trips, and hostile
//! bytes, for the structures that are not tested in their own modules.

use super::*;
use proptest::prelude::*;

fn swapped(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out.as_chunks_mut::<8>()
        .0
        .iter_mut()
        .for_each(|word| word.reverse());
    out
}

fn dva(vdev: u32, offset: u64, asize: u64) -> Option<Dva> {
    Some(Dva::new(VdevId::new(vdev), offset, asize, false).unwrap())
}

fn block() -> RegularPointer {
    RegularPointer {
        dvas: [dva(1, 0x1_2000, 0x1000), dva(2, 0x3_4000, 0x1000), None],
        lsize_bytes: 128 << 10,
        psize_bytes: 4096,
        compression: Compression::Lz4,
        checksum_kind: Checksum::Fletcher4,
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        level: 0,
        dedup: false,
        uses_crypt: false,
        rewritten: false,
        endian: Endian::Little,
        fill: 1,
        logical_birth: Txg::new(10),
        physical_birth: Txg::new(10),
        checksum: [1, 2, 3, 4],
        crypt: None,
    }
}

#[test]
fn block_pointer_words_are_as_openzfs_has_them() {
    let pointer = BlockPointer::regular(&block()).unwrap();
    let words = pointer.words();
    assert_eq!(words[0], 1 << 32 | 8);
    assert_eq!(words[1], 0x90);
    assert_eq!(words[2], 2 << 32 | 8);
    assert_eq!(words[4..6], [0, 0]);
    // Byte order 1, level 0, type 19, checksum 7, lz4 15, psize 8 - 1, lsize 256 - 1.
    assert_eq!(
        words[6],
        1 << 63 | 19 << 48 | 7 << 40 | 15 << 32 | 7 << 16 | 255
    );
    assert_eq!(words[7..12], [0, 0, 0, 10, 1]);
    assert_eq!(words[12..], [1, 2, 3, 4]);
    assert_eq!(pointer.decoded(), Pointer::Regular(block()));
    assert_eq!(pointer.copies(), 2);
    assert_eq!(pointer.asize_bytes(), 0x2000);
    pointer.validate().unwrap();
    let bytes = pointer.encode();
    assert_eq!(BlockPointer::decode(&bytes, Endian::Little), pointer);
    let big: [u8; 128] = swapped(&bytes).try_into().unwrap();
    assert_eq!(BlockPointer::decode(&big, Endian::Big), pointer);
    assert_eq!(pointer.encode_as(Endian::Big), big);
    assert_eq!(
        pointer.to_string(),
        "DVA[0]=<1:12000:1000> DVA[1]=<2:34000:1000> [L0 ZFS plain file] fletcher4 lz4 \
         unencrypted LE contiguous size=20000L/1000P birth=10L/10P fill=1 \
         cksum=0000000000000001:0000000000000002:0000000000000003:0000000000000004"
    );
}

#[test]
fn births_gang_dedup_and_rewrite_are_told_apart() {
    let mut pointer = BlockPointer::regular(&RegularPointer {
        physical_birth: Txg::new(7),
        dvas: [dva(0, 0, 512).map(|dva| dva.with_gang(true)), None, None],
        dedup: true,
        rewritten: true,
        level: 3,
        ..block()
    })
    .unwrap();
    assert!(pointer.is_gang() && pointer.is_dedup() && pointer.is_rewritten());
    // A gang at offset zero of vdev zero is no hole, for its size and gang bit are set.
    assert!(!pointer.is_hole());
    assert_eq!(pointer.level(), 3);
    assert_eq!(
        (
            pointer.logical_birth().get(),
            pointer.physical_birth().get()
        ),
        (10, 7)
    );
    assert_eq!(pointer.birth().get(), 7);
    pointer.set_birth(Txg::new(12), Txg::new(12));
    assert_eq!(pointer.words()[9], 0);
    assert_eq!(pointer.physical_birth().get(), 12);
    pointer.set_dedup(false);
    assert!(!pointer.is_dedup());
    assert!(pointer.is_metadata());
}

#[test]
fn holes_keep_their_birth() {
    assert!(BlockPointer::HOLE.is_hole());
    assert_eq!(BlockPointer::HOLE.encode(), [0; 128]);
    let hole = HolePointer {
        birth: Txg::new(99),
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        level: 1,
        lsize_bytes: 128 << 10,
    };
    let pointer = BlockPointer::hole(&hole).unwrap();
    assert!(pointer.is_hole());
    assert_eq!(pointer.decoded(), Pointer::Hole(hole));
    assert_eq!(pointer.words()[6], 1 << 56 | 19 << 48 | 255);
    let never = HolePointer {
        birth: Txg::ZERO,
        ..hole
    };
    assert_eq!(BlockPointer::hole(&never).unwrap(), BlockPointer::HOLE);
}

#[test]
fn embedded_payload_skips_the_two_words_with_fields() {
    let payload: Vec<u8> = (1..=112).collect();
    let pointer = BlockPointer::embedded(
        &payload,
        1000,
        Compression::Lz4,
        ObjectType::DIRECTORY_CONTENTS,
        0,
        Txg::new(5),
    )
    .unwrap();
    let words = pointer.words();
    assert_eq!(words[0], 0x0807_0605_0403_0201);
    assert_eq!(
        words[6],
        1 << 63 | 20 << 48 | 1 << 39 | 15 << 32 | 111 << 25 | 999
    );
    assert_eq!(words[7].to_le_bytes()[0], 49);
    assert_eq!(words[10], 5);
    assert_eq!(words[11].to_le_bytes()[0], 73);
    let Pointer::Embedded(embedded) = pointer.decoded() else {
        panic!("not embedded")
    };
    assert_eq!(embedded.payload(), payload);
    assert_eq!((embedded.lsize_bytes, embedded.psize_bytes), (1000, 112));
    assert_eq!(pointer.psize_bytes(), 0);
    assert_eq!(
        (pointer.fill(), pointer.copies(), pointer.is_hole()),
        (1, 0, false)
    );
    pointer.validate().unwrap();
    let long = [0; 113];
    let kind = ObjectType::PLAIN_FILE_CONTENTS;
    assert!(BlockPointer::embedded(&long, 200, Compression::Off, kind, 0, Txg::ZERO).is_err());
}

#[test]
fn encrypted_blocks_keep_salt_and_iv_in_the_third_dva() {
    let crypt = CryptParams {
        salt: 0x1111,
        iv1: 0x2222,
        iv2: 0x3333,
    };
    let encrypted = RegularPointer {
        uses_crypt: true,
        crypt: Some(crypt),
        fill: 1,
        ..block()
    };
    let mut pointer = BlockPointer::regular(&encrypted).unwrap();
    assert_eq!(pointer.words()[4..6], [0x1111, 0x2222]);
    assert_eq!(pointer.words()[11], 0x3333 << 32 | 1);
    assert_eq!(pointer.copies(), 2);
    assert_eq!(pointer.decoded(), Pointer::Regular(encrypted));
    pointer.set_fill(7);
    assert_eq!((pointer.fill(), pointer.crypt()), (7, Some(crypt)));
    // A third copy would lie where the salt is.
    let third = RegularPointer {
        dvas: [dva(0, 0, 512); 3],
        ..encrypted
    };
    assert!(BlockPointer::regular(&third).is_err());
    // Indirect blocks have all copies, and a sum of MACs.
    let indirect = RegularPointer {
        dvas: [dva(0, 512, 512); 3],
        level: 1,
        crypt: None,
        ..encrypted
    };
    assert_eq!(BlockPointer::regular(&indirect).unwrap().copies(), 3);
}

#[test]
fn impossible_places_and_sizes_are_refused() {
    assert!(Dva::new(VdevId::new(1 << 24), 0, 512, false).is_err());
    assert!(Dva::new(VdevId::new(0), 1, 512, false).is_err());
    assert!(Dva::new(VdevId::new(0), 0, 1 << 33, false).is_err());
    assert_eq!(Dva::from_words([0, 0]), None);
    assert_eq!(Dva::from_words([1, 1 << 60]), None);
    for lsize_bytes in [0, 511, 1 << 26] {
        assert!(
            BlockPointer::regular(&RegularPointer {
                lsize_bytes,
                ..block()
            })
            .is_err()
        );
    }
    let mut pointer = BlockPointer::regular(&block()).unwrap();
    pointer.set_checksum_kind(Checksum::Unknown(77));
    assert!(matches!(
        pointer.validate(),
        Err(FormatError::BadField {
            field: "cksum",
            found: 77,
            ..
        })
    ));
}

#[test]
fn codes_survive_and_names_are_openzfs_s() {
    for code in 0..=255u8 {
        assert_eq!(Compression::from_code(code).code(), code);
        assert_eq!(Checksum::from_code(code).code(), code);
        assert_eq!(ObjectType::from_code(code).code(), code);
        let _ = ObjectType::from_code(code).to_string();
    }
    assert_eq!(Compression::Gzip(9).code(), 13);
    assert_eq!(ObjectType::BPOBJ_SUBOBJ.code(), 53);
    assert!(!ObjectType::from_code(54).is_valid());
    assert_eq!(
        ObjectType::OTN_UINT64_METADATA.byteswap(),
        ByteswapKind::Uint64
    );
    assert_eq!(
        ObjectType::OTN_ZAP_METADATA.to_string(),
        "bswap zap metadata"
    );
    assert!(ObjectType::SA.is_encrypted() && ObjectType::SA.is_metadata());
    assert!(!ObjectType::ZVOL.is_metadata());
}

fn dnode() -> DnodePhys {
    let mut out = DnodePhys::new(ObjectType::PLAIN_FILE_CONTENTS, 128 << 10, 17, 1);
    out.pointers[0] = BlockPointer::regular(&block()).unwrap();
    out.bonus_type = ObjectType::SA;
    out.bonus = (0..168).collect();
    out.levels = 2;
    out.max_block_id = 9;
    out.used_bytes = 4096;
    out
}

#[test]
fn dnode_bytes_are_as_openzfs_has_them() {
    let bytes = dnode().encode().unwrap();
    assert_eq!(bytes.len(), 512);
    assert_eq!(
        bytes[..16],
        [19, 17, 2, 1, 44, 0, 0, 1, 0, 1, 168, 0, 0, 0, 0, 0]
    );
    assert_eq!(bytes[16], 9);
    assert_eq!(bytes[24..26], [0, 16]);
    assert_eq!(bytes[64..192], dnode().pointers[0].encode());
    assert_eq!(bytes[192..360], dnode().bonus);
    assert_eq!(DnodePhys::decode(&bytes, Endian::Little).unwrap(), dnode());
    assert_eq!(max_bonus_bytes(1), OLD_MAX_BONUS_BYTES);
    assert_eq!(max_bonus_bytes(32), 16384 - 192);
}

#[test]
fn spill_pointer_is_at_the_end_of_the_last_slot() {
    let mut large = dnode();
    large.extra_slots = 1;
    large.spill = Some(BlockPointer::regular(&block()).unwrap());
    large.bonus = vec![7; 704];
    assert_eq!(large.bonus_room_bytes(), 704);
    let bytes = large.encode().unwrap();
    assert_eq!(bytes.len(), 1024);
    assert_eq!(bytes[896..], large.spill.unwrap().encode());
    let back = DnodePhys::decode(&bytes, Endian::Little).unwrap();
    assert!(back.flags.contains(DnodeFlags::SPILL_POINTER));
    assert_eq!((back.spill, &back.bonus), (large.spill, &large.bonus));
    large.bonus.push(0);
    assert!(large.encode().is_err());
    assert!(DnodePhys::decode(&bytes[..1023], Endian::Little).is_err());
}

#[test]
fn space_of_old_dnodes_is_in_sectors() {
    let mut old = dnode();
    old.flags = DnodeFlags::default();
    let bytes = old.encode().unwrap();
    assert_eq!(bytes[24..26], [8, 0]);
    assert_eq!(
        DnodePhys::decode(&bytes, Endian::Little)
            .unwrap()
            .used_bytes,
        4096
    );
    assert_eq!(DnodePhys::free().encode().unwrap(), [0; 512]);
    assert!(DnodePhys::decode(&[0; 512], Endian::Big).unwrap().is_free());
}

#[test]
fn objset_round_trips_in_all_sizes() {
    let mut meta = DnodePhys::new(ObjectType::DNODE, 16 << 10, 17, 3);
    meta.pointers[0] = BlockPointer::regular(&block()).unwrap();
    let mut objset = ObjsetPhys::new(ObjsetKind::Filesystem, meta);
    objset.flags = OBJSET_FLAG_USER_ACCOUNTING | OBJSET_FLAG_PROJECT_QUOTA;
    objset.portable_mac = [3; 32];
    objset.zil_header.log = BlockPointer::regular(&block()).unwrap();
    objset.zil_header.claim_txg = Txg::new(4);
    for size in [OBJSET_BYTES_V3, OBJSET_BYTES_V2, OBJSET_BYTES_V1] {
        if size < OBJSET_BYTES_V3 {
            objset.project_used = None;
        }
        if size < OBJSET_BYTES_V2 {
            objset.user_group_used = None;
        }
        let bytes = objset.encode().unwrap();
        assert_eq!(bytes.len(), size);
        assert_eq!(bytes[704..712], [2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[720..752], [3; 32]);
        assert_eq!(ObjsetPhys::decode(&bytes, Endian::Little).unwrap(), objset);
    }
    assert!(ObjsetPhys::decode(&[0; 1023], Endian::Little).is_err());
}

#[test]
fn label_geometry_is_openzfs_s() {
    assert_eq!(LABEL_START_BYTES, 4 << 20);
    let size = (64 << 20) + 12345;
    let places: Vec<_> = (0..5).map(|label| label_offset(size, label)).collect();
    let end = 64 << 20;
    assert_eq!(
        places,
        [
            Some(0),
            Some(256 << 10),
            Some(end - (512 << 10)),
            Some(end - (256 << 10)),
            None
        ]
    );
    assert_eq!(label_offset((1 << 20) - 1, 0), None);
    assert_eq!(
        [9, 10, 12, 13, 16].map(uberblock_shift),
        [10, 10, 12, 13, 13]
    );
    assert_eq!(uberblock_slots(12), 32);
    assert_eq!(uberblock_slot_offset(9, 127), (256 << 10) - 1024);
    assert_eq!(uberblock_slot(12, Txg::new(32), false), 0);
    assert_eq!(uberblock_slot(12, Txg::new(31), true), 0);
}

#[test]
fn label_parts_round_trip() {
    let mut config = NvList::new();
    config.set("version", 5000u64).set("name", "tank");
    let bytes = encode_label_config(&config).unwrap();
    assert_eq!(bytes.len(), LABEL_CONFIG_BYTES);
    assert_eq!(decode_label_config(&bytes).unwrap(), config);
    assert_eq!(Eck::decode_tail(&bytes).unwrap(), Eck::new([0; 4]));
    let mut huge = NvList::new();
    huge.set("x", "y".repeat(LABEL_CONFIG_BYTES));
    assert!(encode_label_config(&huge).is_err());

    let big = Eck {
        endian: Endian::Big,
        checksum: [1, 2, 3, 4],
    };
    assert_eq!(Eck::decode(&big.encode()).unwrap(), big);
    assert!(Eck::decode(&[0; 40]).is_err());

    for env in [
        BootEnv::Raw(b"saved_entry=1".to_vec()),
        BootEnv::List(config),
    ] {
        assert_eq!(BootEnv::decode(&env.encode().unwrap()).unwrap(), env);
    }
}

#[test]
fn uberblock_round_trips_in_both_orders() {
    let uberblock = Uberblock {
        endian: Endian::Little,
        version: Uberblock::VERSION_FEATURES,
        txg: Txg::new(1234),
        guid_sum: Guid::new(u64::MAX),
        timestamp_seconds: 1_700_000_000,
        root: BlockPointer::regular(&block()).unwrap(),
        software_version: 5000,
        multihost: Some(Multihost {
            delay_ns: 1,
            interval_ms: Some(1000),
            sequence: Some(3),
            fail_intervals: None,
        }),
        checkpoint_txg: Txg::ZERO,
        reflow_offset_bytes: 512 * 1000,
        reflow_state: ReflowScratchState::Valid,
    };
    let slot = uberblock.encode_slot(1024).unwrap();
    assert_eq!(slot[..8], [0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]);
    assert_eq!(slot[192..200], [3, 0xe8, 3, 0, 3, 0, 0, 0]);
    assert_eq!(Uberblock::decode(&slot).unwrap(), uberblock);
    Eck::decode_tail(&slot).unwrap();
    let big = Uberblock::decode(&swapped(&slot)).unwrap();
    assert_eq!(
        big,
        Uberblock {
            endian: Endian::Big,
            ..uberblock
        }
    );
    assert!(Uberblock::decode(&[0; 1024]).is_err());
    assert!(Uberblock::decode(&slot[..215]).is_err());
    assert!(uberblock.encode_slot(16 << 10).is_err());
}

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

fn read_all(range: SpaceMapRange, bytes: &[u8], block: usize) -> Result<Vec<SpaceMapEntry>> {
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
        dvas: [dva(0, 4096, 4096), None, None],
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
    fn any_block_pointer_keeps_its_bits(words in any::<[u64; 16]>()) {
        let pointer = BlockPointer::from_words(words);
        let again = BlockPointer::decode(&pointer.encode(), Endian::Little);
        prop_assert_eq!(again.words(), &words);
        let _ = (pointer.validate(), pointer.to_string(), pointer.asize_bytes());
        // What a valid pointer says can be said again.
        if pointer.validate().is_ok() {
            match pointer.decoded() {
                Pointer::Regular(block) if block.dvas[0].is_some() => {
                    let made = BlockPointer::regular(&block).unwrap();
                    prop_assert_eq!(made.decoded(), pointer.decoded());
                }
                Pointer::Embedded(e) if e.kind == EmbeddedKind::Data => {
                    let made = BlockPointer::embedded(
                        e.payload(), e.lsize_bytes, e.compression, e.object_type, e.level, e.birth,
                    ).unwrap();
                    let Pointer::Embedded(back) = made.decoded() else { panic!("not embedded") };
                    prop_assert_eq!(back.payload(), e.payload());
                }
                _ => {}
            }
        }
    }

    #[test]
    fn any_dnode_that_decodes_encodes_to_the_same(
        mut bytes in proptest::collection::vec(any::<u8>(), 1024),
        head in (1u8..54, 9u8..25, 1u8..13, 1u8..4, 0u8..8, 0u8..2),
    ) {
        (bytes[0], bytes[1], bytes[2], bytes[3], bytes[7], bytes[12]) = head;
        bytes[11] &= 1;
        for endian in [Endian::Little, Endian::Big] {
            if let Ok(dnode) = DnodePhys::decode(&bytes, endian) {
                let again = dnode.encode().unwrap();
                let back = DnodePhys::decode(&again, Endian::Little).unwrap();
                prop_assert_eq!(&back, &dnode);
                if endian == Endian::Little {
                    let bonus_end = 64 + dnode.pointers.len() * 128 + dnode.bonus.len();
                    prop_assert_eq!(&again[..bonus_end], &bytes[..bonus_end]);
                }
            }
        }
    }

    #[test]
    fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..700)) {
        for endian in [Endian::Little, Endian::Big] {
            let _ = BlockPointer::decode_slice(&bytes, endian);
            let _ = BlockPointer::decode_all(&bytes, endian).count();
            let _ = DnodePhys::decode(&bytes, endian);
            let _ = ObjsetPhys::decode(&bytes.repeat(8), endian);
            let _ = ZilHeader::decode(&bytes, endian);
            let _ = SpaceMapPhys::decode(&bytes, endian);
            let _ = BpobjPhys::decode(&bytes, endian);
            let _ = DslDirPhys::decode(&bytes, endian);
            let _ = DslDatasetPhys::decode(&bytes, endian);
            let _ = DeadlistPhys::decode(&bytes, endian);
            let _ = BptreeEntry::decode(&bytes, endian);
            let _ = ScanPhys::decode(&bytes, endian);
            let _ = DdtPhys::decode(&bytes, endian);
            let _ = DdtLogRecord::decode(&bytes, endian);
            let _ = DdtLogHeader::decode(&bytes, endian);
            let _ = BrtVdevPhys::decode(&bytes, endian);
            let _ = IndirectMappingEntry::decode(&bytes, endian);
            let _ = decode_gang_header(&bytes, endian);
            let _ = ZnodePhys::decode(&bytes, endian);
            let _ = ZnodeAcl::decode(&bytes, endian);
            let _ = Ace::decode_all(&bytes, 9, endian);
            let _ = ZapBlockKind::of(&bytes, endian);
        }
        let _ = Uberblock::decode(&bytes);
        let _ = Eck::decode_tail(&bytes);
        let _ = decode_history_record(&bytes);
        let _ = read_all(SpaceMapRange::LOG, &bytes, 128);
    }

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
