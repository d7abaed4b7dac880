//! What is shared on the network, by whatever protocol: overviews of it and of who uses it, and
//! `zfs share` and `zfs unshare`. How each protocol shares is in a module of its own (`iscsi`,
//! `nfs`, `smb`).
//!
//! Filesystems are shared as their properties say. `zfs unshare` ends a share until `zfs share`,
//! `zfs mount`, a new value of the property, or the next import ([`Withheld`]); so does
//! `zfs unmount`, though NFS needs no mount.

use std::collections::BTreeSet;

use access::TrafficCounts;
use api::{
    Empty, Failure, FailureKind, NotShared, Protocol, ShareInfo, ShareListReply, ShareTraffic,
    ZfsShare, ZfsUnshare,
};
use parking_lot::Mutex;

use crate::Serving;
use crate::mounts::is_at_or_below;
use crate::place::{Place, place, wanted_mounts};
use crate::smb;
use service::error::all_done;
use service::opened::{Takes, opened};
use service::pools::OpenPool;

/// Filesystems whose shares somebody ended by hand, and by which protocol.
#[derive(Default)]
pub struct Withheld(Mutex<BTreeSet<(String, Protocol)>>);

impl Withheld {
    /// This one is not to be shared by this protocol.
    pub fn add(&self, name: &str, protocol: Protocol) {
        self.0.lock().insert((name.to_owned(), protocol));
    }

    /// Whether it is withheld.
    pub fn has(&self, name: &str, protocol: Protocol) -> bool {
        self.0.lock().contains(&(name.to_owned(), protocol))
    }

    /// Lets what is at and below a dataset be shared again, by this protocol or by all.
    pub fn forget(&self, top: &str, protocol: Option<Protocol>) {
        let is_meant = |by: Protocol| protocol.is_none_or(|protocol| protocol == by);
        let mut withheld = self.0.lock();
        withheld.retain(|(name, by)| !(is_at_or_below(name, top) && is_meant(*by)));
    }

    fn forget_one(&self, name: &str) {
        self.0.lock().retain(|(other, _)| other != name);
    }

    /// Datasets at and below `from` have other names.
    pub fn renamed(&self, from: &str, to: &str) {
        let mut withheld = self.0.lock();
        let renamed = std::mem::take(&mut *withheld).into_iter();
        *withheld = renamed
            .map(|(name, by)| match is_at_or_below(&name, from) {
                true => (format!("{to}{}", &name[from.len()..]), by),
                false => (name, by),
            })
            .collect();
    }
}

/// Counts of a server, as they are told.
pub fn traffic(counts: &TrafficCounts) -> ShareTraffic {
    let nanoseconds =
        |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    ShareTraffic {
        reads: counts.reads,
        read_bytes: counts.read_bytes,
        read_ns: nanoseconds(counts.read_time),
        writes: counts.writes,
        written_bytes: counts.written_bytes,
        write_ns: nanoseconds(counts.write_time),
        others: counts.others,
        failures: counts.failures,
    }
}

impl Serving {
    /// What is offered.
    pub fn offered(&self) -> Vec<ShareInfo> {
        [self.volumes.shares(), self.nfs.offered(), self.smb.shares()].concat()
    }

    /// What is meant to be offered and is not.
    pub fn not_shared(&self) -> Vec<NotShared> {
        [
            self.volumes.not_shared(),
            self.nfs.not_shared(),
            self.smb.not_shared(),
        ]
        .concat()
    }

    /// `millpond shares`: what is offered, and what clients have done.
    pub async fn share_list(&self) -> ShareListReply {
        let mut shares = self.volumes.in_use();
        shares.extend(self.nfs.in_use());
        shares.extend(self.smb.in_use().await);
        shares.sort_by(|one, other| {
            let (one, other) = (&one.share, &other.share);
            (&one.dataset, one.protocol).cmp(&(&other.dataset, other.protocol))
        });
        ShareListReply {
            shares,
            not_shared: self.not_shared(),
        }
    }

    /// Lets filesystems at and below a dataset be shared again that were not to be, and shares
    /// them, by this protocol or by all. Answers what cannot be shared.
    pub async fn share_again(
        &self,
        open: &OpenPool,
        top: &str,
        protocol: Option<Protocol>,
    ) -> Vec<String> {
        self.withheld.forget(top, protocol);
        let mut warnings = Vec::new();
        if protocol.is_none_or(|protocol| protocol == Protocol::Nfs) {
            warnings.extend(self.follow_nfs(open, top).await);
        }
        // Also where NFS alone is meant: it says whether Samba's clients may keep copies.
        let by_smb = self.follow_smb(open, top).await;
        if protocol.is_none_or(|protocol| protocol == Protocol::Smb) {
            warnings.extend(by_smb);
        }
        warnings
    }

    /// `zfs share`.
    pub async fn zfs_share(&self, call: ZfsShare) -> Result<Empty, Failure> {
        let invalid = |why| Failure::new(FailureKind::Invalid, why);
        let warnings = match &call.name {
            Some(name) => {
                let open = self.pools.of_dataset(name)?;
                let _admin = open.admin.lock().await;
                opened(&open, name, Takes::Filesystem).await?;
                self.share_one(&open, name).await?
            }
            None => {
                let mut warnings = Vec::new();
                for open in self.pools.all() {
                    let _admin = open.admin.lock().await;
                    if call.protocol != Some(Protocol::Nfs) {
                        warnings.extend(self.mount_for_smb(&open).await);
                    }
                    let pool = open.pool.name();
                    warnings.extend(self.share_again(&open, &pool, call.protocol).await);
                }
                warnings
            }
        };
        let failures: Vec<Failure> = warnings.into_iter().map(invalid).collect();
        all_done(&failures)
    }

    /// Mounts what wants to be mounted and is to be shared by SMB (`share_mount_one`,
    /// cmd/zfs/zfs_main.c). NFS needs no mount. Answers what failed.
    async fn mount_for_smb(&self, open: &OpenPool) -> Vec<String> {
        let (mut wanted, mut failures) = wanted_mounts(open).await;
        wanted.sort();
        for (path, name) in wanted {
            if self.mounts.mountpoint(&name).is_none() && smb::is_meant(open, &name).await {
                let mounted = self.mount_at(open, &name, &path, false, &[]).await;
                failures.extend(mounted.err().map(|failure| failure.message));
            }
        }
        failures
    }

    /// Shares one filesystem by all protocols that its properties name. Answers those by which it
    /// could not be shared.
    async fn share_one(&self, open: &OpenPool, name: &str) -> Result<Vec<String>, Failure> {
        let refused = |why: &str| {
            let message = format!("cannot share '{name}': {why}");
            Err(Failure::new(FailureKind::Invalid, message))
        };
        self.withheld.forget_one(name);
        let mut is_for_smb = smb::is_meant(open, name).await && !open.is_locked(name).await;
        let was_shared_by_smb = self.smb.is_shared(name);
        if is_for_smb && self.mounts.mountpoint(name).is_none() {
            match place(open, name).await? {
                (Place::At(path), _) => self.mount_at(open, name, &path, false, &[]).await?,
                (Place::Nowhere(_), _) => is_for_smb = false,
            }
        }
        let was_shared_by_nfs = self.nfs.shares().is_served(name);
        let by_nfs = self.wanted_share(open, name).await;
        let is_for_nfs = !matches!(by_nfs, Ok(None));
        if !is_for_nfs && !is_for_smb {
            // In the words of `share_mount_one` (cmd/zfs/zfs_main.c).
            return refused(
                "legacy share\nset 'sharenfs' or 'sharesmb', and 'mountpoint', so that it is \
                 shared, and load its key if it has one",
            );
        }
        if (!is_for_nfs || was_shared_by_nfs) && (!is_for_smb || was_shared_by_smb) {
            return refused("filesystem already shared");
        }
        let mut warnings = Vec::new();
        if is_for_nfs && let Err(why) = self.follow_one(open, name).await {
            warnings.push(format!("cannot share '{name}' by NFS: {why}"));
        }
        if is_for_smb {
            self.share_by_smb(open, name).await;
            self.smb.settle().await;
            let not_shared = self.smb.not_shared().into_iter();
            let not_shared = not_shared.filter(|refused| refused.dataset == name);
            warnings.extend(
                not_shared.map(|refused| format!("cannot share '{name}' by SMB: {}", refused.why)),
            );
        }
        Ok(warnings)
    }

    /// `zfs unshare`.
    pub async fn zfs_unshare(&self, call: ZfsUnshare) -> Result<Empty, Failure> {
        let Some(word) = &call.name else {
            for open in self.pools.all() {
                let _admin = open.admin.lock().await;
                let pool = open.pool.name();
                let of_pool = |mut names: Vec<String>| {
                    names.retain(|name| is_at_or_below(name, &pool));
                    names
                };
                if call.protocol != Some(Protocol::Smb) {
                    let names = of_pool(self.nfs.shares().datasets());
                    self.withhold_nfs(&names).await;
                }
                if call.protocol != Some(Protocol::Nfs) {
                    let names = of_pool(self.smb.shared_datasets());
                    self.withhold_smb(&names).await;
                }
            }
            return Ok(Empty {});
        };
        let by_nfs = self.nfs.shares().report().into_iter();
        let by_nfs = by_nfs.map(|report| (report.dataset, report.path));
        let by_smb = self.smb.shared_paths().into_iter();
        let found = by_nfs
            .chain(by_smb)
            .find(|(dataset, path)| dataset == word || path == word);
        let Some((name, _)) = found else {
            if !word.starts_with('/') {
                let open = self.pools.of_dataset(word)?;
                opened(&open, word, Takes::Filesystem).await?;
                let by_nfs = self.wanted_share(&open, word).await;
                if matches!(by_nfs, Ok(None)) && !smb::is_meant(&open, word).await {
                    let message = format!(
                        "cannot unshare '{word}': legacy share\n\
                         use exports(5) or smb.conf(5) to unshare this filesystem"
                    );
                    return Err(Failure::new(FailureKind::Invalid, message));
                }
            }
            // In the words of `unshare_unmount` (cmd/zfs/zfs_main.c).
            let message = format!("cannot unshare '{word}': not currently shared");
            return Err(Failure::new(FailureKind::NotFound, message));
        };
        let open = self.pools.of_dataset(&name)?;
        let _admin = open.admin.lock().await;
        self.withhold_nfs(std::slice::from_ref(&name)).await;
        self.withhold_smb(std::slice::from_ref(&name)).await;
        Ok(Empty {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_withheld_follows_its_dataset_and_comes_back_by_protocol() {
        let withheld = Withheld::default();
        for by in [Protocol::Nfs, Protocol::Smb] {
            withheld.add("tank/a", by);
        }
        withheld.add("tank/ab", Protocol::Nfs);
        withheld.renamed("tank/a", "tank/c");
        assert!(!withheld.has("tank/a", Protocol::Nfs) && withheld.has("tank/c", Protocol::Nfs));
        withheld.forget("tank/c", Some(Protocol::Nfs));
        assert!(!withheld.has("tank/c", Protocol::Nfs) && withheld.has("tank/c", Protocol::Smb));
        assert!(withheld.has("tank/ab", Protocol::Nfs));
        withheld.forget("tank", None);
        assert!(withheld.0.lock().is_empty());
    }
}
