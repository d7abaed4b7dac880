//! A client that knows just enough of the protocol.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub const IQN: &str = "iqn.2025-01.test:t";

/// What a login says.
pub struct Login {
    pub initiator: &'static str,
    pub isid: u8,
    /// The session that it joins; 0 for a new one.
    pub tsih: u16,
    pub connection_id: u16,
    /// `MaxConnections`, where it is offered.
    pub connections: Option<u16>,
    pub cmd_sn: u32,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            initiator: "iqn.i",
            isid: 1,
            tsih: 0,
            connection_id: 0,
            connections: None,
            cmd_sn: 1,
        }
    }
}

impl Login {
    /// Logs in; an error is the status that refuses it.
    pub async fn done(&self, address: SocketAddr) -> Result<Client, u16> {
        let socket = TcpStream::connect(address).await.unwrap();
        let mut client = Client {
            socket,
            cmd_sn: self.cmd_sn,
            tsih: 0,
        };
        let mut header = [0; 48];
        header[0] = 0x43;
        header[1] = 0x87;
        header[13] = self.isid;
        header[14..16].copy_from_slice(&self.tsih.to_be_bytes());
        header[20..22].copy_from_slice(&self.connection_id.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        let mut keys = format!("InitiatorName={}\0TargetName={IQN}\0", self.initiator);
        if self.tsih == 0 {
            keys.push_str("InitialR2T=No\0");
        }
        if let Some(connections) = self.connections {
            keys.push_str(&format!("MaxConnections={connections}\0"));
        }
        client.send(header, keys.as_bytes()).await;
        let (reply, _) = client.receive().await.expect("an answer to the login");
        assert_eq!(reply[0], 0x23, "{reply:?}");
        match u16::from_be_bytes([reply[36], reply[37]]) {
            0 => {
                assert_eq!(reply[1], 0x87, "{reply:?}");
                client.tsih = u16::from_be_bytes([reply[14], reply[15]]);
                assert_ne!(client.tsih, 0);
                Ok(client)
            }
            status => Err(status),
        }
    }
}

pub struct Client {
    pub socket: TcpStream,
    pub cmd_sn: u32,
    /// The session's handle.
    pub tsih: u16,
}

impl Client {
    /// A connection that has not logged in.
    pub fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            cmd_sn: 1,
            tsih: 0,
        }
    }

    /// Sends a header, with its length set, and data.
    pub async fn send(&mut self, mut header: [u8; 48], data: &[u8]) {
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        self.socket.write_all(&header).await.unwrap();
        let mut padded = data.to_vec();
        padded.resize(data.len().next_multiple_of(4), 0);
        self.socket.write_all(&padded).await.unwrap();
    }

    /// The next PDU; `None` at the end of the stream.
    pub async fn receive(&mut self) -> Option<([u8; 48], Vec<u8>)> {
        let mut header = [0; 48];
        let read = self.socket.read_exact(&mut header);
        let read = tokio::time::timeout(Duration::from_secs(10), read).await;
        read.expect("an answer in time").ok()?;
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; length.next_multiple_of(4)];
        self.socket.read_exact(&mut data).await.ok()?;
        data.truncate(length);
        Some((header, data))
    }

    /// Logs in as `iqn.i`.
    pub async fn log_in(address: SocketAddr, isid: u8) -> Self {
        let login = Login {
            isid,
            ..Login::default()
        };
        login.done(address).await.expect("a login")
    }

    /// Sends a command; the first PDU that comes back.
    pub async fn command(
        &mut self,
        flags: u8,
        length: u32,
        cdb: &[u8],
        data: &[u8],
    ) -> ([u8; 48], Vec<u8>) {
        self.send_command(flags, length, cdb, data).await;
        self.receive().await.expect("an answer")
    }

    /// Sends a command.
    pub async fn send_command(&mut self, flags: u8, length: u32, cdb: &[u8], data: &[u8]) {
        let mut header = [0; 48];
        header[0] = 0x01;
        header[1] = 0x80 | flags;
        header[16..20].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[20..24].copy_from_slice(&length.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        self.cmd_sn += 1;
        self.send(header, data).await;
    }

    /// Meets the unit attention of a new session.
    pub async fn ready(&mut self) {
        assert_eq!(self.command(0, 0, &[0; 6], &[]).await.0[3], 2);
        assert_eq!(self.command(0, 0, &[0; 6], &[]).await.0[3], 0);
    }
}
