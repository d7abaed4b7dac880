//! Goal: a traversal meets every block once, in the order of OpenZFS's bookmarks, and one that goes
//! on anywhere meets exactly the rest. Method: an object set with deep trees, holes, spill blocks
//! and big dnodes; the walk of the test bed, which knows nothing of order, says what there is.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Bed, Dice, id};
use bytes::Bytes;
use device::{BoxFuture, Tasks};
use format::{BlockPointer, Bookmark, ObjectType, ObjsetId, ObjsetKind, Txg};
use object::{Leads, Met, NewObject, ObjsetOptions, Traverse, Traversed, Visitor, traverse};
use parking_lot::Mutex;
use zio::{Pipeline, ReadContext, ZioError};

/// Notes what it meets, and ends before the block of number `left` that it may end before.
struct Notes {
    pipeline: Arc<Pipeline>,
    met: Mutex<Vec<(Bookmark, BlockPointer)>>,
    again: AtomicUsize,
    left: AtomicUsize,
}

impl Visitor for Notes {
    fn ends_before(&self, bookmark: &Bookmark) -> bool {
        assert!(bookmark.level <= 0);
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    fn meet(&self, met: &Met<'_>) -> bool {
        if met.is_again {
            assert_ne!(met.leads, Leads::Nowhere, "{}", met.bookmark);
            self.again.fetch_add(1, Ordering::Relaxed);
        } else {
            self.met.lock().push((met.bookmark, *met.pointer));
        }
        true
    }

    fn read(
        self: Arc<Self>,
        pointer: BlockPointer,
        bookmark: Bookmark,
    ) -> BoxFuture<'static, Result<Bytes, ZioError>> {
        Box::pin(async move {
            let context = ReadContext::new(bookmark);
            self.pipeline.read(&pointer, &context).await
        })
    }

    fn damaged(&self, bookmark: &Bookmark, why: &str) {
        panic!("{bookmark}: {why}");
    }
}

/// What is met from `from` on, until the visitor may have ended `left` times.
async fn walk(
    bed: &Bed,
    root: BlockPointer,
    after: Txg,
    from: Option<Bookmark>,
    left: usize,
) -> (Vec<(Bookmark, BlockPointer)>, Traversed) {
    let notes = Arc::new(Notes {
        pipeline: bed.pipeline.clone(),
        met: Mutex::default(),
        again: AtomicUsize::new(0),
        left: AtomicUsize::new(left),
    });
    let tasks = Tasks::new(&bed.world, |panic| panic!("{panic:?}"));
    let what = Traverse {
        root,
        objset: ObjsetId::new(7),
        after,
        from,
    };
    let traversed = traverse(&what, &tasks, &notes).await;
    assert!(!tasks.is_cancelled());
    let met = std::mem::take(&mut *notes.met.lock());
    (met, traversed)
}

async fn filled(bed: &Bed) -> BlockPointer {
    let mut dice = Dice(11);
    let tx = bed.tx().await;
    // Objects enough for several blocks of dnodes.
    for number in 0..90 {
        let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS)
            .with_block_bytes(512)
            // Few pointers, and so room for a spill block.
            .with_bonus(ObjectType::SA, vec![7; 192])
            .with_slots(1 + (number % 4) as u8);
        let object = bed.set.allocate(&tx, new).await.expect("an object");
        let spill = dice.bytes(600);
        if number % 5 == 0 {
            object.set_spill(&tx, spill.into()).expect("a spill block");
        }
        if number % 3 == 0 {
            let data = dice.bytes(2500);
            object.write(&tx, 512, data.into()).await.expect("written");
        }
        if number == 40 {
            // Three levels, with holes between.
            for block in [0u64, 1, 1023, 1024, 5000, 1 << 20, (1 << 20) + 3, 1 << 21] {
                let data = dice.bytes(512);
                let written = object.write(&tx, block * 512, data.into()).await;
                written.expect("written");
            }
        }
    }
    drop(tx);
    bed.sync().await
}

#[tokio::test]
async fn every_block_is_met_once_and_in_order() {
    let bed = Bed::new(ObjsetKind::Other, ObjsetOptions::default()).await;
    let root = filled(&bed).await;
    let (met, traversed) = walk(&bed, root, Txg::ZERO, None, usize::MAX).await;
    assert_eq!(traversed, Traversed::Whole);
    let reached = bed.check().await;
    let places: HashSet<[u64; 2]> = met
        .iter()
        .filter(|(_, pointer)| !pointer.is_embedded())
        .map(|(_, pointer)| [pointer.words()[0], pointer.words()[1]])
        .collect();
    assert_eq!(places.len(), reached.blocks.len());
    assert!(reached.blocks.keys().all(|place| places.contains(place)));
    let unique: HashSet<Bookmark> = met.iter().map(|(bookmark, _)| *bookmark).collect();
    assert_eq!(unique.len(), met.len());
    // Objects follow their numbers, and the data of each its offsets.
    let data: Vec<(u64, u64)> = met
        .iter()
        .filter(|(bookmark, _)| bookmark.level == 0 && !bookmark.object.is_zero())
        .filter(|(bookmark, _)| (bookmark.object.get() as i64) > 0)
        .map(|(bookmark, _)| (bookmark.object.get(), bookmark.block_id))
        .collect();
    assert!(data.is_sorted());
}

#[tokio::test]
async fn a_traversal_goes_on_wherever_it_ended() {
    let bed = Bed::new(ObjsetKind::Other, ObjsetOptions::default()).await;
    let root = filled(&bed).await;
    let (whole, _) = walk(&bed, root, Txg::ZERO, None, usize::MAX).await;
    let mut ends = 0;
    for left in 0.. {
        let (mut met, traversed) = walk(&bed, root, Txg::ZERO, None, left).await;
        let Traversed::Until(from) = traversed else {
            break;
        };
        ends += 1;
        assert!(from.level == 0);
        let (rest, traversed) = walk(&bed, root, Txg::ZERO, Some(from), usize::MAX).await;
        assert_eq!(traversed, Traversed::Whole);
        met.extend(rest);
        assert!(met == whole, "from {from}");
    }
    assert!(ends > 100, "{ends}");
    // In steps of the least: each goes further.
    let (mut met, mut from) = (Vec::new(), None);
    loop {
        let (part, traversed) =
            walk(&bed, root, Txg::ZERO, from, usize::from(from.is_none())).await;
        met.extend(part);
        match traversed {
            Traversed::Whole => break,
            Traversed::Until(place) => {
                assert_ne!(from, Some(place));
                from = Some(place);
            }
        }
    }
    assert!(met == whole);
}

#[tokio::test]
async fn only_what_was_born_later_is_entered() {
    let bed = Bed::new(ObjsetKind::Other, ObjsetOptions::default()).await;
    let before = filled(&bed).await.birth();
    let tx = bed.tx().await;
    let object = bed.set.hold(id(41)).await.expect("an object");
    let data = Bytes::from_static(&[9; 512]);
    object.write(&tx, 0, data).await.expect("written");
    drop(tx);
    let root = bed.sync().await;
    let (met, _) = walk(&bed, root, before, None, usize::MAX).await;
    assert!(met.iter().all(|(_, pointer)| pointer.birth() > before));
    let of_object = met
        .iter()
        .filter(|(bookmark, _)| bookmark.object.get() == 41);
    assert!(of_object.count() >= 1);
    assert!(met.len() < 20, "{met:?}");
}
