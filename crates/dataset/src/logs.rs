//! Intent logs of datasets that are not open: freeing one with its dataset, claiming all after a
//! crash; and closing those of open ones.

use std::sync::Arc;

use bytes::Bytes;
use format::{
    BlockPointer, Endian, ObjectType, ObjsetPhys, Pointer, RegularPointer, Txg, ZilHeader,
};
use futures::future::try_join_all;
use object::{BlockAccounting, SyncContext};
use zil::{
    ZilError, awaits_replay, claim, free_chain, free_until, is_cut_off, is_far_ahead, visit_log,
};
use zio::pipeline::may_fail;
use zio::{Tx, WritePolicy, ZioError};

use crate::DatasetError;
use crate::account::HeadAccounting;
use crate::directories::several_at_once;
use crate::dsl::DslPool;
use crate::state::Ds;

/// How often something is tried again that a log being closed was in the way of.
pub(crate) const LOG_TRIES_MAX: u32 = 20;
/// Root blocks of which all are in memory before the first one is looked at.
const ROOTS_AT_ONCE: usize = 64;

/// What [`DslPool::claim_logs`] does with logs that nobody claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogClaim {
    /// The first txg that the pool's state lacks: older blocks are allocated already.
    pub first_txg: Txg,
    /// Their records are not wanted: they are newer than a checkpoint that the pool goes back to.
    pub is_dropped: bool,
}

/// What is asked about logs on disk.
#[derive(Clone, Copy)]
enum LogState {
    Waits,
    AwaitsReplay { synced: Txg },
    CutOff,
}

/// The root block of a dataset, as it is stored and decoded.
type Root = (Bytes, ObjsetPhys);

/// Intent logs of all datasets: [`DslPool::logs`].
#[derive(Clone, Copy)]
pub struct Logs<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Intent logs of all datasets.
    pub fn logs(self: &Arc<Self>) -> Logs<'_> {
        Logs { dsl: self }
    }
}

/// The refusal to import a pool without what a log may hold.
fn unreadable(name: &str, error: &dyn std::fmt::Display) -> DatasetError {
    DatasetError::Log(ZilError::Log {
        name: name.to_owned(),
        reason: format!(
            "it cannot be read to its end, so what was written synchronously in the last seconds \
             before the crash may be lost ({error}); attach all of the pool's devices, or use \
             'zpool import -m' to go on without that"
        ),
    })
}

/// A root block in the byte order in which blocks are written. The MACs in it are the same in both
/// (`zio_crypt_do_objset_hmacs`, module/os/linux/zfs/zio_crypt.c).
fn little_endian(root: &[u8], endian: Endian) -> Result<Vec<u8>, DatasetError> {
    Ok(match endian {
        Endian::Little => root.to_vec(),
        Endian::Big => ObjsetPhys::decode(root, endian)?.encode()?,
    })
}

impl Logs<'_> {
    /// Frees the blocks of a closed dataset's log (`zil_destroy_sync`, module/zfs/zil.c).
    pub(crate) async fn free(&self, ctx: &SyncContext, head: &Ds, header: &ZilHeader) {
        let root = head.phys().block.birth();
        free_chain(&self.dsl.env().pipeline, ctx.txg, root, header).await;
    }

    /// Heads that have a root block, in parts whose blocks are read together.
    fn parts_with_roots(heads: Vec<Arc<Ds>>) -> Vec<Vec<Arc<Ds>>> {
        let mut written = heads;
        written.retain(|head| !head.phys().block.is_hole());
        written.chunks(ROOTS_AT_ONCE).map(<[_]>::to_vec).collect()
    }

    /// Root blocks, as they are stored and decoded, several read at the same time.
    async fn roots_of(&self, heads: Vec<Arc<Ds>>) -> Vec<(Arc<Ds>, Result<Root, DatasetError>)> {
        several_at_once(heads, |head| self.root_with(head)).await
    }

    async fn root_with(&self, head: Arc<Ds>) -> (Arc<Ds>, Result<Root, DatasetError>) {
        let read = async {
            let (data, endian) = self.dsl.root_block(&head).await?;
            let objset = ObjsetPhys::decode(&data, endian)?;
            // Who lists the datasets next need not read it again.
            head.state().kind.get_or_insert(objset.kind);
            Ok::<_, DatasetError>((data, objset))
        };
        let read = read.await;
        (head, read)
    }

    /// Closes the intent log of a dataset that nobody uses any more, before it is destroyed or
    /// rolled back. One in use is left alone: the task will find that out.
    pub(crate) async fn settle(&self, name: &str) {
        let dataset = {
            let _config = self.dsl.config.read().await;
            self.dsl.directories().resolve(name).await
        };
        if let Ok(dataset) = dataset
            && dataset.hold_count() == 0
            && let Some(log) = dataset.open_log()
            && let Err(error) = log.close().await
        {
            tracing::debug!(name, %error, "the intent log could not be closed");
        }
    }

    /// The same for all datasets that nobody uses any more.
    pub async fn settle_unused(&self) {
        for dataset in self.dsl.registry.open_datasets() {
            if dataset.hold_count() == 0
                && dataset.has_busy_log()
                && let Some(log) = dataset.open_log()
                && let Err(error) = log.close().await
            {
                let object = dataset.object;
                tracing::debug!(dataset = %object, %error, "the intent log could not be closed");
            }
        }
    }

    /// Whether nobody holds a dataset.
    pub(crate) async fn is_unused(&self, name: &str) -> bool {
        let _config = self.dsl.config.read().await;
        self.dsl
            .directories()
            .resolve(name)
            .await
            .is_ok_and(|dataset| dataset.hold_count() == 0)
    }

    /// Closes the intent logs of all open datasets, so that an exported pool has none.
    ///
    /// # Errors
    /// [`DatasetError::Pool`] when the pool fails or is suspended.
    pub async fn close_open(&self) -> Result<(), DatasetError> {
        let logs: Vec<_> = self
            .dsl
            .registry
            .open_datasets()
            .iter()
            .filter_map(|dataset| dataset.open_log())
            .collect();
        try_join_all(logs.iter().map(|log| log.close())).await?;
        Ok(())
    }

    /// [`Self::close_logs`], also of datasets that nobody has open: what an earlier import left of
    /// their logs (`spa_reset_logs`, module/zfs/spa.c). Logs that wait to be replayed stay, and
    /// those of datasets that cannot be opened.
    ///
    /// # Errors
    /// As [`Self::close_logs`], and of reading the list of datasets.
    pub async fn close_all(&self) -> Result<(), DatasetError> {
        self.close_open().await?;
        let mut names = Vec::new();
        {
            let _config = self.dsl.config.read().await;
            for head in self.dsl.directories().heads().await {
                if head.open_log().is_some() || head.phys().block.is_hole() {
                    continue;
                }
                match self.stored_head(&head).await {
                    Ok(header) if header.log.is_hole() => {}
                    Ok(_) => names.push(self.dsl.directories().full_name(&head).await?),
                    Err(error) => tracing::warn!(
                        dataset = %head.object,
                        %error,
                        "the intent log of a dataset that cannot be read stays"
                    ),
                }
            }
        }
        for name in names {
            match self.dsl.open_dataset(&name).await {
                Ok(dataset) => {
                    if let Some(log) = dataset.log() {
                        log.close().await?;
                    }
                }
                Err(error) => {
                    tracing::debug!(
                        name,
                        %error,
                        "the intent log of a dataset that cannot be opened stays"
                    );
                }
            }
        }
        Ok(())
    }

    /// Datasets whose intent logs hold changes that are not in the pool's last synced state: a
    /// read-only import does not replay them, and shows the state without. Datasets that cannot be
    /// read are left out.
    ///
    /// # Errors
    /// Of reading the list of datasets.
    pub async fn awaiting_replay(&self) -> Result<Vec<String>, DatasetError> {
        let synced = self.dsl.env().txgs.synced_txg();
        self.datasets_whose_log(LogState::AwaitsReplay { synced })
            .await
    }

    /// Datasets whose intent logs were claimed at import and wait to be replayed, of all or of
    /// those at and below `top`. Datasets that cannot be read are left out.
    ///
    /// # Errors
    /// Of reading the list of datasets.
    pub async fn waiting(&self, top: Option<&str>) -> Result<Vec<String>, DatasetError> {
        if self.dsl.env().read_only {
            return Ok(Vec::new());
        }
        let mut names = self.datasets_whose_log(LogState::Waits).await?;
        if let Some(top) = top {
            names.retain(|name| {
                let below = name.strip_prefix(top);
                below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
            });
        }
        Ok(names)
    }

    /// Datasets whose intent logs begin or go on on log vdevs that are missing, as far as that can
    /// be told.
    ///
    /// # Errors
    /// Of reading the list of datasets.
    pub async fn with_lost_devices(&self) -> Result<Vec<String>, DatasetError> {
        self.datasets_whose_log(LogState::CutOff).await
    }

    async fn datasets_whose_log(&self, is: LogState) -> Result<Vec<String>, DatasetError> {
        let _config = self.dsl.config.read().await;
        let mut out = Vec::new();
        let parts = Self::parts_with_roots(self.dsl.directories().heads().await);
        for part in parts {
            self.add_those_whose_log(is, part, &mut out).await?;
        }
        Ok(out)
    }

    /// Adds the names of those heads of which it is so.
    async fn add_those_whose_log(
        &self,
        is: LogState,
        heads: Vec<Arc<Ds>>,
        out: &mut Vec<String>,
    ) -> Result<(), DatasetError> {
        let pipeline = &self.dsl.env().pipeline;
        for (head, root) in self.roots_of(heads).await {
            let objset = match root {
                Ok((_, objset)) => objset,
                Err(error) => {
                    let dataset = head.object;
                    tracing::warn!(%dataset, %error, "whether a dataset has a log cannot be told");
                    continue;
                }
            };
            let header = &objset.zil_header;
            let is_so = match is {
                LogState::Waits => {
                    !header.log.is_hole()
                        && !header.claim_txg.is_zero()
                        && header.flags & ZilHeader::REPLAY_NEEDED != 0
                }
                LogState::AwaitsReplay { synced } => awaits_replay(pipeline, header, synced).await,
                LogState::CutOff => is_cut_off(pipeline, header).await,
            };
            if is_so {
                out.push(self.dsl.directories().full_name(&head).await?);
            }
        }
        Ok(())
    }

    /// At import, after a crash: marks the intent logs' blocks as allocated (`zil_claim`), before
    /// anything is allocated. Call in the first syncing txg, before [`DslPool::sync_pass`]. Returns
    /// the newest birth of what was claimed, now or by an earlier import: let no dataset be changed
    /// before that txg has synced, so that nothing is older than what it replaces.
    ///
    /// # Errors
    /// Of reading logs; a log that just ends is no error. Of a dataset that cannot be read while
    /// devices are missing.
    pub async fn claim(&self, ctx: &SyncContext, how: LogClaim) -> Result<Txg, DatasetError> {
        let _config = self.dsl.config.write().await;
        let mut newest = Txg::ZERO;
        let mut changed = Vec::new();
        // Nobody has to be there to read these: see `dataset_lost`.
        let (heads, lost) = may_fail(self.dsl.directories().heads_and_lost()).await;
        for (name, error) in lost {
            self.dataset_lost(name, error)?;
        }
        for part in Self::parts_with_roots(heads) {
            let found = self.claim_some(ctx, how, part, &mut changed).await?;
            newest = newest.max(found);
        }
        // Writing allocates, so all logs are claimed before: their blocks are free in the space
        // maps.
        for (head, data, header) in changed {
            if head.is_encrypted() {
                self.write_locked_head(ctx, &head, &data, &header).await?;
                continue;
            }
            let objset = self.dsl.datasets().open_objset(&head).await?;
            objset.set_zil_header(&Tx::syncing(ctx.txg), header);
            self.dsl
                .datasets()
                .attach_without_log(&head, objset)
                .await?;
            self.dsl.syncer().sync_dataset_now(ctx, &head).await?;
            *head.open.lock() = None;
        }
        Ok(newest)
    }

    /// Claims the logs of some heads; adds to `changed` whose heads are to be written anew.
    async fn claim_some(
        &self,
        ctx: &SyncContext,
        how: LogClaim,
        heads: Vec<Arc<Ds>>,
        changed: &mut Vec<(Arc<Ds>, Bytes, ZilHeader)>,
    ) -> Result<Txg, DatasetError> {
        let pipeline = &self.dsl.env().pipeline;
        let mut newest = Txg::ZERO;
        for (head, root) in may_fail(self.roots_of(heads)).await {
            let (data, mut header) = match root {
                Ok((data, objset)) => (data, objset.zil_header),
                Err(error) => {
                    let name = self.dsl.directories().full_name(&head).await?;
                    self.dataset_lost(name, error)?;
                    continue;
                }
            };
            if header.log.is_hole() {
                continue;
            }
            if !header.claim_txg.is_zero() {
                // An import that was cut short claimed it, perhaps long before the txg of its
                // newest block.
                let objset = head.object.get().into();
                visit_log(pipeline, objset, how.first_txg, &header, &mut |block, _| {
                    pipeline.log_blocks().note_held(&block);
                    if !is_far_ahead(&block, how.first_txg) {
                        newest = newest.max(block.birth());
                    }
                })
                .await;
                if self.is_let_go(ctx.txg, &header) {
                    let root = head.phys().block.birth();
                    free_chain(pipeline, ctx.txg, root, &header).await;
                    changed.push((head, data, ZilHeader::default()));
                }
                continue;
            }
            let name = self.dsl.directories().full_name(&head).await?;
            let unreadable = |error: ZioError| unreadable(&name, &error);
            let root = head.phys().block.birth();
            if how.is_dropped {
                free_until(pipeline, ctx.txg, how.first_txg, root, &header).await;
                header.log = BlockPointer::HOLE;
                changed.push((head, data, header));
                continue;
            }
            let claimed = claim(pipeline, ctx.txg, how.first_txg, root, &mut header)
                .await
                .map_err(unreadable)?;
            tracing::debug!(dataset = %name, ?claimed, "claimed an intent log");
            newest = newest.max(claimed.newest_birth);
            if self.is_let_go(ctx.txg, &header) {
                free_chain(pipeline, ctx.txg, root, &header).await;
                header = ZilHeader::default();
            }
            changed.push((head, data, header));
        }
        Ok(newest)
    }

    /// Whether a claimed log, which has no record in it then, goes at once. OpenZFS leaves such a
    /// head with every dataset that was written synchronously, and destroys it when a snapshot is
    /// taken in a pool before version 27, which must not have one (`zil_suspend`,
    /// module/zfs/zil.c). What older software claimed does not tell whether it has records.
    fn is_let_go(&self, txg: Txg, header: &ZilHeader) -> bool {
        let is_known = header.flags & ZilHeader::CLAIM_RECORD_SEQUENCE_VALID != 0;
        let is_empty = is_known && header.flags & ZilHeader::REPLAY_NEEDED == 0;
        is_empty && !self.dsl.pool_version().has_logs() && header.log.birth() <= txg
    }

    /// A dataset cannot be read when logs are claimed: its log, if it has one, is not claimed, and
    /// its blocks may be used for other things. No pool stays away for that where nothing can be
    /// done about it (`spa_ld_claim_log_blocks` leaves such datasets out). Where devices are
    /// missing that may have what is needed, a person decides.
    ///
    /// # Errors
    /// [`ZilError::Log`] while devices are missing, unless logs were given up.
    fn dataset_lost(&self, name: String, error: DatasetError) -> Result<(), DatasetError> {
        let pipeline = &self.dsl.env().pipeline;
        let leaves = pipeline.tree().leaves();
        let are_all_there = leaves.iter().all(|leaf| leaf.state().0.is_usable());
        if !are_all_there && !pipeline.log_blocks().gives_up_unreadable() {
            return Err(unreadable(&name, &error));
        }
        tracing::error!(
            dataset = name, %error,
            "a dataset cannot be read: what its intent log may hold is lost"
        );
        Ok(())
    }

    /// Sets the head of an encrypted dataset's log, if it is another one.
    pub(crate) async fn set_locked_head(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        header: &ZilHeader,
    ) -> Result<(), DatasetError> {
        let (data, endian) = self.dsl.root_block(head).await?;
        if ObjsetPhys::decode(&data, endian)?.zil_header != *header {
            self.write_locked_head(ctx, head, &data, header).await?;
        }
        Ok(())
    }

    /// The head of a dataset's log as it is on disk.
    pub(crate) async fn stored_head(&self, head: &Arc<Ds>) -> Result<ZilHeader, DatasetError> {
        Ok(self.dsl.root_of(head).await?.zil_header)
    }

    /// Writes the head of an encrypted dataset's log into its root block, without the keys: root
    /// blocks are in the clear, and their MACs do not cover the log's head
    /// (`zio_crypt_do_objset_hmacs`, module/os/linux/zfs/zio_crypt.c).
    async fn write_locked_head(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        data: &Bytes,
        header: &ZilHeader,
    ) -> Result<(), DatasetError> {
        let pipeline = &self.dsl.env().pipeline;
        let old = head.phys().block;
        let mut bytes = little_endian(data, old.endian())?;
        bytes[ObjsetPhys::ZIL_HEADER_OFFSET..ObjsetPhys::ZIL_HEADER_OFFSET + ZilHeader::BYTES]
            .copy_from_slice(&header.encode());
        let policy = WritePolicy {
            checksum: old.checksum_kind(),
            // Off: OpenZFS wants it so where there are MACs.
            compression: old.compression(),
            copies: old.copies() as u8,
            fill: old.fill(),
            ..WritePolicy::metadata(ObjectType::OBJSET, 0)
        };
        let new = pipeline.write(ctx.txg, bytes.into(), &policy).await?;
        let new = match new.decoded() {
            Pointer::Regular(pointer) => BlockPointer::regular(&RegularPointer {
                uses_crypt: old.uses_crypt(),
                fill: old.fill(),
                ..pointer
            })?,
            _ => new,
        };
        let accounting = HeadAccounting {
            pipeline,
            txg: ctx.txg,
            head,
        };
        accounting.born(&new);
        accounting.dead(&old);
        head.change(|state| state.phys.block = new);
        self.dsl.syncer().dataset_written(ctx, head).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::{DnodePhys, ObjsetKind};

    /// A dnode's or a log header's fields that are wider than a byte, turned around.
    fn turn(bytes: &mut [u8], is_dnode: bool) {
        let words = match is_dnode {
            true => {
                bytes[8..10].reverse();
                bytes[10..12].reverse();
                &mut bytes[16..]
            }
            false => bytes,
        };
        for word in words.chunks_exact_mut(8) {
            word.reverse();
        }
    }

    #[test]
    fn a_big_endian_root_becomes_a_little_endian_one_with_the_same_macs() {
        let mut dnode = DnodePhys::default();
        dnode.object_type = ObjectType::DNODE;
        dnode.levels = 1;
        dnode.indirect_block_shift = 17;
        dnode.data_block_bytes = 16384;
        dnode.max_block_id = 7;
        dnode.pointers = vec![BlockPointer::HOLE; 3];
        let mut phys = ObjsetPhys::new(ObjsetKind::Filesystem, dnode);
        phys.portable_mac = [0xa5; 32];
        phys.local_mac = [0x17; 32];
        phys.zil_header.replay_sequence = 9;
        let ours = phys.encode().expect("encoded");
        let mut theirs = ours.clone();
        turn(&mut theirs[..512], true);
        let header = ObjsetPhys::ZIL_HEADER_OFFSET;
        // The header, the kind and the flags; then MACs.
        turn(&mut theirs[header..header + ZilHeader::BYTES + 16], false);
        for at in [1024, 1536, 2048] {
            if theirs.len() > at {
                turn(&mut theirs[at..at + 512], true);
            }
        }
        assert_ne!(theirs, ours);
        assert_eq!(little_endian(&theirs, Endian::Big).expect("turned"), ours);
        assert_eq!(little_endian(&ours, Endian::Little).expect("as is"), ours);
    }
}
