//! Messages that wait until their channel has taken them.

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
/// For how long a message is tried, in seconds.
const GIVEN_UP_AFTER_S: u64 = 7 * 24 * 3600;

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

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    last: u64,
    entries: Vec<Entry>,
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

    /// Those that may be tried: the first of each channel, as those of one go out one after the
    /// other, and what was refused.
    fn heads(&self) -> Vec<&Entry> {
        let mut heads: Vec<&Entry> = Vec::new();
        for entry in &self.content.entries {
            let is_behind = |head: &&Entry| !head.is_refused && head.channel == entry.channel;
            if entry.is_refused || !heads.iter().any(is_behind) {
                heads.push(entry);
            }
        }
        heads
    }

    /// What is due.
    pub fn due(&self, now_s: u64) -> Vec<Entry> {
        let due = self.heads().into_iter();
        due.filter(|entry| entry.next_s <= now_s).cloned().collect()
    }

    /// When the next one is due, in seconds since 1970.
    pub fn next_s(&self) -> Option<u64> {
        self.heads().iter().map(|entry| entry.next_s).min()
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
        let entries = &mut self.content.entries;
        let Some(at) = entries.iter().position(|entry| entry.id == id) else {
            return Ok(());
        };
        let entry = &mut entries[at];
        match outcome {
            Ok(()) => {
                entries.remove(at);
            }
            Err(problem) => {
                let age_s = now_s.saturating_sub(entry.message.time_s);
                if age_s >= GIVEN_UP_AFTER_S {
                    let (channel, subject) = (name_of(&entry.channel), &entry.message.subject);
                    let problem = problem.text;
                    tracing::error!(channel, subject, problem, "an alert is not sent any more");
                    entries.remove(at);
                } else {
                    let pause_s = PAUSE_FIRST_S << entry.tries.min(16);
                    entry.tries += 1;
                    entry.next_s = now_s + pause_s.min(PAUSE_LONGEST_S);
                    entry.is_refused = problem.is_refusal;
                    entry.problem = Some(problem.text);
                }
            }
        }
        self.save()
    }

    /// Drops what is for channels that are none any more.
    ///
    /// # Errors
    /// Of the system.
    pub fn keep(&mut self, channels: &[String]) -> Result<(), FileError> {
        let entries = &mut self.content.entries;
        let before = entries.len();
        entries.retain(|entry| channels.contains(&entry.channel));
        // What is set now may be what was wrong.
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
            next_s: entry.next_s,
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
        assert_eq!(due(&outbox, 160), ["mail a", "hook b"]);
        let again = outbox.due(160).remove(0);
        outbox.settle(again.id, Err(away()), 160).expect("stored");
        assert_eq!(due(&outbox, 279), ["hook b"]);
        assert_eq!(due(&outbox, 280), ["mail a", "hook b"]);
        let waiting = outbox.list();
        assert_eq!(
            (waiting[0].tries, waiting[0].problem.as_deref()),
            (2, Some("away"))
        );
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
        assert_eq!(due(&outbox, 160), ["mail a", "mail b"]);
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
        let many: Vec<Message> = (0..1200).map(|at| message(&at.to_string(), 1)).collect();
        outbox.add(&["mail".into()], &many).expect("stored");
        assert_eq!(outbox.list().len(), ENTRIES_MAX);
        assert_eq!(outbox.list()[0].subject, "200");
    }
}
