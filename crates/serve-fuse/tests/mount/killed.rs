//! A server that is killed while it waits for itself.

use std::ffi::{CString, OsStr};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, INodeNo, ReplyAttr, ReplyEntry, Request, SessionACL,
};
use parking_lot::Mutex;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::can_mount;

/// Where the child is to mount its filesystem.
const PLACE: &str = "MILLPOND_TEST_PLACE";

/// A filesystem that never answers who makes a directory.
#[derive(Default)]
struct Silent(Mutex<Vec<ReplyEntry>>);

impl fuser::Filesystem for Silent {
    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attributes = FileAttr {
            ino: node,
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        reply.attr(&Duration::from_secs(1), &attributes);
    }

    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::ENOENT);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        self.0.lock().push(reply);
        println!("asked");
    }
}

fn serve(place: &Path) {
    let mut device = std::fs::File::options();
    let device = device.read(true).write(true);
    let device = OwnedFd::from(device.open("/dev/fuse").expect("/dev/fuse"));
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        device.as_raw_fd()
    );
    let data = CString::new(data).expect("no zero");
    rustix::mount::mount(
        "silent",
        place,
        "fuse",
        MountFlags::empty(),
        data.as_c_str(),
    )
    .expect("mounted");
    let session = fuser::Session::from_fd(
        Silent::default(),
        device,
        SessionACL::All,
        fuser::Config::default(),
    );
    let session = session.expect("a session");
    std::thread::spawn(move || session.run());
}

/// Not a test: what the one below kills.
#[tokio::test]
async fn a_server_that_waits_for_itself() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    serve(&place);
    let made = serve_fuse::aside(move || std::fs::create_dir(place.join("directory")));
    made.await.expect("it is never answered");
}

#[test]
fn a_server_that_waits_for_itself_can_be_killed() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "killed::a_server_that_waits_for_itself"])
        .arg("--nocapture")
        .env(PLACE, dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let asked = output.lines().map_while(Result::ok);
    assert!(asked.into_iter().any(|line| line.contains("asked")));
    child.kill().expect("killed");
    let since = Instant::now();
    let mut is_gone = false;
    while !is_gone && since.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
        is_gone = child.try_wait().expect("it can be asked").is_some();
    }
    // By force: who waits for it gets an answer.
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
    rustix::mount::unmount(dir.path(), flags).expect("unmounted");
    child.wait().expect("it is gone now");
    assert!(is_gone, "it waits for itself for ever");
}

/// An answer from a thread without the process's descriptors wakes a runtime that waits for events.
#[tokio::test]
async fn what_was_done_aside_is_answered() {
    for round in 0..20 {
        let work = move || {
            std::thread::sleep(Duration::from_millis(2));
            // Whatever is opened there is its own.
            let table = std::fs::read_to_string("/proc/self/mounts");
            (round, table.is_ok_and(|table| !table.is_empty()))
        };
        let since = Instant::now();
        let patience = Duration::from_secs(30);
        let answer = tokio::time::timeout(patience, serve_fuse::aside(work)).await;
        assert_eq!(answer.expect("an answer"), (round, true));
        // The clock would have woken it.
        assert!(since.elapsed() < patience, "it was not woken");
    }
}
