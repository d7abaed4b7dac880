//! The persistent error logs: blocks of which no good copy is left, on disk
//! (module/zfs/spa_errlog.c).
//!
//! Two logs, `errlog_last` and `errlog_scrub` in the object directory, each a ZAP whose keys are
//! described in crate `format`: without feature `head_errlog` one per block, with it one per live
//! dataset that leads to another ZAP with one per block, so that a block can be looked for in
//! snapshots and clones.
//!
//! # Who writes
//! The sync loop only, in pass 1, after the tasks of the txg (`spa_errlog_sync`): so a dataset that
//! is destroyed or promoted and its logs change in one txg. When logs cannot be read or written,
//! that is told once and they are left alone: damage in the list of damage must not stop a pool.
//!
//! # What a crash leaves
//! The logs as of the last txg on disk; what was found since is found again when it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataset::{DatasetError, DslPool};
use format::Bookmark;
use format::{
    BlockPointer, Bookmark as LogBookmark, ErrorBookmark, ObjectId, ObjectType, ObjsetId, Txg,
};
use object::{ObjectSet, Zap, ZapCursor, ZapOptions, ZapValue};
use zio::Tx;

use crate::errors::{Change, DAMAGED_MAX, ErrorLog, Logs, Lost, Pending};
use crate::participant::{Participant, Pass, Turn};
use crate::{PoolError, Spa, directory, features};

/// Entries of a dataset's log that a scrub of the log takes at once.
const PART_ENTRIES: usize = 256;

/// An entry: the live dataset (or what else the block was found in), and the block.
pub type Entry = (ObjectId, ErrorBookmark);

fn to_error(bookmark: &Bookmark, birth: Txg) -> ErrorBookmark {
    ErrorBookmark {
        object: bookmark.object,
        level: bookmark.level,
        block_id: bookmark.block_id,
        birth,
    }
}

/// The place of a block that was found in an object set.
pub fn to_bookmark(objset: ObjectId, block: &ErrorBookmark) -> Bookmark {
    Bookmark {
        objset: ObjsetId::new(objset.get()),
        object: block.object,
        level: block.level,
        block_id: block.block_id,
    }
}

/// Reads a log; without `heads` the dataset is where the block was found.
async fn read_log(
    mos: &Arc<ObjectSet>,
    log: ObjectId,
    heads: bool,
    out: &mut Vec<Entry>,
) -> Result<(), PoolError> {
    if log.is_zero() {
        return Ok(());
    }
    for entry in entries(mos, log).await? {
        read_entry(mos, &entry, heads, out).await?;
    }
    Ok(())
}

/// The block that a key of a log without heads is about, and where it was found.
fn found_in(key: &[u8]) -> Option<Entry> {
    let key = LogBookmark::from_log_key(key)?;
    let block = ErrorBookmark {
        object: key.object,
        level: key.level,
        block_id: key.block_id,
        birth: Txg::ZERO,
    };
    Some((ObjectId::new(key.objset.get()), block))
}

/// The blocks that an entry of a log is about.
async fn read_entry(
    mos: &Arc<ObjectSet>,
    entry: &object::ZapEntry,
    heads: bool,
    out: &mut Vec<Entry>,
) -> Result<(), PoolError> {
    if !heads {
        out.extend(found_in(&entry.name));
        return Ok(());
    }
    let Some((head, child)) = child_of(entry) else {
        let name = entry.name_str();
        tracing::warn!(%name, "an entry of the pool's log of damaged blocks is damaged");
        return Ok(());
    };
    for entry in entries(mos, child).await? {
        if out.len() >= DAMAGED_MAX {
            return Ok(());
        }
        if let Some(block) = ErrorBookmark::from_log_key(&entry.name) {
            out.push((head, block));
        }
    }
    Ok(())
}

/// Some of the blocks that an entry of a log is about, from a place on, each with the place behind
/// it; none when these were all.
///
/// # Errors
/// When not every one of them can be told.
pub async fn read_part(
    mos: &Arc<ObjectSet>,
    entry: &object::ZapEntry,
    heads: bool,
    from: ZapCursor,
) -> Result<Vec<(Entry, ZapCursor)>, PoolError> {
    let damaged = || {
        PoolError::Dataset(DatasetError::Corrupt {
            object: ObjectId::POOL_DIRECTORY,
            what: format!(
                "the entry {} of the log of damaged blocks",
                entry.name_str()
            ),
        })
    };
    if from == ZapCursor::END {
        return Ok(Vec::new());
    }
    if !heads {
        let block = found_in(&entry.name).ok_or_else(damaged)?;
        return Ok(vec![(block, ZapCursor::END)]);
    }
    let (head, child) = child_of(entry).ok_or_else(damaged)?;
    let zap = Zap::hold(mos, child).await?;
    let part = zap.entries(from, PART_ENTRIES).await?;
    part.into_iter()
        .map(|entry| {
            let block = ErrorBookmark::from_log_key(&entry.name).ok_or_else(damaged)?;
            Ok(((head, block), entry.next))
        })
        .collect()
}

async fn entries(
    mos: &Arc<ObjectSet>,
    log: ObjectId,
) -> Result<Vec<object::ZapEntry>, object::ObjectError> {
    let zap = Zap::hold(mos, log).await?;
    zap.entries(object::ZapCursor::START, DAMAGED_MAX).await
}

/// A live dataset and its log.
fn child_of(entry: &object::ZapEntry) -> Option<(ObjectId, ObjectId)> {
    let head = u64::from_str_radix(&entry.name_str(), 16).ok()?;
    let child = entry.value.as_u64().filter(|child| *child != 0)?;
    Some((ObjectId::new(head), ObjectId::new(child)))
}

/// Entries of a log.
async fn count_log(mos: &Arc<ObjectSet>, log: ObjectId, heads: bool) -> Result<u64, PoolError> {
    if log.is_zero() {
        return Ok(0);
    }
    let zap = Zap::hold(mos, log).await?;
    if !heads {
        return Ok(zap.count().await?);
    }
    let mut count = 0u64;
    for entry in entries(mos, log).await? {
        if let Some((_, child)) = child_of(&entry) {
            count = count.saturating_add(Zap::hold(mos, child).await?.count().await?);
        }
    }
    Ok(count)
}

/// Finds a pool's logs, at its import. Logs that cannot be read are told of, and left alone.
///
/// # Errors
/// When the object directory cannot be read.
pub async fn load(dsl: &Arc<DslPool>, errors: &ErrorLog, read_only: bool) -> Result<(), PoolError> {
    let mos = dsl.mos();
    let heads = dsl.features().is_enabled(features::HEAD_ERRLOG);
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    let object = async |name: &str| -> Result<ObjectId, PoolError> {
        Ok(ObjectId::new(
            directory.lookup_u64(name).await?.unwrap_or(0),
        ))
    };
    let mut logs = Logs {
        last: object(directory::ERRLOG_LAST).await?,
        scrub: object(directory::ERRLOG_SCRUB).await?,
        ..Logs::default()
    };
    let read = async {
        if read_only {
            let mut entries = Vec::new();
            read_log(mos, logs.scrub, heads, &mut entries).await?;
            read_log(mos, logs.last, heads, &mut entries).await?;
            let stored = entries
                .iter()
                .map(|(head, block)| (to_bookmark(*head, block), block.birth));
            errors.set_stored(stored.collect());
            return Ok(0);
        }
        let scrub = count_log(mos, logs.scrub, heads).await?;
        Ok::<u64, PoolError>(scrub.saturating_add(count_log(mos, logs.last, heads).await?))
    };
    match read.await {
        Ok(count) => logs.count = count,
        Err(error) => {
            tracing::warn!(
                %error,
                "the pool's log of damaged blocks cannot be read; it is left alone"
            );
            logs.is_broken = true;
            if read_only {
                errors.set_stored(Lost::new());
            }
        }
    }
    if !read_only {
        errors.set_logs(logs);
    }
    Ok(())
}

impl Spa {
    /// The blocks of which no good copy is left, as far as the logs on disk, reads and scrubs know,
    /// each in every dataset that has it (`spa_get_errlog`). Entries of logs whose block is in no
    /// dataset any more are taken out.
    pub async fn damaged(&self) -> Vec<Bookmark> {
        let heads = self.dsl.features().is_enabled(features::HEAD_ERRLOG);
        let logs = self.errors.logs();
        let mut stored = Vec::new();
        if !logs.is_broken {
            let mos = self.dsl.mos();
            let read = async {
                read_log(mos, logs.scrub, heads, &mut stored).await?;
                if !self.errors.is_rotating() {
                    read_log(mos, logs.last, heads, &mut stored).await?;
                }
                Ok::<(), PoolError>(())
            };
            if let Err(error) = read.await {
                tracing::warn!(%error, "the pool's log of damaged blocks cannot be read");
            }
        }
        let mut out = Vec::new();
        for (head, block) in stored {
            if !self.expand(heads, head, &block, &mut out).await {
                self.errors.forget(head, block.log_key());
            }
        }
        for (bookmark, birth) in self.errors.known() {
            let found_in = ObjectId::new(bookmark.objset.get());
            let head = if heads && !found_in.is_zero() {
                self.dsl
                    .damage()
                    .head_of(found_in)
                    .await
                    .unwrap_or(found_in)
            } else {
                found_in
            };
            let block = to_error(&bookmark, birth);
            // One of which nothing is known but its place is told as it was found.
            let from = if birth.is_zero() { found_in } else { head };
            self.expand(heads, from, &block, &mut out).await;
        }
        out.sort();
        out.dedup();
        out
    }

    /// Where a block of a log is, as of the last sync: in every dataset that has it.
    pub async fn places_of(
        &self,
        heads: bool,
        head: ObjectId,
        block: &ErrorBookmark,
    ) -> Vec<Bookmark> {
        let mut out = Vec::new();
        self.expand(heads, head, block, &mut out).await;
        out
    }

    /// The pointer of a block of the log, as of the last sync; `None` where there is none.
    ///
    /// # Errors
    /// When that cannot be told.
    pub async fn pointer_of(
        &self,
        bookmark: &Bookmark,
    ) -> Result<Option<BlockPointer>, DatasetError> {
        let block = to_error(bookmark, Txg::ZERO);
        let objset = ObjectId::new(bookmark.objset.get());
        match objset.is_zero() {
            true => dataset::block_of(self.dsl.mos(), &block).await,
            false => self.dsl.damage().pointer_of(objset, &block).await,
        }
    }

    /// Adds a block in every dataset that has it; whether there is one, as far as can be told.
    async fn expand(
        &self,
        heads: bool,
        head: ObjectId,
        block: &ErrorBookmark,
        out: &mut Vec<Bookmark>,
    ) -> bool {
        if !heads || head.is_zero() || block.birth.is_zero() {
            out.push(to_bookmark(head, block));
            return true;
        }
        match self.dsl.damage().damaged_in(head, block).await {
            Ok(found) if found.datasets.is_empty() && found.is_certain => false,
            Ok(found) if !found.datasets.is_empty() => {
                out.extend(
                    found
                        .datasets
                        .iter()
                        .map(|object| to_bookmark(*object, block)),
                );
                true
            }
            result => {
                if let Err(error) = result {
                    tracing::debug!(%error, %head, "who has a damaged block cannot be told");
                }
                out.push(to_bookmark(head, block));
                true
            }
        }
    }

    /// What is known of the blocks in the logs, before feature `head_errlog` is enabled
    /// (`sync_upgrade_errlog`).
    pub async fn prepare_error_upgrade(&self) {
        let logs = self.errors.logs();
        let enabled = self.dsl.features().is_enabled(features::HEAD_ERRLOG);
        if enabled || logs.is_broken || logs.last.is_zero() && logs.scrub.is_zero() {
            return;
        }
        let mut stored = Vec::new();
        for log in [logs.scrub, logs.last] {
            if let Err(error) = read_log(self.dsl.mos(), log, false, &mut stored).await {
                tracing::warn!(%error, "the pool's log of damaged blocks cannot be read");
            }
        }
        let mut out = Vec::new();
        for (found_in, block) in stored {
            let head = match self.dsl.damage().head_of(found_in).await {
                Ok(head) => head,
                // Destroyed since.
                Err(DatasetError::Object(object::ObjectError::NoSuchObject { .. })) => continue,
                Err(error) => {
                    tracing::debug!(%error, %found_in, "who has a damaged block cannot be told");
                    found_in
                }
            };
            match self.dsl.damage().birth_of(found_in, &block).await {
                Ok(Some(birth)) => out.push((head, ErrorBookmark { birth, ..block })),
                // There is no such block any more.
                Ok(None) => {}
                Err(_) => out.push((head, block)),
            }
        }
        self.errors.prepare_upgrade(out);
    }
}

impl Participant for ErrorLog {
    fn has_work(&self, _spa: &Spa) -> bool {
        self.has_pending()
    }

    /// Writes what was found since the last txg into the logs, in pass 1.
    fn pass<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            if !pass.is_first() || !self.has_pending() {
                return Ok(());
            }
            let taken = self.take();
            let mut sync = LogSync {
                dsl: &pass.spa.dsl,
                tx: pass.tx,
                heads: pass.spa.dsl.features().is_enabled(features::HEAD_ERRLOG),
                logs: self.logs(),
            };
            match sync.run(&taken).await {
                Ok(()) => self.set_logs(sync.logs),
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "the pool's log of damaged blocks cannot be written; \
                         it is left alone from now on"
                    );
                    self.give_up(taken);
                }
            }
            Ok(())
        })
    }
}

/// One txg's work on the logs.
struct LogSync<'a> {
    dsl: &'a Arc<DslPool>,
    tx: &'a Tx,
    heads: bool,
    logs: Logs,
}

impl LogSync<'_> {
    fn mos(&self) -> &Arc<ObjectSet> {
        self.dsl.mos()
    }

    async fn run(&mut self, pending: &Pending) -> Result<(), PoolError> {
        for change in &pending.changes {
            self.follow(change).await?;
        }
        for log in [self.logs.last, self.logs.scrub] {
            if !pending.gone.is_empty() {
                self.remove(log, pending).await?;
            }
            if !pending.healed.is_empty() {
                self.remove_healed(log, pending).await?;
            }
        }
        let mut logs = self.logs;
        self.add(&pending.last, &mut logs.last).await?;
        if pending.rotate {
            let old = std::mem::replace(&mut logs.last, std::mem::take(&mut logs.scrub));
            self.add(&pending.scrub, &mut logs.last).await?;
            self.name(logs).await?;
            self.delete(old).await;
        } else {
            self.add(&pending.scrub, &mut logs.scrub).await?;
            self.name(logs).await?;
        }
        let count = count_log(self.mos(), logs.last, self.heads).await?;
        let of_scrub = count_log(self.mos(), logs.scrub, self.heads).await?;
        self.logs.count = count.saturating_add(of_scrub);
        Ok(())
    }

    /// Makes these the pool's logs. What they replace is freed after that only: an error between
    /// must not leave names of objects whose numbers others may get. The scrub's goes first, as it
    /// may become the other: two names of one object would have it freed twice.
    async fn name(&mut self, logs: Logs) -> Result<(), PoolError> {
        let directory = Zap::hold(self.mos(), ObjectId::POOL_DIRECTORY).await?;
        for (name, log) in [
            (directory::ERRLOG_SCRUB, logs.scrub),
            (directory::ERRLOG_LAST, logs.last),
        ] {
            if directory.lookup_u64(name).await?.unwrap_or(0) != log.get() {
                directory.update_u64(self.tx, name, log.get()).await?;
            }
        }
        self.logs = logs;
        Ok(())
    }

    async fn new_log(&self) -> Result<Zap, PoolError> {
        let options = ZapOptions::new(ObjectType::ERROR_LOG);
        Ok(Zap::create(self.mos(), self.tx, options).await?)
    }

    /// Adds entries to a log that has none of them yet or some, and makes it where there is none
    /// (`sync_error_list`).
    async fn add(&self, lost: &Lost, log: &mut ObjectId) -> Result<(), PoolError> {
        if lost.is_empty() {
            return Ok(());
        }
        let mut keys: BTreeMap<ObjectId, Vec<String>> = BTreeMap::new();
        for (bookmark, birth) in lost {
            let found_in = ObjectId::new(bookmark.objset.get());
            if !self.heads {
                let level = bookmark.level;
                let key =
                    LogBookmark::new(bookmark.objset, bookmark.object, level, bookmark.block_id);
                keys.entry(ObjectId::ZERO).or_default().push(key.log_key());
                continue;
            }
            let head = if found_in.is_zero() {
                found_in
            } else {
                match self.dsl.damage().head_of_syncing(found_in).await {
                    Ok(head) => head,
                    // Destroyed since.
                    Err(DatasetError::Object(object::ObjectError::NoSuchObject { .. })) => continue,
                    Err(_) => found_in,
                }
            };
            let key = to_error(bookmark, *birth).log_key();
            keys.entry(head).or_default().push(key);
        }
        if log.is_zero() {
            *log = self.new_log().await?.id();
        }
        let zap = Zap::hold(self.mos(), *log).await?;
        for (head, keys) in keys {
            if self.heads {
                self.put(&self.child(&zap, head).await?, &keys).await?;
            } else {
                self.put(&zap, &keys).await?;
            }
        }
        Ok(())
    }

    /// The log of a dataset, made where there is none.
    async fn child(&self, log: &Zap, head: ObjectId) -> Result<Zap, PoolError> {
        if let Some(child) = log.lookup_int(head.get()).await? {
            return Ok(Zap::hold(self.mos(), ObjectId::new(child)).await?);
        }
        let child = self.new_log().await?;
        log.add_int(self.tx, head.get(), child.id().get()).await?;
        Ok(child)
    }

    async fn put(&self, zap: &Zap, keys: &[String]) -> Result<(), PoolError> {
        for key in keys {
            if zap.lookup(key).await?.is_none() {
                zap.add(self.tx, key, ZapValue::from_str_z("")).await?;
            }
        }
        Ok(())
    }

    /// Frees a log that is named nowhere any more, with all below it (`delete_errlog`). What cannot
    /// be read is left behind.
    async fn delete(&self, log: ObjectId) {
        if log.is_zero() {
            return;
        }
        let mut objects = vec![log];
        if self.heads {
            match entries(self.mos(), log).await {
                Ok(found) => objects.extend(found.iter().filter_map(child_of).map(|of| of.1)),
                Err(error) => tracing::warn!(%error, "an old log of damaged blocks is not freed"),
            }
        }
        for object in objects {
            if let Err(error) = self.mos().free(self.tx, object).await {
                tracing::warn!(%error, "an old log of damaged blocks is not freed");
            }
        }
    }

    /// Takes out entries of blocks that nobody has (`spa_remove_healed_errors`).
    async fn remove(&self, log: ObjectId, pending: &Pending) -> Result<(), PoolError> {
        if log.is_zero() || !self.heads {
            return Ok(());
        }
        let zap = Zap::hold(self.mos(), log).await?;
        for (head, key) in &pending.gone {
            let Some(child) = zap.lookup_int(head.get()).await? else {
                continue;
            };
            let child = Zap::hold(self.mos(), ObjectId::new(child)).await?;
            if child.lookup(key).await?.is_some() {
                child.remove(self.tx, key).await?;
            }
        }
        Ok(())
    }

    /// Takes out entries of blocks that are right again, of all datasets
    /// (`spa_remove_healed_errors`).
    async fn remove_healed(&self, log: ObjectId, pending: &Pending) -> Result<(), PoolError> {
        if log.is_zero() {
            return Ok(());
        }
        let mut zaps = vec![Zap::hold(self.mos(), log).await?];
        if self.heads {
            let children = entries(self.mos(), log).await?;
            zaps.clear();
            for (_, child) in children.iter().filter_map(child_of) {
                zaps.push(Zap::hold(self.mos(), child).await?);
            }
        }
        for (bookmark, birth) in &pending.healed {
            let key = match self.heads {
                true => to_error(bookmark, *birth).log_key(),
                false => {
                    let level = bookmark.level;
                    LogBookmark::new(bookmark.objset, bookmark.object, level, bookmark.block_id)
                        .log_key()
                }
            };
            for zap in &zaps {
                if zap.lookup(&key).await?.is_some() {
                    zap.remove(self.tx, &key).await?;
                }
            }
        }
        Ok(())
    }

    async fn follow(&mut self, change: &Change) -> Result<(), PoolError> {
        if let Change::Upgraded(entries) = change {
            return self.upgrade(entries).await;
        }
        if !self.heads {
            return Ok(());
        }
        for log in [self.logs.last, self.logs.scrub] {
            if log.is_zero() {
                continue;
            }
            let zap = Zap::hold(self.mos(), log).await?;
            match change {
                Change::Destroyed(head) => {
                    if let Some(child) = zap.lookup_int(head.get()).await? {
                        zap.remove_int(self.tx, head.get()).await?;
                        self.mos().free(self.tx, ObjectId::new(child)).await?;
                    }
                }
                Change::Promoted {
                    new_head,
                    old_head,
                    origin_txg,
                } => {
                    self.swap(&zap, (*old_head, *new_head), *origin_txg).await?;
                }
                Change::Upgraded(_) => {}
            }
        }
        Ok(())
    }

    /// Entries of blocks that the snapshots have which a promoted clone took go with them
    /// (`swap_errlog`).
    async fn swap(
        &self,
        log: &Zap,
        (old_head, new_head): (ObjectId, ObjectId),
        origin_txg: Txg,
    ) -> Result<(), PoolError> {
        let Some(from) = log.lookup_int(old_head.get()).await? else {
            return Ok(());
        };
        let from = Zap::hold(self.mos(), ObjectId::new(from)).await?;
        let moved: Vec<String> = from
            .all()
            .await?
            .iter()
            .filter_map(|entry| ErrorBookmark::from_log_key(&entry.name))
            .filter(|block| block.birth <= origin_txg)
            .map(|block| block.log_key())
            .collect();
        if moved.is_empty() {
            return Ok(());
        }
        self.put(&self.child(log, new_head).await?, &moved).await?;
        for key in &moved {
            from.remove(self.tx, key).await?;
        }
        Ok(())
    }

    /// Replaces logs of the old form by one of the new (`spa_upgrade_errlog`).
    async fn upgrade(&mut self, entries: &[Entry]) -> Result<(), PoolError> {
        let zap = self.new_log().await?;
        for (head, block) in entries {
            let child = self.child(&zap, *head).await?;
            self.put(&child, &[block.log_key()]).await?;
        }
        let old = [self.logs.last, self.logs.scrub];
        self.name(Logs {
            last: zap.id(),
            scrub: ObjectId::ZERO,
            ..self.logs
        })
        .await?;
        for log in old {
            if !log.is_zero()
                && let Err(error) = self.mos().free(self.tx, log).await
            {
                tracing::warn!(%error, "an old log of damaged blocks is not freed");
            }
        }
        Ok(())
    }
}
