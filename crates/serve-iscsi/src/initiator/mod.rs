//! The other end of the protocol, as far as a look at a target's paths needs it (`millpond iscsi
//! check`): discovery, pings (NOP-Out) and reads, by RFC 7143 sections 4.3, 6, 11.10, 11.18 and
//! SPC-4, SBC-3. It writes nothing, takes no digests, recovers nothing, and gives up where the
//! target says anything that it does not expect.
//!
//! Nothing that a target sends panics or sizes memory unchecked: data segments are as long as was
//! said that they may be, and answers as long as the limits here. No talk goes on for ever,
//! whatever comes meanwhile. What a target says of itself is shown to people, who copy it: names,
//! addresses and words have the letters that such have, and no more of them.

mod login;
mod reads;
#[cfg(test)]
mod tests;

pub use login::{FoundPortal, FoundTarget, Identity};
pub use reads::{Rate, UnitFacts};

use crate::pdu::{Frame, FrameError, Framing, Header, OutQueue, TAG_NONE, flag, next_frame};
use crate::pdu::{serial_less, target_opcode};
use bytes::{Bytes, BytesMut};
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest data segment that a target may send, in bytes.
pub(crate) const DATA_BYTES_MAX: usize = 256 << 10;
/// Room made for input, in bytes.
const INPUT_BYTES: usize = 256 << 10;
/// A target that says nothing for so long is given up. Large segments that a path loses look so.
pub(crate) const SILENCE: Duration = Duration::from_secs(8);
/// A talk that has no end after so long is given up, though the target says something.
pub(crate) const TALK: Duration = Duration::from_secs(30);
/// Data of a ping that every target takes (the default of `MaxRecvDataSegmentLength`, RFC 7143
/// section 13.12).
const PING_BYTES_MAX: usize = 8192;

/// Why a target could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitiatorError {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// Nothing came.
    #[error("the target says nothing for {} seconds", SILENCE.as_secs())]
    Silent,
    /// Something came again and again, but not the end.
    #[error("the target comes to no end in {} seconds", .0.as_secs())]
    Endless(Duration),
    /// The login was refused, with this status class and detail (RFC 7143 section 11.13.5).
    #[error("the target refuses the login: {}", login::meaning(.0))]
    Refused(u16),
    /// The target wants to be logged in to elsewhere.
    #[error("the target sends its initiators elsewhere, to {0}")]
    Moved(String),
    /// The target does something else than the protocol says, or more than is understood here.
    #[error("the target's answer is not understood: {0}")]
    Strange(&'static str),
    /// A command failed, with this SCSI status and sense key.
    #[error("a command ended with status {status:#04x}, sense key {key:#03x}")]
    Command {
        /// SCSI status (SAM-5).
        status: u8,
        /// Sense key (SPC-4), 0 where there is none.
        key: u8,
    },
}

impl From<FrameError> for InitiatorError {
    fn from(_: FrameError) -> Self {
        Self::Strange("a PDU is longer than was agreed")
    }
}

/// What targets say, taken apart: for fuzzers.
pub(crate) fn decode_for_fuzzing(data: &[u8]) {
    let _ = (login::targets_of(data), reads::naa_of(data));
}

pub(crate) type Result<T> = std::result::Result<T, InitiatorError>;

/// What a talk gives, if it ends in time.
async fn within<T>(time: Duration, talk: impl Future<Output = Result<T>>) -> Result<T> {
    let ended = tokio::time::timeout(time, talk).await;
    ended.unwrap_or(Err(InitiatorError::Endless(time)))
}

/// A connection to a target, alone in its session.
#[derive(Debug)]
pub struct Initiator {
    socket: TcpStream,
    input: BytesMut,
    /// CmdSN of the next command, and the last one that the target takes.
    cmd_sn: u32,
    max_cmd_sn: u32,
    /// StatSN of the next answer.
    stat_sn: u32,
    /// The tag of the next request.
    tag: u32,
}

impl Initiator {
    fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            input: BytesMut::with_capacity(INPUT_BYTES),
            cmd_sn: 1,
            max_cmd_sn: 1,
            stat_sn: 0,
            tag: 1,
        }
    }

    /// The connection.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    fn next_tag(&mut self) -> u32 {
        let tag = self.tag;
        self.tag = match self.tag.wrapping_add(1) {
            TAG_NONE => 1,
            next => next,
        };
        tag
    }

    async fn send(&mut self, header: Header, data: Bytes) -> Result<()> {
        let mut out = OutQueue::default();
        out.push_with(header, data);
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); 4];
            let count = out.fill(&mut slices);
            let sent = tokio::time::timeout(SILENCE, self.socket.write_vectored(&slices[..count]));
            match sent.await.map_err(|_| InitiatorError::Silent)?? {
                0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                sent => out.consume(sent),
            }
        }
        Ok(())
    }

    /// Sends a request with the numbers that all have.
    async fn request(&mut self, mut header: Header, data: Bytes) -> Result<()> {
        header.set_u32(24, self.cmd_sn);
        header.set_u32(28, self.stat_sn);
        if !header.is_immediate() {
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
        }
        self.send(header, data).await
    }

    async fn frame(&mut self) -> Result<Frame> {
        let framing = Framing {
            has_header_digest: false,
            has_data_digest: false,
            data_bytes_max: DATA_BYTES_MAX,
        };
        loop {
            match next_frame(&mut self.input, framing)? {
                Ok(frame) => return Ok(frame),
                Err(needed) => {
                    let missing = needed.saturating_sub(self.input.len());
                    self.input.reserve(missing.max(INPUT_BYTES / 4));
                    let read = self.socket.read_buf(&mut self.input);
                    let read = tokio::time::timeout(SILENCE, read).await;
                    if read.map_err(|_| InitiatorError::Silent)?? == 0 {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                    }
                }
            }
        }
    }

    /// The next PDU that answers something; pings of the target's own are answered meanwhile.
    async fn answer(&mut self) -> Result<Frame> {
        loop {
            let frame = self.frame().await?;
            let header = &frame.header;
            let opcode = header.0[0] & 0x3f;
            let carries_status = match opcode {
                target_opcode::READY_TO_TRANSFER => false,
                target_opcode::DATA_IN => header.flags() & flag::STATUS != 0,
                target_opcode::NOP_IN => header.initiator_task_tag() != TAG_NONE,
                _ => true,
            };
            if carries_status {
                self.stat_sn = header.u32_at(24).wrapping_add(1);
            }
            let max_cmd_sn = header.u32_at(32);
            if serial_less(self.max_cmd_sn, max_cmd_sn) {
                self.max_cmd_sn = max_cmd_sn;
            }
            match opcode {
                target_opcode::NOP_IN if !carries_status => {
                    if header.target_tag() != TAG_NONE {
                        self.answer_ping(*header).await?;
                    }
                }
                target_opcode::REJECT => return Err(InitiatorError::Strange("it rejects a PDU")),
                target_opcode::ASYNC_MESSAGE => {
                    return Err(InitiatorError::Strange("it ends the session"));
                }
                _ => return Ok(frame),
            }
        }
    }

    /// A ping of the target's (RFC 7143 section 11.19): answered by its tag, with nothing to be
    /// answered in turn.
    async fn answer_ping(&mut self, ping: Header) -> Result<()> {
        let mut header = Header::new(0x40);
        header.set_lun(ping.lun());
        header.set_initiator_task_tag(TAG_NONE);
        header.set_target_tag(ping.target_tag());
        self.request(header, Bytes::new()).await
    }

    /// How long a ping takes there and back, with so many bytes of data each way (8192 at most).
    ///
    /// # Errors
    /// As all of it; [`InitiatorError::Strange`] where the data does not come back as it was.
    pub async fn ping(&mut self, length_bytes: usize) -> Result<Duration> {
        within(TALK, self.ping_once(length_bytes)).await
    }

    async fn ping_once(&mut self, length_bytes: usize) -> Result<Duration> {
        let tag = self.next_tag();
        let mut header = Header::new(0x40);
        header.set_initiator_task_tag(tag);
        header.set_target_tag(TAG_NONE);
        let data = Bytes::from(vec![0x5a; length_bytes.min(PING_BYTES_MAX)]);
        let begun = Instant::now();
        self.request(header, data.clone()).await?;
        let frame = self.answer().await?;
        let took = begun.elapsed();
        let is_answer = frame.header.0[0] & 0x3f == target_opcode::NOP_IN
            && frame.header.initiator_task_tag() == tag;
        match is_answer && frame.data == data {
            true => Ok(took),
            false => Err(InitiatorError::Strange(
                "a ping comes back as something else",
            )),
        }
    }

    /// Ends the session.
    ///
    /// # Errors
    /// As all of it.
    pub async fn log_out(mut self) -> Result<()> {
        let mut header = Header::new(0x46);
        let tag = self.next_tag();
        header.set_initiator_task_tag(tag);
        self.request(header, Bytes::new()).await?;
        within(TALK, self.answer()).await.map(|_| ())
    }
}
