//! What is shared on the network, by whatever protocol: overviews of it, and of who uses it. How
//! each protocol shares is in a module of its own (`iscsi`, `nfs`).

use access::TrafficCounts;
use api::{NotShared, ShareInfo, ShareListReply, ShareTraffic};

use crate::service::Service;

/// Counts of a server, as they are told.
pub(crate) fn traffic(counts: &TrafficCounts) -> ShareTraffic {
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

impl Service {
    /// What is offered.
    pub(crate) fn offered(&self) -> Vec<ShareInfo> {
        [self.volumes.shares(&self.secrets), self.nfs.offered()].concat()
    }

    /// What is meant to be offered and is not.
    pub(crate) fn not_shared(&self) -> Vec<NotShared> {
        [self.volumes.not_shared(), self.nfs.not_shared()].concat()
    }

    /// `millpond shares`: what is offered, and what clients have done.
    pub(crate) fn share_list(&self) -> ShareListReply {
        let mut shares = self.volumes.in_use(&self.secrets);
        shares.extend(self.nfs.in_use());
        shares.sort_by(|one, other| {
            let key = |of: &api::ShareReport| (of.share.dataset.clone(), of.share.protocol);
            key(one).cmp(&key(other))
        });
        ShareListReply {
            shares,
            not_shared: self.not_shared(),
        }
    }
}
