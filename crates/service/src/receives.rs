//! What is being received into a pool, and how it is broken off.
//!
//! A stream's source may be silent for ever: its program hangs, or its disks do, while the kernel
//! of its host says that the connection is well. As long as it lasts the target takes no other
//! stream. So each receive has an entry here ([`Receives::begin`]), and reads through it
//! ([`Receiving::watched`]): whether it waits for its source, and since when, is known, and
//! whoever has to can break it off, which its next read says. What was received until then stays
//! as after any other break.
//!
//! Time that a receive spends otherwise (its own pool stands still) is no silence of the source.
//!
//! Locks: `under_way`, then the state of one; both are short, and never held across an await.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// How long a source has to be silent before `zfs receive -A` breaks its stream off: longer than a
/// busy one takes for what it sends next.
pub const SILENT: Duration = Duration::from_secs(60);
/// How long is waited for the end of what was broken off. It may wait for its pool.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// What is being received into a pool.
#[derive(Default)]
pub struct Receives {
    under_way: Mutex<Vec<Arc<One>>>,
    ended: Notify,
}

/// Why a receive was broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Its source was silent, and somebody gave it up (`zfs receive -A`).
    GivenUp,
    /// Its pool leaves.
    Leaves,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::GivenUp => "nothing came any more, and it was given up ('zfs receive -A')",
            Self::Leaves => "its pool is being exported or destroyed",
        })
    }
}

/// What came of breaking a receive off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenOff {
    /// There was none.
    None,
    /// It has ended.
    Ended,
    /// Its source is not silent, or not for long enough: since this long.
    Heard(Duration),
    /// It does not end; it may wait for its pool.
    Stays,
}

#[derive(Default)]
struct State {
    /// The dataset that contents come for.
    target: Option<String>,
    /// Since when it waits for its source, if it does.
    waits_since: Option<Instant>,
    reader: Option<Waker>,
}

struct One {
    state: Mutex<State>,
    broken: watch::Sender<Option<Broken>>,
}

impl One {
    fn silent_for(&self) -> Duration {
        let waits_since = self.state.lock().waits_since;
        waits_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn break_off(&self, why: Broken) {
        self.broken.send_if_modified(|broken| {
            let is_first = broken.is_none();
            broken.get_or_insert(why);
            is_first
        });
        let reader = self.state.lock().reader.take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn error(why: Broken) -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionAborted, why.to_string())
    }
}

/// A receive that is under way. Its entry ends with it.
pub struct Receiving {
    all: Arc<Receives>,
    own: Arc<One>,
}

impl Receives {
    /// Notes one that begins.
    pub fn begin(self: &Arc<Self>) -> Receiving {
        let own = Arc::new(One {
            state: Mutex::default(),
            broken: watch::Sender::new(None),
        });
        self.under_way.lock().push(Arc::clone(&own));
        Receiving {
            all: Arc::clone(self),
            own,
        }
    }

    /// Whether there is one.
    pub fn is_any(&self) -> bool {
        !self.under_way.lock().is_empty()
    }

    /// Breaks off what is being received into a dataset, if its source has been silent for
    /// [`SILENT`], and waits for its end.
    pub async fn give_up(&self, target: &str) -> BrokenOff {
        let is_of = |one: &&Arc<One>| one.state.lock().target.as_deref() == Some(target);
        let found = self.under_way.lock().iter().find(is_of).cloned();
        let Some(found) = found else {
            return BrokenOff::None;
        };
        let silent_for = found.silent_for();
        if silent_for < SILENT {
            return BrokenOff::Heard(silent_for);
        }
        match self.end(vec![found], Broken::GivenUp).await {
            true => BrokenOff::Ended,
            false => BrokenOff::Stays,
        }
    }

    /// Breaks all of them off, as their pool leaves, and waits a moment for their end.
    pub async fn break_off(&self) {
        let all = self.under_way.lock().clone();
        self.end(all, Broken::Leaves).await;
    }

    /// Breaks some off; whether all have ended.
    async fn end(&self, some: Vec<Arc<One>>, why: Broken) -> bool {
        for one in &some {
            one.break_off(why);
        }
        let all_ended = async {
            loop {
                let ended = self.ended.notified();
                tokio::pin!(ended);
                // An end between the look and the wait counts.
                ended.as_mut().enable();
                let is_left = {
                    let under_way = self.under_way.lock();
                    let is_some = |one: &Arc<One>| some.iter().any(|other| Arc::ptr_eq(one, other));
                    under_way.iter().any(is_some)
                };
                if !is_left {
                    return;
                }
                ended.await;
            }
        };
        tokio::time::timeout(ENDS_WITHIN, all_ended).await.is_ok()
    }
}

impl Receiving {
    /// Its input, watched.
    pub fn watched<R: AsyncRead + Unpin>(&self, input: R) -> Watched<R> {
        Watched {
            input,
            of: Arc::clone(&self.own),
        }
    }

    /// Contents come for this dataset from now on; for none between two streams.
    pub fn set_target(&self, target: Option<&str>) {
        self.own.state.lock().target = target.map(str::to_owned);
    }

    /// Why it was broken off, if it was.
    pub fn broken(&self) -> Option<Broken> {
        *self.own.broken.borrow()
    }

    /// Returns when it is broken off.
    pub async fn until_broken(&self) -> Broken {
        let mut broken = self.own.broken.subscribe();
        // The sender is this entry's own.
        let found = broken.wait_for(Option::is_some).await;
        let found = found.ok().and_then(|found| *found);
        found.unwrap_or(Broken::Leaves)
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let mut under_way = self.all.under_way.lock();
        under_way.retain(|one| !Arc::ptr_eq(one, &self.own));
        drop(under_way);
        self.all.ended.notify_waiters();
    }
}

/// What a receive reads.
pub struct Watched<R> {
    input: R,
    of: Arc<One>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Watched<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(why) = *self.of.broken.borrow() {
            return Poll::Ready(Err(One::error(why)));
        }
        let polled = Pin::new(&mut self.input).poll_read(context, buffer);
        {
            let mut state = self.of.state.lock();
            if polled.is_ready() {
                (state.waits_since, state.reader) = (None, None);
                return polled;
            }
            state.waits_since.get_or_insert_with(Instant::now);
            state.reader = Some(context.waker().clone());
        }
        // It may have been broken off before there was anybody to wake.
        match *self.of.broken.borrow() {
            Some(why) => Poll::Ready(Err(One::error(why))),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Goal: only a receive whose source is silent is given up, and its end is waited for.
    #[tokio::test(start_paused = true)]
    async fn what_is_silent_is_given_up() {
        let receives = Arc::new(Receives::default());
        let (mut source, input) = tokio::io::duplex(64);
        let receiving = receives.begin();
        receiving.set_target(Some("tank/a"));
        let mut input = receiving.watched(input);
        let reading = tokio::spawn(async move {
            let mut bytes = [0; 4];
            let mut count = 0;
            let error = loop {
                match input.read(&mut bytes).await {
                    Ok(more) => count += more,
                    Err(error) => break error,
                }
            };
            // As one that puts its things in order.
            tokio::time::sleep(Duration::from_secs(2)).await;
            drop(receiving);
            (count, error.kind())
        });
        assert_eq!(receives.give_up("tank/b").await, BrokenOff::None);
        source.write_all(b"some").await.expect("it reads");
        tokio::time::sleep(SILENT / 2).await;
        source.write_all(b"more").await.expect("it reads");
        tokio::time::sleep(SILENT - Duration::from_secs(1)).await;
        let refused = receives.give_up("tank/a").await;
        assert!(matches!(refused, BrokenOff::Heard(silent) if silent < SILENT));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(receives.is_any());
        assert_eq!(receives.give_up("tank/a").await, BrokenOff::Ended);
        assert!(!receives.is_any());
        let wanted = (8, io::ErrorKind::ConnectionAborted);
        assert_eq!(reading.await.expect("it ends"), wanted);
    }

    /// Goal: a pool that leaves waits for nobody's source, and not for ever for what hangs.
    #[tokio::test(start_paused = true)]
    async fn a_pool_that_leaves_breaks_all_off() {
        let receives = Arc::new(Receives::default());
        let (_source, input) = tokio::io::duplex(64);
        let receiving = receives.begin();
        let mut input = receiving.watched(input);
        let reading = tokio::spawn(async move {
            let ended = input.read_u8().await;
            let why = receiving.until_broken().await;
            assert_eq!(receiving.broken(), Some(why));
            (ended.is_err(), why)
        });
        receives.break_off().await;
        assert!(!receives.is_any());
        assert_eq!(reading.await.expect("it ends"), (true, Broken::Leaves));

        let hangs = receives.begin();
        hangs.set_target(Some("tank/a"));
        receives.break_off().await;
        assert!(receives.is_any());
        // Who reads hears of it, however late.
        let (_source, input) = tokio::io::duplex(64);
        assert!(hangs.watched(input).read_u8().await.is_err());
    }
}
