//! Completion of words in shells: `millpond completions SHELL` prints what a shell is to read,
//! which has the shell ask this program at each Tab, by the variable [`VARIABLE`].
//!
//! Pools and datasets are completed from what a running server has. None is started for it, and one
//! that does not answer soon is not waited for.

use std::ffi::OsStr;
use std::sync::mpsc;
use std::time::Duration;

use api::{DatasetKind, ZfsList, ZpoolList};
use clap::{Arg, Args, Command, ValueEnum, ValueHint};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};

use crate::client::Client;
use crate::state;

/// By this a shell asks for completions; its value is the shell's name.
const VARIABLE: &str = "MILLPOND_COMPLETE";

/// How long somebody who presses Tab waits for a server.
const PATIENCE: Duration = Duration::from_secs(2);

/// Options of `millpond completions`.
#[derive(Debug, Args)]
pub struct Completions {
    shell: Shell,
    /// For this program alone
    #[arg(long = "for")]
    program: Option<Program>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Program {
    Millpond,
    Zpool,
    Zfs,
    Zinject,
}

impl Completions {
    /// Prints what the shell is to read.
    pub fn run(self) -> anyhow::Result<()> {
        let shell: &dyn EnvCompleter = match self.shell {
            Shell::Bash => &Bash,
            Shell::Zsh => &Zsh,
            Shell::Fish => &Fish,
        };
        let programs = match self.program {
            Some(one) => vec![one],
            None => Program::value_variants().to_vec(),
        };
        let mut text = Vec::new();
        for program in programs {
            let name = program.to_possible_value().expect("none is hidden");
            let name = name.get_name();
            shell.write_registration(VARIABLE, name, name, name, &mut text)?;
        }
        print!("{}", String::from_utf8_lossy(&text));
        Ok(())
    }
}

/// Answers a shell that asks for completions of the command that `definition` makes; false where
/// none asks.
///
/// # Errors
/// When the shell is unknown, or does not say what is to be completed.
pub fn answer(definition: impl Fn() -> Command) -> Result<bool, clap::Error> {
    let asked = CompleteEnv::with_factory(|| with_names(definition())).var(VARIABLE);
    asked.try_complete(std::env::args_os(), std::env::current_dir().ok().as_deref())
}

/// What a word may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// A pool.
    Pool,
    /// A dataset; a snapshot once an `@` is there.
    Dataset,
    /// A property of datasets.
    Property,
    /// A property with a value, or a dataset.
    Assignment,
    /// A device or file.
    Path,
}

/// What a word of a command is, by the names that they have in the commands' definitions.
fn word(command: &str, argument: &str) -> Option<Word> {
    Some(match (command, argument) {
        // A pool that is not here yet.
        ("create" | "import", "pool") => return None,
        (_, "pool" | "pools") | ("get" | "initialize" | "trim", "names") | ("iostat", "words") => {
            Word::Pool
        }
        ("set", "words") => Word::Assignment,
        (_, "dataset" | "datasets" | "filesystem" | "filesystems" | "target")
        | (_, "snapshot" | "snapshots")
        | ("rename", "from")
        | ("diff", "from" | "to")
        | ("promote", "clone")
        | ("bookmark", "source")
        | ("allow" | "unallow", "words") => Word::Dataset,
        ("inherit", "property") => Word::Property,
        (_, "device" | "devices" | "new_device" | "vdevs" | "paths") => Word::Path,
        _ => return None,
    })
}

/// Says of each command's words what they may be.
fn with_names(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let described = command.mut_args(|argument| describe(&name, argument));
    described.mut_subcommands(with_names)
}

fn describe(command: &str, argument: Arg) -> Arg {
    if !argument.is_positional() {
        return argument;
    }
    match word(command, argument.get_id().as_str()) {
        None => argument,
        Some(Word::Path) => argument.value_hint(ValueHint::AnyPath),
        Some(word) => argument.add(ArgValueCompleter::new(move |begun: &OsStr| {
            let begun = begun.to_str().unwrap_or_default();
            let all = candidates(word, begun).into_iter();
            let fitting = all.filter(|name| name.starts_with(begun));
            fitting.map(CompletionCandidate::new).collect()
        })),
    }
}

fn candidates(word: Word, begun: &str) -> Vec<String> {
    let properties = || {
        let all = dataset::props::PROPERTIES.iter();
        all.map(|property| property.name.to_owned())
    };
    match word {
        Word::Pool => pools(),
        Word::Dataset => datasets(begun),
        Word::Property => properties().collect(),
        Word::Assignment => {
            let settable = dataset::props::PROPERTIES.iter();
            let settable = settable.filter(|property| !property.is_read_only());
            let mut all: Vec<String> = settable
                .map(|property| format!("{}=", property.name))
                .collect();
            all.extend(datasets(begun));
            all
        }
        Word::Path => Vec::new(),
    }
}

fn pools() -> Vec<String> {
    let reply = ask(ZpoolList {
        names: Vec::new(),
        io: false,
    });
    let pools = reply.map_or_else(Vec::new, |reply| reply.pools);
    pools.into_iter().map(|pool| pool.name).collect()
}

fn datasets(begun: &str) -> Vec<String> {
    let mut list = ZfsList {
        properties: Some(Vec::new()),
        ..ZfsList::default()
    };
    if let Some((dataset, _)) = begun.split_once('@') {
        list.names = vec![dataset.to_owned()];
        list.depth = Some(1);
        list.kinds = vec![DatasetKind::Snapshot];
    }
    let reply = ask(list);
    let datasets = reply.map_or_else(Vec::new, |reply| reply.datasets);
    datasets.into_iter().map(|dataset| dataset.name).collect()
}

/// Asks a server that runs, if it answers soon.
fn ask<C: api::Call + 'static>(call: C) -> Option<C::Reply>
where
    C::Reply: Send,
{
    let (answer, answered) = mpsc::channel();
    // One that hangs ends with the process.
    std::thread::spawn(move || {
        let (state, of_root) = state::directory();
        let client = Client::new(state, of_root).ok();
        let reply = client.and_then(|client| client.call_if_running(&call).ok()?);
        let _ = answer.send(reply);
    });
    answered.recv_timeout(PATIENCE).ok()?
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::zfs::Zfs;
    use crate::zpool::Zpool;

    /// Each command's positional words, with what they are.
    fn words(command: &Command, out: &mut Vec<(String, Option<Word>)>) {
        for argument in command.get_arguments().filter(|one| one.is_positional()) {
            let is = word(command.get_name(), argument.get_id().as_str());
            out.push((format!("{} {}", command.get_name(), argument.get_id()), is));
        }
        for below in command.get_subcommands() {
            words(below, out);
        }
    }

    /// Goal: what stands for pools and datasets is known under the names that it has.
    #[test]
    fn words_of_commands_can_be_completed() {
        let mut all = Vec::new();
        words(&with_names(Zpool::command()), &mut all);
        words(&with_names(Zfs::command()), &mut all);
        let has = |name: &str, word| all.contains(&(name.to_owned(), word));
        for name in ["status pools", "destroy pool", "iostat words", "get names"] {
            assert!(has(name, Some(Word::Pool)), "{name} in {all:?}");
        }
        for name in [
            "list datasets",
            "destroy target",
            "rollback snapshot",
            "rename from",
        ] {
            assert!(has(name, Some(Word::Dataset)), "{name} in {all:?}");
        }
        assert!(has("set words", Some(Word::Assignment)) && has("add vdevs", Some(Word::Path)));
        assert!(
            has("import pool", None) && has("rename to", None),
            "{all:?}"
        );
        let known = all.iter().filter(|(_, word)| word.is_some()).count();
        assert!(known * 4 > all.len() * 3, "most are unknown: {all:?}");
    }

    #[test]
    fn properties_are_completed_without_a_server() {
        let all = candidates(Word::Property, "");
        assert!(all.contains(&"compression".to_owned()), "{all:?}");
    }
}
