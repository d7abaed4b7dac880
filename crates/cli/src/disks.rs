//! `millpond disks`: the host's disks, how they are and where.

use ::alerts::words;
use anyhow::bail;
use api::{
    DiskCondition, DiskLightsTest, DiskLocate, DiskOverview, DiskShow, DiskShowReply, DiskState,
    DiskTest, DiskTested, LightKind, SelfTest, SelfTestKind, SmartState, Transport, VdevState,
};
use clap::{Args, Subcommand, ValueEnum};

use crate::buses;
use crate::client::Client;
use crate::columns::{self, Column};
use crate::numbers::nice_bytes;
use crate::periods::interval;

/// So many samples of how a disk was are shown, and tests that it made.
const SHOWN: usize = 12;

/// The host's disks, how they are and where.
#[derive(Debug, Args)]
pub struct Disks {
    /// Print JSON
    #[arg(short, long, global = true)]
    json: bool,
    /// No header, and one tab between columns
    #[arg(short = 'H')]
    scripted: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show all that is known of a disk, asked anew
    Show {
        /// Its name, path, serial number or bay, or the GUID of a pool's device on it
        disk: String,
    },
    /// Switch the light on that shows where a disk is
    Locate {
        /// The disk, as in 'show'
        disk: String,
        /// Switch it off
        #[arg(long)]
        off: bool,
        /// Only for a time, such as 10m (default: until it is switched off)
        #[arg(long = "for", value_name = "TIME", value_parser = interval, conflicts_with = "off")]
        for_s: Option<u64>,
    },
    /// Have a disk test itself; it can be used meanwhile
    Test {
        /// The disk, as in 'show'
        disk: String,
        /// In some minutes, or all of it in hours
        kind: Kind,
    },
    /// Switch all lights on for some seconds, to see which do not work
    LightsTest {
        /// For how long
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Show what disks hang on, and what holds up each pool
    Buses,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Short,
    Long,
}

impl Disks {
    /// Does it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        match self.command {
            None => list(client, self.json, self.scripted),
            Some(Command::Show { disk }) => {
                let shown = client.call(&DiskShow { disk, fresh: true })?;
                match self.json {
                    true => println!("{}", serde_json::to_string_pretty(&shown)?),
                    false => show(&shown),
                }
                Ok(())
            }
            Some(Command::Locate { disk, off, for_s }) => {
                client.call(&DiskLocate {
                    disk,
                    on: !off,
                    for_s,
                })?;
                Ok(())
            }
            Some(Command::Test { disk, kind }) => {
                let kind = match kind {
                    Kind::Short => SelfTestKind::Short,
                    Kind::Long => SelfTestKind::Long,
                };
                client.call(&DiskTest { disk, kind })?;
                Ok(())
            }
            Some(Command::LightsTest { seconds }) => lights_test(client, self.json, seconds),
            Some(Command::Buses) => buses::run(client, self.json, self.scripted),
        }
    }
}

fn list(client: &Client, json: bool, scripted: bool) -> anyhow::Result<()> {
    let reply = client.call(&DiskOverview {})?;
    if json {
        println!("{}", serde_json::to_string_pretty(&reply)?);
        return Ok(());
    }
    let columns = [
        Column::left("DISK"),
        Column::left("MODEL"),
        Column::left("SERIAL"),
        Column::right("SIZE"),
        Column::left("BAY"),
        Column::left("USED BY"),
        Column::left("HEALTH"),
        Column::right("TEMP"),
        Column::right("HOURS"),
        Column::right("WEAR"),
    ];
    let rows: Vec<Vec<String>> = reply.disks.iter().map(row).collect();
    match rows.is_empty() && !scripted {
        true => println!("there are no disks"),
        false => print!("{}", columns::render(&columns, &rows, scripted)),
    }
    if let Some(problem) = &reply.problem {
        eprintln!("{problem}");
    }
    Ok(())
}

fn row(disk: &DiskState) -> Vec<String> {
    let dash = || "-".to_owned();
    let text = |value: &Option<String>| value.clone().unwrap_or_else(dash);
    let report = disk.smart.as_ref();
    let number = |value: Option<u64>, unit: &str| match value {
        Some(value) => format!("{value}{unit}"),
        None => dash(),
    };
    let used: Vec<String> = disk
        .members
        .iter()
        .map(|member| match member.vdev == member.pool {
            true => member.pool.clone(),
            false => format!("{}/{}", member.pool, member.vdev),
        })
        .collect();
    vec![
        disk.name.clone(),
        text(&disk.model),
        text(&disk.serial),
        match disk.size_bytes {
            0 => dash(),
            bytes => nice_bytes(bytes),
        },
        text(&disk.bay),
        match used.is_empty() {
            true => dash(),
            false => used.join(","),
        },
        health(disk).to_owned(),
        match report.and_then(|report| report.temperature_c) {
            Some(celsius) => format!("{celsius}C"),
            None => dash(),
        },
        number(report.and_then(|report| report.power_on_hours), ""),
        number(report.and_then(|report| report.wear_percent), "%"),
    ]
}

/// How a disk is, in a word.
fn health(disk: &DiskState) -> &'static str {
    match (disk.condition, &disk.smart_state) {
        (DiskCondition::Failing, _) => "FAILING",
        (DiskCondition::Missing, _) => "MISSING",
        (_, SmartState::NoAnswer) => "NO ANSWER",
        (DiskCondition::Warning, _) => "warning",
        (_, SmartState::Standby) => "asleep",
        (DiskCondition::Good, _) => "good",
        (DiskCondition::Unknown, _) => "unknown",
    }
}

fn show(shown: &DiskShowReply) {
    let disk = &shown.disk;
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    println!("disk:           {}", disk.path);
    println!("name:           {}", disk.name);
    println!("model:          {}", text(&disk.model));
    println!("serial number:  {}", text(&disk.serial));
    let kind = match disk.is_rotational {
        true => "turns",
        false => "does not turn",
    };
    if disk.condition != DiskCondition::Missing {
        let size = nice_bytes(disk.size_bytes);
        println!(
            "size:           {size}, {}, {kind}",
            transport(disk.transport)
        );
    }
    println!("enclosure:      {}", text(&disk.enclosure));
    println!("bay:            {}", text(&disk.bay));
    println!("lights:         {}", lights(disk));
    for member in &disk.members {
        let state = vdev_state(member.state);
        println!(
            "used by:        {} {}: {} {state}",
            member.pool, member.vdev, member.path
        );
    }
    println!("health:         {}", health(disk));
    match &disk.smart_state {
        SmartState::Known => {}
        SmartState::NotAsked => println!("SMART:          not asked yet"),
        SmartState::Standby => println!("SMART:          asleep; what it told before"),
        SmartState::NoAnswer => println!("SMART:          it does not answer"),
        SmartState::Unsupported { why } | SmartState::Failed { why } => {
            println!("SMART:          {why}");
        }
    }
    let Some(report) = &disk.smart else {
        return;
    };
    println!("asked:          {}", words::time(report.time_s));
    let number = |what: &str, value: Option<u64>| {
        if let Some(value) = value {
            println!("{:<16}{value}", format!("{what}:"));
        }
    };
    if let Some(celsius) = report.temperature_c {
        let limit = report.temperature_limit_c;
        let limit = limit.map(|limit| format!(", its limit is {limit} °C"));
        println!("temperature:    {celsius} °C{}", limit.unwrap_or_default());
    }
    number("hours", report.power_on_hours);
    number("wear percent", report.wear_percent);
    number("reallocated", report.reallocated_sectors);
    number("pending", report.pending_sectors);
    number("uncorrectable", report.uncorrectable_sectors);
    if disk.new_bad_sectors > 0 {
        number("new of these", Some(disk.new_bad_sectors));
    }
    number("CRC errors", report.crc_errors);
    if let Some(percent) = report.test_remaining_percent {
        println!("test:           under way, {percent}% left");
    }
    for test in &report.tests {
        let at = test.at_hours.map(|hours| format!(" after {hours} hours"));
        println!(
            "test:           {} {}{}: {}",
            test.kind,
            outcome(test),
            at.unwrap_or_default(),
            test.result
        );
    }
    let seen = &shown.tests[shown.tests.len().saturating_sub(SHOWN)..];
    for DiskTested { time_s, test } in seen.iter().rev() {
        println!(
            "tested:         {} {} {}: {}",
            words::time(*time_s),
            test.kind,
            outcome(test),
            test.result
        );
    }
    let samples = &shown.history[shown.history.len().saturating_sub(SHOWN)..];
    for sample in samples {
        let celsius = sample.temperature_c.map(|celsius| format!(" {celsius} °C"));
        let bad = sample.bad_sectors.map(|bad| format!(", {bad} bad sectors"));
        println!(
            "was:            {}{}{}",
            words::time(sample.time_s),
            celsius.unwrap_or_default(),
            bad.unwrap_or_default()
        );
    }
}

/// What a test came to, in a word.
fn outcome(test: &SelfTest) -> &'static str {
    match test.passed {
        Some(true) => "passed",
        Some(false) => "FAILED",
        None => "not finished",
    }
}

fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Sata => "SATA",
        Transport::Sas => "SAS",
        Transport::Nvme => "NVMe",
        Transport::Usb => "USB",
        Transport::Virtio => "virtio",
        Transport::Other => "attached otherwise",
    }
}

fn lights(disk: &DiskState) -> String {
    let Some(lights) = disk.lights else {
        return "none that can be switched".to_owned();
    };
    let by = match lights.by {
        LightKind::Enclosure => "enclosure",
        LightKind::Npem => "PCI Express",
        LightKind::Ledctl => "ledctl",
    };
    let word = |is_on| if is_on { "on" } else { "off" };
    format!(
        "fault {}, locate {} (by {by})",
        word(lights.fault),
        word(lights.locate)
    )
}

fn vdev_state(state: VdevState) -> String {
    // As in JSON.
    let name = serde_json::to_value(state).ok();
    let name = name.as_ref().and_then(|name| name.as_str());
    name.unwrap_or_default().to_uppercase()
}

fn lights_test(client: &Client, json: bool, seconds: u64) -> anyhow::Result<()> {
    let reply = client.call(&DiskLightsTest { seconds })?;
    if json {
        println!("{}", serde_json::to_string_pretty(&reply)?);
        return Ok(());
    }
    if reply.bays.is_empty() {
        bail!(
            "there are no lights: no enclosure (SES), no port of PCI Express (NPEM) has any, and \
             ledctl is not installed (Debian: apt install ledmon)"
        );
    }
    let mut failed = 0;
    for bay in &reply.bays {
        let disk = bay.disk.as_ref().map(|disk| format!(" ({disk})"));
        let disk = disk.unwrap_or_default();
        match &bay.problem {
            None => println!("{}{disk}: lit", bay.place),
            Some(problem) => {
                failed += 1;
                println!("{}{disk}: {problem}", bay.place);
            }
        }
    }
    match failed {
        0 => Ok(()),
        _ => bail!("not all lights took what they were told"),
    }
}

#[cfg(test)]
mod tests {
    use api::{DiskMember, Guid, SmartReport};

    use super::*;

    #[test]
    fn a_row_says_what_is_known() {
        let mut disk = DiskState {
            name: "sda".into(),
            size_bytes: 4 << 40,
            bay: Some("Slot 03".into()),
            members: vec![DiskMember {
                pool: "tank".into(),
                guid: Guid(1),
                path: "/dev/sda1".into(),
                vdev: "mirror-0".into(),
                state: VdevState::Online,
            }],
            condition: DiskCondition::Good,
            smart: Some(SmartReport {
                temperature_c: Some(31),
                power_on_hours: Some(12),
                ..SmartReport::default()
            }),
            ..DiskState::default()
        };
        let expected = [
            "sda",
            "-",
            "-",
            "4T",
            "Slot 03",
            "tank/mirror-0",
            "good",
            "31C",
            "12",
            "-",
        ];
        assert_eq!(row(&disk), expected);
        disk.smart_state = SmartState::Standby;
        assert_eq!(health(&disk), "asleep");
        disk.condition = DiskCondition::Failing;
        assert_eq!(health(&disk), "FAILING");
        assert_eq!(vdev_state(VdevState::Faulted), "FAULTED");
    }
}
