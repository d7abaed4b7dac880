//! Logs that OpenZFS left behind at a power cut: every record is read and understood, and they tell
//! of everything that is in the tree at the cut and not in the tree without replay.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use device::World;
use format::{
    BlockPointer, DslDatasetPhys, DslDirPhys, Endian, Guid, LogBody, LogKind, NvList, NvValue,
    ObjectId, ObjsetPhys, Txg, ZilHeader, ZilSequence,
};
use object::{ObjectSet, ObjsetOptions, Zap};
use oracles::{golden, unpack};
use serde_json::Value;
use vdev::{IgnoreErrors, OpenOptions, VdevTree, read_labels};
use zio::alloc::{AllFree, Allocator};
use zio::{Cache, Pipeline, PipelineOptions, ReadContext};

use crate::walk::{Chain, read_data};
use crate::{claim, free_chain};

/// The pool over its devices, with its MOS; all space counts as free.
async fn open(dir: &Path) -> (Arc<Pipeline>, Arc<ObjectSet>, Txg) {
    let world = World::system(2);
    let mut tops = Vec::new();
    let (mut pool_guid, mut best) = (0, None);
    let mut options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    for entry in std::fs::read_dir(dir).expect("images") {
        let path = entry
            .expect("an entry")
            .path()
            .to_string_lossy()
            .into_owned();
        let device = world.opener.open(&path, true).await.expect("opens");
        let labels = read_labels(&*device).await.expect("readable");
        let config = labels.config(Txg::new(u64::MAX)).expect("a label");
        let tree = config.list("vdev_tree").expect("a tree").clone();
        pool_guid = config.u64("pool_guid").expect("a pool");
        let guid = Guid::new(config.u64("guid").expect("a guid"));
        options.paths.insert(guid, path);
        tops.push(tree);
        let newest = labels.best_uberblock(Txg::new(u64::MAX)).expect("one");
        if best.is_none_or(|best: format::Uberblock| best.recency() < newest.recency()) {
            best = Some(newest);
        }
    }
    tops.sort_by_key(|top| top.u64("id"));
    options.pool_guid = Some(Guid::new(pool_guid));
    let mut root = NvList::new();
    root.set("type", "root");
    root.set("id", 0u64);
    root.set("guid", pool_guid);
    root.set("children", NvValue::ListArray(tops.clone()));
    let tree = VdevTree::open(world.clone(), &root, options)
        .await
        .expect("the tree opens");
    let allocator = Arc::new(Allocator::new());
    let shift = tops[0].u64("metaslab_shift").expect("a shift") as u32;
    allocator.set_source(Arc::new(AllFree {
        metaslab_shift: shift,
    }));
    for top in tree.tops() {
        allocator.add_top(vdev::TopSpec::of(&top).expect("usable"));
    }
    let pipeline = Pipeline::new(
        world.clone(),
        tree,
        allocator,
        Arc::new(Cache::new(64 << 20)),
        PipelineOptions {
            read_only: true,
            ..PipelineOptions::default()
        },
        Arc::new(IgnoreErrors),
    );
    let best = best.expect("an uberblock");
    let options = ObjsetOptions {
        read_only: true,
        ..ObjsetOptions::default()
    };
    let mos = ObjectSet::open(pipeline.clone(), world, best.root, options)
        .await
        .expect("the MOS opens");
    (pipeline, mos, best.txg)
}

/// Names and root blocks of all live datasets.
async fn heads(mos: &Arc<ObjectSet>, pool: &str) -> Vec<(String, BlockPointer)> {
    let bonus = async |object: u64| {
        let held = mos.hold(ObjectId::new(object)).await.expect("an object");
        held.bonus()
    };
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY)
        .await
        .expect("a directory");
    let root = directory
        .lookup_u64("root_dataset")
        .await
        .expect("reads")
        .expect("a root");
    let mut pending = vec![(pool.to_owned(), root)];
    let mut out = Vec::new();
    while let Some((name, object)) = pending.pop() {
        let dir = DslDirPhys::decode(&bonus(object).await, Endian::Little).expect("a directory");
        if !dir.head_dataset.is_zero() {
            let head = bonus(dir.head_dataset.get()).await;
            let head = DslDatasetPhys::decode(&head, Endian::Little).expect("a dataset");
            out.push((name.clone(), head.block));
        }
        let children = Zap::hold(mos, dir.child_directories)
            .await
            .expect("children");
        for entry in children.all().await.expect("reads") {
            let child = String::from_utf8_lossy(&entry.name).into_owned();
            if !child.starts_with('$') {
                pending.push((
                    format!("{name}/{child}"),
                    entry.value.as_u64().expect("one"),
                ));
            }
        }
    }
    out
}

/// Names that records make or remove.
fn names(body: &LogBody<'_>, out: &mut BTreeSet<Vec<u8>>) {
    match body {
        LogBody::Create(create) => {
            out.insert(create.name.to_vec());
        }
        LogBody::Remove { name, .. } | LogBody::Link { name, .. } => {
            out.insert(name.to_vec());
        }
        LogBody::Rename(rename) => {
            out.insert(rename.source.to_vec());
            out.insert(rename.target.to_vec());
        }
        _ => {}
    }
}

fn paths(tree: &Value) -> BTreeSet<String> {
    tree.as_array()
        .into_iter()
        .flatten()
        .filter_map(|entry| entry["path"].as_str().map(str::to_owned))
        .collect()
}

async fn check(golden: &Path, name: &str) {
    let manifest = std::fs::read(golden.join(format!("{name}.json"))).expect("manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let folder = tempfile::tempdir().expect("a folder");
    let dir = unpack(golden, name, folder.path());
    let (pipeline, mos, synced) = open(&dir).await;
    let first_txg = synced.next();
    let (mut logs, mut kinds) = (0, BTreeSet::new());
    for (dataset, block) in heads(&mos, name).await {
        if block.is_hole() {
            continue;
        }
        let data = pipeline
            .read(
                &block,
                &ReadContext {
                    without_key: true,
                    ..ReadContext::default()
                },
            )
            .await
            .expect("readable");
        let before = ObjsetPhys::decode(&data, block.endian())
            .expect("an objset")
            .zil_header;
        if before.log.is_hole() {
            continue;
        }
        logs += 1;
        let is_encrypted = dataset.ends_with("/enc");
        let mut header = before;
        let claimed = claim(&pipeline, first_txg, first_txg, block.birth(), &mut header)
            .await
            .expect("claims");
        assert!(claimed.records > 0, "{dataset}: {claimed:?}");
        assert!(claimed.newest_birth > synced, "{dataset}");
        assert_eq!(header.claim_txg, first_txg);
        assert_ne!(header.flags & ZilHeader::REPLAY_NEEDED, 0);

        // What was claimed is what is read afterwards, record by record.
        let mut chain = Chain::new(&pipeline, &header);
        let place = ZilSequence::from_checksum(header.log.checksum());
        let (mut records, mut blocks, mut last) = (0, 0, 0);
        let mut told = BTreeSet::new();
        while chain.pointer().is_some() {
            blocks += 1;
            let Ok(found) = chain.read().await else { break };
            for record in found {
                records += 1;
                assert!(last == 0 || record.sequence == last + 1, "{dataset}");
                last = record.sequence;
                assert!(record.txg >= first_txg, "{dataset}: {record:?}");
                if is_encrypted {
                    continue;
                }
                kinds.insert(record.kind);
                let decoded = LogBody::decode(&record.body, record.kind, record.endian);
                let decoded = decoded.expect("a record");
                assert!(
                    !matches!(decoded, LogBody::Unknown { .. } | LogBody::Commit),
                    "{decoded:?}"
                );
                names(&decoded, &mut told);
                if let Some((pointer, true)) = record.write_pointer() {
                    let data = read_data(&pipeline, &record, &pointer, place.objset).await;
                    let data = data.expect("its data");
                    assert!(data.len() as u64 >= pointer.lsize_bytes());
                }
            }
        }
        assert_eq!(
            (records, blocks),
            (claimed.records, claimed.blocks),
            "{dataset}"
        );
        if is_encrypted || dataset.ends_with("/vol") {
            continue;
        }
        let at_cut = paths(&manifest["trees_at_cut"][&dataset]);
        let without = paths(&manifest["trees_without_replay"][&dataset]);
        let changed: Vec<&String> = at_cut.symmetric_difference(&without).collect();
        assert!(changed.len() > 2, "{dataset}: {changed:?}");
        for path in changed {
            // What was moved with its directory has no record of its own.
            let is_told = path.split('/').any(|part| told.contains(part.as_bytes()));
            assert!(is_told, "{dataset}: no record tells of {path}");
        }
        // And it is all given back: claimed space is free again, so that it could be claimed anew.
        free_chain(&pipeline, first_txg, first_txg, &header).await;
    }
    assert_eq!(logs, 8, "logs in {name}");
    for kind in [
        LogKind::Create,
        LogKind::Mkdir,
        LogKind::MkXattr,
        LogKind::Symlink,
        LogKind::Remove,
        LogKind::Rmdir,
        LogKind::Link,
        LogKind::Rename,
        LogKind::Write,
        LogKind::Truncate,
        LogKind::SetAttr,
        LogKind::SetSaXattr,
        LogKind::CloneRange,
    ] {
        assert!(
            kinds.contains(&kind),
            "{name}: no record of kind {kind:?} in {kinds:?}"
        );
    }
}

#[tokio::test]
async fn logs_of_openzfs_are_read() {
    if let Some(golden) = golden() {
        check(&golden, "zil_dirty").await;
    }
}

#[tokio::test]
async fn logs_of_openzfs_on_log_devices_are_read() {
    if let Some(golden) = golden() {
        check(&golden, "zil_dirty_slog").await;
    }
}
