//! The file of a series: a page that says whose it is, then its rings.
//!
//! The page, little-endian: a magic number (8 bytes), the checksum of all the rest of the page
//! (u32, CRC-32C), what the layout of a point is (u32), the length of what follows (u32), and that:
//! the shape's name, the key and the label, as JSON.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::point::{BUCKETS, Column, Point, Shape};
use crate::ring::Span;

/// Bytes of the first page.
const PAGE_BYTES: usize = 4096;
/// Where the JSON begins in it.
const JSON_AT: usize = 20;
const MAGIC: [u8; 8] = *b"MPSeries";
/// Changes with the meaning of what is in a file.
const VERSION: u32 = 1;

/// A file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}; figures over time are not kept until that works", path.display())]
pub struct SeriesError {
    /// The file, or the directory.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

impl SeriesError {
    pub(crate) fn new(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { path, source }
    }
}

/// What the first page says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) shape: String,
    pub(crate) key: Vec<String>,
    pub(crate) label: String,
}

/// What a point of a shape looks like in this version, as a number that is another one when it
/// looks different.
fn layout(shape: &Shape) -> u32 {
    let mut text = format!("{VERSION} {BUCKETS} {}", shape.histograms);
    for column in shape.columns {
        text.push(match column {
            Column::Amount => 'a',
            Column::Level => 'l',
        });
    }
    for span in Span::ALL {
        text.push_str(&format!(" {}*{}", span.step_s(), span.points()));
    }
    crc32c::crc32c(text.as_bytes())
}

/// Bytes of the file of a series: whole blocks of a filesystem.
pub(crate) fn size_bytes(shape: &Shape) -> u64 {
    let points: u64 = Span::ALL.iter().map(|span| u64::from(span.points())).sum();
    let rings = points * shape.point_bytes() as u64;
    (PAGE_BYTES as u64 + rings).next_multiple_of(PAGE_BYTES as u64)
}

/// Where the point of a period is.
fn place(shape: &Shape, span: Span, slot: u32) -> u64 {
    let before = span.points_before() + u64::from(slot);
    PAGE_BYTES as u64 + before * shape.point_bytes() as u64
}

/// The first page; none where the key and the label are too long for it.
pub(crate) fn page(shape: &Shape, head: &Head) -> Option<Vec<u8>> {
    let json = serde_json::to_vec(head).ok()?;
    let length = u32::try_from(json.len()).ok()?;
    let mut page = Vec::new();
    page.extend(MAGIC);
    page.extend([0; 4]);
    page.extend(layout(shape).to_le_bytes());
    page.extend(length.to_le_bytes());
    page.extend(json);
    if page.len() > PAGE_BYTES {
        return None;
    }
    page.resize(PAGE_BYTES, 0);
    let sum = crc32c::crc32c(&page[12..]);
    page[8..12].copy_from_slice(&sum.to_le_bytes());
    Some(page)
}

/// What the first page of a file says, and its shape; none where it is not one of these.
pub(crate) fn read_head(
    path: &Path,
    shapes: &'static [Shape],
) -> io::Result<Option<(&'static Shape, Head)>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let mut page = vec![0; PAGE_BYTES];
    match file.read_exact_at(&mut page, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    Ok(parse(&page, shapes).filter(|(shape, _)| size_bytes(shape) == bytes))
}

fn parse(page: &[u8], shapes: &'static [Shape]) -> Option<(&'static Shape, Head)> {
    let word = |at: usize| Some(u32::from_le_bytes(*page.get(at..)?.first_chunk()?));
    if !page.starts_with(&MAGIC) || word(8)? != crc32c::crc32c(page.get(12..)?) {
        return None;
    }
    let json = page.get(JSON_AT..)?.get(..word(16)? as usize)?;
    let head: Head = serde_json::from_slice(json).ok()?;
    let shape = shapes.iter().find(|shape| shape.name == head.shape)?;
    (word(12)? == layout(shape)).then_some((shape, head))
}

/// Makes the file of a series, of its whole size.
pub(crate) fn create(path: &Path, shape: &Shape, page: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.set_len(size_bytes(shape))?;
    file.write_all_at(page, 0)
}

/// Writes the first page anew.
pub(crate) fn write_page(path: &Path, page: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(page, 0)
}

/// Writes points to their places.
pub(crate) fn write(path: &Path, shape: &Shape, points: &[(Span, Point)]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    // The coarsest first: what they are made of is there as long as they are not.
    for span in Span::ALL.into_iter().rev() {
        for (_, point) in points.iter().filter(|(of, _)| *of == span) {
            let at = place(shape, span, span.slot(point.period));
            file.write_all_at(&point.encode(), at)?;
        }
    }
    Ok(())
}

/// Reads the points of a ring from one period to another one, both included, as far as there are
/// any.
pub(crate) fn read(
    path: &Path,
    shape: &Shape,
    span: Span,
    (from, to): (u32, u32),
) -> io::Result<Vec<Point>> {
    let file = File::open(path)?;
    let count = to.saturating_sub(from).saturating_add(1);
    let (first, count) = match count >= span.points() {
        true => (0, span.points()),
        false => (span.slot(from), count),
    };
    let until_end = count.min(span.points() - first);
    let mut points = Vec::new();
    for (slot, count) in [(first, until_end), (0, count - until_end)] {
        let mut bytes = vec![0; count as usize * shape.point_bytes()];
        file.read_exact_at(&mut bytes, place(shape, span, slot))?;
        let found = bytes
            .chunks_exact(shape.point_bytes())
            .filter_map(|bytes| Point::decode(shape, bytes))
            .filter(|point| (from..=to).contains(&point.period));
        points.extend(found);
    }
    Ok(points)
}
