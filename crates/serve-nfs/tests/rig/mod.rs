//! A server on a pool of its own, with what tests do to both.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::OPEN;
use access::{Access, Snapdir};
use device::World;
use filesystem::ZplInit;
use oracles::nfs::Client;
use pool::{
    CreateSpec, FeatureChoice, HostIdentity, ImportSpec, LeafSpec, Pool, ScanSpec, VdevClass,
    VdevLayout, VdevSpec,
};
use serve_nfs::{Policy, Server, Service, ShareSpec, Shares};

pub struct Rig {
    pub pool: Arc<Pool>,
    pub access: Arc<Access>,
    pub shares: Arc<Shares>,
    pub server: Server,
    // Dropped last.
    pub dir: tempfile::TempDir,
}

pub fn host() -> HostIdentity {
    HostIdentity {
        hostid: 0,
        hostname: "test".into(),
    }
}

impl Rig {
    /// A pool whose filesystem is shared so.
    pub async fn new(policy: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let world = World::system(2);
        let path = dir.path().join("d0.img");
        let image = std::fs::File::create(&path).expect("image");
        image.set_len(512 << 20).expect("size");
        let path = path.to_str().expect("UTF-8").to_owned();
        let spec = CreateSpec {
            name: "tank".into(),
            vdevs: vec![VdevSpec {
                layout: VdevLayout::Leaf(LeafSpec {
                    path,
                    is_file: true,
                }),
                class: VdevClass::Normal,
            }],
            properties: Vec::new(),
            features: FeatureChoice::All,
            root_properties: Vec::new(),
            root_init: Arc::new(ZplInit::new()),
            altroot: None,
            force: false,
            host: host(),
            events: None,
            cache: None,
        };
        let pool = Pool::create(&world, spec).await.expect("create");
        Self::of(dir, world, pool, policy).await
    }

    pub async fn of(dir: tempfile::TempDir, world: World, pool: Arc<Pool>, policy: &str) -> Self {
        let access = Arc::new(Access::new(Arc::clone(pool.dsl()), world.clone()));
        let shares = Arc::new(Shares::default());
        let verifier = world.random.next_u64();
        let address = "127.0.0.1:0".parse().expect("an address");
        let records = Some(dir.path().join("nfs"));
        let service = Service::new(Arc::clone(&shares), records, Arc::clone(&world.random));
        let rig = Self {
            access,
            server: Server::bind(address, service, 64 << 20)
                .await
                .expect("a server"),
            shares,
            pool,
            dir,
        };
        rig.share("tank", "/tank", policy, verifier).await;
        rig
    }

    pub async fn share(&self, dataset: &str, path: &str, policy: &str, verifier: u64) {
        let spec = self.spec(dataset, path, policy).await;
        self.shares.add(spec, verifier).await.expect("shared");
    }

    pub async fn spec(&self, dataset: &str, path: &str, policy: &str) -> ShareSpec {
        let found = self.pool.dsl().directories().lookup(dataset).await;
        let identity = found.expect("the dataset").guid.get();
        ShareSpec {
            dataset: dataset.into(),
            path: path.into(),
            policy: Policy::parse(policy).expect("a policy").expect("a share"),
            access: Arc::clone(&self.access),
            snapdir: Snapdir::Visible,
            identity,
        }
    }

    /// The pool as a crash at this moment leaves it, served anew.
    pub async fn crashed(&self) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (live, copy) = (self.dir.path().join("d0.img"), dir.path().join("d0.img"));
        // The disk is written meanwhile. Labels are from before: what they lead to is not
        // overwritten within a few transaction groups.
        let labels = labels_of(&live);
        std::fs::copy(live, &copy).expect("copy");
        let copy = std::fs::File::options()
            .write(true)
            .open(copy)
            .expect("a disk");
        for (offset, label) in labels {
            copy.write_all_at(&label, offset).expect("written");
        }
        let records = dir.path().join("nfs");
        std::fs::create_dir(&records).expect("a directory");
        for record in std::fs::read_dir(self.dir.path().join("nfs")).expect("records") {
            let record = record.expect("a record");
            std::fs::copy(record.path(), records.join(record.file_name())).expect("copy");
        }
        let world = World::system(2);
        let pool = import(&world, dir.path()).await;
        Self::of(dir, world, pool, OPEN).await
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.server.local_address()).await
    }

    /// A client, and the root's handle.
    pub async fn mounted(&self) -> (Client, Vec<u8>) {
        let mut client = self.client().await;
        let root = client.mount("/tank").await.expect("mounted");
        (client, root)
    }

    pub async fn snapshot(&self, name: &str) {
        let snapshots = self.pool.dsl().snapshots();
        snapshots
            .take(&[name.to_owned()], &[])
            .await
            .expect("snapshot");
    }

    pub async fn set(&self, name: &str, value: &str) {
        let change = dataset::PropertyChange::Set(value.to_owned());
        let set = self.pool.dsl().properties();
        set.set("tank", &[(name.to_owned(), change)])
            .await
            .expect("set");
    }
}

/// The labels at both ends of a disk, with their places.
pub fn labels_of(disk: &Path) -> [(u64, Vec<u8>); 2] {
    const TWO_BYTES: u64 = 2 * 256 * 1024;
    let disk = std::fs::File::open(disk).expect("a disk");
    let end = disk.metadata().expect("a size").len() & !(256 * 1024 - 1);
    [0, end - TWO_BYTES].map(|offset| {
        let mut label = vec![0; TWO_BYTES as usize];
        disk.read_exact_at(&mut label, offset).expect("read");
        (offset, label)
    })
}

pub async fn import(world: &World, dir: &Path) -> Arc<Pool> {
    let spec = ScanSpec {
        paths: vec![dir.to_str().expect("UTF-8").into()],
        ..ScanSpec::default()
    };
    let mut found = pool::scan(world, &spec).await.expect("scan");
    let mut spec = ImportSpec::new(found.remove(0), host());
    spec.force = true;
    Pool::import(world, spec).await.expect("import")
}

pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as u8
    };
    (0..length).map(next).collect()
}
