//! Goal: what a cache device gives is what the pool has, or nobody hears of it; nothing is on it
//! that the pool has not stored. Method: simulated disks, blocks of all kinds, counted reads.

use codec::crypt::{DataKey, Suite};
use device::sim::{Fault, FaultEffect, SimDisk, SimOp, SimWorld};
use format::{Bookmark, Checksum, Compression, Guid, ObjectType};
use l2arc::{CacheDevice, Identity, State};

use super::*;
use crate::testing::{TestPool, leaf, noise, simulate};

const TXG: Txg = Txg::new(7);
const CACHE_BYTES: u64 = 64 << 20;
const OBJSET: u64 = 54;

struct Rig {
    pool: TestPool,
    ssd: SimDisk,
}

impl Rig {
    async fn new() -> Self {
        let sim = SimWorld::new(5);
        let config = leaf(&sim, "single", 10);
        let ssd = sim.add_disk("ssd", CACHE_BYTES);
        let pool = TestPool::create(sim, vec![config], 12).await;
        let opener = &pool.pipeline.world().opener;
        let device = opener.open("ssd", false).await.expect("the device");
        let is_added = pool.pipeline.second_level().add(CacheDevice {
            device,
            identity: Identity {
                pool: Guid::new(1),
                device: Guid::new(77),
            },
            ashift: 12,
        });
        assert!(is_added);
        let rig = Self { pool, ssd };
        rig.settle().await;
        rig
    }

    /// Waits until all that was offered is written.
    async fn settle(&self) {
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    }

    fn hits(&self) -> u64 {
        self.pool.pipeline.second_level().figures()[0].hits
    }

    fn disk_reads(&self) -> u64 {
        self.pool.disk("single").counts().get(SimOp::Read)
    }

    /// Reads a block that is not in memory, with the context given.
    async fn read(&self, bp: &BlockPointer, context: &ReadContext) -> Bytes {
        self.pool.pipeline.cache().clear();
        self.pool.pipeline.read(bp, context).await.expect("read")
    }
}

fn context() -> ReadContext {
    ReadContext {
        second: true,
        ..ReadContext::new(Bookmark {
            objset: OBJSET.into(),
            ..Bookmark::default()
        })
    }
}

fn policy() -> WritePolicy {
    WritePolicy {
        cache: false,
        bookmark: context().bookmark,
        ..WritePolicy::data(ObjectType::PLAIN_FILE_CONTENTS)
    }
}

/// Half of it compresses.
fn content(seed: u64) -> Bytes {
    let mut data = vec![0; 64 << 10];
    data[..20_000].copy_from_slice(&noise(20_000, seed));
    data.into()
}

#[test]
fn what_was_read_is_read_from_the_cache_device() {
    simulate(async {
        let rig = Rig::new().await;
        let pipeline = &rig.pool.pipeline;
        let mut blocks = Vec::new();
        for seed in 0..20 {
            let bp = pipeline.write(TXG, content(seed), &policy()).await;
            blocks.push((seed, bp.expect("written")));
        }
        for (seed, bp) in &blocks {
            assert_eq!(rig.read(bp, &context()).await, content(*seed));
        }
        assert_eq!(rig.hits(), 0);
        rig.settle().await;
        let before = rig.disk_reads();
        for (seed, bp) in &blocks {
            assert_eq!(rig.read(bp, &context()).await, content(*seed));
        }
        assert_eq!((rig.hits(), rig.disk_reads()), (20, before));
        // A scrub reads the pool's own devices.
        let scrub = ReadContext {
            cache: CacheUse::Bypass,
            ..context()
        };
        assert_eq!(rig.read(&blocks[0].1, &scrub).await, content(0));
        assert_eq!((rig.hits(), rig.disk_reads()), (20, before + 1));
    });
}

#[test]
fn what_is_not_to_be_kept_there_is_not() {
    simulate(async {
        let rig = Rig::new().await;
        let pipeline = &rig.pool.pipeline;
        let unverified = WritePolicy {
            checksum: Checksum::Off,
            compression: Compression::Off,
            ..policy()
        };
        let unwanted = ReadContext {
            second: false,
            ..context()
        };
        let bypass = ReadContext {
            cache: CacheUse::Bypass,
            ..context()
        };
        for (policy, context) in [
            (unverified, context()),
            (policy(), unwanted),
            (policy(), bypass),
        ] {
            let bp = pipeline.write(TXG, content(1), &policy).await.unwrap();
            for _ in 0..3 {
                assert_eq!(rig.read(&bp, &context).await, content(1));
                rig.settle().await;
            }
        }
        let figures = pipeline.second_level().figures()[0];
        assert_eq!((figures.hits, figures.written_bytes), (0, 0));
    });
}

/// What is encrypted in the pool is so on the cache device, and needs its key from there as well.
#[test]
fn the_cache_device_has_no_plaintext() {
    simulate(async {
        let rig = Rig::new().await;
        let pipeline = &rig.pool.pipeline;
        let random = pipeline.world().random.clone();
        let data = DataKey::generate(Suite::ALL[0], &mut |out: &mut [u8]| random.fill(out));
        let key = BlockKey::new(data, &*random);
        pipeline.keys().map(OBJSET.into(), key);
        let secret = b"nobody is to read this from the cache device".as_slice();
        let text: Vec<u8> = secret.iter().copied().cycle().take(32 << 10).collect();
        let text = Bytes::from(text);
        let encrypted = WritePolicy {
            compression: Compression::Off,
            encrypted: true,
            ..policy()
        };
        let bp = pipeline.write(TXG, text.clone(), &encrypted).await.unwrap();
        assert_eq!(rig.read(&bp, &context()).await, text);
        rig.settle().await;
        assert_eq!(rig.read(&bp, &context()).await, text);
        assert_eq!(rig.hits(), 1);
        let stored = rig.ssd.peek(0, CACHE_BYTES as usize);
        let has = |needle: &[u8]| stored.windows(needle.len()).any(|part| part == needle);
        assert!(!has(&secret[..16]), "plaintext is on the cache device");
        // It is there, as the pool has it.
        let direct = ReadContext {
            cache: CacheUse::Bypass,
            ..context()
        };
        let raw = pipeline.reader().read_raw(&bp, &direct).await.unwrap();
        assert!(has(&raw[..64]));
        pipeline.keys().unmap(|_, _| true);
        pipeline.cache().clear();
        let locked = pipeline.read(&bp, &context()).await;
        assert!(matches!(locked, Err(ZioError::KeyNotLoaded { .. })));
    });
}

/// Wrong copies and devices that fail or hang: the pool answers, and they are taken out.
#[test]
fn a_bad_cache_device_is_nobodys_error() {
    for fault in [None, Some(FaultEffect::Error), Some(FaultEffect::Stall)] {
        simulate(async {
            let rig = Rig::new().await;
            let pipeline = &rig.pool.pipeline;
            let mut blocks = Vec::new();
            for seed in 0..40 {
                let bp = pipeline.write(TXG, content(seed), &policy()).await;
                blocks.push((seed, bp.expect("written")));
            }
            for (seed, bp) in &blocks {
                assert_eq!(rig.read(bp, &context()).await, content(*seed));
            }
            rig.settle().await;
            match fault {
                None => rig.ssd.corrupt_written(0..CACHE_BYTES),
                Some(effect) => rig.ssd.inject(Fault::new(SimOp::Read, effect)),
            }
            for (seed, bp) in &blocks {
                assert_eq!(rig.read(bp, &context()).await, content(*seed));
            }
            let figures = pipeline.second_level().figures()[0];
            assert_eq!((figures.state, figures.hits), (State::Failed, 0));
            assert_eq!(figures.wrong > 0, fault.is_none());
            assert_eq!(figures.read_errors > 0, fault.is_some());
            let reports = &rig.pool.reports;
            assert_eq!((reports.checksum(), reports.data()), (0, 0));
        });
    }
}
