//! Goal: pools with every feature of OpenZFS 2.4 active go to it and back, and so does one that 2.3
//! made.
//! Method: as the matrix, with 2.4's own zdb in the machine. On both sides files are cloned,
//! rewritten and moved (`zfs rewrite -P`), and in the machine blocks are ganged by force.
//! `MILLPOND_LONG=1`: three times, and one pool more.

use crate::harness::{Peer, is_long, run};
use crate::matrix::{Bed, Besides, can_go};

/// What 2.4 added and new pools do not have.
const FEATURES: [&str; 3] = [
    "block_cloning_endian",
    "dynamic_gang_header",
    "physical_rewrite",
];

/// The pool that 2.3 made.
const OLD: &str = "g_mirror3";

/// In the machine: gang blocks, some with long headers, clones, moved and rewritten files. Names
/// with `f` are for the matrix to remove.
const THERE: &str = r"
echo 30000 >/sys/module/zfs/parameters/metaslab_force_ganging
echo 1 >/sys/module/zfs/parameters/zfs_bclone_enabled
# The longer headers begin with the first block of which three parts would be too long: surely with
# the first of these, and perhaps never where only some are ganged.
wide() {
  local p=$1 m
  [ $p = g_mirror3 ] || {
    m=$(zfs list -H -o mountpoint $p)
    head -c 300000 /dev/urandom >$m/wide
  }
  zpool sync $p
}
echo 100 >/sys/module/zfs/parameters/metaslab_force_ganging_pct
each wide
echo 30 >/sys/module/zfs/parameters/metaslab_force_ganging_pct
more() {
  local p=$1 m
  [ $p = g_mirror3 ] || {
    m=$(zfs list -H -o mountpoint $p)
    zfs rewrite -P -r -x $m
    rm -rf $m/there; mkdir -p $m/there
    head -c 900000 /dev/urandom >$m/there/source
    zpool sync $p
    cp --reflink=always $m/there/source $m/there/clone
    zfs rewrite -o 100000 -l 300000 $m/there/source
  }
  zpool sync $p
}
each more
";

impl Bed {
    /// The same here.
    fn more(&self) {
        for pool in &self.pools {
            let Some((_, top)) = self.mounts(&pool.name).into_iter().next() else {
                continue;
            };
            // What was cloned before is no longer shared then.
            if pool.name != OLD {
                self.server.ok(&format!("zfs rewrite -P -r -x {top}"));
            }
            let at = format!("{top}/here");
            let _ = std::fs::remove_dir_all(&at);
            std::fs::create_dir(&at).expect("a directory");
            let data: Vec<u8> = (0..900_000u64).map(|at| (at * at / 7) as u8).collect();
            std::fs::write(format!("{at}/source"), data).expect("written");
            self.server.ok(&format!("zpool sync {}", pool.name));
            run("cp", &[&format!("{at}/source"), &format!("{at}/clone")]);
            self.server
                .ok(&format!("zfs rewrite -o 100000 -l 300000 {at}/source"));
        }
    }
}

#[test]
fn pools_go_to_openzfs_2_4_and_back() {
    let Some(peer) = Peer::find_2_4() else { return };
    if !can_go() {
        return;
    }
    let mut bed = Bed::new_for_2_4(if is_long() { 8 } else { 4 });
    // Of 2.3, as it stays: nothing of 2.4 becomes active in it.
    if !bed.add_golden("mirror3") {
        return;
    }
    bed.add_golden_of_2_4("gang_wide");
    if is_long() {
        bed.add_golden_of_2_4("rewritten");
    }
    bed.import();
    let enabled: String = FEATURES
        .iter()
        .map(|name| format!(" -o feature@{name}=enabled"))
        .collect();
    bed.add_pool(
        "ours",
        "raidz1 D D D",
        256 << 20,
        &format!("-o ashift=12{enabled}"),
    );
    bed.server
        .ok("zfs create -o dedup=on -o compression=gzip ours/dedup");
    bed.keep_access_times();
    // The machine of the peer is slow.
    let rounds = if is_long() { 3 } else { 1 };
    bed.rounds_with(&peer, rounds, |bed, _| {
        bed.more();
        Besides {
            last: THERE.to_owned(),
            ..Besides::default()
        }
    });
    bed.import();
    for (pool, state) in [("ours", "active"), (OLD, "disabled")] {
        for name in FEATURES {
            let words = format!("zpool get -H -o value feature@{name} {pool}");
            assert_eq!(bed.server.ok(&words).trim(), state, "{name} of {pool}");
        }
    }
    bed.export();
}
