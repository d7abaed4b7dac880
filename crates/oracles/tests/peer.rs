//! The machine with the real OpenZFS, by itself.

use oracles::{Peer, PeerOptions};

/// Machines begin at one saved state, and yet each is a machine of its own: with the time of now,
/// with its disks and files, and with random numbers that no other one draws.
#[test]
fn machines_begin_at_one_state_and_differ() {
    for peer in [Peer::find(), Peer::find_2_4()] {
        let Some(peer) = peer else { return };
        let directory = tempfile::tempdir().expect("a directory");
        let input = directory.path().join("in");
        std::fs::create_dir(&input).expect("a directory");
        std::fs::write(input.join("word"), "hello").expect("a file");
        let output = directory.path().join("out");
        let mut numbers = Vec::new();
        for round in 0..2 {
            let image = directory.path().join(format!("image{round}"));
            let file = std::fs::File::create(&image).expect("an image");
            file.set_len(100 << 20).expect("a sparse file");
            // By its own name.
            let disk = image.display().to_string();
            let options = PeerOptions::default().input(&input).output(&output);
            let script = "set -e; zpool create p /dev/disk/peer/image*; zpool get -Hpo value guid p
                zpool export p; cat /proc/sys/kernel/random/uuid; date +%s
                mkdir out; cp word out/word";
            let text = peer.run_with(&[disk], options, script);
            let lines: Vec<&str> = text.lines().collect();
            let [guid, uuid, time] = lines[..] else {
                panic!("{text}");
            };
            numbers.push(guid.to_owned());
            numbers.push(uuid.to_owned());
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .expect("a time");
            let time: u64 = time.parse().expect("a time");
            assert!(now.as_secs().abs_diff(time) < 600, "{time} is not now");
            let back = std::fs::read_to_string(output.join("word")).expect("what was left");
            assert_eq!(back, "hello");
        }
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), 4, "{numbers:?}");
    }
}

/// What a script printed is in the message when it fails, and a power cut is no failure.
#[test]
fn a_script_that_fails_is_told_and_a_power_cut_is_not() {
    let Some(peer) = Peer::find() else { return };
    let cut = PeerOptions::default().loses_power();
    let text = peer.run_with(&[], cut, "echo before; echo POWERCUT; sleep 60");
    assert_eq!(text, "before\n");
    let failed = std::panic::catch_unwind(|| peer.run(&[], "echo words; exit 3"));
    let told = failed.expect_err("a script that fails");
    let told = told.downcast_ref::<String>().expect("a message");
    assert!(told.contains("words"), "{told}");
}
