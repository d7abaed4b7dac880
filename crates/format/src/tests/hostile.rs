//! Any bytes: they decode or fail, and what decodes keeps its bits.

use super::pool::read_all;
use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_block_pointer_keeps_its_bits(words in any::<[u64; 16]>()) {
        let pointer = BlockPointer::from_words(words);
        let again = BlockPointer::decode(&pointer.encode(), Endian::Little);
        prop_assert_eq!(again.words(), &words);
        let _ = (pointer.validate(), pointer.to_string(), pointer.asize_bytes());
        // What a valid pointer says can be said again.
        if pointer.validate().is_ok() {
            match pointer.decoded() {
                Pointer::Regular(block) if block.dvas[0].is_some() => {
                    let made = BlockPointer::regular(&block).unwrap();
                    prop_assert_eq!(made.decoded(), pointer.decoded());
                }
                Pointer::Embedded(e) if e.kind == EmbeddedKind::Data => {
                    let made = BlockPointer::embedded(
                        e.payload(), e.lsize_bytes, e.compression, e.object_type, e.level, e.birth,
                    ).unwrap();
                    let Pointer::Embedded(back) = made.decoded() else { panic!("not embedded") };
                    prop_assert_eq!(back.payload(), e.payload());
                }
                _ => {}
            }
        }
    }

    #[test]
    fn any_dnode_that_decodes_encodes_to_the_same(
        mut bytes in proptest::collection::vec(any::<u8>(), 1024),
        head in (1u8..54, 9u8..25, 1u8..13, 1u8..4, 0u8..8, 0u8..2),
    ) {
        (bytes[0], bytes[1], bytes[2], bytes[3], bytes[7], bytes[12]) = head;
        bytes[11] &= 1;
        for endian in [Endian::Little, Endian::Big] {
            if let Ok(dnode) = DnodePhys::decode(&bytes, endian) {
                let again = dnode.encode().unwrap();
                let back = DnodePhys::decode(&again, Endian::Little).unwrap();
                prop_assert_eq!(&back, &dnode);
                if endian == Endian::Little {
                    let bonus_end = 64 + dnode.pointers.len() * 128 + dnode.bonus.len();
                    prop_assert_eq!(&again[..bonus_end], &bytes[..bonus_end]);
                }
            }
        }
    }

    #[test]
    fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..700)) {
        for endian in [Endian::Little, Endian::Big] {
            let _ = BlockPointer::decode_slice(&bytes, endian);
            let _ = BlockPointer::decode_all(&bytes, endian).count();
            let _ = DnodePhys::decode(&bytes, endian);
            let _ = ObjsetPhys::decode(&bytes.repeat(8), endian);
            let _ = ZilHeader::decode(&bytes, endian);
            let _ = SpaceMapPhys::decode(&bytes, endian);
            let _ = BpobjPhys::decode(&bytes, endian);
            let _ = DslDirPhys::decode(&bytes, endian);
            let _ = DslDatasetPhys::decode(&bytes, endian);
            let _ = DeadlistPhys::decode(&bytes, endian);
            let _ = BptreeEntry::decode(&bytes, endian);
            let _ = ScanPhys::decode(&bytes, endian);
            let _ = DdtPhys::decode(&bytes, endian);
            let _ = DdtLogRecord::decode(&bytes, endian);
            let _ = DdtLogHeader::decode(&bytes, endian);
            let _ = BrtVdevPhys::decode(&bytes, endian);
            let _ = IndirectMappingEntry::decode(&bytes, endian);
            let _ = decode_gang_header(&bytes, endian);
            let _ = ZnodePhys::decode(&bytes, endian);
            let _ = ZnodeAcl::decode(&bytes, endian);
            let _ = Ace::decode_all(&bytes, 9, endian);
            let _ = ZapBlockKind::of(&bytes, endian);
        }
        let _ = Uberblock::decode(&bytes);
        let _ = Eck::decode_tail(&bytes);
        let _ = decode_history_record(&bytes);
        let _ = read_all(SpaceMapRange::LOG, &bytes, 128);
    }
}
