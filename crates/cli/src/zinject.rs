//! The `zinject` command line (zinject(8), cmd/zinject/zinject.c): faults in the pools of a server
//! that was started with `--inject`, by the words and with the tables of OpenZFS 2.4.

mod tables;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail};
use api::{
    InjectAdd, InjectCancel, InjectCommand, InjectError, InjectFault, InjectIo, InjectRegion,
    InjectState, InjectTune, Source, ZfsList, ZfsMount, ZfsMountList, ZfsMounted, ZfsUnmount,
};
use clap::Parser;
use format::ObjectType;

use crate::client::Client;
use tables::{added, list};

/// Have devices and blocks of pools fail, lie, lose writes and take time: for tests.
#[derive(Debug, Parser)]
#[command(name = "zinject", version, args_override_self = true)]
pub struct Zinject {
    /// Empty the caches in memory
    #[arg(short = 'a')]
    flush: bool,
    /// Have the device be degraded, or faulted: degrade, fault
    #[arg(short = 'A', value_name = "ACTION")]
    action: Option<String>,
    /// Blocks by their place in hexadecimal: OBJSET:OBJECT:LEVEL:BLOCK
    #[arg(short = 'b', value_name = "BOOKMARK")]
    bookmark: Option<String>,
    /// Cancel the handler of this number, or all
    #[arg(short = 'c', value_name = "ID|all")]
    cancel: Option<String>,
    /// Copies of blocks that are meant, counted from 0: 0,2
    #[arg(short = 'C', value_name = "DVAS")]
    copies: Option<String>,
    /// A device, by its path or GUID
    #[arg(short = 'd', value_name = "DEVICE")]
    device: Option<String>,
    /// How long the device takes at least, in milliseconds, and how many operations at a time
    #[arg(short = 'D', value_name = "LATENCY:LANES")]
    delay: Option<String>,
    /// What happens: io, checksum, decompress, decrypt, nxio, dtl, corrupt, noop, io-prefail
    #[arg(short = 'e', value_name = "ERROR")]
    error: Option<String>,
    /// Have blocks wait before they are read or written, in milliseconds (refused)
    #[arg(short = 'E', value_name = "DELAY")]
    ready_delay: Option<String>,
    /// How often it comes, in percent
    #[arg(short = 'f', value_name = "FREQUENCY")]
    frequency: Option<String>,
    /// Only what is not tried again fails (refused)
    #[arg(short = 'F')]
    fail_fast: bool,
    /// For how many transaction groups writes are ignored
    #[arg(short = 'g', value_name = "TXGS")]
    groups: Option<String>,
    /// How long the next import takes at least, in seconds
    #[arg(short = 'i', value_name = "SECONDS")]
    import_delay: Option<String>,
    /// Have three of five writes be ignored (refused)
    #[arg(short = 'I')]
    ignore: bool,
    /// The level of the blocks
    #[arg(short = 'l', value_name = "LEVEL", allow_hyphen_values = true)]
    level: Option<String>,
    /// A part of the device's labels: nvlist, pad1, pad2, uber
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<String>,
    /// Unmount the filesystem of the file, and mount it again
    #[arg(short = 'm')]
    remount: bool,
    /// Panic in a function (refused)
    #[arg(short = 'p', value_name = "FUNCTION")]
    panic: Option<String>,
    /// What takes as long as -s says: import, export
    #[arg(short = 'P', value_name = "COMMAND")]
    pool_command: Option<String>,
    /// Print the number of the handler and no more
    #[arg(short = 'q')]
    quiet: bool,
    /// The bytes of the file that are meant: START[,END]
    #[arg(short = 'r', value_name = "RANGE")]
    range: Option<String>,
    /// For how many seconds
    #[arg(short = 's', value_name = "SECONDS")]
    seconds: Option<String>,
    /// What is meant: data, dnode, mos, mosdir, metaslab, config, bpobj, spacemap, errlog
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    /// Which operations: read, write, free, claim, flush, trim, all, probe
    #[arg(short = 'T', value_name = "IOTYPE")]
    io: Option<String>,
    /// Set a tunable of OpenZFS for all pools: zfs_scan_suspend_progress=1 has scrubs, resilvers
    /// and rebuilds wait, zfs_removal_suspend_progress=1 removals (not in OpenZFS)
    #[arg(long, value_name = "NAME=VALUE")]
    tune: Option<String>,
    /// Unload the pool (refused)
    #[arg(short = 'u')]
    unload: bool,
    /// The pool, or the path of a file
    target: Vec<String>,
}

const ERRORS: [(&str, InjectError); 9] = [
    ("io", InjectError::Io),
    ("checksum", InjectError::Checksum),
    ("decompress", InjectError::Decompress),
    ("decrypt", InjectError::Decrypt),
    ("nxio", InjectError::Nxio),
    ("dtl", InjectError::Dtl),
    ("corrupt", InjectError::Corrupt),
    ("noop", InjectError::Noop),
    ("io-prefail", InjectError::IoPrefail),
];

const IOS: [(&str, InjectIo); 9] = [
    ("null", InjectIo::Null),
    ("read", InjectIo::Read),
    ("write", InjectIo::Write),
    ("free", InjectIo::Free),
    ("claim", InjectIo::Claim),
    ("flush", InjectIo::Flush),
    ("trim", InjectIo::Trim),
    ("all", InjectIo::All),
    ("probe", InjectIo::Probe),
];

const REGIONS: [(&str, InjectRegion); 4] = [
    ("uber", InjectRegion::Uber),
    ("nvlist", InjectRegion::Nvlist),
    ("pad1", InjectRegion::Pad1),
    ("pad2", InjectRegion::Pad2),
];

/// What is meant in the pool's own metadata, and the type of its objects.
const MOS: [(&str, Option<ObjectType>); 7] = [
    ("mos", None),
    ("mosdir", Some(ObjectType::OBJECT_DIRECTORY)),
    ("metaslab", Some(ObjectType::OBJECT_ARRAY)),
    ("config", Some(ObjectType::PACKED_NVLIST)),
    ("bpobj", Some(ObjectType::BPOBJ)),
    ("spacemap", Some(ObjectType::SPACE_MAP)),
    ("errlog", Some(ObjectType::ERROR_LOG)),
];

/// The number of bytes of a dnode's slot, and of a block of dnodes (`DNODE_BLOCK_SHIFT`).
const DNODE_BYTES: u64 = 512;
const DNODE_BLOCK_BYTES: u64 = 16 << 10;

/// What a word stands for, whatever its case.
fn known<T: Copy>(words: &[(&str, T)], word: &str) -> Option<T> {
    let mut words = words.iter();
    let found = words.find(|(known, _)| known.eq_ignore_ascii_case(word));
    found.map(|(_, value)| *value)
}

/// The word for it.
fn word<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    let mut words = words.iter();
    let found = words.find(|(_, known)| known == value);
    found.map_or("[unknown]", |(word, _)| word)
}

/// `0,2` as bits.
fn copies(text: &str) -> Option<u8> {
    let mut bits = 0;
    for number in text.split(',') {
        let bit = match number {
            "0" => 1,
            "1" => 2,
            "2" => 4,
            _ => return None,
        };
        if bits & bit != 0 {
            return None;
        }
        bits |= bit;
    }
    Some(bits)
}

/// `10:1`.
fn delay(text: &str) -> Option<(u64, u64)> {
    let (delay, lanes) = text.split_once(':')?;
    let (delay, lanes) = (delay.parse().ok()?, lanes.parse().ok()?);
    (delay > 0 && lanes > 0).then_some((delay, lanes))
}

/// A bookmark in hexadecimal: dataset, object, level, block.
fn bookmark(text: &str) -> Option<(u64, u64, i64, u64)> {
    let mut numbers = text.split(':').map(|number| {
        let digits = number.strip_prefix("0x").unwrap_or(number);
        u64::from_str_radix(digits, 16).ok()
    });
    let mut next = || numbers.next().flatten();
    let place = (next()?, next()?, next()?, next()?);
    let level = i64::try_from(place.2).ok()?;
    numbers
        .next()
        .is_none()
        .then_some((place.0, place.1, level, place.3))
}

fn positive(text: &str, what: &str) -> anyhow::Result<u64> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => bail!("invalid {what} '{text}': must be a positive integer"),
    }
}

impl Zinject {
    /// Does it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        if self.is_bare() {
            return list(client);
        }
        if let Some(tune) = &self.tune {
            let Some((name, value)) = tune.split_once('=') else {
                bail_usage!("'{tune}' is not NAME=VALUE");
            };
            let value = value
                .parse()
                .with_context(|| format!("'{value}' is no number"))?;
            let name = name.to_owned();
            client.call(&InjectTune { name, value })?;
            return Ok(());
        }
        if let Some(id) = &self.cancel {
            return self.cancel(client, id);
        }
        self.refuse()?;
        let percent = self.percent()?;
        // It may be told of what is only ever read.
        self.io()?;
        let Some((pool, fault)) = self.wanted(client)? else {
            let [] = &self.target[..] else {
                bail_usage!("extraneous argument for '-f'");
            };
            client.call(&InjectAdd {
                flush_cache: self.flush,
                ..InjectAdd::default()
            })?;
            return Ok(());
        };
        // Of a file: what is in the kernel goes with its mount.
        let mounted = match (&fault, &self.target[..]) {
            (InjectFault::Block { objset: 1.., .. }, [path]) if self.remount => {
                path.starts_with('/').then(|| dataset_of(client, path))
            }
            _ => None,
        };
        let mounted = mounted.transpose()?.map(|mounted| mounted.name);
        if let Some(name) = &mounted {
            check_options(client, name)?;
            client.call(&ZfsUnmount {
                name: Some(name.clone()),
                ..ZfsUnmount::default()
            })?;
        }
        let added_one = client.call(&InjectAdd {
            pool: Some(pool),
            flush_cache: self.flush,
            fault: Some(fault),
            percent,
        });
        if mounted.is_some() {
            client.call(&ZfsMount {
                name: mounted,
                ..ZfsMount::default()
            })?;
        }
        let reply = added_one?;
        match reply.record {
            Some(record) if self.quiet => println!("{}", record.id),
            Some(record) => print!("{}", added(&record)),
            None => {}
        }
        Ok(())
    }

    fn is_bare(&self) -> bool {
        let words = [
            &self.action,
            &self.bookmark,
            &self.cancel,
            &self.copies,
            &self.device,
            &self.delay,
            &self.error,
            &self.ready_delay,
            &self.frequency,
            &self.groups,
            &self.import_delay,
            &self.level,
            &self.label,
            &self.panic,
            &self.pool_command,
            &self.range,
            &self.seconds,
            &self.kind,
            &self.io,
            &self.tune,
        ];
        let flags = [
            self.flush,
            self.fail_fast,
            self.ignore,
            self.remount,
            self.quiet,
            self.unload,
        ];
        let is_told = |word: &&Option<String>| word.is_some();
        !words.iter().any(is_told) && !flags.contains(&true) && self.target.is_empty()
    }

    /// Refuses what is not here, with the reason.
    fn refuse(&self) -> anyhow::Result<()> {
        if self.panic.is_some() {
            bail!(
                "-p is not taken: a panic would end the server, and with it pools that nobody \
                 means; kill the server instead"
            );
        }
        if self.ignore || self.groups.is_some() {
            bail!(
                "-I is not taken, as it ends with a panic of the machine; use '-d DEVICE -e noop \
                 -T write' for a device that loses writes"
            );
        }
        if self.ready_delay.is_some() {
            bail!("-E is not taken; use '-d DEVICE -D LATENCY:LANES' for a device that is slow");
        }
        if self.unload {
            bail!("-u is not taken: export and import the pool; its handlers end with that");
        }
        if self.fail_fast {
            bail!("-F is not taken: what fails is tried again as it always is");
        }
        Ok(())
    }

    fn percent(&self) -> anyhow::Result<Option<f64>> {
        let Some(text) = &self.frequency else {
            return Ok(None);
        };
        match text.parse::<f64>() {
            Ok(percent) if (0.0001..=100.0).contains(&percent) => Ok(Some(percent)),
            Ok(_) => bail!("out of range: frequency value must be in the range [0.0001, 100.0]"),
            Err(_) => {
                bail!("invalid value: frequency value must be in the range [0.0001, 100.0]")
            }
        }
    }

    fn error(&self) -> anyhow::Result<Option<InjectError>> {
        let Some(word) = &self.error else {
            return Ok(None);
        };
        match known(&ERRORS, word) {
            Some(error) => Ok(Some(error)),
            None => bail!(
                "invalid error type '{word}': must be one of: io decompress decrypt nxio dtl \
                 corrupt noop io-prefail"
            ),
        }
    }

    fn io(&self) -> anyhow::Result<InjectIo> {
        let Some(word) = &self.io else {
            return Ok(InjectIo::All);
        };
        known(&IOS, word).with_context(|| {
            format!(
                "invalid I/O type '{word}': must be 'read', 'write', 'free', 'claim', 'flush' or \
                 'all'"
            )
        })
    }

    /// The pool and the fault; none where only the cache is to be emptied.
    fn wanted(&self, client: &Client) -> anyhow::Result<Option<(String, InjectFault)>> {
        let is_of_data = self.bookmark.is_some()
            || self.range.is_some()
            || self.kind.is_some()
            || self.level.is_some()
            || self.copies.is_some();
        if let Some(device) = &self.device {
            if is_of_data || self.pool_command.is_some() || self.import_delay.is_some() {
                bail_usage!("device (-d) incompatible with data error injection");
            }
            let [pool] = &self.target[..] else {
                bail_usage!("device (-d) injection requires a single pool name");
            };
            return Ok(Some((pool.clone(), self.of_device(device)?)));
        }
        if self.action.is_some() || self.delay.is_some() || self.label.is_some() {
            bail_usage!("-A, -D and -L are for a device: name it with '-d'");
        }
        if self.pool_command.is_some() || self.import_delay.is_some() {
            if is_of_data || self.frequency.is_some() {
                bail_usage!("import|export delay (-P) incompatible with other options");
            }
            return Ok(Some(self.of_pool()?));
        }
        if self.seconds.is_some() {
            bail_usage!("-s is for an import or export: name it with '-P'");
        }
        if let Some(place) = &self.bookmark {
            if self.range.is_some() || self.kind.is_some() || self.level.is_some() {
                bail_usage!("raw (-b) format with any other options");
            }
            let [pool] = &self.target[..] else {
                bail_usage!("raw (-b) format expects a single pool name");
            };
            let Some((objset, object, level, block)) = bookmark(place) else {
                bail!("bad raw spec '{place}': must be of the form 'objset:object:level:blkid'");
            };
            let fault = InjectFault::Block {
                objset,
                object,
                object_type: None,
                level,
                first: block,
                last: Some(block),
                bytes: false,
                copies: self.copies()?,
                error: self.error_of_data()?,
            };
            return Ok(Some((pool.clone(), fault)));
        }
        let Some(kind) = &self.kind else {
            if !self.flush {
                bail_usage!(
                    "at least one of '-b', '-d', '-t', '-a', '-p', '-I' or '-u' must be specified"
                );
            }
            return Ok(None);
        };
        let [target] = &self.target[..] else {
            bail_usage!("missing object");
        };
        self.of_type(client, kind, target).map(Some)
    }

    fn of_device(&self, device: &str) -> anyhow::Result<InjectFault> {
        let device = match device.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16)
                .with_context(|| format!("cannot find device '{device}'"))?
                .to_string(),
            None => device.to_owned(),
        };
        let (error, io) = (self.error()?, self.io()?);
        if error == Some(InjectError::Checksum) {
            bail!("device error type must be 'io', 'nxio' or 'corrupt'");
        }
        if error == Some(InjectError::Corrupt) && (self.frequency.is_none() || io != InjectIo::Read)
        {
            bail!("device corrupt errors require io type read and a frequency value");
        }
        if let Some(action) = &self.action {
            let states = [
                ("degrade", InjectState::Degrade),
                ("fault", InjectState::Fault),
            ];
            let Some(state) = known(&states, action) else {
                bail!("invalid action '{action}': must be 'degrade' or 'fault'");
            };
            return Ok(InjectFault::State { device, state });
        }
        if let Some(text) = &self.delay {
            let Some((delay_ms, lanes)) = delay(text) else {
                bail!("invalid i/o delay value: '{text}'");
            };
            if !matches!(io, InjectIo::Read | InjectIo::Write | InjectIo::All) {
                bail!("I/O type for a delay must be 'read' or 'write'");
            }
            return Ok(InjectFault::Delay {
                device,
                delay_ms,
                lanes,
                io,
            });
        }
        let error = error.unwrap_or(InjectError::Nxio);
        if let Some(label) = &self.label {
            let Some(region) = known(&REGIONS, label) else {
                bail!("invalid label type '{label}'");
            };
            return Ok(InjectFault::Label {
                device,
                error,
                region,
            });
        }
        Ok(InjectFault::Device { device, error, io })
    }

    fn of_pool(&self) -> anyhow::Result<(String, InjectFault)> {
        let commands = [
            ("import", InjectCommand::Import),
            ("export", InjectCommand::Export),
        ];
        let (command, seconds) = match (&self.import_delay, &self.pool_command) {
            (Some(seconds), _) => (InjectCommand::Import, Some(seconds)),
            (None, Some(word)) => match known(&commands, word) {
                Some(command) => (command, self.seconds.as_ref()),
                None => bail!("invalid command '{word}': must be 'import' or 'export'"),
            },
            (None, None) => bail_usage!("import|export delay (-P) needs a command"),
        };
        let ([pool], Some(seconds)) = (&self.target[..], seconds) else {
            bail_usage!(
                "import|export delay (-P) injection requires a duration (-s) and a single pool name"
            );
        };
        let seconds = positive(seconds, "duration")?;
        Ok((pool.clone(), InjectFault::PoolDelay { command, seconds }))
    }

    fn copies(&self) -> anyhow::Result<u8> {
        let Some(text) = &self.copies else {
            return Ok(0);
        };
        copies(text).with_context(|| {
            format!("invalid DVA list '{text}': DVAs should be 0 indexed and separated by commas.")
        })
    }

    fn error_of_data(&self) -> anyhow::Result<InjectError> {
        let error = self.error()?.unwrap_or(InjectError::Io);
        let is_of_data = matches!(
            error,
            InjectError::Io
                | InjectError::Checksum
                | InjectError::Decompress
                | InjectError::Decrypt
        );
        if !is_of_data {
            bail!("data error type must be 'checksum' or 'io'");
        }
        let is_logical = matches!(error, InjectError::Decompress | InjectError::Decrypt);
        if self.copies.is_some() && is_logical {
            bail!(
                "the '-C' option may not be used with logical data errors 'decrypt' and \
                 'decompress'"
            );
        }
        Ok(error)
    }

    /// `-t`: of a file, of its dnode, or of the pool's own metadata.
    fn of_type(
        &self,
        client: &Client,
        kind: &str,
        target: &str,
    ) -> anyhow::Result<(String, InjectFault)> {
        let (error, copies) = (self.error_of_data()?, self.copies()?);
        let level = match &self.level {
            Some(text) => text
                .parse()
                .with_context(|| format!("invalid level '{text}': must be an integer"))?,
            None => 0,
        };
        if let Some(object_type) = known(&MOS, kind) {
            if error == InjectError::Decrypt {
                bail!("decryption errors may only be injected for 'data' types");
            }
            let fault = InjectFault::Block {
                objset: 0,
                object: 0,
                object_type: object_type.map(ObjectType::code),
                level,
                first: 0,
                last: None,
                bytes: false,
                copies,
                error,
            };
            return Ok((target.to_owned(), fault));
        }
        let is_dnode = match kind {
            "data" => false,
            "dnode" => true,
            _ => bail!("invalid type '{kind}'"),
        };
        if is_dnode && error == InjectError::Decrypt {
            bail!("decryption errors may only be injected for 'data' types");
        }
        if is_dnode && self.range.is_some() {
            bail!("range cannot be specified when type is 'dnode'");
        }
        let (dataset, objset, object) = place_of(client, target)?;
        let pool = dataset.split('/').next().unwrap_or_default().to_owned();
        let (first, last) = match (is_dnode, &self.range) {
            (true, _) => {
                let block = object * DNODE_BYTES / DNODE_BLOCK_BYTES;
                (block, Some(block))
            }
            (false, Some(text)) => {
                let (first, last) = range(text)?;
                (first, Some(last))
            }
            (false, None) => (0, None),
        };
        let fault = InjectFault::Block {
            objset,
            object: if is_dnode { 0 } else { object },
            object_type: None,
            level,
            first,
            last,
            bytes: self.range.is_some(),
            copies,
            error,
        };
        Ok((pool, fault))
    }

    fn cancel(&self, client: &Client, id: &str) -> anyhow::Result<()> {
        let others = [
            &self.bookmark,
            &self.range,
            &self.kind,
            &self.level,
            &self.frequency,
            &self.copies,
            &self.ready_delay,
        ];
        if others.iter().any(|word| word.is_some()) {
            bail_usage!("cancel (-c) incompatible with any other options");
        }
        if !self.target.is_empty() {
            bail_usage!("extraneous argument to '-c'");
        }
        if id == "all" {
            client.call(&InjectCancel { id: None })?;
            println!("removed all registered handlers");
            return Ok(());
        }
        let number = id
            .parse()
            .with_context(|| format!("invalid handle id '{id}': must be an integer or 'all'"))?;
        client.call(&InjectCancel { id: Some(number) })?;
        println!("removed handler {number}");
        Ok(())
    }
}

/// `START[,END]`, as bytes.
fn range(text: &str) -> anyhow::Result<(u64, u64)> {
    let number = |text: &str| {
        let parsed = dataset::props::parse_size(text);
        parsed.map_err(|_| {
            anyhow::anyhow!("invalid range '{text}': must be of the form 'start[,end]'")
        })
    };
    match text.split_once(',') {
        Some((first, last)) => Ok((number(first)?, number(last)?)),
        None => {
            let first = number(text)?;
            Ok((first, first.saturating_add(1)))
        }
    }
}

/// What is mounted where a file is.
fn dataset_of(client: &Client, path: &str) -> anyhow::Result<ZfsMounted> {
    let mounts = client.call(&ZfsMountList {})?.mounts.into_iter();
    let of_path = mounts.filter(|mounted| Path::new(path).starts_with(&mounted.mountpoint));
    of_path
        .max_by_key(|mounted| mounted.mountpoint.len())
        .with_context(|| format!("invalid path '{path}': not a ZFS filesystem"))
}

/// Refuses to mount anew what is mounted with options for this time, which would be lost.
fn check_options(client: &Client, name: &str) -> anyhow::Result<()> {
    let listed = client.call(&ZfsList {
        names: vec![name.to_owned()],
        depth: Some(0),
        ..ZfsList::default()
    })?;
    let mut properties = listed.datasets.iter().flat_map(|found| &found.properties);
    let temporary = properties.find(|(_, property)| property.source == Source::Temporary);
    if let Some((property, _)) = temporary {
        bail!(
            "-m is not taken here: '{name}' is mounted with another '{property}' for this time, \
             which would be lost; unmount it, and mount it with its options, by hand"
        );
    }
    Ok(())
}

/// Dataset, its number, and the number of a file in it (`parse_pathname`, `object_from_path`,
/// cmd/zinject/translate.c).
fn place_of(client: &Client, path: &str) -> anyhow::Result<(String, u64, u64)> {
    if !path.starts_with('/') {
        bail!("invalid object '{path}': must be full path");
    }
    let metadata =
        std::fs::metadata(path).with_context(|| format!("cannot find mountpoint for '{path}'"))?;
    let mounted = dataset_of(client, path)?;
    let listed = client.call(&ZfsList {
        names: vec![mounted.name.clone()],
        depth: Some(0),
        properties: Some(vec!["objsetid".to_owned()]),
        ..ZfsList::default()
    })?;
    let number = listed.datasets.first().and_then(|found| {
        let property = found.properties.get("objsetid")?;
        property.value.parse().ok()
    });
    let objset = number.with_context(|| format!("cannot open '{}'", mounted.name))?;
    Ok((mounted.name, objset, metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Zinject {
        Zinject::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    fn device(line: &str) -> Result<InjectFault, String> {
        let words = parsed(line);
        let device = words.device.clone().unwrap();
        let of_device = words.percent().and_then(|_| words.of_device(&device));
        of_device.map_err(|error| error.to_string())
    }

    #[test]
    fn faults_of_devices_are_those_of_openzfs() {
        let fault = |error, io| {
            let device = "/d".to_owned();
            Ok(InjectFault::Device { device, error, io })
        };
        assert_eq!(
            device("zinject -d /d -e io -T read -f 20 p"),
            fault(InjectError::Io, InjectIo::Read)
        );
        assert_eq!(
            device("zinject -d /d p"),
            fault(InjectError::Nxio, InjectIo::All)
        );
        assert_eq!(
            device("zinject -d /d -e corrupt -T read -f 50 p"),
            fault(InjectError::Corrupt, InjectIo::Read)
        );
        let delay = InjectFault::Delay {
            device: "31".to_owned(),
            delay_ms: 250,
            lanes: 1,
            io: InjectIo::All,
        };
        assert_eq!(device("zinject -d 0x1f -D250:1 p"), Ok(delay));
        for wrong in [
            "zinject -d /d -e bogus -T read p",
            "zinject -d /d -e io -T bogus p",
            "zinject -d /d -e io -L bogus p",
            "zinject -d /d -e checksum p",
            "zinject -d /d -e corrupt p",
            "zinject -d /d -D 0:1 p",
            "zinject -d /d -D 10 p",
            "zinject -d /d -D foo p",
            "zinject -d /d -D 10:1 -T flush p",
            "zinject -d /d -A mend p",
            "zinject -d /d -f 0 p",
            "zinject -d /d -f 101 p",
            "zinject -d /d -f x p",
        ] {
            assert!(device(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn places_and_copies_are_understood() {
        assert_eq!(bookmark("36:2:0:3fff"), Some((0x36, 2, 0, 0x3fff)));
        for wrong in ["36:2:0", "36:2:0:1:2", "36:x:0:1", ""] {
            assert_eq!(bookmark(wrong), None, "{wrong}");
        }
        assert_eq!((copies("0,1"), copies("2")), (Some(3), Some(4)));
        for wrong in ["", "3", "0,0", "0,", "0 1"] {
            assert_eq!(copies(wrong), None, "{wrong}");
        }
        assert_eq!(range("1M,2M").unwrap(), (1 << 20, 2 << 20));
        assert_eq!(range("5").unwrap(), (5, 6));
        assert!(range("a").is_err());
    }

    #[test]
    fn what_is_not_here_is_refused_with_a_reason() {
        for line in [
            "zinject -p f p",
            "zinject -I -s 5 p",
            "zinject -I -g 3 p",
            "zinject -E 5 -t data /f",
            "zinject -u p",
            "zinject -F -d /d p",
        ] {
            let refused = parsed(line).refuse().unwrap_err().to_string();
            assert!(refused.contains("is not taken"), "{line}: {refused}");
        }
        assert!(parsed("zinject").is_bare() && !parsed("zinject -a").is_bare());
    }
}
