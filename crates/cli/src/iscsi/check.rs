//! `millpond iscsi check`: what the paths to a target carry, looked at from where an initiator is.
//!
//! It needs no server of ours on this host, nor one at the other end: it speaks iSCSI with any
//! target, and writes nothing. Which paths there are it asks the target (SendTargets). Of each it
//! tells the longest packet that this host's link takes and the longest that gets to the target
//! (module `mtu`), how long a ping by iSCSI (NOP-Out) takes, and how much it reads of a unit, one
//! path after the other and then all together. Packets that are lost on the way back show as reads
//! of which nothing comes.
//!
//! The target may be anybody's. What it says of itself was checked by the crate that speaks with it
//! (names, addresses, words), and it has so long for each answer, and so many paths.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use serve_iscsi::{ChapCredentials, FoundPortal, ISCSI_PORT, Identity, Initiator, UnitFacts};
use tokio::net::TcpStream;

use super::advice;
use super::mtu::{self, PathMtu, WhyUnknown};
use crate::columns::{self, Column};
use crate::numbers::{nice_bytes, nice_time};
use crate::prompt;

/// A portal that does not take a connection in this time is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A session by a path has all that is asked first in this time, or is given up.
const SESSION_TIMEOUT: Duration = Duration::from_secs(60);
/// Names of targets that are told at once.
const NAMES_MAX: usize = 16;
/// Pings of each path, of which the one in the middle is told.
const PINGS: usize = 21;
/// Before anything is measured what is read comes into the target's memory.
const WARM_UP: Duration = Duration::from_millis(500);
/// Paths that are looked at, at most.
const PATHS_MAX: usize = 64;
/// Together, paths carry less than this part of what they carry alone where they share something.
const SHARED_BELOW: f64 = 0.8;
/// Where Linux keeps the name of this host's initiator (iscsid(8)).
const NAME_FILE: &str = "/etc/iscsi/initiatorname.iscsi";
const NAME: &str = "iqn.2026-11.io.millpond:check";

/// Looks at the paths from this host to an iSCSI target: packets, latency, rate.
#[derive(Debug, Args)]
pub struct Check {
    /// Where the target is: one of its addresses, with a port unless that is 3260
    address: String,
    /// The target (default: the first that discovery names)
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    /// The unit that is read
    #[arg(long, default_value_t = 0)]
    lun: u16,
    /// The CHAP user; the secret is asked for, or read from standard input
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The initiator's name (default: this host's)
    #[arg(long, value_name = "IQN")]
    initiator: Option<String>,
    /// How long each measurement of a rate takes, in seconds; 0 for none
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(..=3600))]
    seconds: u64,
    /// Print JSON, with exact numbers
    #[arg(short, long)]
    json: bool,
}

/// What a look at a target's paths gave.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Targets that discovery named.
    targets: Vec<String>,
    /// The one that was looked at; none where this initiator may use none.
    target: Option<String>,
    /// What its unit says of itself.
    unit: Option<Unit>,
    paths: Vec<Path>,
    /// All paths at the same time, in bytes a second.
    together_bytes_per_second: Option<u64>,
    /// What is to be said of it.
    findings: Vec<String>,
    /// How to have a system use all paths for every request: lines of its files and commands.
    advice: Vec<advice::Advice>,
}

/// A unit.
#[derive(Debug, Serialize)]
struct Unit {
    lun: u16,
    vendor: String,
    product: String,
    /// Its name (`naa.…`), empty without one.
    name: String,
    size_bytes: u64,
}

/// A path: from this host to a portal.
#[derive(Debug, Serialize)]
pub(super) struct Path {
    pub(super) portal: SocketAddr,
    /// The portal group.
    pub(super) group: u16,
    /// This host's address on it.
    pub(super) from: Option<IpAddr>,
    /// The longest packet that this host's link takes, in bytes with IP's header.
    pub(super) link_mtu_bytes: Option<u32>,
    /// The longest that gets to the target.
    pub(super) path_mtu_bytes: Option<u32>,
    /// How that is known.
    pub(super) path_mtu_by: Known,
    /// A ping by iSCSI, there and back.
    pub(super) latency_ns: Option<u64>,
    pub(super) bytes_per_second: Option<u64>,
    /// Why there is no more of it.
    pub(super) error: Option<String>,
}

/// How a path's longest packet is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Known {
    /// Pings were answered.
    Ping,
    /// Pings are not answered, or not allowed to this user: what the kernel has learned from a
    /// connection with much data.
    Connection,
    Not,
}

impl Check {
    /// Looks, and tells.
    pub fn run(self) -> anyhow::Result<()> {
        let secret = match &self.user {
            Some(user) => Some(prompt::once(&format!("Secret of '{user}':"))?),
            None => None,
        };
        let credentials = self.user.clone().zip(secret);
        let credentials = credentials.map(|(user, secret)| ChapCredentials {
            user,
            secret: secret.0.as_bytes().to_vec(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let report = runtime.block_on(self.look(credentials))?;
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&report)?),
            false => print!("{}", report.text()),
        }
        Ok(())
    }

    fn identity(&self, credentials: Option<ChapCredentials>, path: usize) -> Identity {
        let [_, random @ ..] = std::process::id().to_be_bytes();
        Identity {
            name: self.initiator.clone().unwrap_or_else(own_name),
            random,
            qualifier: path as u16,
            credentials,
        }
    }

    async fn look(&self, credentials: Option<ChapCredentials>) -> anyhow::Result<Report> {
        let asked = resolve(&self.address).await?;
        let socket = connect(asked).await;
        let socket = socket.with_context(|| format!("cannot reach a target at {asked}"))?;
        let who = self.identity(credentials.clone(), PATHS_MAX);
        let found = Initiator::discover(socket, &who).await;
        let found = found.with_context(|| format!("cannot ask {asked} for its targets"))?;
        let mut report = Report {
            targets: found.iter().map(|target| target.iqn.clone()).collect(),
            ..Report::default()
        };
        let target = match &self.target {
            Some(iqn) => match found.iter().find(|target| target.iqn == *iqn) {
                Some(target) => Some(target),
                None => bail!(
                    "{asked} names no target {iqn} to this initiator; it names {}",
                    match report.targets.is_empty() {
                        true => "none (--user NAME logs in with a secret)".to_owned(),
                        false => some_of(&report.targets),
                    }
                ),
            },
            None => found.first(),
        };
        report.target = target.map(|target| target.iqn.clone());
        let portals = match target {
            Some(target) if !target.portals.is_empty() => portals_of(&target.portals).await,
            _ => vec![(asked, 1)],
        };
        let looks = portals
            .into_iter()
            .map(|(portal, group)| tokio::task::spawn_blocking(move || Path::new(portal, group)));
        for path in futures_of(looks).await {
            report.paths.push(path?);
        }
        if let Some(iqn) = report.target.clone() {
            self.measure(&mut report, &iqn, credentials).await;
        } else {
            report.findings.push(
                "the target names nothing that this initiator may use: without a secret \
                 (--user NAME) only packets can be looked at"
                    .to_owned(),
            );
        }
        report.find();
        Ok(report)
    }

    /// Latency and rate of each path, then the rate of all.
    async fn measure(&self, report: &mut Report, iqn: &str, credentials: Option<ChapCredentials>) {
        let time = Duration::from_secs(self.seconds);
        let mut sessions = Vec::new();
        let mut unit = None;
        for (index, path) in report.paths.iter_mut().enumerate() {
            let who = self.identity(credentials.clone(), index);
            let session = tokio::time::timeout(SESSION_TIMEOUT, self.session(path, iqn, &who));
            let session = session.await.unwrap_or_else(|_| {
                let seconds = SESSION_TIMEOUT.as_secs();
                Err(anyhow::anyhow!(
                    "it does not answer all within {seconds} seconds"
                ))
            });
            match session {
                Ok((session, facts)) => {
                    unit.get_or_insert_with(|| facts.clone());
                    sessions.push((index, session, facts));
                }
                Err(error) => path.error = Some(format!("{error:#}")),
            }
        }
        report.unit = unit.map(|facts| Unit {
            lun: self.lun,
            size_bytes: facts.blocks.saturating_mul(facts.block_bytes.into()),
            vendor: facts.vendor,
            product: facts.product,
            name: facts.naa,
        });
        if self.seconds == 0 {
            return;
        }
        let mut alive = Vec::new();
        for (number, (index, mut session, facts)) in sessions.into_iter().enumerate() {
            let path = &mut report.paths[index];
            if number == 0 {
                // What is wrong with it shows below.
                let _ = session.read_for(self.lun, &facts, WARM_UP.min(time)).await;
            }
            match session.read_for(self.lun, &facts, time).await {
                Ok(rate) => {
                    path.bytes_per_second = Some(rate.bytes_per_second());
                    path.connection_tells(&session);
                    alive.push((index, session, facts));
                }
                Err(error) => path.error = Some(format!("reading: {error}")),
            }
        }
        if alive.len() < 2 {
            return;
        }
        let lun = self.lun;
        let reads = alive.into_iter().map(|(index, mut session, facts)| {
            tokio::spawn(async move {
                let rate = session.read_for(lun, &facts, time).await;
                (index, rate)
            })
        });
        let mut together = 0;
        for read in futures_of(reads).await {
            match read {
                Ok((_, Ok(rate))) => together += rate.bytes_per_second(),
                Ok((index, Err(error))) => {
                    report.paths[index].error = Some(format!("reading with all others: {error}"));
                }
                Err(error) => report
                    .findings
                    .push(format!("a measurement failed: {error}")),
            }
        }
        report.together_bytes_per_second = Some(together);
    }

    /// A session by one path, and how long its pings take.
    async fn session(
        &self,
        path: &mut Path,
        iqn: &str,
        who: &Identity,
    ) -> anyhow::Result<(Initiator, UnitFacts)> {
        let socket = connect(path.portal).await?;
        path.from = Some(socket.local_addr()?.ip());
        let mut session = Initiator::log_in(socket, iqn, who).await?;
        let mut times = Vec::new();
        for _ in 0..PINGS {
            times.push(session.ping(0).await?);
        }
        times.sort();
        path.latency_ns = u64::try_from(times[PINGS / 2].as_nanos()).ok();
        let facts = session.unit(self.lun).await?;
        path.connection_tells(&session);
        Ok((session, facts))
    }
}

impl Path {
    /// Looks at how long packets may be; blocks.
    fn new(portal: SocketAddr, group: u16) -> Self {
        let peer = portal.ip();
        let link = mtu::of_link(peer);
        let (path_mtu_bytes, path_mtu_by) = match link.map(|link| mtu::of_path(peer, link)) {
            Some(PathMtu::Measured(bytes)) => (Some(bytes), Known::Ping),
            Some(PathMtu::Unknown(WhyUnknown::Silent | WhyUnknown::MayNot)) | None => {
                (None, Known::Not)
            }
        };
        Self {
            portal,
            group,
            from: None,
            link_mtu_bytes: link,
            path_mtu_bytes,
            path_mtu_by,
            latency_ns: None,
            bytes_per_second: None,
            error: None,
        }
    }

    /// Takes what the kernel knows of the path from a connection, where pings did not tell.
    fn connection_tells(&mut self, session: &Initiator) {
        if self.path_mtu_by == Known::Ping {
            return;
        }
        if let Some(bytes) = mtu::of_connection(session.socket(), self.portal.ip()) {
            self.path_mtu_bytes = Some(bytes.min(self.link_mtu_bytes.unwrap_or(bytes)));
            self.path_mtu_by = Known::Connection;
        }
    }
}

/// This host's initiator name, which targets may know; one of our own where there is none.
fn own_name() -> String {
    let text = std::fs::read_to_string(NAME_FILE).unwrap_or_default();
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("InitiatorName="));
    lines.next().map_or(NAME, str::trim).to_owned()
}

async fn resolve(address: &str) -> anyhow::Result<SocketAddr> {
    let unknown = || format!("'{address}' is no address, and no name of a host");
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, ISCSI_PORT));
    }
    let with_port = match address.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => address.to_owned(),
        _ => format!("{address}:{ISCSI_PORT}"),
    };
    let mut found = tokio::net::lookup_host(&with_port)
        .await
        .with_context(unknown)?;
    found.next().with_context(unknown)
}

async fn connect(portal: SocketAddr) -> anyhow::Result<TcpStream> {
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(portal)).await;
    let socket = connected.with_context(|| {
        let seconds = CONNECT_TIMEOUT.as_secs();
        format!("{portal} does not answer for {seconds} seconds")
    })??;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Some names of targets, in words.
fn some_of(names: &[String]) -> String {
    let told = names.iter().take(NAMES_MAX).map(String::as_str);
    let told = told.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => told,
        more => format!("{told} and {more} more"),
    }
}

/// Where the first portals are, each address once; those that cannot be found in time are left out.
async fn portals_of(portals: &[FoundPortal]) -> Vec<(SocketAddr, u16)> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for portal in portals.iter().take(PATHS_MAX) {
        let found = tokio::time::timeout(CONNECT_TIMEOUT, resolve(&portal.address)).await;
        if let Ok(Ok(address)) = found
            && seen.insert(address)
        {
            all.push((address, portal.group));
        }
    }
    all
}

/// What tasks that run side by side end with, in their order.
async fn futures_of<T>(
    tasks: impl Iterator<Item = tokio::task::JoinHandle<T>>,
) -> Vec<Result<T, tokio::task::JoinError>> {
    let tasks: Vec<_> = tasks.collect();
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await);
    }
    all
}

impl Report {
    /// What is to be said of it, and what to do.
    fn find(&mut self) {
        self.findings
            .extend(findings(&self.paths, self.together_bytes_per_second));
        if self.paths.len() > 1
            && let Some(unit) = &self.unit
        {
            self.advice = advice::of(&unit.vendor, &unit.product, &unit.name);
            if self.advice.is_empty() {
                self.findings.push(
                    "how a system uses all of its paths, the maker of this target says".to_owned(),
                );
            }
        }
    }

    fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |text: &str| {
            out.push_str(text);
            out.push('\n');
        };
        if let Some(target) = &self.target {
            line(&format!("target: {target}"));
        }
        if self.targets.len() > 1 {
            line(&format!(
                "of {} targets; --target takes another one",
                self.targets.len()
            ));
        }
        if let Some(unit) = &self.unit {
            let size = nice_bytes(unit.size_bytes);
            line(&format!(
                "unit {}: {} {}, {size}, {}",
                unit.lun, unit.vendor, unit.product, unit.name
            ));
        }
        line("");
        let columns = [
            Column::left("PORTAL"),
            Column::left("FROM"),
            Column::right("LINK MTU"),
            Column::right("PATH MTU"),
            Column::right("LATENCY"),
            Column::right("READS/s"),
        ];
        let dash = || "-".to_owned();
        let number = |number: Option<u32>| number.map_or_else(dash, |bytes| bytes.to_string());
        let rate = |rate: Option<u64>| rate.map_or_else(dash, nice_bytes);
        let mut rows: Vec<Vec<String>> = Vec::new();
        for path in &self.paths {
            rows.push(vec![
                path.portal.to_string(),
                path.from.map_or_else(dash, |from| from.to_string()),
                number(path.link_mtu_bytes),
                number(path.path_mtu_bytes),
                path.latency_ns.map_or_else(dash, nice_time),
                rate(path.bytes_per_second),
            ]);
        }
        if self.together_bytes_per_second.is_some() {
            let together = rate(self.together_bytes_per_second);
            let mut row = vec!["together".to_owned()];
            row.extend(std::iter::repeat_with(dash).take(4));
            row.push(together);
            rows.push(row);
        }
        out.push_str(&columns::render(&columns, &rows, false));
        for finding in &self.findings {
            out.push_str(&format!("\n{finding}\n"));
        }
        for advice in &self.advice {
            out.push_str(&format!("\n{}:\n", advice.of));
            for line in &advice.lines {
                out.push_str(&format!("    {line}\n"));
            }
        }
        out
    }
}

/// What is to be said of paths.
fn findings(paths: &[Path], together: Option<u64>) -> Vec<String> {
    let mut all = Vec::new();
    for path in paths {
        let portal = path.portal;
        if let Some(error) = &path.error {
            all.push(format!("{portal}: {error}"));
        }
        match (path.link_mtu_bytes, path.path_mtu_bytes, path.path_mtu_by) {
            (Some(link), Some(whole), known) if whole < link => {
                let loss = match known {
                    Known::Ping => "longer pings are not answered",
                    Known::Connection | Known::Not => "so says the kernel, of a connection",
                };
                all.push(format!(
                    "{portal}: this host's link takes packets of {link} bytes, the path {whole} \
                     ({loss}). Set the switches between and the target's interface to {link} as \
                     well, or this link to {whole}."
                ));
            }
            (Some(link), Some(_), Known::Connection) => all.push(format!(
                "{portal}: pings are not answered, or not allowed to this user, so nobody knows \
                 whether packets of {link} bytes come through; run it as root."
            )),
            _ => {}
        }
    }
    let mtus: BTreeSet<u32> = paths
        .iter()
        .filter_map(|path| path.path_mtu_bytes)
        .collect();
    if mtus.len() > 1 {
        let mtus: Vec<String> = mtus.iter().map(u32::to_string).collect();
        all.push(format!(
            "the paths take packets of {} bytes",
            mtus.join(", ")
        ));
    }
    for (index, path) in paths.iter().enumerate() {
        let others = paths[..index].iter();
        let same = others.filter(|other| path.from.is_some() && other.from == path.from);
        if let (Some(from), Some(other)) = (path.from, same.into_iter().next()) {
            match from == path.portal.ip() || from.is_loopback() {
                true => {}
                false => all.push(format!(
                    "{} and {} leave this host by the same address, {from}: they share its link",
                    other.portal, path.portal
                )),
            }
        }
    }
    if paths
        .iter()
        .any(|path| path.from.is_some_and(|from| from == path.portal.ip()))
    {
        all.push(
            "a portal is on this host itself: rates and packets of such a path say nothing of a \
             network; run it where the initiators are"
                .to_owned(),
        );
    }
    let alone: u64 = paths.iter().filter_map(|path| path.bytes_per_second).sum();
    if let Some(together) = together
        && (together as f64) < alone as f64 * SHARED_BELOW
    {
        all.push(format!(
            "together the paths carry {} a second, one by one they carry {}: something that they \
             share is full (a link, a switch, this host, or the target's processors or disks)",
            nice_bytes(together),
            nice_bytes(alone)
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(portal: &str, from: &str, link: u32, whole: Option<u32>, known: Known) -> Path {
        Path {
            portal: portal.parse().expect("a portal"),
            group: 1,
            from: Some(from.parse().expect("an address")),
            link_mtu_bytes: Some(link),
            path_mtu_bytes: whole,
            path_mtu_by: known,
            latency_ns: Some(100_000),
            bytes_per_second: Some(100 << 20),
            error: None,
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = path("10.0.0.1:3260", "10.0.0.2", 9000, Some(9000), Known::Ping);
        assert!(findings(std::slice::from_ref(&good), None).is_empty());
        let short = path("10.0.1.1:3260", "10.0.1.2", 9000, Some(1500), Known::Ping);
        let said = findings(&[good, short], Some(200 << 20));
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("10.0.1.1:3260") && said[0].contains("1500"));
        assert!(said[1].contains("1500, 9000"));

        let one = path("10.0.0.1:3260", "10.0.0.2", 1500, Some(1500), Known::Ping);
        let other = path(
            "10.0.0.3:3260",
            "10.0.0.2",
            1500,
            Some(1500),
            Known::Connection,
        );
        let said = findings(&[one, other], Some(90 << 20));
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].contains("run it as root"));
        assert!(said[1].contains("same address"));
        assert!(said[2].contains("90M") && said[2].contains("200M"));

        let mut lost = path("10.0.0.1:3260", "10.0.0.1", 65535, None, Known::Not);
        lost.error = Some("reading: nothing comes".into());
        let said = findings(&[lost], None);
        assert!(said[0].contains("nothing comes") && said[1].contains("on this host"));
    }

    /// Goal: one copies lines for targets of ours alone; of others their maker is named.
    #[test]
    fn only_targets_of_ours_have_advice() {
        let report = |vendor: &str| {
            let paths = ["10.0.0.1:3260", "10.0.1.1:3260"]
                .map(|portal| path(portal, "10.0.9.9", 1500, Some(1500), Known::Ping));
            let mut report = Report {
                unit: Some(Unit {
                    lun: 0,
                    vendor: vendor.into(),
                    product: "VOLUME".into(),
                    name: "naa.6001".into(),
                    size_bytes: 1 << 30,
                }),
                paths: paths.into(),
                ..Report::default()
            };
            report.find();
            report.text()
        };
        let (ours, theirs) = (report("MILLPOND"), report("OTHER"));
        assert!(
            ours.contains("multibus") && !ours.contains("the maker"),
            "{ours}"
        );
        assert!(
            !theirs.contains("multibus") && theirs.contains("the maker"),
            "{theirs}"
        );
    }

    #[test]
    fn not_more_names_are_told_than_one_reads() {
        let names = |count: usize| vec!["iqn.a".to_owned(); count];
        assert_eq!(some_of(&names(2)), "iqn.a, iqn.a");
        assert!(some_of(&names(20)).ends_with("iqn.a and 4 more"));
    }

    #[tokio::test]
    async fn addresses_have_the_port_of_iscsi_unless_they_say_another() {
        for (given, meant) in [
            ("10.0.0.1", "10.0.0.1:3260"),
            ("10.0.0.1:3261", "10.0.0.1:3261"),
            ("::1", "[::1]:3260"),
            ("[::1]", "[::1]:3260"),
            ("[::1]:3261", "[::1]:3261"),
        ] {
            let found = resolve(given).await.expect("an address");
            assert_eq!(found.to_string(), meant);
        }
        assert!(resolve("no such host.").await.is_err());
    }
}
