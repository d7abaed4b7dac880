//! An initiator that writes to a volume, and knows what each of its units holds.
//!
//! What is on stable storage are writes with FUA, and all writes before SYNCHRONIZE CACHE.

use std::io;

use sim::rng::Rng;

use super::gate::Client;
use crate::initiator::{FORCE_UNIT_ACCESS, Initiator, READ, WRITE, blocks};

/// What is written at once, or not at all: 4 KiB, in logical blocks and bytes.
const UNIT_BLOCKS: u32 = 8;
const UNIT_BYTES: usize = 4096;

/// Units of the volume that are used.
pub const UNITS: usize = 256;

/// Most units of one command.
const COUNT_MAX: u64 = 16;

/// SYNCHRONIZE CACHE (10) of the whole unit.
const SYNCHRONIZE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// What a unit may hold: seeds, of which the first one is on stable storage and the last one is
/// read now. Zero stands for zeros.
type Unit = Vec<u64>;

/// Content that a seed stands for.
pub fn unit(seed: u64) -> Vec<u8> {
    match seed {
        0 => vec![0; UNIT_BYTES],
        seed => {
            let mut rng = Rng::new(seed);
            let mut bytes = rng.content(UNIT_BYTES);
            // So that no two are alike.
            bytes[..8].copy_from_slice(&seed.to_le_bytes());
            bytes
        }
    }
}

/// The initiator.
pub struct Disk {
    rng: Rng,
    portal: String,
    iqn: String,
    session: Option<Initiator>,
    units: Vec<Unit>,
    /// What there may be instead: a rollback may have happened.
    pub other: Option<Vec<u64>>,
    pub story: Vec<String>,
}

impl Disk {
    pub fn new(rng: Rng, port: u16, iqn: String) -> Self {
        Self {
            rng,
            portal: format!("127.0.0.1:{port}"),
            iqn,
            session: None,
            units: vec![vec![0]; UNITS],
            other: None,
            story: Vec::new(),
        }
    }

    fn tell(&mut self, words: String) {
        self.story.push(words);
        if self.story.len() > 40 {
            self.story.remove(0);
        }
    }

    /// What there is now.
    pub fn snapshot(&self) -> Vec<u64> {
        let units = self.units.iter();
        units.map(|unit| *unit.last().expect("a state")).collect()
    }

    /// What is there has become another one.
    pub fn becomes(&mut self, units: &[u64]) {
        self.units = units.iter().map(|seed| vec![*seed]).collect();
        self.other = None;
    }

    fn command(&mut self, cdb: &[u8], read_bytes: usize, data: &[u8]) -> io::Result<Vec<u8>> {
        let session = self.session.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let answer = session.command(cdb, read_bytes as u32, data)?;
        match answer.status {
            0 => Ok(answer.data),
            status => Err(io::Error::other(format!(
                "status {status}, {:x?}",
                answer.data
            ))),
        }
    }

    fn write(&mut self, first: usize, count: usize, is_stable: bool) -> io::Result<()> {
        let seeds: Vec<u64> = (0..count).map(|_| self.rng.next_u64() | 1).collect();
        let data: Vec<u8> = seeds.iter().flat_map(|seed| unit(*seed)).collect();
        // Until it is answered it may be there or not.
        for (unit, seed) in self.units[first..first + count].iter_mut().zip(&seeds) {
            unit.push(*seed);
        }
        let flags = if is_stable { FORCE_UNIT_ACCESS } else { 0 };
        let blocks = blocks(
            WRITE,
            flags,
            first as u32 * UNIT_BLOCKS,
            (count as u32 * UNIT_BLOCKS) as u16,
        );
        self.tell(format!("write {first} {count}, stable: {is_stable}"));
        self.command(&blocks, 0, &data)?;
        if is_stable {
            for unit in &mut self.units[first..first + count] {
                unit.drain(..unit.len() - 1);
            }
        }
        Ok(())
    }

    fn synchronize(&mut self) -> io::Result<()> {
        self.tell("synchronize cache".to_owned());
        self.command(&SYNCHRONIZE, 0, &[])?;
        for unit in &mut self.units {
            unit.drain(..unit.len() - 1);
        }
        Ok(())
    }

    fn read(&mut self, first: usize, count: usize) -> io::Result<Vec<u8>> {
        let (lba, blocks_count) = (first as u32 * UNIT_BLOCKS, count as u32 * UNIT_BLOCKS);
        let cdb = blocks(READ, 0, lba, blocks_count as u16);
        self.command(&cdb, count * UNIT_BYTES, &[])
    }

    /// Whether these units hold what was last written.
    fn compare(&self, first: usize, data: &[u8]) -> Result<(), String> {
        let units = self.units[first..].iter().zip(data.chunks(UNIT_BYTES));
        for (at, (states, found)) in units.enumerate() {
            if unit(*states.last().expect("a state")) != found {
                return Err(format!("unit {} is {}", first + at, which(states, found)));
            }
        }
        Ok(())
    }

    /// What there is, if it may be.
    fn settle(units: &[Unit], data: &[u8]) -> Result<Vec<u64>, String> {
        let mut settled = Vec::new();
        for (at, (states, found)) in units.iter().zip(data.chunks(UNIT_BYTES)).enumerate() {
            let seed = states.iter().find(|seed| unit(**seed) == found);
            let seed = seed.ok_or_else(|| format!("unit {at} is {}", which(states, found)))?;
            settled.push(*seed);
        }
        Ok(settled)
    }
}

/// Which of its states a unit has.
fn which(states: &[u64], found: &[u8]) -> String {
    match states.iter().rposition(|seed| unit(*seed) == found) {
        Some(place) => format!("as in state {place} of {}", states.len()),
        None => format!("as in none of {} states ({:x?})", states.len(), &found[..8]),
    }
}

impl Client for Disk {
    fn name(&self) -> String {
        "the initiator".to_owned()
    }

    fn operate(&mut self) -> io::Result<Result<(), String>> {
        let first = self.rng.below(UNITS as u64);
        let count = 1 + self.rng.below(COUNT_MAX.min(UNITS as u64 - first)) as usize;
        let first = first as usize;
        let result = match self.rng.below(100) {
            0..35 => self.write(first, count, true).map(Ok),
            35..70 => self.write(first, count, false).map(Ok),
            70..80 => self.synchronize().map(Ok),
            _ => self
                .read(first, count)
                .map(|data| self.compare(first, &data)),
        };
        if let Err(error) = &result {
            self.tell(format!("  {error}"));
        }
        result
    }

    fn recover(&mut self) -> io::Result<Result<(), String>> {
        self.session = None;
        self.session = Some(Initiator::log_in(&self.portal, &self.iqn, 1)?);
        self.tell("connected anew".to_owned());
        let mut data = Vec::new();
        for first in (0..UNITS).step_by(16) {
            data.extend(self.read(first, 16)?);
        }
        let mut settled = Self::settle(&self.units, &data);
        if let (Err(why), Some(other)) = (&settled, &self.other) {
            let units: Vec<_> = other.iter().map(|seed| vec![*seed]).collect();
            let second = Self::settle(&units, &data);
            settled = second.map_err(|other| format!("{why}; {other}"));
        }
        // Where the server went on it may be in memory alone, and go with the next kill.
        self.command(&SYNCHRONIZE, 0, &[])?;
        Ok(settled.map(|units| self.becomes(&units)))
    }

    fn check(&mut self) -> io::Result<Result<(), String>> {
        for first in (0..UNITS).step_by(16) {
            let data = self.read(first, 16)?;
            if let Err(why) = self.compare(first, &data) {
                return Ok(Err(why));
            }
        }
        Ok(Ok(()))
    }
}
