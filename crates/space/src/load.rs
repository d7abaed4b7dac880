//! Reading what is recorded: at import, and metaslab by metaslab when the allocator asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use device::BoxFuture;
use format::{ObjectId, Txg, VdevId};
use futures::{StreamExt, TryStreamExt};
use object::{Object, ObjectError, ObjectSet, SpaceMapEntry, SpaceMapObject, Zap};
use vdev::RangeSet;
use zio::ZioError;
use zio::alloc::MetaslabSource;

use crate::{MAP_BLOCK_BYTES, Recorded, Space, Top, TopShape, damaged, names};

/// Space maps opened at the same time at import.
const OPENS_IN_FLIGHT: usize = 32;

impl Space {
    /// Opens a pool's space maps and reads its logs; returns what is recorded of each metaslab.
    pub async fn open(
        &self,
        mos: &Arc<ObjectSet>,
        shapes: &[TopShape],
    ) -> Result<Vec<Recorded>, ObjectError> {
        *self.mos.lock() = Some(mos.clone());
        for shape in shapes {
            let top = self.open_top(mos, *shape).await?;
            self.tops.lock().insert(shape.vdev, Arc::new(top));
        }
        self.open_logs(mos).await?;
        let mut out = Vec::new();
        let tops: Vec<Arc<Top>> = self.tops.lock().values().cloned().collect();
        for top in tops {
            for (index, slot) in top.metaslabs.iter().enumerate() {
                let metaslab = slot.lock().await;
                let recorded = metaslab
                    .map
                    .as_ref()
                    .map_or(0, SpaceMapObject::allocated_bytes);
                let now = recorded + metaslab.allocs.space() as i64 - metaslab.frees.space() as i64;
                let span = top.span(index as u64);
                let size = (span.end - span.start) as i64;
                if !(0..=size).contains(&now) {
                    return Err(damaged(
                        metaslab
                            .map
                            .as_ref()
                            .map_or(ObjectId::ZERO, SpaceMapObject::id),
                        format!(
                            "metaslab {index} of vdev {} has {now} bytes allocated of {size}",
                            top.shape.vdev
                        ),
                    ));
                }
                let histogram = metaslab
                    .map
                    .as_ref()
                    .map(|map| unfold_histogram(&map.histogram(), top.shape.ashift));
                out.push(Recorded {
                    id: (top.shape.vdev, index as u64),
                    allocated_bytes: now as u64,
                    histogram,
                });
            }
        }
        Ok(out)
    }

    async fn open_top(&self, mos: &Arc<ObjectSet>, shape: TopShape) -> Result<Top, ObjectError> {
        let mut top = Top::new(shape);
        if !shape.ms_array.is_zero() {
            let array = mos.hold(shape.ms_array).await?;
            let numbers = read_u64s(&array, shape.ms_count).await?;
            // Owned items: a stream of references would not be `Send` for every lifetime.
            let used: Vec<(usize, u64)> = numbers
                .into_iter()
                .enumerate()
                .filter(|(_, number)| *number != 0)
                .collect();
            let maps: Vec<(usize, SpaceMapObject)> = futures::stream::iter(used)
                .map(|(index, number)| async move {
                    let map = SpaceMapObject::open(
                        mos,
                        ObjectId::new(number),
                        shape.span(index as u64).start,
                        shape.span(index as u64).end - shape.span(index as u64).start,
                        shape.ashift,
                    )
                    .await?;
                    Ok::<_, ObjectError>((index, map))
                })
                .buffer_unordered(OPENS_IN_FLIGHT)
                .try_collect()
                .await?;
            for (index, map) in maps {
                let slot = Arc::get_mut(&mut top.metaslabs[index]);
                slot.expect("nobody else has it yet").get_mut().map = Some(map);
            }
            *top.array.get_mut() = Some(array);
        }
        if !shape.top_zap.is_zero() {
            let zap = Zap::hold(mos, shape.top_zap).await?;
            if let Some(id) = zap.lookup_u64(names::MS_UNFLUSHED_PHYS_TXGS).await? {
                let object = mos.hold(ObjectId::new(id)).await?;
                let txgs = read_u64s(&object, shape.ms_count).await?;
                let mut book = self.book.lock();
                for (index, txg) in txgs.iter().enumerate().filter(|(_, txg)| **txg != 0) {
                    book.set_flushed((shape.vdev, index as u64), Txg::new(*txg), false);
                }
                drop(book);
                *top.flush_txgs.get_mut() = Some(object);
            }
            if let Some(id) = zap.lookup_u64(names::CHECKPOINT_SPACE_MAP).await? {
                let map = crate::open_checkpoint(mos, ObjectId::new(id), &shape).await?;
                *top.checkpoint.get_mut() = Some(map);
            }
        }
        Ok(top)
    }

    async fn open_logs(&self, mos: &Arc<ObjectSet>) -> Result<(), ObjectError> {
        let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        let Some(id) = directory.lookup_u64(names::LOG_SPACEMAP_ZAP).await? else {
            return Ok(());
        };
        let id = ObjectId::new(id);
        *self.log_zap.lock() = Some(id);
        let mut logs = BTreeMap::new();
        for entry in Zap::hold(mos, id).await?.all().await? {
            let txg = std::str::from_utf8(&entry.name)
                .ok()
                .and_then(|name| u64::from_str_radix(name, 16).ok())
                .ok_or_else(|| damaged(id, "a log's name is no number".into()))?;
            let object = entry
                .value
                .as_u64()
                .ok_or_else(|| damaged(id, "a log has no object".into()))?;
            logs.insert(Txg::new(txg), ObjectId::new(object));
        }
        for (txg, object) in logs {
            let map = SpaceMapObject::open(mos, object, 0, u64::MAX, 9).await?;
            let blocks = map.length_bytes().div_ceil(u64::from(MAP_BLOCK_BYTES));
            self.book.lock().add_log(txg, object, blocks);
            map.for_each(map.length_bytes(), &mut |entry| {
                self.take_log_entry(object, txg, &entry)
            })
            .await?;
        }
        if let Some((metaslab, txg)) = self.book.lock().orphan() {
            return Err(damaged(
                id,
                format!("metaslab {metaslab:?} needs the log of txg {txg}, which is gone"),
            ));
        }
        Ok(())
    }

    /// Does what an entry of the log of `txg` says; entries of removed vdevs are nobody's any more
    /// (`spa_ld_log_sm_cb`, module/zfs/spa_log_spacemap.c). For a pool that is being opened.
    fn take_log_entry(
        &self,
        log: ObjectId,
        txg: Txg,
        entry: &SpaceMapEntry,
    ) -> Result<(), ObjectError> {
        let vdev = entry
            .vdev
            .ok_or_else(|| damaged(log, "an entry names no vdev".into()))?;
        let Some(top) = self.top(vdev) else {
            return Ok(());
        };
        let span = entry.offset_bytes..entry.offset_bytes.saturating_add(entry.length_bytes);
        let index = span.start >> top.shape.ms_shift;
        let slot = usize::try_from(index)
            .ok()
            .and_then(|index| top.metaslabs.get(index))
            .filter(|_| {
                let inside = top.span(index);
                inside.start <= span.start && span.end <= inside.end
            })
            .ok_or_else(|| {
                let what = format!("bytes {span:?} are in no metaslab of vdev {vdev}");
                damaged(log, what)
            })?;
        let metaslab_id = (vdev, index);
        let flushed = self.book.lock().flushed(metaslab_id);
        if flushed.is_some_and(|flushed| txg < flushed.txg) {
            return Ok(());
        }
        let mut metaslab = (slot.try_lock()).expect("nobody allocates while the pool is opened");
        self.apply(
            &mut metaslab,
            entry.kind,
            [(span.start, entry.length_bytes)],
        );
        self.book.lock().set_dirty(metaslab_id);
        Ok(())
    }
}

impl MetaslabSource for Space {
    fn load(&self, vdev: VdevId, metaslab: u64) -> BoxFuture<'_, Result<RangeSet, ZioError>> {
        Box::pin(async move {
            let failed = |cause: String| ZioError::MetaslabLoad {
                vdev,
                metaslab,
                cause,
            };
            let top = self
                .top(vdev)
                .ok_or(ZioError::Vdev(vdev::VdevError::NoSuchVdev { vdev }))?;
            let slot = usize::try_from(metaslab)
                .ok()
                .and_then(|index| top.metaslabs.get(index))
                .ok_or_else(|| failed("there is no such metaslab".into()))?;
            let locked = slot.lock().await;
            Self::free_ranges(&top, metaslab, &locked)
                .await
                .map_err(|error| failed(error.to_string()))
        })
    }
}

/// The other way round.
fn unfold_histogram(buckets: &[u64], shift: u8) -> [u64; 64] {
    let mut sizes = [0; 64];
    for (size, count) in sizes.iter_mut().skip(usize::from(shift)).zip(buckets) {
        *size = *count;
    }
    sizes
}

async fn read_u64s(object: &Object, count: u64) -> Result<Vec<u64>, ObjectError> {
    let raw = object.read_bytes(0, (count * 8) as usize).await?;
    Ok(raw
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect())
}
