//! Whether labels have room for a configuration.
//!
//! A label has 112 KiB for the pairs of the pool and the tree of the device's top-level vdev, with
//! the paths of all its devices. Whoever makes one of these longer asks here before anything is
//! written: what does not fit is refused (`vdev_label_init`, module/zfs/vdev_label.c:
//! ENAMETOOLONG).
//!
//! What the pool itself adds later (that a device is offline, numbers of objects) fits into
//! [`RESERVE_BYTES`] where few devices are concerned at a time. Beyond, the labels keep the
//! configuration that they have, as `vdev_label_sync` leaves them alone then: an import reads which
//! devices there are, and the way to the MOS, which has the newest. No transaction group fails for
//! it.

use format::{Eck, LABEL_CONFIG_BYTES, NvEncoding, NvList};
use spa::config::PoolPairs;
use vdev::{Scope, VdevTree};

use crate::PoolError;

/// Room for what changes without a question, in bytes.
const RESERVE_BYTES: usize = 4096;
/// Longest configuration, in bytes.
const LABEL_BYTES_MAX: usize = LABEL_CONFIG_BYTES - Eck::BYTES;

/// What [`check`] finds too long, and by how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TooLong {
    bytes: usize,
    max_bytes: usize,
}

impl std::fmt::Display for TooLong {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "the labels of its devices would have to hold {} bytes and have room for {}; use \
             shorter paths, or fewer devices in a vdev",
            self.bytes, self.max_bytes
        )
    }
}

fn packed_bytes(list: &NvList) -> Result<usize, PoolError> {
    Ok(list.encode(NvEncoding::Xdr)?.len())
}

/// The first that is too long of the labels of these top-level vdevs.
fn too_long(
    pairs: &NvList,
    tops: &[NvList],
    reserve_bytes: usize,
) -> Result<Option<TooLong>, PoolError> {
    let pairs_bytes = packed_bytes(pairs)? + reserve_bytes;
    for top in tops {
        let bytes = pairs_bytes + packed_bytes(top)?;
        if bytes > LABEL_BYTES_MAX {
            return Ok(Some(TooLong {
                bytes,
                max_bytes: LABEL_BYTES_MAX,
            }));
        }
    }
    Ok(None)
}

fn tops_of(tree: &VdevTree) -> Vec<NvList> {
    let tops = tree.tops();
    tops.iter().map(|top| top.to_config(Scope::Label)).collect()
}

/// Refuses pairs and top-level vdevs that labels have no room for.
///
/// # Errors
/// [`PoolError::BadVdevs`].
pub(crate) fn check(pairs: &PoolPairs, tops: &[NvList]) -> Result<(), PoolError> {
    match too_long(&pairs.label_config(), tops, RESERVE_BYTES)? {
        Some(too_long) => Err(PoolError::BadVdevs {
            why: too_long.to_string(),
        }),
        None => Ok(()),
    }
}

/// Refuses one device more in the vdev of this configuration.
///
/// # Errors
/// [`PoolError::BadVdevs`].
pub(crate) fn check_attach(pairs: &PoolPairs, top: &NvList, new: &NvList) -> Result<(), PoolError> {
    let more_bytes = RESERVE_BYTES + packed_bytes(new)?;
    match too_long(&pairs.label_config(), std::slice::from_ref(top), more_bytes)? {
        Some(too_long) => Err(PoolError::BadVdevs {
            why: too_long.to_string(),
        }),
        None => Ok(()),
    }
}

/// Refuses a comment or the like, as part of these pairs, that labels have no room for.
///
/// # Errors
/// [`PoolError::BadProperty`].
pub(crate) fn check_property(
    pairs: &PoolPairs,
    tree: &VdevTree,
    name: &str,
    value: &str,
) -> Result<(), PoolError> {
    match too_long(&pairs.label_config(), &tops_of(tree), RESERVE_BYTES)? {
        Some(too_long) => Err(PoolError::BadProperty {
            property: name.to_owned(),
            value: value.to_owned(),
            why: too_long.to_string(),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::NvValue;

    fn raidz(path_bytes: usize) -> NvList {
        let leaf = |id: u64| {
            let mut leaf = NvList::new();
            let path = format!("/{id:0>path_bytes$}");
            leaf.set("type", "file").set("id", id).set("path", path);
            leaf
        };
        let mut top = NvList::new();
        top.set("type", "raidz");
        top.set("children", NvValue::ListArray((0..60).map(leaf).collect()));
        top
    }

    #[test]
    fn long_paths_in_a_wide_vdev_are_refused() {
        let mut pairs = PoolPairs {
            name: "tank".into(),
            ..PoolPairs::default()
        };
        assert!(check(&pairs, &[raidz(100), raidz(1000)]).is_ok());
        let refused = check(&pairs, &[raidz(100), raidz(3000)]).expect_err("too long");
        assert!(refused.to_string().contains("shorter paths"), "{refused}");
        let leaf = raidz(3000).lists("children").expect("leaves")[0].clone();
        assert!(check_attach(&pairs, &raidz(1600), &leaf).is_ok());
        assert!(check_attach(&pairs, &raidz(1700), &leaf).is_err());
        pairs.compatibility = Some("x".repeat(40_000));
        assert!(check(&pairs, &[raidz(1000)]).is_ok());
        assert!(check(&pairs, &[raidz(1200)]).is_err());
    }
}
