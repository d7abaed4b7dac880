//! The power of bays, where the hardware can switch it.

use std::time::Duration;

use api::{
    DiskCondition, DiskMember, DiskPower, DiskPowerReply, Failure, FailureKind, Guid, VdevState,
};
use drives::Lamp;

use crate::Parts;
use crate::overview::{Row, resolve, rows};

/// How long an enclosure may take to switch a bay; it is left alone then.
const PATIENCE: Duration = Duration::from_secs(30);

/// `zpool online --power` and its like: tells whether the bay of a disk has power, or switches it.
pub async fn power(parts: &Parts, call: DiskPower) -> Result<DiskPowerReply, Failure> {
    let doing = format!("cannot switch the power of '{}'", call.disk);
    let failed = |kind, why: String| Failure::new(kind, format!("{doing}: {why}"));
    let (lamp, bay) = match resolve(parts, &call.disk).await {
        Ok(row) => {
            if call.on == Some(false) {
                // Where a disk was is no place to switch off: another one may be there by now.
                let is_here = row.disk.is_some() && row.state.condition != DiskCondition::Missing;
                if !is_here {
                    let why = "the disk is not there".to_owned();
                    return Err(failed(FailureKind::Invalid, why));
                }
                if let Some(why) = shares_bay(&row, &rows(parts).await).or_else(|| user(&row)) {
                    return Err(failed(FailureKind::Busy, why));
                }
            }
            (row.lamp, row.state.bay)
        }
        Err(failure) if call.on == Some(false) => return Err(failure),
        // What was taken offline and has no power is no disk of the host, and nobody misses it.
        Err(failure) => remembered(parts, &call.disk).ok_or(failure)?,
    };
    let sysfs = parts.drives.sysfs().clone();
    let on = call.on;
    let work = move || -> std::io::Result<Option<bool>> {
        let (lamp, bay) = (lamp.as_ref(), bay.as_deref());
        if let Some(on) = on {
            sysfs.switch_power(lamp, bay, on)?;
        }
        Ok(sysfs.power(lamp, bay))
    };
    let done = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(work)).await;
    let done = match done {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => return Err(failed(FailureKind::Other, error.to_string())),
        Err(_) => {
            let why = "the enclosure does not answer; look at it, and try again".to_owned();
            return Err(failed(FailureKind::Io, why));
        }
    };
    let is_on = done.map_err(|error| match error.kind() {
        std::io::ErrorKind::Unsupported => failed(FailureKind::Unsupported, error.to_string()),
        _ => failed(FailureKind::Io, error.to_string()),
    })?;
    Ok(DiskPowerReply { is_on })
}

/// Another disk that would lose its power as well, if any: enclosures may tell nonsense.
fn shares_bay(row: &Row, all: &[Row]) -> Option<String> {
    let (own, lamp) = (&row.state, row.lamp.as_ref());
    let other = all.iter().find(|other| {
        let (state, is_its) = (&other.state, other.state.id == own.id);
        let in_its_bay =
            own.bay.is_some() && state.bay == own.bay && state.enclosure == own.enclosure;
        let has_its_lamp = lamp.is_some() && other.lamp.as_ref() == lamp;
        let is_here = state.condition != DiskCondition::Missing;
        !is_its && is_here && (in_its_bay || has_its_lamp)
    })?;
    Some(format!("{} is in the same bay", other.state.path))
}

/// Who would lose the disk without power, if anybody: another pool, or the host itself.
fn user(row: &Row) -> Option<String> {
    let works = |member: &&DiskMember| {
        !matches!(
            member.state,
            VdevState::Offline | VdevState::Faulted | VdevState::Removed | VdevState::Unavailable
        )
    };
    if let Some(member) = row.state.members.iter().find(works) {
        let DiskMember { pool, path, .. } = member;
        return Some(format!(
            "pool '{pool}' uses {path}; take that offline first"
        ));
    }
    let disk = row.disk.as_ref()?;
    if let Some(holder) = disk.holders.first() {
        return Some(format!("{holder} is made of it"));
    }
    let (Ok(mounts), Ok(swaps)) = (
        std::fs::read_to_string("/proc/self/mountinfo"),
        std::fs::read_to_string("/proc/swaps"),
    ) else {
        return Some("nobody knows what the host uses of it".to_owned());
    };
    // Names of mounted devices may be others than the kernel's: their numbers are not.
    let is_mounted = |line: &&str| {
        let number = line.split_whitespace().nth(2);
        number.is_some_and(|number| disk.numbers.iter().any(|own| own == number))
    };
    if mounts.lines().any(|line| is_mounted(&line)) {
        return Some("the host has mounted a filesystem on it".to_owned());
    }
    let mut devices = swaps
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let device = devices.find(|device| is_of(device, &disk.name))?;
    Some(format!("the host uses {device}"))
}

/// Whether a path is that of a disk or of a partition of it.
fn is_of(path: &str, disk: &str) -> bool {
    let rest = path
        .strip_prefix("/dev/")
        .and_then(|name| name.strip_prefix(disk));
    rest.is_some_and(|rest| {
        rest.trim_start_matches('p')
            .chars()
            .all(|c| c.is_ascii_digit())
    })
}

/// The lights and the bay of a pool's device, by its GUID, as it was when it last worked.
fn remembered(parts: &Parts, word: &str) -> Option<(Option<Lamp>, Option<String>)> {
    let device: Guid = word.parse().ok()?;
    let book = parts.drives.book.lock();
    let place = book.as_ref().ok()?.place_of(device)?;
    Some((place.lamp.clone(), place.bay.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bay_that_two_disks_are_in_keeps_its_power() {
        let row = |id: &str, bay: &str| Row {
            state: api::DiskState {
                id: id.to_owned(),
                path: format!("/dev/{id}"),
                bay: Some(bay.to_owned()),
                ..api::DiskState::default()
            },
            disk: None,
            lamp: None,
        };
        let (one, other) = (row("a", "PCI slot 1"), row("b", "PCI slot 2"));
        assert_eq!(shares_bay(&one, &[row("a", "PCI slot 1"), other]), None);
        let all = [row("b", "PCI slot 1"), row("a", "PCI slot 1")];
        assert_eq!(
            shares_bay(&one, &all).as_deref(),
            Some("/dev/b is in the same bay")
        );
        let mut gone = row("b", "PCI slot 1");
        gone.state.condition = DiskCondition::Missing;
        assert_eq!(shares_bay(&one, &[gone]), None);
    }

    #[test]
    fn a_disk_that_somebody_uses_keeps_its_power() {
        let row = |state| {
            let mut row = Row {
                state: api::DiskState::default(),
                disk: Some(drives::Disk {
                    name: "no-such-disk".to_owned(),
                    ..drives::Disk::default()
                }),
                lamp: None,
            };
            row.state.members.push(DiskMember {
                pool: "tank".to_owned(),
                guid: Guid(1),
                path: "/dev/no-such-disk1".to_owned(),
                vdev: "mirror-0".to_owned(),
                state,
            });
            row
        };
        for state in [VdevState::Online, VdevState::Degraded, VdevState::Available] {
            assert!(user(&row(state)).is_some(), "{state:?}");
        }
        let mut idle = row(VdevState::Offline);
        assert_eq!(user(&idle), None);
        idle.disk
            .as_mut()
            .expect("a disk")
            .holders
            .push("dm-3".to_owned());
        assert_eq!(user(&idle).as_deref(), Some("dm-3 is made of it"));
        for (path, disk, expected) in [
            ("/dev/sda", "sda", true),
            ("/dev/sda2", "sda", true),
            ("/dev/nvme0n1p3", "nvme0n1", true),
            ("/dev/sdab", "sda", false),
            ("tmpfs", "sda", false),
        ] {
            assert_eq!(is_of(path, disk), expected, "{path}");
        }
    }
}
