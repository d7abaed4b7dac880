//! What is said of alerts, in mails and by the command line.

use std::fmt::Write;

use api::{
    Alert, AlertDisk, AlertFact, AlertRule, AlertSeverity, CertificateBy, PoolStatusReport,
    ScheduleTask, SelfTestKind, StatePart, UpsCondition, VdevAux, VdevState,
};
use chrono::{DateTime, Local};

use crate::{Message, Reason};

/// What becomes of a certificate that could not be got.
const AGAIN: &str = "It is tried again by itself; 'millpond certificate renew' tries it now, and \
                     'millpond certificate' shows what is set.";

/// A time of day where the server is.
pub fn time(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok();
    let time = time.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    time.map_or_else(String::new, |time| {
        time.with_timezone(&Local)
            .format("%Y-%m-%d %H:%M")
            .to_string()
    })
}

/// A number of bytes, rounded.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// A time that something took.
fn duration(seconds: u64) -> String {
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, _) => format!("{minutes} min"),
        _ => format!("{hours} h {minutes} min"),
    }
}

/// How often something is to be, in the largest unit of which it is a whole number.
fn period(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (24 * 3600, "day"),
        (3600, "hour"),
        (60, "minute"),
        (1, "second"),
    ];
    let mut units = UNITS.into_iter();
    let fits = |(unit, _): &(u64, &str)| seconds > 0 && seconds.is_multiple_of(*unit);
    let (unit, name) = units.find(fits).unwrap_or((1, "second"));
    match seconds / unit {
        1 => name.to_owned(),
        many => format!("{many} {name}s"),
    }
}

fn state(state: VdevState, aux: Option<VdevAux>) -> &'static str {
    match (state, aux) {
        (VdevState::Degraded, _) => "has too many errors and is used as a last resort",
        (VdevState::Faulted, Some(VdevAux::External)) => "was taken out of use by a person",
        (VdevState::Faulted, _) => "has too many errors and is not used any more",
        (VdevState::Removed, _) => "was removed",
        (_, Some(VdevAux::CorruptData | VdevAux::BadLabel)) => {
            "holds something else than it should"
        }
        (_, Some(VdevAux::TooSmall)) => "is too small",
        _ => "cannot be opened",
    }
}

/// A disk as people find it: `/dev/sda (ST4000, serial Z1, Slot 03)`.
fn disk(disk: Option<&AlertDisk>) -> String {
    match disk {
        Some(known) => format!("disk {}{}", known.path, traits(disk)),
        None => "a disk".to_owned(),
    }
}

/// How a disk is told from others: ` (ST4000, serial Z1, Slot 03)`, or nothing.
fn traits(disk: Option<&AlertDisk>) -> String {
    let Some(disk) = disk else {
        return String::new();
    };
    let serial = disk
        .serial
        .as_ref()
        .map(|serial| format!("serial {serial}"));
    let parts: Vec<String> = disk
        .model
        .clone()
        .into_iter()
        .chain(serial)
        .chain(disk.bay.clone())
        .collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!(" ({})", parts.join(", ")),
    }
}

/// A name as an address has it.
fn escaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            byte => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// The page of the console where something can be done about an alert.
pub fn page(alert: &Alert) -> String {
    match &alert.fact {
        AlertFact::NotImported { .. } => "#/pools".to_owned(),
        AlertFact::Schedule { .. } => "#/schedules".to_owned(),
        AlertFact::ReplicationLate { .. } => "#/replication".to_owned(),
        AlertFact::Certificate { .. } | AlertFact::CertificateNotGot { .. } => {
            "#/certificate".to_owned()
        }
        _ if alert.disk.is_some() => "#/disks".to_owned(),
        _ if !alert.pool.is_empty() => format!("#/pools/{}", escaped(&alert.pool)),
        _ => "#/alerts".to_owned(),
    }
}

/// An alert in a sentence.
pub fn sentence(alert: &Alert) -> String {
    format!("{}.", capitalized(&line(alert)))
}

/// What a file is kept for.
fn kept_for(part: StatePart) -> &'static str {
    match part {
        StatePart::Pools => "which pools to import",
        StatePart::Replications => "its replications",
        StatePart::Schedules => "its schedules",
        StatePart::Alerts => "its alerts, or who is told of them",
        StatePart::IscsiSecrets => "secrets of iSCSI",
        StatePart::Users => "its users and keys",
        StatePart::Certificate => "how the certificate of the console is got",
        StatePart::Lights => "which lights of disks are on",
        StatePart::People => "people and groups of shares",
    }
}

/// An alert in one line, without a full stop.
pub fn line(alert: &Alert) -> String {
    let pool = &alert.pool;
    let disk = disk(alert.disk.as_ref());
    match &alert.fact {
        AlertFact::Suspended { why } if why.is_empty() => format!("pool {pool} has stopped"),
        AlertFact::Suspended { why } => format!("pool {pool} has stopped: {why}"),
        AlertFact::Degraded => format!("pool {pool} works with less redundancy than it has"),
        AlertFact::Faulted => format!("pool {pool} does not work"),
        AlertFact::NotImported { why } => format!("pool {pool} could not be imported: {why}"),
        AlertFact::StateFile {
            part, why, is_read, ..
        } => match is_read {
            true => format!("the server cannot keep {}: {why}", kept_for(*part)),
            false => format!("the server does not know {}: {why}", kept_for(*part)),
        },
        AlertFact::DataErrors { count: 1 } => format!("pool {pool} has lost a block"),
        AlertFact::DataErrors { count } => format!("pool {pool} has lost {count} blocks"),
        AlertFact::Device {
            device,
            state: is,
            aux,
            is_log,
            disk,
            survives,
        } => {
            let what = match is_log {
                true => "log device",
                false => "device",
            };
            let left = match survives {
                None => String::new(),
                Some(0) => "; the pool survives no further failure".to_owned(),
                Some(1) => "; the pool survives the failure of one more device".to_owned(),
                Some(many) => format!("; the pool survives the failure of {many} more devices"),
            };
            let (disk, state) = (traits(disk.as_ref()), state(*is, *aux));
            format!("{what} {device}{disk} of pool {pool} {state}{left}")
        }
        AlertFact::DeviceErrors {
            device,
            read,
            write,
            checksum,
            disk,
        } => format!(
            "device {device}{} of pool {pool} had errors: {read} reads, {write} writes, {checksum} \
             checksums",
            traits(disk.as_ref())
        ),
        AlertFact::Space { percent, .. } => format!("pool {pool} is {percent}% full"),
        AlertFact::Schedule {
            name,
            task,
            target,
            why,
        } => {
            let does = match task {
                ScheduleTask::Scrub => "scrub",
                ScheduleTask::Trim => "trim",
                ScheduleTask::Snapshot => "snapshots",
                ScheduleTask::SmartShort => "short tests",
                ScheduleTask::SmartLong => "long tests",
            };
            let target = match target.is_empty() {
                true => "all disks",
                false => target.as_str(),
            };
            format!("schedule {name} ({does} of {target}) fails: {why}")
        }
        AlertFact::ReplicationLate {
            name,
            source,
            every_s,
            success_s,
            is_running,
            why,
        } => {
            let last = match success_s {
                Some(success_s) => format!("last sent {}", time(*success_s)),
                None => "nothing was sent yet".to_owned(),
            };
            let why = match (is_running, why) {
                (true, _) => "; a run is under way".to_owned(),
                (false, Some(why)) => format!("; it fails: {why}"),
                (false, None) => String::new(),
            };
            let every = period(*every_s);
            format!("replication {name} of {source} is late: every {every}, {last}{why}")
        }
        AlertFact::Certificate { end_s, is_over, .. } => {
            let ends = match is_over {
                true => "ended",
                false => "ends",
            };
            format!("the certificate of the console {ends} {}", time(*end_s))
        }
        AlertFact::CertificateNotGot { names, why } => {
            format!("no certificate for {} can be got: {why}", names.join(", "))
        }
        AlertFact::Ups {
            name,
            condition,
            charge_percent,
            runtime_s,
            are_pools_exported,
        } => {
            let is = match (condition, are_pools_exported) {
                (_, true) => "has a battery that is nearly empty: all pools are exported",
                (UpsCondition::LowBattery, false) => {
                    "has a battery that is nearly empty: all pools are being exported"
                }
                (UpsCondition::OnBattery, false) => "runs on its battery",
                (UpsCondition::NoAnswer, false) => "does not answer",
                (UpsCondition::ReplaceBattery, false) => "wants another battery",
                (UpsCondition::Online | UpsCondition::Unknown, false) => "is well",
            };
            let charge = charge_percent.map(|percent| format!("{percent}%"));
            let lasts = runtime_s.map(|seconds| format!("{} left", duration(seconds)));
            let parts: Vec<String> = charge.into_iter().chain(lasts).collect();
            match parts.is_empty() {
                true => format!("UPS {name} {is}"),
                false => format!("UPS {name} {is} ({})", parts.join(", ")),
            }
        }
        AlertFact::DiskFailing => format!("{disk} says that it is failing"),
        AlertFact::DiskSectors { count, new } => {
            format!("{disk} has {count} bad sectors, {new} of them new")
        }
        AlertFact::DiskTemperature {
            celsius,
            limit_celsius,
        } => format!("{disk} has {celsius} °C, and {limit_celsius} °C are too many"),
        AlertFact::DiskWear { percent } => {
            format!("{disk} has had {percent}% of the writes that it is made for")
        }
        AlertFact::DiskTest {
            kind,
            result,
            at_hours,
        } => {
            let kind = match kind {
                SelfTestKind::Short => "short",
                SelfTestKind::Long => "long",
            };
            let at = at_hours.map(|hours| format!(" (after {hours} hours of being on)"));
            let at = at.unwrap_or_default();
            format!("{disk} failed its {kind} test{at}: {result}")
        }
        AlertFact::Scan {
            examined_bytes,
            repaired_bytes,
            errors,
            took_s,
        } => {
            let what = match alert.rule {
                AlertRule::Resilver => "resilver",
                _ => "scrub",
            };
            let lost = match errors {
                0 => "nothing is lost".to_owned(),
                1 => "one block is lost".to_owned(),
                many => format!("{many} blocks are lost"),
            };
            format!(
                "{what} of pool {pool} is done: {} in {}, {} repaired, {lost}",
                size(*examined_bytes),
                duration(*took_s),
                size(*repaired_bytes)
            )
        }
    }
}

/// What to do about it.
fn advice(alert: &Alert) -> String {
    let pool = &alert.pool;
    match &alert.fact {
        AlertFact::Suspended { .. } => format!(
            "Nothing is written, and who writes waits. Bring its devices back, then run 'zpool \
             clear {pool}'."
        ),
        AlertFact::Degraded | AlertFact::Faulted => format!(
            "'zpool status {pool}' shows which devices are the reason, and 'zpool replace {pool} \
             OLD NEW' gives it another one."
        ),
        AlertFact::NotImported { .. } => format!(
            "Bring its devices back, then run 'zpool import {pool}'. If it is not to come back, \
             'zpool export {pool}' forgets it."
        ),
        AlertFact::StateFile {
            part,
            path,
            is_read,
            ..
        } => match (is_read, part) {
            (true, StatePart::People) => format!(
                "Where a user or a group of the host is named, see to that, and start the server \
                 again. Else see to the space and the permissions of {path}: a start does without \
                 what happened since."
            ),
            (true, _) => format!(
                "See to the space and the permissions of {path}: a start does without what \
                 happened since."
            ),
            (false, _) => format!(
                "{path} is left as it is, and nothing is written to it. {} Then start the server \
                 again.",
                match part {
                    StatePart::Pools =>
                        "Restore it from a backup; or take it away, and 'zpool import' shows the \
                         pools that there are.",
                    _ => "Restore it from a backup, or take it away and set all of it anew.",
                }
            ),
        },
        AlertFact::DataErrors { .. } => format!(
            "'zpool status -v {pool}' names the files. Restore them from a backup or a snapshot, \
             then run 'zpool scrub {pool}'."
        ),
        AlertFact::Device { device, is_log, .. } => {
            let mut text = format!(
                "Look at its cables and power. If it comes back, it is given what it missed. \
                 Else replace it: 'zpool replace {pool} {device} NEW'."
            );
            if *is_log {
                text += " A log device holds what was last acknowledged: until it is back or \
                         replaced, the pool's own devices do its work.";
            }
            text
        }
        AlertFact::DeviceErrors { device, .. } => format!(
            "What could be repaired was. Run 'zpool scrub {pool}' and watch whether they become \
             more; replace the device if they do ('zpool replace {pool} {device} NEW'). 'zpool \
             clear {pool} {device}' forgets them."
        ),
        AlertFact::Space { .. } => format!(
            "A full pool gets slow and then takes nothing more. Destroy snapshots that nobody \
             needs ('zfs list -t snapshot -o name,used -S used -r {pool}') or add devices ('zpool \
             add')."
        ),
        AlertFact::Schedule { name, .. } => format!(
            "It is tried again by itself. 'millpond schedule' shows all of them, 'millpond \
             schedule run {name}' tries it now, and 'millpond schedule remove {name}' ends it."
        ),
        AlertFact::ReplicationLate { name, .. } => format!(
            "It is tried again by itself. 'millpond replicate --list' shows how far it is, and \
             'millpond replicate --run {name}' tries it now. Until it has worked, what was \
             written since is here alone."
        ),
        AlertFact::Certificate { path, by, why, .. } => match by {
            CertificateBy::Person => format!(
                "Put another one into {path}, and its key into its own file: they are taken up by \
                 themselves. Browsers and programs refuse one that has ended."
            ),
            CertificateBy::Server => format!(
                "The server makes another one by itself, and could not write it to {path}: its \
                 log says why."
            ),
            CertificateBy::Acme => {
                let why = why.as_deref().unwrap_or("its log says why");
                format!("The server gets another one by itself, and could not yet: {why}. {AGAIN}")
            }
        },
        AlertFact::CertificateNotGot { .. } => {
            format!("The certificate that there is stays until then. {AGAIN}")
        }
        AlertFact::Ups { condition, .. } => match condition {
            UpsCondition::LowBattery => "Nothing is served until there has been power for a \
                                         minute; then pools are imported again by themselves."
                .to_owned(),
            UpsCondition::OnBattery => "The power failed. When the battery is nearly empty, all \
                                        pools are exported; they come back with the power."
                .to_owned(),
            UpsCondition::NoAnswer => "Nobody knows whether there is power. Look at NUT's server \
                                       (upsd) and its driver: 'upsc' shows what it knows."
                .to_owned(),
            UpsCondition::ReplaceBattery => "It may not last when the power fails.".to_owned(),
            UpsCondition::Online | UpsCondition::Unknown => String::new(),
        },
        AlertFact::DiskFailing => {
            let id = alert.disk.as_ref().map_or("DISK", |disk| &*disk.path);
            let replace = match pool.is_empty() {
                true => String::new(),
                false => format!(" It is used by pool {pool}: 'zpool replace {pool} {id} NEW'."),
            };
            format!(
                "Replace it soon: it may be gone any time. 'millpond disks locate {id}' shows \
                 where it is.{replace}"
            )
        }
        AlertFact::DiskSectors { .. } => {
            let id = alert.disk.as_ref().map_or("DISK", |disk| &*disk.path);
            format!(
                "Have another disk ready. Run 'millpond disks test {id} long' and scrub its pool; \
                 replace it if they go on to become more."
            )
        }
        AlertFact::DiskTest { .. } => {
            let id = alert.disk.as_ref().map_or("DISK", |disk| &*disk.path);
            format!(
                "Have another disk ready, and scrub its pool: what can be repaired is. A test of \
                 that kind, or a long one, that finds nothing ends this: 'millpond disks test {id} \
                 long'."
            )
        }
        AlertFact::DiskTemperature { .. } => "Look at the fans and the air. 'millpond alerts set \
                                              --temperature CELSIUS' sets another limit."
            .to_owned(),
        AlertFact::DiskWear { .. } => {
            "Have another disk ready: it may soon take no more writes.".to_owned()
        }
        AlertFact::Scan { errors: 0, .. } => String::new(),
        AlertFact::Scan { .. } => format!("'zpool status -v {pool}' names the files."),
    }
}

fn capitalized(text: &str) -> String {
    let mut rest = text.chars();
    match rest.next() {
        Some(first) => first.to_uppercase().chain(rest).collect(),
        None => String::new(),
    }
}

/// Says an alert.
pub(crate) fn of_alert(
    host: &str,
    reason: Reason,
    alert: &Alert,
    since_s: u64,
    now_s: u64,
) -> Message {
    let line = line(alert);
    let advice = advice(alert);
    let mut text = match reason {
        Reason::Recovered => format!(
            "It is over: {line}.\nIt had been so since {}.\n",
            time(since_s)
        ),
        Reason::Reminder => format!(
            "{}.\nIt has been so since {}.\n",
            capitalized(&line),
            time(since_s)
        ),
        _ => format!("{}.\n", capitalized(&line)),
    };
    if reason != Reason::Recovered && !advice.is_empty() {
        let _ = write!(text, "\n{advice}\n");
    }
    let _ = write!(text, "\nMillpond on {host}, {}\n", time(now_s));
    let prefix = match (reason, alert.severity) {
        (Reason::Recovered, _) => "over: ",
        (Reason::Reminder, _) => "still: ",
        (_, AlertSeverity::Critical) => "CRITICAL: ",
        (_, AlertSeverity::Warning) => "warning: ",
        (_, AlertSeverity::Info) => "",
    };
    Message {
        time_s: now_s,
        reason,
        severity: match reason {
            Reason::Recovered => AlertSeverity::Info,
            _ => alert.severity,
        },
        subject: format!("[{host}] {prefix}{line}"),
        text,
        alert: Some(alert.clone()),
    }
}

/// How everything is.
pub fn report(
    host: &str,
    pools: &[PoolStatusReport],
    standing: &[api::StandingAlert],
    now_s: u64,
) -> Message {
    let mut text = String::new();
    let _ = match standing.len() {
        0 => writeln!(text, "Nothing is wrong."),
        1 => writeln!(text, "One thing is to be looked at:"),
        many => writeln!(text, "{many} things are to be looked at:"),
    };
    for one in standing {
        let _ = writeln!(text, "- {}, since {}", line(&one.alert), time(one.since_s));
    }
    for pool in pools {
        let (size_bytes, allocated_bytes) = (pool.tree.size_bytes, pool.tree.allocated_bytes);
        let percent = u128::from(allocated_bytes) * 100 / u128::from(size_bytes.max(1));
        let _ = write!(
            text,
            "\nPool {}: {} of {} in use ({percent}%). ",
            pool.name,
            size(allocated_bytes),
            size(size_bytes)
        );
        let scrub = pool.scan.as_ref();
        let scrub = scrub.filter(|scan| scan.function == api::ScanFunction::Scrub);
        let _ = match scrub {
            Some(scan) if scan.state == api::ScanState::Finished => writeln!(
                text,
                "Last scrubbed {}, {} repaired, {} blocks lost.",
                time(scan.end_time_s),
                size(scan.repaired_bytes),
                scan.errors
            ),
            Some(_) => writeln!(text, "Its scrub is not done."),
            None => writeln!(
                text,
                "No scrub of it is known: 'zpool scrub {}'.",
                pool.name
            ),
        };
    }
    if pools.is_empty() {
        text += "\nNo pool is imported.\n";
    }
    let _ = write!(text, "\nMillpond on {host}, {}\n", time(now_s));
    let worst = standing.iter().map(|one| one.alert.severity).max();
    let subject = match standing.len() {
        0 => format!("[{host}] all is well"),
        1 => format!("[{host}] {}", line(&standing[0].alert)),
        many => format!("[{host}] {many} things to be looked at"),
    };
    Message {
        time_s: now_s,
        reason: Reason::Report,
        severity: worst.unwrap_or(AlertSeverity::Info),
        subject,
        text,
        alert: None,
    }
}
