//! Leaves of what is flushed next are read before the transaction group that flushes it.
//!
//! When a txg is on disk, it is known which entries the next one will flush. Their leaves are read
//! while that one fills and writes its data, when disks have little to read: as many as a quarter
//! of the cache holds (`flush`). Such a leaf is asked for twice, since the cache keeps what was
//! asked for again, whatever comes through it meanwhile. What is not read when the next txg has
//! flushed its part is given up.
//!
//! Where a table changes meanwhile (the txg stores entries while the last leaves are still read),
//! what is read may be out of date, and is of no use then. That is safe: nothing is decided by it,
//! and the cache has blocks by their checksum among others, so an old one is never taken for the
//! new one. Errors are nobody's, and are not reported ([`reads_ahead`]): who needs the leaf hears
//! of them. Tasks are the pipeline's, which ends them when the pool is closed.
//!
//! A crash loses what is in memory.

use device::Tasks;
use futures::StreamExt;
use futures::future::{AbortHandle, abortable};
use futures::stream::FuturesUnordered;
use object::{Zap, reads_ahead};
use zio::pipeline::may_fail;

use super::Dedup;
use super::flush::Source;
use super::log::Words;

/// Has the cache keep the leaf of a key, if it can.
async fn read_leaf(zap: Zap, words: Words) {
    let reading = async {
        if may_fail(zap.read_ahead_u64_key(&words)).await.is_ok() {
            let _ = may_fail(zap.read_ahead_u64_key(&words)).await;
        }
    };
    reads_ahead(reading).await;
}

impl Dedup {
    /// Begins to read the leaves of what the next txg flushes.
    pub(crate) fn read_ahead(&self, tasks: &Tasks) {
        if self.has_logs() {
            return;
        }
        let waiting: Vec<u8> = {
            let tables = self.tables.read();
            let waiting = tables.iter().filter(|(_, table)| table.logs.waiting() > 0);
            waiting.map(|(code, _)| *code).collect()
        };
        let mut running = FuturesUnordered::new();
        for code in waiting {
            let window = self.window(code, &Source::Log(usize::MAX));
            if !window.is_read {
                continue;
            }
            let most = window.leaves * window.of_a_leaf;
            let next = self.with_logs(code, |logs| logs.peek(most));
            for (words, logged) in next.unwrap_or_default() {
                let zaps = self.zaps_of(code, &logged).into_iter().flatten();
                zaps.for_each(|zap| running.push(read_leaf(zap, words)));
            }
        }
        if running.is_empty() {
            return;
        }
        let (reads, handle) = abortable(async move { while running.next().await.is_some() {} });
        tasks.spawn("reading a dedup table ahead", async move {
            let _ = reads.await;
        });
        self.stop_reading(Some(handle));
    }

    /// Gives up what was begun and is not read yet; from now on this may be.
    pub(super) fn stop_reading(&self, next: Option<AbortHandle>) {
        if let Some(handle) = std::mem::replace(&mut *self.ahead.lock(), next) {
            handle.abort();
        }
    }
}
