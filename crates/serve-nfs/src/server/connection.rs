//! One connection: requests are read, begun as they come, and answered as they are done.
//!
//! A request that can be answered without waiting is answered on the task that read it. Others go
//! on in tasks of their own, at most as many as the connection's memory has room for. A request is
//! paid for as its bytes arrive, so that nobody reserves what they do not send; its answer before
//! it is made. What is begun is done to its end, whoever waits for the answer.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::Budget;
use crate::rpc::record::{Mark, marked};
use crate::rpc::{Call, CallError};
use crate::service::{Service, Work};
use crate::v3::request::TRANSFER_BYTES_MAX;

/// Longest record: the biggest write, and what belongs to it.
const RECORD_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + 4096;
/// Fragments of a record; one is usual.
const FRAGMENTS_MAX: usize = 64;
/// Bytes that one connection may have under way, of requests, and of answers.
const CONNECTION_BYTES: u32 = 8 << 20;
/// What a request costs besides its bytes: its task.
const REQUEST_BYTES: u32 = 16 << 10;
/// Bytes of a request that are paid for at a time.
const CHUNK_BYTES: usize = 128 << 10;
/// How long a request may take from its first byte to its last.
const RECORD_PATIENCE: Duration = Duration::from_secs(60);
/// How long a client may take nothing of an answer.
const SEND_PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that are read at a time, of short requests.
const READ_BYTES: usize = 64 << 10;
/// Pieces that are sent with one system call.
const PIECES_MAX: usize = 64;

/// What a connection is about.
pub(super) struct Connection {
    pub(super) service: Arc<Service>,
    pub(super) budget: Arc<Budget>,
    pub(super) peer: SocketAddr,
    /// Where programs are.
    pub(super) port: u16,
    pub(super) stopped: watch::Receiver<()>,
}

/// Memory that is given back when this is dropped: a connection's, and the server's.
struct Paid {
    of_connection: OwnedSemaphorePermit,
    of_server: OwnedSemaphorePermit,
}

impl Paid {
    async fn pay(connection: &Arc<Semaphore>, server: &Arc<Semaphore>, bytes: u32) -> Self {
        // The connection's first: who waits for its own does not hold what others wait for.
        let of_connection = take(connection, bytes).await;
        Self {
            of_connection,
            of_server: take(server, bytes).await,
        }
    }

    fn merge(&mut self, other: Self) {
        self.of_connection.merge(other.of_connection);
        self.of_server.merge(other.of_server);
    }
}

async fn take(semaphore: &Arc<Semaphore>, bytes: u32) -> OwnedSemaphorePermit {
    let permits = Arc::clone(semaphore).acquire_many_owned(bytes).await;
    permits.expect("budgets are never closed")
}

/// An answer that is to be sent.
struct Answer {
    pieces: Vec<Bytes>,
    _paid: Paid,
}

/// Counts the connection as one of its client's.
struct Counted<'a>(&'a Service, SocketAddr);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.shares().connection(self.1.ip(), false);
    }
}

/// Serves a connection until its end.
pub(super) async fn serve(socket: TcpStream, mut connection: Connection) -> io::Result<()> {
    socket.set_nodelay(true)?;
    // A client that is gone for good gives its place back.
    rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
    let local = SocketAddr::new(socket.local_addr()?.ip().to_canonical(), connection.port);
    let (reading, writing) = socket.into_split();
    let (answers, to_send) = mpsc::unbounded_channel();
    let service = Arc::clone(&connection.service);
    service.shares().connection(connection.peer.ip(), true);
    let _counted = Counted(&service, connection.peer);
    let mut sending = tokio::spawn(send(writing, to_send));
    let mut stopped = connection.stopped.clone();
    let outcome = tokio::select! {
        outcome = receive(reading, &mut connection, local, answers) => outcome,
        // The client takes no answers any more.
        sent = &mut sending => return sent.unwrap_or(Ok(())),
        _ = stopped.changed() => Ok(()),
    };
    // What is begun is still answered; tasks have the other ends of the channel.
    let sent = sending.await.unwrap_or(Ok(()));
    outcome.and(sent)
}

async fn receive(
    reading: OwnedReadHalf,
    connection: &mut Connection,
    local: SocketAddr,
    answers: mpsc::UnboundedSender<Answer>,
) -> io::Result<()> {
    let Connection {
        service,
        budget,
        peer,
        ..
    } = connection;
    let own_requests = Arc::new(Semaphore::new(CONNECTION_BYTES as usize));
    let own_answers = Arc::new(Semaphore::new(CONNECTION_BYTES as usize));
    let mut reading = BufReader::with_capacity(READ_BYTES, reading);
    loop {
        let mut mark = [0; 4];
        match reading.read_exact(&mut mark).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        let mut paid = Paid::pay(&own_requests, &budget.requests, REQUEST_BYTES).await;
        let record = read_record(
            &mut reading,
            Mark::decode(mark),
            (&own_requests, &budget.requests),
            &mut paid,
        );
        let record = tokio::time::timeout(RECORD_PATIENCE, record).await;
        let record = record.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let (call, work) = match understand(record) {
            Ok(understood) => understood,
            Err(Some(reply)) => {
                let bytes = REQUEST_BYTES;
                let paid = Paid::pay(&own_answers, &budget.answers, bytes).await;
                let pieces = marked(reply);
                let _ = answers.send(Answer {
                    pieces,
                    _paid: paid,
                });
                continue;
            }
            Err(None) => return Err(io::Error::from(io::ErrorKind::InvalidData)),
        };
        let request = Request {
            service: Arc::clone(service),
            budget: Arc::clone(budget),
            own_answers: Arc::clone(&own_answers),
            peer: *peer,
            local,
            answers: answers.clone(),
            _paid: paid,
        };
        let mut working = Box::pin(request.carry_out(call, work));
        // Most are done at once.
        if futures::poll!(working.as_mut()).is_pending() {
            tokio::spawn(working);
        }
    }
}

/// From a record to what is to be done, or to the answer that there is nothing; `Err(None)` where
/// it is no call.
fn understand(record: Bytes) -> Result<(Call, Work), Option<Vec<Bytes>>> {
    let call = Call::decode(record).map_err(|error| match error {
        CallError::NotACall => None,
        CallError::Answered(reply) => Some(reply),
    })?;
    match Work::decode(&call) {
        Ok(work) => Ok((call, work)),
        Err(outcome) => Err(Some(outcome.encode(call.xid))),
    }
}

async fn read_record(
    reading: &mut BufReader<OwnedReadHalf>,
    mut mark: Mark,
    (own, servers): (&Arc<Semaphore>, &Arc<Semaphore>),
    paid: &mut Paid,
) -> io::Result<Bytes> {
    let too_long = || io::Error::new(io::ErrorKind::InvalidData, "a request is too long");
    let mut record = BytesMut::new();
    for _ in 0..FRAGMENTS_MAX {
        let end = record.len() + mark.length_bytes;
        if end > RECORD_BYTES_MAX {
            return Err(too_long());
        }
        while record.len() < end {
            let chunk = (end - record.len()).min(CHUNK_BYTES);
            // Short requests are paid for with their task.
            if end > REQUEST_BYTES as usize {
                // No more than a chunk.
                paid.merge(Paid::pay(own, servers, chunk as u32).await);
            }
            let length = record.len();
            if record.capacity() < end {
                // Grows with what has arrived, until most of it is there.
                let wanted = if length * 8 >= end {
                    end
                } else {
                    length + chunk
                };
                record.reserve(wanted - length);
            }
            let mut rest = (&mut *reading).take(chunk as u64);
            while record.len() < length + chunk {
                if rest.read_buf(&mut record).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                }
            }
        }
        if mark.is_last {
            return Ok(record.freeze());
        }
        let mut next = [0; 4];
        reading.read_exact(&mut next).await?;
        mark = Mark::decode(next);
    }
    Err(too_long())
}

/// What a request needs to be carried out.
struct Request {
    service: Arc<Service>,
    budget: Arc<Budget>,
    own_answers: Arc<Semaphore>,
    peer: SocketAddr,
    local: SocketAddr,
    answers: mpsc::UnboundedSender<Answer>,
    _paid: Paid,
}

impl Request {
    async fn carry_out(self, call: Call, work: Work) {
        let bytes = work.answer_bytes();
        let paid = Paid::pay(&self.own_answers, &self.budget.answers, bytes).await;
        let answer = self
            .service
            .answer(&call, work, self.peer, self.local)
            .await;
        if let Some(answer) = answer {
            // Where the connection is gone, nobody hears it.
            let _ = self.answers.send(Answer {
                pieces: marked(answer),
                _paid: paid,
            });
        }
    }
}

/// Pieces that are being sent, and what was paid for them.
#[derive(Default)]
struct Sending {
    pieces: std::collections::VecDeque<Bytes>,
    paid: Vec<Paid>,
}

impl Sending {
    fn add(&mut self, answer: Answer) {
        let Answer {
            pieces,
            _paid: paid,
        } = answer;
        self.pieces
            .extend(pieces.into_iter().filter(|piece| !piece.is_empty()));
        self.paid.push(paid);
    }

    fn sent(&mut self, mut count: usize) {
        while count > 0 {
            let Some(first) = self.pieces.front_mut() else {
                return;
            };
            let part = count.min(first.len());
            first.advance(part);
            count -= part;
            if first.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

async fn send(
    mut writing: OwnedWriteHalf,
    mut answers: mpsc::UnboundedReceiver<Answer>,
) -> io::Result<()> {
    let mut sending = Sending::default();
    while let Some(answer) = answers.recv().await {
        sending.add(answer);
        while !sending.pieces.is_empty() {
            while sending.pieces.len() < PIECES_MAX
                && let Ok(answer) = answers.try_recv()
            {
                sending.add(answer);
            }
            let slices: Vec<IoSlice<'_>> = sending
                .pieces
                .iter()
                .take(PIECES_MAX)
                .map(|piece| IoSlice::new(piece))
                .collect();
            let writing = writing.write_vectored(&slices);
            let written = tokio::time::timeout(SEND_PATIENCE, writing).await;
            let written = written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            if written == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero));
            }
            sending.sent(written);
        }
        sending.paid.clear();
    }
    writing.shutdown().await
}
