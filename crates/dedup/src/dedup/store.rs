//! Storing changed entries: their ZAPs, made and destroyed as needed, and the statistics
//! (`ddt_sync_flush_entry`, `ddt_sync_update_stats`; module/zfs/ddt.c).

use format::{Checksum, DdtClass, DdtPhys, DdtStat, ObjectId, ObjectType};
use object::{SyncContext, Zap, ZapOptions, ZapValue};
use spa::{PoolError, directory, features};
use zio::Tx;
use zio::pipeline::{DedupName, LiveEntry, StoredEntry, pointer_of_place};

use super::{
    BUCKETS, CHECKSUMS, Dedup, FLAG_FLAT, FLAG_LOG, Table, VERSION, directory_name, encode_value,
    sizes, zap_name,
};
use crate::DedupStatus;
use crate::status::{entry_stat, references_of};

/// log2 of the size of the ZAPs' blocks (`ddt_zap_default_bs`), and of their indirect blocks.
pub(super) const BLOCK_SHIFT: u8 = 15;

impl Dedup {
    /// Stores one changed entry in the ZAP of its class, or removes it when it has no reference
    /// left.
    pub(super) async fn store(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        name: &DedupName,
        entry: LiveEntry,
    ) -> Result<(), PoolError> {
        let LiveEntry { stored, mut value } = entry;
        let_go(ctx, name, &mut value);
        note_change(ctx, &mut value);
        let mut from = stored.and_then(|stored| self.uncount(name, &stored));
        self.put(ctx, tx, name, &mut from, &value).await
    }

    /// Takes an entry out of its ZAP's statistics, since it is to be changed; which ZAP that is.
    pub(super) fn uncount(&self, name: &DedupName, stored: &StoredEntry) -> Option<DdtClass> {
        let class = stored.class?;
        let stat = entry_stat(&name.key, &stored.value, &self.allocator);
        self.with_bucket(name.checksum.code(), class, &stat, DdtStat::subtract);
        Some(class)
    }

    /// Puts an entry, which is counted nowhere, into the ZAP of its class, and takes it out of the
    /// one in which it was, if that is another one. Without references it is only taken out. Where
    /// that fails, nothing was done, or `from` says that it is in no ZAP any more.
    pub(super) async fn put(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        name: &DedupName,
        from: &mut Option<DdtClass>,
        value: &DdtPhys,
    ) -> Result<(), PoolError> {
        let code = name.checksum.code();
        let references = references_of(value);
        let class = DdtClass::of_references(references);
        if let Some(old) = *from
            && (references == 0 || old != class)
        {
            if let Some(zap) = self.zap(code, old) {
                match zap.remove_u64_key(tx, name.key.words()).await {
                    // A damaged log said that it is there; to stop for that would help nobody.
                    Err(error) if error.is_not_found() => {
                        tracing::warn!(%error, "an entry is not in its dedup table");
                    }
                    removed => removed?,
                }
            }
            *from = None;
            self.touch(code);
        }
        if references > 0 {
            let zap = self.make_zap(ctx, tx, name.checksum, class).await?;
            // Before it is there, it is known.
            if let Some(table) = self.tables.write().get_mut(&code) {
                table.known.add(name.key.words());
            }
            zap.update_u64_key(tx, name.key.words(), encode_value(value))
                .await?;
            let stat = entry_stat(&name.key, value, &self.allocator);
            self.with_bucket(code, class, &stat, DdtStat::add);
        }
        Ok(())
    }

    pub(super) fn zap(&self, code: u8, class: DdtClass) -> Option<Zap> {
        self.tables.read().get(&code)?.zaps[class.index()].clone()
    }

    /// Has the statistics of a table written, or the table destroyed if it is empty.
    pub(super) fn touch(&self, code: u8) {
        if let Some(table) = self.tables.write().get_mut(&code) {
            table.touched = true;
        }
    }

    fn with_bucket(
        &self,
        code: u8,
        class: DdtClass,
        stat: &DdtStat,
        change: impl Fn(&mut DdtStat, &DdtStat),
    ) {
        let Some(bucket) = stat.referenced_blocks.checked_ilog2() else {
            return;
        };
        if let Some(table) = self.tables.write().get_mut(&code) {
            table.touched = true;
            let histogram = &mut table.histograms[class.index()];
            histogram.resize(BUCKETS, DdtStat::default());
            change(&mut histogram[bucket as usize], stat);
        }
    }

    /// A table, made when it is not there, and so are the statistics (`ddt_create_dir`); its own
    /// directory, if it has one.
    pub(super) async fn make_table(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        checksum: Checksum,
    ) -> Result<Option<ObjectId>, PoolError> {
        let code = checksum.code();
        let known = self
            .tables
            .read()
            .get(&code)
            .map(|table| table.own_directory);
        if let Some(own) = known {
            return Ok(own);
        }
        let root = Zap::hold(&self.mos, ObjectId::POOL_DIRECTORY).await?;
        let statistics = root.lookup_u64(directory::DDT_STATISTICS).await?;
        if statistics.is_none() {
            let zap = Zap::create(&self.mos, tx, ZapOptions::new(ObjectType::DDT_STATS)).await?;
            root.add_u64(tx, directory::DDT_STATISTICS, zap.id().get())
                .await?;
        }
        let table = match self.will_be_flat(code) {
            true => Table {
                flat: true,
                is_logged: true,
                own_directory: Some(self.make_directory(ctx, tx, &root, checksum).await?),
                ..Table::default()
            },
            false => Table::default(),
        };
        let own = table.own_directory;
        self.tables.write().insert(code, table);
        Ok(own)
    }

    /// The ZAP of a class; made when it is not there, and so is the table (`ddt_object_create`).
    async fn make_zap(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        checksum: Checksum,
        class: DdtClass,
    ) -> Result<Zap, PoolError> {
        let code = checksum.code();
        if let Some(zap) = self.zap(code, class) {
            return Ok(zap);
        }
        let own = self.make_table(ctx, tx, checksum).await?;
        let mut flags = Zap::FLAG_HASH64 | Zap::FLAG_UINT64_KEY;
        if checksum.is_dedup() {
            flags |= Zap::FLAG_PRE_HASHED_KEY;
        }
        let options = ZapOptions {
            flags,
            block_shift: BLOCK_SHIFT,
            indirect_block_shift: BLOCK_SHIFT,
            ..ZapOptions::new(ObjectType::DDT_ZAP)
        };
        let zap = Zap::create(&self.mos, tx, options).await?;
        let holder = self.holder(own).await?;
        holder
            .add_u64(tx, zap_name(checksum, class), zap.id().get())
            .await?;
        if let Some(table) = self.tables.write().get_mut(&code) {
            table.zaps[class.index()] = Some(zap.clone());
            table.histograms[class.index()] = vec![DdtStat::default(); BUCKETS];
            table.touched = true;
        }
        Ok(zap)
    }

    async fn make_directory(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        root: &Zap,
        checksum: Checksum,
    ) -> Result<ObjectId, PoolError> {
        let options = ZapOptions::new(ObjectType::OTN_ZAP_METADATA);
        let own = Zap::create(&self.mos, tx, options).await?;
        root.add_u64(tx, directory_name(checksum), own.id().get())
            .await?;
        own.add_u64(tx, "version", VERSION).await?;
        own.add_u64(tx, "flags", FLAG_FLAT | FLAG_LOG).await?;
        self.features.increment(ctx, features::FAST_DEDUP).await?;
        Ok(own.id())
    }

    async fn holder(&self, own: Option<ObjectId>) -> Result<Zap, PoolError> {
        let id = own.unwrap_or(ObjectId::POOL_DIRECTORY);
        Ok(Zap::hold(&self.mos, id).await?)
    }

    /// After entries were stored: writes statistics, destroys tables that are empty, tells the
    /// status.
    pub(super) async fn finish(&self, ctx: &SyncContext, tx: &Tx) -> Result<(), PoolError> {
        let root = Zap::hold(&self.mos, ObjectId::POOL_DIRECTORY).await?;
        let Some(statistics) = root.lookup_u64(directory::DDT_STATISTICS).await? else {
            return Ok(());
        };
        let statistics = Zap::hold(&self.mos, ObjectId::new(statistics)).await?;
        let mut status = DedupStatus {
            histogram: vec![DdtStat::default(); BUCKETS],
            ..DedupStatus::default()
        };
        for checksum in CHECKSUMS {
            let code = checksum.code();
            let (zaps, touched, own) = {
                let mut tables = self.tables.write();
                let Some(table) = tables.get_mut(&code) else {
                    continue;
                };
                let touched = std::mem::take(&mut table.touched);
                (table.zaps.clone(), touched, table.own_directory)
            };
            let mut count = 0;
            for zap in zaps.iter().flatten() {
                count += zap.count().await?;
            }
            let (in_logs, unstored) = self.logged(code);
            if touched && count == 0 && in_logs == 0 {
                self.destroy(ctx, tx, &root, &statistics, checksum).await?;
                continue;
            }
            status.logged = status.logged.saturating_add(in_logs);
            count = count.saturating_add_signed(unstored);
            status.entries = status.entries.saturating_add(count);
            if let Some(table) = self.tables.read().get(&code) {
                table.logs.add_to(&mut status.histogram);
            }
            for class in DdtClass::ALL {
                if zaps[class.index()].is_none() {
                    continue;
                }
                let histogram = {
                    let tables = self.tables.read();
                    let table = tables.get(&code);
                    table.map(|table| table.histograms[class.index()].clone())
                };
                let histogram = histogram.unwrap_or_default();
                for (sum, stat) in status.histogram.iter_mut().zip(&histogram) {
                    sum.add(stat);
                }
                if touched {
                    let words: Vec<u64> = histogram.iter().flat_map(DdtStat::to_words).collect();
                    statistics
                        .update(tx, zap_name(checksum, class), ZapValue::from_u64s(&words))
                        .await?;
                }
            }
            tracing::trace!(%checksum, count, own = own.is_some(), "dedup table synced");
        }
        (status.table_bytes, status.core_bytes) = sizes(&self.tables.read());
        *self.status.lock() = status;
        Ok(())
    }

    /// Destroys a table without entries (`ddt_object_destroy`, `ddt_destroy_dir`).
    async fn destroy(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        root: &Zap,
        statistics: &Zap,
        checksum: Checksum,
    ) -> Result<(), PoolError> {
        let Some(table) = self.tables.write().remove(&checksum.code()) else {
            return Ok(());
        };
        let holder = self.holder(table.own_directory).await?;
        for class in DdtClass::ALL {
            let Some(zap) = &table.zaps[class.index()] else {
                continue;
            };
            let name = zap_name(checksum, class);
            holder.remove(tx, &name).await?;
            if statistics.lookup(&name).await?.is_some() {
                statistics.remove(tx, &name).await?;
            }
            self.mos.free(tx, zap.id()).await?;
        }
        if let Some(own) = table.own_directory {
            table.logs.destroy(&self.mos, tx).await?;
            root.remove(tx, directory_name(checksum)).await?;
            self.mos.free(tx, own).await?;
            self.features.decrement(ctx, features::FAST_DEDUP).await?;
        }
        Ok(())
    }

    /// Entries in a table's logs, and how many more entries there are with them than are in the
    /// ZAPs.
    fn logged(&self, code: u8) -> (u64, i64) {
        let tables = self.tables.read();
        let Some(table) = tables.get(&code) else {
            return (0, 0);
        };
        let in_file = u64::from(self.has_logs() && !table.logs.are_empty());
        (in_file.max(table.logs.len() as u64), table.logs.unstored())
    }
}

/// Frees the blocks of an entry that nothing refers to any more; extra copies of old releases are
/// not kept.
pub(super) fn let_go(ctx: &SyncContext, name: &DedupName, value: &mut DdtPhys) {
    let traditional = matches!(value, DdtPhys::Traditional(_));
    for (index, place) in value.places_mut().iter_mut().enumerate() {
        let obsolete = traditional && index == 0;
        if !place.is_used() || place.references > 0 && !obsolete {
            continue;
        }
        match pointer_of_place(name, place) {
            Ok(block) => ctx.pipeline.frees().free_space(ctx.txg, &block),
            Err(error) => {
                tracing::error!(
                    %error, checksum = %name.checksum,
                    "an entry of a dedup table names an impossible place; its space is lost until \
                     the pool is checked"
                );
            }
        }
        *place = Default::default();
    }
}

/// Notes in a flat entry that it is changed now: `zpool ddtprune` goes by that.
pub(super) fn note_change(ctx: &SyncContext, value: &mut DdtPhys) {
    if let DdtPhys::Flat {
        class_start_seconds,
        ..
    } = value
    {
        *class_start_seconds = ctx.world.clock.wall_ns() / 1_000_000_000;
    }
}
