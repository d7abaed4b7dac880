//! Volumes on the network: what `millpond:iscsi` asks for, and who is let in.
//!
//! The user property is `on`, or words separated by commas: `iqn=NAME`, `ro`, `initiator=NAME`
//! (repeatable; `*` at the end matches any rest), `chap=NAME` (initiators prove themselves with
//! that secret), `mutual=NAME` (so does the target, with that one), `blocksize=512|4096` (of
//! logical blocks). `off` or nothing does not share. The listeners start with the first share.
//!
//! A volume is shared as its property says or not at all: where a secret is missing, or where
//! anybody on the network could log in and the server was not started with `--insecure`, it is not
//! shared, and `millpond info` and the log say why. Secrets that change hold for logins from then
//! on; sessions that there are go on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use access::{TrafficCounts, User};
use api::{
    Empty, Failure, FailureKind, IscsiSecretList, IscsiSecretListReply, IscsiSecretRemove,
    IscsiSecretReport, IscsiSecretSet, IscsiSecretSetReply, NotShared, Protocol, ShareClient,
    ShareInfo, ShareReport,
};
use device::Random;
use serve_iscsi::{
    Authentication, ChapCredentials, ReservationStore, Target, TargetError, TargetOptions,
    UnitTraffic, VolumeUnit,
};

use crate::identity::{self, Identity};
use crate::owners::{self, Claim, Present};
use crate::reservations::StoredReservations;
use crate::secrets::{Credentials, Secrets, generate};
use crate::shares::traffic;
use crate::volumes::Volumes;
use service::pools::OpenPool;

/// The user property that shares a volume by iSCSI.
pub const ISCSI_PROPERTY: &str = "millpond:iscsi";
/// Logical block size where no other is asked for, in bytes: every initiator takes it.
const BLOCK_BYTES: u32 = 512;
/// What every name of a target of ours begins with (RFC 7143 section 4.2.7.4).
const IQN_PREFIX: &str = "iqn.2026-11.io.millpond";

/// What the words of `millpond:iscsi` ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareWords {
    iqn: Option<String>,
    read_only: bool,
    initiators: Vec<String>,
    /// Name of the secret that initiators prove themselves with.
    chap: Option<String>,
    /// Name of the secret that the target proves itself with.
    mutual: Option<String>,
    /// Bytes of a logical block, where it is said.
    block_bytes: Option<u32>,
}

impl ShareWords {
    /// The target's name, as the words say or as the volume is called.
    fn iqn_for(&self, name: &str, guid: u64) -> String {
        let named = self.iqn.clone();
        named.unwrap_or_else(|| iqn_of(name, guid))
    }

    /// Bytes of a logical block.
    fn block_bytes(&self) -> u32 {
        self.block_bytes.unwrap_or(BLOCK_BYTES)
    }

    fn uses(&self, secret: &str) -> bool {
        let mut names = self.chap.iter().chain(&self.mutual);
        names.any(|name| name == secret)
    }
}

/// Whether an open volume is on the network.
#[derive(Clone, Debug, Default)]
pub enum Sharing {
    /// It is not meant to be.
    #[default]
    Off,
    /// It is.
    On {
        /// Its target's name.
        iqn: String,
        /// The property that it was shared with.
        typed: String,
        /// What that asks for.
        words: Box<ShareWords>,
        /// What initiators remember it by.
        identity: Identity,
        /// Where its persistent reservations are kept.
        reservations: Arc<StoredReservations>,
    },
    /// It is meant to be and is not.
    Refused {
        /// Why.
        why: String,
    },
}

impl Sharing {
    /// The name of its target.
    pub fn iqn(&self) -> Option<&str> {
        match self {
            Self::On { iqn, .. } => Some(iqn),
            Self::Off | Self::Refused { .. } => None,
        }
    }
}

fn parse_share(typed: &str) -> Result<Option<ShareWords>, String> {
    if matches!(typed, "off" | "" | "-" | "none") {
        return Ok(None);
    }
    let mut share = ShareWords::default();
    for word in typed.split(',') {
        let once = |slot: &mut Option<String>, name: &str| match slot.replace(name.to_owned()) {
            Some(_) => Err(format!("{ISCSI_PROPERTY} names two of '{word}'; name one")),
            None => Ok(()),
        };
        match word.split_once('=') {
            None if word == "on" || word == "rw" => {}
            None if word == "ro" => share.read_only = true,
            Some(("iqn", name)) => share.iqn = Some(name.to_owned()),
            Some(("initiator", name)) => share.initiators.push(name.to_owned()),
            Some(("chap", name)) => once(&mut share.chap, name)?,
            Some(("mutual", name)) => once(&mut share.mutual, name)?,
            Some(("blocksize", size)) => match size {
                "512" => share.block_bytes = Some(512),
                "4096" | "4K" | "4k" => share.block_bytes = Some(4096),
                _ => {
                    return Err(format!(
                        "'{size}' is not a size of logical blocks; use blocksize=512 or \
                         blocksize=4096"
                    ));
                }
            },
            _ => {
                return Err(format!(
                    "'{word}' is not an option of {ISCSI_PROPERTY}; use on, off, ro, iqn=NAME, \
                     initiator=NAME, chap=NAME, mutual=NAME, blocksize=512|4096, separated by \
                     commas"
                ));
            }
        }
    }
    match (&share.chap, &share.mutual) {
        (None, Some(_)) => Err(format!(
            "{ISCSI_PROPERTY} has mutual= without chap=: a target proves itself only to initiators \
             that do; add chap=NAME"
        )),
        (Some(chap), Some(mutual)) if chap == mutual => Err(format!(
            "{ISCSI_PROPERTY} has secret '{chap}' for both directions, so that who knows it could \
             pass for the target; name another one for mutual="
        )),
        _ => Ok(Some(share)),
    }
}

/// A target's name from its volume's: iSCSI names hold only letters, digits, `.`, `-` and `:`.
fn iqn_of(name: &str, guid: u64) -> String {
    let clean: String = name
        .chars()
        .map(|c| match c {
            'a'..='z' | '0'..='9' | '.' | '-' => c,
            '/' => ':',
            _ => '-',
        })
        .collect();
    let is_same = name.replace('/', ":") == clean;
    // Where letters had to go, the guid keeps two volumes' names apart.
    let suffix = if is_same {
        String::new()
    } else {
        format!(".{guid:016x}")
    };
    let mut clean = clean;
    clean.truncate(180);
    format!("{IQN_PREFIX}:{clean}{suffix}")
}

fn chap(known: Credentials) -> ChapCredentials {
    ChapCredentials {
        user: known.user,
        secret: known.secret.0.as_bytes().to_vec(),
    }
}

/// How initiators authenticate to a target that is shared so.
fn authentication(words: &ShareWords, secrets: &Secrets) -> Result<Authentication, String> {
    let Some(name) = &words.chap else {
        return Ok(Authentication::None);
    };
    let initiator = chap(secrets.get(name)?);
    let target = words.mutual.as_ref().map(|name| secrets.get(name));
    Ok(Authentication::Chap {
        initiator,
        target: target.transpose()?.map(chap),
    })
}

/// Whether a volume asks for this name of a target, and then whether by a property that came with a
/// stream.
async fn asks_for(open: &OpenPool, name: &str, iqn: &str) -> Option<bool> {
    let dsl = open.pool.dsl();
    let setting = dsl.properties().get(name, ISCSI_PROPERTY).await.ok()?;
    let words = parse_share(setting.value.text().unwrap_or("off")).ok()??;
    let guid = dsl.directories().lookup(name).await.ok()?.guid.get();
    match words.iqn_for(name, guid).eq_ignore_ascii_case(iqn) {
        true => Some(owners::is_received(open, name, ISCSI_PROPERTY).await),
        false => None,
    }
}

/// Refuses to let everybody on the network in.
fn check_openness(
    words: &ShareWords,
    addresses: &[SocketAddr],
    is_insecure: bool,
) -> Result<(), String> {
    let mut addresses = addresses.iter();
    let far = addresses.find(|address| !address.ip().to_canonical().is_loopback());
    let Some(address) = far.filter(|_| words.chap.is_none() && !is_insecure) else {
        return Ok(());
    };
    Err(format!(
        "iSCSI listens on {address}, where everybody could log in; use \
         {ISCSI_PROPERTY}=on,chap=NAME after 'millpond iscsi secret set NAME', or start the \
         server with --insecure"
    ))
}

impl Volumes {
    /// What is offered.
    pub fn shares(&self) -> Vec<ShareInfo> {
        let addresses = self.addresses();
        let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        let shared = self.sharing();
        let shared = shared.into_iter().filter_map(|(dataset, sharing)| {
            let Sharing::On { iqn, words, .. } = sharing else {
                return None;
            };
            let known = words
                .chap
                .as_ref()
                .and_then(|name| self.secrets.get(name).ok());
            Some(ShareInfo {
                protocol: Protocol::Iscsi,
                dataset,
                name: iqn,
                address: addresses.first().cloned().unwrap_or_default(),
                other_addresses: addresses.get(1..).unwrap_or_default().to_vec(),
                user: known.map(|known| known.user),
                secret: words.chap,
                mutual: words.mutual,
                only: Vec::new(),
                is_open: false,
            })
        });
        shared.collect()
    }

    /// What was read and written by each portal, by the address that initiators used.
    pub fn traffic_by_portal(&self) -> BTreeMap<SocketAddr, TrafficCounts> {
        self.targets().traffic_by_portal()
    }

    /// What is offered, with what is counted of it.
    pub fn traffic(&self) -> Vec<(ShareInfo, Option<UnitTraffic>)> {
        let mut units = self.targets().traffic();
        let shares = self.shares().into_iter().map(|share| {
            let is_of_share = |unit: &UnitTraffic| unit.iqn.eq_ignore_ascii_case(&share.name);
            let found = units.iter().position(is_of_share);
            (share, found.map(|at| units.swap_remove(at)))
        });
        shares.collect()
    }

    /// What is offered, and what initiators have done with it.
    pub fn in_use(&self) -> Vec<ShareReport> {
        let reports = self.traffic().into_iter().map(|(share, unit)| {
            let (total, clients) = unit
                .map(|unit| (unit.total, unit.clients))
                .unwrap_or_default();
            let clients = clients.into_iter().map(|client| ShareClient {
                name: Some(client.initiator),
                address: client.peer.to_string(),
                is_connected: true,
                idle_seconds: None,
                traffic: Some(traffic(&client.counts)),
            });
            ShareReport {
                share,
                traffic: Some(traffic(&total)),
                clients: clients.collect(),
            }
        });
        reports.collect()
    }

    /// What is meant to be offered and is not.
    pub fn not_shared(&self) -> Vec<NotShared> {
        let sharing = self.sharing().into_iter();
        let refused = sharing.filter_map(|(dataset, sharing)| match sharing {
            Sharing::Refused { why } => Some(NotShared {
                protocol: Protocol::Iscsi,
                dataset,
                why,
            }),
            Sharing::Off | Sharing::On { .. } => None,
        });
        refused.collect()
    }

    /// Volumes that are shared and use a secret.
    fn users_of(&self, secret: &str) -> Vec<String> {
        let sharing = self.sharing().into_iter();
        let users = sharing.filter(|(_, sharing)| match sharing {
            Sharing::On { words, .. } => words.uses(secret),
            Sharing::Off | Sharing::Refused { .. } => false,
        });
        users.map(|(dataset, _)| dataset).collect()
    }

    /// Refuses a volume that initiators would take for another one that is shared.
    fn check_identity(&self, name: &str, ours: Identity) -> Result<(), String> {
        let shared = self.sharing().into_iter();
        let mut same = shared.filter(|(other, sharing)| {
            let Sharing::On { identity, .. } = sharing else {
                return false;
            };
            other != name && *identity == ours
        });
        let Some((other, _)) = same.next() else {
            return Ok(());
        };
        let pool = name.split('/').next().unwrap_or(name);
        Err(format!(
            "initiators would take it for '{other}', as one is a copy of the other; where it is \
             '{name}' that none of them knows yet, 'zpool set millpond:identities=none {pool}' \
             gives what is in that pool identities of its own"
        ))
    }

    /// Refuses secrets that another share has for the other direction: an initiator that knows one
    /// could have the target there answer for it here (RFC 7143 section 9.2.1).
    fn check_directions(&self, name: &str, words: &ShareWords) -> Result<(), String> {
        for (other, sharing) in self.sharing() {
            let Sharing::On { words: theirs, .. } = sharing else {
                continue;
            };
            let crossed = [(&words.chap, &theirs.mutual), (&words.mutual, &theirs.chap)];
            let mut crossed = crossed.into_iter().filter(|(ours, theirs)| ours == theirs);
            if other != name
                && let Some((Some(secret), _)) = crossed.find(|(ours, _)| ours.is_some())
            {
                return Err(format!(
                    "'{other}' is shared with secret '{secret}' for the other direction; use \
                     another secret"
                ));
            }
        }
        Ok(())
    }

    /// Checks a value of `millpond:iscsi` before it is set.
    pub fn check_share(&self, typed: &str) -> Result<(), Failure> {
        let checked = parse_share(typed).and_then(|words| {
            let Some(words) = words else { return Ok(()) };
            authentication(&words, &self.secrets)?;
            check_openness(&words, &self.addresses(), self.is_insecure)
        });
        checked.map_err(|why| Failure::new(FailureKind::Invalid, why))
    }

    /// Shares or unshares a volume as its property and the secrets say now.
    pub async fn share_volume(&self, open: &OpenPool, name: &str) -> Result<(), Failure> {
        if self.get(name).is_none() {
            return Ok(());
        }
        let shared = self.share_as_wanted(open, name).await;
        shared.map_err(|(kind, why)| {
            self.set_sharing(name, Sharing::Refused { why: why.clone() });
            Failure::new(kind, format!("cannot share '{name}' by iSCSI: {why}"))
        })
    }

    /// The same. When it fails, the volume is not shared.
    async fn share_as_wanted(
        &self,
        open: &OpenPool,
        name: &str,
    ) -> Result<(), (FailureKind, String)> {
        let Some(volume) = self.get(name) else {
            return Ok(());
        };
        let typed = match open.pool.dsl().properties().get(name, ISCSI_PROPERTY).await {
            Ok(setting) => setting.value.text().unwrap_or("off").to_owned(),
            Err(_) => "off".to_owned(),
        };
        let invalid = |why| (FailureKind::Invalid, why);
        let mut wanted = parse_share(&typed).and_then(|words| {
            let Some(words) = words else { return Ok(None) };
            let authentication = authentication(&words, &self.secrets)?;
            check_openness(&words, &self.addresses(), self.is_insecure)?;
            self.check_directions(name, &words)?;
            let options = TargetOptions {
                alias: Some(name.to_owned()),
                authentication,
                allowed_initiators: words.initiators.clone(),
                is_read_only: words.read_only,
            };
            Ok(Some((words, options)))
        });
        let other = |error: TargetError| (FailureKind::Other, error.to_string());
        let guid = volume.guid().get();
        if let Sharing::On {
            iqn,
            typed: with,
            words: before,
            identity,
            reservations,
        } = self.sharing_of(name)
        {
            let set = match &wanted {
                // Secrets may be others: they hold for logins from now on.
                Ok(Some((_, options))) if with == typed => {
                    Some(self.targets().set_options(&iqn, options.clone()))
                }
                Ok(Some((words, options)))
                    if words.iqn_for(name, guid).eq_ignore_ascii_case(&iqn)
                        && words.block_bytes() == before.block_bytes() =>
                {
                    let targets = self.targets();
                    Some(targets.change_options(&iqn, options.clone()).await)
                }
                _ => None,
            };
            match (set, wanted) {
                (Some(Ok(())), Ok(Some((words, _)))) => {
                    let sharing = Sharing::On {
                        iqn,
                        typed,
                        words: Box::new(words),
                        identity,
                        reservations,
                    };
                    self.set_sharing(name, sharing);
                    return Ok(());
                }
                (Some(Err(error)), _) => {
                    self.unshare(name, &iqn).await;
                    return Err(other(error));
                }
                (_, not_in_place) => {
                    self.unshare(name, &iqn).await;
                    wanted = not_in_place;
                }
            }
        }
        let Some((words, options)) = wanted.map_err(invalid)? else {
            self.set_sharing(name, Sharing::Off);
            return Ok(());
        };
        let listening = self.listen().await;
        listening.map_err(|error| (FailureKind::Busy, error.to_string()))?;
        let iqn = words.iqn_for(name, guid);
        let identity = identity::of(open, name).await;
        let identity = identity.map_err(|failure| (failure.kind, failure.message))?;
        self.check_identity(name, identity).map_err(invalid)?;
        let user = User::Target { iqn: iqn.clone() };
        let lease = self.share(open, name, user).await;
        let lease = lease.map_err(|error| (FailureKind::Io, error.to_string()))?;
        let reservations = StoredReservations::of(open, name).await;
        let reservations = reservations.map_err(|error| (FailureKind::Io, error.to_string()))?;
        let store: Arc<dyn ReservationStore> = reservations.clone();
        let unit = VolumeUnit::new(lease, identity.unit())
            .with_reservation_store(store)
            .with_block_bytes(words.block_bytes());
        let target = Target {
            iqn: iqn.clone(),
            luns: BTreeMap::from([(0, Arc::new(unit) as _)]),
            options,
        };
        let state = self.unit_states.of(open.pool.dsl(), guid);
        let states = BTreeMap::from([(0, state)]);
        // Last, as one that cannot be shared takes no name from another.
        let is_received = owners::is_received(open, name, ISCSI_PROPERTY).await;
        let claim = Claim::new(Protocol::Iscsi, &iqn, open, name, is_received).await;
        let claim = claim.map_err(invalid)?;
        let present = self.owners.present(&self.pools, &claim).await;
        let asks = match &present {
            Present::Here(there, owner) => asks_for(there, owner, &iqn).await,
            Present::None | Present::Away(..) => None,
        };
        let before = self.owners.take(claim, present, asks).map_err(invalid)?;
        if let Some(before) = before
            && let Sharing::On { iqn: theirs, .. } = self.sharing_of(&before)
            && theirs.eq_ignore_ascii_case(&iqn)
        {
            let ending = self.unshare(&before, &theirs);
            let ended = self.pools.unless_suspended(&before, ending).await;
            let why = format!("target {iqn} is now that of '{name}', where it was set by hand");
            self.set_sharing(&before, Sharing::Refused { why });
            if ended.is_none() {
                let why = format!("'{before}' has target {iqn} until its pool is cleared");
                return Err((FailureKind::Busy, why));
            }
        }
        let added = self.targets().add_known(target, states);
        added.map_err(other)?;
        let words = Box::new(words);
        let sharing = Sharing::On {
            iqn,
            typed,
            words,
            identity,
            reservations,
        };
        self.set_sharing(name, sharing);
        Ok(())
    }

    /// Ends the share of a volume, with its sessions.
    pub async fn unshare(&self, name: &str, iqn: &str) {
        if let Err(error) = self.targets().remove(iqn).await {
            tracing::warn!("{error}");
        }
        self.set_sharing(name, Sharing::Off);
    }

    /// Lets the share of a volume follow it to another name: a target that is named after the
    /// volume is another one then.
    pub async fn share_renamed(&self, open: &OpenPool, name: &str) -> Result<(), Failure> {
        match self.sharing_of(name) {
            Sharing::On { iqn, words, .. } if words.iqn.is_none() => {
                self.unshare(name, &iqn).await;
                self.share_volume(open, name).await
            }
            Sharing::On { reservations, .. } => {
                reservations.renamed(name);
                Ok(())
            }
            Sharing::Off | Sharing::Refused { .. } => Ok(()),
        }
    }

    /// Shares or unshares the volumes that a secret is about as the secrets say now. Pools do not
    /// wait for each other.
    async fn follow_secret(&self, secret: &str) {
        let pools = self.pools.all();
        let all = pools.iter().map(|open| async {
            let names = self.below(&open.pool.name()).into_iter();
            let is_meant = |name: &String| match self.sharing_of(name) {
                Sharing::Off => false,
                Sharing::On { words, .. } => words.uses(secret),
                Sharing::Refused { .. } => true,
            };
            let names: Vec<String> = names.filter(is_meant).collect();
            if names.is_empty() {
                return;
            }
            let _admin = open.admin.lock().await;
            for name in names {
                if let Err(failure) = self.share_volume(open, &name).await {
                    tracing::warn!("{failure}");
                }
            }
        });
        futures::future::join_all(all).await;
    }

    /// `millpond iscsi secret set`.
    pub async fn secret_set(
        &self,
        call: IscsiSecretSet,
        random: &dyn Random,
    ) -> Result<IscsiSecretSetReply, Failure> {
        let doing = format!("cannot set secret '{}'", call.name);
        let generated = match call.secret {
            None => Some(generate(random)),
            Some(_) => None,
        };
        let secret = call.secret.or_else(|| generated.clone());
        let old = self.secrets.get(&call.name).ok();
        let user = call.user.or(old.map(|old| old.user));
        let credentials = Credentials {
            user: user.unwrap_or_else(|| call.name.clone()),
            secret: secret.unwrap_or_default(),
        };
        let user = credentials.user.clone();
        let set = self.secrets.set(&call.name, credentials);
        let warning = set.map_err(|failure| {
            Failure::new(failure.kind, format!("{doing}: {}", failure.message))
        })?;
        self.follow_secret(&call.name).await;
        Ok(IscsiSecretSetReply {
            user,
            generated,
            warning,
        })
    }

    /// `millpond iscsi secret list`.
    pub fn secret_list(&self, _: &IscsiSecretList) -> Result<IscsiSecretListReply, Failure> {
        let listed = self.secrets.list()?.into_iter();
        let secrets = listed.map(|(name, user)| IscsiSecretReport {
            used_by: self.users_of(&name),
            name,
            user,
        });
        Ok(IscsiSecretListReply {
            secrets: secrets.collect(),
        })
    }

    /// `millpond iscsi secret remove`.
    pub async fn secret_remove(&self, call: IscsiSecretRemove) -> Result<Empty, Failure> {
        let doing = format!("cannot remove secret '{}'", call.name);
        let users = self.users_of(&call.name);
        if !users.is_empty() && !call.force {
            let message = format!(
                "{doing}: {} is shared with it; set {ISCSI_PROPERTY} to something else first, or \
                 use '-f', which ends the share",
                users.join(", ")
            );
            return Err(Failure::new(FailureKind::Busy, message));
        }
        let removed = self.secrets.remove(&call.name);
        removed.map_err(|failure| {
            Failure::new(failure.kind, format!("{doing}: {}", failure.message))
        })?;
        self.follow_secret(&call.name).await;
        Ok(Empty {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_names_are_legal_and_do_not_collide() {
        assert_eq!(iqn_of("tank/vol1", 1), "iqn.2026-11.io.millpond:tank:vol1");
        let upper = iqn_of("tank/Vol1", 0xabc);
        assert_eq!(upper, "iqn.2026-11.io.millpond:tank:-ol1.0000000000000abc");
        assert_ne!(upper, iqn_of("tank/Vol1", 0xabd));
    }

    #[test]
    fn share_words_are_read_or_refused() {
        assert_eq!(parse_share("off"), Ok(None));
        assert_eq!(parse_share("on"), Ok(Some(ShareWords::default())));
        let share =
            parse_share("ro,iqn=iqn.2020-01.org.x:a,initiator=iqn.1993-08.*,chap=a,mutual=b")
                .unwrap()
                .unwrap();
        assert!(
            share.read_only
                && share.iqn.as_deref() == Some("iqn.2020-01.org.x:a")
                && share.initiators.len() == 1
        );
        assert_eq!(
            (share.chap.as_deref(), share.mutual.as_deref()),
            (Some("a"), Some("b"))
        );
        let long = parse_share("on,blocksize=4096").unwrap().unwrap();
        assert_eq!(long.block_bytes, Some(4096));
        for (typed, why) in [
            ("yes", "use on, off"),
            ("on,chap", "use on, off"),
            ("on,mutual=a", "add chap=NAME"),
            ("on,chap=a,mutual=a", "both directions"),
            ("on,chap=a,chap=b", "name one"),
            ("on,blocksize=1024", "blocksize=4096"),
        ] {
            assert!(parse_share(typed).unwrap_err().contains(why), "{typed}");
        }
    }

    #[test]
    fn who_is_not_local_has_to_prove_itself_unless_told_otherwise() {
        let open = ShareWords::default();
        let bound = parse_share("on,initiator=iqn.x").unwrap().unwrap();
        let guarded = parse_share("on,chap=a").unwrap().unwrap();
        let check = |words: &ShareWords, address: &str, is_insecure| {
            let local = "127.0.0.1:3261".parse().unwrap();
            check_openness(words, &[local, address.parse().unwrap()], is_insecure)
        };
        for local in ["127.0.0.1:3260", "[::1]:3260", "[::ffff:127.0.0.1]:3260"] {
            assert_eq!(check(&open, local, false), Ok(()));
        }
        for far in ["0.0.0.0:3260", "10.0.0.1:3260", "[::]:3260"] {
            // A name is only claimed.
            for words in [&open, &bound] {
                let refused = check(words, far, false).unwrap_err();
                assert!(
                    refused.contains("--insecure") && refused.contains("chap="),
                    "{refused}"
                );
            }
            assert_eq!(check(&guarded, far, false), Ok(()));
            assert_eq!(check(&open, far, true), Ok(()));
        }
    }
}
