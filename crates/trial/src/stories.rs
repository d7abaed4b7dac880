//! Trials that are ready: what people measured and published on servers of their time.

/// A trial's name and file.
pub const STORIES: &[(&str, &str)] = &[
    ("warm-up", include_str!("../stories/warm-up.toml")),
    ("warm-up-4x", include_str!("../stories/warm-up-4x.toml")),
    ("seven", include_str!("../stories/seven.toml")),
    ("twenty", include_str!("../stories/twenty.toml")),
    ("dedup", include_str!("../stories/dedup.toml")),
    ("dedup-8x", include_str!("../stories/dedup-8x.toml")),
    ("scrub", include_str!("../stories/scrub.toml")),
    ("log", include_str!("../stories/log.toml")),
    ("iometer", include_str!("../stories/iometer.toml")),
    ("sio-raidz2", include_str!("../stories/sio-raidz2.toml")),
    ("sio-raidz3", include_str!("../stories/sio-raidz3.toml")),
    ("four-paths", include_str!("../stories/four-paths.toml")),
];

/// The file of a name.
pub fn story(name: &str) -> Option<&'static str> {
    let (_, text) = STORIES.iter().find(|(known, _)| *known == name)?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trials;

    #[test]
    fn all_can_be_read() {
        for (name, text) in STORIES {
            let trial = Trials::parse(text);
            assert!(trial.is_ok(), "{name}: {}", trial.unwrap_err());
        }
        assert!(story("warm-up").is_some() && story("cold").is_none());
    }
}
