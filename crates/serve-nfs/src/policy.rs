//! What `sharenfs` asks for: who may mount, who may write, and whom users are taken for.
//!
//! The words are those of zfsprops(7) and exports(5), separated by commas; hosts in a list are
//! separated by colons, IPv6 addresses stand in brackets.
//!
//! | word | meaning |
//! |---|---|
//! | `on`, `rw` | everybody may read and write |
//! | `ro` | everybody may read |
//! | `rw=HOSTS`, `ro=HOSTS` | these hosts; without a plain `rw` or `ro`, nobody else |
//! | `root=HOSTS` | root of these hosts stays root |
//! | `root_squash` (the default), `no_root_squash` | whether root is taken for `anonuid` |
//! | `all_squash`, `no_all_squash` | whether everybody is |
//! | `anonuid=ID`, `anongid=ID`, `anon=ID` | whom; 65534 unless said |
//! | `secure` (the default), `insecure` | whether requests must come from a port below 1024 |
//! | `sec=sys` | users are believed as clients name them |
//!
//! A host is an address, a network (`10.0.0.0/8`, also with `@` before it), a name that is looked
//! up, or `*`. What the kernel's server does and this one does anyway (`sync`, `no_subtree_check`
//! and the like) is taken; what would be done otherwise than it says is refused by name.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use access::Credentials;
use device::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::rpc::Credential;

/// Who nobody is (exports(5)).
const NOBODY: u32 = 65534;
/// Longest value of the property that is read.
const WORDS_BYTES_MAX: usize = 16 << 10;
/// How long the addresses of a name are believed.
const NAME_LIFETIME: Duration = Duration::from_secs(60);
/// How long the first look-up of a name may keep somebody waiting.
const LOOKUP_PATIENCE: Duration = Duration::from_secs(5);

/// What is wrong with a value of `sharenfs`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(String);

/// A host, or many.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Everybody,
    Network { first: IpAddr, bits: u8 },
    Name(String),
}

/// Hosts of one word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Hosts(Vec<Host>);

/// What a client may do to a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Nothing: the share is not there for it.
    None,
    /// Read, and write unless `read_only`.
    Admitted {
        /// Nothing may be changed.
        read_only: bool,
        /// Its root is taken for `anonuid`.
        squashes_root: bool,
    },
}

/// What `sharenfs` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// What hosts may that no list names: `Some(true)` write, `Some(false)` read.
    others: Option<bool>,
    writers: Hosts,
    readers: Hosts,
    roots: Hosts,
    squashes_root: bool,
    squashes_all: bool,
    anonymous_uid: u32,
    anonymous_gid: u32,
    is_insecure: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            others: None,
            writers: Hosts::default(),
            readers: Hosts::default(),
            roots: Hosts::default(),
            squashes_root: true,
            squashes_all: false,
            anonymous_uid: NOBODY,
            anonymous_gid: NOBODY,
            is_insecure: false,
        }
    }
}

impl Policy {
    /// From the property; `None` where it says not to share.
    ///
    /// # Errors
    /// [`PolicyError`], which names the word that is wrong.
    pub fn parse(typed: &str) -> Result<Option<Self>, PolicyError> {
        if matches!(typed, "off" | "" | "-" | "none") {
            return Ok(None);
        }
        if typed.len() > WORDS_BYTES_MAX {
            return Err(PolicyError("sharenfs is too long; name networks".into()));
        }
        let mut policy = Self::default();
        for word in typed.split(',').map(str::trim) {
            policy.word(word)?;
        }
        let names_nobody = policy.writers.0.is_empty() && policy.readers.0.is_empty();
        if policy.others.is_none() && names_nobody {
            // Options alone, as with the kernel's server.
            policy.others = Some(true);
        }
        Ok(Some(policy))
    }

    fn word(&mut self, word: &str) -> Result<(), PolicyError> {
        let id = |text: &str| {
            let id = match text {
                // As Solaris has it: nobody is let in so.
                "-1" => Ok(NOBODY),
                text => text.parse::<u32>(),
            };
            id.map_err(|_| PolicyError(format!("'{word}' of sharenfs has no number; use an id")))
        };
        match word.split_once('=') {
            None => match word {
                "on" | "rw" => self.others = Some(true),
                "ro" => self.others = Some(false),
                "root_squash" => self.squashes_root = true,
                "no_root_squash" => self.squashes_root = false,
                "all_squash" => self.squashes_all = true,
                "no_all_squash" => self.squashes_all = false,
                "secure" => self.is_insecure = false,
                "insecure" => self.is_insecure = true,
                // What is done anyway, or more than is asked for.
                "sync" | "async" | "wdelay" | "no_wdelay" | "subtree_check"
                | "no_subtree_check" | "nosub" | "mountpoint" | "mp" | "hide" | "secure_locks"
                | "auth_nlm" | "no_acl" => {}
                _ => return Err(unsupported(word)),
            },
            Some(("rw", hosts)) => self.writers.add(hosts)?,
            Some(("ro", hosts)) => self.readers.add(hosts)?,
            Some(("root", hosts)) => self.roots.add(hosts)?,
            Some(("anonuid" | "anon", text)) => self.anonymous_uid = id(text)?,
            Some(("anongid", text)) => self.anonymous_gid = id(text)?,
            Some(("sec", "sys")) => {}
            Some(("sec", flavors)) => {
                return Err(PolicyError(format!(
                    "'sec={flavors}' of sharenfs: only sec=sys is supported, there is no Kerberos \
                     here; use sec=sys, and name the hosts that are believed with rw= or ro="
                )));
            }
            Some(_) => return Err(unsupported(word)),
        }
        Ok(())
    }

    /// Whether hosts are let in that nobody named.
    pub fn is_open_to_everybody(&self) -> bool {
        let names_all = |hosts: &Hosts| {
            hosts.0.iter().any(|host| match host {
                Host::Everybody => true,
                Host::Network { bits, .. } => *bits == 0,
                Host::Name(_) => false,
            })
        };
        self.others.is_some() || names_all(&self.writers) || names_all(&self.readers)
    }

    /// What a client at this address may do. Names are looked up where addresses do not decide.
    pub async fn admits(&self, peer: IpAddr, port: u16, names: &Names) -> Admission {
        if port >= 1024 && !self.is_insecure {
            return Admission::None;
        }
        let peer = peer.to_canonical();
        let read_only = if self.writers.has(peer, names).await {
            false
        } else if self.readers.has(peer, names).await {
            true
        } else {
            match self.others {
                Some(may_write) => !may_write,
                None => return Admission::None,
            }
        };
        let squashes_root = self.squashes_root && !self.roots.has(peer, names).await;
        Admission::Admitted {
            read_only,
            squashes_root,
        }
    }

    /// Whom a caller is taken for.
    pub fn credentials(&self, credential: &Credential, squashes_root: bool) -> Credentials {
        let nobody = || Credentials {
            uid: self.anonymous_uid,
            gid: self.anonymous_gid,
            groups: Arc::from([]),
        };
        match credential {
            Credential::Sys { .. } if self.squashes_all => nobody(),
            Credential::Sys { uid: 0, .. } if squashes_root => nobody(),
            Credential::Sys { uid, gid, groups } => {
                // Who is not root is not of root's group either (`nfsd_setuser`, fs/nfsd/auth.c).
                let squashed = |gid: u32| match gid {
                    0 if squashes_root => self.anonymous_gid,
                    // No id, to the system calls of Linux: nobody is of that number.
                    u32::MAX => self.anonymous_gid,
                    gid => gid,
                };
                let is_squashed = |gid: &u32| squashed(*gid) != *gid;
                let groups = match groups.iter().any(is_squashed) {
                    true => groups.iter().map(|gid| squashed(*gid)).collect(),
                    false => Arc::clone(groups),
                };
                let uid = match *uid {
                    u32::MAX => self.anonymous_uid,
                    uid => uid,
                };
                Credentials {
                    uid,
                    gid: squashed(*gid),
                    groups,
                }
            }
            Credential::None => nobody(),
        }
    }

    /// Hosts and networks that are named, as `showmount -e` prints them; nobody named: everybody.
    pub fn listed_hosts(&self) -> Vec<String> {
        if self.others.is_some() {
            return Vec::new();
        }
        let all = self.writers.0.iter().chain(&self.readers.0);
        all.map(|host| match host {
            Host::Everybody => "*".into(),
            Host::Network { first, bits } => match (first, bits) {
                (IpAddr::V4(_), 32) | (IpAddr::V6(_), 128) => first.to_string(),
                _ => format!("{first}/{bits}"),
            },
            Host::Name(name) => name.clone(),
        })
        .collect()
    }
}

fn unsupported(word: &str) -> PolicyError {
    PolicyError(format!(
        "'{word}' is not an option of sharenfs here; use on, off, rw, ro, rw=HOSTS, ro=HOSTS, \
         root=HOSTS, root_squash, no_root_squash, all_squash, anonuid=ID, anongid=ID, secure, \
         insecure, sec=sys, separated by commas"
    ))
}

impl Hosts {
    /// Adds what stands behind `=`.
    fn add(&mut self, typed: &str) -> Result<(), PolicyError> {
        if has_bare_colons(typed) {
            return Err(PolicyError(format!(
                "'{typed}' of sharenfs: colons are between hosts, so addresses of version 6 stand \
                 in brackets, such as [2001:db8::1] or [2001:db8::]/32"
            )));
        }
        let mut rest = typed;
        while !rest.is_empty() {
            // Colons in brackets belong to an address.
            let depth_ends = rest
                .find(']')
                .filter(|_| rest.trim_start_matches('@').starts_with('['));
            let from = depth_ends.unwrap_or(0);
            let end = rest[from..].find(':').map_or(rest.len(), |at| from + at);
            self.0.push(Host::parse(&rest[..end])?);
            rest = rest.get(end + 1..).unwrap_or("");
        }
        if self.0.is_empty() {
            return Err(PolicyError(
                "sharenfs has a list of no hosts; name one, or leave the word out".into(),
            ));
        }
        Ok(())
    }

    async fn has(&self, peer: IpAddr, names: &Names) -> bool {
        for host in &self.0 {
            let is_it = match host {
                Host::Everybody => true,
                Host::Network { first, bits } => is_within(peer, *first, *bits),
                Host::Name(name) => names.lookup(name).await.contains(&peer),
            };
            if is_it {
                return true;
            }
        }
        false
    }
}

impl Host {
    fn parse(typed: &str) -> Result<Self, PolicyError> {
        let bare = typed.strip_prefix('@');
        let text = bare.unwrap_or(typed);
        if text == "*" {
            return Ok(Host::Everybody);
        }
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let brackets = |text: &str| {
            let inner = text.strip_prefix('[')?.strip_suffix(']')?;
            inner.parse::<Ipv6Addr>().ok()
        };
        let address = match address.parse::<Ipv4Addr>() {
            Ok(address) => Some(IpAddr::V4(address)),
            Err(_) => brackets(address).map(IpAddr::V6),
        };
        if let Some(first) = address {
            let most = if first.is_ipv4() { 32 } else { 128 };
            let bits = match bits {
                None => Some(most),
                Some(text) => text.parse::<u8>().ok().or_else(|| mask_bits(text)),
            };
            let bits = bits.filter(|bits| *bits <= most);
            let bits = bits.ok_or_else(|| {
                PolicyError(format!(
                    "'{typed}' of sharenfs is no network; write it as 192.168.0.0/24"
                ))
            })?;
            return Ok(Host::Network { first, bits });
        }
        if bare.is_some() {
            return Err(PolicyError(format!(
                "'{typed}' of sharenfs is a netgroup, and netgroups are not supported; name hosts \
                 or networks"
            )));
        }
        let is_name = !text.is_empty()
            && text.len() <= 253
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if !is_name {
            return Err(PolicyError(format!(
                "'{typed}' of sharenfs is no host; use an address, a network such as \
                 192.168.0.0/24, or a name without wildcards"
            )));
        }
        Ok(Host::Name(text.to_ascii_lowercase()))
    }
}

/// Whether a list of hosts has an address of version 6 without brackets.
fn has_bare_colons(typed: &str) -> bool {
    let bare = typed
        .split('[')
        .enumerate()
        .map(|(index, part)| match index {
            0 => part,
            _ => part.split_once(']').map_or("", |(_, after)| after),
        });
    let address = typed.split('/').next().unwrap_or(typed);
    address.trim_start_matches('@').parse::<Ipv6Addr>().is_ok()
        || bare.into_iter().any(|part| part.contains("::"))
}

/// Bits of a mask written as an address.
fn mask_bits(text: &str) -> Option<u8> {
    let mask = u32::from(text.parse::<Ipv4Addr>().ok()?);
    let bits = mask.leading_ones();
    (bits + mask.trailing_zeros() >= 32).then_some(bits as u8)
}

fn is_within(peer: IpAddr, first: IpAddr, bits: u8) -> bool {
    match (peer, first) {
        (IpAddr::V4(peer), IpAddr::V4(first)) => {
            let shift = 32u32.saturating_sub(bits.into());
            (u32::from(peer) ^ u32::from(first))
                .checked_shr(shift)
                .unwrap_or(0)
                == 0
        }
        (IpAddr::V6(peer), IpAddr::V6(first)) => {
            let shift = 128u32.saturating_sub(bits.into());
            (u128::from(peer) ^ u128::from(first))
                .checked_shr(shift)
                .unwrap_or(0)
                == 0
        }
        _ => false,
    }
}

/// What a look-up comes to.
type Found = BoxFuture<'static, io::Result<Vec<IpAddr>>>;

/// What is known of a name.
struct Known {
    name: String,
    /// Those of the last look-up that found some; none before the first.
    addresses: Arc<[IpAddr]>,
    /// When the last look-up ended.
    since: Option<Instant>,
    /// Tells when the one ends that is under way.
    looking: Option<watch::Receiver<bool>>,
}

/// Addresses of names, which are looked up when they are needed and believed for a minute. Only
/// names that shares mention are looked up, never what a client sends.
///
/// A name is looked up once at a time, however long that takes (a resolver that does not answer
/// keeps a thread for half a minute), and meanwhile what was found before holds: so nobody waits
/// but those who come before a name was looked up for the first time.
pub struct Names {
    known: Arc<Mutex<Vec<Known>>>,
    find: fn(String) -> Found,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Names").finish_non_exhaustive()
    }
}

impl Default for Names {
    fn default() -> Self {
        Self::found_by(|name| {
            Box::pin(async move {
                let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
                Ok(found.map(|address| address.ip()).collect())
            })
        })
    }
}

impl Names {
    /// Names that are remembered.
    const KNOWN_MAX: usize = 1024;

    fn found_by(find: fn(String) -> Found) -> Self {
        Self {
            known: Arc::default(),
            find,
        }
    }

    async fn lookup(&self, name: &str) -> Arc<[IpAddr]> {
        let mut looking = {
            let mut known = self.known.lock();
            let at = match known.iter().position(|known| known.name == name) {
                Some(at) => at,
                None => {
                    if known.len() >= Self::KNOWN_MAX {
                        known.remove(0);
                    }
                    known.push(Known {
                        name: name.to_owned(),
                        addresses: Arc::from([]),
                        since: None,
                        looking: None,
                    });
                    known.len() - 1
                }
            };
            let known = &mut known[at];
            let is_new = known
                .since
                .is_some_and(|since| since.elapsed() < NAME_LIFETIME);
            if is_new {
                return Arc::clone(&known.addresses);
            }
            let looking = known.looking.get_or_insert_with(|| self.begin(name));
            // What was found before is better than having everybody wait.
            if known.since.is_some() {
                return Arc::clone(&known.addresses);
            }
            looking.clone()
        };
        let _ = tokio::time::timeout(LOOKUP_PATIENCE, looking.wait_for(|ended| *ended)).await;
        let known = self.known.lock();
        let found = known.iter().find(|known| known.name == name);
        found.map_or_else(|| Arc::from([]), |known| Arc::clone(&known.addresses))
    }

    /// Begins to look a name up; who gets this is told when that has ended.
    fn begin(&self, name: &str) -> watch::Receiver<bool> {
        let (ended, looking) = watch::channel(false);
        let finding = (self.find)(name.to_owned());
        let (all, name) = (Arc::clone(&self.known), name.to_owned());
        tokio::spawn(async move {
            let found = finding.await;
            if let Err(error) = &found {
                tracing::warn!(name, %error, "a host of sharenfs is not found");
            }
            let mut all = all.lock();
            if let Some(known) = all.iter_mut().find(|known| known.name == name) {
                known.looking = None;
                known.since = Some(Instant::now());
                // What was found before is better than shutting everybody out.
                if let Ok(found) = found {
                    known.addresses = found.iter().map(IpAddr::to_canonical).collect();
                }
            }
            drop(all);
            ended.send_replace(true);
        });
        looking
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    fn policy(typed: &str) -> Policy {
        Policy::parse(typed).unwrap().unwrap()
    }

    fn error(typed: &str) -> String {
        Policy::parse(typed).unwrap_err().to_string()
    }

    async fn admits(policy: &Policy, peer: &str) -> Option<(bool, bool)> {
        let peer = peer.parse().unwrap();
        match policy.admits(peer, 700, &Names::default()).await {
            Admission::None => None,
            Admission::Admitted {
                read_only,
                squashes_root,
            } => Some((read_only, squashes_root)),
        }
    }

    #[tokio::test]
    async fn hosts_are_let_in_as_named() {
        let some =
            policy("rw=10.0.0.1:@192.168.4.0/22:[2001:db8::]/32,ro=10.0.0.0/8,root=10.0.0.1");
        for (peer, expected) in [
            ("10.0.0.1", Some((false, false))),
            ("::ffff:10.0.0.1", Some((false, false))),
            ("192.168.7.255", Some((false, true))),
            ("192.168.8.0", None),
            ("10.9.8.7", Some((true, true))),
            ("2001:db8:5::1", Some((false, true))),
            ("2001:db9::1", None),
            ("127.0.0.1", None),
        ] {
            assert_eq!(admits(&some, peer).await, expected, "{peer}");
        }
        assert!(!some.is_open_to_everybody());
        let all = policy("ro,rw=localhost");
        assert_eq!(admits(&all, "127.0.0.1").await, Some((false, true)));
        assert_eq!(admits(&all, "8.8.8.8").await, Some((true, true)));
        assert!(all.is_open_to_everybody());
        assert!(policy("rw=@0.0.0.0/0").is_open_to_everybody());
        assert!(policy("all_squash").is_open_to_everybody());
        let mask = policy("rw=10.1.0.0/255.255.0.0");
        assert_eq!(admits(&mask, "10.1.2.3").await, Some((false, true)));
        assert_eq!(admits(&mask, "10.2.2.3").await, None);
        // Ports that anybody may use are not believed, unless that was asked for.
        let peer = "10.0.0.1".parse().unwrap();
        let names = Names::default();
        assert_eq!(some.admits(peer, 1024, &names).await, Admission::None);
        let open = policy("on,insecure").admits(peer, 1024, &names).await;
        assert_ne!(open, Admission::None);
    }

    #[test]
    fn users_are_taken_for_others() {
        let sys = |uid, gid, groups: &[u32]| Credential::Sys {
            uid,
            gid,
            groups: groups.into(),
        };
        let ids = |policy: &Policy, credential: &Credential, squashes_root| {
            let who = policy.credentials(credential, squashes_root);
            (who.uid, who.gid, who.groups.to_vec())
        };
        let plain = policy("on");
        assert_eq!(
            ids(&plain, &sys(0, 0, &[0, 4]), true),
            (NOBODY, NOBODY, vec![])
        );
        assert_eq!(ids(&plain, &sys(0, 0, &[0, 4]), false), (0, 0, vec![0, 4]));
        let user = sys(1000, 100, &[0, 4]);
        assert_eq!(ids(&plain, &user, true), (1000, 100, vec![NOBODY, 4]));
        let none = sys(u32::MAX, u32::MAX, &[u32::MAX, 4]);
        assert_eq!(ids(&plain, &none, false), (NOBODY, NOBODY, vec![NOBODY, 4]));
        let all = policy("on,all_squash,anonuid=7,anongid=8");
        assert_eq!(ids(&all, &user, true), (7, 8, vec![]));
        assert_eq!(ids(&all, &Credential::None, true), (7, 8, vec![]));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        assert!(error("sec=krb5").contains("krb5"));
        assert!(error("sec=sys:krb5p").contains("Kerberos"));
        assert!(error("rw=@trusted").contains("netgroup"));
        assert!(error("rw=*.example.org").contains("wildcards"));
        assert!(error("rw=10.0.0.0/33").contains("10.0.0.0/33"));
        assert!(error("rw=").contains("no hosts"));
        for bare in [
            "fe80::1",
            "10.0.0.1:fe80::1",
            "2001:db8:0:0:0:0:0:1",
            "fe80::/10",
        ] {
            assert!(error(&format!("rw={bare}")).contains("brackets"), "{bare}");
        }
        assert!(error("fsid=0").contains("fsid=0"));
        assert!(error("on,crossmnt").contains("crossmnt"));
        assert!(error("anonuid=me").contains("anonuid=me"));
        assert_eq!(Policy::parse("off"), Ok(None));
        let listed = policy("rw=10.0.0.1:@10.1.0.0/16:host").listed_hosts();
        assert_eq!(listed, ["10.0.0.1", "10.1.0.0/16", "host"]);
    }

    /// Look-ups that were begun, and whether they are answered.
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    static ANSWERS: AtomicBool = AtomicBool::new(true);

    /// Goal: a resolver that does not answer stops nobody who was let in before, and is asked once
    /// at a time. Method: one that hangs from some moment on; time is that of the test.
    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_does_not_answer_stops_nobody() {
        let names = Names::found_by(|_| {
            Box::pin(async {
                BEGUN.fetch_add(1, Ordering::SeqCst);
                while !ANSWERS.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Ok(vec!["10.0.0.1".parse().unwrap()])
            })
        });
        let share = policy("rw=host");
        let peer = "10.0.0.1".parse().unwrap();
        let begin = Instant::now();
        let is_let_in = async || share.admits(peer, 700, &names).await != Admission::None;
        assert!(is_let_in().await);
        ANSWERS.store(false, Ordering::SeqCst);
        // The answer of before holds, for those who come together and those who come later.
        for _ in 0..5 {
            tokio::time::advance(NAME_LIFETIME).await;
            let all = futures::future::join_all((0..20).map(|_| is_let_in())).await;
            assert!(all.into_iter().all(|one| one));
        }
        assert!(begin.elapsed() < 5 * NAME_LIFETIME + LOOKUP_PATIENCE);
        assert_eq!(BEGUN.load(Ordering::SeqCst), 2);
        // It is asked again once it has answered.
        ANSWERS.store(true, Ordering::SeqCst);
        tokio::time::sleep(NAME_LIFETIME + Duration::from_secs(1)).await;
        assert!(is_let_in().await);
        tokio::task::yield_now().await;
        assert_eq!(BEGUN.load(Ordering::SeqCst), 3);
        // Who comes before anything is known waits, and not for long.
        ANSWERS.store(false, Ordering::SeqCst);
        let other = policy("rw=other");
        let begin = Instant::now();
        let admits = (0..20).map(|_| other.admits(peer, 700, &names));
        let all = futures::future::join_all(admits).await;
        assert!(all.into_iter().all(|one| one == Admission::None));
        assert!(begin.elapsed() <= LOOKUP_PATIENCE + Duration::from_secs(1));
        assert_eq!(BEGUN.load(Ordering::SeqCst), 4);
    }
}
