//! Goal: making, writing, unlinking and freeing a small file asks for little memory, which is much
//! of what such an operation costs. Method: the allocator of this binary counts what the only
//! thread asks for; of many operations the one in the middle is looked at, as some make a block of
//! dnodes or have a map grow.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use device::{CountingAllocator, World};
use filesystem::{Caller, Filesystem, ZplInit};
use pool::{
    CreateSpec, FeatureChoice, HostIdentity, LeafSpec, Pool, VdevClass, VdevLayout, VdevSpec,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Operations of each kind.
const FILES: usize = 300;
/// What the ones in the middle may ask for: as measured, and a few more.
const CREATE_MAX: u64 = 24;
const WRITE_MAX: u64 = 10;
const UNLINK_MAX: u64 = 10;
/// What freeing one of many unlinked files may ask for.
const FREE_MAX: u64 = 3;

async fn filesystem(world: &World, directory: &Path) -> (Arc<Pool>, Arc<Filesystem>) {
    let path = directory.join("d0.img");
    let image = std::fs::File::create(&path).expect("an image");
    image.set_len(256 << 20).expect("its size");
    let leaf = LeafSpec {
        path: path.to_str().expect("UTF-8").to_owned(),
        is_file: true,
    };
    let spec = CreateSpec {
        name: "tank".into(),
        vdevs: vec![VdevSpec {
            layout: VdevLayout::Leaf(leaf),
            class: VdevClass::Normal,
        }],
        properties: Vec::new(),
        features: FeatureChoice::All,
        root_properties: Vec::new(),
        root_init: Arc::new(ZplInit::new()),
        altroot: None,
        force: false,
        host: HostIdentity {
            hostid: 0,
            hostname: "test".into(),
        },
        events: None,
        cache: None,
    };
    let pool = Pool::create(world, spec).await.expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("a dataset");
    let filesystem = Filesystem::open(dataset, world.clone()).await;
    (pool, filesystem.expect("a filesystem"))
}

/// What the operation in the middle asked for, of as many as there are.
async fn middle(mut operation: impl AsyncFnMut(usize)) -> u64 {
    let mut counts = Vec::with_capacity(FILES);
    for number in 0..FILES {
        let before = CountingAllocator::asked();
        operation(number).await;
        counts.push(CountingAllocator::asked() - before);
    }
    counts.sort_unstable();
    counts[FILES / 2]
}

#[tokio::test]
async fn operations_of_small_files_ask_for_little_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::system(1);
    let (pool, fs) = filesystem(&world, directory.path()).await;
    let root = fs.root();
    let names: Vec<_> = (0..FILES).map(|number| format!("file{number}")).collect();
    let mut inos = Vec::with_capacity(FILES);
    let create = middle(async |number| {
        let name = names[number].as_bytes();
        let made = fs.create(root, name, 0o644, Caller::ROOT).await;
        inos.push(made.expect("create").ino);
    });
    let create = create.await;
    let data = bytes::Bytes::from(vec![7; 2048]);
    let write = middle(async |number| {
        let written = fs.write(inos[number], 0, data.clone(), false, Caller::ROOT);
        written.await.expect("write");
    });
    let write = write.await;
    pool.sync().await.expect("sync");
    let unlink = middle(async |number| {
        let unlinked = fs.unlink(root, names[number].as_bytes());
        unlinked.await.expect("unlink");
    });
    let unlink = unlink.await;
    // They have gathered, as nothing else ran meanwhile.
    let before = CountingAllocator::asked();
    while fs.unlinked().count().await.expect("readable") > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let free = (CountingAllocator::asked() - before) / FILES as u64;
    let found = format!("create {create}, write {write}, unlink {unlink}, free {free}");
    println!("{found}");
    assert!(create <= CREATE_MAX, "{found}");
    assert!(write <= WRITE_MAX, "{found}");
    assert!(unlink <= UNLINK_MAX, "{found}");
    assert!(free <= FREE_MAX, "{found}");
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
}
