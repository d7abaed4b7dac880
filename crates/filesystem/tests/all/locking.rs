//! Goal: no operations on names wait for each other in a circle, whatever is an entry of what, and
//! whatever their numbers. Method: operations are stopped at each lock that they take, one after
//! the other, by the budget of the task that polls them; then all of them have to end.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use crate::common::*;
use device::{BoxFuture, World};
use filesystem::{Filesystem, RenameMode};
use futures::future::join_all;
use tokio::sync::Mutex;

/// Nothing here takes nearly as long, unless it hangs.
const HANGS: Duration = Duration::from_secs(60);

/// Operations have locked their nodes by then. One that waits for another gets no further however
/// many locks it may take.
const STOPS: usize = 14;

/// How many locks a task gets before it has to yield.
async fn budget() -> usize {
    let lock = Mutex::new(());
    tokio::task::yield_now().await;
    poll_fn(|context| {
        let got = std::iter::repeat_with(|| pin!(lock.lock()).poll(context).is_ready());
        Poll::Ready(got.take_while(|is_ready| *is_ready).count())
    })
    .await
}

/// Runs an operation until it has taken `locks` locks; whether it is done then.
async fn stopped(budget: usize, locks: usize, of: &mut Pin<Box<impl Future + ?Sized>>) -> bool {
    let lock = Mutex::new(());
    tokio::task::yield_now().await;
    poll_fn(|context| {
        for _ in locks..budget {
            assert!(pin!(lock.lock()).poll(context).is_ready());
        }
        Poll::Ready(of.as_mut().poll(context).is_ready())
    })
    .await
}

type Operation<'a> = BoxFuture<'a, ()>;

/// All operations but the last stopped at each of their first locks, in a directory of their own.
async fn never_hang<'a>(
    fs: &'a Filesystem,
    what: &str,
    operations: impl AsyncFn(&'a Filesystem, u64) -> Vec<Operation<'a>>,
) {
    let budget = budget().await;
    let mut number = 0;
    let mut stops = vec![0];
    loop {
        number += 1;
        let name = format!("{what}-{number}");
        let top = fs
            .make_directory(fs.root(), name.as_bytes(), 0o755, ROOT)
            .await;
        let mut all = operations(fs, top.expect("mkdir").ino).await;
        stops.resize(all.len() - 1, 0);
        let mut done = Vec::new();
        let mut waiting = Vec::new();
        for (at, mut operation) in all.drain(..).enumerate() {
            let locks = stops.get(at).copied().unwrap_or(budget);
            let is_done = stopped(budget, locks, &mut operation).await;
            done.push(is_done);
            if !is_done {
                waiting.push(operation);
            }
        }
        let ended = tokio::time::timeout(HANGS, join_all(waiting)).await;
        assert!(ended.is_ok(), "{what}: hangs when stopped at {stops:?}");
        // The next stop of the last one that was stopped, else of the one before it.
        let Some(next) = (0..stops.len())
            .rev()
            .find(|at| !done[*at] && stops[*at] < STOPS)
        else {
            return;
        };
        stops[next] += 1;
        stops[next + 1..].fill(0);
    }
}

/// The outcome is not the point: one may come too late for what it is about.
fn any<'a, T>(operation: impl Future<Output = T> + Send + 'a) -> Operation<'a> {
    Box::pin(async move {
        let _ = operation.await;
    })
}

async fn directory(fs: &Filesystem, parent: u64, name: &str) -> u64 {
    let made = fs
        .make_directory(parent, name.as_bytes(), 0o755, ROOT)
        .await;
    made.expect("mkdir").ino
}

async fn file(fs: &Filesystem, parent: u64, name: &str) -> u64 {
    let made = fs.create(parent, name.as_bytes(), 0o644, ROOT).await;
    made.expect("create").ino
}

/// A file, and a directory that has a link to it: most often with a higher number, being younger.
async fn linked(fs: &Filesystem, top: u64) -> (u64, u64) {
    let file = file(fs, top, "file").await;
    let above = directory(fs, top, "directory").await;
    fs.link(file, above, b"link").await.expect("link");
    (file, above)
}

#[tokio::test]
async fn changes_of_names_do_not_wait_in_a_circle() {
    let world = World::system(2);
    let image = Image::new(256);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
    for (what, mode) in [("over", replace), ("with", exchange)] {
        never_hang(
            &fs,
            &format!("a directory {what} a file, removed in it"),
            async |fs, top| {
                let (_, above) = linked(fs, top).await;
                vec![
                    any(fs.unlink(above, b"link")),
                    any(fs.rename(top, b"directory", top, b"file", mode)),
                ]
            },
        )
        .await;
        never_hang(
            &fs,
            &format!("a directory {what} a file, linked in it"),
            async |fs, top| {
                let (file, above) = linked(fs, top).await;
                vec![
                    any(fs.link(file, above, b"other")),
                    any(fs.rename(top, b"directory", top, b"file", mode)),
                ]
            },
        )
        .await;
    }
    never_hang(
        &fs,
        "a directory between its parent and siblings",
        async |fs, top| {
            let mut all = Vec::new();
            for name in ["one", "two", "three"] {
                all.push((directory(fs, top, name).await, name.as_bytes()));
            }
            all.sort_unstable();
            let [(low, down), (middle, between), (high, up)] = all[..] else {
                panic!("three directories");
            };
            file(fs, middle, "moved").await;
            let moved = fs.rename(top, down, high, b"low", replace).await;
            moved.expect("rename");
            vec![
                any(fs.rename(top, between, top, up, exchange)),
                any(fs.rename(middle, b"moved", low, b"moved", replace)),
                any(fs.remove_directory(high, b"low")),
            ]
        },
    )
    .await;
    fs.close().await.expect("close");
}

#[tokio::test]
async fn directories_with_lower_numbers_than_their_parents_move_and_go() {
    let world = World::system(2);
    let image = Image::new(128);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let top = directory(&fs, fs.root(), "top").await;
    let low = directory(&fs, top, "low").await;
    // Its directory comes after it, then before it.
    for parent in [top, low] {
        let other = directory(&fs, parent, "other").await;
        file(&fs, other, "file").await;
        assert!(
            fs.remove_directory(parent, b"other").await.is_err(),
            "it has a file"
        );
        fs.unlink(other, b"file").await.expect("unlink");
        fs.remove_directory(parent, b"other").await.expect("rmdir");
    }
    let high = directory(&fs, top, "high").await;
    let moved = fs.rename(top, b"low", high, b"low", RenameMode::Replace);
    moved.await.expect("rename");
    fs.make_directory(top, b"more", 0o755, ROOT)
        .await
        .expect("mkdir");
    let moved = fs.rename(top, b"more", high, b"low", RenameMode::Replace);
    moved.await.expect("over a directory with a lower number");
    fs.remove_directory(high, b"low").await.expect("rmdir");
    fs.remove_directory(top, b"high").await.expect("rmdir");
    fs.close().await.expect("close");
}
