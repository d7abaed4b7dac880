//! `lsattr`, `chattr` and projects: the ioctls for inode flags (include/uapi/linux/fs.h), which the
//! kernel passes on for them; and OpenZFS's own two for the attributes of DOS
//! (`ZFS_IOC_GETDOSFLAGS`, `ZFS_IOC_SETDOSFLAGS`, include/sys/fs/zfs.h; `zpl_ioctl`,
//! module/os/linux/zfs/zpl_file.c).

use filesystem::{Caller, DOS_FLAGS, SetAttributes, pflags};
use fuser::Errno;

use crate::convert::errno;
use crate::nodes::File;

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_EXTENDED: u32 = 0x801c_581f;
const SET_EXTENDED: u32 = 0x401c_5820;
const GET_GENERATION: u32 = 0x8008_7601;
const GET_DOS: u32 = 0x8008_8301;
pub(crate) const SET_DOS: u32 = 0x4008_8302;
/// Bytes of `struct fsxattr`: flags, extent size, extents, project, COW extent size, padding.
const EXTENDED_BYTES: usize = 28;

/// Flags of `FS_IOC_GETFLAGS` (`FS_*_FL`), of `FS_IOC_FSGETXATTR` (`FS_XFLAG_*`), and ours.
const FLAGS: [(u32, u32, u64); 4] = [
    (0x10, 0x8, pflags::IMMUTABLE),
    (0x20, 0x10, pflags::APPENDONLY),
    (0x40, 0x80, pflags::NODUMP),
    (0x2000_0000, 0x200, pflags::PROJINHERIT),
];

fn word(input: &[u8], at: usize) -> Result<u32, Errno> {
    let bytes = input
        .get(at..)
        .and_then(|rest| rest.first_chunk::<4>())
        .ok_or(Errno::EINVAL)?;
    Ok(u32::from_le_bytes(*bytes))
}

/// The flags of ours that `bits` stand for. Others cannot be set.
fn ours(bits: u32, extended: bool) -> Result<u64, Errno> {
    let (mut flags, mut known) = (0, 0);
    for (plain, other, flag) in FLAGS {
        let bit = if extended { other } else { plain };
        known |= bit;
        flags |= if bits & bit != 0 { flag } else { 0 };
    }
    if bits & !known != 0 {
        Err(Errno::EOPNOTSUPP)
    } else {
        Ok(flags)
    }
}

fn theirs(flags: u64, extended: bool) -> u32 {
    FLAGS
        .into_iter()
        .filter(|(_, _, flag)| flags & flag != 0)
        .fold(0, |bits, (plain, other, _)| {
            bits | if extended { other } else { plain }
        })
}

/// Whether it is an ioctl that [`ioctl`] understands.
pub(crate) fn is_known(command: u32) -> bool {
    matches!(
        command,
        GET_FLAGS | SET_FLAGS | GET_EXTENDED | SET_EXTENDED | GET_GENERATION | GET_DOS | SET_DOS
    )
}

/// A change of flags to these attributes of DOS, bits as they are stored.
fn dos_change(input: &[u8], now: u64) -> Result<SetAttributes, Errno> {
    let low = u64::from(word(input, 0)?);
    let wanted = low | u64::from(word(input, 4)?) << 32;
    if wanted & !DOS_FLAGS != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // What says that a file is a reparse point is not for programs to change.
    if (wanted ^ now) & pflags::REPARSE != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(SetAttributes {
        flags: Some(wanted),
        flags_among: Some(DOS_FLAGS),
        ..Default::default()
    })
}

/// Answers an ioctl.
pub(crate) async fn ioctl(
    file: &File,
    command: u32,
    input: &[u8],
    caller: Caller,
) -> Result<Vec<u8>, Errno> {
    let failed = |error: filesystem::FsError| errno(&error);
    let now = file.filesystem.attributes(file.ino).await.map_err(failed)?;
    let set = match command {
        GET_FLAGS => return Ok(theirs(now.flags, false).to_le_bytes().to_vec()),
        GET_GENERATION => return Ok((now.generation as u32).to_le_bytes().to_vec()),
        GET_DOS => return Ok((now.flags & DOS_FLAGS).to_le_bytes().to_vec()),
        SET_DOS => dos_change(input, now.flags)?,
        GET_EXTENDED => {
            let mut out = vec![0; EXTENDED_BYTES];
            out[..4].copy_from_slice(&theirs(now.flags, true).to_le_bytes());
            let project = now.project.unwrap_or(0) as u32;
            out[12..16].copy_from_slice(&project.to_le_bytes());
            return Ok(out);
        }
        SET_FLAGS => SetAttributes {
            flags: Some(ours(word(input, 0)?, false)?),
            ..Default::default()
        },
        SET_EXTENDED => {
            let project = u64::from(word(input, 12)?);
            SetAttributes {
                flags: Some(ours(word(input, 0)?, true)?),
                project: (now.project.unwrap_or(0) != project).then_some(project),
                ..Default::default()
            }
        }
        _ => return Err(Errno::ENOTTY),
    };
    // As ext4: flags that protect are root's to change, the rest the owner's.
    let protecting = pflags::IMMUTABLE | pflags::APPENDONLY;
    let linux = FLAGS.into_iter();
    let linux = linux.fold(0_u64, |all, (_, _, flag)| all | flag);
    let among = set.flags_among.unwrap_or(linux);
    let changed = (now.flags ^ set.flags.unwrap_or(now.flags)) & among;
    if caller.uid != 0 && changed & protecting != 0 {
        return Err(Errno::EPERM);
    }
    if caller.uid != 0 && caller.uid != now.uid {
        return Err(match command {
            SET_DOS => Errno::EACCES,
            _ => Errno::EPERM,
        });
    }
    // The others may be changed meanwhile by who may change them.
    let set = SetAttributes {
        flags_among: Some(changed),
        ..set
    };
    file.filesystem
        .set_attributes(file.ino, &set, caller)
        .await
        .map_err(failed)?;
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_survive_both_ways_and_unknown_ones_are_refused() {
        for (plain, extended, flag) in FLAGS {
            assert_eq!(ours(plain, false).unwrap(), flag);
            assert_eq!(theirs(flag, false), plain);
            assert_eq!(ours(extended, true).unwrap(), flag);
            assert_eq!(theirs(flag, true), extended);
        }
        assert!(ours(0x4, false).is_err());
        assert!(ours(0x1, true).is_err());
        assert!(word(&[1, 2, 3], 0).is_err());
    }

    #[test]
    fn attributes_of_dos_are_changed_but_what_is_a_reparse_point_stays() {
        let change = |wanted: u64, now: u64| dos_change(&wanted.to_le_bytes(), now);
        let (reparse, hidden) = (pflags::REPARSE, pflags::HIDDEN);
        let set = change(reparse | hidden, reparse).unwrap();
        assert_eq!(set.flags, Some(reparse | hidden));
        assert_eq!(set.flags_among, Some(DOS_FLAGS));
        assert_eq!(change(hidden, reparse).unwrap_err(), Errno::EINVAL);
        assert_eq!(change(reparse, hidden).unwrap_err(), Errno::EINVAL);
        for unknown in [1, pflags::OPAQUE, pflags::PROJINHERIT] {
            assert_eq!(change(unknown, 0).unwrap_err(), Errno::EOPNOTSUPP);
        }
        assert!(dos_change(&[0; 7], 0).is_err());
    }
}
