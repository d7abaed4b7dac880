//! iSCSI target: protocol core without sockets, and a thin TCP layer.
#![forbid(unsafe_code)]

mod error;
mod lun;
mod server;
mod target;

pub use error::{ServerError, TargetError};
pub use lun::{Extent, LogicalUnit, LunError, LunIdentity};
pub use server::{ISCSI_PORT, Server};
pub use target::{
    Authentication, ChapCredentials, ISCSI_NAME_BYTES_MAX, LUN_MAX, SessionInfo, Target,
    TargetOptions, TargetSet,
};
