//! A solid-state disk: controller, channels, dies, a buffer for writes, and the flash translation
//! layer ([`ftl`]) that makes garbage collection cost what it costs.
//!
//! A read occupies the controller, then the die that has the page, then its channel, then the link.
//! A write is complete when it is in the buffer; a page of it leaves the buffer when its die has
//! programmed it. Collection occupies the die on which it happens, so that reads wait for it there.
//! The controller works on for a while after it has answered a command: that bounds operations a
//! second without adding to the latency of one alone.
//!
//! Writes of a part of a page program the whole page. What it leaves out: suspending a program for
//! a read, planes, wear leveling of data at rest, and errors.

mod ftl;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Command, SimOp, transfer_ns};
use ftl::{Ftl, WORKING_BLOCKS, Work};

/// What a solid-state disk is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SsdSpec {
    /// Channels between controller and flash.
    pub channels: u32,
    /// Dies on each.
    pub dies_per_channel: u32,
    /// Bytes of a page: read, programmed and mapped as one.
    pub page_bytes: u32,
    /// Pages of a block, which is erased as one.
    pub pages_per_block: u32,
    /// Flash beyond the disk's size, in thousandths of the size.
    pub spare_permille: u32,
    /// From the flash to a die's register.
    pub read_ns: u64,
    /// From the register to the flash.
    pub program_ns: u64,
    /// Of a block.
    pub erase_ns: u64,
    /// Rate of one channel.
    pub channel_bytes_per_second: u64,
    /// Rate of the interface.
    pub link_bytes_per_second: u64,
    /// From a command's arrival until the controller has begun with it.
    pub command_ns: u64,
    /// How long a read keeps the controller busy in all.
    pub read_busy_ns: u64,
    /// How long a write keeps the controller busy in all.
    pub write_busy_ns: u64,
    /// From a write's last byte until the controller says that it is complete.
    pub write_answer_ns: u64,
    /// Buffer for writes.
    pub buffer_bytes: u64,
}

impl SsdSpec {
    /// Intel X25-E, 64 GB (SSDSA2SH064G1), SLC, SATA 3 Gbit/s.
    ///
    /// | Published | | Source |
    /// |---|---|---|
    /// | sequential read, write | 250 MB/s, 170 MB/s | Intel, as 1 quotes it |
    /// | random 4K reads, 32 deep | 35,000/s | Intel's data sheet, as 2 quotes it |
    /// | random 4K writes | 3,300/s | the same |
    /// | latency of a read, a write | 75 µs, 85 µs | Intel's data sheet 319984, from memory |
    /// | channels | 10 | 3 |
    ///
    /// 1: techreport.com/review/15931 (2008); 2: Wikipedia, "IOPS", table of solid-state devices;
    /// 3: tomshardware.com/reviews/x25-e-ssd-performance,2365-2.html.
    ///
    /// Two dies a channel, 25 % of spare flash and the times of the flash are assumptions: 480 µs
    /// is no program time of SLC (which is about 250 µs) but what makes 170 MB/s of 20 dies. The
    /// flash alone would allow more random writes than the sheet promises; the model puts what is
    /// missing into the time that a write keeps the controller busy.
    pub const INTEL_X25_E_64GB: SsdSpec = SsdSpec {
        channels: 10,
        dies_per_channel: 2,
        page_bytes: 4096,
        pages_per_block: 128,
        spare_permille: 250,
        read_ns: 25_000,
        program_ns: 470_000,
        erase_ns: 1_500_000,
        channel_bytes_per_second: 166_000_000,
        link_bytes_per_second: 256_000_000,
        command_ns: 9_000,
        read_busy_ns: 28_500,
        write_busy_ns: 300_000,
        write_answer_ns: 60_000,
        buffer_bytes: 256 << 10,
    };

    /// Intel X25-M G2, 160 GB (SSDSA2M160G2), MLC of 34 nm, SATA 3 Gbit/s.
    ///
    /// | Published | | Source |
    /// |---|---|---|
    /// | sequential read, write | 250 MB/s, 100 MB/s | Intel, as 1 quotes it |
    /// | random 4K reads, 32 deep | 35,000/s | the same |
    /// | random 4K writes | 8,600/s | the same |
    /// | that these are within 8 GB | | Intel's data sheet 322296, from memory |
    /// | latency of a read, a write | 65 µs, 85 µs | the same, from memory |
    ///
    /// 1: anandtech.com/show/3965, a table of Intel's (2010).
    ///
    /// The spare flash is the difference between 160 GB and 160 GiB. Dies and times of the flash
    /// are assumptions that give the published rates.
    pub const INTEL_X25_M_160GB: SsdSpec = SsdSpec {
        spare_permille: 74,
        read_ns: 18_000,
        program_ns: 800_000,
        erase_ns: 3_000_000,
        command_ns: 6_000,
        write_busy_ns: 116_000,
        ..SsdSpec::INTEL_X25_E_64GB
    };

    pub(super) fn scaled(&self, factor: u32) -> SsdSpec {
        let by = u64::from(factor);
        SsdSpec {
            read_ns: self.read_ns * by,
            program_ns: self.program_ns * by,
            erase_ns: self.erase_ns * by,
            channel_bytes_per_second: self.channel_bytes_per_second / by,
            link_bytes_per_second: self.link_bytes_per_second / by,
            command_ns: self.command_ns * by,
            read_busy_ns: self.read_busy_ns * by,
            write_busy_ns: self.write_busy_ns * by,
            write_answer_ns: self.write_answer_ns * by,
            // Pages under way: a smaller buffer would keep dies idle.
            buffer_bytes: self.buffer_bytes,
            ..self.clone()
        }
    }

    fn dies(&self) -> u64 {
        u64::from(self.channels) * u64::from(self.dies_per_channel)
    }
}

/// What was written to a solid-state disk since it was made.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Wear {
    /// Bytes that the host wrote, in whole pages.
    pub host_bytes: u64,
    /// Bytes that were programmed.
    pub flash_bytes: u64,
    /// Blocks that were erased.
    pub erases: u64,
    /// The most that one block was.
    pub most_erases: u32,
}

impl Wear {
    /// Bytes programmed for each that the host wrote; 1 before it wrote any.
    pub fn amplification(&self) -> f64 {
        if self.host_bytes == 0 {
            return 1.0;
        }
        self.flash_bytes as f64 / self.host_bytes as f64
    }
}

/// A solid-state disk at work.
#[derive(Debug, Clone)]
pub struct Ssd {
    spec: SsdSpec,
    pages: u64,
    ftl: Ftl,
    die_free_ns: Vec<u64>,
    channel_free_ns: Vec<u64>,
    controller_free_ns: u64,
    link_free_ns: u64,
    /// When each page in the buffer is programmed.
    buffered: BinaryHeap<Reverse<u64>>,
    host_pages: u64,
}

impl Ssd {
    /// A disk on which nothing was ever written.
    pub fn new(spec: &SsdSpec, size_bytes: u64) -> Self {
        let page = u64::from(spec.page_bytes);
        let pages = size_bytes.div_ceil(page).max(1);
        let block = u64::from(spec.pages_per_block);
        let spare = pages * u64::from(spec.spare_permille) / 1000;
        let share = |pages: u64| pages.div_ceil(block * spec.dies());
        // A small disk needs at least what collection works with.
        let blocks_per_die = share(pages + spare).max(share(pages) + WORKING_BLOCKS + 2);
        let dies = spec.dies() as usize;
        Ssd {
            pages,
            ftl: Ftl::new(pages, dies, blocks_per_die as u32, spec.pages_per_block),
            die_free_ns: vec![0; dies],
            channel_free_ns: vec![0; spec.channels as usize],
            controller_free_ns: 0,
            link_free_ns: 0,
            buffered: BinaryHeap::new(),
            host_pages: 0,
            spec: spec.clone(),
        }
    }

    pub(super) fn reset(&mut self) {
        self.die_free_ns.fill(0);
        self.channel_free_ns.fill(0);
        self.controller_free_ns = 0;
        self.link_free_ns = 0;
        self.buffered.clear();
    }

    pub(super) fn wear(&self) -> Wear {
        Wear {
            host_bytes: self.host_pages * u64::from(self.spec.page_bytes),
            flash_bytes: (self.host_pages + self.ftl.moves) * u64::from(self.spec.page_bytes),
            erases: self.ftl.erases,
            most_erases: self.ftl.most_erases(),
        }
    }

    /// Memory that the disk's map takes: some bytes for each page that was ever written.
    pub fn map_bytes(&self) -> u64 {
        self.ftl.map_bytes()
    }

    /// When a command is complete.
    pub(super) fn submit(&mut self, now_ns: u64, command: &Command) -> u64 {
        let page = u64::from(self.spec.page_bytes);
        let (offset, bytes) = (command.offset_bytes, command.length_bytes);
        let end = (offset + bytes).div_ceil(page).min(self.pages);
        match command.op {
            SimOp::Read => {
                let begun_ns = self.control(now_ns, self.spec.read_busy_ns);
                self.read(now_ns, begun_ns, offset / page..end, bytes)
            }
            SimOp::Write => {
                let begun_ns = self.control(now_ns, self.spec.write_busy_ns);
                self.write(begun_ns, offset / page..end)
            }
            SimOp::Flush => {
                let last = self.buffered.iter().map(|Reverse(done_ns)| *done_ns).max();
                last.unwrap_or(0).max(now_ns + self.spec.command_ns)
            }
            SimOp::Discard => {
                // A page of which a part is discarded keeps the rest.
                let whole = offset.div_ceil(page)..(offset + bytes) / page;
                let begun_ns = self.control(now_ns, self.spec.read_busy_ns);
                self.ftl.unmap_all(whole.start..whole.end.min(self.pages));
                begun_ns + self.spec.command_ns
            }
        }
    }

    /// The controller takes a command. When it has begun with it.
    fn control(&mut self, now_ns: u64, busy_ns: u64) -> u64 {
        let start_ns = self.controller_free_ns.max(now_ns);
        self.controller_free_ns = start_ns + busy_ns;
        start_ns + self.spec.command_ns
    }

    fn read(&mut self, now_ns: u64, begun_ns: u64, pages: std::ops::Range<u64>, bytes: u64) -> u64 {
        let page_bytes = u64::from(self.spec.page_bytes);
        let channel_ns = transfer_ns(page_bytes, self.spec.channel_bytes_per_second);
        let mut ready_ns = begun_ns;
        for page in pages {
            // Of what was never written the map knows that it is zeros.
            let Some(die) = self.ftl.die_of(page) else {
                continue;
            };
            let sensed_ns = self.die_free_ns[die].max(begun_ns) + self.spec.read_ns;
            self.die_free_ns[die] = sensed_ns;
            // Channel and link are given to each page for its time in the order of commands, but
            // not before its die has it: a page that waits for its die delays no other one.
            let channel = die / self.spec.dies_per_channel as usize;
            let free_ns = self.channel_free_ns[channel].max(now_ns) + channel_ns;
            self.channel_free_ns[channel] = free_ns;
            ready_ns = ready_ns.max(free_ns.max(sensed_ns + channel_ns));
        }
        // The first page is on the link while the others are read.
        let link = self.spec.link_bytes_per_second;
        self.link_free_ns = self.link_free_ns.max(now_ns) + transfer_ns(bytes, link);
        let last_ns = ready_ns + transfer_ns(bytes.min(page_bytes), link);
        last_ns.max(self.link_free_ns)
    }

    fn write(&mut self, begun_ns: u64, pages: std::ops::Range<u64>) -> u64 {
        let page_bytes = u64::from(self.spec.page_bytes);
        let link_ns = transfer_ns(page_bytes, self.spec.link_bytes_per_second);
        let channel_ns = transfer_ns(page_bytes, self.spec.channel_bytes_per_second);
        let room = (self.spec.buffer_bytes / page_bytes).max(1) as usize;
        let mut at_ns = begun_ns;
        for page in pages {
            self.host_pages += 1;
            // As for reads: a page that waits for room in the buffer keeps no other command off
            // the link.
            self.link_free_ns = self.link_free_ns.max(begun_ns) + link_ns;
            at_ns = self.link_free_ns.max(at_ns + link_ns);
            while let Some(&Reverse(done_ns)) = self.buffered.peek() {
                if done_ns > at_ns && self.buffered.len() < room {
                    break;
                }
                at_ns = at_ns.max(done_ns);
                self.buffered.pop();
            }
            let Work { die, moved, erased } = self.ftl.write(page);
            let collection_ns =
                moved * (self.spec.read_ns + self.spec.program_ns) + erased * self.spec.erase_ns;
            let start_ns = self.die_free_ns[die].max(at_ns + channel_ns);
            let done_ns = start_ns + collection_ns + self.spec.program_ns;
            self.die_free_ns[die] = done_ns;
            self.buffered.push(Reverse(done_ns));
        }
        at_ns + self.spec.write_answer_ns
    }
}
