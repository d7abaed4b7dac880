//! Who is at the other end of a connection, what they may do, and how much of the server they may
//! take.
//!
//! The kernel says who (`SO_PEERCRED`). The server's own user and root may do everything; every
//! other local user may look (what a request is: [`api::Call::ACCESS`]), as with OpenZFS, and make
//! the requests that permissions let them (`zfs allow`). Those others are many, and none of them
//! shall keep the rest from the server: each has so many connections and so many requests at work,
//! and all of them together have so many connections. Root's are not counted. Who comes over the
//! network has shown who they are, and what they may do is their role's ([`crate::gate`]).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use api::{Access, AuditEntry, AuditVia, Call, Failure, FailureKind, Replica, Role};
use parking_lot::Mutex;
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Remote, now_s};

/// Connections of all users without rights together.
const CONNECTIONS_MAX: usize = 512;
/// Connections of one of them.
const USER_CONNECTIONS_MAX: usize = 32;
/// Requests of one of them that are worked at; others wait, each on its connection.
const USER_REQUESTS_MAX: usize = 8;
/// Largest request in bytes: a command line cannot be longer.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Largest request of one of them: there are many of them, and they only ask.
const USER_REQUEST_BYTES_MAX: usize = 256 << 10;
/// How long it takes to look again where no connection can be taken.
const NEXT_TRY: Duration = Duration::from_millis(100);

/// Properties of a filesystem that tell what one user or group uses.
const OF_AN_OWNER: [&str; 4] = ["used@", "quota@", "objused@", "objquota@"];

/// Whether a user of this host may do everything: root, and whoever runs the server.
pub fn may_all(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct Caller {
    ids: Option<(u32, u32)>,
    /// The user whose connections are counted; none for who may do everything.
    counted: Option<Arc<Counted>>,
    /// Who comes over the network.
    remote: Option<Arc<Remote>>,
}

/// A connection of a user whose connections are counted.
#[derive(Debug)]
struct Counted {
    user: Arc<User>,
    _of_all: OwnedSemaphorePermit,
    _of_user: OwnedSemaphorePermit,
}

/// A user without rights.
#[derive(Debug)]
struct User {
    connections: Arc<Semaphore>,
    requests: Arc<Semaphore>,
}

impl Caller {
    /// Somebody over the network.
    pub fn remote(remote: Arc<Remote>) -> Self {
        Self {
            ids: None,
            counted: None,
            remote: Some(remote),
        }
    }

    /// Whether this is root, who runs the server, or an operator: who sees everything.
    pub fn may_change(&self) -> bool {
        match &self.remote {
            Some(remote) => remote.role >= Role::Operator,
            None => self.counted.is_none(),
        }
    }

    /// Whether they still may do what they might when they came.
    pub fn is_current(&self) -> bool {
        let remote = self.remote.as_ref();
        remote.is_none_or(|remote| remote.is_current())
    }

    /// What the key of a replication is for, where such a key says who it is.
    pub fn replica(&self) -> Option<&Replica> {
        self.remote.as_ref()?.replica.as_ref()
    }

    /// The ID of the API key that says who it is.
    pub fn key(&self) -> Option<&str> {
        self.remote.as_ref()?.key()
    }

    /// Whether this is an operator over the network, who may not do all that root may.
    pub fn is_operator(&self) -> bool {
        let remote = self.remote.as_ref();
        remote.is_some_and(|remote| remote.role == Role::Operator)
    }

    /// Whether it is a program of this host, by the socket.
    pub fn is_local(&self) -> bool {
        self.remote.is_none()
    }

    /// Whether an API key says who it is.
    pub fn has_key(&self) -> bool {
        let remote = self.remote.as_ref();
        remote.is_some_and(|remote| remote.via() == AuditVia::Key)
    }

    /// The user whose session it is.
    pub fn session_user(&self) -> Option<&str> {
        let remote = self.remote.as_ref()?;
        (remote.via() == AuditVia::Session).then_some(remote.user.as_str())
    }

    /// The record of a request of theirs.
    pub fn entry(&self, path: &str, about: Vec<String>) -> AuditEntry {
        let remote = self.remote.as_deref();
        AuditEntry {
            time_s: now_s(),
            via: remote.map_or(AuditVia::Socket, Remote::via),
            user: remote.map(|remote| remote.user.clone()),
            uid: self.ids.map(|(uid, _)| uid),
            address: remote.map(|remote| remote.address.to_canonical().to_string()),
            path: path.to_owned(),
            about,
            failure: None,
        }
    }

    /// Number of the user and of the group, where they are known.
    pub fn ids(&self) -> Option<(u32, u32)> {
        self.ids
    }

    /// User and group of one who may not do everything: theirs are the datasets that they make.
    pub fn ordinary_ids(&self) -> Option<(u32, u32)> {
        match self.may_change() {
            true => None,
            false => self.ids,
        }
    }

    /// Refuses what this caller may not ask, but by permissions (`zfs allow`).
    ///
    /// # Errors
    /// [`FailureKind::Denied`], in the words of OpenZFS.
    pub fn check<C: Call>(&self, call: &C) -> Result<(), Failure> {
        if self.remote.is_some() {
            return self.check_role(C::ROLE);
        }
        match C::ACCESS {
            Access::Change(doing) if !self.may_change() => Err(Failure::denied(&doing(call))),
            Access::Change(_) | Access::Read => Ok(()),
        }
    }

    /// Refuses what the role of who comes over the network does not let them ask, whatever it says.
    ///
    /// # Errors
    /// [`FailureKind::Denied`].
    pub fn check_role(&self, needed: Option<Role>) -> Result<(), Failure> {
        let (Some(remote), Some(needed)) = (&self.remote, needed) else {
            return Ok(());
        };
        // Of a replication's key each request says what it lets through (`Call::narrow`).
        if remote.replica.is_some() {
            return Ok(());
        }
        if remote.role >= needed {
            return Ok(());
        }
        let needed = match needed {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        };
        let message = format!("permission denied: it takes the role {needed}");
        Err(Failure::new(FailureKind::Denied, message))
    }

    /// Whether a property may be told: what others use is root's to know
    /// (`zfs_secpolicy_userspace_one`, module/zfs/zfs_ioctl.c).
    pub fn may_see(&self, property: &str) -> bool {
        if self.may_change() {
            return true;
        }
        let of = |kind: &str| {
            let rest = property.strip_prefix(kind)?;
            OF_AN_OWNER.iter().find_map(|what| rest.strip_prefix(what))
        };
        let is = |whose: &str, owner, id: Option<u32>| {
            let id = id.map(u64::from);
            id.is_some() && host::accounts::id_of(owner, whose) == id
        };
        if let Some(whose) = of("user") {
            return is(whose, api::SpaceOwner::User, self.ids.map(|(uid, _)| uid));
        }
        if let Some(whose) = of("group") {
            return is(whose, api::SpaceOwner::Group, self.ids.map(|(_, gid)| gid));
        }
        of("project").is_none()
    }

    /// Most bytes of a request.
    pub fn request_bytes_max(&self) -> usize {
        match self.may_change() {
            true => REQUEST_BYTES_MAX,
            false => USER_REQUEST_BYTES_MAX,
        }
    }

    /// Waits until a request may be worked at; it may be until what this answers is dropped.
    pub async fn place(&self) -> Place {
        let permit = match (&self.remote, &self.counted) {
            (Some(remote), _) => remote.place().await,
            (None, Some(counted)) => {
                let requests = Arc::clone(&counted.user.requests);
                requests.acquire_owned().await.ok()
            }
            (None, None) => None,
        };
        Place {
            _permit: permit,
            _counted: self.counted.clone(),
        }
    }
}

/// The place of one request among those that one may have at once. Its user is known as long as it
/// lasts, also when their connections have ended: else the next one would begin to count anew.
pub struct Place {
    _permit: Option<OwnedSemaphorePermit>,
    _counted: Option<Arc<Counted>>,
}

/// The socket, with who comes through it.
pub struct Door {
    listener: UnixListener,
    connections: Arc<Semaphore>,
    users: Mutex<HashMap<u32, Weak<User>>>,
}

impl Door {
    /// The one that this socket is.
    pub fn new(listener: UnixListener) -> Self {
        Self {
            listener,
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            users: Mutex::new(HashMap::new()),
        }
    }

    /// The next connection, of whoever may have one more.
    pub(crate) async fn accept(&self) -> (UnixStream, Caller) {
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Most likely there are no descriptors left; connections that end give some
                    // back.
                    tracing::warn!("no connection to the API is taken: {error}");
                    tokio::time::sleep(NEXT_TRY).await;
                    continue;
                }
            };
            match self.caller(&stream) {
                Some(caller) => return (stream, caller),
                None => tracing::debug!("a user has too many connections; one is closed"),
            }
        }
    }

    /// Who is at the other end; none where they have as many connections as they may.
    fn caller(&self, stream: &UnixStream) -> Option<Caller> {
        let ids = match stream.peer_cred() {
            Ok(peer) => Some((peer.uid(), peer.gid())),
            Err(error) => {
                tracing::warn!(%error, "who asks cannot be told; they may only look");
                None
            }
        };
        if ids.is_some_and(|(uid, _)| may_all(uid)) {
            return Some(Caller {
                ids,
                counted: None,
                remote: None,
            });
        }
        let user = self.user(ids.map_or(u32::MAX, |(uid, _)| counted_as(uid)));
        let counted = Counted {
            _of_all: Arc::clone(&self.connections).try_acquire_owned().ok()?,
            _of_user: Arc::clone(&user.connections).try_acquire_owned().ok()?,
            user,
        };
        Some(Caller {
            ids,
            counted: Some(Arc::new(counted)),
            remote: None,
        })
    }

    /// What a user has; those who have nothing are forgotten.
    fn user(&self, uid: u32) -> Arc<User> {
        let mut users = self.users.lock();
        if let Some(user) = users.get(&uid).and_then(Weak::upgrade) {
            return user;
        }
        users.retain(|_, user| user.strong_count() > 0);
        let user = Arc::new(User {
            connections: Arc::new(Semaphore::new(USER_CONNECTIONS_MAX)),
            requests: Arc::new(Semaphore::new(USER_REQUESTS_MAX)),
        });
        users.insert(uid, Arc::downgrade(&user));
        user
    }
}

/// The user whose connections those of a user number count as. A user who makes namespaces has
/// thousands of numbers, each of which would have as many connections.
fn counted_as(uid: u32) -> u32 {
    host::accounts::owner_of_subordinate(uid).unwrap_or(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user_of(door: &Door, uid: u32, gid: u32) -> Option<Caller> {
        let user = door.user(uid);
        let counted = Counted {
            _of_all: Arc::clone(&door.connections).try_acquire_owned().ok()?,
            _of_user: Arc::clone(&user.connections).try_acquire_owned().ok()?,
            user,
        };
        Some(Caller {
            ids: Some((uid, gid)),
            counted: Some(Arc::new(counted)),
            remote: None,
        })
    }

    fn root() -> Caller {
        Caller {
            ids: None,
            counted: None,
            remote: None,
        }
    }

    fn door() -> (tempfile::TempDir, Door) {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        (directory, Door::new(listener))
    }

    #[tokio::test]
    async fn what_changes_is_refused_with_the_words_of_openzfs() {
        let (_directory, door) = door();
        let user = user_of(&door, 1000, 100).unwrap();
        let destroy = api::ZfsDestroy {
            target: "tank/a".into(),
            ..api::ZfsDestroy::default()
        };
        let refused = user.check(&destroy).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Denied);
        assert_eq!(
            refused.message,
            "cannot destroy 'tank/a': permission denied"
        );
        user.check(&api::ZfsList::default()).unwrap();
        root().check(&destroy).unwrap();
    }

    #[tokio::test]
    async fn a_user_sees_what_is_theirs() {
        let (_directory, door) = door();
        let user = user_of(&door, 1000, 100).unwrap();
        for property in [
            "used",
            "userused@1000",
            "groupobjquota@100",
            "written@a",
            "a:b@c",
        ] {
            assert!(user.may_see(property), "{property}");
        }
        for property in [
            "userused@0",
            "userquota@1001",
            "groupused@1000",
            "projectused@1000",
        ] {
            assert!(!user.may_see(property), "{property}");
            assert!(root().may_see(property), "{property}");
        }
    }

    #[tokio::test]
    async fn one_user_does_not_keep_others_out() {
        let (_directory, door) = door();
        let mut all: Vec<Caller> = (0..USER_CONNECTIONS_MAX)
            .map(|_| user_of(&door, 1000, 100).unwrap())
            .collect();
        assert!(user_of(&door, 1000, 100).is_none());
        let other = user_of(&door, 1001, 100).unwrap();
        let mut places = Vec::new();
        for caller in &all[..USER_REQUESTS_MAX] {
            places.push(caller.place().await);
        }
        let next = all.pop().unwrap();
        let mut waiting = Box::pin(next.place());
        assert!(futures::poll!(&mut waiting).is_pending());
        assert!(other.place().await._permit.is_some());
        places.pop();
        assert!(waiting.await._permit.is_some());
        drop((all, next));
        user_of(&door, 1000, 100).unwrap();
        assert!(root().place().await._permit.is_none());
    }

    #[tokio::test]
    async fn requests_of_those_who_left_count_until_they_are_done() {
        let (_directory, door) = door();
        let mut places = Vec::new();
        for _ in 0..USER_REQUESTS_MAX {
            let caller = user_of(&door, 1000, 100).unwrap();
            places.push(caller.place().await);
        }
        let next = user_of(&door, 1000, 100).unwrap();
        let mut waiting = Box::pin(next.place());
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(places);
        assert!(waiting.await._permit.is_some());
    }
}
