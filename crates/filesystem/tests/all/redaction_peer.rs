//! Goal: the real OpenZFS reads our redaction lists and takes our redacted streams, and we read its
//! lists. Method: it imports a pool of ours, makes streams with our bookmarks, which must have the
//! records that ours have, receives ours, and makes a list of its own of the same snapshots.

use std::collections::BTreeSet;

use device::World;
use pool::Pool;

use crate::common::*;
use crate::redaction::{
    Place, blocks, compare, fill, is_clean, list_of, places, receive_as, redact, send,
    send_redacted,
};
use crate::streams::records;

const SCRIPT: &str = r"
set -e
zpool import -N -d /dev/disk/peer tank
echo SNAPS $(zfs get -Hp -o value redact_snaps tank/fs#both)
zfs redact tank/fs@s theirs tank/c1@r tank/c2@r
zfs send --redact both tank/fs@s > /tmp/full
zfs send -i tank/fs#both tank/c1@r > /tmp/filled
zfs send --redact c -i tank/fs#both tank/c1@r > /tmp/both
cat /tmp/full /tmp/filled /tmp/both | dd of=/dev/disk/peer/out bs=1M iflag=fullblock conv=notrunc
echo LENGTHS $(stat -c %s /tmp/full /tmp/filled /tmp/both)
echo REDACTS $(head -c FULL /dev/disk/peer/full | zstream dump -v | grep -c 'REDACT object')
head -c FULL /dev/disk/peer/full | zfs receive -u tank/full
head -c FILLED /dev/disk/peer/filled | zfs receive -u -o origin=tank/full@s tank/filled
zfs get -Hp -o name,value redact_snaps tank/full@s
zfs destroy tank/c1#c
zpool scrub -w tank
zpool status tank | grep 'No known data errors'
sync; zpool export tank
echo PEER-DONE
";

/// Records of both sides, but for what else differs.
async fn are_alike(ours: &[u8], theirs: &[u8], what: &str) {
    let (ours, theirs) = (records(ours).await, records(theirs).await);
    for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "{what}: record {at}");
    }
    assert_eq!(ours.len(), theirs.len(), "{what}");
}

/// A file that is a disk.
fn disk(image: &Image, name: &str, bytes: &[u8], mib: u64) -> String {
    let path = image.path().join(name);
    std::fs::write(&path, bytes).expect("written");
    let file = std::fs::File::options().write(true).open(&path);
    file.and_then(|file| file.set_len(mib << 20))
        .expect("its size");
    format!("{},{name}", path.display())
}

async fn data_of(pool: &Pool, snapshot: &str) -> BTreeSet<Place> {
    let dataset = pool.dsl().open_dataset(snapshot).await.expect("open");
    blocks(&dataset).await.into_iter().map(|it| it.0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_and_we_redact_alike() {
    let Some(peer) = Peer::find() else { return };
    let (world, image, other) = (World::system(2), Image::new(512), Image::empty());
    let pool = create(&world, &image, &[]).await;
    fill(&world, &pool).await;
    let with = ["tank/c1@r", "tank/c2@r"];
    redact(&pool, "tank/fs@s", "both", &with)
        .await
        .expect("redacted");
    let datasets = pool.dsl().datasets();
    let made = datasets.clone_snapshot("tank/c1@r", "tank/d", &[]).await;
    made.expect("a clone");
    let fs = open(&world, &pool, "tank/d").await;
    let ino = fs.lookup(fs.root(), b"big").await.expect("big").ino;
    let data = Random(9).bytes(200_000).into();
    fs.write(ino, 30_000, data, false, ROOT)
        .await
        .expect("written");
    fs.close().await.expect("close");
    let names = ["tank/d@x".to_owned()];
    let taken = pool.dsl().snapshots().take(&names, &[]).await;
    taken.expect("taken");
    redact(&pool, "tank/c1@r", "c", &["tank/d@x"])
        .await
        .expect("redacted");
    let full = send_redacted(&pool, "tank/fs@s", None, "both").await;
    let filled = send(&pool, "tank/c1@r", Some("tank/fs#both")).await;
    let both = send_redacted(&pool, "tank/c1@r", Some("tank/fs#both"), "c").await;
    let (phys, ours) = list_of(&pool, "tank/fs#both").await;
    pool.export(false).await.expect("export");

    let mut disks = vec![format!("{},d0", image.path().join("d0.img").display())];
    disks.push(disk(&other, "full", &full, 64));
    disks.push(disk(&other, "filled", &filled, 64));
    disks.push(disk(&other, "out", &[], 128));
    let script = SCRIPT
        .replace("FULL", &full.len().to_string())
        .replace("FILLED", &filled.len().to_string());
    let text = peer.run(&disks, &script).replace('\r', "");
    assert!(text.contains("PEER-DONE"), "{text}");
    let guids: Vec<String> = phys
        .snapshots
        .iter()
        .map(|guid| guid.get().to_string())
        .collect();
    let told = guids.join(",");
    assert!(text.contains(&format!("SNAPS {told}\n")), "{text}");
    assert!(text.contains(&format!("tank/full@s\t{told}\n")), "{text}");
    let redacts = text.lines().find_map(|line| line.strip_prefix("REDACTS "));
    let redacts = redacts.and_then(|number| number.trim().parse().ok());
    assert!(redacts.is_some_and(|number: u64| number > 10), "{text}");

    let lengths = text.lines().find_map(|line| line.strip_prefix("LENGTHS "));
    let lengths = lengths.expect("lengths").split_whitespace();
    let lengths: Vec<usize> = lengths
        .map(|word| word.parse().expect("a number"))
        .collect();
    let out = std::fs::read(other.path().join("out")).expect("read");
    let mut at = 0;
    for (ours, length, what) in [
        (&full, lengths[0], "redacted"),
        (&filled, lengths[1], "filled in"),
        (&both, lengths[2], "redacted and filled in"),
    ] {
        are_alike(ours, &out[at..at + length], what).await;
        at += length;
    }

    let pool = import(&world, image.path(), false).await;
    let (theirs_phys, theirs) = list_of(&pool, "tank/fs#theirs").await;
    assert_eq!(theirs_phys.snapshots, phys.snapshots);
    assert!(theirs_phys.is_whole());
    let data = data_of(&pool, "tank/fs@s").await;
    let of = |entries| {
        places(entries)
            .intersection(&data)
            .copied()
            .collect::<BTreeSet<Place>>()
    };
    let (ours, theirs) = (of(&ours), of(&theirs));
    // OpenZFS sends what is behind the end of a smaller file that has the number now.
    let more: BTreeSet<u64> = ours.difference(&theirs).map(|place| place.0).collect();
    assert!(theirs.is_subset(&ours) && more.len() <= 2, "{more:?}");
    compare(&world, &pool, "tank/fs@s", "tank/full@s", &ours).await;
    compare(
        &world,
        &pool,
        "tank/c1@r",
        "tank/filled@r",
        &BTreeSet::new(),
    )
    .await;
    receive_as(&pool, &out[..lengths[0]], "tank/back", None).await;
    compare(&world, &pool, "tank/fs@s", "tank/back@s", &ours).await;
    let gone = ["tank/fs#theirs".to_owned(), "tank/fs#both".to_owned()];
    let gone = pool.dsl().bookmarks().destroy(&gone).await;
    gone.expect("destroyed");
    pool.export(false).await.expect("export");
    is_clean(&image);
}
