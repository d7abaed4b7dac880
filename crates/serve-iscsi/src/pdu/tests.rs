//! Framing and the output queue, with good, cut and hostile input.

use super::*;
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

const FRAMING: Framing = Framing {
    has_header_digest: false,
    has_data_digest: false,
    data_bytes_max: 8192,
};

fn framing(has_header_digest: bool, has_data_digest: bool) -> Framing {
    Framing {
        has_header_digest,
        has_data_digest,
        ..FRAMING
    }
}

fn encoded(header: Header, data: &[u8], framing: Framing) -> Vec<u8> {
    let mut out = OutQueue::default();
    out.set_digests(framing.has_header_digest, framing.has_data_digest);
    out.push_with(header, Bytes::copy_from_slice(data));
    out.drain_all()
}

#[test]
fn digests_are_those_of_rfc_3720_appendix_b_4() {
    // 32 bytes of zeroes have the CRC aa 36 91 8a on the wire.
    assert_eq!(
        crc32c::crc32c(&[0; 32]).to_le_bytes(),
        [0xaa, 0x36, 0x91, 0x8a]
    );
    let bytes = encoded(Header::new(0x20), &[0; 32], framing(false, true));
    assert_eq!(bytes[48 + 32..], [0xaa, 0x36, 0x91, 0x8a]);
}

#[test]
fn damage_is_found() {
    let framing = framing(true, true);
    let good = encoded(Header::new(0x01), b"hello", framing);
    // A bit of the header, of its digest, of the lengths: the stream cannot be followed.
    for at in [0, 7, 20, 47, 48, 51] {
        let mut bad = BytesMut::from(&good[..]);
        bad[at] ^= 1;
        let result = next_frame(&mut bad, framing);
        assert!(
            matches!(result, Err(FrameError::HeaderDigest { .. })),
            "byte {at}"
        );
    }
    // A bit of the data, of its padding, of its digest: the data is not intact.
    for at in [52, 56, 57, 59, 60, 63] {
        let mut bad = BytesMut::from(&good[..]);
        bad[at] ^= 1;
        let frame = next_frame(&mut bad, framing).unwrap().unwrap();
        assert!(!frame.is_data_intact, "byte {at}");
        assert!(frame.data.is_empty());
    }
}

#[test]
fn data_longer_than_agreed_is_refused_before_it_is_there() {
    let mut header = Header::new(0x01);
    header.set_data_bytes(8193);
    let mut input = BytesMut::from(&header.0[..]);
    let expected = FrameError::DataTooLong {
        length_bytes: 8193,
        max_bytes: 8192,
    };
    assert_eq!(next_frame(&mut input, FRAMING).unwrap_err(), expected);
}

#[test]
fn serial_numbers_wrap() {
    assert!(serial_less(1, 2));
    assert!(!serial_less(2, 2));
    assert!(serial_less(u32::MAX, 0));
    assert!(!serial_less(0, u32::MAX));
}

proptest! {
    /// Whatever arrives, in whatever pieces: no panic, and never more asked for than the limits.
    #[test]
    fn garbage_neither_panics_nor_asks_for_much(
        input in proptest::collection::vec(any::<u8>(), 0..2000),
        has_header_digest: bool,
        has_data_digest: bool,
    ) {
        let framing = framing(has_header_digest, has_data_digest);
        let mut input = BytesMut::from(&input[..]);
        loop {
            match next_frame(&mut input, framing) {
                Ok(Ok(frame)) => prop_assert!(frame.data.len() <= framing.data_bytes_max),
                Ok(Err(needed)) => {
                    prop_assert!(needed > input.len());
                    prop_assert!(needed <= BHS_BYTES + 1020 + 4 + 8192 + 4);
                    break;
                }
                Err(_) => break,
            }
        }
    }

    /// What the output queue makes, the framing reads back, however it is cut.
    #[test]
    fn frames_round_trip(
        pdus in proptest::collection::vec(
            (any::<[u8; 48]>(), proptest::collection::vec(any::<u8>(), 0..300)),
            1..5,
        ),
        has_header_digest: bool,
        has_data_digest: bool,
        cut in 1..200usize,
    ) {
        let framing = framing(has_header_digest, has_data_digest);
        let mut stream = Vec::new();
        for (header, data) in &pdus {
            let mut header = Header(*header);
            header.0[4] = 0;
            stream.extend(encoded(header, data, framing));
        }
        let mut input = BytesMut::new();
        let mut found = Vec::new();
        for piece in stream.chunks(cut) {
            input.extend_from_slice(piece);
            while let Ok(frame) = next_frame(&mut input, framing).unwrap() {
                prop_assert!(frame.is_data_intact);
                found.push(frame);
            }
        }
        prop_assert!(input.is_empty());
        prop_assert_eq!(found.len(), pdus.len());
        for (frame, (header, data)) in found.iter().zip(&pdus) {
            prop_assert_eq!(&frame.data, data);
            prop_assert_eq!(&frame.header.0[8..], &header[8..]);
        }
    }

    /// Sending in pieces of any size sends the same bytes.
    #[test]
    fn output_is_the_same_however_much_the_socket_takes(
        pdus in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..8),
        takes in proptest::collection::vec(1..70usize, 1..40),
    ) {
        let fill = || {
            let mut out = OutQueue::default();
            out.set_digests(true, true);
            for data in &pdus {
                out.push_with(Header::new(0x25), Bytes::copy_from_slice(data));
            }
            out
        };
        let expected = fill().drain_all();
        let mut out = fill();
        let mut found = Vec::new();
        for take in takes.iter().cycle() {
            if out.is_empty() {
                break;
            }
            let mut slices = [std::io::IoSlice::new(&[]); 3];
            let count = out.fill(&mut slices);
            let offered: Vec<u8> = slices[..count].iter().flat_map(|s| s.to_vec()).collect();
            let take = offered.len().min(*take);
            found.extend_from_slice(&offered[..take]);
            out.consume(take);
        }
        prop_assert_eq!(found, expected);
    }
}
