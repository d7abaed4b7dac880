//! Looking for what a client sends next, for a moment before the connection's task sleeps.
//!
//! A client that waits for each answer before it asks again (most do that open one file after the
//! other) pays for waking the task every time: as much as the rest of a small request. Its next
//! request comes within tens of microseconds, so the task looks for it so long, as long as that has
//! been worth it lately. A client with many requests under way mostly has the next one here
//! already; one that is slow, or far, costs a few looks in vain and then none.
//!
//! A task that looks keeps a thread of the runtime. So no more do at once than half of the CPUs,
//! and between two looks whoever wants the CPU has it.

use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::ReadBuf;

/// How long a task looks: about what waking it costs, with what a near client needs between two
/// requests.
const LOOK_MAX: Duration = Duration::from_micros(50);
/// So many times in a row in vain: then not any more, until requests come fast again.
const VAIN_MAX: u32 = 3;

/// Tasks that look now.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// Most tasks that look at once.
fn looking_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from) / 2)
}

/// A place among those that look.
struct Place;

impl Place {
    fn take() -> Option<Place> {
        let take = |looking| (looking < looking_max()).then_some(looking + 1);
        LOOKING
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .ok()
            .map(|_| Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether looking is worth it on one connection, by how it was lately.
#[derive(Debug, Default)]
pub struct Looking {
    /// When its task went to sleep, until it is woken by a request.
    asleep: Option<Instant>,
    in_vain: u32,
}

impl Looking {
    /// Before the task reads from `socket`: looks for what is about to come, and reads the first of
    /// it, past the runtime. Nothing where that is not worth it, or nothing came: then the task
    /// reads as ever, and tells by [`Self::has_read`] what came of it.
    ///
    /// # Errors
    /// Of the system, for what was read.
    pub fn look(&mut self, socket: &impl AsFd, buffer: &mut ReadBuf<'_>) -> Option<io::Result<()>> {
        // One that slept was woken because there is something, or for something else.
        if self.asleep.is_some() || self.in_vain >= VAIN_MAX {
            return None;
        }
        let _place = Place::take()?;
        let outcome = look(socket, buffer);
        self.in_vain = match outcome {
            Some(_) => 0,
            None => self.in_vain + 1,
        };
        outcome
    }

    /// The task has read from the socket, or waits for it now.
    pub fn has_read(&mut self, is_waiting: bool) {
        match (is_waiting, self.asleep) {
            (true, None) => self.asleep = Some(Instant::now()),
            (true, Some(_)) | (false, None) => {}
            (false, Some(since)) => {
                // After a look in vain it came too late for that.
                if self.in_vain >= VAIN_MAX && since.elapsed() < LOOK_MAX {
                    self.in_vain = 0;
                }
                self.asleep = None;
            }
        }
    }
}

/// Looks until something is read, for a moment; nothing where nothing came.
fn look(socket: &impl AsFd, buffer: &mut ReadBuf<'_>) -> Option<io::Result<()>> {
    let begin = Instant::now();
    loop {
        let target = buffer.initialize_unfilled();
        match rustix::net::recv(socket, target, RecvFlags::DONTWAIT) {
            Ok((_, count)) => {
                buffer.advance(count);
                return Some(Ok(()));
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Some(Err(error.into())),
        }
        if begin.elapsed() >= LOOK_MAX {
            return None;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn look_at(looking: &mut Looking, socket: &UnixStream) -> Option<usize> {
        let mut memory = [0; 16];
        let mut buffer = ReadBuf::new(&mut memory);
        let outcome = looking.look(socket, &mut buffer);
        outcome.map(|read| {
            read.unwrap();
            buffer.filled().len()
        })
    }

    /// Goal: what is there is read; a client that sends nothing is looked for three times; one that
    /// is fast again, from then on.
    #[test]
    fn it_is_looked_for_as_long_as_that_is_worth_it() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut looking = Looking::default();
        if looking_max() == 0 {
            return assert_eq!(look_at(&mut looking, &near), None);
        }
        for _ in 0..2 {
            assert_eq!(look_at(&mut looking, &near), None);
        }
        far.write_all(b"words").unwrap();
        assert_eq!(look_at(&mut looking, &near), Some(5));
        for _ in 0..VAIN_MAX {
            assert_eq!(look_at(&mut looking, &near), None);
        }
        far.write_all(b"more").unwrap();
        assert_eq!(look_at(&mut looking, &near), None);
        looking.has_read(true);
        looking.asleep = Instant::now().checked_sub(2 * LOOK_MAX);
        looking.has_read(false);
        assert_eq!(look_at(&mut looking, &near), None);
        looking.asleep = Some(Instant::now() + LOOK_MAX);
        looking.has_read(false);
        assert_eq!(look_at(&mut looking, &near), Some(4));
        // Its end is read as such.
        drop(far);
        assert_eq!(look_at(&mut looking, &near), Some(0));
        assert_eq!(LOOKING.load(Ordering::Relaxed), 0);
    }
}
