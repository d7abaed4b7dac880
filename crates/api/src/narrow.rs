//! What those may ask who come over the network and may not do everything: the key of a
//! replication, which is for one dataset and what is below it, and operators, who choose where
//! something is mounted below one directory only.
//!
//! A host that sends its snapshots has such a key, and whoever takes that host over has it as well.
//! So it lets nobody read, overwrite, mount or share anything, and destroy no more than snapshots
//! that a replication brought, once they have been there for a while.

use std::path::{Component, Path};

use crate::permissions::head;
use crate::{
    Call, JobGet, JobResult, Replica, Settings, ZfsDestroy, ZfsHolds, ZfsList, ZfsReceive,
    ZfsReceiveAbort,
};

/// The user property of a snapshot that the key of a replication brought: when that was, in
/// seconds since 1970.
pub const RECEIVED_PROPERTY: &str = "millpond:received";
/// How the snapshots are called that replications take.
const OF_REPLICATIONS: &str = "millpond-";

impl Replica {
    /// Paths of the requests that are made with such a key; of each, [`Call::narrow`] says more.
    pub const PATHS: [&'static str; 7] = [
        ZfsList::PATH,
        ZfsHolds::PATH,
        ZfsReceive::PATH,
        ZfsReceiveAbort::PATH,
        ZfsDestroy::PATH,
        JobGet::PATH,
        JobResult::PATH,
    ];
}

/// Who sends what a receive reads, as far as they are not trusted with all that streams bring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReceiveGuard {
    /// They may set any property.
    #[default]
    None,
    /// An operator, who does not choose every mount point.
    Operator,
    /// An ordinary user with the permission `receive`.
    User,
    /// Who has the key of a replication into this dataset.
    Replica(String),
}

impl ReceiveGuard {
    /// Whether a property is not taken from a stream: what would mount or share the dataset, takes
    /// space from others, or says what only this server says.
    pub fn leaves_out(&self, property: &str) -> bool {
        match self {
            Self::None => false,
            Self::Operator => property == "mountpoint",
            Self::User | Self::Replica(_) => {
                property.starts_with("millpond:")
                    || [
                        "mountpoint",
                        "sharenfs",
                        "sharesmb",
                        "devices",
                        "setuid",
                        "reservation",
                        "refreservation",
                    ]
                    .contains(&property)
            }
        }
    }

    /// Whether a receive into `target` may make a clone of snapshot `origin` where the stream alone
    /// names it. A clone shows all that its origin has, so whoever may do no more than receive gets
    /// clones only of what is in the tree that they receive into.
    pub fn takes_origin(&self, origin: &str, target: &str) -> bool {
        match self {
            Self::None | Self::Operator => true,
            Self::User => is_within(origin, head(target)),
            Self::Replica(dataset) => is_within(origin, dataset),
        }
    }
}

/// Whether a name is of a dataset, or of one below it, or of a snapshot or bookmark of these.
pub fn is_within(name: &str, dataset: &str) -> bool {
    head(name)
        .strip_prefix(dataset)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Refuses names that are not all within a dataset.
pub(crate) fn check_names(names: &[String], dataset: &str) -> Result<(), &'static str> {
    match !names.is_empty() && names.iter().all(|name| is_within(name, dataset)) {
        true => Ok(()),
        false => Err("it is about another dataset"),
    }
}

/// Narrows a receive: it gives up and overwrites nothing, and mounts and shares nothing.
pub(crate) fn receive(call: &mut ZfsReceive, dataset: &str) -> Result<(), &'static str> {
    check_names(std::slice::from_ref(&call.target), dataset)?;
    if let Some(origin) = &call.origin {
        check_names(std::slice::from_ref(origin), dataset)?;
    }
    if call.force || call.force_unmount {
        return Err("a receive that gives up what is there");
    }
    let is_plain = call.naming == crate::ReceiveNaming::Exact && !call.corrective;
    if !is_plain || call.key.is_some() {
        return Err("a receive with such options");
    }
    let may_be_set = [("readonly", "on"), ("canmount", "noauto")];
    for (name, value) in &call.set {
        if !may_be_set.contains(&(name.as_str(), value.as_str())) {
            return Err("a receive that sets properties");
        }
    }
    call.no_mount = true;
    call.skip_holds = true;
    call.guard = ReceiveGuard::Replica(dataset.to_owned());
    Ok(())
}

/// Narrows a destruction to snapshots that replications took; gives them.
pub(crate) fn destroy(call: &ZfsDestroy, dataset: &str) -> Result<Vec<String>, &'static str> {
    check_names(std::slice::from_ref(&call.target), dataset)?;
    if call.recursive || call.dependents || call.force || call.defer {
        return Err("a destruction of more than it names");
    }
    let Some((of, names)) = call.target.split_once('@') else {
        return Err("destroying what is no snapshot");
    };
    let names = names.split(',');
    let is_own = |name: &str| name.starts_with(OF_REPLICATIONS) && !name.contains('%');
    match names.clone().all(is_own) {
        true => Ok(names.map(|name| format!("{of}@{name}")).collect()),
        false => Err("destroying snapshots that no replication took"),
    }
}

/// Refuses properties that would have an operator choose a mount point that is not at or below
/// `root`; without a root, any.
pub(crate) fn check_mountpoint(properties: &Settings, root: Option<&Path>) -> Result<(), String> {
    let Some(wanted) = properties.get("mountpoint") else {
        return Ok(());
    };
    if ["none", "legacy"].contains(&wanted.as_str()) {
        return Ok(());
    }
    let path = Path::new(wanted);
    let is_plain = !path.components().any(|part| part == Component::ParentDir);
    match root {
        Some(root) if is_plain && path.starts_with(root) => Ok(()),
        Some(root) => Err(format!(
            "permission denied: operators mount at and below {} only (the server's option \
             --operator-mounts)",
            root.display()
        )),
        None => Err(NO_ROOT.to_owned()),
    }
}

/// What an operator is told where no directory is theirs.
pub(crate) const NO_ROOT: &str = "permission denied: operators choose no mount points; let an \
                                  admin do it, or start the server with --operator-mounts \
                                  DIRECTORY";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_within_a_dataset_or_not() {
        for name in ["a/b", "a/b/c", "a/b@s", "a/b/c@s", "a/b#m"] {
            assert!(is_within(name, "a/b"), "{name}");
        }
        for name in ["", "a", "a@s", "a/bc", "a/bc@s", "x/a/b", "b"] {
            assert!(!is_within(name, "a/b"), "{name}");
        }
        assert!(check_names(&[], "a/b").is_err());
    }

    /// Goal: the permission to receive lets nobody read what others have, as the origin of a clone.
    #[test]
    fn an_origin_that_only_the_stream_names_is_of_the_tree_that_is_received_into() {
        let replica = ReceiveGuard::Replica("t/me".into());
        for (origin, is_theirs) in [
            ("t/me@s", true),
            ("t/me/below@s", true),
            ("t/mean@s", false),
            ("t/others@s", false),
            ("t@s", false),
        ] {
            for target in ["t/me", "t/me@as"] {
                let user = ReceiveGuard::User.takes_origin(origin, target);
                assert_eq!(user, is_theirs, "{origin} {target}");
            }
            assert_eq!(
                replica.takes_origin(origin, "t/me/x"),
                is_theirs,
                "{origin}"
            );
            assert!(ReceiveGuard::Operator.takes_origin(origin, "t/me"));
            assert!(ReceiveGuard::None.takes_origin(origin, "t/me"));
        }
    }

    #[test]
    fn a_replication_receives_without_force() {
        let plain = || ZfsReceive {
            target: "a/b/c".into(),
            resumable: true,
            ..ZfsReceive::default()
        };
        let mut call = plain();
        call.set.insert("readonly".into(), "on".into());
        receive(&mut call, "a/b").unwrap();
        assert!(call.no_mount && call.skip_holds);
        assert!(call.guard.leaves_out("mountpoint") && call.guard.leaves_out("millpond:iscsi"));
        assert!(!call.guard.leaves_out("compression"));
        let changes: [fn(&mut ZfsReceive); 8] = [
            |call| call.force = true,
            |call| call.force_unmount = true,
            |call| call.corrective = true,
            |call| call.naming = crate::ReceiveNaming::LastOnly,
            |call| call.origin = Some("a/x@s".into()),
            |call| call.target = "a/x".into(),
            |call| drop(call.set.insert("readonly".into(), "off".into())),
            |call| drop(call.set.insert("mountpoint".into(), "/etc".into())),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut call = plain();
            change(&mut call);
            assert!(receive(&mut call, "a/b").is_err(), "change {at}");
        }
    }

    #[test]
    fn a_replication_destroys_snapshots_of_replications() {
        let of = |target: &str| ZfsDestroy {
            target: target.into(),
            ..ZfsDestroy::default()
        };
        let named = destroy(&of("a/b/c@millpond-1,millpond-2"), "a/b").unwrap();
        assert_eq!(named, ["a/b/c@millpond-1", "a/b/c@millpond-2"]);
        for target in [
            "a/b",
            "a/b#millpond-1",
            "a/b@own",
            "a/b@millpond-1,own",
            "a/b@millpond-1%millpond-3",
            "a/x@millpond-1",
        ] {
            assert!(destroy(&of(target), "a/b").is_err(), "{target}");
        }
        let forced = ZfsDestroy {
            force: true,
            ..of("a/b@millpond-1")
        };
        assert!(destroy(&forced, "a/b").is_err());
    }

    #[test]
    fn operators_choose_mount_points_below_one_directory() {
        let at = |path: &str| Settings::from_iter([("mountpoint".to_owned(), path.to_owned())]);
        let root = Path::new("/srv/pools");
        for path in ["none", "legacy", "/srv/pools", "/srv/pools/a"] {
            check_mountpoint(&at(path), Some(root)).unwrap();
        }
        for path in ["/", "/srv", "/srv/poolside", "/srv/pools/../x", "/etc"] {
            assert!(check_mountpoint(&at(path), Some(root)).is_err(), "{path}");
            assert!(check_mountpoint(&at(path), None).is_err(), "{path}");
        }
        check_mountpoint(&at("none"), None).unwrap();
        check_mountpoint(&Settings::new(), None).unwrap();
    }
}
