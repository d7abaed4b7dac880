//! ZAPs against a map.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::common::{Bed, Dice, all_objects, id};
use format::{ObjectType, ObjsetKind};
use object::{
    NORMALIZE_UPPERCASE, NewObject, ObjectError, ObjectSet, ObjsetOptions, Zap, ZapCursor,
    ZapOptions, ZapValue, forget_zap_content,
};

async fn bed() -> Bed {
    Bed::new(ObjsetKind::Other, ObjsetOptions::default()).await
}

async fn check(zap: &Zap, model: &BTreeMap<Vec<u8>, ZapValue>) {
    assert_eq!(zap.count().await.expect("counts"), model.len() as u64);
    for (name, value) in model {
        let found = zap.lookup(name).await.expect("looks up");
        assert_eq!(
            found.as_ref(),
            Some(value),
            "{:?}",
            String::from_utf8_lossy(name)
        );
    }
    assert_eq!(zap.lookup("no such name").await.expect("looks up"), None);
    let mut cursor = ZapCursor::START;
    let mut listed = BTreeMap::new();
    loop {
        let entries = zap.entries(cursor, 7).await.expect("lists");
        let Some(last) = entries.last() else { break };
        assert!(last.next > cursor);
        cursor = ZapCursor::from_cookie(last.next.cookie());
        for entry in entries {
            let before = listed.insert(entry.name.to_vec(), entry.value);
            assert!(before.is_none(), "{:?} was listed twice", entry.name);
        }
    }
    assert_eq!(&listed, model);
}

async fn reopened(bed: &Bed, number: u64) -> (Arc<ObjectSet>, Zap) {
    let root = bed.sync().await;
    let set = bed.reopen(root).await;
    let zap = Zap::hold(&set, id(number)).await.expect("opens");
    (set, zap)
}

fn value(dice: &mut Dice, only_words: bool) -> ZapValue {
    if only_words || dice.next(3) == 0 {
        return ZapValue::from_u64(dice.next(1 << 40));
    }
    let count = dice.next(40) as usize;
    let integer_bytes = [1u8, 2, 4, 8][dice.next(4) as usize];
    ZapValue {
        integer_bytes,
        data: dice.bytes(count * usize::from(integer_bytes)).into(),
    }
}

/// Goal: within a txg a leaf is changed where it is: an entry more, another value or an entry less
/// copies no block. Method: where the leaf's bytes are in memory, while nobody else has them.
#[tokio::test]
async fn leaves_are_changed_in_place() {
    const BLOCK_SHIFT: u8 = 15;
    let bed = bed().await;
    let tx = bed.tx().await;
    let options = ZapOptions {
        flags: Zap::FLAG_HASH64 | Zap::FLAG_UINT64_KEY,
        block_shift: BLOCK_SHIFT,
        ..ZapOptions::new(ObjectType::ZAP_OTHER)
    };
    let zap = Zap::create(&bed.set, &tx, options).await.expect("creates");
    let object = bed.set.hold(zap.id()).await.expect("there");
    let place = async || {
        let read = object.read_bytes(1 << BLOCK_SHIFT, 1 << BLOCK_SHIFT);
        read.await.expect("reads").as_ptr()
    };
    let mut places = Vec::new();
    for number in 0..40 {
        let key = [number, 7];
        let value = ZapValue::from_u64s(&[number, number]);
        zap.update_u64_key(&tx, &key, value).await.expect("adds");
        places.push(place().await as usize);
        let value = ZapValue::from_u64s(&[number]);
        zap.update_u64_key(&tx, &key, value).await.expect("updates");
        places.push(place().await as usize);
        if number.is_multiple_of(3) {
            zap.remove_u64_key(&tx, &key).await.expect("removes");
            places.push(place().await as usize);
        }
    }
    assert_eq!(zap.count().await.expect("counts"), 40 - 14);
    places.dedup();
    assert_eq!(places.len(), 1, "the leaf was copied");
}

/// Goal: a ZAP is a map, in its micro form, through the upgrade, and with leaves that split;
/// cursors list every name once. Method: random changes against a `BTreeMap`, read back in place
/// and from disk.
#[tokio::test]
async fn a_zap_is_a_map() {
    for seed in 1..=6 {
        let bed = bed().await;
        let mut dice = Dice(seed);
        let tx = bed.tx().await;
        let zap = Zap::create(&bed.set, &tx, ZapOptions::new(ObjectType::ZAP_OTHER))
            .await
            .expect("creates");
        drop(tx);
        let mut model = BTreeMap::new();
        let micro_only = seed <= 2;
        for _ in 0..6 {
            for _ in 0..250 {
                let tx = bed.tx().await;
                let long = if micro_only { 40 } else { 200 };
                let width = 1 + dice.next(3) * dice.next(long) / 2;
                let number = dice.next(500);
                let name =
                    format!("{number:0width$}", width = width.min(long) as usize).into_bytes();
                match dice.next(10) {
                    0..3 => {
                        let found = zap.remove(&tx, &name).await;
                        assert_eq!(found.is_ok(), model.remove(&name).is_some());
                    }
                    3..6 => {
                        let value = value(&mut dice, micro_only);
                        let added = zap.add(&tx, &name, value.clone()).await;
                        match added {
                            Ok(()) => assert!(model.insert(name, value).is_none()),
                            Err(error) => assert!(error.is_exists() && model.contains_key(&name)),
                        }
                    }
                    _ => {
                        let value = value(&mut dice, micro_only);
                        zap.update(&tx, &name, value.clone())
                            .await
                            .expect("updates");
                        model.insert(name, value);
                    }
                }
            }
            check(&zap, &model).await;
            let (_set, again) = reopened(&bed, zap.id().get()).await;
            check(&again, &model).await;
            assert_eq!(again.is_fat().await.expect("known"), !micro_only);
        }
        bed.check().await;
    }
}

/// Goal: what is in memory of a ZAP beside its blocks can be let go of at any time, and is charged
/// no more then; nothing that was changed is lost. Method: a small ZAP and one that has become fat,
/// dirty and on disk.
#[tokio::test]
async fn the_content_of_a_zap_can_be_forgotten() {
    let bed = bed().await;
    let charge = bed.pipeline.cache().charge();
    let tx = bed.tx().await;
    let options = ZapOptions::new(ObjectType::ZAP_OTHER);
    let zap = Zap::create(&bed.set, &tx, options).await.expect("creates");
    let mut model = BTreeMap::new();
    for (count, is_fat) in [(100, false), (5000, true)] {
        for number in model.len() as u64..count {
            let name = format!("name {number}");
            zap.add_u64(&tx, &name, number).await.expect("adds");
            model.insert(name.into_bytes(), ZapValue::from_u64(number));
        }
        let before = charge.used_bytes();
        forget_zap_content(&zap).await;
        // Its block has 64 bytes for each name.
        let given_back = before.saturating_sub(charge.used_bytes());
        assert_eq!(given_back >= 6400, !is_fat, "{given_back}");
        assert_eq!(zap.is_fat().await.expect("known"), is_fat);
        check(&zap, &model).await;
    }
    forget_zap_content(&zap).await;
    zap.update(&tx, "name 7", ZapValue::from_u64(77))
        .await
        .expect("updates");
    model.insert(b"name 7".to_vec(), ZapValue::from_u64(77));
    drop(tx);
    let (_set, again) = reopened(&bed, zap.id().get()).await;
    check(&again, &model).await;
    forget_zap_content(&again).await;
    check(&again, &model).await;
    bed.check().await;
}

/// Goal: a ZAP that is made with all its entries is the same map as one to which they were added,
/// here and read back, and can be changed afterwards; each block of it is written once, and the
/// fullest micro ZAP is one block. Method: as many entries as make it micro, just so, and fat.
#[tokio::test]
async fn a_zap_is_filled_at_once() {
    let bed = bed().await;
    for (count, blocks) in [(0, 1), (7, 1), (8, 1), (2047, 1), (2048, 17), (9000, 65)] {
        let entries: Vec<(String, u64)> = (0..count)
            .map(|number: u64| (format!("{:x}", number * 77), number))
            .collect();
        let mut model: BTreeMap<Vec<u8>, ZapValue> = entries
            .iter()
            .map(|(name, value)| (name.clone().into_bytes(), ZapValue::from_u64(*value)))
            .collect();
        let tx = bed.tx().await;
        let options = ZapOptions::new(ObjectType::DEADLIST);
        let zap = Zap::create_filled(&bed.set, &tx, options, &entries)
            .await
            .expect("is made");
        drop(tx);
        check(&zap, &model).await;
        assert_eq!(zap.is_fat().await.expect("known"), count > 2047);
        let (_set, again) = reopened(&bed, zap.id().get()).await;
        check(&again, &model).await;
        // Leaves are split where they are full: about as many as there are pointers of one length.
        let written = again.object().info().max_block_id + 1;
        assert!(
            written <= blocks + blocks / 4,
            "{written} blocks for {count}"
        );
        let mut ints = again.all_ints().await.expect("lists");
        ints.sort_unstable();
        assert!(
            ints.iter()
                .copied()
                .eq((0..count).map(|number| (number * 77, number)))
        );
        for number in (0..count + 300).step_by(3) {
            let tx = bed.tx().await;
            let name = format!("{:x}", number * 77);
            if model.remove(name.as_bytes()).is_some() {
                zap.remove(&tx, &name).await.expect("is removed");
            } else {
                zap.add_u64(&tx, &name, 5).await.expect("is added");
                model.insert(name.into_bytes(), ZapValue::from_u64(5));
            }
        }
        let (_set, again) = reopened(&bed, zap.id().get()).await;
        check(&again, &model).await;
    }
    bed.check().await;
}

/// What cannot be a ZAP is refused before there is an object.
#[tokio::test]
async fn a_zap_is_filled_with_different_names() {
    let bed = bed().await;
    let tx = bed.tx().await;
    let twice = [
        ("a".to_owned(), 1),
        ("b".to_owned(), 2),
        ("a".to_owned(), 3),
    ];
    let options = ZapOptions::new(ObjectType::DEADLIST);
    let refused = Zap::create_filled(&bed.set, &tx, options.clone(), &twice).await;
    assert!(matches!(refused, Err(ObjectError::Misuse { .. })));
    let flagged = ZapOptions {
        flags: Zap::FLAG_HASH64,
        ..options
    };
    let refused = Zap::create_filled(&bed.set, &tx, flagged, &twice[..2]).await;
    assert!(matches!(refused, Err(ObjectError::Misuse { .. })));
    drop(tx);
    bed.sync().await;
    assert!(all_objects(&bed.set).await.is_empty());
}

/// Goal: a directory of 200,000 names works and stays quick; the pointer table leaves the header
/// and doubles several times.
#[tokio::test]
async fn many_names() {
    let bed = bed().await;
    let tx = bed.tx().await;
    let zap = Zap::create(
        &bed.set,
        &tx,
        ZapOptions::new(ObjectType::DIRECTORY_CONTENTS),
    )
    .await
    .expect("creates");
    drop(tx);
    const COUNT: u64 = 200_000;
    let mut root = None;
    for round in 0..4u64 {
        for number in (0..COUNT).filter(|number| number % 4 == round) {
            let tx = bed.tx().await;
            zap.add_u64(&tx, format!("file-{number}"), number)
                .await
                .expect("adds");
        }
        root = Some(bed.sync().await);
    }
    bed.check().await;
    let set = bed.reopen(root.expect("synced")).await;
    let zap = Zap::hold(&set, zap.id()).await.expect("opens");
    assert_eq!(zap.count().await.expect("counts"), COUNT);
    for number in (0..COUNT).step_by(97) {
        let name = format!("file-{number}");
        assert_eq!(zap.lookup_u64(&name).await.expect("looks up"), Some(number));
        assert_eq!(
            zap.lookup_u64(format!("nofile-{number}"))
                .await
                .expect("looks up"),
            None
        );
    }
    let mut seen = vec![false; COUNT as usize];
    let mut cursor = ZapCursor::START;
    loop {
        let entries = zap.entries(cursor, 1000).await.expect("lists");
        let Some(last) = entries.last() else { break };
        cursor = last.next;
        for entry in &entries {
            let number = entry.value.as_u64().expect("a number") as usize;
            assert_eq!(entry.name_str(), format!("file-{number}"));
            assert!(!std::mem::replace(&mut seen[number], true), "listed twice");
        }
    }
    assert!(seen.iter().all(|seen| *seen));
}

/// Goal: a cursor that was handed out stays good while names come and go: names that were there
/// all the time are listed exactly once.
#[tokio::test]
async fn cursors_survive_changes_and_the_upgrade() {
    let bed = bed().await;
    let tx = bed.tx().await;
    let zap = Zap::create(
        &bed.set,
        &tx,
        ZapOptions::new(ObjectType::DIRECTORY_CONTENTS),
    )
    .await
    .expect("creates");
    for number in 0..300u64 {
        zap.add_u64(&tx, format!("stays{number}"), number)
            .await
            .expect("adds");
    }
    let mut dice = Dice(5);
    let mut seen = HashMap::new();
    let mut cursor = ZapCursor::START;
    loop {
        let entries = zap.entries(cursor, 3).await.expect("lists");
        let Some(last) = entries.last() else { break };
        cursor = last.next;
        for entry in entries {
            *seen.entry(entry.name_str().into_owned()).or_insert(0) += 1;
        }
        for _ in 0..40 {
            let name = format!("goes{}", dice.next(4000));
            let value = ZapValue::from_u64s(&[1, 2]);
            if zap.remove(&tx, &name).await.is_err() {
                zap.add(&tx, &name, value).await.expect("adds");
            }
        }
    }
    assert!(zap.is_fat().await.expect("known"));
    for number in 0..300 {
        assert_eq!(seen[&format!("stays{number}")], 1, "stays{number}");
    }
}

/// Goal: keys of integers, their own hash, and the 48-bit hash.
#[tokio::test]
async fn keys_of_integers() {
    let bed = bed().await;
    let tx = bed.tx().await;
    let mut options = ZapOptions::new(ObjectType::DDT_ZAP);
    options.flags = Zap::FLAG_HASH64 | Zap::FLAG_UINT64_KEY | Zap::FLAG_PRE_HASHED_KEY;
    options.block_shift = 12;
    let zap = Zap::create(&bed.set, &tx, options).await.expect("creates");
    let mut dice = Dice(9);
    let mut model = HashMap::new();
    for _ in 0..3000 {
        let key = [dice.next(u64::MAX) << 32 | dice.next(50), dice.next(3)];
        let value = ZapValue::from_bytes(dice.bytes(30));
        zap.update_u64_key(&tx, &key, value.clone())
            .await
            .expect("updates");
        model.insert(key, value);
        if dice.next(3) == 0 {
            let key = *model.keys().next().expect("some");
            model.remove(&key);
            zap.remove_u64_key(&tx, &key).await.expect("removes");
        }
    }
    assert!(zap.lookup("a name").await.expect("looks up").is_none());
    drop(tx);
    let (_set, zap) = reopened(&bed, zap.id().get()).await;
    assert_eq!(zap.count().await.expect("counts"), model.len() as u64);
    for (key, value) in &model {
        assert_eq!(
            zap.lookup_u64_key(key).await.expect("looks up").as_ref(),
            Some(value)
        );
    }
    for entry in zap.all().await.expect("lists") {
        let key: [u64; 2] = entry.key_words().try_into().expect("two words");
        assert_eq!(model.remove(&key), Some(entry.value));
    }
    assert!(model.is_empty());
}

/// Goal: counters go up and down, and vanish at zero.
#[tokio::test]
async fn counters() {
    let bed = bed().await;
    let tx = bed.tx().await;
    let zap = Zap::create(&bed.set, &tx, ZapOptions::new(ObjectType::ZAP_OTHER))
        .await
        .expect("creates");
    zap.increment(&tx, "a", 5).await.expect("counts");
    zap.increment(&tx, "a", -2).await.expect("counts");
    assert_eq!(zap.lookup_u64("a").await.expect("looks up"), Some(3));
    zap.increment(&tx, "a", -3).await.expect("counts");
    assert_eq!(zap.lookup_u64("a").await.expect("looks up"), None);
    zap.add_int(&tx, 0x1234, 7).await.expect("adds");
    assert_eq!(zap.lookup_u64("1234").await.expect("looks up"), Some(7));
    assert_eq!(
        zap.value_search(7, u64::MAX)
            .await
            .expect("searches")
            .as_deref(),
        Some(&b"1234"[..])
    );
    assert_eq!(zap.value_search(8, u64::MAX).await.expect("searches"), None);
}

/// Goal: names that differ by case only are found, the exact one first, in both forms.
#[tokio::test]
async fn names_whatever_their_case() {
    let bed = bed().await;
    let tx = bed.tx().await;
    let mut options = ZapOptions::new(ObjectType::DIRECTORY_CONTENTS);
    options.normalization = NORMALIZE_UPPERCASE;
    let zap = Zap::create(&bed.set, &tx, options).await.expect("creates");
    let upper = |name: &[u8]| name.to_ascii_uppercase();
    for form in ["micro", "fat"] {
        zap.add_u64(&tx, format!("{form}-Name"), 1)
            .await
            .expect("adds");
        zap.add_u64(&tx, format!("{form}-name"), 2)
            .await
            .expect("adds");
        let found = zap
            .lookup_normalized(format!("{form}-NAME"), &upper)
            .await
            .expect("looks up");
        assert_eq!(found.expect("there").value.as_u64(), Some(1));
        let found = zap
            .lookup_normalized(format!("{form}-name"), &upper)
            .await
            .expect("looks up");
        assert_eq!(found.expect("there").value.as_u64(), Some(2));
        assert_eq!(
            zap.lookup_u64(format!("{form}-NAME"))
                .await
                .expect("looks up"),
            None
        );
        let all = zap.all().await.expect("lists");
        assert!(
            all.iter()
                .filter(|e| e.name.starts_with(form.as_bytes()))
                .all(|e| e.normalization_conflict)
        );
        zap.add(
            &tx,
            "a name that is much too long for the micro form of a ZAP, in bytes",
            3.into(),
        )
        .await
        .ok();
    }
    assert!(zap.is_fat().await.expect("known"));
    assert!(
        zap.add_u64(&tx, "gr\u{fc}n", 1).await.is_err(),
        "not ASCII, and no function given"
    );
    let full = zap.clone().with_normalizer(Arc::new(|name: &[u8]| {
        String::from_utf8_lossy(name).to_uppercase().into_bytes()
    }));
    full.add_u64(&tx, "gr\u{fc}n", 1).await.expect("adds");
    assert_eq!(
        full.lookup_u64("gr\u{fc}n").await.expect("looks up"),
        Some(1)
    );
}

/// Goal: an object of another type becomes a ZAP and keeps its bonus; doing so twice does nothing.
#[tokio::test]
async fn zapify_keeps_the_bonus() {
    let bed = bed().await;
    let tx = bed.tx().await;
    let new =
        NewObject::new(ObjectType::DSL_DATASET).with_bonus(ObjectType::DSL_DATASET, vec![7u8; 320]);
    let object = bed.set.allocate(&tx, new).await.expect("allocates");
    assert!(Zap::open(object.clone()).await.is_err());
    let zap = Zap::zapify(&bed.set, &tx, object.id(), ObjectType::DSL_DATASET)
        .await
        .expect("zapifies");
    zap.add_u64(&tx, "com.delphix:x", 1).await.expect("adds");
    Zap::zapify(&bed.set, &tx, object.id(), ObjectType::DSL_DATASET)
        .await
        .expect("again");
    drop(tx);
    let (set, zap) = reopened(&bed, object.id().get()).await;
    assert_eq!(
        zap.lookup_u64("com.delphix:x").await.expect("looks up"),
        Some(1)
    );
    let object = set.hold(object.id()).await.expect("exists");
    assert_eq!(object.bonus()[..], [7u8; 320]);
    assert_eq!(object.info().object_type, ObjectType::OTN_ZAP_METADATA);
}

/// Goal: many tasks read while one writes, and none ever misses a name that is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_see_no_half_done_change() {
    let bed = Arc::new(bed().await);
    let tx = bed.tx().await;
    let zap = Zap::create(
        &bed.set,
        &tx,
        ZapOptions::new(ObjectType::DIRECTORY_CONTENTS),
    )
    .await
    .expect("creates");
    for number in 0..500u64 {
        zap.add_u64(&tx, format!("there-{number}"), number)
            .await
            .expect("adds");
    }
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut readers = Vec::new();
    for seed in 0..3 {
        let (zap, stop) = (zap.clone(), stop.clone());
        readers.push(tokio::spawn(async move {
            let mut dice = Dice(seed);
            let mut count = 0u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let number = dice.next(500);
                let name = format!("there-{number}");
                assert_eq!(
                    zap.lookup_u64(&name).await.expect("looks up"),
                    Some(number),
                    "{name}"
                );
                count += 1;
                if count.is_multiple_of(64) {
                    tokio::task::yield_now().await;
                }
            }
            count
        }));
    }
    for number in 0..20_000u64 {
        zap.add_u64(&tx, format!("new-{number}"), number)
            .await
            .expect("adds");
        if number % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for reader in readers {
        assert!(reader.await.expect("no reader fails") > 0);
    }
}
