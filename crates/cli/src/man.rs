//! `millpond man DIRECTORY`: the manual pages, of what the command lines know about themselves and
//! of `docs/commands.md`.
//!
//! Pages are named after the words of a command: `millpond-zpool-create(8)`. Links lead to them
//! from the names that OpenZFS's pages have: `zpool(8)`, `zpool-create(8)`, `zinject(8)`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::roff::{Inline, Roff, bold, roman};

/// The commands' document.
const COMMANDS: &str = include_str!("../../../docs/commands.md");

const SECTION: &str = "8";

/// Pages that messages name, as those of OpenZFS do, with the document that says the same of what
/// is here, and what they are about.
const PAGES_7: [(&str, &str, &str); 4] = [
    ("zfsprops", PROPERTIES, "properties of datasets"),
    ("zpoolprops", PROPERTIES, "properties of pools"),
    ("vdevprops", PROPERTIES, "properties of vdevs"),
    (
        "zpool-features",
        POOLS,
        "pools, and which features they have",
    ),
];
const PROPERTIES: &str = include_str!("../../../docs/properties.md");
const POOLS: &str = include_str!("../../../docs/pools.md");

/// Options of `millpond man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Where the pages are written to
    directory: PathBuf,
}

impl Man {
    /// Writes the pages of `millpond` and of all commands below it; those of section 7 beside a
    /// directory that is called `man8`, else into the same one.
    pub fn run(self, millpond: Command) -> anyhow::Result<()> {
        let directory = &self.directory;
        let failed = || format!("{} cannot be written", directory.display());
        std::fs::create_dir_all(directory).with_context(failed)?;
        let mut millpond = millpond.disable_help_subcommand(true);
        millpond.build();
        write(&millpond, directory).with_context(failed)?;
        let directory = match directory.file_name() {
            Some(name) if name == "man8" => directory.with_file_name("man7"),
            _ => directory.clone(),
        };
        let failed = || format!("{} cannot be written", directory.display());
        std::fs::create_dir_all(&directory).with_context(failed)?;
        for (name, document, about) in PAGES_7 {
            let page = page_of(name, document, about);
            std::fs::write(directory.join(format!("{name}.7")), page).with_context(failed)?;
        }
        Ok(())
    }
}

/// A document as a page of section 7.
fn page_of(name: &str, document: &str, about: &str) -> String {
    let mut out = Roff::new();
    let source = concat!("Millpond ", env!("CARGO_PKG_VERSION"));
    out.control("TH", [name, "7", "", source, "Millpond"]);
    out.control("SH", ["NAME"]);
    out.text([roman(format!("{name} - {about}"))]);
    for (index, part) in format!("\n{document}").split("\n## ").enumerate() {
        let (heading, text) = match index {
            // The title of the document.
            0 => (
                "DESCRIPTION",
                part.split_once("# ").map_or("", |(_, rest)| rest),
            ),
            _ => part.split_once('\n').unwrap_or((part, "")),
        };
        let text = match index {
            0 => text.split_once('\n').map_or("", |(_, rest)| rest),
            _ => text,
        };
        out.control("SH", [heading.to_uppercase().as_str()]);
        add_markdown(&mut out, text);
    }
    out.to_roff()
}

/// Writes the pages of a command and of those below it.
fn write(command: &Command, directory: &Path) -> std::io::Result<()> {
    let page = clap_mangen::Man::new(command.clone())
        .section(SECTION)
        .manual("Millpond")
        .source(concat!("Millpond ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    let name = command.get_display_name().unwrap_or(command.get_name());
    let words = name.replacen("millpond-zpool", "zpool", 1);
    let words = words.replacen("millpond-zfs", "zfs", 1);
    let words = words.replacen("millpond-zinject", "zinject", 1);
    notes(&words).to_writer(&mut text)?;
    if command.get_arguments().any(|word| !word.is_hide_set()) {
        page.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        page.render_subcommands_section(&mut text)?;
    }
    ending(name).to_writer(&mut text)?;
    std::fs::write(directory.join(page.get_filename()), text)?;
    if words != name {
        let link = format!(".so man{SECTION}/{name}.{SECTION}\n");
        std::fs::write(directory.join(format!("{words}.{SECTION}")), link)?;
    }
    let below = command.get_subcommands();
    for below in below.filter(|below| !below.is_hide_set()) {
        write(below, directory)?;
    }
    Ok(())
}

/// What the document says about a command, by the name of its page: `zpool-create`.
fn notes(page: &str) -> Roff {
    let mut out = Roff::new();
    let mut text = String::new();
    if page == "zpool" || page == "zfs" {
        text.push_str(introduction());
    }
    text.push_str(&section(page));
    if !text.trim().is_empty() {
        out.control("SH", ["NOTES"]);
        add_markdown(&mut out, &text);
    }
    out
}

/// What stands before the first heading but the title.
fn introduction() -> &'static str {
    let text = COMMANDS.split("\n## ").next().unwrap_or_default();
    text.split_once('\n').map_or("", |(_title, rest)| rest)
}

/// What stands below the headings that have a command, without the headings: `### zpool create`,
/// `### zpool offline, zpool online`.
fn section(page: &str) -> String {
    let mut out = String::new();
    let mut is_in = false;
    for line in COMMANDS.lines() {
        if let Some(heading) = line.strip_prefix("##") {
            let mut names = heading.trim_start_matches('#').split(',');
            is_in = names.any(|name| name.trim().replace(' ', "-") == page);
        } else if is_in {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// Writes paragraphs and indented lines as they stand there.
fn add_markdown(out: &mut Roff, text: &str) {
    let mut paragraph = String::new();
    for line in text.lines().chain([""]) {
        let is_of_its_own = line.starts_with("- ") || line.starts_with('|');
        if (is_of_its_own || line.starts_with("###")) && !paragraph.is_empty() {
            out.control("PP", []);
            out.text(inlines(&std::mem::take(&mut paragraph)));
        }
        if let Some(heading) = line.strip_prefix("### ") {
            out.control("SS", [heading]);
        } else if let Some(row) = line.strip_prefix('|') {
            if row.contains(|c: char| c.is_alphanumeric()) {
                out.control("PP", []);
                out.text(inlines(&row.trim_end_matches('|').replace('|', "\u{2003}")));
            }
        } else if let Some(code) = line.strip_prefix("    ") {
            out.control("PP", []);
            out.text([bold(code)]);
        } else if line.is_empty() {
            if !paragraph.is_empty() {
                out.control("PP", []);
                out.text(inlines(&paragraph));
                paragraph.clear();
            }
        } else {
            if !paragraph.is_empty() {
                paragraph.push(' ');
            }
            paragraph.push_str(line);
        }
    }
}

/// `code` in bold, [links](elsewhere) as their text.
fn inlines(text: &str) -> Vec<Inline> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain.push_str(before);
        match link.split_once("](") {
            Some((name, after)) if !name.contains([']', '`']) => {
                plain.push_str(name);
                rest = after.split_once(')').map_or("", |(_, rest)| rest);
            }
            _ => {
                plain.push('[');
                rest = link;
            }
        }
    }
    plain.push_str(rest);
    let parts = plain.split('`').enumerate();
    let parts = parts.filter(|(_, part)| !part.is_empty());
    parts
        .map(|(index, part)| match index % 2 {
            0 => roman(part),
            _ => bold(part),
        })
        .collect()
}

/// What each page ends with.
fn ending(page: &str) -> Roff {
    let mut out = Roff::new();
    out.control("SH", ["SEE ALSO"]);
    let others = ["millpond", "millpond-zpool", "millpond-zfs"];
    let mut line = Vec::new();
    for other in others.into_iter().filter(|other| *other != page) {
        line.push(bold(other));
        line.push(roman(format!("({SECTION}), ")));
    }
    line.push(roman(
        "and the documents in /usr/share/doc/millpond, of which this page names some.",
    ));
    out.text(line);
    out
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn page(directory: &Path, name: &str) -> String {
        std::fs::read_to_string(directory.join(name)).unwrap_or_else(|error| {
            panic!("{name}: {error}");
        })
    }

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().expect("a directory");
        let man = Man {
            directory: directory.path().to_owned(),
        };
        man.run(crate::Millpond::command()).expect("pages");
        let at = directory.path();
        let create = page(at, "millpond-zpool-create.8");
        for part in [
            "Make a pool of the given devices",
            ".SH NOTES",
            "no partition table is written",
            "\\fBmillpond zpool create\\fR",
        ] {
            assert!(create.contains(part), "'{part}' is not in:\n{create}");
        }
        assert!(!create.contains("](") && !create.contains('`'), "{create}");
        let link = page(at, "zpool-create.8");
        assert_eq!(link, ".so man8/millpond-zpool-create.8\n");
        assert!(page(at, "millpond-zpool-online.8").contains("offline \\-t"));
        assert!(page(at, "zfs.8").contains("man8/millpond-zfs.8"));
        assert!(page(at, "zinject.8").contains("man8/millpond-zinject.8"));
        assert!(page(at, "millpond-zfs.8").contains("Exit status: 0 done"));
        for name in ["millpond.8", "millpond-up.8", "millpond-user-add.8"] {
            assert!(page(at, name).contains(".SH SYNOPSIS"));
        }
        assert!(!at.join("millpond-man.8").exists());
        // What messages name is there.
        let properties = page(at, "zfsprops.7");
        for part in [
            ".TH zfsprops 7",
            ".SH DESCRIPTION",
            "\\fBrecordsize\\fR",
            ".SS sharenfs",
        ] {
            assert!(
                properties.contains(part),
                "'{part}' is not in:\n{properties}"
            );
        }
        assert!(
            !properties.contains("](") && !properties.contains('`'),
            "{properties}"
        );
        assert!(page(at, "zpool-features.7").contains("allocation_classes"));
    }
}
