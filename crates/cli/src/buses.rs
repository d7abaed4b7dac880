//! `millpond disks buses`: controllers, links and the network, and what holds up each pool.

use ::plan::amount::show_bytes;
use api::{
    BusLink, Controller, ControllerKind, HostBuses, HostBusesReply, LinkKind, LinkWidth,
    NetworkPort, PoolBuses, PoolLimit,
};

use crate::client::Client;
use crate::columns::{self, Column};

/// Does it.
pub fn run(client: &Client, json: bool, scripted: bool) -> anyhow::Result<()> {
    let reply = client.call(&HostBuses {})?;
    match json {
        true => println!("{}", serde_json::to_string_pretty(&reply)?),
        false => print!("{}", text(&reply, scripted)),
    }
    Ok(())
}

fn text(reply: &HostBusesReply, scripted: bool) -> String {
    let mut tables = Vec::new();
    let mut table = |columns: &[Column], rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            tables.push(columns::render(columns, &rows, scripted));
        }
    };
    table(
        &[
            Column::left("CONTROLLER"),
            Column::left("KIND"),
            Column::left("DRIVER"),
            Column::left("SLOT"),
            Column::left("DISKS"),
        ],
        reply.controllers.iter().map(controller).collect(),
    );
    table(
        &[
            Column::left("LINK"),
            Column::left("RUNS AS"),
            Column::left("COULD"),
            Column::left("ABOVE"),
            Column::right("CARRIES"),
            Column::right("DISKS"),
            Column::right("THEY DO"),
            Column::right("FULL"),
        ],
        reply.links.iter().map(link).collect(),
    );
    table(
        &[
            Column::left("NETWORK"),
            Column::left("STATE"),
            Column::left("PART OF"),
            Column::left("LINK"),
            Column::right("CARRIES"),
        ],
        reply.networks.iter().map(network).collect(),
    );
    table(
        &[
            Column::left("POOL"),
            Column::right("DISKS"),
            Column::right("THEY DO"),
            Column::right("GETS THROUGH"),
            Column::right("DATA"),
            Column::left("LIMITED BY"),
        ],
        reply.pools.iter().map(pool).collect(),
    );
    let mut out = tables.join("\n");
    if !scripted {
        let sentences = sentences(reply);
        if !out.is_empty() && !sentences.is_empty() {
            out.push('\n');
        }
        for sentence in sentences {
            out.push_str(&sentence);
            out.push('\n');
        }
    }
    out
}

fn dash() -> String {
    "-".to_owned()
}

fn rate(bytes: u64) -> String {
    format!("{}/s", show_bytes(bytes))
}

fn controller(controller: &Controller) -> Vec<String> {
    let kind = match controller.kind {
        ControllerKind::Sata => "SATA",
        ControllerKind::Sas => "SAS",
        ControllerKind::Raid => "RAID",
        ControllerKind::Nvme => "NVMe",
        ControllerKind::Virtio => "virtio",
        ControllerKind::Usb => "USB",
        ControllerKind::Other => "other",
    };
    vec![
        controller.address.clone(),
        kind.to_owned(),
        controller.driver.clone().unwrap_or_else(dash),
        controller.slot.clone().unwrap_or_else(dash),
        controller.disks.join(" "),
    ]
}

/// A link as the planner's option `--bus` takes it.
fn word(kind: LinkKind, width: LinkWidth) -> String {
    let LinkWidth { generation, lanes } = width;
    match kind {
        LinkKind::Pcie => format!("pcie{generation}x{lanes}"),
        LinkKind::Sata => format!("sata{generation}"),
        LinkKind::Sas => format!("sas{generation}x{lanes}"),
    }
}

fn link(link: &BusLink) -> Vec<String> {
    let full = link.rate.filter(|rate| *rate > 0);
    let full = full.map(|rate| link.disks_rate as f64 / rate as f64 * 100.0);
    vec![
        link.id.clone(),
        word(link.kind, link.width),
        link.could.map_or_else(dash, |could| word(link.kind, could)),
        link.above.clone().unwrap_or_else(dash),
        link.rate.map_or_else(dash, rate),
        link.disks.len().to_string(),
        rate(link.disks_rate),
        full.map_or_else(dash, |percent| format!("{percent:.0}%")),
    ]
}

fn network(port: &NetworkPort) -> Vec<String> {
    vec![
        port.name.clone(),
        if port.is_up { "up" } else { "down" }.to_owned(),
        port.part_of.clone().unwrap_or_else(dash),
        port.link.clone().unwrap_or_else(dash),
        port.rate.map_or_else(dash, rate),
    ]
}

fn pool(pool: &PoolBuses) -> Vec<String> {
    vec![
        pool.pool.clone(),
        pool.disks.len().to_string(),
        rate(pool.disks_rate),
        rate(pool.rate),
        rate(pool.data_rate),
        match &pool.limited_by {
            PoolLimit::Disks if pool.disks.is_empty() => dash(),
            PoolLimit::Disks => "disks".to_owned(),
            PoolLimit::Network => "network".to_owned(),
            PoolLimit::Link { id } => id.clone(),
        },
    ]
}

/// What is to be known of it.
fn sentences(reply: &HostBusesReply) -> Vec<String> {
    let mut out = Vec::new();
    for link in &reply.links {
        let Some(could) = link.could.filter(|could| {
            could.lanes > link.width.lanes || could.generation > link.width.generation
        }) else {
            continue;
        };
        out.push(format!(
            "{} runs as {}, and both its ends could do {}: look at how the card sits in its slot, \
             and at the firmware's settings. Some links are slower while nothing uses them.",
            link.id,
            word(link.kind, link.width),
            word(link.kind, could)
        ));
    }
    for pool in &reply.pools {
        match &pool.limited_by {
            PoolLimit::Link { id } => {
                let link = reply.links.iter().find(|link| link.id == *id);
                let what = link.map_or_else(String::new, |link| {
                    format!(" ({})", word(link.kind, link.width))
                });
                out.push(format!(
                    "{}: {id}{what} is full before the disks are: {} of {} get through.",
                    pool.pool,
                    rate(pool.rate),
                    rate(pool.disks_rate)
                ));
            }
            PoolLimit::Network => out.push(format!(
                "{}: the network carries {} of the {} of data that it can read.",
                pool.pool,
                rate(reply.network_rate.unwrap_or(0)),
                rate(pool.data_rate)
            )),
            PoolLimit::Disks => {}
        }
        if pool.unknown_devices > 0 {
            out.push(format!(
                "{}: of {} of its devices it is not known what they hang on (files, or devices \
                 that are not of hardware); they are left out.",
                pool.pool, pool.unknown_devices
            ));
        }
    }
    if !reply.disks.is_empty() {
        out.push(
            "Rates of disks are what is usual for their kind; all are taken to be busy at the \
             same time."
                .to_owned(),
        );
    }
    if out.is_empty() && reply.networks.is_empty() {
        out.push("there are no disks".to_owned());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bottleneck_is_told_with_what_it_is() {
        let reply = HostBusesReply {
            links: vec![BusLink {
                id: "0000:03:00".into(),
                width: LinkWidth {
                    generation: 2,
                    lanes: 4,
                },
                could: Some(LinkWidth {
                    generation: 3,
                    lanes: 4,
                }),
                rate: Some(1_600_000_000),
                disks: vec!["sda".into()],
                disks_rate: 3_600_000_000,
                ..BusLink::default()
            }],
            pools: vec![
                PoolBuses {
                    pool: "tank".into(),
                    disks: vec!["sda".into()],
                    disks_rate: 3_600_000_000,
                    rate: 1_600_000_000,
                    data_rate: 1_280_000_000,
                    limited_by: PoolLimit::Link {
                        id: "0000:03:00".into(),
                    },
                    ..PoolBuses::default()
                },
                PoolBuses {
                    pool: "files".into(),
                    unknown_devices: 2,
                    ..PoolBuses::default()
                },
            ],
            ..HostBusesReply::default()
        };
        let out = text(&reply, false);
        for expected in [
            "0000:03:00",
            "pcie2x4",
            "225%",
            "0000:03:00 runs as pcie2x4, and both its ends could do pcie3x4",
            "tank: 0000:03:00 (pcie2x4) is full before the disks are: 1.60 GB/s of 3.60 GB/s",
            "files: of 2 of its devices it is not known",
        ] {
            assert!(out.contains(expected), "{expected} in {out}");
        }
        assert!(!out.contains("NETWORK"), "{out}");
        // For programs there are no sentences.
        assert!(!text(&reply, true).contains("is full"));
        assert_eq!(
            text(&HostBusesReply::default(), false),
            "there are no disks\n"
        );
    }
}
