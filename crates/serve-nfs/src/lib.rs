//! NFS version 3 (RFC 1813) with the MOUNT protocol and the network lock manager, and version 4.1
//! and 4.2 (RFC 8881, RFC 7862), on one TCP port.
//!
//! From the bottom up:
//!
//! | module | holds |
//! |---|---|
//! | `xdr` | values as bytes (RFC 4506) |
//! | `rpc` | calls, credentials, replies, record marking (RFC 5531) |
//! | `handle` | file handles |
//! | `policy` | `sharenfs`: who may, and whom users are taken for |
//! | `traffic` | counts per share and client |
//! | `share` | filesystems that are shared, and requests that use them |
//! | `object` | from handles to files, and permissions: for all versions |
//! | `mounted` | names that stay, as something else is mounted there |
//! | `v3`, `v4`, `mount`, `nlm`, `portmap` | programs: arguments (pure), and carrying them out |
//! | `answers` | answers for clients that ask twice |
//! | `service` | all programs: from a call to its answer |
//! | [`Server`] | sockets, and memory for what is under way |
//!
//! Everything but [`Server`] runs without sockets. Content that is read goes from the cache to the
//! socket in slices of its blocks; content that is written goes from the request's own buffer into
//! dirty blocks.
//!
//! # Who can do what
//!
//! Nothing that a client sends panics the process or sizes memory unchecked. A handle gives no
//! right: each request is checked against the share's policy by the address that it comes from, and
//! against permissions by the user that it names ([`access::permits`]). What `sec=sys` means is
//! that hosts which a policy lets in are believed about their users.
#![forbid(unsafe_code)]

mod answers;
mod error;
mod handle;
mod mount;
mod mounted;
mod nlm;
mod object;
mod policy;
mod portmap;
mod rpc;
mod server;
mod service;
mod share;
mod traffic;
mod v3;
mod v4;
mod xdr;

pub use error::ServerError;
pub use policy::{Policy, PolicyError};
pub use server::{NFS_PORT, PORTMAPPER_PORT, Server};
pub use service::Service;
pub use share::{ShareError, ShareReport, ShareSpec, Shares};
pub use traffic::ClientReport;

/// Decodes bytes as records with calls of any program: for fuzzers.
#[doc(hidden)]
pub fn decode_records_for_fuzzing(data: &[u8]) {
    nlm::monitor::decode_for_fuzzing(data);
    let limit_bytes = 64 << 10;
    let mut input = bytes::Bytes::copy_from_slice(data);
    while let Ok(Some(record)) = rpc::record::take_record(&mut input, limit_bytes) {
        assert!(record.len() <= limit_bytes);
        match rpc::Call::decode(record) {
            Ok(call) => match service::Work::decode(&call) {
                Ok(work) => assert!(work.answer_bytes() < 2 << 20),
                Err(outcome) => assert!(!outcome.encode(call.xid).is_empty()),
            },
            Err(rpc::CallError::Answered(reply)) => assert!(!reply.is_empty()),
            Err(rpc::CallError::NotACall) => {}
        }
    }
}

/// Decodes bytes as arguments of a procedure of each program, which the first byte says, and as a
/// file handle: for fuzzers.
#[doc(hidden)]
pub fn decode_arguments_for_fuzzing(data: &[u8]) {
    if let Some(handle) = handle::Handle::decode(data) {
        assert_eq!(handle.encode(), data);
    }
    let Some((procedure, arguments)) = data.split_first() else {
        return;
    };
    let arguments = bytes::Bytes::copy_from_slice(arguments);
    for (program, versions) in [
        (v3::PROGRAM, 3..=3),
        (mount::PROGRAM, 3..=3),
        (nlm::PROGRAM, 4..=4),
        (nlm::STATUS_PROGRAM, 1..=1),
        (portmap::PROGRAM, 2..=4),
    ] {
        for version in versions {
            let call = rpc::Call {
                xid: 0,
                program,
                version,
                procedure: (procedure % 24).into(),
                credential: rpc::Credential::None,
                arguments: xdr::Reader::new(arguments.clone()),
            };
            let _ = service::Work::decode(&call).map(|work| work.answer_bytes());
        }
    }
}

/// Decodes bytes as arguments of COMPOUND: for fuzzers.
#[doc(hidden)]
pub fn decode_compound_for_fuzzing(data: &[u8]) {
    let mut reader = xdr::Reader::new(bytes::Bytes::copy_from_slice(data));
    if let Ok(Some(request)) = v4::request::Request::decode(1, &mut reader) {
        assert!(request.answer_bytes() < 2 << 20);
        if let v4::request::Request::Compound(compound) = request {
            let operations = compound.operations;
            assert!(operations.len() <= v4::request::OPERATIONS_MAX);
            assert!(operations.iter().all(|operation| operation.number() > 0));
        }
    }
}

/// Decodes bytes as a value of `sharenfs`: for fuzzers.
#[doc(hidden)]
pub fn decode_policy_for_fuzzing(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Policy::parse(text).map(|policy| policy.map(|policy| policy.listed_hosts()));
    }
}
