//! Command lines that make no sense: what is said of them, in OpenZFS's words, how commands are
//! used, and the statuses that they end with (`usage`, cmd/zfs/zfs_main.c and
//! cmd/zpool/zpool_main.c).

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::forms::{self, Form};
use crate::zfs::supported;

/// [`anyhow::bail!`] for what is wrong with a command line.
macro_rules! bail_usage {
    ($($text:tt)*) => { anyhow::bail!($crate::usage::Usage(format!($($text)*))) };
}

/// [`anyhow::bail!`] with a status of its own.
macro_rules! bail_status {
    ($code:expr, $($text:tt)*) => {
        anyhow::bail!($crate::usage::Status { code: $code, text: format!($($text)*) })
    };
}

/// The exit status of a command line that makes no sense, as `usage` of OpenZFS's commands and clap
/// have it.
pub const WRONG_USAGE: u8 = 2;

/// The exit status where a command of OpenZFS ends with -1.
pub const MINUS_ONE: u8 = 255;

/// What is wrong with a command line.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// What a command says that takes a dataset which is not there for a word that makes no sense.
pub fn of_absent(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    match text.starts_with("cannot open ") {
        true => Usage(text).into(),
        false => error,
    }
}

/// What went wrong with a command that ends with another status than others.
#[derive(Debug)]
pub struct Status {
    /// The status.
    pub code: u8,
    /// What is said.
    pub text: String,
}

impl std::fmt::Display for Status {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.text)
    }
}

impl std::error::Error for Status {}

/// How a command is used, or all of them; nothing where the program has no forms.
pub fn forms_of(program: &clap::Command, command: Option<&str>) -> String {
    let all = forms::of(program.get_name());
    let one = command.and_then(|name| form(program, name));
    if all.is_empty() {
        return String::new();
    }
    let lines = |form: &Form| -> String {
        let command = program.find_subcommand(form.name);
        let options = command.map(options).unwrap_or_default();
        let line = |words: &&str| {
            let takes_options = !words.starts_with('-') && !words.starts_with("[-");
            let options = if takes_options { options.as_str() } else { "" };
            let parts = [form.name, options, *words];
            let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            format!("\t{}\n", parts.join(" "))
        };
        form.words.iter().map(line).collect()
    };
    match one {
        Some(form) => {
            let properties = match program.get_name() {
                "zfs" => supported::properties(form.name),
                _ => None,
            };
            format!("usage:\n{}{}", lines(form), properties.unwrap_or_default())
        }
        None => {
            let name = program.get_name();
            let lines: String = all.iter().map(lines).collect();
            let lines: String = lines.lines().map(folded).collect();
            let names = match name {
                "zfs" => "\nEach dataset is of the form: pool/[dataset/]*dataset[@name]\n",
                _ => "",
            };
            format!(
                "usage: {name} command args ...\nwhere 'command' is one of the following:\n\n\
                 {lines}{names}\nFor further help on a command, run: {name} <command> --help\n"
            )
        }
    }
}

/// The most characters of a line in the list of all commands, as in OpenZFS.
const LINE_CHARS: usize = 80;

/// A line, which goes on in another one, farther in, where it is too long.
fn folded(line: &str) -> String {
    let mut depth = 0usize;
    let is_between = |char: char| {
        match char {
            '[' | '<' => depth += 1,
            ']' | '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        char == ' ' && depth == 0
    };
    let (mut out, mut row) = (String::new(), String::new());
    for part in line.split(is_between) {
        if !row.is_empty() && row.len() + 1 + part.len() > LINE_CHARS {
            out += &row;
            out.push('\n');
            row = "\t   ".to_owned();
        }
        if !row.is_empty() {
            row.push(' ');
        }
        row += part;
    }
    out + &row + "\n"
}

fn form(program: &clap::Command, name: &str) -> Option<&'static Form> {
    let name = program.find_subcommand(name)?.get_name();
    let forms = forms::of(program.get_name());
    forms.iter().find(|form| form.name == name)
}

/// Options as a form has them: letters, and those with values.
fn options(command: &clap::Command) -> String {
    let (mut letters, mut valued) = (Vec::new(), Vec::new());
    for option in command
        .get_arguments()
        .filter(|option| !option.is_hide_set())
    {
        let Some(letter) = option.get_short() else {
            continue;
        };
        if option.get_action().takes_values() {
            let names = option.get_value_names().unwrap_or_default();
            let value = names.first().map(|name| name.as_str());
            let value = value.unwrap_or(option.get_id().as_str());
            valued.push(format!("[-{letter} {}]", value.to_lowercase()));
        } else {
            letters.push(letter);
        }
    }
    letters.sort_by_key(|letter| (letter.to_ascii_lowercase(), *letter));
    let letters: String = letters.into_iter().collect();
    if !letters.is_empty() {
        valued.insert(0, format!("[-{letters}]"));
    }
    valued.join(" ")
}

fn has_value(word: &OsString) -> bool {
    word.to_string_lossy().contains('=')
}

/// What is said of words that could not be understood: the first line as OpenZFS has it.
pub fn told(error: &clap::Error, program: &clap::Command, words: &[OsString]) -> String {
    let word = |at: usize| {
        words
            .get(at)
            .map(|word| word.to_string_lossy().into_owned())
    };
    let name = word(1);
    let form = name.as_deref().and_then(|name| form(program, name));
    let command = name
        .as_deref()
        .and_then(|name| program.find_subcommand(name));
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.first().cloned().unwrap_or_default(),
        _ => String::new(),
    };
    // Options by their letters, words as they are called.
    let letter_of = |word: &str| {
        let word = word.split([' ', '=']).next().unwrap_or_default();
        let Some(long) = word.strip_prefix("--") else {
            return word.to_owned();
        };
        let mut all = command.into_iter().flat_map(clap::Command::get_arguments);
        let letter = all
            .find(|one| one.get_long() == Some(long))
            .and_then(clap::Arg::get_short);
        letter.map_or_else(|| word.to_owned(), |letter| format!("-{letter}"))
    };
    let conflict = |kinds: &[ContextKind], are_missing: bool| {
        let texts = kinds.iter().map(|kind| match error.get(*kind) {
            Some(ContextValue::String(text)) => vec![text.clone()],
            Some(ContextValue::Strings(texts)) => texts.clone(),
            _ => Vec::new(),
        });
        let given: Vec<String> = texts.flatten().map(|text| letter_of(&text)).collect();
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let words = forms::conflict(program.get_name(), form?.name, &given, are_missing);
        words.map(str::to_owned)
    };
    let missing = |many: usize| {
        let form = form?;
        let of_volume = |word: &OsString| word.to_string_lossy().starts_with("-V");
        if (program.get_name(), form.name) == ("zfs", "create") && words.iter().any(of_volume) {
            return Some("missing volume argument".to_owned());
        }
        // Of one of these without a word nothing is said but how it is used.
        if form.name.ends_with("space") && words.len() <= 2 {
            return Some(String::new());
        }
        let at = match words.len() {
            0..=2 => 0,
            _ => form.missing.len().saturating_sub(many),
        };
        form.missing.get(at).map(|text| (*text).to_owned())
    };
    let known = match error.kind() {
        ErrorKind::DisplayHelp => Some("invalid option 'h'".to_owned()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            Some("missing command".to_owned())
        }
        ErrorKind::InvalidSubcommand => Some(format!(
            "unrecognized command '{}'",
            context(ContextKind::InvalidSubcommand)
        )),
        ErrorKind::ArgumentConflict => {
            conflict(&[ContextKind::InvalidArg, ContextKind::PriorArg], false)
        }
        ErrorKind::ValueValidation => {
            let option = letter_of(&context(ContextKind::InvalidArg));
            match (program.get_name(), option.as_str()) {
                ("zfs", "-d") => Some(match context(ContextKind::InvalidValue) {
                    number if number.starts_with('-') => "Depth can not be negative.".to_owned(),
                    word => format!("{word} is not an integer"),
                }),
                _ => std::error::Error::source(error).map(ToString::to_string),
            }
        }
        ErrorKind::MissingRequiredArgument
            if conflict(&[ContextKind::InvalidArg], true).is_some() =>
        {
            conflict(&[ContextKind::InvalidArg], true)
        }
        ErrorKind::MissingRequiredArgument => {
            let many = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(texts)) => texts.len(),
                _ => 1,
            };
            match form.is_some_and(|form| form.missing.is_empty()) {
                // Nothing is said of these but how they are used.
                true => return String::new(),
                false => missing(many),
            }
        }
        ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues => {
            let is_assigned = words.last().is_some_and(has_value);
            match name.as_deref().filter(|_| words.len() > 2) {
                Some("set") if !is_assigned => {
                    Some("missing property=value argument(s)".to_owned())
                }
                _ => missing(1),
            }
        }
        ErrorKind::UnknownArgument => {
            let word = context(ContextKind::InvalidArg);
            let letters = word.strip_prefix('-').filter(|letters| !letters.is_empty());
            match letters {
                _ if command.is_none() => Some(format!("unrecognized command '{word}'")),
                None if (program.get_name(), name.as_deref()) == ("zpool", Some("set")) => {
                    Some("too many pool names".to_owned())
                }
                None if name.as_deref() == Some("change-key") => {
                    Some("Too many arguments".to_owned())
                }
                None => Some("too many arguments".to_owned()),
                Some(letters) if letters.starts_with('-') => {
                    Some(format!("invalid option '{word}'"))
                }
                Some(letters) => Some(format!("invalid option '{letters}'")),
            }
        }
        ErrorKind::InvalidValue if context(ContextKind::InvalidValue).is_empty() => {
            let option = letter_of(&context(ContextKind::InvalidArg));
            let letter = option.trim_start_matches('-');
            let form = form.map_or("", |form| form.name);
            Some(match forms::lacks(program.get_name(), form) {
                forms::Lacks::Argument => format!("missing argument for '{letter}' option"),
                forms::Lacks::Option => format!("invalid option '{letter}'"),
                forms::Lacks::Size => "missing size argument".to_owned(),
            })
        }
        _ => None,
    };
    known.unwrap_or_else(|| {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let ends = ["\n\nUsage:", "\n\nFor more"];
        let end = ends.iter().filter_map(|end| text.find(end)).min();
        text[..end.unwrap_or(text.len())].trim_end().to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn lists_of_commands_have_lines_of_eighty_characters() {
        let programs = [
            crate::zfs::Zfs::command().name("zfs"),
            crate::zpool::Zpool::command().name("zpool"),
        ];
        for program in programs {
            let list = forms_of(&program, None);
            assert!(list.lines().count() > 30, "{list}");
            for line in list.lines() {
                assert!(line.chars().count() <= LINE_CHARS, "{line}");
            }
        }
        let long = format!("\tlist [-{}] [-t a b] <c d> e", "x".repeat(55));
        let expected = long.replace(" e", "\n\t    e\n");
        assert_eq!(folded(&long), expected);
        assert_eq!(folded("\tlist [a] b"), "\tlist [a] b\n");
    }
}
