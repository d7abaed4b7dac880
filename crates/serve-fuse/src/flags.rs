//! `lsattr`, `chattr` and projects: the ioctls for inode flags (include/uapi/linux/fs.h), which the
//! kernel passes on for them.

use filesystem::{Caller, SetAttributes, pflags};
use fuser::Errno;

use crate::convert::errno;
use crate::nodes::File;

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_EXTENDED: u32 = 0x801c_581f;
const SET_EXTENDED: u32 = 0x401c_5820;
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
    matches!(command, GET_FLAGS | SET_FLAGS | GET_EXTENDED | SET_EXTENDED)
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
    let changed = now.flags ^ set.flags.unwrap_or(now.flags);
    if caller.uid != 0 && (changed & protecting != 0 || caller.uid != now.uid) {
        return Err(Errno::EPERM);
    }
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
        assert!(word(&[1, 2, 3], 0).is_err());
    }
}
