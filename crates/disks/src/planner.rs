//! The planner's answers (crate `plan`), also about the disks of the host that nothing uses.

use api::{DiskListReply, DiskReport, Failure, FailureKind, PlanAsk, PlanAskReply};
use plan::{DiskKind, Disks, PlanError};

/// What disks will do as a pool. Where none are named, they are those of the host that nothing
/// uses, with its memory; `disks_of_host` lists them then ([`crate::disk_list`]).
///
/// # Errors
/// What is wrong with the question, as [`plan::answer`] has it.
pub async fn plan_ask(
    call: PlanAsk,
    disks_of_host: impl Future<Output = Result<DiskListReply, Failure>>,
) -> Result<PlanAskReply, Failure> {
    let mut question = call.question;
    if question.disks.is_empty() {
        question.disks = unused(&disks_of_host.await?.disks);
        if question.disks.is_empty() {
            let message = "this host has no disk that nothing uses; say which to plan with, such \
                           as 16x500GB";
            return Err(Failure::new(FailureKind::NotFound, message));
        }
        question.memory_bytes.get_or_insert_with(host::memory_bytes);
    }
    // Hundreds of layouts take a second.
    let answered = serve_fuse::aside(move || plan::answer(&question)).await;
    let answer = answered.map_err(|error| failure(&error))?;
    let sentences = answer.notes.iter().map(plan::Note::sentence).collect();
    Ok(PlanAskReply { answer, sentences })
}

fn failure(error: &PlanError) -> Failure {
    Failure::new(FailureKind::Invalid, format!("cannot plan: {error}"))
}

/// Disks that nothing uses, alike ones together.
fn unused(reports: &[DiskReport]) -> Vec<Disks> {
    let mut out: Vec<Disks> = Vec::new();
    for disk in reports.iter().filter(|disk| disk.in_use.is_none()) {
        let kind = match disk.is_rotational {
            true => DiskKind::Hdd,
            false if disk.name.starts_with("nvme") => DiskKind::Nvme,
            false => DiskKind::Ssd,
        };
        let alike = |known: &&mut Disks| known.kind == kind && known.size_bytes == disk.size_bytes;
        match out.iter_mut().find(alike) {
            Some(known) => known.count += 1,
            None => out.push(Disks::usual(1, disk.size_bytes, kind)),
        }
    }
    // A card reader without a card is a disk without a size.
    out.retain(|disks| disks.check().is_ok());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::DiskUse;

    fn disk(name: &str, size_bytes: u64, is_rotational: bool) -> DiskReport {
        DiskReport {
            path: format!("/dev/{name}"),
            name: name.to_owned(),
            size_bytes,
            model: None,
            serial: None,
            is_rotational,
            in_use: None,
        }
    }

    /// Goal: the host's disks are planned with by kind and size, and none that is in use. Method:
    /// reports of two kinds, two sizes, a used disk and a card reader.
    #[test]
    fn unused_disks_are_counted_by_kind_and_size() {
        let mut used = disk("sdd", 4 << 40, true);
        used.in_use = Some(DiskUse::Swap);
        let all = [
            disk("sda", 4 << 40, true),
            disk("sdb", 4 << 40, true),
            disk("sdc", 1 << 40, false),
            used,
            disk("nvme0n1", 1 << 40, false),
            disk("sde", 0, true),
        ];
        let told = unused(&all);
        let words: Vec<(u64, u64, DiskKind)> = told
            .iter()
            .map(|disks| (disks.count, disks.size_bytes, disks.kind))
            .collect();
        let wanted = [
            (2, 4 << 40, DiskKind::Hdd),
            (1, 1 << 40, DiskKind::Ssd),
            (1, 1 << 40, DiskKind::Nvme),
        ];
        assert_eq!(words, wanted);
    }
}
