//! `zfs create`, and what a volume reserves.

use device::BoxFuture;
use std::sync::Arc;

use api::{EventKind, Failure, FailureKind, ZfsCreate, ZfsCreateReply};
use dataset::DatasetError;
use filesystem::ZplInit;
use volume::ZvolInit;

use crate::look;
use crate::owners::OwnedQuota;
use crate::properties::by_full_names;
use crate::zpool::typed;
use service::error::from_dataset;
use service::opened::{self, place_of_new};
use service::pools::OpenPool;
use service::reports;
use serving::Serving;
use serving::iscsi::ISCSI_PROPERTY;
use serving::nfs::NFS_PROPERTY;
use serving::smb::SMB_PROPERTY;

/// Block size of a volume that is not told one (`ZVOL_DEFAULT_BLOCKSIZE`, OpenZFS 2.2 on).
pub(crate) const VOLUME_BLOCK_BYTES: u64 = 16 << 10;

/// What fills new filesystems: they belong to whom this process runs as.
pub fn new_filesystem() -> ZplInit {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    ZplInit::owned_by(uid.as_raw(), gid.as_raw())
}

/// Who makes a dataset.
#[derive(Clone, Copy, Debug)]
pub struct Maker {
    /// User and group; none where they do everything.
    pub ids: Option<(u32, u32)>,
}

impl Maker {
    /// The one with these numbers of user and group; none where it is root, or whoever may do all.
    pub fn of(ids: Option<(u32, u32)>) -> Self {
        Self { ids }
    }

    /// What fills a new filesystem: it belongs to its maker (`zfs_create_fs`).
    fn filesystem(self) -> ZplInit {
        match self.ids {
            Some((uid, gid)) => ZplInit::owned_by(uid, gid),
            None => new_filesystem(),
        }
    }

    /// Gives the maker what makers are given there.
    pub async fn note(self, open: &OpenPool, name: &str) -> Result<(), Failure> {
        let (uid, _) = self.ids.unwrap_or((0, 0));
        let dsl = open.pool.dsl();
        let noted = dsl.delegation().note_maker(name, uid.into()).await;
        let doing = format!("cannot set permissions on '{name}'");
        noted.map_err(|error| from_dataset(&doing, &error))
    }
}

/// Space that a volume of this size may come to need, metadata included
/// (`zvol_volsize_to_reservation` and `volsize_from_vdevs`, lib/libzfs/libzfs_dataset.c): on RAID-Z
/// a block may take more than its share of what a block of 128 KiB takes.
pub fn volume_reservation(open: &OpenPool, size_bytes: u64, block_bytes: u64, copies: u64) -> u64 {
    /// Indirect blocks are 128 KiB and hold this many pointers.
    const POINTERS: u64 = 1024;
    const INDIRECT_BYTES: u64 = 128 << 10;
    const TYPICAL_BYTES: u64 = 128 << 10;
    let mut blocks = size_bytes / block_bytes;
    let mut data = 0;
    for top in open.pool.pipeline().tree().tops() {
        let Some(geometry) = top.geometry().filter(|geometry| geometry.parity() > 0) else {
            continue;
        };
        let typical = u128::from(geometry.asize(TYPICAL_BYTES) >> 9).max(1);
        let sectors = u128::from(blocks) * u128::from(geometry.asize(block_bytes)) / typical;
        let bytes = sectors * u128::from(TYPICAL_BYTES >> 9);
        data = data.max(u64::try_from(bytes).unwrap_or(u64::MAX));
    }
    if data == 0 {
        data = blocks.saturating_mul(block_bytes);
    }
    // Levels 0 to 6 of the dnodes' own tree, then the volume's indirect blocks.
    let mut metadata = 7u64;
    while blocks > 1 {
        blocks = blocks.div_ceil(POINTERS);
        metadata += blocks;
    }
    let metadata = metadata
        .saturating_mul((copies + 1).min(3))
        .saturating_mul(INDIRECT_BYTES);
    data.saturating_mul(copies).saturating_add(metadata)
}

/// Checks how a new dataset is to be shared.
pub fn check_shares(
    serving: &Serving,
    doing: &str,
    typed: &[(String, String)],
) -> Result<(), Failure> {
    for (name, value) in typed {
        if name == ISCSI_PROPERTY {
            serving.volumes.check_share(value)?;
        }
        let checked = match name.as_str() {
            NFS_PROPERTY => serving.nfs.check_share(value),
            SMB_PROPERTY => serving::smb::check_property(value),
            _ => Ok(()),
        };
        // OpenZFS's words (`zfs_valid_proplist`, lib/libzfs/libzfs_dataset.c), then the option.
        checked.map_err(|why| {
            let head = format!("{doing}: '{name}' cannot be set to invalid options");
            Failure::new(why.kind, format!("{head}\n{}", why.message))
        })?;
    }
    Ok(())
}

/// `zfs create`.
pub fn zfs_create<'a>(
    serving: &'a Serving,
    mut call: ZfsCreate,
    maker: Maker,
) -> BoxFuture<'a, Result<ZfsCreateReply, Failure>> {
    Box::pin(async move {
        let typed = by_full_names(typed(&call.properties));
        call.properties = typed.iter().cloned().collect();
        let doing = match call.dry_run {
            true => format!("cannot verify '{}'", call.name),
            false => format!("cannot create '{}'", call.name),
        };
        opened::check_new_name(&doing, &call.name)?;
        let open = place_of_new(&serving.pools, &doing, &call.name, call.parents).await?;
        let _admin = open.admin.lock().await;
        let failed = |error: DatasetError| match &error {
            // Whatever quota or reservation it is that does not fit (`zfs_create`,
            // lib/libzfs/libzfs_dataset.c).
            DatasetError::InvalidProperty { property, reason }
                if reason.starts_with("size is ") =>
            {
                let message = format!("{doing}: out of space\n'{property}': {reason}");
                Failure::new(FailureKind::NoSpace, message)
            }
            _ => from_dataset(&doing, &error),
        };
        let dsl = open.pool.dsl();
        let kind = match call.volume_size_bytes {
            Some(_) => dataset::DatasetKind::Volume,
            None => dataset::DatasetKind::Filesystem,
        };
        // Before anything that is wrong with its properties.
        let found = dsl.directories().lookup(&call.name).await.ok();
        let is_made = (found.as_ref()).is_some_and(|found| call.parents && found.kind == kind);
        let exists = || {
            let message = format!("{doing}: dataset already exists");
            Failure::new(FailureKind::Exists, message)
        };
        // A volume's are looked at first, for what it reserves.
        let is_volume = call.volume_size_bytes.is_some();
        if found.is_some() && !is_made && !is_volume {
            return Err(exists());
        }
        check_shares(serving, &doing, &typed)?;
        let (quotas, properties) = OwnedQuota::split(&doing, &typed)?;
        if !quotas.is_empty() && call.volume_size_bytes.is_some() {
            let message = format!("{doing}: only filesystems have quotas of users and groups");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let planned = match call.volume_size_bytes {
            Some(size_bytes) => plan_volume(&open, &call, size_bytes, properties)?,
            None => properties,
        };
        // The checks first: parents of what cannot be made are not made either.
        dataset::check_new_properties(&planned, kind).map_err(failed)?;
        let mut reply = ZfsCreateReply {
            ancestors: false,
            exists: false,
            properties: planned.iter().cloned().collect(),
            warnings: Vec::new(),
        };
        let number = |wanted: &str| {
            let found = planned.iter().find(|(name, _)| name == wanted);
            found
                .and_then(|(_, text)| dataset::props::parse_size(text).ok())
                .unwrap_or(0)
        };
        if call.volume_size_bytes.is_some() {
            let tree = reports::tree(&open.pool.status());
            reply.warnings = look::at_volume(&tree, number("volsize"), number("volblocksize"));
        }
        // The usual block size is not worth a word.
        if !call.properties.contains_key("volblocksize") {
            reply.properties.shift_remove("volblocksize");
        }
        reply
            .properties
            .extend(quotas.iter().map(OwnedQuota::as_typed));
        reply.ancestors = call.parents;
        if found.is_some() && !is_made {
            return Err(exists());
        }
        if is_made {
            reply.ancestors = false;
            reply.exists = true;
            return Ok(reply);
        }
        if call.dry_run {
            return Ok(reply);
        }
        let key = crate::keys::new_key(&doing, call.key.as_ref(), &planned, None)?;
        if call.parents {
            make_parents(serving, &open, &call.name, &doing, call.parents_unmounted).await?;
        }
        if call.volume_size_bytes.is_some() {
            let block_bytes = u32::try_from(number("volblocksize")).unwrap_or(u32::MAX);
            let init = ZvolInit::new(number("volsize"), block_bytes);
            dsl.datasets()
                .create_with_key(&call.name, &planned, Arc::new(init), key)
                .await
                .map_err(failed)?;
        } else {
            dsl.datasets()
                .create_with_key(&call.name, &planned, Arc::new(maker.filesystem()), key)
                .await
                .map_err(failed)?;
        }
        maker.note(&open, &call.name).await?;
        crate::zpool::log_command(&open.pool, &call.command).await;
        serving.events.tell(EventKind::DatasetsCreated {
            names: vec![call.name.clone()],
        });
        let after = async {
            if call.volume_size_bytes.is_some() {
                return serving.volumes.open_volume(&open, &call.name).await;
            }
            crate::owners::set_owned_quotas(&serving.pools, &open, &call.name, &quotas).await?;
            if call.no_mount {
                Ok(())
            } else {
                crate::zfs::mount_created(serving, &open, &call.name).await
            }
        };
        match after.await {
            Ok(()) => Ok(reply),
            Err(failure) => Err(Failure::new(
                failure.kind,
                format!("'{}' was created, but: {failure}", call.name),
            )),
        }
    })
}

/// Makes the filesystems above a name that are missing.
pub async fn make_parents(
    serving: &Serving,
    open: &OpenPool,
    name: &str,
    doing: &str,
    unmounted: bool,
) -> Result<(), Failure> {
    let dsl = open.pool.dsl();
    // `-pp`: they are never mounted (`makeprops_parents`, cmd/zfs/zfs_main.c).
    let properties: &[(String, String)] = match unmounted {
        true => &[("canmount".into(), "off".into())],
        false => &[],
    };
    for (end, _) in name.match_indices('/') {
        let parent = &name[..end];
        if dsl.directories().lookup(parent).await.is_err() {
            dsl.datasets()
                .create(parent, properties, Arc::new(new_filesystem()))
                .await
                .map_err(|error| from_dataset(doing, &error))?;
            crate::zfs::mount_created(serving, open, parent).await?;
        }
    }
    Ok(())
}

/// The properties that a new volume is made with: its sizes, and what it reserves.
fn plan_volume(
    open: &OpenPool,
    call: &ZfsCreate,
    size_bytes: u64,
    mut properties: Vec<(String, String)>,
) -> Result<Vec<(String, String)>, Failure> {
    let doing = format!("cannot create '{}'", call.name);
    let invalid = |what: &str| Failure::new(FailureKind::Invalid, format!("{doing}: {what}"));
    let given = |properties: &[(String, String)], wanted: &str| {
        let found = properties.iter().rev().find(|(name, _)| name == wanted);
        found.map(|(_, text)| text.clone())
    };
    let block_bytes = match given(&properties, "volblocksize") {
        Some(text) => dataset::props::parse_size(&text)
            .ok()
            .filter(|size| size.is_power_of_two() && (512..=16 << 20).contains(size))
            .ok_or_else(|| invalid("'volblocksize' must be power of 2 from 512B to 16M"))?,
        None => VOLUME_BLOCK_BYTES,
    };
    if size_bytes == 0 {
        return Err(invalid("volume size cannot be zero"));
    }
    let size_bytes = size_bytes
        .checked_next_multiple_of(block_bytes)
        .filter(|size| i64::try_from(*size).is_ok())
        .ok_or_else(|| invalid("'volsize' is too large"))?;
    let copies = given(&properties, "copies")
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    properties.retain(|(name, _)| name != "volblocksize" && name != "volsize");
    properties.push(("volsize".into(), size_bytes.to_string()));
    properties.push(("volblocksize".into(), block_bytes.to_string()));
    let reservation = volume_reservation(open, size_bytes, block_bytes, copies);
    let has_one = given(&properties, "refreservation").is_some();
    for (name, text) in &mut properties {
        if name == "refreservation" && text == "auto" {
            *text = reservation.to_string();
        }
    }
    if !call.sparse && !has_one {
        properties.push(("refreservation".into(), reservation.to_string()));
    }
    Ok(properties)
}
