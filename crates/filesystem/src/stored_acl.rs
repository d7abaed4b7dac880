//! Lists of access as they are stored with a file.

use format::{Endian, ObjectId};

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
            const EXTERNAL_BYTES_MAX: u64 = 128 << 10;
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

/// Changes of mode that a list of access must follow.
pub(crate) fn mode_to_store(files: &Files, znode: &mut Znode, old: Option<&Acl>) -> Vec<Attribute> {
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
    acl_to_store(znode, &acl, files.version)
}

/// Attributes that hold a list of access, as this file stores them.
pub(crate) fn acl_to_store(znode: &Znode, acl: &Acl, version: u64) -> Vec<Attribute> {
    if znode.is_old {
        vec![(attr::ZNODE_ACL, znode::old_acl(acl, version))]
    } else {
        znode::acl_attributes(acl).to_vec()
    }
}
