//! A certificate of an authority, got and renewed by ACME (RFC 8555), where the settings want one.
//!
//! Kept in the state directory, each file replaced whole ([`device::private`]): `certificate.json`
//! (the settings), `acme-account.json` (the account and its key, [`order`]) and
//! `acme-certificate.json` (the certificate with its key). One that was got is on disk before any
//! connection gets it. A crash before leaves the one that there was, and another one is got: some
//! authorities count how many a name has had in a week.
//!
//! [`due_s`] decides when: at once where there is none for these settings, else at two thirds of
//! its time, and after failures later and later. The certificate that there is stays until another
//! one is there.
//!
//! Locks: `working` (held across awaits: one is got at a time), then `state`, short.

mod answers;
mod http;
mod order;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::{
    AcmeProgress, AcmeSettings, Alert, AlertFact, AlertRule, AlertSeverity, Failure, FailureKind,
    Guid,
};
use parking_lot::Mutex;
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::people::now_s;
use super::tls::{Certificate, Validity, certified};
use device::private::{self, FileError};
use host::table_file::FileProblem;
use order::{Buyer, Got};

/// The file of settings.
const SETTINGS: &str = "certificate.json";
/// How often it is looked at whether one is due.
const LOOKS: Duration = Duration::from_secs(10);
/// Longest time that getting one may take.
const WHOLE: Duration = Duration::from_secs(600);
/// How long after a failure it is tried again, in seconds: at first, and at most. It doubles.
const PAUSE_FIRST_S: u64 = 5 * 60;
const PAUSE_LONGEST_S: u64 = 12 * 3600;
/// Into how many parts the time is cut that a certificate is good for, where tries are to be no
/// further apart than one of them: some are good for a day only.
const PAUSE_PART: u64 = 24;
/// Failures, one after the other, from which on somebody is told.
const TOLD_FAILURES: u32 = 2;
/// Most names.
const NAMES_MAX: usize = 100;
/// Longest name of a host (RFC 1035, section 2.3.4), and of a part of it.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;
/// Longest other text of the settings, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// What the file of the settings has.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// None where the server's own is to be used.
    acme: Option<AcmeSettings>,
}

/// How far it is.
struct State {
    /// What the file has, or why it is not used.
    settings: Result<Option<AcmeSettings>, String>,
    /// The last one that was got, and from when to when it is good.
    got: Option<(Got, Validity)>,
    is_working: bool,
    failures: u32,
    problem: Option<String>,
    /// When it failed last.
    failed_s: u64,
}

/// Gets the certificate of a server.
pub(super) struct Acme {
    directory: PathBuf,
    state: Mutex<State>,
    working: tokio::sync::Mutex<()>,
    changed: Notify,
}

fn invalid(why: String) -> Failure {
    Failure::new(
        FailureKind::Invalid,
        format!("cannot change the certificate: {why}"),
    )
}

/// What is wrong with a name of a host, if it is: what no certificate can have, or a proof by
/// `http-01` cannot be given for.
fn check_name(name: &str) -> Result<(), String> {
    if name.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    if name.starts_with("*.") {
        return Err(format!(
            "'{name}' stands for many names, which cannot be proved at port 80; give each name"
        ));
    }
    if name.len() > NAME_BYTES_MAX || !name.split('.').all(is_label) {
        return Err(format!(
            "'{name}' is not the name of a host, as in nas.example.org, nor an address"
        ));
    }
    Ok(())
}

/// Settings as they are kept: names in small letters, each once.
fn checked(mut settings: AcmeSettings) -> Result<AcmeSettings, String> {
    let mut names: Vec<String> = Vec::new();
    for name in &settings.names {
        let name = name.trim().trim_end_matches('.').to_ascii_lowercase();
        check_name(&name)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() || names.len() > NAMES_MAX {
        return Err(format!("a certificate is for 1 to {NAMES_MAX} names"));
    }
    settings.names = names;
    let is_plain = |text: &str| {
        (1..=TEXT_BYTES_MAX).contains(&text.len())
            && !text.chars().any(|c| c.is_control() || c.is_whitespace())
    };
    if let Some(contact) = &settings.contact {
        let parts = contact.split_once('@');
        if !is_plain(contact) || parts.is_none_or(|(who, at)| who.is_empty() || at.is_empty()) {
            return Err(format!("'{contact}' is not a mail address"));
        }
    }
    if let Some(directory) = &settings.directory
        && (!is_plain(directory) || !directory.starts_with("https://"))
    {
        return Err(format!(
            "'{directory}' is not the address of a directory: https://..."
        ));
    }
    if let Some(file) = &settings.ca_file
        && !Path::new(file).is_absolute()
    {
        return Err(format!("'{file}' is not the whole path of a file: /..."));
    }
    if let Some(listen) = &settings.listen
        && listen.parse::<SocketAddr>().is_err()
    {
        return Err(format!(
            "'{listen}' is not an address and a port, as in 192.0.2.1:80"
        ));
    }
    Ok(settings)
}

/// When one is got next, in seconds since 1970, for certificates of this time, of which there is
/// none where there is none for the settings.
fn due_s(validity: Option<Validity>, failures: u32, failed_s: u64) -> u64 {
    let wanted_s = validity.map_or(0, |validity| {
        // In two steps: no sum of three such numbers is to overflow.
        validity.begin_s.saturating_add(validity.good_s() / 3 * 2)
    });
    if failures == 0 {
        return wanted_s;
    }
    let part_s = validity.map_or(u64::MAX, |validity| validity.good_s() / PAUSE_PART);
    let longest_s = part_s.clamp(PAUSE_FIRST_S, PAUSE_LONGEST_S);
    let pause_s = (PAUSE_FIRST_S << (failures - 1).min(16)).min(longest_s);
    wanted_s.max(failed_s.saturating_add(pause_s))
}

/// A certificate that was got, as connections get it.
fn usable(got: &Got) -> Result<(CertifiedKey, Validity), String> {
    let key = certified(got.chain.as_bytes(), got.key.0.as_bytes());
    let key = key.map_err(|(_, why)| format!("the certificate that came is not used: {why}"))?;
    let validity = key.cert.first().and_then(Validity::of);
    let validity = validity.ok_or("the certificate that came is not understood")?;
    Ok((key, validity))
}

impl State {
    /// The time of the one that was got, where it is what the settings want.
    fn validity(&self, settings: &AcmeSettings) -> Option<Validity> {
        let (got, validity) = self.got.as_ref()?;
        let is_it = got.names == settings.names && got.directory == order::directory(settings);
        is_it.then_some(*validity)
    }

    /// The last one that was got.
    fn chain(&self) -> Option<String> {
        self.got.as_ref().map(|(got, _)| got.chain.clone())
    }

    fn due_s(&self) -> Option<u64> {
        let settings = self.settings.as_ref().ok()?.as_ref()?;
        Some(due_s(self.validity(settings), self.failures, self.failed_s))
    }
}

impl Acme {
    /// Reads what the state directory has.
    pub(super) fn load(directory: &Path) -> Self {
        let path = directory.join(SETTINGS);
        let kept = private::read_json::<Kept>(&path, "settings of the certificate");
        let settings = kept.map(|kept| kept.unwrap_or_default().acme);
        let settings = settings.map_err(|error| error.to_string());
        if let Err(problem) = &settings {
            tracing::error!("{problem}");
        }
        let path = directory.join("acme-certificate.json");
        let got = private::read_json::<Got>(&path, "keys of a certificate");
        let got = got.map_err(|error| error.to_string());
        let got = got.and_then(|got| {
            let with_time = |got: Got| usable(&got).map(|(_, validity)| (got, validity));
            got.map(with_time).transpose()
        });
        let got = got.unwrap_or_else(|problem| {
            tracing::error!("{problem}; another one is got");
            None
        });
        Self {
            directory: directory.to_owned(),
            state: Mutex::new(State {
                settings,
                got,
                is_working: false,
                failures: 0,
                problem: None,
                failed_s: 0,
            }),
            working: tokio::sync::Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// What is wrong with the file of settings.
    pub(super) fn file_problem(&self) -> Option<FileProblem> {
        let state = self.state.lock();
        let why = state.settings.as_ref().err()?;
        Some(FileProblem::unread(&self.directory.join(SETTINGS), why))
    }

    /// What is set.
    pub(super) fn settings(&self) -> Result<Option<AcmeSettings>, Failure> {
        let state = self.state.lock();
        let settings = state.settings.clone();
        settings.map_err(|problem| Failure::new(FailureKind::Io, problem))
    }

    /// How it goes.
    pub(super) fn progress(&self) -> AcmeProgress {
        let state = self.state.lock();
        AcmeProgress {
            is_working: state.is_working,
            failures: state.failures,
            problem: state.problem.clone(),
            next_s: state.due_s(),
        }
    }

    /// Why the last try failed.
    pub(super) fn problem(&self) -> Option<String> {
        self.state.lock().problem.clone()
    }

    /// What is to be told of tries that fail.
    pub(super) fn alert(&self) -> Option<Alert> {
        let state = self.state.lock();
        let settings = state.settings.as_ref().ok()?.as_ref()?;
        if state.failures < TOLD_FAILURES {
            return None;
        }
        Some(Alert {
            rule: AlertRule::Certificate,
            severity: AlertSeverity::Warning,
            pool: String::new(),
            pool_guid: Guid(0),
            disk: None,
            device_guid: None,
            fact: AlertFact::CertificateNotGot {
                names: settings.names.clone(),
                why: state.problem.clone()?,
            },
        })
    }

    /// Changes the settings. The certificate that there is stays until another one is there.
    ///
    /// # Errors
    /// When they make no sense, or cannot be stored.
    pub(super) fn set(&self, settings: Option<AcmeSettings>) -> Result<(), Failure> {
        let settings = settings.map(checked).transpose().map_err(invalid)?;
        let path = self.directory.join(SETTINGS);
        let mut state = self.state.lock();
        let kept = Kept { acme: settings };
        let written = private::write_json(&path, &kept).map_err(FileError::write(&path));
        written.map_err(|error| Failure::new(FailureKind::Io, error.to_string()))?;
        state.settings = Ok(kept.acme);
        // What is set now may be what was wrong.
        state.failures = 0;
        state.problem = None;
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Answers connections with what was got, where that is wanted and still good.
    pub(super) fn show(&self, certificate: &Certificate) {
        let state = self.state.lock();
        let is_wanted = matches!(&state.settings, Ok(Some(_)));
        let shown = match &state.got {
            Some((got, validity)) if is_wanted && validity.end_s > now_s() => {
                usable(got).map(|(key, _)| certificate.take(key))
            }
            _ if is_wanted => Ok(()),
            _ => certificate.take_own(),
        };
        if let Err(problem) = shown {
            tracing::error!("{problem}");
        }
    }

    /// Gets one now, or only where it is due; whoever gets one already is waited for.
    ///
    /// # Errors
    /// What went wrong.
    pub(super) async fn get(
        &self,
        certificate: &Certificate,
        only_if_due: bool,
    ) -> Result<(), String> {
        let before = self.state.lock().chain();
        let _alone = self.working.lock().await;
        let settings = {
            let mut state = self.state.lock();
            let settings = state.settings.clone()?;
            let settings = settings.ok_or(
                "no certificate is to be got; 'millpond certificate acme NAME' says for what",
            )?;
            // Somebody else got one meanwhile, or it is not time.
            let is_other = state.chain() != before && state.validity(&settings).is_some();
            if is_other {
                return Ok(());
            }
            if only_if_due && state.due_s().is_some_and(|due_s| due_s > now_s()) {
                return state.problem.clone().map_or(Ok(()), Err);
            }
            state.is_working = true;
            settings
        };
        let working = Working(self);
        let buyer = Buyer::new(&settings, &self.directory);
        let got = tokio::time::timeout(WHOLE, buyer.get()).await;
        let got = got.unwrap_or_else(|_| {
            Err(format!(
                "it took longer than {} minutes",
                WHOLE.as_secs() / 60
            ))
        });
        let done = got.and_then(|got| self.take(&settings, got, certificate));
        drop(working);
        let mut state = self.state.lock();
        if !matches!(&state.settings, Ok(Some(now)) if *now == settings) {
            // What came of the old settings is of no interest.
            return Err(
                "the settings were changed meanwhile; it begins anew with these".to_owned(),
            );
        }
        match &done {
            Ok(()) => {
                state.failures = 0;
                state.problem = None;
            }
            Err(problem) => {
                tracing::warn!("no certificate was got: {problem}; it is tried again");
                state.failures = state.failures.saturating_add(1);
                state.failed_s = now_s();
                state.problem = Some(problem.clone());
            }
        }
        done
    }

    /// Keeps what was got, and answers connections with it.
    fn take(
        &self,
        settings: &AcmeSettings,
        got: Got,
        certificate: &Certificate,
    ) -> Result<(), String> {
        let (key, validity) = usable(&got)?;
        if validity.end_s <= now_s() {
            return Err(
                "the certificate that came has ended already: look at the host's clock".to_owned(),
            );
        }
        let path = self.directory.join("acme-certificate.json");
        let mut state = self.state.lock();
        if !matches!(&state.settings, Ok(Some(now)) if now == settings) {
            return Ok(());
        }
        let written = private::write_json(&path, &got).map_err(FileError::write(&path));
        written.map_err(|error| error.to_string())?;
        state.got = Some((got, validity));
        certificate.take(key);
        tracing::info!(names = ?settings.names, "a certificate was got");
        Ok(())
    }

    /// Gets one whenever it is due, for ever.
    pub(super) async fn follow(self: Arc<Self>, certificate: Arc<Certificate>) {
        loop {
            self.show(&certificate);
            let due_s = self.state.lock().due_s();
            if due_s.is_some_and(|due_s| due_s <= now_s()) {
                // What went wrong is kept, and tried again when it is due.
                let _ = self.get(&certificate, true).await;
            }
            let _ = tokio::time::timeout(LOOKS, self.changed.notified()).await;
        }
    }
}

/// One is being got, until this is dropped: also where who asked went away.
struct Working<'a>(&'a Acme);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_working = false;
    }
}

#[cfg(test)]
mod tests;
