//! XDR packing (`nvs_xdr_*`, module/nvpair/nvpair.c; RFC 4506).
//!
//! A list is: version (0), flags, pairs, eight zero bytes. A pair is: its packed size, its size in
//! the native form, name, type, number of elements, value; all numbers big-endian in four bytes
//! but 64-bit ones in eight. Small integers take four bytes, also in arrays; arrays of numbers
//! repeat their length before the elements; byte arrays do not. A nested list follows in place.

use super::{MAX_DEPTH, NVLIST, NvList, NvValue, Room, pair_bytes, pair_name, text};
use crate::bytes::{Endian, Reader};
use crate::error::{FormatError, Result, bad, does_not_fit};

pub(super) fn decode(bytes: &[u8], room: &mut Room<'_>) -> Result<(NvList, usize)> {
    let mut r = Reader::new(NVLIST, bytes, Endian::Big);
    let list = decode_list(&mut r, 0, room)?;
    Ok((list, r.position()))
}

fn decode_list(r: &mut Reader<'_>, depth: u32, room: &mut Room<'_>) -> Result<NvList> {
    if depth > MAX_DEPTH {
        return Err(FormatError::TooDeep {
            structure: NVLIST,
            limit: MAX_DEPTH.into(),
        });
    }
    let version = r.u32()?;
    if version != 0 {
        return Err(bad(NVLIST, "nvl_version", version.into(), "0"));
    }
    let mut list = NvList::with_flags(r.u32()?);
    loop {
        let packed_bytes = r.u32()?;
        let native_bytes = r.u32()?;
        if packed_bytes == 0 && native_bytes == 0 {
            return Ok(list);
        }
        let name = string(r)?;
        room.pair(&list, name)?;
        let name = pair_name(name)?;
        let kind = r.u32()?;
        let count = r.u32()?;
        room.value(kind, count, r.remaining())?;
        let value = decode_value(r, kind, count, depth, room)?;
        list.pairs.push((name, value));
    }
}

/// A string: length, bytes, zeros up to a multiple of four.
fn string<'a>(r: &mut Reader<'a>) -> Result<&'a [u8]> {
    let length = r.u32()? as usize;
    let bytes = r.take(length)?;
    r.skip(padding(length))?;
    if bytes.contains(&0) {
        return Err(FormatError::BadText {
            structure: NVLIST,
            field: "string",
        });
    }
    Ok(bytes)
}

const fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

/// An array of numbers: its length again, then elements of `unit` bytes each.
fn array<'a, T>(
    r: &mut Reader<'a>,
    count: u32,
    unit: usize,
    mut element: impl FnMut(&mut Reader<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let again = r.u32()?;
    if again != count {
        return Err(bad(
            NVLIST,
            "array length",
            again.into(),
            "the pair's number of elements",
        ));
    }
    // No allocation before it is known that the elements are there.
    r.clone().skip((count as usize).saturating_mul(unit))?;
    (0..count).map(|_| element(r)).collect()
}

fn decode_value(
    r: &mut Reader<'_>,
    kind: u32,
    count: u32,
    depth: u32,
    room: &mut Room<'_>,
) -> Result<NvValue> {
    let scalar = !matches!(kind, 10..=17 | 20 | 24..=26);
    let expected = u32::from(kind != 1);
    if scalar && count != expected {
        return Err(bad(
            NVLIST,
            "nvp_value_elem",
            count.into(),
            "one element in a scalar",
        ));
    }
    Ok(match kind {
        1 => NvValue::Boolean,
        2 => NvValue::Byte(r.u32()? as u8),
        3 => NvValue::Int16(r.u32()? as i16),
        4 => NvValue::UInt16(r.u32()? as u16),
        5 => NvValue::Int32(r.u32()? as i32),
        6 => NvValue::UInt32(r.u32()?),
        7 => NvValue::Int64(r.u64()? as i64),
        8 => NvValue::UInt64(r.u64()?),
        9 => text(string(r)?, room)?,
        10 => {
            let bytes = r.take(count as usize)?.to_vec();
            r.skip(padding(count as usize))?;
            NvValue::ByteArray(bytes)
        }
        11 => NvValue::Int16Array(array(r, count, 4, |r| Ok(r.u32()? as i16))?),
        12 => NvValue::UInt16Array(array(r, count, 4, |r| Ok(r.u32()? as u16))?),
        13 => NvValue::Int32Array(array(r, count, 4, |r| Ok(r.u32()? as i32))?),
        14 => NvValue::UInt32Array(array(r, count, 4, Reader::u32)?),
        15 => NvValue::Int64Array(array(r, count, 8, |r| Ok(r.u64()? as i64))?),
        16 => NvValue::UInt64Array(array(r, count, 8, Reader::u64)?),
        17 => {
            r.clone().skip((count as usize).saturating_mul(4))?;
            let strings = (0..count).map(|_| room.utf8(string(r)?, "string array"));
            NvValue::StringArray(strings.collect::<Result<_>>()?)
        }
        18 => NvValue::HrTime(r.u64()? as i64),
        19 => NvValue::List(decode_list(r, depth + 1, room)?),
        20 => {
            r.clone().skip((count as usize).saturating_mul(16))?;
            let lists = (0..count).map(|_| decode_list(r, depth + 1, room));
            NvValue::ListArray(lists.collect::<Result<_>>()?)
        }
        21 => NvValue::BooleanValue(r.u32()? != 0),
        22 => NvValue::Int8(r.u32()? as i8),
        23 => NvValue::UInt8(r.u32()? as u8),
        24 => NvValue::BooleanArray(array(r, count, 4, |r| Ok(r.u32()? != 0))?),
        25 => NvValue::Int8Array(array(r, count, 4, |r| Ok(r.u32()? as i8))?),
        26 => NvValue::UInt8Array(array(r, count, 4, |r| Ok(r.u32()? as u8))?),
        27 => NvValue::Double(f64::from_bits(r.u64()?)),
        other => return Err(bad(NVLIST, "nvp_type", other.into(), "1 to 27")),
    })
}

pub(super) fn encode(list: &NvList, out: &mut Vec<u8>) -> Result<()> {
    encode_list(list, out, 0)
}

fn encode_list(list: &NvList, out: &mut Vec<u8>, depth: u32) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(FormatError::TooDeep {
            structure: NVLIST,
            limit: MAX_DEPTH.into(),
        });
    }
    word(out, 0);
    word(out, list.flags);
    for (name, value) in &list.pairs {
        let start = out.len();
        word(out, 0);
        word(out, pair_bytes(name.bytes(), value)? as u32);
        put_string(out, name.bytes());
        word(out, value.type_code() as u32);
        let count = value.element_count();
        word(
            out,
            u32::try_from(count)
                .map_err(|_| does_not_fit(NVLIST, "nvp_value_elem", count as u64, "32 bits"))?,
        );
        encode_value(value, out, depth)?;
        let length = out.len() - start;
        let length = i32::try_from(length)
            .map_err(|_| does_not_fit(NVLIST, "nvpair", length as u64, "less than 2 GiB"))?;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
    out.extend_from_slice(&[0; 8]);
    Ok(())
}

fn word(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn hyper(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len() + padding(bytes.len()), 0);
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    word(out, bytes.len() as u32);
    opaque(out, bytes);
}

fn put_array<T: Copy>(out: &mut Vec<u8>, values: &[T], mut put: impl FnMut(&mut Vec<u8>, T)) {
    if values.is_empty() {
        return;
    }
    word(out, values.len() as u32);
    for value in values {
        put(out, *value);
    }
}

/// A byte in a word, the other three zero: the kernel's reader refuses anything else
/// (`xdrmem_dec_char`, module/os/linux/spl/spl-xdr.c).
fn char_word(value: u8) -> u32 {
    value.into()
}

fn encode_value(value: &NvValue, out: &mut Vec<u8>, depth: u32) -> Result<()> {
    match value {
        NvValue::Boolean => {}
        NvValue::BooleanValue(v) => word(out, (*v).into()),
        NvValue::Byte(v) | NvValue::UInt8(v) => word(out, char_word(*v)),
        NvValue::Int8(v) => word(out, char_word(*v as u8)),
        NvValue::Int16(v) => word(out, i32::from(*v) as u32),
        NvValue::UInt16(v) => word(out, (*v).into()),
        NvValue::Int32(v) => word(out, *v as u32),
        NvValue::UInt32(v) => word(out, *v),
        NvValue::Int64(v) | NvValue::HrTime(v) => hyper(out, *v as u64),
        NvValue::UInt64(v) => hyper(out, *v),
        NvValue::Double(v) => hyper(out, v.to_bits()),
        NvValue::String(v) => put_string(out, v.as_bytes()),
        NvValue::RawString(v) => put_string(out, v),
        NvValue::List(v) => encode_list(v, out, depth + 1)?,
        NvValue::BooleanArray(v) => put_array(out, v, |out, v| word(out, v.into())),
        NvValue::ByteArray(v) => opaque(out, v),
        NvValue::Int8Array(v) => put_array(out, v, |out, v| word(out, char_word(v as u8))),
        NvValue::UInt8Array(v) => put_array(out, v, |out, v| word(out, char_word(v))),
        NvValue::Int16Array(v) => put_array(out, v, |out, v| word(out, i32::from(v) as u32)),
        NvValue::UInt16Array(v) => put_array(out, v, |out, v| word(out, v.into())),
        NvValue::Int32Array(v) => put_array(out, v, |out, v| word(out, v as u32)),
        NvValue::UInt32Array(v) => put_array(out, v, word),
        NvValue::Int64Array(v) => put_array(out, v, |out, v| hyper(out, v as u64)),
        NvValue::UInt64Array(v) => put_array(out, v, hyper),
        NvValue::StringArray(v) => {
            for string in v {
                put_string(out, string.as_bytes());
            }
        }
        NvValue::ListArray(v) => {
            for list in v {
                encode_list(list, out, depth + 1)?;
            }
        }
    }
    Ok(())
}
