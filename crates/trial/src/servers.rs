//! A trial's file: one server, or several that differ in something and are told the same.

use toml_edit::{DocumentMut, TableLike};

use crate::TrialError;
use crate::spec::Trial;

/// Key of the servers in a file; in what is read of each, of its name.
const SERVER: &str = "server";
const NAME: &str = "name";

/// What a file tells.
#[derive(Debug, Clone, PartialEq)]
pub struct Trials {
    /// What it is about, in a line.
    pub title: String,
    /// More of it, and where published figures are from.
    pub about: String,
    /// A trial of each server, in the file's order; one without a name where the file has no table
    /// `[[server]]`.
    pub servers: Vec<Trial>,
}

impl Trials {
    /// Reads a file. Each table `[[server]]` has a `name`, and what of the file is otherwise with
    /// that server: tables in it are taken into those of the file, all else takes the place of what
    /// the file has.
    ///
    /// # Errors
    /// [`TrialError::Spec`] says where the file is wrong.
    pub fn parse(text: &str) -> Result<Self, TrialError> {
        let wrong = |error: toml_edit::TomlError| TrialError::Spec(error.to_string());
        let mut document: DocumentMut = text.parse().map_err(wrong)?;
        let servers = match document.get(SERVER) {
            Some(servers) if servers.is_array_of_tables() => document.remove(SERVER),
            _ => None,
        };
        let servers = servers.as_ref().and_then(|item| item.as_array_of_tables());
        let Some(servers) = servers else {
            // Its errors name the line.
            return Ok(Self::of_one(Trial::parse(text)?));
        };
        let mut trials = Vec::new();
        for server in servers {
            let Some(name) = server.get(NAME).and_then(|name| name.as_str()) else {
                return Err(TrialError::Spec("server: each has a name".into()));
            };
            let mut own = document.clone();
            let mut differs = server.clone();
            differs.remove(NAME);
            merge(own.as_table_mut(), &differs);
            own.insert(SERVER, toml_edit::value(name));
            let trial = Trial::parse(&own.to_string());
            trials.push(
                trial.map_err(|error| TrialError::Spec(format!("server {name:?}: {error}")))?,
            );
        }
        let Some(first) = trials.first() else {
            return Err(TrialError::Spec("server: there is none".into()));
        };
        Ok(Trials {
            title: first.title.clone(),
            about: first.about.clone(),
            servers: trials,
        })
    }

    /// A file of one trial.
    pub fn of_one(trial: Trial) -> Self {
        Trials {
            title: trial.title.clone(),
            about: trial.about.clone(),
            servers: vec![trial],
        }
    }

    /// The same at another scale.
    ///
    /// # Errors
    /// [`TrialError::Spec`] where too little is left at that scale.
    pub fn at_scale(mut self, scale: u32) -> Result<Self, TrialError> {
        let servers = self.servers.into_iter();
        self.servers = servers
            .map(|trial| trial.at_scale(scale))
            .collect::<Result<_, _>>()?;
        Ok(self)
    }
}

fn merge(into: &mut dyn TableLike, from: &dyn TableLike) {
    for (key, value) in from.iter() {
        let old = into.get_mut(key).and_then(|old| old.as_table_like_mut());
        match (old, value.as_table_like()) {
            (Some(old), Some(new)) => merge(old, new),
            _ => {
                into.insert(key, value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Step;

    const FILE: &str = r#"
        title = "Servers"
        [pool]
        layout = "mirror:1x2"
        disk = "wd-re3-500gb"
        memory = "1GB"
        cache = [{ count = 2, disk = "intel-x25-m-160gb" }]
        [set]
        kind = "volume"
        bytes = "25GB"
        block = "4K"
        [[step]]
        do = "scrub"
    "#;

    #[test]
    fn servers_are_what_the_file_says_but_for_what_they_say() {
        let alone = Trials::parse(FILE).unwrap();
        assert_eq!(alone.servers.len(), 1);
        assert_eq!(alone.servers[0].server, "");
        let servers = r#"
            [[server]]
            name = "without"
            pool = { cache = [] }
            [[server]]
            name = "small"
            [server.pool]
            memory = "2GB"
            [server.set]
            bytes = "1GB"
            [[server.step]]
            do = "restart"
        "#;
        let both = Trials::parse(&format!("{FILE}{servers}")).unwrap();
        let [without, small] = both.servers.as_slice() else {
            panic!("two servers: {both:?}");
        };
        assert_eq!(
            (without.server.as_str(), small.server.as_str()),
            ("without", "small")
        );
        assert!(without.pool.cache.is_empty());
        assert_eq!(without.pool.memory, 1_000_000_000);
        assert_eq!(small.pool.cache, alone.servers[0].pool.cache);
        assert_eq!(
            (small.pool.memory, small.set.bytes),
            (2_000_000_000, 1_000_000_000)
        );
        assert_eq!(small.step, [Step::Restart]);
        assert_eq!(
            without.step,
            [Step::Scrub {
                beside: None,
                published_seconds: None
            }]
        );
        let half = both.at_scale(16).unwrap();
        assert!(half.servers.iter().all(|trial| trial.scale == 16));
    }

    #[test]
    fn what_is_wrong_with_a_server_is_said() {
        for (servers, says) in [
            ("[[server]]\npool = { cache = [] }", "name"),
            (
                "[[server]]\nname = \"x\"\npool = { cash = [] }",
                "server \"x\"",
            ),
        ] {
            let wrong = Trials::parse(&format!("{FILE}\n{servers}"));
            let said = wrong.unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
    }
}
