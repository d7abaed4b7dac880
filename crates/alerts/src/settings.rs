//! Settings, and their file; what is secret of them lies in one of its own.

use std::path::{Path, PathBuf};

use api::{AlertSettings, AlertSettingsReply, AlertSettingsSet, Secret};
use device::private::{self, FileError};
use serde::{Deserialize, Serialize};

/// What is wrong with settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// One makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// They cannot be stored.
    #[error(transparent)]
    File(#[from] FileError),
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Secrets {
    password: Option<Secret>,
    webhook_key: Option<Secret>,
}

/// The settings that hold.
#[derive(Clone)]
pub struct Kept {
    directory: PathBuf,
    settings: AlertSettings,
    secrets: Secrets,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.settings.fmt(out)
    }
}

fn paths(directory: &Path) -> (PathBuf, PathBuf) {
    (
        directory.join("alerts.json"),
        directory.join("alerts-secrets.json"),
    )
}

/// A name of a host or a user's part of an address that no header of a mail could be made with.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| c.is_control() || c.is_whitespace())
}

fn check(settings: &AlertSettings, has_password: bool) -> Result<(), SettingsError> {
    let invalid = |why: String| Err(SettingsError::Invalid(why));
    for address in settings.to.iter().chain(&settings.from) {
        if let Err(error) = address.parse::<lettre::message::Mailbox>() {
            return invalid(format!("'{address}' is not a mail address: {error}"));
        }
    }
    if let Some(host) = &settings.smtp_host
        && !is_plain(host)
    {
        return invalid(format!("'{host}' is not the name of a host"));
    }
    if !settings.to.is_empty() && settings.smtp_host.is_none() {
        return invalid("which mail server takes the mails? Give its host".to_owned());
    }
    if has_password && settings.smtp_user.is_none() {
        return invalid("there is a password for the mail server, but no user".to_owned());
    }
    for url in &settings.webhooks {
        let is_http = url.starts_with("https://") || url.starts_with("http://");
        if !is_http || !is_plain(url) {
            return invalid(format!(
                "'{url}' is not the address of a web hook: https://..."
            ));
        }
    }
    let (low, high) = settings.space_percent;
    if low > high || high > 100 || low == 0 {
        return invalid(format!(
            "pools are told of at {low} and {high} percent: the first is to be at least 1 and at \
             most the second, and that at most 100"
        ));
    }
    if let Some(celsius) = settings.disk_temperature_c
        && !(1..=150).contains(&celsius)
    {
        return invalid(format!(
            "disks are too warm at {celsius} °C: it is to be 1 to 150"
        ));
    }
    Ok(())
}

impl Kept {
    /// Reads them.
    ///
    /// # Errors
    /// When there are some that cannot be read, or are not understood.
    pub fn load(directory: &Path) -> Result<Self, FileError> {
        let (settings, secrets) = paths(directory);
        Ok(Self {
            directory: directory.to_owned(),
            settings: private::read_json(&settings, "settings of alerts")?.unwrap_or_default(),
            secrets: private::read_json(&secrets, "secrets of alerts")?.unwrap_or_default(),
        })
    }

    /// Those of who has none.
    pub fn none(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            settings: AlertSettings::default(),
            secrets: Secrets::default(),
        }
    }

    /// What may be told of them.
    pub fn told(&self) -> AlertSettingsReply {
        AlertSettingsReply {
            settings: self.settings.clone(),
            has_password: self.secrets.password.is_some(),
            has_webhook_key: self.secrets.webhook_key.is_some(),
        }
    }

    /// The settings.
    pub fn settings(&self) -> &AlertSettings {
        &self.settings
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.secrets
            .password
            .as_ref()
            .map(|secret| secret.0.as_str())
    }

    pub(crate) fn webhook_key(&self) -> Option<&str> {
        let key = self.secrets.webhook_key.as_ref();
        key.map(|secret| secret.0.as_str())
    }

    /// The channels that messages go out by.
    pub fn channels(&self) -> Vec<String> {
        let has_mail = self.settings.smtp_host.is_some() && !self.settings.to.is_empty();
        let mail = has_mail.then(|| "mail".to_owned());
        mail.into_iter()
            .chain(self.settings.webhooks.clone())
            .collect()
    }

    /// Changes them: the file of secrets first, so that a crash in between leaves a password
    /// without a use, and no user without a password.
    ///
    /// # Errors
    /// When they make no sense or cannot be stored: then the old ones hold.
    pub fn change(&mut self, call: AlertSettingsSet) -> Result<(), SettingsError> {
        let mut secrets = self.secrets.clone();
        let set = |old: &mut Option<Secret>, new: Option<Secret>| match new {
            Some(new) if new.0.is_empty() => *old = None,
            Some(new) => *old = Some(new),
            None => {}
        };
        set(&mut secrets.password, call.password);
        set(&mut secrets.webhook_key, call.webhook_key);
        check(&call.settings, secrets.password.is_some())?;
        let (settings_path, secrets_path) = paths(&self.directory);
        let written = private::write_json(&secrets_path, &secrets);
        written.map_err(FileError::write(&secrets_path))?;
        let written = private::write_json(&settings_path, &call.settings);
        written.map_err(FileError::write(&settings_path))?;
        self.settings = call.settings;
        self.secrets = secrets;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn call(settings: AlertSettings, password: Option<&str>) -> AlertSettingsSet {
        AlertSettingsSet {
            settings,
            password: password.map(|text| Secret(text.to_owned())),
            webhook_key: None,
        }
    }

    fn mail() -> AlertSettings {
        AlertSettings {
            smtp_host: Some("mail.example".into()),
            smtp_user: Some("nas".into()),
            to: vec!["Ann <ann@example.org>".into()],
            ..AlertSettings::default()
        }
    }

    #[test]
    fn they_are_kept_and_what_is_secret_is_told_to_nobody() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut kept = Kept::load(directory.path()).expect("none yet");
        assert!(kept.channels().is_empty());
        kept.change(call(mail(), Some("hush"))).expect("stored");
        let again = Kept::load(directory.path()).expect("what was written");
        assert_eq!(again.password(), Some("hush"));
        assert_eq!(again.channels(), ["mail"]);
        assert_eq!(again.told(), kept.told());
        let told = serde_json::to_string(&again.told()).expect("JSON");
        assert!(again.told().has_password && !told.contains("hush"));
        assert!(!format!("{again:?}").contains("hush"));
        for name in ["alerts.json", "alerts-secrets.json"] {
            let found = directory.path().join(name).metadata().expect("a file");
            assert_eq!(found.mode() & 0o777, 0o600);
        }
        kept.change(call(mail(), None)).expect("stored");
        assert_eq!(kept.password(), Some("hush"), "not given is not changed");
        kept.change(call(mail(), Some(""))).expect("stored");
        assert_eq!(kept.password(), None);
    }

    #[test]
    fn nonsense_is_refused_and_changes_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut kept = Kept::load(directory.path()).expect("none yet");
        kept.change(call(mail(), None)).expect("stored");
        let change = |change: &dyn Fn(&mut AlertSettings)| {
            let mut settings = mail();
            change(&mut settings);
            settings
        };
        for bad in [
            change(&|s| s.to.push("nobody".into())),
            change(&|s| s.to.push("a@b\r\nBcc: c@d".into())),
            change(&|s| s.from = Some("".into())),
            change(&|s| s.smtp_host = None),
            change(&|s| s.smtp_host = Some("a b".into())),
            change(&|s| s.webhooks = vec!["file:///etc/passwd".into()]),
            change(&|s| s.webhooks = vec!["https://a b".into()]),
            change(&|s| s.space_percent = (95, 90)),
            change(&|s| s.space_percent = (80, 101)),
            change(&|s| s.disk_temperature_c = Some(-5)),
        ] {
            let refused = kept.change(call(bad.clone(), None));
            assert!(matches!(refused, Err(SettingsError::Invalid(_))), "{bad:?}");
        }
        let userless = change(&|s| s.smtp_user = None);
        assert!(kept.change(call(userless, Some("hush"))).is_err());
        let again = Kept::load(directory.path()).expect("what was written");
        assert_eq!(again.settings(), &mail());
    }
}
