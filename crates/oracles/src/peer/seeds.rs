//! The seeds of the spl module's random numbers, which become guids of pools and devices.
//!
//! The module takes its seeds when it is loaded (`spl_random_init`, module/os/linux/spl/
//! spl-generic.c), which is before the state of the machine is saved. Machines that begin there
//! would all draw the same numbers, so the host writes other seeds into the memory of each before
//! it goes on. QEMU's stub for debuggers reads and writes memory by its virtual addresses
//! (<https://sourceware.org/gdb/current/onlinedocs/gdb.html/Packets.html>).

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::machine::{ANSWER_TIMEOUT, Machine};
use super::state::CPUS;

/// Bytes of an address.
const ADDRESS_BYTES: usize = 8;
/// Bytes of the seeds of a CPU: two words of 64 bits.
const SEED_BYTES: usize = 16;

/// Where the seeds are: virtual addresses in the machine's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    /// Of `spl_pseudo_entropy`, which has the address of the seeds within the data of a CPU.
    entropy: u64,
    /// Of `__per_cpu_offset`, which has the address of the data of each CPU.
    offsets: u64,
}

impl Seeds {
    /// The two addresses in hexadecimal digits, as the machine tells them; `None` if it does not.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let mut address = || u64::from_str_radix(words.next()?, 16).ok();
        let (entropy, offsets) = (address()?, address()?);
        (entropy != 0 && offsets != 0).then_some(Self { entropy, offsets })
    }

    /// Gives each CPU of a machine that is stopped seeds of its own.
    ///
    /// # Panics
    /// When QEMU does not read or write the machine's memory.
    pub fn renew(self, machine: &Machine) {
        let mut memory = Memory::of(&machine.debugger);
        let entropy = memory.address(self.entropy);
        let mut noise = File::open("/dev/urandom").expect("random numbers");
        for cpu in 0..CPUS {
            let offset = memory.address(self.offsets + (cpu * ADDRESS_BYTES) as u64);
            let mut seed = [0; SEED_BYTES];
            noise.read_exact(&mut seed).expect("random numbers");
            memory.write(entropy.wrapping_add(offset), &seed);
        }
    }
}

/// The memory of a machine, by virtual addresses of its kernel.
struct Memory {
    stub: BufReader<UnixStream>,
}

impl Memory {
    fn of(socket: &Path) -> Self {
        let stub = UnixStream::connect(socket).expect("QEMU's stub for debuggers");
        stub.set_read_timeout(Some(ANSWER_TIMEOUT))
            .expect("a socket");
        Self {
            stub: BufReader::new(stub),
        }
    }

    /// Reads an address, little-endian.
    fn address(&mut self, at: u64) -> u64 {
        let answer = self.ask(&format!("m{at:x},{ADDRESS_BYTES:x}"));
        let value = u64::from_str_radix(&answer, 16).ok();
        let value = value.filter(|_| answer.len() == 2 * ADDRESS_BYTES);
        value
            .unwrap_or_else(|| panic!("the peer's memory at {at:x} is not read: {answer}"))
            .swap_bytes()
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let answer = self.ask(&format!("M{at:x},{:x}:{digits}", bytes.len()));
        assert_eq!(answer, "OK", "the peer's memory at {at:x} is not written");
    }

    /// Sends a packet (`$DATA#SUM`), acknowledges the one that answers, and returns its data.
    fn ask(&mut self, data: &str) -> String {
        let sum = data.bytes().fold(0u8, u8::wrapping_add);
        let sent = write!(self.stub.get_mut(), "${data}#{sum:02x}");
        sent.expect("QEMU's stub for debuggers takes a packet");
        let answer: Vec<u8> = (self.stub.by_ref().bytes())
            .map(|byte| byte.expect("an answer of QEMU's stub for debuggers"))
            .skip_while(|&byte| byte != b'$')
            .skip(1)
            .take_while(|&byte| byte != b'#')
            .collect();
        let mut sum = [0; 2];
        let stub = &mut self.stub;
        let read = stub.read_exact(&mut sum);
        read.and_then(|()| stub.get_mut().write_all(b"+"))
            .expect("QEMU's stub for debuggers");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_or_are_not() {
        let seeds = Seeds::parse(" ffffffffc069c688 ffffffff82345678\n").expect("addresses");
        assert_eq!(seeds.entropy, 0xffff_ffff_c069_c688);
        assert_eq!(seeds.offsets, 0xffff_ffff_8234_5678);
        for text in ["", "ffffffffc069c688", "0 0", "x y"] {
            assert_eq!(Seeds::parse(text), None, "{text}");
        }
    }
}
