//! What a measurement will do, found out before it is done: how much of a pool it takes, for how
//! long, and whether it may.

use std::sync::Arc;

use api::{BenchLookReply, BenchQuota, BenchWanted, Failure, FailureKind, VdevReport};
use bench::job::Times;
use bench::limits::Asked;
use bench::streams::Wanted;
use bench::{Profile, Test, run};
use dataset::{DatasetError, DatasetKind};

use crate::create::{VOLUME_BLOCK_BYTES, volume_reservation};
use service::error::{from_dataset, suspended};
use service::pools::OpenPool;
use service::pools::Pools;
use service::reports;

/// Loads go over a quarter of what is available where nobody says how much, and never over more
/// than half.
const USUAL_PART: u64 = 4;
const LARGEST_PART: u64 = 2;
/// Least bytes that loads go over; sizes are multiples of it, and of a block.
const SIZE_STEP: u64 = 1 << 20;
/// Sizes of blocks that datasets may have, in bytes.
const BLOCKS: std::ops::RangeInclusive<u64> = 512..=16 << 20;
/// Seconds within which a load has to be steady where nobody says so.
const WARM_UP_SECONDS: u64 = 60;
/// Seconds of a warm-up where nobody says so.
const TOTAL_SECONDS: u64 = 4 * 3600;
/// Bytes a second of a stream where nobody says so: 10 Mbit/s.
const STREAM_RATE: u64 = 1_250_000;
/// Bytes of a stream's access, and seconds in a player's or recorder's memory.
const STREAM_BLOCK: u64 = 256 << 10;
const STREAM_BUFFER_SECONDS: f64 = 2.0;
/// Numbers of streams that are tried at most: twice the powers of two up to the most there are.
pub(super) const STREAM_TRIES: u64 = 2 * bench::streams::COUNT_MAX.ilog2() as u64;
/// What writes or reads all once is ended when it is slower than so many bytes a second.
const SLOWEST_RATE: u64 = 10_000_000;
/// Seconds that a load may take besides, and all of a measurement.
const LOAD_MORE_SECONDS: u64 = 10;
const MORE_SECONDS: u64 = 60;

/// A measurement that may be done.
pub(super) struct Planned {
    /// The vdevs of its pool.
    pub(super) root: VdevReport,
    /// What is told of it.
    pub(super) told: BenchLookReply,
    /// Bytes of a block of its dataset.
    pub(super) block_bytes: u64,
    /// For how long each load is measured.
    pub(super) times: Times,
    /// Seconds of a warm-up in all.
    pub(super) total_seconds: u64,
    /// The streams that are looked for.
    pub(super) streams: Wanted,
}

/// Finds out what a measurement will do, and in which pool.
///
/// # Errors
/// What is asked for cannot be, or does not fit; the pool is suspended or read-only.
pub(super) async fn plan(
    pools: &Pools,
    wanted: &BenchWanted,
) -> Result<(Arc<OpenPool>, Planned), Failure> {
    let doing = format!("cannot measure '{}'", wanted.dataset);
    let failed = |kind, why: &str| Failure::new(kind, format!("{doing}: {why}"));
    let open = pools.of_dataset(&wanted.dataset)?;
    if open.pool.suspended().is_some() {
        return Err(suspended(&doing));
    }
    if open.pool.is_read_only() {
        return Err(failed(FailureKind::Invalid, "its pool is read-only"));
    }
    check(wanted).map_err(|why| failed(FailureKind::Invalid, why))?;
    let dsl = open.pool.dsl();
    let lost = |error: DatasetError| from_dataset(&doing, &error);
    let found = dsl
        .directories()
        .lookup(&wanted.dataset)
        .await
        .map_err(lost)?;
    if found.kind != DatasetKind::Filesystem {
        let why = "name a filesystem: below it a dataset is made for this";
        return Err(failed(FailureKind::Invalid, why));
    }
    let whole = dsl.directories().lookup(&open.pool.name()).await;
    let pool_available_bytes = whole.map_err(lost)?.available_bytes;
    let mut quota: Option<BenchQuota> = None;
    for name in with_above(&wanted.dataset) {
        let quota_bytes = number(&open, name, "quota").await.map_err(lost)?;
        if quota_bytes == 0 {
            continue;
        }
        let one = BenchQuota {
            dataset: name.to_owned(),
            quota_bytes,
            used_bytes: dsl
                .directories()
                .lookup(name)
                .await
                .map_err(lost)?
                .used_bytes,
        };
        if quota.as_ref().is_none_or(|least| left(&one) < left(least)) {
            quota = Some(one);
        }
    }
    let copies = number(&open, &wanted.dataset, "copies")
        .await
        .map_err(lost)?;
    let block_bytes = match (wanted.block_bytes, wanted.is_volume) {
        (Some(bytes), _) => bytes,
        (None, true) => VOLUME_BLOCK_BYTES,
        (None, false) => number(&open, &wanted.dataset, "recordsize")
            .await
            .map_err(lost)?,
    };
    let available_bytes = found.available_bytes.min(pool_available_bytes);
    let space =
        |size_bytes| volume_reservation(&open, size_bytes, block_bytes.max(512), copies.max(1));
    let usual_bytes = wanted.profile.size_bytes(host::memory_bytes());
    let size = size_bytes(
        wanted.size_bytes,
        usual_bytes,
        available_bytes,
        block_bytes,
        space,
    );
    let size_bytes = size.map_err(|why| failed(FailureKind::NoSpace, &why))?;
    let times = Times {
        seconds: wanted.seconds.unwrap_or_else(|| wanted.profile.seconds()),
        warm_up_seconds: match wanted.profile {
            Profile::WarmUp | Profile::Streams => 0,
            _ => wanted.warm_up_seconds.unwrap_or(WARM_UP_SECONDS),
        },
    };
    let total_seconds = wanted.total_seconds.unwrap_or(TOTAL_SECONDS);
    let tests = wanted.profile.tests(&wanted.depths);
    let once_seconds = size_bytes.div_ceil(SLOWEST_RATE);
    let (mut seconds, mut writing_seconds) = (once_seconds, once_seconds);
    for test in &tests {
        let longest = longest(test, times, once_seconds);
        seconds += LOAD_MORE_SECONDS + longest;
        writing_seconds += if test.writes() { longest } else { 0 };
    }
    match wanted.profile {
        Profile::WarmUp => seconds += total_seconds * 2,
        Profile::Streams => {
            seconds += STREAM_TRIES * (times.seconds + LOAD_MORE_SECONDS);
            writing_seconds += STREAM_TRIES * times.seconds;
        }
        _ => {}
    }
    let problem = run::find("fio").is_none().then(|| NO_FIO.to_owned());
    let planned = Planned {
        root: reports::tree(&open.pool.status()),
        told: BenchLookReply {
            size_bytes,
            space_bytes: space(size_bytes),
            available_bytes,
            pool_available_bytes,
            quota,
            tests,
            writing_seconds,
            seconds_max: seconds + MORE_SECONDS,
            problem,
        },
        block_bytes,
        times,
        total_seconds,
        streams: Wanted {
            rate: wanted.stream_rate.unwrap_or(STREAM_RATE),
            block_bytes: STREAM_BLOCK,
            buffer_seconds: STREAM_BUFFER_SECONDS,
            recordings: 1,
            playbacks: 1,
        },
    };
    Ok((open, planned))
}

/// A property that is a number.
async fn number(open: &OpenPool, name: &str, property: &str) -> Result<u64, DatasetError> {
    let setting = open.pool.dsl().properties().get(name, property).await?;
    Ok(setting.value.number().unwrap_or(0))
}

/// What is said where there is no fio.
pub(super) const NO_FIO: &str = "fio is not installed on the server, and it makes the load; \
                                 install it with `apt install fio` or `dnf install fio`";

/// What is wrong with what somebody wants, by itself.
fn check(wanted: &BenchWanted) -> Result<(), &'static str> {
    let asked = Asked {
        profile: wanted.profile,
        depths: &wanted.depths,
        seconds: wanted.seconds,
        warm_up_seconds: wanted.warm_up_seconds,
        total_seconds: wanted.total_seconds,
        stream_rate: wanted.stream_rate,
    };
    asked.check()?;
    let is_block = |bytes: u64| bytes.is_power_of_two() && BLOCKS.contains(&bytes);
    if !wanted.block_bytes.is_none_or(is_block) {
        return Err("a block's size is a power of two from 512 bytes to 16 MiB");
    }
    Ok(())
}

/// A dataset and those above it, itself first.
fn with_above(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| Some(name.rsplit_once('/')?.0))
}

fn left(quota: &BenchQuota) -> u64 {
    quota.quota_bytes.saturating_sub(quota.used_bytes)
}

/// Seconds of a load at most.
fn longest(test: &Test, times: Times, once_seconds: u64) -> u64 {
    match test.is_whole {
        true => once_seconds,
        false if times.warms_up() => times.warm_up_seconds + times.seconds,
        false => times.seconds,
    }
}

/// Bytes that loads go over: those that somebody wants, else the usual as far as there is room.
/// `space` says what such a size takes of the pool.
fn size_bytes(
    wanted: Option<u64>,
    usual_bytes: u64,
    available_bytes: u64,
    block_bytes: u64,
    space: impl Fn(u64) -> u64,
) -> Result<u64, String> {
    let step = SIZE_STEP.max(block_bytes);
    let whole = |bytes: u64| bytes / step * step;
    let largest = available_bytes / LARGEST_PART;
    let size = match wanted {
        Some(bytes) => bytes
            .checked_next_multiple_of(step)
            .unwrap_or(whole(u64::MAX)),
        None => {
            let room = available_bytes / USUAL_PART;
            let takes = space(whole(usual_bytes).max(step));
            match takes <= room {
                true => whole(usual_bytes),
                false => {
                    let part = u128::from(usual_bytes) * u128::from(room) / u128::from(takes);
                    let size = whole(u64::try_from(part).unwrap_or(u64::MAX));
                    // What does not grow with it weighs more in what is small.
                    let over = space(size.max(step)).saturating_sub(room);
                    whole(size.saturating_sub(over))
                }
            }
        }
    };
    let size = size.max(step);
    match space(size) <= largest {
        true => Ok(size),
        false => Err(format!(
            "{} of {} that are available would be used, and half of them is the most; take less, \
             or make room",
            plan::amount::show_bytes(space(size)),
            plan::amount::show_bytes(available_bytes)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn wanted() -> BenchWanted {
        BenchWanted {
            dataset: "tank/a/b".into(),
            profile: Profile::Iometer,
            is_volume: false,
            block_bytes: None,
            compression: None,
            size_bytes: None,
            depths: Vec::new(),
            seconds: None,
            warm_up_seconds: None,
            total_seconds: None,
            stream_rate: None,
        }
    }

    /// Goal: a measurement never takes more than half of what is available, whatever is asked for,
    /// and a quarter by itself. Method: sizes with room and without, on space that doubles them.
    #[test]
    fn a_measurement_leaves_room() {
        let size = |wanted, available| {
            size_bytes(wanted, 4 * GIB, available, 4096, |size| {
                size.saturating_mul(2)
            })
        };
        assert_eq!(size(None, 100 * GIB), Ok(4 * GIB));
        // A quarter is 2 GiB, and half of that in bytes of the file.
        assert_eq!(size(None, 8 * GIB), Ok(GIB));
        assert_eq!(size(Some(2 * GIB), 8 * GIB), Ok(2 * GIB));
        assert_eq!(size(Some(1), 8 * GIB), Ok(1 << 20));
        // Some metadata is there whatever the size.
        let size_with =
            |available| size_bytes(None, 4 * GIB, available, 4096, |size| size + (2 << 20));
        assert_eq!(size_with(80 << 20), Ok(18 << 20));
        let all = [
            (Some(2 * GIB + 1), 8 * GIB),
            (Some(u64::MAX), 8 * GIB),
            (None, 1 << 20),
            (None, 0),
        ];
        for (wanted, available) in all {
            let told = size(wanted, available).unwrap_err();
            assert!(told.contains("half of them is the most"), "{told}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(check(&wanted()), Ok(()));
        let all = [
            BenchWanted {
                depths: vec![1, 0],
                ..wanted()
            },
            BenchWanted {
                depths: vec![1; 17],
                ..wanted()
            },
            BenchWanted {
                seconds: Some(0),
                ..wanted()
            },
            BenchWanted {
                warm_up_seconds: Some(3601),
                ..wanted()
            },
            BenchWanted {
                total_seconds: Some(u64::MAX),
                ..wanted()
            },
            BenchWanted {
                stream_rate: Some(0),
                ..wanted()
            },
            BenchWanted {
                block_bytes: Some(3000),
                ..wanted()
            },
        ];
        for one in all {
            assert!(check(&one).is_err(), "{one:?}");
        }
    }

    #[test]
    fn quotas_are_looked_for_up_to_the_pool() {
        let names: Vec<&str> = with_above("tank/a/b").collect();
        assert_eq!(names, ["tank/a/b", "tank/a", "tank"]);
    }

    #[test]
    fn a_load_takes_as_long_as_it_is_told_to() {
        let times = Times {
            seconds: 30,
            warm_up_seconds: 60,
        };
        let of = |profile: Profile| longest(&profile.tests(&[])[0], times, 7);
        assert_eq!(of(Profile::Iometer), 90);
        // Once over all.
        assert_eq!(of(Profile::Bonnie), 7);
    }
}
