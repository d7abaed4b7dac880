//! Connections by HTTP/2 (RFC 9113), which browsers choose by ALPN: one of them carries all that a
//! browser asks for, its streams of events too, where HTTP/1.1 has a connection for each request
//! that is under way, and browsers no more than six.
//!
//! What bounds a connection by HTTP/1.1 bounds these: on one that has nothing to do, the server
//! leaves after as long as it waits for a request, and so it does where the other end does not take
//! what it is sent; whoever sends something meanwhile (PING) has some minutes. One that brought
//! something secret takes no more requests, but for those that were on their way; streams of events
//! end then, so that it ends soon, and readers come back by another one. Long answers keep it until
//! they are taken.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{HEADERS_BYTES_MAX, Web, gate};
use crate::patience::{Patient, WRITE_MAX};

/// Requests of one connection that are under way, streams of events among them.
const STREAMS_MAX: u32 = 32;
/// Bytes of an answer that are handed on at once. What the other end has no room for stays with the
/// answer, which is owed meanwhile.
const PIECE: usize = 64 << 10;
/// How long the other end may take nothing of an answer, and how long one that the server has left
/// may have nothing to do, whatever else comes and goes.
const OWED_MAX: Duration = Duration::from_secs(5 * 60);
/// How long requests are taken after the server has left: those that were on their way.
const LATE_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether a connection is still of use; more often where waits are short.
const LOOKS: Duration = Duration::from_secs(5);

/// Runs the requests of a connection as the connection itself is run: what they free is
/// overwritten.
#[derive(Clone, Copy)]
struct Wiping;

impl<F> Executor<F> for Wiping
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        tokio::spawn(device::wipe_freed(future));
    }
}

/// What goes on on a connection.
struct Load {
    /// Requests that are not answered to their ends.
    requests: usize,
    /// Those of them of which the other end has not taken what was last put into their answers, and
    /// since when.
    owed: BTreeMap<u64, Instant>,
    /// Requests that have come so far.
    begun: u64,
    /// When the last request was answered to its end.
    idle_since: Instant,
    /// When the server left.
    left_since: Option<Instant>,
}

impl Load {
    /// Whether the other end had all the time it gets, though it sends something.
    fn is_over(&self) -> bool {
        let oldest = self.owed.values().min();
        let is_owed = oldest.is_some_and(|since| since.elapsed() >= OWED_MAX);
        let left = self.left_since.filter(|_| self.requests == 0);
        is_owed || left.is_some_and(|left| left.max(self.idle_since).elapsed() >= OWED_MAX)
    }
}

struct Shared {
    load: Mutex<Load>,
    /// No more requests are taken.
    leaving: watch::Sender<bool>,
}

impl Shared {
    fn new() -> Self {
        Self {
            load: Mutex::new(Load {
                requests: 0,
                owed: BTreeMap::new(),
                begun: 0,
                idle_since: Instant::now(),
                left_since: None,
            }),
            leaving: watch::Sender::new(false),
        }
    }
}

/// A request that is under way, until its answer is sent or given up.
struct Underway {
    shared: Arc<Shared>,
    number: u64,
    owes: bool,
}

impl Underway {
    /// None where the server left so long ago that the other end knows.
    fn begin(shared: &Arc<Shared>) -> Option<Self> {
        let mut load = shared.load.lock();
        if load
            .left_since
            .is_some_and(|left| left.elapsed() >= LATE_MAX)
        {
            return None;
        }
        load.requests += 1;
        load.begun += 1;
        Some(Self {
            shared: Arc::clone(shared),
            number: load.begun,
            owes: false,
        })
    }

    fn owe(&mut self, owes: bool) {
        if self.owes != owes {
            self.owes = owes;
            let mut load = self.shared.load.lock();
            match owes {
                true => load.owed.insert(self.number, Instant::now()),
                false => load.owed.remove(&self.number),
            };
        }
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.owe(false);
        let mut load = self.shared.load.lock();
        load.requests -= 1;
        load.idle_since = Instant::now();
    }
}

/// The body of an answer.
struct Answer {
    inner: Body,
    /// What has come of it and is not handed on yet.
    rest: Bytes,
    /// None where the request was refused.
    underway: Option<Underway>,
    /// Of a stream of events: when it ends, whatever may come.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Answer {
    fn of(answer: Response, underway: Option<Underway>) -> hyper::Response<Self> {
        let kind = answer.headers().get(CONTENT_TYPE);
        let is_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let end = underway.as_ref().filter(|_| is_events).map(|underway| {
            let mut leaving = underway.shared.leaving.subscribe();
            let end = async move {
                let _ = leaving.wait_for(|leaving| *leaving).await;
            };
            Box::pin(end) as Pin<Box<dyn Future<Output = ()> + Send>>
        });
        answer.map(|inner| Self {
            inner,
            rest: Bytes::new(),
            underway,
            end,
        })
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        // Whoever asks for more has taken what there was.
        if let Some(underway) = &mut this.underway {
            underway.owe(false);
        }
        if this.rest.is_empty() {
            if let Some(end) = &mut this.end
                && end.as_mut().poll(context).is_ready()
            {
                this.end = None;
                this.inner = Body::empty();
            }
            match Pin::new(&mut this.inner).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) => this.rest = bytes,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return other,
            }
        }
        if let Some(underway) = &mut this.underway {
            underway.owe(true);
        }
        let length = this.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(this.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64) + self.inner.size_hint()
    }
}

/// Serves one connection to its end. `idle_max` is how long it may have nothing to do.
pub(super) async fn converse<S>(
    stream: S,
    web: Arc<Web>,
    router: Router,
    address: IpAddr,
    idle_max: Duration,
    stopped: watch::Receiver<bool>,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = move |request| gate::answer(Arc::clone(&web), router.clone(), address, request);
    run(stream, answer, idle_max, stopped).await
}

/// The same, whatever it is that answers.
async fn run<S, F, A>(
    stream: S,
    answer: F,
    idle_max: Duration,
    mut stopped: watch::Receiver<bool>,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> A + Send + 'static,
    A: Future<Output = Response> + Send + 'static,
{
    let shared = Arc::new(Shared::new());
    let of_requests = Arc::clone(&shared);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        // Nothing is done of what is not waited for.
        let answer = answer(request);
        let underway = Underway::begin(&of_requests);
        async move {
            let Some(underway) = underway else {
                let refusal = StatusCode::SERVICE_UNAVAILABLE.into_response();
                return Ok(Answer::of(refusal, None));
            };
            let mut answer = answer.await;
            // HTTP/2 has no such header (RFC 9113, section 8.2.2); what it asks for is done.
            if answer.headers_mut().remove(CONNECTION).is_some() {
                underway.shared.leaving.send_replace(true);
            }
            Ok::<_, Infallible>(Answer::of(answer, Some(underway)))
        }
    });
    let stream = Patient::new(stream);
    let written = stream.written();
    let mut http = http2::Builder::new(Wiping);
    http.timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_send_buf_size(PIECE)
        .max_header_list_size(HEADERS_BYTES_MAX as u32);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut leaving = shared.leaving.subscribe();
    let mut is_leaving = false;
    let mut looks = tokio::time::interval(LOOKS.min(idle_max / 2));
    loop {
        tokio::select! {
            served = connection.as_mut() => return served,
            _ = stopped.wait_for(|stopped| *stopped), if !is_leaving => {
                shared.leaving.send_replace(true);
            }
            _ = leaving.wait_for(|leaving| *leaving), if !is_leaving => {}
            _ = looks.tick() => {
                let (is_idle, is_owed, is_over) = {
                    let load = shared.load.lock();
                    let is_idle = load.requests == 0 && load.idle_since.elapsed() >= idle_max;
                    (is_idle, !load.owed.is_empty(), load.is_over())
                };
                let silent = written.silent();
                let is_stuck = is_owed && silent >= WRITE_MAX;
                if is_over || is_stuck || is_idle && is_leaving && silent >= idle_max {
                    return Ok(());
                }
                if !is_idle || is_leaving {
                    continue;
                }
            }
        }
        // The requests that have come are answered, and no others.
        is_leaving = true;
        shared.load.lock().left_since = Some(Instant::now());
        connection.as_mut().graceful_shutdown();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::AsyncWriteExt;

    use super::*;

    const IDLE_MAX: Duration = Duration::from_secs(20);

    /// A frame (RFC 9113, section 4.1).
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let head = [0, 0, payload.len() as u8, kind, flags];
        [&head[..], &stream.to_be_bytes()[..], payload].concat()
    }

    fn ping(_: u32) -> Vec<u8> {
        frame(6, 0, 0, &[0; 8])
    }

    /// GET of https and "/", and no more of it.
    fn request(stream: u32) -> Vec<u8> {
        frame(1, 5, stream, &[0x82, 0x87, 0x84])
    }

    fn long() -> Response {
        Response::new(Body::from(vec![0_u8; 1 << 20]))
    }

    /// How long a connection lasts, with a client that sends this, and then something every 10 s;
    /// it takes what comes and says nothing of that.
    async fn lasts(sent: &[u8], again: fn(u32) -> Vec<u8>, answer: fn() -> Response) -> Duration {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (mut taken, mut given) = tokio::io::split(far);
        let (_stop, stopped) = watch::channel(false);
        let begun = Instant::now();
        let serves = async {
            let answer = move |_: Request<Incoming>| async move { answer() };
            run(near, answer, IDLE_MAX, stopped).await.unwrap();
            begun.elapsed()
        };
        let gives = async {
            let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
            given.write_all(preface).await.unwrap();
            given.write_all(sent).await.unwrap();
            for number in 1.. {
                tokio::time::sleep(Duration::from_secs(10)).await;
                if given.write_all(&again(number)).await.is_err() {
                    break;
                }
            }
        };
        let mut nowhere = tokio::io::sink();
        let takes = tokio::io::copy(&mut taken, &mut nowhere);
        let (lasted, (), _) = tokio::join!(serves, gives, takes);
        lasted
    }

    /// Goal: whatever somebody sends, a connection ends that has nothing to do, of which nothing is
    /// taken, or which brought a secret.
    #[tokio::test(start_paused = true)]
    async fn who_only_sends_something_is_left() {
        let settings = frame(4, 0, 0, &[]);
        let no_room = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
        let close = || ([(CONNECTION, "close")], "").into_response();
        let asks = |number: u32| request(2 * number + 1);
        for lasted in [
            lasts(&settings, ping, long).await,
            lasts(&[no_room, request(1)].concat(), ping, long).await,
            lasts(&[settings.clone(), request(1)].concat(), asks, close).await,
        ] {
            assert!(lasted >= OWED_MAX, "{lasted:?}");
            assert!(lasted < OWED_MAX + 2 * IDLE_MAX, "{lasted:?}");
        }
    }

    /// Goal: what is not handed on is counted.
    #[tokio::test]
    async fn long_answers_are_handed_on_in_pieces() {
        let shared = Arc::new(Shared::new());
        let mut answer = Answer::of(long(), Underway::begin(&shared)).into_body();
        let mut left: usize = 1 << 20;
        while left > 0 {
            assert_eq!(answer.size_hint().exact(), Some(left as u64));
            assert!(!answer.is_end_stream());
            let piece = answer.frame().await.unwrap().unwrap();
            assert_eq!(piece.into_data().unwrap().len(), PIECE);
            assert_eq!(shared.load.lock().owed.len(), 1);
            left -= PIECE;
        }
        assert!(answer.is_end_stream());
        assert!(answer.frame().await.is_none());
        assert!(shared.load.lock().owed.is_empty());
        drop(answer);
        assert_eq!(shared.load.lock().requests, 0);
    }
}
