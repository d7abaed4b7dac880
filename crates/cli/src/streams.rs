//! `millpond stream`: looking into streams, as `zstream` does (cmd/zstream).

use std::io::Read;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use dataset::ResumeToken;
use format::stream::{Begin, HeaderKind, Record};
use format::{NvList, NvValue};
use stream::{Start, StreamError, StreamReader};

/// Look into streams.
#[derive(Debug, Parser)]
pub struct Stream {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tell what is in a stream, and verify it
    Dump {
        /// Every record
        #[arg(short)]
        verbose: bool,
        /// A file; without, standard input
        file: Option<std::path::PathBuf>,
    },
    /// Tell what a token says that a receive left
    Token {
        /// As `zfs get receive_resume_token` shows it
        token: String,
    },
}

/// What a token says, a line for each thing.
pub fn token_lines(token: &ResumeToken) -> String {
    lines(&token.list(), 0)
}

fn lines(list: &NvList, depth: usize) -> String {
    let indent = "    ".repeat(depth);
    let mut text = match depth {
        0 => "nvlist version: 0\n".to_owned(),
        _ => format!("{indent}nvlist version: 0\n"),
    };
    for (name, value) in list.iter() {
        let shown = match value {
            NvValue::Boolean => "1".to_owned(),
            NvValue::UInt64(number) => format!("{number:#x}"),
            NvValue::String(text) => text.clone(),
            NvValue::List(list) => format!("\n{}", lines(list, depth + 1).trim_end()),
            NvValue::UInt64Array(numbers) => {
                let all: Vec<String> = numbers.iter().map(|n| format!("{n:#x}")).collect();
                all.join(" ")
            }
            other => format!("{other:?}"),
        };
        text.push_str(&format!("{indent}\t{name} = {shown}\n"));
    }
    text
}

impl Stream {
    /// Prints.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Token { token } => {
                let Some(token) = ResumeToken::decode(&token) else {
                    bail!("the token is corrupt; copy it whole");
                };
                print!("{}", token_lines(&token));
                Ok(())
            }
            Command::Dump { verbose, file } => dump(verbose, file),
        }
    }
}

/// Records of one kind.
#[derive(Default, Clone, Copy)]
struct Count {
    records: u64,
    bytes: u64,
}

const KINDS: [&str; 11] = [
    "BEGIN",
    "OBJECT",
    "FREEOBJECTS",
    "WRITE",
    "FREE",
    "END",
    "WRITE_BYREF",
    "SPILL",
    "WRITE_EMBEDDED",
    "OBJECT_RANGE",
    "REDACT",
];

fn kind(record: &Record) -> usize {
    match record {
        Record::Begin(_) => 0,
        Record::Object(_) => 1,
        Record::FreeObjects { .. } => 2,
        Record::Write(_) => 3,
        Record::Free(_) => 4,
        Record::End { .. } => 5,
        Record::WriteByRef => 6,
        Record::Spill(_) => 7,
        Record::WriteEmbedded(_) => 8,
        Record::ObjectRange(_) => 9,
        Record::Redact(_) => 10,
    }
}

fn dump(is_verbose: bool, file: Option<std::path::PathBuf>) -> anyhow::Result<()> {
    let input: Box<dyn Read + Send> = match &file {
        Some(path) => Box::new(
            std::fs::File::open(path)
                .with_context(|| format!("{} cannot be opened", path.display()))?,
        ),
        None => Box::new(std::io::stdin()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(dump_all(is_verbose, Blocking(input)))
}

/// A file as what is read by polling: it never has to be waited for elsewhere.
struct Blocking(Box<dyn Read + Send>);

impl tokio::io::AsyncRead for Blocking {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let read = self.0.read(buffer.initialize_unfilled());
        std::task::Poll::Ready(read.map(|count| buffer.advance(count)))
    }
}

async fn dump_all(is_verbose: bool, input: Blocking) -> anyhow::Result<()> {
    let mut reader = StreamReader::new(input);
    let mut counts = [Count::default(); KINDS.len()];
    let mut is_first = true;
    loop {
        match reader.start().await? {
            Start::Nothing if is_first => return Err(StreamError::NoStream.into()),
            Start::Nothing => break,
            Start::End => counts[5].records += 1,
            Start::Begin(begin, list) => {
                counts[0].records += 1;
                counts[0].bytes += u64::from(begin.payload_bytes);
                print!("{}", begin_words(&begin, &list));
                loop {
                    let piece = reader.next().await?;
                    let count = &mut counts[kind(&piece.record)];
                    count.records += 1;
                    count.bytes += piece.payload.len() as u64;
                    if is_verbose {
                        println!("{}", record_words(&piece.record));
                    }
                    if let Record::End { checksum, .. } = piece.record {
                        let words = checksum.map(|word| format!("{word:x}"));
                        println!("END checksum = {}", words.join("/"));
                        break;
                    }
                }
            }
        }
        is_first = false;
    }
    println!("SUMMARY:");
    for (name, count) in KINDS.iter().zip(counts) {
        println!(
            "\tTotal DRR_{name} records = {} ({} bytes)",
            count.records, count.bytes
        );
    }
    println!("\tTotal stream length = {}", reader.total_bytes());
    Ok(())
}

fn begin_words(begin: &Begin, list: &NvList) -> String {
    let header = match begin.header {
        HeaderKind::Snapshot => 1,
        HeaderKind::Compound => 2,
        HeaderKind::Unknown(code) => code,
    };
    let mut text = format!(
        "BEGIN record\n\thdrtype = {header}\n\tfeatures = {:x}\n\tmagic = {:x}\n\tcreation_time = \
         {:x}\n\ttype = {}\n\tflags = 0x{:x}\n\ttoguid = {:x}\n\tfromguid = {:x}\n\ttoname = {}\n\
         \tpayloadlen = {}\n",
        begin.features.0,
        format::stream::STREAM_MAGIC,
        begin.creation_time_seconds,
        begin.objset_kind,
        begin.flags,
        begin.to_guid.get(),
        begin.from_guid.get(),
        begin.to_name,
        begin.payload_bytes,
    );
    if !list.is_empty() {
        text.push_str(&lines(list, 0));
    }
    text
}

fn record_words(record: &Record) -> String {
    let name = KINDS[kind(record)];
    match record {
        Record::Object(object) => format!(
            "{name} object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {}",
            object.object,
            object.object_type,
            object.bonus_type,
            object.block_bytes,
            object.bonus_bytes,
            object.slots
        ),
        Record::FreeObjects { first, count, .. } => {
            format!("{name} firstobj = {first} numobjs = {count}")
        }
        Record::Write(write) => format!(
            "{name} object = {} type = {} offset = {} logical_size = {} compressed_size = {}",
            write.object,
            write.object_type,
            write.offset_bytes,
            write.logical_bytes,
            write.compressed_bytes
        ),
        Record::Free(range) | Record::Redact(range) => format!(
            "{name} object = {} offset = {} length = {}",
            range.object,
            range.offset_bytes,
            range.length_bytes.cast_signed()
        ),
        Record::Spill(spill) => format!(
            "{name} object = {} length = {} flags = 0x{:x}",
            spill.object, spill.length_bytes, spill.flags
        ),
        Record::WriteEmbedded(write) => format!(
            "{name} object = {} offset = {} length = {} comp = {} lsize = {} psize = {}",
            write.object,
            write.offset_bytes,
            write.length_bytes,
            write.compression,
            write.logical_bytes,
            write.physical_bytes
        ),
        Record::ObjectRange(range) => {
            format!(
                "{name} firstobj = {} numslots = {}",
                range.first, range.slots
            )
        }
        _ => name.to_owned(),
    }
}
