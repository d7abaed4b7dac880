//! Long random stories on the binary, each with an oracle (`scripts/torture`).
//!
//! A seed decides what a story does and roughly when the server is killed; the kill itself comes
//! whenever the machine gets to it, so a seed repeats a story closely, not exactly. A test tells
//! stories, one seed after the other, until `MILLPOND_MINUTES` are over (20 seconds by default),
//! and begins with `MILLPOND_SEED` (1 by default).
//!
//! | Module | The story | The oracle |
//! |---|---|---|
//! | [`damage`] | objects of the MOS, roots of datasets, labels that are damaged | sums |
//! | [`files`] | files with flags, lists, attributes, clones and holes; `kill -9` | a model |
//! | [`keys`] | encrypted datasets, their keys, raw streams; `kill -9` | a model, sums, `zdb` |
//! | [`pools`] | layouts, features, datasets, snapshots, clones, streams; `kill -9` | sums, `zdb` |
//! | [`servers`] | mount, NFS 3 and 4.2, iSCSI at once; kills, exports, rollbacks | models, `zdb` |
//! | [`topology`] | devices that come and go below files with fsync; `kill -9` | sums, `zdb` |

mod contents;
mod damage;
mod files;
mod keys;
mod model;
mod pools;
mod servers;
mod shell;
mod topology;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Server, can_mount, zdb_is_clean};

/// For how long stories are told where nothing else is asked for.
const BUDGET: Duration = Duration::from_secs(20);

/// A number from the environment.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text}: not a number")),
    )
}

/// Tells stories until the time is over.
fn tell(story: impl Fn(u64)) {
    if !can_mount() {
        return;
    }
    let minutes = number("MILLPOND_MINUTES");
    let budget = minutes.map_or(BUDGET, |minutes| Duration::from_secs(60 * minutes));
    let begin = Instant::now();
    let mut seed = number("MILLPOND_SEED").unwrap_or(1);
    loop {
        eprintln!("MILLPOND_SEED={seed} begins here");
        story(seed);
        if begin.elapsed() >= budget {
            return;
        }
        seed += 1;
    }
}

/// Has somebody work for some time, and kills the server in the middle of that. The work is told
/// before the kill, so that what then fails is no failure.
fn work_until_kill<T: Send>(
    server: &mut Server,
    for_ms: u64,
    work: impl FnOnce(&AtomicBool) -> T + Send,
) -> T {
    let is_killed = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = scope.spawn(move || work(is_killed));
        let until = Instant::now() + Duration::from_millis(for_ms);
        while Instant::now() < until && !work.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        is_killed.store(true, Ordering::SeqCst);
        server.kill_only();
        work.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Starts a server anew that was killed, and waits until its pools are there.
fn restart(server: &mut Server, pools: &[&str]) {
    // A command that came a moment after the kill has started a server of its own.
    let _ = server.command(&["down"]);
    server.clear_mounts();
    server.launch(&["daemon"]);
    for pool in pools {
        server.wait_until("the pool is imported again", || {
            let list = server.command(&["zpool", "list", pool]);
            list.status.success()
        });
    }
}

/// Ends a story that failed, and keeps what is left of it.
fn give_up(server: &mut Server, why: &str, story: &[String]) -> ! {
    server.kill();
    server.directory.disable_cleanup(true);
    panic!(
        "{why}\nwhat is left is in {}\nthe last operations:\n{}",
        server.directory.path().display(),
        story.join("\n")
    );
}

/// Demands that a scrub finds nothing, and zdb nothing after the export.
fn is_whole(server: &mut Server, pool: &str) {
    server.command(&["zpool", "scrub", "-s", pool]);
    server.ok(&format!("zpool scrub -w {pool}"));
    let status = server.ok(&format!("zpool status -v {pool}"));
    assert!(
        status.contains("errors: No known data errors") && !status.contains("DEGRADED"),
        "{status}"
    );
    server.ok(&format!("zpool export {pool}"));
    // What zdb complains of is kept.
    server.directory.disable_cleanup(true);
    zdb_is_clean(&server.path("disks"), pool);
    server.directory.disable_cleanup(false);
}
