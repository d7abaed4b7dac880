//! `--power` of `zpool offline`, `online`, `clear` and `status`: the power of the bays that devices
//! are in (`zpool_power_on_and_disk_wait` and those after it, cmd/zpool/zpool_main.c).
//!
//! What has no power is no device any more. So it is taken offline first, which is refused where it
//! alone has some data, and its bay is switched off then; OpenZFS switches it off and notes that it
//! was removed.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use api::{DiskPower, Guid, VdevReport, ZpoolStatus};

use super::scripts::is_on;
use super::vdevs::{Naming, leaf_name};
use crate::client::Client;

/// Asks for `--power` where a device is to be used again.
const AUTO: &str = "ZPOOL_AUTO_POWER_ON_SLOT";
/// How long a device may take to come, in milliseconds.
const WITHIN_MS: &str = "ZPOOL_POWER_ON_SLOT_TIMEOUT_MS";
const WITHIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Whether bays are to be switched on.
pub fn is_wanted(option: bool) -> bool {
    option || is_on(AUTO)
}

/// The devices of a pool.
pub fn devices(client: &Client, pool: &str) -> anyhow::Result<Vec<VdevReport>> {
    fn walk(vdev: VdevReport, out: &mut Vec<VdevReport>) {
        let VdevReport { children, .. } = &vdev;
        if children.is_empty() && vdev.path.is_some() {
            out.push(vdev);
            return;
        }
        for child in vdev.children {
            walk(child, out);
        }
    }
    let reply = client.call(&ZpoolStatus {
        names: vec![pool.to_owned()],
        verbose: false,
    })?;
    let mut out = Vec::new();
    for pool in reply.pools {
        walk(pool.tree, &mut out);
    }
    Ok(out)
}

/// The one of these that somebody means: by its name as it is shown, path or GUID.
pub fn named(devices: Vec<VdevReport>, word: &str) -> Option<VdevReport> {
    let is_meant = |vdev: &VdevReport| {
        vdev.path.as_deref() == Some(word)
            || vdev.guid.to_string() == word
            || leaf_name(vdev, Naming::default()) == word
    };
    devices.into_iter().find(is_meant)
}

/// The device of a pool that somebody means.
pub fn device(client: &Client, pool: &str, word: &str) -> anyhow::Result<VdevReport> {
    match named(devices(client, pool)?, word) {
        Some(vdev) => Ok(vdev),
        None => bail!("couldn't find device \"{word}\" in pool \"{pool}\""),
    }
}

fn ask(client: &Client, device: Guid, on: Option<bool>) -> anyhow::Result<Option<bool>> {
    let disk = device.to_string();
    Ok(client.call(&DiskPower { disk, on })?.is_on)
}

/// Refuses where a bay has no switch. A disk that the server does not know has none.
pub fn check_switch(client: &Client, vdev: &VdevReport) -> anyhow::Result<()> {
    match ask(client, vdev.guid, None) {
        Ok(Some(_)) => Ok(()),
        _ => bail!("Power control not supported"),
    }
}

/// Switches the bay of a device off.
pub fn switch_off(client: &Client, vdev: &VdevReport) -> anyhow::Result<()> {
    ask(client, vdev.guid, Some(false)).map(drop)
}

/// Switches the bays of devices on, and waits until these are there; for some time, as one that is
/// broken never comes.
pub fn switch_on(client: &Client, vdevs: &[VdevReport]) -> anyhow::Result<()> {
    for vdev in vdevs {
        check_switch(client, vdev)?;
        ask(client, vdev.guid, Some(true))?;
    }
    let within = std::env::var(WITHIN_MS).ok();
    let within = within.and_then(|text| text.parse().ok());
    let within = within.map_or(WITHIN, Duration::from_millis);
    let begin = Instant::now();
    let is_there = |vdev: &VdevReport| vdev.path.as_ref().is_none_or(|at| Path::new(at).exists());
    while !vdevs.iter().all(is_there) && begin.elapsed() < within {
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Which bays of devices have power, as far as that is known.
pub fn states<'a>(
    client: &Client,
    trees: impl Iterator<Item = &'a VdevReport>,
) -> BTreeMap<Guid, bool> {
    fn walk(client: &Client, vdev: &VdevReport, out: &mut BTreeMap<Guid, bool>) {
        let is_leaf = vdev.children.is_empty() && vdev.path.is_some();
        // Who may not know is told nothing.
        if is_leaf && let Ok(Some(is_on)) = ask(client, vdev.guid, None) {
            out.insert(vdev.guid, is_on);
        }
        for child in &vdev.children {
            walk(client, child, out);
        }
    }
    let mut out = BTreeMap::new();
    for tree in trees {
        walk(client, tree, &mut out);
    }
    out
}
