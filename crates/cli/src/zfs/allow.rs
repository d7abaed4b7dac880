//! `zfs allow` and `zfs unallow` (`zfs_do_allow_unallow_impl`, cmd/zfs/zfs_main.c).

use std::collections::BTreeMap;

use api::{GrantReport, Grantee, ZfsAllow, ZfsAllowList};
use clap::Args;

use crate::client::Client;
use crate::usage::{MINUS_ONE, Status, WRONG_USAGE};

/// How they are used, as OpenZFS has it (`get_usage`).
const FORMS: [&str; 2] = [
    "\tallow <filesystem|volume>\n\
     \tallow [-ldug] <\"everyone\"|user|group>[,...] <perm|@setname>[,...]\n\
     \t    <filesystem|volume>\n\
     \tallow [-ld] -e <perm|@setname>[,...] <filesystem|volume>\n\
     \tallow -c <perm|@setname>[,...] <filesystem|volume>\n\
     \tallow -s @setname <perm|@setname>[,...] <filesystem|volume>\n",
    "\tunallow [-rldug] <\"everyone\"|user|group>[,...]\n\
     \t    [<perm|@setname>[,...]] <filesystem|volume>\n\
     \tunallow [-rld] -e [<perm|@setname>[,...]] <filesystem|volume>\n\
     \tunallow [-r] -c [<perm|@setname>[,...]] <filesystem|volume>\n\
     \tunallow [-r] -s @setname [<perm|@setname>[,...]] <filesystem|volume>\n",
];

/// The options, as OpenZFS has them; the last one is `unallow`'s alone.
const LETTERS: [(&str, &str); 9] = [
    ("-h", "show this help message and exit"),
    ("-l", "set permission locally"),
    ("-d", "set permission for descents"),
    ("-u", "set permission for user"),
    ("-g", "set permission for group"),
    ("-e", "set permission for everyone"),
    ("-c", "set create time permission"),
    ("-s", "define permission set"),
    ("-r", "remove permissions recursively"),
];

/// How the command is used (`allow_usage`).
fn how(take: bool) -> String {
    let letters = &LETTERS[..if take {
        LETTERS.len()
    } else {
        LETTERS.len() - 1
    }];
    let options = letters
        .iter()
        .map(|(letter, what)| format!("  {letter:<10}  {what}\n"));
    format!(
        "Usage: {}\nOptions:\n{}\nThe permissions are those of zfs-allow(8).\n",
        FORMS[usize::from(take)],
        options.collect::<String>()
    )
}

/// What is wrong with the words, behind how they are used, as OpenZFS says it.
fn misused(take: bool, why: &str) -> anyhow::Error {
    let text = format!("{}\nzfs: error: {why}", how(take));
    let code = WRONG_USAGE;
    Status { code, text }.into()
}

/// What is said where the dataset cannot be opened.
fn unopened(error: anyhow::Error, name: &str) -> anyhow::Error {
    let text = format!("{error:#}");
    if !text.starts_with("cannot open ") {
        return error;
    }
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let text = format!("{first}\nFailed to open dataset: {name}\n{rest}");
    let code = MINUS_ONE;
    let text = text.trim_end().to_owned();
    Status { code, text }.into()
}

/// Give permissions on a dataset, or tell which there are.
#[derive(Debug, Args)]
pub struct Allow {
    #[command(flatten)]
    options: Options,
}

/// Take permissions on a dataset away.
#[derive(Debug, Args)]
pub struct Unallow {
    /// On what is below it too
    #[arg(short)]
    recursive: bool,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Args)]
struct Options {
    /// For the dataset itself
    #[arg(short)]
    local: bool,
    /// For those below it
    #[arg(short)]
    descendent: bool,
    /// The names are of users
    #[arg(short)]
    user: bool,
    /// The names are of groups
    #[arg(short)]
    group: bool,
    /// For everyone
    #[arg(short)]
    everyone: bool,
    /// For who makes a dataset below, in that one
    #[arg(short)]
    create: bool,
    /// For a set of permissions, @NAME
    #[arg(short)]
    set: bool,
    /// How it is used
    #[arg(short = 'h', hide = true)]
    usage: bool,
    /// [USER|GROUP|@SET[,...]] [PERMISSION|@SET[,...]] FILESYSTEM|VOLUME
    words: Vec<String>,
}

/// What a command line asks for.
struct Asked {
    grantees: Vec<Grantee>,
    permissions: Option<Vec<String>>,
    dataset: String,
}

impl Allow {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let options = &self.options;
        if options.usage {
            print!("{}", how(false));
            return Ok(());
        }
        let chosen = options.user || options.group || options.everyone || options.create;
        if let [dataset] = options.words.as_slice()
            && !chosen
            && !options.set
        {
            return list(dataset, client).map_err(|error| unopened(error, dataset));
        }
        let asked = options.asked(false)?;
        options.ask(asked, false, false, client, typed)
    }
}

impl Unallow {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        if self.options.usage {
            print!("{}", how(true));
            return Ok(());
        }
        let asked = self.options.asked(true)?;
        self.options.ask(asked, true, self.recursive, client, typed)
    }
}

impl Options {
    /// What the words are (`parse_allow_args`, `construct_fsacl_list`).
    fn asked(&self, take: bool) -> anyhow::Result<Asked> {
        let kinds = [self.user, self.group, self.everyone];
        let count = |all: &[bool]| all.iter().filter(|given| **given).count();
        if count(&kinds) > 1 {
            return Err(misused(take, "-u, -g, and -e are mutually exclusive"));
        }
        let others = count(&kinds) + count(&[self.create, self.set]);
        for (given, letter, limit) in [
            (self.set, "-s", others),
            (
                self.create,
                "-c",
                others + count(&[self.local, self.descendent]),
            ),
            (self.everyone, "-e", others),
        ] {
            if given && limit > 1 {
                let why = format!("invalid options combined with {letter}");
                return Err(misused(take, &why));
            }
        }
        let mut words = self.words.as_slice();
        let mut everyone = self.everyone;
        let is_named = !self.create && !everyone;
        if is_named
            && !self.set
            && count(&kinds) == 0
            && words.first().is_some_and(|word| word == "everyone")
        {
            (everyone, words) = (true, &words[1..]);
        }
        let has_who = !self.create && !everyone;
        let expected = if has_who { 3 } else { 2 };
        let has_permissions = words.len() == expected;
        let lacks_permissions = take && words.len() + 1 == expected;
        if !(has_permissions || lacks_permissions) {
            return Err(misused(take, "wrong number of parameters"));
        }
        let grantees = if self.set {
            if !words[0].starts_with('@') {
                return Err(misused(take, "invalid set name: missing '@' prefix"));
            }
            vec![Grantee::Set(words[0].clone())]
        } else if self.create {
            vec![Grantee::Create]
        } else if everyone {
            vec![Grantee::Everyone]
        } else {
            let names = words[0].split(',');
            names
                .map(|name| self.grantee(name).map_err(|why| misused(take, &why)))
                .collect::<Result<_, _>>()?
        };
        let dataset = words[words.len() - 1].clone();
        let permissions = has_permissions.then(|| {
            let names = words[words.len() - 2].split(',');
            names.map(str::to_owned).collect()
        });
        Ok(Asked {
            grantees,
            permissions,
            dataset,
        })
    }

    /// A user or group, by name or number; or what is wrong with it. OpenZFS says nothing else, but
    /// ends as if all were well: a script that gives nobody a permission shall hear of it.
    fn grantee(&self, name: &str) -> Result<Grantee, String> {
        let number = name.parse::<u64>().ok();
        let user = number_in("/etc/passwd", name);
        let group = number_in("/etc/group", name);
        if self.user {
            return match user.or(number) {
                Some(id) => Ok(Grantee::User(id)),
                None => Err(format!("invalid user {name}")),
            };
        }
        if self.group {
            return match group.or(number) {
                Some(id) => Ok(Grantee::Group(id)),
                None => Err(format!("invalid group {name}")),
            };
        }
        match (user, group) {
            (Some(id), _) => Ok(Grantee::User(id)),
            (None, Some(id)) => Ok(Grantee::Group(id)),
            (None, None) => Err(format!("invalid user/group {name}")),
        }
    }

    fn ask(
        &self,
        asked: Asked,
        take: bool,
        recursive: bool,
        client: &Client,
        typed: String,
    ) -> anyhow::Result<()> {
        let both = !self.local && !self.descendent;
        let name = asked.dataset.clone();
        let reply = client.call(&ZfsAllow {
            name: asked.dataset,
            grantees: asked.grantees,
            local: self.local || both,
            descendent: self.descendent || both,
            permissions: asked.permissions,
            take,
            recursive,
            command: typed,
        });
        reply.map_err(|error| unopened(error, &name))?;
        Ok(())
    }
}

/// The number of a user or group of this host by its name or number (passwd(5), group(5)).
fn number_in(path: &str, wanted: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        (name == wanted || id == wanted).then(|| id.parse().ok())?
    })
}

/// How many characters a heading takes.
const HEADING: usize = 70;

fn list(dataset: &str, client: &Client) -> anyhow::Result<()> {
    let reply = client.call(&ZfsAllowList {
        name: dataset.to_owned(),
    })?;
    for level in reply.levels {
        let heading = format!("---- Permissions on {} ", level.name);
        println!("{heading:-<HEADING$}");
        let mut grants = level.grants;
        // By what is stored, as text.
        grants.sort_by_key(|grant| match &grant.grantee {
            Grantee::Set(name) => (0, name.clone()),
            Grantee::Create => (1, String::new()),
            Grantee::User(id) => (2, id.to_string()),
            Grantee::Group(id) => (3, id.to_string()),
            Grantee::Everyone => (4, String::new()),
        });
        let is_set = |grant: &&GrantReport| matches!(grant.grantee, Grantee::Set(_));
        let is_create = |grant: &&GrantReport| grant.grantee == Grantee::Create;
        titled(
            "Permission sets:",
            grants.iter().filter(is_set).map(|grant| {
                let name = match &grant.grantee {
                    Grantee::Set(name) => name.as_str(),
                    _ => "",
                };
                format!("{name} {}", grant.local.join(","))
            }),
        );
        titled(
            "Create time permissions:",
            grants
                .iter()
                .filter(is_create)
                .map(|grant| grant.local.join(",")),
        );
        for (title, local, descendent) in [
            ("Local permissions:", true, false),
            ("Descendent permissions:", false, true),
            ("Local+Descendent permissions:", true, true),
        ] {
            let lines = grants.iter().filter_map(|grant| {
                let who = who(grant)?;
                let mut all: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
                for name in &grant.local {
                    all.entry(name).or_default().0 = true;
                }
                for name in &grant.descendent {
                    all.entry(name).or_default().1 = true;
                }
                let names: Vec<&str> = (all.into_iter())
                    .filter(|(_, scopes)| *scopes == (local, descendent))
                    .map(|(name, _)| name)
                    .collect();
                (!names.is_empty()).then(|| format!("{who} {}", names.join(",")))
            });
            titled(title, lines);
        }
    }
    Ok(())
}

fn titled(title: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        println!("{title}");
    }
    for line in lines {
        println!("\t{line}");
    }
}

/// How a user, a group or everyone is told.
fn who(grant: &GrantReport) -> Option<String> {
    let named = |kind: &str, id: u64| match &grant.name {
        Some(name) => format!("{kind} {name}"),
        None => format!("{kind} (unknown: {id})"),
    };
    Some(match grant.grantee {
        Grantee::User(id) => named("user", id),
        Grantee::Group(id) => named("group", id),
        Grantee::Everyone => "everyone".to_owned(),
        Grantee::Set(_) | Grantee::Create => return None,
    })
}
