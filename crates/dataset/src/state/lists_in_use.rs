//! Redaction lists that are in use. They are [`crate::RedactionList`]'s.

use std::collections::BTreeMap;

use format::ObjectId;
use parking_lot::Mutex;

/// Lists that are read or made now, with by how many.
#[derive(Default)]
pub(crate) struct ListsInUse(Mutex<BTreeMap<ObjectId, u32>>);

impl ListsInUse {
    pub(crate) fn is_used(&self, list: ObjectId) -> bool {
        self.0.lock().contains_key(&list)
    }

    /// One user more; `alone`: only if there is none. Says whether that was so.
    pub(crate) fn begin(&self, list: ObjectId, alone: bool) -> bool {
        let mut used = self.0.lock();
        let count = used.entry(list).or_default();
        if alone && *count > 0 {
            return false;
        }
        *count += 1;
        true
    }

    /// One user less.
    pub(crate) fn end(&self, list: ObjectId) {
        let mut used = self.0.lock();
        if let Some(count) = used.get_mut(&list) {
            *count -= 1;
            if *count == 0 {
                used.remove(&list);
            }
        }
    }
}
