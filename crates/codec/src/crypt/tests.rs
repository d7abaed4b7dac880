use super::cipher::{Cipher, Suite};
use super::*;
use format::{Endian, ObjectType};
use hmac::{KeyInit, Mac};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| (byte as char).to_digit(16).expect("a hex digit") as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn array<const N: usize>(text: &str) -> [u8; N] {
    hex(text).try_into().expect("so many bytes")
}

/// The GCM specification (McGrew and Viega), test cases 4, 10 and 16: 96-bit IV, 128-bit tag, AAD.
#[test]
fn gcm_gives_the_published_ciphertexts_and_tags() {
    let key = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
    let plain = hex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72
         1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
    );
    let aad = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
    let iv = array("cafebabefacedbaddecaf888");
    let cases = [
        (
            Suite::Aes128Gcm,
            "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e
             21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
            "5bc94fbc3221a5db94fae95ae7121a47",
        ),
        (
            Suite::Aes192Gcm,
            "3980ca0b3c00e841eb06fac4872a2757859e1ceaa6efd984628593b40ca1e19c
             7d773d00c144c525ac619d18c84a3f4718e2448b2fe324d9ccda2710",
            "2519498e80f1478f37ba55bd6d27618c",
        ),
        (
            Suite::Aes256Gcm,
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa
             8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
            "76fc6ece0f4e1768cddf8853bb2d551b",
        ),
    ];
    for (suite, wanted, tag) in cases {
        let cipher = Cipher::new(suite, &hex(key));
        let mut data = plain.clone();
        let mac = cipher.seal(&iv, &aad, &mut data).unwrap();
        assert_eq!(data, hex(wanted), "{}", suite.name());
        assert_eq!(mac, array(tag), "{}", suite.name());
        cipher.open(&iv, &aad, &mut data, &mac).unwrap();
        assert_eq!(data, plain);
    }
}

/// NIST SP 800-38C, example 3: 12-byte nonce, but a tag of 8 bytes; so the ciphertext is compared,
/// and the tag with the same cipher at that length.
#[test]
fn ccm_gives_the_published_ciphertext() {
    let key = hex("404142434445464748494a4b4c4d4e4f");
    let iv = array("101112131415161718191a1b");
    let aad = hex("000102030405060708090a0b0c0d0e0f10111213");
    let plain = hex("202122232425262728292a2b2c2d2e2f3031323334353637");
    let wanted = hex("e3b201a9f5b71a7a9b1ceaeccd97e70b6176aad9a4428aa5");
    let cipher = Cipher::new(Suite::Aes128Ccm, &key);
    let mut data = plain.clone();
    let mac = cipher.seal(&iv, &aad, &mut data).unwrap();
    assert_eq!(data, wanted);
    cipher.open(&iv, &aad, &mut data, &mac).unwrap();
    assert_eq!(data, plain);

    use ccm::aead::AeadInOut;
    use ccm::aead::consts::{U8, U12};
    use ccm::aead::inout::InOutBuf;
    let short = ccm::Ccm::<aes::Aes128, U8, U12>::new_from_slice(&key).unwrap();
    let mut data = plain.clone();
    let tag = short
        .encrypt_inout_detached((&iv).into(), &aad, InOutBuf::from(data.as_mut_slice()))
        .unwrap();
    assert_eq!(tag.as_slice(), hex("484392fbc1b09951"));
}

/// RFC 4231, test cases 1 and 2 (HMAC-SHA-512).
#[test]
fn hmac_gives_the_published_digests() {
    let cases = [
        (
            vec![0x0b; 20],
            b"Hi There".to_vec(),
            "87aa7cdea5ef619d4ff0b4241a1d6cb02379f4e2ce4ec2787ad0b30545e17cde
             daa833b7d6b8a702038b274eaea3f4e4be9d914eeb61f1702e696c203a126854",
        ),
        (
            b"Jefe".to_vec(),
            b"what do ya want for nothing?".to_vec(),
            "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554
             9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
        ),
    ];
    for (key, data, wanted) in cases {
        let mut mac = <hmac::Hmac<sha2::Sha512> as KeyInit>::new_from_slice(&key).unwrap();
        mac.update(&data);
        assert_eq!(mac.finalize().into_bytes().to_vec(), hex(wanted));
    }
}

/// RFC 6070, third vector; and that ours is this function with a number for a salt.
#[test]
fn pbkdf2_gives_the_published_keys() {
    let mut out = [0; 20];
    pbkdf2::pbkdf2_hmac::<sha1::Sha1>(b"password", b"salt", 4096, &mut out);
    assert_eq!(out, array("4b007901b765489abead49d926f721d065a429c1"));
    // Ours is that function with the number's bytes, low one first, as the salt.
    let mut out = [0; 32];
    pbkdf2::pbkdf2_hmac::<sha1::Sha1>(b"password", &[8, 7, 6, 5, 4, 3, 2, 1], 1000, &mut out);
    let ours = passphrase_key(b"password", 0x0102_0304_0506_0708, 1000);
    assert_eq!(*ours, out);
}

/// RFC 5869 has no vectors for SHA-512: its section 2 spelled out with HMAC.
#[test]
fn hkdf_is_as_defined() {
    let ikm = hex("000102030405060708090a0b0c0d0e0f");
    let info = [9, 8, 7, 6, 5, 4, 3, 2];
    let hmac = |key: &[u8], data: &[u8]| {
        let mut mac = <hmac::Hmac<sha2::Sha512> as KeyInit>::new_from_slice(key).unwrap();
        mac.update(data);
        mac.finalize().into_bytes().to_vec()
    };
    let prk = hmac(&[0; 64], &ikm);
    let wanted = hmac(&prk, &[&info[..], &[1]].concat());
    let mut found = [0; 32];
    hkdf::Hkdf::<sha2::Sha512>::new(None, &ikm)
        .expand(&info, &mut found)
        .unwrap();
    assert_eq!(found, wanted[..32]);
}

fn key(suite: Suite, seed: u8) -> DataKey {
    let mut next = seed;
    DataKey::generate(suite, &mut |out: &mut [u8]| {
        for byte in out {
            next = next.wrapping_mul(181).wrapping_add(97);
            *byte = next;
        }
    })
}

fn crypt(mac: [u8; MAC_BYTES]) -> BlockCrypt {
    BlockCrypt {
        salt: [1, 2, 3, 4, 5, 6, 7, 8],
        iv: [9; IV_BYTES],
        mac,
    }
}

#[test]
fn wrapped_keys_come_back_with_the_right_key_only() {
    for suite in Suite::ALL {
        let data = key(suite, 5);
        let wrapping = WrappingKey::new([7; 32]);
        let wrapped = data.wrap(&wrapping, [3; IV_BYTES]).unwrap();
        let back = wrapped.unwrap_key(&wrapping).unwrap();
        assert_eq!(
            back.mac(b"the same HMAC key"),
            data.mac(b"the same HMAC key")
        );
        let mut block = vec![0x5a; 4096];
        let mac = data
            .encrypt(
                ObjectType::PLAIN_FILE_CONTENTS,
                Endian::Little,
                &crypt([0; 16]).salt,
                &crypt([0; 16]).iv,
                &mut block,
            )
            .unwrap();
        assert_ne!(block, [0x5a; 4096]);
        back.decrypt(
            ObjectType::PLAIN_FILE_CONTENTS,
            Endian::Little,
            &crypt(mac),
            &mut block,
        )
        .unwrap();
        assert_eq!(block, [0x5a; 4096]);

        let mut last = [7; 32];
        // All 32 bytes count, whatever the suite.
        last[31] ^= 1;
        let wrong = wrapped.unwrap_key(&WrappingKey::new(last)).unwrap_err();
        assert_eq!(wrong, CryptError::Authentication);
        let other_guid = WrappedKey {
            guid: wrapped.guid ^ 1,
            ..wrapped
        };
        assert!(other_guid.unwrap_key(&wrapping).is_err());
    }
}

/// Every bit of ciphertext, MAC, salt and IV counts.
#[test]
fn a_flipped_bit_is_an_error() {
    for suite in Suite::ALL {
        let data = key(suite, 11);
        let plain: Vec<u8> = (0..64).collect();
        let mut stored = plain.clone();
        let wanted = crypt([0; MAC_BYTES]);
        let kind = ObjectType::PLAIN_FILE_CONTENTS;
        let mac = data
            .encrypt(kind, Endian::Little, &wanted.salt, &wanted.iv, &mut stored)
            .unwrap();
        let open = |crypt: &BlockCrypt, stored: &[u8]| {
            let mut block = stored.to_vec();
            data.decrypt(kind, Endian::Little, crypt, &mut block)
                .map(|()| block)
        };
        assert_eq!(open(&crypt(mac), &stored).unwrap(), plain);
        for bit in 0..stored.len() * 8 {
            let mut bad = stored.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&crypt(mac), &bad), Err(CryptError::Authentication));
        }
        for bit in 0..128 {
            let mut bad = crypt(mac);
            bad.mac[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&bad, &stored), Err(CryptError::Authentication));
            let mut bad = crypt(mac);
            bad.iv[bit / 8 % 12] ^= 1 << (bit % 8);
            assert_eq!(open(&bad, &stored), Err(CryptError::Authentication));
            let mut bad = crypt(mac);
            bad.salt[bit / 8 % 8] ^= 1 << (bit % 8);
            assert_eq!(open(&bad, &stored), Err(CryptError::Authentication));
        }
    }
}

/// A block with one dnode that has a secret bonus, one with a bonus in the clear, and free slots.
fn dnode_block() -> Vec<u8> {
    let mut block = vec![0; 4 * 512];
    for (at, bonus_type) in [(0, ObjectType::SA), (512, ObjectType::DSL_DIR)] {
        block[at] = ObjectType::PLAIN_FILE_CONTENTS.code();
        block[at + 2] = 1;
        block[at + 3] = 1;
        block[at + 4] = bonus_type.code();
        block[at + 10] = 100;
        block[at + 192..at + 512].fill(0xb0);
    }
    block
}

#[test]
fn of_dnodes_only_secret_bonuses_are_encrypted() {
    let data = key(Suite::Aes256Gcm, 3);
    let plain = dnode_block();
    let mut stored = plain.clone();
    let wanted = crypt([0; MAC_BYTES]);
    let kind = ObjectType::DNODE;
    let mac = data
        .encrypt(kind, Endian::Little, &wanted.salt, &wanted.iv, &mut stored)
        .unwrap();
    assert_eq!(stored[..192], plain[..192]);
    assert_ne!(stored[192..512], plain[192..512]);
    assert_eq!(stored[512..], plain[512..]);
    let open = |stored: &[u8]| {
        let mut block = stored.to_vec();
        data.decrypt(kind, Endian::Little, &crypt(mac), &mut block)
            .map(|()| block)
    };
    assert_eq!(open(&stored).unwrap(), plain);
    for byte in 0..stored.len() {
        let mut bad = stored.clone();
        bad[byte] ^= 1;
        // Space used and flags that a raw send does not keep are free to change; so is what is in a
        // pointer beside its properties and MAC, and the pointers of free slots are no pointers.
        let in_dnode = byte % 512;
        let free = byte < 1024
            && ((24..32).contains(&in_dnode) || in_dnode == 7 || (64..192).contains(&in_dnode));
        let free = free || byte >= 1024 && ((24..32).contains(&in_dnode) || in_dnode == 7);
        let result = open(&bad);
        assert!(result.is_err() || free, "byte {byte} is not authenticated");
    }
    // Hostile: more slots or pointers than there is room for.
    for (at, value) in [(12, 200), (3, 255)] {
        let mut bad = stored.clone();
        bad[at] = value;
        assert!(open(&bad).is_err());
    }
}

#[test]
fn log_records_keep_their_heads_and_pointers_in_the_clear() {
    let data = key(Suite::Aes128Ccm, 9);
    let mut records = Vec::new();
    // A write of 16 bytes, then a record of another type.
    for (kind, length) in [(9_u64, 192 + 16), (12, 64)] {
        let start = records.len();
        for word in [kind, length, 5, 6] {
            records.extend_from_slice(&Endian::Little.u64_bytes(word));
        }
        records.resize(start + length as usize, 0xee);
    }
    let next = format::BlockPointer::HOLE;
    let mut plain = vec![0; format::ZilLink::BYTES];
    plain.extend_from_slice(&records);
    let used_bytes = plain.len();
    plain.resize(4096, 0);
    format::link_log_block(&mut plain, &next, used_bytes, [0; 4]).unwrap();
    let mut stored = plain.clone();
    let wanted = crypt([0; MAC_BYTES]);
    let kind = ObjectType::INTENT_LOG;
    let mac = data
        .encrypt(kind, Endian::Little, &wanted.salt, &wanted.iv, &mut stored)
        .unwrap();
    let first = 184;
    let second = first + 208;
    for clear in [
        0..first + 32,
        first + 64..first + 192,
        second..second + 32,
        second + 64..4096,
    ] {
        assert_eq!(stored[clear.clone()], plain[clear]);
    }
    for secret in [
        first + 32..first + 64,
        first + 192..second,
        second + 32..second + 64,
    ] {
        assert_ne!(stored[secret.clone()], plain[secret]);
    }
    let open = |stored: &[u8]| {
        let mut block = stored.to_vec();
        data.decrypt(kind, Endian::Little, &crypt(mac), &mut block)
            .map(|()| block)
    };
    assert_eq!(open(&stored).unwrap(), plain);
    for byte in (0..144).chain(184..second + 64) {
        let mut bad = stored.clone();
        bad[byte] ^= 1;
        assert!(open(&bad).is_err(), "byte {byte} is not authenticated");
    }
    assert!(open(&stored[..100]).is_err());
}

#[test]
fn pointers_are_summed_up_without_what_may_differ_elsewhere() {
    let mut block = vec![0; 1024];
    block[48] = 7; // logical size
    block[48 + 7] = 0x20 | 1 << 7; // uses encryption, little-endian
    block[0] = 8; // a place, so that it is no hole
    let sum = mac_of_macs(&block, Endian::Little);
    assert!(mac_of_macs_holds(&block, Endian::Little, &sum));
    for (byte, counts) in [
        (0, false),
        (48, true),
        (112, true),
        (96, false),
        (72, false),
    ] {
        let mut other = block.clone();
        other[byte] ^= 2;
        assert_eq!(
            mac_of_macs(&other, Endian::Little) != sum,
            counts,
            "byte {byte}"
        );
    }
}
