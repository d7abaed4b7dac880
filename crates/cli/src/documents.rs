//! Goal: what the documents tell people to type is understood. Method: the program's own parsers
//! read each command that stands in a document, whole or as a name with options; and each option
//! that a section of `commands.md` has belongs to a command of its heading.

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Command, CommandFactory, Parser};

use crate::{Millpond, zfs, zinject, zpool};

/// The documents, by their names.
fn documents() -> Vec<(PathBuf, String)> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(top.join("docs")).expect("docs");
    let docs = docs.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> = docs
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .chain([top.join("README.md")])
        .collect();
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a document");
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// What stands there to be typed: lines of code, with what a backslash joins to them, and what is
/// between backquotes.
fn typed(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut is_code = false;
    let mut joined = String::new();
    let mut prose = String::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        let Some(code) = line.strip_prefix("    ").or(is_code.then_some(line)) else {
            prose.push_str(line);
            prose.push('\n');
            continue;
        };
        match code.strip_suffix('\\') {
            Some(begun) => joined.push_str(begun),
            None => out.push(std::mem::take(&mut joined) + code),
        }
    }
    out.extend(
        prose
            .split('`')
            .skip(1)
            .step_by(2)
            .map(|code| code.replace('\n', " ")),
    );
    out
}

/// The words of one of our commands, if a line runs one: what a shell does with its outputs and
/// what is in front of it left out.
fn words(line: &str) -> Option<Vec<String>> {
    let line = line
        .trim()
        .trim_start_matches("$ ")
        .trim_start_matches("# ");
    let end = line.find([';', '|', '>', '<', '&']).unwrap_or(line.len());
    let line = line[..end].split(" # ").next().unwrap_or_default();
    let mut words = Vec::new();
    let mut quote = None;
    let mut word = String::new();
    for c in line.chars() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, c) if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            _ => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    let is_in_front = |word: &String| {
        word == "sudo" || word.starts_with(|c: char| c.is_ascii_uppercase()) && word.contains('=')
    };
    let mut words: Vec<String> = words.into_iter().skip_while(is_in_front).collect();
    let second = words.get(1)?;
    if words[0] == "millpond" && ["zpool", "zfs"].contains(&second.as_str()) {
        words.remove(0);
    }
    let is_ours =
        ["millpond", "zpool", "zfs", "zinject"].contains(&words[0].as_str()) && words.len() > 1;
    // Names of files and of packages are in documents, too, and so is what stands for many.
    let is_whole = is_ours
        && words[1].starts_with(|c: char| c.is_ascii_lowercase() || c == '-')
        && !words
            .iter()
            .any(|word| word.contains("...") || word.contains('['));
    is_whole.then_some(words)
}

/// Whether a word is in capitals.
fn stands_for_a_value(word: &str) -> bool {
    word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase())
}

#[test]
fn commands_of_the_documents_are_understood() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (path, text) in documents() {
        for line in typed(&text) {
            let Some(words) = words(&line) else { continue };
            count += 1;
            let parsed = match words[0].as_str() {
                "zpool" => zpool::Zpool::try_parse_from(&words).map(drop),
                "zfs" => zfs::Zfs::try_parse_from(&words).map(drop),
                "zinject" => zinject::Zinject::try_parse_from(&words).map(drop),
                _ => Millpond::try_parse_from(&words).map(drop),
            };
            match parsed.map_err(|error| (error.kind(), error)) {
                Ok(()) => {}
                // A command is named, not run.
                Err((
                    ErrorKind::MissingRequiredArgument
                    | ErrorKind::MissingSubcommand
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                    | ErrorKind::DisplayHelp
                    | ErrorKind::DisplayVersion,
                    _,
                )) => {}
                // So is an option, without its value.
                Err((
                    ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues | ErrorKind::NoEquals,
                    _,
                )) => {}
                Err((ErrorKind::InvalidValue, error))
                    if error.to_string().contains("a value is required") => {}
                // What stands for a value (`TXG`) is none.
                Err((ErrorKind::InvalidValue | ErrorKind::ValueValidation, _))
                    if words.iter().any(|word| stands_for_a_value(word)) => {}
                Err((_, error)) => {
                    let error = error.to_string();
                    let why = error.lines().next().unwrap_or_default().to_owned();
                    wrong.push(format!("{}: '{line}': {why}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 200, "{count} commands were found");
}

/// A command and all below it.
fn with_below(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().flat_map(with_below);
    std::iter::once(command).chain(below).collect()
}

/// Whether a command takes an option, by its long name or the first of its letters.
pub fn has(command: &Command, option: &str) -> bool {
    command
        .get_arguments()
        .any(|argument| match option.strip_prefix("--") {
            Some(long) => {
                let aliases = argument.get_all_aliases();
                argument.get_long() == Some(long)
                    || aliases.is_some_and(|aliases| aliases.contains(&long))
            }
            None => argument.get_short() == option.chars().nth(1),
        })
}

#[test]
fn options_of_the_commands_page_are_there() {
    let text = include_str!("../../../docs/commands.md");
    let programs = [
        Millpond::command(),
        zpool::Zpool::command(),
        zfs::Zfs::command(),
        zinject::Zinject::command(),
    ];
    let find = |name: &str| -> Option<Command> {
        let mut words = name.split(' ');
        let program = words.next()?;
        let mut found = programs.iter().find(|one| one.get_name() == program)?;
        for word in words {
            found = found.find_subcommand(word)?;
        }
        Some(found.clone())
    };
    let all: Vec<&Command> = programs.iter().flat_map(with_below).collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for section in text.split("\n### ").skip(1) {
        let (heading, body) = section.split_once('\n').expect("a body");
        let body = body.split("\n## ").next().unwrap_or_default();
        let commands: Vec<Command> = heading.split(", ").filter_map(find).collect();
        if commands.is_empty() {
            continue;
        }
        let commands: Vec<&Command> = commands.iter().flat_map(with_below).collect();
        for sentence in body.replace('\n', " ").split(". ") {
            // What is said not to be there.
            if ["No ", "Not ", " no "]
                .iter()
                .any(|word| sentence.contains(word))
            {
                continue;
            }
            let codes = sentence.split('`').skip(1).step_by(2);
            let options = codes.filter_map(|code| {
                let option = code.split_whitespace().next()?;
                let option = option.split('=').next()?;
                // `--head--` is the name of a snapshot.
                let is_option = option.starts_with('-') && !option.ends_with('-');
                is_option.then_some(option)
            });
            let options: Vec<&str> = options.collect();
            // What begins with one lists the section's own; elsewhere others are mentioned as well.
            let is_list = sentence.trim_start().starts_with("`-");
            for option in options {
                count += 1;
                let is_own = commands.iter().any(|command| has(command, option));
                let is_somewhere = || all.iter().any(|command| has(command, option));
                if !(is_own || !is_list && is_somewhere()) {
                    wrong.push(format!("{heading}: {option}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 200, "{count} options were found");
}
