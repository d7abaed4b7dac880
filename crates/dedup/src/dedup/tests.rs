//! Values as ZAPs hold them, and names. The rest is tested on whole pools (`tests/dedup.rs`, and in
//! crate `sim`).

use format::{DdtKey, DdtLogRecord, DdtPlace, Dva, Endian, Txg, VdevId};

use super::flush::beyond;
use super::log::Logged;
use super::*;

fn place(references: u64) -> DdtPlace {
    let dva = Dva::new(VdevId::new(1), 1 << 20, 4096, false).unwrap();
    DdtPlace {
        words: [dva.to_words(), [0; 2], [u64::MAX, 7]],
        references,
        physical_birth: Txg::new(9),
    }
}

#[test]
fn values_survive_their_compression() {
    let flat = DdtPhys::Flat {
        place: place(3),
        class_start_seconds: 1_700_000_000,
    };
    let mut old = DdtPhys::empty(false);
    old.places_mut()[2] = place(1);
    for (value, is_flat) in [(flat, true), (old, false), (DdtPhys::empty(false), false)] {
        let stored = encode_value(&value);
        assert_eq!(stored.integer_bytes, 1);
        let found = decode_value(ObjectId::new(5), &stored.data, is_flat).unwrap();
        assert_eq!(found, value);
        assert!(decode_value(ObjectId::new(5), &stored.data, !is_flat).is_err() || !is_flat);
    }
}

#[test]
fn damaged_values_are_errors() {
    let id = ObjectId::new(5);
    for stored in [
        &[][..],
        &[0x8e],
        &[0x8e, 1, 2, 3],
        &[0x82; 20],
        &[0x8f; 200],
    ] {
        for flat in [true, false] {
            assert!(decode_value(id, stored, flat).is_err(), "{stored:?}");
        }
    }
}

#[test]
fn records_say_in_which_zap_an_entry_is() {
    let key = DdtKey::from_words([1, 2, 3, 4, 5]);
    let classes = DdtClass::ALL.map(Some);
    for class in classes.into_iter().chain([None]) {
        let value = DdtPhys::Flat {
            place: place(2),
            class_start_seconds: 9,
        };
        let logged = Logged { class, value };
        let record = logged.record(key);
        let (found, length) = DdtLogRecord::decode(&record.encode(), Endian::Little)
            .unwrap()
            .unwrap();
        assert_eq!((length, &found), (120, &record));
        assert_eq!(Logged::of_record(found), logged);
    }
}

#[test]
fn a_step_ends_where_it_has_too_many_leaves() {
    // Two in each of eight leaves.
    let keys: Vec<[u64; 5]> = (0..16)
        .map(|number: u64| [number << 60, 0, 0, 0, 0])
        .collect();
    assert_eq!(beyond(&keys, 8, 8), None);
    assert_eq!(beyond(&keys, 8, 3), Some(keys[6]));
    assert_eq!(beyond(&keys, 0, 1), None);
}

#[test]
fn names_are_those_of_openzfs() {
    assert_eq!(
        zap_name(Checksum::Sha256, DdtClass::Duplicate),
        "DDT-sha256-zap-duplicate"
    );
    assert_eq!(directory_name(Checksum::EdonR), "DDT-edonr");
    for checksum in CHECKSUMS {
        assert_eq!(Checksum::from_code(checksum.code()), checksum);
        assert!(checksum.has_dedup_table());
    }
}
