//! Pools as a whole: create, import, sync, export.
