//! What the tests share: small files.

pub mod golden;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::sim::SimWorld;
use filesystem::{Caller, Filesystem};
use pool::Pool;
use sim::verify::Failure;

/// Who does everything.
pub const ROOT: Caller = Caller::ROOT;

/// The top filesystem.
pub async fn open(sim: &SimWorld, pool: &Pool) -> Result<Arc<Filesystem>, Failure> {
    let dataset = pool.dsl().open_dataset(&pool.name()).await?;
    Ok(Filesystem::open(dataset, sim.world()).await?)
}

/// Content that does not compress.
pub fn data(seed: u64, length: usize) -> Bytes {
    let mut out = Vec::new();
    for block in 0..length.div_ceil(4096) as u64 {
        out.extend(sim::model::sector(seed * 1000 + block));
    }
    out.truncate(length);
    out.into()
}

/// A file with content; its number.
pub async fn put(fs: &Filesystem, name: &str, content: &Bytes) -> Result<u64, Failure> {
    let ino = fs
        .create(fs.root(), name.as_bytes(), 0o644, ROOT)
        .await?
        .ino;
    fs.write(ino, 0, content.clone(), false, ROOT).await?;
    Ok(ino)
}

/// Removes a file, and gives the filesystem the time to free it: the next txg has that as well.
pub async fn remove(fs: &Filesystem, name: &str) {
    fs.unlink(fs.root(), name.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// A file's content.
pub async fn get(fs: &Filesystem, name: &str) -> Result<Vec<u8>, Failure> {
    let found = fs.lookup(fs.root(), name.as_bytes()).await?;
    let pieces = fs.read(found.ino, 0, found.size_bytes as usize).await?;
    Ok(pieces.concat())
}

/// Removes a file, and forgets what its sync will read: without that block in memory nobody could
/// have removed it.
pub async fn remove_and_forget(pool: &Pool, fs: &Filesystem, name: &str) {
    remove(fs, name).await;
    pool.pipeline().cache().clear();
}
