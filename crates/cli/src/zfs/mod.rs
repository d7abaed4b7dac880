//! The `zfs` command line (zfs(8)).

mod allow;
mod diff;
pub mod keys;
mod list;
mod program;
mod project;
mod receive;
mod rewrite;
mod send;
mod set;
mod snapshots;
mod space;
pub mod supported;
mod upgrade;
mod values;

use anyhow::{Context, bail};
use api::{
    DatasetKind, Failure, Protocol, Refusal, SpaceOwner, ZfsCreate, ZfsDestroy, ZfsList, ZfsMount,
    ZfsMountList, ZfsMounted, ZfsRename, ZfsRollback, ZfsShare, ZfsSnapshot, ZfsUnmount,
    ZfsUnshare,
};
use clap::{Args, Parser, Subcommand};
use dataset::props::parse_size;
use serde_json::{Value, json};

use crate::client::Client;
use crate::settings::assignments;
use crate::usage::MINUS_ONE;
use crate::{json, numbers};

/// Configure datasets: filesystems, volumes, snapshots.
#[derive(Debug, Parser)]
#[command(name = "zfs", version, args_override_self = true)]
pub struct Zfs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a filesystem or a volume
    Create(Create),
    /// Destroy datasets or snapshots
    Destroy(Destroy),
    /// List datasets
    List(list::List),
    /// Print properties
    Get(list::Get),
    /// Set properties
    Set(set::Set),
    /// Let a property be inherited again
    Inherit(set::Inherit),
    /// Mount filesystems, or list what is mounted
    Mount(Mount),
    /// Unmount filesystems
    #[command(alias = "umount")]
    Unmount(Unmount),
    /// Share filesystems by NFS and SMB as sharenfs and sharesmb say
    Share(Share),
    /// End shares of filesystems until they are shared again
    Unshare(Unshare),
    /// Load keys of encrypted datasets
    LoadKey(keys::LoadKey),
    /// Unload keys of encrypted datasets
    UnloadKey(keys::UnloadKey),
    /// Change the key of an encrypted dataset
    ChangeKey(keys::ChangeKey),
    /// Make snapshots
    #[command(alias = "snap")]
    Snapshot(Snapshot),
    /// Return a filesystem or volume to a snapshot
    Rollback(Rollback),
    /// Make a clone of a snapshot
    Clone(snapshots::Clone),
    /// Make a clone the origin of what it was cloned from
    Promote(snapshots::Promote),
    /// Make a bookmark of a snapshot or a bookmark
    Bookmark(snapshots::Bookmark),
    /// Make a bookmark that lists what redacted streams leave out
    Redact(snapshots::Redact),
    /// Keep snapshots from being destroyed
    Hold(snapshots::Holding),
    /// Take holds off snapshots
    Release(snapshots::Holding),
    /// Give permissions on a dataset, or tell which there are
    #[command(disable_help_flag = true)]
    Allow(allow::Allow),
    /// Take permissions on a dataset away
    #[command(disable_help_flag = true)]
    Unallow(allow::Unallow),
    /// Tell what changed between snapshots, or since one
    #[command(disable_help_flag = true)]
    Diff(diff::Diff),
    /// Raise the versions of filesystems, or list those of older ones
    Upgrade(upgrade::Upgrade),
    /// Wait until a filesystem has freed what was removed from it
    Wait(upgrade::Wait),
    /// Run a channel program: a script, within one transaction group
    Program(program::Program),
    /// Rename a dataset or snapshot
    Rename(Rename),
    /// Tell what users use of a filesystem
    Userspace(space::Space),
    /// Tell what groups use of a filesystem
    Groupspace(space::Space),
    /// Tell what projects use of a filesystem
    Projectspace(space::ProjectSpace),
    /// List or change the projects of files and directories
    Project(project::Project),
    /// Write files again as they are, to other places and with the properties of now
    Rewrite(rewrite::Rewrite),
    /// Make snapshots of streams
    #[command(alias = "recv", disable_help_flag = true)]
    Receive(receive::Receive),
    /// Make streams of snapshots
    #[command(disable_help_flag = true)]
    Send(Box<send::Send>),
    /// List holds on snapshots
    Holds(space::Holds),
    /// Print the version
    Version(crate::version::Version),
}

#[derive(Debug, Args)]
struct Create {
    /// Make missing parents; succeed if it exists
    #[arg(short, action = clap::ArgAction::Count)]
    parents: u8,
    /// Do not mount
    #[arg(short = 'u', conflicts_with = "volume_size")]
    no_mount: bool,
    /// Only check, and (with -v) say what would be made
    #[arg(short = 'n')]
    dry_run: bool,
    /// Say what is made
    #[arg(short)]
    verbose: bool,
    /// The same, parseable
    #[arg(short = 'P')]
    parseable: bool,
    /// Reserve no space for the volume
    #[arg(short, requires = "volume_size")]
    sparse: bool,
    /// Make a volume of this size
    #[arg(short = 'V', allow_hyphen_values = true)]
    volume_size: Option<String>,
    /// Block size of the volume
    #[arg(short = 'b', requires = "volume_size")]
    block_size: Option<String>,
    /// PROPERTY=VALUE
    #[arg(short = 'o')]
    properties: Vec<String>,
    dataset: String,
}

#[derive(Debug, Args)]
struct Destroy {
    /// Children too
    #[arg(short)]
    recursive: bool,
    /// Everything that depends on it, clones outside of the tree too
    #[arg(short = 'R')]
    dependents: bool,
    /// Unmount even what is in use
    #[arg(short)]
    force: bool,
    /// Only say what would be destroyed
    #[arg(short = 'n')]
    dry_run: bool,
    /// Say what is destroyed
    #[arg(short)]
    verbose: bool,
    /// Parseable output of -v and -n
    #[arg(short)]
    parseable: bool,
    /// Defer destroying snapshots that are held
    #[arg(short = 'd')]
    defer: bool,
    /// FILESYSTEM, VOLUME, FILESYSTEM@SNAP[%SNAP][,...] or FILESYSTEM#BOOKMARK
    target: String,
}

#[derive(Debug, Args)]
struct Mount {
    /// All filesystems
    #[arg(short, conflicts_with = "filesystems")]
    all: bool,
    /// The filesystems and all below them
    #[arg(short = 'R', requires = "filesystems")]
    recursive: bool,
    /// Also redacted ones, which lack some of their blocks
    #[arg(short)]
    force: bool,
    /// JSON, of what is mounted
    #[arg(short = 'j', long = "json", conflicts_with_all = ["all", "filesystems"])]
    json: bool,
    /// Also over a directory that is not empty
    #[arg(short = 'O')]
    overlay: bool,
    /// Load keys that are not loaded
    #[arg(short)]
    load_keys: bool,
    /// Give up what cannot be replayed of the intent log that a crash left: it is lost. Also of a
    /// volume
    #[arg(long, conflicts_with_all = ["all", "recursive"], requires = "filesystems")]
    discard_log: bool,
    /// Show progress (mounting is quick; accepted for scripts)
    #[arg(short)]
    verbose: bool,
    /// Mount options, comma-separated
    #[arg(short)]
    options: Vec<String>,
    /// Several with -R
    filesystems: Vec<String>,
}

#[derive(Debug, Args)]
struct Unmount {
    /// All filesystems
    #[arg(short)]
    all: bool,
    /// Even what is in use
    #[arg(short)]
    force: bool,
    /// Unload the keys of encryption roots that are unmounted
    #[arg(short = 'u')]
    unload_keys: bool,
    /// Filesystem or mount point
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    target: Option<String>,
}

#[derive(Debug, Args)]
struct Share {
    /// All filesystems
    #[arg(short)]
    all: bool,
    /// Load keys that are not loaded
    #[arg(short)]
    load_keys: bool,
    /// Filesystem; with -a, nfs or smb for that alone
    #[arg(required_unless_present = "all", value_name = "FILESYSTEM|PROTOCOL")]
    filesystem: Option<String>,
}

#[derive(Debug, Args)]
struct Unshare {
    /// All filesystems
    #[arg(short)]
    all: bool,
    /// Filesystem, or the path that it is shared as; with -a, nfs or smb for that alone
    #[arg(
        required_unless_present = "all",
        value_name = "FILESYSTEM|PATH|PROTOCOL"
    )]
    target: Option<String>,
}

#[derive(Debug, Args)]
struct Snapshot {
    /// Children too
    #[arg(short)]
    recursive: bool,
    /// User property, PROPERTY=VALUE
    #[arg(short = 'o')]
    properties: Vec<String>,
    #[arg(required = true)]
    snapshots: Vec<String>,
}

#[derive(Debug, Args)]
struct Rollback {
    /// Destroy newer snapshots and bookmarks
    #[arg(short = 'r')]
    destroy_newer: bool,
    /// Destroy newer snapshots and their clones
    #[arg(short = 'R')]
    destroy_clones: bool,
    /// Unmount even what is in use
    #[arg(short)]
    force: bool,
    snapshot: String,
}

#[derive(Debug, Args)]
struct Rename {
    /// Make missing parents
    #[arg(short, conflicts_with_all = ["recursive", "no_mount"])]
    parents: bool,
    /// Snapshots of children too
    #[arg(short)]
    recursive: bool,
    /// Do not remount
    #[arg(short = 'u')]
    no_mount: bool,
    /// Unmount even what is in use
    #[arg(short)]
    force: bool,
    from: String,
    to: String,
}

/// Runs a parsed `zfs` command. `typed` is the command line for the pool's history.
pub fn run(zfs: Zfs, client: &Client, typed: String) -> anyhow::Result<()> {
    match zfs.command {
        Command::Create(create) => run_create(create, client, typed),
        Command::Destroy(destroy) => run_destroy(&destroy, client, typed),
        Command::List(list) => list.run(client),
        Command::Get(get) => get.run(client),
        Command::Set(set) => set.run(client, typed),
        Command::Inherit(inherit) => inherit.run(client, typed),
        Command::Userspace(space) => space.run(client, SpaceOwner::User),
        Command::Groupspace(space) => space.run(client, SpaceOwner::Group),
        Command::Projectspace(space) => space.run(client),
        Command::Project(project) => project.run(client),
        Command::Rewrite(rewrite) => rewrite.run(client),
        Command::Receive(receive) => receive.run(client, typed),
        Command::Send(send) => send.run(client),
        Command::Holds(holds) => holds.run(client),
        Command::Clone(clone) => clone.run(client, typed),
        Command::Promote(promote) => promote.run(client, typed),
        Command::Bookmark(bookmark) => bookmark.run(client, typed),
        Command::Redact(redact) => redact.run(client, typed),
        Command::Hold(holding) => holding.hold(client, typed),
        Command::Release(holding) => holding.release(client, typed),
        Command::Allow(allow) => allow.run(client, typed),
        Command::Unallow(unallow) => unallow.run(client, typed),
        Command::Diff(diff) => diff.run(client),
        Command::Upgrade(upgrade) => upgrade.run(client, typed),
        Command::Wait(wait) => wait.run(client),
        Command::Program(program) => program.run(client, typed),
        Command::Version(version) => version.run("zfs"),
        Command::LoadKey(load) => load.run(client),
        Command::UnloadKey(unload) => unload.run(client),
        Command::ChangeKey(change) => change.run(client, typed),
        Command::Mount(mount) => run_mount(mount, client),
        Command::Unmount(unmount) => run_unmount(unmount, client),
        Command::Share(share) => {
            let (name, protocol) = shared_what(share.all, share.filesystem)?;
            if share.load_keys {
                match &name {
                    Some(name) => keys::load_for(client, name)?,
                    // Each that is loaded is mounted, so that it can be shared.
                    None => keys::load_all(client, None, true)?,
                }
            }
            client.call(&ZfsShare {
                name,
                all: share.all,
                protocol,
            })?;
            Ok(())
        }
        Command::Unshare(unshare) => {
            let (name, protocol) = shared_what(unshare.all, unshare.target)?;
            client.call(&ZfsUnshare {
                name,
                all: unshare.all,
                protocol,
            })?;
            Ok(())
        }
        Command::Snapshot(snapshot) => {
            if snapshot.snapshots.iter().any(|name| !name.contains('@')) {
                bail_usage!("");
            }
            let made = client.call(&ZfsSnapshot {
                names: snapshot.snapshots,
                recursive: snapshot.recursive,
                properties: assignments(&snapshot.properties)?,
                command: typed,
            });
            made.map(drop).map_err(crate::usage::of_absent)
        }
        Command::Rollback(rollback) => {
            let mut call = ZfsRollback {
                snapshot: rollback.snapshot,
                destroy_newer: false,
                destroy_clones: false,
                force: rollback.force,
                command: typed,
            };
            // Where nothing is newer, nothing is destroyed, and nobody needs to be allowed to.
            if rollback.destroy_newer || rollback.destroy_clones {
                match client.call(&call) {
                    Err(error) if is_for_newer(&error) => {}
                    done => return done.map(drop),
                }
            }
            call.destroy_newer = rollback.destroy_newer;
            call.destroy_clones = rollback.destroy_clones;
            client.call(&call)?;
            Ok(())
        }
        Command::Rename(rename) => {
            if rename.recursive && !rename.from.contains('@') {
                bail_usage!("source dataset for recursive rename must be a snapshot");
            }
            client.call(&ZfsRename {
                from: rename.from,
                to: rename.to,
                parents: rename.parents,
                recursive: rename.recursive,
                no_mount: rename.no_mount,
                force: rename.force,
                command: typed,
            })?;
            Ok(())
        }
    }
}

/// Whether nothing was done, as that would destroy what is newer.
fn is_for_newer(error: &anyhow::Error) -> bool {
    let failure = error.downcast_ref::<Failure>();
    let refusal = failure.and_then(|failure| failure.refusal.as_deref());
    matches!(refusal, Some(Refusal::Newer { .. }))
}

/// Which filesystem, or with `-a` what protocol (`sa_protocol_decode`, cmd/zfs/zfs_main.c).
fn shared_what(
    all: bool,
    word: Option<String>,
) -> anyhow::Result<(Option<String>, Option<Protocol>)> {
    match word.as_deref() {
        _ if !all => Ok((word, None)),
        None => Ok((None, None)),
        Some("nfs") => Ok((None, Some(Protocol::Nfs))),
        Some("smb") => Ok((None, Some(Protocol::Smb))),
        Some(other) => bail_usage!("share type must be one of: nfs, smb\n'{other}' is neither"),
    }
}

fn run_create(create: Create, client: &Client, typed: String) -> anyhow::Result<()> {
    let mut properties = assignments(&create.properties)?;
    for (is_given, name) in [
        (create.block_size.is_some(), "volblocksize"),
        (create.volume_size.is_some(), "volsize"),
    ] {
        if is_given && properties.contains_key(name) {
            bail!("property '{name}' specified multiple times");
        }
    }
    if let Some(size) = &create.block_size {
        properties.insert(
            "volblocksize".into(),
            parse_size(size)
                .map_err(|why| anyhow::anyhow!("bad volume block size '{size}': {why}"))?
                .to_string(),
        );
    }
    let volume_size_bytes = match &create.volume_size {
        Some(size) => Some(
            parse_size(size)
                .map_err(|error| anyhow::anyhow!("bad volume size '{size}': {error}"))?,
        ),
        None => None,
    };
    let key = match create.dry_run {
        true => None,
        false => {
            let parent = create.dataset.rsplit_once('/').map(|(parent, _)| parent);
            keys::of_new(client, parent, &mut properties)
                .with_context(|| format!("cannot create '{}'", create.dataset))?
        }
    };
    let reply = client.call(&ZfsCreate {
        name: create.dataset.clone(),
        key,
        properties,
        volume_size_bytes,
        sparse: create.sparse,
        parents: create.parents > 0,
        parents_unmounted: create.parents > 1,
        no_mount: create.no_mount,
        dry_run: create.dry_run,
        command: typed,
    })?;
    for warning in &reply.warnings {
        eprintln!("{warning}");
    }
    if (create.verbose || create.parseable) && !reply.exists {
        let name = &create.dataset;
        if reply.ancestors {
            match (create.parseable, create.dry_run) {
                (true, _) => println!("create_ancestors\t{name}"),
                (false, true) => println!("would create ancestors of {name}"),
                (false, false) => println!("create ancestors of {name}"),
            }
        }
        match (create.parseable, create.dry_run) {
            (true, _) => println!("create\t{name}"),
            (false, true) => println!("would create {name}"),
            (false, false) => println!("create {name}"),
        }
        for (property, value) in &reply.properties {
            match create.parseable {
                true => println!("property\t{property}\t{value}"),
                false => println!("\t{property}={value}"),
            }
        }
    }
    Ok(())
}

fn run_destroy(destroy: &Destroy, client: &Client, typed: String) -> anyhow::Result<()> {
    if destroy.target.contains('#') {
        for (given, what) in [
            (destroy.dry_run, "dryrun"),
            (destroy.defer, "defer destroy"),
            (destroy.recursive || destroy.dependents, "recursive"),
        ] {
            if given {
                bail_status!(MINUS_ONE, "{what} is not supported with bookmark");
            }
        }
    }
    let reply = client.call(&ZfsDestroy {
        target: destroy.target.clone(),
        recursive: destroy.recursive,
        dependents: destroy.dependents,
        force: destroy.force,
        dry_run: destroy.dry_run,
        defer: destroy.defer,
        command: typed,
    })?;
    if destroy.verbose || destroy.parseable {
        for name in &reply.names {
            match (destroy.parseable, destroy.dry_run) {
                (true, _) => println!("destroy\t{name}"),
                (false, true) => println!("would destroy {name}"),
                (false, false) => println!("will destroy {name}"),
            }
        }
        if let Some(bytes) = reply.reclaimed_bytes {
            match (destroy.parseable, destroy.dry_run) {
                (true, _) => println!("reclaim\t{bytes}"),
                (false, true) => println!("would reclaim {}", numbers::nice_bytes(bytes)),
                (false, false) => println!("will reclaim {}", numbers::nice_bytes(bytes)),
            }
        }
    }
    if !reply.refused.is_empty() {
        bail!("{}", reply.refused.join("\n"));
    }
    Ok(())
}

fn run_mount(mount: Mount, client: &Client) -> anyhow::Result<()> {
    if mount.filesystems.is_empty() && !mount.all {
        let mounts = client.call(&ZfsMountList {})?.mounts;
        if mount.json {
            let by_name = mounts.into_iter().map(|mounted| {
                let entry = json!({"filesystem": mounted.name, "mountpoint": mounted.mountpoint});
                (mounted.name, entry)
            });
            let mut document = json::document("zfs mount");
            document.insert("datasets".into(), Value::Object(by_name.collect()));
            return json::print(document);
        }
        for mounted in mounts {
            println!("{:<30}  {}", mounted.name, mounted.mountpoint);
        }
        return Ok(());
    }
    if mount.filesystems.len() > 1 && !mount.recursive {
        bail_usage!("too many arguments");
    }
    if mount.load_keys {
        for name in &mount.filesystems {
            keys::load_for(client, name)?;
        }
        if mount.all {
            keys::load_all(client, None, false)?;
        }
    }
    let mut names: Vec<Option<String>> = mount.filesystems.iter().cloned().map(Some).collect();
    if mount.all {
        names.push(None);
    } else if mount.recursive {
        names.clear();
        for top in &mount.filesystems {
            // One may be below another.
            let below = to_mount_below(top, client).map_err(crate::usage::of_absent)?;
            names.extend(
                below
                    .into_iter()
                    .filter(|name| !names.contains(name))
                    .collect::<Vec<_>>(),
            );
        }
    }
    for name in names {
        client.call(&ZfsMount {
            name,
            all: mount.all,
            overlay: mount.overlay,
            force: mount.force,
            discard_log: mount.discard_log,
            options: mount
                .options
                .iter()
                .flat_map(|list| list.split(','))
                .map(str::to_owned)
                .collect(),
        })?;
    }
    Ok(())
}

/// What is said of a path where nothing of ours is mounted (`unshare_unmount_path`,
/// cmd/zfs/zfs_main.c).
fn no_mount(client: &Client, path: &str, error: anyhow::Error) -> anyhow::Error {
    if !format!("{error:#}").ends_with("': not currently mounted") {
        return error;
    }
    if let Err(why) = std::fs::symlink_metadata(path) {
        return anyhow::anyhow!("cannot open '{path}': {why}");
    }
    let mounts = client.call(&ZfsMountList {}).map(|reply| reply.mounts);
    let is_inside = |mounted: &ZfsMounted| {
        std::path::Path::new(path).starts_with(std::path::Path::new(&mounted.mountpoint))
    };
    match mounts.unwrap_or_default().iter().any(is_inside) {
        true => anyhow::anyhow!("cannot unmount '{path}': not a mountpoint"),
        false => anyhow::anyhow!("cannot unmount '{path}': not a ZFS filesystem"),
    }
}

fn run_unmount(unmount: Unmount, client: &Client) -> anyhow::Result<()> {
    let mounted = || -> anyhow::Result<Vec<String>> {
        let mounts = client.call(&ZfsMountList {})?.mounts;
        Ok(mounts.into_iter().map(|mounted| mounted.name).collect())
    };
    let before = match unmount.unload_keys {
        true => mounted()?,
        false => Vec::new(),
    };
    let target = unmount.target.clone();
    let unmounted = client.call(&ZfsUnmount {
        name: unmount.target,
        all: unmount.all,
        force: unmount.force,
    });
    let unmounted = unmounted.map_err(|error| match target {
        Some(path) if path.starts_with('/') => no_mount(client, &path, error),
        _ => error,
    });
    if unmount.unload_keys {
        // Also of what could be unmounted before something could not.
        let now = mounted()?;
        let gone: Vec<String> = before
            .into_iter()
            .filter(|name| !now.contains(name))
            .collect();
        let unloaded = keys::unload_of(client, &gone);
        unmounted?;
        return unloaded;
    }
    unmounted.map(drop)
}

/// What `zfs mount -R` mounts: the filesystem and those below it that want to be mounted and are
/// not.
fn to_mount_below(top: &str, client: &Client) -> anyhow::Result<Vec<Option<String>>> {
    let listed = client.call(&ZfsList {
        names: vec![top.to_owned()],
        kinds: vec![DatasetKind::Filesystem],
        ..ZfsList::default()
    })?;
    let wanted = listed.datasets.into_iter().filter(|dataset| {
        let value = |name: &str| {
            let property = dataset.properties.get(name);
            property.map_or("", |property| property.value.as_str())
        };
        value("mounted") == "no"
            && value("canmount") == "on"
            && value("mountpoint").starts_with('/')
    });
    Ok(wanted.map(|dataset| Some(dataset.name)).collect())
}
