//! What a service manager gives the daemon, and what it is told: the socket of the API
//! (sd_listen_fds(3)), that the daemon is ready or leaves, and that it is alive (sd_notify(3),
//! sd_watchdog_enabled(3)). Without one (no `LISTEN_FDS`, no `NOTIFY_SOCKET`) nothing is done.
//!
//! Alive is a daemon that answers: the watchdog is fed after a request that came through the API's
//! socket, and went through the runtime and the locks of pools, mounts and shares, as any other
//! does. A timer alone would go on in a daemon that answers nobody.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use api::{Call, ServerInfo};
use sd_notify::NotifyState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// How often the watchdog is fed in the time that its manager waits. One answer may come late.
const FEEDS: u32 = 3;

/// Longest answer that is read, in bytes; what it says does not matter.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// What a child must not take for its own: it would tell the manager of itself.
const ENVIRONMENT: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// The listening socket that a service manager opened for the API. Takes the variables about it out
/// of the environment, so this comes before any thread.
///
/// # Errors
/// When what was given is no listening Unix socket.
pub fn given_socket() -> std::io::Result<Option<UnixListener>> {
    let mut given = listenfd::ListenFd::from_env();
    if given.len() > 1 {
        tracing::warn!(
            "of {} sockets that were given the first one is used",
            given.len()
        );
    }
    let socket = given.take_unix_listener(0)?;
    if let Some(socket) = &socket {
        socket.set_nonblocking(true)?;
    }
    Ok(socket)
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager cannot be told how the server is: {error}");
    }
}

/// Tells that pools are being imported.
pub fn begins() {
    tell(&[NotifyState::Status("importing pools")]);
}

/// Tells that pools are there and requests are answered.
pub fn is_ready() {
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

/// Tells that pools are being exported.
pub fn leaves() {
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status("exporting pools"),
    ]);
}

/// Keeps what is between the manager and this process from a child.
pub fn keep_from(child: &mut tokio::process::Command) {
    for name in ENVIRONMENT {
        child.env_remove(name);
    }
}

/// Feeds the watchdog, where there is one, as long as the API behind this socket answers.
pub async fn feed_watchdog(socket: PathBuf) {
    let Some(patience) = sd_notify::watchdog_enabled() else {
        return;
    };
    let pause = patience / FEEDS;
    loop {
        match tokio::time::timeout(patience, ask(&socket)).await {
            Ok(Ok(())) => tell(&[NotifyState::Watchdog]),
            Ok(Err(error)) => tracing::error!("the daemon does not answer itself: {error}"),
            Err(_) => tracing::error!(
                "the daemon did not answer itself in {} seconds",
                patience.as_secs()
            ),
        }
        tokio::time::sleep(pause).await;
    }
}

/// Makes a request through the API's socket.
async fn ask(socket: &Path) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket).await?;
    let request = format!(
        "POST {} HTTP/1.1\r\nhost: millpond\r\ncontent-type: application/json\r\n\
         content-length: 2\r\nconnection: close\r\n\r\n{{}}",
        ServerInfo::PATH
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let mut limited = stream.take(ANSWER_BYTES_MAX);
    limited.read_to_end(&mut answer).await?;
    match answer.starts_with(b"HTTP/1.1 200 ") {
        true => Ok(()),
        false => Err(std::io::Error::other(
            String::from_utf8_lossy(&answer)
                .lines()
                .next()
                .unwrap_or("no answer")
                .to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A socket whose owner says this, or nothing, to whoever asks.
    fn answering(answer: Option<&'static [u8]>) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).expect("a socket");
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                if let Some(answer) = answer {
                    let mut request = [0; 1024];
                    let length = stream.read(&mut request).await.expect("a request");
                    assert!(request[..length].starts_with(b"POST /v1/server/info HTTP/1.1"));
                    stream.write_all(answer).await.expect("an answer");
                } else {
                    open.push(stream);
                }
            }
        });
        (directory, path)
    }

    #[tokio::test]
    async fn only_an_answer_is_a_sign_of_life() {
        let (_kept, path) = answering(Some(b"HTTP/1.1 200 OK\r\n\r\n{}"));
        ask(&path).await.expect("an answer");
        let (_kept, path) = answering(Some(b"HTTP/1.1 500 Internal Server Error\r\n\r\n"));
        let error = ask(&path).await.expect_err("a failure");
        assert!(error.to_string().contains("500"), "{error}");
        let (_kept, path) = answering(None);
        let asked = tokio::time::timeout(Duration::from_millis(200), ask(&path)).await;
        assert!(asked.is_err());
        assert!(ask(Path::new("/nonexistent")).await.is_err());
    }
}
