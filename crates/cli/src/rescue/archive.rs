//! Writing a tar archive: POSIX `pax` headers for everything that the old header has no room for.
//!
//! Times have nanoseconds, names any length and any bytes, extended attributes are
//! `SCHILY.xattr.*`, files with holes are in GNU tar's sparse format 1.0 (GNU tar manual, "Storing
//! Sparse Files"): GNU tar and bsdtar restore all of it. Whether a file is damaged must be known
//! before its header is written, so its content is read once to look, and again to write unless it
//! is small.

use std::io::Write;
use std::ops::Range;

use anyhow::Context;
use bytes::Bytes;
use filesystem::{Attributes, FileKind, SalvagedXattrs, Time};
use object::Piece;
use tar::{EntryType, Header};

use super::progress::Progress;
use super::sink::{Content, Item, Outcome, Problems, components, damaged_name};

/// Content up to this size is read once and kept, in bytes.
const KEPT_BYTES_MAX: u64 = 8 << 20;
/// Holes of less than this in all are written as zeros, in bytes.
const HOLES_BYTES_MIN: u64 = 64 << 10;
/// Size of tar's blocks in bytes.
const BLOCK_BYTES: usize = 512;
/// Longest name in the old header, in bytes.
const NAME_BYTES_MAX: usize = 100;
/// Largest size in the old header.
const SIZE_MAX: u64 = 0o777_7777_7777;
/// Largest owner in the old header.
const ID_MAX: u32 = 0o777_7777;

/// An archive that is being written.
pub struct Archive {
    out: tar::Builder<Box<dyn Write + Send>>,
    omit_damaged: bool,
    volume_time: Time,
}

/// What a file's content will look like in the archive.
struct Plan {
    /// Ranges with data, in order.
    data: Vec<Range<u64>>,
    /// The data themselves, when it is little.
    kept: Option<Vec<(u64, Vec<Bytes>)>>,
}

type Extension = (String, Vec<u8>);

impl Archive {
    /// Writes to `out`.
    pub fn new(out: Box<dyn Write + Send>, omit_damaged: bool, volume_time: Time) -> Self {
        Self {
            out: tar::Builder::new(out),
            omit_damaged,
            volume_time,
        }
    }

    pub(super) fn directory(&mut self, item: &Item<'_>, xattrs: &SalvagedXattrs) -> Problems {
        let mut path = join(item.dataset, item.path);
        path.push(b'/');
        let mut problems = Vec::new();
        let more = extended(xattrs, &mut problems);
        self.header(EntryType::Directory, &path, &item.attributes, 0, &[], more)?;
        Ok(problems)
    }

    pub(super) fn hard_link(&mut self, item: &Item<'_>, first: &[Vec<u8>]) -> Problems {
        let path = join(item.dataset, item.path);
        let target = join(item.dataset, first);
        self.header(
            EntryType::Link,
            &path,
            &item.attributes,
            0,
            &target,
            Vec::new(),
        )?;
        Ok(Vec::new())
    }

    pub(super) fn symlink(
        &mut self,
        item: &Item<'_>,
        xattrs: &SalvagedXattrs,
        target: &[u8],
    ) -> Problems {
        let path = join(item.dataset, item.path);
        let mut problems = Vec::new();
        let more = extended(xattrs, &mut problems);
        self.header(EntryType::Symlink, &path, &item.attributes, 0, target, more)?;
        Ok(problems)
    }

    pub(super) fn special(&mut self, item: &Item<'_>, xattrs: &SalvagedXattrs) -> Problems {
        let kind = match item.attributes.kind {
            FileKind::Fifo => EntryType::Fifo,
            FileKind::CharDevice => EntryType::Char,
            FileKind::BlockDevice => EntryType::Block,
            _ => return Ok(vec!["archives cannot hold sockets".into()]),
        };
        let path = join(item.dataset, item.path);
        let mut problems = Vec::new();
        let more = extended(xattrs, &mut problems);
        self.header(kind, &path, &item.attributes, 0, &[], more)?;
        Ok(problems)
    }

    pub(super) async fn file(
        &mut self,
        item: &Item<'_>,
        xattrs: &SalvagedXattrs,
        content: &Content<'_>,
        progress: &Progress,
    ) -> anyhow::Result<Outcome> {
        let path = join(item.dataset, item.path);
        self.content(path, &item.attributes, xattrs, content, progress)
            .await
    }

    pub(super) async fn volume(
        &mut self,
        dataset: &str,
        content: &Content<'_>,
        progress: &Progress,
    ) -> anyhow::Result<Outcome> {
        let attributes = content.volume_attributes(0, 0, self.volume_time);
        let path = join(dataset, &[]);
        let xattrs = SalvagedXattrs::default();
        self.content(path, &attributes, &xattrs, content, progress)
            .await
    }

    async fn content(
        &mut self,
        mut path: Vec<u8>,
        attributes: &Attributes,
        xattrs: &SalvagedXattrs,
        content: &Content<'_>,
        progress: &Progress,
    ) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome::default();
        let Some(plan) = plan(content, progress, &mut outcome).await else {
            return Ok(outcome);
        };
        outcome.is_done = true;
        if !outcome.lost.is_empty() {
            if self.omit_damaged {
                return Ok(outcome);
            }
            let start = path
                .iter()
                .rposition(|byte| *byte == b'/')
                .map_or(0, |at| at + 1);
            let name = damaged_name(&path[start..]);
            path.truncate(start);
            path.extend_from_slice(&name);
            outcome.saved_as = Some(String::from_utf8_lossy(&name).into_owned());
            outcome.stored_name = Some(name);
        }
        let more = extended(xattrs, &mut outcome.not_stored);
        let size = content.size_bytes;
        let in_data: u64 = plan.data.iter().map(|range| range.end - range.start).sum();
        if size.saturating_sub(in_data) < HOLES_BYTES_MIN {
            self.header(EntryType::Regular, &path, attributes, size, &[], more)?;
            self.data(&plan, content, true, &mut outcome).await?;
            self.pad(size)?;
            return Ok(outcome);
        }
        let map = sparse_map(&plan.data, size);
        let mut more = more;
        let mut add = |key: &str, value: &[u8]| more.push((key.to_owned(), value.to_vec()));
        add("GNU.sparse.major", b"1");
        add("GNU.sparse.minor", b"0");
        add("GNU.sparse.name", &path);
        add("GNU.sparse.realsize", size.to_string().as_bytes());
        let stored = map.len() as u64 + in_data;
        self.header(EntryType::Regular, &path, attributes, stored, &[], more)?;
        self.write(&map)?;
        self.data(&plan, content, false, &mut outcome).await?;
        self.pad(in_data)?;
        Ok(outcome)
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.out
            .get_mut()
            .write_all(bytes)
            .context("writing the archive")
    }

    fn zeros(&mut self, mut count: u64) -> anyhow::Result<()> {
        let zeros = [0u8; 64 << 10];
        while count > 0 {
            let now = count.min(zeros.len() as u64);
            self.write(&zeros[..now as usize])?;
            count -= now;
        }
        Ok(())
    }

    fn pad(&mut self, length: u64) -> anyhow::Result<()> {
        let over = length % BLOCK_BYTES as u64;
        if over == 0 {
            return Ok(());
        }
        self.zeros(BLOCK_BYTES as u64 - over)
    }

    /// Writes the data that was planned; `whole`: holes too.
    async fn data(
        &mut self,
        plan: &Plan,
        content: &Content<'_>,
        whole: bool,
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let mut at = 0;
        for range in &plan.data {
            if whole {
                self.zeros(range.start - at)?;
            }
            self.range(plan, range, content, outcome).await?;
            at = range.end;
        }
        if whole {
            self.zeros(content.size_bytes - at)?;
        }
        Ok(())
    }

    async fn range(
        &mut self,
        plan: &Plan,
        range: &Range<u64>,
        content: &Content<'_>,
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        if let Some(kept) = &plan.kept {
            for (start, data) in kept {
                if range.contains(start) {
                    for part in data {
                        self.write(part)?;
                    }
                }
            }
            return Ok(());
        }
        let mut at = range.start;
        while at < range.end {
            match content.object.next_piece(at, range.end).await {
                Some(Piece::Data { start_bytes, data }) => {
                    self.zeros(start_bytes - at)?;
                    at = start_bytes;
                    for part in data {
                        self.write(&part)?;
                        at += part.len() as u64;
                    }
                }
                // It could be read a moment ago.
                Some(Piece::Lost { range, error }) => {
                    self.zeros(range.end - at)?;
                    at = range.end;
                    outcome.lose(range, &error);
                }
                None => {
                    self.zeros(range.end - at)?;
                    at = range.end;
                }
            }
        }
        Ok(())
    }

    fn header(
        &mut self,
        kind: EntryType,
        path: &[u8],
        attributes: &Attributes,
        size: u64,
        target: &[u8],
        mut more: Vec<Extension>,
    ) -> anyhow::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(attributes.mode);
        let mut add = |key: &str, value: &[u8]| more.push((key.to_owned(), value.to_vec()));
        if path.len() > NAME_BYTES_MAX || !path.is_ascii() {
            add("path", path);
        }
        if target.len() > NAME_BYTES_MAX || !target.is_ascii() {
            add("linkpath", target);
        }
        if size > SIZE_MAX {
            add("size", size.to_string().as_bytes());
        }
        for (key, id) in [("uid", attributes.uid), ("gid", attributes.gid)] {
            if id > ID_MAX {
                add(key, id.to_string().as_bytes());
            }
        }
        add("mtime", decimal(attributes.mtime).as_bytes());
        add("atime", decimal(attributes.atime).as_bytes());
        header.set_size(size.min(SIZE_MAX));
        header.set_uid(attributes.uid.min(ID_MAX).into());
        header.set_gid(attributes.gid.min(ID_MAX).into());
        header.set_mtime(
            u64::try_from(attributes.mtime.seconds)
                .unwrap_or(0)
                .min(SIZE_MAX),
        );
        if attributes.kind.is_device() {
            header.set_device_major(attributes.rdev.0)?;
            header.set_device_minor(attributes.rdev.1)?;
        }
        let fields = header.as_old_mut();
        let cut = &path[path.len().saturating_sub(NAME_BYTES_MAX)..];
        fields.name[..cut.len()].copy_from_slice(cut);
        let cut = &target[..target.len().min(NAME_BYTES_MAX)];
        fields.linkname[..cut.len()].copy_from_slice(cut);
        header.set_cksum();
        let more = more.iter().map(|(key, value)| (key.as_str(), &value[..]));
        self.out
            .append_pax_extensions(more)
            .context("writing the archive")?;
        self.write(header.as_bytes())
    }

    pub(super) fn finish(mut self) -> anyhow::Result<Vec<String>> {
        self.out.finish().context("writing the archive's end")?;
        self.out.get_mut().flush().context("writing the archive")?;
        Ok(Vec::new())
    }
}

fn join(dataset: &str, path: &[Vec<u8>]) -> Vec<u8> {
    let mut parts = components(dataset);
    parts.extend_from_slice(path);
    parts.join(&b'/')
}

fn extended(xattrs: &SalvagedXattrs, problems: &mut Vec<String>) -> Vec<Extension> {
    let mut out = Vec::new();
    for (name, value) in &xattrs.list {
        match std::str::from_utf8(name) {
            Ok(name) if !name.contains(['=', '\n']) => {
                out.push((format!("SCHILY.xattr.{name}"), value.to_vec()));
            }
            _ => problems.push(format!(
                "archives cannot hold the extended attribute {}",
                String::from_utf8_lossy(name)
            )),
        }
    }
    out
}

/// Seconds with nine decimal places.
fn decimal(time: Time) -> String {
    let ns = time.as_ns();
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    format!("{sign}{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// The map of data that precedes it: numbers, one a line, in whole blocks.
fn sparse_map(data: &[Range<u64>], size: u64) -> Vec<u8> {
    let mut ranges: Vec<Range<u64>> = data.to_vec();
    if ranges.last().is_none_or(|last| last.end < size) {
        ranges.push(size..size);
    }
    let mut out = format!("{}\n", ranges.len());
    for range in ranges {
        out.push_str(&format!("{}\n{}\n", range.start, range.end - range.start));
    }
    let mut out = out.into_bytes();
    out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
    out
}

/// Reads everything once. `None` when it is to stop.
async fn plan(content: &Content<'_>, progress: &Progress, outcome: &mut Outcome) -> Option<Plan> {
    let mut plan = Plan {
        data: Vec::new(),
        kept: Some(Vec::new()),
    };
    let mut at = 0;
    while let Some(piece) = content.object.next_piece(at, content.size_bytes).await {
        if progress.is_stopped() {
            return None;
        }
        match piece {
            Piece::Data { start_bytes, data } => {
                let length: u64 = data.iter().map(|part| part.len() as u64).sum();
                at = start_bytes + length;
                outcome.bytes += length;
                progress.bytes(length);
                match plan.data.last_mut() {
                    Some(last) if last.end == start_bytes => last.end = at,
                    _ => plan.data.push(start_bytes..at),
                }
                if outcome.bytes > KEPT_BYTES_MAX {
                    plan.kept = None;
                }
                if let Some(kept) = &mut plan.kept {
                    kept.push((start_bytes, data));
                }
            }
            Piece::Lost { range, error } => {
                at = range.end;
                outcome.lose(range, &error);
            }
        }
    }
    Some(plan)
}
