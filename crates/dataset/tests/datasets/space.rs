//! Quotas, reservations, and what a full pool says.

use dataset::{Dataset, DatasetError, DirtyEstimate, PropertyChange};
use format::ObjectId;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::TestPool;
use crate::{OBJECT, random, set, try_write, write};

#[tokio::test]
async fn quotas_and_reservations_hold() {
    let pool = TestPool::new(512 << 20).await;
    let mut rng = StdRng::seed_from_u64(1);
    pool.create("tank/q", &[("quota", "8M")])
        .await
        .expect("created");
    let open = pool.dsl.open_dataset("tank/q").await.expect("opens");
    let mut written = 0u64;
    let error = loop {
        match try_write(&open, OBJECT, written, random(&mut rng, 1 << 20)).await {
            Ok(()) => {
                written += 1 << 20;
                assert!(written < 32 << 20, "the quota does not hold");
            }
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, DatasetError::QuotaExceeded { .. }),
        "{error}"
    );
    assert!(
        written >= 6 << 20,
        "only {written} bytes fit a quota of 8 MiB"
    );
    // What frees space is let through.
    let tx = open.assign(DirtyEstimate::free()).await.expect("frees");
    open.objset()
        .free(&tx, ObjectId::new(OBJECT))
        .await
        .expect("freed");
    drop(tx);
    pool.settle().await;
    drop(
        open.assign(DirtyEstimate::write(1 << 20))
            .await
            .expect("room again"),
    );

    assert!(set(&pool, "tank/q", "reservation", "1T").await.is_err());
    assert!(
        set(&pool, "tank/q", "reservation", "9M").await.is_err(),
        "above the quota"
    );
    set(&pool, "tank/q", "quota", "none").await.expect("set");
    let before = pool.number("tank", "available").await;
    let unused = (64 << 20) - pool.number("tank/q", "used").await;
    set(&pool, "tank/q", "reservation", "64M")
        .await
        .expect("set");
    assert_eq!(pool.number("tank", "available").await, before - unused);
    write(&open, OBJECT + 1, 0, random(&mut rng, 3 << 20)).await;
    pool.check().await;
    set(&pool, "tank/q", "reservation", "none")
        .await
        .expect("set");
    pool.check().await;

    set(&pool, "tank/q", "refreservation", "16M")
        .await
        .expect("set");
    pool.check().await;
    pool.dsl
        .snapshots()
        .take(&["tank/q@s".into()], &[])
        .await
        .expect("taken");
    pool.check().await;
    assert_eq!(
        pool.number("tank/q", "usedbyrefreservation").await,
        16 << 20
    );
    write(&open, OBJECT + 1, 0, random(&mut rng, 2 << 20)).await;
    pool.check().await;
    pool.dsl
        .destroyer()
        .destroy("tank/q@s")
        .await
        .expect("destroyed");
    pool.check().await;
    set(&pool, "tank/q", "refquota", "20M").await.expect("set");
    let (referenced, available) = open.space();
    assert_eq!(referenced + available, 20 << 20);
    assert!(set(&pool, "tank/q", "refquota", "1M").await.is_err());
    drop(open);
    pool.dsl
        .destroyer()
        .destroy("tank/q")
        .await
        .expect("destroyed");
    pool.check().await;
}

/// What is refused one by one is refused together as well, whatever comes first, and then nothing
/// is set.
#[tokio::test]
async fn properties_that_contradict_each_other_are_refused_together() {
    let pool = TestPool::new(256 << 20).await;
    pool.create("tank/x", &[]).await.expect("created");
    let bad = [
        [("quota", "50M"), ("reservation", "60M")],
        [("refquota", "50M"), ("refreservation", "60M")],
        [("quota", "50M"), ("refreservation", "60M")],
    ];
    for pair in bad {
        for pair in [pair, [pair[1], pair[0]]] {
            let changes =
                pair.map(|(name, value)| (name.to_owned(), PropertyChange::Set(value.to_owned())));
            let refused = pool.dsl.properties().set("tank/x", &changes).await;
            assert!(
                matches!(refused, Err(DatasetError::InvalidProperty { .. })),
                "{pair:?}: {refused:?}"
            );
            let refused = pool.create("tank/y", &pair).await;
            assert!(
                matches!(refused, Err(DatasetError::InvalidProperty { .. })),
                "{pair:?}: {refused:?}"
            );
            for (name, _) in pair {
                assert_eq!(pool.number("tank/x", name).await, 0);
            }
        }
    }
    let fitting = [("quota", "60M"), ("reservation", "50M")];
    pool.create("tank/y", &fitting).await.expect("created");
    let changes =
        fitting.map(|(name, value)| (name.to_owned(), PropertyChange::Set(value.to_owned())));
    let set = pool.dsl.properties().set("tank/x", &changes).await;
    set.expect("set");
    let names = [("utf8only", "off"), ("normalization", "formC")];
    let refused = pool.create("tank/z", &names).await;
    assert!(
        matches!(
            &refused,
            Err(DatasetError::InvalidProperty { property, .. }) if property == "utf8only"
        ),
        "{refused:?}"
    );
    pool.check().await;
}

#[tokio::test]
async fn a_full_pool_says_so_and_lets_one_delete() {
    let pool = TestPool::new(128 << 20).await;
    let mut rng = StdRng::seed_from_u64(2);
    pool.create("tank/f", &[]).await.expect("created");
    let open = pool.dsl.open_dataset("tank/f").await.expect("opens");
    let mut written = 0u64;
    let error = loop {
        match try_write(&open, OBJECT, written, random(&mut rng, 1 << 20)).await {
            Ok(()) => {
                written += 1 << 20;
                assert!(written < 128 << 20);
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, DatasetError::NoSpace { .. }), "{error}");
    assert!(written > 32 << 20, "{written}");
    assert!(pool.create("tank/g", &[]).await.is_err());
    let tx = open.assign(DirtyEstimate::free()).await.expect("frees");
    open.objset()
        .free(&tx, ObjectId::new(OBJECT))
        .await
        .expect("freed");
    drop(tx);
    pool.settle().await;
    drop(
        open.assign(DirtyEstimate::write(1 << 20))
            .await
            .expect("room again"),
    );
    pool.create("tank/g", &[]).await.expect("room again");
    drop(open);
    pool.check().await;
}

/// What is under way counts at worst, so a reservation seems used up before it is: then its owner
/// waits for the txg.
#[tokio::test]
async fn a_reservation_is_good_to_its_end_while_the_pool_is_full() {
    for reservation in ["refreservation", "reservation"] {
        let pool = TestPool::new(192 << 20).await;
        let mut rng = StdRng::seed_from_u64(3);
        let reserved = [(reservation, "40M")];
        pool.create("tank/r", &reserved).await.expect("created");
        pool.create("tank/f", &[]).await.expect("created");
        let other = pool.dsl.open_dataset("tank/f").await.expect("opens");
        fill_with(&other, &mut rng, 1 << 20).await;
        let open = pool.dsl.open_dataset("tank/r").await.expect("opens");
        for mebibyte in 0..38 {
            let data = random(&mut rng, 1 << 20);
            let wrote = try_write(&open, OBJECT, mebibyte << 20, data).await;
            wrote.unwrap_or_else(|error| panic!("{reservation}, {mebibyte} MiB: {error}"));
        }
        drop((open, other));
        pool.check().await;
    }
}

/// Freed space is not usable for some txgs: who asks for it meanwhile waits for them.
#[tokio::test]
async fn a_pool_that_was_emptied_has_room_for_datasets_at_once() {
    let pool = TestPool::new(192 << 20).await;
    let mut rng = StdRng::seed_from_u64(4);
    pool.create("tank/f", &[]).await.expect("created");
    let open = pool.dsl.open_dataset("tank/f").await.expect("opens");
    let last = fill_with(&open, &mut rng, 16 << 10).await;
    // Freed space is usable at once while there is no more than what is kept back; so the first few
    // are.
    for objects in [OBJECT..OBJECT + 4, OBJECT + 4..last] {
        let tx = open.assign(DirtyEstimate::free()).await.expect("frees");
        for object in objects {
            let freed = open.objset().free(&tx, ObjectId::new(object)).await;
            freed.expect("freed");
        }
        let txg = tx.txg();
        drop(tx);
        pool.txgs.kick();
        pool.txgs.wait_synced(txg).await.expect("synced");
    }
    pool.create("tank/g", &[]).await.expect("created");
    drop(open);
    pool.check().await;
}

/// Writes objects of `bytes` until there is no room; returns the number after the last.
async fn fill_with(dataset: &Dataset, rng: &mut StdRng, bytes: usize) -> u64 {
    let mut object = OBJECT;
    loop {
        match try_write(dataset, object, 0, random(rng, bytes)).await {
            Ok(()) => object += 1,
            Err(DatasetError::NoSpace { .. }) => return object,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn small_changes_do_not_wait_for_the_space_of_big_ones() {
    let pool = TestPool::new(128 << 20).await;
    pool.create("tank/s", &[]).await.expect("created");
    let open = pool.dsl.open_dataset("tank/s").await.expect("opens");
    write(&open, OBJECT, 0, vec![1; 4096]).await;
    let before = pool.txgs.open_txg();
    // Each may come to a quarter of a mebibyte, all of them to the same block and dnode.
    for _ in 0..4000 {
        write(&open, OBJECT, 0, vec![2; 4096]).await;
    }
    let txgs = pool.txgs.open_txg().get() - before.get();
    assert!(
        txgs <= 3,
        "the txg was closed {txgs} times to find out what it takes"
    );
    drop(open);
    pool.check().await;
}

/// What is kept of the space asked for must cover what the txg then takes, or a full pool has no
/// room for a txg.
#[tokio::test]
async fn what_is_counted_in_flight_covers_what_is_written() {
    let pool = TestPool::new(512 << 20).await;
    pool.create("tank/c", &[("compression", "off")])
        .await
        .expect("created");
    let open = pool.dsl.open_dataset("tank/c").await.expect("opens");
    let mut rng = StdRng::seed_from_u64(7);
    for round in 0..12 {
        pool.sync().await;
        let (before, _) = open.space();
        let (txg, mut most) = (pool.txgs.open_txg(), 0);
        for _ in 0..rng.random_range(1..120) {
            let object = OBJECT + rng.random_range(0..40) * rng.random_range(1..2000);
            let offset = match rng.random_range(0..3) {
                0 => 0,
                1 => rng.random_range(0..1 << 20),
                _ => rng.random_range(0..1 << 40),
            };
            let length = rng.random_range(1..20_000);
            if rng.random_range(0..8) == 0 {
                let tx = open.assign(DirtyEstimate::free()).await.expect("room");
                if let Ok(held) = open.objset().hold(ObjectId::new(object)).await {
                    held.free_range(&tx, offset, length as u64)
                        .await
                        .expect("freed");
                }
            } else {
                let data = random(&mut rng, length);
                write(&open, object, offset, data).await;
            }
            most = most.max(open.in_flight_bytes());
        }
        let closed = pool.txgs.open_txg() != txg;
        pool.sync().await;
        let (after, _) = open.space();
        let grown = after.saturating_sub(before);
        // A txg that closed by itself meanwhile has taken some of it along.
        assert!(
            closed || grown <= most,
            "round {round}: {grown} bytes more, {most} counted"
        );
        assert_eq!(open.in_flight_bytes(), 0);
    }
    drop(open);
    pool.check().await;
}
