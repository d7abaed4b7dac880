//! `zpool create`: the grammar of vdevs (zpoolconcepts(7), "Virtual Devices") and the request.

use anyhow::{Context, bail};
use api::{DraidWord, VdevSpec, ZpoolCreate};
use clap::Args;

use crate::client::Client;
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
    /// [mirror|raidz[1-3]|log|special|dedup|cache|spare] DEVICE...
    #[arg(required = true)]
    vdevs: Vec<String>,
}

impl Create {
    /// Asks the daemon for the pool.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let mut filesystem_properties = assignments(&self.filesystem_properties)?;
        if let Some(mountpoint) = self.mountpoint {
            filesystem_properties.push(("mountpoint".into(), mountpoint));
        }
        let mut properties = assignments(&self.pool_properties)?;
        if let Some(name) = self.temporary_name {
            properties.push(("tname".into(), name));
        }
        let call = ZpoolCreate {
            name: self.pool.clone(),
            vdevs: parse_new_pool(&self.vdevs)?,
            properties,
            filesystem_properties,
            force: self.force,
            dry_run: self.dry_run,
            no_features: self.no_features,
            altroot: self.altroot,
            command: typed,
        };
        let reply = client.call(&call)?;
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

/// Splits `NAME=VALUE` words; each name once.
pub fn assignments(words: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let mut properties: Vec<(String, String)> = Vec::new();
    for word in words {
        let (name, value) = word
            .split_once('=')
            .with_context(|| format!("missing '=' for property '{word}'"))?;
        if properties.iter().any(|(given, _)| given == name) {
            bail!("property '{name}' specified multiple times");
        }
        properties.push((name.to_owned(), value.to_owned()));
    }
    Ok(properties)
}

/// Reads the words after a new pool's name: some vdev must be for ordinary data.
fn parse_new_pool(words: &[String]) -> anyhow::Result<Vec<VdevSpec>> {
    let vdevs = parse_vdevs(words)?;
    if !vdevs
        .iter()
        .any(|vdev| !matches!(vdev.class.as_str(), "log" | "cache" | "spare"))
    {
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
    let mut vdevs = Vec::new();
    let mut class = "";
    let mut seen = Vec::new();
    let mut index = 0;
    while index < words.len() {
        let word = words[index].as_str();
        index += 1;
        if let Some(new_class) = CLASSES.into_iter().find(|name| *name == word) {
            if matches!(new_class, "log" | "spare" | "cache") && seen.contains(&new_class) {
                bail!("{SPEC}: '{word}' can be specified only once");
            }
            seen.push(new_class);
            if words
                .get(index)
                .is_none_or(|next| CLASSES.contains(&next.as_str()))
            {
                bail!("{SPEC}: {word} requires at least 1 devices");
            }
            class = new_class;
            continue;
        }
        let Some((kind, least)) = group(word) else {
            vdevs.push(leaf(word, class)?);
            continue;
        };
        if matches!(class, "cache" | "spare") {
            if vdevs
                .last()
                .is_none_or(|last: &VdevSpec| last.class != class)
            {
                bail!("{SPEC}: {class} requires at least 1 devices");
            }
            class = "";
        }
        let begin = index;
        while words
            .get(index)
            .is_some_and(|word| !CLASSES.contains(&word.as_str()) && group(word).is_none())
        {
            index += 1;
        }
        if !class.is_empty() && kind != "mirror" {
            bail!("{SPEC}: unsupported '{class}' device: {word}");
        }
        if index - begin < least {
            bail!("{SPEC}: {word} requires at least {least} devices");
        }
        if let Some(Err(why)) = DraidWord::parse(word, index - begin) {
            bail!("{SPEC}: {why}");
        }
        let children = words[begin..index]
            .iter()
            .map(|word| leaf(word, ""))
            .collect::<anyhow::Result<_>>()?;
        vdevs.push(VdevSpec {
            kind: kind.into(),
            class: class.into(),
            path: String::new(),
            children,
        });
    }
    Ok(vdevs)
}

/// The words that say what the vdevs behind them are for.
const CLASSES: [&str; 5] = ["log", "special", "dedup", "cache", "spare"];

/// A word that begins a group: its kind and the least number of members.
fn group(word: &str) -> Option<(&str, usize)> {
    match word {
        "mirror" => Some(("mirror", 2)),
        "raidz" | "raidz1" => Some(("raidz1", 2)),
        "raidz2" => Some(("raidz2", 3)),
        "raidz3" => Some(("raidz3", 4)),
        // What else it says depends on how many devices there are.
        _ => DraidWord::parity_of(word).map(|parity| (word, usize::from(parity) + 1)),
    }
}

/// A leaf given as an absolute path, a path that exists from here, or the name of a disk in /dev.
fn leaf(word: &str, class: &str) -> anyhow::Result<VdevSpec> {
    let path = if word.starts_with('/') {
        word.to_owned()
    } else {
        let in_dev = format!("/dev/{word}");
        if std::path::Path::new(&in_dev).exists() {
            in_dev
        } else {
            bail!(
                "cannot open '{word}': no such device in /dev\nmust be a full path or shorthand device name"
            );
        }
    };
    Ok(VdevSpec {
        kind: "leaf".into(),
        class: class.into(),
        path,
        children: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let show = |vdev: &VdevSpec| {
            let inner: Vec<&str> = vdev
                .children
                .iter()
                .map(|child| child.path.as_str())
                .collect();
            format!(
                "{}{}{}({})",
                vdev.class,
                if vdev.class.is_empty() { "" } else { ":" },
                vdev.kind,
                if inner.is_empty() {
                    vdev.path.clone()
                } else {
                    inner.join(" ")
                }
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
            "draid2:1d:1s:5c(/a /b /c /d /e) draid(/f /g)"
        );
    }

    #[test]
    fn wrong_layouts_are_refused_with_a_reason() {
        for (text, reason) in [
            ("mirror /a", "mirror requires at least 2 devices"),
            ("raidz2 /a /b", "raidz2 requires at least 3 devices"),
            ("log /a", "at least one toplevel vdev"),
            ("/a log", "log requires at least 1 devices"),
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
            ("draid:5d /a /b /c", "too high, at most 2"),
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
