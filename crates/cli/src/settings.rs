//! Properties as command lines set them.

use anyhow::{Context, bail};
use api::Settings;

/// Splits `NAME=VALUE` words; each name once.
pub fn assignments(words: &[String]) -> anyhow::Result<Settings> {
    let mut properties = Settings::new();
    for word in words {
        let (name, value) = word
            .split_once('=')
            .with_context(|| format!("missing '=' for property '{word}'"))?;
        if properties
            .insert(name.to_owned(), value.to_owned())
            .is_some()
        {
            bail!("property '{name}' specified multiple times");
        }
    }
    Ok(properties)
}
