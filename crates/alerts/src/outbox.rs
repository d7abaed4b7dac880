//! Messages that wait until their channel has taken them.
//!
//! Each message has its own retries. A channel that is away is tried now and then, with the message
//! that was tried least: one that it never takes, by which it breaks or hangs, holds up no other.

use std::path::{Path, PathBuf};

use api::Delivery;
use device::private::{self, FileError};
use serde::{Deserialize, Serialize};

use crate::Message;

/// Most messages that wait: the oldest are dropped for those that come.
const ENTRIES_MAX: usize = 1000;
/// How long after a try the next one comes, in seconds: at first, and at most. It doubles.
const PAUSE_FIRST_S: u64 = 60;
const PAUSE_LONGEST_S: u64 = 3600;
/// For how long a message is tried, in seconds, and at least how often: the clock may have been
/// behind when it was written.
const GIVEN_UP_AFTER_S: u64 = 7 * 24 * 3600;
const TRIES_MIN: u32 = 10;

/// When the next try comes after so many that failed.
fn next_try_s(now_s: u64, tries: u32) -> u64 {
    let pause_s = PAUSE_FIRST_S << tries.min(16);
    now_s + pause_s.min(PAUSE_LONGEST_S)
}

/// Whether a time to try again has come. One that is further off than any pause was written while
/// the clock was ahead.
fn has_come(next_s: u64, now_s: u64) -> bool {
    next_s <= now_s || next_s > now_s + PAUSE_LONGEST_S
}

/// A message on its way through one channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number.
    pub id: u64,
    /// `mail`, or the address of a web hook.
    pub channel: String,
    /// What is told.
    pub message: Message,
    tries: u32,
    next_s: u64,
    problem: Option<String>,
    /// It was refused for good, as it seems: others do not wait for it.
    #[serde(default)]
    is_refused: bool,
}

/// Why a message did not go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// For people.
    pub text: String,
    /// The channel is there, and does not want this message.
    pub is_refusal: bool,
}

/// What a channel is called where others than who set it see it: the address of a web hook may be
/// a secret.
pub fn name_of(channel: &str) -> String {
    let Some((scheme, rest)) = channel.split_once("://") else {
        return channel.to_owned();
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    format!("{scheme}://{host}")
}

/// A channel that is away: it did not take what was tried last.
#[derive(Debug, Serialize, Deserialize)]
struct Away {
    channel: String,
    /// Tries since it took something.
    tries: u32,
    next_s: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    last: u64,
    entries: Vec<Entry>,
    #[serde(default)]
    away: Vec<Away>,
}

/// What waits, and its file.
#[derive(Debug)]
pub struct Outbox {
    /// None where it is in memory alone.
    path: Option<PathBuf>,
    content: Content,
}

impl Outbox {
    /// Reads it; an empty one where there is none.
    ///
    /// # Errors
    /// When there is one that cannot be read, or is not understood.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        Ok(Self {
            path: Some(path.to_owned()),
            content: private::read_json(path, "messages that wait")?.unwrap_or_default(),
        })
    }

    /// An empty one without a file: that of who cannot read it, and must not write it over.
    pub fn in_memory() -> Self {
        Self {
            path: None,
            content: Content::default(),
        }
    }

    fn save(&self) -> Result<(), FileError> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        private::write_json(path, &self.content).map_err(FileError::write(path))
    }

    /// Takes messages, each for every channel. They are on disk then.
    ///
    /// # Errors
    /// Of the system: they are kept, but only in memory.
    pub fn add(&mut self, channels: &[String], messages: &[Message]) -> Result<(), FileError> {
        if channels.is_empty() || messages.is_empty() {
            return Ok(());
        }
        for message in messages {
            for channel in channels {
                self.content.last += 1;
                self.content.entries.push(Entry {
                    id: self.content.last,
                    channel: channel.clone(),
                    message: message.clone(),
                    tries: 0,
                    next_s: message.time_s,
                    problem: None,
                    is_refused: false,
                });
            }
        }
        let extra = self.content.entries.len().saturating_sub(ENTRIES_MAX);
        if extra > 0 {
            tracing::warn!(
                extra,
                "too many alerts wait to be sent: the oldest are dropped"
            );
            self.content.entries.drain(..extra);
        }
        self.save()
    }

    /// When an entry may be tried: what was refused does not wait for its channel.
    fn ready_s(&self, entry: &Entry) -> u64 {
        let mut away = self.content.away.iter();
        match away.find(|away| !entry.is_refused && away.channel == entry.channel) {
            Some(away) => entry.next_s.max(away.next_s),
            None => entry.next_s,
        }
    }

    /// What is due: all that was refused, and one of each channel, since those of one go out one
    /// after the other: the oldest of those that were tried least.
    pub fn due(&self, now_s: u64) -> Vec<Entry> {
        let mut due: Vec<&Entry> = Vec::new();
        for entry in &self.content.entries {
            if !has_come(self.ready_s(entry), now_s) {
                continue;
            }
            let is_before = |one: &&mut &Entry| !one.is_refused && one.channel == entry.channel;
            match due.iter_mut().find(is_before) {
                Some(before) if !entry.is_refused => {
                    if entry.tries < before.tries {
                        *before = entry;
                    }
                }
                _ => due.push(entry),
            }
        }
        due.into_iter().cloned().collect()
    }

    /// When the next one is due, in seconds since 1970.
    pub fn next_s(&self) -> Option<u64> {
        let entries = self.content.entries.iter();
        entries.map(|entry| self.ready_s(entry)).min()
    }

    /// An entry went out, or why it did not.
    ///
    /// # Errors
    /// Of the system: after a crash a message may go out again.
    pub fn settle(
        &mut self,
        id: u64,
        outcome: Result<(), Problem>,
        now_s: u64,
    ) -> Result<(), FileError> {
        let Content { entries, away, .. } = &mut self.content;
        let Some(at) = entries.iter().position(|entry| entry.id == id) else {
            return Ok(());
        };
        let channel = entries[at].channel.clone();
        let Err(problem) = outcome else {
            entries.remove(at);
            away.retain(|away| away.channel != channel);
            return self.save();
        };
        let entry = &mut entries[at];
        // It was written while the clock was ahead, and would be tried for that much longer.
        entry.message.time_s = entry.message.time_s.min(now_s);
        entry.next_s = next_try_s(now_s, entry.tries);
        entry.tries += 1;
        entry.is_refused = problem.is_refusal;
        entry.problem = Some(problem.text);
        let mut channel_tries = 0;
        if problem.is_refusal {
            away.retain(|away| away.channel != channel);
        } else {
            let at = match away.iter().position(|away| away.channel == channel) {
                Some(at) => at,
                None => {
                    away.push(Away {
                        channel: channel.clone(),
                        tries: 0,
                        next_s: now_s,
                    });
                    away.len() - 1
                }
            };
            let away = &mut away[at];
            away.next_s = next_try_s(now_s, away.tries);
            away.tries += 1;
            channel_tries = away.tries;
        }
        // While a channel is away, most of its messages are hardly tried.
        entries.retain(|entry| {
            let tries = match entry.is_refused {
                true => entry.tries,
                false => entry.tries.max(channel_tries),
            };
            let age_s = now_s.saturating_sub(entry.message.time_s);
            let stays = entry.channel != channel || age_s < GIVEN_UP_AFTER_S || tries < TRIES_MIN;
            if !stays {
                let (channel, subject) = (name_of(&entry.channel), &entry.message.subject);
                let problem = entry.problem.as_deref().unwrap_or("it was not tried");
                tracing::error!(channel, subject, problem, "an alert is not sent any more");
            }
            stays
        });
        away.retain(|away| entries.iter().any(|entry| entry.channel == away.channel));
        self.save()
    }

    /// Drops what is for channels that are none any more.
    ///
    /// # Errors
    /// Of the system.
    pub fn keep(&mut self, channels: &[String]) -> Result<(), FileError> {
        let Content { entries, away, .. } = &mut self.content;
        let before = entries.len();
        // What is set now may be what was wrong.
        away.clear();
        entries.retain(|entry| channels.contains(&entry.channel));
        for entry in entries.iter_mut() {
            entry.next_s = entry.message.time_s;
        }
        if before == 0 {
            return Ok(());
        }
        self.save()
    }

    /// What waits.
    pub fn list(&self) -> Vec<Delivery> {
        let all = self.content.entries.iter().map(|entry| Delivery {
            channel: name_of(&entry.channel),
            subject: entry.message.subject.clone(),
            since_s: entry.message.time_s,
            tries: entry.tries,
            next_s: self.ready_s(entry),
            problem: entry.problem.clone(),
        });
        all.collect()
    }
}

#[cfg(test)]
mod tests {
    use api::AlertSeverity;

    use super::*;
    use crate::Reason;

    fn away() -> Problem {
        Problem {
            text: "away".into(),
            is_refusal: false,
        }
    }

    fn message(subject: &str, time_s: u64) -> Message {
        Message {
            time_s,
            reason: Reason::Notice,
            severity: AlertSeverity::Info,
            subject: subject.to_owned(),
            text: String::new(),
            alert: None,
        }
    }

    fn outbox() -> (tempfile::TempDir, Outbox) {
        let directory = tempfile::tempdir().expect("a directory");
        let outbox = Outbox::load(&directory.path().join("outbox.json")).expect("an empty one");
        (directory, outbox)
    }

    fn due(outbox: &Outbox, now_s: u64) -> Vec<String> {
        let due = outbox.due(now_s).into_iter();
        due.map(|entry| format!("{} {}", entry.channel, entry.message.subject))
            .collect()
    }

    /// Each channel gets all messages in order, and one that is away holds up no other one.
    #[test]
    fn channels_are_independent_and_in_order() {
        let (_directory, mut outbox) = outbox();
        let channels = ["mail".to_owned(), "hook".to_owned()];
        let messages = [message("a", 100), message("b", 100)];
        outbox.add(&channels, &messages).expect("stored");
        assert_eq!(due(&outbox, 100), ["mail a", "hook a"]);
        let [mail, hook] = outbox.due(100).try_into().expect("two");
        outbox.settle(mail.id, Err(away()), 100).expect("stored");
        outbox.settle(hook.id, Ok(()), 100).expect("stored");
        assert_eq!(due(&outbox, 101), ["hook b"]);
        assert_eq!(due(&outbox, 160), ["mail b", "hook b"]);
        let again = outbox.due(160).remove(0);
        outbox.settle(again.id, Err(away()), 160).expect("stored");
        assert_eq!(due(&outbox, 279), ["hook b"]);
        assert_eq!(due(&outbox, 280), ["mail a", "hook b"]);
        let waiting = outbox.list();
        assert_eq!(
            (waiting[0].tries, waiting[0].problem.as_deref()),
            (1, Some("away"))
        );
        assert_eq!(waiting[0].next_s, 280);
    }

    /// A message by which its channel breaks or hangs, every time, holds up no other.
    #[test]
    fn a_message_that_is_never_taken_holds_up_nothing() {
        let (_directory, mut outbox) = outbox();
        let messages = [message("bad", 100), message("b", 100), message("c", 100)];
        outbox.add(&["hook".into()], &messages).expect("stored");
        let (mut now_s, mut sent) = (100, Vec::new());
        for _ in 0..4 {
            now_s = outbox.next_s().expect("something waits").max(now_s);
            let entry = outbox.due(now_s).remove(0);
            let outcome = match &*entry.message.subject {
                "bad" => Err(away()),
                subject => {
                    sent.push(subject.to_owned());
                    Ok(())
                }
            };
            outbox.settle(entry.id, outcome, now_s).expect("stored");
        }
        assert_eq!((&sent[..], now_s), (&["b".into(), "c".into()][..], 160));
        let waiting = outbox.list();
        assert_eq!((waiting.len(), waiting[0].tries), (1, 2));
    }

    /// What was written while the clock was ahead goes out when it was set right, and what was
    /// written while it was behind is tried more than once.
    #[test]
    fn the_clock_may_have_been_wrong() {
        let (_directory, mut outbox) = outbox();
        let (now_s, year_s) = (50 * 365 * 86_400, 365 * 86_400);
        let messages = [message("ahead", now_s + year_s), message("behind", 1)];
        outbox.add(&["mail".into()], &messages).expect("stored");
        for _ in 0..2 {
            let id = outbox.due(now_s)[0].id;
            let refused = Problem {
                text: "later".into(),
                is_refusal: true,
            };
            outbox.settle(id, Err(refused), now_s).expect("stored");
        }
        assert_eq!(outbox.list().len(), 2);
        assert!(due(&outbox, now_s + 59).is_empty());
        assert_eq!(due(&outbox, now_s + 60), ["mail ahead", "mail behind"]);
    }

    #[test]
    fn a_restart_loses_nothing() {
        let (directory, mut outbox) = outbox();
        outbox
            .add(&["mail".into()], &[message("a", 100)])
            .expect("stored");
        let first = outbox.due(100).remove(0);
        outbox.settle(first.id, Err(away()), 100).expect("stored");
        let path = directory.path().join("outbox.json");
        let mut again = Outbox::load(&path).expect("what was written");
        assert_eq!(again.list(), outbox.list());
        assert!(due(&again, 159).is_empty());
        // New settings are tried at once.
        again.keep(&["mail".into()]).expect("stored");
        assert_eq!(due(&again, 159), ["mail a"]);
        again.keep(&["hook".into()]).expect("stored");
        assert!(again.list().is_empty() && again.next_s().is_none());
    }

    /// A message that a channel does not want keeps nobody from hearing of the next one.
    #[test]
    fn what_is_refused_holds_up_nothing() {
        let (_directory, mut outbox) = outbox();
        let messages = [message("a", 100), message("b", 100), message("c", 100)];
        outbox.add(&["mail".into()], &messages).expect("stored");
        let refused = Problem {
            text: "no".into(),
            is_refusal: true,
        };
        let id = outbox.due(100)[0].id;
        outbox.settle(id, Err(refused), 100).expect("stored");
        assert_eq!(due(&outbox, 100), ["mail b"]);
        let id = outbox.due(100)[0].id;
        outbox.settle(id, Err(away()), 100).expect("stored");
        assert!(due(&outbox, 101).is_empty());
        assert_eq!(outbox.next_s(), Some(160), "what waits behind wakes nobody");
        assert_eq!(due(&outbox, 160), ["mail a", "mail c"]);
    }

    #[test]
    fn addresses_of_web_hooks_are_not_told() {
        assert_eq!(name_of("mail"), "mail");
        let (_directory, mut outbox) = outbox();
        let hook = "https://me:token@hooks.example:8443/T000/secret?key=1".to_owned();
        outbox.add(&[hook], &[message("a", 100)]).expect("stored");
        assert_eq!(outbox.list()[0].channel, "https://hooks.example:8443");
    }

    #[test]
    fn it_ends_some_time() {
        let (_directory, mut outbox) = outbox();
        outbox
            .add(&["mail".into()], &[message("a", 0)])
            .expect("stored");
        let mut now_s = 0;
        while let Some(next_s) = outbox.next_s() {
            now_s = next_s;
            let id = outbox.due(now_s)[0].id;
            outbox.settle(id, Err(away()), now_s).expect("stored");
        }
        assert!((GIVEN_UP_AFTER_S..GIVEN_UP_AFTER_S + PAUSE_LONGEST_S).contains(&now_s));
        // Of a channel that is away each is hardly tried, and does not stay longer.
        let many: Vec<Message> = (0..50).map(|at| message(&at.to_string(), 0)).collect();
        outbox.add(&["mail".into()], &many).expect("stored");
        let mut tries = 0;
        now_s = 0;
        while let Some(next_s) = outbox.next_s() {
            now_s = next_s.max(now_s);
            let id = outbox.due(now_s)[0].id;
            outbox.settle(id, Err(away()), now_s).expect("stored");
            tries += 1;
        }
        assert!((GIVEN_UP_AFTER_S..GIVEN_UP_AFTER_S + PAUSE_LONGEST_S).contains(&now_s));
        assert!(tries < 200, "{tries}");
        let many: Vec<Message> = (0..1200).map(|at| message(&at.to_string(), 1)).collect();
        outbox.add(&["mail".into()], &many).expect("stored");
        assert_eq!(outbox.list().len(), ENTRIES_MAX);
        assert_eq!(outbox.list()[0].subject, "200");
    }
}
