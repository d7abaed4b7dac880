//! Volumes as files in a directory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use access::User;
use serve_fuse::{UnmountMode, ZvolDirectory};
use volume::ZvolInit;

use crate::{Rig, can_mount, outside, pattern};

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn volumes_are_files() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new(&[]).await;
    let properties = [
        ("volsize".to_owned(), (8 << 20).to_string()),
        ("volblocksize".to_owned(), "8192".to_owned()),
    ];
    let init = Arc::new(ZvolInit::new(8 << 20, 8192));
    rig.pool
        .dsl()
        .datasets()
        .create("tank/vol", &properties, init)
        .await
        .expect("create");
    let path = rig.mountpoint().join("tank/vol");
    let user = User::VolumeFile { path };
    let volume = rig.access.volume("tank/vol", user.clone()).await;
    let volume = volume.expect("open");
    let directory = ZvolDirectory::mount(&rig.mountpoint())
        .await
        .expect("mount");
    let shown = volume.share(user).await.expect("a lease");
    directory.insert("tank/vol", shown);
    assert_eq!(directory.names(), ["tank/vol"]);
    let path = rig.mountpoint().join("tank/vol");
    let place = path.clone();
    let data = pattern(9, 3_000_000);
    let wanted = data.clone();
    let file = outside(move || {
        let at = fs::metadata(&place).expect("stat");
        assert_eq!(at.len(), 8 << 20);
        let file = File::options()
            .read(true)
            .write(true)
            .open(&place)
            .expect("open");
        file.write_all_at(&data, 1_000_001).expect("write");
        file.sync_all().expect("flush");
        let mut back = vec![0; data.len()];
        file.read_exact_at(&mut back, 1_000_001).expect("read");
        assert!(back == data);
        assert!(file.write_at(b"x", 8 << 20).is_err(), "it does not grow");
        file
    })
    .await;
    assert!(directory.is_open("tank/vol"));
    let real = volume
        .read(1_000_001, wanted.len())
        .await
        .expect("read")
        .concat();
    assert!(real == wanted);
    outside(move || drop(file)).await;
    for _ in 0..100 {
        if !directory.is_open("tank/vol") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(!directory.is_open("tank/vol"));
    assert!(directory.remove("tank/vol"));
    assert!(directory.names().is_empty());
    directory
        .unmount(UnmountMode::Clean)
        .await
        .expect("unmount");
    volume.close().await.expect("close");
    rig.export().await;
}
