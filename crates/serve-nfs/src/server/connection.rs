//! One connection: requests are read, begun as they come, and answered as they are done.
//!
//! A request that can be answered without waiting is answered on the task that read it. Others go
//! on in tasks of their own, at most as many as there is memory for (see the head of `server`). A
//! request is paid for at once, when its first bytes are there, and its answer before it is made;
//! what the answer does not need is given back then. So whoever waits for memory has none that
//! others wait for, but requests for answers, which do not wait for requests. What is begun is done
//! to its end, whoever waits for the answer; but locks are not waited for any more when the
//! connection is gone.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use dataset::lock_order;
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
pub(super) const RECORD_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + (16 << 10);
/// Fragments of a record; one is usual.
const FRAGMENTS_MAX: usize = 64;
/// What a request costs besides its bytes: its task.
pub(super) const REQUEST_BYTES: u32 = 16 << 10;
/// What an answer costs at least, as what belongs to it besides its bytes.
const ANSWER_BYTES_MIN: usize = 1024;
/// Bytes of a request that are read before it is paid for, so that nobody has memory for what they
/// only promise to send.
const CHUNK_BYTES: usize = 32 << 10;
/// How long the parts of a request before and after it is paid for may take.
const RECORD_PATIENCE: Duration = Duration::from_secs(30);
/// How long a client may take nothing of an answer.
const SEND_PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that are read at a time, of short requests.
const READ_BYTES: usize = 32 << 10;
/// Pieces that are sent with one system call.
const PIECES_MAX: usize = 64;

/// What a connection is about.
pub(super) struct Connection {
    pub(super) service: Arc<Service>,
    pub(super) budget: Arc<Budget>,
    /// What its address may have of that.
    pub(super) own: Budget,
    pub(super) peer: SocketAddr,
    /// Where programs are.
    pub(super) port: u16,
    pub(super) stopped: watch::Receiver<()>,
}

/// Memory that is given back when this is dropped: an address's, and the server's.
struct Paid {
    of_address: OwnedSemaphorePermit,
    of_server: OwnedSemaphorePermit,
}

impl Paid {
    async fn pay(address: &Arc<Semaphore>, server: &Arc<Semaphore>, bytes: u32) -> Self {
        // The address's first: who waits for its own does not hold what others wait for.
        let of_address = take(address, bytes).await;
        Self {
            of_address,
            of_server: take(server, bytes).await,
        }
    }

    /// Gives back all but `bytes`.
    fn keep(&mut self, bytes: usize) {
        for permits in [&mut self.of_address, &mut self.of_server] {
            let rest = permits.num_permits().saturating_sub(bytes);
            drop(permits.split(rest));
        }
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
    // A client that is gone for good gives its place back.
    device::watch_over(&socket)?;
    let local = SocketAddr::new(socket.local_addr()?.ip().to_canonical(), connection.port);
    let (reading, writing) = socket.into_split();
    let (answers, to_send) = mpsc::unbounded_channel();
    let service = Arc::clone(&connection.service);
    service.shares().connection(connection.peer.ip(), true);
    let _counted = Counted(&service, connection.peer);
    let mut sending = tokio::spawn(send(writing, to_send));
    let mut stopped = connection.stopped.clone();
    let (here, gone) = watch::channel(());
    let outcome = tokio::select! {
        outcome = receive(reading, &mut connection, local, answers, gone) => outcome,
        // The client takes no answers any more.
        sent = &mut sending => return sent.unwrap_or(Ok(())),
        _ = stopped.changed() => Ok(()),
    };
    // Nobody is left to be granted what it waits for.
    drop(here);
    // What is begun is still answered; tasks have the other ends of the channel.
    let sent = sending.await.unwrap_or(Ok(()));
    outcome.and(sent)
}

async fn receive(
    reading: OwnedReadHalf,
    connection: &mut Connection,
    local: SocketAddr,
    answers: mpsc::UnboundedSender<Answer>,
    gone: watch::Receiver<()>,
) -> io::Result<()> {
    let Connection {
        service,
        budget,
        own,
        peer,
        ..
    } = connection;
    let mut reading = BufReader::with_capacity(READ_BYTES, reading);
    loop {
        let mut mark = [0; 4];
        match reading.read_exact(&mut mark).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        let mark = Mark::decode(mark);
        let bytes = record_bytes(mark)?;
        let mut record = BytesMut::new();
        let first = mark.length_bytes.min(CHUNK_BYTES);
        in_time(read_until(&mut reading, &mut record, first)).await?;
        let paid = Paid::pay(&own.requests, &budget.requests, bytes).await;
        let record = in_time(read_rest(&mut reading, record, mark)).await?;
        let (call, work) = match understand(record) {
            Ok(understood) => understood,
            Err(Some(reply)) => {
                let bytes = REQUEST_BYTES;
                let paid = Paid::pay(&own.answers, &budget.answers, bytes).await;
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
            own_answers: Arc::clone(&own.answers),
            peer: *peer,
            local,
            answers: answers.clone(),
            gone: gone.clone(),
            _paid: paid,
        };
        let mut working = Box::pin(lock_order::operation(request.carry_out(call, work)));
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

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a request is too long")
}

/// What a request costs that begins with this mark: where more fragments follow, as much as can be.
fn record_bytes(mark: Mark) -> io::Result<u32> {
    let length = match mark.is_last {
        true => mark.length_bytes,
        false => RECORD_BYTES_MAX,
    };
    if mark.length_bytes > RECORD_BYTES_MAX {
        return Err(too_long());
    }
    // No more than that.
    Ok(REQUEST_BYTES + length as u32)
}

async fn in_time<T>(reading: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let outcome = tokio::time::timeout(RECORD_PATIENCE, reading).await;
    outcome.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Reads until there are `end` bytes.
async fn read_until(
    reading: &mut BufReader<OwnedReadHalf>,
    record: &mut BytesMut,
    end: usize,
) -> io::Result<()> {
    let missing = end.saturating_sub(record.len());
    record.reserve(missing);
    let mut rest = reading.take(missing as u64);
    while record.len() < end {
        if rest.read_buf(record).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
    }
    Ok(())
}

/// Reads the rest of a record whose first fragment, of which a part is there, has this mark.
async fn read_rest(
    reading: &mut BufReader<OwnedReadHalf>,
    mut record: BytesMut,
    mut mark: Mark,
) -> io::Result<Bytes> {
    let mut end = mark.length_bytes;
    for _ in 0..FRAGMENTS_MAX {
        if end > RECORD_BYTES_MAX {
            return Err(too_long());
        }
        read_until(reading, &mut record, end).await?;
        if mark.is_last {
            return Ok(record.freeze());
        }
        let mut next = [0; 4];
        reading.read_exact(&mut next).await?;
        mark = Mark::decode(next);
        end += mark.length_bytes;
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
    /// Nothing is sent by it; an error says that the connection is gone.
    gone: watch::Receiver<()>,
    _paid: Paid,
}

impl Request {
    async fn carry_out(mut self, call: Call, work: Work) {
        let bytes = work.answer_bytes();
        let mut paid = Paid::pay(&self.own_answers, &self.budget.answers, bytes).await;
        let only_waits = work.only_waits();
        let answer = self.service.answer(&call, work, self.peer, self.local);
        let answer = tokio::select! {
            // Where both are the case, it was granted: the client hears so when it asks again.
            biased;
            answer = answer => answer,
            _ = self.gone.changed(), if only_waits => None,
        };
        if let Some(answer) = answer {
            let pieces = marked(answer);
            let bytes: usize = pieces.iter().map(Bytes::len).sum();
            paid.keep(bytes.max(ANSWER_BYTES_MIN));
            // Where the connection is gone, nobody hears it.
            let _ = self.answers.send(Answer {
                pieces,
                _paid: paid,
            });
        }
    }
}

/// Pieces that are being sent; the last one of each answer has what was paid for that.
#[derive(Default)]
struct Sending {
    pieces: VecDeque<(Bytes, Option<Paid>)>,
}

impl Sending {
    fn add(&mut self, answer: Answer) {
        let Answer {
            pieces,
            _paid: paid,
        } = answer;
        let pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
        self.pieces.extend(pieces.map(|piece| (piece, None)));
        if let Some((_, of_last)) = self.pieces.back_mut() {
            // An answer has its mark at least, so that this is its own piece.
            *of_last = Some(paid);
        }
    }

    fn sent(&mut self, mut count: usize) {
        while count > 0 {
            let Some((first, _)) = self.pieces.front_mut() else {
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
                .map(|(piece, _)| IoSlice::new(piece))
                .collect();
            let writing = writing.write_vectored(&slices);
            let written = tokio::time::timeout(SEND_PATIENCE, writing).await;
            let written = written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            if written == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero));
            }
            sending.sent(written);
        }
    }
    writing.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn paid(semaphore: &Arc<Semaphore>, bytes: u32) -> Paid {
        Paid::pay(semaphore, &Arc::new(Semaphore::new(bytes as usize)), bytes).await
    }

    /// However much follows it: a client that asks on and on would never give anything back.
    #[tokio::test]
    async fn an_answer_is_paid_for_until_its_last_byte_is_sent() {
        let budget = Arc::new(Semaphore::new(1000));
        let mut sending = Sending::default();
        for bytes in [100, 200] {
            let pieces = marked(vec![Bytes::new(), Bytes::from(vec![7; 50])]);
            let _paid = paid(&budget, bytes).await;
            sending.add(Answer { pieces, _paid });
        }
        assert_eq!(budget.available_permits(), 700);
        sending.sent(53);
        assert_eq!(budget.available_permits(), 700);
        sending.sent(2);
        assert_eq!(budget.available_permits(), 800);
        sending.sent(53);
        assert_eq!(budget.available_permits(), 1000);
        assert!(sending.pieces.is_empty());
    }
}
