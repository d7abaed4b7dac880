//! Loads an NFS server by version 3 over one connection, and tells operations per second: the same
//! client for servers that are to be compared (`bench/nfs.sh`). Requests are put together once and
//! sent again with another number and offset, so that the client costs little.
//!
//! `nfs-perf NFS-ADDRESS MOUNT-ADDRESS EXPORT FILE WHAT SIZE-BYTES QUEUE SECONDS`. WHAT is `fill`
//! (writes the file whole, SIZE-BYTES at a time, without SECONDS), `read`, `random-read`, `write`,
//! `random-write` (both with a COMMIT at the end), `sync-write`, `getattr` or `lookup`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use oracles::nfs::{Client, NFS, ROOT, Words, record};

/// Bytes that `fill` writes.
const FILE_BYTES: u64 = 256 << 20;

type Failure = Box<dyn std::error::Error>;

/// What a run asks for, again and again.
struct Load {
    procedure: u32,
    arguments: Words,
    /// Where in the arguments the offset is.
    offset_at: Option<usize>,
    size_bytes: u64,
    is_random: bool,
    is_read: bool,
}

impl Load {
    fn new(what: &str, root: &[u8], name: &[u8], file: &[u8], size_bytes: u64) -> Option<Self> {
        let handle = Words::new().opaque(file);
        let offset_at = handle.bytes.len();
        let count = size_bytes as u32;
        let noise: Vec<u8> = (0..size_bytes)
            .map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
            .collect();
        let write = |stable| {
            let words = handle.clone().u64(0).u32(count).u32(stable);
            words.opaque(&noise)
        };
        let (procedure, arguments, offset_at) = match what {
            "read" | "random-read" => (6, handle.u64(0).u32(count), Some(offset_at)),
            "fill" | "write" | "random-write" => (7, write(0), Some(offset_at)),
            "sync-write" => (7, write(2), Some(offset_at)),
            "getattr" => (1, handle, None),
            "lookup" => (3, Words::new().opaque(root).opaque(name), None),
            _ => return None,
        };
        Some(Self {
            procedure,
            arguments,
            offset_at,
            size_bytes,
            is_random: what.starts_with("random"),
            is_read: procedure == 6,
        })
    }
}

/// A connection with requests under way.
struct Pipe {
    stream: TcpStream,
    request: Vec<u8>,
    offset_at: Option<usize>,
    answer: Vec<u8>,
    xid: u32,
    sent: u64,
    random: u64,
}

impl Pipe {
    fn new(address: &str, load: &Load) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let request = record(0, NFS, 3, load.procedure, &ROOT, &load.arguments);
        let head = request.len() - load.arguments.bytes.len();
        Ok(Self {
            stream,
            request,
            offset_at: load.offset_at.map(|at| head + at),
            answer: Vec::new(),
            xid: 1,
            sent: 0,
            random: 0x2545_F491_4F6C_DD1D,
        })
    }

    fn send(&mut self, load: &Load) -> std::io::Result<()> {
        self.xid = self.xid.wrapping_add(1);
        self.request[4..8].copy_from_slice(&self.xid.to_be_bytes());
        if let Some(at) = self.offset_at {
            let mut block = self.sent;
            if load.is_random {
                // xorshift64
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                block = self.random;
            }
            let offset = block % (FILE_BYTES / load.size_bytes) * load.size_bytes;
            self.request[at..at + 8].copy_from_slice(&offset.to_be_bytes());
        }
        self.sent += 1;
        self.stream.write_all(&self.request)
    }

    /// Takes an answer, of whichever request.
    fn take(&mut self, load: &Load) -> Result<(), Failure> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let length = (u32::from_be_bytes(mark) & !(1 << 31)) as usize;
        self.answer.resize(length.max(self.answer.len()), 0);
        self.stream.read_exact(&mut self.answer[..length])?;
        // xid, REPLY, MSG_ACCEPTED, a verifier without a body, SUCCESS, NFS3_OK.
        match self.answer.get(24..28) {
            Some([0, 0, 0, 0]) => {}
            status => return Err(format!("the server answers with {status:?}").into()),
        }
        if !load.is_read {
            return Ok(());
        }
        // After the status whether there are attributes, these (84 bytes), and the count of bytes.
        let attributes: usize = match self.answer.get(28..32) {
            Some([0, 0, 0, 0]) => 0,
            _ => 84,
        };
        let count = self.answer.get(32 + attributes..36 + attributes);
        match count == Some(&(load.size_bytes as u32).to_be_bytes()) {
            true => Ok(()),
            false => Err("a read got less than was asked for: fill the file first".into()),
        }
    }
}

fn run(words: &[String]) -> Result<(), Failure> {
    let [nfs, mount, export, name, what, size_bytes, queue, seconds] = words else {
        return Err("see the head of this file for the arguments".into());
    };
    let (size_bytes, queue): (u64, u64) = (size_bytes.parse()?, queue.parse()?);
    let longest = match what.as_str() {
        "fill" => Duration::MAX,
        _ => Duration::from_secs(seconds.parse()?),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (root, file) = runtime.block_on(async {
        let failed = |what: &str, status: u32| Failure::from(format!("{what}: status {status}"));
        let root = Client::connect(mount.parse()?).await.mount(export).await;
        let root = root.map_err(|status| failed("mount", status))?;
        let mut nfs = Client::connect(nfs.parse()?).await;
        let file = match nfs.lookup(&ROOT, &root, name.as_bytes()).await {
            Ok((file, _)) => file,
            Err(_) => {
                let made = nfs.create(&ROOT, &root, name.as_bytes(), 0).await;
                made.map_err(|status| failed("create", status))?
            }
        };
        Ok::<_, Failure>((root, file))
    })?;
    let load = Load::new(what, &root, name.as_bytes(), &file, size_bytes);
    let load = load.ok_or_else(|| format!("what is '{what}'?"))?;
    let mut pipe = Pipe::new(nfs, &load)?;
    let all = match what.as_str() {
        "fill" => FILE_BYTES / size_bytes,
        _ => u64::MAX,
    };
    let begin = Instant::now();
    let mut done = 0;
    while done < pipe.sent || pipe.sent < all && begin.elapsed() < longest {
        let is_over = begin.elapsed() >= longest;
        while pipe.sent - done < queue && pipe.sent < all && !is_over {
            pipe.send(&load)?;
        }
        pipe.take(&load)?;
        done += 1;
    }
    if load.procedure == 7 {
        let mut nfs = runtime.block_on(Client::connect(nfs.parse()?));
        let arguments = Words::new().opaque(&file).u64(0).u32(0);
        let status = runtime.block_on(nfs.nfs(21, &ROOT, arguments)).take32();
        if status != 0 {
            return Err(format!("COMMIT: status {status}").into());
        }
    }
    println!("{:.0}", done as f64 / begin.elapsed().as_secs_f64());
    Ok(())
}

fn main() -> std::process::ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nfs-perf: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
