//! `zpool events`: what pools told of, as OpenZFS prints it (`zpool_do_events` and what it calls,
//! cmd/zpool/zpool_main.c; names of flags: module/zcommon/zfs_valstr.c).

use api::{Event, EventKind, Pair, PairValue, ZfsEvent, ZpoolEvents, ZpoolEventsClear};
use clap::Args;
use serde_json::{Value, json};

use crate::client::Client;
use crate::numbers;

/// How far the pairs of an event stand in, in columns; those within a pair as much again.
const INDENT: usize = 8;

/// Print the events of pools
#[derive(Debug, Args)]
pub struct Events {
    /// What each of them tells
    #[arg(short)]
    verbose: bool,
    /// For scripts: no headings, and tabs between columns
    #[arg(short = 'H')]
    scripted: bool,
    /// Go on with what happens from now on
    #[arg(short)]
    follow: bool,
    /// Forget those that are kept
    #[arg(short)]
    clear: bool,
    /// JSON, a line for each event (not in OpenZFS)
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// Only those of this pool
    pool: Option<String>,
}

impl Events {
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        if let Some(pool) = self.pool.as_deref().filter(|pool| !is_pool_name(pool)) {
            bail_usage!("invalid pool name '{pool}'");
        }
        if self.clear {
            let others = self.verbose || self.scripted || self.follow || self.json;
            if others || self.pool.is_some() {
                bail_usage!("invalid options combined with -c");
            }
            let reply = client.call(&ZpoolEventsClear {})?;
            println!("cleared {} events", reply.cleared);
            return Ok(());
        }
        let reply = client.call(&ZpoolEvents {})?;
        if !self.scripted && !self.json {
            println!("{:<30} CLASS", "TIME");
        }
        reply.events.iter().for_each(|event| self.print(event));
        // Of a pool that never was nothing is told, as OpenZFS has it: one that is gone has events.
        match self.follow {
            true => client.follow_zfs_events(reply.sequence, |event| self.print(event)),
            false => Ok(()),
        }
    }

    fn print(&self, event: &Event) {
        match &event.kind {
            EventKind::Zfs(zfs) => self.print_zfs(event.time_ns, zfs),
            EventKind::Lagged {
                missed: Some(missed),
            } if self.json => println!("{}", json!({"dropped": missed})),
            EventKind::Lagged {
                missed: Some(missed),
            } => println!("dropped {missed} events"),
            _ => {}
        }
    }

    fn print_zfs(&self, time_ns: u64, event: &ZfsEvent) {
        let other = |pool: &String| event.pool().is_some_and(|own| own != pool);
        if self.pool.as_ref().is_some_and(other) {
            return;
        }
        if self.json {
            println!("{}", event_json(time_ns, event));
            return;
        }
        let time = numbers::local_event(time_ns);
        let gap = if self.scripted { '\t' } else { ' ' };
        println!("{time}{gap}{}", event.class);
        if self.verbose {
            println!("{}", pairs_text(&event.pairs, INDENT));
        }
    }
}

/// An event with all its pairs. As elsewhere, numbers that may be big are strings of digits.
fn event_json(time_ns: u64, event: &ZfsEvent) -> Value {
    json!({
        "time_ns": time_ns.to_string(),
        "eid": event.eid.to_string(),
        "class": event.class,
        "pairs": pairs_json(&event.pairs),
    })
}

fn pairs_json(pairs: &[Pair]) -> Value {
    let pairs = pairs.iter();
    let pairs = pairs.map(|pair| (pair.name.clone(), value_json(&pair.value)));
    Value::Object(pairs.collect())
}

fn value_json(value: &PairValue) -> Value {
    match value {
        PairValue::Nvlist(inner) => pairs_json(inner),
        PairValue::NvlistArray(lists) => lists.iter().map(|inner| pairs_json(inner)).collect(),
        PairValue::Boolean => Value::Bool(true),
        value => {
            let typed = serde_json::to_value(value).unwrap_or_default();
            typed.get("value").cloned().unwrap_or_default()
        }
    }
}

/// Whether a pool can be called so (`zfs_component_namecheck` and `pool_namecheck`,
/// module/zcommon/zfs_namecheck.c).
fn is_pool_name(name: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.: ".contains(&byte);
    name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.bytes().all(is_valid)
}

/// Each pair on its line.
fn pairs_text(pairs: &[Pair], indent: usize) -> String {
    let mut text = String::new();
    for Pair { name, value } in pairs {
        let space = " ".repeat(indent);
        let value = match value {
            PairValue::Nvlist(inner) => format!(
                "(embedded nvlist)\n{}{space}(end {name})",
                pairs_text(inner, indent + INDENT)
            ),
            PairValue::NvlistArray(lists) => {
                let mut all = format!("({} embedded nvlists)\n", lists.len());
                for (index, inner) in lists.iter().enumerate() {
                    let inner = pairs_text(inner, indent + INDENT);
                    all.push_str(&format!(
                        "{space}{name}[{index}] = (embedded nvlist)\n{inner}\
                         {space}(end {name}[{index}])\n"
                    ));
                }
                all.push_str(&format!("{space}(end {name})\n"));
                all
            }
            value => value_text(name, value),
        };
        text.push_str(&format!("{space}{name} = {value}\n"));
    }
    text
}

fn value_text(name: &str, value: &PairValue) -> String {
    fn hex<T: std::fmt::LowerHex>(values: &[T]) -> String {
        values.iter().map(|value| format!("{value:#x} ")).collect()
    }
    match value {
        PairValue::Boolean => "1".to_owned(),
        PairValue::BooleanValue(value) => u8::from(*value).to_string(),
        PairValue::Byte(value) | PairValue::Uint8(value) => format!("{value:#x}"),
        PairValue::Int8(value) => format!("{value:#x}"),
        PairValue::Int16(value) => format!("{value:#x}"),
        PairValue::Uint16(value) => format!("{value:#x}"),
        PairValue::Int32(value) => format!("{value:#x}"),
        PairValue::Uint32(value) => {
            let words = match name {
                "zio_stage" | "zio_pipeline" => flags(&STAGES, u64::from(*value)),
                "zio_priority" => {
                    let word = PRIORITIES.get(*value as usize);
                    word.map_or_else(String::new, |word| (*word).to_owned())
                }
                _ => return format!("{value:#x}"),
            };
            format!("{value:#x} [{words}]")
        }
        PairValue::Int64(value) | PairValue::Hrtime(value) => format!("{:#x}", value.0),
        PairValue::Uint64(value) => match name {
            "vdev_state" | "vdev_laststate" => {
                format!("\"{}\" ({:#x})", state_name(value.0), value.0)
            }
            "zio_flags" => format!("{:#x} [{}]", value.0, flags(&FLAGS, value.0)),
            _ => format!("{:#x}", value.0),
        },
        PairValue::String(value) => format!("\"{value}\""),
        PairValue::Int8Array(values) => hex(values),
        PairValue::Uint8Array(values) => hex(values),
        PairValue::Int16Array(values) => hex(values),
        PairValue::Uint16Array(values) => hex(values),
        PairValue::Int32Array(values) => hex(values),
        PairValue::Uint32Array(values) => hex(values),
        PairValue::Int64Array(values) => values
            .iter()
            .map(|value| format!("{:#x} ", value.0))
            .collect(),
        PairValue::Uint64Array(values) => values
            .iter()
            .map(|value| format!("{:#x} ", value.0))
            .collect(),
        PairValue::StringArray(values) => {
            values.iter().map(|value| format!("\"{value}\" ")).collect()
        }
        PairValue::Nvlist(_) | PairValue::NvlistArray(_) | PairValue::Unknown => {
            "<unknown>".to_owned()
        }
    }
}

/// The name of a vdev's state (`zpool_state_to_name`, lib/libzfs/libzfs_pool.c).
fn state_name(state: u64) -> &'static str {
    match state {
        1 | 2 => "OFFLINE",
        3 => "REMOVED",
        4 => "UNAVAIL",
        5 => "FAULTED",
        6 => "DEGRADED",
        7 => "ONLINE",
        _ => "UNKNOWN",
    }
}

fn flags(names: &[&str], bits: u64) -> String {
    let set = names.iter().enumerate();
    let set = set.filter(|(bit, _)| bits >> bit & 1 != 0);
    let set: Vec<&str> = set.map(|(_, name)| *name).collect();
    set.join(" ")
}

/// Flags of an I/O, from the lowest bit (`ZIO_FLAG_*`, include/sys/zio.h).
const FLAGS: [&str; 33] = [
    "DONT_AGGREGATE",
    "IO_REPAIR",
    "SELF_HEAL",
    "RESILVER",
    "SCRUB",
    "SCAN_THREAD",
    "PHYSICAL",
    "CANFAIL",
    "SPECULATIVE",
    "CONFIG_WRITER",
    "DONT_RETRY",
    "[UNUSED 11]",
    "NODATA",
    "INDUCE_DAMAGE",
    "IO_ALLOCATING",
    "IO_RETRY",
    "PROBE",
    "TRYHARD",
    "OPTIONAL",
    "DIO_READ",
    "DONT_QUEUE",
    "DONT_PROPAGATE",
    "IO_BYPASS",
    "IO_REWRITE",
    "RAW_COMPRESS",
    "RAW_ENCRYPT",
    "GANG_CHILD",
    "DDT_CHILD",
    "GODFATHER",
    "NOPWRITE",
    "REEXECUTED",
    "DELEGATED",
    "DIO_CHKSUM_ERR",
];

/// Stages of an I/O, from the lowest bit (`enum zio_stage`, include/sys/zio_impl.h).
const STAGES: [&str; 27] = [
    "OPEN",
    "READ_BP_INIT",
    "WRITE_BP_INIT",
    "FREE_BP_INIT",
    "ISSUE_ASYNC",
    "WRITE_COMPRESS",
    "ENCRYPT",
    "CHECKSUM_GENERATE",
    "NOP_WRITE",
    "BRT_FREE",
    "DDT_READ_START",
    "DDT_READ_DONE",
    "DDT_WRITE",
    "DDT_FREE",
    "GANG_ASSEMBLE",
    "GANG_ISSUE",
    "DVA_THROTTLE",
    "DVA_ALLOCATE",
    "DVA_FREE",
    "DVA_CLAIM",
    "READY",
    "VDEV_IO_START",
    "VDEV_IO_DONE",
    "VDEV_IO_ASSESS",
    "CHECKSUM_VERIFY",
    "DIO_CHECKSUM_VERIFY",
    "DONE",
];

/// Classes of I/O (`zio_priority_t`, include/sys/zio.h).
const PRIORITIES: [&str; 11] = [
    "SYNC_READ",
    "SYNC_WRITE",
    "ASYNC_READ",
    "ASYNC_WRITE",
    "SCRUB",
    "REMOVAL",
    "INITIALIZING",
    "TRIM",
    "REBUILD",
    "[NUM_QUEUEABLE]",
    "NOW",
];

#[cfg(test)]
mod tests {
    use super::*;
    use api::Digits;

    /// Goal: values look as in OpenZFS. Method: pairs of events that OpenZFS 2.3.2 told, and what
    /// it printed of them.
    #[test]
    fn pairs_look_as_in_openzfs() {
        let pair = |name: &str, value| Pair {
            name: name.to_owned(),
            value,
        };
        let text = |text: &str| PairValue::String(text.to_owned());
        let detector = vec![
            pair("version", PairValue::Uint8(0)),
            pair("scheme", text("zfs")),
        ];
        let pairs = [
            pair("class", text("ereport.fs.zfs.io")),
            pair("detector", PairValue::Nvlist(detector)),
            pair("pool_context", PairValue::Int32(6)),
            pair("vdev_state", PairValue::Uint64(Digits(2))),
            pair("vdev_spare_paths", PairValue::StringArray(Vec::new())),
            pair("zio_err", PairValue::Int32(5)),
            pair("zio_flags", PairValue::Uint64(Digits(0x30_8080))),
            pair("zio_pipeline", PairValue::Uint32(0x410_0000)),
            pair("zio_priority", PairValue::Uint32(2)),
            pair("zio_level", PairValue::Int64(Digits(-1))),
            pair(
                "time",
                PairValue::Int64Array(vec![Digits(0x6b06_08aa), Digits(0x188e_9f00)]),
            ),
        ];
        let expected = "        class = \"ereport.fs.zfs.io\"
        detector = (embedded nvlist)
                version = 0x0
                scheme = \"zfs\"
        (end detector)
        pool_context = 0x6
        vdev_state = \"OFFLINE\" (0x2)
        vdev_spare_paths = 
        zio_err = 0x5
        zio_flags = 0x308080 [CANFAIL IO_RETRY DONT_QUEUE DONT_PROPAGATE]
        zio_pipeline = 0x4100000 [READY DONE]
        zio_priority = 0x2 [ASYNC_READ]
        zio_level = 0xffffffffffffffff
        time = 0x6b0608aa 0x188e9f00 
";
        assert_eq!(pairs_text(&pairs, INDENT), expected);
        let json = pairs_json(&pairs);
        assert_eq!(json["class"], "ereport.fs.zfs.io");
        assert_eq!(json["detector"]["scheme"], "zfs");
        assert_eq!(json["zio_level"], "-1");
        assert_eq!(json["zio_err"], 5);
    }

    #[test]
    fn only_names_of_pools_are_taken() {
        for good in ["tank", "a-b_c.d:e", "t 1"] {
            assert!(is_pool_name(good), "{good}");
        }
        for bad in ["", "1tank", "tank/a", "tank@a", "-v"] {
            assert!(!is_pool_name(bad), "{bad}");
        }
    }
}
