//! Where programs are: the portmapper's protocol, version 2 (RFC 1833 section 3), and GETADDR of
//! versions 3 and 4 (section 2). All programs of this server are on its one port, by TCP, and the
//! status monitor by UDP as well; nobody registers others here.

use std::net::SocketAddr;

use bytes::Bytes;

use crate::rpc::Outcome;
use crate::xdr::{Reader, Result, Writer};
use crate::{mount, nlm, v3, v4};

/// The program's number.
pub(crate) const PROGRAM: u32 = 100_000;
/// The lowest version.
pub(crate) const VERSION_MIN: u32 = 2;
/// The highest version.
pub(crate) const VERSION_MAX: u32 = 4;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const TEXT_BYTES_MAX: u32 = 256;

/// Programs and versions that there are.
const PROGRAMS: [(u32, u32); 5] = [
    (v3::PROGRAM, v3::VERSION),
    (v3::PROGRAM, v4::VERSION),
    (mount::PROGRAM, mount::VERSION),
    (nlm::PROGRAM, nlm::VERSION),
    (nlm::STATUS_PROGRAM, nlm::STATUS_VERSION),
];

/// Those of them that are there by UDP.
const BY_UDP: [(u32, u32); 1] = [(nlm::STATUS_PROGRAM, nlm::STATUS_VERSION)];

/// A request.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Null,
    /// `PMAPPROC_GETPORT`.
    Port {
        program: u32,
        version: u32,
        protocol: u32,
    },
    /// `PMAPPROC_DUMP`.
    Dump,
    /// `RPCBPROC_GETADDR`.
    Address {
        program: u32,
        version: u32,
        network: Bytes,
    },
}

impl Request {
    /// The arguments of a procedure; `Ok(None)` where there is no such procedure.
    pub(crate) fn decode(
        version: u32,
        procedure: u32,
        reader: &mut Reader,
    ) -> Result<Option<Self>> {
        Ok(Some(match (version, procedure) {
            (_, 0) => Self::Null,
            (2, 3) => Self::Port {
                program: reader.u32()?,
                version: reader.u32()?,
                protocol: reader.u32()?,
            },
            (2, 4) => Self::Dump,
            (3 | 4, 3) => Self::Address {
                program: reader.u32()?,
                version: reader.u32()?,
                network: reader.opaque(TEXT_BYTES_MAX)?,
            },
            _ => return Ok(None),
        }))
    }
}

/// Carries a request out. `here` is where NFS is served.
pub(crate) fn execute(here: SocketAddr, request: &Request) -> Outcome {
    let mut answer = Writer::new();
    match request {
        Request::Null => {}
        Request::Port {
            program,
            version,
            protocol,
        } => {
            let asked = (*program, *version);
            let is_here = match *protocol {
                IPPROTO_TCP => PROGRAMS.contains(&asked),
                IPPROTO_UDP => BY_UDP.contains(&asked),
                _ => false,
            };
            answer.u32(if is_here { here.port().into() } else { 0 });
        }
        Request::Dump => {
            let by_tcp = PROGRAMS.iter().map(|program| (program, IPPROTO_TCP));
            let by_udp = BY_UDP.iter().map(|program| (program, IPPROTO_UDP));
            for ((program, version), protocol) in by_tcp.chain(by_udp) {
                answer.bool(true);
                for word in [*program, *version, protocol, here.port().into()] {
                    answer.u32(word);
                }
            }
            answer.bool(false);
        }
        Request::Address {
            program,
            version,
            network,
        } => {
            let (tcp, udp) = match here.is_ipv4() {
                true => ("tcp", "udp"),
                false => ("tcp6", "udp6"),
            };
            let asked = (*program, *version);
            let is_here = network == tcp.as_bytes() && PROGRAMS.contains(&asked)
                || network == udp.as_bytes() && BY_UDP.contains(&asked);
            // The universal address (RFC 5665 section 5.2.3.3).
            let [high, low] = here.port().to_be_bytes();
            let address = match is_here {
                true => format!("{}.{high}.{low}", here.ip()),
                false => String::new(),
            };
            answer.opaque(address.as_bytes());
        }
    }
    Outcome::Success(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(version: u32, procedure: u32, arguments: Writer) -> Reader {
        let mut arguments = Reader::new(Bytes::from(arguments.finish().concat()));
        let request = Request::decode(version, procedure, &mut arguments)
            .unwrap()
            .unwrap();
        match execute("10.0.0.1:2049".parse().unwrap(), &request) {
            Outcome::Success(answer) => Reader::new(Bytes::from(answer.finish().concat())),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn programs_are_found() {
        for (program, version, protocol, port) in [
            (v3::PROGRAM, 3, IPPROTO_TCP, 2049),
            (nlm::PROGRAM, 4, IPPROTO_TCP, 2049),
            (v3::PROGRAM, 2, IPPROTO_TCP, 0),
            (v3::PROGRAM, 3, IPPROTO_UDP, 0),
            (nlm::STATUS_PROGRAM, 1, IPPROTO_UDP, 2049),
            (nlm::STATUS_PROGRAM, 1, IPPROTO_TCP, 2049),
        ] {
            let mut arguments = Writer::new();
            for word in [program, version, protocol, 0] {
                arguments.u32(word);
            }
            assert_eq!(answer(2, 3, arguments).u32(), Ok(port));
        }
        let mut arguments = Writer::new();
        arguments.u32(mount::PROGRAM);
        arguments.u32(3);
        arguments.opaque(b"tcp");
        let address = answer(4, 3, arguments).opaque(99).unwrap();
        assert_eq!(&address[..], b"10.0.0.1.8.1");
    }
}
