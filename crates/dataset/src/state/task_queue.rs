//! Sync tasks that wait for their transaction group, or for it to be on disk. They are
//! [`crate::Tasks`]'.

use std::sync::Arc;

use format::Txg;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::slot;
use crate::DatasetError;
use crate::task::SyncTask;

/// Tells whoever waits for a task how it went.
type Answer = oneshot::Sender<Result<(), DatasetError>>;

/// A task that waits for its transaction group.
pub(crate) struct QueuedTask {
    pub task: Arc<dyn SyncTask>,
    /// How often it was put off to the next txg.
    pub tries: u32,
    pub answer: Answer,
}

#[derive(Default)]
struct Queue {
    queued: [Vec<QueuedTask>; 2],
    done: [Vec<Answer>; 2],
    is_closed: bool,
    /// Refuse tasks while the pool is suspended.
    refuses: bool,
    /// What tasks of the txg that is being written may take of the space that all may use.
    taken_bytes: u64,
}

/// The tasks of a pool that wait for their transaction group, or for it to be on disk.
#[derive(Default)]
pub(crate) struct TaskQueue(Mutex<Queue>);

impl TaskQueue {
    /// Adds a task to those of a transaction group; says whether the queue is open.
    pub(crate) fn add(&self, txg: Txg, task: QueuedTask) -> bool {
        let mut tasks = self.0.lock();
        if !tasks.is_closed {
            tasks.queued[slot(txg)].push(task);
        }
        !tasks.is_closed
    }

    /// Takes the tasks of a transaction group.
    pub(crate) fn take(&self, txg: Txg) -> Vec<QueuedTask> {
        std::mem::take(&mut self.0.lock().queued[slot(txg)])
    }

    /// Takes those that want to be first ([`SyncTask::is_early`]).
    pub(crate) fn take_early(&self, txg: Txg) -> Vec<QueuedTask> {
        let mut tasks = self.0.lock();
        let queued = &mut tasks.queued[slot(txg)];
        queued
            .extract_if(.., |queued| queued.task.is_early())
            .collect()
    }

    /// Whether a transaction group has tasks to run.
    pub(crate) fn has_queued(&self, txg: Txg) -> bool {
        !self.0.lock().queued[slot(txg)].is_empty()
    }

    /// The tasks of a transaction group begin: none has taken space.
    pub(crate) fn begin(&self) {
        self.0.lock().taken_bytes = 0;
    }

    /// What those that were run since may take of the space that all may use, in bytes.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.0.lock().taken_bytes
    }

    /// A task that was run may take so much of it.
    pub(crate) fn take_space(&self, bytes: u64) {
        let mut tasks = self.0.lock();
        tasks.taken_bytes = tasks.taken_bytes.saturating_add(bytes);
    }

    /// A task was run: whoever waits for it is answered once its transaction group is on disk.
    pub(crate) fn add_done(&self, txg: Txg, answer: Answer) {
        self.0.lock().done[slot(txg)].push(answer);
    }

    /// Takes those who wait for a transaction group to be on disk.
    pub(crate) fn take_done(&self, txg: Txg) -> Vec<Answer> {
        std::mem::take(&mut self.0.lock().done[slot(txg)])
    }

    /// Lets go of all who wait, and takes no task any more.
    pub(crate) fn close(&self) {
        let mut tasks = self.0.lock();
        tasks.is_closed = true;
        tasks.queued = Default::default();
        tasks.done = Default::default();
    }

    /// From now on tasks are refused while the pool is suspended.
    pub(crate) fn refuse_while_suspended(&self) {
        self.0.lock().refuses = true;
    }

    /// Whether they are.
    pub(crate) fn refuses_while_suspended(&self) -> bool {
        self.0.lock().refuses
    }
}
