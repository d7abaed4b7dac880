//! Goal: a vdev on a file whose server stops answering costs a mirror nothing but that half, as the
//! deadman promises, and other trees not even time. Method: real files and the real clock; one half
//! is a file of a FUSE filesystem that stops on a word.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::World;
use format::{NvList, NvValue, Txg, VdevId};
use oracles::StoppableFile;

use crate::io::Unverified;
use crate::report::ErrorReport;
use crate::testing::{Reports, noise, pool_config, root};
use crate::{DeadmanLimits, IoContext, OpenOptions, VdevState, VdevTree};

const SIZE: usize = 64 << 20;
const BLOCK: usize = 8192;
/// Longer than all that is not stuck takes.
const PATIENCE: Duration = Duration::from_secs(120);

fn mirror(paths: &[String], guid: u64) -> NvList {
    let leaf = |(path, guid): (&String, u64)| {
        let mut out = NvList::new();
        out.set("type", "file");
        out.set("guid", guid);
        out.set("path", path.as_str());
        out
    };
    let mut out = NvList::new();
    out.set("type", "mirror");
    out.set("guid", guid);
    let children = paths.iter().zip(guid + 1..).map(leaf).collect();
    out.set("children", NvValue::ListArray(children));
    out
}

/// A mirror whose devices are given up after so many seconds.
async fn create(world: &World, paths: &[String], give_up_s: u32) -> (Arc<VdevTree>, Arc<Reports>) {
    let options = OpenOptions {
        create: true,
        ..OpenOptions::default()
    };
    let config = root(vec![mirror(paths, 10)], 12);
    let tree = VdevTree::open(world.clone(), &config, options).await;
    let tree = tree.expect("opened");
    let (tops, config) = (tree.tops(), pool_config(0));
    let labels = tree.init_labels(&tops, &config, Txg::INITIAL);
    labels.await.expect("labelled");
    let reports = Arc::new(Reports::default());
    tree.set_error_sink(reports.clone());
    tree.patience().set_limits(DeadmanLimits {
        lag_s: 1,
        give_up_s,
        stand_still_s: 300,
    });
    (tree, reports)
}

/// Writes, flushes and reads blocks at `first` and behind.
async fn work(tree: &Arc<VdevTree>, first: u64, count: u64) {
    let context = IoContext {
        birth: Txg::new(10),
        ..IoContext::default()
    };
    let mut tasks = tokio::task::JoinSet::new();
    for index in first..first + count {
        let tree = tree.clone();
        tasks.spawn(async move {
            let data = Bytes::from(noise(BLOCK, index));
            let at = index * BLOCK as u64;
            let written = tree.write_block(VdevId::ZERO, at, data.clone(), &context);
            written.await.expect("written");
            let read = tree.read_block(VdevId::ZERO, at, BLOCK, &context, &Unverified);
            assert!(read.await.expect("read") == data);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("done");
    }
    tree.flush().await.expect("flushed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_a_mirror_on_a_stopped_server_is_given_up() {
    let Some(server) = StoppableFile::mount(SIZE) else {
        return;
    };
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = |name: &str| {
        let path = directory.path().join(name).display().to_string();
        device::create_sparse_file(&path, SIZE as u64).expect("a file");
        path
    };
    let world = World::system(2);
    let (ours, reports) = create(&world, &[file("near"), server.path()], 3).await;
    let (theirs, others) = create(&world, &[file("a"), file("b")], 100).await;
    work(&ours, 0, 20).await;
    server.set_stopped(true);
    let both = async { tokio::join!(work(&ours, 100, 300), work(&theirs, 100, 300)) };
    let both = tokio::time::timeout(PATIENCE, both).await;
    assert!(both.is_ok(), "the pools wait for the stopped server");
    let states: Vec<_> = ours.leaves().iter().map(|leaf| leaf.state().0).collect();
    assert_eq!(states, [VdevState::Healthy, VdevState::CantOpen]);
    let is_deadman = |report: &ErrorReport| matches!(report, ErrorReport::Deadman { .. });
    assert!(reports.0.lock().iter().any(is_deadman));
    assert!(others.0.lock().is_empty());
    assert!(
        theirs
            .leaves()
            .iter()
            .all(|leaf| leaf.state().0 == VdevState::Healthy)
    );
    // What it had taken, it does in the end.
    server.set_stopped(false);
    let leaves = ours.leaves();
    let leaf = leaves[1].leaf().expect("a leaf");
    while leaf.is_busy() {
        tokio::task::yield_now().await;
    }
}
