//! `millpond info --memory`: who has how much of the server's memory.

use api::{MemoryUseReport, MemoryUser, ServerMemory, ServerMemoryReply};

use crate::client::Client;
use crate::columns::{self, Column};
use crate::numbers::nice_bytes;

/// Prints it, as a table or as JSON; `false` where no server runs.
pub fn print(client: &Client, is_json: bool) -> anyhow::Result<bool> {
    let Some(reply) = client.call_if_running(&ServerMemory {})? else {
        return Ok(false);
    };
    if is_json {
        println!("{}", serde_json::to_string_pretty(&reply)?);
    } else {
        print!("{}", text(&reply));
    }
    Ok(true)
}

/// What somebody is called, and what they have.
fn words(user: MemoryUser) -> (&'static str, &'static str) {
    match user {
        MemoryUser::CacheBlocks => ("cache", "blocks of all pools"),
        MemoryUser::Objects => ("objects", "objects, files and indirect blocks"),
        MemoryUser::CacheDeviceIndexes => ("indexes", "what cache devices hold"),
        MemoryUser::CacheTables => ("tables", "the cache's own, and keys of what left it"),
        MemoryUser::Dirty => ("dirty", "written, not on disk yet"),
        MemoryUser::FreeSpace => ("space", "which ranges of vdevs are free"),
        MemoryUser::Datasets => ("datasets", "datasets and snapshots that were looked at"),
        MemoryUser::ScanQueues => ("scans", "blocks that scrubs and resilvers will read"),
        MemoryUser::DedupChanges => ("dedup", "changes of dedup tables"),
        MemoryUser::SpareBuffers => ("buffers", "kept for reuse"),
        MemoryUser::Iscsi => ("iscsi", "what sessions have under way"),
        MemoryUser::Nfs => ("nfs", "what clients have under way"),
        MemoryUser::Program => ("program", "the program and mapped files"),
    }
}

fn text(reply: &ServerMemoryReply) -> String {
    let row = |name: &str, bytes: u64, bound_bytes: Option<u64>, what: &str| {
        let bound = bound_bytes.map_or_else(|| "-".to_owned(), nice_bytes);
        vec![name.to_owned(), nice_bytes(bytes), bound, what.to_owned()]
    };
    let of_use = |one: &MemoryUseReport| {
        let (name, what) = words(one.user);
        row(name, one.bytes, one.bound_bytes, what)
    };
    let in_cache = reply.uses.iter().filter(|one| one.counts_in_cache);
    let in_cache_bytes: u64 = in_cache.map(|one| one.bytes).sum();
    let mut rows: Vec<Vec<String>> = reply.uses.iter().map(of_use).collect();
    if let Some(bytes) = reply.unexplained_bytes {
        rows.push(row(
            "unexplained",
            bytes,
            None,
            "the allocator's, and what is small",
        ));
    }
    if let Some(bytes) = reply.resident_bytes {
        rows.push(row(
            "resident",
            bytes,
            None,
            "all of it, as the kernel counts",
        ));
    }
    let columns = [
        Column::left("NAME"),
        Column::right("SIZE"),
        Column::right("BOUND"),
        Column::left("WHAT"),
    ];
    let mut out = columns::render(&columns, &rows, false);
    let limit = nice_bytes(reply.cache_limit_bytes);
    let has = nice_bytes(in_cache_bytes);
    out.push_str(&format!(
        "cache, objects and indexes have {has} of {limit} together"
    ));
    if reply.cache_limit_bytes < reply.cache_limit_max_bytes {
        let most = nice_bytes(reply.cache_limit_max_bytes);
        out.push_str(&format!(
            ", {most} when memory is not short and less is used beside them"
        ));
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_row_and_what_nobody_has_is_told() {
        let told = |user, bytes, bound_bytes, counts_in_cache| MemoryUseReport {
            user,
            bytes,
            bound_bytes,
            counts_in_cache,
        };
        let mut reply = ServerMemoryReply {
            resident_bytes: Some(7 << 30),
            cache_limit_bytes: 5 << 30,
            cache_limit_max_bytes: 6 << 30,
            uses: vec![
                told(MemoryUser::CacheBlocks, 4 << 30, Some(5 << 30), true),
                told(MemoryUser::Objects, 512 << 20, Some(2 << 30), true),
                told(MemoryUser::Datasets, 1 << 20, None, false),
            ],
            unexplained_bytes: Some(3 << 20),
        };
        let shown = text(&reply);
        let wanted = "\
NAME          SIZE  BOUND  WHAT
cache           4G     5G  blocks of all pools
objects       512M     2G  objects, files and indirect blocks
datasets        1M      -  datasets and snapshots that were looked at
unexplained     3M      -  the allocator's, and what is small
resident        7G      -  all of it, as the kernel counts
cache, objects and indexes have 4.50G of 5G together, 6G when memory is not short and less is \
used beside them
";
        assert_eq!(shown, wanted);
        // The kernel tells nothing, and the cache may have all of its limit.
        reply.resident_bytes = None;
        reply.unexplained_bytes = None;
        reply.cache_limit_bytes = 6 << 30;
        let shown = text(&reply);
        assert!(!shown.contains("resident") && !shown.contains("unexplained"));
        assert!(shown.ends_with("have 4.50G of 6G together\n"), "{shown}");
    }
}
