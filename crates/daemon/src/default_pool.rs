//! The pool of `millpond up`: made the first time on sparse files in the state directory, imported
//! later, with a filesystem mounted and a volume offered by iSCSI.
//!
//! The volume is shared with a secret that is made up with the pool, and shown once. One of a
//! server from before there were secrets, shared with whoever can reach it, gets its secret at the
//! next start; who then wants it open sets `millpond:iscsi=on` again, and is left alone.
//!
//! Where it was destroyed, or its first start was cut off, its files hold nothing that anybody
//! wants, and it is made anew. Files that hold something else, or whose labels are not found, are
//! left alone.
//!
//! Four files make a raidz1: one may be damaged or lost without loss. Together they may grow to
//! most of what is free where the state directory is; they take that space only as they fill.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::{
    DeviceSpec, Failure, FailureKind, IscsiSecretSet, Refusal, Secret, Settings, ShareInfo,
    VdevClass, VdevLayout, VdevSpec, ZfsCreate, ZfsSet, ZpoolCreate, ZpoolImport,
};
use dataset::PropertySource;
use device::World;
use pool::{FoundPool, FoundState, ScanSpec};
use serve_nfs::{NFS_PORT, ServerError};

use crate::service::Service;
use crate::{DaemonError, DefaultPool};
use service::error::from_pool;
use service::pools::OpenPool;
use serving::iscsi::ISCSI_PROPERTY;
use serving::nfs::NFS_PROPERTY;
use serving::smb::SMB_PROPERTY;

/// Name of the pool.
const POOL: &str = "pond";
/// Name of the volume.
const VOLUME: &str = "pond/volume";
/// Name of the secret that it is shared with.
const SECRET: &str = "pond";
/// Who may mount its filesystem by NFS: this machine's root, which owns what is in it.
const NFS_SHARE: &str = "rw=127.0.0.1:[::1],no_root_squash";
/// Files that the pool is made of.
const DISKS: u64 = 4;
/// Smallest file that makes a useful vdev, in bytes (OpenZFS's least is 64 MiB).
const DISK_BYTES_MIN: u64 = 128 << 20;
/// Sizes are rounded down to this.
const DISK_BYTES_UNIT: u64 = 16 << 20;

/// Makes or imports the default pool. Answers the secret of its volume, if it was made up just now.
pub(crate) async fn bring_up(
    service: &Arc<Service>,
    wanted: &DefaultPool,
) -> Result<Option<Secret>, DaemonError> {
    // A share that could not start (its port is taken) stops `up` before anything is made: half a
    // server would surprise.
    service
        .serving
        .volumes
        .listen()
        .await
        .map_err(|source| DaemonError::Iscsi { source })?;
    listen_nfs(service).await?;
    let failed = |what: String| move |source| DaemonError::DefaultPool { what, source };
    let disks = service.state().directory().join("disks");
    if service.serving.pools.get(POOL).is_err() {
        let is_made = disk_paths(&disks).iter().any(|path| path.exists());
        if is_made && !take_away_leftovers(&service.serving.world, &disks).await? {
            import(service, &disks).await.map_err(failed(format!(
                "the default pool in {} could not be imported",
                disks.display()
            )))?;
        } else {
            let what = format!("the default pool could not be made in {}", disks.display());
            let secret = make_secret(service).await.map_err(failed(what.clone()))?;
            let created = create(service, &disks, wanted).await;
            if created.is_err() && secret.is_some() {
                // Nobody has seen it: the next start makes another one, and shows that.
                let _ = service.serving.volumes.secrets.remove(SECRET);
            }
            return created.map(|()| secret).map_err(failed(what));
        }
    }
    // What stands still is shared as it was, once it goes on.
    let is_suspended = |open: Arc<OpenPool>| open.pool.suspended().is_some();
    if service.serving.pools.get(POOL).is_ok_and(is_suspended) {
        return Ok(None);
    }
    if let Err(failure) = share_filesystem(service).await {
        eprintln!("{POOL} is not shared by NFS: {failure}");
    }
    Ok(guard(service).await.unwrap_or_else(|failure| {
        eprintln!("{VOLUME} stays open to everybody who can reach it: {failure}");
        None
    }))
}

/// Removes the files of a default pool that was destroyed, or never was one. False where they may
/// hold something.
async fn take_away_leftovers(world: &World, disks: &Path) -> Result<bool, DaemonError> {
    let paths: Vec<PathBuf> = disk_paths(disks)
        .into_iter()
        .filter(|path| path.exists())
        .collect();
    let was_written = |path: &PathBuf| path.metadata().map_or(true, |found| found.blocks() > 0);
    let scan = ScanSpec {
        paths: vec![disks.to_string_lossy().into_owned()],
        guid: None,
        name: None,
    };
    let failed = |source| DaemonError::DefaultPool {
        what: format!("the files in {} could not be replaced", disks.display()),
        source,
    };
    if paths.iter().any(was_written) {
        let found = pool::scan(world, &scan).await;
        let found = found.map_err(|error| failed(from_pool("cannot look at them", &error)))?;
        let is_over =
            |found: &FoundPool| found.name == POOL && found.state == FoundState::Destroyed;
        if found.is_empty() || !found.iter().all(is_over) {
            return Ok(false);
        }
        eprintln!("{POOL} was destroyed; another one is made");
    }
    for path in paths {
        std::fs::remove_file(&path).map_err(|error| {
            let message = format!("{}: {error}", path.display());
            failed(Failure::new(FailureKind::Io, message))
        })?;
    }
    Ok(true)
}

/// Has NFS listen, on another port where its own is taken (by the kernel's server, for instance):
/// who mounts the default pool's filesystem is told the port.
async fn listen_nfs(service: &Service) -> Result<(), DaemonError> {
    let listening = match service.serving.nfs.listen().await {
        Err(ServerError::AddressInUse { address }) if address.port() == NFS_PORT => {
            service
                .serving
                .nfs
                .set_address(SocketAddr::new(address.ip(), 0));
            service.serving.nfs.listen().await
        }
        listening => listening,
    };
    listening.map_err(|source| DaemonError::Nfs { source })
}

/// Shares the filesystem of a pool from before there was NFS with this machine, as that of a new
/// one is.
async fn share_filesystem(service: &Service) -> Result<(), Failure> {
    let open = service.serving.pools.get(POOL)?;
    let setting = open.pool.dsl().properties().get(POOL, NFS_PROPERTY).await;
    let is_unset = setting.is_ok_and(|setting| setting.source == PropertySource::Default);
    if !is_unset || open.pool.is_read_only() {
        return Ok(());
    }
    let call = ZfsSet {
        names: vec![POOL.into()],
        command: format!("zfs set {NFS_PROPERTY}={NFS_SHARE} {POOL} (millpond up)"),
        properties: Settings::from([(NFS_PROPERTY.into(), NFS_SHARE.into())]),
        ..ZfsSet::default()
    };
    let changed = verbs::properties::zfs_set(&service.serving, call).await?;
    for warning in changed.warnings {
        eprintln!("{warning}");
    }
    Ok(())
}

/// What the volume is shared with.
fn guarded_share() -> String {
    format!("on,chap={SECRET}")
}

/// Makes the volume's secret up, unless it has one.
async fn make_secret(service: &Service) -> Result<Option<Secret>, Failure> {
    if service.serving.volumes.secrets.has(SECRET) {
        return Ok(None);
    }
    let call = IscsiSecretSet {
        name: SECRET.into(),
        ..IscsiSecretSet::default()
    };
    let made = service
        .serving
        .volumes
        .secret_set(call, &*service.serving.world.random)
        .await?;
    Ok(made.generated)
}

/// Gives the volume of a pool from before there were secrets its own.
async fn guard(service: &Service) -> Result<Option<Secret>, Failure> {
    let open = service.serving.pools.get(POOL)?;
    let share = open
        .pool
        .dsl()
        .properties()
        .get(VOLUME, ISCSI_PROPERTY)
        .await;
    // Who has removed or renamed the volume needs no secret for it.
    let is_open = share.is_ok_and(|share| share.value.text() == Some("on"));
    if !is_open || open.pool.is_read_only() || service.serving.volumes.secrets.has(SECRET) {
        return Ok(None);
    }
    let made = make_secret(service).await?;
    let guarded = guarded_share();
    let call = ZfsSet {
        names: vec![VOLUME.into()],
        command: format!("zfs set {ISCSI_PROPERTY}={guarded} {VOLUME} (millpond up)"),
        properties: Settings::from([(ISCSI_PROPERTY.into(), guarded)]),
        ..ZfsSet::default()
    };
    verbs::properties::zfs_set(&service.serving, call).await?;
    Ok(made)
}

fn disk_paths(disks: &Path) -> Vec<PathBuf> {
    (0..DISKS)
        .map(|index| disks.join(format!("disk{index}.img")))
        .collect()
}

/// Size of one file: the size asked for or four fifths of what is free, divided by the files.
fn disk_bytes(disks: &Path, wanted: Option<u64>) -> Result<u64, Failure> {
    let total = match wanted {
        Some(total) => total,
        None => {
            let space = rustix::fs::statvfs(disks).map_err(|error| {
                Failure::new(
                    FailureKind::Io,
                    format!(
                        "the free space of {} cannot be told: {error}; give --size",
                        disks.display()
                    ),
                )
            })?;
            space.f_bavail * space.f_frsize / 5 * 4
        }
    };
    let each = total / DISKS / DISK_BYTES_UNIT * DISK_BYTES_UNIT;
    if each < DISK_BYTES_MIN {
        let least = (DISK_BYTES_MIN * DISKS) >> 20;
        let message = format!(
            "{} MiB in {} are too little: at least {least} MiB are needed; free some space, or \
             choose another place with MILLPOND_STATE",
            total >> 20,
            disks.display()
        );
        return Err(Failure::new(FailureKind::NoSpace, message));
    }
    Ok(each)
}

async fn create(service: &Arc<Service>, disks: &Path, wanted: &DefaultPool) -> Result<(), Failure> {
    let io = |what: &Path, error: std::io::Error| {
        Failure::new(FailureKind::Io, format!("{}: {error}", what.display()))
    };
    std::fs::create_dir_all(disks).map_err(|error| io(disks, error))?;
    let each = disk_bytes(disks, wanted.size_bytes)?;
    let mut devices = Vec::new();
    for path in disk_paths(disks) {
        device::create_sparse_file(&path, each).map_err(|error| io(&path, error))?;
        devices.push(DeviceSpec {
            path: path.to_string_lossy().into_owned(),
            kind: None,
        });
    }
    let mountpoint = wanted
        .mountpoint
        .clone()
        .unwrap_or_else(|| service.state().directory().join("mnt"));
    let mountpoint = mountpoint.to_string_lossy().into_owned();
    let mut properties = Settings::from([
        ("mountpoint".into(), mountpoint),
        (NFS_PROPERTY.into(), NFS_SHARE.into()),
    ]);
    // To those on this host who get a user: who starts the server by hand finds it all.
    if service.serving.smb.is_possible().await {
        properties.insert(SMB_PROPERTY.into(), "on".into());
    }
    let call = ZpoolCreate {
        name: POOL.into(),
        vdevs: vec![VdevSpec {
            class: VdevClass::Normal,
            layout: VdevLayout::Raidz { parity: 1, devices },
        }],
        properties: Settings::from([("ashift".into(), "12".into())]),
        filesystem_properties: properties,
        command: format!("zpool create {POOL} (millpond up)"),
        ..ZpoolCreate::default()
    };
    let created = verbs::zpool::zpool_create(&service.serving, call).await;
    let created = created.map_err(|failure| match failure.refusal.as_deref() {
        Some(Refusal::Mountpoint { path, why }) => {
            let message = format!(
                "mountpoint '{path}' {why}\nuse '--mountpoint' to provide a different default"
            );
            Failure::new(failure.kind, message)
        }
        _ => failure,
    })?;
    for warning in created.warnings {
        eprintln!("{warning}");
    }
    // Half of what the pool holds besides parity; sparse, so it takes nothing until written.
    let size = each * (DISKS - 1) / 2 / DISK_BYTES_UNIT * DISK_BYTES_UNIT;
    let guarded = guarded_share();
    let call = ZfsCreate {
        name: VOLUME.into(),
        volume_size_bytes: Some(size.max(DISK_BYTES_UNIT)),
        sparse: true,
        command: format!(
            "zfs create -s -V {size} -o {ISCSI_PROPERTY}={guarded} {VOLUME} (millpond up)"
        ),
        properties: Settings::from([(ISCSI_PROPERTY.into(), guarded)]),
        ..ZfsCreate::default()
    };
    let maker = verbs::create::Maker { ids: None };
    verbs::create::zfs_create(&service.serving, call, maker)
        .await
        .map(|_| ())
}

async fn import(service: &Arc<Service>, disks: &Path) -> Result<(), Failure> {
    let call = ZpoolImport {
        search: vec![disks.to_string_lossy().into_owned()],
        pool: Some(POOL.into()),
        ..ZpoolImport::default()
    };
    for imported in verbs::import::zpool_import(&service.serving, call)
        .await?
        .imported
    {
        for warning in imported.warnings {
            eprintln!("{warning}");
        }
    }
    Ok(())
}

/// How Linux logs in to a share. `secret` is shown where it was made up just now.
fn login_lines(share: &ShareInfo, secret: Option<&Secret>) -> Vec<String> {
    let (iqn, address) = (&share.name, &share.address);
    let node = format!("iscsiadm -m node -T {iqn} -p {address}");
    let mut lines = vec![format!("{node} --op new")];
    if let Some(user) = &share.user {
        let secret = secret.map_or("SECRET", |secret| &secret.0);
        let auth = "-n node.session.auth";
        lines.push(format!(
            "{node} --op update {auth}.authmethod -v CHAP {auth}.username -v {user} \
             {auth}.password -v {secret}"
        ));
    }
    lines.push(format!("{node} --login"));
    lines
}

/// How Linux mounts a share.
fn mount_line(share: &ShareInfo) -> String {
    let (host, port) = share
        .address
        .rsplit_once(':')
        .unwrap_or((&share.address, "2049"));
    format!(
        "mount -t nfs -o vers=3,proto=tcp,port={port},mountport={port},nolock {host}:{} /mnt",
        share.name
    )
}

/// Prints what runs, and lines to paste. `secret` is that of the default pool's volume, if it was
/// made up just now. Secrets are for who sits at the terminal: elsewhere (a service's journal, a
/// container's log) others read along, and are kept for long.
pub(crate) fn announce(service: &Service, secret: Option<&Secret>) {
    let state = service.state().directory();
    let is_seen_once = std::io::stdout().is_terminal();
    let secret = secret.filter(|_| is_seen_once);
    println!(
        "millpond {} is up, state in {}",
        env!("CARGO_PKG_VERSION"),
        state.display()
    );
    for open in service.serving.pools.all() {
        let name = open.pool.name();
        let numbers = open.pool.numbers();
        println!(
            "  pool        {name}: {}, {} MiB, {} MiB free",
            open.pool.status().health.word(),
            numbers.size_bytes >> 20,
            numbers.free_bytes >> 20
        );
    }
    for mounted in service.serving.mounts.list().mounts {
        println!("  filesystem  {} at {}", mounted.name, mounted.mountpoint);
    }
    let by_default = state == Path::new("/var/lib/millpond");
    let prefix = if by_default {
        String::new()
    } else {
        format!("MILLPOND_STATE={} ", state.display())
    };
    for share in service.serving.volumes.shares() {
        let secret = secret.filter(|_| share.secret.as_deref() == Some(SECRET));
        println!(
            "  volume      {} as file {}",
            share.dataset,
            service.serving.volumes.file(&share.dataset).display()
        );
        println!(
            "              by iSCSI as {} at {}",
            share.name, share.address
        );
        match (&share.user, &share.secret, secret) {
            (Some(user), _, Some(_)) => println!(
                "              for CHAP user {user}, with a secret that is shown only this once:"
            ),
            (Some(user), Some(name), None) => println!(
                "              for CHAP user {user}; the secret is in {}, and \
                 '{prefix}millpond iscsi secret set {name} --generate' makes a new one",
                service.serving.volumes.secrets.path().display()
            ),
            _ => println!("              for everybody who can reach that address"),
        }
        let mut label = "log in:";
        for line in login_lines(&share, secret) {
            println!("              {label:<8} {line}");
            label = "";
        }
    }
    for share in service.serving.nfs.offered() {
        println!(
            "  filesystem  {} by NFS at {}",
            share.dataset, share.address
        );
        println!("              mount:   {}", mount_line(&share));
    }
    for share in service.serving.smb.shares() {
        let (name, address) = (&share.name, &share.address);
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "445"));
        println!(
            "  filesystem  {} by SMB as {name} at {address}, for users that '{prefix}millpond user \
             add NAME' makes",
            share.dataset
        );
        println!(
            "              mount:   mount -t cifs //{host}/{name} /mnt -o \
             port={port},username=NAME"
        );
    }
    for refused in service.serving.not_shared() {
        println!("  not shared  {} ({})", refused.dataset, refused.why);
    }
    let link = service.web.link();
    if let Some(url) = link.url {
        match link.setup_token {
            Some(_) if !is_seen_once => match service.web.link_file() {
                Some(file) => println!(
                    "  console     {url}, where the first user is made with the link in {}",
                    file.display()
                ),
                None => println!(
                    "  console     {url}, where the first user is made with the link that \
                     '{prefix}millpond console' prints"
                ),
            },
            Some(token) => {
                println!("  console     {url}#setup={}", token.0);
                println!(
                    "              make the first user there; this link is good for once, and \
                     '{prefix}millpond console' prints it again"
                );
            }
            None => println!("  console     {url}"),
        }
    }
    println!("  look around: {prefix}millpond zpool status   and   {prefix}millpond zfs list");
    println!("  stop:        Ctrl-C here, or {prefix}millpond down");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_follows_the_wish_and_too_little_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(
            disk_bytes(directory.path(), Some(1 << 30)).unwrap(),
            256 << 20
        );
        let failure = disk_bytes(directory.path(), Some(100 << 20)).unwrap_err();
        assert!(failure.message.contains("at least 512 MiB"), "{failure}");
    }
}
