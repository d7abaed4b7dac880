//! Goal and method are at the test; what it is made with is in [`crate::newkeys`].

use crate::common::*;
use crate::newkeys::{make, opens, raw, read, text, wrapping, write};
use crate::rawstreams::send;
use crate::streams::{How, receive};
use dataset::{KeyChange, NewKey, PBKDF2_ITERATIONS_MIN};
use device::World;

/// Goal: a key that is changed at the sender and comes with single raw differences leaves what has
/// one encryption root there with one here: its key opens all after a restart. Method: roots with
/// two levels below, with a passphrase and with raw keys, whose differences come from the top down
/// and the other way round; one below has another key by then, and stays a root of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_raw_differences_keep_the_encryption_root() {
    let (world, images) = (World::system(2), [Image::new(128), Image::new(128)]);
    let pool = create(&world, &images[0], &[]).await;
    let other = create(&world, &images[1], &[]).await;
    let phrase = |number: u8| {
        let (salt, rounds) = (u64::from(number), PBKDF2_ITERATIONS_MIN);
        NewKey::of_passphrase(wrapping(number), salt, rounds).expect("a key")
    };
    let key_of = |name: &str, number: u8| match name.starts_with("tank/p") {
        true => phrase(number),
        false => raw(number),
    };
    let change = |key: NewKey, location: Option<&str>| KeyChange::New {
        key,
        location: location.map(str::to_owned),
    };
    let tops = ["tank/p_down", "tank/p_up", "tank/r_down", "tank/r_up"];
    let below = ["", "/b", "/b/c", "/own"];
    let (ours, theirs) = (pool.dsl().keys(), other.dsl().keys());
    let snapshot = async |name: &str| {
        let all: Vec<_> = tops
            .iter()
            .flat_map(|top| below.map(|below| format!("{top}{below}@{name}")))
            .collect();
        let taken = pool.dsl().snapshots().take(&all, &[]).await;
        taken.expect("taken");
    };
    for top in tops {
        let format = if top.starts_with("tank/p") {
            "passphrase"
        } else {
            "raw"
        };
        let root = [("encryption", "on"), ("keyformat", format)];
        let made = make(&pool, top, &root, Some(key_of(top, 1))).await;
        made.expect("made");
        for below in &below[1..] {
            let made = make(&pool, &format!("{top}{below}"), &[], None).await;
            made.expect("made");
        }
    }
    snapshot("one").await;
    for top in tops {
        for below in below {
            let name = format!("{top}{below}");
            let full = send(&pool, &format!("{name}@one"), None).await;
            let received = receive(&other, &full, &name, &How::default()).await;
            received.expect("received");
            if !below.is_empty() {
                let inherits = theirs.set_root(&name, dataset::KeyRoot::Inherited).await;
                inherits.expect("it has the same key");
            }
        }
        let changed = ours.change(top, change(key_of(top, 2), None), &[]).await;
        changed.expect("changed");
        let own = change(key_of(top, 3), Some("prompt"));
        let changed = ours.change(&format!("{top}/own"), own, &[]).await;
        changed.expect("changed");
        let filesystem = open(&world, &pool, &format!("{top}/b/c")).await;
        write(&filesystem, b"file", b"new").await;
        filesystem.close().await.expect("close");
    }
    snapshot("two").await;
    for top in tops {
        let mut order = below;
        if top.ends_with("up") {
            order.reverse();
        }
        for below in order {
            let name = format!("{top}{below}");
            let one = format!("{name}@one");
            let difference = send(&pool, &format!("{name}@two"), Some(&one)).await;
            let received = receive(&other, &difference, &name, &How::default()).await;
            received.expect("received");
        }
    }
    pool.export(false).await.expect("export");
    other.export(false).await.expect("export");

    let other = import(&world, images[1].path(), false).await;
    for top in tops {
        // That keys are the same is known when one is loaded. Equal salts do not prove it.
        let child = format!("{top}/b");
        assert_eq!(text(&other, &child, "encryptionroot").await, child);
        let loaded = other.dsl().keys().load(top, wrapping(2), false).await;
        loaded.unwrap_or_else(|error| panic!("{top}: {error}"));
        for below in ["/b", "/b/c"] {
            let name = format!("{top}{below}");
            assert_eq!(text(&other, &name, "encryptionroot").await, top);
            assert_eq!(text(&other, &name, "keylocation").await, "none");
            assert_eq!(text(&other, &name, "keystatus").await, "available");
        }
        let filesystem = open(&world, &other, &format!("{top}/b/c")).await;
        assert_eq!(read(&filesystem, b"file").await, b"new", "{top}");
        filesystem.close().await.expect("close");
        let own = format!("{top}/own");
        assert_eq!(text(&other, &own, "encryptionroot").await, own);
        assert!(!opens(&other, &own, 2).await && opens(&other, &own, 3).await);
    }
    other.export(false).await.expect("export");
    zdb_is_clean(images[1].path(), "tank");
}
