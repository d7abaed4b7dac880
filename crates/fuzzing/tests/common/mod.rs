//! Seeds for fuzzing: blocks of golden pools by the decoder that they are for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use codec::compress::{ZstdLevel, compress};
use device::World;
use format::{
    BlockPointer, ByteswapKind, Compression, Dva, Endian, L2DeviceHeader, L2Entry, L2LogBlock,
    L2LogPointer, LogAcl, LogAttributes, LogBody, LogCreate, LogCreateKind, LogObject, LogRecord,
    LogRename, LogSetAttributes, LogWhiteout, LogWrite, ObjectId, ObjectType, RenameKind, Txg,
    VdevId, ZapBlockKind,
};
use object::{ObjectSet, Written};
use pool::{HostIdentity, ImportSpec, Pool, ScanSpec};

/// Seeds of one target.
const SEEDS_MAX: usize = 24;
/// Objects of one object set that are looked at.
const OBJECTS_MAX: usize = 400;

/// Seeds by target.
pub type Seeds = BTreeMap<&'static str, BTreeSet<Vec<u8>>>;

fn keep(seeds: &mut Seeds, target: &'static str, bytes: &[u8]) {
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    let bytes = &bytes[..end.next_multiple_of(64).min(bytes.len())];
    let all = seeds.entry(target).or_default();
    if !bytes.is_empty() && bytes.len() <= fuzzing::INPUT_BYTES_MAX && all.len() < SEEDS_MAX {
        all.insert(bytes.to_vec());
    }
}

/// Blocks whose length matters.
fn keep_whole(seeds: &mut Seeds, target: &'static str, bytes: &[u8]) {
    let all = seeds.entry(target).or_default();
    if bytes.len() <= fuzzing::INPUT_BYTES_MAX && all.len() < SEEDS_MAX {
        all.insert(bytes.to_vec());
    }
}

/// What programs of other hosts and of this one print, and texts that people hand over.
pub fn texts(seeds: &mut Seeds) {
    for lines in [
        "VAR ups ups.status \"OL CHRG\"\nVAR ups battery.charge \"87.5\"\n",
        "BEGIN LIST UPS\nUPS ups \"say \\\"hi\\\"\"\nEND LIST UPS\nERR UNKNOWN-UPS\n",
    ] {
        keep_whole(seeds, "ups", lines.as_bytes());
    }
    let list = "tank/a\tfilesystem\t1\t10\t-\t-\ntank/a@late\tsnapshot\t3\t30\t1\t-\n\
                tank/a@early one\tsnapshot\t2\t20\t0\t-\ntank/b\tvolume\t4\t40\t-\t1-c-d-e\n";
    keep_whole(seeds, "zfs_list", list.as_bytes());
    for json in [
        r#"{"smartctl":{"exit_status":4,"messages":[{"string":"Read failed","severity":"error"}]},
            "model_name":"X","serial_number":"1","smart_status":{"passed":true},
            "temperature":{"current":35},"power_on_time":{"hours":1000},
            "ata_smart_attributes":{"table":[{"id":5,"name":"Reallocated_Sector_Ct","value":100,
            "raw":{"value":7,"string":"7"}},{"id":231,"name":"SSD_Life_Left","value":90,
            "raw":{"value":0}}]},"ata_smart_self_test_log":{"extended":{"table":[{"type":
            {"value":1,"string":"Short offline"},"status":{"value":0,"passed":true},
            "lifetime_hours":900,"lba":7}]}}}"#,
        r#"{"smartctl":{"exit_status":2},"power_mode":{"ata_value":0,"string":"STANDBY"},
            "nvme_smart_health_information_log":{"percentage_used":3,"media_errors":1,
            "available_spare":99},"scsi_error_counter_log":{"read":
            {"total_uncorrected_errors":2}},"nvme_self_test_log":{"table":[{}]}}"#,
    ] {
        keep_whole(seeds, "smartctl", json.as_bytes());
    }
    let token = dataset::ResumeToken {
        to_guid: format::Guid::new(7),
        to_name: "tank/a@s".to_owned(),
        from_guid: Some(format::Guid::new(6)),
        object: 5,
        offset_bytes: 1 << 17,
        stream_bytes: 1 << 20,
        ..dataset::ResumeToken::default()
    };
    keep_whole(seeds, "resume_token", token.encode().as_bytes());
    // A POSIX list: version 2, then owner, a user, group, mask and others; one of entries of twelve
    // bytes; and a time and a mode as attributes.
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [(1u16, 6u16, u32::MAX), (2, 4, 7), (4, 4, u32::MAX)] {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&permissions.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    keep_whole(seeds, "access_lists", &list);
    keep_whole(seeds, "access_lists", &[0; 48]);
    let mode = [&[5, 8][..], &0o100_644u64.to_le_bytes(), &[0, 16], &[1; 16]];
    keep_whole(seeds, "access_lists", &mode.concat());
    cache_device(seeds);
}

/// The header of a cache device, and a log block that names two blocks.
fn cache_device(seeds: &mut Seeds) {
    let payload = (5 << 20, 96 << 10);
    let pointer = L2LogPointer::new(6 << 20, payload, 8 << 10, Compression::Lz4, [1, 2, 3, 4]);
    let header = L2DeviceHeader {
        version: L2DeviceHeader::VERSION,
        log_entries: 1022,
        end_bytes: 1 << 30,
        newest: [pointer, L2LogPointer::default()],
        ..L2DeviceHeader::default()
    };
    keep_whole(seeds, "cache_device", &header.encode(0));
    let entry = |number: u64| L2Entry {
        dva: Dva::new(VdevId::new(1), number << 20, 8 << 10, false).expect("it fits"),
        birth: Txg::new(number),
        offset_bytes: number << 13,
        logical_bytes: 128 << 10,
        stored_bytes: 8 << 10,
        compression: Compression::Zstd,
        level: 3,
        metadata: number > 1,
        protected: true,
        prefetched: false,
        state: 1,
    };
    let block = L2LogBlock {
        previous: pointer,
        entries: vec![entry(1), entry(2)],
    };
    keep_whole(seeds, "cache_device", &block.encode()[..256]);
}

/// Records of the intent log, some of each form.
pub fn log_records(seeds: &mut Seeds) {
    let object = ObjectId::new(128);
    let acl = LogAcl {
        count: 1,
        flags: 2,
        entries: &[1; 12],
        fuids: vec![1 << 32 | 7],
        domains: vec![b"S-1-5"],
    };
    let attributes = LogAttributes {
        bitmap: vec![0x4_0040, 0, 0],
        attributes: 0x40,
        create_time: [3, 4],
        scan_stamp: LogAttributes::stamp_of_project(7),
    };
    let create = LogCreate {
        kind: LogCreateKind::File,
        directory: ObjectId::new(34),
        object: LogObject {
            object,
            dnode_slots: 2,
        },
        mode: 0o100_644,
        uid: 1000,
        gid: 100,
        generation: 77,
        create_time: [1, 2],
        rdev: 0,
        attributes: None,
        acl: None,
        domains: Vec::new(),
        name: b"file",
        target: b"",
    };
    let rename = |kind| LogRename {
        kind,
        source_directory: ObjectId::new(34),
        target_directory: ObjectId::new(35),
        source: b"a",
        target: b"bb",
    };
    let bodies = [
        LogBody::Create(Box::new(LogCreate {
            uid: 1 << 32,
            domains: vec![b"S-1"],
            ..create.clone()
        })),
        LogBody::Create(Box::new(LogCreate {
            kind: LogCreateKind::Symlink,
            target: b"to/there",
            ..create.clone()
        })),
        LogBody::Create(Box::new(LogCreate {
            attributes: Some(attributes.clone()),
            acl: Some(acl.clone()),
            ..create
        })),
        LogBody::Rename(rename(RenameKind::Exchange)),
        LogBody::Rename(rename(RenameKind::Whiteout(LogWhiteout {
            object: LogObject {
                object,
                dnode_slots: 1,
            },
            mode: 0o20_000,
            uid: 0,
            gid: 0,
            generation: 77,
            create_time: [5, 6],
            rdev: 0,
        }))),
        LogBody::Write(LogWrite {
            data: Some(b"water"),
            ..LogWrite::new(object, 4096, 5)
        }),
        LogBody::WriteSize(LogWrite::new(object, 4096, 5)),
        LogBody::SetAttributes(Box::new(LogSetAttributes {
            object,
            mask: LogSetAttributes::UID | LogSetAttributes::SIZE,
            mode: 0,
            uid: 1 << 32,
            gid: 2 << 32,
            size: 10,
            access_time: [1, 2],
            modify_time: [3, 4],
            attributes: Some(attributes),
            domains: vec![b"one"],
        })),
        LogBody::Acl { object, acl },
        LogBody::AclV0 {
            object,
            count: 1,
            entries: &[2; 12],
        },
        LogBody::SetXattr {
            object,
            name: b"user.x",
            value: b"y",
        },
        LogBody::CloneRange {
            object,
            offset: 0,
            length: 1 << 17,
            block_bytes: 1 << 17,
            blocks: vec![BlockPointer::from_words([3; 16]); 2].into(),
        },
    ];
    for (sequence, body) in (1..).zip(bodies) {
        let record = LogRecord {
            txg: Txg::new(77),
            sequence,
            case_insensitive: false,
            body,
        };
        let record = record.encode().expect("a record");
        keep_whole(seeds, "log_block", &record);
    }
}

/// Calls as clients of NFS send them, their arguments, and policies: seeds that no pool has.
pub fn network(seeds: &mut Seeds) {
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_be_bytes()).collect() };
    // A handle of a file; a name; attributes with a mode; a lock's owner and range.
    let handle = words(&[28, 0x0100_0000, 1, 2, 0, 34, 0, 5]);
    let name = [&words(&[4])[..], b"name"].concat();
    let set = words(&[1, 0o644, 0, 0, 0, 0, 2, 7, 8]);
    let entry = [&handle[..], &name].concat();
    let owner = [&name[..], &handle, &name, &words(&[9, 0, 0, 0, 10])].concat();
    let bodies: [(u32, u32, u32, Vec<u8>); 12] = [
        (100_003, 3, 1, handle.clone()),
        (
            100_003,
            3,
            2,
            [&handle[..], &set, &words(&[1, 2, 3])].concat(),
        ),
        (100_003, 3, 3, entry.clone()),
        (
            100_003,
            3,
            6,
            [&handle[..], &words(&[0, 4096, 1 << 20])].concat(),
        ),
        (
            100_003,
            3,
            7,
            [&handle[..], &words(&[0, 0, 4, 0]), &name].concat(),
        ),
        (100_003, 3, 8, [&entry[..], &words(&[0]), &set].concat()),
        (
            100_003,
            3,
            11,
            [&entry[..], &words(&[3]), &set, &words(&[8, 1])].concat(),
        ),
        (100_003, 3, 14, [&entry[..], &entry].concat()),
        (
            100_003,
            3,
            17,
            [&handle[..], &words(&[0, 3, 0, 0, 512, 4096])].concat(),
        ),
        (100_005, 3, 1, name.clone()),
        (
            100_021,
            4,
            2,
            [&name[..], &words(&[1, 1]), &owner, &words(&[0, 1])].concat(),
        ),
        (100_000, 2, 3, words(&[100_003, 3, 6, 0])),
    ];
    for (program, version, procedure, body) in bodies {
        let credential = words(&[1, 24, 0, 0, 1000, 100, 1, 4]);
        let call = words(&[7, 0, 2, program, version, procedure]);
        let call = [&call[..], &credential, &words(&[0, 0]), &body].concat();
        let mark = words(&[call.len() as u32 | 1 << 31]);
        keep_whole(seeds, "nfs_records", &[&mark[..], &call].concat());
        keep_whole(
            seeds,
            "nfs_arguments",
            &[&[procedure as u8], &body[..]].concat(),
        );
    }
    // SEQUENCE, PUTROOTFH, LOOKUP, OPEN of a file that is made, WRITE, GETATTR.
    let state = [1, 0, 0, 0];
    let compound = [
        words(&[0, 1, 6, 53, 1, 2, 3, 4, 1, 0, 0, 1, 24, 15]),
        name,
        words(&[
            18,
            0,
            3,
            0,
            0,
            0,
            1,
            7 << 24,
            1,
            0,
            2,
            0,
            2,
            4,
            0o644,
            0,
            1,
            0x6100_0000,
        ]),
        words(&[38]),
        words(&state),
        words(&[0, 0, 2, 4, 0x6162_6364, 9, 2, 0x0010_011a, 0x00b0_a23a]),
    ];
    keep_whole(seeds, "nfs_compound", &compound.concat());
    for policy in [
        "on",
        "rw=@10.0.0.0/8:[2001:db8::]/32:host,ro=192.168.0.1",
        "ro,root=10.0.0.1,all_squash,anonuid=7,anongid=8,insecure,sec=sys",
    ] {
        keep_whole(seeds, "sharenfs", policy.as_bytes());
    }
}

/// Takes seeds out of some golden pools.
pub async fn extract(golden: &Path) -> Seeds {
    let mut seeds = Seeds::new();
    let world = World::system(2);
    for name in [
        "nofeat",
        "mirror3",
        "zil_dirty",
        "v28",
        "removed",
        "draid",
        "raidz_expanded",
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        oracles::unpack(golden, name, dir.path());
        let spec = ScanSpec {
            paths: vec![dir.path().join(name).to_str().expect("UTF-8").to_owned()],
            ..ScanSpec::default()
        };
        let found = pool::scan(&world, &spec).await.expect("scan").remove(0);
        for path in found.paths.values() {
            let device = world.opener.open(path, true).await.expect("a device");
            let label = device.read(16 << 10, 112 << 10).await.expect("a label");
            // Without the checksum at its end.
            keep(&mut seeds, "label", &label[..label.len() - 40]);
            keep(&mut seeds, "vdev_tree", &label[..label.len() - 40]);
            let ring = device.read(128 << 10, 128 << 10).await.expect("a ring");
            for slot in ring.chunks(4096) {
                keep_whole(&mut seeds, "uberblock", &slot[..1024]);
            }
        }
        let mut spec = ImportSpec::new(found, HostIdentity::default());
        spec.read_only = true;
        spec.force = true;
        let pool = Pool::import(&world, spec).await.expect("import");
        take(pool.dsl().mos(), &mut seeds).await;
        let dataset = pool
            .dsl()
            .open_dataset(&pool.dsl().pool_name())
            .await
            .expect("a dataset");
        take(dataset.objset(), &mut seeds).await;
        drop(dataset);
        pool.export(false).await.expect("close");
    }
    by_hand(&mut seeds);
    seeds
}

async fn take(objset: &std::sync::Arc<ObjectSet>, seeds: &mut Seeds) {
    let root = objset.root();
    let context = zio::ReadContext::new(format::Bookmark::default());
    let block = objset
        .pipeline()
        .read(&root, &context)
        .await
        .expect("a root");
    keep_whole(seeds, "objset", &block);
    let meta = objset.hold(ObjectId::META_DNODE).await.expect("dnodes");
    for block in 0..3 {
        if let Ok(dnodes) = meta.read_bytes(block << 14, 16 << 10).await {
            keep_whole(seeds, "dnode", &dnodes);
        }
    }
    let mut after = None;
    for _ in 0..OBJECTS_MAX {
        let Some(id) = objset.next_object(after).await.expect("objects") else {
            break;
        };
        after = Some(id);
        let object = objset.hold(id).await.expect("an object");
        let info = object.info();
        let bonus = object.bonus();
        match info.bonus_type {
            ObjectType::DSL_DIR | ObjectType::DSL_DATASET => keep_whole(seeds, "dsl", &bonus),
            ObjectType::BPOBJ_HDR => keep_whole(seeds, "block_lists", &bonus),
            ObjectType::SPACE_MAP_HEADER => keep_whole(seeds, "space_map", &bonus),
            ObjectType::ZNODE => keep_whole(seeds, "znode", &bonus),
            ObjectType::SA => {
                // The layout of most files.
                let layout: Vec<u8> = vec![5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19];
                let seed = [&[layout.len() as u8], &layout[..], &bonus].concat();
                keep_whole(seeds, "system_attributes", &seed);
            }
            _ => {}
        }
        let mut at = 0;
        for _ in 0..3 {
            let Written::Block { start_bytes } = object.next_written(at).await else {
                break;
            };
            let length = object.data_block_bytes();
            at = start_bytes + length;
            if let Ok(pointer) = object.block_pointer(start_bytes / length).await {
                keep_whole(seeds, "block_pointer", &pointer.encode());
                keep_whole(seeds, "gang_header", &[&pointer.encode()[..]; 4].concat());
            }
            let Ok(data) = object.read_bytes(start_bytes, length as usize).await else {
                continue;
            };
            match info.object_type {
                ObjectType::PACKED_NVLIST => {
                    keep(seeds, "nvlist", &data);
                    keep(seeds, "vdev_tree", &data);
                }
                // The type of removed devices' mappings (`DMU_OTN_UINT64_METADATA`).
                ObjectType::OTN_UINT64_METADATA => keep(seeds, "indirect_map", &data),
                ObjectType::SPA_HISTORY => keep(seeds, "history", &data),
                ObjectType::SPACE_MAP => keep(seeds, "space_map", &data),
                kind if kind.byteswap() == ByteswapKind::Zap => {
                    match ZapBlockKind::of(&data, Endian::Little) {
                        Ok(ZapBlockKind::Micro) => keep_whole(seeds, "zap_micro", &data),
                        Ok(ZapBlockKind::Header) => keep_whole(seeds, "zap_fat", &data),
                        Ok(_) => keep_whole(seeds, "zap_leaf", &data),
                        Err(_) => {}
                    }
                }
                _ => {}
            }
            for (target, kind) in [
                ("lz4", Compression::Lz4),
                ("lzjb", Compression::Lzjb),
                ("zle", Compression::Zle),
                ("gzip", Compression::Gzip(6)),
                ("zstd", Compression::Zstd),
            ] {
                let data = &data[..data.len().min(32 << 10)];
                let level = ZstdLevel::default();
                if let Ok(Some(packed)) = compress(kind, level, data, data.len()) {
                    let length = ((data.len() / 8) as u16).to_le_bytes();
                    keep_whole(seeds, target, &[&length[..], &packed].concat());
                }
            }
        }
    }
}

/// What golden pools do not hold in the form that the target takes.
fn by_hand(seeds: &mut Seeds) {
    // A login request with text, and a WRITE (10).
    let text = b"InitiatorName=iqn.2024-01.org.example:a\0SessionType=Normal\0";
    let mut login = vec![0; 48];
    login[0] = 0x43;
    login[1] = 0x87;
    login[7] = text.len() as u8;
    login.extend_from_slice(text);
    login.resize(login.len().next_multiple_of(4), 0);
    keep_whole(seeds, "iscsi", &login);
    let mut command = vec![0; 48];
    command[0] = 0x01;
    command[1] = 0xa0;
    command[32] = 0x2a;
    command[40] = 8;
    keep_whole(seeds, "iscsi", &command);
    keep_whole(seeds, "iscsi", &command[32..]);
    // Registering others: an action, then a list with one TransportID; and what is stored of one.
    let mut list = vec![0; 29];
    list[21] = 0x08;
    list[28] = 24;
    list.extend_from_slice(&[0x45, 0, 0, 20]);
    list.extend_from_slice(b"i,i,0x000000000001\0\0");
    keep_whole(seeds, "iscsi", &list);
    keep_whole(
        seeds,
        "iscsi",
        b"\x001 5 000000000000000a,000000000001,iqn.x%20y,h",
    );
    // A copy of eight blocks, from and to the unit itself.
    let mut copy = vec![0; 16 + 28];
    copy[11] = 28;
    copy[16] = 0x02;
    copy[19] = 24;
    copy[20..24].fill(0xff);
    copy[27] = 8;
    keep_whole(seeds, "iscsi", &copy);
    // A log block of the older kind, a record of 64 bytes before its link.
    let mut log = vec![0; 4096];
    log[0] = 9;
    log[8] = 192;
    log[4096 - 192 + 128 + 8] = 192;
    keep_whole(seeds, "log_block", &log);
    keep_whole(seeds, "log_block", &log[..192]);
    for length in [64, 72, 256] {
        keep_whole(seeds, "dedup", &vec![1; length]);
    }
}
