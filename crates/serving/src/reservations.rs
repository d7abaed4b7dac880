//! Persistent reservations that outlive the server (APTPL): a user property of the volume.
//!
//! As a property they move with the volume: to the next start, and with the pool to another host.
//! What a snapshot, a clone or a replica shows of them is inherited or received, and not theirs.

use std::sync::Arc;

use dataset::{DatasetError, DslPool, PropertyChange, PropertySource};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serve_iscsi::{LunError, ReservationStore};

use service::pools::OpenPool;

/// The user property.
const PROPERTY: &str = "millpond:iscsi.reservations";
/// Longest value of a property in bytes (`ZAP_MAXVALUELEN`), with the zero at its end.
const VALUE_BYTES_MAX: usize = 8192;

/// Where a volume's reservations are kept.
pub struct StoredReservations {
    dsl: Arc<DslPool>,
    /// The volume's name now.
    name: Mutex<String>,
    /// What was kept when the volume was shared.
    kept: Option<String>,
}

impl std::fmt::Debug for StoredReservations {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "reservations of {}", self.name.lock())
    }
}

impl StoredReservations {
    /// Those of a volume.
    pub async fn of(open: &OpenPool, name: &str) -> Result<Arc<Self>, DatasetError> {
        let dsl = Arc::clone(open.pool.dsl());
        let kept = match dsl.properties().get(name, PROPERTY).await {
            Ok(setting) if setting.source == PropertySource::Local => {
                setting.value.text().map(str::to_owned)
            }
            // It has none, as all have in the beginning.
            Ok(_) | Err(DatasetError::InvalidProperty { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(Arc::new(Self {
            dsl,
            name: Mutex::new(name.to_owned()),
            kept,
        }))
    }

    /// The volume has another name.
    pub fn renamed(&self, name: &str) {
        *self.name.lock() = name.to_owned();
    }
}

impl ReservationStore for StoredReservations {
    fn load(&self) -> Option<String> {
        self.kept.clone()
    }

    fn store(&self, text: Option<String>) -> BoxFuture<'_, Result<(), LunError>> {
        Box::pin(async move {
            let change = match text {
                Some(text) if text.len() >= VALUE_BYTES_MAX => return Err(LunError::Busy),
                Some(text) => PropertyChange::Set(text),
                None => PropertyChange::Inherit,
            };
            let name = self.name.lock().clone();
            // Not under the pool's lock for changes: whoever has that may wait for this command.
            let changes = [(PROPERTY.to_owned(), change)];
            let set = self.dsl.properties().set(&name, &changes).await;
            set.map_err(|error| LunError::Internal {
                reason: format!("the persistent reservations of {name} were not stored: {error}"),
            })
        })
    }
}
