//! Goal: a pool of version 28, from before feature flags, is written so that OpenZFS finds nothing
//! wrong, and upgraded. Method: the golden pool, given filesystems of the old layouts too (znodes
//! without system attributes), changed, snapshotted and thinned; zdb after each step; then `zpool
//! upgrade`, and features used; the real OpenZFS reads, scrubs and writes before, with
//! `MILLPOND_LONG=1` also after.

use std::path::{Path, PathBuf};

use crate::golden::unpack_into;
use crate::harness::{Peer, Server, can_mount, is_long, need, run, zdb_finds_no_leaks};

/// Every kind of file made, changed and removed.
pub const WORK: &str = r#"
work() { # directory, round
  cd "$1"; mkdir -p "round-$2/sub" "round-$2/gone"
  head -c 200000 /dev/urandom >"round-$2/base"
  yes "round $2" | head -c 100000 >"round-$2/text" || true
  for i in $(seq 12); do echo "$i of $2" >"round-$2/sub/file-$i"; done
  ln "round-$2/base" "round-$2/link"; ln -s base "round-$2/short"
  ln -s "$(printf 'long/%.0s' $(seq 80))" "round-$2/long"; mkfifo "round-$2/pipe"
  chmod 600 "round-$2/text"; chown 1000:1001 "round-$2/base"
  touch -d '2011-02-03 04:05:06' "round-$2/sub/file-7"
  mv "round-$2/sub/file-9" "round-$2/moved"; rm -r "round-$2/sub/file-1"*; rmdir "round-$2/gone"
  for old in round-*; do
    [ "$old" = "round-$2" ] && continue
    rm -f "$old/link" "$old/sub/file-2"; echo "again $2" >>"$old/text"
    truncate -s 54321 "$old/base"
  done
  sync -f .
}
look() {
  (cd "$1"; find round-* -type f -print0 | sort -z | xargs -0 -r sha256sum
  find round-* -printf '%p %y %m %U %G %n %s %l %T@\n' | grep -v ' d ' | sort)
}
"#;
const POOL: &str = "v28";

struct Bed {
    server: Server,
    disks: Vec<String>,
    datasets: Vec<String>,
}

impl Bed {
    fn shell(&self, line: &str) -> String {
        run("bash", &["-euc", &format!("{WORK}\n{line}")])
    }

    fn work(&self, round: u32) {
        for dataset in &self.datasets {
            self.shell(&format!(
                "work {} {round}",
                self.server.text(&format!("mnt/{dataset}"))
            ));
        }
    }

    fn look(&self) -> String {
        let look = |dataset: &String| {
            let at = self.server.text(&format!("mnt/{dataset}"));
            format!("{dataset}\n{}", self.shell(&format!("look {at}")))
        };
        self.datasets.iter().map(look).collect()
    }

    fn images(&self) -> PathBuf {
        let first = Path::new(&self.disks[0]);
        first.parent().expect("a directory").to_owned()
    }

    fn import(&mut self) {
        let root = self.server.text("mnt");
        let from = self.server.attach_to_import(&self.disks);
        self.server
            .ok(&format!("zpool import -R {root} {from}{POOL}"));
    }

    fn export(&mut self) {
        self.server.ok(&format!("zpool export {POOL}"));
        self.server.detach();
        zdb_finds_no_leaks(&self.images(), POOL);
    }

    /// What OpenZFS sees, after a scrub; then it works as well, and says what there is now.
    fn visit(&self, peer: &Peer, round: u32) -> (String, String) {
        let script = format!(
            r#"set -euo pipefail
{WORK}
zpool import -d /dev/disk/peer -R /mnt {POOL} 2>&1
zpool scrub -w {POOL}; zpool status {POOL} | grep -q 'errors: No known data errors'
zpool status {POOL} | grep -q 'with 0 errors'
all() {{ for d in {datasets}; do echo $d; look /mnt/$d; done; }}
echo BEFORE; all
for d in {datasets}; do (work /mnt/$d {round}); done
zpool sync {POOL}
echo AFTER; all
echo END
zpool export {POOL}
"#,
            datasets = self.datasets.join(" "),
        );
        let text = peer.run(&self.disks, &script).replace('\r', "");
        let between = |from: &str, to: &str| {
            let rest = text.split_once(&format!("{from}\n")).expect("a part").1;
            let part = rest.split_once(&format!("{to}\n")).expect("its end").0;
            part.to_owned()
        };
        (between("BEFORE", "AFTER"), between("AFTER", "END"))
    }

    /// To OpenZFS and back, everything compared.
    fn ping_pong(&mut self, peer: &Peer, round: u32) {
        let sums = self.look();
        self.export();
        let (before, after) = self.visit(peer, round);
        assert_eq!(before, sums, "what OpenZFS reads");
        zdb_finds_no_leaks(&self.images(), POOL);
        self.import();
        assert_eq!(self.look(), after, "what OpenZFS wrote");
    }
}

#[test]
fn a_pool_of_version_28_is_written_and_upgraded() {
    if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let server = Server::start();
    let Some((_, directory)) = unpack_into(&server.path("golden"), POOL) else {
        return;
    };
    let disk = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let disks = vec![disk("d0.img"), disk("d1.img")];
    let datasets = ["v28", "v28/clone", "v28/dedup"];
    let mut bed = Bed {
        server,
        disks,
        datasets: datasets.map(str::to_owned).to_vec(),
    };
    bed.import();
    for version in [1, 3, 4] {
        let dataset = format!("v28/fs{version}");
        bed.server
            .ok(&format!("zfs create -o version={version} {dataset}"));
        bed.datasets.push(dataset);
    }
    bed.work(0);
    let refused = bed
        .server
        .fails("zpool set feature@zstd_compress=enabled v28");
    assert!(refused.contains("zpool upgrade"), "{refused}");
    bed.server.ok("zfs snapshot -r v28@ours");
    bed.export();
    bed.import();
    bed.work(1);
    // Snapshots of theirs and of ours, in the middle and at the end.
    bed.server.ok("zfs destroy v28/fs3@ours");
    bed.server.ok("zfs destroy v28/clone@ours");
    bed.ping_pong(&peer, 2);
    let version = bed.server.ok("zpool get -H -o value version v28");
    assert_eq!(version.trim(), "28");

    let said = bed.server.ok("zpool upgrade v28");
    assert!(
        said.contains("Successfully upgraded 'v28' from version 28 to feature flags."),
        "{said}"
    );
    assert!(said.contains("log_spacemap"), "{said}");
    bed.server
        .ok("zfs create -o compression=zstd -o checksum=skein -o recordsize=1M v28/new");
    bed.datasets.push("v28/new".to_owned());
    bed.work(3);
    // A feature is active once a block that needs it is on disk.
    bed.server.ok("zpool sync v28");
    let features = bed
        .server
        .ok("zpool get -H -o value feature@zstd_compress,feature@skein v28");
    assert_eq!(features, "active\nactive\n");
    // The machine of the peer is slow.
    if is_long() {
        bed.ping_pong(&peer, 4);
    } else {
        bed.export();
        bed.import();
    }
    bed.server.ok("zfs destroy -r v28/fs4");
    bed.datasets.retain(|dataset| dataset != "v28/fs4");
    bed.work(5);
    bed.export();
}
