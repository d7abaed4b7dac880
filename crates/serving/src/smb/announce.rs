//! Makes shares known on the network, so that they appear in the Finder and in what else knows DNS
//! Service Discovery over multicast (RFC 6762 and 6763): `_smb._tcp`, what kind of machine it is
//! (`_device-info._tcp`), and which shares Time Machine may take (`_adisk._tcp`, as Netatalk and
//! Samba announce them).
//!
//! Where Avahi runs, Samba tells it; only elsewhere it is done here. What is reachable from this
//! host only is not announced.

use std::net::SocketAddr;
use std::path::Path;

use mdns_sd::{IfKind, ServiceDaemon, ServiceInfo};

/// Where Avahi listens while it runs.
const AVAHI: &str = "/run/avahi-daemon/socket";
/// What Macs show it as (`fruit:model`, as the configuration has it).
pub(super) const MODEL: &str = "MacSamba";

/// Whether Samba has Avahi announce what it serves.
pub(super) fn has_avahi() -> bool {
    Path::new(AVAHI).exists()
}

/// What is to be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Announced {
    /// The name that people see.
    pub(super) name: String,
    pub(super) address: SocketAddr,
    /// Names of shares for Time Machine.
    pub(super) backups: Vec<String>,
}

/// Pairs that describe a service (RFC 6763 section 6).
type Pairs = Vec<(String, String)>;

impl Announced {
    /// The services: type, port, and what describes it.
    fn services(&self) -> Vec<(&'static str, u16, Pairs)> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut services = vec![
            ("_smb._tcp.local.", self.address.port(), Vec::new()),
            ("_device-info._tcp.local.", 0, vec![pair("model", MODEL)]),
        ];
        if !self.backups.is_empty() {
            let mut pairs = vec![pair("sys", "waMa=0,adVF=0x100")];
            for (index, name) in self.backups.iter().enumerate() {
                pairs.push((format!("dk{index}"), format!("adVN={name},adVF=0x82")));
            }
            // The port that says that there is none.
            services.push(("_adisk._tcp.local.", 9, pairs));
        }
        services
    }

    fn register(&self, daemon: &ServiceDaemon) -> Result<Vec<String>, mdns_sd::Error> {
        // A name of its own: Avahi, or the system's resolver, may have the host's.
        let host = format!("{}-millpond.local.", self.name);
        let mut told = Vec::new();
        for (kind, port, pairs) in self.services() {
            let ip = self.address.ip();
            let info = match ip.is_unspecified() {
                true => ServiceInfo::new(kind, &self.name, &host, "", port, &pairs[..])?
                    .enable_addr_auto(),
                false => {
                    let mut info = ServiceInfo::new(kind, &self.name, &host, ip, port, &pairs[..])?;
                    info.set_interfaces(vec![IfKind::Addr(ip)]);
                    info
                }
            };
            told.push(info.get_fullname().to_owned());
            daemon.register(info)?;
        }
        Ok(told)
    }
}

/// What is known now.
#[derive(Default)]
pub(super) struct Announcer {
    daemon: Option<ServiceDaemon>,
    now: Option<Announced>,
    /// Full names of what was registered.
    told: Vec<String>,
}

impl Announcer {
    /// Announces this, and nothing else.
    pub(super) fn announce(&mut self, wanted: Option<Announced>) {
        let is_local = |wanted: &Announced| wanted.address.ip().to_canonical().is_loopback();
        let wanted = wanted.filter(|wanted| !is_local(wanted) && !has_avahi());
        if wanted == self.now {
            return;
        }
        self.now.clone_from(&wanted);
        if let Err(error) = self.change(wanted.as_ref()) {
            tracing::warn!("what is shared by SMB cannot be announced on the network: {error}");
        }
    }

    fn change(&mut self, wanted: Option<&Announced>) -> Result<(), mdns_sd::Error> {
        if let Some(daemon) = &self.daemon {
            for name in self.told.drain(..) {
                daemon.unregister(&name)?;
            }
        }
        let Some(wanted) = wanted else { return Ok(()) };
        let daemon = match self.daemon.take() {
            Some(daemon) => daemon,
            None => ServiceDaemon::new()?,
        };
        self.told = wanted.register(self.daemon.insert(daemon))?;
        Ok(())
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        if let Some(daemon) = &self.daemon {
            // It says good-bye for what is registered.
            let _ = daemon.shutdown();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_machine_finds_the_shares_that_are_for_it() {
        let mut announced = Announced {
            name: "NAS".into(),
            address: "192.0.2.1:445".parse().unwrap(),
            backups: Vec::new(),
        };
        let kinds = |announced: &Announced| -> Vec<&str> {
            announced
                .services()
                .iter()
                .map(|(kind, ..)| *kind)
                .collect()
        };
        assert_eq!(
            kinds(&announced),
            ["_smb._tcp.local.", "_device-info._tcp.local."]
        );
        announced.backups = vec!["macs".into(), "more".into()];
        let services = announced.services();
        let (kind, _, pairs) = services.last().unwrap();
        assert_eq!(*kind, "_adisk._tcp.local.");
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            pairs,
            [
                "sys=waMa=0,adVF=0x100",
                "dk0=adVN=macs,adVF=0x82",
                "dk1=adVN=more,adVF=0x82"
            ]
        );
    }

    #[test]
    fn what_only_this_host_reaches_is_not_announced() {
        let mut announcer = Announcer::default();
        announcer.announce(Some(Announced {
            name: "NAS".into(),
            address: "127.0.0.1:445".parse().unwrap(),
            backups: Vec::new(),
        }));
        assert!(announcer.daemon.is_none() && announcer.now.is_none());
    }
}
