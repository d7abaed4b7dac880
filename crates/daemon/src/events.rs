//! What happens, kept for whoever listens (`GET /v1/events`; [`api::Event`]).
//!
//! The last [`KEPT_MAX`] events are kept once, for all readers: each reads on from the number that
//! it has come to. So a reader costs nothing while it is slow, and nobody who makes an event waits
//! for one; who is more than that behind gets a notice in place of what is gone.
//!
//! Lock: `kept` is short, and is taken inside of [`crate::jobs::Jobs`]' own, never the other way.

use std::collections::VecDeque;
use std::sync::Arc;

use api::{Event, EventKind, EventPool};
use parking_lot::Mutex;
use pool::Pool;
use tokio::sync::watch;

/// Events that are kept.
const KEPT_MAX: usize = 1024;

/// The events of a server.
#[derive(Debug)]
pub(crate) struct Events {
    kept: Mutex<VecDeque<Arc<Event>>>,
    kept_max: usize,
    /// Number of the last one.
    last: watch::Sender<u64>,
}

impl Default for Events {
    fn default() -> Self {
        Self::keeping(KEPT_MAX)
    }
}

impl Events {
    fn keeping(kept_max: usize) -> Self {
        Self {
            kept: Mutex::new(VecDeque::new()),
            kept_max,
            last: watch::Sender::new(0),
        }
    }

    /// Tells of something; `kind` is given the number that it gets, which is returned.
    pub(crate) fn tell_numbered(&self, kind: impl FnOnce(u64) -> EventKind) -> u64 {
        let mut kept = self.kept.lock();
        let sequence = *self.last.borrow() + 1;
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let time_ns = since.map_or(0, |since| since.as_nanos() as u64);
        if kept.len() == self.kept_max {
            kept.pop_front();
        }
        kept.push_back(Arc::new(Event {
            sequence,
            time_ns,
            kind: kind(sequence),
        }));
        self.last.send_replace(sequence);
        sequence
    }

    /// Tells of something.
    pub(crate) fn tell(&self, kind: EventKind) {
        self.tell_numbered(|_| kind);
    }

    /// Tells of something about a pool.
    pub(crate) fn tell_of(&self, pool: &Pool, kind: fn(EventPool) -> EventKind) {
        self.tell(kind(EventPool {
            pool: pool.name(),
            guid: crate::reports::guid(pool.guid()),
        }));
    }

    /// Number of the last event.
    pub(crate) fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// Reads those after `after`; without, those from now on.
    pub(crate) fn reader(self: &Arc<Self>, after: Option<u64>) -> Reader {
        let last = self.last();
        // Who knows more than there is knows another server.
        let (position, lagged) = match after {
            Some(after) if after > last => (last, true),
            Some(after) => (after, false),
            None => (last, false),
        };
        Reader {
            numbers: self.last.subscribe(),
            events: Arc::clone(self),
            opened: false,
            of_another_server: lagged,
            position,
        }
    }

    fn after(&self, position: u64) -> Next {
        let kept = self.kept.lock();
        let Some(oldest) = kept.front().map(|event| event.sequence) else {
            return Next::Nothing;
        };
        if position + 1 < oldest {
            return Next::Gone { oldest };
        }
        match kept.get((position + 1 - oldest) as usize) {
            Some(event) => Next::Event(Arc::clone(event)),
            None => Next::Nothing,
        }
    }
}

enum Next {
    Event(Arc<Event>),
    /// What comes next is not kept any more.
    Gone {
        oldest: u64,
    },
    Nothing,
}

/// One who reads events.
pub(crate) struct Reader {
    events: Arc<Events>,
    numbers: watch::Receiver<u64>,
    opened: bool,
    of_another_server: bool,
    /// Number of the last event that was read.
    position: u64,
}

impl Reader {
    /// Waits for the next event; none when the server goes away.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        if !self.opened {
            self.opened = true;
            return Some(self.notice(EventKind::Opened));
        }
        if self.of_another_server {
            self.of_another_server = false;
            return Some(self.notice(EventKind::Lagged { missed: None }));
        }
        loop {
            // Marked as seen before looking, so that none is missed.
            self.numbers.borrow_and_update();
            match self.events.after(self.position) {
                Next::Event(event) => {
                    self.position = event.sequence;
                    return Some(Event::clone(&event));
                }
                Next::Gone { oldest } => {
                    let missed = oldest - 1 - self.position;
                    self.position = oldest - 1;
                    let missed = Some(missed);
                    return Some(self.notice(EventKind::Lagged { missed }));
                }
                Next::Nothing => self.numbers.changed().await.ok()?,
            }
        }
    }

    /// Something for this reader alone, which has the number of the event before it.
    fn notice(&self, kind: EventKind) -> Event {
        Event {
            sequence: self.position,
            time_ns: 0,
            kind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(name: u64) -> EventKind {
        EventKind::DatasetsCreated {
            names: vec![name.to_string()],
        }
    }

    /// What a reader gets without waiting: numbers, and what is missing.
    async fn read(reader: &mut Reader) -> Vec<(u64, EventKind)> {
        let mut out = Vec::new();
        loop {
            let mut next = Box::pin(reader.next());
            match futures::poll!(&mut next) {
                std::task::Poll::Ready(event) => {
                    let event = event.unwrap();
                    out.push((event.sequence, event.kind));
                }
                std::task::Poll::Pending => return out,
            }
        }
    }

    #[tokio::test]
    async fn readers_get_all_events_in_order() {
        let events = Arc::new(Events::keeping(4));
        events.tell(created(1));
        let mut late = events.reader(None);
        let mut knowing = events.reader(Some(0));
        assert_eq!(read(&mut late).await, [(1, EventKind::Opened)]);
        for number in 2..=4 {
            events.tell(created(number));
        }
        let expected: Vec<_> = (2..=4).map(|number| (number, created(number))).collect();
        assert_eq!(read(&mut late).await, expected);
        let mut all = vec![(0, EventKind::Opened), (1, created(1))];
        all.extend(expected);
        assert_eq!(read(&mut knowing).await, all);
        // One that waits is woken.
        let (next, ()) = futures::join!(late.next(), async { events.tell(created(5)) });
        assert_eq!(next.unwrap().sequence, 5);
    }

    #[tokio::test]
    async fn who_is_slow_is_told_what_is_missing_and_goes_on() {
        let events = Arc::new(Events::keeping(4));
        let mut slow = events.reader(None);
        assert_eq!(read(&mut slow).await.len(), 1);
        for number in 1..=10 {
            events.tell(created(number));
        }
        let mut expected = vec![(6, EventKind::Lagged { missed: Some(6) })];
        expected.extend((7..=10).map(|number| (number, created(number))));
        assert_eq!(read(&mut slow).await, expected);
        // Who knows another server's events is told that this is a new one.
        let mut other = events.reader(Some(1000));
        let lagged = EventKind::Lagged { missed: None };
        assert_eq!(
            read(&mut other).await,
            [(10, EventKind::Opened), (10, lagged)]
        );
    }
}
