//! One connection: login, then a [`Session`] driven by one task. A connection that joins a session
//! is handed to that session's task.
//!
//! All of a session happens in its task: it reads as much as there is, takes every request that
//! is whole, runs commands (those that must wait, many at a time), and writes answers that have
//! gathered with one vectored write: all of them when no request is left, some before that, so that
//! the initiator works at these while others are made. A read that is answered from memory never
//! leaves it. After some rounds of that other tasks have their turn.
//!
//! A long data segment is received where it stays until it is on disk: at the beginning of a page,
//! so that devices take it from there ([`net::place`]).
//!
//! When a connection is lost, commands that run are waited for, and only then is the session
//! given up: a new session of the same initiator, which waits for that, cannot be overtaken by
//! writes of the old one.

use crate::TargetSet;
use crate::login::{
    Established, LOGIN_DATA_BYTES_MAX, Login, LoginStatus, Parameters, RECEIVE_DATA_BYTES_MAX,
    SessionKind, Step,
};
use crate::pdu::{BHS_BYTES, Frame, FrameError, Framing, Header, OutQueue, next_frame};
use crate::scsi::{Done, InitiatorPort};
use crate::session::{
    Action, LineId, OUTPUT_FREE_BYTES, ProtocolError, Session, TaskId, Ticket, base_bytes,
};
use crate::target::{Control, Registration};
use bytes::{BufMut, BytesMut};
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use net::{Looking, Turn};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};

/// A connection's place; those of one address share nothing.
type Place = net::Place<()>;

/// A login must be done in this time.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(15);
/// A discovery session must be done in this time: what it is for takes one question.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a login waits for the end of an older session of the same initiator port.
const REINSTATEMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the last answers may take to be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// An initiator that is silent so long is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// Pings without any sign of life after which the connection is given up.
const PINGS_MAX: u32 = 2;
/// So many intervals in a row may data that was asked for, or that waits to be taken, not move.
const STALLED_INTERVALS_MAX: u32 = 4;
/// Room made for input, in bytes.
const INPUT_BYTES: usize = 64 * 1024;
/// Room made for input behind a long data segment: the next header, to find the place of the next
/// one.
const INPUT_BYTES_MIN: usize = 4096;
/// Most that is read by a look ([`Looking`]).
const LOOK_BYTES: usize = 2048;
/// Short answers that have so many bytes are sent while there are more requests to be taken.
const TOGETHER_BYTES_MAX: usize = 32 * 1024;
/// Answers of more bytes are sent all together in the end: what an initiator gains by having some
/// earlier is lost by a system call, and a wake-up of its own, for each.
const SHORT_ANSWER_BYTES_MAX: usize = 8 * 1024;
/// So often in a row does a session go on with what it has to do before others have their turn.
const TURN_ROUNDS: u32 = 16;
/// Most pieces of one vectored write (Linux takes 1024).
const SLICES_MAX: usize = 128;

/// Why a connection ended badly.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the initiator's data cannot be followed: {0}")]
    Frame(#[from] FrameError),
    #[error("the initiator broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    #[error("login of {initiator} refused: {status:?}")]
    Refused {
        initiator: String,
        status: LoginStatus,
    },
    #[error("login took longer than {LOGIN_TIMEOUT:?}")]
    LoginTimeout,
    #[error("discovery session lasted longer than {DISCOVERY_TIMEOUT:?}")]
    DiscoveryTimeout,
    #[error("the initiator does not answer pings")]
    Silent,
    #[error(
        "the initiator neither sends the data that it was asked for nor takes what it asked for"
    )]
    Stalled,
}

/// Serves a connection from its first byte to its last.
pub(super) async fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    place: Place,
    targets: Arc<TargetSet>,
    mut stopped: watch::Receiver<()>,
) -> Result<(), ConnectionError> {
    socket.set_nodelay(true)?;
    let local = socket.local_addr()?;
    let mut connection = Raw {
        socket,
        input: BytesMut::with_capacity(INPUT_BYTES),
    };
    let login = async {
        tokio::time::timeout(LOGIN_TIMEOUT, log_in(&mut connection, &targets))
            .await
            .map_err(|_| ConnectionError::LoginTimeout)?
    };
    let (established, header, reply) = tokio::select! {
        done = login => done?,
        _ = stopped.changed() => return Ok(()),
    };
    begin(
        connection,
        peer,
        local,
        place,
        targets,
        *established,
        header,
        reply,
    )
    .await
}

/// A socket and what has been read from it.
struct Raw {
    socket: TcpStream,
    input: BytesMut,
}

impl Raw {
    /// The next frame; an error of kind `UnexpectedEof` at the end of the stream.
    async fn frame(&mut self, framing: Framing) -> Result<Frame, ConnectionError> {
        loop {
            match next_frame(&mut self.input, framing)? {
                Ok(frame) => return Ok(frame),
                Err(needed) => {
                    self.input.reserve(needed - self.input.len());
                    if self.socket.read_buf(&mut self.input).await? == 0 {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                    }
                }
            }
        }
    }

    async fn send(&mut self, header: Header, text: Vec<u8>) -> io::Result<()> {
        let mut out = OutQueue::default();
        out.push_with(header, text.into());
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); 4];
            let count = out.fill(&mut slices);
            let sent = self.socket.write_vectored(&slices[..count]).await?;
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            out.consume(sent);
        }
        Ok(())
    }
}

/// The login phase; returns what was agreed and the last answer, not yet sent.
async fn log_in(
    connection: &mut Raw,
    targets: &TargetSet,
) -> Result<(Box<Established>, Header, Vec<u8>), ConnectionError> {
    let framing = Framing {
        has_header_digest: false,
        has_data_digest: false,
        data_bytes_max: LOGIN_DATA_BYTES_MAX as usize,
    };
    let mut login = Login::new();
    loop {
        let frame = connection.frame(framing).await?;
        match login.request(&frame.header, &frame.data, targets) {
            Step::Reply(header, text) => connection.send(header, text).await?,
            Step::Refuse(header, status) => {
                connection.send(header, Vec::new()).await?;
                let initiator = login.initiator().unwrap_or("an unknown initiator").into();
                return Err(ConnectionError::Refused { initiator, status });
            }
            Step::Establish(established, header, text) => return Ok((established, header, text)),
        }
    }
}

/// Registers the session, sends the last answer of the login, and serves the session.
async fn begin(
    mut connection: Raw,
    peer: SocketAddr,
    local: SocketAddr,
    mut place: Place,
    targets: Arc<TargetSet>,
    established: Established,
    mut header: Header,
    reply: Vec<u8>,
) -> Result<(), ConnectionError> {
    if let Some(tsih) = established.joins {
        place.is_known();
        let joining = Box::new(Joining {
            established,
            connection,
            place,
            answer: (header, reply),
        });
        return match targets.join(tsih, joining) {
            Ok(()) => Ok(()),
            Err((status, joining)) => Err(joining.refuse(status).await),
        };
    }
    let Established {
        initiator,
        isid,
        kind,
        proven,
        parameters,
        connection_id,
        cmd_sn,
        stat_sn,
        ..
    } = established;
    let iqn = match kind {
        SessionKind::Discovery => None,
        SessionKind::Normal { iqn } => Some(iqn),
    };
    let port = InitiatorPort {
        name: initiator.clone(),
        isid,
    };
    let (control_sender, control) = mpsc::unbounded_channel();
    let register = targets.register(
        iqn.clone(),
        port,
        proven.as_ref(),
        peer,
        control_sender,
        base_bytes(&parameters),
    );
    let registered = tokio::time::timeout(REINSTATEMENT_TIMEOUT, register).await;
    let (registration, share) = match registered.unwrap_or(Err(LoginStatus::ServiceUnavailable)) {
        Ok(registered) => registered,
        Err(status) => {
            header.0[1] = 0;
            header.set_u16(36, status as u16);
            connection.send(header, Vec::new()).await?;
            return Err(ConnectionError::Refused { initiator, status });
        }
    };
    let discovery_ends = match registration.nexus {
        Some(_) => {
            place.is_known();
            None
        }
        None => Some(Box::pin(tokio::time::sleep(DISCOVERY_TIMEOUT))),
    };
    Login::set_tsih(&mut header, registration.tsih());
    connection.send(header, reply).await?;
    tracing::info!(%initiator, %peer, target_name = iqn.as_deref(), "iSCSI session begins");

    let listed = targets.clone();
    let session = Session::new(
        registration.nexus.clone(),
        share,
        parameters,
        connection_id,
        cmd_sn,
        stat_sn,
        Box::new(move || {
            let names = listed.names_for(&initiator, proven.as_ref()).into_iter();
            let portals = listed.portals_for(local).into_iter();
            let addresses: Vec<String> = portals.map(portal_address).collect();
            names.map(|name| (name, addresses.clone())).collect()
        }),
    );
    session
        .lines()
        .count_for(LineId::FIRST, targets.count_of(local));
    let wire = Wire::new(LineId::FIRST, connection, &parameters, place);
    let driver = Driver {
        wires: vec![wire],
        joining: Vec::new(),
        session,
        running: FuturesUnordered::new(),
        control,
        acknowledgements: HashMap::new(),
        next_ticket: 0,
        discovery_ends,
        targets,
        registration,
    };
    driver.run().await
}

/// The TargetAddress of a portal (RFC 7143 section 13.8).
fn portal_address(portal: SocketAddr) -> String {
    format!("{portal},{}", crate::login::PORTAL_GROUP_TAG)
}

/// A connection that has logged in to join a session.
pub(crate) struct Joining {
    pub(crate) established: Established,
    connection: Raw,
    place: Place,
    /// The last answer of its login, not yet sent.
    answer: (Header, Vec<u8>),
}

impl std::fmt::Debug for Joining {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joining").finish_non_exhaustive()
    }
}

impl Joining {
    /// Refuses the login.
    async fn refuse(mut self, status: LoginStatus) -> ConnectionError {
        let mut header = self.answer.0;
        header.0[1] = 0;
        header.set_u16(36, status as u16);
        if let Err(error) = self.connection.send(header, Vec::new()).await {
            return error.into();
        }
        let initiator = self.established.initiator;
        ConnectionError::Refused { initiator, status }
    }
}

/// What a future of the session comes to.
enum Event {
    Done(TaskId, Done),
    Elsewhere(Ticket),
}

/// One connection of a session.
struct Wire {
    line: LineId,
    connection: Raw,
    framing: Framing,
    ping_timer: Pin<Box<tokio::time::Sleep>>,
    /// Ends of ping intervals since the last sign of life.
    silent_intervals: u32,
    /// [`Session::awaited`] at the end of the last ping interval.
    awaited: [Option<u64>; 2],
    /// Intervals in a row in which some of it did not change.
    stalled_intervals: u32,
    /// The last request had a long data segment, and so may the next one.
    has_long_data: bool,
    /// How long the input may become. Its memory may have more room, as it is used again: a long
    /// request that came into that whole would not be in its place ([`net::place`]).
    input_bytes_max: usize,
    looking: Looking,
    _place: Place,
}

impl Wire {
    fn new(line: LineId, connection: Raw, parameters: &Parameters, place: Place) -> Self {
        Self {
            line,
            connection,
            framing: Framing {
                has_header_digest: parameters.has_header_digest,
                has_data_digest: parameters.has_data_digest,
                data_bytes_max: RECEIVE_DATA_BYTES_MAX as usize,
            },
            ping_timer: Box::pin(tokio::time::sleep(PING_INTERVAL)),
            silent_intervals: 0,
            awaited: [None; 2],
            stalled_intervals: 0,
            has_long_data: false,
            input_bytes_max: INPUT_BYTES,
            looking: Looking::default(),
            _place: place,
        }
    }

    /// Pings the initiator where it is silent; an error where that has lasted too long.
    fn poll_timer(
        &mut self,
        session: &mut Session,
        context: &mut Context<'_>,
    ) -> Result<(), ConnectionError> {
        while self.ping_timer.poll_unpin(context).is_ready() {
            match self.silent_intervals {
                0 => {}
                1..=PINGS_MAX => session.ping(self.line),
                _ => return Err(ConnectionError::Silent),
            }
            self.silent_intervals += 1;
            if self.is_stalled(session) {
                return Err(ConnectionError::Stalled);
            }
            let next = tokio::time::Instant::now() + PING_INTERVAL;
            self.ping_timer.as_mut().reset(next);
        }
        Ok(())
    }

    /// Whether the initiator keeps commands, and their memory, from going on; asked once an
    /// interval.
    fn is_stalled(&mut self, session: &Session) -> bool {
        let before = std::mem::replace(&mut self.awaited, session.awaited(self.line));
        let mut pairs = self.awaited.iter().zip(&before);
        if pairs.any(|(now, before)| now.is_some() && now == before) {
            self.stalled_intervals += 1;
        } else {
            self.stalled_intervals = 0;
        }
        self.stalled_intervals >= STALLED_INTERVALS_MAX
    }

    /// Sends what there is; ready when all has been sent.
    fn poll_write(
        &mut self,
        session: &mut Session,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(out) = session.lines().out(self.line).filter(|out| !out.is_empty()) {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = out.fill(&mut slices);
            let socket = Pin::new(&mut self.connection.socket);
            match socket.poll_write_vectored(context, &slices[..count]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(sent)) => session.sent(self.line, sent),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads what has come. It may look for that, unless the session has something else to do.
    fn poll_read(&mut self, may_look: bool, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Raw { socket, input } = &mut self.connection;
        let mut result = Poll::Pending;
        if may_look && !self.has_long_data && input.is_empty() {
            let mut memory = [0; LOOK_BYTES];
            let mut buffer = ReadBuf::new(&mut memory);
            if let Some(looked) = self.looking.look(socket, &mut buffer) {
                input.extend_from_slice(buffer.filled());
                result = Poll::Ready(looked.map(|()| buffer.filled().len()));
            }
        }
        if result.is_pending() {
            let most = self.input_bytes_max.saturating_sub(input.len());
            let mut room = input.limit(most.max(INPUT_BYTES_MIN));
            result = pin!(socket.read_buf(&mut room)).poll(context);
            self.looking.has_read(result.is_pending());
        }
        if let Poll::Ready(Ok(1..)) = result {
            self.silent_intervals = 0;
        }
        result
    }

    /// The next request that is here in full.
    fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        match next_frame(&mut self.connection.input, self.framing)? {
            Ok(frame) => {
                self.has_long_data = frame.data.len() >= net::PLACED_BYTES_MIN;
                Ok(Some(frame))
            }
            Err(needed) => {
                self.make_room(needed);
                Ok(None)
            }
        }
    }

    /// Makes room for a request of at least so many bytes, of which some may be there.
    fn make_room(&mut self, needed: usize) {
        let input = &mut self.connection.input;
        if needed >= net::PLACED_BYTES_MIN
            && let Some(head) = input.first_chunk::<BHS_BYTES>()
        {
            // The next header comes along.
            let data_at = self.framing.data_at(&Header(*head));
            net::place(input, needed + BHS_BYTES, data_at);
            self.input_bytes_max = needed + BHS_BYTES;
            return;
        }
        let wanted = match self.has_long_data {
            true => INPUT_BYTES_MIN,
            false => INPUT_BYTES,
        };
        self.input_bytes_max = needed.max(wanted);
        let free = input.capacity() - input.len();
        let missing = needed - input.len();
        if free < missing || free < wanted / 4 {
            input.reserve(missing.max(wanted));
        }
    }
}

fn output_bytes(session: &Session, line: LineId) -> usize {
    session.lines().out(line).map_or(0, OutQueue::length_bytes)
}

/// A session with its sockets.
struct Driver {
    wires: Vec<Wire>,
    /// Connections that wait until the one whose place they take has ended.
    joining: Vec<(LineId, Box<Joining>)>,
    session: Session,
    running: FuturesUnordered<BoxFuture<'static, Event>>,
    control: mpsc::UnboundedReceiver<Control>,
    /// Who wants to know that an abort is complete.
    acknowledgements: HashMap<Ticket, oneshot::Sender<()>>,
    next_ticket: u64,
    /// When a discovery session has lasted long enough.
    discovery_ends: Option<Pin<Box<tokio::time::Sleep>>>,
    targets: Arc<TargetSet>,
    registration: Registration,
}

impl Driver {
    async fn run(mut self) -> Result<(), ConnectionError> {
        let result = poll_fn(|context| self.poll(context)).await;
        self.session.close();
        let last_words = self.say_last_words();
        // If an initiator is gone already, so much the better: that is what comes next.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, last_words).await;
        self.drain().await;
        drop(self.registration);
        result
    }

    /// Sends by all connections what is left to say, if the initiator listens. What runs goes on
    /// meanwhile: it may hold locks of the volume, or of its pool, that others wait for.
    async fn say_last_words(&mut self) {
        let mut is_said = vec![false; self.wires.len()];
        poll_fn(|context| {
            self.poll_running_on(context);
            for (wire, is_said) in self.wires.iter_mut().zip(&mut is_said) {
                if *is_said {
                    continue;
                }
                let mut last = wire.poll_write(&mut self.session, context);
                if let Poll::Ready(Ok(())) = last {
                    last = Pin::new(&mut wire.connection.socket).poll_shutdown(context);
                }
                // Also where it failed.
                *is_said = last.is_ready();
            }
            match is_said.iter().all(|is_said| *is_said) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Lets what runs go on when nothing is received any more; others' aborts are answered.
    fn poll_running_on(&mut self, context: &mut Context<'_>) {
        self.poll_control(context);
        self.poll_running(context);
        self.run_actions(context);
    }

    /// Waits until nothing runs any more.
    async fn drain(&mut self) {
        poll_fn(|context| {
            self.poll_running_on(context);
            if self.running.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Drives everything until the session closes or fails.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        for wire in &mut self.wires {
            wire.poll_timer(&mut self.session, context)?;
        }
        if let Some(end) = &mut self.discovery_ends
            && end.poll_unpin(context).is_ready()
        {
            return Poll::Ready(Err(ConnectionError::DiscoveryTimeout));
        }
        let mut turn = Turn::of(TURN_ROUNDS);
        loop {
            self.session.memory_came_free();
            let mut has_progress = self.poll_control(context);
            has_progress |= self.poll_running(context);
            has_progress |= self.admit_joining();
            for at in 0..self.wires.len() {
                has_progress |= self.take_frames(at, context)?;
            }
            has_progress |= self.run_actions(context);
            if self.session.is_closing() {
                return Poll::Ready(Ok(()));
            }
            // Nothing would have to wait for that.
            let may_look = self.wires.len() == 1 && self.running.is_empty();
            let mut ended = Vec::new();
            for wire in &mut self.wires {
                let is_all_sent = match wire.poll_write(&mut self.session, context) {
                    Poll::Ready(Ok(())) => true,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                    Poll::Pending => false,
                };
                if self.session.lines().is_closing(wire.line) {
                    if is_all_sent {
                        ended.push(wire.line);
                    }
                    continue;
                }
                if is_all_sent || output_bytes(&self.session, wire.line) < OUTPUT_FREE_BYTES {
                    match wire.poll_read(may_look && is_all_sent, context) {
                        Poll::Ready(Ok(0)) => {
                            let lost = io::Error::from(io::ErrorKind::UnexpectedEof);
                            return Poll::Ready(Err(lost.into()));
                        }
                        Poll::Ready(Ok(_)) => has_progress = true,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                        Poll::Pending => {}
                    }
                }
            }
            for line in ended {
                // Dropping its socket closes it; what was queued is with the kernel.
                self.wires.retain(|wire| wire.line != line);
                self.session.remove_line(line);
                has_progress = true;
            }
            // The last one has ended, and the one that was to take its place was refused.
            if self.wires.is_empty() && self.joining.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !has_progress && self.session.waits_for_memory(context.waker()) {
                return Poll::Pending;
            }
            if turn.is_over() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    fn poll_control(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_progress = false;
        while let Poll::Ready(Some(message)) = self.control.poll_recv(context) {
            has_progress = true;
            match message {
                Control::Abort { lun, done } => {
                    let ticket = Ticket(self.next_ticket);
                    self.next_ticket += 1;
                    self.acknowledgements.insert(ticket, done);
                    self.session.abort_for(ticket, lun);
                }
                // It ends with the session.
                Control::Join(_) if self.session.is_closing() => {}
                Control::Join(joining) => self.join(joining),
                Control::RequestLogout { .. } if self.registration.nexus.is_none() => {
                    self.session.close();
                }
                Control::RequestLogout { seconds } => self.session.request_logout(seconds),
                Control::Close => {
                    self.session.announce_drop();
                    self.session.close();
                }
            }
        }
        has_progress
    }

    /// A connection wants to be one of the session's. Where it has the CID of another it takes that
    /// one's place, once no command of it runs any more (RFC 7143 section 6.3.4).
    fn join(&mut self, joining: Box<Joining>) {
        let replaced = self
            .session
            .lines()
            .of_connection(joining.established.connection_id);
        match replaced {
            Some(line) => {
                self.session.close_line(line);
                self.joining.push((line, joining));
            }
            None => self.take_in(joining),
        }
    }

    /// Takes connections in that waited for others to end.
    fn admit_joining(&mut self) -> bool {
        let mut has_progress = false;
        let waiting = std::mem::take(&mut self.joining);
        for (line, joining) in waiting {
            if self.session.tasks().run_for_line(line) {
                self.joining.push((line, joining));
            } else {
                self.take_in(joining);
                has_progress = true;
            }
        }
        has_progress
    }

    fn take_in(&mut self, joining: Box<Joining>) {
        let established = &joining.established;
        let (parameters, connection_id) = (established.parameters, established.connection_id);
        let line = match self.session.has_room_for_line() {
            false => Err(LoginStatus::TooManyConnections),
            true => {
                let stat_sn = established.stat_sn;
                let line = self.session.add_line(&parameters, connection_id, stat_sn);
                line.ok_or(LoginStatus::OutOfResources)
            }
        };
        let line = match line {
            Ok(line) => line,
            Err(status) => {
                let refused = joining.refuse(status);
                tokio::spawn(async move {
                    let error = refused.await;
                    tracing::warn!(%error, "an iSCSI connection was refused");
                });
                return;
            }
        };
        let Joining {
            connection,
            place,
            answer: (mut header, text),
            ..
        } = *joining;
        Login::set_tsih(&mut header, self.registration.tsih());
        self.session.answer_login(line, header, text);
        if let Ok(local) = connection.socket.local_addr() {
            let portal = self.targets.count_of(local);
            self.session.lines().count_for(line, portal);
        }
        self.wires
            .push(Wire::new(line, connection, &parameters, place));
    }

    fn poll_running(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_progress = false;
        while let Poll::Ready(Some(event)) = self.running.poll_next_unpin(context) {
            has_progress = true;
            match event {
                Event::Done(task, done) => self.session.complete(task, done),
                Event::Elsewhere(ticket) => self.session.elsewhere_done(ticket),
            }
        }
        has_progress
    }

    /// Takes all requests that are here in full by one connection.
    fn take_frames(
        &mut self,
        at: usize,
        context: &mut Context<'_>,
    ) -> Result<bool, ConnectionError> {
        let mut has_progress = false;
        loop {
            let wire = &mut self.wires[at];
            let line = wire.line;
            if output_bytes(&self.session, line) >= OUTPUT_FREE_BYTES
                || self.session.is_closing()
                || self.session.lines().is_closing(line)
            {
                return Ok(has_progress);
            }
            let Some(frame) = wire.next_frame()? else {
                return Ok(has_progress);
            };
            has_progress = true;
            let before = output_bytes(&self.session, line);
            self.session.receive(line, frame)?;
            self.run_actions(context);
            let gathered = output_bytes(&self.session, line);
            // What cannot be sent yet is sent in its turn.
            if gathered >= TOGETHER_BYTES_MAX
                && gathered.saturating_sub(before) <= SHORT_ANSWER_BYTES_MAX
                && let Poll::Ready(sent) = self.wires[at].poll_write(&mut self.session, context)
            {
                sent?;
            }
        }
    }

    fn run_actions(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_progress = false;
        while let Some(action) = self.session.next_action() {
            has_progress = true;
            match action {
                Action::Run {
                    task,
                    unit,
                    command,
                    data,
                    stop,
                } => {
                    let Some(nexus) = self.registration.nexus.clone() else {
                        continue;
                    };
                    let mut run = nexus.execute(unit, command, data, stop).boxed();
                    // Many have nothing to wait for: these need no place among the others.
                    match run.poll_unpin(context) {
                        Poll::Ready(done) => self.session.complete(task, done),
                        Poll::Pending => self
                            .running
                            .push(Box::pin(run.map(move |done| Event::Done(task, done)))),
                    }
                }
                Action::AbortElsewhere {
                    ticket,
                    nexuses,
                    lun,
                    fenced,
                } => {
                    let mut waiting = Vec::new();
                    self.targets.tell_nexuses(&nexuses, || {
                        let (done, is_done) = oneshot::channel();
                        waiting.push(is_done);
                        Control::Abort { lun, done }
                    });
                    let all = async move {
                        for is_done in waiting {
                            // A session that has ended has no commands any more.
                            let _ = is_done.await;
                        }
                        for unit in fenced {
                            unit.fence().await;
                        }
                        Event::Elsewhere(ticket)
                    };
                    self.running.push(all.boxed());
                }
                Action::Aborted { ticket } => {
                    if let Some(done) = self.acknowledgements.remove(&ticket) {
                        // Who asked may have gone.
                        let _ = done.send(());
                    }
                }
            }
        }
        has_progress
    }
}
