//! What happens, kept for whoever listens (`GET /v1/events`; [`api::Event`]).
//!
//! There are two kinds of events, numbered together: our own, and those with OpenZFS's classes
//! ([`api::ZfsEvent`]), which pools tell of ([`pool::EventSink`]). Of each kind the last ones are
//! kept once, for all readers, so that neither pushes the other out: each reader reads on from the
//! number that it has come to. So a reader costs nothing while it is slow, and nobody who makes an
//! event waits for one; who is more than that behind gets a notice in place of what is gone.
//!
//! Lock: `kept` is short, and is taken inside of [`crate::jobs::Jobs`]' own and of those of a
//! pool, never the other way.

use std::collections::VecDeque;
use std::sync::Arc;

use api::{Digits, Event, EventKind, EventPool, Pair, PairValue, ZfsEvent};
use format::{NvList, NvValue};
use parking_lot::Mutex;
use pool::{EventSink, Pool, PoolEvent};
use tokio::sync::watch;

/// Events of our own that are kept.
const OWN_MAX: usize = 1024;
/// Events of OpenZFS's kind that are kept (`zfs_zevent_len_max`).
const ZFS_MAX: usize = 512;

/// Which kinds of events a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Both.
    All,
    /// Our own.
    Own,
    /// Those with OpenZFS's classes.
    Zfs,
}

impl Wanted {
    fn rings(self) -> &'static [usize] {
        match self {
            Wanted::All => &[OWN, ZFS],
            Wanted::Own => &[OWN],
            Wanted::Zfs => &[ZFS],
        }
    }
}

const OWN: usize = 0;
const ZFS: usize = 1;

/// The last events of a kind.
#[derive(Debug)]
struct Ring {
    kept: VecDeque<Arc<Event>>,
    kept_max: usize,
    /// How many are not kept any more.
    gone: u64,
    /// Sequence number of the last of these.
    gone_sequence: u64,
}

impl Ring {
    fn keeping(kept_max: usize) -> Self {
        Self {
            kept: VecDeque::new(),
            kept_max,
            gone: 0,
            gone_sequence: 0,
        }
    }

    fn push(&mut self, event: Event) {
        if self.kept.len() == self.kept_max {
            self.drop_first();
        }
        self.kept.push_back(Arc::new(event));
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.kept.pop_front() {
            self.gone += 1;
            self.gone_sequence = first.sequence;
        }
    }

    /// How many there were.
    fn count(&self) -> u64 {
        self.gone + self.kept.len() as u64
    }

    /// How many of them came no later than `sequence`; none where that is not known any more.
    fn count_until(&self, sequence: u64) -> Option<u64> {
        if sequence == 0 {
            return Some(0);
        }
        let until = self
            .kept
            .partition_point(|event| event.sequence <= sequence);
        (self.gone_sequence <= sequence).then_some(self.gone + until as u64)
    }
}

/// The events of a server.
#[derive(Debug)]
pub struct Events {
    kept: Mutex<[Ring; 2]>,
    /// Number of the last one.
    last: watch::Sender<u64>,
}

impl Default for Events {
    fn default() -> Self {
        Self::keeping(OWN_MAX, ZFS_MAX)
    }
}

impl Events {
    fn keeping(own_max: usize, zfs_max: usize) -> Self {
        Self {
            kept: Mutex::new([Ring::keeping(own_max), Ring::keeping(zfs_max)]),
            last: watch::Sender::new(0),
        }
    }

    /// Tells of something; `kind` is given the number that it gets, which is returned.
    pub fn tell_numbered(&self, kind: impl FnOnce(u64) -> EventKind) -> u64 {
        self.put(OWN, |sequence, _, _| kind(sequence))
    }

    /// Keeps an event that is made of its number, its number in the ring, and the time.
    fn put(&self, ring: usize, kind: impl FnOnce(u64, u64, u64) -> EventKind) -> u64 {
        let mut kept = self.kept.lock();
        let sequence = *self.last.borrow() + 1;
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let time_ns = since.map_or(0, |since| since.as_nanos() as u64);
        let number = kept[ring].count() + 1;
        kept[ring].push(Event {
            sequence,
            time_ns,
            kind: kind(sequence, number, time_ns),
        });
        self.last.send_replace(sequence);
        sequence
    }

    /// Tells of something.
    pub fn tell(&self, kind: EventKind) {
        self.tell_numbered(|_| kind);
    }

    /// Tells of something about a pool.
    pub fn tell_of(&self, pool: &Pool, kind: fn(EventPool) -> EventKind) {
        self.tell(kind(EventPool {
            pool: pool.name(),
            guid: crate::reports::guid(pool.guid()),
        }));
    }

    /// Number of the last event.
    pub fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// The kept events of OpenZFS's kind, and the number of the last one of any kind.
    pub fn of_zfs(&self) -> (Vec<Event>, u64) {
        let kept = self.kept.lock();
        let events = kept[ZFS].kept.iter().map(|event| Event::clone(event));
        (events.collect(), self.last())
    }

    /// Forgets the events of OpenZFS's kind; returns how many.
    pub fn clear_zfs(&self) -> u64 {
        let mut kept = self.kept.lock();
        let count = kept[ZFS].kept.len();
        (0..count).for_each(|_| kept[ZFS].drop_first());
        count as u64
    }

    /// Reads those after `after`; without, those from now on.
    pub fn reader(self: &Arc<Self>, after: Option<u64>, wanted: Wanted) -> Reader {
        let kept = self.kept.lock();
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
            wanted,
            opened: false,
            of_another_server: lagged,
            read: kept.each_ref().map(|ring| ring.count_until(position)),
            position,
        }
    }
}

impl EventSink for Events {
    fn event(&self, event: PoolEvent) {
        let PoolEvent { class, pairs } = event;
        self.put(ZFS, |_, eid, time_ns| {
            let mut pairs = told(&pairs);
            // As OpenZFS adds them (`zfs_zevent_post`, module/zfs/fm.c).
            let time = [time_ns / 1_000_000_000, time_ns % 1_000_000_000];
            let time = time.map(|part| Digits(part.cast_signed())).to_vec();
            pairs.push(pair("time", PairValue::Int64Array(time)));
            pairs.push(pair("eid", PairValue::Uint64(Digits(eid))));
            EventKind::Zfs(ZfsEvent { class, eid, pairs })
        });
    }
}

fn pair(name: &str, value: PairValue) -> Pair {
    Pair {
        name: name.to_owned(),
        value,
    }
}

/// Pairs as they are told.
fn told(pairs: &NvList) -> Vec<Pair> {
    pairs
        .iter()
        .map(|(name, value)| pair(name, told_value(value)))
        .collect()
}

fn told_value(value: &NvValue) -> PairValue {
    match value {
        NvValue::Boolean => PairValue::Boolean,
        NvValue::BooleanValue(value) => PairValue::BooleanValue(*value),
        NvValue::Byte(value) => PairValue::Byte(*value),
        NvValue::Int8(value) => PairValue::Int8(*value),
        NvValue::UInt8(value) => PairValue::Uint8(*value),
        NvValue::Int16(value) => PairValue::Int16(*value),
        NvValue::UInt16(value) => PairValue::Uint16(*value),
        NvValue::Int32(value) => PairValue::Int32(*value),
        NvValue::UInt32(value) => PairValue::Uint32(*value),
        NvValue::Int64(value) => PairValue::Int64(Digits(*value)),
        NvValue::UInt64(value) => PairValue::Uint64(Digits(*value)),
        NvValue::HrTime(value) => PairValue::Hrtime(Digits(*value)),
        NvValue::String(value) => PairValue::String(value.clone()),
        NvValue::RawString(value) => PairValue::String(String::from_utf8_lossy(value).into_owned()),
        NvValue::List(value) => PairValue::Nvlist(told(value)),
        NvValue::Int8Array(values) => PairValue::Int8Array(values.clone()),
        NvValue::UInt8Array(values) => PairValue::Uint8Array(values.clone()),
        NvValue::Int16Array(values) => PairValue::Int16Array(values.clone()),
        NvValue::UInt16Array(values) => PairValue::Uint16Array(values.clone()),
        NvValue::Int32Array(values) => PairValue::Int32Array(values.clone()),
        NvValue::UInt32Array(values) => PairValue::Uint32Array(values.clone()),
        NvValue::Int64Array(values) => {
            PairValue::Int64Array(values.iter().copied().map(Digits).collect())
        }
        NvValue::UInt64Array(values) => {
            PairValue::Uint64Array(values.iter().copied().map(Digits).collect())
        }
        NvValue::StringArray(values) => PairValue::StringArray(values.clone()),
        NvValue::ListArray(values) => PairValue::NvlistArray(values.iter().map(told).collect()),
        _ => PairValue::Unknown,
    }
}

enum Next {
    Event(Arc<Event>),
    /// Some are not kept any more.
    Gone(Option<u64>),
    Nothing,
}

/// One who reads events.
pub struct Reader {
    events: Arc<Events>,
    numbers: watch::Receiver<u64>,
    wanted: Wanted,
    opened: bool,
    of_another_server: bool,
    /// How many of each kind were read; none where that is not known.
    read: [Option<u64>; 2],
    /// Number of the last event that was read.
    position: u64,
}

impl Reader {
    /// Waits for the next event; none when the server goes away.
    pub async fn next(&mut self) -> Option<Event> {
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
            match self.step() {
                Next::Event(event) => return Some(Event::clone(&event)),
                Next::Gone(missed) => return Some(self.notice(EventKind::Lagged { missed })),
                Next::Nothing => self.numbers.changed().await.ok()?,
            }
        }
    }

    fn step(&mut self) -> Next {
        let events = Arc::clone(&self.events);
        let kept = events.kept.lock();
        let mut first: Option<(usize, &Arc<Event>)> = None;
        let mut gone = None;
        for &number in self.wanted.rings() {
            let ring = &kept[number];
            let index = match self.read[number] {
                Some(read) if read >= ring.gone => (read - ring.gone) as usize,
                read => {
                    gone.get_or_insert((number, read.map(|read| ring.gone - read)));
                    0
                }
            };
            if let Some(next) = ring.kept.get(index)
                && first.is_none_or(|(_, first)| next.sequence < first.sequence)
            {
                first = Some((number, next));
            }
        }
        if let Some((number, missed)) = gone {
            let ring = &kept[number];
            self.read[number] = Some(ring.gone);
            // Who comes back with the notice's number gets the same as who goes on.
            let before = first.map_or(u64::MAX, |(_, next)| next.sequence - 1);
            self.position = self.position.max(ring.gone_sequence.min(before));
            return Next::Gone(missed);
        }
        let Some((number, event)) = first else {
            return Next::Nothing;
        };
        self.position = event.sequence;
        self.read[number] = self.read[number].map(|read| read + 1);
        Next::Event(Arc::clone(event))
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
        let events = Arc::new(Events::keeping(4, 2));
        events.tell(created(1));
        let mut late = events.reader(None, Wanted::All);
        let mut knowing = events.reader(Some(0), Wanted::All);
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
        let events = Arc::new(Events::keeping(4, 2));
        let mut slow = events.reader(None, Wanted::All);
        assert_eq!(read(&mut slow).await.len(), 1);
        for number in 1..=10 {
            events.tell(created(number));
        }
        let mut expected = vec![(6, EventKind::Lagged { missed: Some(6) })];
        expected.extend((7..=10).map(|number| (number, created(number))));
        assert_eq!(read(&mut slow).await, expected);
        // Who knows another server's events is told that this is a new one.
        let mut other = events.reader(Some(1000), Wanted::All);
        let lagged = EventKind::Lagged { missed: None };
        assert_eq!(
            read(&mut other).await,
            [(10, EventKind::Opened), (10, lagged)]
        );
    }

    fn zfs(class: &str) -> PoolEvent {
        let mut pairs = NvList::new();
        pairs.push("class", class).push("guid", u64::MAX);
        PoolEvent {
            class: class.to_owned(),
            pairs,
        }
    }

    /// Goal: OpenZFS's events are kept apart, in one order with the others. Method: more of each
    /// than are kept, readers of either kind and of both, and a clear.
    #[tokio::test]
    async fn events_of_openzfs_join_the_others() {
        let events = Arc::new(Events::keeping(4, 2));
        let mut both = events.reader(None, Wanted::All);
        let mut own = events.reader(None, Wanted::Own);
        let mut only = events.reader(None, Wanted::Zfs);
        let classes = |read: Vec<(u64, EventKind)>| {
            let class = |(number, kind): (u64, EventKind)| (number, kind.class().to_owned());
            read.into_iter().map(class).collect::<Vec<_>>()
        };
        let line = |number: u64, class: &str| (number, class.to_owned());
        for reader in [&mut both, &mut own, &mut only] {
            read(reader).await;
        }
        events.tell(created(1));
        events.event(zfs("a"));
        events.tell(created(3));
        events.event(zfs("b"));
        let made = "dataset.created";
        let all = [line(1, made), line(2, "a"), line(3, made), line(4, "b")];
        assert_eq!(classes(read(&mut both).await), all);
        assert_eq!(
            classes(read(&mut own).await),
            [line(1, made), line(3, made)]
        );
        for class in ["c", "d", "e"] {
            events.event(zfs(class));
        }
        let rest = [line(5, "stream.lagged"), line(6, "d"), line(7, "e")];
        assert_eq!(classes(read(&mut both).await), rest);
        assert!(read(&mut own).await.is_empty(), "they push nothing out");
        let notice = read(&mut only).await.remove(0);
        assert_eq!(notice, (5, EventKind::Lagged { missed: Some(3) }));

        let (kept, sequence) = events.of_zfs();
        assert_eq!((kept.len(), sequence), (2, 7));
        let EventKind::Zfs(last) = &kept[1].kind else {
            panic!("{kept:?}");
        };
        let named: Vec<&str> = last.pairs.iter().map(|pair| pair.name.as_str()).collect();
        assert_eq!((last.eid, named), (5, vec!["class", "guid", "time", "eid"]));
        assert_eq!(last.pairs[1].value, PairValue::Uint64(Digits(u64::MAX)));
        assert_eq!(events.clear_zfs(), 2);
        events.event(zfs("f"));
        assert_eq!(events.of_zfs().0.len(), 1);
        assert_eq!(classes(read(&mut both).await), [line(8, "f")]);
        let mut late = events.reader(Some(4), Wanted::Zfs);
        let lagged = (7, EventKind::Lagged { missed: None });
        assert_eq!(read(&mut late).await[1], lagged);
    }
}
