//! Goal: what is freed on removed vdevs is free where it is now, for OpenZFS too, and stays where a
//! checkpoint has it. Method: golden pool `removed`, two of whose vdevs are gone, with a checkpoint
//! of ours; with `MILLPOND_LONG=1` with one made by OpenZFS, and without. By turns its old files
//! and snapshots are removed and written over, most of which lie on those vdevs; `zdb -bcc`, scrubs
//! and every content by the other side, as in the matrix. Then the state goes back to the
//! checkpoint, here and there, and where it does not, the checkpoint is discarded.

use std::path::Path;

use crate::harness::{Peer, ZDB, is_long, run};
use crate::matrix::{Bed, Besides, Views, can_go, same};

/// Contents of filesystems without figures of space and states of features.
fn files(views: &Views) -> Views {
    let views = views.clone().into_iter();
    views
        .filter(|(name, _)| !name.contains('%') || name.starts_with("removed"))
        .collect()
}

/// Of what OpenZFS left in this pool, removes every `step`th file and writes over another.
fn change_old(bed: &Bed, step: usize) {
    for (_, mount) in bed.mounts("removed") {
        let all = run(
            "find",
            &[&mount, "-xdev", "-type", "f", "-not", "-path", "*/round*"],
        );
        let mut all: Vec<&str> = all.lines().collect();
        all.sort_unstable();
        for (at, path) in all.into_iter().enumerate() {
            if at % step == 0 {
                std::fs::remove_file(path).expect("an old file goes");
            } else if at % step == 1 {
                let length = std::fs::metadata(path).expect("an old file").len();
                let data = vec![at as u8; 10_000.min(length as usize / 2)];
                let mut file = std::fs::File::options()
                    .write(true)
                    .open(path)
                    .expect("an old file");
                std::io::Write::write_all(&mut file, &data).expect("it takes a write");
            }
        }
    }
}

/// Bytes of removed vdevs that nothing refers to any more.
fn obsolete_bytes(disks: &[String]) -> u64 {
    let directory = Path::new(&disks[0]).parent().expect("a directory");
    let text = run(
        ZDB,
        &["-e", "-p", &directory.to_string_lossy(), "-mmmm", "removed"],
    );
    let maps = text.split("obsolete space map object").skip(1);
    let bytes = maps.map(|map| {
        let number = map.split("smp_alloc = 0x").nth(1).expect("its size");
        let number = number.lines().next().expect("a line");
        u64::from_str_radix(number.trim(), 16).expect("a number")
    });
    bytes.sum()
}

fn copy(disks: &[String], to: &Path) -> Vec<String> {
    std::fs::create_dir_all(to).expect("a directory");
    let name = |path: &String| to.join(Path::new(path).file_name().expect("a name"));
    let copies = disks.iter().map(|path| {
        run(
            "cp",
            &["--sparse=always", path, &name(path).to_string_lossy()],
        );
        name(path).to_string_lossy().into_owned()
    });
    copies.collect()
}

const NOT_OURS: &str = "OpenZFS sees something else than we wrote";
const NOT_THE_CHECKPOINT: &str = "the checkpoint is something else";

/// After the turn of OpenZFS.
fn take_back(bed: &mut Bed, after: &Views) {
    bed.verify();
    bed.import();
    let found = bed.survey();
    same(after, &found, "we see something else than OpenZFS wrote");
}

fn goes_through(with_checkpoint: bool) {
    if !can_go() {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut bed = Bed::new(6);
    if !bed.add_golden("removed") {
        return;
    }
    bed.import();
    bed.server.ok("zfs set atime=off removed");
    bed.export();
    let besides = |first| Besides {
        first,
        ..Besides::default()
    };
    let make = if with_checkpoint {
        "zpool checkpoint removed"
    } else {
        ""
    };
    let (at_checkpoint, after) = if is_long() {
        bed.turn(&peer, 1, &besides(make))
    } else {
        // A visit less: the machine of the peer is slow.
        bed.import();
        let before = bed.survey();
        bed.server.ok(make);
        bed.work(1);
        let after = bed.survey();
        bed.export();
        (before, after)
    };
    let obsolete = obsolete_bytes(&bed.pools[0].disks);
    take_back(&mut bed, &after);
    change_old(&bed, 3);
    bed.server.ok("zfs destroy removed@one");
    bed.work(2);
    let expected = bed.survey();
    bed.export();
    let more = obsolete_bytes(&bed.pools[0].disks);
    assert!(
        obsolete < more,
        "nothing was freed there: {obsolete}, {more}"
    );

    let last = "zfs destroy removed@two
        find /mnt/removed -type f -not -path '*/round*' | sort | awk 'NR % 2' \
        | tr '\\n' '\\0' | xargs -0 rm";
    let (seen, after) = bed.turn(
        &peer,
        3,
        &Besides {
            last: last.to_owned(),
            ..Besides::default()
        },
    );
    same(&expected, &seen, NOT_OURS);
    take_back(&mut bed, &after);
    change_old(&bed, 2);
    let expected = bed.survey();
    bed.export();

    if with_checkpoint && is_long() {
        let disks = bed.pools[0].disks.clone();
        for is_ours in [true, false] {
            bed.pools[0].disks = copy(&disks, &bed.server.path(&format!("disks/back{is_ours}")));
            if is_ours {
                bed.import_with("--rewind-to-checkpoint");
                same(
                    &files(&at_checkpoint),
                    &files(&bed.survey()),
                    NOT_THE_CHECKPOINT,
                );
                change_old(&bed, 2);
                let expected = bed.survey();
                bed.export();
                let (seen, _) = bed.turn(&peer, 4, &Besides::default());
                same(&expected, &seen, NOT_OURS);
            } else {
                let besides = Besides {
                    import: "--rewind-to-checkpoint",
                    ..Besides::default()
                };
                let (seen, _) = bed.turn(&peer, 4, &besides);
                same(&files(&at_checkpoint), &files(&seen), NOT_THE_CHECKPOINT);
            }
            bed.verify();
        }
        bed.pools[0].disks = disks;
    }

    let discard = if with_checkpoint {
        "zpool checkpoint -d -w removed"
    } else {
        ""
    };
    let (seen, after) = bed.turn(&peer, 5, &besides(discard));
    same(&files(&expected), &files(&seen), NOT_OURS);
    take_back(&mut bed, &after);
    bed.server.ok("zfs destroy removed/small@two");
    bed.server.ok("zfs destroy removed/small");
    change_old(&bed, 1);
    bed.export();
}

#[test]
fn frees_on_removed_vdevs_are_right_for_openzfs() {
    // Under a checkpoint they are looked at always.
    if is_long() {
        goes_through(false);
    }
}

#[test]
fn a_checkpoint_keeps_what_is_freed_on_removed_vdevs() {
    goes_through(true);
}
