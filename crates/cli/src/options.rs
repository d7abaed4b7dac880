//! Options of the server: words of `millpond up` and `millpond daemon`, and `millpond.toml` in the
//! state directory, which every start reads.
//!
//! A server that a command starts by itself serves as the one before it did: at the same
//! addresses, and to the same people. So what `millpond up` was told is written into the file once
//! the server runs, and the words of a command line stand above what the file says. The keys of
//! the file are the names of the options:
//!
//! ```toml
//! nfs = "192.0.2.1:2049"
//! iscsi = ["192.0.2.1:3260", "192.0.2.2:3260"]
//! portmapper = true
//! ```
//!
//! What else is in the file (comments, options that were not told this time) stays. A file that is
//! not understood keeps the server from starting: it could offer more than its owner wants.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use api::{OptionSource, ServerOption};
use clap::{Args, CommandFactory, Parser};
use daemon::{Https, SmbListen, UpsAddress};
use toml_edit::{Array, DocumentMut, Value};

/// The file's name.
pub const FILE: &str = "millpond.toml";

/// What is written above the options when the file is made.
const HEADING: &str = "\
# Options of the server, which every start reads; see 'man millpond-daemon'.
# 'millpond up' writes those that it is given, and leaves the others.

";

/// Whether spares stand in by themselves.
const AUTO: &str = "auto";
const MANUAL: &str = "manual";

/// The option that no file is made to remember.
const INJECT: &str = "inject";

const fn here(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Where each protocol is offered by default.
const ISCSI_HERE: SocketAddr = here(3260);
const NFS_HERE: SocketAddr = here(2049);
const SMB_HERE: SocketAddr = here(445);
const HTTPS_HERE: SocketAddr = here(8443);

/// Options of the server.
#[derive(Clone, Debug, Default, Args)]
pub struct ServerOptions {
    /// Where iSCSI listens; several times for several portals of one portal group (default:
    /// 127.0.0.1:3260)
    #[arg(long, value_name = "ADDRESS:PORT")]
    iscsi: Vec<SocketAddr>,
    /// Most sessions of iSCSI initiators (default: 4096)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    iscsi_sessions: Option<u16>,
    /// Most connections of one iSCSI session (default: 8)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    iscsi_connections: Option<u16>,
    /// Most memory for what iSCSI sessions have under way (default: a quarter of the cache's)
    #[arg(long, value_name = "SIZE", value_parser = size_word)]
    iscsi_memory: Option<String>,
    /// Where NFS listens (default: 127.0.0.1:2049)
    #[arg(long, value_name = "ADDRESS:PORT")]
    nfs: Option<SocketAddr>,
    /// Answer NFS clients on port 111 too, where they look for the lock manager
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    portmapper: Option<bool>,
    /// Share with everybody on the network where millpond:iscsi names no secret, sharenfs nobody,
    /// or sharesmb says guest
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    insecure: Option<bool>,
    /// Where SMB listens while something is shared by it, or 'off' (default: 127.0.0.1:445, or
    /// another port that is free)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = smb)]
    smb: Option<SmbListen>,
    /// Where the console and the API are offered over the network, or 'off' (default:
    /// 127.0.0.1:8443, or another port that is free)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = https)]
    https: Option<Https>,
    /// File with the certificate for that, and those above it, in PEM (default: one that the
    /// server makes); it is read again when it changes
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// File with the certificate's key, in PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// Where operators, who use the API over the network, may set mount points: at and below this
    /// directory (default: nowhere)
    #[arg(long, value_name = "DIRECTORY", value_parser = directory)]
    operator_mounts: Option<PathBuf>,
    /// The UPS that the power comes from, as NUT's server tells of it: pools are exported before
    /// its battery is empty (default host: localhost, port 3493)
    #[arg(long, value_name = "NAME[@HOST[:PORT]]")]
    ups: Option<UpsAddress>,
    /// Most memory for the cache, such as 2G (default: a quarter of what the process may have)
    #[arg(long, value_name = "SIZE", value_parser = size_word)]
    cache: Option<String>,
    /// How much of itself a cache device is written in a day once it is full, in percent, or 'off'
    /// for no limit (default: 100)
    #[arg(long, value_name = "PERCENT", value_parser = wear_word)]
    cache_wear: Option<String>,
    /// Trims what a cache device is about to overwrite, and so much more in percent, but 64 MiB at
    /// least; a new one as a whole (default: 0, nothing is trimmed)
    #[arg(long, value_name = "PERCENT", value_parser = percent_word)]
    cache_trim_ahead: Option<String>,
    /// Whether hot spares stand in by themselves for devices that fail, or only by 'zpool replace'
    /// (default: auto)
    #[arg(long, value_name = "auto|manual", value_parser = [AUTO, MANUAL])]
    spares: Option<String>,
    /// Let root, and admins over HTTPS, inject faults into the pools with zinject: for tests (not
    /// remembered)
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    inject: Option<bool>,
}

/// The words that the lines of a file stand for.
#[derive(Debug, Parser)]
#[command(name = "millpond.toml", disable_help_flag = true)]
struct FileWords {
    #[command(flatten)]
    options: ServerOptions,
}

/// A size in bytes, such as 2G.
pub fn size(text: Option<&str>) -> anyhow::Result<Option<u64>> {
    text.map(|text| dataset::props::parse_size(text).map_err(anyhow::Error::msg))
        .transpose()
}

fn size_word(text: &str) -> Result<String, String> {
    let parsed = dataset::props::parse_size(text);
    parsed
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

/// Hundredths.
fn percent(text: &str) -> Option<u32> {
    text.trim_end_matches('%').parse().ok()
}

fn percent_word(text: &str) -> Result<String, String> {
    match percent(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("write a number of percent".into()),
    }
}

fn wear_word(text: &str) -> Result<String, String> {
    match text == "off" || percent(text).is_some_and(|percent| percent > 0) {
        true => Ok(text.to_owned()),
        false => Err("write a number of percent above 0, or 'off'".into()),
    }
}

fn smb(text: &str) -> Result<SmbListen, String> {
    match text {
        "off" => Ok(SmbListen::Off),
        address => match address.parse() {
            Ok(address) => Ok(SmbListen::At(address)),
            Err(_) => Err("write an address and a port, such as 192.0.2.1:445, or 'off'".into()),
        },
    }
}

fn https(text: &str) -> Result<Https, String> {
    match text {
        "off" => Ok(Https::Off),
        address => match address.parse() {
            Ok(address) => Ok(Https::At(address)),
            Err(_) => Err("write an address and a port, such as 192.0.2.1:8443, or 'off'".into()),
        },
    }
}

fn directory(text: &str) -> Result<PathBuf, String> {
    match text.starts_with('/') {
        true => Ok(PathBuf::from(text)),
        false => Err("write an absolute path".into()),
    }
}

/// An address as the option has it.
fn smb_word(listen: SmbListen) -> String {
    match listen {
        SmbListen::Off => "off".into(),
        SmbListen::At(address) | SmbListen::Near(address) => address.to_string(),
    }
}

fn https_word(https: Https) -> String {
    match https {
        Https::Off => "off".into(),
        Https::At(address) | Https::Near(address) => address.to_string(),
    }
}

/// A value for people.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.value().clone(),
        Value::Array(all) => all.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => other.to_string().trim().to_owned(),
    }
}

impl ServerOptions {
    /// The options that were told, by their names.
    fn told(&self) -> anyhow::Result<Vec<(&'static str, Value)>> {
        let mut told = Vec::new();
        if !self.iscsi.is_empty() {
            let all: Array = self.iscsi.iter().map(ToString::to_string).collect();
            told.push(("iscsi", Value::from(all)));
        }
        let text = |text: Option<String>| text.map(Value::from);
        let number = |number: Option<u16>| number.map(|number| Value::from(i64::from(number)));
        // Who starts the server again may stand elsewhere.
        let path = |path: &Option<PathBuf>| {
            let absolute = path.as_ref().map(std::path::absolute).transpose()?;
            let word = absolute.map(|path| path.into_os_string().into_string());
            word.transpose()
                .map_err(|path| anyhow!("{}: a path has to be text", path.display()))
        };
        let others = [
            ("iscsi-sessions", number(self.iscsi_sessions)),
            ("iscsi-connections", number(self.iscsi_connections)),
            ("iscsi-memory", text(self.iscsi_memory.clone())),
            ("nfs", text(self.nfs.map(|address| address.to_string()))),
            ("portmapper", self.portmapper.map(Value::from)),
            ("insecure", self.insecure.map(Value::from)),
            ("smb", text(self.smb.map(smb_word))),
            ("https", text(self.https.map(https_word))),
            ("certificate", text(path(&self.certificate)?)),
            ("key", text(path(&self.key)?)),
            ("operator-mounts", text(path(&self.operator_mounts)?)),
            ("ups", text(self.ups.as_ref().map(ToString::to_string))),
            ("cache", text(self.cache.clone())),
            ("cache-wear", text(self.cache_wear.clone())),
            ("cache-trim-ahead", text(self.cache_trim_ahead.clone())),
            ("spares", text(self.spares.clone())),
            (INJECT, self.inject.map(Value::from)),
        ];
        told.extend(
            others
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        Ok(told)
    }

    /// What holds without a word.
    fn usual() -> Vec<(&'static str, Value)> {
        let at = |address: SocketAddr| Value::from(address.to_string());
        vec![
            ("iscsi", at(ISCSI_HERE)),
            ("nfs", at(NFS_HERE)),
            ("smb", at(SMB_HERE)),
            ("https", at(HTTPS_HERE)),
        ]
    }

    /// These, and those of `below` that these do not tell.
    fn above(self, below: Self) -> Self {
        let iscsi = match self.iscsi.is_empty() {
            true => below.iscsi,
            false => self.iscsi,
        };
        // A certificate goes with its key.
        let (certificate, key) = match self.certificate {
            Some(certificate) => (Some(certificate), self.key),
            None => (below.certificate, below.key),
        };
        Self {
            iscsi,
            iscsi_sessions: self.iscsi_sessions.or(below.iscsi_sessions),
            iscsi_connections: self.iscsi_connections.or(below.iscsi_connections),
            iscsi_memory: self.iscsi_memory.or(below.iscsi_memory),
            nfs: self.nfs.or(below.nfs),
            portmapper: self.portmapper.or(below.portmapper),
            insecure: self.insecure.or(below.insecure),
            smb: self.smb.or(below.smb),
            https: self.https.or(below.https),
            certificate,
            key,
            operator_mounts: self.operator_mounts.or(below.operator_mounts),
            ups: self.ups.or(below.ups),
            cache: self.cache.or(below.cache),
            cache_wear: self.cache_wear.or(below.cache_wear),
            cache_trim_ahead: self.cache_trim_ahead.or(below.cache_trim_ahead),
            spares: self.spares.or(below.spares),
            inject: self.inject.or(below.inject),
        }
    }

    /// What the server is told at its start: these options above those of the file. `keep` has the
    /// file remember these.
    ///
    /// # Errors
    /// The file cannot be read or is not understood.
    pub fn for_server(self, state: PathBuf, keep: bool) -> anyhow::Result<daemon::Options> {
        let path = state.join(FILE);
        let mut file = OptionFile::read(&path)?;
        let told = self.told()?;
        let settings = settings(&told, &file.options()?);
        let all = self.above(file.words()?);
        let kept = keep && !told.is_empty();
        // What hurts pools is asked for each time, or written by hand.
        for (name, value) in told.into_iter().filter(|(name, _)| *name != INJECT) {
            file.document[name] = toml_edit::value(value);
        }
        Ok(daemon::Options {
            state,
            iscsi_addresses: match all.iscsi.is_empty() {
                true => vec![ISCSI_HERE],
                false => all.iscsi,
            },
            iscsi_sessions: all.iscsi_sessions.map(usize::from),
            iscsi_connections: all.iscsi_connections,
            iscsi_memory_bytes: size(all.iscsi_memory.as_deref())?,
            insecure: all.insecure.unwrap_or(false),
            nfs_address: all.nfs.unwrap_or(NFS_HERE),
            nfs_portmapper: all.portmapper.unwrap_or(false),
            smb: all.smb.unwrap_or(SmbListen::Near(SMB_HERE)),
            https: all.https.unwrap_or(Https::Near(HTTPS_HERE)),
            certificate: all.certificate.zip(all.key),
            operator_mounts: all.operator_mounts,
            cache_bytes: size(all.cache.as_deref())?,
            // Without limit where it is 'off'.
            cache_wear_percent: all.cache_wear.as_deref().map_or(Some(100), percent),
            cache_trim_ahead_percent: all
                .cache_trim_ahead
                .as_deref()
                .and_then(percent)
                .unwrap_or(0),
            spares_by_hand: all.spares.as_deref() == Some(MANUAL),
            inject: all.inject.unwrap_or(false),
            ups: all.ups,
            settings,
            file: kept.then(|| (path, file.text())),
        })
    }
}

/// Which options hold, and who says so.
fn settings(told: &[(&'static str, Value)], of_file: &[(String, Value)]) -> Vec<ServerOption> {
    let told = told
        .iter()
        .map(|(name, value)| (*name, value, OptionSource::CommandLine));
    let of_file = of_file.iter();
    let of_file = of_file.map(|(name, value)| (name.as_str(), value, OptionSource::File));
    let usual = ServerOptions::usual();
    let usual = usual
        .iter()
        .map(|(name, value)| (*name, value, OptionSource::Default));
    let mut settings: Vec<ServerOption> = Vec::new();
    for (name, value, source) in told.chain(of_file).chain(usual) {
        if settings.iter().all(|setting| setting.name != name) {
            settings.push(ServerOption {
                name: name.to_owned(),
                value: shown(value),
                source,
            });
        }
    }
    settings
}

/// `millpond.toml` as it is.
pub struct OptionFile {
    path: PathBuf,
    document: DocumentMut,
    is_new: bool,
}

impl OptionFile {
    /// Reads it. One that is not there has no options.
    ///
    /// # Errors
    /// It cannot be read, or is no TOML.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        // Not what somebody else has put there.
        let bytes = device::private::read(path, "options")?;
        let text = bytes.map(String::from_utf8).transpose();
        let text = text.map_err(|_| anyhow!("{} is no text; remove it", path.display()))?;
        let is_new = text.is_none();
        let document = text.unwrap_or_default().parse::<DocumentMut>();
        let document = document.map_err(|error| {
            anyhow!(
                "{} is not understood; mend or remove it: {error}",
                path.display()
            )
        })?;
        Ok(Self {
            path: path.to_owned(),
            document,
            is_new,
        })
    }

    /// Its options by their names.
    ///
    /// # Errors
    /// Something there is no option.
    fn options(&self) -> anyhow::Result<Vec<(String, Value)>> {
        let known = FileWords::command();
        let is_known = |name: &str| {
            known
                .get_arguments()
                .any(|arg| arg.get_long() == Some(name))
        };
        let mut options = Vec::new();
        for (name, item) in self.document.iter() {
            let value = item.as_value().filter(|_| is_known(name));
            let Some(value) = value else {
                bail!(
                    "{}: '{name}' is no option of the server; see 'man millpond-daemon'",
                    self.path.display()
                );
            };
            options.push((name.to_owned(), value.clone()));
        }
        Ok(options)
    }

    /// Its options, as if they had been typed.
    ///
    /// # Errors
    /// Something there is no option, or no value of it.
    fn words(&self) -> anyhow::Result<ServerOptions> {
        let mut words: Vec<OsString> = vec![FILE.into()];
        for (name, value) in self.options()? {
            let values = match &value {
                Value::Array(all) => all.iter().map(shown).collect(),
                one => vec![shown(one)],
            };
            words.extend(
                values
                    .iter()
                    .map(|value| format!("--{name}={value}").into()),
            );
        }
        let parsed = FileWords::try_parse_from(words).map_err(|error| {
            let text = error.to_string();
            let lines = text.lines().take_while(|line| !line.is_empty());
            let why = lines.map(str::trim).collect::<Vec<_>>().join(" ");
            anyhow!(
                "{}: {}",
                self.path.display(),
                why.trim_start_matches("error: ")
            )
        })?;
        Ok(parsed.options)
    }

    /// What the next start would do, where no server runs.
    ///
    /// # Errors
    /// Something there is no option, or no value of it.
    pub fn settings(&self) -> anyhow::Result<Vec<ServerOption>> {
        self.words()?;
        Ok(settings(&[], &self.options()?))
    }

    fn text(&self) -> String {
        let heading = if self.is_new { HEADING } else { "" };
        format!("{heading}{}", self.document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(words: &[&str]) -> ServerOptions {
        let words = ["millpond"].iter().chain(words);
        FileWords::try_parse_from(words).expect("options").options
    }

    fn start(state: &Path, words: &[&str], keep: bool) -> anyhow::Result<daemon::Options> {
        let options = told(words).for_server(state.to_owned(), keep)?;
        if let Some((path, text)) = &options.file {
            std::fs::write(path, text)?;
        }
        Ok(options)
    }

    #[test]
    fn the_next_start_has_what_up_was_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path();
        let usual = start(state, &[], false).expect("options");
        assert_eq!(usual.smb, SmbListen::Near(SMB_HERE));
        assert_eq!((usual.nfs_address, usual.insecure), (NFS_HERE, false));
        assert_eq!(usual.cache_wear_percent, Some(100));
        let unlimited = start(state, &["--cache-wear=off"], false).expect("options");
        assert_eq!(unlimited.cache_wear_percent, None);
        assert!(wear_word("0").is_err() && wear_word("much").is_err());
        assert_eq!(usual.cache_trim_ahead_percent, 0);
        assert!(!usual.spares_by_hand);
        let words = [
            "--nfs=192.0.2.1:2049",
            "--iscsi=192.0.2.1:3260",
            "--iscsi=[2001:db8::1]:3260",
            "--smb=off",
            "--https=off",
            "--insecure",
            "--iscsi-sessions=7",
            "--cache=2G",
            "--cache-wear=30%",
            "--cache-trim-ahead=50",
            "--spares=manual",
            "--ups=cellar",
        ];
        // Only 'up' has it remembered.
        start(state, &words, false).expect("options");
        assert!(!state.join(FILE).exists());
        start(state, &words, true).expect("options");
        let later = start(state, &[], false).expect("options");
        assert_eq!(later.nfs_address.to_string(), "192.0.2.1:2049");
        assert_eq!(later.iscsi_addresses.len(), 2);
        assert_eq!((later.smb, later.https), (SmbListen::Off, Https::Off));
        assert_eq!((later.insecure, later.iscsi_sessions), (true, Some(7)));
        assert_eq!(later.cache_bytes, Some(2 << 30));
        assert_eq!(later.cache_wear_percent, Some(30));
        assert_eq!(later.cache_trim_ahead_percent, 50);
        assert!(later.spares_by_hand);
        assert_eq!(
            later.ups.map(|ups| ups.to_string()).as_deref(),
            Some("cellar@localhost")
        );
        // Another word stands above it, and what is not told stays; so do comments.
        let path = state.join(FILE);
        let text = std::fs::read_to_string(&path).expect("the file");
        std::fs::write(&path, format!("# mine\n{text}")).expect("the file");
        let again = ["--nfs=127.0.0.1:2050", "--insecure=false"];
        let again = start(state, &again, true).expect("options");
        assert_eq!(again.nfs_address.port(), 2050);
        let text = std::fs::read_to_string(&path).expect("the file");
        for line in [
            "# mine",
            "nfs = \"127.0.0.1:2050\"",
            "insecure = false",
            "smb = \"off\"",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "'{line}' is not in:\n{text}"
            );
        }
        let of = |name: &str, options: &daemon::Options| {
            let found = options.settings.iter().find(|setting| setting.name == name);
            found.map(|setting| (setting.value.clone(), setting.source))
        };
        let expected = Some(("off".to_owned(), OptionSource::File));
        assert_eq!(of("smb", &again), expected);
        let expected = Some(("127.0.0.1:2050".to_owned(), OptionSource::CommandLine));
        assert_eq!(of("nfs", &again), expected);
    }

    #[test]
    fn what_is_no_option_keeps_the_server_from_starting() {
        let directory = tempfile::tempdir().expect("a directory");
        for (text, why) in [
            ("nfs = ", "not understood"),
            ("nsf = \"127.0.0.1:2049\"", "'nsf' is no option"),
            ("[nfs]\nat = 1", "'nfs' is no option"),
            ("nfs = \"everywhere\"", "everywhere"),
            ("cache = \"much\"", "much"),
            ("key = \"/k\"", "--certificate"),
        ] {
            std::fs::write(directory.path().join(FILE), text).expect("the file");
            let error = start(directory.path(), &[], false)
                .expect_err(text)
                .to_string();
            assert!(
                error.contains(why) && error.contains(FILE),
                "{text}: {error}"
            );
        }
    }
}
