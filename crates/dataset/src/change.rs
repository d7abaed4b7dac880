//! Changes of properties, with all that follows from them, in syncing context
//! (module/zfs/dsl_prop.c).

use std::sync::Arc;

use device::BoxFuture;
use format::{Compression, ObjectId, ObjectType};
use object::{SyncContext, Zap, ZapOptions, ZapValue};
use zio::Tx;

use crate::features::guid;
use crate::props::{Property, find};
use crate::settings::compression_of;
use crate::state::{Dir, Ds};
use crate::stored::{INHERIT, Properties, RECEIVED, UNKNOWN_VALUE};
use crate::{DatasetError, PropertyValue};

fn to_zap(value: &PropertyValue) -> ZapValue {
    match value {
        PropertyValue::Number(number) => ZapValue::from_u64(*number),
        PropertyValue::Text(text) => ZapValue::from_str_z(text),
    }
}

/// Values that releases before them take for something else: those store the default beside.
fn is_unknown_to_old(name: &str, value: &PropertyValue) -> bool {
    match (name, value) {
        ("redundant_metadata", PropertyValue::Number(number)) => *number >= 2,
        ("snapdir", PropertyValue::Number(number)) => *number == 2,
        _ => false,
    }
}

impl Properties<'_> {
    /// Sets a property's stored value (`dsl_prop_set_sync_impl` with a local source).
    async fn store(
        &self,
        ctx: &SyncContext,
        zap: &Zap,
        name: &str,
        value: &PropertyValue,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        remove_if_there(zap, &tx, &format!("{name}{INHERIT}")).await?;
        let newer = format!("{name}{UNKNOWN_VALUE}");
        if is_unknown_to_old(name, value)
            && let Some(default) = find(name).and_then(Property::default_value)
        {
            zap.update(&tx, &newer, to_zap(value)).await?;
            zap.update(&tx, name, to_zap(&default)).await?;
        } else {
            remove_if_there(zap, &tx, &newer).await?;
            zap.update(&tx, name, to_zap(value)).await?;
        }
        Ok(())
    }

    /// Sets or (`None`) inherits a property of a dataset, with all that follows from it, in
    /// syncing context. What is open is told by the caller.
    pub(crate) async fn change_property(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        name: &str,
        value: Option<&PropertyValue>,
    ) -> Result<(), DatasetError> {
        self.change_property_from(ctx, dataset, name, value, false)
            .await
    }

    /// The same; with `received`, nothing means what a receive brought (`ZPROP_SRC_NONE`).
    pub(crate) fn change_property_from<'a>(
        &'a self,
        ctx: &'a SyncContext,
        dataset: &'a Arc<Ds>,
        name: &'a str,
        value: Option<&'a PropertyValue>,
        received: bool,
    ) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let tx = Tx::syncing(ctx.txg);
            let dir = dataset.dir();
            let is_snapshot = dataset.is_snapshot();
            let mut zap = if is_snapshot {
                dataset.state().phys.properties
            } else {
                dir.state().phys.properties
            };
            if zap.is_zero() {
                if value.is_none() {
                    return Ok(());
                }
                zap = Zap::create(self.dsl.mos(), &tx, ZapOptions::new(ObjectType::DSL_PROPS))
                    .await?
                    .id();
                dataset.change(|state| state.phys.properties = zap);
            }
            let zap = Zap::hold(self.dsl.mos(), zap).await?;
            match value {
                Some(value) => self.store(ctx, &zap, name, value).await?,
                None => {
                    remove_if_there(&zap, &tx, name).await?;
                    remove_if_there(&zap, &tx, &format!("{name}{UNKNOWN_VALUE}")).await?;
                    if received {
                        remove_if_there(&zap, &tx, &format!("{name}{INHERIT}")).await?;
                    } else if zap.lookup("$hasrecvd").await?.is_some() {
                        zap.update_u64(&tx, format!("{name}{INHERIT}"), 0).await?;
                    }
                }
            }
            if is_snapshot {
                if zap.count().await? == 0 {
                    dataset.change(|state| state.phys.properties = ObjectId::ZERO);
                    self.dsl.mos().free(&tx, zap.id()).await?;
                }
            } else {
                let number = match value {
                    // Of what is not inherited, that is the received value or none.
                    None => self.own_number(&dir, name).await?,
                    Some(value) => value.number().unwrap_or(0),
                };
                self.property_took_effect(ctx, dataset, &dir, name, number, value.is_some())
                    .await?;
            }
            let event = if value.is_some() { "set" } else { "inherit" };
            let shown = match self.effective(dataset, name).await? {
                Some((PropertyValue::Number(number), _)) => number.to_string(),
                Some((PropertyValue::Text(text), _)) => text,
                None => String::new(),
            };
            let full_name = self.dsl.directories().full_name(dataset).await?;
            self.dsl
                .history(
                    ctx,
                    event,
                    full_name,
                    dataset.object,
                    format!("{}={shown}", name.strip_suffix(RECEIVED).unwrap_or(name)),
                )
                .await
        })
    }

    /// Stores what a receive brought in place of what an earlier one brought, in syncing context.
    pub(crate) async fn store_received(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        values: &[(String, PropertyValue)],
    ) -> Result<(), DatasetError> {
        if dataset.is_snapshot() {
            for (name, _) in self.received_values(dataset).await? {
                if !values.iter().any(|(kept, _)| *kept == name) {
                    let name = format!("{name}{RECEIVED}");
                    self.change_property_from(ctx, dataset, &name, None, true)
                        .await?;
                }
            }
            for (name, value) in values {
                let name = format!("{name}{RECEIVED}");
                self.change_property(ctx, dataset, &name, Some(value))
                    .await?;
            }
            return Ok(());
        }
        let tx = Tx::syncing(ctx.txg);
        let dir = dataset.dir();
        let zap = dir.state().phys.properties;
        let zap = Zap::hold(self.dsl.mos(), zap).await?;
        let mut changed: Vec<String> = Vec::new();
        for entry in zap.all().await? {
            let stored = String::from_utf8_lossy(&entry.name).into_owned();
            if let Some(name) = stored.strip_suffix(RECEIVED)
                && !values.iter().any(|(kept, _)| kept == name)
            {
                remove_if_there(&zap, &tx, &stored).await?;
                changed.push(name.to_owned());
            }
        }
        zap.update_u64(&tx, "$hasrecvd", 0).await?;
        for (name, value) in values {
            zap.update(&tx, format!("{name}{RECEIVED}"), to_zap(value))
                .await?;
            changed.push(name.clone());
        }
        for name in changed {
            if zap.lookup(&name).await?.is_some() {
                continue;
            }
            let number = self.own_number(&dir, &name).await?;
            self.property_took_effect(ctx, dataset, &dir, &name, number, number != 0)
                .await?;
        }
        Ok(())
    }

    async fn property_took_effect(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        dir: &Arc<Dir>,
        name: &str,
        number: u64,
        is_set: bool,
    ) -> Result<(), DatasetError> {
        match name {
            "quota" => dir.change(|state| state.phys.quota_bytes = number),
            "reservation" => dir.set_reservation(number),
            "refquota" => dataset.state().refquota_bytes = number,
            "refreservation" => self.dsl.space().set_refreservation(dataset, number),
            "filesystem_limit" | "snapshot_limit" if is_set => {
                self.dsl.limits().count_below(ctx, dir).await?;
            }
            // With the first block would be soon enough; OpenZFS does not wait for that
            // (`dsl_dataset_set_compression_sync`, module/zfs/dsl_dataset.c).
            "compression" if is_set && compression_of(number, true).0 == Compression::Zstd => {
                let marked = dataset.state().features.contains_key(guid::ZSTD_COMPRESS);
                if !marked {
                    let marker = ZapValue::from_u64(0);
                    self.dsl
                        .activate_feature(ctx, dataset, guid::ZSTD_COMPRESS, marker)
                        .await?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

async fn remove_if_there(zap: &Zap, tx: &Tx, name: &str) -> Result<(), DatasetError> {
    match zap.remove(tx, name).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}
