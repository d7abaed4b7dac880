//! Mode pages (SPC-5 section 7.5, SBC-4 section 6.5). Pure.
//!
//! Three bits can be changed, for all nexuses at once and until the restart: D_SENSE and SWP of
//! the control page, WCE of the caching page.

use super::sense::Sense;

/// What can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModeParameters {
    /// Sense data comes in descriptor format.
    pub(crate) descriptor_sense: bool,
    /// Software write protect.
    pub(crate) write_protect: bool,
    /// Writes may be completed before they are stable.
    pub(crate) write_cache: bool,
}

impl Default for ModeParameters {
    fn default() -> Self {
        Self {
            descriptor_sense: false,
            write_protect: false,
            write_cache: true,
        }
    }
}

/// Values of the page control field.
mod page_control {
    pub(super) const CHANGEABLE: u8 = 1;
    pub(super) const DEFAULT: u8 = 2;
    pub(super) const SAVED: u8 = 3;
}

const READ_WRITE_ERROR_RECOVERY: u8 = 0x01;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const INFORMATIONAL_EXCEPTIONS: u8 = 0x1c;
const ALL_PAGES: u8 = 0x3f;
const PAGES: [u8; 4] = [
    READ_WRITE_ERROR_RECOVERY,
    CACHING,
    CONTROL,
    INFORMATIONAL_EXCEPTIONS,
];

const WCE: u8 = 0x04;
const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;

/// A page with its two-byte header; with `None`, the mask of what can be changed.
fn page(code: u8, parameters: Option<ModeParameters>) -> Vec<u8> {
    let length: usize = if code == CACHING { 0x12 } else { 0x0a };
    let mut page = vec![0; 2 + length];
    page[0] = code;
    page[1] = length as u8;
    match (code, parameters) {
        (CACHING, None) => page[2] = WCE,
        (CACHING, Some(parameters)) => page[2] = if parameters.write_cache { WCE } else { 0 },
        (CONTROL, None) => {
            page[2] = D_SENSE;
            page[4] = SWP;
        }
        (CONTROL, Some(parameters)) => {
            // GLTSD; commands may be reordered; no limit to being busy.
            page[2] = 0x02
                | if parameters.descriptor_sense {
                    D_SENSE
                } else {
                    0
                };
            page[3] = 0x10;
            page[4] = if parameters.write_protect { SWP } else { 0 };
            page[8..10].fill(0xff);
        }
        // DEXCPT: no exceptions are reported.
        (INFORMATIONAL_EXCEPTIONS, Some(_)) => page[2] = 0x08,
        _ => {}
    }
    page
}

/// A MODE SENSE.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query {
    pub(crate) is_long: bool,
    pub(crate) no_block_descriptor: bool,
    pub(crate) long_lba: bool,
    pub(crate) control: u8,
    pub(crate) page: u8,
    pub(crate) subpage: u8,
}

/// MODE SENSE data.
pub(crate) fn sense(
    query: Query,
    parameters: ModeParameters,
    is_read_only: bool,
    block_count: u64,
    block_bytes: u32,
) -> Result<Vec<u8>, Sense> {
    let values = match query.control {
        page_control::SAVED => return Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED),
        page_control::CHANGEABLE => None,
        page_control::DEFAULT => Some(ModeParameters::default()),
        _ => Some(parameters),
    };
    let mut pages = Vec::new();
    match (query.page, query.subpage) {
        (ALL_PAGES, 0 | 0xff) => {
            for code in PAGES {
                pages.extend_from_slice(&page(code, values));
            }
        }
        (code, 0 | 0xff) if PAGES.contains(&code) => pages = page(code, values),
        (code, _) if PAGES.contains(&code) || code == ALL_PAGES => {
            return Err(Sense::cdb_field(3));
        }
        _ => return Err(Sense::cdb_field(2)),
    }
    let mut descriptor = Vec::new();
    if !query.no_block_descriptor {
        if query.long_lba {
            descriptor.extend_from_slice(&block_count.to_be_bytes());
            descriptor.extend_from_slice(&[0; 4]);
        } else {
            let count = u32::try_from(block_count).unwrap_or(u32::MAX);
            descriptor.extend_from_slice(&count.to_be_bytes());
        }
        // The short form has a reserved byte and 24 bits of length: the same four bytes.
        descriptor.extend_from_slice(&block_bytes.to_be_bytes());
    }
    // WP; DPOFUA.
    let device_specific = 0x10 | if is_read_only { 0x80 } else { 0 };
    let mut data = if query.is_long {
        let length = (6 + descriptor.len() + pages.len()) as u16;
        let [high, low] = length.to_be_bytes();
        let long_lba = u8::from(query.long_lba);
        let descriptor_bytes = descriptor.len() as u8;
        vec![
            high,
            low,
            0,
            device_specific,
            long_lba,
            0,
            0,
            descriptor_bytes,
        ]
    } else {
        let length = (3 + descriptor.len() + pages.len()) as u8;
        vec![length, 0, device_specific, descriptor.len() as u8]
    };
    data.extend_from_slice(&descriptor);
    data.extend_from_slice(&pages);
    Ok(data)
}

/// Takes a MODE SELECT parameter list: the parameters as they are then.
pub(crate) fn select(
    list: &[u8],
    is_long: bool,
    mut parameters: ModeParameters,
    block_bytes: u32,
) -> Result<ModeParameters, Sense> {
    const SHORT: Sense = Sense::PARAMETER_LIST_LENGTH_ERROR;
    const INVALID: Sense = Sense::INVALID_FIELD_IN_PARAMETER_LIST;
    if list.is_empty() {
        return Ok(parameters);
    }
    let header_bytes = if is_long { 8 } else { 4 };
    let (header, rest) = list.split_at_checked(header_bytes).ok_or(SHORT)?;
    let (is_long_lba, descriptor_bytes) = if is_long {
        let length = u16::from_be_bytes([header[6], header[7]]);
        (header[4] & 1 != 0, usize::from(length))
    } else {
        (false, usize::from(header[3]))
    };
    let (descriptor, mut pages) = rest.split_at_checked(descriptor_bytes).ok_or(SHORT)?;
    // The block length is what it is; the number of blocks is not looked at (0: unchanged).
    match (descriptor_bytes, is_long_lba) {
        (0, _) => {}
        (8, false) | (16, true) => {
            if descriptor[descriptor_bytes - 3..] != block_bytes.to_be_bytes()[1..] {
                return Err(INVALID);
            }
        }
        _ => return Err(INVALID),
    }
    while let Some(&[code, length]) = pages.first_chunk::<2>() {
        let (found, rest) = pages
            .split_at_checked(2 + usize::from(length))
            .ok_or(SHORT)?;
        pages = rest;
        // PS is reserved here; SPF would be a subpage, of which there are none.
        let code = code & 0x7f;
        if !PAGES.contains(&code) {
            return Err(INVALID);
        }
        let present = page(code, Some(parameters));
        let mask = page(code, None);
        if found.len() != present.len() {
            return Err(INVALID);
        }
        for at in 2..found.len() {
            if (found[at] ^ present[at]) & !mask[at] != 0 {
                return Err(INVALID);
            }
        }
        match code {
            CACHING => parameters.write_cache = found[2] & WCE != 0,
            CONTROL => {
                parameters.descriptor_sense = found[2] & D_SENSE != 0;
                parameters.write_protect = found[4] & SWP != 0;
            }
            _ => {}
        }
    }
    if pages.is_empty() {
        Ok(parameters)
    } else {
        Err(SHORT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(page: u8, control: u8) -> Query {
        Query {
            is_long: false,
            no_block_descriptor: true,
            long_lba: false,
            control,
            page,
            subpage: 0,
        }
    }

    #[test]
    fn all_pages_are_the_pages_in_order() {
        let parameters = ModeParameters::default();
        let data = sense(query(ALL_PAGES, 0), parameters, true, 1 << 33, 512).unwrap();
        assert_eq!(usize::from(data[0]), data.len() - 1);
        assert_eq!(data[2], 0x90);
        let mut at = 4;
        let mut codes = Vec::new();
        while at < data.len() {
            codes.push(data[at]);
            at += 2 + usize::from(data[at + 1]);
        }
        assert_eq!(codes, PAGES);
        assert_eq!(at, data.len());
        assert_eq!(
            sense(query(0x3e, 0), parameters, false, 1, 512),
            Err(Sense::cdb_field(2))
        );
        assert_eq!(
            sense(query(CONTROL, 3), parameters, false, 1, 512),
            Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED)
        );
        let long = Query {
            is_long: true,
            no_block_descriptor: false,
            long_lba: true,
            ..query(CACHING, 0)
        };
        let data = sense(long, parameters, false, 1 << 33, 4096).unwrap();
        assert_eq!(data[..8], [0, 42, 0, 0x10, 1, 0, 0, 16]);
        assert_eq!(
            data[8..24],
            [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0]
        );
    }

    /// Goal: exactly the changeable bits can be changed. Method: flip every bit of every page.
    #[test]
    fn only_changeable_bits_can_be_changed() {
        let parameters = ModeParameters::default();
        for code in PAGES {
            let present = sense(query(code, 0), parameters, false, 1, 512).unwrap();
            let mask = sense(query(code, 1), parameters, false, 1, 512).unwrap();
            for bit in 0..present.len() * 8 {
                let (at, bit) = (bit / 8, 1 << (bit % 8));
                if at < 6 {
                    continue;
                }
                let mut list = present.clone();
                list[0] = 0;
                list[at] ^= bit;
                let result = select(&list, false, parameters, 512);
                if mask[at] & bit == 0 {
                    assert_eq!(result, Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
                } else {
                    assert_ne!(result, Ok(parameters));
                    assert!(result.is_ok());
                }
            }
        }
    }

    #[test]
    fn hostile_lists_are_refused() {
        let parameters = ModeParameters::default();
        for (list, error) in [
            (&[0, 0, 0][..], Sense::PARAMETER_LIST_LENGTH_ERROR),
            (&[0, 0, 0, 8], Sense::PARAMETER_LIST_LENGTH_ERROR),
            (&[0, 0, 0, 0, 8], Sense::PARAMETER_LIST_LENGTH_ERROR),
            (&[0, 0, 0, 0, 8, 0xff], Sense::PARAMETER_LIST_LENGTH_ERROR),
            (&[0, 0, 0, 0, 8, 0], Sense::INVALID_FIELD_IN_PARAMETER_LIST),
            (
                &[0, 0, 0, 0, 0x3f, 0],
                Sense::INVALID_FIELD_IN_PARAMETER_LIST,
            ),
            (
                &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 4, 0],
                Sense::INVALID_FIELD_IN_PARAMETER_LIST,
            ),
        ] {
            assert_eq!(select(list, false, parameters, 512), Err(error), "{list:?}");
        }
        assert_eq!(
            select(
                &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 2, 0],
                false,
                parameters,
                512
            ),
            Ok(parameters)
        );
        assert_eq!(select(&[], true, parameters, 512), Ok(parameters));
    }
}
