//! A client of NUT's server, `upsd`: asks how one UPS is (RFC 9271).
//!
//! Lines of text by TCP; crate `answers` takes them apart. Nothing is changed at the other side,
//! and nobody logs in there: what is asked is for everybody to know.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use answers::nut::{Answer, parse_line, parse_number, parse_status};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Where `upsd` listens (RFC 9271, section 3).
const PORT: u16 = 3493;
/// Longest line, in bytes.
const LINE_BYTES_MAX: u64 = 4096;
/// Most devices that are listed.
const DEVICES_MAX: usize = 256;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A UPS, and where it is asked for: `NAME[@HOST[:PORT]]`, as NUT's own programs have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpsAddress {
    name: String,
    host: String,
    port: u16,
}

impl std::fmt::Display for UpsAddress {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}@{}", self.name, self.host)?;
        match self.port {
            PORT => Ok(()),
            port => write!(out, ":{port}"),
        }
    }
}

impl std::str::FromStr for UpsAddress {
    type Err = String;

    /// # Errors
    /// When it is written in another way, with what to write.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write NAME@HOST, or NAME@HOST:PORT; NAME as 'upsc -l' lists it".to_owned();
        let (name, place) = match text.split_once('@') {
            Some((name, place)) => (name, place),
            None => (text, "localhost"),
        };
        // An address of version 6 has colons of its own, and brackets where there is a port.
        let (host, port) = match place
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
        {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or_else(wrong)?)),
            None => match place.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') => (host, Some(port)),
                _ => (place, None),
            },
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(wrong());
        }
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(wrong());
        }
        Ok(Self {
            name: name.to_owned(),
            host: host.to_owned(),
            port: match port {
                Some(port) => port.parse().map_err(|_| wrong())?,
                None => PORT,
            },
        })
    }
}

/// What a UPS told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// Words of `ups.status`: `OL`, `OB`, `LB`, ...
    pub(super) status: BTreeSet<String>,
    /// How full its battery is, in percent.
    pub(super) charge_percent: Option<u64>,
    /// For how long that lasts, in seconds.
    pub(super) runtime_s: Option<u64>,
}

impl Reading {
    /// Whether one of the words is in the status.
    pub(super) fn is(&self, word: &str) -> bool {
        self.status.contains(word)
    }
}

/// Why nothing was told.
#[derive(Debug, thiserror::Error)]
pub(super) enum NutError {
    /// The connection failed.
    #[error("there is no connection: {0}")]
    Io(#[from] io::Error),
    /// `upsd` said no.
    #[error("upsd says {0}")]
    Refused(String),
    /// There is no such UPS.
    #[error("upsd knows no UPS '{name}', only {}", .known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// It said what this protocol has not.
    #[error("it does not answer as upsd does: '{0}'")]
    Nonsense(String),
}

/// A connection to `upsd`.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
    name: String,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// Those of the network, and when it takes too long.
    pub(super) async fn connect(address: &UpsAddress) -> Result<Self, NutError> {
        let connecting = TcpStream::connect((address.host.as_str(), address.port));
        let connected = tokio::time::timeout(PATIENCE, connecting).await;
        let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(Self {
            stream: BufReader::new(stream),
            name: address.name.clone(),
        })
    }

    /// Asks how the UPS is.
    ///
    /// # Errors
    /// Why it does not tell. The connection is not to be used any more then, unless it was refused.
    pub(super) async fn ask(&mut self) -> Result<Reading, NutError> {
        let asked = tokio::time::timeout(PATIENCE, self.ask_at_leisure()).await;
        asked.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    async fn ask_at_leisure(&mut self) -> Result<Reading, NutError> {
        let status = match self.variable("ups.status").await {
            Err(NutError::Refused(code)) if code == "UNKNOWN-UPS" => {
                let known = self.names().await?;
                let name = self.name.clone();
                return Err(NutError::Unknown { name, known });
            }
            status => status?,
        };
        let charge = self.number("battery.charge").await?;
        let runtime = self.number("battery.runtime").await?;
        Ok(Reading {
            status: parse_status(&status),
            charge_percent: charge.filter(|percent| *percent <= 100),
            runtime_s: runtime,
        })
    }

    /// A variable that not every UPS has.
    async fn number(&mut self, name: &str) -> Result<Option<u64>, NutError> {
        match self.variable(name).await {
            Ok(text) => Ok(parse_number(&text)),
            Err(NutError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `GET VAR` (RFC 9271, section 4.2.4).
    async fn variable(&mut self, variable: &str) -> Result<String, NutError> {
        let name = self.name.clone();
        self.say(&format!("GET VAR {name} {variable}\n")).await?;
        let line = self.line().await?;
        match &answered(&line)?[..] {
            [kind, ups, what, value] if kind == "VAR" && *ups == name && what == variable => {
                Ok(value.clone())
            }
            _ => Err(NutError::Nonsense(line)),
        }
    }

    /// `LIST UPS` (RFC 9271, section 4.2.5).
    async fn names(&mut self) -> Result<Vec<String>, NutError> {
        self.say("LIST UPS\n").await?;
        let mut names = Vec::new();
        let first = self.line().await?;
        if answered(&first)? != ["BEGIN", "LIST", "UPS"] {
            return Err(NutError::Nonsense(first));
        }
        while names.len() <= DEVICES_MAX {
            let line = self.line().await?;
            match &answered(&line)?[..] {
                [end, ..] if end == "END" => return Ok(names),
                [kind, name, ..] if kind == "UPS" => names.push(name.clone()),
                _ => return Err(NutError::Nonsense(line)),
            }
        }
        Ok(names)
    }

    async fn say(&mut self, line: &str) -> io::Result<()> {
        self.stream.get_mut().write_all(line.as_bytes()).await
    }

    async fn line(&mut self) -> Result<String, NutError> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(LINE_BYTES_MAX);
        limited.read_until(b'\n', &mut line).await?;
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        match line.last() {
            Some(b'\n') => Ok(text),
            Some(_) => Err(NutError::Nonsense(text)),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }
}

/// The words of an answer, unless it is a refusal.
fn answered(line: &str) -> Result<Vec<String>, NutError> {
    match parse_line(line) {
        Some(Answer::Words(words)) => Ok(words),
        Some(Answer::Refused(code)) => Err(NutError::Refused(code)),
        None => Err(NutError::Nonsense(line.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_nut_has_them() {
        for (text, name, host, port, shown) in [
            ("ups", "ups", "localhost", 3493, "ups@localhost"),
            ("a@nas", "a", "nas", 3493, "a@nas"),
            ("a@10.0.0.1:1234", "a", "10.0.0.1", 1234, "a@10.0.0.1:1234"),
            ("a@fe80::1", "a", "fe80::1", 3493, "a@fe80::1"),
            ("a@[fe80::1]:5", "a", "fe80::1", 5, "a@fe80::1:5"),
        ] {
            let address: UpsAddress = text.parse().unwrap();
            let wanted = UpsAddress {
                name: name.into(),
                host: host.into(),
                port,
            };
            assert_eq!(address, wanted);
            assert_eq!(address.to_string(), shown);
        }
        for wrong in [
            "",
            "@nas",
            "a@",
            "a b",
            "a@nas:x",
            "a\n@nas",
            "a@[::1]5",
            "a@h:70000",
        ] {
            assert!(wrong.parse::<UpsAddress>().is_err(), "{wrong}");
        }
    }
}
