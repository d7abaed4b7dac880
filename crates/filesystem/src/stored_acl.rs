//! Lists of access as they are stored with a file.
//!
//! System attributes hold lists of any length. A `znode_phys_t` (ZPL versions below 5) has room for
//! 72 bytes; a longer list is in an object of its own, which is replaced with the list, in the same
//! transaction: after a crash the znode names the object of the list that it has.

use bytes::Bytes;
use format::{
    Endian, OLD_MAX_BLOCK_BYTES, OLD_MAX_BONUS_BYTES, ObjectId, ObjectType, SECTOR_BYTES,
};
use object::{NewObject, Object};
use zio::Tx;

use crate::acl::Acl;
use crate::error::{FsError, Result};
use crate::files::Files;
use crate::node::Node;
use crate::znode::{self, Attribute, OldAcl, Znode, attr, pflags};

/// A file's list of access, if it has one that can be read.
pub(crate) async fn read_acl(files: &Files, node: &Node) -> Result<Option<Acl>> {
    let corrupt = || FsError::Corrupt {
        ino: node.ino,
        what: "its list of access is damaged",
    };
    let wanted = [attr::DACL_COUNT, attr::DACL_ACES, attr::ZNODE_ACL];
    let found = files.sa.get_many(&node.object, &wanted).await?;
    let [count, aces, old] = <[_; 3]>::try_from(found).map_err(|_| corrupt())?;
    if let Some(aces) = aces {
        let count = count.and_then(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?)));
        return Acl::decode(&aces, count.unwrap_or(u64::MAX))
            .map(Some)
            .ok_or_else(corrupt);
    }
    let Some(old) = old else { return Ok(None) };
    match znode::parse_old_acl(&old).ok_or_else(corrupt)? {
        OldAcl::Embedded(acl) => Ok(Some(acl)),
        OldAcl::External {
            object,
            size_bytes,
            count,
            is_v0,
        } => {
            // The count of a list is a u16, and entries have 16 bytes or, rarely, 48.
            const EXTERNAL_BYTES_MAX: u64 = 1 << 20;
            if size_bytes > EXTERNAL_BYTES_MAX {
                return Err(corrupt());
            }
            let object = files.objset.hold(ObjectId::new(object)).await?;
            let bytes = object.read_bytes(0, size_bytes as usize).await?;
            let acl = if is_v0 {
                Acl::decode_v0(&bytes, count, Endian::Little)
            } else {
                Acl::decode(&bytes, count)
            };
            acl.map(Some).ok_or_else(corrupt)
        }
    }
}

/// The object of a file's list of access, made ready to be freed. To be called before the
/// transaction that replaces the list, or frees the file. What is no such object, as in a damaged
/// znode, is left alone.
pub(crate) async fn external_list(files: &Files, node: &Node) -> Result<Option<Object>> {
    if !node.znode().is_old {
        return Ok(None);
    }
    let stored = files.sa.get(&node.object, attr::ZNODE_ACL).await?;
    let Some(id) = stored.as_deref().and_then(znode::external_acl) else {
        return Ok(None);
    };
    let object = match files.objset.hold(id).await {
        Err(error) if error.is_not_found() => return Ok(None),
        other => other?,
    };
    if !matches!(
        object.info().object_type,
        ObjectType::ACL | ObjectType::OLDACL
    ) {
        return Ok(None);
    }
    object.prepare_free(0, u64::MAX).await?;
    Ok(Some(object))
}

/// Writes a list that is too long for an old znode into a new object.
pub(crate) async fn store_long(files: &Files, tx: &Tx, acl: &Acl) -> Result<Option<ObjectId>> {
    let Some(aces) = znode::long_aces(acl, files.version) else {
        return Ok(None);
    };
    let block_bytes = (aces.len() as u64)
        .next_multiple_of(SECTOR_BYTES)
        .min(OLD_MAX_BLOCK_BYTES);
    let new = match files.uses_fuids() {
        true => NewObject::new(ObjectType::ACL)
            .with_bonus(ObjectType::SYSACL, vec![0; OLD_MAX_BONUS_BYTES]),
        false => NewObject::new(ObjectType::OLDACL),
    };
    let new = new.with_block_bytes(block_bytes as u32);
    let object = files.objset.allocate(tx, new).await?;
    object.write(tx, 0, Bytes::from(aces)).await?;
    Ok(Some(object.id()))
}

/// Changes of mode that a list of access must follow. `external` is what [`external_list`] found.
pub(crate) async fn mode_to_store(
    files: &Files,
    tx: &Tx,
    znode: &mut Znode,
    old: Option<&Acl>,
    external: Option<Object>,
) -> Result<Vec<Attribute>> {
    /// `aclmode` values (`ZFS_ACL_*`): discard 0, groupmask 2, passthrough 3.
    const GROUPMASK: u64 = 2;
    let is_directory = znode.is_directory();
    let mode = znode.mode & 0o7777;
    let settings = files.opening.settings();
    let acl = match old {
        Some(acl) if settings.aclmode != 0 => {
            acl.with_mode(mode, is_directory, true, settings.aclmode == GROUPMASK)
        }
        _ => Acl::trivial(mode, is_directory),
    };
    znode.flags &= !(pflags::ACL_TRIVIAL
        | pflags::INHERIT_ACE
        | pflags::ACL_OBJ_ACE
        | pflags::NO_EXECS_DENIED);
    if acl.is_trivial() {
        znode.flags |= pflags::ACL_TRIVIAL;
    }
    if acl.has_inheritable() {
        znode.flags |= pflags::INHERIT_ACE;
    }
    if acl.execution_is_free() {
        znode.flags |= pflags::NO_EXECS_DENIED;
    }
    acl_to_store(files, tx, znode, &acl, external).await
}

/// Attributes that hold a list of access, as this file stores them. `external` is what
/// [`external_list`] found, and is freed.
pub(crate) async fn acl_to_store(
    files: &Files,
    tx: &Tx,
    znode: &Znode,
    acl: &Acl,
    external: Option<Object>,
) -> Result<Vec<Attribute>> {
    if !znode.is_old {
        return Ok(znode::acl_attributes(acl).to_vec());
    }
    let new = store_long(files, tx, acl).await?;
    if let Some(before) = external {
        files.objset.free(tx, before.id()).await?;
    }
    Ok(vec![(
        attr::ZNODE_ACL,
        znode::old_acl(acl, files.version, new),
    )])
}
