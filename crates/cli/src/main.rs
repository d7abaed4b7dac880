//! The command lines: `millpond`, and by the name it is called by, `zpool`, `zfs` and `zinject`.
//!
//! `zpool` and `zfs` are thin: they read words as OpenZFS's do, send one request to the daemon and
//! print the answer. `millpond up` and `millpond daemon` are the daemon itself.

#![forbid(unsafe_code)]

#[macro_use]
mod usage;

mod alerts;
mod apikey;
mod bench;
mod buses;
mod cache;
mod certificate;
mod client;
mod columns;
mod completions;
mod console;
#[cfg(test)]
mod coverage;
mod disks;
#[cfg(test)]
mod documents;
mod fetch;
mod forms;
mod iscsi;
mod json;
mod labels;
mod man;
mod memory;
mod numbers;
mod options;
mod periods;
mod plan;
mod prompt;
mod refusals;
mod replicate;
mod reports;
mod rescue;
mod schedule;
mod server;
mod settings;
mod shares;
mod state;
mod streams;
mod trial;
mod ups;
mod user;
mod version;
mod zfs;
mod zinject;
mod zpool;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use client::Client;
use usage::{Status, Usage, WRONG_USAGE};

#[global_allocator]
static ALLOCATOR: device::Allocator = device::Allocator;

/// ZFS without the kernel: real OpenZFS pools, served as filesystems and volumes.
#[derive(Debug, Parser)]
#[command(name = "millpond", version)]
struct Millpond {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server in the foreground with an embedded default pool
    Up(server::Up),
    /// Run the server without the default pool (started by zpool and zfs as needed)
    Daemon(server::Daemon),
    /// Start the server in the background, without the default pool
    Start,
    /// Export every pool and stop the server
    Down,
    /// Tell what the server does, or who has its memory
    Info(server::Info),
    /// Who may log in to volumes shared by iSCSI, and what the paths to a target carry
    Iscsi(iscsi::Iscsi),
    /// List what is shared on the network, who uses it, and how much
    Shares(shares::Shares),
    /// Tell what was read and written, over an hour to a year
    Reports(reports::Reports),
    /// Tell what caches hold, how often they help, and what more memory would gain
    Cache(cache::Cache),
    /// Send the snapshots of a dataset elsewhere, again and again
    Replicate(Box<replicate::Replicate>),
    /// Have the server do things again and again: scrubs, trims, snapshots, tests of disks
    Schedule(schedule::Schedule),
    /// Print where the console is
    Console,
    /// The certificate of the console, and how it is got
    Certificate(certificate::Certificate),
    /// Who may log in: to the console, and by SMB
    User(user::User),
    /// Keys for programs that use the API over the network
    Apikey(apikey::Apikey),
    /// Tell what disks will do as a pool, before they are bought
    Plan(plan::Plan),
    /// Try a pool on simulated disks, before they are bought
    Try(trial::Try),
    /// Measure storage with loads that people know, by fio
    Bench(Box<bench::Bench>),
    /// Show the labels and uberblocks of a device or file
    Labels(labels::Labels),
    /// Save the files of a pool that will not open
    Rescue(rescue::Rescue),
    /// See what is wrong, and who is told of it
    Alerts(alerts::Alerts),
    /// List disks and how they are, show where they are, and test them
    Disks(disks::Disks),
    /// Tell how the UPS is
    Ups(ups::Ups),
    /// Look into streams of snapshots
    Stream(streams::Stream),
    /// Print what a shell needs to complete words of millpond, zpool and zfs
    Completions(completions::Completions),
    /// Print the description of the API (OpenAPI 3.1)
    Openapi,
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man(man::Man),
    /// The zpool command: configure storage pools
    Zpool(zpool::Zpool),
    /// The zfs command: configure filesystems, volumes and snapshots
    Zfs(zfs::Zfs),
    /// The zinject command: have pools of a server for tests fail
    Zinject(Box<zinject::Zinject>),
}

fn main() -> ExitCode {
    // Whoever asks for keys and passwords has them in memory as well.
    daemon::keep_memory_private();
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let called_as = words
        .first()
        .and_then(|word| Path::new(word).file_name())
        .map(|name| name.to_string_lossy().into_owned());
    let definition = || match called_as.as_deref() {
        Some("zpool") => zpool::Zpool::command(),
        Some("zfs") => zfs::Zfs::command(),
        Some("zinject") => zinject::Zinject::command(),
        Some("zstream") => streams::Stream::command(),
        _ => Millpond::command(),
    };
    match completions::answer(definition) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => error.exit(),
    }
    let typed = typed_command(&words);
    let mut typed_words = typed.split(' ').map(str::to_owned);
    let (program, name) = (typed_words.next(), typed_words.next());
    let mut called_as = called_as;
    let has_name = words
        .get(1)
        .is_some_and(|word| word == "zfs" || word == "zpool");
    if has_name && called_as.as_deref() == Some("millpond") {
        // `millpond zfs` is `zfs`, whatever is wrong with its words.
        words.remove(0);
        called_as.clone_from(&program);
    }
    let command = match called_as.as_deref() {
        Some("zpool") => Command::Zpool(parse(words)),
        Some("zfs") => Command::Zfs(parse(words)),
        Some("zinject") => Command::Zinject(Box::new(zinject::Zinject::parse_from(words))),
        Some("zstream") => Command::Stream(streams::Stream::parse_from(words)),
        _ => Millpond::parse_from(words).command,
    };
    match run(command, typed) {
        Ok(code) => code,
        Err(error) => {
            let told = api::for_people(format!("{error:#}"));
            if !told.is_empty() {
                eprintln!("{told}");
            }
            if let Some(status) = error.downcast_ref::<Status>() {
                return ExitCode::from(status.code);
            }
            if !error.is::<Usage>() {
                return ExitCode::FAILURE;
            }
            let program = match program.as_deref() {
                Some("zpool") => Some(zpool::Zpool::command()),
                Some("zfs") => Some(zfs::Zfs::command()),
                _ => None,
            };
            if let Some(program) = program {
                eprint!("{}", usage::forms_of(&program, name.as_deref()));
            }
            ExitCode::from(WRONG_USAGE)
        }
    }
}

/// Reads the words of `zpool` and `zfs` as OpenZFS's do, with getopt(3).
fn parse<Words: CommandFactory + Parser>(mut words: Vec<OsString>) -> Words {
    if words.get(1).is_some_and(|word| word == "-?") {
        words[1] = "--help".into();
    }
    if std::env::var_os("POSIXLY_CORRECT").is_some() {
        end_options_at_first_word(&mut words, &Words::command());
    }
    // The commands know no `-h`: it is wrong, as any other letter, and answered with how to use
    // them.
    let is_asked_for = words.len() < 3
        || words.iter().any(|word| word == "--help")
        || words.get(1).is_some_and(|word| word == "help");
    let name = words.get(1).map(|name| name.to_string_lossy().into_owned());
    Words::try_parse_from(words.clone()).unwrap_or_else(|error| {
        let program = Words::command();
        let command = name.filter(|name| program.find_subcommand(name).is_some());
        let forms = usage::forms_of(&program, command.as_deref());
        let is_help = error.kind() == ErrorKind::DisplayHelp;
        if is_help && is_asked_for {
            print!("{forms}\n{}", error.render());
            std::process::exit(0);
        }
        if !is_help && !error.use_stderr() {
            error.exit();
        }
        let told = usage::told(&error, &program, &words);
        if !told.is_empty() {
            eprintln!("{told}");
        }
        eprint!("{forms}");
        std::process::exit(WRONG_USAGE.into());
    })
}

/// Options of a command end at the first word that is none, instead of being looked for in all
/// words.
fn end_options_at_first_word(words: &mut Vec<OsString>, program: &clap::Command) {
    let command = words.get(1).and_then(|name| program.find_subcommand(name));
    let Some(command) = command else { return };
    let takes_word = |letter: char| {
        let mut options = command.get_arguments();
        options
            .any(|option| option.get_short() == Some(letter) && option.get_action().takes_values())
    };
    let mut at = 2;
    while let Some(word) = words.get(at) {
        let word = word.to_string_lossy();
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            words.insert(at, "--".into());
            return;
        };
        if letters == "-" {
            return;
        }
        // `-o WORD`, `-HoWORD`.
        let is_long = letters.starts_with('-');
        let option = letters.find(|letter| !is_long && takes_word(letter));
        let word_follows = option.is_some_and(|option| option + 1 == letters.len());
        at += if word_follows { 2 } else { 1 };
    }
}

fn run(command: Command, typed: String) -> anyhow::Result<ExitCode> {
    let (state, of_root) = state::directory();
    if !matches!(command, Command::Up(_) | Command::Daemon(_)) {
        end_without_reader();
    }
    match command {
        Command::Stream(stream) => stream.run(),
        Command::Rescue(rescue) => return rescue.run(),
        Command::Up(up) => up.run(state),
        Command::Daemon(daemon) => daemon.run(state),
        Command::Start => Client::new(state, of_root)?.start_server(),
        Command::Down => server::down(&Client::new(state, of_root)?),
        Command::Info(info) => info.run(&Client::new(state, of_root)?),
        Command::Iscsi(iscsi) => iscsi.run(|| Client::new(state, of_root)),
        Command::Shares(shares) => shares.run(&Client::new(state, of_root)?),
        Command::Cache(cache) => cache.run(&Client::new(state, of_root)?),
        Command::Reports(reports) => reports.run(&Client::new(state, of_root)?),
        Command::Replicate(replicate) => replicate.run(&Client::new(state, of_root)?),
        Command::Schedule(schedule) => schedule.run(&Client::new(state, of_root)?),
        Command::Certificate(certificate) => certificate.run(&Client::new(state, of_root)?),
        Command::Console => console::run(&Client::new(state, of_root)?),
        Command::Apikey(apikey) => apikey.run(&Client::new(state, of_root)?),
        Command::User(user) => user.run(&Client::new(state, of_root)?),
        Command::Alerts(alerts) => alerts.run(&Client::new(state, of_root)?),
        Command::Disks(disks) => disks.run(&Client::new(state, of_root)?),
        Command::Ups(ups) => ups.run(&Client::new(state, of_root)?),
        Command::Plan(plan) => plan.run(|| Client::new(state, of_root)),
        Command::Try(trial) => trial.run(),
        Command::Bench(bench) => bench.run(),
        Command::Labels(labels) => labels.run(),
        Command::Openapi => openapi(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(Millpond::command()),
        Command::Zpool(command) => zpool::run(command, &Client::new(state, of_root)?, typed),
        Command::Zfs(command) => zfs::run(command, &Client::new(state, of_root)?, typed),
        Command::Zinject(command) => command.run(&Client::new(state, of_root)?),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the description of the API.
fn openapi() -> anyhow::Result<()> {
    let description = api::openapi(env!("CARGO_PKG_VERSION"));
    println!("{}", serde_json::to_string_pretty(&description)?);
    Ok(())
}

/// Has a command end without a word, as SIGPIPE ends others, when nobody reads any more what it
/// prints (`zpool history tank | head`). The signal itself would also end it where the server goes
/// away, without saying so.
fn end_without_reader() {
    /// What a shell tells of a process that SIGPIPE ended.
    const BROKEN_PIPE: i32 = 128 + 13;
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>();
        if text.is_some_and(|text| {
            text.starts_with("failed printing to std") && text.contains("Broken pipe")
        }) {
            std::process::exit(BROKEN_PIPE);
        }
        usual(panic);
    }));
}

/// The command as the pool's history records it: `zpool create tank /dev/sda`.
fn typed_command(words: &[OsString]) -> String {
    let name = words
        .first()
        .and_then(|word| Path::new(word).file_name())
        .map(|name| name.to_string_lossy().into_owned());
    let rest = words
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned());
    let mut all: Vec<String> = name.into_iter().chain(rest).collect();
    if all.first().is_some_and(|name| name == "millpond")
        && all
            .get(1)
            .is_some_and(|word| word == "zpool" || word == "zfs")
    {
        all.remove(0);
    }
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn flags_may_be_repeated() {
        for line in [
            "zfs get -rpp all",
            "zfs list -HHr -o name -o used",
            "zpool list -HH",
        ] {
            let parsed = match line.starts_with("zfs") {
                true => zfs::Zfs::try_parse_from(words(line)).map(|_| ()),
                false => zpool::Zpool::try_parse_from(words(line)).map(|_| ()),
            };
            parsed.unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn options_end_at_the_first_word_where_posix_is_wanted() {
        let command = zfs::Zfs::command();
        for (line, expected) in [
            ("zfs get all -r", "zfs get -- all -r"),
            ("zfs get -Ho value all -p", "zfs get -Ho value -- all -p"),
            (
                "zfs get -ovalue -d 1 all t",
                "zfs get -ovalue -d 1 -- all t",
            ),
            ("zfs list --json t", "zfs list --json -- t"),
            ("zfs list -- -r", "zfs list -- -r"),
            ("zfs list -r", "zfs list -r"),
            ("zfs what -r", "zfs what -r"),
            ("zfs", "zfs"),
        ] {
            let mut given = words(line);
            end_options_at_first_word(&mut given, &command);
            assert_eq!(given, words(expected), "{line}");
        }
    }
}
