//! Commands on a scrub: begin, go on, pause, stop.
//!
//! A command is refused at once where it makes no sense, and carried out by a sync task, so that it
//! counts from one txg on; what has changed until then leaves it without effect.
//!
//! Source: module/zfs/dsl_scan.c (`dsl_scan`, `dsl_scrub_set_pause_resume`, `dsl_scan_cancel`).

use std::sync::Arc;

use dataset::{DatasetError, SyncTask};
use device::BoxFuture;
use format::{ObjectId, ScanPhys, Txg};
use object::SyncContext;
use spa::PoolError;
use spa::dtl::uses_of;
use spa::events::Sysevent;
use spa::features::HEAD_ERRLOG;
use zio::Tx;

use super::{now_s, read_only};
use crate::errorscrub::{ErrorScrubCommand, ErrorScrubTask};
use crate::{Scans, ScrubCommand};

/// A command, as a sync task.
struct CommandTask {
    scans: Arc<Scans>,
    command: ScrubCommand,
}

impl CommandTask {
    /// Does nothing when it is too late for it.
    async fn apply_now(&self, ctx: &SyncContext) -> Result<(), PoolError> {
        let (scans, scan) = (&self.scans, &self.scans.scan);
        let tx = Tx::syncing(ctx.txg);
        let (is_running, is_paused) = {
            let state = scan.state.lock();
            (state.current.is_running(), state.current.is_paused())
        };
        match self.command {
            begins if begins.begins() && is_paused => self.set_paused(false),
            begins if begins.begins() && !is_running && !scans.is_rebuilding() => {
                let (from, until) = match begins {
                    // What was written in that group itself was left out (`finish`).
                    ScrubCommand::Continue => {
                        let last = scan.last_scrubbed_txg().get();
                        (Txg::new(last.saturating_sub(1)), None)
                    }
                    ScrubCommand::Between { from_s, until_s } => {
                        scans.spa.txg_times.between(from_s, until_s)
                    }
                    _ => (Txg::ZERO, None),
                };
                let until = until.map_or(ctx.txg, |until| until.min(ctx.txg));
                let function = ScanPhys::FUNCTION_SCRUB;
                let uses = uses_of(scans.spa.tree.leaves());
                scan.setup(scans, &tx, function, (from, until), uses)
                    .await?;
            }
            ScrubCommand::Pause if is_running && !is_paused => self.set_paused(true),
            ScrubCommand::Stop if is_running => {
                scan.finish(scans, ctx, false, "scan cancelled").await?;
            }
            _ => {}
        }
        Ok(())
    }

    fn set_paused(&self, is_paused: bool) {
        let scan = &self.scans.scan;
        let now_s = now_s(&self.scans);
        {
            let mut guard = scan.state.lock();
            let state = &mut *guard;
            for at in [&mut state.current, &mut state.stored] {
                at.phys.flags &= !ScanPhys::FLAG_PAUSED;
                if is_paused {
                    at.phys.flags |= ScanPhys::FLAG_PAUSED;
                }
            }
            state.is_dirty = true;
            let run = &mut state.run;
            if !is_paused {
                run.paused_s += now_s.saturating_sub(run.pause_s);
            }
            run.pause_s = if is_paused { now_s } else { 0 };
        }
        self.scans.spa.events.tell(match is_paused {
            true => Sysevent::ScrubPaused,
            false => Sysevent::ScrubResume,
        });
        scan.tell();
    }
}

impl SyncTask for CommandTask {
    fn name(&self) -> &'static str {
        "scrub"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            self.apply_now(ctx).await.map_err(|error| match error {
                PoolError::Dataset(error) => error,
                error => DatasetError::Corrupt {
                    object: ObjectId::POOL_DIRECTORY,
                    what: error.to_string(),
                },
            })
        })
    }
}

/// Carries out a command on a pool's scrub. Before one starts, devices are looked at again by
/// `look_again`, while nobody else adds or removes vdevs: to find out that one is gone, not all of
/// it has to be read.
///
/// # Errors
/// Where the command makes no sense now; those of `look_again`; [`PoolError::Suspended`].
pub async fn command(
    scans: &Arc<Scans>,
    command: ScrubCommand,
    look_again: impl Future<Output = Result<(), PoolError>>,
) -> Result<(), PoolError> {
    if scans.spa.read_only {
        return read_only::command(scans, command);
    }
    scans.spa.check_not_suspended()?;
    let pool = || scans.spa.identity.name();
    if command == ScrubCommand::Errors && !scans.spa.dsl.features().is_enabled(HEAD_ERRLOG) {
        return Err(PoolError::NoHeadErrlog { pool: pool() });
    }
    let errors = &scans.error_scrub;
    let (is_of_errors, is_errors_paused) = errors.is_running();
    let is_rebuilding = scans.is_rebuilding();
    let begins = command.begins() || command == ScrubCommand::Errors;
    {
        let state = scans.scan.state.lock();
        let at = &state.current;
        let is_scrub = at.is_running() && !at.is_resilver();
        match command {
            _ if at.is_running() && at.is_resilver() || is_rebuilding => {
                return Err(PoolError::Resilvering { pool: pool() });
            }
            _ if begins && is_scrub && !at.is_paused() => {
                return Err(PoolError::ScrubActive { pool: pool() });
            }
            ScrubCommand::Errors if is_scrub => {
                return Err(PoolError::ScrubPausedToCancel { pool: pool() });
            }
            _ if begins && is_of_errors && !is_errors_paused => {
                return Err(PoolError::ErrorScrubActive { pool: pool() });
            }
            _ if command.begins() && is_of_errors => {
                return Err(PoolError::ErrorScrubPaused { pool: pool() });
            }
            ScrubCommand::Pause if is_of_errors && is_errors_paused => {
                return Err(PoolError::ErrorScrubPaused { pool: pool() });
            }
            _ if begins => {}
            ScrubCommand::Pause | ScrubCommand::Stop if is_of_errors => {}
            _ if !is_scrub => return Err(PoolError::NoScrub { pool: pool() }),
            ScrubCommand::Pause if at.is_paused() => {
                return Err(PoolError::ScrubPaused { pool: pool() });
            }
            _ => {}
        }
    }
    let of_errors = match command {
        ScrubCommand::Errors if is_errors_paused => Some(ErrorScrubCommand::Resume),
        ScrubCommand::Errors => Some(ErrorScrubCommand::Start),
        ScrubCommand::Pause if is_of_errors => Some(ErrorScrubCommand::Pause),
        ScrubCommand::Stop if is_of_errors => Some(ErrorScrubCommand::Stop),
        _ => None,
    };
    if of_errors == Some(ErrorScrubCommand::Start) && scans.spa.errors.count() == 0 {
        // There is nothing to read.
        return Ok(());
    }
    if scans.spa.dsl.directories().origin_object().is_none() {
        return Err(PoolError::ScrubOfOldPool { pool: pool() });
    }
    if begins {
        let _admin = scans.spa.admin.lock().await;
        look_again.await?;
    }
    if let Some(command) = of_errors {
        let scans = scans.clone();
        let task = ErrorScrubTask {
            scans: scans.clone(),
            command,
        };
        return scans.spa.run_task(task).await;
    }
    let task = CommandTask {
        scans: scans.clone(),
        command,
    };
    scans.spa.run_task(task).await
}
