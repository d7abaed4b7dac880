//! Encryption keys that are loaded. They are [`crate::Keys`]'s, who loads and unloads them under
//! the lock of the namespace; the lock here is held for operations of maps only.

use std::collections::HashMap;
use std::sync::Arc;

use codec::crypt::WrappingKey;
use format::ObjectId;
use parking_lot::Mutex;
use zio::pipeline::BlockKey;

#[derive(Debug)]
struct LoadedKey {
    root: ObjectId,
    key: Arc<BlockKey>,
}

#[derive(Default)]
struct Loaded {
    /// By directory of the encryption root.
    roots: HashMap<ObjectId, WrappingKey>,
    /// By crypto key object.
    keys: HashMap<ObjectId, LoadedKey>,
}

/// The keys that are loaded.
#[derive(Default)]
pub(crate) struct KeyStore(Mutex<Loaded>);

impl KeyStore {
    /// The key of an encryption root, if it is loaded.
    pub(crate) fn root(&self, root: ObjectId) -> Option<WrappingKey> {
        self.0.lock().roots.get(&root).cloned()
    }

    /// Has the key of an encryption root from now on, in place of the one before.
    pub(crate) fn load_root(&self, root: ObjectId, wrapping: WrappingKey) {
        self.0.lock().roots.insert(root, wrapping);
    }

    /// Forgets the key of what is no encryption root any more, and gives it.
    pub(crate) fn take_root(&self, root: ObjectId) -> Option<WrappingKey> {
        self.0.lock().roots.remove(&root)
    }

    /// The keys in these key objects are those of another encryption root from now on.
    pub(crate) fn move_to_root(&self, objects: &[ObjectId], root: ObjectId) {
        let mut loaded = self.0.lock();
        for object in objects {
            if let Some(key) = loaded.keys.get_mut(object) {
                key.root = root;
            }
        }
    }

    /// Whether a key is loaded that an encryption root has, or one that was unwrapped with it.
    pub(crate) fn has_any(&self, root: ObjectId) -> bool {
        let loaded = self.0.lock();
        loaded.roots.contains_key(&root) || loaded.keys.values().any(|key| key.root == root)
    }

    pub(crate) fn is_loaded(&self, root: ObjectId) -> bool {
        self.0.lock().roots.contains_key(&root)
    }

    /// Has the key of an encryption root, and the one in its own key object, unless the root's is
    /// loaded already; says whether that was not so.
    pub(crate) fn load(
        &self,
        root: ObjectId,
        wrapping: WrappingKey,
        object: ObjectId,
        key: impl FnOnce() -> Arc<BlockKey>,
    ) -> bool {
        let mut loaded = self.0.lock();
        if loaded.roots.contains_key(&root) {
            return false;
        }
        loaded.roots.insert(root, wrapping);
        // One that was unwrapped before is the same, and in use.
        let key = loaded.keys.remove(&object).map_or_else(key, |old| old.key);
        loaded.keys.insert(object, LoadedKey { root, key });
        true
    }

    /// The key in a key object, if it was unwrapped.
    pub(crate) fn key(&self, object: ObjectId) -> Option<Arc<BlockKey>> {
        let loaded = self.0.lock();
        loaded.keys.get(&object).map(|loaded| loaded.key.clone())
    }

    /// The key in a key object was unwrapped with that of an encryption root.
    pub(crate) fn add_key(&self, object: ObjectId, root: ObjectId, key: Arc<BlockKey>) {
        let loaded = LoadedKey { root, key };
        self.0.lock().keys.insert(object, loaded);
    }

    /// Forgets the key of an encryption root, and those that were unwrapped with it, which it
    /// gives.
    pub(crate) fn forget_root(&self, root: ObjectId) -> Vec<Arc<BlockKey>> {
        let mut loaded = self.0.lock();
        loaded.roots.remove(&root);
        let objects: Vec<_> = loaded
            .keys
            .iter()
            .filter(|(_, key)| key.root == root)
            .map(|(object, _)| *object)
            .collect();
        let gone = objects
            .iter()
            .filter_map(|object| loaded.keys.remove(object));
        gone.map(|loaded| loaded.key).collect()
    }

    /// Forgets the key in a key object, which it gives.
    pub(crate) fn forget_key(&self, object: ObjectId) -> Option<Arc<BlockKey>> {
        self.0.lock().keys.remove(&object).map(|loaded| loaded.key)
    }
}
