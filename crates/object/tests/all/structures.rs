//! What is built from objects and ZAPs: lists of block pointers, queues of trees, space maps,
//! system attributes, accounting; and syncing a pool's own objects in several passes.

use std::collections::BTreeMap;

use crate::common::{Bed, Dice, all_objects, id};
use bytes::Bytes;
use format::{BlockPointer, Endian, ObjectId, ObjectType, ObjsetKind, SpaceMapPhys, Txg, VdevId};
use object::{
    Bpobj, BpobjSpace, Bptree, BptreeEntry, Drained, NewObject, ObjectError, ObjectSet,
    ObjsetOptions, Sa, SaAttribute, SaRegistration, SpaceMapKind, SpaceMapObject, WriteProperties,
    Zap, ZapOptions,
};
use zio::{Tx, WritePolicy};

async fn mos() -> Bed {
    let options = ObjsetOptions {
        properties: WriteProperties::mos(),
        ..ObjsetOptions::default()
    };
    Bed::new(ObjsetKind::Meta, options).await
}

/// Block pointers of many kinds: data, metadata, embedded.
async fn blocks(bed: &Bed, dice: &mut Dice, txg: Txg, count: usize) -> Vec<BlockPointer> {
    let mut out = Vec::new();
    for _ in 0..count {
        let kind = [
            ObjectType::PLAIN_FILE_CONTENTS,
            ObjectType::DIRECTORY_CONTENTS,
        ];
        let mut policy = WritePolicy::data(kind[dice.next(2) as usize]);
        policy.allow_embedded = true;
        let length = 512 << dice.next(6);
        let data = if dice.next(4) == 0 {
            vec![7; length]
        } else {
            dice.bytes(length)
        };
        out.push(
            bed.pipeline
                .write(txg, Bytes::from(data), &policy)
                .await
                .expect("writes"),
        );
    }
    out
}

fn sum(bed: &Bed, blocks: &[BlockPointer]) -> BpobjSpace {
    blocks.iter().fold(BpobjSpace::default(), |sum, block| {
        sum.plus(BpobjSpace::of_block(&bed.pipeline, block))
    })
}

fn same_places(found: &[BlockPointer], wanted: &[BlockPointer]) {
    let place = |block: &BlockPointer| {
        let words = block.words();
        if block.is_embedded() {
            [0, 0, words[6], words[10]]
        } else {
            [words[0], words[1], words[6], words[10]]
        }
    };
    let mut found: Vec<_> = found.iter().map(place).collect();
    let mut wanted: Vec<_> = wanted.iter().map(place).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
}

/// Goal: lists keep every block and their space through appending, including short and long
/// lists in each other, reading from disk, and draining in small steps; nothing is left behind.
#[tokio::test]
async fn lists_of_blocks_include_each_other() {
    let bed = mos().await;
    let mut dice = Dice(3);
    let tx = bed.tx().await;
    let before = all_objects(&bed.set).await;
    let main = Bpobj::create(&bed.set, &tx, 4096).await.expect("creates");
    let mut all = Vec::new();
    for round in 0..12 {
        let list = Bpobj::create(&bed.set, &tx, 4096).await.expect("creates");
        let count = [0, 3, 200, 31][round % 4];
        let some = blocks(&bed, &mut dice, tx.txg(), count).await;
        list.append_all(&tx, &some).await.expect("appends");
        if round % 3 == 0 {
            // A list that includes a long one, and is included itself.
            let inner = Bpobj::create(&bed.set, &tx, 4096).await.expect("creates");
            let more = blocks(&bed, &mut dice, tx.txg(), 100).await;
            inner.append_all(&tx, &more).await.expect("appends");
            list.include(&tx, inner.id()).await.expect("includes");
            all.extend(more);
        }
        assert_eq!(
            list.space_range(Txg::ZERO, Txg::new(u64::MAX))
                .await
                .expect("counts"),
            list.space().await.expect("counts")
        );
        main.include(&tx, list.id()).await.expect("includes");
        let one = blocks(&bed, &mut dice, tx.txg(), 1).await;
        main.append(&tx, &one[0], false).await.expect("appends");
        all.extend(some);
        all.extend(one);
    }
    assert_eq!(main.space().await.expect("counts"), sum(&bed, &all));
    assert_eq!(
        main.space_range(Txg::new(5), Txg::new(1 << 40))
            .await
            .expect("counts"),
        sum(&bed, &[])
    );
    drop(tx);
    let root = bed.sync().await;
    let set = bed.reopen(root).await;
    let again = Bpobj::open(&set, main.id()).await.expect("opens");
    let mut listed = Vec::new();
    again
        .for_each(&mut |block, freed| {
            assert!(!freed);
            listed.push(*block);
            Ok(())
        })
        .await
        .expect("lists");
    same_places(&listed, &all);
    assert!(Bpobj::open(&set, ObjectId::new(1 << 30)).await.is_err());
    let tx = bed.tx().await;
    let mut drained = Vec::new();
    while !main.is_empty().await.expect("known") {
        let limit = 1 + dice.next(90);
        let Drained { taken, failed } = main
            .drain(&tx, limit, &mut |block| {
                drained.push(*block);
                Ok(())
            })
            .await;
        assert!(failed.is_none(), "{failed:?}");
        assert!(taken > 0 && taken <= limit);
        let left = sum(&bed, &all).minus(sum(&bed, &drained));
        assert_eq!(main.space().await.expect("counts"), left);
    }
    same_places(&drained, &all);
    main.destroy(&tx).await.expect("destroys");
    assert_eq!(all_objects(&bed.set).await, before, "every list is gone");
    drop(tx);
    bed.sync().await;
    bed.check().await;
}

/// Goal: an entry that says "freed" takes space away again; other lists refuse it.
#[tokio::test]
async fn livelists_count_both_ways() {
    let bed = mos().await;
    let tx = bed.tx().await;
    let some = blocks(&bed, &mut Dice(1), tx.txg(), 2).await;
    let list = Bpobj::create_livelist(&bed.set, &tx)
        .await
        .expect("creates");
    list.append_all(&tx, &some).await.expect("appends");
    list.append(&tx, &some[0], true).await.expect("appends");
    assert_eq!(list.space().await.expect("counts"), sum(&bed, &some[1..]));
    let mut freed = Vec::new();
    list.for_each(&mut |_, is_freed| {
        freed.push(is_freed);
        Ok(())
    })
    .await
    .expect("lists");
    assert_eq!(freed, [false, false, true]);
    let other = Bpobj::create(&bed.set, &tx, 0).await.expect("creates");
    assert!(matches!(
        other.append(&tx, &some[0], true).await,
        Err(ObjectError::Misuse { .. })
    ));
}

#[tokio::test]
async fn trees_wait_in_their_order() {
    let bed = mos().await;
    let tx = bed.tx().await;
    let some = blocks(&bed, &mut Dice(1), tx.txg(), 3).await;
    let queue = Bptree::create(&bed.set, &tx).await.expect("creates");
    let entry = |at: usize| BptreeEntry {
        root: some[at],
        birth_txg: Txg::new(at as u64),
        bookmark: [0; 4],
    };
    let space = |bytes| BpobjSpace {
        used_bytes: bytes,
        compressed_bytes: bytes,
        uncompressed_bytes: bytes,
    };
    for at in 0..3 {
        queue.add(&tx, entry(at), space(100)).await.expect("adds");
    }
    let moved = BptreeEntry {
        bookmark: [u64::MAX, 5, 0, 9],
        ..entry(0)
    };
    queue.put(&tx, 0, moved, space(40)).await.expect("moves on");
    drop(tx);
    let root = bed.sync().await;
    let again = Bptree::open(&bed.reopen(root).await, queue.id())
        .await
        .expect("opens");
    let entries = again.entries().await.expect("lists");
    assert_eq!(entries, [(0, moved), (1, entry(1)), (2, entry(2))]);
    assert_eq!(again.space(), space(260));
    let tx = bed.tx().await;
    // One that is done before those ahead of it waits for them, with nothing to free.
    for (at, freed, left) in [(1, 100, 160), (0, 60, 100), (1, 0, 100), (2, 100, 0)] {
        let done = queue.finish(&tx, at, entry(at as usize), space(freed));
        done.await.expect("is done");
        assert_eq!(queue.space(), space(left));
        if left == 160 {
            let (_, waiting) = queue.entries().await.expect("lists")[1];
            assert_eq!(waiting.birth_txg, BptreeEntry::FINISHED);
        }
    }
    assert!(queue.is_empty());
    let again = queue.finish(&tx, 2, entry(2), space(0)).await;
    assert!(matches!(again, Err(ObjectError::Misuse { .. })));
    queue.destroy(&tx).await.expect("destroys");
}

/// Goal: a space map says after any number of appends, and from disk, what was allocated and freed.
#[tokio::test]
async fn space_maps_replay() {
    let bed = mos().await;
    let mut dice = Dice(11);
    for (vdev, shift) in [(None, 9u8), (Some(VdevId::new(3)), 9), (None, 12)] {
        let tx = bed.tx().await;
        let start = if vdev.is_some() { 0 } else { 1 << 34 };
        let map_id = SpaceMapObject::create(&bed.set, &tx, 4096)
            .await
            .expect("creates");
        let map = SpaceMapObject::open(&bed.set, map_id, start, 1 << 34, shift)
            .await
            .expect("opens");
        let mut model = Vec::new();
        let mut allocated = 0i64;
        drop(tx);
        for _ in 0..5 {
            let tx = bed.tx().await;
            for kind in [SpaceMapKind::Allocate, SpaceMapKind::Free] {
                let mut at = start;
                let ranges: Vec<(u64, u64)> = (0..dice.next(300))
                    .map(|_| {
                        at += (1 + dice.next(50)) << shift;
                        let length = {
                            let long = dice.next(20) == 0;
                            1 + dice.next(if long { 100_000 } else { 100 })
                        } << shift;
                        let range = (at, length);
                        at += length;
                        range
                    })
                    .collect();
                let before = map.length_bytes();
                map.append(&tx, kind, vdev, &ranges).await.expect("appends");
                if !ranges.is_empty() {
                    assert!(
                        map.length_bytes() - before
                            <= SpaceMapObject::estimate_bytes(&ranges, shift, vdev) + 4096
                    );
                }
                let sum: u64 = ranges.iter().map(|(_, length)| length).sum();
                allocated += if kind == SpaceMapKind::Allocate {
                    sum as i64
                } else {
                    -(sum as i64)
                };
                model.extend(ranges.into_iter().map(|range| (kind, range)));
            }
            let mut histogram = [0u64; 40];
            histogram[3] = 7;
            histogram[39] = 2;
            map.set_histogram(&tx, &histogram).await.expect("sets");
            drop(tx);
            let root = bed.sync().await;
            let set = bed.reopen(root).await;
            let again = SpaceMapObject::open(&set, map_id, start, 1 << 34, shift)
                .await
                .expect("opens");
            assert_eq!(again.allocated_bytes(), allocated);
            assert_eq!((again.histogram()[3], again.histogram()[31]), (7, 2));
            // Long ranges may be several entries.
            let mut listed: Vec<(SpaceMapKind, (u64, u64))> = Vec::new();
            again
                .for_each(u64::MAX, &mut |entry| {
                    if vdev.is_some() {
                        assert_eq!(entry.vdev, vdev);
                    }
                    match listed.last_mut() {
                        Some((kind, (at, length)))
                            if *kind == entry.kind && *at + *length == entry.offset_bytes =>
                        {
                            *length += entry.length_bytes
                        }
                        _ => listed.push((entry.kind, (entry.offset_bytes, entry.length_bytes))),
                    }
                    Ok(())
                })
                .await
                .expect("lists");
            assert_eq!(listed, model);
        }
        // A head that tells of more than was written ends in an error, not in sectors without end.
        let tx = bed.tx().await;
        let object = map.object();
        let head = object.bonus();
        let mut longer = SpaceMapPhys::decode(&head, Endian::Little).expect("a head");
        longer.length_bytes = 1 << 50;
        object.set_bonus(&tx, longer.encode()).expect("sets");
        let error = map.for_each(u64::MAX, &mut |_| Ok(())).await;
        assert!(
            matches!(error, Err(ObjectError::Damaged { .. })),
            "{error:?}"
        );
        object.set_bonus(&tx, head.to_vec()).expect("sets");
        drop(tx);
        let tx = bed.tx().await;
        map.truncate(&tx, 0).await.expect("truncates");
        assert_eq!((map.length_bytes(), map.allocated_bytes()), (0, 0));
        map.append(&tx, SpaceMapKind::Allocate, vdev, &[(start, 1 << shift)])
            .await
            .expect("appends");
        drop(tx);
        bed.sync().await;
        bed.check().await;
    }
}

const fn attribute(name: &'static str, length_bytes: u16) -> SaRegistration {
    SaRegistration {
        name,
        length_bytes,
        byteswap: 0,
    }
}

static TABLE: [SaRegistration; 8] = [
    attribute("ZPL_MODE", 8),
    attribute("ZPL_SIZE", 8),
    attribute("ZPL_GEN", 8),
    attribute("ZPL_UID", 8),
    attribute("ZPL_GID", 8),
    attribute("ZPL_ATIME", 16),
    attribute("ZPL_SYMLINK", 0),
    attribute("ZPL_DXATTR", 0),
];

/// Goal: an attribute that moves between bonus and spill block is in one of them for every reader.
/// Method: a thread has it moved to and fro, another one reads all attributes meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_finds_what_moves_meanwhile() {
    const MOVES: usize = 20_000;
    let bed = Bed::new(ObjsetKind::Filesystem, ObjsetOptions::default()).await;
    let tx = bed.tx().await;
    let master = Sa::create_master(&bed.set, &tx).await.expect("creates");
    let sa = Sa::setup(&bed.set, master, &TABLE).await.expect("sets up");
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS)
        .with_bonus(ObjectType::SA, Bytes::new())
        .with_slots(1);
    let object = bed.set.allocate(&tx, new).await.expect("allocates");
    let (grows, moves) = (SaAttribute(6), SaAttribute(7));
    let content = Bytes::from(vec![7; 100]);
    let first = [(grows, Bytes::from(vec![6; 10])), (moves, content.clone())];
    sa.replace_all(&object, &tx, &first).await.expect("sets");
    drop(tx);
    let sa = std::sync::Arc::new(sa);
    let reading = {
        let (sa, object, content) = (sa.clone(), object.clone(), content.clone());
        let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let over = is_over.clone();
        let reads = tokio::spawn(async move {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let found = sa.get(&object, moves).await.expect("reads");
                assert_eq!(found.as_ref(), Some(&content));
                assert_eq!(sa.get_all(&object).await.expect("reads").len(), 2);
                let found = sa.try_get(&object, moves).expect("in memory");
                assert_eq!(found.expect("reads").as_ref(), Some(&content));
                tokio::task::yield_now().await;
            }
        });
        (reads, is_over)
    };
    let mut spilled = 0;
    for round in 0..MOVES {
        let tx = bed.tx().await;
        let length = [250, 10][round % 2];
        let change = [(grows, Bytes::from(vec![6; length]))];
        sa.set(&object, &tx, &change).await.expect("sets");
        spilled += usize::from(object.info().has_spill);
    }
    assert_eq!(spilled, MOVES / 2);
    reading.1.store(true, std::sync::atomic::Ordering::Relaxed);
    reading.0.await.expect("every reader found it");
}

/// Goal: attributes are what was set last, whatever moves between bonus and spill block, in memory
/// and from disk. Method: random sets and removals on dnodes of several sizes against a map.
#[tokio::test]
async fn attributes_are_a_map() {
    let bed = Bed::new(ObjsetKind::Filesystem, ObjsetOptions::default()).await;
    let mut dice = Dice(21);
    let tx = bed.tx().await;
    let master = Sa::create_master(&bed.set, &tx).await.expect("creates");
    let sa = Sa::setup(&bed.set, master, &TABLE).await.expect("sets up");
    let mut objects = Vec::new();
    for slots in [1, 1, 2, 4] {
        let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS)
            .with_bonus(ObjectType::SA, Bytes::new())
            .with_slots(slots);
        let object = bed.set.allocate(&tx, new).await.expect("allocates");
        assert_eq!(sa.get(&object, SaAttribute(0)).await.expect("reads"), None);
        let first: Vec<(SaAttribute, Bytes)> = (0..5u64)
            .map(|at| {
                (
                    SaAttribute(at as u16),
                    Bytes::copy_from_slice(&at.to_le_bytes()),
                )
            })
            .collect();
        sa.replace_all(&object, &tx, &first).await.expect("sets");
        objects.push((object, first.into_iter().collect::<BTreeMap<_, _>>()));
    }
    drop(tx);
    let mut spilled = 0;
    for round in 0..12 {
        for _ in 0..20 {
            let tx = bed.tx().await;
            let (object, model) = &mut objects[dice.next(4) as usize];
            if dice.next(4) == 0 {
                let gone = SaAttribute(5 + dice.next(3) as u16);
                sa.remove(object, &tx, gone).await.expect("removes");
                model.remove(&gone);
                continue;
            }
            let count = 1 + dice.next(3);
            let mut changes = BTreeMap::new();
            for _ in 0..count {
                let attribute = dice.next(8) as u16;
                let length = match TABLE[usize::from(attribute)].length_bytes {
                    0 => {
                        let limit = [20, 200, 5000][dice.next(3) as usize];
                        dice.next(limit) as usize
                    }
                    length => length.into(),
                };
                changes.insert(SaAttribute(attribute), Bytes::from(dice.bytes(length)));
            }
            let list: Vec<_> = changes.clone().into_iter().collect();
            sa.set(object, &tx, &list).await.expect("sets");
            model.extend(changes);
        }
        let root = bed.sync().await;
        let set = bed.reopen(root).await;
        let again = Sa::setup(&set, master, &TABLE).await.expect("sets up");
        for (object, model) in &objects {
            spilled += u32::from(object.info().has_spill);
            let from_disk = set.hold(object.id()).await.expect("exists");
            for (sa, object) in [(&sa, object), (&again, &from_disk)] {
                let all: BTreeMap<_, _> = sa
                    .get_all(object)
                    .await
                    .expect("reads")
                    .into_iter()
                    .collect();
                assert_eq!(&all, model, "round {round}");
                for at in 0..8 {
                    let wanted = model.get(&SaAttribute(at));
                    assert_eq!(
                        sa.get(object, SaAttribute(at))
                            .await
                            .expect("reads")
                            .as_ref(),
                        wanted
                    );
                    if let Some(found) = sa.try_get(object, SaAttribute(at)) {
                        assert_eq!(found.expect("reads").as_ref(), wanted);
                    }
                }
            }
        }
        bed.check().await;
    }
    assert!(spilled > 5, "the spill block was never used");
    // OpenZFS's numbers: old attributes first, new ones behind, layouts from 2 on.
    let zap = Zap::hold(&bed.set, master).await.expect("opens");
    let registry = zap
        .lookup_u64("REGISTRY")
        .await
        .expect("reads")
        .expect("there");
    let registry = Zap::hold(&bed.set, id(registry)).await.expect("opens");
    let number = |word: u64| format::SaRegistration::decode(word).number;
    assert_eq!(
        registry
            .lookup_u64("ZPL_MODE")
            .await
            .expect("reads")
            .map(number),
        Some(5)
    );
    assert_eq!(
        registry
            .lookup_u64("ZPL_SYMLINK")
            .await
            .expect("reads")
            .map(number),
        Some(16)
    );
    let layouts = zap
        .lookup_u64("LAYOUTS")
        .await
        .expect("reads")
        .expect("there");
    let layouts = Zap::hold(&bed.set, id(layouts)).await.expect("opens");
    assert!(layouts.lookup("2").await.expect("reads").is_some());
    assert!(layouts.lookup("1").await.expect("reads").is_none());
    let tx = bed.tx().await;
    let wrong = sa
        .set(
            &objects[0].0,
            &tx,
            &[(SaAttribute(0), Bytes::from_static(b"short"))],
        )
        .await;
    assert!(matches!(wrong, Err(ObjectError::TooBig { .. })));
}

/// Goal: old znodes are read and changed in place; what they have no place for is refused.
#[tokio::test]
async fn old_znodes() {
    let bed = Bed::new(ObjsetKind::Filesystem, ObjsetOptions::default()).await;
    let tx = bed.tx().await;
    let mut bonus = vec![0u8; 264];
    bonus[72..80].copy_from_slice(&0o100644u64.to_le_bytes());
    bonus[80..88].copy_from_slice(&77u64.to_le_bytes());
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_bonus(ObjectType::ZNODE, bonus);
    let object = bed.set.allocate(&tx, new).await.expect("allocates");
    let sa = Sa::setup(&bed.set, ObjectId::ZERO, &TABLE)
        .await
        .expect("sets up");
    let found = sa
        .get_many(&object, &[SaAttribute(0), SaAttribute(1), SaAttribute(6)])
        .await
        .expect("reads");
    assert_eq!(found[0].as_deref(), Some(&0o100644u64.to_le_bytes()[..]));
    assert_eq!(found[1].as_deref(), Some(&77u64.to_le_bytes()[..]));
    assert_eq!(found[2], None);
    let size = Bytes::copy_from_slice(&99u64.to_le_bytes());
    sa.set(&object, &tx, &[(SaAttribute(1), size.clone())])
        .await
        .expect("sets");
    assert_eq!(
        sa.get(&object, SaAttribute(1)).await.expect("reads"),
        Some(size)
    );
    assert_eq!(object.bonus().len(), 264);
    let link = sa
        .set(&object, &tx, &[(SaAttribute(6), Bytes::from_static(b"x"))])
        .await;
    assert!(matches!(link, Err(ObjectError::Unsupported { .. })));
}

/// An SA bonus with nothing but what accounting looks at.
fn owned(user: u64, group: u64) -> Bytes {
    let mut out = 0x2f_505au32.to_le_bytes().to_vec();
    out.extend((2 | (1u16 << 10)).to_le_bytes());
    out.extend([0; 2]);
    for word in [0, 0, 0, user, group, 0, 0] {
        out.extend(u64::to_le_bytes(word));
    }
    Bytes::from(out)
}

/// Goal: the accounting ZAPs always say what the objects' owners, counts and sizes add up to.
#[tokio::test]
async fn space_is_counted_per_owner() {
    let bed = Bed::new(ObjsetKind::Filesystem, ObjsetOptions::default()).await;
    let mut dice = Dice(77);
    let mut objects: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for _ in 0..15 {
        for _ in 0..15 {
            let tx = bed.tx().await;
            let owner = (1000 + dice.next(3), 50 + dice.next(2));
            let pick = objects
                .keys()
                .nth(dice.next(objects.len() as u64 + 1) as usize)
                .copied();
            match (dice.next(5), pick) {
                (0, Some(number)) => {
                    bed.set.free(&tx, id(number)).await.expect("frees");
                    objects.remove(&number);
                }
                (1, Some(number)) => {
                    let object = bed.set.hold(id(number)).await.expect("exists");
                    object
                        .set_bonus(&tx, owned(owner.0, owner.1))
                        .expect("fits");
                    objects.insert(number, owner);
                }
                (2 | 3, Some(number)) => {
                    let object = bed.set.hold(id(number)).await.expect("exists");
                    let shift = dice.next(17);
                    let data = dice.bytes(1 << shift);
                    object
                        .write(&tx, dice.next(1 << 20), Bytes::from(data))
                        .await
                        .expect("writes");
                }
                _ => {
                    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS)
                        .with_bonus(ObjectType::SA, owned(owner.0, owner.1));
                    let object = bed.set.allocate(&tx, new).await.expect("allocates");
                    objects.insert(object.id().get(), owner);
                }
            }
        }
        let root = bed.sync().await;
        let reached = bed.check().await;
        let set = bed.reopen(root).await;
        let mut users: BTreeMap<String, u64> = BTreeMap::new();
        let mut groups = users.clone();
        let mut projects = users.clone();
        for (number, (user, group)) in &objects {
            let used = reached.dnodes[number].used_bytes + 512;
            for (table, owner) in [
                (&mut users, user),
                (&mut groups, group),
                (&mut projects, &0),
            ] {
                *table.entry(format!("{owner:x}")).or_default() += used;
                *table.entry(format!("obj-{owner:x}")).or_default() += 1;
            }
        }
        for (id, wanted) in [
            (ObjectId::USER_USED, users),
            (ObjectId::GROUP_USED, groups),
            (ObjectId::PROJECT_USED, projects),
        ] {
            let zap = Zap::hold(&set, id).await.expect("opens");
            let found: BTreeMap<_, _> = zap
                .all()
                .await
                .expect("lists")
                .into_iter()
                .map(|entry| {
                    (
                        entry.name_str().into_owned(),
                        entry.value.as_u64().expect("a number"),
                    )
                })
                .collect();
            assert_eq!(found, wanted, "{id}");
        }
    }
}

/// Goal: the MOS converges: blocks of earlier passes are rewritten in their places, and what is on
/// disk in the end is what was written last.
#[tokio::test]
async fn passes_rewrite_in_place() {
    let bed = mos().await;
    let txg = bed.txgs.quiesce().await;
    let tx = Tx::syncing(txg);
    let new = NewObject::new(ObjectType::OBJECT_ARRAY).with_block_bytes(4096);
    let object = bed.set.allocate(&tx, new).await.expect("allocates");
    let zap = Zap::create(&bed.set, &tx, ZapOptions::new(ObjectType::OBJECT_DIRECTORY))
        .await
        .expect("creates");
    let mut roots = Vec::new();
    let mut dice = Dice(4);
    let mut last = Vec::new();
    for pass in 1..=10u32 {
        last = (0..4096).map(|_| dice.next(256) as u8).collect();
        object
            .write(&tx, 0, Bytes::from(last.clone()))
            .await
            .expect("writes");
        zap.update_u64(&tx, "pass", pass.into())
            .await
            .expect("updates");
        assert!(bed.set.is_dirty(txg));
        roots.push(bed.sync_pass(txg, pass).await);
        bed.check().await;
    }
    bed.finish(txg).await;
    let place = |root: &BlockPointer| root.dva(0);
    assert_ne!(place(&roots[0]), None);
    // From some pass on (compression is off from the eighth) nothing moves any more.
    assert_eq!(place(&roots[8]), place(&roots[9]));
    let places: std::collections::HashSet<_> = roots.iter().map(place).collect();
    assert!(places.len() <= 5, "{places:?}");
    let set = bed.reopen(roots[9]).await;
    let found = set
        .hold(object.id())
        .await
        .expect("exists")
        .read_bytes(0, 4096)
        .await
        .expect("reads");
    assert_eq!(found[..], last[..]);
    let zap = Zap::hold(&set, zap.id()).await.expect("opens");
    assert_eq!(zap.lookup_u64("pass").await.expect("reads"), Some(10));
    for block in 0..3 {
        assert!(roots[9].dva(block).is_some(), "three copies of the MOS");
    }
}

/// Goal: numbers of freed objects are given out again, but not before their txg is on disk; claims
/// take exactly what they name.
#[tokio::test]
async fn object_numbers_are_reused_after_the_sync() {
    let bed = Bed::new(ObjsetKind::Other, ObjsetOptions::default()).await;
    let plain = || NewObject::new(ObjectType::PLAIN_FILE_CONTENTS);
    let tx = bed.tx().await;
    let mut numbers = Vec::new();
    for _ in 0..1000 {
        numbers.push(
            bed.set
                .allocate(&tx, plain())
                .await
                .expect("allocates")
                .id(),
        );
    }
    assert_eq!(numbers[0], id(1));
    assert_eq!(numbers[999], id(1000), "numbers are dense");
    assert!(bed.set.claim(&tx, id(500), plain()).await.is_err());
    let claimed = bed
        .set
        .claim(&tx, id(70_000), plain().with_slots(2))
        .await
        .expect("claims");
    assert_eq!(claimed.id(), id(70_000));
    assert!(
        bed.set.claim(&tx, id(70_001), plain()).await.is_err(),
        "inside the large dnode"
    );
    assert!(
        bed.set
            .claim(&tx, id(31 + 32 * 5000), plain().with_slots(2))
            .await
            .is_err(),
        "across blocks"
    );
    assert!(bed.set.used_large_dnodes());
    drop(tx);
    bed.sync().await;
    let tx = bed.tx().await;
    for number in [id(7), id(8), id(300)] {
        bed.set.free(&tx, number).await.expect("frees");
        assert!(matches!(
            bed.set.claim(&tx, number, plain()).await,
            Err(ObjectError::ObjectExists { .. })
        ));
    }
    assert_eq!(
        bed.set.next_object(Some(id(6))).await.expect("reads"),
        Some(id(9))
    );
    let fresh = bed
        .set
        .allocate(&tx, plain())
        .await
        .expect("allocates")
        .id();
    assert!(fresh > id(1000));
    drop(tx);
    bed.sync().await;
    let tx = bed.tx().await;
    let claimed = bed.set.claim(&tx, id(8), plain()).await.expect("claims");
    assert_eq!(claimed.id(), id(8));
    let mut again = Vec::new();
    for _ in 0..40 {
        again.push(
            bed.set
                .allocate(&tx, plain())
                .await
                .expect("allocates")
                .id(),
        );
    }
    assert!(again.contains(&id(7)) && again.contains(&id(300)) && !again.contains(&id(8)));
    drop(tx);
    let root = bed.sync().await;
    // A freshly opened set finds the free numbers as well.
    let set: std::sync::Arc<ObjectSet> = bed.reopen(root).await;
    let tx = bed.tx().await;
    let first = set.allocate(&tx, plain()).await.expect("allocates").id();
    assert!(first > id(1000) && first < id(1100), "{first}");
}

/// Goal: reading ahead and concurrent random writes of many tasks into one object lose nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_writers_of_one_object() {
    let bed = std::sync::Arc::new(
        Bed::with_cache(ObjsetKind::Volume, ObjsetOptions::default(), 1 << 20).await,
    );
    let tx = bed.tx().await;
    let new = NewObject::new(ObjectType::ZVOL).with_block_bytes(16 << 10);
    let object = bed.set.allocate(&tx, new).await.expect("allocates");
    drop(tx);
    const SECTORS: u64 = 4096;
    let mut tasks = Vec::new();
    for task in 0..4u64 {
        let (bed, object) = (bed.clone(), object.clone());
        tasks.push(tokio::spawn(async move {
            let mut dice = Dice(task);
            let mut mine = BTreeMap::new();
            for _ in 0..3000 {
                // Sectors of one task share blocks with those of the others.
                let sector = dice.next(SECTORS / 4) * 4 + task;
                let fill = dice.next(256) as u8;
                let tx = bed.tx().await;
                object
                    .write(&tx, sector * 512, Bytes::from(vec![fill; 512]))
                    .await
                    .expect("writes");
                drop(tx);
                mine.insert(sector, fill);
                let (sector, fill) = mine
                    .iter()
                    .nth(dice.next(mine.len() as u64) as usize)
                    .expect("some");
                let found = object.read_bytes(sector * 512, 512).await.expect("reads");
                assert!(found.iter().all(|byte| byte == fill), "sector {sector}");
            }
            mine
        }));
    }
    let syncing = {
        let bed = bed.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                tokio::time::sleep(std::time::Duration::from_millis(30)).await;
                bed.sync().await;
            }
        })
    };
    let mut all = BTreeMap::new();
    for task in tasks {
        all.extend(task.await.expect("no writer fails"));
    }
    syncing.await.expect("syncs");
    let root = bed.sync().await;
    bed.check().await;
    let again = bed
        .reopen(root)
        .await
        .hold(object.id())
        .await
        .expect("exists");
    let mut at = 0;
    while at < SECTORS {
        let part = again.read_bytes(at * 512, 128 << 10).await.expect("reads");
        for (offset, data) in part.chunks(512).enumerate() {
            let fill = all.get(&(at + offset as u64)).copied().unwrap_or(0);
            assert!(
                data.iter().all(|byte| *byte == fill),
                "sector {}",
                at + offset as u64
            );
        }
        at += 256;
    }
}

/// Goal: an object whose blocks are longer than the cipher takes can be read and freed, and each
/// way to write it is an error before the sync comes upon it; so is each way to make another one.
#[tokio::test]
async fn blocks_that_the_cipher_does_not_take_are_refused() {
    let mut bed = Bed::new(ObjsetKind::Filesystem, ObjsetOptions::default()).await;
    let mut dice = Dice(5);
    let file = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS);
    let tx = bed.tx().await;
    let long = bed
        .set
        .allocate(&tx, file.clone().with_block_bytes(128 << 10));
    let (long, short) = (
        long.await.expect("made").id(),
        bed.set.allocate(&tx, file.clone()),
    );
    let short = short.await.expect("made").id();
    let content = Bytes::from(dice.bytes(256 << 10));
    let object = bed.set.hold(long).await.expect("there");
    object
        .write(&tx, 0, content.clone())
        .await
        .expect("written");
    drop((object, tx));
    let root = bed.sync().await;
    bed.options.block_bytes_max = 64 << 10;
    bed.set = bed.reopen(root).await;

    let object = bed.set.hold(long).await.expect("there");
    let read = object.read(0, content.len()).await.expect("read").concat();
    assert_eq!(read, content);
    let tx = bed.tx().await;
    let is_refused = |result: Result<(), ObjectError>| {
        assert!(
            matches!(result, Err(ObjectError::BlockTooLong { .. })),
            "{result:?}"
        );
    };
    is_refused(object.prepare_write(0, 1).await);
    is_refused(object.write(&tx, 0, content.slice(..128 << 10)).await);
    is_refused(object.write(&tx, 7, content.slice(..1)).await);
    is_refused(object.rewrite_blocks(&tx, 0, 1, false).await.map(drop));
    is_refused(object.free_range(&tx, 7, 100).await);
    let other = bed.set.hold(short).await.expect("there");
    is_refused(other.set_block_size(&tx, 128 << 10, 0).await);
    let new = file.with_block_bytes(128 << 10);
    is_refused(bed.set.allocate(&tx, new.clone()).await.map(drop));
    is_refused(bed.set.claim(&tx, id(77), new.clone()).await.map(drop));
    is_refused(other.reclaim(&tx, &new, false).await);
    other
        .set_block_size(&tx, 64 << 10, 0)
        .await
        .expect("as long as can be");
    object.free_range(&tx, 0, u64::MAX).await.expect("freed");
    drop((object, other, tx));
    bed.sync().await;
    bed.check().await;
}
