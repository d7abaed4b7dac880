//! Procedures that change nothing: GETATTR, LOOKUP, ACCESS, READLINK, READ, FSSTAT, FSINFO,
//! PATHCONF.

use access::{MAY_EXECUTE, MAY_READ, MAY_WRITE};
use bytes::Bytes;
use filesystem::FileKind;

use super::request::{LISTING_BYTES_MAX, TRANSFER_BYTES_MAX};
use super::types::{write_after, write_attributes};
use super::{after, failed, succeeded};
use crate::handle::Place;
use crate::object::{Error, File, Object};
use crate::share::Entered;
use crate::xdr::Writer;

/// Bits of ACCESS (section 3.3.4).
pub(crate) const READ: u32 = 0x01;
pub(crate) const LOOKUP: u32 = 0x02;
pub(crate) const MODIFY: u32 = 0x04;
pub(crate) const EXTEND: u32 = 0x08;
pub(crate) const DELETE: u32 = 0x10;
pub(crate) const EXECUTE: u32 = 0x20;

/// Most links to a file that are told (`ZFS_LINK_MAX` is more).
pub(crate) const LINKS_MAX: u32 = i32::MAX as u32;

pub(super) async fn attributes(entered: &Entered, place: Place) -> Result<Writer, Error> {
    let object = entered.resolve(place).await?;
    let told = entered.tell(&object).await?;
    let mut answer = succeeded();
    write_attributes(&mut answer, &told);
    Ok(answer)
}

pub(super) async fn lookup(entered: &Entered, place: Place, name: &[u8]) -> Result<Writer, Error> {
    let directory = entered.resolve(place).await?;
    let found = entered.lookup(&directory, name).await;
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            let mut answer = failed((&error).into(), |_| {});
            after(entered, &directory, &mut answer).await;
            return Ok(answer);
        }
    };
    let mut answer = succeeded();
    entered.handle(&found).write(&mut answer);
    after(entered, &found, &mut answer).await;
    after(entered, &directory, &mut answer).await;
    Ok(answer)
}

pub(super) async fn access(entered: &Entered, place: Place, wanted: u32) -> Result<Writer, Error> {
    let object = entered.resolve(place).await?;
    let granted = match &object {
        Object::Control(_) => READ | LOOKUP | EXECUTE,
        Object::File(file) => granted(entered, file).await?,
    };
    let mut answer = succeeded();
    after(entered, &object, &mut answer).await;
    answer.u32(granted & wanted);
    Ok(answer)
}

pub(crate) async fn granted(entered: &Entered, file: &File) -> Result<u32, Error> {
    let attributes = &file.attributes;
    let is_directory = attributes.kind == FileKind::Directory;
    let takes_changes =
        !entered.is_read_only && file.snapshot.is_none() && !file.filesystem.is_read_only();
    let mut granted = 0;
    if entered.may(attributes, file, MAY_READ).await? {
        granted |= READ;
    }
    if entered.may(attributes, file, MAY_EXECUTE).await? {
        granted |= if is_directory { LOOKUP } else { EXECUTE };
    }
    let writes = match is_directory {
        // Entries are made and removed by who may look them up.
        true => MAY_WRITE | MAY_EXECUTE,
        false => MAY_WRITE,
    };
    // Devices and the like are the client's, whatever the share takes.
    let is_content = is_directory || matches!(attributes.kind, FileKind::Regular);
    if (takes_changes || !is_content) && entered.may(attributes, file, writes).await? {
        granted |= MODIFY | EXTEND;
        granted |= if is_directory { DELETE } else { 0 };
    }
    Ok(granted)
}

pub(super) async fn read_link(entered: &Entered, place: Place) -> Result<Writer, Error> {
    let file = entered.file(place).await?;
    let target = file.filesystem.read_link(file.ino()).await?;
    let told = entered.told(file.snapshot, file.now().await?);
    let mut answer = succeeded();
    write_after(&mut answer, Some(&told));
    answer.opaque(&target);
    Ok(answer)
}

pub(super) async fn read(
    entered: &Entered,
    place: Place,
    offset_bytes: u64,
    count_bytes: u32,
) -> Result<Writer, Error> {
    let file = entered.file(place).await?;
    entered.check_read(&file).await?;
    let (ino, count) = (file.ino(), count_bytes as usize);
    let pieces = match file.filesystem.try_read(ino, offset_bytes, count) {
        Some(pieces) => pieces,
        None => file.filesystem.read(ino, offset_bytes, count).await?,
    };
    let pieces = unpinned(pieces, file.attributes.block_bytes);
    let length: usize = pieces.iter().map(Bytes::len).sum();
    let now = file.now().await?;
    entered.counted.read(length as u64);
    let mut answer = succeeded();
    let told = entered.told(file.snapshot, now);
    write_after(&mut answer, Some(&told));
    // No more than `count_bytes`.
    answer.u32(length as u32);
    answer.bool(offset_bytes.saturating_add(length as u64) >= now.size_bytes);
    answer.pieces(pieces);
    Ok(answer)
}

/// Pieces of what was read as they may wait to be sent. One that is small against the block it is
/// of is copied: while it waits it would hold the whole block in memory, and is paid for by its own
/// length.
pub(crate) fn unpinned(mut pieces: Vec<Bytes>, block_bytes: u32) -> Vec<Bytes> {
    const PART_MIN: usize = 4;
    for piece in &mut pieces {
        if piece.len().saturating_mul(PART_MIN) < block_bytes as usize {
            *piece = Bytes::copy_from_slice(piece);
        }
    }
    pieces
}

/// The filesystem that an object is of, and its number there.
pub(crate) fn filesystem_of(
    entered: &Entered,
    object: &Object,
) -> (std::sync::Arc<filesystem::Filesystem>, u64) {
    match object {
        Object::File(file) => (file.filesystem.clone(), file.ino()),
        Object::Control(_) => (entered.filesystem.clone(), entered.filesystem.root()),
    }
}

pub(super) async fn statistics(entered: &Entered, place: Place) -> Result<Writer, Error> {
    let object = entered.resolve(place).await?;
    let (filesystem, ino) = filesystem_of(entered, &object);
    let found = filesystem.statistics_at(ino).await?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.block_bytes.into());
    let mut answer = succeeded();
    after(entered, &object, &mut answer).await;
    let free = bytes(found.blocks_free);
    for word in [bytes(found.blocks), free, free] {
        answer.u64(word);
    }
    for word in [found.files, found.files_free, found.files_free] {
        answer.u64(word);
    }
    // It may change at any moment.
    answer.u32(0);
    Ok(answer)
}

pub(super) async fn information(entered: &Entered, place: Place) -> Result<Writer, Error> {
    /// Hard links, symbolic links, the same for all files, times can be set (section 3.3.19).
    const PROPERTIES: u32 = 0x01 | 0x02 | 0x08 | 0x10;
    const MULTIPLE_BYTES: u32 = 4096;
    let object = entered.resolve(place).await?;
    let mut answer = succeeded();
    after(entered, &object, &mut answer).await;
    // Most, best, and a multiple that is good, for reading and for writing.
    for _ in 0..2 {
        answer.u32(TRANSFER_BYTES_MAX);
        answer.u32(TRANSFER_BYTES_MAX);
        answer.u32(MULTIPLE_BYTES);
    }
    answer.u32(LISTING_BYTES_MAX);
    answer.u64(i64::MAX as u64);
    // Times are of nanoseconds.
    answer.u32(0);
    answer.u32(1);
    answer.u32(PROPERTIES);
    Ok(answer)
}

pub(super) async fn path_limits(entered: &Entered, place: Place) -> Result<Writer, Error> {
    let object = entered.resolve(place).await?;
    let (filesystem, _) = filesystem_of(entered, &object);
    let found = filesystem.statistics().await?;
    let is_exact = filesystem.compares_names_exactly();
    let mut answer = succeeded();
    after(entered, &object, &mut answer).await;
    answer.u32(LINKS_MAX);
    answer.u32(found.name_bytes_max);
    // Names are not cut, only root gives files away, case may not count, and is kept.
    for word in [true, true, !is_exact, true] {
        answer.bool(word);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_parts_of_blocks_do_not_hold_the_blocks() {
        let block = Bytes::from(vec![7; 128 << 10]);
        let parts = [0..1, 0..4096, 0..(32 << 10), 5..(128 << 10)];
        let pieces = unpinned(
            parts.clone().map(|part| block.slice(part)).into(),
            128 << 10,
        );
        for (part, piece) in parts.into_iter().zip(pieces) {
            assert_eq!(piece, block.slice(part.clone()));
            let is_of_block = piece.as_ptr() == block[part.clone()].as_ptr();
            assert_eq!(is_of_block, part.len() >= 32 << 10, "{part:?}");
        }
    }
}
