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
    Failure::new(kind, pool_words(doing, error))
}

/// What is said of an error of a pool: a line in OpenZFS's words, which programs look for
/// (`zpool_standard_error_fmt`, lib/libzfs/libzfs_util.c; `zpool_name_valid`,
/// `zpool_valid_proplist`, lib/libzfs/libzfs_pool.c), and behind it what helps.
fn pool_words(doing: &str, error: &PoolError) -> String {
    match error {
        PoolError::BadName { why, .. } => format!(
            "{doing}: {why}\nchoose a name that begins with a letter and holds only letters, \
             digits, '-', '_', '.', ':' and spaces"
        ),
        PoolError::BadProperty { why, .. } => {
            format!(
                "{}\nsee zpoolprops(7)",
                help_below(&format!("{doing}: {why}"))
            )
        }
        PoolError::NoLabel { .. } => help_below(&error.to_string()),
        PoolError::ReadOnly { .. } => format!("{doing}: pool is read-only\n{error}"),
        PoolError::NotInPool { .. } => format!("{doing}: no such device in pool\n{error}"),
        PoolError::Dataset(error) => dataset_words(doing, error),
        PoolError::BadVdevs { why } if why.ends_with("is given twice") => format!(
            "{doing}: one or more vdevs refer to the same device, or one of\n\
             the devices is part of an active md or lvm device\n{why}"
        ),
        _ if error.says_what_failed() => help_below(&error.to_string()),
        _ => help_below(&format!("{doing}: {error}")),
    }
}

/// What helps, which stands behind a semicolon, on a line of its own, but for where it is part of
/// OpenZFS's words.
fn help_below(text: &str) -> String {
    let is_theirs = |what: &str, rest: &str| {
        let begins = [
            "use 'zpool scrub",
            "wait for completion",
            "removal may already",
        ];
        what.ends_with("invalid config") || begins.iter().any(|begin| rest.starts_with(begin))
    };
    match text.split_once("; ") {
        Some((what, rest)) if !what.contains('\n') && !is_theirs(what, rest) => {
            format!("{what}\n{rest}")
        }
        _ => text.to_owned(),
    }
}

/// Turns an error of datasets into an answer.
pub fn from_dataset(doing: &str, error: &DatasetError) -> Failure {
    if let DatasetError::Zio(zio::ZioError::Suspended { .. } | zio::ZioError::TaskPanicked { .. }) =
        error
    {
        return suspended(doing);
    }
    Failure::new(kind_of(error), dataset_words(doing, error))
}

/// What is said of an error of datasets: a line in OpenZFS's words, which programs look for
/// (`zfs_standard_error_fmt`, `zfs_validate_name`, lib/libzfs; `zfs_destroy_snaps_nvl`,
/// lib/libzfs/libzfs_dataset.c), and behind it what helps.
fn dataset_words(doing: &str, error: &DatasetError) -> String {
    let head = match error {
        DatasetError::NotFound { name } => {
            if let Some(reason) = name_fault(name) {
                return format!("cannot open '{name}': {reason}");
            }
            let asked = quoted(doing).filter(|asked| is_of(asked, name));
            return match asked {
                Some(asked) => format!("cannot open '{asked}': dataset does not exist"),
                None => format!("{doing}: dataset does not exist\nthere is no '{name}'"),
            };
        }
        DatasetError::Exists { name } => {
            return match quoted(doing) == Some(name) {
                true => format!("{doing}: dataset already exists"),
                false => format!("{doing}: dataset already exists\n'{name}' is there"),
            };
        }
        DatasetError::InvalidName { reason, .. } => {
            return format!(
                "{doing}: {reason}\nuse letters, digits and -_.: with '/' between components"
            );
        }
        DatasetError::Held { name } => {
            return format!(
                "cannot destroy snapshot {name}: it's being held. Run 'zfs holds -r {name}' to see \
                 holders."
            );
        }
        DatasetError::InvalidProperty { property, reason } => {
            return format!("{doing}: {reason}\nsee zfsprops(7) for the values of '{property}'");
        }
        DatasetError::WrongKind { name, reason } => {
            return format!("{doing}: {reason}\nthat is said of '{name}': choose another dataset");
        }
        DatasetError::KeyNotLoaded { root, .. } => {
            return format!(
                "{doing}: encryption key not loaded\nit is loaded by 'zfs load-key {root}'"
            );
        }
        DatasetError::Busy { name, .. }
            if name.contains('@') && doing.starts_with("cannot destroy") =>
        {
            return format!("cannot destroy snapshot {name}: dataset is busy\n{error}");
        }
        DatasetError::Busy { .. } => "dataset is busy",
        DatasetError::NoSpace { .. }
        | DatasetError::QuotaExceeded { .. }
        | DatasetError::LimitReached { .. } => "out of space",
        _ => return help_below(&format!("{doing}: {error}")),
    };
    format!("{doing}: {head}\n{error}")
}

/// What is wrong with a name that nothing can have (`zfs_validate_name`,
/// lib/libzfs/libzfs_dataset.c).
pub fn name_fault(name: &str) -> Option<String> {
    let checked = match name.contains('#') && !name.contains('@') {
        true => dataset::name::check_bookmark_name(name),
        false => dataset::name::check_name(name),
    };
    match checked {
        Err(DatasetError::InvalidName { reason, .. }) => Some(reason),
        _ => None,
    }
}

/// What a text has in quotation marks first: what a command is about.
fn quoted(doing: &str) -> Option<&str> {
    let mut parts = doing.split('\'');
    parts.nth(1).filter(|_| parts.next().is_some())
}

/// Whether `asked` is `name`, or a snapshot or bookmark of it.
fn is_of(asked: &str, name: &str) -> bool {
    let rest = asked.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['@', '#']))
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
        AccessError::InUse { .. } => {
            let message = format!("{doing}: dataset is busy\n{error}");
            return Failure::new(FailureKind::Busy, message);
        }
        AccessError::Leaving { .. } => FailureKind::Busy,
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

    /// The first line is OpenZFS's, to the letter; help comes behind it.
    #[test]
    fn errors_of_datasets_begin_with_the_words_that_programs_know() {
        let name = |name: &str| name.to_owned();
        for (doing, error, words) in [
            (
                "cannot destroy 't/a'",
                DatasetError::NotFound { name: name("t/a") },
                "cannot open 't/a': dataset does not exist",
            ),
            (
                "cannot rename 't/a@s'",
                DatasetError::NotFound { name: name("t/a") },
                "cannot open 't/a@s': dataset does not exist",
            ),
            (
                "cannot rename 't/a'",
                DatasetError::NotFound { name: name("t/no") },
                "cannot rename 't/a': dataset does not exist",
            ),
            (
                "cannot receive",
                DatasetError::NotFound { name: name("t") },
                "cannot receive: dataset does not exist",
            ),
            (
                "cannot create 't/a'",
                DatasetError::Exists { name: name("t/a") },
                "cannot create 't/a': dataset already exists",
            ),
            (
                "cannot destroy 't/a@s'",
                DatasetError::Held {
                    name: name("t/a@s"),
                },
                "cannot destroy snapshot t/a@s: it's being held. Run 'zfs holds -r t/a@s' to see \
                 holders.",
            ),
            (
                "cannot create 't/a'",
                DatasetError::LimitReached {
                    name: name("t"),
                    property: "filesystem_limit",
                },
                "cannot create 't/a': out of space",
            ),
        ] {
            let message = from_dataset(doing, &error).message;
            assert_eq!(message.lines().next(), Some(words), "{message}");
        }
    }

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
