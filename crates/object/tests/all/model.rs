//! Objects against a plain model: random changes over many txgs, read back in memory, after every
//! sync from the root block, and all blocks accounted for.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Bed, Dice, all_objects, id};
use bytes::Bytes;
use format::{ObjectType, ObjsetKind};
use object::{NewObject, Object, ObjectSet, ObjsetOptions};
use zio::Tx;

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    objects: BTreeMap<u64, ModelObject>,
}

#[derive(Clone, Debug, PartialEq)]
struct ModelObject {
    content: Vec<u8>,
    bonus: Vec<u8>,
    spill: Option<Vec<u8>>,
}

const LIMIT: usize = 1 << 20;

impl ModelObject {
    fn write(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
        self.content[at..end].copy_from_slice(data);
    }

    fn free(&mut self, at: usize, length: usize) {
        let end = at.saturating_add(length).min(self.content.len());
        if at < end {
            self.content[at..end].fill(0);
        }
    }
}

async fn same(object: &Object, model: &ModelObject) {
    let length = model.content.len() + 5000;
    let data = object.read_bytes(0, length).await.expect("reads");
    assert_eq!(data.len(), length);
    let (body, tail) = data.split_at(model.content.len());
    if let Some(at) = (0..body.len()).find(|at| body[*at] != model.content[*at]) {
        panic!(
            "object {} differs at {at}: {} instead of {}; {:?}",
            object.id(),
            body[at],
            model.content[at],
            object.info()
        );
    }
    assert!(
        tail.iter().all(|byte| *byte == 0),
        "beyond the end are zeros"
    );
    assert_eq!(
        object.bonus()[..],
        model.bonus[..],
        "bonus of {}",
        object.id()
    );
    let spill = object.spill().await.expect("reads");
    match (&spill, &model.spill) {
        (None, None) => {}
        (Some(found), Some(wanted)) => assert_eq!(found[..wanted.len()], wanted[..]),
        _ => panic!(
            "spill of {}: {spill:?} instead of {:?}",
            object.id(),
            model.spill
        ),
    }
}

async fn check(set: &Arc<ObjectSet>, model: &Model) {
    let wanted: Vec<u64> = model.objects.keys().copied().collect();
    assert_eq!(all_objects(set).await, wanted);
    for (number, object) in &model.objects {
        let handle = set.hold(id(*number)).await.expect("exists");
        same(&handle, object).await;
        // Holes and data, by the byte.
        let mut at = 0;
        while let Some(data) = handle.next_data(at).await.expect("reads") {
            let gap = &object.content[(at as usize).min(object.content.len())
                ..(data as usize).min(object.content.len())];
            assert!(
                gap.iter().all(|byte| *byte == 0),
                "data at {at} said to be a hole"
            );
            at = handle.next_hole(data).await.expect("reads");
            assert!(at > data);
        }
        let rest = object.content.get(at as usize..).unwrap_or_default();
        assert!(rest.iter().all(|byte| *byte == 0));
    }
}

/// One random change, made to both.
async fn change(dice: &mut Dice, bed: &Bed, tx: &Tx, model: &mut Model) {
    let what = dice.next(100);
    if model.objects.len() < 3 || (what < 6 && model.objects.len() < 60) {
        let slots = [0, 1, 2, 4][dice.next(4) as usize];
        let bonus_length = dice.next(100) as usize;
        let bonus = dice.bytes(bonus_length);
        let new = NewObject {
            indirect_block_shift: [12, 12, 13, 0][dice.next(4) as usize],
            ..NewObject::new(ObjectType::PLAIN_FILE_CONTENTS)
                .with_block_bytes([0, 512, 1536, 4096, 16384, 131072][dice.next(6) as usize])
                .with_bonus(
                    [ObjectType::PLAIN_OTHER, ObjectType::SA][dice.next(2) as usize],
                    bonus.clone(),
                )
                .with_slots(slots)
        };
        let object = bed.set.allocate(tx, new).await.expect("allocates");
        let before = model.objects.insert(
            object.id().get(),
            ModelObject {
                content: Vec::new(),
                bonus,
                spill: None,
            },
        );
        assert!(before.is_none(), "a number was given out twice");
        return;
    }
    let index = dice.next(model.objects.len() as u64) as usize;
    let number = *model.objects.keys().nth(index).expect("there are enough");
    if what < 9 {
        bed.set.free(tx, id(number)).await.expect("frees");
        model.objects.remove(&number);
        assert!(bed.set.hold(id(number)).await.is_err());
        return;
    }
    let object = bed.set.hold(id(number)).await.expect("exists");
    let entry = model.objects.get_mut(&number).expect("exists");
    let block = object.info().data_block_bytes as usize;
    match what {
        9..60 => {
            let far = dice.next(3) == 0;
            let at = dice.next(if far { LIMIT as u64 } else { 8 * block as u64 });
            let length = 1 + dice.next(3 * block as u64) as usize;
            let (at, length) = match dice.next(3) {
                0 => (
                    at as usize / block * block,
                    block * (1 + dice.next(3) as usize),
                ),
                _ => (at as usize, length),
            };
            let data = match dice.next(8) {
                0 => vec![0; length],
                _ => dice.bytes(length),
            };
            entry.write(at, &data);
            object
                .write(tx, at as u64, Bytes::from(data))
                .await
                .expect("writes");
        }
        60..75 => {
            let part = 1 + dice.next(20);
            let at = dice.next(LIMIT as u64 / part) as usize;
            let length = 1 + dice.next(LIMIT as u64 / 2) as usize;
            entry.free(at, length);
            object
                .free_range(tx, at as u64, length as u64)
                .await
                .expect("frees");
        }
        75..82 => {
            let at = dice.next(entry.content.len() as u64 + 1) as usize;
            entry.content.truncate(at);
            object
                .free_range(tx, at as u64, u64::MAX)
                .await
                .expect("truncates");
        }
        82..86 => {
            let size = 512 << dice.next(9);
            match object.set_block_size(tx, size, 0).await {
                Ok(()) => {
                    assert_eq!(object.info().data_block_bytes, size);
                    if size as usize != block {
                        entry.content.truncate(size as usize);
                    }
                }
                Err(error) => assert!(
                    matches!(error, object::ObjectError::BlockSizeFixed { .. }),
                    "{error}"
                ),
            }
        }
        86..92 => {
            let room = object.info().bonus_room_bytes.min(200) as u64;
            let length = dice.next(room + 1) as usize;
            let bonus = dice.bytes(length);
            object.set_bonus(tx, bonus.clone()).expect("fits");
            entry.bonus = bonus;
        }
        92..96 => {
            let length = 1 + dice.next(9000) as usize;
            let spill = dice.bytes(length);
            match object.set_spill(tx, Bytes::from(spill.clone())) {
                Ok(()) => entry.spill = Some(spill),
                Err(error) => assert!(
                    matches!(error, object::ObjectError::TooBig { .. }),
                    "{error}"
                ),
            }
        }
        96..98 => {
            object.remove_spill(tx).expect("removes");
            entry.spill = None;
        }
        _ => same(&object, entry).await,
    }
}

async fn run(seed: u64, kind: ObjsetKind, options: ObjsetOptions, cache_bytes: u64, txgs: u64) {
    let bed = Bed::with_cache(kind, options, cache_bytes).await;
    let mut dice = Dice(seed);
    let mut model = Model::default();
    for round in 0..txgs {
        for _ in 0..dice.next(40) {
            let tx = bed.tx().await;
            change(&mut dice, &bed, &tx, &mut model).await;
        }
        if dice.next(3) == 0 {
            check(&bed.set, &model).await;
        }
        // While this txg is written, the next one is filled.
        let closed = model.clone();
        let txg = bed.txgs.quiesce().await;
        let syncing = async {
            let root = bed.sync_pass(txg, 1).await;
            bed.finish(txg).await;
            root
        };
        let filling = async {
            for _ in 0..dice.next(15) {
                let tx = bed.tx().await;
                change(&mut dice, &bed, &tx, &mut model).await;
                tokio::task::yield_now().await;
            }
            check(&bed.set, &model).await;
        };
        let (root, ()) = tokio::join!(syncing, filling);
        let reached = bed.check().await;
        assert_eq!(reached.dnodes.len(), closed.objects.len());
        check(&bed.reopen(root).await, &closed).await;
        if round % 4 == 3 {
            // All that is in memory, and need not be, is given back.
            let cache = bed.set.pipeline().cache();
            cache.shared().set_limit_bytes(0);
            cache.shared().set_limit_bytes(cache_bytes);
        }
    }
    // Everything freed: only heads are left.
    let tx = bed.tx().await;
    for number in all_objects(&bed.set).await {
        bed.set.free(&tx, id(number)).await.expect("frees");
    }
    drop(tx);
    bed.sync().await;
    let reached = bed.check().await;
    assert_eq!(reached.dnodes.len(), 0);
    // The root, and what of the dnodes' tree does not become a hole: nothing.
    let others = reached
        .blocks
        .values()
        .filter(|block| block.object_type() != ObjectType::USERGROUP_USED)
        .count();
    assert_eq!(others, 1, "{:?}", reached.blocks.values());
}

/// Goal: whatever is done to objects, every reader sees what a plain array would hold.
#[tokio::test]
async fn objects_hold_what_was_written() {
    for seed in 1..=5 {
        run(
            seed,
            ObjsetKind::Other,
            ObjsetOptions::default(),
            64 << 20,
            12,
        )
        .await;
    }
}

/// Goal: the same when almost nothing stays in the cache, and objects are dropped from memory.
#[tokio::test]
async fn objects_hold_what_was_written_without_a_cache() {
    for seed in 20..=21 {
        let options = ObjsetOptions {
            object_cache_limit: 1,
            ..ObjsetOptions::default()
        };
        run(seed, ObjsetKind::Filesystem, options, 0, 10).await;
    }
}

/// Goal: the same without the features that change what is on disk.
#[tokio::test]
async fn objects_hold_what_was_written_in_an_old_pool() {
    for seed in 30..=31 {
        let options = ObjsetOptions {
            hole_birth: false,
            embedded_data: false,
            lz4_metadata: false,
            ..ObjsetOptions::default()
        };
        run(seed, ObjsetKind::Meta, options, 1 << 20, 10).await;
    }
}
