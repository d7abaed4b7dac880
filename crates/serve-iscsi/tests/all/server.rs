//! The server over real sockets, with a client that knows just enough of the protocol.

use crate::common::{Client, IQN, Login};
use bytes::Bytes;
use futures::future::BoxFuture;
use serve_iscsi::{
    LogicalUnit, LunError, LunIdentity, MemoryUnit, Server, ServerError, Target, TargetOptions,
    TargetSet,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

fn unit() -> Arc<MemoryUnit> {
    let identity = LunIdentity::new("S", [1; 16]);
    Arc::new(MemoryUnit::new(16 << 20, 512, identity))
}

fn targets(unit: Arc<dyn LogicalUnit>) -> Arc<TargetSet> {
    let targets = TargetSet::new();
    let target = Target {
        iqn: IQN.into(),
        luns: BTreeMap::from([(0, unit)]),
        options: TargetOptions::default(),
    };
    targets.add(target).unwrap();
    Arc::new(targets)
}

async fn server() -> (Server, Arc<TargetSet>) {
    let targets = targets(unit());
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(address, targets.clone()).await.unwrap();
    (server, targets)
}

#[tokio::test]
async fn what_is_written_is_read_back_by_another_session() {
    let (server, targets) = server().await;
    let mut a = Client::log_in(server.local_address(), 1).await;
    let mut b = Client::log_in(server.local_address(), 2).await;
    a.ready().await;
    b.ready().await;
    let data: Vec<u8> = (0..4096u32).map(|n| (n / 3) as u8).collect();
    let (reply, _) = a
        .command(0x20, 4096, &[0x2a, 0, 0, 0, 0, 9, 0, 0, 8, 0], &data)
        .await;
    assert_eq!((reply[0], reply[3]), (0x21, 0));
    let (reply, back) = b
        .command(0x40, 4096, &[0x28, 0, 0, 0, 0, 9, 0, 0, 8, 0], &[])
        .await;
    assert_eq!((reply[0], reply[1]), (0x25, 0x81));
    assert_eq!(back, data);
    assert_eq!(targets.sessions().len(), 2);
    drop((a, b));
    server.shutdown().await;
    assert!(targets.sessions().is_empty());
}

#[tokio::test]
async fn garbage_is_survived() {
    let (server, _) = server().await;
    let address = server.local_address();
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u8
    };
    // Before login, and after it; whole and cut off.
    for round in 0..40 {
        let mut socket = if round % 2 == 0 {
            TcpStream::connect(address).await.unwrap()
        } else {
            Client::log_in(address, 1).await.socket
        };
        let mut bytes: Vec<u8> = (0..5000).map(|_| random()).collect();
        if round % 4 == 1 {
            // Lengths that are taken, so that the contents are looked at.
            for header in bytes.chunks_mut(48) {
                header[0] &= 0x47;
                header[4..].iter_mut().take(4).for_each(|byte| *byte = 0);
            }
        }
        // The server may have closed it in the middle.
        let _ = socket.write_all(&bytes).await;
        if round % 3 == 0 {
            let _ = socket.shutdown().await;
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest).await;
        }
    }
    let mut client = Client::log_in(address, 2).await;
    client.ready().await;
    drop(client);
    server.shutdown().await;
}

#[tokio::test]
async fn same_initiator_port_takes_its_session_over() {
    let (server, targets) = server().await;
    let mut old = Client::log_in(server.local_address(), 1).await;
    old.ready().await;
    let mut new = Client::log_in(server.local_address(), 1).await;
    new.ready().await;
    // The old one is told, and closed.
    let (header, _) = old.receive().await.unwrap();
    assert_eq!((header[0], header[36]), (0x32, 2));
    assert!(old.receive().await.is_none());
    assert_eq!(targets.sessions().len(), 1);
    server.shutdown().await;
}

/// A unit whose writes wait, as for a lock.
struct Waits {
    memory: Arc<MemoryUnit>,
    begun: Semaphore,
    gate: Semaphore,
    done: Semaphore,
}

impl LogicalUnit for Waits {
    fn capacity_bytes(&self) -> u64 {
        self.memory.capacity_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.memory.block_bytes()
    }

    fn identity(&self) -> LunIdentity {
        self.memory.identity()
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
        Box::pin(async move {
            self.begun.add_permits(1);
            self.gate.acquire().await.expect("never closed").forget();
            let written = self.memory.write(offset, data, durable).await;
            self.done.add_permits(1);
            written
        })
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

/// What runs when a session ends goes on while an initiator that takes nothing is waited for.
#[tokio::test]
async fn commands_go_on_while_last_answers_wait_to_be_taken() {
    let unit = Arc::new(Waits {
        memory: unit(),
        begun: Semaphore::new(0),
        gate: Semaphore::new(0),
        done: Semaphore::new(0),
    });
    let targets = targets(unit.clone());
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(address, targets.clone()).await.unwrap();
    let address = server.local_address();
    let mut old = Client::log_in(address, 1).await;
    old.ready().await;
    let write = [0x2a, 0, 0, 0, 0, 9, 0, 0, 1, 0];
    old.send_command(0x20, 512, &write, &[1; 512]).await;
    unit.begun.acquire().await.unwrap().forget();
    // More than sockets hold.
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0x40, 0, 0];
    for _ in 0..4 {
        old.send_command(0x40, 8 << 20, &read, &[]).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let new = tokio::spawn(Client::log_in(address, 1));
    tokio::time::sleep(Duration::from_millis(300)).await;
    unit.gate.add_permits(1);
    let done = tokio::time::timeout(Duration::from_secs(2), unit.done.acquire());
    done.await.expect("the write goes on").unwrap().forget();
    // It waited for that and for the last words, and no longer.
    let mut new = new.await.unwrap();
    drop(old);
    new.ready().await;
    assert_eq!(targets.sessions().len(), 1);
    server.shutdown().await;
}

#[tokio::test]
async fn target_that_is_removed_lets_its_unit_go() {
    let unit = unit();
    let targets = targets(unit.clone());
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(address, targets.clone()).await.unwrap();
    let mut client = Client::log_in(server.local_address(), 1).await;
    client.ready().await;
    let removing = {
        let targets = targets.clone();
        tokio::spawn(async move { targets.remove(IQN).await })
    };
    // The initiator is asked to log out, and does.
    let (header, _) = client.receive().await.unwrap();
    assert_eq!((header[0], header[36]), (0x32, 1));
    let mut logout = [0; 48];
    logout[0] = 0x46;
    logout[1] = 0x80;
    client.send(logout, &[]).await;
    assert_eq!(client.receive().await.unwrap().0[0], 0x26);
    removing.await.unwrap().unwrap();
    assert_eq!(Arc::strong_count(&unit), 1);
    assert!(targets.remove(IQN).await.is_err());
    // Nobody gets in any more.
    let socket = TcpStream::connect(server.local_address()).await.unwrap();
    let mut late = Client::new(socket);
    let mut header = [0; 48];
    header[0] = 0x43;
    header[1] = 0x87;
    let keys = format!("InitiatorName=iqn.i\0TargetName={IQN}\0");
    late.send(header, keys.as_bytes()).await;
    let (reply, _) = late.receive().await.unwrap();
    assert_eq!(reply[36..38], [2, 3]);
    server.shutdown().await;
}

#[tokio::test]
async fn initiator_that_stays_is_closed_after_the_grace() {
    let (server, targets) = server().await;
    let mut client = Client::log_in(server.local_address(), 1).await;
    client.ready().await;
    server.shutdown().await;
    assert!(targets.sessions().is_empty());
    let mut events = Vec::new();
    while let Some((header, _)) = client.receive().await {
        events.push((header[0], header[36]));
    }
    assert_eq!(events, [(0x32, 1), (0x32, 2)]);
}

/// Goal: connections that do not log in neither keep others out nor end who is in.
/// Goal: other options of a target send away whom they shut out, and nobody else; that it takes no
/// writes any more is told to who stays.
#[tokio::test]
async fn other_options_end_the_sessions_of_those_that_they_shut_out() {
    let (server, targets) = server().await;
    let mut stays = Client::log_in(server.local_address(), 1).await;
    stays.ready().await;
    let goes = Login {
        initiator: "iqn.j",
        ..Login::default()
    };
    let mut goes = goes.done(server.local_address()).await.expect("a login");
    goes.ready().await;
    let options = TargetOptions {
        allowed_initiators: vec!["iqn.i".into()],
        is_read_only: true,
        ..TargetOptions::default()
    };
    let changing = tokio::spawn({
        let targets = targets.clone();
        async move { targets.change_options(IQN, options).await }
    });
    let (told, _) = goes.receive().await.expect("a message");
    assert_eq!((told[0], told[36]), (0x32, 1), "asked to log out");
    drop(goes);
    changing.await.unwrap().unwrap();
    let left = targets.sessions();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].initiator, "iqn.i");
    let (reply, sense) = stays.command(0, 0, &[0; 6], &[]).await;
    assert_eq!((reply[3], &sense[2 + 12..2 + 14]), (2, &[0x2a, 0x01][..]));
    assert_eq!(stays.command(0, 0, &[0; 6], &[]).await.0[3], 0);
    drop(stays);
    server.shutdown().await;
}

#[tokio::test]
async fn strangers_from_one_address_are_few() {
    const STRANGERS_OF_ADDRESS_MAX: usize = 64;
    let (server, _) = server().await;
    let address = server.local_address();
    let mut known = Client::log_in(address, 1).await;
    let mut strangers = Vec::new();
    for _ in 0..STRANGERS_OF_ADDRESS_MAX {
        strangers.push(TcpStream::connect(address).await.unwrap());
    }
    // The next is closed at once, unanswered.
    let mut refused = TcpStream::connect(address).await.unwrap();
    assert_eq!(refused.read(&mut [0]).await.unwrap_or(0), 0);
    known.ready().await;
    // As soon as one is gone there is a place again.
    drop(strangers.pop());
    let mut header = [0; 48];
    header[0] = 0x43;
    header[1] = 0x87;
    header[13] = 2;
    loop {
        let socket = TcpStream::connect(address).await.unwrap();
        let mut client = Client::new(socket);
        let keys = format!("InitiatorName=iqn.i\0TargetName={IQN}\0");
        let mut request = header.to_vec();
        request[5..8].copy_from_slice(&(keys.len() as u32).to_be_bytes()[1..]);
        request.extend_from_slice(keys.as_bytes());
        request.resize(request.len().next_multiple_of(4), 0);
        // It may be refused until the server has noticed.
        let _ = client.socket.write_all(&request).await;
        if client.receive().await.is_some() {
            break;
        }
    }
    drop((strangers, known));
    server.shutdown().await;
}

/// Goal: a command that waits for memory that other sessions have goes on when one of them ends.
/// Method: three sessions ask to write 16 MiB each, of 64 MiB in all, and send nothing.
#[tokio::test]
async fn memory_that_one_session_gives_back_lets_another_go_on() {
    let targets = TargetSet::with_memory_bytes(64 << 20);
    let identity = LunIdentity::new("S", [1; 16]);
    let unit: Arc<dyn LogicalUnit> = Arc::new(MemoryUnit::new(16 << 20, 512, identity));
    let target = Target {
        iqn: IQN.into(),
        luns: BTreeMap::from([(0, unit)]),
        options: TargetOptions::default(),
    };
    targets.add(target).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(address, Arc::new(targets)).await.unwrap();
    let write = [0x2a, 0, 0, 0, 0, 0, 0, 0x80, 0, 0];
    let mut writers = Vec::new();
    for isid in 1..=3 {
        let mut client = Client::log_in(server.local_address(), isid).await;
        client.ready().await;
        let (r2t, _) = client.command(0x20, 16 << 20, &write, &[]).await;
        assert_eq!(r2t[0], 0x31);
        writers.push(client);
    }
    let mut late = Client::log_in(server.local_address(), 4).await;
    late.ready().await;
    // The ping behind the command is answered, the command waits.
    let mut header = [0; 48];
    header[0] = 0x01;
    header[1] = 0xa0;
    header[16..20].copy_from_slice(&77u32.to_be_bytes());
    header[20..24].copy_from_slice(&(16u32 << 20).to_be_bytes());
    header[24..28].copy_from_slice(&late.cmd_sn.to_be_bytes());
    header[32..42].copy_from_slice(&write);
    late.send(header, &[]).await;
    let mut ping = [0; 48];
    ping[0] = 0x40;
    ping[1] = 0x80;
    ping[19] = 9;
    ping[20..24].fill(0xff);
    late.send(ping, &[]).await;
    assert_eq!(late.receive().await.unwrap().0[0], 0x20);
    drop(writers.pop());
    let (r2t, _) = late.receive().await.unwrap();
    assert_eq!((r2t[0], &r2t[16..20]), (0x31, &77u32.to_be_bytes()[..]));
    drop((writers, late));
    server.shutdown().await;
}

#[tokio::test]
async fn address_in_use_is_told_with_the_address() {
    let (server, targets) = server().await;
    let address = server.local_address();
    let error = Server::bind(address, targets).await.unwrap_err();
    assert!(matches!(error, ServerError::AddressInUse { address: found } if found == address));
    assert!(error.to_string().contains(&address.to_string()));
    server.shutdown().await;
    // And is free again afterwards.
    let again = Server::bind(address, Arc::new(TargetSet::new())).await;
    again.unwrap().shutdown().await;
}
