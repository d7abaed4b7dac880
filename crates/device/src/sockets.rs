//! TCP connections whose other side may vanish without a word: a host that loses power, a cable
//! that is pulled. And their end, where somebody has the socket still.
//!
//! Source: tcp(7), TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT; shutdown(2).

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};

/// When a silent connection is tried, how often, and how many times in vain: two minutes in all.
const SILENT: Duration = Duration::from_secs(60);
const TRIES: Duration = Duration::from_secs(15);
const TRIES_MAX: u32 = 4;

/// Has the kernel break a TCP connection off, on which nothing is under way, within minutes once
/// nobody is at its other end, and send what is written to it at once.
///
/// # Errors
/// Of the system, where the socket is none of TCP.
pub fn watch_over(socket: &impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENT)?;
    sockopt::set_tcp_keepintvl(socket, TRIES)?;
    sockopt::set_tcp_keepcnt(socket, TRIES_MAX)?;
    Ok(())
}

/// Ends a TCP connection in both directions, whoever has the socket: its other side hears so behind
/// what was written.
///
/// # Errors
/// Of the system: it may have ended already.
pub fn cut(socket: &impl AsFd) -> io::Result<()> {
    Ok(shutdown(socket, Shutdown::Both)?)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_kernel_looks_after_both_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("it")).expect("a connection");
        let (far, _) = listener.accept().expect("its other end");
        for end in [near, far] {
            watch_over(&end).expect("TCP");
            assert!(end.nodelay().expect("an option"));
            assert!(sockopt::socket_keepalive(&end).expect("an option"));
            assert_eq!(sockopt::tcp_keepidle(&end).expect("an option"), SILENT);
        }
        let (pipe, _other) = UnixStream::pair().expect("a pair");
        assert!(watch_over(&pipe).is_err());
    }
}
