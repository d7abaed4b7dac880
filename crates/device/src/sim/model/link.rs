//! A network link: one direction of it.

use super::transfer_ns;

/// What a link does to a message, one direction. Both directions of a full-duplex link are two.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSpec {
    /// Bits a second on the wire.
    pub bits_per_second: u64,
    /// Bytes of a message in one frame.
    pub payload_bytes: u32,
    /// Bytes around them on the wire: preamble, headers, checksum, gap.
    pub overhead_bytes: u32,
    /// From the last bit sent until the message is in the other's hands: cable, switch, interrupt,
    /// protocol stack.
    pub latency_ns: u64,
}

impl LinkSpec {
    /// Gigabit Ethernet with frames of 1,500 bytes and TCP with timestamps: 1,448 bytes of data in
    /// each frame, and 52 bytes of TCP and IP, 18 of Ethernet, 8 of preamble and 12 of gap around
    /// them (IEEE 802.3; RFC 7323 appendix A for the 12 bytes of timestamps): 94.1 % of 1 Gbit/s,
    /// the 941 Mbit/s that iperf shows everywhere.
    ///
    /// The latency is an assumption: 30 µs each way is what a switch and two hosts without
    /// interrupt moderation take (a ping of 60 to 100 µs).
    pub const GIGABIT: LinkSpec = LinkSpec {
        bits_per_second: 1_000_000_000,
        payload_bytes: 1448,
        overhead_bytes: 90,
        latency_ns: 30_000,
    };

    /// The same with frames of 9,000 bytes (jumbo frames, no standard).
    pub const GIGABIT_JUMBO: LinkSpec = LinkSpec {
        payload_bytes: 8948,
        ..LinkSpec::GIGABIT
    };

    /// The same link `factor` times slower.
    #[must_use]
    pub fn scaled(&self, factor: u32) -> LinkSpec {
        LinkSpec {
            bits_per_second: self.bits_per_second / u64::from(factor),
            latency_ns: self.latency_ns * u64::from(factor),
            ..self.clone()
        }
    }

    /// Bytes on the wire for a message of `bytes`; an empty one takes a frame as well.
    pub fn wire_bytes(&self, bytes: u64) -> u64 {
        let frames = bytes.div_ceil(u64::from(self.payload_bytes)).max(1);
        bytes + frames * u64::from(self.overhead_bytes)
    }
}

/// One direction of a link at work: messages go one after the other.
#[derive(Debug, Clone)]
pub struct Link {
    spec: LinkSpec,
    free_ns: u64,
    sent_bytes: u64,
}

impl Link {
    /// An idle link.
    pub fn new(spec: &LinkSpec) -> Self {
        Link {
            spec: spec.clone(),
            free_ns: 0,
            sent_bytes: 0,
        }
    }

    /// Sends a message. When it has arrived.
    pub fn send(&mut self, now_ns: u64, bytes: u64) -> u64 {
        let wire_bytes = self.spec.wire_bytes(bytes);
        self.sent_bytes += wire_bytes;
        let start_ns = self.free_ns.max(now_ns);
        self.free_ns = start_ns + transfer_ns(wire_bytes * 8, self.spec.bits_per_second);
        self.free_ns + self.spec.latency_ns
    }

    /// Bytes that went over the wire.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published: 941 Mbit/s of TCP data with frames of 1,500 bytes, 990 with 9,000.
    #[test]
    fn a_stream_has_the_rate_that_is_known_of_gigabit_ethernet() {
        for (spec, published) in [(LinkSpec::GIGABIT, 941.0), (LinkSpec::GIGABIT_JUMBO, 990.0)] {
            let mut link = Link::new(&spec);
            let message = 1 << 20;
            let last_ns = (0..1000).map(|_| link.send(0, message)).last().unwrap();
            let megabits = 1000.0 * message as f64 * 8.0 / (last_ns as f64 / 1000.0);
            assert!(
                (megabits / published - 1.0_f64).abs() < 0.01,
                "{megabits} Mbit/s"
            );
        }
    }

    #[test]
    fn a_small_message_alone_takes_its_latency_and_one_after_another_waits() {
        let mut link = Link::new(&LinkSpec::GIGABIT);
        let alone = link.send(1_000_000, 48) - 1_000_000;
        assert_eq!(alone, 30_000 + (48 + 90) * 8);
        let (first, second) = (link.send(2_000_000, 4096), link.send(2_000_000, 4096));
        assert_eq!(second - first, (4096 + 3 * 90) * 8);
        // A link that is slower by a factor takes that much longer.
        let mut slow = Link::new(&LinkSpec::GIGABIT.scaled(16));
        assert_eq!(slow.send(0, 48), 16 * alone);
    }
}
