//! Native packing (`nvs_native_*`, module/nvpair/nvpair.c): the in-memory form of a 64-bit machine
//! in its byte order, with pointers zeroed.
//!
//! A list is: version (0), flags, pairs, four zero bytes. A pair is: its size (4 bytes), length of
//! the name with its zero byte (2), zero (2), number of elements (4), type (4), name, then at the
//! next multiple of eight the value, filled up to a multiple of eight. Arrays of strings and lists
//! start with eight bytes per element for pointers. A nested list's value is its 24-byte head
//! (version, flags, 16 bytes of memory state); its pairs and four zero bytes follow the pair.

use super::{LIST_BYTES, MAX_DEPTH, NVLIST, NvList, NvValue, PAIR_BYTES, Room, align8, pair_bytes};
use super::{pair_name, text};
use crate::bytes::{Endian, Put, Reader};
use crate::error::{FormatError, Result, bad};

pub(super) fn decode(bytes: &[u8], endian: Endian, room: &mut Room<'_>) -> Result<(NvList, usize)> {
    let mut r = Reader::new(NVLIST, bytes, endian);
    let list = decode_head(&mut r)?;
    let list = decode_pairs(&mut r, list, endian, 0, room)?;
    Ok((list, r.position()))
}

fn decode_head(r: &mut Reader<'_>) -> Result<NvList> {
    let version = r.u32()?;
    if version != 0 {
        return Err(bad(NVLIST, "nvl_version", version.into(), "0"));
    }
    Ok(NvList::with_flags(r.u32()?))
}

fn decode_pairs(
    r: &mut Reader<'_>,
    mut list: NvList,
    endian: Endian,
    depth: u32,
    room: &mut Room<'_>,
) -> Result<NvList> {
    if depth > MAX_DEPTH {
        return Err(FormatError::TooDeep {
            structure: NVLIST,
            limit: MAX_DEPTH.into(),
        });
    }
    loop {
        let size = r.u32()?;
        if size == 0 {
            return Ok(list);
        }
        let Some(rest) = (size as usize).checked_sub(4) else {
            return Err(bad(
                NVLIST,
                "nvp_size",
                size.into(),
                "at least a pair's head",
            ));
        };
        let mut pair = Reader::new(NVLIST, r.take(rest)?, endian);
        let name_bytes = usize::from(pair.u16()?);
        pair.skip(2)?;
        let count = pair.u32()?;
        let kind = pair.u32()?;
        let name = pair.take(name_bytes)?;
        let Some((0, name)) = name.split_last() else {
            return Err(FormatError::BadText {
                structure: NVLIST,
                field: "nvp_name",
            });
        };
        room.pair(&list, name)?;
        let name = pair_name(name)?;
        pair.skip(align8(PAIR_BYTES + name_bytes) - PAIR_BYTES - name_bytes)?;
        room.value(kind, count, pair.remaining())?;
        let value = match kind {
            19 => {
                let head = decode_head(&mut pair)?;
                pair.skip(LIST_BYTES - 8)?;
                NvValue::List(decode_pairs(r, head, endian, depth + 1, room)?)
            }
            20 => {
                pair.skip((count as usize).saturating_mul(8))?;
                let mut heads = Vec::new();
                for _ in 0..count {
                    heads.push(decode_head(&mut pair)?);
                    pair.skip(LIST_BYTES - 8)?;
                }
                let lists = heads
                    .into_iter()
                    .map(|head| decode_pairs(r, head, endian, depth + 1, room));
                NvValue::ListArray(lists.collect::<Result<_>>()?)
            }
            _ => decode_value(&mut pair, kind, count, room)?,
        };
        list.pairs.push((name, value));
    }
}

fn string<'a>(r: &mut Reader<'a>) -> Result<&'a [u8]> {
    let rest = r.clone().take(r.remaining())?;
    let length = rest
        .iter()
        .position(|byte| *byte == 0)
        .ok_or(FormatError::BadText {
            structure: NVLIST,
            field: "string",
        })?;
    let bytes = r.take(length)?;
    r.skip(1)?;
    Ok(bytes)
}

fn array<'a, T>(
    r: &mut Reader<'a>,
    count: u32,
    unit: usize,
    mut element: impl FnMut(&mut Reader<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    r.clone().skip((count as usize).saturating_mul(unit))?;
    (0..count).map(|_| element(r)).collect()
}

fn decode_value(r: &mut Reader<'_>, kind: u32, count: u32, room: &mut Room<'_>) -> Result<NvValue> {
    let scalar = !matches!(kind, 10..=17 | 24..=26);
    if scalar && count != u32::from(kind != 1) {
        return Err(bad(
            NVLIST,
            "nvp_value_elem",
            count.into(),
            "one element in a scalar",
        ));
    }
    Ok(match kind {
        1 => NvValue::Boolean,
        2 => NvValue::Byte(r.u8()?),
        3 => NvValue::Int16(r.u16()? as i16),
        4 => NvValue::UInt16(r.u16()?),
        5 => NvValue::Int32(r.u32()? as i32),
        6 => NvValue::UInt32(r.u32()?),
        7 => NvValue::Int64(r.u64()? as i64),
        8 => NvValue::UInt64(r.u64()?),
        9 => text(string(r)?, room)?,
        10 => NvValue::ByteArray(r.take(count as usize)?.to_vec()),
        11 => NvValue::Int16Array(array(r, count, 2, |r| Ok(r.u16()? as i16))?),
        12 => NvValue::UInt16Array(array(r, count, 2, Reader::u16)?),
        13 => NvValue::Int32Array(array(r, count, 4, |r| Ok(r.u32()? as i32))?),
        14 => NvValue::UInt32Array(array(r, count, 4, Reader::u32)?),
        15 => NvValue::Int64Array(array(r, count, 8, |r| Ok(r.u64()? as i64))?),
        16 => NvValue::UInt64Array(array(r, count, 8, Reader::u64)?),
        17 => {
            r.skip((count as usize).saturating_mul(8))?;
            let strings = (0..count).map(|_| room.utf8(string(r)?, "string array"));
            NvValue::StringArray(strings.collect::<Result<_>>()?)
        }
        18 => NvValue::HrTime(r.u64()? as i64),
        21 => NvValue::BooleanValue(r.u32()? != 0),
        22 => NvValue::Int8(r.u8()? as i8),
        23 => NvValue::UInt8(r.u8()?),
        24 => NvValue::BooleanArray(array(r, count, 4, |r| Ok(r.u32()? != 0))?),
        25 => NvValue::Int8Array(array(r, count, 1, |r| Ok(r.u8()? as i8))?),
        26 => NvValue::UInt8Array(r.take(count as usize)?.to_vec()),
        27 => NvValue::Double(f64::from_bits(r.u64()?)),
        other => return Err(bad(NVLIST, "nvp_type", other.into(), "1 to 27")),
    })
}

pub(super) fn encode(list: &NvList, out: &mut Vec<u8>) -> Result<()> {
    encode_head(list, out);
    encode_pairs(list, out, 0)
}

fn encode_head(list: &NvList, out: &mut Vec<u8>) {
    out.put_u32(0);
    out.put_u32(list.flags);
}

fn encode_pairs(list: &NvList, out: &mut Vec<u8>, depth: u32) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(FormatError::TooDeep {
            structure: NVLIST,
            limit: MAX_DEPTH.into(),
        });
    }
    for (name, value) in &list.pairs {
        let start = out.len();
        let name = name.bytes();
        let size = pair_bytes(name, value)? as u32;
        out.put_u32(size);
        out.put_u16((name.len() + 1) as u16);
        out.put_u16(0);
        out.put_u32(value.element_count() as u32);
        out.put_u32(value.type_code() as u32);
        out.extend_from_slice(name);
        out.push(0);
        out.resize(start + align8(PAIR_BYTES + name.len() + 1), 0);
        encode_value(value, out);
        out.resize(start + size as usize, 0);
        match value {
            NvValue::List(nested) => encode_pairs(nested, out, depth + 1)?,
            NvValue::ListArray(nested) => {
                for list in nested {
                    encode_pairs(list, out, depth + 1)?;
                }
            }
            _ => {}
        }
    }
    out.put_u32(0);
    Ok(())
}

fn encode_value(value: &NvValue, out: &mut Vec<u8>) {
    match value {
        NvValue::Boolean => {}
        NvValue::BooleanValue(v) => out.put_u32((*v).into()),
        NvValue::Byte(v) | NvValue::UInt8(v) => out.push(*v),
        NvValue::Int8(v) => out.push(*v as u8),
        NvValue::Int16(v) => out.put_u16(*v as u16),
        NvValue::UInt16(v) => out.put_u16(*v),
        NvValue::Int32(v) => out.put_u32(*v as u32),
        NvValue::UInt32(v) => out.put_u32(*v),
        NvValue::Int64(v) | NvValue::HrTime(v) => out.put_u64(*v as u64),
        NvValue::UInt64(v) => out.put_u64(*v),
        NvValue::Double(v) => out.put_u64(v.to_bits()),
        NvValue::String(v) => {
            out.extend_from_slice(v.as_bytes());
            out.push(0);
        }
        NvValue::RawString(v) => {
            out.extend_from_slice(v);
            out.push(0);
        }
        NvValue::List(v) => {
            encode_head(v, out);
            out.put_zeros(LIST_BYTES - 8);
        }
        NvValue::BooleanArray(v) => v.iter().for_each(|v| out.put_u32((*v).into())),
        NvValue::ByteArray(v) | NvValue::UInt8Array(v) => out.extend_from_slice(v),
        NvValue::Int8Array(v) => v.iter().for_each(|v| out.push(*v as u8)),
        NvValue::Int16Array(v) => v.iter().for_each(|v| out.put_u16(*v as u16)),
        NvValue::UInt16Array(v) => v.iter().for_each(|v| out.put_u16(*v)),
        NvValue::Int32Array(v) => v.iter().for_each(|v| out.put_u32(*v as u32)),
        NvValue::UInt32Array(v) => v.iter().for_each(|v| out.put_u32(*v)),
        NvValue::Int64Array(v) => v.iter().for_each(|v| out.put_u64(*v as u64)),
        NvValue::UInt64Array(v) => out.put_words(v),
        NvValue::StringArray(v) => {
            out.put_zeros(v.len() * 8);
            for string in v {
                out.extend_from_slice(string.as_bytes());
                out.push(0);
            }
        }
        NvValue::ListArray(v) => {
            out.put_zeros(v.len() * 8);
            for list in v {
                encode_head(list, out);
                out.put_zeros(LIST_BYTES - 8);
            }
        }
    }
}
