//! Until nothing is wrong any more.

use std::sync::Arc;
use std::time::Duration;

use device::sim::SimWorld;
use pool::{Pool, PoolHealth, ScanFunction, ScanState, ScanStatus, ScrubCommand};

use super::disks::{Condition, Disks, Trouble, shape};
use super::operator::spec;
use crate::rng::Rng;
use crate::torture::errors_of;
use crate::verify::Failure;

/// Longest that the pool may take, in rounds of [`ROUND`].
const ROUNDS_MAX: u32 = 2000;
const ROUND: Duration = Duration::from_millis(500);

/// Makes all disks work and sees the pool heal.
///
/// # Errors
/// When it does not, or not wholly.
pub async fn heal(
    sim: &SimWorld,
    pool: &Arc<Pool>,
    disks: &mut Disks,
    rng: &mut Rng,
) -> Result<(), Failure> {
    disks.tell("from now on all heals");
    // A power cut may have undone what was seen of the vdevs last.
    disks.observe(pool)?;
    for name in disks.which(|_| true) {
        let trouble = match disks.condition(&name) {
            Condition::Failed(trouble) => trouble,
            _ => continue,
        };
        if trouble == Trouble::Dead {
            continue;
        }
        if let Some(disk) = sim.disk(&name) {
            disk.clear_faults();
            disk.release();
            disk.set_gone(false);
        }
        disks.mends(&name);
    }
    // Also where a power cut came into the command that was to do so.
    for name in disks.offline(pool) {
        pool.online(&name, false).await?;
    }
    // What is slow ends before that.
    tokio::time::sleep(Duration::from_secs(60)).await;
    for round in 0.. {
        disks.observe(pool)?;
        for target in disks.to_replace() {
            let new = disks.add();
            disks.tell(format_args!("replace {target} by {new}"));
            let replaced = pool.attach(&target, &spec(&new, true)).await;
            if let Err(error) = replaced {
                disks.tell(format_args!("replace {target}: {error}"));
            }
        }
        if round % 10 == 0 {
            let clears = disks.to_clear();
            pool.clear(None).await?;
            for (name, mended) in clears {
                disks.cleared(&name, mended);
            }
        }
        let is_scrubbing = pool
            .scans()
            .scrub_status()
            .is_some_and(|scan| scan.end_time_s == 0);
        if disks.has_suspects() && !pool.scans().is_resilver_due() && !is_scrubbing {
            // A resilver may begin at any time.
            let started = pool.scans().scrub(ScrubCommand::Start).await;
            if let Err(error) = started {
                disks.tell(format_args!("scrub: {error}"));
            }
        }
        if is_scrubbing
            && pool
                .scans()
                .scrub_status()
                .is_some_and(|scan| scan.pause_time_s != 0)
        {
            let _ = pool.scans().scrub(ScrubCommand::Start).await;
        }
        if disks.are_whole() && !disks.is_replacing() && !is_scrubbing {
            break;
        }
        if round > ROUNDS_MAX {
            return Err(format!("it does not heal: {:?}", pool.scans().scrub_status()).into());
        }
        if rng.percent(50) {
            pool.sync().await?;
        }
        tokio::time::sleep(ROUND).await;
    }
    disks.tell("all disks are whole");
    pool.clear(None).await?;
    let first = scrub(pool).await?;
    let shapes = || {
        let tops = pool.status().root.children;
        tops.iter().map(shape).collect::<Vec<_>>().join(" ")
    };
    // With its errors: which disks were wrong.
    let repaired = shapes();
    disks.tell(format_args!("first scrub: {first:?} {repaired}"));
    pool.clear(None).await?;
    let second = scrub(pool).await?;
    let root = pool.status().root;
    let errors = errors_of(&root);
    let damaged = pool.damaged().await;
    let is_well = second.errors == 0
        && second.repaired_bytes == 0
        && first.errors == 0
        && errors == 0
        && damaged.is_empty()
        && pool.health() == PoolHealth::Online;
    if !is_well {
        return Err(format!(
            "something is left: {first:?} {second:?} {errors} errors, damaged {damaged:?}, \
             {:?} {}",
            pool.health(),
            shapes()
        )
        .into());
    }
    // All of it was mended by what a disk lacked, or by a scrub that the disk waited for.
    if first.repaired_bytes != 0 {
        return Err(format!("a scrub repaired whole disks: {first:?} {repaired}").into());
    }
    Ok(())
}

/// A whole scrub.
async fn scrub(pool: &Pool) -> Result<ScanStatus, Failure> {
    pool.scans().scrub(ScrubCommand::Start).await?;
    pool.scans().wait_for_scrub(true).await;
    let status = pool.scans().scrub_status().ok_or("no scrub is known")?;
    let is_whole = status.state == ScanState::Finished && status.function == ScanFunction::Scrub;
    match is_whole {
        true => Ok(status),
        false => Err(format!("a scrub did not end: {status:?}").into()),
    }
}
