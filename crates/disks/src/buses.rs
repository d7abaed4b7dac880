//! What lies between disks and clients, and what of it is the bottleneck of each pool.
//!
//! Rates of links are those of the planner ([`plan::Bus`]); rates of disks those that are usual
//! for their kind, as it takes them. Nothing is measured.
//!
//! A pool's streams are spread over its disks evenly, so each link carries the rates of the pool's
//! disks behind it, and the link that is full first holds up the others: the pool moves its disks'
//! rates divided by how often the fullest link would have to be there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::{
    BusDisk, BusLink, Controller, HostBusesReply, LinkKind, LinkWidth, NetworkPort, PoolBuses,
    PoolLimit, VdevClass, VdevKind, VdevReport,
};
use drives::buses::{Network, Way};
use plan::{Bus, DiskKind, Layout};
use service::reports;

use crate::Parts;
use crate::overview::disks_of;

/// A disk of the host.
struct Found {
    name: String,
    rate: u64,
    way: Way,
}

/// A device that holds data of a pool.
#[derive(Debug, Clone, PartialEq)]
struct Member {
    path: String,
    /// Part of what it reads that is data when clients read everything, 0 to 1.
    data_share: f64,
}

/// A pool, and the disks of each of its devices.
struct Placed {
    pool: String,
    members: Vec<(Member, Vec<String>)>,
}

/// `millpond disks buses`.
pub async fn buses(parts: &Parts) -> HostBusesReply {
    let pools: Vec<(String, Vec<Member>)> = parts
        .pools
        .all()
        .iter()
        .map(|open| {
            let status = reports::pool_status(&open.pool);
            (status.name.clone(), members(&status.tree))
        })
        .collect();
    let drives = Arc::clone(&parts.drives);
    let look = move || {
        let sysfs = drives.sysfs();
        let disks = sysfs.disks().into_iter().filter(|disk| disk.is_hardware);
        let disks: Vec<Found> = disks
            .map(|disk| {
                let kind = match disk.is_rotational {
                    true => DiskKind::Hdd,
                    false if disk.transport == api::Transport::Nvme => DiskKind::Nvme,
                    false => DiskKind::Ssd,
                };
                Found {
                    way: drives::buses::way_of_disk(sysfs, &disk.name),
                    rate: kind.usual_rate(),
                    name: disk.name,
                }
            })
            .collect();
        let place = |member: Member| {
            let on = disks_of(&drives, &member.path);
            (member, on)
        };
        let pools: Vec<Placed> = pools
            .into_iter()
            .map(|(pool, members)| Placed {
                pool,
                members: members.into_iter().map(place).collect(),
            })
            .collect();
        reply(&disks, &drives::buses::networks(sysfs), &pools)
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

/// The devices that hold a pool's data: no logs, no caches, no spares that stand by.
fn members(root: &VdevReport) -> Vec<Member> {
    fn leaves(vdev: &VdevReport, data_share: f64, out: &mut Vec<Member>) {
        for child in &vdev.children {
            leaves(child, data_share, out);
        }
        if let (true, Some(path)) = (vdev.children.is_empty(), &vdev.path) {
            out.push(Member {
                path: path.clone(),
                data_share,
            });
        }
    }
    let mut out = Vec::new();
    for vdev in &root.children {
        if vdev.class == VdevClass::Normal {
            leaves(vdev, data_share(vdev), &mut out);
        }
    }
    out
}

/// Part of what the disks of a top-level vdev read that is data. The layout of dRAID is in its
/// name, as OpenZFS makes it: `draid2:4d:11c:1s-0`.
fn data_share(vdev: &VdevReport) -> f64 {
    let children = vdev.children.len() as f64;
    match vdev.kind {
        VdevKind::Raidz => (children - f64::from(vdev.parity)) / children,
        VdevKind::Draid => {
            let word = vdev.name.rsplit_once('-').map_or("", |(word, _)| word);
            let layout: Option<Layout> = word.parse().ok();
            layout.map_or(1.0, |layout| layout.data_disks_of_vdev() / children)
        }
        _ => 1.0,
    }
}

/// The name by which the planner knows a link.
fn word(kind: LinkKind, width: LinkWidth) -> String {
    let LinkWidth { generation, lanes } = width;
    match kind {
        LinkKind::Pcie => format!("pcie{generation}x{lanes}"),
        LinkKind::Sata => format!("sata{generation}"),
        LinkKind::Sas => format!("sas{generation}x{lanes}"),
    }
}

fn rate_of(kind: LinkKind, width: LinkWidth) -> Option<u64> {
    let bus: Bus = word(kind, width).parse().ok()?;
    Some(bus.read_rate)
}

/// Links and controllers by what they are known by, in the order in which they are found: links
/// nearer to memory come first.
#[derive(Default)]
struct Map {
    links: Vec<BusLink>,
    controllers: BTreeMap<String, Controller>,
}

impl Map {
    /// Notes a way, and the name of the disk that it leads to; gives its last link.
    fn add(&mut self, way: &Way, disk: Option<(&str, u64)>) -> Option<String> {
        let mut above: Option<String> = None;
        for link in &way.links {
            let known = self.links.iter().position(|known| known.id == link.id);
            let index = known.unwrap_or_else(|| {
                self.links.push(BusLink {
                    id: link.id.clone(),
                    kind: link.kind,
                    width: link.width,
                    could: link.could,
                    rate: rate_of(link.kind, link.width),
                    above: above.clone(),
                    ..BusLink::default()
                });
                self.links.len() - 1
            });
            if let Some((name, rate)) = disk {
                let link = &mut self.links[index];
                link.disks.push(name.to_owned());
                link.disks_rate = link.disks_rate.saturating_add(rate);
            }
            above = Some(link.id.clone());
        }
        if let (Some((name, _)), Some(controller)) = (disk, &way.controller) {
            let known = self.controllers.entry(controller.address.clone());
            let known = known.or_insert_with(|| Controller {
                address: controller.address.clone(),
                kind: controller.kind,
                model: controller.model.clone(),
                driver: controller.driver.clone(),
                slot: controller.slot.clone(),
                disks: Vec::new(),
            });
            known.disks.push(name.to_owned());
        }
        above
    }
}

fn reply(disks: &[Found], networks: &[Network], pools: &[Placed]) -> HostBusesReply {
    let mut map = Map::default();
    let mut out = HostBusesReply::default();
    for disk in disks {
        let link = map.add(&disk.way, Some((disk.name.as_str(), disk.rate)));
        let is_on_it = |pool: &&Placed| {
            let mut members = pool.members.iter();
            members.any(|(_, names)| names.contains(&disk.name))
        };
        out.disks.push(BusDisk {
            name: disk.name.clone(),
            rate: disk.rate,
            controller: disk.way.controller.as_ref().map(|it| it.address.clone()),
            link,
            pools: pools
                .iter()
                .filter(is_on_it)
                .map(|pool| pool.pool.clone())
                .collect(),
        });
    }
    for port in networks {
        let link = map.add(&port.way, None);
        out.networks.push(NetworkPort {
            name: port.name.clone(),
            is_up: port.is_up,
            rate: port.bits_per_second.map(|bits| bits / 8),
            part_of: port.part_of.clone(),
            link,
        });
    }
    out.network_rate = network_rate(&out.networks);
    let rates: BTreeMap<&str, u64> = disks.iter().map(|disk| (&*disk.name, disk.rate)).collect();
    out.pools = pools
        .iter()
        .map(|pool| pool_on(pool, &rates, &map.links, out.network_rate))
        .collect();
    out.links = map.links;
    out.controllers = map.controllers.into_values().collect();
    out
}

/// Of the ports that work, those of a bond once: it tells their rate together. A bridge tells none,
/// and its ports count.
fn network_rate(networks: &[NetworkPort]) -> Option<u64> {
    let counts = |port: &&NetworkPort| {
        let above = port.part_of.as_ref();
        let above = above.and_then(|name| networks.iter().find(|port| port.name == *name));
        port.is_up && above.is_none_or(|above| above.rate.is_none())
    };
    let rates = networks.iter().filter(counts).filter_map(|port| port.rate);
    rates.reduce(u64::saturating_add)
}

fn sum<'a>(rates: &BTreeMap<&str, u64>, names: impl Iterator<Item = &'a String>) -> u64 {
    names
        .map(|name| rates[name.as_str()])
        .fold(0, u64::saturating_add)
}

fn pool_on(
    pool: &Placed,
    rates: &BTreeMap<&str, u64>,
    links: &[BusLink],
    network_rate: Option<u64>,
) -> PoolBuses {
    let (mut on, mut data, mut unknown_devices) = (BTreeSet::new(), 0.0, 0);
    for (member, names) in &pool.members {
        // Of a multipath device one path is taken: only one is busy, or both are half as busy.
        let known = names.iter().find(|name| rates.contains_key(name.as_str()));
        match known {
            Some(name) if on.insert(name.clone()) => {
                data += rates[name.as_str()] as f64 * member.data_share;
            }
            // Two partitions of one disk.
            Some(_) => {}
            None => unknown_devices += 1,
        }
    }
    let disks_rate = sum(rates, on.iter());
    // How often a link would have to be there: of the fullest, which one.
    let mut fullest: Option<(f64, &str)> = None;
    for link in links {
        let wanted = sum(rates, link.disks.iter().filter(|name| on.contains(*name)));
        if let Some(rate) = link.rate.filter(|rate| *rate > 0 && wanted > *rate) {
            let times = wanted as f64 / rate as f64;
            if fullest.is_none_or(|(most, _)| times > most) {
                fullest = Some((times, link.id.as_str()));
            }
        }
    }
    let times = fullest.map_or(1.0, |(times, _)| times);
    let data_rate = (data / times) as u64;
    let limited_by = match fullest {
        _ if network_rate.is_some_and(|network| network < data_rate) => PoolLimit::Network,
        Some((_, id)) => PoolLimit::Link { id: id.to_owned() },
        None => PoolLimit::Disks,
    };
    PoolBuses {
        pool: pool.pool.clone(),
        unknown_devices,
        disks_rate,
        rate: (disks_rate as f64 / times) as u64,
        data_rate,
        limited_by,
        disks: on.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests;
