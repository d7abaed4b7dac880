//! On whose behalf a task works: histories of pools name the user who asked for a change.

tokio::task_local! {
    static ASKING: Option<u32>;
}

/// Works at a request of the user with this number, where it is known.
pub async fn work_for<T>(uid: Option<u32>, work: impl Future<Output = T>) -> T {
    ASKING.scope(uid, work).await
}

/// The user whose request the task works at, where there is one.
pub fn asking() -> Option<u32> {
    ASKING.try_with(|uid| *uid).ok().flatten()
}
