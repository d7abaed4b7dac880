//! How long a packet may be on the way to an address, found by pings that may not be cut.
//!
//! An ICMP echo request (RFC 792, RFC 4443) is sent with "don't fragment" set, whatever the kernel
//! believes of the path (`IP_PMTUDISC_PROBE`, ip(7)). Its answer is as long, but hosts may cut that
//! (Linux does), so pings tell of the way there; of the way back, reads tell. A link that loses
//! what is too long without a word, as switches do, is found as well as a router that says so
//! (RFC 1191). Ordinary users have sockets for pings where `net.ipv4.ping_group_range` lets them
//! (icmp(7)); root has raw ones.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, Timeout, ip_mtu, ipv6_mtu, set_ip_mtu_discover,
    set_ipv6_mtu_discover, set_socket_timeout,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send,
    socket_with,
};

/// An answer that takes longer does not count. What is measured is a storage network.
const PATIENCE: Duration = Duration::from_millis(400);
/// So often a ping is sent again that is not answered.
const TRIES: u32 = 3;
/// Every path carries so much (RFC 791: IPv4 hosts take 576 bytes; RFC 8200 section 5).
const LEAST_BYTES_V4: u32 = 576;
const LEAST_BYTES_V6: u32 = 1280;
/// Header of an echo request, and of IP.
const ICMP_BYTES: u32 = 8;
const IPV4_BYTES: u32 = 20;
const IPV6_BYTES: u32 = 40;
/// The longest packet of all.
const PACKET_BYTES_MAX: u32 = 65535;

/// What is known of a path's longest packet, in bytes with IP's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathMtu {
    /// Pings of this length are answered, and none that are longer.
    Measured(u32),
    /// Nobody answers pings, or this user may send none.
    Unknown(WhyUnknown),
}

/// Why nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyUnknown {
    /// Not even the shortest ping is answered.
    Silent,
    /// This user may not ping.
    MayNot,
}

/// The longest packet that this end of a connection would send, by what the kernel knows of its own
/// link and of the path (`IP_MTU`, ip(7)), in bytes.
pub fn of_connection(socket: &impl AsFd, peer: IpAddr) -> Option<u32> {
    match peer {
        IpAddr::V4(_) => ip_mtu(socket).ok(),
        IpAddr::V6(_) => ipv6_mtu(socket).ok(),
    }
}

/// The longest packet that the link takes by which an address is reached, in bytes with IP's
/// header. What the kernel has learned of the path (`IP_MTU` would tell that) does not count.
///
/// It is the longest that a datagram socket accepts, which is told to wait for more (`MSG_MORE`,
/// udp(7)) and is closed: nothing is sent.
pub fn of_link(peer: IpAddr) -> Option<u32> {
    let accepts = |length| accepts(peer, length).unwrap_or(false);
    match longest(least_bytes(peer), PACKET_BYTES_MAX, accepts) {
        PathMtu::Measured(bytes) => Some(bytes),
        PathMtu::Unknown(_) => None,
    }
}

/// Whether a datagram of so many bytes, with the headers, goes into one packet to an address.
fn accepts(peer: IpAddr, length: u32) -> std::io::Result<bool> {
    const UDP_BYTES: u32 = 8;
    /// The port of the discard service (RFC 863), though nothing goes there.
    const DISCARD: u16 = 9;
    let (any, headers) = match peer {
        IpAddr::V4(_) => (IpAddr::from([0; 4]), IPV4_BYTES + UDP_BYTES),
        IpAddr::V6(_) => (IpAddr::from([0; 16]), IPV6_BYTES + UDP_BYTES),
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    is_never_cut(&socket, peer)?;
    socket.connect((peer, DISCARD))?;
    let data = vec![0; length.saturating_sub(headers) as usize];
    match send(&socket, &data, SendFlags::MORE) {
        Ok(_) => Ok(true),
        Err(Errno::MSGSIZE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Has packets of a socket sent as they are, or not at all.
fn is_never_cut(socket: &impl AsFd, peer: IpAddr) -> rustix::io::Result<()> {
    match peer {
        IpAddr::V4(_) => set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::PROBE),
        IpAddr::V6(_) => set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::PROBE),
    }
}

fn least_bytes(peer: IpAddr) -> u32 {
    match peer {
        IpAddr::V4(_) => LEAST_BYTES_V4,
        IpAddr::V6(_) => LEAST_BYTES_V6,
    }
}

/// Pings an address with packets of `link` bytes and fewer, until it is known which are the longest
/// that get there. Blocks for some seconds at most.
pub fn of_path(peer: IpAddr, link_bytes: u32) -> PathMtu {
    let Ok(pinger) = Pinger::new(peer) else {
        return PathMtu::Unknown(WhyUnknown::MayNot);
    };
    longest(least_bytes(peer).min(link_bytes), link_bytes, |length| {
        pinger.comes_back(length)
    })
}

/// The longest length from `least` to `most` that comes back, where all that are shorter do.
fn longest(least: u32, most: u32, mut comes_back: impl FnMut(u32) -> bool) -> PathMtu {
    /// Ethernet without jumbo frames, which a path that is shorter than its link mostly is.
    const ETHERNET_BYTES: u32 = 1500;
    if comes_back(most) {
        return PathMtu::Measured(most);
    }
    if !comes_back(least) {
        return PathMtu::Unknown(WhyUnknown::Silent);
    }
    let (mut fits, mut too_long) = (least, most);
    for guess in [ETHERNET_BYTES, ETHERNET_BYTES + 1] {
        if fits < guess && guess < too_long {
            match comes_back(guess) {
                true => fits = guess,
                false => too_long = guess,
            }
        }
    }
    while too_long - fits > 1 {
        let middle = fits + (too_long - fits) / 2;
        match comes_back(middle) {
            true => fits = middle,
            false => too_long = middle,
        }
    }
    PathMtu::Measured(fits)
}

/// A socket for pings to one address.
struct Pinger {
    socket: OwnedFd,
    peer: IpAddr,
    /// The kernel hands over whole packets, with IP's header, and takes the checksum as it is.
    is_raw: bool,
    identifier: u16,
}

impl Pinger {
    fn new(peer: IpAddr) -> rustix::io::Result<Self> {
        let (family, protocol) = match peer {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let open = |kind| socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol));
        let (socket, is_raw) = match open(SocketType::DGRAM) {
            Ok(socket) => (socket, false),
            Err(_) => (open(SocketType::RAW)?, true),
        };
        is_never_cut(&socket, peer)?;
        connect(&socket, &SocketAddr::new(peer, 0))?;
        Ok(Self {
            socket,
            peer,
            is_raw,
            identifier: std::process::id() as u16,
        })
    }

    /// Whether a packet of so many bytes is answered by one as long.
    fn comes_back(&self, length: u32) -> bool {
        (0..TRIES).any(|number| self.is_answered(length, (length << 2 | number) as u16))
    }

    fn is_answered(&self, length: u32, number: u16) -> bool {
        let request = self.request(length, number);
        match send(&self.socket, &request, SendFlags::empty()) {
            Ok(_) => {}
            // That an earlier one was too long is told with the next call.
            Err(_) if send(&self.socket, &request, SendFlags::empty()).is_ok() => {}
            Err(_) => return false,
        }
        let until = Instant::now() + PATIENCE;
        let mut packet = vec![0; PACKET_BYTES_MAX as usize];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // No time at all would mean to wait for good.
            if left.is_zero()
                || set_socket_timeout(&self.socket, Timeout::Recv, Some(left)).is_err()
            {
                return false;
            }
            match recv(&self.socket, &mut packet[..], RecvFlags::empty()) {
                Ok((_, came)) => {
                    let packet = packet.get(..came).unwrap_or_default();
                    if self.is_answer(packet, &request) {
                        return true;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// An echo request that makes a packet of so many bytes.
    fn request(&self, length: u32, number: u16) -> Vec<u8> {
        let (kind, ip) = match self.peer {
            IpAddr::V4(_) => (8, IPV4_BYTES),
            IpAddr::V6(_) => (128, IPV6_BYTES),
        };
        let mut request = vec![0xa5; length.saturating_sub(ip).max(ICMP_BYTES) as usize];
        request[..4].copy_from_slice(&[kind, 0, 0, 0]);
        request[4..6].copy_from_slice(&self.identifier.to_be_bytes());
        request[6..8].copy_from_slice(&number.to_be_bytes());
        // For IPv6, and sockets for pings, the kernel does it.
        let sum = checksum(&request);
        request[2..4].copy_from_slice(&sum.to_be_bytes());
        request
    }

    /// Whether a packet answers a request: by its number and length, and with raw sockets, which
    /// get the answers to all, by its identifier.
    fn is_answer(&self, packet: &[u8], request: &[u8]) -> bool {
        let (kind, message) = match self.peer {
            IpAddr::V4(_) if self.is_raw => {
                let header = packet
                    .first()
                    .map_or(0, |first| usize::from(first & 0x0f) * 4);
                (0, packet.get(header..).unwrap_or_default())
            }
            IpAddr::V4(_) => (0, packet),
            IpAddr::V6(_) => (129, packet),
        };
        message.len() == request.len()
            && message[0] == kind
            && message[6..] == request[6..]
            && (!self.is_raw || message[4..6] == request[4..6])
    }
}

/// The sum of 16-bit words in ones' complement (RFC 1071), of a message whose own is zero.
fn checksum(message: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in message.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_that_comes_back_is_found() {
        for real in [576, 577, 1280, 1499, 1500, 1501, 4000, 8999, 9000] {
            let mut asked = 0;
            let found = longest(576, 9000, |length| {
                asked += 1;
                length <= real
            });
            assert_eq!(found, PathMtu::Measured(real));
            assert!(asked <= 18, "{asked} pings for {real}");
        }
        let silent = longest(576, 9000, |_| false);
        assert_eq!(silent, PathMtu::Unknown(WhyUnknown::Silent));
    }

    /// The example of RFC 1071 section 3: the words 0001, f203, f4f5, f6f7 sum to ddf2.
    #[test]
    fn sums_are_those_of_the_standard() {
        let message = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&message), !0xddf2);
        assert_eq!(checksum(&[0x12]), !0x1200);
    }

    #[test]
    fn this_host_takes_what_its_own_link_takes() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let link = of_link(here).expect("a loopback");
        assert!(link >= 1500, "{link}");
        match of_path(here, link) {
            PathMtu::Measured(bytes) => assert_eq!(bytes, link),
            PathMtu::Unknown(why) => assert_eq!(why, WhyUnknown::MayNot),
        }
    }
}
