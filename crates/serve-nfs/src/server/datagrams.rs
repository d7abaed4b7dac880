//! What comes by UDP: clients of version 3 that began anew say so to the status monitor (SM_NOTIFY,
//! X/Open's XNFS version 3W, chapter 11), which they find through a portmapper; Linux's `sm-notify`
//! speaks nothing else (nfs-utils, utils/statd/sm-notify.c). Everything else is for TCP alone.
//!
//! Who sends a datagram may say that it is of any address. So no answer is longer than what asked
//! for it, and a lie ends locks of who is named and has locked from such a port, as it does with
//! Linux's server: networks where that may happen want version 4.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::UdpSocket;
use tokio::sync::watch;

use crate::portmap;
use crate::rpc::{Call, CallError, Outcome};
use crate::service::{Service, Work};

/// Longest call that is read: one with the longest names that there are.
const CALL_BYTES_MAX: usize = 2048;
/// How long it is waited where nothing can be received.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);

/// Answers what comes to an address, until the sender of `stopped` is dropped. `port` is where the
/// programs are.
pub(super) async fn serve(
    socket: UdpSocket,
    service: Arc<Service>,
    port: u16,
    mut stopped: watch::Receiver<()>,
) {
    let mut call = vec![0; CALL_BYTES_MAX];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut call) => received,
            _ = stopped.changed() => return,
        };
        let (outcome, may_go_on) = match received {
            Ok((length, peer)) => {
                let call = Bytes::copy_from_slice(&call[..length]);
                // Where nothing can be sent to, such as port 0, is the sender's affair.
                (one(&socket, &service, port, call, peer).await, true)
            }
            // The answer of a port that nobody listens at, which the next one may not meet.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => (Err(error), true),
            Err(error) => (Err(error), false),
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "a datagram for the status monitor is lost");
        }
        if !may_go_on {
            tokio::select! {
                () = tokio::time::sleep(TROUBLE_PAUSE) => {}
                _ = stopped.changed() => return,
            }
        }
    }
}

async fn one(
    socket: &UdpSocket,
    service: &Service,
    port: u16,
    call: Bytes,
    peer: SocketAddr,
) -> io::Result<()> {
    let asked_bytes = call.len();
    let local = SocketAddr::new(socket.local_addr()?.ip().to_canonical(), port);
    let answer = match Call::decode(call) {
        Err(CallError::NotACall) => return Ok(()),
        Err(CallError::Answered(reply)) => Some(reply),
        Ok(call) => match Work::decode(&call) {
            Ok(work) if is_served(&work) => service.answer(&call, work, peer, local).await,
            Ok(_) => Some(Outcome::NoProgram.encode(call.xid)),
            Err(outcome) => Some(outcome.encode(call.xid)),
        },
    };
    let answer = answer.map(|pieces| pieces.concat());
    match answer.filter(|answer| answer.len() <= asked_bytes) {
        Some(answer) => socket.send_to(&answer, peer).await.map(drop),
        None => Ok(()),
    }
}

/// Whether something is carried out that comes by UDP.
fn is_served(work: &Work) -> bool {
    match work {
        Work::Status(_) => true,
        Work::Map(request) => !matches!(request, portmap::Request::Dump),
        _ => false,
    }
}
