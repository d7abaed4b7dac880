//! READDIR (RFC 8881 section 18.23): cookies are those of version 3.

use std::sync::Arc;

use access::ControlNode;
use access::MAY_READ;
use filesystem::FileKind;

use super::attributes::{self, Facts};
use super::compound::{Done, Running};
use super::exports;
use super::junctions::{is_junction, junctions};
use super::types::{Bits, Status};
use super::xattrs;
use crate::handle::Place;
use crate::object::{File, Object};
use crate::share::Entered;
use crate::v3::listing::{AFTER_PARENT, AFTER_ZFS, COOKIE_MAX, control_entries};
use crate::xdr::Writer;

/// Least bytes that an entry with attributes needs.
const ENTRY_BYTES: usize = 64;

/// A list that is being written.
struct List {
    told: Writer,
    limit_bytes: usize,
    count: usize,
    wanted: Bits,
}

impl List {
    /// Words that end a list: no more entries, and whether that is the end.
    const END_BYTES: usize = 8;

    /// Adds an entry, with its attributes or why there are none; false if it does not fit.
    fn add(
        &mut self,
        cookie: u64,
        name: &[u8],
        number: u64,
        facts: Result<&Facts, Status>,
    ) -> bool {
        let before = self.told.len();
        self.told.bool(true);
        self.told.u64(cookie);
        self.told.opaque(name);
        match facts {
            Ok(facts) => attributes::write(&mut self.told, self.wanted, facts),
            Err(why) => attributes::write_error(&mut self.told, self.wanted, why, number),
        }
        if self.told.len() + Self::END_BYTES > self.limit_bytes {
            self.told.truncate(before);
            return false;
        }
        self.count += 1;
        true
    }

    /// How many entries may still fit, at most.
    fn room(&self) -> usize {
        let left = self.limit_bytes.saturating_sub(self.told.len());
        (left / ENTRY_BYTES).clamp(8, 512)
    }

    fn end(mut self, is_end: bool) -> Done {
        if self.count == 0 && !is_end {
            return Err(Status::TOOSMALL.into());
        }
        self.told.bool(false);
        self.told.bool(is_end);
        Ok(self.told)
    }
}

impl Running<'_> {
    pub(super) async fn read_directory(
        &mut self,
        cookie: u64,
        count_bytes: u32,
        wanted: Bits,
    ) -> Done {
        // One and two are not used.
        if cookie > COOKIE_MAX || matches!(cookie, 1 | 2) {
            return Err(Status::BAD_COOKIE.into());
        }
        let handle = self.handle()?;
        let mut told = Writer::new();
        // The verifier: cookies stay good.
        told.u64(0);
        let list = List {
            told,
            limit_bytes: count_bytes.min(self.room_bytes.saturating_sub(64)) as usize,
            count: 0,
            wanted,
        };
        if let Place::Export { node } = handle.place {
            return self.list_exports(node, cookie, list).await;
        }
        let entered = self.enter().await?;
        let object = entered.resolve(handle.place).await?;
        match object {
            Object::File(file) => {
                if file.attributes.kind != FileKind::Directory {
                    return Err(Status::NOTDIR.into());
                }
                entered.check(&file.attributes, &file, MAY_READ).await?;
                self.list_file(&entered, &file, cookie, list).await
            }
            Object::Control(node) => self.list_control(&entered, node, cookie, list).await,
        }
    }

    async fn list_file(
        &mut self,
        entered: &Arc<Entered>,
        file: &File,
        mut cookie: u64,
        mut list: List,
    ) -> Done {
        if cookie == AFTER_ZFS {
            return list.end(true);
        }
        let statistics = match attributes::wants_statistics(list.wanted) {
            true => Some(file.filesystem.statistics_at(file.ino()).await?),
            false => None,
        };
        let junctions = junctions(self.shares, entered, file).await?;
        let is_case_exact = file.filesystem.compares_names_exactly();
        let has_xattrs = xattrs::are_there(&file.filesystem, list.wanted)?;
        loop {
            let entries = file
                .filesystem
                .read_directory_with_attributes(file.ino(), cookie, list.room())
                .await?;
            if entries.is_empty() {
                break;
            }
            for (entry, found) in entries {
                cookie = entry.next_cookie;
                if matches!(&entry.name[..], b"." | b"..") {
                    continue;
                }
                if is_junction(&junctions, &entry.name) {
                    // What is there is asked for by name, which enters its share.
                    let why = Err(Status::DELAY);
                    if !list.add(cookie, &entry.name, entry.ino, why) {
                        return list.end(false);
                    }
                    continue;
                }
                let facts = found.map(|attributes| Facts {
                    told: entered.told(file.snapshot, attributes),
                    handle: entered.handle_of(file.snapshot, &attributes).encode(),
                    mounted_on: None,
                    statistics,
                    is_case_exact,
                    has_xattrs,
                    minor: self.minor,
                });
                let facts = facts.as_ref().ok_or(Status::IO);
                if !list.add(cookie, &entry.name, entry.ino, facts) {
                    return list.end(false);
                }
            }
        }
        if entered.lists_control(file) {
            let control = Object::Control(ControlNode::Zfs);
            let facts = self.facts(entered, &control, list.wanted).await?;
            let number = ControlNode::Zfs.number();
            if !list.add(AFTER_ZFS, b".zfs", number, Ok(&facts)) {
                return list.end(false);
            }
        }
        list.end(true)
    }

    async fn list_control(
        &mut self,
        entered: &Arc<Entered>,
        node: ControlNode,
        cookie: u64,
        mut list: List,
    ) -> Done {
        for (number, name, next) in control_entries(entered, node).await? {
            if next <= cookie.max(AFTER_PARENT) {
                continue;
            }
            let below = match (node, &name[..]) {
                (ControlNode::Zfs, "shares") => Some(ControlNode::Shares),
                (ControlNode::Zfs, "snapshot") => Some(ControlNode::Snapshots),
                // Snapshots are asked for by name, which opens them.
                _ => None,
            };
            let facts = match below {
                Some(node) => {
                    let node = Object::Control(node);
                    Ok(self.facts(entered, &node, list.wanted).await?)
                }
                None => Err(Status::DELAY),
            };
            let facts = facts.as_ref().map_err(|status| *status);
            if !list.add(next, name.as_bytes(), number, facts) {
                return list.end(false);
            }
        }
        list.end(true)
    }

    async fn list_exports(&mut self, node: u64, cookie: u64, mut list: List) -> Done {
        let path = exports::path_of(self.shares, node)?;
        let children = exports::children(self.shares, &path);
        for (cookie_of, (name, share)) in (AFTER_PARENT + 1..).zip(children) {
            if cookie_of <= cookie {
                continue;
            }
            let mut below = path.clone();
            below.push(name);
            let number = exports::number_of(&below);
            let facts = match share {
                None => self.export_facts(number),
                Some(_) => Err(Status::DELAY),
            };
            let name = below[below.len() - 1].as_bytes();
            let facts = facts.as_ref().map_err(|status| *status);
            if !list.add(cookie_of, name, number, facts) {
                return list.end(false);
            }
        }
        list.end(true)
    }
}
