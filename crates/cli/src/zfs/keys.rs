//! `zfs load-key`, `zfs unload-key` and `zfs change-key`, and the keys of new encryption roots:
//! asking for keys, and what they are made of (zfs-load-key(8); `get_key_material`,
//! `zfs_crypto_load_key`, `zfs_crypto_create` and `zfs_crypto_rewrap`,
//! lib/libzfs/libzfs_crypto.c).

use std::io::{BufRead, IsTerminal, Read};

use anyhow::{anyhow, bail};
use api::{
    Failure, FailureKind, KeyDetails, KeyFormat, KeyReport, NewKey, Secret, Settings, ZfsChangeKey,
    ZfsKeys, ZfsList, ZfsLoadKey, ZfsMount, ZfsUnloadKey,
};
use clap::Args;
use codec::crypt::{WRAPPING_KEY_BYTES, WrappingKey, passphrase_key};
use dataset::props::parse_size;
use dataset::{PBKDF2_ITERATIONS, PBKDF2_ITERATIONS_MIN};
use device::{Random, SystemRandom};
use zeroize::Zeroizing;

use crate::client::Client;
use crate::prompt;
use crate::settings::assignments;

/// How often a key is asked for at a terminal (`MAX_KEY_PROMPT_ATTEMPTS`).
const ATTEMPTS_MAX: u32 = 3;
/// Bytes of a new passphrase (`MIN_PASSPHRASE_LEN`, `MAX_PASSPHRASE_LEN`).
const PASSPHRASE_BYTES_MIN: usize = 8;
const PASSPHRASE_BYTES_MAX: usize = 512;

/// Load the key of an encrypted dataset.
#[derive(Debug, Args)]
pub struct LoadKey {
    /// All datasets of all pools
    #[arg(short, conflicts_with = "dataset", required_unless_present = "dataset")]
    all: bool,
    /// Encryption roots below it too
    #[arg(short)]
    recursive: bool,
    /// Only find out whether the key is right
    #[arg(short = 'n')]
    only_check: bool,
    /// Where the key is, instead of property keylocation: prompt, file:///PATH or https://URL
    #[arg(short = 'L')]
    location: Option<String>,
    dataset: Option<String>,
}

/// Unload the key of an encrypted dataset.
#[derive(Debug, Args)]
pub struct UnloadKey {
    /// All datasets of all pools
    #[arg(short, conflicts_with = "dataset", required_unless_present = "dataset")]
    all: bool,
    /// Encryption roots below it too
    #[arg(short)]
    recursive: bool,
    dataset: Option<String>,
}

/// Change the key of an encryption root, or make a dataset one.
#[derive(Debug, Args)]
pub struct ChangeKey {
    /// Load the present key first if it is not
    #[arg(short)]
    load: bool,
    /// Inherit the parent's key from now on
    #[arg(short)]
    inherit: bool,
    /// keyformat, keylocation, pbkdf2iters or a user property, PROPERTY=VALUE
    #[arg(short = 'o')]
    properties: Vec<String>,
    dataset: String,
}

impl ChangeKey {
    /// Asks for the new key and has it taken.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        self.change(client, typed).map_err(|error| {
            let error = crate::usage::of_absent(error);
            let is_whole = error.is::<crate::usage::Usage>() || error.is::<crate::usage::Status>();
            match is_whole {
                true => error,
                // As OpenZFS's ends.
                false => {
                    let text = format!("{error:#}");
                    let code = crate::usage::MINUS_ONE;
                    crate::usage::Status { code, text }.into()
                }
            }
        })
    }

    fn change(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let mut properties = assignments(&self.properties).map_err(|error| {
            let (code, text) = (1, format!("{error:#}"));
            crate::usage::Status { code, text }
        })?;
        let is_of_key = |name: &String| !name.contains(':');
        if self.inherit && properties.keys().any(is_of_key) {
            bail_usage!("Properties not allowed for inheriting");
        }
        if self.dataset.contains('@') {
            let why = "snapshot delimiter '@' is not expected here";
            bail_usage!("cannot open '{}': {why}", self.dataset);
        }
        let mut reports = datasets(client, Some(self.dataset.clone()), false)?;
        let Some(report) = reports.pop() else {
            bail!("cannot open '{}': dataset does not exist", self.dataset);
        };
        let name = &report.name;
        let Some(key) = &report.key else {
            if self.load {
                bail!("Key load error: '{name}' is not encrypted.");
            }
            bail!("Key change error: Dataset not encrypted.");
        };
        if !key.is_loaded {
            if !self.load {
                bail!("Key change error: Key must be loaded.");
            }
            let root = root_key(&report, "loaded");
            let root = root.map_err(|error| anyhow!("Key load error: {error:#}"))?;
            load(client, name, &root, None, false, false)?;
        }
        let key = match self.inherit {
            true => None,
            false => {
                let has = (key.root == *name).then_some(key);
                let location = properties.get("keylocation");
                if location.is_some_and(|location| !is_location(location)) {
                    bail!("Key change error: invalid keylocation");
                }
                let new = of_changed(name, has, &mut properties);
                Some(new.map_err(|error| anyhow!("Key change error: {error:#}"))?)
            }
        };
        client.call(&ZfsChangeKey {
            name: name.clone(),
            key,
            properties,
            command: typed,
        })?;
        Ok(())
    }
}

/// The new key of a dataset; `has` is the one that it has as an encryption root.
fn of_changed(
    name: &str,
    has: Option<&KeyDetails>,
    properties: &mut Settings,
) -> anyhow::Result<NewKey> {
    let format = match (properties.get("keyformat"), has) {
        (Some(word), _) => format_of(word)?,
        (None, Some(key)) => key.format,
        (None, None) => bail!("Keyformat required for new encryption root."),
    };
    let location = match (properties.get("keylocation"), has) {
        (Some(location), _) => location.clone(),
        (None, Some(key)) => key.location.clone(),
        (None, None) => "prompt".to_owned(),
    };
    new_key(Some(name), format, &location, properties)
}

/// The key of a new dataset or pool whose properties make it an encryption root, and what they lack
/// put among them; none where they do not. Whether they go together is the daemon's to say.
pub fn of_new(
    client: &Client,
    parent: Option<&str>,
    properties: &mut Settings,
) -> anyhow::Result<Option<NewKey>> {
    let format = match properties.get("keyformat").map(String::as_str) {
        None | Some("none") => return Ok(None),
        Some(word) => format_of(word)?,
    };
    let is_encrypted = match properties.get("encryption").map(String::as_str) {
        Some(word) => word != "off",
        None => is_encrypted(client, parent)?,
    };
    if !is_encrypted {
        return Ok(None);
    }
    let location = properties
        .entry("keylocation".into())
        .or_insert_with(|| "prompt".into())
        .clone();
    if location == "none" {
        bail!("Invalid keylocation");
    }
    if !is_location(&location) {
        bail!("invalid keylocation");
    }
    new_key(None, format, &location, properties).map(Some)
}

/// Whether what a dataset is made below is encrypted: the closest one that is there.
fn is_encrypted(client: &Client, parent: Option<&str>) -> anyhow::Result<bool> {
    let mut parent = parent;
    while let Some(name) = parent {
        let query = ZfsList {
            names: vec![name.to_owned()],
            depth: Some(0),
            properties: Some(vec!["encryption".into()]),
            ..ZfsList::default()
        };
        if let Some(report) = client.call(&query)?.datasets.first() {
            let value = report.properties.get("encryption");
            return Ok(value.is_some_and(|property| property.value != "off"));
        }
        parent = name.rsplit_once('/').map(|(above, _)| above);
    }
    Ok(false)
}

fn format_of(word: &str) -> anyhow::Result<KeyFormat> {
    Ok(match word {
        "raw" => KeyFormat::Raw,
        "hex" => KeyFormat::Hex,
        "passphrase" => KeyFormat::Passphrase,
        _ => bail!("'keyformat' must be one of 'none | raw | hex | passphrase'"),
    })
}

/// Whether a key can be there (`zfs_prop_valid_keylocation`, module/zcommon/zfs_prop.c).
fn is_location(word: &str) -> bool {
    let begins = ["file:///", "https://", "http://"];
    word == "prompt" || begins.iter().any(|begin| word.starts_with(begin))
}

/// Gets a key that was not there before, for a dataset that has a name already or for a new one
/// (`populate_create_encryption_params_nvlists`). Of a passphrase, the salt is new, and the
/// iterations are among the properties then.
fn new_key(
    name: Option<&str>,
    format: KeyFormat,
    location: &str,
    properties: &mut Settings,
) -> anyhow::Result<NewKey> {
    let mut recipe = Recipe {
        format,
        salt: 0,
        iterations: 0,
    };
    let typed = properties.get("pbkdf2iters");
    if format == KeyFormat::Passphrase {
        recipe.iterations = match typed {
            Some(typed) => parse_size(typed).map_err(anyhow::Error::msg)?,
            None => PBKDF2_ITERATIONS,
        };
        if recipe.iterations < PBKDF2_ITERATIONS_MIN {
            bail!("minimum pbkdf2 iterations is {PBKDF2_ITERATIONS_MIN}");
        }
        while recipe.salt == 0 {
            recipe.salt = SystemRandom.next_u64();
        }
        properties.insert("pbkdf2iters".into(), recipe.iterations.to_string());
    } else if typed.is_some() {
        bail!("Cannot specify pbkdf2iters with a non-passphrase keyformat.");
    }
    let material = material(&Asked { name, is_new: true }, format, location)?;
    Ok(NewKey {
        key: Secret(digits(&derive(&recipe, &material)?)),
        salt: recipe.salt,
    })
}

fn datasets(
    client: &Client,
    dataset: Option<String>,
    recursive: bool,
) -> anyhow::Result<Vec<KeyReport>> {
    let query = ZfsKeys {
        names: dataset.into_iter().collect(),
        recursive,
    };
    Ok(client.call(&query)?.datasets)
}

/// Whether a key of a list that was read before others were loaded is still to be loaded: one that
/// was may have had datasets inherit from its own again. Where that cannot be told, loading will
/// say why.
fn is_still_locked(client: &Client, name: &str) -> bool {
    let reports = datasets(client, Some(name.to_owned()), false).unwrap_or_default();
    let is_other = |key: &KeyDetails| key.root != name || key.is_loaded;
    let mut keys = reports.iter().filter_map(|report| report.key.as_ref());
    !keys.any(is_other)
}

impl LoadKey {
    /// Loads, and says how many.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let many = self.all || self.recursive;
        if many && self.location.as_deref().is_some_and(|at| at != "prompt") {
            bail!("alternate keylocation may only be 'prompt' with -r or -a");
        }
        let mut counts = Counts::default();
        for report in datasets(client, self.dataset, self.recursive)? {
            let details = if many {
                match report.key {
                    Some(key)
                        if key.root == report.name
                            && !key.is_loaded
                            && is_still_locked(client, &report.name) =>
                    {
                        key
                    }
                    _ => continue,
                }
            } else {
                match root_key(&report, "loaded") {
                    Ok(key) => key,
                    Err(error) => {
                        counts.note(Err(anyhow!("Key load error: {error:#}")));
                        continue;
                    }
                }
            };
            let location = self.location.as_deref();
            counts.note(load(
                client,
                &report.name,
                &details,
                location,
                self.only_check,
                false,
            ));
        }
        let verb = if self.only_check {
            "verified"
        } else {
            "loaded"
        };
        counts.finish(many || self.only_check, self.only_check, verb)
    }
}

impl UnloadKey {
    /// Unloads, and says how many.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let many = self.all || self.recursive;
        let mut counts = Counts::default();
        for report in datasets(client, self.dataset, self.recursive)?
            .into_iter()
            .rev()
        {
            if many {
                let wanted = report
                    .key
                    .as_ref()
                    .is_some_and(|key| key.root == report.name && key.is_loaded);
                if !wanted {
                    continue;
                }
            } else if let Err(error) = root_key(&report, "unloaded") {
                counts.note(Err(anyhow!("Key unload error: {error:#}")));
                continue;
            }
            let call = ZfsUnloadKey { name: report.name };
            counts.note(client.call(&call).map(|_| ()));
        }
        counts.finish(many, false, "unloaded")
    }
}

/// Loads every key that is not, of a pool or of all: `zpool import -l`, `zfs mount -al`. As far as
/// it goes.
pub fn load_all(client: &Client, pool: Option<String>, mount: bool) -> anyhow::Result<()> {
    let mut counts = Counts::default();
    for report in datasets(client, pool, true)? {
        if let Some(key) = report.key
            && key.root == report.name
            && !key.is_loaded
            && is_still_locked(client, &report.name)
        {
            counts.note(load(client, &report.name, &key, None, false, mount));
        }
    }
    counts.finish(true, false, "loaded")
}

/// Unloads the keys of those of the datasets that are encryption roots: `zfs unmount -u`. As far as
/// it goes; those below others come first. What keeps its key is mounted again (`zfs_unmount`,
/// lib/libzfs/libzfs_mount.c).
pub fn unload_of(client: &Client, names: &[String]) -> anyhow::Result<()> {
    let mut names = names.to_vec();
    names.sort_unstable_by(|one, other| other.cmp(one));
    let mut errors = Vec::new();
    // Names with their encryption roots, and the roots that keep their keys.
    let (mut encrypted, mut keep) = (Vec::new(), Vec::new());
    for name in names {
        let reports = match datasets(client, Some(name), false) {
            Ok(reports) => reports,
            Err(error) => {
                errors.push(error.to_string());
                continue;
            }
        };
        for report in reports {
            let Some(key) = report.key else { continue };
            encrypted.push((report.name.clone(), key.root.clone()));
            if key.root != report.name || !key.is_loaded {
                continue;
            }
            if let Err(error) = client.call(&ZfsUnloadKey { name: report.name }) {
                errors.push(error.to_string());
                keep.push(key.root);
            }
        }
    }
    for (name, _) in encrypted
        .iter()
        .rev()
        .filter(|(_, root)| keep.contains(root))
    {
        let again = ZfsMount {
            name: Some(name.clone()),
            ..ZfsMount::default()
        };
        let mounted = client.call(&again);
        errors.extend(mounted.err().map(|error| error.to_string()));
    }
    match errors.is_empty() {
        true => Ok(()),
        false => bail!(errors.join("\n")),
    }
}

/// Loads the key of a dataset's encryption root if it is not: `zfs mount -l`.
pub fn load_for(client: &Client, dataset: &str) -> anyhow::Result<()> {
    for report in datasets(client, Some(dataset.to_owned()), false)? {
        let Some(key) = report.key.filter(|key| !key.is_loaded) else {
            continue;
        };
        load(client, &key.root.clone(), &key, None, false, false)?;
    }
    Ok(())
}

/// The key of a dataset that must be an encryption root.
fn root_key(report: &KeyReport, verb: &str) -> anyhow::Result<KeyDetails> {
    let name = &report.name;
    match &report.key {
        None => bail!("'{name}' is not encrypted."),
        Some(key) if key.root != *name => bail!(
            "Keys must be {verb} for encryption root of '{name}' ({}).",
            key.root
        ),
        Some(key) => Ok(key.clone()),
    }
}

#[derive(Default)]
struct Counts {
    attempted: u32,
    failed: u32,
}

impl Counts {
    fn note(&mut self, result: anyhow::Result<()>) {
        self.attempted += 1;
        if let Err(error) = result {
            self.failed += 1;
            eprintln!("{}", api::for_people(format!("{error:#}")));
        }
    }

    /// The sum, as OpenZFS prints it when there may be several, or (`always`) also of none.
    fn finish(self, many: bool, always: bool, verb: &str) -> anyhow::Result<()> {
        if always || many && self.attempted > 0 {
            println!(
                "{} / {} key(s) successfully {verb}",
                self.attempted - self.failed,
                self.attempted
            );
        }
        if self.failed > 0 {
            // What failed was said.
            std::process::exit(255);
        }
        Ok(())
    }
}

fn load(
    client: &Client,
    name: &str,
    key: &KeyDetails,
    location: Option<&str>,
    only_check: bool,
    mount: bool,
) -> anyhow::Result<()> {
    if key.is_loaded && !only_check {
        bail!("Key load error: Key already loaded for '{name}'.");
    }
    let location = location.unwrap_or(&key.location);
    let is_asked = location == "prompt" && std::io::stdin().is_terminal();
    let mut attempt = 1;
    loop {
        let may_try_again = is_asked && key.format != KeyFormat::Raw && attempt < ATTEMPTS_MAX;
        let asked = Asked {
            name: Some(name),
            is_new: false,
        };
        let recipe = Recipe {
            format: key.format,
            salt: key.salt,
            iterations: key.iterations,
        };
        let result = material(&asked, key.format, location)
            .and_then(|material| derive(&recipe, &material))
            .map_err(|error| anyhow!("Key load error: {error:#}"));
        let error = match result {
            Ok(wrapping) => {
                let call = ZfsLoadKey {
                    name: name.to_owned(),
                    key: Secret(digits(&wrapping)),
                    only_check,
                    mount,
                };
                match client.call(&call) {
                    Ok(_) => return Ok(()),
                    Err(error) => {
                        let wrong = error
                            .downcast_ref::<Failure>()
                            .is_some_and(|failure| failure.kind == FailureKind::WrongKey);
                        if !wrong {
                            return Err(error);
                        }
                        anyhow!("Key load error: Incorrect key provided for '{name}'.")
                    }
                }
            }
            Err(error) => error,
        };
        if !may_try_again {
            return Err(error);
        }
        eprintln!("{error:#}");
        attempt += 1;
    }
}

fn digits(key: &WrappingKey) -> String {
    let mut text = String::with_capacity(2 * WRAPPING_KEY_BYTES);
    for nibble in key.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
        text.push(char::from_digit(nibble.into(), 16).unwrap_or_default());
    }
    text
}

type Material = Zeroizing<Vec<u8>>;

/// Whose key is asked for.
struct Asked<'a> {
    /// The dataset; none where it is yet to be made.
    name: Option<&'a str>,
    /// The key is chosen now.
    is_new: bool,
}

/// How a wrapping key is made of what the user gives.
struct Recipe {
    format: KeyFormat,
    /// Of a passphrase.
    salt: u64,
    /// PBKDF2's, of a passphrase.
    iterations: u64,
}

/// What the user gives as a key. A new one is asked for twice at a terminal.
fn material(asked: &Asked<'_>, format: KeyFormat, location: &str) -> anyhow::Result<Material> {
    let material = from_location(asked, format, location)?;
    if asked.is_new && format == KeyFormat::Passphrase {
        check_passphrase(&material)?;
    }
    Ok(material)
}

/// Old passphrases are taken whatever their length (`validate_key`).
fn check_passphrase(material: &Material) -> anyhow::Result<()> {
    match material.len() {
        length if length > PASSPHRASE_BYTES_MAX => {
            bail!("Passphrase too long (max {PASSPHRASE_BYTES_MAX}).")
        }
        length if length < PASSPHRASE_BYTES_MIN => {
            bail!("Passphrase too short (min {PASSPHRASE_BYTES_MIN}).")
        }
        _ => Ok(()),
    }
}

fn from_location(asked: &Asked<'_>, format: KeyFormat, location: &str) -> anyhow::Result<Material> {
    if location == "prompt" {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return read_key(&mut stdin.lock(), format);
        }
        let key = ask("Enter", asked, format)?;
        if asked.is_new {
            if format == KeyFormat::Passphrase {
                check_passphrase(&key)?;
            }
            if ask("Re-enter", asked, format)? != key {
                bail!("Provided keys do not match.");
            }
        }
        return Ok(key);
    }
    if let Some(path) = location.strip_prefix("file://") {
        let file = std::fs::File::open(path)
            .map_err(|error| anyhow!("Failed to open key material file: {error}"))?;
        return read_key(&mut std::io::BufReader::new(file), format);
    }
    if location.starts_with("https://") || location.starts_with("http://") {
        let fetched = crate::fetch::get(location)?;
        return read_key(&mut fetched.as_slice(), format);
    }
    if location.contains("://") {
        bail!("URI scheme is not supported");
    }
    bail!("Invalid keylocation.");
}

/// A raw key to its end (one byte more shows that it is too long), any other to the end of its
/// line.
fn read_key(from: &mut dyn BufRead, format: KeyFormat) -> anyhow::Result<Material> {
    let mut material = Material::default();
    if format == KeyFormat::Raw {
        from.take(WRAPPING_KEY_BYTES as u64 + 1)
            .read_to_end(&mut material)?;
    } else {
        return prompt::line(from);
    }
    Ok(material)
}

/// Asks at the terminal.
fn ask(verb: &str, asked: &Asked<'_>, format: KeyFormat) -> anyhow::Result<Material> {
    let what = match format {
        KeyFormat::Raw => bail!("Cannot enter raw keys on the terminal"),
        KeyFormat::Hex => "hex key",
        KeyFormat::Passphrase => "passphrase",
    };
    let new = if asked.is_new { "new " } else { "" };
    let whose = asked.name.map(|name| format!(" for '{name}'"));
    prompt::hidden(&format!("{verb} {new}{what}{}:", whose.unwrap_or_default()))
}

/// The wrapping key of what the user gave (`validate_key`, `derive_key`).
fn derive(key: &Recipe, material: &Material) -> anyhow::Result<WrappingKey> {
    let sized = |what: &str, wanted: usize| match material.len() {
        length if length < wanted => bail!("{what} key too short (expected {wanted})."),
        length if length > wanted => bail!("{what} key too long (expected {wanted})."),
        _ => Ok(()),
    };
    let mut wrapping = WrappingKey::new([0; WRAPPING_KEY_BYTES]);
    match key.format {
        KeyFormat::Raw => {
            sized("Raw", WRAPPING_KEY_BYTES)?;
            wrapping.copy_from_slice(material);
        }
        KeyFormat::Hex => {
            sized("Hex", 2 * WRAPPING_KEY_BYTES)?;
            for (byte, pair) in wrapping.iter_mut().zip(material.chunks(2)) {
                let digit = |digit: u8| (digit as char).to_digit(16);
                let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                    bail!("Invalid hex character detected.");
                };
                *byte = (high << 4 | low) as u8;
            }
        }
        KeyFormat::Passphrase => {
            let iterations = u32::try_from(key.iterations)
                .ok()
                .filter(|iterations| *iterations > 0);
            let Some(iterations) = iterations else {
                bail!("Failed to generate key from passphrase.");
            };
            // OpenZFS takes it for a string of C.
            let end = material.iter().position(|byte| *byte == 0);
            let passphrase = &material[..end.unwrap_or(material.len())];
            wrapping = passphrase_key(passphrase, key.salt, iterations);
        }
    }
    Ok(wrapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived(format: KeyFormat, material: &[u8]) -> Result<[u8; 32], String> {
        let recipe = Recipe {
            format,
            salt: 1,
            iterations: 1000,
        };
        derive(&recipe, &Zeroizing::new(material.to_vec()))
            .map(|key| *key)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn keys_have_the_length_of_their_format() {
        assert_eq!(derived(KeyFormat::Raw, &[7; 32]), Ok([7; 32]));
        let error = derived(KeyFormat::Raw, &[7; 31]).unwrap_err();
        assert_eq!(error, "Raw key too short (expected 32).");
        let error = derived(KeyFormat::Raw, &[7; 33]).unwrap_err();
        assert_eq!(error, "Raw key too long (expected 32).");
        assert_eq!(derived(KeyFormat::Hex, &[b'a'; 64]), Ok([0xaa; 32]));
        let error = derived(KeyFormat::Hex, &[b'x'; 64]).unwrap_err();
        assert_eq!(error, "Invalid hex character detected.");
        let error = derived(KeyFormat::Hex, &[b'a'; 65]).unwrap_err();
        assert_eq!(error, "Hex key too long (expected 64).");
        assert!(derived(KeyFormat::Passphrase, b"x").is_ok());
        let of = |passphrase: &[u8]| derived(KeyFormat::Passphrase, passphrase);
        assert_eq!(of(b"x\0y"), of(b"x"));
        assert_ne!(of(b"xy"), of(b"x"));
    }

    /// Only new ones are refused for their length.
    #[test]
    fn new_passphrases_have_eight_to_512_bytes() {
        let check = |length| check_passphrase(&Zeroizing::new(vec![b'x'; length]));
        assert!(check(8).is_ok() && check(512).is_ok());
        let short = check(7).unwrap_err().to_string();
        assert_eq!(short, "Passphrase too short (min 8).");
        let long = check(513).unwrap_err().to_string();
        assert_eq!(long, "Passphrase too long (max 512).");
    }

    #[test]
    fn lines_end_keys_that_are_not_raw() {
        let mut input = std::io::Cursor::new(b"first\nsecond".to_vec());
        let mut next = |format| read_key(&mut input, format).unwrap().to_vec();
        assert_eq!(next(KeyFormat::Passphrase), b"first");
        assert_eq!(next(KeyFormat::Passphrase), b"second");
        let mut input = std::io::Cursor::new([b'\n'; 40].to_vec());
        assert_eq!(read_key(&mut input, KeyFormat::Raw).unwrap().len(), 33);
    }
}
