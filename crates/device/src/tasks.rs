//! Tasks with an owner.
//!
//! Who starts a task through [`Tasks`] can cancel it, wait until nothing of it is left, and hears
//! when it panics: whoever waits for something that the task was to do would else wait for ever.
//! What a panic means is for the owner to say.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{Spawn, World};

/// A task that panicked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskPanic {
    /// The task's name.
    pub task: &'static str,
    /// What the panic said.
    pub message: String,
}

type Hook = Arc<dyn Fn(TaskPanic) + Send + Sync>;

/// An owner of tasks. All clones are the same owner; dropping them ends nothing.
#[derive(Clone)]
pub struct Tasks {
    spawn: Arc<dyn Spawn>,
    tracker: TaskTracker,
    cancel: CancellationToken,
    on_panic: Hook,
}

impl Tasks {
    /// An owner without tasks. `on_panic` hears of every task that panics, on that task, and must
    /// not block.
    pub fn new(world: &World, on_panic: impl Fn(TaskPanic) + Send + Sync + 'static) -> Self {
        Tasks {
            spawn: world.spawn.clone(),
            tracker: TaskTracker::new(),
            cancel: CancellationToken::new(),
            on_panic: Arc::new(on_panic),
        }
    }

    /// Tasks that are of no use without each other: they can be cancelled and waited for on their
    /// own, they are cancelled with the others of this owner, and when one panics, which this owner
    /// hears of too, the rest is cancelled.
    #[must_use]
    pub fn group(&self) -> Tasks {
        let cancel = self.cancel.child_token();
        let (others, outer) = (cancel.clone(), self.on_panic.clone());
        Tasks {
            spawn: self.spawn.clone(),
            tracker: TaskTracker::new(),
            cancel,
            on_panic: Arc::new(move |panic| {
                others.cancel();
                outer(panic);
            }),
        }
    }

    /// Runs a task to its end, or until it is cancelled.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.cancel.clone();
        let task = async move {
            cancel.run_until_cancelled(task).await;
        };
        self.spawn.spawn(Box::pin(self.own(name, task)));
    }

    /// The same as a future, for who polls it himself first. It never panics, and it is not
    /// cancelled: what others wait for it does to its end.
    pub fn own<F>(&self, name: &'static str, task: F) -> impl Future<Output = ()> + Send + use<F>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let on_panic = self.on_panic.clone();
        self.tracker.track_future(async move {
            // What a task leaves half done is not used any more: that is what the owner is told
            // for.
            if let Err(payload) = AssertUnwindSafe(task).catch_unwind().await {
                let message = message_of(&*payload);
                tracing::error!(task = name, message, "a task panicked");
                on_panic(TaskPanic {
                    task: name,
                    message,
                });
            }
        })
    }

    /// Whether tasks were cancelled, or one of a group panicked.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Ends all tasks that were spawned where they wait next, and lets none begin.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits until no task is left; those of groups are not waited for.
    pub async fn wait(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Tasks")
            .field("count", &self.tracker.len())
            .field("is_cancelled", &self.cancel.is_cancelled())
            .finish_non_exhaustive()
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it gave no reason".to_owned())
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::sim::SimWorld;

    fn owner() -> (Tasks, Arc<Mutex<Vec<TaskPanic>>>) {
        let panics = Arc::new(Mutex::new(Vec::new()));
        let heard = panics.clone();
        let hook = move |panic| heard.lock().push(panic);
        (Tasks::new(&SimWorld::new(1).world(), hook), panics)
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_heard_and_others_go_on() {
        let (tasks, panics) = owner();
        let (send, receive) = tokio::sync::oneshot::channel();
        tasks.spawn("first", async { panic!("no {}", "more") });
        tasks.spawn("second", async move {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            send.send(()).expect("somebody waits");
        });
        receive.await.expect("it goes on");
        tasks.wait().await;
        let (task, message) = ("first", "no more".to_owned());
        assert_eq!(*panics.lock(), [TaskPanic { task, message }]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_falls_together_and_alone() {
        let (tasks, panics) = owner();
        let group = tasks.group();
        group.spawn("one", std::future::pending());
        group.spawn("two", async { panic!("over") });
        tasks.spawn("apart", std::future::pending());
        group.wait().await;
        assert_eq!(panics.lock().len(), 1);
        assert!(tasks.wait().now_or_never().is_none(), "not of the group");
        tasks.cancel();
        tasks.wait().await;
        let late = tasks.group();
        late.spawn("late", async { panic!("it must not begin") });
        late.wait().await;
        assert_eq!(panics.lock().len(), 1);
    }
}
