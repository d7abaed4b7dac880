//! Properties as command lines set them.

use anyhow::{Context, bail};
use api::Settings;

use crate::usage::Usage;

/// What is wrong with the settings of an option, as `zpool` says it (`zpool_do_create`,
/// cmd/zpool/zpool_main.c).
pub fn of_option(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    match text.strip_prefix("missing '=' for property=value argument") {
        Some(rest) => Usage(format!("missing '=' for -o option{rest}")).into(),
        None => error,
    }
}

/// Splits `NAME=VALUE` words; each name once.
pub fn assignments(words: &[String]) -> anyhow::Result<Settings> {
    let mut properties = Settings::new();
    for word in words {
        let (name, value) = word
            .split_once('=')
            .with_context(|| format!("missing '=' for property=value argument\n'{word}'"))?;
        if properties
            .insert(name.to_owned(), value.to_owned())
            .is_some()
        {
            bail!("property '{name}' specified multiple times");
        }
    }
    Ok(properties)
}
