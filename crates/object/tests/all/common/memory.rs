//! A pipeline on one device in memory, for this crate's tests and those of `dataset`.

use std::sync::Arc;

use device::{BoxFuture, Device, DeviceError, InlineCpu, MemoryDevice, Opener, World};
use format::{NvList, NvValue, VdevId};
use vdev::IgnoreErrors;
use vdev::{OpenOptions, VdevTree};
use zio::alloc::{AllFree, Allocator};
use zio::{Cache, Pipeline, PipelineOptions};

const METASLAB_SHIFT: u32 = 24;

struct OneDevice(Arc<MemoryDevice>);

impl Opener for OneDevice {
    fn open<'a>(
        &'a self,
        _path: &'a str,
        _read_only: bool,
    ) -> BoxFuture<'a, Result<Arc<dyn Device>, DeviceError>> {
        let device: Arc<dyn Device> = self.0.clone();
        Box::pin(async move { Ok(device) })
    }
}

/// A world of system clock and tokio tasks with one memory device, and a pipeline on it.
pub async fn pipeline(size_bytes: u64, cache_bytes: u64) -> (World, Arc<Pipeline>) {
    let device = Arc::new(MemoryDevice::new("memory", size_bytes));
    let world = World {
        cpu: Arc::new(InlineCpu),
        opener: Arc::new(OneDevice(device)),
        ..World::system(1)
    };
    let asize = (size_bytes - (5 << 20)) >> METASLAB_SHIFT << METASLAB_SHIFT;
    let mut leaf = NvList::new();
    leaf.set("type", "file");
    leaf.set("id", 0u64);
    leaf.set("guid", 22u64);
    leaf.set("path", "memory");
    leaf.set("metaslab_array", 1u64);
    leaf.set("metaslab_shift", u64::from(METASLAB_SHIFT));
    leaf.set("ashift", 9u64);
    leaf.set("asize", asize);
    let mut root = NvList::new();
    root.set("type", "root");
    root.set("id", 0u64);
    root.set("guid", 11u64);
    root.set("children", NvValue::ListArray(vec![leaf]));
    let options = OpenOptions {
        create: true,
        ..OpenOptions::default()
    };
    let tree = VdevTree::open(world.clone(), &root, options)
        .await
        .expect("the tree opens");
    let allocator = Arc::new(Allocator::new());
    allocator.set_source(Arc::new(AllFree {
        metaslab_shift: METASLAB_SHIFT,
    }));
    let top = tree.top(VdevId::new(0)).expect("one top-level vdev");
    allocator.add_top(vdev::TopSpec::of(&top).expect("it can be allocated from"));
    let pipeline = Pipeline::new(
        world.clone(),
        tree,
        allocator,
        Arc::new(Cache::new(cache_bytes)),
        PipelineOptions::default(),
        Arc::new(IgnoreErrors),
    );
    (world, pipeline)
}
