//! Users' keys by their numbers, and datasets as they are listed with what their keys are.

use std::path::PathBuf;

/// Formats of users' keys; that of a key is told by its number.
pub const FORMATS: [&str; 3] = ["passphrase", "hex", "raw"];

/// A user's key, by its number.
pub type Secret = u64;

pub fn format(secret: Secret) -> &'static str {
    FORMATS[(secret % 3) as usize]
}

/// What is typed in, or in the file.
pub fn material(secret: Secret) -> Vec<u8> {
    match format(secret) {
        "passphrase" => format!("passphrase number {secret}\n").into_bytes(),
        "hex" => format!("{:064x}\n", u128::from(secret) << 64 | 0x5eed).into_bytes(),
        _ => format!("{secret:032}").into_bytes(),
    }
}

/// A dataset that is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    pub guid: u64,
    /// Its encryption root.
    pub root: Option<String>,
    pub format: String,
    pub location: String,
    pub is_loaded: bool,
    pub is_mounted: bool,
    pub mountpoint: PathBuf,
    /// The snapshot that it is a clone of.
    pub origin: Option<String>,
}

impl Listed {
    /// From a line with [`COLUMNS`].
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split('\t').map(str::to_owned);
        let mut next = || words.next();
        let some = |word: String| (word != "-").then_some(word);
        Some(Self {
            name: next()?,
            guid: next()?.parse().ok()?,
            root: some(next()?),
            format: next()?,
            location: next()?,
            is_loaded: next()? == "available",
            is_mounted: next()? == "yes",
            mountpoint: next()?.into(),
            origin: some(next()?),
        })
    }

    pub fn is_snapshot(&self) -> bool {
        self.name.contains('@')
    }

    pub fn is_root(&self) -> bool {
        self.root.as_ref() == Some(&self.name)
    }

    /// Whether its blocks can be read.
    pub fn is_open(&self) -> bool {
        self.root.is_none() || self.is_loaded
    }

    pub fn pool(&self) -> &str {
        self.name.split(['/', '@']).next().unwrap_or_default()
    }

    /// The filesystem, and of a snapshot its own name.
    pub fn parts(&self) -> (&str, Option<&str>) {
        match self.name.split_once('@') {
            Some((filesystem, snapshot)) => (filesystem, Some(snapshot)),
            None => (&self.name, None),
        }
    }
}

pub const COLUMNS: &str =
    "name,guid,encryptionroot,keyformat,keylocation,keystatus,mounted,mountpoint,origin";
