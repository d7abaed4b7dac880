//! The real world: the system's clock, its randomness, tokio's tasks, files and block devices.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::{Handle, Runtime};

use crate::looks::{Entry, entries_of};
use crate::near::start_near;
use crate::{
    BoxFuture, Clock, CpuPool, Device, DeviceError, FileDevice, FileOptions, Foreign, Hold, Opener,
    Random, Spawn, World,
};

/// The runtime for callers that have none: started at the first use, kept for the process's life.
fn own_runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("millpond-task")
            .enable_all()
            .build()
            .expect("a process that cannot start threads cannot serve pools")
    })
}

/// The system's clocks; sleeps on tokio's timer.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall_ns(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64)
    }

    fn monotonic_ns(&self) -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if Handle::try_current().is_ok() {
                tokio::time::sleep(duration).await;
            } else {
                let sleeping =
                    own_runtime().spawn(async move { tokio::time::sleep(duration).await });
                let _ = sleeping.await;
            }
        })
    }
}

/// The system's random generator (`getrandom`).
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, out: &mut [u8]) {
        let mut filled = 0;
        while filled < out.len() {
            match rustix::rand::getrandom(&mut out[filled..], rustix::rand::GetRandomFlags::empty())
            {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("the system's random generator failed: {error}"),
            }
        }
    }
}

/// Starts tasks on a tokio runtime: the one this was created in, else the caller's when it runs in
/// one, else one of its own.
#[derive(Debug, Clone)]
pub struct TokioSpawn {
    home: Option<Handle>,
}

impl TokioSpawn {
    /// Remembers the runtime that the caller is in, if any.
    pub fn new() -> Self {
        TokioSpawn {
            home: Handle::try_current().ok(),
        }
    }

    /// Starts every task on `handle`'s runtime.
    pub fn on(handle: Handle) -> Self {
        TokioSpawn { home: Some(handle) }
    }

    /// The runtime this was made in first: a task must not die with some short-lived runtime that
    /// merely happened to call.
    fn runtime(&self) -> Handle {
        match &self.home {
            Some(home) => home.clone(),
            None => Handle::try_current().unwrap_or_else(|_| own_runtime().handle().clone()),
        }
    }
}

impl Default for TokioSpawn {
    fn default() -> Self {
        TokioSpawn::new()
    }
}

impl Spawn for TokioSpawn {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.runtime().spawn(task);
    }

    fn spawn_near(&self, task: BoxFuture<'static, ()>) {
        start_near(&self.runtime(), task);
    }
}

/// Opens files and block devices as [`FileDevice`]s.
#[derive(Debug, Default, Clone)]
pub struct SystemOpener {
    options: FileOptions,
}

impl SystemOpener {
    /// Opens with `options`; only whether a device is read-only comes from the caller of
    /// [`Opener::open`].
    pub fn new(options: FileOptions) -> Self {
        SystemOpener { options }
    }
}

impl Opener for SystemOpener {
    fn open<'a>(
        &'a self,
        path: &'a str,
        read_only: bool,
    ) -> BoxFuture<'a, Result<Arc<dyn Device>, DeviceError>> {
        let options = FileOptions {
            read_only,
            ..self.options.clone()
        };
        Box::pin(async move {
            let device = FileDevice::open_async(path.to_owned(), options).await?;
            Ok(Arc::new(device) as Arc<dyn Device>)
        })
    }

    fn entries<'a>(
        &'a self,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<Entry>>, DeviceError>> {
        Box::pin(entries_of(path))
    }

    fn is_held<'a>(&'a self, path: &'a str) -> BoxFuture<'a, bool> {
        let looks = !self.options.unlocked;
        Box::pin(async move { looks && FileDevice::is_held(path.to_owned()).await })
    }

    fn foreign<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<Foreign>, DeviceError>> {
        Box::pin(FileDevice::foreign(path.to_owned()))
    }

    fn hold<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Hold, DeviceError>> {
        let holds = !self.options.unlocked;
        Box::pin(async move {
            if holds {
                FileDevice::hold(path.to_owned()).await
            } else {
                Ok(Hold::default())
            }
        })
    }

    fn lend<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(FileDevice::lend(path.to_owned()))
    }
}

impl World {
    /// The real world with `cpu_threads` CPU workers (0: one per CPU). May be called inside or
    /// outside of a tokio runtime.
    pub fn system(cpu_threads: usize) -> World {
        World::system_with(cpu_threads, FileOptions::default())
    }

    /// The real world, opening devices with `options`.
    pub fn system_with(cpu_threads: usize, options: FileOptions) -> World {
        World {
            clock: Arc::new(SystemClock),
            random: Arc::new(SystemRandom),
            spawn: Arc::new(TokioSpawn::new()),
            cpu: Arc::new(CpuPool::new(cpu_threads)),
            opener: Arc::new(SystemOpener::new(options)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_world_works_outside_of_a_runtime() {
        let world = World::system(2);
        let (send, receive) = std::sync::mpsc::channel();
        let inner = world.clone();
        world.spawn.spawn(Box::pin(async move {
            let before = inner.clock.monotonic_ns();
            inner.clock.sleep(Duration::from_millis(2)).await;
            let slept_ns = inner.clock.monotonic_ns() - before;
            let sum = inner.compute(|| (1..=100u64).sum::<u64>()).await;
            send.send((slept_ns, sum)).expect("receiver lives");
        }));
        let (slept_ns, sum) = receive.recv().expect("the task ends");
        assert!(slept_ns >= 2_000_000);
        assert_eq!(sum, 5050);
    }

    #[tokio::test]
    async fn the_world_works_inside_of_a_runtime() {
        let world = World::system(1);
        assert_eq!(world.compute(|| 6 * 7).await, 42);
        assert!(world.clock.wall_ns() > 1_600_000_000_000_000_000);
    }

    #[test]
    fn randomness_differs_between_calls() {
        let mut first = [0u8; 1024];
        let mut second = [0u8; 1024];
        SystemRandom.fill(&mut first);
        SystemRandom.fill(&mut second);
        assert_ne!(first, second);
        assert_ne!(first[..512], first[512..]);
        assert_ne!(SystemRandom.next_u64(), SystemRandom.next_u64());
    }
}
