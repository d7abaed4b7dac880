//! Tests of writing blocks that come with their compressed form.

use codec::compress::{ZstdLevel, compress};
use device::sim::SimWorld;
use format::{Compression, ObjectType};

use super::*;
use crate::testing::{TestPool, leaf, noise, simulate};

const TXG: Txg = Txg::new(7);

/// Data that compresses to about half.
fn half_noise(length: usize) -> Vec<u8> {
    let mut out = noise(length, 3);
    for line in out.chunks_mut(64) {
        line[32..].fill(b' ');
    }
    out
}

async fn pool_of(ashift: u64) -> TestPool {
    let sim = SimWorld::new(5);
    let config = leaf(&sim, "single", 10);
    TestPool::create(sim, vec![config], ashift).await
}

/// Goal: what comes compressed is stored as it came, padded to what is allocated, unless that is no
/// shorter than the data; whatever the policy compresses with.
#[test]
fn what_comes_compressed_is_stored_as_it_came() {
    simulate(async {
        let data = half_noise(64 << 10);
        let kind = Compression::Gzip(9);
        let packed = compress(kind, ZstdLevel::default(), &data, data.len());
        let mut packed = packed.expect("gzip is there").expect("it becomes shorter");
        packed.resize(packed.len().next_multiple_of(512), 0);
        // So that it is padded with sectors of 4 KiB.
        if packed.len().is_multiple_of(4096) {
            packed.resize(packed.len() + 512, 0);
        }
        for (ashift, stored_bytes) in [(9, packed.len()), (12, packed.len().next_multiple_of(4096))]
        {
            let pool = pool_of(ashift).await;
            for compression in [Compression::Off, Compression::Lz4] {
                let policy = WritePolicy {
                    compression,
                    cache: false,
                    ..WritePolicy::data(ObjectType::PLAIN_FILE_CONTENTS)
                };
                let block = BlockData::packed(data.clone().into(), packed.clone().into(), kind);
                let written = pool.pipeline.write_in_turn(TXG, block, &policy, None);
                let bp = written.await.expect("written");
                assert_eq!(bp.compression(), kind);
                assert_eq!(bp.lsize_bytes(), data.len() as u64);
                assert_eq!(bp.psize_bytes(), stored_bytes as u64);
                let stored = pool
                    .pipeline
                    .reader()
                    .read_raw(&bp, &ReadContext::default())
                    .await;
                let stored = stored.expect("stored");
                assert!(stored[..packed.len()] == packed[..]);
                assert!(stored[packed.len()..].iter().all(|byte| *byte == 0));
                let read = pool
                    .pipeline
                    .read(&bp, &ReadContext::default())
                    .await
                    .expect("read");
                assert!(read == data);
            }
            let short = &data[..4096];
            let packed = compress(kind, ZstdLevel::default(), short, 4096);
            let mut packed = packed.expect("gzip is there").expect("it becomes shorter");
            packed.resize(packed.len().next_multiple_of(512), 0);
            let block = BlockData::packed(short.to_vec().into(), packed.into(), kind);
            let policy = WritePolicy {
                compression: Compression::Off,
                cache: false,
                ..WritePolicy::data(ObjectType::PLAIN_FILE_CONTENTS)
            };
            let written = pool.pipeline.write_in_turn(TXG, block, &policy, None);
            let bp = written.await.expect("written");
            assert_eq!(bp.compression() == kind, ashift == 9);
            let read = pool
                .pipeline
                .read(&bp, &ReadContext::default())
                .await
                .expect("read");
            assert!(read == short);
        }
    });
}
