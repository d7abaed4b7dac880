//! Round trips, padding, formats by hand, and hostile input.

use proptest::prelude::*;

use super::*;

fn kinds() -> Vec<Compression> {
    let mut kinds = vec![
        Compression::Lz4,
        Compression::Zstd,
        Compression::Zle,
        Compression::Lzjb,
    ];
    kinds.extend((1..=9).map(Compression::Gzip));
    kinds
}

fn shrink(kind: Compression, data: &[u8]) -> Option<Vec<u8>> {
    pack(kind, data, worthwhile_bytes(data.len()))
}

fn pack(kind: Compression, data: &[u8], output_bytes_max: usize) -> Option<Vec<u8>> {
    compress(kind, ZstdLevel::DEFAULT, data, output_bytes_max).expect("compressors work")
}

/// Text-like data with long runs of zeros, so that every kind shrinks it.
fn compressible(length: usize) -> Vec<u8> {
    let text = b"Every block is checksummed; every checksum is in its parent. ";
    (0..length)
        .map(|at| {
            if at / 700 % 2 == 0 {
                text[at % text.len()]
            } else {
                0
            }
        })
        .collect()
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8 | 1
        })
        .collect()
}

#[test]
fn blocks_come_back_with_and_without_padding() {
    for kind in kinds() {
        for length in [2048, 4096, 10_240, 131_072, 1 << 20] {
            let data = compressible(length);
            let packed = shrink(kind, &data).unwrap_or_else(|| panic!("{kind} {length}"));
            assert!(packed.len() <= worthwhile_bytes(length));
            assert_eq!(decompress(kind, &packed, length).unwrap(), data);
            let mut padded = packed.clone();
            padded.resize(packed.len().next_multiple_of(4096), 0);
            assert_eq!(decompress(kind, &padded, length).unwrap(), data, "{kind}");
        }
    }
}

#[test]
fn what_does_not_shrink_is_left_alone() {
    for kind in kinds() {
        for length in [1, 2, 3, 7, 8, 9, 100, 4096, 131_072] {
            assert_eq!(shrink(kind, &noise(length)), None, "{kind} {length}");
        }
        assert_eq!(shrink(kind, &[]), None);
    }
    for kind in [
        Compression::Off,
        Compression::On,
        Compression::Inherit,
        Compression::Empty,
    ] {
        assert_eq!(shrink(kind, &compressible(4096)), None);
    }
}

#[test]
fn the_same_block_compresses_to_the_same_bytes() {
    let sizes = [4096, 65_534, 65_535, 65_536, 131_072, 512];
    for kind in kinds() {
        let packed = |size: &usize| shrink(kind, &compressible(size + 900)[900..]);
        let first: Vec<_> = sizes.iter().map(packed).collect();
        let again: Vec<_> = sizes.iter().rev().map(packed).collect();
        assert!(first.iter().eq(again.iter().rev()), "{kind}");
        let elsewhere = std::thread::spawn(move || {
            let data = compressible(131_072 + 900);
            shrink(kind, &data[900..])
        });
        assert_eq!(elsewhere.join().unwrap(), first[4], "{kind}");
    }
}

/// What did not fit leaves nothing behind: neither half a frame nor an error that lasts.
#[test]
fn a_block_that_does_not_shrink_leaves_the_next_ones_alone() {
    let text = compressible(131_072);
    for kind in kinds() {
        let before = shrink(kind, &text);
        assert!(before.is_some(), "{kind}");
        for length in [16 << 10, 131_072, 1 << 20] {
            assert_eq!(shrink(kind, &noise(length)), None, "{kind} {length}");
            assert_eq!(shrink(kind, &text), before, "{kind} after {length} bytes");
        }
    }
    // A block of which the output is cut off in the middle, at every level.
    for level in (1..=19).filter_map(ZstdLevel::normal) {
        let packed = || compress(Compression::Zstd, level, &text, text.len()).unwrap();
        let before = packed();
        let cut = compress(Compression::Zstd, level, &noise(131_072), 65_536);
        assert_eq!(cut, Ok(None), "{level}");
        assert_eq!(packed(), before, "{level}");
    }
}

#[test]
fn the_output_never_exceeds_its_bound() {
    for kind in kinds() {
        let data = compressible(8192);
        let whole = pack(kind, &data, 8192).unwrap();
        for bound in [0, 1, 3, 4, 8, 9, whole.len() - 1] {
            let packed = pack(kind, &data, bound);
            assert!(
                packed.is_none_or(|packed| packed.len() <= bound),
                "{kind} {bound}"
            );
        }
        // Zstd and gzip may want room beyond what they end up using.
        if !matches!(kind, Compression::Zstd | Compression::Gzip(_)) {
            let fits = pack(kind, &data, whole.len());
            assert_eq!(fits, Some(whole), "{kind}");
        }
    }
}

#[test]
fn the_biggest_block_works_and_a_bigger_one_is_refused() {
    let data = vec![0; BLOCK_BYTES_MAX];
    for kind in kinds() {
        let packed = shrink(kind, &data).unwrap();
        assert_eq!(decompress(kind, &packed, BLOCK_BYTES_MAX).unwrap(), data);
        assert_eq!(
            decompress(kind, &packed, BLOCK_BYTES_MAX + 1),
            Err(DecompressError::TooLong {
                output_bytes: BLOCK_BYTES_MAX + 1
            })
        );
    }
    assert_eq!(
        shrink(Compression::Lz4, &vec![0; BLOCK_BYTES_MAX + 1]),
        None
    );
}

#[test]
fn the_wrong_length_is_an_error() {
    let data = compressible(4096);
    for kind in kinds() {
        let packed = shrink(kind, &data).unwrap();
        // Shorter is fine for the kinds that know no end of their own.
        if !matches!(kind, Compression::Zle | Compression::Lzjb) {
            assert!(decompress(kind, &packed, 4095).is_err(), "{kind}");
        }
        assert!(decompress(kind, &packed, 4097).is_err(), "{kind}");
        assert!(
            decompress(kind, &packed[..packed.len() - 1], 4096).is_err(),
            "{kind}"
        );
        assert!(decompress(kind, &[], 4096).is_err(), "{kind}");
    }
}

#[test]
fn stored_and_unknown_kinds() {
    assert_eq!(decompress(Compression::Off, b"abcd", 3).unwrap(), b"abc");
    assert!(decompress(Compression::Off, b"abcd", 5).is_err());
    assert_eq!(decompress(Compression::Empty, b"", 5).unwrap(), [0; 5]);
    for kind in [
        Compression::On,
        Compression::Inherit,
        Compression::Unknown(77),
    ] {
        assert_eq!(
            decompress(kind, b"abcd", 4),
            Err(DecompressError::Unsupported { kind })
        );
    }
}

#[test]
fn zle_by_hand() {
    let mut data = vec![1, 2, 0, 3];
    data.extend([0; 200]);
    data.extend([9; 65]);
    // A zero alone stays among literals; 192 is the longest run of zeros, 64 of literals.
    let mut expected = vec![3, 1, 2, 0, 3, 255, 71, 63];
    expected.extend([9; 64]);
    expected.extend([0, 9]);
    let packed = pack(Compression::Zle, &data, 1000).unwrap();
    assert_eq!(packed, expected);
    assert_eq!(
        decompress(Compression::Zle, &packed, data.len()).unwrap(),
        data
    );
    assert_eq!(decompress(Compression::Zle, &[64 + 4], 5).unwrap(), [0; 5]);
}

#[test]
fn lzjb_by_hand() {
    // Three literals, then a match of six bytes three back (overlapping itself), then a literal.
    let packed = [0b0000_1000, b'a', b'b', b'c', 3 << 2, 3, b'!'];
    assert_eq!(
        decompress(Compression::Lzjb, &packed, 10).unwrap(),
        b"abcabcabc!"
    );
    // A match before the beginning.
    assert!(decompress(Compression::Lzjb, &[1, 0, 3], 10).is_err());
    assert!(decompress(Compression::Lzjb, &[2, b'a', 0, 0], 10).is_err());
}

#[test]
fn lz4_by_hand() {
    // Length 6, token "one literal, match of 4+4", literal, distance 1, last literal "b".
    let packed = [0, 0, 0, 6, 0x14, b'a', 1, 0, 0x10, b'b', 0xff, 0xff];
    assert_eq!(
        decompress(Compression::Lz4, &packed, 10).unwrap(),
        b"aaaaaaaaab"
    );
    let mut wrong = packed;
    wrong[3] = 9;
    assert!(decompress(Compression::Lz4, &wrong, 10).is_err());
    wrong[..4].fill(0xff);
    assert!(decompress(Compression::Lz4, &wrong, 10).is_err());
}

#[test]
fn zstd_headers_carry_level_and_version() {
    let data = compressible(131_072);
    let mut levels: Vec<ZstdLevel> = (1..=19).filter_map(ZstdLevel::normal).collect();
    levels.extend(
        [1, 5, 10, 20, 100, 500, 1000]
            .into_iter()
            .filter_map(ZstdLevel::fast),
    );
    assert_eq!(levels.len(), 26);
    for level in levels {
        let packed = compress(Compression::Zstd, level, &data, data.len());
        let packed = packed.unwrap().unwrap();
        assert_eq!(packed[4], level.code());
        assert_eq!(
            u32::from_be_bytes([packed[0], packed[1], packed[2], packed[3]]) as usize,
            packed.len() - 8
        );
        // Magicless: no 28 b5 2f fd.
        assert_ne!(packed[8..12], [0x28, 0xb5, 0x2f, 0xfd]);
        let (found, version) = zstd_header(&packed).unwrap();
        assert_eq!(found, level);
        assert!((10_405..20_000).contains(&version));
        assert_eq!(
            decompress(Compression::Zstd, &packed, data.len()).unwrap(),
            data
        );
    }
    // 1.4.5 at level 3, as little-endian and as big-endian machines wrote it.
    assert_eq!(
        zstd_header(&[0, 0, 0, 0, 0x03, 0x00, 0x28, 0xa5]),
        Some((ZstdLevel::DEFAULT, 10_405))
    );
    assert_eq!(
        zstd_header(&[0, 0, 0, 0, 0x00, 0x28, 0xa5, 0x03]),
        Some((ZstdLevel::DEFAULT, 10_405))
    );
}

#[test]
fn zstd_levels_have_zfs_numbers() {
    for (level, code, name) in [
        (ZstdLevel::normal(1), 1, "zstd-1"),
        (ZstdLevel::normal(19), 19, "zstd-19"),
        (ZstdLevel::fast(1), 103, "zstd-fast-1"),
        (ZstdLevel::fast(10), 112, "zstd-fast-10"),
        (ZstdLevel::fast(20), 113, "zstd-fast-20"),
        (ZstdLevel::fast(100), 121, "zstd-fast-100"),
        (ZstdLevel::fast(1000), 123, "zstd-fast-1000"),
    ] {
        let level = level.unwrap();
        assert_eq!(level.code(), code);
        assert_eq!(level.to_string(), name);
        assert_eq!(ZstdLevel::from_code(code), Some(level));
    }
    assert_eq!(ZstdLevel::from_code(255), Some(ZstdLevel::DEFAULT));
    for code in [20, 101, 102, 124, 251] {
        assert_eq!(ZstdLevel::from_code(code), None);
    }
    assert_eq!(ZstdLevel::normal(0), None);
    assert_eq!(ZstdLevel::normal(20), None);
    assert_eq!(ZstdLevel::fast(11), None);
}

#[test]
fn gzip_is_a_zlib_stream() {
    let packed = shrink(Compression::Gzip(6), &compressible(4096)).unwrap();
    assert_eq!(packed[0], 0x78);
    assert_eq!(u16::from_be_bytes([packed[0], packed[1]]) % 31, 0);
}

/// Blocks with runs, repetitions and noise.
fn block() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        (0usize..500).prop_map(|length| vec![0; length]),
        (any::<u8>(), 1usize..300).prop_map(|(byte, length)| vec![byte; length]),
        proptest::collection::vec(any::<u8>(), 1..200),
        proptest::collection::vec(0u8..3, 1..300),
    ];
    proptest::collection::vec(piece, 1..20).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_block_comes_back(data in block()) {
        for kind in [
            Compression::Lz4, Compression::Zstd, Compression::Zle, Compression::Lzjb,
            Compression::Gzip(1), Compression::Gzip(9),
        ] {
            let packed = pack(kind, &data, 2 * data.len() + 100);
            if data.is_empty() {
                prop_assert!(packed.is_none());
                continue;
            }
            let packed = packed.unwrap();
            prop_assert_eq!(decompress(kind, &packed, data.len()).unwrap(), &data[..]);
        }
    }

    /// Both decoders of LZ4 agree, on what is right and on what both accept of what is not.
    #[test]
    fn lz4_for_runs_agrees_with_the_other_one(
        mut data in block(),
        (pattern, times) in (proptest::collection::vec(any::<u8>(), 1..40), 0usize..2000),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        room in 0usize..40,
    ) {
        data.extend(pattern.iter().cycle().take(pattern.len() * times));
        let mut packed = lz4_flex::block::compress(&data);
        let mut out = vec![0; data.len() + room];
        let written = super::lz4_runs::decompress(&packed, &mut out);
        prop_assert_eq!(written, Some(data.len()));
        prop_assert_eq!(&out[..data.len()], &data[..]);
        for (at, byte) in flips {
            let at = at.index(packed.len());
            packed[at] ^= byte;
        }
        let (mut ours, mut theirs) = (vec![0; data.len() + room], vec![0; data.len() + room]);
        let written = super::lz4_runs::decompress(&packed, &mut ours);
        if let (Some(written), Ok(expected)) =
            (written, lz4_flex::block::decompress_into(&packed, &mut theirs))
        {
            prop_assert_eq!(written, expected);
            prop_assert_eq!(&ours[..written], &theirs[..written]);
        }
    }

    #[test]
    fn hostile_input_never_panics(
        data in block(),
        mut flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        output in 0usize..20_000,
        junk in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        for kind in [
            Compression::Lz4, Compression::Zstd, Compression::Zle, Compression::Lzjb,
            Compression::Gzip(6),
        ] {
            let _ = decompress(kind, &junk, output);
            if let Some(mut packed) = pack(kind, &data, 2 * data.len() + 100) {
                for (at, byte) in &mut flips {
                    let at = at.index(packed.len());
                    packed[at] ^= *byte;
                }
                for length in [data.len(), output] {
                    if let Ok(out) = decompress(kind, &packed, length) {
                        prop_assert_eq!(out.len(), length);
                    }
                }
            }
        }
    }
}
