//! Alerts for people who do not look: mails and web hooks.
//!
//! The daemon looks at its pools and disks now and then, and whenever something happens, and says
//! what it found ([`found_in`], [`found_in_disk`]). The [`Book`] knows which alerts stood before:
//! what is new is told, what is gone is told as well, and what stays is told again after a day.
//! What is told is a [`Message`],
//! in words for people ([`words`]: the one place above the command lines that has any). Messages go
//! to the [`Outbox`], which keeps them on disk until every channel has taken them, so that neither
//! a restart nor a mail server that is away loses one. [`send`] is what talks to mail servers and
//! web hooks; it blocks.
//!
//! Everything but [`send`] and the files is free of clocks and I/O: who calls gives the time.
//!
//! Files: `alerts.json` in the state directory holds the settings, `alerts-secrets.json` what is
//! secret of them, `alerts-book.json` the alerts that stand, `alerts-outbox.json` the messages that
//! wait. Each is its owner's alone, and replaced whole (written beside, synced, renamed).

#![forbid(unsafe_code)]

mod book;
mod disks;
mod found;
mod outbox;
pub mod send;
mod settings;
pub mod words;

pub use book::{Book, Known};
pub use device::private::FileError;
pub use disks::{found_in_disk, temperature_limit_c};
pub use found::found_in;
pub use outbox::{Entry, Outbox, Problem, name_of};
pub use settings::{Kept, SettingsError};

use api::AlertSeverity;
use serde::{Deserialize, Serialize};

/// Why a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It has not been so before.
    Raised,
    /// It is still so.
    Reminder,
    /// It is not so any more.
    Recovered,
    /// It happened.
    Notice,
    /// How everything is.
    Report,
    /// Somebody wants to see whether it arrives.
    Test,
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// When it was written, in seconds since 1970.
    pub time_s: u64,
    /// Why.
    pub reason: Reason,
    /// How bad it is.
    pub severity: AlertSeverity,
    /// In one line.
    pub subject: String,
    /// All of it.
    pub text: String,
    /// The alert, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alert: Option<api::Alert>,
}
