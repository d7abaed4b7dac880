//! Sessions of the console: who is logged in, by the hash of the value of their cookie.
//!
//! They are in memory alone, so they end with the server. A session begins with a value of its own,
//! whatever the browser had before, so nobody can have chosen it (session fixation). It ends when
//! it was not used for [`IDLE_MAX`], after [`AGE_MAX`], when its user logs out, or gets another
//! password or role.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use device::Random;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::tokens::{Hash, hash, token};

/// How long a session lasts that is not used.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(12 * 3600);
/// How long a session lasts.
pub(super) const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most sessions of one user; the one that was not used for longest ends.
const USER_SESSIONS_MAX: usize = 32;

#[derive(Debug)]
struct Session {
    user: String,
    csrf: String,
    begun: Instant,
    used: Instant,
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.used) >= IDLE_MAX || now.duration_since(self.begun) >= AGE_MAX
    }
}

/// All sessions.
pub(super) struct Sessions {
    random: Arc<dyn Random>,
    by_hash: Mutex<HashMap<Hash, Session>>,
}

/// A session that has begun.
pub(super) struct Begun {
    /// The value of the cookie.
    pub(super) cookie: String,
    /// What the header against forged requests has.
    pub(super) csrf: String,
}

impl Sessions {
    pub(super) fn new(random: Arc<dyn Random>) -> Self {
        Self {
            random,
            by_hash: Mutex::default(),
        }
    }

    /// Begins one.
    pub(super) fn begin(&self, user: &str) -> Begun {
        let (cookie, csrf) = (token(&*self.random), token(&*self.random));
        let now = Instant::now();
        let session = Session {
            user: user.to_owned(),
            csrf: csrf.clone(),
            begun: now,
            used: now,
        };
        let mut by_hash = self.by_hash.lock();
        by_hash.retain(|_, session| !session.is_over(now));
        let mut of_user: Vec<(Instant, Hash)> = by_hash
            .iter()
            .filter(|(_, session)| session.user == user)
            .map(|(hash, session)| (session.used, *hash))
            .collect();
        of_user.sort_unstable();
        let surplus = (of_user.len() + 1).saturating_sub(USER_SESSIONS_MAX);
        for (_, oldest) in &of_user[..surplus] {
            by_hash.remove(oldest);
        }
        by_hash.insert(hash(&cookie), session);
        Begun { cookie, csrf }
    }

    /// The user of a session and what the header has, by the value of its cookie; it counts as
    /// used.
    pub(super) fn used(&self, cookie: &str) -> Option<(Hash, String, String)> {
        let key = hash(cookie);
        let now = Instant::now();
        let mut by_hash = self.by_hash.lock();
        let session = by_hash.get_mut(&key)?;
        if session.is_over(now) {
            by_hash.remove(&key);
            return None;
        }
        session.used = now;
        Some((key, session.user.clone(), session.csrf.clone()))
    }

    /// Whether a session goes on; it does not count as used.
    pub(super) fn goes_on(&self, key: &Hash) -> bool {
        let now = Instant::now();
        let by_hash = self.by_hash.lock();
        by_hash
            .get(key)
            .is_some_and(|session| !session.is_over(now))
    }

    /// Ends one.
    pub(super) fn end(&self, key: &Hash) {
        self.by_hash.lock().remove(key);
    }

    /// Ends all of a user, perhaps but one.
    pub(super) fn end_of(&self, user: &str, but: Option<&Hash>) {
        let mut by_hash = self.by_hash.lock();
        by_hash.retain(|key, session| session.user != user || Some(key) == but);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> Sessions {
        Sessions::new(device::World::system(1).random)
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_end_when_they_are_idle_or_old() {
        let sessions = sessions();
        let begun = sessions.begin("ann");
        assert_eq!(sessions.used(&begun.cookie).unwrap().1, "ann");
        tokio::time::advance(IDLE_MAX - Duration::from_secs(1)).await;
        let (key, ..) = sessions.used(&begun.cookie).unwrap();
        tokio::time::advance(IDLE_MAX).await;
        assert!(!sessions.goes_on(&key));
        assert!(sessions.used(&begun.cookie).is_none());

        let begun = sessions.begin("ann");
        let mut age = Duration::ZERO;
        while age + IDLE_MAX / 2 < AGE_MAX {
            tokio::time::advance(IDLE_MAX / 2).await;
            age += IDLE_MAX / 2;
            assert!(sessions.used(&begun.cookie).is_some(), "{age:?}");
        }
        tokio::time::advance(IDLE_MAX / 2).await;
        assert!(sessions.used(&begun.cookie).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_has_so_many_sessions_and_no_other_loses_one() {
        let sessions = sessions();
        let other = sessions.begin("bob");
        let mut all = Vec::new();
        for _ in 0..=USER_SESSIONS_MAX {
            all.push(sessions.begin("ann").cookie);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(sessions.used(&all[0]).is_none());
        assert!(
            all[1..]
                .iter()
                .all(|cookie| sessions.used(cookie).is_some())
        );
        assert!(sessions.used(&other.cookie).is_some());
        let (kept, ..) = sessions.used(&all[5]).unwrap();
        sessions.end_of("ann", Some(&kept));
        assert!(sessions.used(&all[5]).is_some() && sessions.used(&all[6]).is_none());
        sessions.end(&kept);
        assert!(sessions.used(&all[5]).is_none());
        assert!(sessions.used(&other.cookie).is_some());
        assert!(sessions.used("").is_none());
    }
}
