use super::*;
use proptest::prelude::*;

fn every_type() -> NvList {
    let mut inner = NvList::new();
    inner.set("guid", 7u64).set("path", "/dev/sda1");
    let mut list = NvList::new();
    list.push("boolean", NvValue::Boolean)
        .push("true", true)
        .push("byte", NvValue::Byte(0xfe))
        .push("int8", NvValue::Int8(-3))
        .push("uint8", NvValue::UInt8(200))
        .push("int16", NvValue::Int16(-300))
        .push("uint16", NvValue::UInt16(60000))
        .push("int32", -70000i32)
        .push("uint32", 4_000_000_000u32)
        .push("int64", i64::MIN)
        .push("uint64", u64::MAX)
        .push("hrtime", NvValue::HrTime(1))
        .push("double", NvValue::Double(2.5))
        .push("string", "water")
        .push("raw", NvValue::RawString(vec![0xff, 0x41]))
        .push("list", inner.clone())
        .push("booleans", NvValue::BooleanArray(vec![true, false, true]))
        .push("bytes", NvValue::ByteArray(vec![1, 2, 3, 4, 5]))
        .push("int8s", NvValue::Int8Array(vec![-1, 1]))
        .push("uint8s", NvValue::UInt8Array(vec![255, 1, 7]))
        .push("int16s", NvValue::Int16Array(vec![-1, 1]))
        .push("uint16s", NvValue::UInt16Array(vec![65535, 1]))
        .push("int32s", NvValue::Int32Array(vec![-1, 1]))
        .push("uint32s", NvValue::UInt32Array(vec![u32::MAX, 1]))
        .push("int64s", NvValue::Int64Array(vec![-1, 1]))
        .push("uint64s", vec![u64::MAX, 1])
        .push("no uint64s", Vec::<u64>::new())
        .push(
            "strings",
            vec!["a".to_owned(), String::new(), "abcde".to_owned()],
        )
        .push("lists", vec![inner.clone(), NvList::new(), inner]);
    list
}

#[test]
fn every_type_survives_both_encodings() {
    let list = every_type();
    for encoding in [NvEncoding::Xdr, NvEncoding::Native] {
        let bytes = list.encode(encoding).unwrap();
        let (back, length) = NvList::decode_prefix(&bytes).unwrap();
        assert_eq!(back, list, "{encoding:?}");
        assert_eq!(length, bytes.len(), "{encoding:?}");
        // Every cut must be noticed, never read as a shorter list.
        for cut in 0..bytes.len() {
            assert!(
                NvList::decode(&bytes[..cut]).is_err(),
                "{encoding:?} cut at {cut}"
            );
        }
    }
}

#[test]
fn xdr_bytes_are_as_openzfs_packs_them() {
    // One pair "version" = 5000, as at the head of every label.
    let mut list = NvList::new();
    list.set("version", 5000u64);
    #[rustfmt::skip]
    let expected = [
        1, 1, 0, 0, // XDR, little-endian writer
        0, 0, 0, 0, // version of the list
        0, 0, 0, 1, // unique names
        0, 0, 0, 36, // packed size of the pair
        0, 0, 0, 32, // native size: 16 + "version\0", and 8
        0, 0, 0, 7, b'v', b'e', b'r', b's', b'i', b'o', b'n', 0,
        0, 0, 0, 8, 0, 0, 0, 1, // uint64, one element
        0, 0, 0, 0, 0, 0, 0x13, 0x88,
        0, 0, 0, 0, 0, 0, 0, 0, // end
    ];
    assert_eq!(list.encode(NvEncoding::Xdr).unwrap(), expected);
}

#[test]
fn native_bytes_are_as_openzfs_packs_them() {
    let mut list = NvList::new();
    list.set("a", NvList::new());
    #[rustfmt::skip]
    let expected = [
        0, 1, 0, 0,
        0, 0, 0, 0, 1, 0, 0, 0,
        48, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 19, 0, 0, 0,
        b'a', 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, // end of the nested list
        0, 0, 0, 0, // end
    ];
    assert_eq!(list.encode(NvEncoding::Native).unwrap(), expected);
}

#[test]
fn set_replaces_in_place_and_typed_reads_check_the_type() {
    let mut list = NvList::new();
    list.set("a", 1u64).set("b", "x").set("a", 2u64);
    assert_eq!(list.len(), 2);
    assert_eq!(list.iter().next().unwrap().0, "a");
    assert_eq!(list.u64("a"), Some(2));
    assert_eq!(list.u64("b"), None);
    assert!(matches!(
        list.require_u64("b"),
        Err(FormatError::Missing {
            expected: "uint64",
            ..
        })
    ));
    assert_eq!(list.remove("a"), Some(NvValue::UInt64(2)));
    assert!(!list.contains("a"));
}

#[test]
fn hostile_lists_are_refused() {
    let deep = (0..200).fold(NvList::new(), |inner, _| {
        let mut outer = NvList::new();
        outer.set("x", inner);
        outer
    });
    assert!(matches!(
        deep.encode(NvEncoding::Xdr),
        Err(FormatError::TooDeep { .. })
    ));
    assert!(matches!(
        deep.encode(NvEncoding::Native),
        Err(FormatError::TooDeep { .. })
    ));
    let mut zero = NvList::new();
    zero.set("x", "a\0b");
    assert!(matches!(
        zero.encode(NvEncoding::Xdr),
        Err(FormatError::BadText { .. })
    ));
    // A uint64 array that claims 2^32 - 1 elements.
    let mut list = NvList::new();
    list.set("x", vec![1u64]);
    let mut bytes = list.encode(NvEncoding::Xdr).unwrap();
    let at = bytes
        .windows(8)
        .position(|w| w == [0, 0, 0, 16, 0, 0, 0, 1])
        .unwrap();
    bytes[at + 4..at + 12].fill(0xff);
    assert!(matches!(
        NvList::decode(&bytes),
        Err(FormatError::TooShort { .. })
    ));
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = NvList::decode(&bytes);
        if bytes.len() > 4 {
            for encoding in [0, 1] {
                for order in [0, 1] {
                    bytes[0] = encoding;
                    bytes[1] = order;
                    let _ = NvList::decode(&bytes);
                }
            }
        }
    }

    #[test]
    fn damaged_lists_decode_or_fail(at in 0usize..2000, value: u8, xdr: bool) {
        let encoding = if xdr { NvEncoding::Xdr } else { NvEncoding::Native };
        let mut bytes = every_type().encode(encoding).unwrap();
        let at = at % bytes.len();
        bytes[at] = value;
        if let Ok(list) = NvList::decode(&bytes) {
            // What decodes encodes again, and decodes to the same.
            let again = list.encode(encoding).unwrap();
            let back = NvList::decode(&again).unwrap();
            prop_assert_eq!(format!("{back:?}"), format!("{list:?}"));
        }
    }
}

/// As OpenZFS's kernel module reads them: it takes no byte with bits above it.
#[test]
fn bytes_in_xdr_have_zeros_above() {
    let mut list = NvList::new();
    list.push("a", NvValue::UInt8Array(vec![0x80, 0xff]));
    list.push("b", NvValue::Int8(-1));
    let packed = list.encode(NvEncoding::Xdr).expect("encoded");
    assert!(!packed.windows(4).any(|word| word[..3] == [0xff; 3]));
    assert_eq!(NvList::decode(&packed).expect("decoded"), list);
}

#[test]
fn names_that_are_no_text_survive() {
    const NAME: &[u8] = b"user.caf\xe9";
    let mut list = NvList::new();
    list.set("user.x", 1u64);
    list.push_bytes(NAME, NvValue::ByteArray(vec![1, 2, 3]));
    for encoding in [NvEncoding::Native, NvEncoding::Xdr] {
        let packed = list.encode(encoding).expect("encoded");
        let decoded = NvList::decode(&packed).expect("decoded");
        assert_eq!(decoded, list);
        let names: Vec<_> = decoded.iter_bytes().map(|(name, _)| name).collect();
        assert_eq!(names, [b"user.x", NAME]);
        assert_eq!(decoded.iter().count(), 1);
        assert_eq!(decoded.encode(encoding), Ok(packed));
        assert!(decoded.to_string().contains("user.caf\\xe9"));
    }
}

#[test]
fn lists_say_what_they_take_before_they_take_it() {
    let mut list = every_type();
    for _ in 0..1000 {
        list.push("a", NvValue::Boolean);
    }
    list.push("deep", NvValue::ListArray(vec![NvList::new(); 1000]));
    list.push("texts", NvValue::StringArray(vec![String::new(); 1000]));
    for encoding in [NvEncoding::Native, NvEncoding::Xdr] {
        let packed = list.encode(encoding).expect("encoded");
        let mut taken = 0;
        let decoded = NvList::decode_within(&packed, &mut |bytes| {
            taken += bytes;
            true
        });
        assert_eq!(decoded, Ok((list.clone(), packed.len())));
        let least = 1000 * (size_of::<(String, NvValue)>() + size_of::<NvList>());
        assert!(taken >= least, "{taken}");
        for limit in [0, 100, taken / 2, taken - 1] {
            let mut left = limit;
            let decoded = NvList::decode_within(&packed, &mut |bytes| {
                let fits = bytes <= left;
                left = left.saturating_sub(bytes);
                fits
            });
            assert!(
                matches!(decoded, Err(FormatError::NoRoom { .. })),
                "{limit}"
            );
        }
    }
}
