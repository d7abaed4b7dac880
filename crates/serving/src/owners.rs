//! Whose a name is that clients reach a dataset by: a target's of iSCSI, a path of NFS, a share's
//! of SMB.
//!
//! A replica asks for the names of what it is a copy of, where its properties came with it. If the
//! pool that comes first got a name, clients would write to a backup after some restart, and the
//! next receive would throw away what they wrote. So the owner of a name is remembered on disk, in
//! `share-names.json` of the state directory. It keeps the name as long as it asks for it, and
//! while its pool is expected; another dataset is refused. What a person set here comes before what
//! came with a stream, also where that was first.
//!
//! A crash leaves the table as it was last written. What is shared as a pool comes is written once,
//! when all of it is; a share that comes later is written before it is there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use api::Protocol;
use dataset::PropertySource;
use format::ObjectId;
use host::table_file::TableFile;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use service::pools::{Arrival, OpenPool, Pools};

/// A dataset that has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// Guid of its pool.
    pool: u64,
    /// Its guid.
    dataset: u64,
    /// Its object in the MOS.
    object: u64,
    /// What it was called then.
    name: String,
    /// It asked for the name by a property that came with a stream.
    is_received: bool,
}

impl Owner {
    fn is_same(&self, other: &Self) -> bool {
        (self.pool, self.dataset) == (other.pool, other.dataset)
    }
}

/// A dataset that asks for a name.
pub struct Claim {
    /// Protocol and name.
    key: String,
    owner: Owner,
    /// Its pool is being taken in.
    comes: bool,
    /// How its pool came.
    arrival: Arrival,
}

/// The present owner of a name, where that is another dataset.
pub enum Present {
    /// Nobody's, or the dataset's that asks.
    None,
    /// One in a pool that is expected, or suspended; whether it may lose the name to who was told
    /// to have it here.
    Away(String, bool),
    /// One that is here: whoever asks has to see whether it still asks for the name.
    Here(Arc<OpenPool>, String),
}

/// Owners of names, and their file.
pub struct Owners {
    file: TableFile,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_key: BTreeMap<String, Owner>,
    /// It has changed since it was written.
    is_changed: bool,
}

/// Whether a property that a dataset has came with a stream, to it or to whom it inherits from.
pub async fn is_received(open: &OpenPool, dataset: &str, property: &str) -> bool {
    let properties = open.pool.dsl().properties();
    let source = async |dataset: &str| {
        let setting = properties.get(dataset, property).await;
        setting.map_or(PropertySource::None, |setting| setting.source)
    };
    match source(dataset).await {
        PropertySource::Inherited(from) => source(&from).await == PropertySource::Received,
        source => source == PropertySource::Received,
    }
}

impl Claim {
    /// A dataset asks for a name. Names that differ in case only are the same, but for paths.
    ///
    /// # Errors
    /// Where the dataset cannot be found.
    pub async fn new(
        protocol: Protocol,
        name: &str,
        open: &OpenPool,
        dataset: &str,
        is_received: bool,
    ) -> Result<Self, String> {
        let info = open.pool.dsl().directories().lookup(dataset).await;
        let info = info.map_err(|error| error.to_string())?;
        let key = match protocol {
            Protocol::Iscsi => format!("iscsi {}", name.to_lowercase()),
            Protocol::Nfs => format!("nfs {name}"),
            Protocol::Smb => format!("smb {}", name.to_lowercase()),
        };
        Ok(Self {
            key,
            owner: Owner {
                pool: open.pool.guid().get(),
                dataset: info.guid.get(),
                object: info.object.get(),
                name: dataset.to_owned(),
                is_received,
            },
            comes: !open.is_settled.load(Ordering::Acquire),
            arrival: open.arrival,
        })
    }

    /// Whether it may end a share of a pool that is here. One that only comes does not: clients may
    /// have used that share for long. Which of two pools comes first at a start says nothing.
    fn may_displace(&self, there: Arrival) -> bool {
        !self.comes || (self.arrival == Arrival::AtStart && there == Arrival::AtStart)
    }
}

impl Owners {
    /// Reads what a state directory has.
    pub fn load(directory: &Path) -> Self {
        let path = directory.join("share-names.json");
        let (by_key, file) = TableFile::load(path, "names of shares");
        let is_changed = false;
        Self {
            file,
            table: Mutex::new(Table { by_key, is_changed }),
        }
    }

    /// Who has the name.
    pub async fn present(&self, pools: &Pools, claim: &Claim) -> Present {
        let known = self.table.lock().by_key.get(&claim.key).cloned();
        let Some(known) = known.filter(|known| !known.is_same(&claim.owner)) else {
            return Present::None;
        };
        let mut here = pools.all().into_iter();
        let Some(open) = here.find(|open| open.pool.guid().get() == known.pool) else {
            return match pools.awaits(known.pool) {
                true => Present::Away(known.name, known.is_received),
                false => Present::None,
            };
        };
        let found = async {
            let directories = open.pool.dsl().directories();
            let name = directories
                .name_of(ObjectId::new(known.object))
                .await
                .ok()?;
            let info = directories.lookup(&name).await.ok()?;
            (info.guid.get() == known.dataset).then_some(name)
        };
        let found = tokio::select! {
            biased;
            // It keeps the name, as its share cannot end; whoever asks does not wait for that.
            () = open.pool.until_suspended() => return Present::Away(known.name, false),
            found = found => found,
        };
        found.map_or(Present::None, |name| Present::Here(open, name))
    }

    /// Gives the name to who asks, unless the present owner keeps it. `asks` is whether one that is
    /// here asks for it, and then whether by a property that came with a stream. Answers the
    /// dataset that had it, whose share has to end.
    ///
    /// # Errors
    /// Who has it.
    pub fn take(
        &self,
        claim: Claim,
        present: Present,
        asks: Option<bool>,
    ) -> Result<Option<String>, String> {
        let (before, may_lose_it) = match (present, asks) {
            (Present::Away(name, may_lose_it), _) => (Some(name), may_lose_it),
            (Present::Here(there, name), Some(is_received)) => {
                let may_lose_it = is_received && claim.may_displace(there.arrival);
                (Some(name), may_lose_it)
            }
            (Present::Here(_, _), None) | (Present::None, _) => (None, true),
        };
        if let Some(name) = &before
            && (claim.owner.is_received || !may_lose_it)
        {
            let (_, wanted) = claim.key.split_once(' ').unwrap_or_default();
            return Err(format!(
                "'{wanted}' is the name of '{name}', which had it before; end that share, export \
                 its pool for good ('zpool export'), or give one of them another name"
            ));
        }
        let mut table = self.table.lock();
        let is_known = table.by_key.get(&claim.key) == Some(&claim.owner);
        if !is_known {
            let protocol = claim.key.split(' ').next().unwrap_or_default().to_owned();
            table
                .by_key
                .retain(|key, owner| !owner.is_same(&claim.owner) || !key.starts_with(&protocol));
            table.by_key.insert(claim.key, claim.owner);
            table.is_changed = true;
        }
        drop(table);
        if !claim.comes {
            self.keep();
        }
        Ok(before)
    }

    /// Writes the table where it has changed.
    pub fn keep(&self) {
        let mut table = self.table.lock();
        if table.is_changed {
            match self.file.write(&table.by_key) {
                Ok(()) => table.is_changed = false,
                Err(error) => tracing::error!(
                    "which dataset has which name is not kept, and another one may get it at the \
                     next start: {error}"
                ),
            }
        }
    }

    /// A pool has another guid.
    pub fn pool_changed(&self, from: u64, to: u64) {
        let mut table = self.table.lock();
        for owner in table.by_key.values_mut().filter(|owner| owner.pool == from) {
            owner.pool = to;
        }
        table.is_changed = true;
        drop(table);
        self.keep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(pool: u64, is_received: bool) -> Claim {
        Claim {
            key: "iscsi iqn.x".into(),
            owner: Owner {
                pool,
                dataset: 7,
                object: 8,
                name: format!("{pool}/vol"),
                is_received,
            },
            comes: false,
            arrival: Arrival::Imported,
        }
    }

    /// Goal: an import ends no share that is there; a person does, and the order of pools at a
    /// start has no say.
    #[test]
    fn who_only_comes_ends_no_share() {
        let mut claim = claim(1, false);
        assert!(claim.may_displace(Arrival::AtStart) && claim.may_displace(Arrival::Imported));
        claim.comes = true;
        assert!(!claim.may_displace(Arrival::AtStart) && !claim.may_displace(Arrival::Imported));
        claim.arrival = Arrival::AtStart;
        assert!(claim.may_displace(Arrival::AtStart) && !claim.may_displace(Arrival::Created));
    }

    /// Goal: a name stays whose it was, over restarts, and while its pool is away; what a person
    /// set comes before what came with a stream.
    #[test]
    fn the_owner_of_a_name_keeps_it() {
        let directory = tempfile::tempdir().unwrap();
        let owners = Owners::load(directory.path());
        assert_eq!(owners.take(claim(1, true), Present::None, None), Ok(None));
        let away = |is_received| Present::Away("1/vol".into(), is_received);
        let refused = owners.take(claim(2, true), away(true), None).unwrap_err();
        assert!(
            refused.contains("iqn.x") && refused.contains("'1/vol'"),
            "{refused}"
        );
        let taken = owners.take(claim(2, false), away(true), None);
        assert_eq!(taken, Ok(Some("1/vol".into())));
        drop(owners);
        let owners = Owners::load(directory.path());
        let known = owners.table.lock().by_key.get("iscsi iqn.x").cloned();
        assert_eq!(known, Some(claim(2, false).owner));
        owners.take(claim(3, false), away(false), None).unwrap_err();
        // One name of a protocol for each dataset.
        let mut other = claim(2, false);
        other.key = "iscsi iqn.y".into();
        owners.take(other, Present::None, None).unwrap();
        assert_eq!(owners.table.lock().by_key.len(), 1);
        owners.pool_changed(2, 5);
        let pools: Vec<u64> = owners
            .table
            .lock()
            .by_key
            .values()
            .map(|it| it.pool)
            .collect();
        assert_eq!(pools, [5]);
    }
}
