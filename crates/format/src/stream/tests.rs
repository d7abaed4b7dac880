use proptest::prelude::*;

use super::*;

fn crypts() -> impl Strategy<Value = StreamCrypt> {
    any::<([u8; 8], [u8; 12], [u8; 16])>().prop_map(|(salt, iv, mac)| StreamCrypt { salt, iv, mac })
}

fn ranges() -> impl Strategy<Value = Range> {
    any::<[u64; 4]>().prop_map(|[object, offset_bytes, length_bytes, to_guid]| Range {
        object,
        offset_bytes,
        length_bytes,
        to_guid,
    })
}

fn begins() -> impl Strategy<Value = Record> {
    let numbers = any::<([u64; 4], [u32; 2])>();
    (numbers, 0..BEGIN_PAYLOAD_BYTES_MAX, "[a-z/@]{0,255}").prop_map(
        |(([features, creation, to, from], [kind, flags]), payload_bytes, to_name)| {
            Record::Begin(Box::new(Begin {
                header: HeaderKind::from_code(features & 3),
                features: StreamFeatures(features >> 8),
                creation_time_seconds: creation,
                objset_kind: kind,
                flags,
                to_guid: Guid::new(to),
                from_guid: Guid::new(from),
                to_name,
                payload_bytes,
            }))
        },
    )
}

fn writes() -> impl Strategy<Value = Record> {
    (any::<([u64; 5], u32, [u8; 3], [u64; 5])>(), crypts()).prop_map(
        |(([object, offset, logical, to, compressed], object_type, bytes, key), crypt)| {
            Record::Write(Box::new(Write {
                object,
                object_type,
                offset_bytes: offset,
                logical_bytes: logical % (MAX_BLOCK_BYTES + 1),
                to_guid: to,
                checksum: bytes[0],
                flags: bytes[1],
                compression: bytes[2],
                key,
                compressed_bytes: compressed % (MAX_BLOCK_BYTES + 1),
                crypt,
            }))
        },
    )
}

fn spills() -> impl Strategy<Value = Record> {
    (any::<([u64; 4], u32, [u8; 2])>(), crypts()).prop_map(
        |(([object, length, to, compressed], object_type, bytes), crypt)| {
            Record::Spill(Box::new(Spill {
                object,
                length_bytes: length % (MAX_BLOCK_BYTES + 1),
                to_guid: to,
                flags: bytes[0],
                compression: bytes[1],
                compressed_bytes: compressed % (MAX_BLOCK_BYTES + 1),
                crypt,
                object_type,
            }))
        },
    )
}

fn objects() -> impl Strategy<Value = Record> {
    any::<([u64; 3], [u32; 4], [u8; 7])>().prop_map(|([object, to, last], words, bytes)| {
        Record::Object(Object {
            object,
            object_type: words[0],
            bonus_type: words[1],
            block_bytes: words[2],
            bonus_bytes: words[3] % 16_000,
            checksum: bytes[0],
            compression: bytes[1],
            slots: bytes[2],
            flags: bytes[3],
            raw_bonus_bytes: words[0] % 16_000,
            to_guid: to,
            indirect_shift: bytes[4],
            levels: bytes[5],
            pointers: bytes[6],
            last_block: last,
        })
    })
}

fn embedded() -> impl Strategy<Value = Record> {
    (ranges(), any::<[u8; 2]>(), any::<u32>(), 0..=112u32).prop_map(
        |(range, bytes, logical_bytes, physical_bytes)| {
            Record::WriteEmbedded(WriteEmbedded {
                object: range.object,
                offset_bytes: range.offset_bytes,
                length_bytes: range.length_bytes,
                to_guid: range.to_guid,
                compression: bytes[0],
                kind: bytes[1],
                logical_bytes,
                physical_bytes,
            })
        },
    )
}

fn records() -> impl Strategy<Value = Record> {
    let free = any::<[u64; 3]>();
    let end = any::<([u64; 4], u64)>();
    let dnodes = (any::<[u64; 3]>(), crypts(), any::<u8>());
    prop_oneof![
        begins(),
        objects(),
        free.prop_map(|[first, count, to_guid]| Record::FreeObjects {
            first,
            count,
            to_guid
        }),
        writes(),
        ranges().prop_map(Record::Free),
        ranges().prop_map(Record::Redact),
        end.prop_map(|(checksum, to_guid)| Record::End { checksum, to_guid }),
        Just(Record::WriteByRef),
        spills(),
        embedded(),
        dnodes.prop_map(|([first, slots, to_guid], crypt, flags)| {
            Record::ObjectRange(ObjectRange {
                first,
                slots,
                to_guid,
                crypt,
                flags,
            })
        }),
    ]
}

proptest! {
    #[test]
    fn records_come_back_in_both_byte_orders(record in records()) {
        for endian in [Endian::Little, Endian::Big] {
            let bytes = record.encode_as(endian);
            prop_assert_eq!(&Record::decode(&bytes, endian).expect("it decodes"), &record);
            if matches!(record, Record::Begin(_)) {
                prop_assert_eq!(stream_endian(&bytes), Ok(endian));
            } else {
                prop_assert_eq!(Record::checksum(&bytes, endian), None);
            }
            let length = endian.u32([bytes[4], bytes[5], bytes[6], bytes[7]]);
            prop_assert_eq!(record.payload_bytes().expect("it fits"), length as usize);
        }
    }

    #[test]
    fn salt_and_iv_are_the_same_bytes_in_both_byte_orders(crypt in crypts()) {
        for endian in [Endian::Little, Endian::Big] {
            prop_assert_eq!(crypt.params(endian).to_bytes(endian), (crypt.salt, crypt.iv));
        }
    }
}

#[test]
fn what_is_no_record_is_refused() {
    let mut bytes = [0; RECORD_BYTES];
    assert!(stream_endian(&bytes).is_err());
    bytes[0] = 11;
    assert!(Record::decode(&bytes, Endian::Little).is_err());
    let write = Record::Write(Box::new(Write {
        logical_bytes: MAX_BLOCK_BYTES + 1,
        ..Write::default()
    }));
    assert!(write.payload_bytes().is_err());
    let object = Record::Object(Object {
        bonus_bytes: u32::MAX,
        ..Object::default()
    });
    assert!(object.payload_bytes().is_err());
}
