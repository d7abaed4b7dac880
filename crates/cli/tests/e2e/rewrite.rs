//! Goal: `zfs rewrite` finds the files that it is to write again, and can be stopped.
//! Method: mounted filesystems with compressible files, written before compression was on: those
//! that were rewritten take less space. A job of many files is canceled through the API.

use std::path::Path;

use serde_json::json;

use crate::harness::{Server, can_mount};

const FILE_BYTES: usize = 1 << 20;

struct Case {
    server: Server,
    top: String,
}

fn start() -> Option<Case> {
    if !can_mount() {
        return None;
    }
    let server = Server::start();
    let disk = server.disks(1, 512 << 20).remove(0);
    let top = server.text("mnt");
    server.ok(&format!(
        "zpool create -O compression=off -m {top} tank {disk}"
    ));
    server.ok("zfs create tank/child");
    Some(Case { server, top })
}

impl Case {
    fn make(&self, name: &str) {
        let path = Path::new(&self.top).join(name);
        let above = path.parent().expect("a directory");
        std::fs::create_dir_all(above).expect("directories");
        std::fs::write(path, vec![b'x'; FILE_BYTES]).expect("a file");
    }

    /// Space that files take, in bytes.
    fn space(&self, name: &str) -> u64 {
        use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
        self.server.ok("zpool sync");
        let path = Path::new(&self.top).join(name);
        // The kernel remembers what it was.
        let found = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BLOCKS);
        found.expect("a file").stx_blocks * 512
    }
}

#[test]
fn files_are_rewritten_where_the_words_say() {
    let Some(case) = start() else { return };
    let Case { server, top } = &case;
    for name in ["a", "d/b", "d/e/c", "child/in", "part"] {
        case.make(name);
    }
    std::os::unix::fs::symlink("a", format!("{top}/link")).expect("a link");
    for name in ["a", "d/b", "d/e/c", "child/in", "part"] {
        assert!(case.space(name) >= FILE_BYTES as u64, "{name}");
    }
    server.ok("zfs set compression=lz4 tank");
    // Not what is below a directory without -r, nor what a link leads to.
    assert_eq!(server.ok(&format!("zfs rewrite -v {top}/d {top}/link")), "");
    assert!(case.space("d/b") >= FILE_BYTES as u64);
    assert_eq!(
        server.ok(&format!("zfs rewrite -v {top}/a")),
        format!("{top}/a\n")
    );
    assert!(case.space("a") < FILE_BYTES as u64 / 4);
    // The files of a directory come before those of directories in it.
    let told = server.ok(&format!("zfs rewrite -v -r {top}/d/"));
    assert_eq!(told, format!("{top}/d/b\n{top}/d/e/c\n"));
    assert!(case.space("d/e/c") < FILE_BYTES as u64 / 4);
    // Half of one, in numbers as C has them.
    let half = format!("zfs rewrite -o 0x80000 -l 524288 {top}/part");
    server.ok(&half);
    let space = case.space("part");
    assert!(
        (FILE_BYTES as u64 / 2..FILE_BYTES as u64 * 3 / 4).contains(&space),
        "{space}"
    );
    // What is mounted below only without -x.
    server.ok(&format!("zfs rewrite -r -x {top}"));
    assert!(case.space("child/in") >= FILE_BYTES as u64);
    let told = server.ok(&format!("zfs rewrite -r -v {top}"));
    assert!(told.contains(&format!("{top}/child/in\n")), "{told}");
    assert!(case.space("child/in") < FILE_BYTES as u64 / 4);
    assert!(std::fs::read(format!("{top}/part")).expect("read") == vec![b'x'; FILE_BYTES]);

    // What cannot be done does not keep it from the rest.
    server.ok("zfs set compression=off tank");
    let said = server.fails(&format!("zfs rewrite {top}/no {top}/a"));
    assert!(said.contains(&format!("failed to stat {top}/no")), "{said}");
    assert!(case.space("a") >= FILE_BYTES as u64);
    let said = server.fails(&format!("zfs rewrite -P {top}/a"));
    assert!(
        said.contains(&format!("failed to rewrite {top}/a")) && said.contains("physical_rewrite"),
        "{said}"
    );
    server.ok("zpool set feature@physical_rewrite=enabled tank");
    server.ok(&format!("zfs rewrite -P {top}/a"));
    server.ok("zpool sync");
    let active = server.ok("zpool get -H -o value feature@physical_rewrite tank");
    assert_eq!(active, "active\n");
    server.ok("zfs set readonly=on tank/child");
    let said = server.fails(&format!("zfs rewrite {top}/child/in"));
    assert!(said.contains("read-only"), "{said}");
    let said = server.fails("zfs rewrite /");
    assert!(
        said.contains("in no filesystem that is mounted here"),
        "{said}"
    );
}

#[test]
fn a_rewrite_is_a_job_that_stops_when_it_is_canceled() {
    let Some(case) = start() else { return };
    case.make("a");
    // The same file over and over: long enough to be stopped.
    let paths = vec![format!("{}/a", case.top); 50_000];
    let body = json!({
        "paths": paths, "recursive": false, "one_filesystem": false, "offset_bytes": 0,
        "length_bytes": 0, "physical": false, "list": false,
    });
    let job = case.server.ask("/v1/zfs/rewrite", &body);
    let id = json!({"id": job["id"]});
    assert_eq!(job["kind"], "rewrite");
    assert_eq!(job["can_cancel"], true);
    let state = || case.server.ask("/v1/jobs/get", &id);
    case.server.wait_until("progress", || {
        let now = state();
        assert_eq!(now["state"], "running", "{now}");
        now["progress"]["done"].as_u64() > Some(FILE_BYTES as u64)
    });
    case.server.ask("/v1/jobs/cancel", &id);
    case.server
        .wait_until("its end", || state()["state"] == "canceled");
    // Nobody is kept out, and nothing is lost.
    case.server.ok("zfs unmount tank/child");
    let path = format!("{}/a", case.top);
    assert!(std::fs::read(path).expect("read") == vec![b'x'; FILE_BYTES]);
    case.server.ok("zpool export tank");
}
