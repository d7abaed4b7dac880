//! From properties to behaviour: how blocks are written, and what an open dataset does.

use device::BoxFuture;
use std::sync::Arc;

use codec::compress::ZstdLevel;
use format::{Checksum, Compression};
use object::{Cached, DedupProperty, RedundantMetadata, WriteProperties};
use zil::SyncMode;

use crate::DatasetError;
use crate::features::guid;
use crate::state::{DatasetSettings, Dir, Ds};
use crate::stored::Properties;

/// Default size of blocks of files (`recordsize`).
const RECORD_BYTES: u32 = 128 << 10;

/// How the MOS is written.
pub(crate) fn mos_properties(lz4: bool) -> WriteProperties {
    WriteProperties {
        checksum: Checksum::Fletcher4,
        dedup: None,
        compression: on_compression(lz4),
        zstd_level: ZstdLevel::DEFAULT,
        copies: 3,
        redundant_metadata: RedundantMetadata::All,
        special_small_blocks: 0,
        record_bytes: RECORD_BYTES,
        cached: Cached::All,
        cached_second: Cached::All,
        prefetched: Cached::All,
    }
}

fn on_compression(lz4: bool) -> Compression {
    if lz4 {
        Compression::Lz4
    } else {
        Compression::Lzjb
    }
}

/// A stored value of property `dedup` (`zio_checksum_dedup_select`, module/zfs/zio_checksum.c).
pub(crate) fn dedup_of(stored: u64) -> Option<DedupProperty> {
    const VERIFY: u64 = 1 << 8;
    let checksum = match Checksum::from_code((stored & 0xff) as u8) {
        Checksum::On => Checksum::Sha256,
        kind if kind.has_dedup_table() => kind,
        _ => return None,
    };
    Some(DedupProperty {
        checksum,
        verify: stored & VERIFY != 0 || !checksum.is_dedup(),
    })
}

/// A stored compression: its algorithm and level. Levels of zstd are kept above the algorithm's
/// seven bits; those from 103 on stand for the fast ones (`ZIO_COMPLEVEL_ZSTD`).
pub(crate) fn compression_of(stored: u64, lz4: bool) -> (Compression, ZstdLevel) {
    let compression = match Compression::from_code((stored & 0x7f) as u8) {
        Compression::On | Compression::Inherit | Compression::Unknown(_) | Compression::Empty => {
            on_compression(lz4)
        }
        other => other,
    };
    let level = u8::try_from(stored >> 7).ok();
    // A level that this release does not know is written as the default one, as OpenZFS does.
    let level = level.and_then(ZstdLevel::from_code).unwrap_or_default();
    (compression, level)
}

fn checksum_of(stored: u64) -> Checksum {
    match Checksum::from_code((stored & 0xff) as u8) {
        kind @ (Checksum::Off
        | Checksum::NoParity
        | Checksum::Fletcher2
        | Checksum::Fletcher4
        | Checksum::Sha256
        | Checksum::Sha512
        | Checksum::Skein
        | Checksum::EdonR
        | Checksum::Blake3) => kind,
        _ => Checksum::Fletcher4,
    }
}

/// Values of `primarycache`, `secondarycache` and `prefetch` (`zfs_cache_type_t`,
/// include/sys/fs/zfs.h).
fn cached_of(stored: u64) -> Cached {
    match stored {
        0 => Cached::None,
        1 => Cached::Metadata,
        _ => Cached::All,
    }
}

/// The stored value of `recordsize`, or the longest block that is a power of two and not longer
/// than `most`.
fn record_bytes(stored: u64, most: u32) -> u32 {
    if stored.is_power_of_two() && stored >= 512 {
        stored.min(1 << most.ilog2()) as u32
    } else {
        RECORD_BYTES
    }
}

impl Properties<'_> {
    /// Pools before version 21 cannot have dedup tables (`SPA_VERSION_DEDUP`).
    pub(crate) fn has_dedup_tables(&self) -> bool {
        self.dsl.pool_version().has_dedup_tables()
    }

    /// How a dataset's blocks are to be written.
    pub(crate) async fn write_properties(
        &self,
        dataset: &Arc<Ds>,
    ) -> Result<WriteProperties, DatasetError> {
        let number = |name: &'static str| self.effective_number(dataset, name);
        let lz4 = self.dsl.features().is_active(guid::LZ4_COMPRESS);
        let (mut compression, zstd_level) = compression_of(number("compression").await?, lz4);
        let feature = match compression {
            Compression::Zstd => Some(guid::ZSTD_COMPRESS),
            Compression::Lz4 => Some(guid::LZ4_COMPRESS),
            _ => None,
        };
        if feature.is_some_and(|feature| !self.dsl.features().is_enabled(feature)) {
            compression = on_compression(lz4);
        }
        let features = self.dsl.features();
        let may_use = |checksum: &Checksum| features.may_write(*checksum, Compression::Off);
        let mut checksum = checksum_of(number("checksum").await?);
        if !may_use(&checksum) {
            checksum = Checksum::Fletcher4;
        }
        let dedup = dedup_of(number("dedup").await?)
            .filter(|dedup| may_use(&dedup.checksum))
            .filter(|_| self.has_dedup_tables());
        Ok(WriteProperties {
            checksum,
            dedup,
            compression,
            zstd_level,
            copies: number("copies").await?.clamp(1, 3) as u8,
            redundant_metadata: match number("redundant_metadata").await? {
                1 => RedundantMetadata::Most,
                2 => RedundantMetadata::Some,
                3 => RedundantMetadata::None,
                _ => RedundantMetadata::All,
            },
            special_small_blocks: number("special_small_blocks").await?.min(16 << 20) as u32,
            record_bytes: self.record_bytes(dataset).await?,
            cached: cached_of(number("primarycache").await?),
            cached_second: cached_of(number("secondarycache").await?),
            prefetched: cached_of(number("prefetch").await?),
        })
    }

    /// How long blocks of new files become: `recordsize`, but no longer than the pool allows and
    /// the dataset's cipher takes. A dataset may inherit more than that, or have it from before.
    async fn record_bytes(&self, dataset: &Arc<Ds>) -> Result<u32, DatasetError> {
        let stored = self.effective_number(dataset, "recordsize").await?;
        if !self.dsl.features().is_enabled(guid::LARGE_BLOCKS) {
            return Ok(record_bytes(stored, RECORD_BYTES));
        }
        let most = match dataset.open_objset() {
            Some(objset) => objset.options().block_bytes_max,
            None => self.dsl.keys().block_bytes_max(dataset).await?,
        };
        Ok(record_bytes(stored, most))
    }

    /// What an open dataset does.
    pub(crate) fn dataset_settings<'a>(
        &'a self,
        dataset: &'a Arc<Ds>,
    ) -> BoxFuture<'a, Result<DatasetSettings, DatasetError>> {
        Box::pin(async move {
            let number = |name: &'static str| self.effective_number(dataset, name);
            Ok(DatasetSettings {
                read_only: self.dsl.env().read_only
                    || dataset.is_snapshot()
                    || number("readonly").await? != 0,
                record_bytes: self.record_bytes(dataset).await?,
                sync: match number("sync").await? {
                    1 => SyncMode::Always,
                    2 => SyncMode::Disabled,
                    _ => SyncMode::Standard,
                },
                log_throughput: number("logbias").await? != 0,
                atime: number("atime").await? != 0,
                relatime: number("relatime").await? != 0,
                xattr: number("xattr").await?,
                acltype: number("acltype").await?,
                aclmode: number("aclmode").await?,
                aclinherit: number("aclinherit").await?,
                dnodesize: if self.dsl.features().is_enabled(guid::LARGE_DNODE) {
                    number("dnodesize").await?
                } else {
                    0
                },
                longname: self.dsl.features().is_enabled(guid::LONGNAME)
                    && (number("longname").await? != 0),
                devices: number("devices").await? != 0,
                exec: number("exec").await? != 0,
                setuid: number("setuid").await? != 0,
                snapdir: number("snapdir").await?,
                canmount: number("canmount").await?,
                direct: number("direct").await?,
            })
        })
    }

    /// Tells what is open at or below `dir` that its properties may have changed.
    pub(crate) async fn refresh_open(&self, dir: &Arc<Dir>) -> Result<(), DatasetError> {
        for dataset in self.dsl.registry.open_datasets() {
            if dataset.dir().is_within(dir) {
                let settings = self.dataset_settings(&dataset).await?;
                let write = self.write_properties(&dataset).await?;
                let open = dataset.open.lock().clone();
                if let Some(open) = open {
                    open.objset.set_properties(write);
                    open.settings.send_if_modified(|current| {
                        let is_new = *current != settings;
                        *current = settings;
                        is_new
                    });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::props::find;

    #[test]
    fn every_word_of_compression_and_checksum_has_a_meaning() {
        let stored = |name: &str, word: &str| match find(name).expect(name).kind {
            crate::props::ValueKind::Index(table) => {
                table
                    .iter()
                    .find(|(known, _)| *known == word)
                    .expect(word)
                    .1
            }
            _ => unreachable!(),
        };
        for (word, expected) in [
            ("on", Compression::Lz4),
            ("off", Compression::Off),
            ("gzip", Compression::Gzip(6)),
            ("gzip-9", Compression::Gzip(9)),
        ] {
            let (compression, _) = compression_of(stored("compression", word), true);
            assert_eq!(compression, expected, "{word}");
        }
        for (word, level) in [
            ("zstd", Some(ZstdLevel::DEFAULT)),
            ("zstd-19", ZstdLevel::normal(19)),
            ("zstd-fast", ZstdLevel::fast(1)),
            ("zstd-fast-10", ZstdLevel::fast(10)),
            ("zstd-fast-100", ZstdLevel::fast(100)),
            ("zstd-fast-1000", ZstdLevel::fast(1000)),
        ] {
            let expected = (Compression::Zstd, level.expect(word));
            let found = compression_of(stored("compression", word), true);
            assert_eq!(found, expected, "{word}");
        }
        assert_eq!(checksum_of(stored("checksum", "on")), Checksum::Fletcher4);
        assert_eq!(checksum_of(stored("checksum", "off")), Checksum::Off);
        assert_eq!(checksum_of(stored("checksum", "blake3")), Checksum::Blake3);
    }
}
