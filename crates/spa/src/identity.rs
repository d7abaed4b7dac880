//! A pool's name, version and the like, and the configuration that tells of them.
//!
//! The configuration is an nvlist with the pool-level pairs and the whole vdev tree. One copy is an
//! object of the MOS; the labels have the pool-level pairs and their own top-level vdev. Whoever
//! changes something that is in it calls [`Identity::mark_dirty`]. A crash leaves the MOS's copy
//! and the labels of the last transaction group that was whole.
//!
//! Source: module/zfs/spa.c (`spa_sync_config_object`), vdev_label.c (`vdev_config_sync`).

use bytes::Bytes;
use format::{Guid, NvEncoding, ObjectId, ObjectType, Txg, Uberblock};
use object::{Zap, ZapOptions, ZapValue};
use parking_lot::{Mutex, MutexGuard};
use vdev::Scope;

use crate::participant::{Participant, Pass, Turn};
use crate::{PoolError, Spa, config, directory, features};

/// The packed configuration is written in blocks of this size (`SPA_CONFIG_BLOCKSIZE`).
pub const CONFIG_BLOCK_BYTES: u32 = 16 << 10;

/// What the configuration says of the pool as a whole.
pub struct Pairs {
    /// Name shown to people.
    pub name: String,
    /// Name written to disk: differs while a temporary name is used.
    pub disk_name: String,
    /// `POOL_STATE_*` to be written.
    pub pool_state: u64,
    /// Version of the pool's format; 5000 has feature flags.
    pub version: u64,
    /// Number of what is known to be wrong with it.
    pub errata: u64,
    /// Property `comment`.
    pub comment: Option<String>,
    /// Property `compatibility`.
    pub compatibility: Option<String>,
    /// The configuration must be written to the MOS and to all labels.
    pub dirty: bool,
    /// It was, in the transaction group that is being written: the labels get it.
    pub changed: bool,
    /// MOS object of the packed configuration.
    pub object: ObjectId,
    /// MOS object of the ZAP of vdev ZAPs; zero without.
    pub all_vdev_zaps: ObjectId,
    /// The pool that this one was split off in this import; zero without.
    pub split_guid: u64,
    /// Devices that are being split off, by top-level vdev; zero for none.
    pub splitting: Vec<u64>,
}

impl Pairs {
    /// Those of a new pool.
    pub fn new(name: &str, disk_name: &str) -> Self {
        Pairs {
            name: name.to_owned(),
            disk_name: disk_name.to_owned(),
            pool_state: config::STATE_ACTIVE,
            version: Uberblock::VERSION_FEATURES,
            errata: 0,
            comment: None,
            compatibility: None,
            dirty: false,
            changed: false,
            object: ObjectId::ZERO,
            all_vdev_zaps: ObjectId::ZERO,
            split_guid: 0,
            splitting: Vec::new(),
        }
    }
}

/// A pool's identity. Locked for a few instructions at a time, never across an await.
pub struct Identity(Mutex<Pairs>);

impl Identity {
    /// Of a pool with these pairs.
    pub fn new(pairs: Pairs) -> Self {
        Identity(Mutex::new(pairs))
    }

    /// The pairs, to read or to change them.
    pub fn lock(&self) -> MutexGuard<'_, Pairs> {
        self.0.lock()
    }

    /// Name shown to people.
    pub fn name(&self) -> String {
        self.lock().name.clone()
    }

    /// Has the configuration written with the next transaction group.
    pub fn mark_dirty(&self) {
        self.lock().dirty = true;
    }

    /// Whether the transaction group that is being written has a new configuration.
    pub fn has_changed(&self) -> bool {
        self.lock().changed
    }

    /// Writes the configuration to the MOS when it changed; it goes to the labels at the end of the
    /// transaction group.
    async fn sync(&self, pass: &Pass<'_>) -> Result<(), PoolError> {
        let wanted = {
            let mut pairs = self.lock();
            let anew = std::mem::take(&mut pairs.dirty);
            pairs.changed |= anew;
            // In pass 1 what was written before the sync tasks may be stale. In later passes only
            // news is written: else the MOS would be dirty for ever.
            anew || pairs.changed && pass.is_first()
        };
        if !wanted {
            return Ok(());
        }
        self.make_vdev_zaps(pass).await?;
        let spa = pass.spa;
        let pairs = spa.pairs(pass.ctx.txg);
        let list = pairs.mos_config(&spa.tree.to_config(Scope::Mos));
        let object = self.lock().object;
        let mut packed = list.encode(NvEncoding::Xdr)?;
        let length = packed.len() as u64;
        packed.resize(
            packed.len().next_multiple_of(CONFIG_BLOCK_BYTES as usize),
            0,
        );
        let object = spa.dsl.mos().hold(object).await?;
        object.write(pass.tx, 0, Bytes::from(packed)).await?;
        object.set_bonus(pass.tx, length.to_le_bytes().to_vec())?;
        Ok(())
    }

    /// Makes the ZAPs of vdevs that have none (`vdev_construct_zaps`): of the root (with feature
    /// `vdev_zaps_v2`), of every top-level vdev and of every leaf; all listed in one more ZAP.
    async fn make_vdev_zaps(&self, pass: &Pass<'_>) -> Result<(), PoolError> {
        let (spa, ctx, tx) = (pass.spa, pass.ctx, pass.tx);
        let mos = spa.dsl.mos();
        let known = self.lock().all_vdev_zaps;
        let all = if known.is_zero() {
            let zap = Zap::create(mos, tx, ZapOptions::new(ObjectType::OTN_ZAP_METADATA)).await?;
            let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
            directory
                .update_u64(tx, directory::VDEV_ZAP_MAP, zap.id().get())
                .await?;
            // Those there are, where the list was lost.
            let mut listed = Vec::new();
            config::for_each(&spa.tree.to_config(Scope::Mos), &mut |vdev| {
                let zaps = [config::ROOT_ZAP, config::TOP_ZAP, config::LEAF_ZAP];
                let zaps = zaps.iter().filter_map(|pair| vdev.u64(pair));
                listed.extend(zaps.filter(|id| *id != 0));
            });
            for id in listed {
                zap.add_int(tx, id, id).await?;
            }
            self.lock().all_vdev_zaps = zap.id();
            zap
        } else {
            Zap::hold(mos, known).await?
        };
        let with_root = spa.dsl.features().is_enabled(features::VDEV_ZAPS_V2);
        let root = spa.tree.to_config(Scope::Mos);
        for want in config::missing_zaps(&root, with_root) {
            let zap = Zap::create(mos, tx, ZapOptions::new(ObjectType::OTN_ZAP_METADATA)).await?;
            all.add_int(tx, zap.id().get(), zap.id().get()).await?;
            if want.pair == config::ROOT_ZAP
                && !spa.dsl.features().is_active(features::VDEV_ZAPS_V2)
            {
                spa.dsl
                    .features()
                    .increment(ctx, features::VDEV_ZAPS_V2)
                    .await?;
            }
            if want.pair == config::TOP_ZAP && want.kind == "draid" {
                spa.dsl.features().increment(ctx, features::DRAID).await?;
            }
            if let Some(bias) = &want.allocation_bias {
                zap.add(tx, directory::ALLOCATION_BIAS, ZapValue::from_str_z(bias))
                    .await?;
                spa.props
                    .note_vdev_text(zap.id(), directory::ALLOCATION_BIAS, bias);
                if matches!(bias.as_str(), "special" | "dedup") {
                    let features = spa.dsl.features();
                    features
                        .increment(ctx, features::ALLOCATION_CLASSES)
                        .await?;
                }
            }
            match spa.tree.find(Guid::new(want.guid)) {
                Some(vdev) => vdev.set_config(want.pair, zap.id().get()),
                None => spa.tree.set_root_config(want.pair, zap.id().get()),
            }
            if let Some(top) = want.top {
                spa.space.set_top_zap(top, zap.id());
            }
        }
        Ok(())
    }
}

/// Makes long gang headers a feature of the pool when a block wanted one (`zio_update_feature`,
/// module/zfs/zio.c). The labels name it from this txg on, in which the first may be written.
async fn widen_gangs(pass: &Pass<'_>) -> Result<(), PoolError> {
    let (features, gangs) = (pass.spa.dsl.features(), pass.spa.pipeline.wide_gangs());
    let feature = features::DYNAMIC_GANG_HEADER;
    if gangs.are_wanted() && features.is_enabled(feature) && !features.is_active(feature) {
        features.increment(pass.ctx, feature).await?;
        gangs.write();
    }
    Ok(())
}

impl Participant for Identity {
    fn has_work(&self, _spa: &Spa) -> bool {
        self.lock().dirty
    }

    fn early<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            widen_gangs(pass).await?;
            self.sync(pass).await
        })
    }

    fn pass<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        if pass.is_first() && pass.spa.dsl.features().take_label_change() {
            self.mark_dirty();
        }
        Box::pin(self.sync(pass))
    }

    fn done(&self, _spa: &Spa, _txg: Txg, _wrote: bool) {
        self.lock().changed = false;
    }
}
