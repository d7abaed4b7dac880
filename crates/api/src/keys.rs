//! Messages on keys of encryption.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, Needed, Role, Secret, Settings};

/// What `zfs load-key` and `zfs unload-key` need to know: datasets and their keys.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsKeys {
    /// Filesystems and volumes; empty means those of every pool, with what is below them.
    pub names: Vec<String>,
    /// What is below them too.
    #[serde(default)]
    pub recursive: bool,
}

/// The datasets, parents before children.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsKeysReply {
    /// One for each dataset.
    pub datasets: Vec<KeyReport>,
}

/// A dataset and its key.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct KeyReport {
    /// Full name.
    pub name: String,
    /// The key; none where it is not encrypted.
    pub key: Option<KeyDetails>,
}

/// What is known of a key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KeyDetails {
    /// The encryption root: the dataset whose key it is.
    pub root: String,
    /// Whether it is loaded.
    pub is_loaded: bool,
    /// How it is given.
    pub format: KeyFormat,
    /// Property `keylocation` of the root.
    pub location: String,
    /// Salt of a passphrase, as a string of digits.
    #[serde(with = "crate::guid::decimal")]
    #[schemars(with = "crate::Guid")]
    pub salt: u64,
    /// PBKDF2's iterations for a passphrase.
    pub iterations: u64,
}

/// Property `keyformat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyFormat {
    /// 32 bytes.
    Raw,
    /// 64 hexadecimal digits.
    Hex,
    /// Text.
    Passphrase,
}

impl Call for ZfsKeys {
    const PATH: &'static str = "/v1/zfs/keys";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot load or unload keys".to_owned());
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZfsKeysReply;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let needs = self.names.iter().map(|name| {
            let needed = Needed::on(name, "load-key").or("change-key");
            needed.and_below(self.recursive)
        });
        Some(needs.collect())
    }

    fn changes(&self) -> bool {
        false
    }
}

/// A key that a user gives an encryption root. The properties that come with it say how it was
/// given (`keyformat`, `pbkdf2iters`).
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// The wrapping key: 64 hexadecimal digits. Of a passphrase what was derived from it.
    pub key: Secret,
    /// The salt that a passphrase was derived with, as a string of digits: random, not 0. 0 for
    /// other formats.
    #[serde(with = "crate::guid::decimal")]
    #[schemars(with = "crate::Guid")]
    pub salt: u64,
}

/// `zfs change-key`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsChangeKey {
    /// A filesystem or volume. With a new key it becomes an encryption root.
    pub name: String,
    /// The new key; none to inherit the parent's (`-i`).
    pub key: Option<NewKey>,
    /// `keyformat`, `keylocation`, `pbkdf2iters`, and user properties (`-o`). What an encryption
    /// root is not told of the first two it keeps.
    #[serde(default)]
    pub properties: Settings,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

impl Call for ZfsChangeKey {
    const PATH: &'static str = "/v1/zfs/change-key";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot change the key of '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    /// `zfs_secpolicy_change_key` (module/zfs/zfs_ioctl.c); users' properties as any.
    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        let own = self.properties.keys().filter(|name| name.contains(':'));
        let own = own.map(|name| Needed::to_set(&self.name, name));
        let change = Needed::on(&self.name, "change-key");
        Some(std::iter::once(change).chain(own).collect())
    }
}

/// `zfs load-key`, of one encryption root.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsLoadKey {
    /// The encryption root.
    pub name: String,
    /// The wrapping key: 64 hexadecimal digits. Of a passphrase what was derived from it.
    pub key: Secret,
    /// Only find out whether it is the right one (`-n`).
    #[serde(default)]
    pub only_check: bool,
    /// Mount what it opens (`zpool import -l`).
    #[serde(default)]
    pub mount: bool,
}

impl Call for ZfsLoadKey {
    const PATH: &'static str = "/v1/zfs/load-key";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot load the key of '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    /// `zfs_secpolicy_load_key` (module/zfs/zfs_ioctl.c).
    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        Some(vec![Needed::on(&self.name, "load-key")])
    }

    fn restrict(&mut self) {
        self.mount = false;
    }
}

/// `zfs unload-key`, of one encryption root.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsUnloadKey {
    /// The encryption root.
    pub name: String,
}

impl Call for ZfsUnloadKey {
    const PATH: &'static str = "/v1/zfs/unload-key";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot unload the key of '{}'", call.name));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;

    fn needs(&self, _uid: u32) -> Option<Vec<Needed>> {
        Some(vec![Needed::on(&self.name, "load-key")])
    }
}
