//! Block pointers, dnodes, object sets, labels and uberblocks.

use super::*;

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

/// Where bonuses are encrypted, what is behind one is as well.
#[test]
fn what_is_behind_a_bonus_is_kept() {
    let mut raw = dnode();
    raw.spill = Some(BlockPointer::regular(&block()).unwrap());
    raw.bonus_tail = vec![9; raw.bonus_room_bytes() - raw.bonus.len()];
    let bytes = raw.encode().unwrap();
    assert_eq!(bytes[10..12], [168, 0]);
    assert_eq!(bytes[360..384], [9; 24]);
    let back = DnodePhys::decode(&bytes, Endian::Little).unwrap();
    assert_eq!(
        (&back.bonus, &back.bonus_tail),
        (&raw.bonus, &raw.bonus_tail)
    );
    raw.bonus_tail.push(9);
    assert!(raw.encode().is_err());
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
        let head = &bytes[ObjsetPhys::ZIL_HEADER_OFFSET..][..ZilHeader::BYTES];
        assert_eq!(head, objset.zil_header.encode());
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
