//! What redaction lists make of what a traversal has found: blocks that are left out, and blocks
//! that did not change but that the receiver lacks (`send_merge_thread`, `find_next_range`,
//! `send_reader_thread`; module/zfs/dmu_send.c).
//!
//! Three sequences in the same order become one: what was found, the list of what is left out of
//! the stream, and the list of what was left out of what the receiver has. Where the first list has
//! a block, it is said to be left out, whatever was found, unless the receiver lacks it already.
//! Where only the second one has it, its data is sent.

use std::collections::VecDeque;

use dataset::{Dataset, RedactionList, Redactions};
use format::{ObjectId, RedactBlock};

use crate::StreamError;
use crate::events::Event;

/// Entries that are read at once.
const READ_ENTRIES: u64 = 4096;

/// Where something is in a stream: object; whether it is about blocks, not the object itself;
/// block.
type Key = (u64, bool, u64);

/// Blocks of an object, the last one left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    object: u64,
    first: u64,
    end: u64,
    block_bytes: u64,
}

/// A list, from where it is read.
struct Cursor<'a> {
    list: Option<&'a RedactionList>,
    next: u64,
    ready: VecDeque<RedactBlock>,
    /// What is before this is not wanted.
    from: (u64, u64),
    front: Option<Range>,
}

impl<'a> Cursor<'a> {
    fn new(list: Option<&'a RedactionList>, from: (u64, u64)) -> Self {
        Self {
            list,
            next: 0,
            ready: VecDeque::new(),
            from,
            front: None,
        }
    }

    /// What comes next, without taking it.
    async fn front(&mut self) -> Result<Option<Range>, StreamError> {
        let Some(list) = self.list else {
            return Ok(None);
        };
        while self.front.is_none() {
            let Some(entry) = self.ready.pop_front() else {
                let read = list.read(self.next, READ_ENTRIES).await?;
                if read.is_empty() {
                    self.list = None;
                    return Ok(None);
                }
                self.next += read.len() as u64;
                self.ready.extend(read);
                continue;
            };
            let mut range = Range {
                object: entry.object.get(),
                first: entry.block_id,
                end: entry.end(),
                block_bytes: entry.block_bytes(),
            };
            if range.object == self.from.0 {
                range.first = range.first.max(self.from.1);
            }
            let is_wanted = range.object >= self.from.0 && range.first < range.end;
            self.front = is_wanted.then_some(range);
        }
        Ok(self.front)
    }

    /// Takes what comes next up to a block.
    fn take_until(&mut self, end: u64) {
        if let Some(front) = &mut self.front {
            front.first = front.first.max(end);
            if front.first >= front.end {
                self.front = None;
            }
        }
    }
}

/// What is merged into the events of a stream.
pub(crate) struct Overlay<'a> {
    dataset: Dataset,
    redact: Cursor<'a>,
    lacking: Cursor<'a>,
}

impl<'a> Overlay<'a> {
    /// Of a stream of `dataset`, from an object and block on.
    pub(crate) fn new(dataset: &Dataset, lists: &'a Redactions, from: (u64, u64)) -> Self {
        Self {
            dataset: dataset.clone(),
            redact: Cursor::new(lists.of_stream.as_ref(), from),
            lacking: Cursor::new(lists.of_receiver.as_ref(), from),
        }
    }

    /// Appends what comes before an event, and what becomes of the event itself. What is appended
    /// may be more than fits memory: `limit` ends it, and then this is to be called again with the
    /// event that is given back.
    pub(crate) async fn merge(
        &mut self,
        event: Event,
        out: &mut Vec<Event>,
        limit: usize,
    ) -> Result<Option<Event>, StreamError> {
        if !self.merge_before(key(&event), out, limit).await? {
            return Ok(Some(event));
        }
        match event {
            Event::Data {
                object,
                block,
                block_bytes,
                ..
            } => {
                let is_redacted = has(self.redact.front().await?, object, block);
                let is_lacking = has(self.lacking.front().await?, object, block);
                self.take(object, block + 1);
                match (is_redacted, is_lacking) {
                    (true, true) => {}
                    (true, false) => out.push(redact(Range {
                        object,
                        first: block,
                        end: block + 1,
                        block_bytes,
                    })),
                    (false, _) => out.push(event),
                }
            }
            Event::Hole {
                object,
                offset_bytes,
                length_bytes,
                block_bytes,
            } => {
                let first = offset_bytes / block_bytes.max(1);
                let end = first.saturating_add(length_bytes.div_ceil(block_bytes.max(1)));
                let hole = Range {
                    object,
                    first,
                    end,
                    block_bytes,
                };
                return self.merge_hole(hole, out, limit).await;
            }
            event => out.push(event),
        }
        Ok(None)
    }

    /// Appends what comes behind the last event. Whether that was all.
    pub(crate) async fn merge_rest(
        &mut self,
        out: &mut Vec<Event>,
        limit: usize,
    ) -> Result<bool, StreamError> {
        self.merge_before((u64::MAX, true, u64::MAX), out, limit)
            .await
    }

    fn take(&mut self, object: u64, end: u64) {
        for cursor in [&mut self.redact, &mut self.lacking] {
            if cursor.front.is_some_and(|front| front.object == object) {
                cursor.take_until(end);
            }
        }
    }

    /// A hole: a part of it may be left out, which is then said instead.
    async fn merge_hole(
        &mut self,
        hole: Range,
        out: &mut Vec<Event>,
        limit: usize,
    ) -> Result<Option<Event>, StreamError> {
        let mut at = hole.first;
        while at < hole.end {
            if out.len() >= limit {
                let rest = Range { first: at, ..hole };
                return Ok(Some(free(rest)));
            }
            let redacted = self.redact.front().await?;
            let lacking = self.lacking.front().await?;
            let mut end = hole.end;
            for range in [redacted, lacking].into_iter().flatten() {
                end = end.min(boundary(range, hole.object, at));
            }
            let part = Range {
                first: at,
                end,
                ..hole
            };
            match (
                has(redacted, hole.object, at),
                has(lacking, hole.object, at),
            ) {
                (true, true) => {}
                (true, false) => out.push(redact(part)),
                // The receiver has no data there either way.
                (false, _) => out.push(free(part)),
            }
            self.take(hole.object, end);
            at = end;
        }
        Ok(None)
    }

    /// Appends what the lists have before a place; whether that was all.
    async fn merge_before(
        &mut self,
        key: Key,
        out: &mut Vec<Event>,
        limit: usize,
    ) -> Result<bool, StreamError> {
        loop {
            let redacted = self.redact.front().await?;
            let lacking = self.lacking.front().await?;
            let starts = [redacted, lacking].into_iter().flatten();
            let Some(start) = starts.map(|range| (range.object, range.first)).min() else {
                return Ok(true);
            };
            if (start.0, true, start.1) >= key {
                return Ok(true);
            }
            if out.len() >= limit {
                return Ok(false);
            }
            let (object, first) = start;
            let mut end = match key {
                (of, true, block) if of == object => block,
                _ => u64::MAX,
            };
            for range in [redacted, lacking].into_iter().flatten() {
                end = end.min(boundary(range, object, first));
            }
            let is_redacted = has(redacted, object, first);
            match (is_redacted, has(lacking, object, first)) {
                (true, true) => {}
                (true, false) => {
                    let block_bytes = redacted.map_or(0, |range| range.block_bytes);
                    out.push(redact(Range {
                        object,
                        first,
                        end,
                        block_bytes,
                    }));
                }
                _ => end = self.fill_in(object, first, end, out, limit).await?,
            }
            self.take(object, end);
        }
    }

    /// Appends what blocks hold that the receiver lacks; up to which one.
    async fn fill_in(
        &mut self,
        object: u64,
        first: u64,
        end: u64,
        out: &mut Vec<Event>,
        limit: usize,
    ) -> Result<u64, StreamError> {
        let held = match self.dataset.objset().hold(ObjectId::new(object)).await {
            Ok(held) => held,
            // It is gone, which was told where it was met.
            Err(error) if error.is_not_found() => return Ok(end),
            Err(error) => return Err(error.into()),
        };
        let info = held.info();
        let block_bytes = u64::from(info.data_block_bytes);
        let last = info.max_block_id.saturating_add(1).min(end);
        for block in first..last {
            if out.len() >= limit {
                return Ok(block);
            }
            let pointer = held.block_pointer(block).await?;
            if pointer.is_hole() {
                out.push(free(Range {
                    object,
                    first: block,
                    end: block + 1,
                    block_bytes,
                }));
                continue;
            }
            out.push(Event::Data {
                object,
                block,
                pointer,
                block_bytes,
                object_type: info.object_type,
            });
        }
        Ok(end)
    }
}

fn has(range: Option<Range>, object: u64, block: u64) -> bool {
    range.is_some_and(|range| range.object == object && (range.first..range.end).contains(&block))
}

/// The first block behind `at` where a range begins or ends.
fn boundary(range: Range, object: u64, at: u64) -> u64 {
    match range.object == object {
        true if range.first > at => range.first,
        true if range.end > at => range.end,
        _ => u64::MAX,
    }
}

/// Where an event is. Spill blocks come behind an object's other blocks.
fn key(event: &Event) -> Key {
    match event {
        Event::Object { object, .. } => (*object, false, 0),
        Event::ObjectRange { first, .. } | Event::FreeObjects { first, .. } => (*first, false, 0),
        Event::Data { object, block, .. } => (*object, true, *block),
        // One that is told with its object.
        Event::Spill {
            object,
            is_old: true,
            ..
        } => (*object, false, 0),
        Event::Spill { object, .. } => (*object, true, u64::MAX),
        Event::Hole {
            object,
            offset_bytes,
            block_bytes,
            ..
        } => (*object, true, offset_bytes / (*block_bytes).max(1)),
        Event::Redact { object, .. } => (*object, true, 0),
    }
}

fn bytes_of(range: Range) -> (u64, u64) {
    let offset = range.first.saturating_mul(range.block_bytes);
    let end = range.end.saturating_mul(range.block_bytes);
    (offset, end - offset)
}

fn free(range: Range) -> Event {
    let (offset_bytes, length_bytes) = bytes_of(range);
    Event::Hole {
        object: range.object,
        offset_bytes,
        length_bytes,
        block_bytes: range.block_bytes,
    }
}

fn redact(range: Range) -> Event {
    let (offset_bytes, length_bytes) = bytes_of(range);
    Event::Redact {
        object: range.object,
        offset_bytes,
        length_bytes,
    }
}
