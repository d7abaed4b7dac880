//! `zfs load-key` and `zfs unload-key`: asking for keys, and what they are made of
//! (zfs-load-key(8); `get_key_material` and `zfs_crypto_load_key`, lib/libzfs/libzfs_crypto.c).

use std::io::{BufRead, IsTerminal, Read};

use anyhow::{anyhow, bail};
use api::{
    Failure, FailureKind, KeyDetails, KeyFormat, KeyReport, Secret, ZfsKeys, ZfsLoadKey,
    ZfsUnloadKey,
};
use clap::Args;
use codec::crypt::{WRAPPING_KEY_BYTES, WrappingKey, passphrase_key};
use zeroize::Zeroizing;

use crate::client::Client;
use crate::prompt;

/// How often a key is asked for at a terminal (`MAX_KEY_PROMPT_ATTEMPTS`).
const ATTEMPTS_MAX: u32 = 3;

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
    /// Where the key is, instead of property keylocation: prompt, or file:///PATH
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
                    Some(key) if key.root == report.name && !key.is_loaded => key,
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
        {
            counts.note(load(client, &report.name, &key, None, false, mount));
        }
    }
    counts.finish(true, false, "loaded")
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
            eprintln!("{error:#}");
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
        let result = material(name, key.format, location)
            .and_then(|material| derive(key, &material))
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
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

type Material = Zeroizing<Vec<u8>>;

/// What the user gives as a key.
fn material(name: &str, format: KeyFormat, location: &str) -> anyhow::Result<Material> {
    if location == "prompt" {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return read_key(&mut stdin.lock(), format);
        }
        return ask(name, format);
    }
    if let Some(path) = location.strip_prefix("file://") {
        let file = std::fs::File::open(path)
            .map_err(|error| anyhow!("Failed to open key material file: {error}"))?;
        return read_key(&mut std::io::BufReader::new(file), format);
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
fn ask(name: &str, format: KeyFormat) -> anyhow::Result<Material> {
    let what = match format {
        KeyFormat::Raw => bail!("Cannot enter raw keys on the terminal"),
        KeyFormat::Hex => "hex key",
        KeyFormat::Passphrase => "passphrase",
    };
    prompt::hidden(&format!("Enter {what} for '{name}':"))
}

/// The wrapping key of what the user gave (`validate_key`, `derive_key`).
fn derive(key: &KeyDetails, material: &Material) -> anyhow::Result<WrappingKey> {
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
            wrapping = passphrase_key(material, key.salt, iterations);
        }
    }
    Ok(wrapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(format: KeyFormat) -> KeyDetails {
        KeyDetails {
            root: "p".into(),
            is_loaded: false,
            format,
            location: "prompt".into(),
            salt: 1,
            iterations: 1000,
        }
    }

    fn derived(format: KeyFormat, material: &[u8]) -> Result<[u8; 32], String> {
        derive(&details(format), &Zeroizing::new(material.to_vec()))
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
