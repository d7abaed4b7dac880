//! Goal: what comes and goes by a connection is where it should be, when it should be: data of a
//! long write at the beginning of a page, answers with the initiator before all of them are made.
//! Method: a unit that looks where it is given data, and whether the client has been sent anything
//! by the time it is asked.

use crate::common::{Client, IQN};
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serve_iscsi::{
    LogicalUnit, LunError, LunIdentity, MemoryUnit, Server, Target, TargetOptions, TargetSet,
};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use tokio::io::AsyncWriteExt;

const PAGE_BYTES: usize = 4096;

struct Looks {
    memory: MemoryUnit,
    /// The client's end.
    client: OnceLock<std::net::TcpStream>,
    /// Of each read, whether the client had been sent something.
    sent: Mutex<Vec<bool>>,
    /// Where each write's data lay, from the beginning of its page.
    places: Mutex<Vec<usize>>,
}

impl LogicalUnit for Looks {
    fn capacity_bytes(&self) -> u64 {
        self.memory.capacity_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.memory.block_bytes()
    }

    fn identity(&self) -> LunIdentity {
        self.memory.identity()
    }

    fn try_read(&self, offset: u64, length: usize) -> Option<Vec<Bytes>> {
        if let Some(client) = self.client.get() {
            self.sent.lock().push(client.peek(&mut [0]).is_ok());
        }
        self.memory.try_read(offset, length)
    }

    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Vec<Bytes>, LunError>> {
        self.memory.read(offset, length)
    }

    fn write(
        &self,
        offset: u64,
        data: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>> {
        self.places.lock().push(data.as_ptr() as usize % PAGE_BYTES);
        self.memory.write(offset, data, durable)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), LunError>> {
        self.memory.flush()
    }

    fn unmap(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), LunError>> {
        self.memory.unmap(offset, length)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>> {
        self.memory.write_zeroes(offset, length, durable)
    }
}

/// A server with such a unit, and a session.
async fn session() -> (Arc<Looks>, Server, Client) {
    let identity = LunIdentity::new("S", [1; 16]);
    let unit = Arc::new(Looks {
        memory: MemoryUnit::new(16 << 20, 512, identity),
        client: OnceLock::new(),
        sent: Mutex::default(),
        places: Mutex::default(),
    });
    let targets = TargetSet::new();
    let lun: Arc<dyn LogicalUnit> = Arc::<Looks>::clone(&unit);
    let target = Target {
        iqn: IQN.into(),
        luns: BTreeMap::from([(0, lun)]),
        options: TargetOptions::default(),
    };
    targets.add(target).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(address, Arc::new(targets)).await.unwrap();
    let mut client = Client::log_in(server.local_address(), 1).await;
    client.ready().await;
    (unit, server, client)
}

/// The header of a command of so many bytes, as the next one of the session.
fn command(client: &mut Client, flags: u8, length: u32, cdb: &[u8]) -> [u8; 48] {
    let mut header = [0; 48];
    header[0] = 0x01;
    header[1] = 0x80 | flags;
    header[16..20].copy_from_slice(&client.cmd_sn.to_be_bytes());
    header[20..24].copy_from_slice(&length.to_be_bytes());
    header[24..28].copy_from_slice(&client.cmd_sn.to_be_bytes());
    header[32..32 + cdb.len()].copy_from_slice(cdb);
    client.cmd_sn += 1;
    header
}

#[tokio::test]
async fn the_first_answers_are_sent_while_others_are_made() {
    const READS: usize = 16;
    let (unit, server, mut client) = session().await;
    let descriptor = client.socket.as_fd().try_clone_to_owned().unwrap();
    unit.client.set(descriptor.into()).unwrap();
    // All of them in one packet.
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    let all: Vec<[u8; 48]> = (0..READS)
        .map(|_| command(&mut client, 0x40, 4096, &read))
        .collect();
    client.socket.write_all(&all.concat()).await.unwrap();
    for _ in 0..READS {
        let (reply, data) = client.receive().await.expect("an answer");
        assert_eq!((reply[0], reply[1], data.len()), (0x25, 0x81, 4096));
    }
    let sent = unit.sent.lock().clone();
    // Eight of them are more than 32 KiB.
    let expected = [[false; READS / 2], [true; READS / 2]].concat();
    assert_eq!(sent, expected);
    drop(client);
    server.shutdown().await;
}

#[tokio::test]
async fn data_of_long_writes_begins_with_a_page() {
    const BYTES: usize = 64 << 10;
    let (unit, server, mut client) = session().await;
    let mut all = Vec::new();
    for n in 0..6u8 {
        // Short ones between them.
        let length = if n == 3 { 512 } else { BYTES };
        let blocks = (length / 512) as u8;
        let cdb = [0x2a, 0, 0, 0, n, 0, 0, 0, blocks, 0];
        let mut header = command(&mut client, 0x20, length as u32, &cdb);
        header[5..8].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
        all.extend_from_slice(&header);
        all.extend(std::iter::repeat_n(n + 1, length));
        // Two together, then each by itself.
        if n > 0 {
            client.socket.write_all(&all).await.unwrap();
            all.clear();
        }
    }
    for _ in 0..6 {
        let (reply, _) = client.receive().await.expect("an answer");
        assert_eq!((reply[0], reply[3]), (0x21, 0));
    }
    let places = unit.places.lock().clone();
    assert_eq!(places.len(), 6);
    let long = places.iter().enumerate().filter(|(n, _)| *n != 3);
    assert!(long.map(|(_, place)| *place).all(|place| place == 0));
    for n in 0..6u64 {
        let found = unit.memory.read(n * 256 * 512, 512).await.unwrap();
        assert_eq!(found.concat(), [n as u8 + 1; 512]);
    }
    drop(client);
    server.shutdown().await;
}
