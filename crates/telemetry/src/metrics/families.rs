//! Everything that `/metrics` tells: names, units and what they mean. docs/metrics.md has the same
//! list (a test compares them).

use super::text::{Family, Kind};

macro_rules! families {
    ($($name:ident: $kind:ident $text:literal $unit:literal $help:literal;)*) => {
        $(pub(super) const $name: Family = Family {
            name: $text,
            kind: Kind::$kind,
            unit: $unit,
            help: $help,
        };)*
        /// All of them, in the order in which they are told.
        pub(super) const ALL: &[Family] = &[$($name),*];
    };
}

families! {
    BUILD: Info "millpond_build" "" "Version of the server.";
    CPU: Counter "process_cpu_seconds" "seconds" "Processor time of the server.";
    RESIDENT: Gauge "process_resident_memory_bytes" "bytes" "Memory of the server.";
    VIRTUAL: Gauge "process_virtual_memory_bytes" "bytes" "Addresses of the server.";
    THREADS: Gauge "process_threads" "" "Threads of the server.";
    OPEN_FDS: Gauge "process_open_fds" "" "Open descriptors of the server.";
    MAX_FDS: Gauge "process_max_fds" "" "Descriptors that the server may have open.";
    PROCESS_START: Gauge "process_start_time_seconds" "seconds"
        "When the server started, since 1970.";

    POOL_HEALTH: Gauge "millpond_pool_health" "" "One for the state that the pool is in.";
    POOL_ABSENT: Gauge "millpond_pool_absent" ""
        "One for a pool of the last run that could not be imported.";
    POOL_SIZE: Gauge "millpond_pool_size_bytes" "bytes" "Space of the pool's devices.";
    POOL_ALLOCATED: Gauge "millpond_pool_allocated_bytes" "bytes" "Space that is in use.";
    POOL_FREE: Gauge "millpond_pool_free_bytes" "bytes" "Space that is free.";
    POOL_CAPACITY: Gauge "millpond_pool_capacity_ratio" "ratio"
        "How much of the space is in use.";
    POOL_FRAGMENTATION: Gauge "millpond_pool_fragmentation_ratio" "ratio"
        "How much the free space is in pieces.";
    POOL_FREEING: Gauge "millpond_pool_freeing_bytes" "bytes"
        "Space of what was destroyed and is not free yet.";
    POOL_EXPANDABLE: Gauge "millpond_pool_expandable_bytes" "bytes"
        "Space of devices that is not used until they are expanded.";
    POOL_ERRORS: Gauge "millpond_pool_data_errors" "" "Known blocks that are lost.";
    POOL_OPERATIONS: Counter "millpond_pool_operations" ""
        "Operations on the pool's devices since the import.";
    POOL_BYTES: Counter "millpond_pool_bytes" "bytes" "Bytes of these operations.";
    POOL_LATENCY: Histogram "millpond_pool_latency_seconds" "seconds"
        "How long requests to the pool's devices took, with waiting.";

    VDEV_STATE: Gauge "millpond_vdev_state" "" "One for the state that the vdev is in.";
    VDEV_SIZE: Gauge "millpond_vdev_size_bytes" "bytes" "Space of the vdev.";
    VDEV_ALLOCATED: Gauge "millpond_vdev_allocated_bytes" "bytes"
        "Space of the vdev that is in use.";
    VDEV_FRAGMENTATION: Gauge "millpond_vdev_fragmentation_ratio" "ratio"
        "How much the vdev's free space is in pieces.";
    VDEV_OPERATIONS: Counter "millpond_vdev_operations" ""
        "Operations on the vdev since the import.";
    VDEV_BYTES: Counter "millpond_vdev_bytes" "bytes" "Bytes of these operations.";
    VDEV_ERRORS: Counter "millpond_vdev_errors" ""
        "Errors of the vdev since the import, or since they were cleared.";

    DEVICE_STATE: Gauge "millpond_device_state" "" "One for the state that the device is in.";
    DEVICE_OPERATIONS: Counter "millpond_device_operations" ""
        "Operations on the device since the import.";
    DEVICE_BYTES: Counter "millpond_device_bytes" "bytes" "Bytes of these operations.";
    DEVICE_ERRORS: Counter "millpond_device_errors" ""
        "Errors of the device since the import, or since they were cleared.";
    DEVICE_SLOW: Counter "millpond_device_slow_operations" ""
        "Operations on the device that took longer than 30 seconds.";
    DEVICE_PENDING: Gauge "millpond_device_pending_operations" ""
        "Requests that wait for the device.";
    DEVICE_ACTIVE: Gauge "millpond_device_active_operations" ""
        "Operations that the device is at.";
    DEVICE_LATENCY: Histogram "millpond_device_latency_seconds" "seconds"
        "How long the device took, without waiting.";

    MEMORY: Gauge "millpond_memory_bytes" "bytes"
        "What of the server's memory is accounted for, by who has it.";
    MEMORY_UNEXPLAINED: Gauge "millpond_memory_unexplained_bytes" "bytes"
        "What is resident and nobody's of these.";

    CACHE_LIMIT: Gauge "millpond_cache_limit_bytes" "bytes"
        "What may be in the cache in memory (ARC) now, of all pools.";
    CACHE_LIMIT_MAX: Gauge "millpond_cache_limit_max_bytes" "bytes"
        "What may be in it unless memory is short or much is used beside it.";
    CACHE_SIZE: Gauge "millpond_cache_size_bytes" "bytes" "What of a pool is in it.";
    CACHE_CHARGED: Gauge "millpond_cache_charged_bytes" "bytes"
        "Objects, files and indexes of cache devices, which count in its limit.";
    CACHE_BLOCKS: Gauge "millpond_cache_blocks" "" "Blocks in it.";
    CACHE_HITS: Counter "millpond_cache_hits" "" "Reads that found their block in it.";
    CACHE_MISSES: Counter "millpond_cache_misses" "" "Reads that did not.";

    CACHE_GHOST_HITS: Counter "millpond_cache_ghost_hits" ""
        "Misses whose block had left it not long before.";

    CACHE_INDEX: Gauge "millpond_cache_devices_index_bytes" "bytes"
        "Memory of the index of what the pool's cache devices hold.";
    CACHE_LEFT_OUT: Counter "millpond_cache_devices_left_out" ""
        "Blocks that cache devices did not keep, as the index had no memory for them.";
    CACHE_DEVICES_MISSES: Counter "millpond_cache_devices_misses" ""
        "Reads whose block no cache device had.";
    CACHE_DEVICE_SIZE: Gauge "millpond_cache_device_size_bytes" "bytes"
        "Space of the cache device.";
    CACHE_DEVICE_USED: Gauge "millpond_cache_device_used_bytes" "bytes"
        "What of it holds something.";

    SCAN_RUNNING: Gauge "millpond_scan_running" ""
        "Whether a scrub or resilver is under way and not paused.";
    SCAN_PROGRESS: Gauge "millpond_scan_progress_ratio" "ratio"
        "How much the last scrub or resilver has verified.";
    SCAN_EXAMINE: Gauge "millpond_scan_to_examine_bytes" "bytes" "What it is to verify.";
    SCAN_ISSUED: Gauge "millpond_scan_issued_bytes" "bytes" "What it has verified.";
    SCAN_REPAIRED: Gauge "millpond_scan_repaired_bytes" "bytes" "What it has repaired.";
    SCAN_ERRORS: Gauge "millpond_scan_errors" "" "Blocks that it found lost.";
    SCAN_START: Gauge "millpond_scan_start_time_seconds" "seconds"
        "When it began, since 1970.";
    SCAN_END: Gauge "millpond_scan_end_time_seconds" "seconds"
        "When it ended, since 1970.";

    DATASETS: Gauge "millpond_datasets" "" "Filesystems and volumes of the pool.";
    DATASETS_LEFT_OUT: Gauge "millpond_datasets_left_out" ""
        "Those of which nothing is told, as there are too many.";
    DATASET_USED: Gauge "millpond_dataset_used_bytes" "bytes"
        "Space that the dataset uses with all below it.";
    DATASET_AVAILABLE: Gauge "millpond_dataset_available_bytes" "bytes"
        "Space that it may use yet.";
    DATASET_REFERENCED: Gauge "millpond_dataset_referenced_bytes" "bytes"
        "Space of what is in it.";

    JOBS: Gauge "millpond_jobs" "" "Jobs that have not ended.";
    JOB_PROGRESS: Gauge "millpond_job_progress_ratio" "ratio"
        "How far a job is that has not ended.";

    SHARE_CLIENTS: Gauge "millpond_share_clients" "" "Clients that are connected.";
    SHARE_OPERATIONS: Counter "millpond_share_operations" ""
        "What clients have asked for since it is shared.";
    SHARE_BYTES: Counter "millpond_share_bytes" "bytes" "Bytes that they read and wrote.";
    SHARE_SECONDS: Counter "millpond_share_operation_seconds" "seconds"
        "How long their reads and writes took together.";
    NOT_SHARED: Gauge "millpond_not_shared" ""
        "What is meant to be shared and is not.";

    ALERTS: Gauge "millpond_alerts" "" "Alerts that stand.";
    MESSAGES: Gauge "millpond_alert_messages_waiting" ""
        "Mails and calls of web hooks that have not gone out yet.";

    REPLICATION_SUCCESS: Gauge "millpond_replication_last_success_time_seconds" "seconds"
        "When the last run that worked ended, since 1970.";
    REPLICATION_FAILURES: Gauge "millpond_replication_failures" ""
        "Runs that failed since then.";
    REPLICATION_RUNNING: Gauge "millpond_replication_running" "" "Whether it runs.";
    REPLICATION_PAUSED: Gauge "millpond_replication_paused" "" "Whether it is paused.";
    REPLICATION_BYTES: Gauge "millpond_replication_last_bytes" "bytes"
        "What its last run sent.";

    SCHEDULE_SUCCESS: Gauge "millpond_schedule_last_success_time_seconds" "seconds"
        "When the last run that worked ended, since 1970.";
    SCHEDULE_NEXT: Gauge "millpond_schedule_next_time_seconds" "seconds"
        "When it runs next by itself, since 1970.";
    SCHEDULE_FAILURES: Gauge "millpond_schedule_failures" "" "Runs that failed since then.";
    SCHEDULE_PAUSED: Gauge "millpond_schedule_paused" "" "Whether it is paused.";
}
