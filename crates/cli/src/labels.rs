//! `millpond labels`: what the labels of a device say, after the fashion of `zdb -lu`
//! (cmd/zdb/zdb.c `dump_label`). It reads the device itself and needs no daemon.

use anyhow::{Context, bail};
use clap::Args;
use device::World;
use format::{NvList, NvValue, Uberblock};
use serde_json::{Map, Value, json};
use vdev::{LabelSurvey, survey_labels};

/// Show the labels and uberblocks of a device or file.
#[derive(Debug, Args)]
pub struct Labels {
    /// JSON
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// The device or file
    device: String,
}

/// The same thing in several labels.
struct Shared<T> {
    value: T,
    labels: Vec<usize>,
}

fn share<T: PartialEq>(all: &mut Vec<Shared<T>>, value: T, label: usize) {
    match all.iter_mut().find(|known| known.value == value) {
        Some(known) => known.labels.push(label),
        None => all.push(Shared {
            value,
            labels: vec![label],
        }),
    }
}

impl Labels {
    /// Reads and prints. Fails when no label is valid.
    pub fn run(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let found = runtime.block_on(async {
            let world = World::system(1);
            let device = world.opener.open(&self.device, true).await?;
            anyhow::Ok(survey_labels(&*device).await?)
        });
        let labels =
            found.with_context(|| format!("cannot read the labels of '{}'", self.device))?;
        if self.json {
            let text = serde_json::to_string_pretty(&json_labels(&self.device, &labels))?;
            println!("{text}");
        } else {
            print_labels(&labels);
        }
        if !labels.iter().any(|label| label.is_valid) {
            bail!(
                "'{}' has no valid label; if a pool is on one of its partitions, name that",
                self.device
            );
        }
        Ok(())
    }
}

fn configs(labels: &[LabelSurvey]) -> Vec<Shared<&NvList>> {
    let mut out = Vec::new();
    for (index, label) in labels.iter().enumerate() {
        if let Some(config) = label.config.as_ref().filter(|_| label.is_valid) {
            share(&mut out, config, index);
        }
    }
    out
}

fn uberblocks(labels: &[LabelSurvey]) -> Vec<Shared<(u64, bool, Uberblock)>> {
    let mut out = Vec::new();
    for (index, label) in labels.iter().enumerate() {
        for slot in &label.slots {
            share(&mut out, (slot.slot, slot.is_valid, slot.uberblock), index);
        }
    }
    out.sort_by_key(|shared| (shared.value.0, shared.value.2.txg));
    out
}

fn words(labels: &[usize]) -> String {
    labels.iter().map(|label| format!("{label} ")).collect()
}

fn when(seconds: u64) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0))
        .map_or_else(String::new, |time| {
            time.format("%a %b %e %H:%M:%S %Y").to_string()
        })
}

fn print_labels(labels: &[LabelSurvey]) {
    let rule = "------------------------------------";
    for (index, label) in labels.iter().enumerate() {
        if !label.is_valid {
            let problem = label.problem.as_deref().unwrap_or("it is not valid");
            println!("{rule}\nLABEL {index}\n{rule}\n    not valid: {problem}");
        }
    }
    for shared in configs(labels) {
        let first = shared.labels.first().copied().unwrap_or(0);
        println!("{rule}\nLABEL {first}\n{rule}");
        for line in shared.value.to_string().lines() {
            println!("    {line}");
        }
        println!("    labels = {}", words(&shared.labels));
    }
    for shared in uberblocks(labels) {
        let (slot, is_valid, uberblock) = &shared.value;
        let invalid = if *is_valid {
            ""
        } else {
            " (checksum is wrong)"
        };
        println!("    Uberblock[{slot}]{invalid}");
        println!("\tmagic = {:016x}", Uberblock::MAGIC);
        println!("\tversion = {}", uberblock.version);
        println!("\ttxg = {}", uberblock.txg);
        println!("\tguid_sum = {}", uberblock.guid_sum);
        println!(
            "\ttimestamp = {} UTC = {}",
            uberblock.timestamp_seconds,
            when(uberblock.timestamp_seconds)
        );
        println!("\tbp = {}", uberblock.root);
        if let Some(multihost) = &uberblock.multihost {
            println!("\tmmp_delay = {}", multihost.delay_ns);
            if let Some(sequence) = multihost.sequence {
                println!("\tmmp_seq = {sequence}");
            }
            if let Some(interval) = multihost.interval_ms {
                println!("\tmmp_write_interval = {interval}");
            }
            if let Some(intervals) = multihost.fail_intervals {
                println!("\tmmp_fail_intervals = {intervals}");
            }
        }
        println!("\tcheckpoint_txg = {}", uberblock.checkpoint_txg);
        println!("        labels = {}", words(&shared.labels));
    }
}

fn json_list(list: &NvList) -> Value {
    let mut out = Map::new();
    for (name, value) in list.iter() {
        out.insert(name.to_owned(), json_value(value));
    }
    Value::Object(out)
}

fn json_value(value: &NvValue) -> Value {
    match value {
        NvValue::Boolean => json!(true),
        NvValue::BooleanValue(value) => json!(value),
        NvValue::UInt64(value) => json!(value),
        NvValue::Int64(value) => json!(value),
        NvValue::String(value) => json!(value),
        NvValue::RawString(value) => json!(String::from_utf8_lossy(value)),
        NvValue::UInt64Array(values) => json!(values),
        NvValue::StringArray(values) => json!(values),
        NvValue::List(list) => json_list(list),
        NvValue::ListArray(lists) => lists.iter().map(json_list).collect(),
        other => json!(format!("{other:?}")),
    }
}

fn json_labels(device: &str, labels: &[LabelSurvey]) -> Value {
    let invalid: Vec<Value> = labels
        .iter()
        .enumerate()
        .filter(|(_, label)| !label.is_valid)
        .map(|(index, label)| json!({"label": index, "problem": label.problem}))
        .collect();
    let configs: Vec<Value> = configs(labels)
        .iter()
        .map(|shared| json!({"labels": shared.labels, "config": json_list(shared.value)}))
        .collect();
    let uberblocks: Vec<Value> = uberblocks(labels)
        .iter()
        .map(|shared| {
            let (slot, is_valid, uberblock) = &shared.value;
            json!({
                "labels": shared.labels,
                "slot": slot,
                "checksum_ok": is_valid,
                "version": uberblock.version,
                "txg": uberblock.txg.get(),
                "guid_sum": uberblock.guid_sum.get(),
                "timestamp": uberblock.timestamp_seconds,
                "root": uberblock.root.to_string(),
                "checkpoint_txg": uberblock.checkpoint_txg.get(),
                "mmp": uberblock.multihost.as_ref().map(|multihost| json!({
                    "delay_ns": multihost.delay_ns,
                    "sequence": multihost.sequence,
                    "interval_ms": multihost.interval_ms,
                    "fail_intervals": multihost.fail_intervals,
                })),
            })
        })
        .collect();
    json!({
        "device": device,
        "invalid": invalid,
        "configs": configs,
        "uberblocks": uberblocks,
    })
}
