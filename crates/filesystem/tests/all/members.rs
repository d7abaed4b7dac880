//! Goal: the set-group-id bit stays only where Linux leaves it, and who is of a group is asked only
//! where that decides. Method: a caller whose groups are looked up in a function that counts, and
//! one without such a function.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::*;
use device::World;
use filesystem::{Caller, SetAttributes};

/// The group that the caller is of besides 1000.
const OTHER: u32 = 7;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_keep_set_group_id_and_strangers_do_not() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let asked = || ASKED.swap(0, Ordering::Relaxed);
    let stranger = Caller { umask: 0, ..ALICE };
    let member = Caller {
        groups: Some(|_, group| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            group == OTHER
        }),
        ..stranger
    };
    let (image, world) = (Image::new(128), World::system(2));
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let own = |mode, gid| SetAttributes {
        mode: Some(mode),
        gid: Some(gid),
        ..SetAttributes::default()
    };
    // A program in a set-group-id directory is of the directory's group.
    for (index, (gid, caller, mode, left, asks)) in [
        (OTHER, member, 0o2755, 0o2755, 1),
        (OTHER, stranger, 0o2755, 0o755, 0),
        (OTHER, Caller::ROOT, 0o2755, 0o2755, 0),
        (8, member, 0o2755, 0o755, 1),
        (1000, member, 0o2755, 0o2755, 0),
        // What cannot run is no program.
        (8, member, 0o2745, 0o2745, 0),
        (8, member, 0o755, 0o755, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("d{index}");
        let directory = fs.make_directory(fs.root(), name.as_bytes(), 0o777, Caller::ROOT);
        let directory = directory.await.expect("a directory").ino;
        let set = own(0o2777, gid);
        let set = fs.set_attributes(directory, &set, Caller::ROOT).await;
        set.expect("set");
        let made = fs.create(directory, b"f", mode, caller).await;
        let made = made.expect("a file");
        assert_eq!((made.gid, made.mode & 0o7777), (gid, left), "{index}");
        assert_eq!(asked(), asks, "{index}");
    }
    // A change of content.
    for (mode, caller, left, asks) in [
        (0o2644, member, 0o2644, 1),
        (0o2644, stranger, 0o644, 0),
        (0o2654, member, 0o654, 0),
        (0o644, member, 0o644, 0),
    ] {
        let name = format!("{mode:o} {asks}");
        let file = fs.create(fs.root(), name.as_bytes(), 0o644, Caller::ROOT);
        let ino = file.await.expect("a file").ino;
        let set = own(mode, OTHER);
        let set = fs.set_attributes(ino, &set, Caller::ROOT).await;
        set.expect("set");
        asked();
        let data = bytes::Bytes::from_static(b"content");
        fs.write(ino, 0, data, false, caller).await.expect("write");
        let found = fs.attributes(ino).await.expect("attributes").mode & 0o7777;
        assert_eq!((found, asked()), (left, asks), "{name}");
    }
    fs.close().await.expect("close");
    pool.export(false).await.expect("export");
}
