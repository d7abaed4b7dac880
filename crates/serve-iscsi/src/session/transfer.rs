//! Data on its way from the initiator into a command: immediate, unsolicited, solicited by R2T
//! (RFC 7143 sections 4.2.5, 11.7 and 11.8). DataPDUInOrder and DataSequenceInOrder are always
//! Yes, so data comes from front to back.

use super::Parameters;
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;

/// An R2T that has not been answered in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Solicited {
    pub(crate) transfer_tag: u32,
    pub(crate) sequence_number: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    received: u32,
    next_data_sn: u32,
}

/// What came with a Data-Out PDU.
#[derive(Debug, Clone)]
pub(crate) struct DataOut {
    /// `None` for unsolicited data.
    pub(crate) transfer_tag: Option<u32>,
    pub(crate) data_sn: u32,
    pub(crate) offset: u32,
    pub(crate) is_final: bool,
    pub(crate) data: Bytes,
}

/// What a Data-Out PDU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More of the same sequence is to come.
    More,
    /// The sequence is complete.
    SequenceDone,
    /// A PDU is missing, twice there, or out of its place.
    OutOfOrder,
    /// More than was allowed, or less than was asked for.
    WrongAmount,
}

/// The data of one command.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Bytes that the command takes; what comes beyond is dropped.
    wanted: u32,
    /// Bytes that the initiator means to send.
    announced: u32,
    /// Bytes received, dropped ones included.
    received: u32,
    /// All of it, if it came in one piece.
    whole: Option<Bytes>,
    buffer: BytesMut,
    expects_unsolicited: bool,
    unsolicited_data_sn: u32,
    unsolicited_max: u32,
    /// How far data has been asked for.
    solicited_to: u32,
    r2t_count: u32,
    outstanding: VecDeque<Solicited>,
}

impl Transfer {
    /// A transfer of `wanted` of `announced` bytes, of which `immediate` came with the command.
    pub(crate) fn new(
        wanted: u32,
        announced: u32,
        immediate: Bytes,
        expects_unsolicited: bool,
        parameters: &Parameters,
    ) -> Self {
        let mut transfer = Self {
            wanted,
            announced,
            received: 0,
            whole: None,
            buffer: BytesMut::new(),
            expects_unsolicited,
            unsolicited_data_sn: 0,
            unsolicited_max: parameters.first_burst_bytes_max.min(announced),
            solicited_to: 0,
            r2t_count: 0,
            outstanding: VecDeque::new(),
        };
        if !immediate.is_empty() {
            transfer.take(immediate);
        }
        transfer.solicited_to = transfer.received;
        transfer
    }

    /// Whether all that the command takes is here.
    pub(crate) fn is_complete(&self) -> bool {
        !self.expects_unsolicited && self.received >= self.wanted && self.outstanding.is_empty()
    }

    fn take(&mut self, data: Bytes) {
        let offset = self.received;
        self.received += data.len() as u32;
        if offset >= self.wanted {
            return;
        }
        let useful = data.len().min((self.wanted - offset) as usize);
        if offset == 0 && useful == self.wanted as usize {
            self.whole = Some(data.slice(..useful));
            return;
        }
        // Memory for the whole is taken when data is asked for; unsolicited data grows it
        // as it comes.
        self.buffer.extend_from_slice(&data[..useful]);
    }

    /// The data, once complete.
    pub(crate) fn into_data(self) -> Bytes {
        match self.whole {
            Some(whole) => whole,
            None => self.buffer.freeze(),
        }
    }

    /// Takes a Data-Out PDU.
    pub(crate) fn data_out(&mut self, pdu: DataOut) -> Progress {
        let length = pdu.data.len() as u32;
        match pdu.transfer_tag {
            None => {
                if !self.expects_unsolicited {
                    return Progress::WrongAmount;
                }
                if pdu.data_sn != self.unsolicited_data_sn || pdu.offset != self.received {
                    return Progress::OutOfOrder;
                }
                if length > self.unsolicited_max - self.received.min(self.unsolicited_max) {
                    return Progress::WrongAmount;
                }
                self.unsolicited_data_sn += 1;
                self.take(pdu.data);
                self.solicited_to = self.received;
                if !pdu.is_final {
                    return Progress::More;
                }
                self.expects_unsolicited = false;
                Progress::SequenceDone
            }
            Some(tag) => {
                let Some(current) = self.outstanding.front_mut() else {
                    return Progress::WrongAmount;
                };
                if current.transfer_tag != tag
                    || pdu.data_sn != current.next_data_sn
                    || pdu.offset != current.offset + current.received
                {
                    return Progress::OutOfOrder;
                }
                if length > current.length - current.received {
                    return Progress::WrongAmount;
                }
                current.next_data_sn += 1;
                current.received += length;
                let is_full = current.received == current.length;
                if is_full != pdu.is_final {
                    return Progress::WrongAmount;
                }
                self.take(pdu.data);
                if !is_full {
                    return Progress::More;
                }
                self.outstanding.pop_front();
                Progress::SequenceDone
            }
        }
    }

    /// Asks for the next burst, if there is more to ask for and the limits allow it.
    pub(crate) fn solicit(
        &mut self,
        parameters: &Parameters,
        next_transfer_tag: &mut u32,
    ) -> Option<Solicited> {
        let wanted = self.wanted.min(self.announced);
        if self.expects_unsolicited
            || self.solicited_to >= wanted
            || self.outstanding.len() >= parameters.outstanding_r2t_max as usize
        {
            return None;
        }
        if self.outstanding.is_empty() && self.r2t_count == 0 {
            let whole = wanted as usize;
            if whole >= net::PLACED_BYTES_MIN {
                net::place(&mut self.buffer, whole, 0);
            } else {
                self.buffer.reserve(whole.saturating_sub(self.buffer.len()));
            }
        }
        let offset = self.solicited_to;
        let length = (wanted - offset).min(parameters.burst_bytes_max);
        let solicited = Solicited {
            transfer_tag: *next_transfer_tag,
            sequence_number: self.r2t_count,
            offset,
            length,
            received: 0,
            next_data_sn: 0,
        };
        *next_transfer_tag = match next_transfer_tag.wrapping_add(1) {
            crate::pdu::TAG_NONE => 0,
            tag => tag,
        };
        self.solicited_to += length;
        self.r2t_count += 1;
        self.outstanding.push_back(solicited);
        Some(solicited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> Parameters {
        Parameters {
            burst_bytes_max: 8,
            first_burst_bytes_max: 6,
            outstanding_r2t_max: 2,
            ..Parameters::default()
        }
    }

    fn data_out(tag: Option<u32>, data_sn: u32, offset: u32, is_final: bool, n: usize) -> DataOut {
        let bytes: Vec<u8> = (0..n).map(|i| (offset as usize + i) as u8).collect();
        DataOut {
            transfer_tag: tag,
            data_sn,
            offset,
            is_final,
            data: bytes.into(),
        }
    }

    #[test]
    fn immediate_unsolicited_and_solicited_data_join() {
        let parameters = parameters();
        let immediate = Bytes::from_static(&[0, 1]);
        let mut transfer = Transfer::new(20, 20, immediate, true, &parameters);
        let mut tag = u32::MAX - 1;
        assert_eq!(transfer.solicit(&parameters, &mut tag), None);
        assert_eq!(
            transfer.data_out(data_out(None, 0, 2, false, 2)),
            Progress::More
        );
        assert_eq!(
            transfer.data_out(data_out(None, 1, 4, true, 2)),
            Progress::SequenceDone
        );
        let first = transfer.solicit(&parameters, &mut tag).unwrap();
        let second = transfer.solicit(&parameters, &mut tag).unwrap();
        assert_eq!((first.offset, first.length), (6, 8));
        assert_eq!((second.offset, second.length), (14, 6));
        assert_ne!(second.transfer_tag, u32::MAX);
        assert_eq!(transfer.solicit(&parameters, &mut tag), None);
        let (one, two) = (Some(first.transfer_tag), Some(second.transfer_tag));
        assert_eq!(
            transfer.data_out(data_out(one, 0, 6, true, 8)),
            Progress::SequenceDone
        );
        assert!(!transfer.is_complete());
        assert_eq!(
            transfer.data_out(data_out(two, 0, 14, false, 4)),
            Progress::More
        );
        assert_eq!(
            transfer.data_out(data_out(two, 1, 18, true, 2)),
            Progress::SequenceDone
        );
        assert!(transfer.is_complete());
        let all: Vec<u8> = (0..20).collect();
        assert_eq!(transfer.into_data(), all);
    }

    /// Goal: long data that comes in many pieces lies where whoever stores it wants it.
    #[test]
    fn long_data_begins_with_a_page() {
        let parameters = Parameters {
            burst_bytes_max: 64 << 10,
            ..parameters()
        };
        let immediate = Bytes::from(vec![1; 6]);
        let mut transfer = Transfer::new(64 << 10, 64 << 10, immediate, false, &parameters);
        let mut tag = 1;
        let asked = transfer.solicit(&parameters, &mut tag).expect("an R2T");
        let data = data_out(Some(asked.transfer_tag), 0, 6, true, (64 << 10) - 6);
        assert_eq!(transfer.data_out(data), Progress::SequenceDone);
        let data = transfer.into_data();
        assert_eq!(data.len(), 64 << 10);
        assert_eq!(data[..7], [1, 1, 1, 1, 1, 1, 6]);
        assert_eq!(data.as_ptr() as usize % 4096, 0);
    }

    #[test]
    fn one_piece_is_not_copied_and_excess_is_dropped() {
        let parameters = parameters();
        let immediate = Bytes::from(vec![7; 6]);
        let at = immediate.as_ptr();
        let transfer = Transfer::new(4, 6, immediate, false, &parameters);
        assert!(transfer.is_complete());
        let data = transfer.into_data();
        assert_eq!(data.as_ptr(), at);
        assert_eq!(data, [7; 4][..]);
    }

    #[test]
    fn wrong_sequences_are_found() {
        let parameters = parameters();
        let new = || Transfer::new(20, 20, Bytes::new(), true, &parameters);
        let table = [
            (data_out(None, 1, 0, true, 2), Progress::OutOfOrder),
            (data_out(None, 0, 1, true, 2), Progress::OutOfOrder),
            (data_out(None, 0, 0, true, 7), Progress::WrongAmount),
            (data_out(Some(1), 0, 0, true, 7), Progress::WrongAmount),
        ];
        for (pdu, expected) in table {
            assert_eq!(new().data_out(pdu.clone()), expected, "{pdu:?}");
        }
        let solicited = || {
            let mut transfer = Transfer::new(20, 20, Bytes::new(), false, &parameters);
            let mut tag = 1;
            transfer.solicit(&parameters, &mut tag).unwrap();
            transfer
        };
        let table = [
            (data_out(Some(2), 0, 0, true, 8), Progress::OutOfOrder),
            (data_out(Some(1), 1, 0, true, 8), Progress::OutOfOrder),
            (data_out(Some(1), 0, 8, true, 8), Progress::OutOfOrder),
            (data_out(Some(1), 0, 0, true, 7), Progress::WrongAmount),
            (data_out(Some(1), 0, 0, false, 8), Progress::WrongAmount),
            (data_out(Some(1), 0, 0, true, 9), Progress::WrongAmount),
            (data_out(None, 0, 0, true, 8), Progress::WrongAmount),
        ];
        for (pdu, expected) in table {
            assert_eq!(solicited().data_out(pdu.clone()), expected, "{pdu:?}");
        }
    }
}
