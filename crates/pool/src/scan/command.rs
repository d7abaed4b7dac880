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
use zio::Tx;

use super::{now_s, read_only};
use crate::core::Core;
use crate::dtl::uses_of;
use crate::errorscrub::{ErrorScrubCommand, ErrorScrubTask};
use crate::events::Sysevent;
use crate::features::HEAD_ERRLOG;
use crate::{PoolError, ScrubCommand};

/// A command, as a sync task.
struct CommandTask {
    core: Arc<Core>,
    command: ScrubCommand,
}

impl CommandTask {
    /// Does nothing when it is too late for it.
    async fn apply_now(&self, ctx: &SyncContext) -> Result<(), PoolError> {
        let (core, scan) = (&self.core, &self.core.scan);
        let tx = Tx::syncing(ctx.txg);
        let (is_running, is_paused) = {
            let state = scan.state.lock();
            (state.current.is_running(), state.current.is_paused())
        };
        match self.command {
            ScrubCommand::Start | ScrubCommand::Continue if is_paused => self.set_paused(false),
            ScrubCommand::Start | ScrubCommand::Continue
                if !is_running && !core.is_rebuilding() =>
            {
                let from = match self.command {
                    ScrubCommand::Continue => scan.last_scrubbed_txg(),
                    _ => Txg::ZERO,
                };
                let function = ScanPhys::FUNCTION_SCRUB;
                let uses = uses_of(core.tree.leaves());
                scan.setup(core, &tx, function, (from, ctx.txg), uses)
                    .await?;
            }
            ScrubCommand::Pause if is_running && !is_paused => self.set_paused(true),
            ScrubCommand::Stop if is_running => {
                scan.finish(core, ctx, false, "scan cancelled").await?;
            }
            _ => {}
        }
        Ok(())
    }

    fn set_paused(&self, is_paused: bool) {
        let scan = &self.core.scan;
        let now_s = now_s(&self.core);
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
        self.core.events.tell(match is_paused {
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

/// Carries out a command on a pool's scrub.
pub(crate) async fn command(core: &Arc<Core>, command: ScrubCommand) -> Result<(), PoolError> {
    if core.read_only {
        return read_only::command(core, command);
    }
    core.check_not_suspended()?;
    let pool = || core.identity.name();
    if command == ScrubCommand::Errors && !core.dsl.features().is_enabled(HEAD_ERRLOG) {
        return Err(PoolError::NoHeadErrlog { pool: pool() });
    }
    let errors = &core.tables.error_scrub;
    let (is_of_errors, is_errors_paused) = errors.is_running();
    let is_rebuilding = core.is_rebuilding();
    {
        let state = core.scan.state.lock();
        let at = &state.current;
        let is_scrub = at.is_running() && !at.is_resilver();
        match command {
            _ if at.is_running() && at.is_resilver() || is_rebuilding => {
                return Err(PoolError::Resilvering { pool: pool() });
            }
            ScrubCommand::Start | ScrubCommand::Continue | ScrubCommand::Errors
                if is_scrub && !at.is_paused() =>
            {
                return Err(PoolError::ScrubActive { pool: pool() });
            }
            ScrubCommand::Errors if is_scrub => {
                return Err(PoolError::ScrubPausedToCancel { pool: pool() });
            }
            ScrubCommand::Start | ScrubCommand::Continue | ScrubCommand::Errors
                if is_of_errors && !is_errors_paused =>
            {
                return Err(PoolError::ErrorScrubActive { pool: pool() });
            }
            ScrubCommand::Start | ScrubCommand::Continue if is_of_errors => {
                return Err(PoolError::ErrorScrubPaused { pool: pool() });
            }
            ScrubCommand::Pause if is_of_errors && is_errors_paused => {
                return Err(PoolError::ErrorScrubPaused { pool: pool() });
            }
            ScrubCommand::Start | ScrubCommand::Continue | ScrubCommand::Errors => {}
            ScrubCommand::Pause | ScrubCommand::Stop if is_of_errors => {}
            _ if !is_scrub => return Err(PoolError::NoScrub { pool: pool() }),
            ScrubCommand::Pause if at.is_paused() => {
                return Err(PoolError::ScrubPaused { pool: pool() });
            }
            ScrubCommand::Pause | ScrubCommand::Stop => {}
        }
    }
    let of_errors = match command {
        ScrubCommand::Errors if is_errors_paused => Some(ErrorScrubCommand::Resume),
        ScrubCommand::Errors => Some(ErrorScrubCommand::Start),
        ScrubCommand::Pause if is_of_errors => Some(ErrorScrubCommand::Pause),
        ScrubCommand::Stop if is_of_errors => Some(ErrorScrubCommand::Stop),
        _ => None,
    };
    if of_errors == Some(ErrorScrubCommand::Start) && core.errors.count() == 0 {
        // There is nothing to read.
        return Ok(());
    }
    if core.dsl.directories().origin_object().is_none() {
        return Err(PoolError::ScrubOfOldPool { pool: pool() });
    }
    let is_start = matches!(command, ScrubCommand::Start | ScrubCommand::Continue);
    if is_start || command == ScrubCommand::Errors {
        // What is not there any more is not to be found out by reading it all.
        let _admin = core.admin.lock().await;
        crate::topology::leave_failed_logs(core);
        core.unless_suspended(core.tree.look_again(None)).await?;
        crate::topology::settle(core).await?;
    }
    if let Some(command) = of_errors {
        let core = core.clone();
        let task = ErrorScrubTask {
            core: core.clone(),
            command,
        };
        return core.run_task(task).await;
    }
    let task = CommandTask {
        core: core.clone(),
        command,
    };
    core.run_task(task).await
}
