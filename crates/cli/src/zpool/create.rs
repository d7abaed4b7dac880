//! `zpool create`: the grammar of vdevs (zpoolconcepts(7), "Virtual Devices") and the request.

use anyhow::{Context, anyhow, bail};
use api::{DeviceSpec, Settings, VdevClass, VdevLayout, VdevSpec, ZpoolCreate};
use clap::Args;
use dataset::DatasetKind;

use crate::client::Client;
use crate::settings::{assignments, of_option};
use crate::zfs::keys;
use crate::zpool::vdevs::{Naming, planned_layout};

/// Make a pool of the given devices.
#[derive(Debug, Args)]
pub struct Create {
    /// Use devices that look in use, accept uneven redundancy
    #[arg(short)]
    force: bool,
    /// Show the layout without making the pool
    #[arg(short = 'n')]
    dry_run: bool,
    /// Enable no features
    #[arg(short = 'd')]
    no_features: bool,
    /// Pool property, PROPERTY=VALUE
    #[arg(short = 'o')]
    pool_properties: Vec<String>,
    /// Property of the root filesystem, PROPERTY=VALUE
    #[arg(short = 'O')]
    filesystem_properties: Vec<String>,
    /// Mount point of the root filesystem
    #[arg(short = 'm')]
    mountpoint: Option<String>,
    /// Directory below which everything is mounted
    #[arg(short = 'R')]
    altroot: Option<String>,
    /// Name of the pool until it is exported
    #[arg(short = 't')]
    temporary_name: Option<String>,
    pool: String,
    /// [mirror|raidz[1-3]|draid[1-3][:DATAd][:CHILDRENc][:SPARESs]|log|special|dedup|cache|spare]
    /// DEVICE...
    #[arg(required = true)]
    vdevs: Vec<String>,
}

impl Create {
    /// Asks the daemon for the pool.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let mut filesystem_properties =
            assignments(&self.filesystem_properties).map_err(|error| {
                let text = format!("{error:#}");
                let rest = text.strip_prefix("missing '=' for property=value argument");
                match rest {
                    Some(rest) => anyhow!("missing '=' for -O option{rest}"),
                    None => error,
                }
            })?;
        if let Some(mountpoint) = self.mountpoint {
            filesystem_properties.insert("mountpoint".into(), mountpoint);
        }
        let mut properties = assignments(&self.pool_properties).map_err(of_option)?;
        check(
            &self.pool,
            &properties,
            &filesystem_properties,
            self.altroot.is_some(),
        )?;
        if let Some(name) = self.temporary_name {
            if name.contains('/') {
                bail!(
                    "cannot create '{name}': invalid character '/' in temporary name\n\
                     use 'zfs create' to create a dataset"
                );
            }
            properties.insert("tname".into(), name);
        }
        let vdevs = parse_new_pool(&self.vdevs)?;
        let key = match self.dry_run {
            true => None,
            false => keys::of_new(client, None, &mut filesystem_properties)
                .with_context(|| format!("cannot create '{}'", self.pool))?,
        };
        let call = ZpoolCreate {
            name: self.pool.clone(),
            vdevs,
            key,
            properties,
            filesystem_properties,
            force: self.force,
            dry_run: self.dry_run,
            no_features: self.no_features,
            altroot: self.altroot,
            command: typed,
        };
        let reply = client
            .call(&call)
            .map_err(|error| in_their_words(error, &call))?;
        for warning in &reply.warnings {
            eprintln!("{warning}");
        }
        if self.dry_run {
            println!("would create '{}' with the following layout:\n", self.pool);
            print!(
                "{}",
                planned_layout(&self.pool, &[], &reply.layout, Naming::default())
            );
        }
        Ok(())
    }
}

/// What the daemon says of properties, as OpenZFS's command says it of a new pool's.
fn in_their_words(error: anyhow::Error, call: &ZpoolCreate) -> anyhow::Error {
    let text = format!("{error:#}");
    let quoted = text.split('\'').nth(1).unwrap_or_default();
    let of_property = text.strip_prefix(&format!(
        "cannot create '{}': invalid property '",
        call.name
    ));
    let property = of_property.and_then(|rest| rest.split('\'').next());
    if let Some(property) = property.filter(|property| call.properties.contains_key(*property)) {
        return anyhow!("property '{property}' is not a valid pool or vdev property\n{text}");
    }
    if text.starts_with("cannot enable feature '") {
        let name = &call.name;
        return anyhow!("cannot create '{name}': feature '{quoted}' unsupported by kernel\n{text}");
    }
    error
}

/// Refuses what OpenZFS's command refuses before it opens a device (`zpool_do_create`,
/// `add_prop_list`, cmd/zpool/zpool_main.c).
fn check(
    name: &str,
    pool: &Settings,
    filesystem: &Settings,
    has_altroot: bool,
) -> anyhow::Result<()> {
    let has_feature = pool.keys().any(|name| name.starts_with("feature@"));
    if has_feature && pool.contains_key("version") {
        bail!("'feature@' and 'version' properties cannot be specified together");
    }
    if has_altroot && pool.contains_key("altroot") {
        bail!("property 'altroot' specified multiple times");
    }
    if let Some(root) = pool.get("altroot").filter(|root| !root.starts_with('/')) {
        bail!("invalid alternate root '{root}': must be an absolute path");
    }
    if let Some(word) = pool.get("ashift") {
        super::administer::ashift_of(word)?;
    }
    let cachefile = pool.get("cachefile").map_or("none", String::as_str);
    if !cachefile.starts_with('/') && !["", "none"].contains(&cachefile) {
        bail!(
            "cannot create '{name}': property 'cachefile' must be empty, an absolute path, or \
             'none'"
        );
    }
    let is_of_filesystem = |name: &str| {
        let known = dataset::props::find(name);
        let has_it = known.map(|native| native.kinds.meets(DatasetKind::Filesystem.kinds()));
        has_it.unwrap_or(name.contains([':', '@']) || name.starts_with("default"))
    };
    if let Some(name) = filesystem.keys().find(|name| !is_of_filesystem(name)) {
        bail!("property '{name}' is not a valid filesystem property");
    }
    if let Some(place) = filesystem.get("mountpoint")
        && !place.starts_with('/')
        && !["legacy", "none"].contains(&place.as_str())
    {
        bail!("invalid mountpoint '{place}': must be an absolute path, 'legacy', or 'none'");
    }
    Ok(())
}

/// Reads the words after a new pool's name: some vdev must be for ordinary data.
fn parse_new_pool(words: &[String]) -> anyhow::Result<Vec<VdevSpec>> {
    use VdevClass::{Cache, Log, Spare};
    let vdevs = parse_vdevs(words)?;
    let mut classes = vdevs.iter().map(|vdev| vdev.class);
    if classes.all(|class| matches!(class, Log | Cache | Spare)) {
        bail!("invalid vdev specification: at least one toplevel vdev must be specified");
    }
    Ok(vdevs)
}

/// Reads the words after the pool's name as a list of top-level vdevs, spares and cache devices
/// (`construct_spec`, cmd/zpool/zpool_vdev.c): `log`, `special` and `dedup` hold for the vdevs that
/// follow, up to another such word; `spare` and `cache` are groups themselves, and after them come
/// ordinary vdevs again. Logs, spares and caches stand in one place.
pub fn parse_vdevs(words: &[String]) -> anyhow::Result<Vec<VdevSpec>> {
    const SPEC: &str = "invalid vdev specification";
    use VdevClass::{Cache, Log, Normal, Spare};
    let mut vdevs: Vec<VdevSpec> = Vec::new();
    let mut class = Normal;
    let mut seen = Vec::new();
    let mut index = 0;
    while index < words.len() {
        let word = words[index].as_str();
        index += 1;
        if let Some(new_class) = class_of(word) {
            if matches!(new_class, Log | Spare | Cache) && seen.contains(&new_class) {
                bail!("{SPEC}: '{word}' can be specified only once");
            }
            seen.push(new_class);
            if words.get(index).is_none_or(|next| class_of(next).is_some()) {
                let devices = match new_class {
                    Cache | Spare => "devices",
                    _ => "device",
                };
                bail!("{SPEC}: {word} requires at least 1 {devices}");
            }
            class = new_class;
            continue;
        }
        let Some((group, least)) = group(word) else {
            let layout = VdevLayout::Device(device(word)?);
            vdevs.push(VdevSpec { class, layout });
            continue;
        };
        if matches!(class, Cache | Spare) {
            if vdevs.last().is_none_or(|last| last.class != class) {
                bail!(
                    "{SPEC}: {} requires at least 1 devices",
                    super::words::class(class)
                );
            }
            class = Normal;
        }
        let begin = index;
        while words
            .get(index)
            .is_some_and(|word| class_of(word).is_none() && self::group(word).is_none())
        {
            index += 1;
        }
        if class != Normal && group != Group::Mirror {
            bail!(
                "{SPEC}: unsupported '{}' device: {word}",
                super::words::class(class)
            );
        }
        if index - begin < least {
            bail!("{SPEC}: {word} requires at least {least} devices");
        }
        let shape = DraidWord::parse(word, index - begin).transpose();
        let shape = shape.map_err(|why| anyhow!(why))?;
        let devices = words[begin..index]
            .iter()
            .map(|word| device(word))
            .collect::<anyhow::Result<_>>()?;
        let layout = match (group, shape) {
            (Group::Mirror, _) => VdevLayout::Mirror { devices },
            (_, Some(shape)) => VdevLayout::Draid {
                parity: shape.parity,
                data: shape.data,
                spares: shape.spares,
                devices,
            },
            (Group::Parity(parity), None) => VdevLayout::Raidz { parity, devices },
        };
        vdevs.push(VdevSpec { class, layout });
    }
    Ok(vdevs)
}

/// What a word says that the vdevs behind it are for.
fn class_of(word: &str) -> Option<VdevClass> {
    match word {
        "log" => Some(VdevClass::Log),
        "special" => Some(VdevClass::Special),
        "dedup" => Some(VdevClass::Dedup),
        "cache" => Some(VdevClass::Cache),
        "spare" => Some(VdevClass::Spare),
        _ => None,
    }
}

/// What a word begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Mirror,
    /// A raidz or draid, of which so many devices may fail.
    Parity(u8),
}

/// A word that begins a group: what group, and the least number of members.
fn group(word: &str) -> Option<(Group, usize)> {
    match word {
        "mirror" => Some((Group::Mirror, 2)),
        "raidz" | "raidz1" => Some((Group::Parity(1), 2)),
        "raidz2" => Some((Group::Parity(2), 3)),
        "raidz3" => Some((Group::Parity(3), 4)),
        // What else it says depends on how many devices there are.
        _ => DraidWord::parity_of(word)
            .map(|parity| (Group::Parity(parity), usize::from(parity) + 1)),
    }
}

/// What a word such as `draid2:4d:11c:1s` asks for (zpoolconcepts(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraidWord {
    /// Parity columns of a group.
    pub parity: u8,
    /// Data columns of a group.
    pub data: u8,
    /// Distributed spares.
    pub spares: u8,
}

impl DraidWord {
    /// Reads the word for so many devices (`draid_config_by_type`, cmd/zpool/zpool_vdev.c). `None`
    /// when it is none that begins a dRAID vdev.
    ///
    /// # Errors
    /// Why there can be no such vdev.
    pub fn parse(word: &str, devices: usize) -> Option<Result<Self, String>> {
        let parity = Self::parity_of(word)?;
        let options = word.split(':').skip(1);
        Some(Self::with_options(word, parity, options, devices))
    }

    /// The parity that the word asks for, if it begins a dRAID vdev.
    pub fn parity_of(word: &str) -> Option<u8> {
        match word.split(':').next()? {
            "draid" | "draid1" => Some(1),
            "draid2" => Some(2),
            "draid3" => Some(3),
            _ => None,
        }
    }

    fn with_options<'a>(
        word: &str,
        parity: u8,
        options: impl Iterator<Item = &'a str>,
        devices: usize,
    ) -> Result<Self, String> {
        let (mut data, mut spares) = (None, 0usize);
        for option in options {
            let syntax =
                || format!("invalid dRAID syntax; expected [:<number><c|d|s>] not '{word}'");
            let end = option.len().saturating_sub(1);
            let (number, suffix) = option.split_at_checked(end).ok_or_else(syntax)?;
            let number: usize = number.parse().map_err(|_| syntax())?;
            match suffix {
                "d" | "D" => data = Some(number),
                "s" | "S" => spares = number,
                "c" | "C" if number != devices => {
                    return Err(format!(
                        "invalid number of dRAID children; {number} required but {devices} provided"
                    ));
                }
                "c" | "C" => {}
                _ => return Err(syntax()),
            }
        }
        let parity_columns = usize::from(parity);
        let room = devices
            .checked_sub(spares.saturating_add(parity_columns))
            .filter(|room| *room > 0)
            .ok_or_else(|| {
                format!(
                    "request number of distributed spares {spares} and parity level {parity}\n\
                     leaves no disks available for data"
                )
            })?;
        // Wide enough to be economical, narrow enough to be quick.
        const DATA_DEFAULT: usize = 8;
        let data = data.unwrap_or(room.min(DATA_DEFAULT));
        if data == 0 || data > room {
            return Err(format!(
                "requested number of dRAID data disks per group {data} is too high,\nat most \
                 {room} disks are available for data"
            ));
        }
        if spares > 100 {
            return Err(format!(
                "invalid number of dRAID spares {spares}; there are at most 100"
            ));
        }
        if devices > 255 {
            return Err(format!(
                "{devices} disks were provided, but dRAID only supports up to 255 disks"
            ));
        }
        Ok(Self {
            parity,
            data: data as u8,
            spares: spares as u8,
        })
    }
}

/// Whether a word is the name of a distributed spare, `draid1-0-0` (`zpool_is_draid_spare`,
/// lib/libzfs/libzfs_pool.c).
pub(super) fn is_distributed_spare(word: &str) -> bool {
    let Some(numbers) = word.strip_prefix("draid") else {
        return false;
    };
    let numbers: Vec<&str> = numbers.split('-').collect();
    numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
}

/// A device given as an absolute path, a path that exists from here, or the name of a disk in /dev.
pub(super) fn device(word: &str) -> anyhow::Result<DeviceSpec> {
    let path = if word.starts_with('/') {
        word.to_owned()
    } else {
        let in_dev = format!("/dev/{word}");
        if std::path::Path::new(&in_dev).exists() {
            in_dev
        } else {
            bail!(
                "cannot open '{word}': no such device in /dev\n\
                 must be a full path or shorthand device name"
            );
        }
    };
    Ok(DeviceSpec { path, kind: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let show = |vdev: &VdevSpec| {
            let devices = vdev.layout.devices().iter();
            let paths: Vec<&str> = devices.map(|device| device.path.as_str()).collect();
            let class = super::super::words::class(vdev.class);
            format!(
                "{class}{}{}({})",
                if class.is_empty() { "" } else { ":" },
                super::super::words::layout(&vdev.layout, &|_, _| "leaf".to_owned()),
                paths.join(" ")
            )
        };
        parse_new_pool(&words)
            .map(|vdevs| vdevs.iter().map(show).collect::<Vec<_>>().join(" "))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn vdev_grammar_follows_zpoolconcepts() {
        assert_eq!(parse("/a /b").unwrap(), "leaf(/a) leaf(/b)");
        assert_eq!(
            parse("mirror /a /b mirror /c /d").unwrap(),
            "mirror(/a /b) mirror(/c /d)"
        );
        assert_eq!(
            parse("raidz /a /b /c log mirror /d /e cache /f").unwrap(),
            "raidz1(/a /b /c) log:mirror(/d /e) cache:leaf(/f)"
        );
        assert_eq!(
            parse("raidz3 /a /b /c /d spare /e /f").unwrap(),
            "raidz3(/a /b /c /d) spare:leaf(/e) spare:leaf(/f)"
        );
        assert_eq!(
            parse("spare /a /b mirror /c /d cache /e raidz /f /g log /h").unwrap(),
            "spare:leaf(/a) spare:leaf(/b) mirror(/c /d) cache:leaf(/e) raidz1(/f /g) log:leaf(/h)"
        );
        assert_eq!(
            parse("/a special /b log /c special /d").unwrap(),
            "leaf(/a) special:leaf(/b) log:leaf(/c) special:leaf(/d)"
        );
        assert_eq!(
            parse("draid2:1d:1s:5c /a /b /c /d /e draid /f /g").unwrap(),
            "draid2:1d:5c:1s(/a /b /c /d /e) draid1:1d:2c:0s(/f /g)"
        );
    }

    #[test]
    fn wrong_layouts_are_refused_with_a_reason() {
        for (text, reason) in [
            ("mirror /a", "mirror requires at least 2 devices"),
            ("raidz2 /a /b", "raidz2 requires at least 3 devices"),
            ("log /a", "at least one toplevel vdev"),
            ("/a log", "log requires at least 1 device"),
            ("/a spare mirror /b /c", "spare requires at least 1 devices"),
            ("/a log /b log /c", "'log' can be specified only once"),
            ("/a spare /b spare /c", "'spare' can be specified only once"),
            (
                "/a cache /b log /c cache /d",
                "'cache' can be specified only once",
            ),
            (
                "/a special raidz /b /c",
                "unsupported 'special' device: raidz",
            ),
            ("/a log raidz /b /c /d", "unsupported 'log' device"),
            ("/a log draid /b /c /d", "unsupported 'log' device"),
            ("draid2 /a /b", "draid2 requires at least 3 devices"),
            ("draid:5d /a /b /c", "too high,\nat most 2"),
            ("draid:2s /a /b /c", "leaves no disks available for data"),
            ("draid:4c /a /b /c", "4 required but 3 provided"),
            ("draid:x /a /b /c", "invalid dRAID syntax"),
            ("nonesuch", "no such device in /dev"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
