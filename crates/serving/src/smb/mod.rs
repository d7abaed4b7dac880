//! Filesystems on the network by SMB: which are shared and how, and Samba's server, which does it.
//!
//! The property `sharesmb` says how a mounted filesystem is shared ([`words`]). What is shared is
//! written into a configuration of our own ([`conf`]) in `smb/` of the state directory, which also
//! has everything else that Samba keeps: its users and their passwords, databases, locks, logs. Of
//! the system's Samba nothing is read or touched. The server is a child process while something is
//! shared ([`child`]). Users are Samba's ([`users`]).
//!
//! Changes are noted here and carried out by one task, which does as many at a time as there are:
//! an import of a pool with a thousand shared filesystems tells the server once or twice. Who has
//! to know that a change is carried out (an unmount, since the server's processes are in the
//! directory) waits for it.
//!
//! A share that cannot be is not there, and [`Smb::not_shared`] says why. Neither a missing Samba
//! nor a port that is taken stands in anybody's way: it is tried again later.

mod announce;
mod child;
mod clients;
mod conf;
mod logins;
mod tools;
mod users;
mod words;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::{Failure, FailureKind, NotShared, Protocol, ShareInfo};
use dataset::PropertySource;
use parking_lot::Mutex;
use serve_nfs::Policy;
use tokio::sync::watch;

use crate::Serving;
use crate::nfs::NFS_PROPERTY;
use crate::owners::{self, Claim, Owners, Present};
use child::{Keeper, Wanted};
use conf::Share;
use service::pools::{OpenPool, Pools};
pub use words::SMB_PROPERTY;
use words::Words;

/// Where SMB listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmbListen {
    /// Nowhere: nothing is shared.
    Off,
    /// At this address.
    At(SocketAddr),
    /// At this address, or at any port of it where that one is taken.
    Near(SocketAddr),
}

/// Whether a mounted filesystem is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sharing {
    /// It is, while the server runs.
    On(Share),
    /// It is meant to be, and cannot be.
    Refused(String),
}

/// What becomes of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Server {
    /// It is not needed, or about to start.
    #[default]
    Idle,
    Runs(SocketAddr),
    /// It does not run, though it should.
    Fails(String),
}

#[derive(Default)]
struct Inner {
    /// By dataset.
    sharing: BTreeMap<String, Sharing>,
    /// Of those that are shared, which mount is watched.
    watched: BTreeMap<String, u64>,
    /// Names of shares whose clients are to be sent away.
    closing: Vec<String>,
    server: Server,
    /// Where it listened last.
    address: Option<SocketAddr>,
    is_stopping: bool,
    /// Whether the task is there that carries changes out.
    is_kept: bool,
}

/// What is shared by SMB.
pub struct Smb {
    /// `smb/` of the state directory.
    directory: PathBuf,
    /// The host's name.
    host: String,
    listen: SmbListen,
    /// Everybody on the network may be let in.
    is_insecure: bool,
    inner: Mutex<Inner>,
    /// Counts changes.
    changed: watch::Sender<u64>,
    /// Up to which they are carried out.
    done: watch::Sender<u64>,
    /// One change to the users at a time.
    users: tokio::sync::Mutex<()>,
}

impl Smb {
    /// Nothing shared yet; what Samba keeps is in `smb/` of the state directory. With
    /// `is_insecure`, guests may come from everywhere.
    pub fn new(state: &Path, host: &str, listen: SmbListen, is_insecure: bool) -> Arc<Self> {
        Arc::new(Self {
            directory: state.join("smb"),
            host: host.to_owned(),
            listen,
            is_insecure,
            inner: Mutex::default(),
            changed: watch::Sender::new(0),
            done: watch::Sender::new(0),
            users: tokio::sync::Mutex::default(),
        })
    }

    fn directory(&self) -> &Path {
        &self.directory
    }

    fn host(&self) -> &str {
        &self.host
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// What the server is to do. What is to be closed is told once: a server that cannot be told is
    /// stopped, which closes all.
    fn wanted(&self) -> Wanted {
        let mut inner = self.inner.lock();
        let shares = inner.sharing.values().filter_map(|sharing| match sharing {
            Sharing::On(share) => Some(share.clone()),
            Sharing::Refused(_) => None,
        });
        Wanted {
            shares: shares.collect(),
            stop: inner.is_stopping,
            closing: std::mem::take(&mut inner.closing),
        }
    }

    fn is_done(&self, generation: u64) {
        self.done.send_replace(generation);
    }

    fn runs_at(&self, address: SocketAddr) {
        let mut inner = self.inner.lock();
        let before = std::mem::replace(&mut inner.server, Server::Runs(address));
        inner.address = Some(address);
        if before != Server::Runs(address) {
            tracing::info!("SMB listens at {address}");
        }
    }

    /// It does not run, since it is not needed, or for this reason.
    fn does_not_run(&self, why: Option<String>) {
        let now = why.map_or(Server::Idle, Server::Fails);
        let mut inner = self.inner.lock();
        if let Server::Fails(why) = &now
            && inner.server != now
        {
            tracing::warn!("nothing is shared by SMB: {why}");
        }
        inner.server = now;
    }

    /// Whether anything can be shared here.
    pub async fn is_possible(&self) -> bool {
        self.impossible().await.is_none()
    }

    /// Why nothing can be shared here; none where it can.
    async fn impossible(&self) -> Option<String> {
        if self.listen == SmbListen::Off {
            return Some(off());
        }
        if !rustix::process::geteuid().is_root() {
            return Some("SMB needs root; run the server as root".to_owned());
        }
        let found = tools::Tools::find(&self.directory.join("smb.conf")).await;
        found.err()
    }

    /// Why nothing can be shared with everybody; none where it can.
    fn no_guests(&self) -> Option<String> {
        let words = Words {
            guest: true,
            ..Words::default()
        };
        self.check_openness(&words).err()
    }

    /// Refuses to let everybody on the network in.
    fn check_openness(&self, words: &Words) -> Result<(), String> {
        let (SmbListen::At(address) | SmbListen::Near(address)) = self.listen else {
            return Ok(());
        };
        let is_loopback = address.ip().to_canonical().is_loopback();
        if self.is_insecure || is_loopback || !words.guest {
            return Ok(());
        }
        Err(format!(
            "SMB listens on {address}, where everybody could be a guest; leave out guest, or start \
             the server with --insecure"
        ))
    }

    /// An address to listen at: that of before, if it can be.
    ///
    /// # Errors
    /// Where there is none.
    async fn free_address(&self) -> Result<SocketAddr, String> {
        let (wanted, may_move) = match self.listen {
            SmbListen::Off => return Err(off()),
            SmbListen::At(address) => (address, false),
            SmbListen::Near(address) => (address, true),
        };
        let before = self.inner.lock().address;
        if let Some(before) = before
            && child::is_free(before).is_ok()
        {
            return Ok(before);
        }
        let taken = |error: std::io::Error| {
            format!(
                "SMB cannot listen at {wanted}: {error}; stop what does (the system's Samba?), or \
                 start the server with another address: --smb ADDRESS:PORT"
            )
        };
        match child::is_free(wanted) {
            Ok(()) => Ok(wanted),
            Err(_) if may_move => {
                let any = std::net::TcpListener::bind(SocketAddr::new(wanted.ip(), 0));
                any.and_then(|any| any.local_addr()).map_err(taken)
            }
            Err(error) => Err(taken(error)),
        }
    }

    /// Notes a change, which the task carries out. Answers its number.
    fn note(self: &Arc<Self>) -> u64 {
        let is_new = {
            let mut inner = self.inner.lock();
            !std::mem::replace(&mut inner.is_kept, true)
        };
        let mut number = 0;
        self.changed.send_modify(|count| {
            *count += 1;
            number = *count;
        });
        if is_new {
            let smb = Arc::clone(self);
            tokio::spawn(async move { Keeper::new(&smb).keep().await });
        }
        number
    }

    /// Waits until all changes so far are carried out, as far as they can be.
    pub async fn settle(&self) {
        let number = *self.changed.borrow();
        let mut done = self.done.subscribe();
        // An error means that this is gone, which borrows it.
        let _ = done.wait_for(|done| *done >= number).await;
    }

    /// Shares a dataset so, or not at all.
    fn set(self: &Arc<Self>, dataset: &str, sharing: Option<Sharing>) {
        let is_change = {
            let mut inner = self.inner.lock();
            if inner.is_stopping {
                return;
            }
            // Whose name it is goes on having it.
            let sharing = sharing.map(|sharing| without_clash(&inner.sharing, dataset, sharing));
            let before = inner.sharing.get(dataset).cloned();
            match &sharing {
                Some(sharing) => inner.sharing.insert(dataset.to_owned(), sharing.clone()),
                None => inner.sharing.remove(dataset),
            };
            let is_change = before != sharing;
            if let Some(Sharing::On(share)) = before
                && is_change
            {
                // Who uses it has to come again, on what terms hold then.
                inner.closing.push(share.name);
            }
            is_change
        };
        if is_change {
            self.note();
        }
    }

    /// Ends a dataset's share of this name, which is another one's now.
    fn give_up(self: &Arc<Self>, dataset: &str, share: &str, to: &str) {
        let has_it = match self.inner.lock().sharing.get(dataset) {
            Some(Sharing::On(theirs)) => theirs.name.to_lowercase() == share.to_lowercase(),
            Some(Sharing::Refused(_)) | None => false,
        };
        if has_it {
            let why = format!("share '{share}' is now that of '{to}', where it was set by hand");
            self.set(dataset, Some(Sharing::Refused(why)));
        }
    }

    /// Shares these no more. When this is done, no process of the server's is in them.
    pub async fn withdraw(self: &Arc<Self>, datasets: &[String]) {
        let mut were_shared = false;
        for dataset in datasets {
            were_shared |= matches!(self.inner.lock().sharing.get(dataset), Some(Sharing::On(_)));
            self.set(dataset, None);
        }
        if were_shared {
            self.settle().await;
        }
    }

    /// Whether a mount is to be watched from now on, as it is shared.
    fn is_to_be_watched(&self, dataset: &str, mount: u64) -> bool {
        let mut inner = self.inner.lock();
        let is_shared = matches!(inner.sharing.get(dataset), Some(Sharing::On(_)));
        is_shared && inner.watched.insert(dataset.to_owned(), mount) != Some(mount)
    }

    /// A mount is gone, whoever took it away. What it was at may be a directory of another
    /// filesystem now, which nobody wanted to share.
    fn is_gone(self: &Arc<Self>, dataset: &str, mount: u64) {
        let is_last = {
            let mut inner = self.inner.lock();
            let is_last = inner.watched.get(dataset) == Some(&mount);
            if is_last {
                inner.watched.remove(dataset);
            }
            is_last
        };
        if is_last {
            self.set(dataset, None);
        }
    }

    /// Stops the server for good.
    pub async fn stop(self: &Arc<Self>) {
        let is_kept = {
            let mut inner = self.inner.lock();
            inner.is_stopping = true;
            inner.is_kept
        };
        if is_kept {
            self.note();
            self.settle().await;
        }
    }

    /// Whether a dataset is shared, while the server runs.
    pub fn is_shared(&self, dataset: &str) -> bool {
        matches!(self.inner.lock().sharing.get(dataset), Some(Sharing::On(_)))
    }

    /// Datasets that are shared, with where they are mounted.
    pub fn shared_paths(&self) -> Vec<(String, String)> {
        let inner = self.inner.lock();
        let shared = inner.sharing.iter().filter_map(|(dataset, sharing)| {
            let Sharing::On(share) = sharing else {
                return None;
            };
            Some((dataset.clone(), share.path.display().to_string()))
        });
        shared.collect()
    }

    /// Datasets that are shared.
    pub fn shared_datasets(&self) -> Vec<String> {
        let shared = self.shared_paths().into_iter();
        shared.map(|(dataset, _)| dataset).collect()
    }

    /// What is shared.
    pub fn shares(&self) -> Vec<ShareInfo> {
        let inner = self.inner.lock();
        let Server::Runs(address) = &inner.server else {
            return Vec::new();
        };
        let shared = inner.sharing.iter().filter_map(|(dataset, sharing)| {
            let Sharing::On(share) = sharing else {
                return None;
            };
            let groups = share.words.groups.iter().map(|group| format!("@{group}"));
            Some(ShareInfo {
                protocol: Protocol::Smb,
                dataset: dataset.clone(),
                name: share.name.clone(),
                address: address.to_string(),
                other_addresses: Vec::new(),
                user: None,
                secret: None,
                mutual: None,
                only: share.words.users.iter().cloned().chain(groups).collect(),
                is_open: share.words.guest,
            })
        });
        shared.collect()
    }

    /// What is meant to be shared and is not.
    pub fn not_shared(&self) -> Vec<NotShared> {
        let inner = self.inner.lock();
        let refused = inner.sharing.iter().filter_map(|(dataset, sharing)| {
            let why = match (sharing, &inner.server) {
                (Sharing::Refused(why), _) | (Sharing::On(_), Server::Fails(why)) => why.clone(),
                (Sharing::On(_), Server::Idle) => "Samba's server is about to start".to_owned(),
                (Sharing::On(_), Server::Runs(_)) => return None,
            };
            Some(NotShared {
                protocol: Protocol::Smb,
                dataset: dataset.clone(),
                why,
            })
        });
        refused.collect()
    }

    /// Whether a filesystem that is mounted at `path` is to be shared as its property says, and can
    /// be.
    async fn sharing_as_wanted(
        self: &Arc<Self>,
        open: &OpenPool,
        name: &str,
        path: PathBuf,
        owners: &Owners,
        pools: &Pools,
    ) -> Option<Sharing> {
        let properties = open.pool.dsl().properties();
        let setting = properties.get(name, SMB_PROPERTY).await.ok()?;
        let typed = setting.value.text().unwrap_or("off");
        let from = match &setting.source {
            PropertySource::Inherited(from) => from.as_str(),
            _ => name,
        };
        let by_nfs = properties.get(name, NFS_PROPERTY).await;
        let by_nfs = by_nfs.is_ok_and(|setting| {
            let typed = setting.value.text().unwrap_or("off");
            matches!(Policy::parse(typed), Ok(Some(_)))
        });
        let share = Words::parse(typed).and_then(|words| {
            let Some(words) = words else { return Ok(None) };
            if self.listen == SmbListen::Off {
                return Err(off());
            }
            self.check_openness(&words)?;
            let share_name = words.share_name(name, from)?;
            conf::check_path(&path)?;
            Ok(Some(Share {
                name: share_name,
                path,
                words,
                by_nfs,
            }))
        });
        let share = match share {
            Ok(Some(share)) => share,
            Ok(None) => return None,
            Err(why) => return Some(Sharing::Refused(why)),
        };
        let is_received = owners::is_received(open, name, SMB_PROPERTY).await;
        let claim = Claim::new(Protocol::Smb, &share.name, open, name, is_received).await;
        let claim = match claim {
            Ok(claim) => claim,
            Err(why) => return Some(Sharing::Refused(why)),
        };
        let present = owners.present(pools, &claim).await;
        let asks = match &present {
            Present::Here(there, owner) => asks_for(there, owner, &share.name).await,
            Present::None | Present::Away(..) => None,
        };
        match owners.take(claim, present, asks) {
            Ok(None) => {}
            Ok(Some(before)) => self.give_up(&before, &share.name, name),
            Err(why) => return Some(Sharing::Refused(why)),
        }
        Some(Sharing::On(share))
    }
}

fn off() -> String {
    "SMB is off; start the server without '--smb off'".to_owned()
}

/// Refuses a share whose name another one has: to clients, case makes no difference.
fn without_clash(others: &BTreeMap<String, Sharing>, dataset: &str, sharing: Sharing) -> Sharing {
    let Sharing::On(share) = &sharing else {
        return sharing;
    };
    let name = share.name.to_lowercase();
    let clash = others.iter().find(|(other, theirs)| {
        let Sharing::On(theirs) = theirs else {
            return false;
        };
        *other != dataset && theirs.name.to_lowercase() == name
    });
    match clash {
        None => sharing,
        Some((other, _)) => Sharing::Refused(format!(
            "'{other}' is shared as '{}' already; give one of them another name with \
             {SMB_PROPERTY}=name=NAME",
            share.name
        )),
    }
}

/// Whether a filesystem's property says that it is to be shared, understood or not.
pub async fn is_meant(open: &OpenPool, name: &str) -> bool {
    let setting = open.pool.dsl().properties().get(name, SMB_PROPERTY).await;
    setting.is_ok_and(|setting| {
        let typed = setting.value.text().unwrap_or("off");
        !matches!(Words::parse(typed), Ok(None))
    })
}

/// Whether a filesystem asks for this name of a share, and then whether by a property that came
/// with a stream.
async fn asks_for(open: &OpenPool, name: &str, share: &str) -> Option<bool> {
    let properties = open.pool.dsl().properties();
    let setting = properties.get(name, SMB_PROPERTY).await.ok()?;
    let words = Words::parse(setting.value.text().unwrap_or("off")).ok()??;
    let from = match &setting.source {
        PropertySource::Inherited(from) => from.as_str(),
        _ => name,
    };
    let theirs = words.share_name(name, from).ok()?;
    match theirs.to_lowercase() == share.to_lowercase() {
        true => Some(owners::is_received(open, name, SMB_PROPERTY).await),
        false => None,
    }
}

/// Checks a value of `sharesmb` before it is set.
pub fn check_property(typed: &str) -> Result<(), Failure> {
    let checked = Words::parse(typed);
    checked
        .map(drop)
        .map_err(|why| Failure::new(FailureKind::Invalid, why))
}

impl Serving {
    /// Shares a filesystem as its property says now; not where it is not mounted. Does not wait.
    pub async fn share_by_smb(&self, open: &OpenPool, name: &str) {
        let sharing = match self.mounts.mountpoint(name) {
            Some(path) if !self.withheld.has(name, Protocol::Smb) => {
                let (owners, pools) = (&self.owners, &self.pools);
                self.smb
                    .sharing_as_wanted(open, name, path, owners, pools)
                    .await
            }
            _ => None,
        };
        self.smb.set(name, sharing);
        if let Some((mount, ended)) = self.mounts.end_of(name)
            && self.smb.is_to_be_watched(name, mount)
        {
            let (smb, name) = (Arc::clone(&self.smb), name.to_owned());
            tokio::spawn(async move {
                ended.await;
                smb.is_gone(&name, mount);
            });
        }
    }

    /// Shares these no more for now, whatever their property says.
    pub async fn withhold_smb(&self, names: &[String]) {
        for name in names {
            self.withheld.add(name, Protocol::Smb);
        }
        self.smb.withdraw(names).await;
    }

    /// Shares what is mounted at and below a dataset as its property says now. Answers what could
    /// not be.
    pub async fn follow_smb(&self, open: &OpenPool, top: &str) -> Vec<String> {
        let names = self.mounts.below(top);
        for name in &names {
            self.share_by_smb(open, name).await;
        }
        self.smb.settle().await;
        let refused = self.smb.not_shared().into_iter();
        let refused = refused.filter(|refused| names.contains(&refused.dataset));
        refused
            .map(|refused| {
                format!(
                    "'{}' is not shared by SMB: {}",
                    refused.dataset, refused.why
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(name: &str) -> Sharing {
        Sharing::On(Share {
            name: name.into(),
            path: format!("/{name}").into(),
            words: Words::default(),
            by_nfs: false,
        })
    }

    #[test]
    fn two_shares_never_have_one_name() {
        let shared = BTreeMap::from([("tank/a".to_owned(), on("Films"))]);
        let other = without_clash(&shared, "tank/b", on("films"));
        let Sharing::Refused(why) = other else {
            panic!("{other:?}");
        };
        assert!(why.contains("'tank/a'"), "{why}");
        assert_eq!(without_clash(&shared, "tank/a", on("films")), on("films"));
        assert_eq!(without_clash(&shared, "tank/b", on("music")), on("music"));
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named_or_gone_round() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let smb = |listen| Smb::new(Path::new("/nowhere"), "host", listen, false);
        let taken = smb(SmbListen::At(address)).free_address().await;
        let taken = taken.unwrap_err();
        assert!(
            taken.contains(&address.to_string()) && taken.contains("--smb"),
            "{taken}"
        );
        let near = smb(SmbListen::Near(address)).free_address().await.unwrap();
        assert_eq!(near.ip(), address.ip());
        assert_ne!(near.port(), address.port());
        drop(other);
        let free = smb(SmbListen::Near(address)).free_address().await;
        assert_eq!(free, Ok(address));
    }

    #[test]
    fn guests_from_the_network_are_let_in_only_where_that_is_said() {
        let guest = Words::parse("guest").unwrap().unwrap();
        let check = |address: &str, is_insecure, words: &Words| {
            let listen = SmbListen::At(address.parse().unwrap());
            let smb = Smb::new(Path::new("/nowhere"), "host", listen, is_insecure);
            smb.check_openness(words)
        };
        let refused = check("0.0.0.0:445", false, &guest).unwrap_err();
        assert!(refused.contains("--insecure"), "{refused}");
        check("192.0.2.1:445", false, &guest).unwrap_err();
        check("0.0.0.0:445", false, &Words::default()).unwrap();
        for (address, is_insecure) in [
            ("127.0.0.1:445", false),
            ("[::1]:445", false),
            ("0.0.0.0:445", true),
        ] {
            check(address, is_insecure, &guest).unwrap();
        }
    }
}
