use super::*;
use crate::ids::{ObjectId, Txg};
use proptest::prelude::*;

fn record(body: LogBody<'_>) -> LogRecord<'_> {
    LogRecord {
        txg: Txg::new(77),
        sequence: 5,
        case_insensitive: false,
        body,
    }
}

fn create(kind: LogCreateKind) -> LogCreate<'static> {
    LogCreate {
        kind,
        directory: ObjectId::new(34),
        object: LogObject {
            object: ObjectId::new(128),
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
    }
}

fn attributes() -> LogAttributes {
    LogAttributes {
        bitmap: vec![0, 1 << 3, 0],
        attributes: 9,
        create_time: [3, 4],
        scan_stamp: [7; 32],
    }
}

fn acl() -> LogAcl<'static> {
    LogAcl {
        count: 1,
        flags: 2,
        entries: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        fuids: vec![1 << 32 | 7],
        domains: vec![b"S-1-5"],
    }
}

fn all_bodies() -> Vec<LogBody<'static>> {
    let object = ObjectId::new(128);
    let directory = ObjectId::new(34);
    let rename = |kind| {
        LogBody::Rename(LogRename {
            kind,
            source_directory: directory,
            target_directory: object,
            source: b"a",
            target: b"bb",
        })
    };
    let write = |data| LogWrite {
        object,
        offset: 4096,
        length: 5,
        block_offset: 0,
        block: BlockPointer::HOLE,
        data,
    };
    let with = |change: fn(&mut LogCreate<'static>)| {
        let mut out = create(LogCreateKind::File);
        change(&mut out);
        LogBody::Create(Box::new(out))
    };
    let set = |attributes| {
        LogBody::SetAttributes(Box::new(LogSetAttributes {
            object,
            mask: if Option::is_some(&attributes) {
                7 | 1 << 31
            } else {
                15
            },
            mode: 0o600,
            uid: 1 << 32,
            gid: 2 << 32,
            size: 10,
            access_time: [1, 2],
            modify_time: [3, 4],
            attributes,
            domains: vec![b"one", b"two"],
        }))
    };
    vec![
        LogBody::Commit,
        with(|_| {}),
        with(|c| c.kind = LogCreateKind::Directory),
        with(|c| {
            c.kind = LogCreateKind::XattrDirectory;
            c.name = b"";
        }),
        with(|c| {
            c.kind = LogCreateKind::Symlink;
            c.target = b"to/there";
        }),
        LogBody::Remove {
            directory,
            name: b"gone",
            is_directory: false,
        },
        LogBody::Remove {
            directory,
            name: b"gone",
            is_directory: true,
        },
        LogBody::Link {
            directory,
            object,
            name: b"again",
        },
        rename(RenameKind::Plain),
        LogBody::Write(write(Some(b"water"))),
        LogBody::Truncate {
            object,
            offset: 1,
            length: 2,
        },
        set(None),
        LogBody::AclV0 {
            object,
            count: 1,
            entries: &[1, 2, 3, 4, 5, 6, 7, 8],
        },
        LogBody::Acl { object, acl: acl() },
        with(|c| c.acl = Some(acl())),
        with(|c| c.attributes = Some(attributes())),
        with(|c| {
            c.acl = Some(acl());
            c.attributes = Some(attributes());
        }),
        with(|c| {
            c.kind = LogCreateKind::Directory;
            c.acl = Some(acl());
        }),
        with(|c| {
            c.kind = LogCreateKind::Directory;
            c.attributes = Some(attributes());
            c.uid = 1 << 32;
            c.domains = vec![b"S-1"];
        }),
        with(|c| {
            c.kind = LogCreateKind::Directory;
            c.acl = Some(acl());
            c.attributes = Some(attributes());
        }),
        LogBody::WriteSize(write(None)),
        LogBody::SetXattr {
            object,
            name: b"user.x",
            value: b"y",
        },
        rename(RenameKind::Exchange),
        rename(RenameKind::Whiteout(LogWhiteout {
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
        })),
        LogBody::CloneRange {
            object,
            offset: 0,
            length: 1 << 17,
            block_bytes: 1 << 17,
            blocks: vec![BlockPointer::from_words([3; 16]); 2].into(),
        },
        set(Some(attributes())),
        LogBody::Write(write(None)),
    ]
}

#[test]
fn every_record_round_trips() {
    for (index, body) in all_bodies().into_iter().enumerate() {
        if index <= 24 {
            assert_eq!(body.kind().code(), index as u64);
        }
        let record = record(body);
        let bytes = record.encode().unwrap();
        assert!(bytes.len().is_multiple_of(8));
        let (back, length) = LogRecord::decode(&bytes, Endian::Little).unwrap();
        assert_eq!(length, bytes.len());
        // ACLs of version 0 and extended data keep what fills up the record.
        assert_eq!(back, record, "type {index}");
        for cut in 0..bytes.len() {
            assert!(LogRecord::decode(&bytes[..cut], Endian::Little).is_err());
        }
    }
}

#[test]
fn fixed_parts_have_openzfs_s_sizes() {
    // sizeof lr_write_t, lr_truncate_t, lr_setattr_t, and lr_create_t + "file\0" filled up.
    let bodies = all_bodies();
    let size = |index: usize| record(bodies[index].clone()).encode().unwrap().len();
    assert_eq!(size(26), 192);
    assert_eq!(size(10), 56);
    assert_eq!(size(11), 112 + 8);
    assert_eq!(size(1), 104 + 8);
    assert_eq!(size(24), 72 + 256);
    assert_eq!(ZilLink::BYTES, 8 + 128 + 8 + 40);
}

#[test]
fn slots_of_a_dnode_are_in_the_object_number() {
    let bytes = record(all_bodies().remove(1)).encode().unwrap();
    assert_eq!(bytes[40..48], [128, 0, 0, 0, 0, 0, 0, 1]);
}

/// Ids that a record does not set say nothing, whatever stands there: no domain follows.
#[test]
fn ids_that_are_not_set_have_no_domains() {
    let set = |mask, domains| {
        let Some(LogBody::SetAttributes(set)) = all_bodies().into_iter().nth(11) else {
            panic!("a record of attributes");
        };
        LogBody::SetAttributes(Box::new(LogSetAttributes {
            mask,
            domains,
            ..*set
        }))
    };
    for (mask, domains) in [
        (LogSetAttributes::MODE, vec![]),
        (LogSetAttributes::UID, vec![&b"one"[..]]),
        (LogSetAttributes::GID, vec![&b"two"[..]]),
    ] {
        let body = set(mask, domains);
        let bytes = body.encode().unwrap();
        let back = LogBody::decode(&bytes, LogKind::SetAttr, Endian::Little);
        assert_eq!(back, Ok(body), "{mask}");
    }
    assert!(set(LogSetAttributes::MODE, vec![b"one"]).encode().is_err());
}

/// Older releases of Millpond logged ids with a domain without the domain's name.
#[test]
fn creations_without_the_names_of_domains_are_read() {
    for (kind, name) in [
        (LogCreateKind::File, "file"),
        (LogCreateKind::Directory, "file"),
        (LogCreateKind::XattrDirectory, ""),
    ] {
        let create = LogCreate {
            name: name.as_bytes(),
            ..create(kind)
        };
        let mut bytes = LogBody::Create(Box::new(create.clone())).encode().unwrap();
        // The group is the fifth word.
        bytes[32..40].copy_from_slice(&(3u64 << 32 | 7).to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let expected = LogBody::Create(Box::new(LogCreate {
            gid: 3 << 32 | 7,
            ..create
        }));
        let back = LogBody::decode(&bytes, expected.kind(), Endian::Little);
        assert_eq!(back.as_ref(), Ok(&expected));
        assert!(expected.encode().is_err(), "the name would be missing");
    }
}

/// A record of a write that its group has already may end anywhere behind its pointer.
#[test]
fn data_behind_a_size_is_passed_over() {
    let write = LogWrite::new(ObjectId::new(5), 4096, 100);
    let mut bytes = LogBody::WriteSize(write).encode().unwrap();
    bytes.extend_from_slice(&[7; 8]);
    let back = LogBody::decode(&bytes, LogKind::Write2, Endian::Little);
    assert_eq!(back, Ok(LogBody::WriteSize(write)));
    assert!(LogBody::decode(&bytes, LogKind::Write, Endian::Little).is_err());
}

#[test]
fn projects_are_in_the_byte_order_of_their_record() {
    let attributes = LogAttributes {
        scan_stamp: LogAttributes::stamp_of_project(77),
        ..attributes()
    };
    assert_eq!(attributes.project(Endian::Little), 77);
    assert_eq!(attributes.project(Endian::Big), 77 << 56);
}

#[test]
fn log_blocks_of_both_kinds_are_read() {
    let mut records = Vec::new();
    for body in all_bodies() {
        records.extend(record(body).encode().unwrap());
    }
    let next = BlockPointer::from_words([9; 16]);
    let used_bytes = ZilLink::BYTES + records.len();
    let mut block = vec![0; ZilLink::BYTES];
    block.extend_from_slice(&records);
    block.resize(8192, 0);
    link_log_block(&mut block, &next, used_bytes, [1, 2, 3, 4]).unwrap();
    let (link, found) = decode_log_block(&block, Checksum::Zilog2).unwrap();
    assert_eq!((link.next, link.eck), (next, Eck::new([1, 2, 3, 4])));
    assert_eq!(found, records);
    assert_eq!(
        LogRecords::new(found, link.eck.endian).count(),
        all_bodies().len()
    );
    assert!(LogRecords::new(found, link.eck.endian).all(|record| record.is_ok()));

    let mut old = records.clone();
    old.resize(8192 - ZilLink::BYTES, 0);
    old.extend(
        ZilLink {
            used_bytes: records.len() as u64,
            ..link
        }
        .encode(),
    );
    assert_eq!(decode_log_block(&old, Checksum::Zilog).unwrap().1, records);
    assert!(decode_log_block(&block, Checksum::Fletcher4).is_err());
    for (length, used_bytes) in [(512, 513), (100, 100)] {
        let short = &mut vec![0; length];
        assert!(link_log_block(short, &next, used_bytes, [0; 4]).is_err());
    }
    let sequence = ZilSequence::from_checksum([1, 2, 3, 4]);
    assert_eq!(sequence.next().checksum(), [1, 2, 3, 5]);
}

#[test]
fn contradictions_are_refused() {
    let write = LogWrite {
        object: ObjectId::new(1),
        offset: 0,
        length: 4,
        block_offset: 0,
        block: BlockPointer::HOLE,
        data: Some(b"water"),
    };
    assert!(record(LogBody::Write(write)).encode().is_err());
    let mut named = create(LogCreateKind::File);
    named.name = b"a\0b";
    assert!(record(LogBody::Create(Box::new(named))).encode().is_err());
    let mut foreign = create(LogCreateKind::File);
    foreign.uid = 1 << 32;
    assert!(record(LogBody::Create(Box::new(foreign))).encode().is_err());
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(
        mut bytes in proptest::collection::vec(any::<u8>(), 32..400),
        kind in 0u64..26,
        big: bool,
    ) {
        let endian = if big { Endian::Big } else { Endian::Little };
        let length = bytes.len() as u64;
        bytes[..8].copy_from_slice(&endian.u64_bytes(kind));
        bytes[8..16].copy_from_slice(&endian.u64_bytes(length));
        if let Ok((record, _)) = LogRecord::decode(&bytes, endian) {
            let _ = record.encode();
        }
        let _ = decode_log_block(&bytes, Checksum::Zilog2);
        let _ = decode_log_block(&bytes, Checksum::Zilog);
    }

    #[test]
    fn damaged_records_decode_or_fail(which in 0usize..27, at in 32usize..300, value: u8) {
        let mut bytes = record(all_bodies().remove(which)).encode().unwrap();
        let at = at % bytes.len();
        bytes[at] = value;
        for record in LogRecords::new(&bytes, Endian::Little).flatten() {
            let _ = record.encode();
        }
    }
}

#[test]
fn kinds_have_their_codes() {
    for code in 0..30 {
        let kind = LogKind::from_code(code);
        assert_eq!(kind.code(), code);
        assert_eq!(kind == LogKind::Unknown(code), code >= 25, "{kind:?}");
    }
    // TX_ACL, TX_MKDIR_ACL_ATTR, TX_CLONE_RANGE (include/sys/zil.h).
    assert_eq!(LogKind::Acl.code(), 13);
    assert_eq!(LogKind::MkdirAclAttr.code(), 19);
    assert_eq!(LogKind::CloneRange.code(), 24);
}

/// What callers take from records that they do not decode is where the codec puts it.
#[test]
fn parts_of_records_are_found_without_decoding_them() {
    let mut found = 0;
    for body in all_bodies() {
        let bytes = record(body.clone()).encode().unwrap();
        let header = LogHeader::decode(&bytes, Endian::Little).unwrap();
        assert_eq!(
            (header.kind, header.length_bytes),
            (body.kind(), bytes.len())
        );
        assert_eq!(header.encode(Endian::Little), bytes[..LogHeader::BYTES]);
        let raw = &bytes[LogHeader::BYTES..];
        match body {
            LogBody::Write(write) => {
                let (pointer, is_elsewhere) = LogWriteBody::pointer(raw, Endian::Little).unwrap();
                assert_eq!((pointer, is_elsewhere), (write.block, write.data.is_none()));
                let own = LogWriteBody::encode(&write);
                assert_eq!(own, raw[..LogWriteBody::BYTES]);
                assert_eq!(log_word(&own, 2, Endian::Little), Some(write.length));
                found += 1;
            }
            LogBody::CloneRange { blocks, .. } => {
                let listed: Vec<_> = LogCloneBody::pointers(raw, Endian::Little).collect();
                assert_eq!(listed, *blocks);
                found += 1;
            }
            LogBody::Create(create) => {
                let object = log_object(raw, 1, Endian::Little);
                assert_eq!(object, Some(create.object.object));
                assert!(header.kind.makes_object());
                found += 1;
            }
            _ => assert!(!header.kind.makes_object()),
        }
    }
    assert!(found > 10, "{found}");
}
