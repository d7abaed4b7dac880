//! Goal: what a change of the pool itself needs is read before it begins, as with changes of
//! datasets (`tasks`): damage refuses that change, or it is made; no command stops a pool.
//! Method: as there, with commands about devices, properties and scans, and a disk that is new.
//! `MILLPOND_SEED=N` chooses which object meets which change; with `MILLPOND_LONG` each meets all.

use std::sync::Arc;

use device::BoxFuture;
use device::sim::SimWorld;
use format::{Guid, ObjectType};
use pool::{
    AddSpec, AttachSpec, LeafSpec, OfflineSpec, Pool, PoolError, ScrubCommand, VdevClass,
    VdevLayout, VdevSpec,
};
use tokio::time::timeout;

use crate::damage::{
    How, Image, PATIENCE, Victim, destroy, leave_and_return, load_in, make, try_import, victims,
};

const NEW_DISK: &str = "new0";
const DISK_BYTES: u64 = 128 << 20;

/// One change of the pool, by name.
struct Change {
    name: &'static str,
    run: fn(Arc<Pool>) -> BoxFuture<'static, Result<(), PoolError>>,
}

macro_rules! change {
    ($name:literal, |$pool:ident| $body:expr) => {
        Change {
            name: $name,
            run: |$pool| Box::pin(async move { $body.await.map(drop) }),
        }
    };
}

fn new_leaf() -> LeafSpec {
    LeafSpec {
        path: NEW_DISK.to_owned(),
        is_file: false,
    }
}

fn more(class: VdevClass) -> AddSpec {
    let vdev = VdevSpec {
        layout: VdevLayout::Leaf(new_leaf()),
        class,
    };
    AddSpec {
        vdevs: vec![vdev],
        force: true,
        allow_ashift_mismatch: true,
        ..AddSpec::default()
    }
}

fn attachment(replace: bool) -> AttachSpec {
    AttachSpec {
        device: new_leaf(),
        ashift: None,
        force: true,
        replace,
        sequential: false,
        untouched: false,
    }
}

fn changes() -> Vec<Change> {
    vec![
        change!("comment", |pool| pool
            .properties()
            .set("comment", "another")),
        change!("autotrim", |pool| pool.properties().set("autotrim", "on")),
        change!("bootfs", |pool| pool.properties().set("bootfs", "tank")),
        change!("user property", |pool| pool
            .properties()
            .set("org.example:p", "q")),
        change!("vdev property", |pool| {
            let disk = pool.status().root.children[0].guid;
            pool.properties().set_of_vdev(disk, "comment", "anything")
        }),
        change!("add", |pool| pool.add(&more(VdevClass::Normal))),
        change!("add log", |pool| pool.add(&more(VdevClass::Log))),
        change!("add special", |pool| pool.add(&more(VdevClass::Special))),
        change!("add spare", |pool| pool.add(&more(VdevClass::Spare))),
        change!("add cache", |pool| pool.add(&more(VdevClass::Cache))),
        change!("remove spare", |pool| pool.remove("spare0")),
        change!("remove cache", |pool| pool.remove("cache0")),
        change!("attach", |pool| pool.attach("disk0", &attachment(false))),
        change!("replace", |pool| pool.attach("disk0", &attachment(true))),
        change!("attach and detach", |pool| async move {
            pool.attach("disk0", &attachment(false)).await?;
            pool.detach(NEW_DISK).await
        }),
        change!("offline", |pool| async move {
            pool.attach("disk0", &attachment(false)).await?;
            let spec = OfflineSpec {
                temporary: false,
                fault: false,
            };
            pool.offline(NEW_DISK, spec).await?;
            pool.online(NEW_DISK, true).await
        }),
        change!("reopen", |pool| pool.reopen(true)),
        change!("guid", |pool| pool.change_guid(Guid::new(77))),
        change!("checkpoint", |pool| async move {
            pool.checkpoint().await?;
            pool.sync().await?;
            pool.discard_checkpoint().await
        }),
        change!("scrub", |pool| async move {
            pool.scans().scrub(ScrubCommand::Start).await?;
            pool.scans().wait_for_scrub(false).await;
            Ok(())
        }),
        change!("stop a scrub", |pool| async move {
            pool.scans().scrub(ScrubCommand::Start).await?;
            pool.scans().scrub(ScrubCommand::Stop).await
        }),
    ]
}

/// Makes one change in a pool that lacks one thing. Says what came of it, or what is wrong.
async fn outcome(
    image: &Image,
    victim: &Victim,
    how: How,
    change: &Change,
) -> Result<Result<(), PoolError>, String> {
    let sim = load_in(SimWorld::new(6), image);
    sim.add_disk(NEW_DISK, DISK_BYTES);
    destroy(&sim, victim, how);
    let Ok(pool) = try_import(&sim, false).await else {
        // See `damage`.
        return Ok(Ok(()));
    };
    let outcome = timeout(PATIENCE, (change.run)(pool.clone()))
        .await
        .map_err(|_| "the change hangs".to_owned())?;
    for _ in 0..3 {
        let synced = timeout(PATIENCE, pool.sync()).await;
        synced
            .map_err(|_| format!("the pool hangs: {:?}", pool.status().suspended_why))?
            .map_err(|error| format!("the pool stopped: {error}"))?;
    }
    leave_and_return(&sim, &pool).await?;
    Ok(outcome)
}

/// Pairs that stopped a pool: a scan read on behalf of the txg what it can do without, and a block
/// that is lost was waited for because a device was offline that never had it.
fn is_known(change: &Change, victim: &Victim) -> bool {
    ["scrub", "offline"].contains(&change.name) && victim.kind == ObjectType::NEXT_CLONES
}

#[tokio::test(start_paused = true)]
async fn damage_refuses_a_change_of_devices_and_stops_no_pool() {
    let (image, _) = make().await;
    let is_long = std::env::var_os("MILLPOND_LONG").is_some();
    let seed = std::env::var("MILLPOND_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let mut wrong = Vec::new();
    for (index, victim) in victims(&image, &["tank"]).await.iter().enumerate() {
        for (number, change) in changes().iter().enumerate() {
            let hows = match (index + number + seed) % 30 {
                _ if is_long || is_known(change, victim) => &[How::Corrupt, How::Unreadable][..],
                0 => &[How::Corrupt],
                15 => &[How::Unreadable],
                _ => &[],
            };
            for how in hows.iter().copied() {
                let (id, kind, name) = (victim.id, victim.kind, &victim.name);
                // No dataset can be found without them: `damage` says what works then.
                if kind == ObjectType::DNODE {
                    continue;
                }
                let case = format!("{}, {id} {kind:?} '{name}' {how:?}", change.name);
                match outcome(&image, victim, how, change).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => println!("{case}: {error}"),
                    Err(why) => {
                        println!("wrong: {case}: {why}");
                        wrong.push(format!("{case}: {why}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
