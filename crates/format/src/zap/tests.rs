use std::collections::BTreeMap;

use super::*;
use proptest::prelude::*;

#[test]
fn crc_table_is_ecma_182_reflected() {
    assert_eq!(CRC64_TABLE[128], 0xc96c_5795_d787_0f42);
    // CRC-64/XZ of "123456789", from the catalogue of CRCs.
    assert_eq!(!crc64(u64::MAX, *b"123456789"), 0x995d_c9bb_df19_39fa);
}

#[test]
fn hash_keeps_the_high_bits_only() {
    let short = ZapHasher::new(1, ZapFlags::NONE);
    let long = ZapHasher::new(1, ZapFlags::HASH64);
    let full = crc64(1, *b"name");
    assert_eq!(short.name(b"name"), full & 0xffff_fff0_0000_0000);
    assert_eq!(long.name(b"name"), full & 0xffff_ffff_ffff_0000);
    let keys = ZapFlags::UINT64_KEY.with(ZapFlags::PRE_HASHED_KEY);
    assert_eq!(
        ZapHasher::new(9, keys).words(&[0x1234_5678_9abc_def0, 5]),
        0x1234_5670_0000_0000
    );
    assert_eq!(zap_hash_index(u64::MAX, 0), 0);
    assert_eq!(zap_hash_index(1 << 63, 1), 1);
}

#[test]
fn header_round_trips_in_both_orders() {
    let mut header = FatZapHeader::new(14, 77, 0, ZapFlags::HASH64);
    header.entries = 5;
    let mut block = header.encode_new_block(14).unwrap();
    assert_eq!(
        FatZapHeader::decode(&block, Endian::Little).unwrap(),
        header
    );
    assert_eq!(header.table.shift, 10);
    assert_eq!(
        FatZapHeader::embedded_pointer(&block, Endian::Little, 1023),
        Some(1)
    );
    assert_eq!(
        FatZapHeader::embedded_pointer(&block, Endian::Little, 1024),
        None
    );
    assert!(FatZapHeader::set_embedded_pointer(&mut block, 3, 9));
    assert!(!FatZapHeader::set_embedded_pointer(&mut block, 1024, 9));
    assert_eq!(
        FatZapHeader::embedded_pointer(&block, Endian::Little, 3),
        Some(9)
    );
    header.encode_into(&mut block).unwrap();
    assert_eq!(
        FatZapHeader::embedded_pointer(&block, Endian::Little, 3),
        Some(9)
    );
    assert_eq!(
        ZapBlockKind::of(&block, Endian::Little).unwrap(),
        ZapBlockKind::Header
    );
    for word in block.as_chunks_mut::<8>().0 {
        word.reverse();
    }
    assert_eq!(FatZapHeader::decode(&block, Endian::Big).unwrap(), header);
    assert_eq!(
        FatZapHeader::embedded_pointer(&block, Endian::Big, 3),
        Some(9)
    );
    assert!(FatZapHeader::decode(&block, Endian::Little).is_err());
}

#[test]
fn micro_zap_keeps_a_map() {
    let hasher = ZapHasher::new(3, ZapFlags::NONE);
    let mut zap = MicroZap::new(512, 3, 0).unwrap();
    assert_eq!(zap.capacity(), 7);
    for number in 0..7u64 {
        let name = format!("file{number}");
        let inserted = zap
            .insert(hasher.name(name.as_bytes()), name.as_bytes(), number)
            .unwrap();
        assert_eq!(inserted, MicroInsert::Inserted);
    }
    let more = |zap: &mut MicroZap, name: &[u8]| zap.insert(hasher.name(name), name, 9).unwrap();
    assert_eq!(more(&mut zap, b"x"), MicroInsert::Full);
    assert_eq!(more(&mut zap, &[b'x'; 50]), MicroInsert::NeedsFat);
    zap.grow(1024).unwrap();
    // It grows in small steps, and keeps no room for more of them.
    let mut third = zap.clone();
    third.grow(1536).unwrap();
    assert_eq!(third.into_bytes().capacity(), 1536);
    assert_eq!(more(&mut zap, &[b'x'; 49]), MicroInsert::Inserted);
    assert!(zap.insert(0, b"", 1).is_err());
    assert!(zap.insert(0, b"a\0", 1).is_err());
    assert_eq!(
        zap.lookup(hasher.name(b"file3"), b"file3").unwrap().value,
        3
    );
    assert!(zap.lookup(hasher.name(b"file9"), b"file9").is_none());
    assert!(zap.update(hasher.name(b"file3"), b"file3", 33));
    assert_eq!(zap.remove(hasher.name(b"file4"), b"file4"), Some(4));
    assert_eq!(zap.remove(hasher.name(b"file4"), b"file4"), None);
    assert_eq!(zap.len(), 7);

    let back =
        MicroZap::decode(zap.as_bytes().to_vec(), Endian::Little, |n| hasher.name(n)).unwrap();
    assert_eq!(back.as_bytes(), zap.as_bytes());
    assert!(back.iter().eq(zap.iter()));
    let hashes: Vec<_> = back.iter().map(|entry| (entry.hash, entry.cd)).collect();
    assert!(hashes.is_sorted());
    let third = hashes[2];
    assert_eq!(back.iter_from(third.0, third.1).count(), 5);

    // The same block as a big-endian machine would have written it.
    let mut big = zap.as_bytes().to_vec();
    for (number, chunk) in big.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        if number == 0 {
            chunk
                .as_chunks_mut::<8>()
                .0
                .iter_mut()
                .for_each(|word| word.reverse());
        } else {
            chunk[..8].reverse();
            chunk[8..12].reverse();
        }
    }
    let back = MicroZap::decode(big, Endian::Big, |n| hasher.name(n)).unwrap();
    assert_eq!(back.as_bytes(), zap.as_bytes());
}

#[test]
fn names_of_one_hash_get_numbers_of_their_own() {
    let mut micro = MicroZap::new(512, 1, 0).unwrap();
    let mut leaf = ZapLeaf::new(14, true, ZapKeyKind::Name).unwrap();
    for name in [b"a", b"b", b"c"] {
        assert_eq!(
            micro.insert(1 << 36, name, 1).unwrap(),
            MicroInsert::Inserted
        );
        let key = ZapKey::Name(name);
        assert!(matches!(
            leaf.insert(1 << 36, key, &ZapValue::one(1), None).unwrap(),
            LeafInsert::Done { .. }
        ));
    }
    micro.remove(1 << 36, b"b").unwrap();
    assert_eq!(
        micro.insert(1 << 36, b"d", 2).unwrap(),
        MicroInsert::Inserted
    );
    assert_eq!(micro.lookup(1 << 36, b"d").unwrap().cd, 1);
    let b = leaf.lookup(1 << 36, ZapKey::Name(b"b")).unwrap().unwrap();
    assert_eq!(b.cd, 1);
    leaf.remove(&b).unwrap();
    assert_eq!(
        leaf.insert(1 << 36, ZapKey::Name(b"d"), &ZapValue::one(2), None)
            .unwrap(),
        LeafInsert::Done { cd: 1 }
    );
    leaf.verify().unwrap();
    // Case-insensitive match finds the lowest number.
    let any = leaf.lookup_with(1 << 36, |_| true).unwrap().unwrap();
    assert_eq!(any.cd, 0);
}

#[test]
fn leaf_geometry_is_openzfs_s() {
    let leaf = ZapLeaf::new(14, false, ZapKeyKind::Name).unwrap();
    assert_eq!(leaf.chunk_count(), 638);
    assert_eq!(leaf.free_chunks(), 638);
    assert_eq!(leaf.chunks_at(), 48 + 1024);
    assert_eq!(leaf.chunks_at() + 638 * 24, 16384);
    assert!(ZapLeaf::new(21, false, ZapKeyKind::Name).is_err());
    assert!(ZapLeaf::new(8, false, ZapKeyKind::Name).is_err());
}

#[test]
fn leaf_bytes_are_as_openzfs_writes_them() {
    let mut leaf = ZapLeaf::new(9, false, ZapKeyKind::Name).unwrap();
    let hash = 0x8000_0000_0000_0000;
    let _ = leaf
        .insert(hash, ZapKey::Name(b"a"), &ZapValue::one(0x0102), None)
        .unwrap();
    let bytes = leaf.as_bytes();
    // Bucket 8 of 16 starts with chunk 0, the entry; 1 is its key, 2 its value.
    assert_eq!(bytes[48 + 16..48 + 18], [0, 0]);
    let chunks = &bytes[48 + 32..];
    assert_eq!(
        chunks[..24],
        [
            252, 8, 255, 255, 1, 0, 2, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128
        ]
    );
    assert_eq!(chunks[24..27], [251, b'a', 0]);
    assert_eq!(chunks[46..48], [255, 255]);
    assert_eq!(chunks[48..57], [251, 0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(chunks[72], 253);
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u16, Vec<u64>),
    Remove(u16),
}

type Change = fn(&mut ZapLeaf<&mut [u8]>, &LeafEntry, &ZapValue) -> Result<()>;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0u16..300, proptest::collection::vec(any::<u64>(), 0..20))
            .prop_map(|(name, value)| Step::Insert(name, value)),
        1 => (0u16..300).prop_map(Step::Remove),
    ];
    proptest::collection::vec(step, 1..250)
}

fn name(number: u16) -> Vec<u8> {
    format!("{number}")
        .repeat(1 + usize::from(number) % 9)
        .into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A set of leaves that split when full does what a map does.
    #[test]
    fn leaves_keep_a_map(steps in steps(), words: bool) {
        let kind = if words { ZapKeyKind::Words } else { ZapKeyKind::Name };
        let flags = if words { ZapFlags::UINT64_KEY } else { ZapFlags::NONE };
        let hasher = ZapHasher::new(0x1234_5679, flags);
        let mut leaves = vec![ZapLeaf::new(12, false, kind).unwrap()];
        let mut model: BTreeMap<Vec<u8>, Vec<u64>> = BTreeMap::new();
        let key = |name: &[u8]| match kind {
            ZapKeyKind::Name => ZapKeyBuf::Name(name.to_vec()),
            ZapKeyKind::Words => {
                ZapKeyBuf::Words(name.iter().map(|b| u64::from(*b) << 40).collect())
            }
        };
        for step in steps {
            match step {
                Step::Insert(number, value) => {
                    let (name, value) = (name(number), ZapValue::U64(value));
                    let key = key(&name);
                    let hash = hasher.key(key.as_key());
                    loop {
                        let at = leaves.iter().position(|leaf| leaf.owns(hash)).unwrap();
                        let leaf = &mut leaves[at];
                        let done = match leaf.lookup(hash, key.as_key()).unwrap() {
                            Some(entry) => leaf.update(&entry, &value).unwrap(),
                            None => leaf.insert(hash, key.as_key(), &value, None).unwrap(),
                        };
                        if done != LeafInsert::NoRoom {
                            break;
                        }
                        let sibling = leaf.split(false).unwrap();
                        leaves.push(sibling);
                    }
                    model.insert(name, value.words().unwrap().to_vec());
                }
                Step::Remove(number) => {
                    let name = name(number);
                    let key = key(&name);
                    let hash = hasher.key(key.as_key());
                    let leaf = leaves.iter_mut().find(|leaf| leaf.owns(hash)).unwrap();
                    let entry = leaf.lookup(hash, key.as_key()).unwrap();
                    prop_assert_eq!(entry.is_some(), model.remove(&name).is_some());
                    if let Some(entry) = entry {
                        leaf.remove(&entry).unwrap();
                    }
                }
            }
        }
        let mut found = BTreeMap::new();
        for leaf in &leaves {
            leaf.verify().unwrap();
            // Through bytes in both orders.
            let mut swapped = leaf.clone();
            swapped.swap_for_tests();
            let back = ZapLeaf::decode(swapped.block, Endian::Big, kind).unwrap();
            prop_assert_eq!(back.as_bytes(), leaf.as_bytes());
            let entries = leaf.entries().unwrap();
            prop_assert_eq!(entries.len(), leaf.len());
            for (index, entry) in entries.iter().enumerate() {
                found.insert(leaf.key(entry).unwrap(), leaf.value(entry).unwrap());
                let closest = leaf.lookup_closest(entry.hash, entry.cd).unwrap();
                prop_assert_eq!(closest.as_ref(), Some(entry));
                let after = leaf.lookup_closest(entry.hash, entry.cd + 1).unwrap();
                prop_assert_eq!(after.as_ref(), entries.get(index + 1));
            }
        }
        let expected: BTreeMap<_, _> =
            model.into_iter().map(|(name, value)| (key(&name), ZapValue::U64(value))).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_bytes_decode_or_fail(
        mut bytes in proptest::collection::vec(any::<u8>(), 512),
        kind in 0u8..4,
    ) {
        let first: u64 = (1 << 63) | u64::from(kind);
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        if kind == 0 {
            bytes[24..28].copy_from_slice(&0x2ab_1eaf_u32.to_le_bytes());
            bytes[33] = 0;
        } else {
            bytes[8..16].copy_from_slice(&MAGIC.to_le_bytes());
        }
        for endian in [Endian::Little, Endian::Big] {
            let _ = FatZapHeader::decode(&bytes, endian);
            let _ = MicroZap::decode(bytes.clone(), endian, |name| name.len() as u64);
            if let Ok(leaf) = ZapLeaf::open(&bytes, endian, ZapKeyKind::Name) {
                let _ = leaf.verify();
                let _ = leaf.lookup(77 << 40, ZapKey::Name(b"x"));
                let _ = leaf.lookup_with(77 << 40, |_| true);
                let _ = leaf.lookup_closest(77 << 40, 0);
                for entry in leaf.entries().unwrap_or_default() {
                    let _ = (leaf.key(&entry), leaf.value(&entry), leaf.value_u64(&entry));
                }
            }
        }
    }

    /// Damage is found when the leaf is decoded, or does no harm.
    #[test]
    fn damaged_leaves_decode_or_fail(
        damage in proptest::collection::vec((0usize..1024, any::<u8>()), 1..6),
    ) {
        let mut leaf = ZapLeaf::new(10, true, ZapKeyKind::Name).unwrap();
        for number in 0..8u64 {
            let value = ZapValue::one(number);
            let _ = leaf
                .insert(number << 60, ZapKey::Name(&name(number as u16)), &value, None)
                .unwrap();
        }
        let mut bytes = leaf.into_bytes();
        for (at, value) in damage {
            bytes[at] = value;
        }
        if let Ok(mut leaf) = ZapLeaf::decode(bytes, Endian::Little, ZapKeyKind::Name) {
            for entry in leaf.entries().unwrap() {
                let _ = leaf.update(&entry, &ZapValue::Bytes(vec![1; 40])).unwrap();
            }
            for entry in leaf.entries().unwrap() {
                leaf.remove(&entry).unwrap();
            }
            prop_assert!(leaf.is_empty());
            leaf.verify().unwrap();
        }
    }

    /// In a block that was not checked as a whole, a change is made entirely or not at all.
    #[test]
    fn failed_changes_leave_a_damaged_leaf_alone(
        damage in proptest::collection::vec((24usize..1024, any::<u8>()), 1..6),
    ) {
        let mut leaf = ZapLeaf::new(10, true, ZapKeyKind::Name).unwrap();
        for number in 0..6u64 {
            let key = name(number as u16);
            let _ = leaf.insert(number << 60, ZapKey::Name(&key), &ZapValue::one(1), None).unwrap();
        }
        let mut bytes = leaf.into_bytes();
        for (at, value) in damage {
            bytes[at] = value;
        }
        let long = ZapValue::Bytes(vec![1; 60]);
        let changes: [Change; 3] = [
            |leaf, _, value| leaf.insert(3 << 60, ZapKey::Name(b"new"), value, None).map(drop),
            |leaf, entry, value| leaf.update(entry, value).map(drop),
            |leaf, entry, _| leaf.remove(entry),
        ];
        for change in changes {
            let mut copy = bytes.clone();
            let before = copy.clone();
            let Ok(mut leaf) =
                ZapLeaf::open(copy.as_mut_slice(), Endian::Little, ZapKeyKind::Name)
            else {
                return Ok(());
            };
            let Ok(entries) = leaf.entries() else { return Ok(()) };
            let Some(entry) = entries.first() else { return Ok(()) };
            if change(&mut leaf, entry, &long).is_err() {
                prop_assert_eq!(&copy, &before);
            }
        }
    }
}

/// Goal: a ZAP that is filled at once has every entry where its hash leads, in whole leaves, with
/// the table in the header and behind the leaves. Method: names by the thousand in blocks of two
/// sizes, looked up as a reader does.
#[test]
fn a_filled_zap_leads_to_every_entry() {
    for (shift, count, is_embedded) in [(14, 0, true), (14, 9000, true), (9, 3000, false)] {
        let salt = 0x1234_5679;
        let hasher = ZapHasher::new(salt, ZapFlags::NONE);
        let names: Vec<String> = (0..count).map(|number| format!("{number:x}")).collect();
        let entry = |(value, name): (u64, &'_ String)| (hasher.name(name.as_bytes()), value);
        let mut hashed: Vec<(u64, u64)> = (0..).zip(&names).map(entry).collect();
        hashed.sort_unstable();
        let entries: Vec<ZapFill<'_>> = hashed
            .iter()
            .map(|(hash, value)| ZapFill {
                hash: *hash,
                name: names[*value as usize].as_bytes(),
                value: *value,
            })
            .collect();
        let blocks = fill_fat_zap(shift, salt, 0, &entries).unwrap();
        let header = FatZapHeader::decode(&blocks[0], Endian::Little).unwrap();
        assert_eq!(header.has_embedded_table(), is_embedded);
        assert_eq!(header.free_block, blocks.len() as u64);
        assert_eq!(header.entries, count);
        let leaves = &blocks[1..=header.leaves as usize];
        let mut found = 0;
        for leaf in leaves {
            let leaf = ZapLeaf::decode(leaf.clone(), Endian::Little, ZapKeyKind::Name).unwrap();
            found += leaf.len() as u64;
        }
        assert_eq!(found, count);
        let table: Vec<u8> = match is_embedded {
            true => blocks[0][blocks[0].len() / 2..].to_vec(),
            false => blocks[header.table.first_block as usize..].concat(),
        };
        let table = table.as_chunks::<8>().0;
        assert_eq!(table.len(), 1 << header.table.shift);
        for entry in &entries {
            let index = zap_hash_index(entry.hash, header.table.shift);
            let block = u64::from_le_bytes(table[index as usize]) as usize;
            let leaf = ZapLeaf::open(&blocks[block][..], Endian::Little, ZapKeyKind::Name).unwrap();
            assert!(leaf.owns(entry.hash));
            let key = ZapKey::Name(entry.name);
            let there = leaf.lookup(entry.hash, key).unwrap().unwrap();
            assert_eq!(leaf.value_u64(&there).unwrap(), Some(entry.value));
        }
    }
}

#[test]
fn a_zap_is_filled_with_sorted_names_only() {
    fn entry(hash: u64, name: &[u8]) -> ZapFill<'_> {
        let value = 1;
        ZapFill { hash, name, value }
    }
    let falling = [entry(2 << 40, b"a"), entry(1 << 40, b"b")];
    assert!(fill_fat_zap(14, 1, 0, &falling).is_err());
    assert!(fill_fat_zap(14, 1, 0, &[entry(1 << 40, b"")]).is_err());
    // Two names of one hash are told apart by their numbers.
    let same = [entry(1 << 40, b"a"), entry(1 << 40, b"b")];
    let blocks = fill_fat_zap(14, 1, 0, &same).unwrap();
    let leaf = ZapLeaf::decode(blocks[1].clone(), Endian::Little, ZapKeyKind::Name).unwrap();
    let numbers: Vec<u32> = leaf.entries().unwrap().iter().map(|one| one.cd).collect();
    assert_eq!(numbers, [0, 1]);
}
