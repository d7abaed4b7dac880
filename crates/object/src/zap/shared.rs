//! What all handles on one ZAP share, which is kept with its object.

use std::sync::Arc;

use format::MicroZap;
use parking_lot::Mutex;
use tokio::sync::RwLock;
use zio::{Charge, Charged};

/// What all handles on one ZAP share.
#[derive(Default)]
pub(crate) struct ZapShared {
    pub(super) form: RwLock<Form>,
    /// What a micro ZAP's content takes.
    charged: Mutex<Option<Charged>>,
}

impl ZapShared {
    /// Charges a micro ZAP's content, which is `block_bytes` long, and its index: 20 bytes for an
    /// entry of 64, in nodes that are mostly more than half full.
    pub(super) fn holds(&self, block_bytes: usize, charge: &Arc<Charge>) {
        let bytes = block_bytes as u64 / 2 * 3;
        let mut charged = self.charged.lock();
        match charged.as_mut() {
            Some(charged) => charged.resize(bytes),
            None => *charged = Some(charge.take(bytes)),
        }
    }

    /// It has become a fat one.
    pub(super) fn holds_nothing(&self) {
        *self.charged.lock() = None;
    }
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
