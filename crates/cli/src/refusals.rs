//! What people are told when a request is refused, in OpenZFS's words where it has some, since
//! scripts and people look for them (`zpool_import_props`, lib/libzfs/libzfs_pool.c; `do_import`,
//! cmd/zpool/zpool_main.c; `vdev_error`, cmd/zpool/zpool_vdev.c; `zfs_do_destroy`,
//! cmd/zfs/zfs_main.c).

use anyhow::bail;
use api::{
    Dependence, DeviceUse, Failure, ImportObstacle, ImportRefusal, ReceiveObstacle, Refusal,
    TopologyObstacle,
};

use crate::numbers;

/// The words for a failure.
pub fn words(failure: &Failure) -> String {
    let Some(refusal) = &failure.refusal else {
        return failure.message.clone();
    };
    match &**refusal {
        Refusal::Import(refusal) => import(refusal, &failure.message),
        Refusal::Vdevs { why, can_be_forced } => {
            let head = match can_be_forced {
                true => "use '-f' to override the following errors:",
                false => "the following errors must be manually repaired:",
            };
            format!("invalid vdev specification\n{head}\n{why}")
        }
        Refusal::Label { path, device_use } => {
            let what = match device_use {
                DeviceUse::ActivePool { pool } => {
                    format!("is a member of potentially active pool '{pool}'")
                }
                DeviceUse::ExportedPool { pool } => {
                    format!("is a member of exported pool '{pool}'")
                }
                DeviceUse::Other { what } => format!("contains {what}"),
            };
            format!("use '-f' to override the following error:\n{path} {what}")
        }
        Refusal::Mountpoint { path, why } => {
            format!("mountpoint '{path}' {why}\nuse '-m' option to provide a different default")
        }
        Refusal::Dependents {
            target,
            kind,
            dependence,
            names,
        } => {
            let (what, option) = match dependence {
                Dependence::Children => ("children", "-r"),
                Dependence::Clones => ("dependent clones", "-R"),
            };
            format!(
                "cannot destroy '{target}': {} has {what}\n\
                 use '{option}' to destroy the following datasets:\n\
                 {}",
                kind.name(),
                names.join("\n")
            )
        }
        Refusal::Receive {
            target,
            is_full,
            is_new,
            why,
            resume_token,
        } => {
            let words = receive(target, *is_full, *is_new, *why, resume_token.is_some());
            match resume_token {
                Some(token) => format!("{words}\n{}", api::how_to_resume(token)),
                None => words,
            }
        }
        Refusal::Topology { doing, why } => format!("{doing}: {}", topology(*why)),
        Refusal::RootFilesystem { pool } => format!(
            "cannot destroy '{pool}': operation does not apply to pools\n\
             use 'zfs destroy -r {pool}' to destroy all datasets in the pool\n\
             use 'zpool destroy {pool}' to destroy the pool itself"
        ),
        Refusal::Newer { .. } => failure.message.clone(),
    }
}

/// Why a stream is not received (`zfs_receive_one`, lib/libzfs/libzfs_sendrecv.c).
fn receive(
    target: &str,
    is_full: Option<bool>,
    is_new: bool,
    why: ReceiveObstacle,
    is_kept: bool,
) -> String {
    let what = match (is_full, is_new) {
        (Some(false), _) => "cannot receive incremental stream",
        (Some(true), _) => "cannot receive new filesystem stream",
        (None, _) if is_kept => "cannot receive resume stream",
        (None, true) => "cannot receive new filesystem stream",
        (None, false) => "cannot receive",
    };
    let words = match why {
        ReceiveObstacle::NoSource => {
            format!("most recent snapshot of {target} does not\nmatch incremental source")
        }
        ReceiveObstacle::NoTarget => format!("destination '{target}' does not exist"),
        ReceiveObstacle::Modified => {
            format!("destination {target} has been modified\nsince most recent snapshot")
        }
        ReceiveObstacle::Exists => {
            format!("destination '{target}' exists\nmust specify -F to overwrite it")
        }
        ReceiveObstacle::HasSnapshots => {
            format!("destination has snapshots (eg. {target})\nmust destroy them to overwrite it")
        }
        ReceiveObstacle::SnapshotExists => {
            return format!("cannot restore to {target}: destination already exists");
        }
        ReceiveObstacle::Interrupted => format!(
            "destination {target} contains partially-complete state from \"zfs receive -s\"."
        ),
        ReceiveObstacle::NothingToResume => {
            format!("'{target}' does not have any resumable receive state to continue")
        }
        ReceiveObstacle::UnderWay => format!("destination '{target}' is busy"),
        ReceiveObstacle::SnapshotNotAllowed => {
            "argument - snapshot not allowed here; give a filesystem or volume".to_owned()
        }
        ReceiveObstacle::NoOrigin => {
            format!("local origin for clone {target} does not exist")
        }
        ReceiveObstacle::NothingToHeal => {
            return format!(
                "cannot open '{target}': dataset does not exist\n\
                 {what}: corrective recv must specify an existing snapshot to heal"
            );
        }
        ReceiveObstacle::OtherSnapshot => {
            "local snapshot doesn't match the snapshot in the provided stream".to_owned()
        }
        ReceiveObstacle::NeedsKey => {
            "key must be loaded to do a non-raw corrective recv on an encrypted dataset.".to_owned()
        }
        ReceiveObstacle::OverwritesEncrypted => {
            "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an \
             unencrypted one with an encrypted one\nreceive it to another name"
                .to_owned()
        }
        ReceiveObstacle::CutShort | ReceiveObstacle::Checksum if is_kept => {
            "checksum mismatch or incomplete stream.".to_owned()
        }
        ReceiveObstacle::CutShort => "incomplete stream".to_owned(),
        ReceiveObstacle::Checksum => "checksum mismatch".to_owned(),
        ReceiveObstacle::NoStream => "invalid stream (bad magic number)".to_owned(),
    };
    format!("{what}: {words}")
}

/// Why a vdev is not changed (`zpool_vdev_attach`, `zpool_vdev_detach`, `zpool_vdev_offline`,
/// lib/libzfs/libzfs_pool.c).
fn topology(why: TopologyObstacle) -> &'static str {
    match why {
        TopologyObstacle::NoSuchDevice => "no such device in pool",
        TopologyObstacle::Spare => "device is reserved as a hot spare",
        TopologyObstacle::Cache => "device is in use as a cache",
        TopologyObstacle::NotADevice => "it is no device; name one of its devices",
        TopologyObstacle::CannotAttach => "can only attach to mirrors and top-level disks",
        TopologyObstacle::CannotReplace => {
            "already in replacing/spare config; wait for completion or use 'zpool detach'"
        }
        TopologyObstacle::OnlyBySpare => "can only be replaced by another hot spare",
        TopologyObstacle::LogBySpare => "cannot replace a log with a spare",
        TopologyObstacle::OtherDraid => {
            "dRAID spares can only replace child devices in their parent's dRAID vdev"
        }
        TopologyObstacle::TooSmall => "device is too small",
        TopologyObstacle::Ashift => {
            "The new device cannot have a higher alignment requirement than the top-level vdev."
        }
        TopologyObstacle::CannotDetach => "only applicable to mirror and replacing vdevs",
        TopologyObstacle::OnlyCopy => "no valid replicas",
        TopologyObstacle::SequentialUnsupported => {
            "only mirror and dRAID vdevs support sequential reconstruction"
        }
        TopologyObstacle::SequentialDisabled => {
            "device_rebuild feature must be enabled in order to use sequential reconstruction"
        }
        TopologyObstacle::Resilvering => "currently resilvering",
        TopologyObstacle::Rebuilding => "currently sequentially resilvering",
        TopologyObstacle::ExpansionDisabled => {
            "raidz_expansion feature must be enabled in order to attach a device to raidz"
        }
        TopologyObstacle::Expanding => "raidz expansion in progress",
        TopologyObstacle::NotWell => {
            "raidz vdev has devices that are are offline or being replaced"
        }
        TopologyObstacle::Busy => "pool or device is busy; try again",
    }
}

/// The words for several, each on lines of its own.
pub fn all_words(failures: &[Failure]) -> String {
    let all: Vec<String> = failures.iter().map(words).collect();
    all.join("\n")
}

/// Tells why pools are not here that one would expect, unless they were named: those are returned.
pub fn tell_absent(names: &[String], why: Vec<Failure>) -> Vec<Failure> {
    if !names.is_empty() {
        return why;
    }
    for why in why {
        eprintln!("{}", words(&why));
    }
    Vec::new()
}

/// Fails where some of those that were named are not there; the others are shown by then.
pub fn all_found(why: &[Failure]) -> anyhow::Result<()> {
    match why {
        [] => Ok(()),
        why => bail!(all_words(why)),
    }
}

fn import(refusal: &ImportRefusal, message: &str) -> String {
    let ImportRefusal {
        pool,
        new_name,
        obstacle,
    } = refusal;
    let doing = match new_name {
        Some(new) => format!("cannot import '{pool}' as '{new}'"),
        None => format!("cannot import '{pool}'"),
    };
    let lines = |features: &[String]| -> String {
        let lines = features.iter().map(|feature| format!("\t{feature}\n"));
        lines.collect()
    };
    let unsupported = "This pool uses the following feature(s) not supported by this system:";
    match obstacle {
        ImportObstacle::NotFound => format!(
            "{doing}: no such pool available\n\
             Pools on files, and devices that are not below /dev, are found where '-d' says: \
             'zpool import -d DIRECTORY {pool}'."
        ),
        // By another name it would be found beside itself.
        ImportObstacle::AlreadyImported if new_name.is_some() => format!(
            "cannot import '{pool}': no such pool available\n\
             a pool with that name is already imported"
        ),
        ImportObstacle::AlreadyImported => format!(
            "{doing}: a pool with that name is already created/imported,\n\
             and no additional pools with that name were found"
        ),
        ImportObstacle::Ambiguous => {
            format!("{doing}: more than one matching pool\nimport by numeric ID instead")
        }
        ImportObstacle::NameTaken if new_name.is_some() => {
            format!("{doing}: pool already exists\nchoose another name")
        }
        ImportObstacle::NameTaken => format!(
            "{doing}: a pool with that name already exists\n\
             use the form 'zpool import <pool | id> <newpool>' to give it a new name"
        ),
        ImportObstacle::ForeignHost {
            hostname,
            hostid,
            accessed_s,
        } => format!(
            "{doing}: pool was previously in use from another system.\n\
             Last accessed by {hostname} (hostid={hostid:x}) at {}\n\
             The pool can be imported, use 'zpool import -f' to import the pool.",
            numbers::local_ctime(*accessed_s)
        ),
        ImportObstacle::ActiveElsewhere { hostname, hostid } => format!(
            "cannot import '{pool}': pool is imported on host '{hostname}' (hostid={hostid:x}).\n\
             Export the pool on the other system, then run 'zpool import'."
        ),
        ImportObstacle::NoHostid => format!(
            "cannot import '{pool}': pool has the multihost property on and the system's hostid \
             is not set.\n\
             Set a unique system hostid with the zgenhostid(8) command."
        ),
        ImportObstacle::ReadOnlyFeatures { features } => format!(
            "{unsupported}\n\
             {}All unsupported features are only required for writing to the pool.\n\
             The pool can be imported using '-o readonly=on'.\n\
             {doing}: unsupported version or feature",
            lines(features)
        ),
        ImportObstacle::UnsupportedFeatures { features } => format!(
            "{unsupported}\n{}{doing}: unsupported version or feature",
            lines(features)
        ),
        ImportObstacle::MissingLogs { devices, datasets } => format!(
            "The devices below are missing or corrupted, use '-m' to import the pool anyway:\n\
             \t{}\n\
             {}\n\
             cannot import '{pool}': one or more devices is currently unavailable",
            devices.join("\n\t"),
            lost_with_logs(datasets, ", ", " ")
        ),
        ImportObstacle::Damaged => format!(
            "{message}\n\
             An older state may be whole: 'zpool import -F' goes back a little, and with '-n' \
             says what that would lose."
        ),
    }
}

/// What an import without log devices loses, as a sentence, which OpenZFS leaves unsaid.
pub fn lost_with_logs(datasets: &[String], between: &str, before: &str) -> String {
    if datasets.is_empty() {
        return "No intent log is on them: nothing is lost without them.".to_owned();
    }
    format!(
        "What was written synchronously in the last seconds of use may be lost in:{before}{}",
        datasets.join(between)
    )
}
