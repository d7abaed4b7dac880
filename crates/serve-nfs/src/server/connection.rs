//! One connection: requests are read, begun as they come, and answered as they are done.
//!
//! A request that can be answered without waiting is answered on the task that read it, and its
//! answer is with the kernel before the next one is waited for: answers wait for each other only
//! while whole requests are there to be answered, and few do. Others go on in tasks of their own,
//! at most as many as there is memory for (see the head of `server`), which send their answers
//! themselves (see `sending`). So do those that may compute for long ([`Work::may_compute_long`]).
//! After some requests other connections have their turn.
//!
//! A request is paid for at once, when its first bytes are there, and its answer before it is made;
//! what the answer does not need is given back then. So whoever waits for memory has none that
//! others wait for, but requests for answers, which do not wait for requests. What is begun is done
//! to its end, whoever waits for the answer; but locks are not waited for any more when the
//! connection is gone.
//!
//! The content of a long WRITE is received where it stays until it is on disk: at the beginning of
//! a page, so that devices take it from there ([`net::room_for`]).

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dataset::lock_order;
use net::{Looking, Turn};
use tokio::io::{AsyncRead, AsyncReadExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

use super::Budget;
use super::paid::Paid;
use super::sending::{Answer, Outlet, outlet};
use crate::rpc::record::{Mark, marked};
use crate::rpc::{Call, CallError};
use crate::service::{Service, Work, content_at};
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
/// Bytes that are read at a time, of short requests.
const READ_BYTES: usize = 32 << 10;
/// Answers that wait to be sent together, at most, and their bytes: the client works at these while
/// the next ones are made.
const TOGETHER_MAX: u32 = 16;
const TOGETHER_BYTES_MAX: usize = 32 << 10;
/// Requests that are answered in a row before others get their turn.
const TURN_REQUESTS: u32 = 64;

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

/// Counts the connection as one of its client's.
struct Counted<'a>(&'a Service, SocketAddr);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.shares().connection(self.1.ip(), false);
    }
}

/// What all requests of a connection have in common.
struct Caller {
    service: Arc<Service>,
    budget: Arc<Budget>,
    own: Budget,
    peer: SocketAddr,
    local: SocketAddr,
}

/// Serves a connection until its end.
pub(super) async fn serve(socket: TcpStream, connection: Connection) -> io::Result<()> {
    // A client that is gone for good gives its place back.
    device::watch_over(&socket)?;
    let Connection {
        service,
        budget,
        own,
        peer,
        port,
        mut stopped,
    } = connection;
    let local = SocketAddr::new(socket.local_addr()?.ip().to_canonical(), port);
    let (reading, writing) = socket.into_split();
    let (outlet, sending) = outlet(writing);
    service.shares().connection(peer.ip(), true);
    let _counted = Counted(&service, peer);
    let mut sending = tokio::spawn(sending);
    let (here, gone) = watch::channel(());
    let caller = Arc::new(Caller {
        service: Arc::clone(&service),
        budget,
        own,
        peer,
        local,
    });
    let outcome = tokio::select! {
        outcome = receive_all(reading, &caller, outlet, gone) => outcome,
        // The client takes no answers any more.
        sent = &mut sending => return sent.unwrap_or(Ok(())),
        _ = stopped.changed() => Ok(()),
    };
    // Nobody is left to be granted what it waits for.
    drop(here);
    // What is begun is still answered.
    let sent = sending.await.unwrap_or(Ok(()));
    outcome.and(sent)
}

/// What requests are read from.
struct Reading {
    socket: OwnedReadHalf,
    looking: Looking,
    /// A request is to begin, and nothing else is under way: it may be looked for.
    may_look: bool,
}

impl AsyncRead for Reading {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let socket: &TcpStream = this.socket.as_ref();
        if this.may_look
            && let Some(outcome) = this.looking.look(socket, buffer)
        {
            return Poll::Ready(outcome);
        }
        let outcome = Pin::new(&mut this.socket).poll_read(context, buffer);
        this.looking.has_read(outcome.is_pending());
        outcome
    }
}

/// [`receive`], to its end: no answer stays in the outlet, which ends with this. Tasks have others.
async fn receive_all(
    reading: OwnedReadHalf,
    caller: &Arc<Caller>,
    outlet: Outlet,
    gone: watch::Receiver<()>,
) -> io::Result<()> {
    let outcome = receive(reading, caller, &outlet, gone).await;
    outlet.flush();
    outcome
}

/// Reads requests and has them answered. Whenever this waits, all answers that there are have been
/// given to [`Outlet::flush`]: what they hold is what others wait for.
async fn receive(
    reading: OwnedReadHalf,
    caller: &Arc<Caller>,
    outlet: &Outlet,
    gone: watch::Receiver<()>,
) -> io::Result<()> {
    let reading = Reading {
        socket: reading,
        looking: Looking::default(),
        may_look: false,
    };
    let mut reading = BufReader::with_capacity(READ_BYTES, reading);
    let mut turn = Turn::of(TURN_REQUESTS);
    let (mut together, mut together_bytes) = (0, 0);
    loop {
        if !has_record(reading.buffer())
            || together >= TOGETHER_MAX
            || together_bytes >= TOGETHER_BYTES_MAX
        {
            outlet.flush();
            (together, together_bytes) = (0, 0);
        }
        let mut mark = [0; 4];
        reading.get_mut().may_look = outlet.rests();
        match reading.read_exact(&mut mark).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        };
        reading.get_mut().may_look = false;
        let mark = Mark::decode(mark);
        let bytes = record_bytes(mark)?;
        let place = Placing::of(mark, reading.buffer());
        let first = mark.length_bytes.min(CHUNK_BYTES);
        let mut record = place.room(first);
        in_time(read_until(&mut reading, &mut record, first)).await?;
        let own = &caller.own;
        let paid = pay(outlet, &own.requests, &caller.budget.requests, bytes).await;
        if mark.is_last && first < mark.length_bytes {
            let mut whole = place.room(mark.length_bytes);
            whole.extend_from_slice(&record);
            record = whole;
        }
        let record = in_time(read_rest(&mut reading, record, mark)).await?;
        if turn.is_over() {
            outlet.flush();
            tokio::task::yield_now().await;
        }
        let (call, work) = match understand(record) {
            Ok(understood) => understood,
            Err(Some(reply)) => {
                let budget = &caller.budget.answers;
                let paid = pay(outlet, &own.answers, budget, REQUEST_BYTES).await;
                together += 1;
                together_bytes = outlet.put(Answer::new(marked(reply), paid));
                continue;
            }
            Err(None) => return Err(io::Error::from(io::ErrorKind::InvalidData)),
        };
        let may_compute_long = work.may_compute_long();
        // Such a request goes on on the device's thread that wrote the log, which must not be held
        // up: the others are the runtime's.
        let waits_for_log = work.waits_for_log();
        let request = Request {
            caller: Arc::clone(caller),
            gone: work.only_waits().then(|| gone.clone()),
            _paid: paid,
        };
        let mut working = Box::pin(lock_order::operation(request.carry_out(call, work)));
        let polled = match may_compute_long {
            true => Poll::Pending,
            // Most are done at once.
            false => futures::poll!(working.as_mut()),
        };
        match polled {
            Poll::Ready(answer) => {
                together += 1;
                together_bytes = answer.map_or(0, |answer| outlet.put(answer));
            }
            Poll::Pending => {
                let outlet = outlet.clone();
                let answering = async move {
                    if let Some(answer) = working.await {
                        outlet.put(answer);
                        outlet.flush();
                    }
                };
                match waits_for_log {
                    true => device::start_near(&Handle::current(), answering),
                    false => drop(tokio::spawn(answering)),
                }
            }
        }
    }
}

/// Whether a record is there whole, by what has been read.
fn has_record(read: &[u8]) -> bool {
    let Some((mark, rest)) = read.split_first_chunk::<4>() else {
        return false;
    };
    let mark = Mark::decode(*mark);
    mark.is_last && mark.length_bytes <= rest.len()
}

/// Pays at once, or waits for memory once all answers are sent that have some.
async fn pay(
    outlet: &Outlet,
    address: &Arc<Semaphore>,
    server: &Arc<Semaphore>,
    bytes: u32,
) -> Paid {
    match Paid::try_pay(address, server, bytes) {
        Some(paid) => paid,
        None => {
            outlet.flush();
            Paid::pay(address, server, bytes).await
        }
    }
}

/// Where the content of a request is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Placing {
    /// Where in the record it begins, where it is long and that shows.
    content_at: Option<usize>,
}

impl Placing {
    /// For a record with this mark that begins with `head`.
    fn of(mark: Mark, head: &[u8]) -> Self {
        let is_long = mark.is_last && mark.length_bytes >= net::PLACED_BYTES_MIN;
        let content_at = is_long.then(|| content_at(head)).flatten();
        Self { content_at }
    }

    /// Memory for the first `length_bytes` of the record.
    fn room(self, length_bytes: usize) -> BytesMut {
        match self.content_at {
            Some(content_at) => net::room_for(length_bytes, content_at),
            None => BytesMut::with_capacity(length_bytes),
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
    reading: &mut BufReader<Reading>,
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
    reading: &mut BufReader<Reading>,
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
    caller: Arc<Caller>,
    /// For what only waits; nothing is sent by it, and an error says that the connection is gone.
    gone: Option<watch::Receiver<()>>,
    _paid: Paid,
}

impl Request {
    /// Does what is asked for; the answer, unless there is none.
    async fn carry_out(mut self, call: Call, work: Work) -> Option<Answer> {
        let caller = &*self.caller;
        let bytes = work.answer_bytes();
        let mut paid = Paid::pay(&caller.own.answers, &caller.budget.answers, bytes).await;
        let answering = caller
            .service
            .answer(&call, work, caller.peer, caller.local);
        let answer = match &mut self.gone {
            None => answering.await,
            Some(gone) => tokio::select! {
                // Where both are the case, it was granted: the client hears so when it asks again.
                biased;
                answer = answering => answer,
                _ = gone.changed() => None,
            },
        };
        let pieces = marked(answer?);
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        paid.keep(bytes.max(ANSWER_BYTES_MIN));
        Some(Answer::new(pieces, paid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::Writer;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    fn connection(stopped: watch::Receiver<()>) -> Connection {
        let budget = Budget::of_halves(8 << 20);
        let random = device::World::system(1).random;
        Connection {
            service: Service::new(Arc::default(), None, random),
            own: budget.of_address(),
            budget: Arc::new(budget),
            peer: "127.0.0.1:700".parse().unwrap(),
            port: 2049,
            stopped,
        }
    }

    /// Calls of NULL, marked.
    fn null_calls(count: u32) -> Vec<u8> {
        let calls = (0..count).flat_map(|xid| {
            let mut call = Writer::new();
            for word in [xid, 0, 2, 100_003, 3, 0, 0, 0, 0, 0] {
                call.u32(word);
            }
            marked(call.finish())
        });
        calls.collect::<Vec<Bytes>>().concat()
    }

    /// Goal: answers are sent while more requests are there to be answered, in the order of these,
    /// and who has many under way lets others go on after some.
    #[tokio::test]
    async fn others_have_their_turn_between_answers() {
        const CALLS: usize = 500;
        const ANSWER_BYTES: usize = 28;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        let (mut client, (socket, _)) = (client.unwrap(), accepted.unwrap());
        client.write_all(&null_calls(CALLS as u32)).await.unwrap();
        socket.readable().await.unwrap();
        socket.writable().await.unwrap();
        let (_stop, stopped) = watch::channel(());
        let mut serving = Box::pin(serve(socket, connection(stopped)));
        let mut answers = Vec::new();
        let mut found = vec![0; CALLS * ANSWER_BYTES];
        while answers.len() < CALLS * ANSWER_BYTES {
            // Each is a turn, after which other tasks would have theirs.
            assert!(futures::poll!(serving.as_mut()).is_pending());
            client.readable().await.unwrap();
            let count = client.try_read(&mut found).unwrap();
            assert!(count > 0 && count <= TURN_REQUESTS as usize * ANSWER_BYTES);
            answers.extend_from_slice(&found[..count]);
        }
        for (xid, answer) in answers.chunks(ANSWER_BYTES).enumerate() {
            assert_eq!(answer[4..8], (xid as u32).to_be_bytes());
        }
    }

    #[test]
    fn a_record_is_there_with_its_last_byte() {
        let call = null_calls(1);
        for length in 0..call.len() {
            assert!(!has_record(&call[..length]));
        }
        assert!(has_record(&call) && has_record(&null_calls(2)));
        // The first of several fragments.
        let mut part = call.clone();
        part[0] = 0;
        assert!(!has_record(&part));
    }

    /// Goal: what is long and brings content lies where its content begins with a page.
    #[test]
    fn content_is_received_where_it_stays() {
        for length in [16 << 10, 100 << 10, 1 << 20] {
            let mut head = Writer::new();
            for word in [9, 0, 2, 100_003, 3, 7, 0, 0, 0, 0] {
                head.u32(word);
            }
            head.opaque(&[1; 28]);
            head.u64(0);
            for word in [length, 0, length] {
                head.u32(word);
            }
            let mut record = head.finish().concat();
            let content_at = record.len();
            record.resize(content_at + length as usize, 7);
            let mark = Mark {
                length_bytes: record.len(),
                is_last: true,
            };
            let place = Placing::of(mark, &record);
            assert_eq!(place.content_at, Some(content_at));
            let mut room = place.room(record.len());
            room.extend_from_slice(&record);
            let content = room.freeze().slice(content_at..);
            assert_eq!(content.as_ptr() as usize % 4096, 0);
        }
        let short = Mark {
            length_bytes: 5000,
            is_last: true,
        };
        assert_eq!(Placing::of(short, &null_calls(1)[4..]).content_at, None);
    }
}
