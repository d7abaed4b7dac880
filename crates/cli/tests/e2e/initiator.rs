//! An initiator that sends any command, and knows of the protocol just enough for that.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// An initiator in a session of its own.
pub struct Initiator {
    socket: TcpStream,
    cmd_sn: u32,
}

/// How a command ended: SCSI status, and the data or sense data that came.
pub struct Answer {
    pub status: u8,
    pub data: Vec<u8>,
}

impl Initiator {
    /// Logs in to a target by a portal, as initiator port `isid`.
    pub fn log_in(portal: &str, iqn: &str, isid: u8) -> std::io::Result<Self> {
        let socket = TcpStream::connect(portal)?;
        socket.set_read_timeout(Some(Duration::from_secs(120)))?;
        let mut initiator = Self { socket, cmd_sn: 1 };
        let mut header = [0; 48];
        header[0] = 0x43;
        header[1] = 0x87;
        header[13] = isid;
        header[27] = 1;
        let keys = format!(
            "InitiatorName=iqn.2025-01.test:raw\0TargetName={iqn}\0InitialR2T=No\0\
             FirstBurstLength=131072\0MaxRecvDataSegmentLength=262144\0"
        );
        initiator.send(header, keys.as_bytes())?;
        let (reply, _) = initiator.receive()?;
        if reply[36..38] != [0, 0] {
            return Err(std::io::Error::other("the login is refused"));
        }
        // The unit attention of a new session.
        initiator.command(&[0; 6], 0, &[])?;
        Ok(initiator)
    }

    fn send(&mut self, mut header: [u8; 48], data: &[u8]) -> std::io::Result<()> {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let mut all = header.to_vec();
        all.extend_from_slice(data);
        all.resize(all.len().next_multiple_of(4), 0);
        self.socket.write_all(&all)
    }

    fn receive(&mut self) -> std::io::Result<([u8; 48], Vec<u8>)> {
        let mut header = [0; 48];
        self.socket.read_exact(&mut header)?;
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; length.next_multiple_of(4)];
        self.socket.read_exact(&mut data)?;
        data.truncate(length);
        Ok((header, data))
    }

    /// Does a command on unit 0 that reads up to `read_bytes` or sends up to 128 KiB of data.
    pub fn command(&mut self, cdb: &[u8], read_bytes: u32, data: &[u8]) -> std::io::Result<Answer> {
        let mut header = [0; 48];
        header[0] = 0x01;
        header[1] = 0x80;
        let length = if data.is_empty() {
            header[1] |= if read_bytes > 0 { 0x40 } else { 0 };
            read_bytes
        } else {
            header[1] |= 0x20;
            data.len() as u32
        };
        let number = self.cmd_sn.to_be_bytes();
        self.cmd_sn += 1;
        header[16..20].copy_from_slice(&number);
        header[20..24].copy_from_slice(&length.to_be_bytes());
        header[24..28].copy_from_slice(&number);
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.send(header, data)?;
        let mut answer = Answer {
            status: 0,
            data: Vec::new(),
        };
        loop {
            let (header, data) = self.receive()?;
            answer.data.extend_from_slice(&data);
            match header[0] & 0x3f {
                0x25 if header[1] & 0x01 == 0 => {}
                0x21 | 0x25 => {
                    answer.status = header[3];
                    return Ok(answer);
                }
                opcode => return Err(std::io::Error::other(format!("PDU {opcode:#x}"))),
            }
        }
    }

    /// The same, which must end well; the data that came.
    pub fn does(&mut self, cdb: &[u8], read_bytes: u32, data: &[u8]) -> Vec<u8> {
        let answer = self.command(cdb, read_bytes, data).expect("an answer");
        assert_eq!(answer.status, 0, "{cdb:x?}: {:x?}", answer.data);
        answer.data
    }
}

/// READ (10) or WRITE (10), or with 0x08 in `flags` one that is on stable storage when it ends.
pub fn blocks(opcode: u8, flags: u8, lba: u32, count: u16) -> [u8; 10] {
    let mut cdb = [opcode, flags, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&count.to_be_bytes());
    cdb
}

pub const READ: u8 = 0x28;
pub const WRITE: u8 = 0x2a;
pub const FORCE_UNIT_ACCESS: u8 = 0x08;
