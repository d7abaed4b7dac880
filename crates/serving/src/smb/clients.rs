//! Who uses what is shared, as Samba knows it (`smbstatus`). How much they read and write is not
//! counted for each of them.

use std::collections::BTreeMap;

use api::{ShareClient, ShareReport};
use serde::Deserialize;

use super::tools::Tools;
use super::{Server, Smb};

/// What `smbstatus -j` prints, with `-p` the sessions, with `-S` the connections, as far as it is
/// needed (source3/utils/status_json.c).
#[derive(Default, Deserialize)]
struct Status {
    /// Who has logged in, by number.
    #[serde(default)]
    sessions: BTreeMap<String, Session>,
    /// Which shares they use.
    #[serde(default)]
    tcons: BTreeMap<String, Connection>,
}

#[derive(Deserialize)]
struct Session {
    username: String,
}

#[derive(Deserialize)]
struct Connection {
    service: String,
    session_id: String,
    /// The client's address.
    machine: String,
}

/// The clients of each share, by its name in lower case.
fn clients(status: Status) -> BTreeMap<String, Vec<ShareClient>> {
    let mut clients: BTreeMap<String, Vec<ShareClient>> = BTreeMap::new();
    for used in status.tcons.into_values() {
        let session = status.sessions.get(&used.session_id);
        let client = ShareClient {
            name: session.map(|session| session.username.clone()),
            address: used.machine,
            is_connected: true,
            idle_seconds: None,
            traffic: None,
        };
        let of_share = clients.entry(used.service.to_lowercase()).or_default();
        of_share.push(client);
    }
    clients
}

impl Smb {
    /// What is shared, and who uses it.
    pub async fn in_use(&self) -> Vec<ShareReport> {
        let shares = self.shares();
        let mut clients = match self.status().await {
            Ok(status) => clients(status),
            Err(why) => {
                tracing::warn!("it cannot be told who uses what is shared by SMB: {why}");
                BTreeMap::new()
            }
        };
        let reports = shares.into_iter().map(|share| ShareReport {
            clients: clients
                .remove(&share.name.to_lowercase())
                .unwrap_or_default(),
            share,
            traffic: None,
        });
        reports.collect()
    }

    async fn status(&self) -> Result<Status, String> {
        if !matches!(self.inner.lock().server, Server::Runs(_)) {
            return Ok(Status::default());
        }
        let tools = Tools::find(&self.directory.join("smb.conf")).await?;
        let read = async |what: &str| -> Result<Status, String> {
            let printed = tools.run("smbstatus", &[what, "-j"], None).await?;
            serde_json::from_str(&printed).map_err(|error| error.to_string())
        };
        Ok(Status {
            tcons: read("-S").await?.tcons,
            sessions: read("-p").await?.sessions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_those_of_users_to_shares() {
        let printed = r#"{"version": "4.17.12", "sessions": {"7": {"session_id": "7",
            "username": "ann", "remote_machine": "10.0.0.9"}}, "tcons": {"1": {
            "service": "Films", "tcon_id": "1", "session_id": "7", "machine": "10.0.0.9"},
            "2": {"service": "IPC$", "session_id": "8", "machine": "10.0.0.8"}}}"#;
        let found = clients(serde_json::from_str(printed).unwrap());
        let films = &found["films"];
        assert_eq!(films.len(), 1);
        assert_eq!(films[0].name.as_deref(), Some("ann"));
        assert_eq!(films[0].address, "10.0.0.9");
        assert_eq!(found["ipc$"][0].name, None);
        assert!(clients(serde_json::from_str("{}").unwrap()).is_empty());
    }
}
