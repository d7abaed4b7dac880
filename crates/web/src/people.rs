//! Users with a role, and API keys: `people.json` of the state directory ([`device::private`]).
//!
//! Of a password the file has what Argon2id makes of it, of a key its hash: a key is random, so
//! nobody finds one that has a given hash. Where the file cannot be used there is nobody, and
//! nobody can be made, so damage to it lets nobody in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use api::{ApiKeyMake, ApiKeyReport, Failure, FailureKind, Replica, Role, Secret, UserReport};
use argon2::Argon2;
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use device::Random;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::tokens::{characters, hash, hex, token};
use super::totp;
use host::table_file::FileProblem;

/// Shortest password in characters.
const PASSWORD_LENGTH_MIN: usize = 10;
/// Longest password in bytes.
const PASSWORD_BYTES_MAX: usize = 1024;
/// Longest name of a user or key in characters.
const NAME_LENGTH_MAX: usize = 64;
/// Most users, and most keys.
const COUNT_MAX: usize = 1000;
/// Passwords that are hashed at the same time: each takes 19 MiB and a CPU.
const HASHED_AT_ONCE: usize = 2;
/// What a key begins with, so that one in the wrong place is recognized.
const KEY_PREFIX: &str = "mpk_";
/// Characters of a key's id.
const KEY_ID_LENGTH: usize = 8;

/// A user with a role.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct User {
    role: Role,
    password_hash: Secret,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    totp: Option<Secret>,
    /// The last code's step: none is taken twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    totp_step: Option<u64>,
    created_s: u64,
}

/// An API key.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Key {
    id: String,
    name: String,
    role: Role,
    /// It is for replications alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replica: Option<Replica>,
    hash: String,
    made_by: Option<String>,
    created_s: u64,
    expires_s: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Stored {
    users: BTreeMap<String, User>,
    keys: Vec<Key>,
}

/// What is known since the server started.
#[derive(Debug, Default)]
struct Seen {
    logins_s: BTreeMap<String, u64>,
    uses_s: BTreeMap<String, u64>,
}

/// All users and keys.
pub(super) struct People {
    path: PathBuf,
    random: Arc<dyn Random>,
    /// What the file has, or why it is not used.
    stored: Mutex<Result<Stored, String>>,
    seen: Mutex<Seen>,
    hashing: Semaphore,
}

/// What is told of a key that is right.
#[derive(Debug)]
pub(super) struct KnownKey {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) replica: Option<Replica>,
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

fn invalid(why: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Invalid, why)
}

fn check_name(name: &str) -> Result<(), Failure> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    let length = name.chars().count();
    if (1..=NAME_LENGTH_MAX).contains(&length)
        && name.chars().all(is_allowed)
        && !name.starts_with('-')
    {
        return Ok(());
    }
    Err(invalid(format!(
        "'{name}' is not a name for a user: it has to have 1 to {NAME_LENGTH_MAX} letters, digits, \
         '-', '_', '.' and '@'"
    )))
}

fn check_password(password: &Secret) -> Result<(), Failure> {
    let length = password.0.chars().count();
    if length < PASSWORD_LENGTH_MIN || password.0.len() > PASSWORD_BYTES_MAX {
        return Err(invalid(format!(
            "a password has {PASSWORD_LENGTH_MIN} characters or more, and no more than \
             {PASSWORD_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}

fn no_such_user(name: &str) -> Failure {
    let message = format!("there is no user '{name}' who has a role");
    Failure::new(FailureKind::NotFound, message)
}

/// What is answered to whoever gives something wrong: not what of it.
pub(super) fn not_logged_in() -> Failure {
    let message = "the name or the password is wrong";
    Failure::new(FailureKind::Unauthenticated, message)
}

/// What somebody is answered who is logged in and wants another password.
pub(super) fn wrong_password() -> Failure {
    Failure::new(FailureKind::Denied, "the password until now is another one")
}

fn hashed(password: &str, salt: &[u8; 16]) -> Result<Secret, String> {
    let salt = SaltString::encode_b64(salt).map_err(|error| error.to_string())?;
    let hash = Argon2::default().hash_password(password.as_bytes(), &salt);
    let hash = hash.map_err(|error| error.to_string())?;
    Ok(Secret(hash.to_string()))
}

fn is_right(password: &str, hash: &str) -> bool {
    PasswordHash::new(hash).is_ok_and(|hash| {
        Argon2::default()
            .verify_password(password.as_bytes(), &hash)
            .is_ok()
    })
}

/// What a password is compared with where there is no such user, so that it takes as long.
fn hash_of_nobody() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| hashed("", &[0; 16]).map_or_else(|_| String::new(), |hash| hash.0.clone()))
}

impl Stored {
    /// What may be done with a key: no more than who made it may do now.
    fn role_of(&self, key: &Key) -> Option<Role> {
        if key.expires_s.is_some_and(|expires| expires <= now_s()) {
            return None;
        }
        let Some(user) = &key.made_by else {
            return Some(key.role);
        };
        let of_user = self.users.get(user)?.role;
        match &key.replica {
            // It lets in what only operators might have brought.
            Some(_) => (of_user >= Role::Operator).then_some(key.role),
            None => Some(key.role.min(of_user)),
        }
    }
}

impl People {
    /// Reads the file of a state directory.
    pub(super) fn load(directory: &Path, random: Arc<dyn Random>) -> Self {
        let path = directory.join("people.json");
        let stored = device::private::read_json(&path, "users and keys");
        let stored = stored.map_err(|error| error.to_string());
        if let Err(problem) = &stored {
            tracing::error!("{problem}");
        }
        Self {
            path,
            random,
            stored: Mutex::new(stored.map(Option::unwrap_or_default)),
            seen: Mutex::default(),
            hashing: Semaphore::new(HASHED_AT_ONCE),
        }
    }

    /// What is wrong with the file.
    pub(super) fn problem(&self) -> Option<FileProblem> {
        let stored = self.stored.lock();
        let why = stored.as_ref().err()?;
        Some(FileProblem::unread(&self.path, why))
    }

    fn look<T>(&self, look: impl FnOnce(&Stored) -> T) -> Result<T, Failure> {
        let stored = self.stored.lock();
        let stored = stored.as_ref();
        stored
            .map(look)
            .map_err(|problem| Failure::new(FailureKind::Io, problem.clone()))
    }

    /// Changes what is stored, on disk before anybody sees it.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Stored) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut stored = self.stored.lock();
        let old = stored.as_ref();
        let old = old.map_err(|problem| Failure::new(FailureKind::Io, problem.clone()))?;
        let mut new = old.clone();
        let changed = change(&mut new)?;
        device::private::write_json(&self.path, &new).map_err(|error| {
            let message = format!("{} cannot be written: {error}", self.path.display());
            Failure::new(FailureKind::Io, message)
        })?;
        *stored = Ok(new);
        Ok(changed)
    }

    /// Whether there is no user, as far as that is known.
    pub(super) fn is_empty(&self) -> bool {
        self.look(|stored| stored.users.is_empty()).unwrap_or(false)
    }

    /// What a user may do.
    pub(super) fn role_of(&self, user: &str) -> Option<Role> {
        self.look(|stored| stored.users.get(user).map(|user| user.role))
            .ok()
            .flatten()
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let _place = self.hashing.acquire().await;
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Failure::new(FailureKind::Other, error.to_string()))
    }

    async fn hash_of(&self, password: Secret) -> Result<Secret, Failure> {
        check_password(&password)?;
        let mut salt = [0; 16];
        self.random.fill(&mut salt);
        let hash = self.in_turn(move || hashed(&password.0, &salt)).await?;
        hash.map_err(|why| Failure::new(FailureKind::Other, why))
    }

    /// Whether it is a user's password.
    pub(super) async fn is_password(&self, user: &str, password: Secret) -> Result<bool, Failure> {
        if password.0.len() > PASSWORD_BYTES_MAX {
            return Ok(false);
        }
        let hash_of = |stored: &Stored| {
            let user = stored.users.get(user);
            user.map(|user| user.password_hash.0.clone())
        };
        let known = self.look(hash_of)?;
        let compared = known.clone();
        let is_right = self.in_turn(move || match compared {
            Some(hash) => is_right(&password.0, &hash),
            None => {
                let _ = is_right(&password.0, hash_of_nobody());
                false
            }
        });
        // It may have been changed meanwhile.
        Ok(is_right.await? && self.look(hash_of)? == known)
    }

    /// Checks a name, a password and the six digits where they are needed; gives the role. Digits
    /// are taken once, which is on disk before they count.
    ///
    /// # Errors
    /// [`FailureKind::Unauthenticated`], [`FailureKind::CodeNeeded`]; [`FailureKind::Io`] where
    /// that cannot be stored.
    pub(super) async fn log_in(
        &self,
        user: &str,
        password: Secret,
        code: Option<&Secret>,
    ) -> Result<Role, Failure> {
        if !self.is_password(user, password).await? {
            return Err(not_logged_in());
        }
        let found = self.look(|stored| {
            let user = stored.users.get(user);
            user.map(|user| (user.role, user.totp.clone()))
        })?;
        let (role, secret) = found.ok_or_else(not_logged_in)?;
        if let Some(secret) = secret {
            let Some(code) = code else {
                let message = "the six digits are needed as well";
                return Err(Failure::new(FailureKind::CodeNeeded, message));
            };
            self.change(|stored| {
                let user = stored.users.get_mut(user);
                let is_same = |user: &&mut User| {
                    let now = user.totp.as_ref();
                    now.is_some_and(|now| now.0 == secret.0)
                };
                let user = user.filter(is_same).ok_or_else(not_logged_in)?;
                let step = totp::step_of(&secret, &code.0, now_s(), user.totp_step);
                let step = step.ok_or_else(|| {
                    let message =
                        "the six digits are wrong, or were used before; take the next ones";
                    Failure::new(FailureKind::CodeNeeded, message)
                })?;
                user.totp_step = Some(step);
                Ok(())
            })?;
        }
        self.seen.lock().logins_s.insert(user.to_owned(), now_s());
        Ok(role)
    }

    /// Makes a user. The first one, if `is_first`, and then no other. The first one has to be an
    /// admin: nobody else could make the others, nor the console be set up any more.
    pub(super) async fn add(
        &self,
        name: &str,
        role: Role,
        password: Secret,
        is_first: bool,
    ) -> Result<(), Failure> {
        check_name(name)?;
        let password_hash = self.hash_of(password).await?;
        self.change(|stored| {
            if is_first && !stored.users.is_empty() {
                let message = "there is a user already; log in";
                return Err(Failure::new(FailureKind::Exists, message));
            }
            if stored.users.contains_key(name) {
                let message = format!("there is a user '{name}' already");
                return Err(Failure::new(FailureKind::Exists, message));
            }
            if stored.users.len() >= COUNT_MAX {
                let message = format!("there are {COUNT_MAX} users already");
                return Err(Failure::new(FailureKind::Unsupported, message));
            }
            let user = User {
                role,
                password_hash,
                totp: None,
                totp_step: None,
                created_s: now_s(),
            };
            stored.users.insert(name.to_owned(), user);
            if check_admin(stored).is_err() {
                return Err(invalid(
                    "the first user has to be an admin, who makes the others",
                ));
            }
            Ok(())
        })
    }

    /// Changes a user; gives the new secret of the six digits, if one was made.
    ///
    /// # Errors
    /// [`FailureKind::NotFound`]; [`FailureKind::Busy`] where no admin would be left.
    pub(super) async fn change_user(
        &self,
        name: &str,
        role: Option<Role>,
        password: Option<Secret>,
        totp: Option<bool>,
    ) -> Result<Option<Secret>, Failure> {
        self.role_of(name).ok_or_else(|| no_such_user(name))?;
        let password_hash = match password {
            Some(password) => Some(self.hash_of(password).await?),
            None => None,
        };
        let secret = (totp == Some(true)).then(|| totp::secret(&*self.random));
        let made = secret.clone();
        self.change(|stored| {
            let user = stored.users.get_mut(name);
            let user = user.ok_or_else(|| no_such_user(name))?;
            user.role = role.unwrap_or(user.role);
            if let Some(hash) = password_hash {
                user.password_hash = hash;
            }
            if totp.is_some() {
                user.totp = secret;
                user.totp_step = None;
            }
            check_admin(stored)
        })?;
        Ok(made)
    }

    /// Removes a user, and the keys that it made.
    ///
    /// # Errors
    /// [`FailureKind::NotFound`]; [`FailureKind::Busy`] where others, and no admin, would be left.
    pub(super) fn remove(&self, name: &str) -> Result<(), Failure> {
        self.change(|stored| {
            let removed = stored.users.remove(name);
            removed.ok_or_else(|| no_such_user(name))?;
            stored
                .keys
                .retain(|key| key.made_by.as_deref() != Some(name));
            check_admin(stored)
        })?;
        self.seen.lock().logins_s.remove(name);
        Ok(())
    }

    /// All users, by name.
    pub(super) fn users(&self) -> Result<Vec<UserReport>, Failure> {
        let seen = self.seen.lock();
        self.look(|stored| {
            let users = stored.users.iter().map(|(name, user)| UserReport {
                name: name.clone(),
                role: user.role,
                totp: user.totp.is_some(),
                created_s: user.created_s,
                last_login_s: seen.logins_s.get(name).copied(),
            });
            users.collect()
        })
    }

    /// Makes a key: its id, and the key.
    pub(super) fn make_key(
        &self,
        call: &ApiKeyMake,
        made_by: Option<&str>,
    ) -> Result<(String, Secret), Failure> {
        let (name, expires_s) = (&call.name, call.expires_s);
        let length = name.chars().count();
        if !(1..=NAME_LENGTH_MAX).contains(&length) || name.chars().any(char::is_control) {
            return Err(invalid(format!(
                "a key's name has 1 to {NAME_LENGTH_MAX} characters, and no control characters"
            )));
        }
        if expires_s.is_some_and(|expires| expires <= now_s()) {
            return Err(invalid("a key has to expire in the future"));
        }
        if let Some(Replica { dataset, .. }) = &call.replica {
            let is_name = |part: &str| {
                let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
                !part.is_empty() && part.chars().all(is_allowed)
            };
            // A whole pool would be the pools' root filesystem, which no replication makes.
            if !dataset.contains('/') || !dataset.split('/').all(is_name) {
                return Err(invalid(format!(
                    "a key for replications is for a filesystem or volume POOL/NAME; '{dataset}' \
                     is none"
                )));
            }
        }
        self.change(|stored| {
            if stored.keys.len() >= COUNT_MAX {
                let message = format!("there are {COUNT_MAX} keys already; remove some");
                return Err(Failure::new(FailureKind::Unsupported, message));
            }
            let id = loop {
                let id = format!("{KEY_PREFIX}{}", characters(&*self.random, KEY_ID_LENGTH));
                if stored.keys.iter().all(|key| key.id != id) {
                    break id;
                }
            };
            let secret = Secret(format!("{id}{}", token(&*self.random)));
            stored.keys.push(Key {
                id: id.clone(),
                name: name.to_owned(),
                role: match &call.replica {
                    Some(_) => Role::Viewer,
                    None => call.role,
                },
                replica: call.replica.clone(),
                hash: hex(&hash(&secret.0)),
                made_by: made_by.map(str::to_owned),
                created_s: now_s(),
                expires_s,
            });
            Ok((id, secret))
        })
    }

    /// The key of this value, if there is one that has not expired.
    pub(super) fn key(&self, value: &str) -> Option<KnownKey> {
        let given = hex(&hash(value));
        let found = self.look(|stored| {
            let key = stored.keys.iter().find(|key| key.hash == given)?;
            Some(KnownKey {
                id: key.id.clone(),
                name: key.name.clone(),
                role: stored.role_of(key)?,
                replica: key.replica.clone(),
            })
        });
        let found = found.ok().flatten()?;
        self.seen.lock().uses_s.insert(found.id.clone(), now_s());
        Some(found)
    }

    /// What may be done with a key, by its id, if it has not expired.
    pub(super) fn role_of_key(&self, id: &str) -> Option<Role> {
        let found = self.look(|stored| {
            let key = stored.keys.iter().find(|key| key.id == id)?;
            stored.role_of(key)
        });
        found.ok().flatten()
    }

    /// Removes a key.
    ///
    /// # Errors
    /// [`FailureKind::NotFound`].
    pub(super) fn remove_key(&self, id: &str) -> Result<(), Failure> {
        self.change(|stored| {
            let before = stored.keys.len();
            stored.keys.retain(|key| key.id != id);
            if stored.keys.len() == before {
                let message = format!("there is no API key '{id}'");
                return Err(Failure::new(FailureKind::NotFound, message));
            }
            Ok(())
        })?;
        self.seen.lock().uses_s.remove(id);
        Ok(())
    }

    /// All keys.
    pub(super) fn keys(&self) -> Result<Vec<ApiKeyReport>, Failure> {
        let seen = self.seen.lock();
        self.look(|stored| {
            let keys = stored.keys.iter().map(|key| ApiKeyReport {
                id: key.id.clone(),
                name: key.name.clone(),
                role: key.role,
                replica: key.replica.clone(),
                made_by: key.made_by.clone(),
                created_s: key.created_s,
                expires_s: key.expires_s,
                last_used_s: seen.uses_s.get(&key.id).copied(),
            });
            keys.collect()
        })
    }
}

/// Refuses to leave users without an admin. Without any user the console can be set up anew.
fn check_admin(stored: &Stored) -> Result<(), Failure> {
    let has_admin = stored.users.values().any(|user| user.role == Role::Admin);
    if has_admin || stored.users.is_empty() {
        return Ok(());
    }
    let message = "no admin would be left; make another user one first";
    Err(Failure::new(FailureKind::Busy, message))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn people(directory: &Path) -> People {
        People::load(directory, device::World::system(1).random)
    }

    fn secret(text: &str) -> Secret {
        Secret(text.into())
    }

    fn a_key(name: &str, role: Role) -> ApiKeyMake {
        ApiKeyMake {
            name: name.to_owned(),
            role,
            replica: None,
            expires_s: None,
        }
    }

    fn lasting(expires_s: Option<u64>) -> ApiKeyMake {
        ApiKeyMake {
            expires_s,
            ..a_key("x", Role::Viewer)
        }
    }

    #[tokio::test]
    async fn keys_of_replications_are_for_a_dataset_and_of_no_role() {
        let directory = tempfile::tempdir().unwrap();
        let people = people(directory.path());
        let password = || secret("a long password");
        for (name, role) in [("ann", Role::Admin), ("bob", Role::Operator)] {
            people.add(name, role, password(), false).await.unwrap();
        }
        let of = |dataset: &str| ApiKeyMake {
            replica: Some(Replica {
                dataset: dataset.to_owned(),
                keep_days: 7,
            }),
            ..a_key("replica", Role::Admin)
        };
        for bad in [
            "", "tank", "/tank/a", "tank/", "tank//a", "tank/a@b", "tank/a#b", "tank/é",
        ] {
            let refused = people.make_key(&of(bad), None).unwrap_err();
            assert_eq!(refused.kind, FailureKind::Invalid, "{bad}");
        }
        let (id, key) = people.make_key(&of("tank/a"), Some("bob")).unwrap();
        let known = people.key(&key.0).unwrap();
        assert_eq!(known.role, Role::Viewer);
        assert_eq!(
            known.replica.map(|replica| replica.dataset),
            Some("tank/a".into())
        );
        // It lets in nothing that who made it may not bring any more.
        let viewer = people.change_user("bob", Some(Role::Viewer), None, None);
        viewer.await.unwrap();
        assert!(people.key(&key.0).is_none() && people.role_of_key(&id).is_none());
    }

    #[tokio::test]
    async fn passwords_and_keys_are_known_again_and_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let first = people(directory.path());
        assert!(first.is_empty());
        let password = || secret("a long password");
        first
            .add("ann", Role::Admin, password(), true)
            .await
            .unwrap();
        let again = first.add("bob", Role::Admin, password(), true).await;
        assert_eq!(again.unwrap_err().kind, FailureKind::Exists);
        let (id, key) = first
            .make_key(&a_key("backup", Role::Viewer), Some("ann"))
            .unwrap();
        assert!(
            key.0.starts_with("mpk_") && key.0.starts_with(&id),
            "{}",
            key.0
        );
        let file = directory.path().join("people.json");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains("a long password") && !text.contains(&key.0));
        assert!(text.contains("$argon2id$"), "{text}");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);

        let people = people(directory.path());
        assert!(!people.is_empty());
        assert_eq!(
            people.log_in("ann", password(), None).await.unwrap(),
            Role::Admin
        );
        for (user, wrong) in [
            ("ann", "a long passworD"),
            ("bob", "a long password"),
            ("bob", ""),
        ] {
            let refused = people.log_in(user, secret(wrong), None).await.unwrap_err();
            assert_eq!(refused, not_logged_in(), "{user} {wrong}");
        }
        assert_eq!(people.key(&key.0).unwrap().role, Role::Viewer);
        assert!(people.key(&id).is_none() && people.key("").is_none());
        // Keys go with who made them.
        people
            .add("bob", Role::Admin, password(), false)
            .await
            .unwrap();
        people.remove("ann").unwrap();
        assert!(people.key(&key.0).is_none());
        assert!(people.role_of("ann").is_none());
    }

    #[tokio::test]
    async fn an_admin_is_left_and_keys_expire() {
        let directory = tempfile::tempdir().unwrap();
        let people = people(directory.path());
        let password = || secret("a long password");
        for role in [Role::Viewer, Role::Operator] {
            let refused = people.add("ann", role, password(), false).await;
            assert_eq!(refused.unwrap_err().kind, FailureKind::Invalid);
            assert!(people.is_empty());
        }
        people
            .add("ann", Role::Admin, password(), false)
            .await
            .unwrap();
        people
            .add("vic", Role::Viewer, password(), false)
            .await
            .unwrap();
        let refused = people.remove("ann").unwrap_err();
        assert_eq!(refused.kind, FailureKind::Busy);
        let demoted = people
            .change_user("ann", Some(Role::Viewer), None, None)
            .await;
        assert_eq!(demoted.unwrap_err().kind, FailureKind::Busy);
        people.log_in("ann", password(), None).await.unwrap();
        people.remove("vic").unwrap();
        people.remove("ann").unwrap();
        assert!(people.is_empty());
        assert!(people.make_key(&lasting(Some(now_s())), None).is_err());
        let soon = now_s() + 1;
        let (id, key) = people.make_key(&lasting(Some(soon)), None).unwrap();
        while now_s() < soon {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert!(people.key(&key.0).is_none() && people.role_of_key(&id).is_none());
    }

    #[tokio::test]
    async fn six_digits_are_asked_for_and_taken_once() {
        let directory = tempfile::tempdir().unwrap();
        let people = people(directory.path());
        let password = || secret("a long password");
        people
            .add("ann", Role::Admin, password(), false)
            .await
            .unwrap();
        let made = people
            .change_user("ann", None, None, Some(true))
            .await
            .unwrap();
        let made = made.unwrap();
        let log_in = |code: Option<String>| {
            let people = &people;
            let code = code.map(Secret);
            async move { people.log_in("ann", password(), code.as_ref()).await }
        };
        let needed = log_in(None).await.unwrap_err();
        assert_eq!(needed.kind, FailureKind::CodeNeeded);
        let code = totp::code(&made, now_s() / totp::STEP_S);
        log_in(Some(code.clone())).await.unwrap();
        assert!(log_in(Some(code.clone())).await.is_err());
        // Nor after another start.
        let again = self::people(directory.path());
        let refused = again.log_in("ann", password(), Some(&Secret(code))).await;
        assert_eq!(refused.unwrap_err().kind, FailureKind::CodeNeeded);
        // Nothing is told of it to who has not the password.
        let refused = people.log_in("ann", secret("another"), None).await;
        assert_eq!(refused.unwrap_err(), not_logged_in());
        people
            .change_user("ann", None, None, Some(false))
            .await
            .unwrap();
        log_in(None).await.unwrap();
    }

    #[tokio::test]
    async fn a_damaged_file_lets_nobody_in() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("people.json");
        std::fs::write(&file, "{\"users\": ").unwrap();
        let people = people(directory.path());
        assert!(!people.is_empty());
        let made = people
            .add("ann", Role::Admin, secret("a long password"), true)
            .await;
        assert!(made.unwrap_err().message.contains("mend or remove"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"users\": ");
    }

    #[test]
    fn names_and_passwords_that_will_not_do_are_refused() {
        for name in ["", "-x", "a b", "a\nb", "ä", "a/b", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["ann", "ann@example.org", "j.doe-2"] {
            check_name(name).unwrap();
        }
        for password in ["", "nine char", &"x".repeat(1025)] {
            assert!(check_password(&secret(password)).is_err());
        }
        check_password(&secret("ten letter")).unwrap();
    }
}
