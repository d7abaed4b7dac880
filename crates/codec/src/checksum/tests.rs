//! Known vectors, SIMD against the definition, embedded checksums.

use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16).map(|digit| digit as u8))
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

/// Fletcher-4 as its definition says.
fn fletcher4_by_definition(endian: Endian, data: &[u8]) -> ChecksumWords {
    let (mut a, mut b, mut c, mut d) = (0u64, 0u64, 0u64, 0u64);
    for word in data.as_chunks::<4>().0 {
        a = a.wrapping_add(u64::from(endian.u32(*word)));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    }
    [a, b, c, d]
}

#[test]
fn fletcher_of_small_numbers() {
    let data: Vec<u8> = [1u32, 2, 3, 4]
        .iter()
        .flat_map(|n| n.to_le_bytes())
        .collect();
    let sum = compute(Checksum::Fletcher4, Endian::Little, &data, None).unwrap();
    assert_eq!(sum, [10, 20, 35, 56]);
    let swapped: Vec<u8> = [1u32, 2, 3, 4]
        .iter()
        .flat_map(|n| n.to_be_bytes())
        .collect();
    let sum = compute(Checksum::Fletcher4, Endian::Big, &swapped, None).unwrap();
    assert_eq!(sum, [10, 20, 35, 56]);
    let words: Vec<u8> = [1u64, 2, 3, 4]
        .iter()
        .flat_map(|n| n.to_le_bytes())
        .collect();
    let sum = compute(Checksum::Fletcher2, Endian::Little, &words, None).unwrap();
    assert_eq!(sum, [4, 6, 5, 8]);
    let words: Vec<u8> = [1u64, 2, 3, 4]
        .iter()
        .flat_map(|n| n.to_be_bytes())
        .collect();
    let sum = compute(Checksum::Fletcher2, Endian::Big, &words, None).unwrap();
    assert_eq!(sum, [4, 6, 5, 8]);
}

#[test]
fn fletcher4_wraps_alike_everywhere() {
    // Sixteen MiB of ones overflow the higher sums many times.
    let data = vec![0xff; 16 << 20];
    let expected = fletcher4_by_definition(Endian::Little, &data);
    for (name, sum) in fletcher4_implementations() {
        assert_eq!(sum(Endian::Little, &data), expected, "{name}");
    }
}

proptest! {
    #[test]
    fn fletcher4_implementations_agree(
        words in 0usize..3000,
        start in 0usize..200,
        cuts in proptest::collection::vec(0usize..3000, 0..4),
    ) {
        let data = noise(4 * (words + start));
        let data = &data[4 * start.min(words)..];
        for endian in [Endian::Little, Endian::Big] {
            let expected = fletcher4_by_definition(endian, data);
            for (name, sum) in fletcher4_implementations() {
                prop_assert_eq!(sum(endian, data), expected, "{}", name);
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| (4 * cut).min(data.len())).collect();
            cuts.sort_unstable();
            cuts.push(data.len());
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&data[from..cut]);
                from = cut;
            }
            prop_assert_eq!(
                compute_parts(Checksum::Fletcher4, endian, &pieces, None).unwrap(),
                expected
            );
        }
    }
}

#[test]
fn sha_vectors() {
    // FIPS 180-4's examples for "abc".
    let sum = compute(Checksum::Sha256, Endian::Little, b"abc", None).unwrap();
    assert_eq!(
        sum,
        [
            0xba7816bf_8f01cfea,
            0x414140de_5dae2223,
            0xb00361a3_96177a9c,
            0xb410ff61_f20015ad
        ]
    );
    assert_eq!(
        sum,
        compute(Checksum::Sha256, Endian::Big, b"abc", None).unwrap()
    );
    let big = compute(Checksum::Sha512, Endian::Big, b"abc", None).unwrap();
    assert_eq!(
        big,
        [
            0x53048e26_81941ef9,
            0x9b2e29b7_6b4c7dab,
            0xe4c2d0c6_34fc6d46,
            0xe0e2f131_07e7af23
        ]
    );
    let little = compute(Checksum::Sha512, Endian::Little, b"abc", None).unwrap();
    assert_eq!(little, big.map(u64::swap_bytes));
}

#[test]
fn skein_vectors() {
    // Skein 1.3, appendix C.2: Skein-512-512 of FF, of FF FE … C0, and of FF FE … 80.
    let count_down = |count: usize| (0..count).map(|n| 0xff - n as u8).collect::<Vec<u8>>();
    for (count, digest) in [
        (
            1,
            "71B7BCE6FE6452227B9CED6014249E5BF9A9754C3AD618CCC4E0AAE16B316CC8
             CA698D864307ED3E80B6EF1570812AC5272DC409B5A012DF2A579102F340617A",
        ),
        (
            64,
            "45863BA3BE0C4DFC27E75D358496F4AC9A736A505D9313B42B2F5EADA79FC17F
             63861E947AFB1D056AA199575AD3F8C9A3CC1780B5E5FA4CAE050E989876625B",
        ),
        (
            128,
            "91CCA510C263C4DDD010530A33073309628631F308747E1BCBAA90E451CAB92E
             5188087AF4188773A332303E6667A7A210856F742139000071F48E8BA2A5ADB7",
        ),
    ] {
        let mut hash = skein::Skein512::unkeyed(512);
        hash.update(&count_down(count));
        assert_eq!(hash.finish().to_vec(), hex(digest));
    }
}

#[test]
fn edonr_vectors() {
    // From OpenZFS's tests/functional/checksum/edonr_test.c.
    let long = b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno\
        ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";
    for (message, digest) in [
        (
            &b"abc"[..],
            "1b14db155f1d406594b8cef70a4362ec6b5de6a5daf50ec999e987c19d3049e2
             de5977bb05b1bb220050a1ea5b46a9f1740acafbf6b45032adc90c628372c22b",
        ),
        (
            &long[..],
            "5351070dc51c3b2baca5a60d0252ccb4e4921a96fe5a69e76dad48fd21a0845a
             d57f880b3e4a907bc503151842bb949e1cba7439a6409a34b8436cb46921583c",
        ),
    ] {
        assert_eq!(edonr::EdonR512::digest(message).to_vec(), hex(digest));
    }
}

#[test]
fn keyed_checksums_depend_on_salt_and_data_and_not_on_how_it_is_cut() {
    let salt = Salt::new([7; 32]);
    let other = Salt::new([8; 32]);
    let data = noise(5000);
    for kind in [Checksum::Skein, Checksum::EdonR, Checksum::Blake3] {
        assert_eq!(
            compute(kind, Endian::Little, &data, None),
            Err(ChecksumError::NoSalt { kind })
        );
        let sum = compute(kind, Endian::Little, &data, Some(&salt)).unwrap();
        assert_ne!(
            sum,
            compute(kind, Endian::Little, &data, Some(&other)).unwrap()
        );
        assert_ne!(
            sum,
            compute(kind, Endian::Little, &data[1..], Some(&salt)).unwrap()
        );
        let swapped = compute(kind, Endian::Big, &data, Some(&salt)).unwrap();
        assert_eq!(swapped, sum.map(u64::swap_bytes));
        for cut in [0, 1, 63, 64, 65, 127, 128, 129, 4096, 5000] {
            let (head, tail) = data.split_at(cut);
            let parts = [head, &[], tail];
            assert_eq!(
                compute_parts(kind, Endian::Little, &parts, Some(&salt)).unwrap(),
                sum
            );
        }
    }
}

#[test]
fn blake3_is_the_keyed_hash() {
    // The key and the digest of no input of BLAKE3's own test_vectors.json.
    let salt = Salt::new(*b"whats the Elvish word for friend");
    let sum = compute(Checksum::Blake3, Endian::Big, b"", Some(&salt)).unwrap();
    let expected = hex("92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26");
    assert_eq!(sum[0].to_be_bytes()[..], expected[..8]);
    assert_eq!(sum[3].to_be_bytes()[..], expected[24..]);
}

#[test]
fn verify_tells_found_and_expected() {
    let data = noise(4096);
    let mut sum = compute(Checksum::Fletcher4, Endian::Little, &data, None).unwrap();
    verify(Checksum::Fletcher4, Endian::Little, &data, None, &sum).unwrap();
    let found = sum;
    sum[2] ^= 1;
    assert_eq!(
        verify(Checksum::Fletcher4, Endian::Little, &data, None, &sum),
        Err(ChecksumError::Mismatch {
            kind: Checksum::Fletcher4,
            expected: sum,
            found
        })
    );
}

#[test]
fn what_is_no_checksum_is_refused() {
    for kind in [Checksum::Inherit, Checksum::On, Checksum::Unknown(99)] {
        assert_eq!(
            compute(kind, Endian::Little, b"", None),
            Err(ChecksumError::Unsupported { kind })
        );
    }
    assert!(compute(Checksum::Fletcher4, Endian::Little, b"odd", None).is_err());
    assert!(compute(Checksum::Fletcher2, Endian::Little, &[0; 24], None).is_err());
    assert_eq!(
        compute(Checksum::Off, Endian::Little, b"odd", None),
        Ok([0; 4])
    );
}

/// A block of each embedded kind, ready to be sealed, with its verifier.
fn unsealed(kind: Checksum, endian: Endian) -> (Vec<u8>, ChecksumWords) {
    let mut block = noise(16384);
    match kind {
        Checksum::Label => (block, label_verifier(16384)),
        Checksum::GangHeader => {
            block.truncate(512);
            (block, gang_verifier(3, 0x1234_5600, 77))
        }
        Checksum::Zilog2 => {
            // Five thousand bytes used: two units of 4096 are covered.
            block[136..144].copy_from_slice(&endian.u64_bytes(5000));
            (block, [1, 2, 3, 4])
        }
        _ => (block, [1, 2, 3, 4]),
    }
}

const EMBEDDED: [Checksum; 4] = [
    Checksum::Label,
    Checksum::GangHeader,
    Checksum::Zilog,
    Checksum::Zilog2,
];

#[test]
fn sealed_blocks_verify_in_either_byte_order_and_damage_shows() {
    for kind in EMBEDDED {
        for endian in [Endian::Little, Endian::Big] {
            let (mut block, verifier) = unsealed(kind, endian);
            seal(kind, endian, &verifier, &mut block).unwrap();
            assert_eq!(verify_embedded(kind, &verifier, &block), Ok(endian));
            let mut wrong = verifier;
            wrong[0] += 512;
            assert!(matches!(
                verify_embedded(kind, &wrong, &block),
                Err(ChecksumError::Mismatch { .. })
            ));
            let covered = if kind == Checksum::Zilog2 {
                8192
            } else {
                block.len()
            };
            for at in (0..block.len()).step_by(101) {
                let mut damaged = block.clone();
                damaged[at] ^= 0x10;
                assert_eq!(
                    verify_embedded(kind, &verifier, &damaged).is_ok(),
                    at >= covered,
                    "{kind} {at}"
                );
            }
        }
    }
}

#[test]
fn a_label_is_what_its_layout_says() {
    // By hand: SHA-256 with magic and verifier in place, stored as little-endian words.
    let mut block = vec![0x42; 1024];
    seal(
        Checksum::Label,
        Endian::Little,
        &label_verifier(0x4000),
        &mut block,
    )
    .unwrap();
    let mut by_hand = vec![0x42; 1024];
    by_hand[984..992].copy_from_slice(&hex("117a0cb17ada1002"));
    by_hand[992..1024].fill(0);
    by_hand[992..994].copy_from_slice(&[0x00, 0x40]);
    let digest = Sha256::digest(&by_hand);
    for (stored, word) in by_hand[992..].chunks_mut(8).zip(digest.chunks(8)) {
        stored.copy_from_slice(word);
        stored.reverse();
    }
    assert_eq!(block, by_hand);
}

#[test]
fn hostile_blocks_are_errors() {
    for kind in EMBEDDED {
        let verifier = [0; 4];
        for length in [0, 1, 39, 40, 183, 184, 511] {
            assert!(verify_embedded(kind, &verifier, &vec![0; length]).is_err());
        }
        assert!(seal(kind, Endian::Little, &verifier, &mut [0; 39]).is_err());
        let (block, verifier) = unsealed(kind, Endian::Little);
        assert!(matches!(
            verify_embedded(kind, &verifier, &block),
            Err(ChecksumError::NoMagic { .. })
        ));
    }
    for used in [0, 8193, 16385, u64::MAX, u64::MAX - 4095] {
        let (mut block, verifier) = unsealed(Checksum::Zilog2, Endian::Little);
        block.truncate(8192);
        seal(Checksum::Zilog2, Endian::Little, &verifier, &mut block).unwrap();
        block[136..144].copy_from_slice(&used.to_le_bytes());
        assert!(verify_embedded(Checksum::Zilog2, &verifier, &block).is_err());
        assert!(seal(Checksum::Zilog2, Endian::Little, &verifier, &mut block).is_err());
    }
    assert!(matches!(
        verify_embedded(Checksum::Sha256, &[0; 4], &[0; 512]),
        Err(ChecksumError::Unsupported { .. })
    ));
}

#[test]
fn half_a_checksum_beside_a_mac() {
    let sum = [0x1, 0x20, 0x300, 0x4000];
    assert_eq!(fold_for_mac(Checksum::Sha256, &sum), [0x1, 0x20]);
    assert_eq!(fold_for_mac(Checksum::Fletcher4, &sum), [0x301, 0x4020]);
}
