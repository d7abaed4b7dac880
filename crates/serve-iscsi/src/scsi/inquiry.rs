//! INQUIRY data, capacity data and the like: what a unit says about itself (SPC-5 sections 6.7
//! and 7.7, SBC-4 sections 5.20 and 6.6). Pure encoders.

use super::copy::{self, DESCRIPTOR_TYPES, DESCRIPTORS_BYTES_MAX, SEGMENTS_MAX, UNITS_MAX};
use super::opcodes::{TABLE, op};
use super::{COMPARE_BLOCKS_MAX, TRANSFER_BYTES_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BLOCKS_MAX};
use crate::lun::LunIdentity;

/// What the pages need to know of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) identity: LunIdentity,
    pub(crate) target_iqn: String,
    pub(crate) block_bytes: u32,
    pub(crate) physical_block_bytes: u32,
    pub(crate) unmap_granularity_bytes: u32,
    pub(crate) portal_group_tag: u16,
}

/// Text in a field of fixed length: printable ASCII, padded with spaces.
fn field(text: &str, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = text
        .bytes()
        .map(|byte| {
            if (0x20..0x7f).contains(&byte) {
                byte
            } else {
                b' '
            }
        })
        .take(length)
        .collect();
    bytes.resize(length, b' ');
    bytes
}

fn serial(shape: &Shape) -> Vec<u8> {
    field(
        &shape.identity.serial,
        shape.identity.serial.len().clamp(1, 64),
    )
}

/// Standard INQUIRY data.
pub(crate) fn standard(shape: &Shape) -> Vec<u8> {
    let mut data = vec![0; 96];
    data[2] = 0x06; // SPC-4
    data[3] = 0x12; // HISUP; response data format 2
    data[4] = 96 - 5;
    // TPGS (implicit: the initiator does not choose), 3PC.
    data[5] = 0x10 | 0x08;
    data[7] = 0x02; // CMDQUE
    data[8..16].copy_from_slice(&field(&shape.identity.vendor, 8));
    data[16..32].copy_from_slice(&field(&shape.identity.product, 16));
    data[32..36].copy_from_slice(&field(&shape.identity.revision, 4));
    // Version descriptors: SAM-5, SPC-4, SBC-3, iSCSI.
    for (at, version) in [0x00a0u16, 0x0460, 0x04c0, 0x0960].into_iter().enumerate() {
        data[58 + 2 * at..60 + 2 * at].copy_from_slice(&version.to_be_bytes());
    }
    data
}

/// Standard INQUIRY data of a logical unit number that has no unit.
pub(crate) fn standard_without_unit() -> Vec<u8> {
    let mut data = vec![0; 36];
    data[0] = 0x7f;
    data[2] = 0x06;
    data[3] = 0x02;
    data[4] = 36 - 5;
    data[8..36].fill(b' ');
    data
}

/// A vital product data page; `None` if there is no such page.
pub(crate) fn page(shape: &Shape, page: u8) -> Option<Vec<u8>> {
    let body = match page {
        0x00 => vec![0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2],
        0x80 => serial(shape),
        0x83 => device_identification(shape),
        0x86 => extended_inquiry(),
        0x8f => third_party_copy(shape),
        0xb0 => block_limits(shape),
        0xb1 => block_device_characteristics(),
        0xb2 => logical_block_provisioning(),
        _ => return None,
    };
    let mut data = vec![0, page];
    data.extend_from_slice(&(body.len() as u16).to_be_bytes());
    data.extend_from_slice(&body);
    Some(data)
}

/// Associations of designators.
const OF_UNIT: u8 = 0x00;
const OF_PORT: u8 = 0x10;
const OF_TARGET: u8 = 0x20;

/// Types of designators that name a unit.
pub(crate) const DESIGNATOR_T10: u8 = 1;
pub(crate) const DESIGNATOR_NAA: u8 = 3;

/// The unit's NAA designator.
pub(crate) fn naa(shape: &Shape) -> [u8; 16] {
    let mut naa = shape.identity.naa;
    naa[0] = 0x60 | (naa[0] & 0x0f);
    naa
}

/// The unit's T10 vendor designator.
pub(crate) fn t10(shape: &Shape) -> Vec<u8> {
    let mut t10 = field(&shape.identity.vendor, 8);
    t10.extend_from_slice(&serial(shape));
    t10
}

fn designator(list: &mut Vec<u8>, code_set: u8, association_and_type: u8, value: &[u8]) {
    const ISCSI: u8 = 0x50;
    let is_of_protocol = association_and_type & 0x30 != OF_UNIT;
    list.push(code_set | if is_of_protocol { ISCSI } else { 0 });
    list.push(association_and_type | if is_of_protocol { 0x80 } else { 0 });
    list.push(0);
    list.push(value.len() as u8);
    list.extend_from_slice(value);
}

/// Page 83h.
fn device_identification(shape: &Shape) -> Vec<u8> {
    const BINARY: u8 = 1;
    const ASCII: u8 = 2;
    const UTF8: u8 = 3;
    let mut list = Vec::new();
    designator(&mut list, BINARY, OF_UNIT | DESIGNATOR_NAA, &naa(shape));
    designator(&mut list, ASCII, OF_UNIT | DESIGNATOR_T10, &t10(shape));
    // The relative target port, the target port group, the port's and the target's names.
    designator(&mut list, BINARY, OF_PORT | 4, &[0, 0, 0, 1]);
    designator(&mut list, BINARY, OF_PORT | 5, &[0, 0, 0, 1]);
    let name = |text: String| {
        let mut name = text.into_bytes();
        name.push(0);
        name.resize(name.len().next_multiple_of(4), 0);
        name
    };
    let port = format!("{},t,0x{:04x}", shape.target_iqn, shape.portal_group_tag);
    designator(&mut list, UTF8, OF_PORT | 8, &name(port));
    designator(
        &mut list,
        UTF8,
        OF_TARGET | 8,
        &name(shape.target_iqn.clone()),
    );
    list
}

/// Page 86h.
fn extended_inquiry() -> Vec<u8> {
    let mut body = vec![0; 60];
    body[1] = 0x07; // HEADSUP, ORDSUP, SIMPSUP
    body[2] = 0x01; // V_SUP: the cache is volatile
    body
}

/// Page 8Fh (SPC-5 section 7.7.18).
fn third_party_copy(shape: &Shape) -> Vec<u8> {
    let mut list = Vec::new();
    let mut put = |kind: u16, mut value: Vec<u8>| {
        value.resize(value.len().next_multiple_of(4), 0);
        list.extend_from_slice(&kind.to_be_bytes());
        list.extend_from_slice(&(value.len() as u16).to_be_bytes());
        list.extend_from_slice(&value);
    };
    // Supported commands, from the one table of commands.
    let mut commands = vec![0];
    for opcode in [op::EXTENDED_COPY, op::RECEIVE_COPY_RESULTS] {
        let of_opcode = TABLE.iter().filter(|entry| entry.opcode == opcode);
        let actions = of_opcode.filter_map(|entry| entry.service_action);
        let actions: Vec<u8> = actions.map(|action| action as u8).collect();
        commands.extend_from_slice(&[opcode, actions.len() as u8]);
        commands.extend_from_slice(&actions);
    }
    commands[0] = (commands.len() - 1) as u8;
    put(0x0001, commands);
    // Parameter data.
    let mut parameters = vec![0; 28];
    parameters[4..6].copy_from_slice(&UNITS_MAX.to_be_bytes());
    parameters[6..8].copy_from_slice(&SEGMENTS_MAX.to_be_bytes());
    parameters[8..12].copy_from_slice(&DESCRIPTORS_BYTES_MAX.to_be_bytes());
    put(0x0004, parameters);
    // Supported descriptors, and identifiers of units that need none.
    let mut descriptors = vec![DESCRIPTOR_TYPES.len() as u8];
    descriptors.extend_from_slice(&DESCRIPTOR_TYPES);
    put(0x0008, descriptors);
    let mut units = vec![0, 2];
    units.extend_from_slice(&copy::THIS_UNIT.to_be_bytes());
    put(0x000c, units);
    // General copy operations: no more at once than results are kept of.
    let mut general = vec![0; 32];
    general[3] = 64;
    general[7] = 64;
    let segment_bytes_max = copy::segment_bytes_max(shape.block_bytes);
    general[8..12].copy_from_slice(&segment_bytes_max.to_be_bytes());
    general[12] = shape.block_bytes.ilog2() as u8;
    put(0x8001, general);
    list
}

/// Page B0h.
fn block_limits(shape: &Shape) -> Vec<u8> {
    let mut data = vec![0; 64];
    let mut put = |at: usize, value: u32| data[at..at + 4].copy_from_slice(&value.to_be_bytes());
    let granularity = shape.physical_block_bytes / shape.block_bytes;
    put(8, TRANSFER_BYTES_MAX / shape.block_bytes);
    put(12, (1 << 20) / shape.block_bytes);
    put(16, 0); // prefetch: no limit
    put(20, u32::MAX); // blocks of an UNMAP: no limit
    put(24, UNMAP_DESCRIPTORS_MAX);
    put(
        28,
        (shape.unmap_granularity_bytes / shape.block_bytes).max(1),
    );
    put(32, 0x8000_0000); // UGAVALID, alignment 0
    put(40, WRITE_SAME_BLOCKS_MAX);
    data[4] = 0x01; // WSNZ
    data[5] = COMPARE_BLOCKS_MAX;
    data[6..8].copy_from_slice(&(granularity.min(0xffff) as u16).to_be_bytes());
    data.split_off(4)
}

/// Page B1h.
fn block_device_characteristics() -> Vec<u8> {
    let mut body = vec![0; 60];
    body[1] = 1; // does not rotate
    body
}

/// Page B2h.
fn logical_block_provisioning() -> Vec<u8> {
    // LBPU, LBPWS, LBPWS10, LBPRZ (zeroes); thin.
    vec![0, 0xe4, 0x02, 0]
}

/// READ CAPACITY (10) data.
pub(crate) fn capacity10(shape: &Shape, block_count: u64) -> Vec<u8> {
    let last = u32::try_from(block_count.saturating_sub(1)).unwrap_or(u32::MAX);
    let mut data = last.to_be_bytes().to_vec();
    data.extend_from_slice(&shape.block_bytes.to_be_bytes());
    data
}

/// READ CAPACITY (16) data.
pub(crate) fn capacity16(shape: &Shape, block_count: u64) -> Vec<u8> {
    let mut data = vec![0; 32];
    data[..8].copy_from_slice(&block_count.saturating_sub(1).to_be_bytes());
    data[8..12].copy_from_slice(&shape.block_bytes.to_be_bytes());
    // Logical blocks per physical block, as an exponent of 2.
    data[13] = (shape.physical_block_bytes / shape.block_bytes).ilog2() as u8;
    data[14] = 0xc0; // LBPME, LBPRZ
    data
}

/// REPORT LUNS data for these units.
pub(crate) fn luns(numbers: impl Iterator<Item = u16>) -> Vec<u8> {
    let mut data = vec![0; 8];
    for number in numbers {
        data.extend_from_slice(&encode_lun(number));
    }
    let length = data.len() as u32 - 8;
    data[..4].copy_from_slice(&length.to_be_bytes());
    data
}

/// A logical unit number on the wire: peripheral device addressing below 256, flat space
/// addressing above (SAM-5 sections 4.7.3 and 4.7.4).
pub(crate) fn encode_lun(number: u16) -> [u8; 8] {
    let [high, low] = number.to_be_bytes();
    let method = if number < 256 { 0x00 } else { 0x40 };
    [method | high, low, 0, 0, 0, 0, 0, 0]
}

/// The number of a logical unit on the wire; `None` for addressing that is not single-level.
pub(crate) fn decode_lun(lun: [u8; 8]) -> Option<u16> {
    if lun[2..] != [0; 6] {
        return None;
    }
    match lun[0] >> 6 {
        0 if lun[0] == 0 => Some(lun[1].into()),
        1 => Some(u16::from_be_bytes([lun[0] & 0x3f, lun[1]])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape {
            identity: LunIdentity::new("0123456789", [0xff; 16]),
            target_iqn: "iqn.2025-01.test:t".into(),
            block_bytes: 512,
            physical_block_bytes: 8192,
            unmap_granularity_bytes: 16384,
            portal_group_tag: 1,
        }
    }

    #[test]
    fn pages_are_well_formed_and_listed_in_order() {
        let shape = shape();
        let listed = page(&shape, 0).unwrap();
        assert!(listed[4..].is_sorted());
        for code in 0..=255 {
            let is_listed = listed[4..].contains(&code);
            let data = page(&shape, code);
            assert_eq!(data.is_some(), is_listed, "page {code:#x}");
            if let Some(data) = data {
                assert_eq!(data[1], code);
                let length = usize::from(u16::from_be_bytes([data[2], data[3]]));
                assert_eq!(length, data.len() - 4, "page {code:#x}");
            }
        }
        for code in [0xb0, 0xb1, 0x86] {
            assert_eq!(page(&shape, code).unwrap().len(), 64);
        }
    }

    #[test]
    fn designators_fill_their_page() {
        let data = page(&shape(), 0x83).unwrap();
        let mut at = 4;
        let mut kinds = Vec::new();
        while at < data.len() {
            kinds.push(data[at + 1] & 0x3f);
            at += 4 + usize::from(data[at + 3]);
        }
        assert_eq!(at, data.len());
        assert_eq!(kinds, [3, 1, 0x14, 0x15, 0x18, 0x28]);
        assert_eq!(data[8], 0x6f);
        // The longest name still fits the one-byte length.
        let mut shape = shape();
        shape.target_iqn = "i".repeat(223);
        page(&shape, 0x83).unwrap();
    }

    #[test]
    fn limits_count_blocks() {
        let data = page(&shape(), 0xb0).unwrap();
        assert_eq!(data[4], 1);
        assert_eq!(data[6..8], [0, 16]);
        assert_eq!(data[28..32], [0, 0, 0, 32]);
        assert_eq!(data[36..44], [0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        let capacity = capacity16(&shape(), 1 << 40);
        assert_eq!(capacity[..8], [0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(capacity[13], 4);
        assert_eq!(capacity10(&shape(), 1 << 40)[..4], [0xff; 4]);
        assert_eq!(capacity10(&shape(), 256), [0, 0, 0, 255, 0, 0, 2, 0]);
    }

    #[test]
    fn unit_numbers_survive_the_wire() {
        for number in [0, 1, 255, 256, 16383] {
            assert_eq!(decode_lun(encode_lun(number)), Some(number));
        }
        assert_eq!(decode_lun([0x40, 1, 0, 0, 0, 0, 0, 0]), Some(1));
        assert_eq!(decode_lun([0xc1, 1, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(decode_lun([0, 1, 0, 1, 0, 0, 0, 0]), None);
    }
}
