//! Pools opened and synced: MOS, datasets, snapshots, properties, intent log, history.
