//! Whether a new dataset is encrypted, and with whose key (`dmu_objset_create_crypt_check`,
//! `dsl_dataset_create_crypt_sync`, module/zfs/dsl_crypt.c).
//!
//! A new dataset is in the clear, or has its parent's encryption root, or is an encryption root
//! itself, with a key that its maker gives ([`NewKey`]). In either of the latter cases it gets a
//! data key of its own, random and wrapped with the root's key, before anything is written into it:
//! so nothing of it is ever on disk in the clear. All of this is in the transaction group that
//! makes the dataset; a crash leaves all or nothing.

use std::sync::Arc;

use bytes::Bytes;
use codec::crypt::{DataKey, IV_BYTES, Suite, WrappedKey, WrappingKey};
use format::{ObjectId, ObjectType, names};
use object::{SyncContext, Zap, ZapOptions, ZapValue};
use zio::Tx;

use crate::check::{check_iterations, parse_setting};
use crate::crypto::{KeyFormat, Keys, PARTED, StoredKey, too_long};
use crate::features::guid;
use crate::info::DatasetKind;
use crate::state::{Dir, Ds};
use crate::{DatasetError, PropertyValue};

/// Iterations of PBKDF2 where nothing else is asked for (`DEFAULT_PBKDF2_ITERATIONS`).
pub const PBKDF2_ITERATIONS: u64 = 350_000;

/// `encryption=on`, and what that chooses (`ZIO_CRYPT_ON_VALUE`).
const ON: u64 = 1;
const ON_SUITE: Suite = Suite::Aes256Gcm;
/// `encryption=off`.
const OFF: u64 = 2;

/// Properties that are in the crypto key object, not among a dataset's properties.
const IN_KEY_OBJECT: [&str; 4] = ["encryption", "keyformat", "pbkdf2iters", "pbkdf2salt"];
/// Properties that a clone has from its origin (`zfs_crypto_clone_check`).
const OF_ENCRYPTION: [&str; 5] = [
    "encryption",
    "keyformat",
    "keylocation",
    "pbkdf2iters",
    "pbkdf2salt",
];

/// Whether a property is kept in the crypto key object.
pub(crate) fn is_in_key_object(property: &str) -> bool {
    IN_KEY_OBJECT.contains(&property)
}

/// Refuses properties that clones have from their origin.
pub(crate) fn check_clone_properties(properties: &[(String, String)]) -> Result<(), DatasetError> {
    match properties
        .iter()
        .find(|(name, _)| OF_ENCRYPTION.contains(&name.as_str()))
    {
        None => Ok(()),
        Some((name, _)) => Err(refused(
            name,
            "Encryption properties must inherit from origin dataset",
        )),
    }
}

fn refused(property: &str, reason: impl Into<String>) -> DatasetError {
    DatasetError::InvalidProperty {
        property: property.to_owned(),
        reason: reason.into(),
    }
}

/// The key that a user gives an encryption root, and how it was given. Overwritten with zeros when
/// dropped.
#[derive(Clone)]
pub struct NewKey {
    pub(crate) wrapping: WrappingKey,
    pub(crate) format: KeyFormat,
    pub(crate) salt: u64,
    pub(crate) iterations: u64,
}

impl std::fmt::Debug for NewKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "NewKey({:?})", self.format)
    }
}

impl NewKey {
    /// A key of 32 bytes, whichever way it was written down.
    ///
    /// # Errors
    /// [`DatasetError::InvalidProperty`] for a passphrase: see [`Self::of_passphrase`].
    pub fn new(format: KeyFormat, wrapping: WrappingKey) -> Result<Self, DatasetError> {
        if format == KeyFormat::Passphrase {
            return Err(refused(
                "pbkdf2iters",
                "a key that was made of a passphrase needs a salt and iterations",
            ));
        }
        Ok(Self {
            wrapping,
            format,
            salt: 0,
            iterations: 0,
        })
    }

    /// What a passphrase was made into ([`codec::crypt::passphrase_key`]).
    ///
    /// # Errors
    /// [`DatasetError::InvalidProperty`] without a salt (0), or with iterations that are too few.
    pub fn of_passphrase(
        wrapping: WrappingKey,
        salt: u64,
        iterations: u64,
    ) -> Result<Self, DatasetError> {
        check_iterations(iterations)?;
        if salt == 0 {
            return Err(refused(
                "keyformat",
                "a passphrase needs a salt other than 0; use random bytes",
            ));
        }
        Ok(Self {
            wrapping,
            format: KeyFormat::Passphrase,
            salt,
            iterations,
        })
    }
}

/// What a new dataset's encryption is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chosen {
    Off,
    /// With this suite, and the key of the parent's encryption root.
    Inherited(Suite),
    /// With this suite, as an encryption root.
    Root(Suite),
}

/// What properties and key ask for, below a parent of this suite's code (none: in the clear).
fn choose(
    name: &str,
    parent: Option<u64>,
    properties: &[(String, PropertyValue)],
    key: Option<&NewKey>,
    is_enabled: impl Fn(&str) -> bool,
) -> Result<Chosen, DatasetError> {
    let given = |wanted: &str| {
        // The last word counts.
        let mut given = properties.iter().rev();
        given
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value)
    };
    let number = |wanted: &str| given(wanted).and_then(PropertyValue::number);
    let location = given("keylocation").and_then(PropertyValue::text);
    let format = number("keyformat").filter(|format| *format != 0);
    let code = match number("encryption") {
        None => parent.unwrap_or(OFF),
        Some(ON) => ON_SUITE.code(),
        Some(code) => code,
    };
    if code == OFF {
        let is_asked = key.is_some()
            || format.is_some()
            || number("pbkdf2iters").is_some()
            || location.is_some_and(|location| location != "none");
        return match is_asked {
            false => Ok(Chosen::Off),
            true => Err(refused(
                "encryption",
                "Encryption must be turned on to set encryption properties.",
            )),
        };
    }
    // Without the second, snapshots would lack what raw streams compare (errata 4).
    if !is_enabled(guid::ENCRYPTION) || !is_enabled(guid::BOOKMARK_V2) {
        return Err(DatasetError::Unsupported {
            name: name.to_owned(),
            what: "encryption without the features encryption and bookmark_v2".into(),
        });
    }
    let Some(suite) = Suite::from_code(code) else {
        return Err(DatasetError::Unsupported {
            name: name.to_owned(),
            what: format!("encryption suite number {code}"),
        });
    };
    for property in ["recordsize", "volblocksize"] {
        if number(property).is_some_and(|bytes| bytes > u64::from(suite.block_bytes_max())) {
            return Err(too_long(property));
        }
    }
    let Some(key) = key else {
        return match (format, location, parent) {
            (Some(_), ..) => Err(refused(
                "keyformat",
                "the key of the new encryption root is missing",
            )),
            (None, Some(_), _) | (None, None, None) => Err(refused(
                "keyformat",
                "Keyformat required for new encryption root.",
            )),
            (None, None, Some(_)) => Ok(Chosen::Inherited(suite)),
        };
    };
    if format.is_some_and(|format| format != key.format.code()) {
        return Err(refused("keyformat", "the key is of another format"));
    }
    if location.is_none_or(|location| location == "none") {
        return Err(refused(
            "keylocation",
            "keylocation must not be 'none' for encrypted datasets",
        ));
    }
    Ok(Chosen::Root(suite))
}

/// The properties of encryption among `typed`, for a dataset that is to be received.
///
/// # Errors
/// [`DatasetError::InvalidProperty`].
pub fn encryption_properties(
    typed: &[(String, String)],
) -> Result<Vec<(String, PropertyValue)>, DatasetError> {
    let kinds = DatasetKind::Filesystem.kinds();
    let of_keys = typed
        .iter()
        .filter(|(name, _)| name == "keylocation" || is_in_key_object(name));
    of_keys
        .map(|(name, typed)| Ok((name.clone(), parse_setting(name, typed, kinds, true)?)))
        .collect()
}

/// Says where the key of a new encryption root is, where its maker does not (`zfs_crypto_create`).
pub(crate) fn complete(properties: &mut Vec<(String, PropertyValue)>, key: Option<&NewKey>) {
    let says = |(name, _): &(String, PropertyValue)| name == "keylocation";
    if key.is_some() && !properties.iter().any(says) {
        properties.push(("keylocation".into(), PropertyValue::Text("prompt".into())));
    }
}

/// What is known of the key of a new pool's root dataset.
#[derive(Debug, Clone, Copy)]
pub enum RootKey<'k> {
    /// The key, or that there is none.
    Given(Option<&'k NewKey>),
    /// It will be asked for, if one is needed.
    Later,
}

/// Whether the root dataset of a new pool with these features can be encrypted as asked for.
pub(crate) fn check_root(
    pool: &str,
    properties: &[(String, PropertyValue)],
    key: RootKey<'_>,
    is_enabled: impl Fn(&str) -> bool,
) -> Result<(), DatasetError> {
    let mut properties = properties.to_vec();
    let mut given = properties.iter().rev();
    let format = given.find(|(name, _)| name == "keyformat");
    let format = format.and_then(|(_, value)| KeyFormat::from_code(value.number()?));
    // Any key of that format will do.
    let assumed = format.map(|format| NewKey {
        wrapping: WrappingKey::default(),
        format,
        salt: 0,
        iterations: 0,
    });
    let key = match key {
        RootKey::Given(key) => key,
        RootKey::Later => assumed.as_ref(),
    };
    complete(&mut properties, key);
    choose(pool, None, &properties, key, is_enabled).map(drop)
}

/// Checks whether the root filesystem of a pool that is to be made with these features (by guid)
/// can be encrypted as its properties say.
///
/// # Errors
/// [`DatasetError::InvalidProperty`], [`DatasetError::Unsupported`].
pub fn check_root_encryption(
    pool: &str,
    properties: &[(String, String)],
    features: &[String],
    key: RootKey<'_>,
) -> Result<(), DatasetError> {
    let enabled = crate::features::with_dependencies(features);
    let kinds = DatasetKind::Filesystem.kinds();
    let mut parsed = Vec::new();
    for (name, typed) in properties {
        parsed.push((name.clone(), parse_setting(name, typed, kinds, true)?));
    }
    check_root(pool, &parsed, key, |needs| enabled.contains(needs))
}

/// The same, with what it takes.
enum Plan<'k> {
    Off,
    Inherited(Suite, StoredKey),
    Root(Suite, &'k NewKey),
}

/// How a data key is to be stored.
pub(crate) struct Wrapping<'k> {
    /// The encryption root's directory.
    pub root: ObjectId,
    pub key: &'k WrappingKey,
    /// `keyformat`.
    pub format: u64,
    /// `pbkdf2salt`.
    pub salt: u64,
    /// `pbkdf2iters`.
    pub iterations: u64,
}

impl Keys<'_> {
    async fn plan_new<'k>(
        &self,
        name: &str,
        parent: Option<&Arc<Dir>>,
        properties: &[(String, PropertyValue)],
        key: Option<&'k NewKey>,
    ) -> Result<Plan<'k>, DatasetError> {
        let of_parent = match parent {
            Some(parent) => self.stored(parent).await?,
            None => None,
        };
        let suite = of_parent.as_ref().map(|key| key.suite);
        let features = self.dsl.features();
        let chosen = choose(name, suite, properties, key, |guid| {
            features.is_enabled(guid)
        })?;
        Ok(match (chosen, of_parent, key) {
            (Chosen::Inherited(suite), Some(of_parent), _) => Plan::Inherited(suite, of_parent),
            (Chosen::Root(suite), _, Some(key)) => Plan::Root(suite, key),
            _ => Plan::Off,
        })
    }

    /// Whether a dataset can be created below `parent` as far as encryption goes, with the key of
    /// its own that its maker gives, or without.
    pub(crate) async fn check_new(
        &self,
        parent: &Arc<Dir>,
        name: &str,
        properties: &[(String, PropertyValue)],
        key: Option<&NewKey>,
    ) -> Result<(), DatasetError> {
        let plan = self.plan_new(name, Some(parent), properties, key).await?;
        if let Plan::Inherited(_, of_parent) = plan {
            let name = || parent.full_name(&self.dsl.pool_name());
            // Not one that this release cannot read.
            of_parent.wrapped(&name)?;
            self.verified(of_parent.root, name()).await?;
        }
        Ok(())
    }

    /// Whether a new dataset below `parent` is encrypted.
    pub(crate) async fn is_new_encrypted(
        &self,
        parent: &Arc<Dir>,
        properties: &[(String, PropertyValue)],
        key: Option<&NewKey>,
    ) -> Result<bool, DatasetError> {
        let name = parent.full_name(&self.dsl.pool_name());
        let plan = self.plan_new(&name, Some(parent), properties, key);
        Ok(!matches!(plan.await?, Plan::Off))
    }

    /// Gives a new, empty dataset a data key, wrapped with its parent's root's key or with its own
    /// (`dsl_dataset_create_crypt_sync`). Before anything is written into it.
    pub(crate) async fn encrypt(
        &self,
        ctx: &SyncContext,
        parent: Option<&Arc<Dir>>,
        head: &Arc<Ds>,
        properties: &[(String, PropertyValue)],
        key: Option<&NewKey>,
    ) -> Result<(), DatasetError> {
        let dir = head.dir();
        let name = dir.full_name(&self.dsl.pool_name());
        let object = match self.plan_new(&name, parent, properties, key).await? {
            Plan::Off => return Ok(()),
            Plan::Inherited(suite, of_parent) => {
                let Some(key) = self.dsl.keys.root(of_parent.root) else {
                    return Err(self.not_loaded(name, of_parent.root).await?);
                };
                let wrapping = Wrapping {
                    root: of_parent.root,
                    key: &key,
                    format: of_parent.format,
                    salt: of_parent.salt,
                    iterations: of_parent.iterations,
                };
                self.make_key(ctx, suite, &wrapping).await?
            }
            Plan::Root(suite, new) => {
                let wrapping = Wrapping::of_root(dir.object, new);
                let object = self.make_key(ctx, suite, &wrapping).await?;
                self.dsl.keys.load_root(dir.object, new.wrapping.clone());
                object
            }
        };
        self.name_key(ctx, &dir, object).await?;
        self.dsl
            .activate_feature(ctx, head, guid::ENCRYPTION, ZapValue::from_u64(0))
            .await
    }

    /// Makes a data key and its object (`dsl_crypto_key_create_sync`).
    async fn make_key(
        &self,
        ctx: &SyncContext,
        suite: Suite,
        wrapping: &Wrapping<'_>,
    ) -> Result<ObjectId, DatasetError> {
        let random = &self.dsl.env().world.random;
        let key = DataKey::generate(suite, &mut |out: &mut [u8]| random.fill(out));
        let wrapped = self.wrap(&key, wrapping.key)?;
        let tx = Tx::syncing(ctx.txg);
        let options = ZapOptions::new(ObjectType::OTN_ZAP_METADATA);
        let zap = Zap::create(self.dsl.mos(), &tx, options).await?;
        store(&zap, &tx, &wrapped, wrapping).await?;
        use names::crypto_key as entry;
        zap.update_u64(&tx, entry::REFCOUNT, 1).await?;
        zap.update_u64(&tx, entry::VERSION, wrapped.version).await?;
        Ok(zap.id())
    }

    /// A data key as it is to be stored, with a new IV.
    pub(crate) fn wrap(
        &self,
        key: &DataKey,
        wrapping: &WrappingKey,
    ) -> Result<WrappedKey, DatasetError> {
        let mut iv = [0; IV_BYTES];
        self.dsl.env().world.random.fill(&mut iv);
        let wrapped = key.wrap(wrapping, iv);
        wrapped.map_err(|error| DatasetError::Hook {
            what: "wrapping a key".into(),
            source: error.into(),
        })
    }
}

impl<'k> Wrapping<'k> {
    /// With the key that a user gives an encryption root.
    pub(crate) fn of_root(root: ObjectId, key: &'k NewKey) -> Self {
        Self {
            root,
            key: &key.wrapping,
            format: key.format.code(),
            salt: key.salt,
            iterations: key.iterations,
        }
    }
}

/// Puts a key that was wrapped here into its object (`dsl_crypto_key_sync_impl`). Its version
/// stays.
pub(crate) async fn store(
    zap: &Zap,
    tx: &Tx,
    wrapped: &WrappedKey,
    wrapping: &Wrapping<'_>,
) -> Result<(), DatasetError> {
    use names::crypto_key as entry;
    for (name, number) in [
        (entry::CRYPTO_SUITE, wrapped.suite.code()),
        (entry::ROOT_DDOBJ, wrapping.root.get()),
        (entry::GUID, wrapped.guid),
    ] {
        zap.update_u64(tx, name, number).await?;
    }
    for (name, bytes) in [
        (entry::IV, &wrapped.iv[..]),
        (entry::MAC, &wrapped.mac[..]),
        (entry::MASTER_KEY, &wrapped.master[..]),
        (entry::HMAC_KEY, &wrapped.hmac[..]),
    ] {
        let value = ZapValue::from_bytes(Bytes::copy_from_slice(bytes));
        zap.update(tx, name, value).await?;
    }
    for (name, number) in [
        ("keyformat", wrapping.format),
        ("pbkdf2salt", wrapping.salt),
        ("pbkdf2iters", wrapping.iterations),
    ] {
        zap.update_u64(tx, name, number).await?;
    }
    for name in [entry::RECEIVED, PARTED] {
        if zap.lookup_u64(name).await?.is_some() {
            zap.remove(tx, name).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use codec::crypt::WRAPPING_KEY_BYTES;

    use super::*;
    use crate::check::PBKDF2_ITERATIONS_MIN;

    fn raw() -> NewKey {
        NewKey::new(KeyFormat::Raw, WrappingKey::new([7; WRAPPING_KEY_BYTES])).unwrap()
    }

    /// What is chosen, or the name of the property that is refused.
    fn chosen(
        parent: Option<u64>,
        properties: &[(&str, PropertyValue)],
        key: Option<&NewKey>,
    ) -> Result<Chosen, String> {
        let properties: Vec<_> = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        choose("p/x", parent, &properties, key, |_| true).map_err(|error| match error {
            DatasetError::InvalidProperty { property, .. } => property,
            error => panic!("{error}"),
        })
    }

    /// The rules of `dmu_objset_create_crypt_check` and `zfs_crypto_create`.
    #[test]
    fn encryption_is_chosen_by_parent_properties_and_key() {
        let number = PropertyValue::Number;
        let text = |text: &str| PropertyValue::Text(text.to_owned());
        let refused = |name: &str| Err(name.to_owned());
        let gcm = Suite::Aes256Gcm.code();
        let key = raw();
        assert_eq!(chosen(None, &[], None), Ok(Chosen::Off));
        assert_eq!(
            chosen(Some(gcm), &[], None),
            Ok(Chosen::Inherited(Suite::Aes256Gcm))
        );
        let off = ("encryption", number(OFF));
        assert_eq!(
            chosen(Some(gcm), std::slice::from_ref(&off), None),
            Ok(Chosen::Off)
        );
        let ccm = ("encryption", number(Suite::Aes128Ccm.code()));
        assert_eq!(
            chosen(Some(gcm), std::slice::from_ref(&ccm), None),
            Ok(Chosen::Inherited(Suite::Aes128Ccm))
        );
        // CCM takes no block of 16 MiB.
        let record = |property| (property, number(16 << 20));
        for property in ["recordsize", "volblocksize"] {
            let with_ccm = [ccm.clone(), record(property)];
            assert_eq!(chosen(Some(gcm), &with_ccm, None), refused(property));
            let inherited = chosen(Some(gcm), &with_ccm[1..], None);
            assert_eq!(inherited, Ok(Chosen::Inherited(Suite::Aes256Gcm)));
        }
        let prompt = ("keylocation", text("prompt"));
        let none = ("keylocation", text("none"));
        let format = ("keyformat", number(KeyFormat::Raw.code()));
        let on = ("encryption", number(ON));
        let all = [on.clone(), format.clone(), prompt.clone()];
        assert_eq!(
            chosen(None, &all, Some(&key)),
            Ok(Chosen::Root(Suite::Aes256Gcm))
        );
        assert_eq!(
            chosen(Some(gcm), &all[1..], Some(&key)),
            Ok(Chosen::Root(Suite::Aes256Gcm))
        );
        for (parent, properties, key, which) in [
            (None, vec![on.clone()], None, "keyformat"),
            (None, vec![on.clone(), prompt.clone()], None, "keyformat"),
            (
                None,
                vec![on.clone(), format.clone(), prompt.clone()],
                None,
                "keyformat",
            ),
            (Some(gcm), vec![prompt.clone()], None, "keyformat"),
            (Some(gcm), vec![none.clone()], None, "keyformat"),
            (None, vec![format.clone()], None, "encryption"),
            (None, vec![prompt.clone()], None, "encryption"),
            (
                None,
                vec![("pbkdf2iters", number(350_000))],
                None,
                "encryption",
            ),
            (
                Some(gcm),
                vec![off, format.clone()],
                Some(&key),
                "encryption",
            ),
            (
                None,
                vec![on.clone(), format.clone(), none],
                Some(&key),
                "keylocation",
            ),
            (
                None,
                vec![on, ("keyformat", number(KeyFormat::Hex.code())), prompt],
                Some(&key),
                "keyformat",
            ),
        ] {
            assert_eq!(
                chosen(parent, &properties, key),
                refused(which),
                "{properties:?}"
            );
        }
    }

    #[test]
    fn encryption_needs_both_features() {
        let properties = [
            ("encryption".to_owned(), PropertyValue::Number(ON)),
            ("keylocation".into(), PropertyValue::Text("prompt".into())),
        ];
        for missing in [guid::ENCRYPTION, guid::BOOKMARK_V2] {
            let key = raw();
            let found = choose("p", None, &properties, Some(&key), |guid| guid != missing);
            assert!(
                matches!(found, Err(DatasetError::Unsupported { .. })),
                "{found:?}"
            );
        }
    }

    #[test]
    fn passphrases_need_salt_and_enough_iterations() {
        let wrapping = || WrappingKey::new([7; WRAPPING_KEY_BYTES]);
        let new = |salt, iterations| NewKey::of_passphrase(wrapping(), salt, iterations).is_ok();
        assert!(new(1, PBKDF2_ITERATIONS_MIN));
        assert!(!new(1, PBKDF2_ITERATIONS_MIN - 1));
        assert!(!new(1, 1 << 32));
        assert!(!new(0, PBKDF2_ITERATIONS));
        assert!(NewKey::new(KeyFormat::Passphrase, wrapping()).is_err());
    }

    /// No key is ever in a message.
    #[test]
    fn keys_are_not_shown() {
        assert_eq!(format!("{:?}", raw()), "NewKey(Raw)");
    }
}
