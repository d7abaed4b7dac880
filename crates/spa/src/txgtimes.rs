//! Which transaction groups were written when: what `zpool scrub -S` and `-E` go by.
//!
//! A group that is written is noted when ten minutes have passed since the last one that was. The
//! rings ([`format::TxgTimes`]) go to the object directory in that group, so that what is on disk
//! never tells of a group that is not. Groups that come to nothing are not noted. OpenZFS 2.4 does
//! the same for any pool, and notes also the first group of an import and the last one before an
//! export. That is not done here: each note writes parts of the object directory anew, and states
//! that a rewind may want are to last for as long as they did. OpenZFS counts on nothing in the
//! rings; neither does anything here: where they cannot be read, a scrub by date reads more.
//!
//! # Locks
//! `state`, for a few instructions.
//!
//! Source: module/zfs/spa.c (`spa_sync_time_logger`, `spa_load_txg_log_time`).

use format::{ObjectId, Txg, TxgMoment, TxgRing, TxgTimes};
use object::{Zap, ZapValue};
use parking_lot::Mutex;

use crate::participant::{Participant, Pass, Turn};
use crate::{PoolError, directory, lost};

/// Seconds between two groups that are noted (`spa_note_txg_time`, `spa_flush_txg_time`).
const INTERVAL_S: u64 = 10 * 60;

#[derive(Debug, Default)]
struct State {
    times: TxgTimes,
    /// When a group was last noted.
    noted_s: Option<u64>,
    /// The object directory does not take them.
    is_given_up: bool,
}

/// What is noted of a pool's transaction groups.
#[derive(Debug, Default)]
pub struct TxgTimeLog {
    state: Mutex<State>,
}

impl TxgTimeLog {
    /// Takes over what the object directory says; the pool does without what cannot be read.
    pub async fn load(&self, pool: &str, directory: &Zap) {
        let mut times = TxgTimes::default();
        for (name, ring) in directory::TXG_TIMES.into_iter().zip([
            &mut times.minutes,
            &mut times.days,
            &mut times.months,
        ]) {
            let what = "when its transaction groups were written";
            match directory.lookup(name).await {
                Ok(None) => {}
                Ok(Some(value)) => match TxgRing::from_words(&value.to_u64s()) {
                    Ok(read) => *ring = read,
                    Err(error) => lost(pool, what, &error),
                },
                Err(error) => lost(pool, what, &error),
            }
        }
        let rings = [&times.minutes, &times.days, &times.months];
        let moments = rings.into_iter().flat_map(|ring| ring.moments());
        let noted_s = moments.map(|moment| moment.time_s).max();
        let mut state = self.state.lock();
        (state.times, state.noted_s) = (times, noted_s);
    }

    /// What is noted.
    pub fn times(&self) -> TxgTimes {
        self.state.lock().times.clone()
    }

    /// The groups between two moments, exclusive on both sides, as a scan has it: from
    /// [`Txg::ZERO`] on where nothing is noted so far back, without end (`None`) where nothing is
    /// noted since. It is rather too many than too few, by when groups went to disk: what users
    /// wrote in the last seconds before `until_s` may be in the group that is noted, or in one of
    /// the next two, and then it is not among them.
    pub fn between(&self, from_s: Option<u64>, until_s: Option<u64>) -> (Txg, Option<Txg>) {
        let state = self.state.lock();
        let first = from_s.and_then(|time_s| state.times.until(time_s));
        let last = until_s.and_then(|time_s| state.times.since(time_s));
        let (first, last) = (
            first.map_or(Txg::ZERO, |moment| moment.txg),
            last.map(|moment| moment.txg),
        );
        match last {
            // The clock was set back between them.
            Some(last) if last <= first => (Txg::ZERO, None),
            last => (first, last),
        }
    }

    /// Notes a group that is being written if its time has come; what the object directory is to
    /// say then.
    fn note(&self, moment: TxgMoment) -> Option<TxgTimes> {
        let mut state = self.state.lock();
        // A clock that was set back is no reason to wait.
        let age_s = |then_s| moment.time_s.checked_sub(then_s);
        let is_early = (state.noted_s.and_then(age_s)).is_some_and(|age_s| age_s < INTERVAL_S);
        if state.is_given_up || is_early {
            return None;
        }
        state.noted_s = Some(moment.time_s);
        let before = state.times.clone();
        state.times.note(moment);
        (state.times != before).then(|| state.times.clone())
    }
}

async fn store(pass: &Pass<'_>, times: &TxgTimes) -> Result<(), PoolError> {
    let mos = pass.spa.dsl.mos();
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    for (name, ring) in
        directory::TXG_TIMES
            .into_iter()
            .zip([&times.minutes, &times.days, &times.months])
    {
        let value = ZapValue::from_u64s(&ring.to_words());
        directory.update(pass.tx, name, value).await?;
    }
    Ok(())
}

impl Participant for TxgTimeLog {
    fn late<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            let moment = TxgMoment {
                time_s: pass.spa.world.clock.wall_ns() / 1_000_000_000,
                txg: pass.ctx.txg,
            };
            let Some(times) = self.note(moment) else {
                return Ok(());
            };
            match store(pass, &times).await {
                Err(error) if !error.is_suspended() => {
                    tracing::warn!(%error, "it is not noted when transaction groups are written");
                    self.state.lock().is_given_up = true;
                    Ok(())
                }
                stored => stored,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(time_s: u64, txg: u64) -> TxgMoment {
        TxgMoment {
            time_s,
            txg: Txg::new(txg),
        }
    }

    #[test]
    fn groups_are_noted_every_ten_minutes() {
        let log = TxgTimeLog::default();
        let start = 1_800_000_000;
        let notes = |after: u64, txg| log.note(moment(start + after, txg));
        assert!(notes(0, 4).is_some());
        assert!(notes(599, 5).is_none());
        assert!(notes(600, 6).is_some());
        assert!(notes(1199, 8).is_none());
        assert!(notes(1200, 11).is_some());
        let noted = log.times();
        let all = [&noted.months, &noted.days, &noted.minutes].map(|ring| {
            let txgs = ring.moments().map(|moment| moment.txg.get());
            txgs.collect::<Vec<_>>()
        });
        assert_eq!(all, [vec![4], vec![6], vec![11]]);
    }

    #[test]
    fn what_is_not_noted_is_read_rather_than_left_out() {
        let log = TxgTimeLog::default();
        assert_eq!(log.between(Some(10), Some(20)), (Txg::ZERO, None));
        for (time_s, txg) in [(1_000_000_000, 4), (1_000_000_600, 6), (1_000_001_200, 9)] {
            log.note(moment(time_s, txg));
        }
        let between = |from, until| {
            let at = |time_s: u64| Some(1_000_000_000 + time_s);
            let (first, last) = log.between(at(from), at(until));
            (first.get(), last.map(Txg::get))
        };
        assert_eq!(between(10, 20), (4, Some(6)));
        assert_eq!(between(600, 1200), (6, Some(9)));
        assert_eq!(between(700, 1201), (6, None));
        assert_eq!(log.between(Some(5), None), (Txg::ZERO, None));
        assert_eq!(log.between(None, Some(5)), (Txg::ZERO, Some(Txg::new(4))));
        assert_eq!(between(600, 600), (0, None));
    }
}
