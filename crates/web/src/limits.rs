//! How often somebody may try a wrong password.
//!
//! Wrong tries are counted per address and per user in windows. An address is shut out long before
//! a user is, so that who guesses from one place keeps only themselves out; the bound per user is
//! for guesses from many places.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use api::{Failure, FailureKind};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a wrong try counts.
const WINDOW: Duration = Duration::from_secs(15 * 60);
/// Wrong tries of an address in that time.
const ADDRESS_TRIES_MAX: u32 = 10;
/// Wrong tries with a user's name in that time.
const USER_TRIES_MAX: u32 = 50;
/// Most addresses and users that are counted; when there are more, those are forgotten whose
/// window ends first.
const COUNTED_MAX: usize = 16384;

/// Who has an IPv6 address has its whole network of 64 bits.
pub(super) fn place(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Whose {
    Address(IpAddr),
    User(String),
}

#[derive(Debug)]
struct Window {
    tries: u32,
    begun: Instant,
}

/// Wrong tries of late.
#[derive(Debug, Default)]
pub(super) struct Limits {
    windows: Mutex<HashMap<Whose, Window>>,
}

impl Limits {
    /// Counts a try before it is made, so that many at once are no way around.
    ///
    /// # Errors
    /// [`FailureKind::TooMany`].
    pub(super) fn try_once(&self, address: IpAddr, user: Option<&str>) -> Result<(), Failure> {
        let now = Instant::now();
        let mut whose = vec![(Whose::Address(place(address)), ADDRESS_TRIES_MAX)];
        whose.extend(user.map(|user| (Whose::User(user.to_owned()), USER_TRIES_MAX)));
        let mut windows = self.windows.lock();
        for (whose, max) in &whose {
            let window = windows.get(whose);
            let window = window.filter(|window| now.duration_since(window.begun) < WINDOW);
            if window.is_some_and(|window| window.tries >= *max) {
                let message = format!(
                    "too many tries with a wrong password; wait {} minutes",
                    WINDOW.as_secs() / 60
                );
                return Err(Failure::new(FailureKind::TooMany, message));
            }
        }
        if windows.len() + whose.len() > COUNTED_MAX {
            windows.retain(|_, window| now.duration_since(window.begun) < WINDOW);
        }
        if windows.len() + whose.len() > COUNTED_MAX {
            // Many at once, so that this is seldom.
            let mut begun: Vec<Instant> = windows.values().map(|window| window.begun).collect();
            let middle = begun.len() / 2;
            let (_, middle, _) = begun.select_nth_unstable(middle);
            windows.retain(|_, window| window.begun > *middle);
        }
        for (whose, _) in whose {
            let window = windows.entry(whose).or_insert(Window {
                tries: 0,
                begun: now,
            });
            if now.duration_since(window.begun) >= WINDOW {
                *window = Window {
                    tries: 0,
                    begun: now,
                };
            }
            window.tries += 1;
        }
        Ok(())
    }

    /// The try was right: it does not count, and neither do earlier ones from that address.
    pub(super) fn was_right(&self, address: IpAddr, user: Option<&str>) {
        let mut windows = self.windows.lock();
        windows.remove(&Whose::Address(place(address)));
        if let Some(user) = user
            && let Some(window) = windows.get_mut(&Whose::User(user.to_owned()))
        {
            window.tries = window.tries.saturating_sub(1);
        }
    }
}

/// How long who had too many tries has to wait at most, in seconds.
pub(super) const RETRY_AFTER_S: u64 = WINDOW.as_secs();

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_shut_out_and_let_in_again() {
        let limits = Limits::default();
        for _ in 0..ADDRESS_TRIES_MAX {
            limits.try_once(address(1), Some("ann")).unwrap();
        }
        let refused = limits.try_once(address(1), Some("bob")).unwrap_err();
        assert_eq!(refused.kind, FailureKind::TooMany);
        limits.try_once(address(2), Some("ann")).unwrap();
        tokio::time::advance(WINDOW).await;
        limits.try_once(address(1), Some("ann")).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn guesses_from_many_places_end_as_well_and_right_ones_do_not_count() {
        let limits = Limits::default();
        for n in 0..USER_TRIES_MAX {
            limits.try_once(address(n as u8), Some("ann")).unwrap();
        }
        assert!(limits.try_once(address(200), Some("ann")).is_err());
        limits.try_once(address(200), Some("bob")).unwrap();
        for _ in 0..1000 {
            limits.try_once(address(201), Some("carl")).unwrap();
            limits.was_right(address(201), Some("carl"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_counted_is_bounded() {
        let limits = Limits::default();
        for n in 0..COUNTED_MAX as u32 {
            let address = IpAddr::from((n | 0x0a00_0000).to_be_bytes());
            limits.try_once(address, Some(&format!("user{n}"))).unwrap();
            if n % 64 == 0 {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
        }
        assert!(limits.windows.lock().len() <= COUNTED_MAX);
        let one: IpAddr = "2001:db8::1".parse().unwrap();
        let other: IpAddr = "2001:db8::2:1".parse().unwrap();
        assert_eq!(place(one), place(other));
        assert_eq!(place("::ffff:192.0.2.1".parse().unwrap()), address(1));
    }
}
