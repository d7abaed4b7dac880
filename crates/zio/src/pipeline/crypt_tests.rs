//! Encrypted blocks through the pipeline: what goes in comes out, with the right key and nothing
//! changed.

use codec::crypt::{DataKey, Suite};
use device::sim::SimWorld;
use format::{Bookmark, Compression, ObjectType, Pointer, RegularPointer};

use super::*;
use crate::testing::{TestPool, leaf, noise, simulate};

const TXG: Txg = Txg::new(7);
const OBJSET: u64 = 54;

fn policy(object_type: ObjectType, level: u8) -> WritePolicy {
    WritePolicy {
        copies: 3,
        encrypted: true,
        bookmark: bookmark(),
        cache: false,
        allow_embedded: true,
        ..WritePolicy::metadata(object_type, level)
    }
}

fn bookmark() -> Bookmark {
    Bookmark {
        objset: OBJSET.into(),
        ..Bookmark::default()
    }
}

fn direct() -> ReadContext {
    ReadContext {
        cache: CacheUse::Bypass,
        ..ReadContext::new(bookmark())
    }
}

fn key(pool: &TestPool, suite: Suite) -> Arc<BlockKey> {
    let random = pool.pipeline.world().random.clone();
    let data = DataKey::generate(suite, &mut |out: &mut [u8]| random.fill(out));
    BlockKey::new(data, &*random)
}

async fn pool() -> TestPool {
    let sim = SimWorld::new(5);
    let config = leaf(&sim, "single", 10);
    TestPool::create(sim, vec![config], 9).await
}

/// What another pool stored is stored here as it is, without a key, and is the same with it.
#[test]
fn blocks_are_stored_as_they_come() {
    simulate(async {
        let (pool, other) = (pool().await, pool().await);
        let key = key(&pool, Suite::ALL[0]);
        pool.pipeline.keys().map(OBJSET.into(), key.clone());
        let pipeline = &other.pipeline;
        let mut data = vec![0; 8192];
        data[..3000].copy_from_slice(&noise(3000, 5));
        for object_type in [ObjectType::PLAIN_FILE_CONTENTS, ObjectType::MASTER_NODE] {
            let data = Bytes::from(data.clone());
            let policy = policy(object_type, 0);
            let there = pool
                .pipeline
                .write(TXG, data.clone(), &policy)
                .await
                .unwrap();
            let stored = pool
                .pipeline
                .reader()
                .read_raw(&there, &direct())
                .await
                .unwrap();
            assert!(stored.len() < data.len());
            let raw = RawBlock {
                logical_bytes: 8192,
                compression: there.compression(),
                crypt: there.crypt(),
                mac: Some(there.mac()),
            };
            let policy = WritePolicy {
                raw: Some(raw),
                cache: true,
                ..policy
            };
            let here = pipeline.write(TXG, stored.clone(), &policy).await.unwrap();
            assert_eq!((here.crypt(), here.mac()), (there.crypt(), there.mac()));
            assert_eq!(here.psize_bytes(), there.psize_bytes());
            assert_eq!(here.lsize_bytes(), 8192);
            let again = pipeline.reader().read_raw(&here, &direct()).await.unwrap();
            assert_eq!(again, stored);
            let locked = pipeline.read(&here, &ReadContext::new(bookmark())).await;
            assert!(matches!(locked, Err(ZioError::KeyNotLoaded { .. })));
            pipeline.keys().map(OBJSET.into(), key.clone());
            let read = pipeline.read(&here, &ReadContext::new(bookmark())).await;
            assert_eq!(read.unwrap(), data);
            pipeline.keys().unmap(|_, _| true);
        }
        // Sums of MACs need no key.
        let pointers = Bytes::from(noise(4096, 6));
        let policy = policy(ObjectType::PLAIN_FILE_CONTENTS, 1);
        assert!(pipeline.write(TXG, pointers, &policy).await.is_ok());
    });
}

#[test]
fn blocks_are_encrypted_or_authenticated_as_their_type_says() {
    simulate(async {
        let pool = pool().await;
        let pipeline = &pool.pipeline;
        let noise_of = |seed| Bytes::from(noise(4096, seed));
        let zeros_behind = |length| {
            let mut data = vec![0; 8192];
            data[..length].fill(b'x');
            Bytes::from(data)
        };
        let file = ObjectType::PLAIN_FILE_CONTENTS;
        let refused = pipeline.write(TXG, noise_of(1), &policy(file, 0)).await;
        assert!(matches!(refused, Err(ZioError::KeyNotLoaded { .. })));
        for (index, suite) in Suite::ALL.into_iter().enumerate() {
            pipeline.keys().map(OBJSET.into(), key(&pool, suite));
            let data = noise_of(index as u64);
            let bp = pipeline
                .write(TXG, data.clone(), &policy(file, 0))
                .await
                .unwrap();
            // Two copies, for the third place holds salt and IV.
            assert!(bp.is_encrypted() && bp.copies() == 2 && bp.fill() == 1);
            assert_eq!(pipeline.read(&bp, &direct()).await.unwrap(), data);
            let stored = pipeline.reader().read_raw(&bp, &direct()).await.unwrap();
            assert_ne!(stored, data, "{}", suite.name());
            // The same again looks different.
            let again = pipeline
                .write(TXG, data.clone(), &policy(file, 0))
                .await
                .unwrap();
            assert_ne!(again.crypt(), bp.crypt());
            assert_ne!(
                pipeline.reader().read_raw(&again, &direct()).await.unwrap(),
                stored
            );
        }
        // Compressed first, never embedded, and still holes where there is nothing.
        let bp = pipeline
            .write(TXG, zeros_behind(50), &policy(file, 0))
            .await
            .unwrap();
        assert!(!bp.is_embedded() && bp.compression() == Compression::Lz4);
        assert_eq!(
            pipeline.read(&bp, &direct()).await.unwrap(),
            zeros_behind(50)
        );
        let bp = pipeline
            .write(TXG, zeros_behind(0), &policy(file, 0))
            .await
            .unwrap();
        assert!(bp.is_hole());
        // In the clear, but with a MAC.
        let clear = policy(ObjectType::MASTER_NODE, 0);
        let bp = pipeline.write(TXG, noise_of(50), &clear).await.unwrap();
        assert!(bp.is_authenticated() && bp.copies() == 3);
        assert_eq!(
            pipeline.reader().read_raw(&bp, &direct()).await.unwrap(),
            noise_of(50)
        );
        assert_eq!(pipeline.read(&bp, &direct()).await.unwrap(), noise_of(50));

        // Without the key what is in the clear is read if that is asked for, and nothing else.
        let secret = pipeline
            .write(TXG, noise_of(51), &policy(file, 0))
            .await
            .unwrap();
        pipeline.keys().unmap(|_, _| true);
        let locked = ReadContext {
            without_key: true,
            ..direct()
        };
        assert_eq!(pipeline.read(&bp, &locked).await.unwrap(), noise_of(50));
        for (bp, context) in [(&bp, direct()), (&secret, direct()), (&secret, locked)] {
            let result = pipeline.read(bp, &context).await;
            assert!(
                matches!(result, Err(ZioError::KeyNotLoaded { .. })),
                "{result:?}"
            );
        }
    });
}

#[test]
fn what_was_changed_is_an_error_and_never_data() {
    simulate(async {
        let pool = pool().await;
        let pipeline = &pool.pipeline;
        pipeline
            .keys()
            .map(OBJSET.into(), key(&pool, Suite::Aes256Gcm));
        let data = Bytes::from(noise(4096, 3));
        let kinds = [ObjectType::PLAIN_FILE_CONTENTS, ObjectType::MASTER_NODE];
        for object_type in kinds {
            let bp = pipeline
                .write(TXG, data.clone(), &policy(object_type, 0))
                .await
                .unwrap();
            let Pointer::Regular(right) = bp.decoded() else {
                panic!("{bp}")
            };
            let mut forged = Vec::new();
            for bit in 0..64 {
                for word in [2, 3] {
                    let mut pointer = right;
                    pointer.checksum[word] ^= 1 << bit;
                    forged.push(pointer);
                }
                if let Some(crypt) = right.crypt {
                    let mut salt = crypt;
                    salt.salt ^= 1 << bit;
                    let mut iv = crypt;
                    iv.iv1 ^= 1 << bit;
                    let mut tail = crypt;
                    tail.iv2 ^= 1 << (bit % 32);
                    for crypt in [salt, iv, tail] {
                        forged.push(RegularPointer {
                            crypt: Some(crypt),
                            ..right
                        });
                    }
                }
            }
            for pointer in forged {
                let bp = BlockPointer::regular(&pointer).unwrap();
                let result = pipeline.read(&bp, &direct()).await;
                assert!(
                    matches!(result, Err(ZioError::Authentication { .. })),
                    "{result:?}"
                );
            }
            // Other bytes with a right checksum, as somebody without the key can write them.
            for at in [0, 1000, 4095] {
                let mut bytes = pipeline
                    .reader()
                    .read_raw(&bp, &direct())
                    .await
                    .unwrap()
                    .to_vec();
                bytes[at] ^= 1;
                let plain = WritePolicy {
                    encrypted: false,
                    compression: Compression::Off,
                    copies: 2,
                    ..policy(object_type, 0)
                };
                let written = pipeline.write(TXG, bytes.into(), &plain).await.unwrap();
                let Pointer::Regular(written) = written.decoded() else {
                    panic!("{written}")
                };
                let [a, b] =
                    codec::checksum::fold_for_mac(written.checksum_kind, &written.checksum);
                let bp = BlockPointer::regular(&RegularPointer {
                    dvas: written.dvas,
                    checksum: [a, b, right.checksum[2], right.checksum[3]],
                    ..right
                });
                let result = pipeline.read(&bp.unwrap(), &direct()).await;
                assert!(
                    matches!(result, Err(ZioError::Authentication { .. })),
                    "{result:?}"
                );
            }
        }
        // An indirect block whose sum of MACs is another.
        let child = pipeline
            .write(TXG, data, &policy(kinds[0], 0))
            .await
            .unwrap();
        let mut block = child.encode().to_vec();
        block.resize(4096, 0);
        let bp = pipeline
            .write(TXG, block.into(), &policy(kinds[0], 1))
            .await
            .unwrap();
        assert!(bp.has_mac_of_macs());
        pipeline.read(&bp, &direct()).await.unwrap();
        let mut forged = bp;
        let mut mac = bp.mac();
        mac[7] ^= 0x10;
        forged.set_mac(mac);
        let result = pipeline.read(&forged, &direct()).await;
        assert!(matches!(result, Err(ZioError::Authentication { .. })));
    });
}

/// The header that an encrypted block's pointer leads to has half of its checksum, as if the other
/// half were a MAC; headers further down, and those of other blocks, have the whole
/// (`zio_checksum_compute`, module/zfs/zio_checksum.c). OpenZFS reads no other form.
#[test]
fn headers_of_encrypted_gang_blocks_have_half_of_their_sum() {
    simulate(async {
        let pool = pool().await;
        let pipeline = &pool.pipeline;
        super::tests::crumble(&pool, 4096).await;
        pipeline
            .keys()
            .map(OBJSET.into(), key(&pool, Suite::ALL[0]));
        let header = |bp: &BlockPointer| {
            let offset = bp.dva(0).expect("a place").offset_bytes();
            let disk = pool.disk("single");
            let bytes = disk.peek(
                offset + format::LABEL_START_BYTES,
                format::GANG_HEADER_BYTES,
            );
            let words = check::gang_words(bp);
            let kind = format::Checksum::GangHeader;
            let whole = codec::checksum::verify_embedded(kind, &words, &bytes).is_ok();
            let half = codec::checksum::verify_embedded_beside_mac(kind, &words, &bytes).is_ok();
            (whole, half)
        };
        let file = ObjectType::PLAIN_FILE_CONTENTS;
        for (encrypted, object_type, is_half) in [
            (true, file, true),
            // In the clear and with a MAC.
            (true, ObjectType::MASTER_NODE, true),
            (false, file, false),
        ] {
            let policy = WritePolicy {
                encrypted,
                copies: 1,
                compression: Compression::Off,
                ..policy(object_type, 0)
            };
            let data = Bytes::from(noise(64 << 10, 60));
            let bp = pipeline.write(TXG, data.clone(), &policy).await.unwrap();
            assert!(bp.is_gang());
            assert_eq!(header(&bp), (!is_half, is_half), "{object_type:?}");
            assert_eq!(pipeline.read(&bp, &direct()).await.unwrap(), data);
            let members = pipeline.reader().read_gang_header(&bp, &direct()).await;
            let members = members.expect("a header");
            let below: Vec<_> = members.iter().filter(|member| member.is_gang()).collect();
            assert!(!below.is_empty());
            for member in below {
                assert_eq!(header(member), (true, false), "{object_type:?}");
            }
        }
    });
}

/// Whether a log's block is encrypted is what the caller says of its dataset: not whether the
/// number happens to have a key, and never in the clear where the key is missing.
#[test]
fn log_blocks_are_encrypted_as_their_dataset_is() {
    simulate(async {
        let pool = pool().await;
        let logs = pool.pipeline.log_blocks();
        let encrypted = Some(OBJSET.into());
        let allocate = |encrypted| logs.allocate(TXG, 4096, encrypted, LogPlaces::ANYWHERE);
        let locked = allocate(encrypted).await;
        assert!(
            matches!(locked, Err(ZioError::KeyNotLoaded { .. })),
            "{locked:?}"
        );
        let key = key(&pool, Suite::ALL[0]);
        pool.pipeline.keys().map(OBJSET.into(), key);
        assert!(allocate(encrypted).await.unwrap().is_encrypted());
        assert!(!allocate(None).await.unwrap().uses_crypt());
    });
}
