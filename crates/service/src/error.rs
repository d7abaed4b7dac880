//! How errors of the layers below become answers.

use access::AccessError;
use api::{Empty, Failure, FailureKind};
use dataset::{DatasetError, RedactObstacle};
use pool::PoolError;

/// What cannot be done while a pool is suspended (`zpool_standard_error`,
/// lib/libzfs/libzfs_util.c).
pub fn suspended(doing: &str) -> Failure {
    Failure::new(
        FailureKind::Io,
        format!("{doing}: pool I/O is currently suspended"),
    )
}

/// Turns an error of a pool into an answer.
pub fn from_pool(doing: &str, error: &PoolError) -> Failure {
    if let PoolError::Zio(error @ zio::ZioError::TaskPanicked { .. }) = error {
        return Failure::new(FailureKind::Io, format!("{doing}: {error}"));
    }
    if error.is_suspended() {
        return suspended(doing);
    }
    let kind = match error {
        PoolError::BadName { .. }
        | PoolError::BadVdevs { .. }
        | PoolError::BadProperty { .. }
        | PoolError::BadVdevProperty { .. }
        | PoolError::AshiftMismatch { .. }
        | PoolError::IsCache { .. }
        | PoolError::IsSpare { .. }
        | PoolError::Topology(_)
        | PoolError::CannotRebuild { .. }
        | PoolError::NoHostid { .. }
        | PoolError::TooSmall { .. } => FailureKind::Invalid,
        PoolError::DeviceInUse { .. }
        | PoolError::ForeignHost { .. }
        | PoolError::RemoteActive { .. }
        | PoolError::ReadOnly { .. }
        | PoolError::Closed { .. }
        | PoolError::CannotRemove { .. }
        | PoolError::RemovalUnderWay { .. }
        | PoolError::CannotCheckpoint { .. }
        | PoolError::NotHealthy { .. }
        | PoolError::ResilverUnderWay { .. }
        | PoolError::RebuildUnderWay { .. }
        | PoolError::DiscardingCheckpoint { .. }
        | PoolError::ScrubActive { .. }
        | PoolError::ScrubPaused { .. }
        | PoolError::ErrorScrubActive { .. }
        | PoolError::ErrorScrubPaused { .. }
        | PoolError::ScrubPausedToCancel { .. } => FailureKind::Busy,
        PoolError::UnsupportedFeatures { .. }
        | PoolError::UnsupportedForWrite { .. }
        | PoolError::UnsupportedVersion { .. }
        | PoolError::Resilvering { .. }
        | PoolError::NoResilverDefer { .. }
        | PoolError::NoHeadErrlog { .. }
        | PoolError::RebuildDisabled { .. }
        | PoolError::ExpansionDisabled { .. }
        | PoolError::CannotSplit { .. }
        | PoolError::ScrubOfOldPool { .. }
        | PoolError::BadFeature { .. } => FailureKind::Unsupported,
        PoolError::HasCheckpoint { .. } => FailureKind::Exists,
        PoolError::Destroyed { .. }
        | PoolError::NotInPool { .. }
        | PoolError::NoSuchDevice { .. }
        | PoolError::NoCheckpoint { .. }
        | PoolError::NoCheckpointToDiscard { .. }
        | PoolError::NoRemoval { .. }
        | PoolError::NoScrub { .. } => FailureKind::NotFound,
        PoolError::Device(device::DeviceError::Open { source, .. }) => match source.kind() {
            std::io::ErrorKind::NotFound => FailureKind::NotFound,
            std::io::ErrorKind::PermissionDenied => FailureKind::Denied,
            _ => FailureKind::Invalid,
        },
        PoolError::NoLabel { .. } => FailureKind::NotFound,
        PoolError::Dataset(error) => kind_of(error),
        PoolError::MissingDevices { .. }
        | PoolError::MissingLog { .. }
        | PoolError::NoState { .. }
        | PoolError::TakenOver { .. }
        | PoolError::Object(_)
        | PoolError::Zio(_)
        | PoolError::Format(_)
        | PoolError::Damaged { .. }
        | PoolError::Device(_)
        | PoolError::Suspended { .. } => FailureKind::Io,
        _ => FailureKind::Other,
    };
    let message = match error.says_what_failed() {
        true => error.to_string(),
        false => format!("{doing}: {error}"),
    };
    Failure::new(kind, message)
}

/// Turns an error of datasets into an answer.
pub fn from_dataset(doing: &str, error: &DatasetError) -> Failure {
    if let DatasetError::Zio(zio::ZioError::Suspended { .. } | zio::ZioError::TaskPanicked { .. }) =
        error
    {
        return suspended(doing);
    }
    Failure::new(kind_of(error), format!("{doing}: {error}"))
}

/// What was asked wrongly is never the server's failure.
fn kind_of(error: &DatasetError) -> FailureKind {
    match error {
        DatasetError::NotFound { .. } => FailureKind::NotFound,
        DatasetError::Exists { .. } | DatasetError::KeyLoaded { .. } => FailureKind::Exists,
        DatasetError::InvalidName { .. }
        | DatasetError::InvalidProperty { .. }
        | DatasetError::WrongKind { .. }
        | DatasetError::NotAncestor { .. } => FailureKind::Invalid,
        DatasetError::Redact { obstacle, .. } => match obstacle {
            RedactObstacle::Exists => FailureKind::Exists,
            RedactObstacle::UnderWay => FailureKind::Busy,
            _ => FailureKind::Invalid,
        },
        DatasetError::Interrupted => FailureKind::Canceled,
        DatasetError::Busy { .. }
        | DatasetError::HasChildren { .. }
        | DatasetError::HasSnapshots { .. }
        | DatasetError::HasClones { .. }
        | DatasetError::Held { .. }
        | DatasetError::NewerSnapshots { .. }
        | DatasetError::ReadOnly { .. }
        | DatasetError::KeyNotLoaded { .. }
        | DatasetError::LogWaits { .. }
        | DatasetError::LogPassedOver { .. }
        | DatasetError::Closed
        | DatasetError::Again { .. }
        | DatasetError::Receive { .. } => FailureKind::Busy,
        DatasetError::Unsupported { .. } => FailureKind::Unsupported,
        DatasetError::WrongKey { .. } | DatasetError::OtherKey { .. } => FailureKind::WrongKey,
        DatasetError::NoSpace { .. }
        | DatasetError::QuotaExceeded { .. }
        | DatasetError::LimitReached { .. } => FailureKind::NoSpace,
        DatasetError::Zio(_)
        | DatasetError::Object(_)
        | DatasetError::Format(_)
        | DatasetError::Log(_)
        | DatasetError::Corrupt { .. } => FailureKind::Io,
        _ => FailureKind::Other,
    }
}

/// An error of the registry of open datasets.
pub fn from_access(doing: &str, error: &AccessError) -> Failure {
    let kind = match error {
        AccessError::Dataset(error) => return from_dataset(doing, error),
        AccessError::InUse { .. } | AccessError::Leaving { .. } => FailureKind::Busy,
        AccessError::WrongKind { .. } => FailureKind::Invalid,
        _ => FailureKind::Io,
    };
    Failure::new(kind, format!("{doing}: {error}"))
}

/// All that failed, as one answer.
pub fn all_done(failures: &[Failure]) -> Result<Empty, Failure> {
    let first = match failures {
        [] => return Ok(Empty {}),
        [only] => return Err(only.clone()),
        [first, ..] => first,
    };
    let messages: Vec<String> = failures.iter().map(ToString::to_string).collect();
    Err(Failure::new(first.kind, messages.join("\n")))
}

/// What something came to, and then whether all that was out of its way is where it was: where
/// both failed, one answer tells of both.
pub fn and_back<T>(outcome: Result<T, Failure>, back: Result<(), Failure>) -> Result<T, Failure> {
    match (outcome, back) {
        (outcome, Ok(())) => outcome,
        (Ok(_), Err(back)) => Err(back),
        (Err(failure), Err(back)) => {
            let message = format!("{failure}\nand not all is as it was before: {back}");
            Err(Failure::new(failure.kind, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_put_back_is_told_too() {
        let failed = |kind, what: &str| Err::<(), _>(Failure::new(kind, what));
        let lost = || failed(FailureKind::Io, "cannot mount 'tank'");
        assert_eq!(and_back(Ok(7), Ok(())).expect("done"), 7);
        let told = and_back(Ok(7), lost()).expect_err("not mounted");
        assert_eq!(told.message, "cannot mount 'tank'");
        let refused = || failed(FailureKind::Busy, "cannot rename 'tank'");
        let told = and_back(refused(), Ok(())).expect_err("refused");
        assert_eq!(told.message, "cannot rename 'tank'");
        let told = and_back(refused(), lost()).expect_err("refused");
        assert_eq!(told.kind, FailureKind::Busy);
        for part in ["cannot rename 'tank'", "cannot mount 'tank'"] {
            assert!(told.message.contains(part), "{told}");
        }
    }

    /// Who asks for what does not apply is told so, whatever layer found it; it is no failure of
    /// the server.
    #[test]
    fn a_wrong_request_is_not_the_servers_failure() {
        let name = || "tank".to_owned();
        let wrong = DatasetError::WrongKind {
            name: name(),
            reason: "it is not encrypted".into(),
        };
        let failure = from_dataset("Key unload error", &wrong);
        assert_eq!(failure.kind, FailureKind::Invalid);
        let failure = from_pool("cannot scrub", &PoolError::Dataset(wrong));
        assert_eq!(failure.kind, FailureKind::Invalid);
        let read_only = PoolError::ReadOnly { pool: name() };
        let failure = from_pool("cannot scrub", &read_only);
        assert_eq!(failure.kind, FailureKind::Busy);
    }
}
