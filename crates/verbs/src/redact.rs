//! `zfs redact`: making redaction bookmarks (`zfs_do_redact`, cmd/zfs/zfs_main.c), and finding them
//! where a stream that was redacted is gone on with (`find_redact_book`,
//! lib/libzfs/libzfs_sendrecv.c).

use device::BoxFuture;
use std::sync::Arc;

use api::{Empty, Failure, FailureKind, ZfsRedact};
use dataset::{DatasetError, RedactObstacle, are_same_snapshots};
use format::Guid;

use service::error::from_dataset;
use service::jobs::Work;
use service::pools::{OpenPool, Pools};

/// `zfs redact`.
pub fn zfs_redact<'a>(
    pools: &'a Pools,
    call: &'a ZfsRedact,
    work: &'a Arc<Work>,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = (pools.of_dataset(&call.snapshot)).map_err(|failure| {
            let name = &call.snapshot;
            let (first, rest) = failure
                .message
                .split_once('\n')
                .unwrap_or((&failure.message, ""));
            let message = format!("{first}\nprovided snapshot {name} does not exist\n{rest}");
            Failure::new(failure.kind, message.trim_end().to_owned())
        })?;
        let pool = open.pool.name();
        let is_elsewhere = |name: &&String| !api::is_within(name, &pool);
        if let Some(name) = call.with.iter().find(is_elsewhere) {
            // The first thing that `dsl_dir_hold` looks at (module/zfs/dsl_dir.c).
            let message = format!(
                "potentially invalid redaction snapshot; full dataset names required: '{name}' \
                 is not in pool '{pool}'"
            );
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        // Nobody exports it meanwhile but by force, which breaks it off.
        let working = open.receives.begin();
        let stops = {
            let work = Arc::clone(work);
            move || work.is_canceled() || working.broken().is_some()
        };
        let redacted = open
            .pool
            .dsl()
            .bookmarks()
            .redact(&call.snapshot, &call.bookmark, &call.with, &stops)
            .await;
        redacted.map_err(|error| told(call, &error))?;
        crate::zpool::log_command(&open.pool, &call.command).await;
        Ok(Empty {})
    })
}

/// The words for all that is no snapshot to redact with (`EINVAL`).
const NOT_DESCENDANT: &str = "redaction snapshot must be descendent of snapshot being redacted";

/// Why a bookmark was not made, in OpenZFS's words.
fn told(call: &ZfsRedact, error: &DatasetError) -> Failure {
    let name = &call.bookmark;
    let (kind, message) = match error {
        DatasetError::NotFound { name: missing } => {
            let mut all = std::iter::once(&call.snapshot).chain(&call.with);
            let asked = all.find(|asked| asked.starts_with(missing.as_str()));
            let name = asked.unwrap_or(missing);
            (
                FailureKind::NotFound,
                format!(
                    "cannot open '{name}': dataset does not exist\n\
                     provided snapshot {name} does not exist"
                ),
            )
        }
        DatasetError::Redact { obstacle, .. } => match obstacle {
            RedactObstacle::Exists => (
                FailureKind::Exists,
                format!("specified redaction bookmark ({name}) provided already exists"),
            ),
            RedactObstacle::UnderWay => (FailureKind::Busy, obstacle.to_string()),
            // OpenZFS's words, and what helps on a line of its own.
            other => (
                FailureKind::Invalid,
                other.to_string().replacen("; ", "\n", 1),
            ),
        },
        DatasetError::InvalidName { .. } if name.contains('#') => (
            FailureKind::Invalid,
            "redaction bookmark name must not contain '#'".to_owned(),
        ),
        DatasetError::InvalidName { .. } | DatasetError::WrongKind { .. } => {
            (FailureKind::Invalid, format!("{NOT_DESCENDANT}\n{error}"))
        }
        DatasetError::Interrupted => (
            FailureKind::Canceled,
            "the redaction was canceled; the same command goes on with it".to_owned(),
        ),
        other => return from_dataset(&format!("cannot redact '{}'", call.snapshot), other),
    };
    Failure::new(kind, message)
}

/// The redaction bookmark of a dataset that was made of the snapshot with a GUID, with these
/// snapshots: its full name, and whether it is whole. One that is whole is preferred.
pub async fn bookmark_with(
    open: &OpenPool,
    head: &str,
    guid: Guid,
    with: &[u64],
) -> Result<Option<(String, bool)>, DatasetError> {
    let bookmarks = open.pool.dsl().bookmarks();
    let mut found = None;
    for bookmark in bookmarks.list(head).await? {
        if bookmark.phys.guid != guid {
            continue;
        }
        let Some(list) = bookmarks.redaction(&bookmark.phys).await? else {
            continue;
        };
        if are_same_snapshots(with, &list.snapshots) {
            if list.is_whole() {
                return Ok(Some((bookmark.name, true)));
            }
            found = Some((bookmark.name, false));
        }
    }
    Ok(found)
}
