//! Layouts against numbers worked out by hand from OpenZFS's headers, round trips, and hostile
//! bytes, for the structures that are not tested in their own modules.

mod blocks;
mod hostile;
mod pool;

use super::*;

fn swapped(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out.as_chunks_mut::<8>()
        .0
        .iter_mut()
        .for_each(|word| word.reverse());
    out
}

fn dva(vdev: u32, offset: u64, asize: u64) -> Option<Dva> {
    Some(Dva::new(VdevId::new(vdev), offset, asize, false).unwrap())
}

fn block() -> RegularPointer {
    RegularPointer {
        dvas: [dva(1, 0x1_2000, 0x1000), dva(2, 0x3_4000, 0x1000), None],
        lsize_bytes: 128 << 10,
        psize_bytes: 4096,
        compression: Compression::Lz4,
        checksum_kind: Checksum::Fletcher4,
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        level: 0,
        dedup: false,
        uses_crypt: false,
        rewritten: false,
        endian: Endian::Little,
        fill: 1,
        logical_birth: Txg::new(10),
        physical_birth: Txg::new(10),
        checksum: [1, 2, 3, 4],
        crypt: None,
    }
}
