//! Goal: whatever is written here is right for OpenZFS, and what it writes then is right here:
//! layouts by record sizes by compressions by checksums, through rounds of changes by turns.
//! Method: pools with several filesystems and a volume each, no two alike, changed by a script
//! (`matrix.sh`) that runs here and in the machine with the real OpenZFS. After each turn: `zdb
//! -bcc`, a scrub by OpenZFS, and every path, attribute, content and space figure compared by the
//! other side. The same beginning with golden pools, whose features must stay as they were.
//! `MILLPOND_LONG=1`: all layouts, three rounds, two pools at a time, and every pair of settings
//! (two seeds; thirteen make every combination of record size, compression and checksum);
//! `MILLPOND_SEED=N`: one seed only; `MILLPOND_POOLS='raidz1_5 removed'`: only these golden pools
//! (`'m2 m5'`: layouts).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::golden::{unpack_from, unpack_into};
use crate::harness::{
    Peer, PeerOptions, Server, can_mount, is_long, need, run, zdb_finds_no_leaks, zdb_is_clean,
};

const SCRIPT: &str = include_str!("matrix.sh");
const RECORD_SIZES: [&str; 9] = ["512", "1K", "4K", "8K", "32K", "128K", "1M", "4M", "16M"];
const COMPRESSIONS: [&str; 11] = [
    "off",
    "on",
    "lz4",
    "lzjb",
    "zle",
    "gzip-1",
    "gzip-9",
    "zstd",
    "zstd-19",
    "zstd-fast-10",
    "gzip",
];
const CHECKSUMS: [&str; 8] = [
    "on",
    "fletcher2",
    "fletcher4",
    "sha256",
    "sha512",
    "skein",
    "edonr",
    "blake3",
];
const LAYOUTS: [&str; 8] = [
    "D",
    "D D",
    "mirror D D",
    "raidz1 D D D",
    "raidz2 D D D D",
    "raidz3 D D D D D",
    "mirror D D mirror D D",
    "draid2:2d:1s D D D D D D",
];
const ZVOL_ID: &str = "/lib/udev/zvol_id";
const VOLUME_BYTES: u64 = 6 << 20;

/// A pool that goes back and forth.
pub struct Pool {
    pub name: String,
    pub disks: Vec<String>,
    /// Made here, not by OpenZFS.
    pub is_ours: bool,
}

/// What is seen of one filesystem, volume or pool, by name.
pub type Views = BTreeMap<String, String>;

/// What a turn of OpenZFS does besides.
#[derive(Default)]
pub struct Besides {
    /// Options of its imports.
    pub import: &'static str,
    /// Commands after the scrub, before it looks.
    pub first: &'static str,
    /// Commands after it looked, before its work.
    pub last: String,
}

/// Small files that the peer makes in each filesystem, at most: on an emulated machine each process
/// takes tens of milliseconds.
const PEER_FILES_MAX: u32 = 20;

/// Filesystems of a golden pool that are changed in one turn, at most: they are small pools, some
/// with dozens.
const GOLDEN_CHANGED_MAX: usize = 6;

/// Whether pools can go to OpenZFS and back here.
pub fn can_go() -> bool {
    can_mount()
        && need("loop devices", Path::new("/dev/loop-control").exists())
        && need("zvol_id of zfsutils-linux", Path::new(ZVOL_ID).exists())
}

/// A server, the pools of a test, and what changes them.
pub struct Bed {
    pub server: Server,
    script: PathBuf,
    pub pools: Vec<Pool>,
    /// Small files made in each filesystem in a round.
    count: u32,
    /// They go to OpenZFS 2.4, whose zdb judges them in the machine: this one's is of 2.3.
    is_for_2_4: bool,
}

impl Bed {
    pub fn new(count: u32) -> Self {
        let server = Server::start();
        let inside = server.path("in");
        std::fs::create_dir_all(&inside).expect("a directory");
        let script = inside.join("matrix.sh");
        std::fs::write(&script, SCRIPT).expect("the script");
        // Tells which device is which volume; the peer has no udev.
        std::fs::copy(ZVOL_ID, inside.join("zvol_id")).expect("zvol_id of zfsutils-linux");
        Self {
            server,
            script,
            pools: Vec::new(),
            count,
            is_for_2_4: false,
        }
    }

    /// For pools that go to OpenZFS 2.4.
    pub fn new_for_2_4(count: u32) -> Self {
        Self {
            is_for_2_4: true,
            ..Self::new(count)
        }
    }

    /// Adds a golden pool of OpenZFS 2.4.
    pub fn add_golden_of_2_4(&mut self, name: &str) {
        let from = oracles::golden_of_2_4();
        let (manifest, directory) = unpack_from(&from, &self.server.path("disks"), name);
        self.add_images(&manifest, &directory);
    }

    /// Adds a golden pool; `false` where there are none.
    pub fn add_golden(&mut self, name: &str) -> bool {
        let Some((manifest, directory)) = unpack_into(&self.server.path("disks"), name) else {
            return false;
        };
        self.add_images(&manifest, &directory);
        true
    }

    fn add_images(&mut self, manifest: &serde_json::Value, directory: &Path) {
        let mut disks: Vec<String> = std::fs::read_dir(directory)
            .expect("the images")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .path()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        disks.sort();
        let name = manifest["pool"].as_str().expect("a pool").to_owned();
        self.pools.push(Pool {
            name,
            disks,
            is_ours: false,
        });
    }

    /// Makes a pool on sparse files of this size; in the layout each `D` is one.
    pub fn add_pool(&mut self, name: &str, layout: &str, bytes: u64, options: &str) {
        let directory = self.server.path(&format!("disks/{name}"));
        std::fs::create_dir_all(&directory).expect("a directory");
        let count = layout.split(' ').filter(|word| *word == "D").count();
        let disks: Vec<String> = (0..count)
            .map(|disk| {
                let path = directory.join(format!("{name}d{disk}"));
                std::fs::File::create(&path)
                    .and_then(|file| file.set_len(bytes))
                    .expect("a sparse file");
                path.to_string_lossy().into_owned()
            })
            .collect();
        let mut devices = self.server.attach(&disks).into_iter();
        let vdevs: Vec<String> = layout
            .split(' ')
            .map(|word| match word {
                "D" => devices.next().expect("enough disks"),
                word => word.to_owned(),
            })
            .collect();
        self.server.ok(&format!(
            "zpool create {options} -O acltype=posix -R {} {name} {}",
            self.server.text("mnt"),
            vdevs.join(" ")
        ));
        self.pools.push(Pool {
            name: name.to_owned(),
            disks,
            is_ours: true,
        });
    }

    /// Looking is not to change anything: access times are written when a filesystem is left, after
    /// it told its size.
    pub fn keep_access_times(&self) {
        for pool in &self.pools {
            self.server.ok(&format!("zfs set atime=off {}", pool.name));
        }
    }

    pub fn script(&self, words: &[&str]) -> String {
        let script = self.script.to_string_lossy();
        let mut all = vec![&*script];
        all.extend(words);
        run("bash", &all)
    }

    /// Names and mount points of a pool's filesystems, the pool's own first.
    pub fn mounts(&self, pool: &str) -> Vec<(String, String)> {
        self.server
            .ok(&format!(
                "zfs list -H -t filesystem -o name,mountpoint,mounted -r {pool}"
            ))
            .lines()
            .filter_map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
                [name, mountpoint, "yes"] => Some((name.to_owned(), mountpoint.to_owned())),
                _ => None,
            })
            .collect()
    }

    fn volumes(&self, pool: &str) -> Vec<String> {
        self.server
            .ok(&format!("zfs list -H -t volume -o name -r {pool}"))
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Size of the file that has more than one record also where records are large: made once, by
    /// long runs.
    fn large_bytes(&self, filesystem: &str, seed: u32) -> u64 {
        if !is_long() || seed != 1 {
            return 0;
        }
        let text = self
            .server
            .ok(&format!("zfs get -Hp -o value recordsize {filesystem}"));
        let record: u64 = text.trim().parse().expect("bytes");
        if record < 1 << 20 { 0 } else { record * 5 / 2 }
    }

    /// Filesystems of a pool that are changed in one turn, at most.
    fn changed_max(&self) -> usize {
        match self.pools.iter().all(|pool| pool.is_ours) {
            true => usize::MAX,
            false => GOLDEN_CHANGED_MAX,
        }
    }

    /// Changes all of our pools once; of golden ones, in each turn other filesystems.
    pub fn work(&self, seed: u32) {
        for pool in &self.pools {
            let mounts = self.mounts(&pool.name);
            let parts = mounts.len().div_ceil(self.changed_max());
            for (at, (name, mountpoint)) in mounts.into_iter().enumerate() {
                if at % parts != seed as usize % parts {
                    continue;
                }
                if self
                    .server
                    .ok(&format!("zfs get -H -o value readonly {name}"))
                    .trim()
                    == "on"
                {
                    continue;
                }
                self.script(&[
                    "work",
                    &mountpoint,
                    &seed.to_string(),
                    &self.count.to_string(),
                    &self.large_bytes(&name, seed).to_string(),
                ]);
            }
            for volume in self.volumes(&pool.name) {
                let path = self.server.state().join("zvol").join(&volume);
                run(
                    "sh",
                    &[
                        "-c",
                        &format!(
                            "head -c 700000 /dev/urandom | dd of='{}' bs=4k seek={} \
                             conv=notrunc,fsync iflag=fullblock status=none",
                            path.display(),
                            seed * 131 % 1000
                        ),
                    ],
                );
            }
        }
    }

    /// All that is seen here.
    pub fn survey(&self) -> Views {
        let mut views = Views::new();
        for pool in &self.pools {
            for (name, mountpoint) in self.mounts(&pool.name) {
                let text = self.script(&["survey", &mountpoint]);
                views.insert(name.replace('/', "%"), text);
            }
            for volume in self.volumes(&pool.name) {
                let path = self.server.state().join("zvol").join(&volume);
                let text = run("sha256sum", &[&path.to_string_lossy()]);
                views.insert(
                    volume.replace('/', "%"),
                    text.split(' ').next().unwrap_or_default().to_owned(),
                );
            }
            // Reading changed access times.
            self.server.ok(&format!("zpool sync {}", pool.name));
            views.insert(
                format!("space%{}", pool.name),
                self.server.ok(&format!(
                    "zfs list -Hp -t filesystem,volume,snapshot -o \
                     name,refer,lrefer,usedds,usedsnap -r {}",
                    pool.name
                )),
            );
            views.insert(
                format!("features%{}", pool.name),
                self.server
                    .ok(&format!("zpool get -H -o property,value all {}", pool.name))
                    .lines()
                    // Active as long as there is an intent log, which an import of an exported pool
                    // has not; and what 2.3 does not know.
                    .filter(|line| {
                        let left_out = [
                            "zilsaxattr",
                            "block_cloning_endian",
                            "dynamic_gang_header",
                            "physical_rewrite",
                        ];
                        let left_out = &left_out[..if self.is_for_2_4 { 1 } else { 4 }];
                        line.starts_with("feature@")
                            && !left_out.iter().any(|name| line.contains(name))
                    })
                    .map(|line| format!("{line}\n"))
                    .collect(),
            );
        }
        views
    }

    pub fn export(&mut self) {
        for pool in &self.pools {
            self.server.ok(&format!("zpool export {}", pool.name));
        }
        self.server.detach();
        self.verify();
    }

    pub fn verify(&self) {
        if self.is_for_2_4 {
            return;
        }
        for pool in &self.pools {
            let directory = Path::new(&pool.disks[0]).parent().expect("a directory");
            if pool.is_ours {
                zdb_is_clean(directory, &pool.name);
            } else {
                // In some golden pools zdb takes objects with permissions for leaked.
                zdb_finds_no_leaks(directory, &pool.name);
            }
        }
    }

    pub fn import(&mut self) {
        self.import_with("");
    }

    /// Imports all pools with these options.
    pub fn import_with(&mut self, options: &str) {
        for index in 0..self.pools.len() {
            let disks = self.pools[index].disks.clone();
            let search = self.server.attach_to_import(&disks);
            let name = &self.pools[index].name;
            self.server.ok(&format!(
                "zpool import {options} {search} -R {} {name}",
                self.server.text("mnt"),
            ));
        }
    }

    /// The turn of OpenZFS: it sees what we wrote, changes it, and tells what is there then.
    pub fn turn(&self, peer: &Peer, seed: u32, besides: &Besides) -> (Views, Views) {
        let out = self.server.path("out");
        let _ = std::fs::remove_dir_all(&out);
        let names: Vec<&str> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
        // Names of disks are of twenty characters at most.
        let disks: Vec<String> = (self.pools.iter().enumerate())
            .flat_map(|(at, pool)| {
                (pool.disks.iter().enumerate())
                    .map(move |(disk, path)| format!("{path},p{at}d{disk}"))
            })
            .collect();
        let text = peer.run_with(
            &disks,
            PeerOptions::default()
                .limit(Duration::from_secs(if is_long() { 3600 } else { 900 }))
                .input(&self.server.path("in"))
                .output(&out),
            &there(
                &names,
                seed,
                self.count.min(PEER_FILES_MAX),
                self.changed_max(),
                self.is_for_2_4,
                besides,
            ),
        );
        if self.is_for_2_4 {
            let clean = text.matches("No leaks (block sum matches space maps exactly)");
            assert_eq!(clean.count(), 2 * names.len(), "{text}");
        }
        for name in names {
            let status = text
                .split(&format!("pool: {name}\n"))
                .nth(1)
                .and_then(|rest| rest.split("pool: ").next())
                .unwrap_or_default();
            assert!(
                status.contains("scrub repaired 0B")
                    && status.contains("with 0 errors")
                    && status.contains("No known data errors"),
                "{name}: {text}"
            );
        }
        if is_long() {
            for line in text.lines().filter(|line| line.contains(" s: ")) {
                eprintln!("{line}");
            }
        }
        (views(&out.join("before")), views(&out.join("after")))
    }

    /// Rounds of turns, from imported pools to exported ones.
    fn rounds(&mut self, count: u32) {
        let Some(peer) = Peer::find() else { return };
        self.rounds_with(&peer, count, |_, _| Besides::default());
    }

    /// Rounds of turns, with what is done besides: here, where the bed is what it is given, and in
    /// the machine.
    pub fn rounds_with(
        &mut self,
        peer: &Peer,
        count: u32,
        besides: impl Fn(&Self, u32) -> Besides,
    ) {
        let began = std::time::Instant::now();
        let names: Vec<_> = self.pools.iter().map(|pool| pool.name.clone()).collect();
        let progress = |what: String| {
            if is_long() {
                eprintln!("{names:?}, {} s: {what}", began.elapsed().as_secs());
            }
        };
        let mut seed = 1;
        for round in 1..=count {
            self.work(seed);
            let besides = besides(self, round);
            let expected = self.survey();
            self.export();
            progress(format!("round {round}: off to OpenZFS"));
            let (before, after) = self.turn(peer, seed + 1, &besides);
            progress(format!("round {round}: back"));
            same(
                &expected,
                &before,
                "OpenZFS sees something else than we wrote",
            );
            self.verify();
            self.import();
            same(
                &after,
                &self.survey(),
                "we see something else than OpenZFS wrote",
            );
            seed += 2;
        }
        self.export();
        progress(format!("{count} rounds are well"));
    }
}

/// What runs in the machine with the real OpenZFS.
fn there(
    pools: &[&str],
    seed: u32,
    count: u32,
    changed_max: usize,
    has_zdb: bool,
    besides: &Besides,
) -> String {
    format!(
        r#"set -euo pipefail
out=/peer/out; mkdir -p $out/before $out/after
device() {{
  local try z
  for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    for z in /dev/zd*; do
      [ "$(/peer/zvol_id "$z" 2>/dev/null)" != "$1" ] || {{ echo "$z"; return; }}
    done
    sleep 0.3
  done
  return 1
}}
mark() {{ echo "$(cut -d ' ' -f 1 /proc/uptime) s: $*"; }}
# Pools side by side: one process after the other is slow here.
each() {{
  local p job jobs=()
  for p in {pools}; do "$@" $p & jobs+=($!); done
  for job in "${{jobs[@]}}"; do wait "$job" || exit 1; done
  mark "$@"
}}
survey() {{
  local p=$2
  zfs list -H -t filesystem -o name,mountpoint,mounted -r $p | while IFS=$'\t' read -r n m y; do
    [ "$y" = yes ] || continue
    bash /peer/matrix.sh survey "$m" >"$1/${{n//\//%}}"
  done
  zfs list -H -t volume -o name -r $p | while read -r n; do
    sha256sum "$(device "$n")" | cut -d ' ' -f 1 | tr -d '\n' >"$1/${{n//\//%}}"
  done
  zpool sync $p
  zfs list -Hp -t filesystem,volume,snapshot -o name,refer,lrefer,usedds,usedsnap -r $p \
    >"$1/space%$p"
  zpool get -H -o property,value all $p | grep ^feature@ | grep -v zilsaxattr \
    >"$1/features%$p" || true
}}
work() {{
  local p=$1
  zfs list -H -t filesystem -o name,mountpoint,mounted,readonly -r $p | awk '
    {{ line[NR] = $0 }}
    END {{
      parts = int((NR - 1) / {changed_max}) + 1
      for (i = 1; i <= NR; i++) if (i % parts == {seed} % parts) print line[i]
    }}
  ' | while IFS=$'\t' read -r n m y r; do
    [ "$y$r" = yesoff ] || continue
    bash /peer/matrix.sh work "$m" {seed} {count}
  done
  zfs list -H -t volume -o name -r $p | while read -r n; do
    head -c 700000 /dev/urandom |
      dd of="$(device "$n")" bs=4k seek=77 conv=notrunc,fsync iflag=fullblock status=none
  done
  zpool sync $p
}}
judge() {{ [ {has_zdb} = false ] || zdb -e -p /dev/disk/peer -bcc $1; }}
each judge
for p in {pools}; do zpool import {import} -d /dev/disk/peer -R /mnt/$p $p 2>&1; done
each zpool scrub -w
for p in {pools}; do zpool status $p; done
{first}
each survey $out/before
{last}
each work
for p in {pools}; do zpool export $p; zpool import -d /dev/disk/peer -R /mnt/$p $p; done
each survey $out/after
for p in {pools}; do zpool export $p; done
each judge
"#,
        pools = pools.join(" "),
        import = besides.import,
        first = besides.first,
        last = besides.last,
    )
}

fn views(directory: &Path) -> Views {
    std::fs::read_dir(directory)
        .expect("what the peer gave back")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            (
                path.file_name()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned(),
                String::from_utf8_lossy(&std::fs::read(&path).expect("a file")).into_owned(),
            )
        })
        .collect()
}

/// Demands that all are the same.
pub fn same(left: &Views, right: &Views, what: &str) {
    let names: Vec<_> = left.keys().collect();
    assert_eq!(names, right.keys().collect::<Vec<_>>(), "{what}");
    let mut all = Vec::new();
    for (name, text) in left {
        let other = &right[name];
        if text != other {
            let mut differences = Vec::new();
            let (ours, theirs): (Vec<_>, Vec<_>) =
                (text.lines().collect(), other.lines().collect());
            for line in &ours {
                if !theirs.contains(line) {
                    differences.push(format!("- {line}"));
                }
            }
            for line in &theirs {
                if !ours.contains(line) {
                    differences.push(format!("+ {line}"));
                }
            }
            differences.truncate(30);
            all.push(format!("{name}:\n{}", differences.join("\n")));
        }
    }
    assert!(all.is_empty(), "{what}:\n{}", all.join("\n"));
}

/// Pools of these layouts; filesystems get the next of every list, beginning where seed and first
/// layout say.
fn batch(seed: usize, layouts: &[usize], filesystems: usize, rounds: u32) {
    if !can_go() {
        return;
    }
    let mut bed = Bed::new(if is_long() { 60 } else { 12 });
    let mut next = (seed * LAYOUTS.len() + layouts[0]) * filesystems;
    for &index in layouts {
        let layout = LAYOUTS[index];
        let name = format!("m{index}");
        let options = format!("-o ashift={}", 9 + (seed + index) % 5);
        bed.add_pool(&name, layout, 640 << 20, &options);
        for filesystem in 0..filesystems {
            next += 1;
            bed.server.ok(&format!(
                "zfs create -o recordsize={} -o compression={} -o checksum={} -o xattr={} -o \
                 dnodesize={} -o copies={} {name}/fs{filesystem}",
                RECORD_SIZES[next % RECORD_SIZES.len()],
                COMPRESSIONS[next % COMPRESSIONS.len()],
                CHECKSUMS[next % CHECKSUMS.len()],
                ["sa", "dir"][next % 2],
                ["legacy", "auto", "1k"][next % 3],
                1 + usize::from(next.is_multiple_of(5)),
            ));
        }
        bed.server.ok(&format!(
            "zfs create -s -V {VOLUME_BYTES} -o volblocksize={} {name}/vol",
            ["4K", "8K", "16K", "64K"][next % 4]
        ));
    }
    bed.keep_access_times();
    bed.rounds(rounds);
}

#[test]
fn pools_go_to_openzfs_and_back() {
    let seed = std::env::var("MILLPOND_SEED").map(|seed| seed.parse().expect("a number"));
    if !is_long() {
        // The machine of the peer is slow: few pools unless there is time.
        return batch(seed.unwrap_or(0), &[1, 4, 7], 2, 1);
    }
    let chosen = std::env::var("MILLPOND_POOLS").unwrap_or_default();
    let layouts: Vec<usize> = (0..LAYOUTS.len())
        .filter(|index| {
            chosen.is_empty() || chosen.split(' ').any(|name| name == format!("m{index}"))
        })
        .collect();
    for seed in seed.map_or(0..2, |seed: usize| seed..seed + 1) {
        for two in layouts.chunks(2) {
            batch(seed, two, 8, 3);
        }
    }
}

/// Golden pools that may be written, several at a time: the machine takes only so many disks.
const GOLDEN: [&[&str]; 9] = [
    &["raidz1_5", "raidz_expanded", "draid", "removed"],
    &["nofeat", "draid_spare"],
    &["plain", "v28"],
    &["raidz2_6", "stripe_of_mirrors"],
    &[
        "mirror3",
        "raidz1_3",
        "big_dirs",
        "cloned_blocks",
        "checkpoint",
    ],
    &["raidz2_multi"],
    &["raidz3_8", "gang", "gang_raidz"],
    &["special", "logs_cache"],
    &["dedup_fast", "dedup_legacy"],
];

fn golden(names: &[&str], rounds: u32) {
    if !can_go() {
        return;
    }
    if names.is_empty() || Peer::find().is_none() {
        return;
    }
    let mut bed = Bed::new(8);
    for name in names {
        if !bed.add_golden(name) {
            return;
        }
    }
    bed.import();
    bed.keep_access_times();
    let features = |views: Views| -> Views {
        let is_features = |name: &String| name.starts_with("features%");
        views
            .into_iter()
            .filter(|(name, _)| is_features(name))
            // These are active when the first block that needs them is written, wherever that is
            // done; gang blocks are not deduplicated, so that there the first table is made in the
            // turns.
            .map(|(name, mut text)| {
                let by_content = ["sha512", "skein", "edonr", "blake3"].iter();
                let tables = (name == "features%gang").then_some(&"fast_dedup");
                for feature in by_content.chain(tables) {
                    let feature = format!("feature@{feature}\t");
                    text = text.replace(&format!("{feature}active"), &format!("{feature}enabled"));
                }
                (name, text)
            })
            .collect()
    };
    let before = features(bed.survey());
    bed.rounds(rounds);
    bed.import();
    same(&before, &features(bed.survey()), "features changed");
    bed.export();
}

#[test]
fn golden_pools_go_to_openzfs_and_back() {
    if let Ok(names) = std::env::var("MILLPOND_POOLS") {
        let names: Vec<&str> = (names.split(' '))
            .filter(|name| GOLDEN.iter().any(|some| some.contains(name)))
            .collect();
        golden(&names, 3);
    } else if is_long() {
        GOLDEN.iter().for_each(|names| golden(names, 3));
    } else {
        // `removed` goes there and back in its own test.
        golden(&["raidz_expanded", "draid"], 1);
    }
}
