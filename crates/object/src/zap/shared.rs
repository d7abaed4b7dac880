//! What all handles on one ZAP share, which is kept with its object.

use format::MicroZap;
use tokio::sync::RwLock;

/// What all handles on one ZAP share.
#[derive(Default)]
pub(crate) struct ZapShared {
    pub(super) form: RwLock<Form>,
}

/// Which form a ZAP has; a micro ZAP with its content.
#[derive(Default)]
pub(super) enum Form {
    /// Not looked at yet, or a change failed midway.
    #[default]
    Unknown,
    Micro(MicroZap),
    Fat,
}
