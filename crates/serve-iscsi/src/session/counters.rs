//! What the commands of a session count as.

use super::tasks::Expected;
use crate::scsi::status;
use crate::target::Nexus;
use access::Traffic;
use std::sync::Arc;

/// Counters of a nexus by unit, looked up once.
#[derive(Debug, Default)]
pub(super) struct Counters(Vec<(u16, Arc<Traffic>)>);

impl Counters {
    /// Counts a command that has ended, having moved so many bytes, for its unit and the portal by
    /// which it came.
    pub(super) fn count(
        &mut self,
        nexus: &Nexus,
        portal: Option<&Traffic>,
        expected: &Expected,
        status: u8,
        bytes: u64,
    ) {
        let Some((kind, lun)) = expected.kind else {
            return;
        };
        let found = self.0.iter().position(|(of, _)| *of == lun);
        let at = found.unwrap_or_else(|| {
            self.0.push((lun, nexus.traffic(lun)));
            self.0.len() - 1
        });
        let time = expected.arrived.elapsed();
        for traffic in [Some(&*self.0[at].1), portal].into_iter().flatten() {
            match status {
                status::GOOD => traffic.count(kind, bytes, time),
                _ => traffic.count_failure(),
            }
        }
    }
}
