//! `zfs create`.

use std::sync::Arc;

use api::{Empty, Failure, FailureKind, ZfsCreate};
use dataset::DatasetError;
use filesystem::ZplInit;
use volume::ZvolInit;

use crate::error::from_dataset;
use crate::service::{OpenPool, Service};
use crate::volumes::{ISCSI_PROPERTY, check_share};

/// Block size of a volume that is not told one (`ZVOL_DEFAULT_BLOCKSIZE`, OpenZFS 2.2 on).
const VOLUME_BLOCK_BYTES: u64 = 16 << 10;

impl Service {
    /// `zfs create`.
    pub(crate) async fn zfs_create(&self, call: ZfsCreate) -> Result<Empty, Failure> {
        let open = self.pool_of(&call.name)?;
        let _admin = open.admin.lock().await;
        let doing = format!("cannot create '{}'", call.name);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        for (name, value) in &call.properties {
            if name == ISCSI_PROPERTY {
                check_share(value)?;
            }
        }
        if !call.parents
            && let (Some(parent), _) = dataset::name::split_parent(&call.name)
            && matches!(
                open.pool.dsl().lookup(parent).await,
                Err(DatasetError::NotFound { .. })
            )
        {
            let message =
                format!("{doing}: parent does not exist; use '-p' to create missing parents");
            return Err(Failure::new(FailureKind::NotFound, message));
        }
        if call.parents {
            if open.pool.dsl().lookup(&call.name).await.is_ok() {
                return Ok(Empty {});
            }
            let parts: Vec<&str> = call.name.split('/').collect();
            for end in 1..parts.len() {
                let parent = parts[..end].join("/");
                if open.pool.dsl().lookup(&parent).await.is_err() {
                    open.pool
                        .dsl()
                        .create_dataset(&parent, &[], Arc::new(ZplInit::new()))
                        .await
                        .map_err(failed)?;
                    self.mount_created(&open, &parent).await?;
                }
            }
        }
        if let Some(size_bytes) = call.volume_size_bytes {
            self.create_volume(&open, &call, size_bytes).await?;
        } else {
            open.pool
                .dsl()
                .create_dataset(&call.name, &call.properties, Arc::new(ZplInit::new()))
                .await
                .map_err(failed)?;
        }
        self.log_command(&open.pool, &call.command).await;
        if call.volume_size_bytes.is_some() {
            self.open_volume(&open, &call.name).await
        } else if call.no_mount {
            Ok(())
        } else {
            self.mount_created(&open, &call.name).await
        }
        .map(|()| Empty {})
        .map_err(|failure| {
            Failure::new(
                failure.kind,
                format!("'{}' was created, but: {failure}", call.name),
            )
        })
    }

    async fn create_volume(
        &self,
        open: &OpenPool,
        call: &ZfsCreate,
        size_bytes: u64,
    ) -> Result<(), Failure> {
        let doing = format!("cannot create '{}'", call.name);
        let mut properties = call.properties.clone();
        let block_bytes = match properties
            .iter()
            .position(|(name, _)| name == "volblocksize")
        {
            Some(at) => {
                let (_, text) = properties.remove(at);
                dataset::props::parse_size(&text)
                    .ok()
                    .filter(|size| size.is_power_of_two() && (512..=16 << 20).contains(size))
                    .ok_or_else(|| {
                        Failure::new(
                            FailureKind::Invalid,
                            format!(
                                "{doing}: 'volblocksize' must be a power of 2 from 512B to 16M"
                            ),
                        )
                    })?
            }
            None => VOLUME_BLOCK_BYTES,
        };
        if size_bytes == 0 || !size_bytes.is_multiple_of(block_bytes) {
            let rounded = size_bytes.div_ceil(block_bytes).max(1) * block_bytes;
            let message = format!(
                "{doing}: volume size must be a multiple of volume block size; use {rounded}"
            );
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        if !call.sparse
            && !properties
                .iter()
                .any(|(name, _)| name == "refreservation" || name == "reservation")
        {
            properties.push(("refreservation".into(), "auto".into()));
        }
        let init = ZvolInit::new(size_bytes, u32::try_from(block_bytes).unwrap_or(u32::MAX));
        properties.push(("volsize".into(), size_bytes.to_string()));
        properties.push(("volblocksize".into(), block_bytes.to_string()));
        open.pool
            .dsl()
            .create_dataset(&call.name, &properties, Arc::new(init))
            .await
            .map_err(|error| from_dataset(&doing, &error))
    }
}
