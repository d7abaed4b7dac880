//! Answers that are kept for clients that ask twice.
//!
//! A client whose connection broke asks again on the next one, with the same number. What may be
//! done once only (a file that is removed a second time is not there) is answered as it was the
//! first time, and what is still being done is not begun again: the client asks once more. It is
//! the same request only if all is the same that decides what may be done, and for some time:
//! clients count their requests from anywhere, and numbers come again.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::rpc::{Call, Credential};

/// Answers that are kept, of all clients together.
const KEPT_MAX: usize = 4096;
/// How long they are kept: longer than clients go on asking.
const KEPT_FOR: Duration = Duration::from_secs(120);
/// Longest answer that is kept, in bytes; those that matter have at most some hundreds.
const ANSWER_BYTES_MAX: usize = 1024;
/// Bytes of the arguments that tell requests of one number apart.
const DIGESTED_BYTES: usize = 512;

/// What tells a request from others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    client: IpAddr,
    /// It comes from a port that takes root to use.
    is_privileged: bool,
    credential: Credential,
    xid: u32,
    program: u32,
    procedure: u32,
    arguments_bytes: usize,
    digest: u64,
}

#[derive(Debug)]
enum State {
    UnderWay,
    /// In pieces, without its record mark.
    Answered(Vec<Bytes>),
}

#[derive(Debug, Default)]
struct Kept {
    states: HashMap<Key, State>,
    /// What was answered and when, oldest first.
    order: VecDeque<(Instant, Key)>,
}

/// Answers that are kept.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    kept: Mutex<Kept>,
}

/// How a request is met.
pub(crate) enum Met {
    /// It is new.
    New(UnderWay),
    /// It is still being done.
    UnderWay,
    /// It was answered so.
    Answered(Vec<Bytes>),
}

/// A request that is being done. Unless it is answered, it is new again when it comes again.
pub(crate) struct UnderWay {
    answers: Arc<Answers>,
    key: Key,
}

impl Key {
    pub(crate) fn of(call: &Call, peer: SocketAddr) -> Self {
        let arguments = call.arguments.rest();
        let digested = &arguments[..arguments.len().min(DIGESTED_BYTES)];
        Self {
            client: peer.ip().to_canonical(),
            is_privileged: peer.port() < 1024,
            credential: call.credential.clone(),
            xid: call.xid,
            program: call.program,
            procedure: call.procedure,
            arguments_bytes: arguments.len(),
            digest: digest(digested),
        }
    }
}

/// FNV-1a.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Kept {
    /// Forgets what is too old.
    fn expire(&mut self, now: Instant) {
        let is_old = |(then, _): &(Instant, Key)| now.duration_since(*then) >= KEPT_FOR;
        while self.order.front().is_some_and(is_old) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key)) = self.order.pop_front() {
            self.states.remove(&key);
        }
    }
}

impl Answers {
    pub(crate) fn meet(self: &Arc<Self>, key: Key) -> Met {
        self.meet_at(key, Instant::now())
    }

    fn meet_at(self: &Arc<Self>, key: Key, now: Instant) -> Met {
        let mut kept = self.kept.lock();
        kept.expire(now);
        match kept.states.get(&key) {
            Some(State::UnderWay) => Met::UnderWay,
            Some(State::Answered(answer)) => Met::Answered(answer.clone()),
            None => {
                kept.states.insert(key.clone(), State::UnderWay);
                Met::New(UnderWay {
                    answers: Arc::clone(self),
                    key,
                })
            }
        }
    }
}

impl UnderWay {
    /// Keeps the answer.
    pub(crate) fn answered(self, answer: &[Bytes]) {
        let length: usize = answer.iter().map(Bytes::len).sum();
        if length > ANSWER_BYTES_MAX {
            return;
        }
        // A copy, so that nothing bigger is held by it.
        let answer = vec![Bytes::from(answer.concat())];
        let mut kept = self.answers.kept.lock();
        kept.states
            .insert(self.key.clone(), State::Answered(answer));
        kept.order.push_back((Instant::now(), self.key.clone()));
        if kept.order.len() > KEPT_MAX {
            kept.forget_oldest();
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut kept = self.answers.kept.lock();
        if matches!(kept.states.get(&self.key), Some(State::UnderWay)) {
            kept.states.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(xid: u32) -> Key {
        Key {
            client: "10.0.0.1".parse().unwrap(),
            is_privileged: true,
            credential: Credential::None,
            xid,
            program: 1,
            procedure: 2,
            arguments_bytes: 3,
            digest: 4,
        }
    }

    #[test]
    fn what_was_done_is_not_done_again() {
        let answers = Arc::new(Answers::default());
        let Met::New(first) = answers.meet(key(1)) else {
            panic!("it is new");
        };
        assert!(matches!(answers.meet(key(1)), Met::UnderWay));
        drop(first);
        let Met::New(second) = answers.meet(key(1)) else {
            panic!("it was not answered");
        };
        second.answered(&[Bytes::from_static(b"ab"), Bytes::from_static(b"c")]);
        let Met::Answered(answer) = answers.meet(key(1)) else {
            panic!("it is kept");
        };
        assert_eq!(answer.concat(), b"abc");
        // Of somebody else, or from another kind of port, it is another request.
        let credential = Credential::Sys {
            uid: 0,
            gid: 0,
            groups: Arc::new([]),
        };
        let by_other = Key {
            credential,
            ..key(1)
        };
        let from_other = Key {
            is_privileged: false,
            ..key(1)
        };
        for other in [by_other, from_other] {
            assert!(matches!(answers.meet(other), Met::New(_)));
        }
        for xid in 2..2 + KEPT_MAX as u32 {
            let Met::New(one) = answers.meet(key(xid)) else {
                panic!("it is new");
            };
            one.answered(&[Bytes::new()]);
        }
        assert!(matches!(answers.meet(key(1)), Met::New(_)));
        let lengths = || {
            let kept = answers.kept.lock();
            (kept.states.len(), kept.order.len())
        };
        assert_eq!(lengths(), (KEPT_MAX, KEPT_MAX));
        // After some time the number is of a new request.
        assert!(matches!(answers.meet(key(2)), Met::Answered(_)));
        let later = Instant::now() + KEPT_FOR;
        let met = answers.meet_at(key(2), later);
        assert!(matches!(met, Met::New(_)));
        assert_eq!(lengths(), (1, 0));
    }
}
