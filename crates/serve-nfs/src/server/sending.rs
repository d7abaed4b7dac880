//! Answers on their way to a client.
//!
//! Whoever has an answer puts it in line and sends what stands there, then and there: head and
//! content with one system call, and no other task is woken for it. Where somebody is at that
//! already, that one takes it along.
//!
//! A task of its own ([`outlet`]) sends what the socket does not take at once, as the client is
//! slow, and what is so long that another thread may as well copy it. It waits for the client, who
//! answers does not.
//!
//! One sends at a time, so that answers are never mixed: who has taken what stands in line
//! (`Line::take`) sends until nothing does, or leaves that to the task.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;

use super::paid::Paid;

/// How long a client may take nothing of an answer.
const SEND_PATIENCE: Duration = Duration::from_secs(60);
/// Pieces that are sent with one system call.
const PIECES_MAX: usize = 64;
/// Most bytes that who answers sends, of its own answers and others'.
const AT_ONCE_BYTES_MAX: usize = 64 << 10;

/// An answer that is to be sent.
pub(super) struct Answer {
    pieces: Vec<Bytes>,
    paid: Paid,
}

impl Answer {
    /// In pieces, the record's mark first; `paid` is for all that they hold.
    pub(super) fn new(pieces: Vec<Bytes>, paid: Paid) -> Self {
        Self { pieces, paid }
    }
}

/// Pieces in the order in which they are sent; the last one of each answer has what was paid for
/// that.
#[derive(Default)]
struct Pieces {
    all: VecDeque<(Bytes, Option<Paid>)>,
    bytes: usize,
}

impl Pieces {
    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn add(&mut self, answer: Answer) {
        let Answer { pieces, paid } = answer;
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            self.bytes += piece.len();
            self.all.push_back((piece, None));
        }
        if let Some((_, of_last)) = self.all.back_mut() {
            // An answer has its mark at least, so that this is its own piece.
            *of_last = Some(paid);
        }
    }

    /// All of `later` comes after what is there.
    fn append(&mut self, later: &mut Self) {
        self.all.append(&mut later.all);
        self.bytes += std::mem::take(&mut later.bytes);
    }

    /// So many bytes from the front are sent.
    fn sent(&mut self, mut count: usize) {
        while count > 0 {
            let Some((first, _)) = self.all.front_mut() else {
                return;
            };
            let part = count.min(first.len());
            first.advance(part);
            count -= part;
            self.bytes -= part;
            if first.is_empty() {
                self.all.pop_front();
            }
        }
    }
}

#[derive(Default)]
struct Queue {
    waiting: Pieces,
    /// Somebody sends, and looks again before leaving.
    is_taken: bool,
    /// The client takes nothing any more.
    is_gone: bool,
}

/// What answers wait in, and the socket's end that they leave by.
struct Line {
    socket: OwnedWriteHalf,
    queue: Mutex<Queue>,
}

impl Line {
    /// What waits, for somebody who sends it now; `None` where nothing does, or somebody is at it.
    fn take(&self) -> Option<Pieces> {
        let mut queue = self.queue.lock();
        if queue.is_taken || queue.waiting.is_empty() {
            return None;
        }
        queue.is_taken = true;
        Some(std::mem::take(&mut queue.waiting))
    }

    /// Adds what has come to `batch`, of which its sender has sent a part. False where nothing is
    /// left: nobody sends any more then.
    fn go_on(&self, batch: &mut Pieces) -> bool {
        let mut queue = self.queue.lock();
        if !batch.is_empty() {
            batch.append(&mut queue.waiting);
            return true;
        }
        // Its memory is used again.
        std::mem::swap(batch, &mut queue.waiting);
        queue.is_taken = !batch.is_empty();
        queue.is_taken
    }

    /// Leaves `batch`, and the turn to send, to the task.
    fn put_back(&self, mut batch: Pieces) {
        let mut queue = self.queue.lock();
        batch.append(&mut queue.waiting);
        queue.waiting = batch;
    }

    /// Nothing is sent any more: answers that there are, and those that come, are dropped. The
    /// client hears so now, and not when the last request has ended that has an outlet.
    fn give_up(&self) {
        let socket: &tokio::net::TcpStream = self.socket.as_ref();
        // It may have ended already.
        let _ = device::cut(socket);
        let mut queue = self.queue.lock();
        queue.is_gone = true;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        drop(waiting);
    }

    /// Sends as much of `batch` as the socket takes now; how many bytes.
    fn write(&self, batch: &Pieces) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); PIECES_MAX];
        let mut count = 0;
        for (slice, (piece, _)) in slices.iter_mut().zip(&batch.all) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        match self.socket.try_write_vectored(&slices[..count])? {
            0 => Err(io::Error::from(io::ErrorKind::WriteZero)),
            written => Ok(written),
        }
    }

    /// The same, as soon as it takes any.
    async fn write_when_taken(&self, batch: &Pieces) -> io::Result<usize> {
        loop {
            self.socket.writable().await?;
            match self.write(batch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }
}

/// Where answers of a connection are put to be sent.
#[derive(Clone)]
pub(super) struct Outlet {
    // Dropped first: whoever hears by `wake` that all outlets are gone has the socket alone.
    line: Arc<Line>,
    wake: mpsc::Sender<()>,
}

/// An outlet by a socket, and the task that sends what who answers does not: it ends when all
/// outlets are dropped and all is sent, or with what kept it from that.
pub(super) fn outlet(
    socket: OwnedWriteHalf,
) -> (
    Outlet,
    impl Future<Output = io::Result<()>> + Send + 'static,
) {
    let line = Arc::new(Line {
        socket,
        queue: Mutex::default(),
    });
    // Whose turn it is wakes the task once, and there is one turn.
    let (wake, woken) = mpsc::channel(1);
    let outlet = Outlet {
        line: Arc::clone(&line),
        wake,
    };
    let sending = async move {
        let sent = send(&line, woken).await;
        if sent.is_err() {
            line.give_up();
        }
        // The last one drops the socket's end, which tells the client that nothing follows.
        sent
    };
    (outlet, sending)
}

impl Outlet {
    /// Puts an answer in line; how many bytes wait then that nobody sends yet. They do until
    /// [`Self::flush`].
    pub(super) fn put(&self, answer: Answer) -> usize {
        let mut queue = self.line.queue.lock();
        if queue.is_gone {
            drop(queue);
            drop(answer);
            return 0;
        }
        queue.waiting.add(answer);
        match queue.is_taken {
            true => 0,
            false => queue.waiting.bytes,
        }
    }

    /// Whether nothing is under way: no other task has an outlet, and nothing is being sent.
    pub(super) fn rests(&self) -> bool {
        // This one's and the sending task's.
        Arc::strong_count(&self.line) <= 2 && !self.line.queue.lock().is_taken
    }

    /// Sends what waits, or sees to it that somebody does.
    pub(super) fn flush(&self) {
        let Some(mut batch) = self.line.take() else {
            return;
        };
        let mut left = AT_ONCE_BYTES_MAX;
        while batch.bytes <= left {
            // Whatever the matter is, the task meets it again.
            let Ok(written) = self.line.write(&batch) else {
                break;
            };
            batch.sent(written);
            left = left.saturating_sub(written);
            if batch.is_empty() && !self.line.go_on(&mut batch) {
                return;
            }
        }
        self.line.put_back(batch);
        // There is room for it: the task has the turn from here on, and took note of the last one.
        let _ = self.wake.try_send(());
    }
}

/// Sends whenever it is this task's turn.
async fn send(line: &Line, mut woken: mpsc::Receiver<()>) -> io::Result<()> {
    while woken.recv().await.is_some() {
        let mut batch = Pieces::default();
        while line.go_on(&mut batch) {
            let writing = line.write_when_taken(&batch);
            let written = tokio::time::timeout(SEND_PATIENCE, writing).await;
            let written = written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            batch.sent(written);
            // A client that takes everything at once is not the only one.
            tokio::task::coop::consume_budget().await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::record::marked;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Semaphore;

    const ALL: usize = 64 << 20;

    async fn paid(budget: &Arc<Semaphore>, bytes: u32) -> Paid {
        Paid::pay(budget, &Arc::new(Semaphore::new(bytes as usize)), bytes).await
    }

    async fn answer(budget: &Arc<Semaphore>, byte: u8, length: usize) -> Answer {
        let paid = paid(budget, length as u32).await;
        Answer::new(vec![Bytes::from(vec![byte; length])], paid)
    }

    /// Both ends of a connection; the server's may be written to.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        let (server, _) = accepted.unwrap();
        server.writable().await.unwrap();
        (client.unwrap(), server)
    }

    /// However much follows it: a client that asks on and on would never give anything back.
    #[tokio::test]
    async fn an_answer_is_paid_for_until_its_last_byte_is_sent() {
        let budget = Arc::new(Semaphore::new(1000));
        let mut sending = Pieces::default();
        for bytes in [100, 200] {
            let pieces = marked(vec![Bytes::new(), Bytes::from(vec![7; 50])]);
            sending.add(Answer::new(pieces, paid(&budget, bytes).await));
        }
        assert_eq!(budget.available_permits(), 700);
        sending.sent(53);
        assert_eq!(budget.available_permits(), 700);
        sending.sent(2);
        assert_eq!(budget.available_permits(), 800);
        sending.sent(53);
        assert_eq!(budget.available_permits(), 1000);
        assert!(sending.is_empty() && sending.bytes == 0);
    }

    /// Goal: a short answer is with the kernel when who answers goes on: no task has to run for it.
    #[tokio::test]
    async fn an_answer_is_sent_where_it_was_made() {
        let (client, server) = connection().await;
        let (_reading, writing) = server.into_split();
        // The task is never polled.
        let (outlet, _sending) = outlet(writing);
        let budget = Arc::new(Semaphore::new(ALL));
        assert_eq!(outlet.put(answer(&budget, 1, 4096).await), 4096);
        assert_eq!(outlet.put(answer(&budget, 2, 100).await), 4196);
        assert_eq!(budget.available_permits(), ALL - 4196);
        outlet.flush();
        assert_eq!(budget.available_permits(), ALL);
        client.readable().await.unwrap();
        let mut found = vec![0; 5000];
        assert_eq!(client.try_read(&mut found).unwrap(), 4196);
        assert_eq!(found[..4196], [vec![1; 4096], vec![2; 100]].concat());
        // Nothing is left behind.
        outlet.flush();
        assert!(outlet.line.take().is_none());
    }

    /// Goal: while somebody sends, others leave their answers to that one; nothing is mixed.
    #[tokio::test]
    async fn one_sends_at_a_time() {
        let (mut client, server) = connection().await;
        let (_reading, writing) = server.into_split();
        let (outlet, _sending) = outlet(writing);
        let budget = Arc::new(Semaphore::new(ALL));
        outlet.put(answer(&budget, 1, 10).await);
        let mut batch = outlet.line.take().expect("the turn");
        // Nothing of it stands in line.
        assert_eq!(outlet.put(answer(&budget, 2, 10).await), 0);
        outlet.flush();
        assert_eq!(budget.available_permits(), ALL - 20);
        batch.sent(3);
        assert!(outlet.line.go_on(&mut batch));
        let left = std::mem::take(&mut batch.all);
        let left: Vec<Bytes> = left.into_iter().map(|(piece, _)| piece).collect();
        assert_eq!(left.concat(), [vec![1; 7], vec![2; 10]].concat());
        assert!(!outlet.line.go_on(&mut Pieces::default()));
        // The turn is free again.
        outlet.put(answer(&budget, 3, 10).await);
        outlet.flush();
        let mut found = [0; 10];
        client.read_exact(&mut found).await.unwrap();
        assert_eq!(found, [3; 10]);
    }

    /// Goal: what is long, and what the client does not take at once, waits for the client in the
    /// task alone, in order, and is all sent before the connection ends.
    #[tokio::test]
    async fn who_answers_does_not_wait_for_the_client() {
        let (mut client, server) = connection().await;
        let (_reading, writing) = server.into_split();
        let (outlet, sending) = outlet(writing);
        let sending = tokio::spawn(sending);
        let budget = Arc::new(Semaphore::new(ALL));
        // More than sockets hold.
        for byte in 0..40 {
            outlet.put(answer(&budget, byte, 1 << 20).await);
            outlet.flush();
            outlet.put(answer(&budget, byte, 1000).await);
            outlet.flush();
        }
        assert!(budget.available_permits() < ALL);
        drop(outlet);
        let mut found = Vec::new();
        client.read_to_end(&mut found).await.unwrap();
        let expected = (0..40).map(|byte| vec![byte; (1 << 20) + 1000]);
        assert!(found == expected.collect::<Vec<_>>().concat());
        sending.await.unwrap().unwrap();
        assert_eq!(budget.available_permits(), ALL);
    }

    /// Goal: a client that took nothing for too long hears that the connection has ended, though a
    /// request of it is still under way: it would wait for an answer that never comes.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_given_up_hears_so() {
        let (mut client, server) = connection().await;
        let (_reading, writing) = server.into_split();
        let (outlet, sending) = outlet(writing);
        let budget = Arc::new(Semaphore::new(ALL));
        // More than sockets hold.
        outlet.put(answer(&budget, 1, 32 << 20).await);
        outlet.flush();
        let given_up = sending.await.unwrap_err();
        assert_eq!(given_up.kind(), io::ErrorKind::TimedOut);
        tokio::time::resume();
        let mut found = Vec::new();
        let heard = tokio::time::timeout(SEND_PATIENCE, client.read_to_end(&mut found));
        heard.await.expect("it ends").expect("in order");
        assert!(found.len() < 32 << 20);
        // What the request has.
        drop(outlet);
    }

    /// Goal: answers for a client that is gone hold no memory, however long requests take.
    #[tokio::test]
    async fn answers_for_nobody_are_dropped() {
        let (client, server) = connection().await;
        let (_reading, writing) = server.into_split();
        let (outlet, sending) = outlet(writing);
        let sending = tokio::spawn(sending);
        let budget = Arc::new(Semaphore::new(ALL));
        outlet.put(answer(&budget, 1, 32 << 20).await);
        outlet.flush();
        drop(client);
        assert!(sending.await.unwrap().is_err());
        assert_eq!(budget.available_permits(), ALL);
        assert_eq!(outlet.put(answer(&budget, 2, 10).await), 0);
        outlet.flush();
        assert_eq!(budget.available_permits(), ALL);
    }
}
