//! Raw streams, as far as they are about keys: what a stream says of its dataset's key, which goes
//! with it wrapped, and what the receiver makes of it (module/zfs/dsl_crypt.c).
//!
//! # The list `crypt_keydata`
//! Numbers and bytes of the crypto key object by its names ([`names::crypto_key`]), how the user's
//! key is to be had (`keyformat`, `pbkdf2iters`, `pbkdf2salt`), the MAC of the object of dnodes
//! and how that object is built (`portable_mac`, `mdn_*`), and the GUIDs of two sets of IVs
//! (`to_ivset_guid`, `from_ivset_guid`).
//!
//! # Sets of IVs
//! A snapshot of an encrypted dataset has a GUID for what is stored in it, which raw receives hand
//! on: equal snapshots that were encrypted separately have different ones. A raw difference fits
//! only where both sides have the same stored blocks, so the GUIDs are compared.

use std::sync::Arc;

use bytes::Bytes;
use codec::crypt::{Suite, WrappedKey, WrappingKey};
use device::BoxFuture;
use format::{
    Checksum, Compression, DNODE_BLOCK_BYTES, DnodePhys, NvList, NvValue, ObjectId, ObjectType,
    Txg, names,
};
use object::{ObjectSet, RawRoot, SyncContext, Zap, ZapOptions, ZapValue};
use zio::Tx;

use crate::change_key::Keyed;
use crate::crypto::{KeyFormat, Keys, PARTED, StoredKey};
use crate::features::guid;
use crate::opening::Datasets;
use crate::state::{Dir, Ds};
use crate::task::{SpaceCheck, SyncTask};
use crate::{DatasetError, PropertyValue, ReceiveObstacle};

/// Version of crypto key objects whose MACs are portable (`ZIO_CRYPT_KEY_CURRENT_VERSION`).
const KEY_VERSION: u64 = 1;
/// The parts of a crypto key object that are bytes, with their lengths.
const PARTS: [(&str, usize); 4] = [
    (names::crypto_key::MASTER_KEY, 32),
    (names::crypto_key::HMAC_KEY, 64),
    (names::crypto_key::IV, 12),
    (names::crypto_key::MAC, 16),
];

/// What a raw stream says of its dataset's key, checked as far as it can be without the pool.
#[derive(Debug, Clone)]
pub(crate) struct KeyData {
    /// Suite, wrapped keys and so on, to be stored: numbers.
    numbers: Vec<(&'static str, u64)>,
    /// And bytes.
    parts: Vec<(&'static str, Vec<u8>)>,
    key_guid: u64,
    from_iv_set: u64,
    /// What the snapshot's set of IVs is called.
    pub to_iv_set: u64,
    /// The root of the object set.
    pub root: RawRoot,
    dnode_levels: u64,
}

/// What follows from a key that a raw stream brings.
struct Received {
    /// What is below and has the same encryption root.
    below: Vec<(Arc<Dir>, Vec<Keyed>)>,
    /// The key that is loaded for that.
    wrapping: Option<WrappingKey>,
}

impl KeyData {
    /// From a stream's list.
    ///
    /// # Errors
    /// What keeps the stream from being received (`dsl_crypto_recv_raw_key_check`,
    /// `dsl_crypto_recv_raw_objset_check`).
    pub(crate) fn decode(list: &NvList) -> Result<Self, ReceiveObstacle> {
        let bad = ReceiveObstacle::BadStream;
        let number = |name: &str| list.u64(name).ok_or(bad);
        let bytes = |name: &str, length: usize| match list.get(name) {
            Some(NvValue::UInt8Array(bytes) | NvValue::ByteArray(bytes))
                if bytes.len() == length =>
            {
                Ok(bytes.clone())
            }
            _ => Err(bad),
        };
        use names::crypto_key as key;
        if Suite::from_code(number(key::CRYPTO_SUITE)?).is_none()
            || number(key::VERSION)? != KEY_VERSION
        {
            return Err(ReceiveObstacle::UnknownFeature);
        }
        let format = KeyFormat::from_code(number("keyformat")?).ok_or(bad)?;
        let is_passphrase = format == KeyFormat::Passphrase;
        for name in ["pbkdf2iters", "pbkdf2salt"] {
            if is_passphrase == (number(name)? == 0) {
                return Err(bad);
            }
        }
        let numbers = [
            key::CRYPTO_SUITE,
            key::GUID,
            "keyformat",
            "pbkdf2iters",
            "pbkdf2salt",
        ];
        let numbers = numbers.map(|name| Ok::<_, ReceiveObstacle>((name, number(name)?)));
        let parts =
            PARTS.map(|(name, length)| Ok::<_, ReceiveObstacle>((name, bytes(name, length)?)));
        let code = |name: &str| u8::try_from(number(name)?).map_err(|_| bad);
        let checksum = Checksum::from_code(code("mdn_checksum")?);
        let compression = Compression::from_code(code("mdn_compress")?);
        // What no block of dnodes is written with.
        if matches!(checksum, Checksum::Unknown(_) | Checksum::NoParity)
            || checksum.is_embedded()
            || matches!(compression, Compression::Unknown(_))
            || number("mdn_blksz")? != DNODE_BLOCK_BYTES as u64
            || number("mdn_indblkshift")? != u64::from(format::MAX_INDIRECT_SHIFT)
            || number("mdn_nblkptr")? != format::MAX_DNODE_POINTERS as u64
        {
            return Err(ReceiveObstacle::OtherShape);
        }
        let max_block = number("mdn_maxblkid")?;
        if max_block > ObjectId::LIMIT / format::DNODES_PER_BLOCK {
            return Err(bad);
        }
        let mac = bytes("portable_mac", 32)?;
        Ok(KeyData {
            numbers: numbers.into_iter().collect::<Result<_, _>>()?,
            parts: parts.into_iter().collect::<Result<_, _>>()?,
            key_guid: number(key::GUID)?,
            from_iv_set: list.u64("from_ivset_guid").unwrap_or(0),
            to_iv_set: list.u64("to_ivset_guid").unwrap_or(0),
            root: RawRoot {
                portable_mac: mac.try_into().map_err(|_| bad)?,
                checksum,
                compression,
                max_block,
            },
            dnode_levels: number("mdn_nlevels")?,
        })
    }

    fn part(&self, name: &str) -> &[u8] {
        let mut parts = self.parts.iter();
        let found = parts.find(|(part, _)| *part == name);
        found.map_or(&[], |(_, bytes)| bytes)
    }

    /// The key as it came, in place of one that is stored.
    fn wrapped(&self, stored: &StoredKey) -> Option<WrappedKey> {
        use names::crypto_key as key;
        let suite = self
            .numbers
            .iter()
            .find(|(name, _)| *name == key::CRYPTO_SUITE);
        Some(WrappedKey {
            suite: Suite::from_code(suite?.1)?,
            version: KEY_VERSION,
            guid: stored.guid,
            iv: self.part(key::IV).try_into().ok()?,
            mac: self.part(key::MAC).try_into().ok()?,
            master: self.part(key::MASTER_KEY).try_into().ok()?,
            hmac: self.part(key::HMAC_KEY).try_into().ok()?,
        })
    }

    /// Whether a key is stored as this one is wrapped. Each time that a key is wrapped, the IV is
    /// another one.
    fn is_wrapped_as(&self, stored: &StoredKey) -> bool {
        use names::crypto_key as key;
        let (iv, mac) = stored.iv_and_mac();
        self.part(key::IV) == iv && self.part(key::MAC) == mac
    }

    /// Identity of the key.
    pub(crate) fn guid(&self) -> u64 {
        self.key_guid
    }

    fn check_shape(&self, dnodes: &DnodePhys) -> Result<(), ReceiveObstacle> {
        let is_same = u64::from(dnodes.levels) == self.dnode_levels
            && dnodes.data_block_bytes as usize == DNODE_BLOCK_BYTES
            && dnodes.indirect_block_shift == format::MAX_INDIRECT_SHIFT
            && dnodes.pointers.len() == format::MAX_DNODE_POINTERS;
        match is_same {
            true => Ok(()),
            false => Err(ReceiveObstacle::OtherShape),
        }
    }
}

impl Keys<'_> {
    /// Whether a raw stream can go into a new dataset, or (`source`) into a clone of a snapshot:
    /// with the same key, and the same set of IVs.
    pub(crate) async fn check_raw(
        &self,
        key: &KeyData,
        source: Option<&Arc<Ds>>,
    ) -> Result<Result<(), ReceiveObstacle>, DatasetError> {
        let Some(source) = source else {
            let made = ObjectSet::new_dnodes(format::ObjsetKind::Filesystem);
            return Ok(key.check_shape(&made));
        };
        let Some(stored) = self.stored(&source.dir()).await? else {
            return Ok(Err(ReceiveObstacle::NotEncrypted));
        };
        let root = source.phys().block;
        if root.endian() != format::Endian::Little {
            return Ok(Err(ReceiveObstacle::OtherShape));
        }
        if let Err(obstacle) = key.check_shape(&self.dsl.root_of(source).await?.meta_dnode) {
            return Ok(Err(obstacle));
        }
        if stored.guid != key.key_guid {
            return Ok(Err(ReceiveObstacle::OtherKey));
        }
        let ours = self.iv_set(source).await?;
        Ok(match (key.from_iv_set, ours) {
            (0, _) | (_, 0) => Err(ReceiveObstacle::IvSetMissing),
            (theirs, ours) if theirs != ours => Err(ReceiveObstacle::IvSetMismatch),
            _ => Ok(()),
        })
    }

    /// The GUID of a snapshot's set of IVs; zero for none.
    pub(crate) async fn iv_set(&self, snapshot: &Arc<Ds>) -> Result<u64, DatasetError> {
        let is_zapified = snapshot.state().is_zapified;
        if !is_zapified {
            return Ok(0);
        }
        let zap = Zap::hold(self.dsl.mos(), snapshot.object).await?;
        Ok(zap
            .lookup_u64(names::dataset::IVSET_GUID)
            .await?
            .unwrap_or(0))
    }

    /// The directory whose key a directory has: clones have that of what they are clones of.
    async fn key_owner(&self, dir: &Arc<Dir>) -> Result<Arc<Dir>, DatasetError> {
        let mut dir = dir.clone();
        let mut until = Txg::new(u64::MAX);
        loop {
            let (origin_txg, origin) = {
                let state = dir.state();
                (state.origin_txg, state.phys.origin)
            };
            if origin_txg.is_zero() {
                return Ok(dir);
            }
            if origin_txg >= until {
                let what = "a clone that it is cloned from is cloned from it";
                return Err(DatasetError::corrupt(dir.object, what));
            }
            until = origin_txg;
            dir = self.dsl.directories().dataset(origin).await?.dir();
        }
    }

    /// What a dataset's key becomes when the sender's was wrapped anew; none: it stays as it is,
    /// where one that has its encryption root was wrapped here.
    async fn plan_received(
        &self,
        owner: &Arc<Dir>,
        stored: &StoredKey,
    ) -> Result<Option<Received>, DatasetError> {
        let root = self.dsl.directories().dir(stored.root).await?;
        let all = self.of_root(root.object, &root).await?;
        if all.iter().any(|(_, key)| key.received_in.is_none()) {
            return Ok(None);
        }
        Ok(Some(Received {
            below: self.below(root.object, owner).await?,
            wrapping: self.dsl.keys.root(root.object),
        }))
    }

    /// Makes sure that [`Self::receive_key`] can read what it needs: little, unless the key was
    /// wrapped anew.
    pub(crate) async fn check_receive_key(
        &self,
        dir: &Arc<Dir>,
        key: &KeyData,
    ) -> Result<(), DatasetError> {
        let owner = self.key_owner(dir).await?;
        let Some(stored) = self.stored(&owner).await? else {
            return Ok(());
        };
        if key.is_wrapped_as(&stored) {
            return Ok(());
        }
        let readable = self.dsl.readable();
        let head = self.dsl.directories().head(&owner).await?;
        readable.properties(&head).await?;
        let plan = self.plan_received(&owner, &stored).await?;
        for (dir, keyed) in plan.into_iter().flat_map(|plan| plan.below) {
            let head = self.dsl.directories().head(&dir).await?;
            readable.properties(&head).await?;
            for (_, stored) in keyed {
                readable.whole(stored.object).await?;
            }
        }
        self.check_rejoin(&owner).await
    }

    /// Stores a key that came with a raw stream, as it is wrapped; a dataset without one becomes
    /// an encryption root (`dsl_crypto_recv_raw_key_sync`). One that has another user's key by now
    /// keeps that.
    ///
    /// All that have one encryption root are wrapped with one user's key, or no key would open all
    /// of them. When a key comes that is wrapped anew, perhaps with another user's, those below
    /// that had the same root become roots of their own, with the key that was; and so does this
    /// dataset, if its root is above and its key is not known to be the same. When the keys of
    /// these have come too, they inherit again ([`Self::rejoin`]).
    pub(crate) async fn receive_key(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        key: &KeyData,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let dir = self.key_owner(&head.dir()).await?;
        let zap = match self.stored(&dir).await? {
            Some(stored) => {
                if key.is_wrapped_as(&stored) {
                    return Ok(());
                }
                let Some(plan) = self.plan_received(&dir, &stored).await? else {
                    return Ok(());
                };
                let fits = plan.wrapping.as_ref().is_some_and(|wrapping| {
                    key.wrapped(&stored)
                        .is_some_and(|key| key.unwrap_key(wrapping).is_ok())
                });
                if !fits {
                    self.part_from_root(ctx, &dir, &stored, plan).await?;
                }
                Zap::hold(self.dsl.mos(), stored.object).await?
            }
            None => {
                let options = ZapOptions::new(ObjectType::OTN_ZAP_METADATA);
                let zap = Zap::create(self.dsl.mos(), &tx, options).await?;
                for (name, number) in [
                    (names::crypto_key::ROOT_DDOBJ, dir.object.get()),
                    (names::crypto_key::REFCOUNT, 1),
                    (names::crypto_key::VERSION, KEY_VERSION),
                ] {
                    zap.update_u64(&tx, name, number).await?;
                }
                self.name_key(ctx, &dir, zap.id()).await?;
                self.dsl
                    .activate_feature(ctx, head, guid::ENCRYPTION, ZapValue::from_u64(0))
                    .await?;
                let prompt = PropertyValue::Text("prompt".into());
                self.dsl
                    .properties()
                    .change_property(ctx, head, "keylocation", Some(&prompt))
                    .await?;
                zap
            }
        };
        zap.update_u64(&tx, names::crypto_key::RECEIVED, ctx.txg.get())
            .await?;
        for (name, number) in &key.numbers {
            zap.update_u64(&tx, *name, *number).await?;
        }
        for (name, bytes) in &key.parts {
            let value = ZapValue::from_bytes(Bytes::copy_from_slice(bytes));
            zap.update(&tx, *name, value).await?;
        }
        self.rejoin(ctx, &dir).await
    }

    /// Has those below a dataset, and the dataset itself, part from the encryption root that they
    /// have, before another user's key comes for the dataset. Those below can be opened with the
    /// key that was, loaded or not; the dataset's own is not known.
    async fn part_from_root(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        stored: &StoredKey,
        plan: Received,
    ) -> Result<(), DatasetError> {
        for (dir, keyed) in &plan.below {
            let objects: Vec<_> = keyed.iter().map(|(_, key)| key.object).collect();
            self.become_root(ctx, dir, &objects).await?;
            if let Some(wrapping) = &plan.wrapping {
                self.dsl.keys.load_root(dir.object, wrapping.clone());
            }
        }
        if stored.root == dir.object {
            self.dsl.keys.take_root(dir.object);
            return Ok(());
        }
        self.become_root(ctx, dir, &[stored.object]).await
    }

    /// Makes a directory the encryption root of these keys, its own and others', until they are
    /// wrapped as those are that it parts from.
    async fn become_root(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
        objects: &[ObjectId],
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        for object in objects {
            let zap = Zap::hold(self.dsl.mos(), *object).await?;
            zap.update_u64(&tx, names::crypto_key::ROOT_DDOBJ, dir.object.get())
                .await?;
        }
        if let Some(own) = self.object(dir).await? {
            let zap = Zap::hold(self.dsl.mos(), own).await?;
            zap.update_u64(&tx, PARTED, 1).await?;
        }
        self.dsl.keys.move_to_root(objects, dir.object);
        let head = self.dsl.directories().head(dir).await?;
        let prompt = PropertyValue::Text("prompt".into());
        self.dsl
            .properties()
            .change_property_from(ctx, &head, "keylocation", Some(&prompt), true)
            .await
    }

    /// Gives a snapshot that was received raw the set of IVs that it has where it was sent.
    pub(crate) async fn receive_iv_set(
        &self,
        ctx: &SyncContext,
        snapshot: &Arc<Ds>,
        key: &KeyData,
    ) -> Result<(), DatasetError> {
        if key.to_iv_set == 0 {
            return Ok(());
        }
        let tx = Tx::syncing(ctx.txg);
        let zap = self.dsl.zapify_dataset(ctx, snapshot).await?;
        zap.update_u64(&tx, names::dataset::IVSET_GUID, key.to_iv_set)
            .await?;
        Ok(())
    }

    /// The list that goes with a raw stream of a snapshot; `None` when it is not encrypted
    /// (`dsl_crypto_populate_key_nvlist`).
    pub(crate) async fn key_data(
        &self,
        snapshot: &Arc<Ds>,
        from_iv_set: u64,
    ) -> Result<Option<NvList>, DatasetError> {
        let dir = snapshot.dir();
        let Some(object) = self.object(&dir).await? else {
            return Ok(None);
        };
        let key = self.stored(&dir).await?.ok_or_else(|| missing(object))?;
        let root = self.dsl.directories().dir(key.root).await?;
        // Early releases did not store in each key how its root's is to be had.
        let of_root = self.stored(&root).await?.ok_or_else(|| missing(object))?;
        let zap = Zap::hold(self.dsl.mos(), object).await?;
        let version = zap.lookup_u64(names::crypto_key::VERSION).await?;
        if version != Some(KEY_VERSION) {
            return Err(DatasetError::Unsupported {
                name: dir.full_name(&self.dsl.pool_name()),
                what: "sending raw what was encrypted by the first version of encryption (copy it \
                       to a new dataset)"
                    .into(),
            });
        }
        let mut list = NvList::new();
        list.set(names::crypto_key::CRYPTO_SUITE, key.suite);
        list.set(names::crypto_key::GUID, key.guid);
        list.set(names::crypto_key::VERSION, KEY_VERSION);
        for (name, length) in PARTS {
            let stored = zap.lookup(name).await?;
            let bytes = stored.map_or_else(Vec::new, |value| value.data.to_vec());
            if bytes.len() != length {
                return Err(missing(object));
            }
            list.push(name, NvValue::UInt8Array(bytes));
        }
        let phys = self.dsl.root_of(snapshot).await?;
        let mac = NvValue::UInt8Array(phys.portable_mac.to_vec());
        list.push("portable_mac", mac);
        list.set("keyformat", of_root.format);
        list.set("pbkdf2iters", of_root.iterations);
        list.set("pbkdf2salt", of_root.salt);
        let dnodes = &phys.meta_dnode;
        for (name, number) in [
            ("mdn_checksum", dnodes.checksum.code().into()),
            ("mdn_compress", dnodes.compression.code().into()),
            ("mdn_nlevels", dnodes.levels.into()),
            ("mdn_blksz", dnodes.data_block_bytes.into()),
            ("mdn_indblkshift", dnodes.indirect_block_shift.into()),
            ("mdn_nblkptr", dnodes.pointers.len() as u64),
            ("mdn_maxblkid", dnodes.max_block_id),
            ("to_ivset_guid", self.iv_set(snapshot).await?),
            ("from_ivset_guid", from_iv_set),
        ] {
            let number: u64 = number;
            list.set(name, number);
        }
        Ok(Some(list))
    }
}

fn missing(object: ObjectId) -> DatasetError {
    DatasetError::corrupt(object, "the crypto key object is incomplete")
}

impl Datasets<'_> {
    /// Gives a clone that is received raw the root that the stream says, in syncing context.
    pub(crate) async fn set_raw_root(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        key: &KeyData,
    ) -> Result<(), DatasetError> {
        let objset = self.open_raw_objset(head).await?;
        objset.set_raw_root(&Tx::syncing(ctx.txg), key.root);
        self.attach_without_log(head, objset).await?;
        self.dsl.syncer().sync_dataset_now(ctx, head).await?;
        *head.open.lock() = None;
        Ok(())
    }
}

/// What becomes of a dataset that a package brought, as far as its key's root goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRoot {
    /// It is its own.
    Own,
    /// That of the dataset above.
    Inherited,
}

struct KeyRootTask {
    dsl: Arc<crate::DslPool>,
    name: String,
    root: KeyRoot,
}

impl KeyRootTask {
    async fn dirs(&self) -> Result<(Arc<Ds>, Arc<Dir>, ObjectId), DatasetError> {
        let head = self.dsl.directories().resolve(&self.name).await?;
        let dir = head.dir();
        let refused = |reason: &str| DatasetError::WrongKind {
            name: self.name.clone(),
            reason: reason.into(),
        };
        let keys = self.dsl.keys();
        let Some(stored) = keys.stored(&dir).await? else {
            return Err(refused("it is not encrypted"));
        };
        let root = match self.root {
            KeyRoot::Own => dir.object,
            KeyRoot::Inherited => {
                let parent = dir.parent().ok_or_else(|| refused("there is none above"))?;
                let above = keys.stored(&parent).await?;
                let above = above.ok_or_else(|| refused("what is above is not encrypted"))?;
                // They would be wrapped with two users' keys, and one of them never opened.
                let are_received = stored.received_in.is_some() && above.received_in.is_some();
                if above.root != stored.root && !are_received {
                    return Err(refused(
                        "what is above has a key that did not come with a raw stream, so this \
                         keeps its own; 'zfs change-key -i' changes that",
                    ));
                }
                if above.root != stored.root && !self.is_same_user_key(&stored, &above).await? {
                    return Err(refused(
                        "what is above is wrapped with another key, so this keeps its own; load \
                         both, and use 'zfs change-key -i' to change that",
                    ));
                }
                above.root
            }
        };
        Ok((head, dir, root))
    }

    /// Whether a dataset is wrapped with the user's key that what is above is, as far as can be
    /// told: with the key that is loaded there, or by how it is to be given. A key that came before
    /// the one above was wrapped anew is taken for another.
    async fn is_same_user_key(
        &self,
        stored: &StoredKey,
        above: &StoredKey,
    ) -> Result<bool, DatasetError> {
        if let Some(wrapping) = self.dsl.keys.root(above.root) {
            let wrapped = stored.wrapped(&|| self.name.clone())?;
            return Ok(wrapped.unwrap_key(&wrapping).is_ok());
        }
        let given = |key: &StoredKey| (key.format, key.salt, key.iterations);
        Ok(given(stored) == given(above) && stored.received_in >= above.received_in)
    }

    /// Datasets below that have the root that this had.
    async fn with_root(
        &self,
        dir: &Arc<Dir>,
        root: ObjectId,
    ) -> Result<Vec<ObjectId>, DatasetError> {
        let keys = self.dsl.keys();
        let mut out = Vec::new();
        let mut waiting = vec![dir.clone()];
        while let Some(dir) = waiting.pop() {
            let Some(key) = keys.stored(&dir).await? else {
                continue;
            };
            if key.root == root {
                out.push(key.object);
                waiting.extend(self.dsl.directories().children(&dir).await?);
            }
        }
        Ok(out)
    }
}

impl SyncTask for KeyRootTask {
    fn name(&self) -> &'static str {
        "change the encryption root"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::ExtraReserved
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let (head, dir, root) = self.dirs().await?;
            let stored = self.dsl.keys().stored(&dir).await?;
            let before = stored.map_or(dir.object, |key| key.root);
            // What was opened with it goes by it.
            if before != root && self.dsl.keys.is_loaded(before) {
                return Err(DatasetError::Busy {
                    name: self.name.clone(),
                    reason: "its key is loaded; unload it, and receive again".into(),
                });
            }
            for object in self.with_root(&dir, before).await? {
                self.dsl.readable().whole(object).await?;
            }
            self.dsl.readable().properties(&head).await
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let (head, dir, root) = self.dirs().await?;
            let stored = self.dsl.keys().stored(&dir).await?;
            let before = stored.map_or(root, |key| key.root);
            if before == root {
                return Ok(());
            }
            let tx = Tx::syncing(ctx.txg);
            for object in self.with_root(&dir, before).await? {
                let zap = Zap::hold(self.dsl.mos(), object).await?;
                zap.update_u64(&tx, names::crypto_key::ROOT_DDOBJ, root.get())
                    .await?;
                // What it is from now on was asked for.
                if zap.lookup_u64(PARTED).await?.is_some() {
                    zap.remove(&tx, PARTED).await?;
                }
            }
            let prompt = PropertyValue::Text("prompt".into());
            let location = (self.root == KeyRoot::Own).then_some(&prompt);
            self.dsl
                .properties()
                .change_property_from(ctx, &head, "keylocation", location, true)
                .await
        })
    }
}

impl Keys<'_> {
    /// Makes a dataset that was received raw its own encryption root, or has it inherit from the
    /// one above, with those below that have the same root. Its key stays as it is wrapped
    /// (`DCP_CMD_FORCE_NEW_KEY`, `DCP_CMD_FORCE_INHERIT`; `spa_keystore_change_key_sync`,
    /// module/zfs/dsl_crypt.c): that has to be with the same user's key, as it is where a package
    /// with both was sent.
    ///
    /// # Errors
    /// [`DatasetError::WrongKind`] of what is not encrypted; [`DatasetError::Busy`] while its key
    /// is loaded; [`DatasetError::NotFound`].
    pub async fn set_root(&self, name: &str, root: KeyRoot) -> Result<(), DatasetError> {
        let task = KeyRootTask {
            dsl: self.dsl.clone(),
            name: name.to_owned(),
            root,
        };
        self.dsl.tasks().run(Arc::new(task)).await
    }
}
