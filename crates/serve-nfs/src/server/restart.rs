//! Telling clients of version 3 that the server began anew: their locks are gone, and they lock
//! again what they had (SM_NOTIFY, X/Open's XNFS version 3W, chapter 11). Clients of version 4 find
//! out by themselves.
//!
//! A client's status monitor is asked for at its portmapper, and both speak UDP, as Linux's do
//! (`nsm_xmit_rpcbind`, `nsm_xmit_notify` of nfs-utils). What is lost is sent again, for some
//! minutes: a client may be booting. Only those are told who have been let in by a share and have
//! locked something, and nothing is done with what they answer but to go on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::StreamExt;
use tokio::net::UdpSocket;
use tokio::sync::watch;

use super::PORTMAPPER_PORT;
use crate::nlm::monitor::Client;
use crate::nlm::{STATUS_PROGRAM, STATUS_VERSION};
use crate::portmap;
use crate::xdr::{Reader, Writer};

/// How long an answer is waited for.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3);
/// How long it is waited until it is sent again, each time.
const AGAIN_AFTER: [u64; 8] = [1, 2, 4, 8, 15, 30, 60, 60];
/// Clients that are told at the same time.
const AT_ONCE: usize = 32;
const IPPROTO_UDP: u32 = 17;
const ANSWER_BYTES_MAX: usize = 1024;

/// What clients are told.
#[derive(Debug, Clone)]
struct Notice {
    /// What the server calls itself; clients know it by its address as well.
    name: String,
    /// Odd, and another one after each start.
    state: u32,
}

/// Tells all, until the sender of `stopped` is dropped. `own` is where the server listens: clients
/// know it by that address.
pub(super) async fn tell_all(clients: Vec<Client>, own: IpAddr, mut stopped: watch::Receiver<()>) {
    if clients.is_empty() {
        return;
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let notice = Notice {
        name: name.trim().to_owned(),
        // The rest of the seconds tells this start from others.
        state: (since.unwrap_or_default().as_secs() as u32) << 1 & 0x7fff_ffff | 1,
    };
    let telling = futures::stream::iter(clients).for_each_concurrent(AT_ONCE, |client| {
        let notice = notice.clone();
        async move {
            let portmapper = SocketAddr::new(client.address, PORTMAPPER_PORT);
            match tell(portmapper, own, &notice).await {
                true => tracing::info!(client = %client.address, "told of its lost locks"),
                false => tracing::info!(
                    client = %client.address,
                    "an NFS client does not answer that its locks are lost"
                ),
            }
        }
    });
    tokio::select! {
        () = telling => {}
        _ = stopped.changed() => {}
    }
}

/// Tells one client; whether it has heard.
async fn tell(portmapper: SocketAddr, own: IpAddr, notice: &Notice) -> bool {
    for wait in AGAIN_AFTER {
        match try_to_tell(portmapper, own, notice).await {
            Ok(()) => return true,
            Err(error) => tracing::debug!(%portmapper, %error, "a client is not told yet"),
        }
        tokio::time::sleep(Duration::from_secs(wait)).await;
    }
    false
}

async fn try_to_tell(portmapper: SocketAddr, own: IpAddr, notice: &Notice) -> io::Result<()> {
    let from = match (own.to_canonical(), portmapper) {
        (own, to) if own.is_ipv4() == to.is_ipv4() => own,
        (_, SocketAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        (_, SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut arguments = Writer::new();
    for word in [STATUS_PROGRAM, STATUS_VERSION, IPPROTO_UDP, 0] {
        arguments.u32(word);
    }
    let asked = (portmap::PROGRAM, portmap::VERSION_MIN, 3);
    let mut answer = call(from, portmapper, asked, arguments).await?;
    let port = answer.u32().map_err(io::Error::other)?;
    let port = u16::try_from(port).ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| io::Error::other("it has no status monitor"))?;
    let mut arguments = Writer::new();
    arguments.opaque(notice.name.as_bytes());
    arguments.u32(notice.state);
    let monitor = SocketAddr::new(portmapper.ip(), port);
    let told = (STATUS_PROGRAM, STATUS_VERSION, 6);
    call(from, monitor, told, arguments).await.map(drop)
}

/// Calls once; what is answered, where that is well.
async fn call(
    from: IpAddr,
    to: SocketAddr,
    (program, version, procedure): (u32, u32, u32),
    arguments: Writer,
) -> io::Result<Reader> {
    let socket = UdpSocket::bind((from, 0)).await?;
    // Nobody else's answers are taken then.
    socket.connect(to).await?;
    let xid = u32::from(socket.local_addr()?.port()) << 16 | procedure;
    let mut message = Writer::new();
    // A call of RPC version 2, with a credential and a verifier of AUTH_NONE.
    for word in [xid, 0, 2, program, version, procedure, 0, 0, 0, 0] {
        message.u32(word);
    }
    message.append(arguments);
    socket.send(&message.finish().concat()).await?;
    let mut answer = vec![0; ANSWER_BYTES_MAX];
    let receiving = tokio::time::timeout(ANSWER_PATIENCE, socket.recv(&mut answer));
    let length = receiving.await.map_err(io::Error::other)??;
    answer.truncate(length);
    let mut answer = Reader::new(Bytes::from(answer));
    let mut word = || answer.u32().map_err(io::Error::other);
    // A reply that is accepted, whose verifier is empty, and carried out.
    let head = [word()?, word()?, word()?, word()?, word()?, word()?];
    match head == [xid, 1, 0, 0, 0, 0] {
        true => Ok(answer),
        false => Err(io::Error::other("it does not carry that out")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers one call with these words behind the head; the call's own words behind its number.
    async fn answers(socket: &UdpSocket, words: &[u32]) -> Vec<u8> {
        let mut message = vec![0; 1024];
        let (length, from) = socket.recv_from(&mut message).await.unwrap();
        message.truncate(length);
        let mut reply = message[..4].to_vec();
        for word in [1, 0, 0, 0, 0].iter().chain(words) {
            reply.extend(word.to_be_bytes());
        }
        socket.send_to(&reply, from).await.unwrap();
        message.split_off(4)
    }

    /// Goal: the status monitor is found through the portmapper, and hears of the restart; what is
    /// lost is sent again.
    #[tokio::test]
    async fn a_client_hears_that_the_server_began_anew() {
        let own: IpAddr = Ipv4Addr::LOCALHOST.into();
        let portmapper = UdpSocket::bind((own, 0)).await.unwrap();
        let monitor = UdpSocket::bind((own, 0)).await.unwrap();
        let at = portmapper.local_addr().unwrap();
        let notice = Notice {
            name: "server".into(),
            state: 77,
        };
        let telling = tokio::spawn(async move { tell(at, own, &notice).await });
        // It is not there yet.
        answers(&portmapper, &[0]).await;
        let port = monitor.local_addr().unwrap().port();
        let asked = answers(&portmapper, &[port.into()]).await;
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_be_bytes()).collect()
        };
        let head =
            |program, version, procedure| words(&[0, 2, program, version, procedure, 0, 0, 0, 0]);
        let wanted = [head(100_000, 2, 3), words(&[100_024, 1, 17, 0])].concat();
        assert_eq!(asked, wanted);
        let told = answers(&monitor, &[]).await;
        let name = [words(&[6]), b"server\0\0".to_vec(), words(&[77])].concat();
        assert_eq!(told, [head(100_024, 1, 6), name].concat());
        assert!(telling.await.unwrap());
    }
}
