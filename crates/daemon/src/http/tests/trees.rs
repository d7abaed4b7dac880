//! Goal: a replica follows whatever happens to the names of a tree. Method: between packages
//! datasets are made, cloned, renamed, promoted and destroyed, by chance or as it is written here;
//! each package (`send -R -I`, `receive -F`), some of them cut off first, makes the replica's
//! structure that of the source: names, GUIDs of snapshots, origins, contents.

use std::collections::BTreeMap;
use std::io::Cursor;

use ::bytes::Bytes;
use ::dataset::{DatasetKind, ListOptions};
use ::filesystem::Caller;
use api::{JobKind, ZfsReceive, ZfsSend};

use super::*;

/// Most datasets of a random tree.
const DATASETS_MAX: usize = 10;

/// A small generator, the same everywhere.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }
}

/// What is compared of a dataset; names are below the tree's top.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    snapshots: Vec<(String, u64)>,
    origin: Option<String>,
    files: Vec<String>,
}

type Shapes = BTreeMap<String, Shape>;

/// A source in pool `tank` and its replica in `bank`.
struct Trees<'a> {
    server: &'a Server,
    source: String,
    replica: String,
    /// Packages that went.
    count: usize,
    files: usize,
    /// What was done, for who reads of a failure.
    script: Vec<String>,
}

impl Server {
    async fn with_two_pools() -> Self {
        let server = Self::with_pool().await;
        let path = server.directory.path().join("bank");
        let disk = std::fs::File::create(&path).unwrap();
        disk.set_len(256 << 20).unwrap();
        let create = json!({
            "name": "bank",
            "vdevs": [{"layout": {"device": {"path": path}}}],
            "properties": {},
            "filesystem_properties": {"mountpoint": "none"},
            "force": false, "dry_run": false, "no_features": false,
            "altroot": null, "command": "zpool create bank",
        });
        server.ok("/v1/zpool/create", create).await;
        server
    }

    /// The name of a dataset or snapshot in `bank` of which this is true, as soon as there is one.
    async fn until(&self, is_it: impl Fn(&str) -> bool) -> String {
        let open = self.service.serving.pools.of_dataset("bank").unwrap();
        let options = ListOptions {
            snapshots: true,
            ..ListOptions::default()
        };
        for _ in 0..3000 {
            let listed = open.pool.dsl().directories().list("bank", &options).await;
            if let Some(found) = listed.unwrap().into_iter().find(|info| is_it(&info.name)) {
                return found.name;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("it did not come");
    }

    async fn take(&self, name: &str) {
        let call = json!({"names": [name], "recursive": false});
        self.ok("/v1/zfs/snapshot", call).await;
    }

    /// A tree without anything in it, and no replica yet.
    async fn trees(&self, name: &str) -> Trees<'_> {
        let trees = Trees {
            server: self,
            source: format!("tank/{name}"),
            replica: format!("bank/{name}"),
            count: 0,
            files: 0,
            script: Vec::new(),
        };
        self.create(&trees.source).await;
        trees
    }
}

impl Trees<'_> {
    /// A name by its words: `.` is the top, anything else is below it.
    fn full(&self, name: &str) -> String {
        let (head, rest) = match name.find('@') {
            Some(at) => name.split_at(at),
            None => (name, ""),
        };
        match head {
            "." => format!("{}{rest}", self.source),
            _ => format!("{}/{head}{rest}", self.source),
        }
    }

    /// Does one thing at the source. Says whether it could be done.
    async fn step(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.split(' ').collect();
        let first = self.full(words[1]);
        let is_recursive = words[0].ends_with("-r");
        let (path, body) = match (words[0], words.get(2)) {
            ("create", _) => (
                "create",
                json!({
                    "name": first, "properties": {}, "volume_size_bytes": null, "sparse": false,
                    "parents": false, "no_mount": true, "command": "zfs create",
                }),
            ),
            ("clone", Some(to)) => (
                "clone",
                json!({"origin": first, "name": self.full(to), "no_mount": true}),
            ),
            ("rename" | "rename-r", Some(to)) => {
                let to = match first.split_once('@') {
                    Some((head, _)) => format!("{head}@{to}"),
                    None => self.full(to),
                };
                (
                    "rename",
                    json!({"from": first, "to": to, "recursive": is_recursive}),
                )
            }
            ("promote", _) => ("promote", json!({"name": first})),
            ("destroy" | "destroy-r", _) => (
                "destroy",
                json!({"target": first, "recursive": is_recursive}),
            ),
            ("snapshot" | "snapshot-r", _) => (
                "snapshot",
                json!({"names": [first], "recursive": is_recursive}),
            ),
            ("write", _) => {
                self.script.push(line.to_owned());
                self.write(&first).await;
                return true;
            }
            _ => panic!("unknown: {line}"),
        };
        let (status, _) = self.server.post(&format!("/v1/zfs/{path}"), body).await;
        if status == 200 {
            self.script.push(line.to_owned());
        }
        status == 200
    }

    /// Makes a file that no other is like.
    async fn write(&mut self, dataset: &str) {
        self.files += 1;
        let open = self
            .server
            .service
            .serving
            .pools
            .of_dataset(dataset)
            .unwrap();
        let user = ::access::User::Command { name: "test" };
        let lease = open.access.filesystem(dataset, user).await.unwrap();
        let of = lease.get();
        let name = format!("f{}", self.files);
        let made = of
            .create(of.root(), name.as_bytes(), 0o644, Caller::ROOT)
            .await;
        let text = Bytes::from(name.into_bytes());
        let written = of
            .write(made.unwrap().ino, 0, text, false, Caller::ROOT)
            .await;
        written.unwrap();
    }

    async fn shapes(&self, top: &str) -> Shapes {
        let open = self.server.service.serving.pools.of_dataset(top).unwrap();
        let options = ListOptions {
            snapshots: true,
            ..ListOptions::default()
        };
        let listed = open.pool.dsl().directories().list(top, &options).await;
        let below = |name: &str| match name.strip_prefix(top) {
            Some(rest) => format!(".{rest}"),
            None => name.to_owned(),
        };
        let mut shapes = Shapes::new();
        for info in listed.unwrap() {
            if info.kind == DatasetKind::Snapshot {
                let (head, short) = info.name.split_once('@').unwrap();
                let shape = shapes.get_mut(&below(head)).unwrap();
                shape.snapshots.push((short.to_owned(), info.guid.get()));
                continue;
            }
            let user = ::access::User::Command { name: "test" };
            let lease = open.access.look(&info.name, user).await.unwrap();
            let of = lease.get();
            let entries = of.peek_directory(of.root(), 0, 1000).await.unwrap();
            let names = entries.into_iter().map(|entry| entry.name);
            let mut files: Vec<String> = names
                .map(|name| String::from_utf8_lossy(&name).into_owned())
                .collect();
            files.sort();
            let shape = Shape {
                snapshots: Vec::new(),
                origin: info.origin.as_deref().map(below),
                files,
            };
            shapes.insert(below(&info.name), shape);
        }
        shapes
    }

    async fn receive(&self, bytes: Vec<u8>) -> Result<(), String> {
        self.receive_from(Box::new(Cursor::new(bytes))).await
    }

    async fn receive_from(&self, input: ::verbs::receive::Input) -> Result<(), String> {
        let serving = &self.server.service.serving;
        let call = ZfsReceive {
            target: self.replica.clone(),
            force: true,
            no_mount: true,
            ..ZfsReceive::default()
        };
        let work = serving.jobs.begin(JobKind::Receive, None, None, false);
        let progress = ::stream::Progress::new(|_| false);
        let done = ::verbs::receive::receive_from(serving, call, input, &work, progress).await;
        done.map(|_| ()).map_err(|failure| failure.message)
    }

    /// A package of what is there since the last one.
    async fn sent(&mut self) -> Result<Vec<u8>, String> {
        let name = format!("p{}", self.count);
        let snapshot = format!("{}@{name}", self.source);
        let taken = json!({"names": [snapshot], "recursive": true});
        self.server.ok("/v1/zfs/snapshot", taken).await;
        let before = self.count.checked_sub(1);
        let call = ZfsSend {
            snapshot,
            from: before.map(|before| format!("{}@p{before}", self.source)),
            all_between: before.is_some(),
            replicate: true,
            ..ZfsSend::default()
        };
        let mut bytes = Vec::new();
        let pools = &self.server.service.serving.pools;
        let progress = ::stream::Progress::new(|_| false);
        let sent = ::verbs::send::send_to(pools, &call, &mut bytes, &progress).await;
        sent.map_err(|failure| failure.message)?;
        self.count += 1;
        self.script.push("|".to_owned());
        Ok(bytes)
    }

    /// Sends a package, all of it after what part of it, in thousandths.
    async fn replicate(&mut self, cut: Option<usize>) -> Result<(), String> {
        let is_first = self.count == 0;
        let bytes = self.sent().await?;
        if let Some(cut) = cut.filter(|_| !is_first) {
            let part = bytes[..bytes.len() * cut / 1000].to_vec();
            self.script.push(format!("cut {cut}"));
            if self.receive(part).await.is_ok() {
                return Err("a part was taken for all".to_owned());
            }
        }
        self.receive(bytes).await?;
        let (there, here) = (
            self.shapes(&self.source).await,
            self.shapes(&self.replica).await,
        );
        match there == here {
            true => Ok(()),
            false => Err(format!("there {there:#?}\nhere {here:#?}")),
        }
    }

    /// Does what is written, and sends it: `|` is a package.
    async fn run(&mut self, script: &str) {
        for line in script.split(['\n', ';']).map(str::trim) {
            match line.split_once(' ') {
                None if line == "|" => self.package(None).await,
                Some(("cut", cut)) => self.package(cut.parse().ok()).await,
                _ if line.is_empty() => {}
                _ => assert!(self.step(line).await, "{line}"),
            }
        }
    }

    async fn package(&mut self, cut: Option<usize>) {
        if let Err(why) = self.replicate(cut).await {
            panic!("{}\n{why}", self.script.join("; "));
        }
    }

    /// Lines that may be done with what is there.
    async fn random(&mut self, rng: &mut Rng) -> Vec<String> {
        let open = self.server.service.serving.pools.of_dataset(&self.source);
        let options = ListOptions {
            snapshots: true,
            ..ListOptions::default()
        };
        let listed = open
            .unwrap()
            .pool
            .dsl()
            .directories()
            .list(&self.source, &options)
            .await;
        let top = &self.source;
        let short = |name: &str| match name[top.len()..].strip_prefix('/') {
            Some(rest) => rest.to_owned(),
            None => format!(".{}", &name[top.len()..]),
        };
        let (mut heads, mut snapshots, mut clones) = (Vec::new(), Vec::new(), Vec::new());
        for info in listed.unwrap() {
            let name = short(&info.name);
            if info.kind == DatasetKind::Snapshot {
                snapshots.push(name);
            } else {
                if info.origin.is_some() {
                    clones.push(name.clone());
                }
                heads.push(name);
            }
        }
        // Packages begin with these.
        let own: Vec<String> = snapshots
            .iter()
            .filter(|name| !name.contains("@p"))
            .cloned()
            .collect();
        let below: Vec<String> = heads.iter().filter(|name| *name != ".").cloned().collect();
        let new_name = |rng: &mut Rng| {
            let last = ["a", "b", "c"][rng.below(3)];
            match heads[rng.below(heads.len())].as_str() {
                "." => last.to_owned(),
                above => format!("{above}/{last}"),
            }
        };
        let is_full = heads.len() >= DATASETS_MAX;
        let last = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
        let mut lines = Vec::new();
        match rng.below(16) {
            0..2 if !is_full => lines.push(format!("create {}", new_name(rng))),
            2..4 if !is_full => {
                if let Some(of) = rng.pick(&snapshots) {
                    lines.push(format!("clone {of} {}", new_name(rng)));
                }
            }
            4..7 => {
                if let Some(from) = rng.pick(&below) {
                    lines.push(format!("rename {from} {}", new_name(rng)));
                }
            }
            // Names are swapped or passed on.
            7..9 => {
                if let (Some(one), Some(other)) = (rng.pick(&below), rng.pick(&below)) {
                    lines.push(format!("rename {one} moved"));
                    lines.push(format!("rename {other} {one}"));
                    lines.push(format!("rename moved {other}"));
                }
            }
            // Below a new one, or a clone, of its old name.
            9 if !is_full => {
                if let Some(one) = rng.pick(&below) {
                    lines.push(format!("rename {one} moved"));
                    lines.push(format!("create {one}"));
                    lines.push(format!("rename moved {one}/{}", last(one)));
                }
            }
            10 => {
                if let Some(one) = rng.pick(&below) {
                    lines.push(format!("destroy-r {one}"));
                }
            }
            11 | 12 => {
                if let Some(one) = rng.pick(&clones) {
                    lines.push(format!("promote {one}"));
                }
            }
            13 => {
                let of = heads[rng.below(heads.len())].clone();
                let way = ["snapshot", "snapshot-r"][rng.below(2)];
                lines.push(format!("{way} {of}@s{}", rng.below(4)));
            }
            14 => {
                if let Some(one) = rng.pick(&own) {
                    match rng.below(3) {
                        0 => lines.push(format!("destroy {one}")),
                        _ => lines.push(format!("rename {one} s{}", rng.below(4))),
                    }
                }
            }
            _ => lines.push(format!("write {}", heads[rng.below(heads.len())])),
        }
        lines
    }
}

/// Random trees; says what failed.
async fn random_trees(seeds: impl IntoIterator<Item = u64>) {
    let server = Server::with_two_pools().await;
    let mut failed = Vec::new();
    for seed in seeds {
        let mut rng = Rng(seed.wrapping_mul(0x1234_5678_9abc_def1));
        let mut trees = server.trees(&format!("s{seed}")).await;
        let mut outcome = Ok(());
        for _ in 0..4 {
            for _ in 0..8 {
                for line in trees.random(&mut rng).await {
                    trees.step(&line).await;
                }
            }
            let cut = (rng.below(3) == 0).then(|| 100 + rng.below(900));
            outcome = trees.replicate(cut).await;
            if outcome.is_err() {
                break;
            }
        }
        if let Err(why) = outcome {
            failed.push(format!("seed {seed}: {}\n{why}", trees.script.join("; ")));
        }
        for top in [&trees.source, &trees.replica] {
            let call = json!({"target": top, "recursive": true, "dependents": true});
            let _ = server.post("/v1/zfs/destroy", call).await;
        }
    }
    assert!(
        failed.is_empty(),
        "{}: {}",
        failed.len(),
        failed.join("\n\n")
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_follow_random_trees() {
    random_trees(0..6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_follow_other_random_trees() {
    random_trees(20..26).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_follow_more_random_trees() {
    random_trees(42..48).await;
}

/// The first package's top is a clone of what is below it.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_begin_with_a_top_that_is_a_clone() {
    random_trees([19, 41]).await;
}

/// What was found to go wrong, or would be the first to.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_follow_what_was_done_to_names() {
    let server = Server::with_two_pools().await;
    let scripts = [
        // A parent that is new.
        "create a; write a; |; create b; rename a b/a; write b/a; |; rename b/a a; destroy-r b; |",
        // Passed on, swapped, and a part of it first.
        "create 1; create 2; create 3; write 1; |; destroy-r 3; rename 2 3; rename 1 2; \
         create 1; |",
        "create a; create b; write a; |; rename a t; rename b a; rename t b; write a; cut 400; |",
        // Below a new one, and a clone, of its old name.
        "create a; write a; |; rename a t; create a; rename t a/a; write a/a; |",
        "create a; write a; |; snapshot a@s; clone a@s t; rename a u; rename t a; rename u a/x; |",
        // A parent and its child change places.
        "create a; create a/b; |; rename a/b t; rename a t/x; rename t a; |",
        // Renamed away, its parent destroyed a moment later, and one of its name made.
        "create a; create a/x; create q; |; rename a/x q/x; destroy-r a; create a; |",
        "create a; create a/x; |; rename a/x t; destroy-r a; create a; rename t a/x; cut 300; |",
        // Promoted clones: of before, and of snapshots older and newer than the last package.
        "create a; snapshot a@s; clone a@s c; |; promote c; write c; |; destroy-r a; |",
        "create a; snapshot a@s; |; snapshot a@t; clone a@s c; write c; promote c; write a; |",
        "create a; snapshot a@s; |; snapshot a@t; clone a@t c; write c; promote c; write a; |",
        // The top's.
        "write .; snapshot .@s; clone .@s c; |; write c; promote c; |; write .; |",
        "write .; |; write .; snapshot .@t; clone .@t c; write c; promote c; write .; |; \
         write c; |",
        "write .; create x; |; snapshot .@t; clone .@t c; promote c; rename x c/x; cut 800; |",
        // Two clones of the top: what the older one takes, the other has by another name.
        "write .; |; snapshot .@s; clone .@s b; |; create a; clone .@p1 a/a; snapshot a/a@s; |; \
         promote b; promote a/a; |",
        // A top that is a clone from the start, of what is below it.
        "write .; snapshot .@s; clone .@s a; promote a; write a; create a/b; create c; |; \
         write .; rename a d; |",
        // Snapshots that changed names.
        "create a; snapshot a@s; write a; snapshot a@t; |; rename a@s u; rename a@t s; \
         rename a@u t; |; destroy a@s; snapshot a@s; |",
        "create a; snapshot a@s; clone a@s c; snapshot c@t; snapshot a@t; |; rename c@t s; \
         rename a@s x; promote c; |",
    ];
    for (number, script) in scripts.into_iter().enumerate() {
        let mut trees = server.trees(&format!("k{number}")).await;
        trees.run(script).await;
    }
    server.stop().await;
}

/// What is the receiver's own is not destroyed: it keeps its name, and nothing else waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_of_the_source_keeps_its_name() {
    let server = Server::with_two_pools().await;
    let mut trees = server.trees("s").await;
    trees.run("create a; create b; write a; |").await;
    server.create("bank/s/c").await;
    trees.run("rename a c; write c; write b").await;
    let why = trees.replicate(None).await.unwrap_err();
    assert!(
        why.contains("'bank/s/a' is not named 'bank/s/c' yet"),
        "{why}"
    );
    // It was received all the same, by its old name.
    let (there, here) = (trees.shapes("tank/s").await, trees.shapes("bank/s").await);
    assert_eq!(there["./c"], here["./a"]);
    assert_eq!(there["./b"], here["./b"]);
    assert!(here["./c"].snapshots.is_empty());
    let own = json!({"from": "bank/s/c", "to": "bank/mine"});
    server.ok("/v1/zfs/rename", own).await;
    trees.run("|").await;
    // A clone that is used elsewhere keeps what it was made of, by another name.
    let clone = json!({"origin": "bank/s/b@p2", "name": "bank/clone", "no_mount": true});
    server.ok("/v1/zfs/clone", clone).await;
    trees.run("destroy-r b; rename c b").await;
    let why = trees.replicate(None).await.unwrap_err();
    assert!(why.contains("bank/s/recv-"), "{why}");
    let (there, here) = (trees.shapes("tank/s").await, trees.shapes("bank/s").await);
    assert_eq!(there["./b"], here["./b"]);
    server
        .ok("/v1/zfs/destroy", json!({"target": "bank/clone"}))
        .await;
    trees.run("|").await;
    // Nor is it overwritten where the source makes a new one of its name.
    server.create("bank/s/d").await;
    trees.run("create d").await;
    let why = trees.replicate(None).await.unwrap_err();
    assert!(why.contains("'bank/s/d': it is there"), "{why}");
    assert!(trees.shapes("bank/s").await["./d"].snapshots.is_empty());
    server.stop().await;
}

/// A tree whose top is a clone of what is below it, as a package, and where its streams begin: the
/// package itself, `a@s`, the top's, and `a@p0`.
async fn of_a_late_top(trees: &mut Trees<'_>) -> (Vec<u8>, Vec<usize>) {
    trees
        .run("write .; snapshot .@s; clone .@s a; promote a")
        .await;
    let bytes = trees.sent().await.unwrap();
    let magic = 0x2_f5ba_cbac_u64.to_le_bytes();
    let all = bytes.windows(8).enumerate();
    let begins = all.filter(|(_, at)| *at == magic).map(|(at, _)| at - 8);
    let begins: Vec<usize> = begins.collect();
    assert_eq!(begins.len(), 4);
    (bytes, begins)
}

/// A first package destroys nothing: neither below a temporary name, nor what has its last one.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_during_a_first_package_stays() {
    let server = Server::with_two_pools().await;
    let mut trees = server.trees("s").await;
    let (bytes, begins) = of_a_late_top(&mut trees).await;
    let (mut source, input) = tokio::io::duplex(bytes.len());
    let meanwhile = async {
        source.write_all(&bytes[..begins[2]]).await.unwrap();
        let is_child = |name: &str| name.starts_with("bank/s-recv-") && name.ends_with("@s");
        let child = server.until(is_child).await.replace("@s", "");
        server.create(&format!("{child}/x")).await;
        server.take(&format!("{child}/x@mine")).await;
        // The last byte of all.
        let end = bytes.len() - 1;
        source.write_all(&bytes[begins[2]..end]).await.unwrap();
        server.until(|name| name == "bank/s/a@p0").await;
        server.create("bank/s/y").await;
        server.take("bank/s/y@mine").await;
        server.take("bank/s@daily").await;
        server.take("bank/s/a@daily").await;
        source.write_all(&bytes[end..]).await.unwrap();
    };
    let (received, ()) = tokio::join!(trees.receive_from(Box::new(input)), meanwhile);
    received.unwrap();
    let here = trees.shapes("bank/s").await;
    let names = |of: &str| -> Vec<String> {
        let all = here[of].snapshots.iter();
        all.map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names("."), ["p0", "daily"]);
    assert_eq!(names("./a"), ["s", "p0", "daily"]);
    assert_eq!(names("./a/x"), ["mine"]);
    assert_eq!(names("./y"), ["mine"]);
    assert_eq!(here["."].origin.as_deref(), Some("./a@s"));
    server.stop().await;
}

/// Nor what has the name that its top was to have, which was free when it began.
#[tokio::test(flavor = "multi_thread")]
async fn what_takes_the_name_of_a_first_package_stays() {
    let server = Server::with_two_pools().await;
    let mut trees = server.trees("s").await;
    let (bytes, begins) = of_a_late_top(&mut trees).await;
    let (mut source, input) = tokio::io::duplex(bytes.len());
    let meanwhile = async {
        // All but the end of the first stream.
        let most = begins[2] - 1;
        source.write_all(&bytes[..most]).await.unwrap();
        server.until(|name| name.starts_with("bank/s-recv-")).await;
        server.create("bank/s").await;
        server.create("bank/s/x").await;
        server.take("bank/s/x@mine").await;
        source.write_all(&bytes[most..]).await.unwrap();
    };
    let (received, ()) = tokio::join!(trees.receive_from(Box::new(input)), meanwhile);
    // A clone is not received into what is there.
    received.unwrap_err();
    let here = trees.shapes("bank/s").await;
    assert_eq!(here["./x"].snapshots.len(), 1);
    assert_eq!(here["./a"].snapshots.len(), 1);
    server.stop().await;
}
