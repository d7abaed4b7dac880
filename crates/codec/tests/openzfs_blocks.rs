//! Blocks that OpenZFS 2.3.2 wrote (in the golden pool `plain`), as they are on disk.
//!
//! `vectors/mixed.KIND` is one file's block, padded, compressed with each kind;
//! `vectors/dnodes.KIND` are blocks of dnodes with each checksum that has a key, and sha512. Sums
//! are as `zdb -dddddd` shows them.

use codec::checksum::{self, Salt};
use codec::compress;
use format::{Checksum, Compression, Endian};

/// The file's length; its block is padded to sectors.
const MIXED_BYTES: usize = 66_700;
const MIXED_BLOCK_BYTES: usize = 0x10600;
/// SHA-256 of the file, as the pool's manifest has it.
const MIXED_SHA256: [u64; 4] = [
    0x8b475fd2578d2144,
    0x7b240bfe5c807277,
    0x8ee9aea530cb2a0b,
    0x119c36ea4139b0a1,
];

#[test]
fn compressed_blocks_of_openzfs_are_read() {
    let blocks: [(Compression, &[u8], [u64; 4]); 9] = [
        (
            Compression::Lz4,
            include_bytes!("vectors/mixed.lz4"),
            [
                0xe85d20dd46,
                0x000101fd1c07e053,
                0x00c3dc1626ca9693,
                0x76aba31bd3e74854,
            ],
        ),
        (
            Compression::Gzip(1),
            include_bytes!("vectors/mixed.gzip-1"),
            [
                0x100902d2325,
                0x000187b4ed68300c,
                0x0152c8e3b11c0048,
                0xd52c0c0bfb84fa7f,
            ],
        ),
        (
            Compression::Gzip(6),
            include_bytes!("vectors/mixed.gzip-6"),
            [
                0xd5ae39fd79,
                0x0000f3f5cca8f012,
                0x00a4caa6bcb28949,
                0x52acd97ef53ee442,
            ],
        ),
        (
            Compression::Lzjb,
            include_bytes!("vectors/mixed.lzjb"),
            [
                0x205a45ce434,
                0x00049339cfeb6470,
                0x067fdfcd1268bd8b,
                0x10d66fe1092e451f,
            ],
        ),
        (
            Compression::Zstd,
            include_bytes!("vectors/mixed.zstd"),
            [
                0xca1559bfd9,
                0x0000f55ccb27b601,
                0x00ab69c86f65aadc,
                0x576bbafb253d12d0,
            ],
        ),
        (
            Compression::Zstd,
            include_bytes!("vectors/mixed.zstd-1"),
            [
                0xcb9f108ba6,
                0x0000f68619e7c77d,
                0x00adeec0cba4b555,
                0x59c74e8e448d8e14,
            ],
        ),
        (
            Compression::Zstd,
            include_bytes!("vectors/mixed.zstd-19"),
            [
                0xc5cb6b0916,
                0x0000fb08186b22ee,
                0x00b37d9b2ad8a2ef,
                0x5cd6e4297f23bfe5,
            ],
        ),
        (
            Compression::Zstd,
            include_bytes!("vectors/mixed.zstd-fast-10"),
            [
                0xf13e484dbb,
                0x0001481336302fca,
                0x010b570f754d8d65,
                0xa3051749d7985e58,
            ],
        ),
        (
            Compression::Zstd,
            include_bytes!("vectors/mixed.zstd-fast-1000"),
            [
                0x18c138bbd13,
                0x0003089e5c79519f,
                0x04071392662b8431,
                0x0bfb64e6224b8e7f,
            ],
        ),
    ];
    for (kind, block, fletcher4) in blocks {
        checksum::verify(Checksum::Fletcher4, Endian::Little, block, None, &fletcher4).unwrap();
        let data = compress::decompress(kind, block, MIXED_BLOCK_BYTES).unwrap();
        let (file, padding) = data.split_at(MIXED_BYTES);
        let sum = checksum::compute(Checksum::Sha256, Endian::Little, file, None).unwrap();
        assert_eq!(sum, MIXED_SHA256, "{kind}");
        assert!(padding.iter().all(|byte| *byte == 0));
    }
    let header = |block: &[u8]| compress::zstd_header(block).map(|(level, _)| level.to_string());
    for (block, level) in [
        (&include_bytes!("vectors/mixed.zstd")[..], "zstd-3"),
        (include_bytes!("vectors/mixed.zstd-19"), "zstd-19"),
        (
            include_bytes!("vectors/mixed.zstd-fast-1000"),
            "zstd-fast-1000",
        ),
    ] {
        assert_eq!(header(block).as_deref(), Some(level));
    }
}

#[test]
fn salted_checksums_of_openzfs_are_verified() {
    // `org.illumos:checksum_salt` of the pool.
    let salt = Salt::new([
        0x8c, 0x87, 0x17, 0x69, 0xb7, 0x1b, 0x67, 0xee, 0x1e, 0x07, 0x26, 0x19, 0x86, 0x46, 0x2f,
        0x2a, 0x3d, 0x65, 0x9e, 0xe3, 0x19, 0x74, 0xf3, 0xf2, 0x56, 0xdd, 0xa5, 0x11, 0x5b, 0x54,
        0xaa, 0x74,
    ]);
    let blocks: [(Checksum, &[u8; 1024], [u64; 4]); 4] = [
        (
            Checksum::Skein,
            include_bytes!("vectors/dnodes.skein"),
            [
                0xa072aeb27ea0a56a,
                0x190c61a855ff1624,
                0xf3807423d4abf0d0,
                0xd0ddb46c1cf5fde4,
            ],
        ),
        (
            Checksum::EdonR,
            include_bytes!("vectors/dnodes.edonr"),
            [
                0x9f2ba13be3bbd091,
                0x9035e1129fda83ae,
                0xfed317e1ed2f21fb,
                0xd813dcf523dbc6c7,
            ],
        ),
        (
            Checksum::Blake3,
            include_bytes!("vectors/dnodes.blake3"),
            [
                0xdfbc1b7fd6c447af,
                0x79ab4a909fe4d02e,
                0xbb0c199642ad06b8,
                0x97461e80f5f09b5d,
            ],
        ),
        (
            Checksum::Sha512,
            include_bytes!("vectors/dnodes.sha512"),
            [
                0x5b82ebf18b0bbdb1,
                0x2c16fb7182923596,
                0xbca20e267dcc4d00,
                0xf259469d1b56b0d4,
            ],
        ),
    ];
    for (kind, block, sum) in blocks {
        checksum::verify(kind, Endian::Little, block, Some(&salt), &sum).unwrap();
        // Dnodes are compressed with lz4.
        compress::decompress(Compression::Lz4, block, 16384).unwrap();
    }
}
