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
//! | [`pools`] | layouts, features, datasets, snapshots, clones, streams; `kill -9` | sums, `zdb` |
//! | [`topology`] | devices that come and go below files with fsync; `kill -9` | sums, `zdb` |

mod damage;
mod files;
mod model;
mod pools;
mod topology;

use std::time::{Duration, Instant};

use crate::harness::can_mount;

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
