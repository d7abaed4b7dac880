//! Calls to an NFS server over a socket that may break, and what they answer.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use oracles::nfs::{ROOT, Words, answer, record};

/// How long an answer may take: what takes longer never comes.
const ANSWER: Duration = Duration::from_secs(120);

/// How long a server may say that it is asked too early.
const LATER: Duration = Duration::from_secs(120);

/// `NFS3ERR_JUKEBOX` and `NFS4ERR_DELAY`, and `NFS4ERR_GRACE`: nothing was done, ask again.
const ASK_AGAIN: [u32; 2] = [10008, 10013];

/// A connection.
pub struct Calls {
    stream: TcpStream,
    xid: u32,
}

pub fn status(number: u32) -> io::Error {
    io::Error::other(format!("status {number}"))
}

impl Calls {
    pub fn connect(port: u16) -> io::Result<Self> {
        // Requests of another one with the same number would be taken for repeats.
        static NEXT: AtomicU32 = AtomicU32::new(1 << 16);
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        let xid = NEXT.fetch_add(1 << 16, Ordering::Relaxed);
        Ok(Self { stream, xid })
    }

    /// Calls; what comes after the head of a reply that was accepted.
    pub fn call(&mut self, which: (u32, u32, u32), args: &Words) -> io::Result<Words> {
        self.xid += 1;
        let (program, version, procedure) = which;
        let record = record(self.xid, program, version, procedure, &ROOT, args);
        self.stream.write_all(&record)?;
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let mut bytes = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        self.stream.read_exact(&mut bytes)?;
        let (xid, mut reply) = answer(bytes);
        if xid != self.xid || [(); 4].map(|()| reply.take32()) != [0; 4] {
            return Err(io::Error::other("a reply to something else, or none"));
        }
        Ok(reply)
    }
}

/// Asks until the server does not want to be asked again; the status, and what follows it.
pub fn patiently(mut ask: impl FnMut() -> io::Result<(u32, Words)>) -> io::Result<(u32, Words)> {
    let begin = Instant::now();
    loop {
        let (status, reply) = ask()?;
        if !ASK_AGAIN.contains(&status) || begin.elapsed() > LATER {
            return Ok((status, reply));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
