//! Goal: a block that comes with its compressed form is stored as that, whatever the properties
//! say; one that is changed before it is on disk holds the change, however it was changed. Method:
//! blocks are written, changed in each way, synced, and read by an object set that was just opened.

use bytes::Bytes;
use codec::compress::{ZstdLevel, compress};
use format::{Compression, ObjectType, ObjsetKind};
use object::{NewObject, ObjsetOptions, WriteProperties};
use zio::BlockData;

use crate::common::{Bed, id};

const BLOCK_BYTES: usize = 16 << 10;

/// A block of one letter, with its compressed form.
fn packed(letter: u8) -> BlockData {
    let data = vec![letter; BLOCK_BYTES];
    let kind = Compression::Gzip(9);
    let most = BLOCK_BYTES - 512;
    let stored = compress(kind, ZstdLevel::default(), &data, most).expect("it can be compressed");
    let mut stored = stored.expect("it becomes shorter");
    stored.resize(stored.len().next_multiple_of(512), 0);
    BlockData::packed(data.into(), stored.into(), kind)
}

#[tokio::test]
async fn what_comes_compressed_is_stored_so_until_it_changes() {
    let options = ObjsetOptions {
        properties: WriteProperties {
            compression: Compression::Off,
            ..WriteProperties::default()
        },
        ..ObjsetOptions::default()
    };
    let bed = Bed::new(ObjsetKind::Other, options).await;
    let at = |block: usize| (block * BLOCK_BYTES) as u64;
    let tx = bed.tx().await;
    let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS).with_block_bytes(BLOCK_BYTES as u32);
    let object = bed.set.claim(&tx, id(1), new).await.expect("claims");
    let mut wanted = Vec::new();
    for block in 0..8 {
        let data = packed(b'a' + block as u8);
        wanted.push(data.bytes().to_vec());
        let written = object.write_packed(&tx, at(block), data);
        written.await.expect("writes");
    }
    // A part of one, another one whole, one freed, one freed and written anew, one packed anew.
    let change = Bytes::from_static(b"changed");
    wanted[1][100..107].copy_from_slice(&change);
    let written = object.write(&tx, at(1) + 100, change);
    written.await.expect("writes");
    wanted[2].fill(b'Z');
    let whole = Bytes::from(wanted[2].clone());
    object.write(&tx, at(2), whole).await.expect("writes");
    for block in [3, 4] {
        let freed = object.free_range(&tx, at(block), BLOCK_BYTES as u64);
        freed.await.expect("frees");
        wanted[block].fill(0);
    }
    wanted[4].fill(b'Y');
    let anew = Bytes::from(wanted[4].clone());
    object.write(&tx, at(4), anew).await.expect("writes");
    let other = packed(b'X');
    wanted[5] = other.bytes().to_vec();
    let written = object.write_packed(&tx, at(5), other);
    written.await.expect("writes");
    drop(tx);
    let root = bed.sync().await;
    let set = bed.reopen(root).await;
    let object = set.hold(id(1)).await.expect("there");
    for (block, wanted) in wanted.iter().enumerate() {
        let read = object.read_bytes(at(block), BLOCK_BYTES).await;
        assert!(read.expect("reads") == *wanted, "block {block}");
    }
    // Those that are as they came take a sector each; three of the seven were changed.
    let used = object.info().used_bytes as usize;
    assert!((3 * BLOCK_BYTES..6 * BLOCK_BYTES).contains(&used), "{used}");
    bed.check().await;
}
