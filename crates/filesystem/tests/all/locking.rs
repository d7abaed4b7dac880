//! Goal: no operations on names wait for each other in a circle, whatever is an entry of what, and
//! whatever their numbers. Method: operations are stopped at each lock that they take, one after
//! the other, by the budget of the task that polls them; then all of them have to end.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use crate::common::*;
use dataset::DirtyEstimate;
use device::{BoxFuture, World};
use filesystem::{FileKind, Filesystem, FsError, RenameMode, XattrMode, pflags};
use format::ObjectId;
use futures::future::join_all;
use object::Zap;
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

/// Goal: damage never makes an operation wait for what it has locked itself.
/// Method: an attribute's entry leads to the file that has the attribute, then a name of the tree
/// to the file of another attribute.
#[tokio::test]
async fn entries_that_lead_to_what_is_locked_are_refused() {
    let world = World::system(2);
    let image = Image::new(128);
    let pool = create(&world, &image, &[("xattr", "dir")]).await;
    let fs = open(&world, &pool, "tank").await;
    let owner = file(&fs, fs.root(), "owner").await;
    // Too long for anything but files of their own.
    let value = vec![7; 60_000];
    for name in [b"trusted.one", b"trusted.two"] {
        let set = fs.xattrs().set(owner, name, &value, XattrMode::Any, ROOT);
        set.await.expect("set");
    }
    let mut attributes = None;
    for ino in 1..200 {
        if let Ok(found) = fs.attributes(ino).await
            && found.flags & pflags::XATTR != 0
            && found.kind == FileKind::Directory
        {
            attributes = Some(ino);
        }
    }
    let root = fs.root();
    fs.close().await.expect("close");
    drop(fs);

    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let hold = async |ino| Zap::hold(dataset.objset(), ObjectId::new(ino)).await;
    let attributes = attributes.expect("a directory of attributes");
    let attributes = hold(attributes).await.expect("its entries");
    let entries = attributes.all().await.expect("readable");
    let entry = |name: &str| {
        let mut all = entries.iter();
        let found = all.find(|entry| entry.name.ends_with(name.as_bytes()));
        let found = found.expect("an entry");
        (found.name.clone(), found.value.as_u64().expect("a number"))
    };
    let tx = dataset.assign(DirtyEstimate::metadata()).await;
    let tx = tx.expect("assigned");
    let kind = entry("one").1 >> 60 << 60;
    let led = attributes.update_u64(&tx, entry("one").0, kind | owner);
    led.await.expect("written");
    let names = hold(root).await.expect("the root");
    let led = names.update_u64(&tx, b"astray", entry("two").1);
    led.await.expect("written");
    drop((tx, names, attributes));
    pool.sync().await.expect("sync");
    drop(dataset);

    let fs = open(&world, &pool, "tank").await;
    let corrupt = async |what: &str, operation: BoxFuture<'_, filesystem::Result<()>>| {
        let ended = tokio::time::timeout(HANGS, operation).await;
        let ended = ended.unwrap_or_else(|_| panic!("{what} hangs"));
        let is_corrupt = matches!(ended, Err(FsError::Corrupt { .. }));
        assert!(is_corrupt, "{what}: {ended:?}");
    };
    let removed = fs.xattrs().remove(owner, b"trusted.one");
    corrupt("the owner as an attribute", Box::pin(removed)).await;
    let unlinked = Box::pin(async { fs.unlink(root, b"astray").await.map(drop) });
    corrupt("an attribute as a file", unlinked).await;
    let renamed = fs.rename(root, b"astray", root, b"other", RenameMode::Replace);
    corrupt("an attribute that is moved", Box::pin(renamed)).await;
    let renamed = fs.rename(root, b"owner", root, b"astray", RenameMode::Replace);
    corrupt("an attribute that is replaced", Box::pin(renamed)).await;
    fs.close().await.expect("close");
}
