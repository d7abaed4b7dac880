//! What the property `sharesmb` asks for.
//!
//! It is `on`, `off`, or words separated by commas: `ro`, `name=NAME`, `user=NAME` and
//! `group=NAME` (repeatable), `guest`, `groupwrite`, `hide`, `encrypt`, `timemachine` or
//! `timemachine=SIZE`.

use dataset::props::parse_size;

/// The property.
pub const SMB_PROPERTY: &str = "sharesmb";
/// Longest name of a share in characters (MS-SRVS section 2.2.4.23 leaves it open; Windows takes
/// 80).
const NAME_LENGTH_MAX: usize = 80;
/// Characters that no share's name has (MS-FSCC section 2.1.6), and `%`, which Samba replaces.
const NOT_IN_NAMES: &str = "\"\\/[]:|<>+=;,*?%";
/// Sections of Samba's configuration that are no shares, and shares that it makes itself.
const RESERVED: [&str; 8] = [
    "global", "homes", "printers", "print$", "ipc$", "admin$", "pipe", "mailslot",
];

/// How a filesystem is to be shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// The share's name; by the dataset's where not given.
    pub name: Option<String>,
    /// Nobody may write.
    pub read_only: bool,
    /// Who may use it; every user of the server where there are neither these nor groups.
    pub users: Vec<String>,
    /// Groups of the system whose members may use it.
    pub groups: Vec<String>,
    /// Everybody may use it without a password.
    pub guest: bool,
    /// What is made there may be changed by the group that it has.
    pub group_write: bool,
    /// It is not listed.
    pub hide: bool,
    /// Connections to it are encrypted.
    pub encrypt: bool,
    /// Macs may back up to it.
    pub time_machine: Option<TimeMachine>,
}

/// What Time Machine may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeMachine {
    /// How big a Mac is told that the disk is, in bytes; as it is where not given.
    pub size_bytes: Option<u64>,
}

impl Words {
    /// Reads a value of the property; nothing where it is `off`.
    ///
    /// # Errors
    /// What is wrong with it, and what to write instead.
    pub fn parse(typed: &str) -> Result<Option<Self>, String> {
        if matches!(typed, "off" | "" | "-" | "none") {
            return Ok(None);
        }
        let mut words = Self::default();
        for word in typed.split(',') {
            match word.split_once('=') {
                None if word == "on" || word == "rw" => {}
                None if word == "ro" => words.read_only = true,
                None if word == "guest" => words.guest = true,
                None if word == "groupwrite" => words.group_write = true,
                None if word == "hide" => words.hide = true,
                None if word == "encrypt" => words.encrypt = true,
                None if word == "timemachine" => {
                    words.time_machine.get_or_insert_default();
                }
                Some(("timemachine", size)) => {
                    let size_bytes = parse_size(size).ok().filter(|bytes| *bytes > 0);
                    let size_bytes = size_bytes.ok_or_else(|| {
                        format!("'{word}' names no size; write timemachine=500G, for one")
                    })?;
                    let size_bytes = Some(size_bytes);
                    words.time_machine = Some(TimeMachine { size_bytes });
                }
                Some(("name", name)) => {
                    check_name(name)?;
                    if words.name.replace(name.to_owned()).is_some() {
                        return Err(format!(
                            "{SMB_PROPERTY} names the share twice; name it once"
                        ));
                    }
                }
                Some(("user", name)) => words.users.push(account(name)?),
                Some(("group", name)) => words.groups.push(account(name)?),
                _ => {
                    return Err(format!(
                        "'{word}' is not an option of {SMB_PROPERTY}; use on, off, ro, name=NAME, \
                         user=NAME, group=NAME, guest, groupwrite, hide, encrypt, \
                         timemachine[=SIZE], separated by commas"
                    ));
                }
            }
        }
        if words.guest && !(words.users.is_empty() && words.groups.is_empty()) {
            return Err(format!(
                "{SMB_PROPERTY} has guest, which is everybody, beside user= or group=; leave out \
                 the one or the other"
            ));
        }
        if words.guest && words.time_machine.is_some() {
            return Err(format!(
                "{SMB_PROPERTY} has timemachine beside guest: everybody could read and change \
                 backups; leave out guest"
            ));
        }
        if words.read_only && words.time_machine.is_some() {
            return Err(format!(
                "{SMB_PROPERTY} has timemachine beside ro: backups are written; leave out ro"
            ));
        }
        Ok(Some(words))
    }

    /// The name of the share of a dataset whose property was set at `from`, itself or above it.
    ///
    /// # Errors
    /// Where that is no name for a share.
    pub fn share_name(&self, dataset: &str, from: &str) -> Result<String, String> {
        let name = match &self.name {
            // One that is inherited would be that of several.
            Some(name) => {
                let below = dataset.strip_prefix(from).unwrap_or_default();
                format!("{name}{}", plain(below))
            }
            None => plain(dataset),
        };
        check_name(&name).map(|()| name)
    }
}

/// What a share's name has of a dataset's (`smb_enable_share`, lib/libshare/os/linux/smb.c).
fn plain(dataset: &str) -> String {
    let plain = |c: char| if "/-: ".contains(c) { '_' } else { c };
    dataset.chars().map(plain).collect()
}

fn check_name(name: &str) -> Result<(), String> {
    let problem = if name.is_empty() || name.chars().count() > NAME_LENGTH_MAX {
        format!("a name has 1 to {NAME_LENGTH_MAX} characters")
    } else if name
        .chars()
        .any(|c| c.is_control() || NOT_IN_NAMES.contains(c))
        || name.trim() != name
    {
        format!("a name has none of {NOT_IN_NAMES} and neither begins nor ends with a space")
    } else if name.starts_with('-') {
        // Samba's programs take it for an option.
        "a name does not begin with '-'".to_owned()
    } else if RESERVED.contains(&name.to_lowercase().as_str()) {
        "the name means something else to Samba".to_owned()
    } else {
        return Ok(());
    };
    Err(format!(
        "'{name}' cannot be the name of a share: {problem}; give another one with \
         {SMB_PROPERTY}=name=NAME"
    ))
}

/// A user or group of the system, as a word of Samba's configuration.
fn account(name: &str) -> Result<String, String> {
    match is_account(name) {
        true => Ok(name.to_owned()),
        false => Err(format!("'{name}' is not the name of a user or group")),
    }
}

/// Whether this can be the name of an account. What Samba would take for something else is none:
/// `@`, `+` and `&` begin names of groups, `%` variables, and quotes and spaces end words.
pub fn is_account(name: &str) -> bool {
    let mut characters = name.chars();
    let begins = characters
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    begins
        && name.len() <= 32
        && characters.all(|c| c.is_ascii_alphanumeric() || "_-.$".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_or_refused() {
        for off in ["off", "", "-", "none"] {
            assert_eq!(Words::parse(off), Ok(None));
        }
        assert_eq!(Words::parse("on"), Ok(Some(Words::default())));
        let words =
            Words::parse("ro,name=Photos,user=ann,user=bob,group=staff,groupwrite,hide,encrypt");
        let expected = Words {
            name: Some("Photos".into()),
            read_only: true,
            users: vec!["ann".into(), "bob".into()],
            groups: vec!["staff".into()],
            group_write: true,
            hide: true,
            encrypt: true,
            ..Words::default()
        };
        assert_eq!(words, Ok(Some(expected)));
        let size_of = |typed| Words::parse(typed).unwrap().unwrap().time_machine;
        assert_eq!(size_of("timemachine"), Some(TimeMachine::default()));
        let size_bytes = Some(500 << 30);
        assert_eq!(
            size_of("timemachine=500G"),
            Some(TimeMachine { size_bytes })
        );
        for (typed, why) in [
            ("yes", "use on, off"),
            ("guest,user=ann", "leave out"),
            ("guest,timemachine", "backups"),
            ("ro,timemachine", "leave out ro"),
            ("timemachine=0", "names no size"),
            ("timemachine=lots", "names no size"),
            ("name=a,name=b", "twice"),
            ("name=a/b", "none of"),
            ("name=", "1 to 80"),
            ("name=Homes", "something else"),
            ("name=%U", "none of"),
            ("name=-d10", "begin with '-'"),
            ("user=@wheel", "not the name"),
            ("user=a b", "not the name"),
            ("user=", "not the name"),
            ("user=a\nguest ok = yes", "not the name"),
            ("name=a\nb", "none of"),
        ] {
            let refused = Words::parse(typed).unwrap_err();
            assert!(refused.contains(why), "{typed}: {refused}");
        }
    }

    #[test]
    fn shares_are_named_after_datasets() {
        let by_default = Words::default();
        let name = |dataset| by_default.share_name(dataset, dataset);
        assert_eq!(name("tank/home").unwrap(), "tank_home");
        assert_eq!(name("tank/a-b:c d").unwrap(), "tank_a_b_c_d");
        assert!(name("homes").unwrap_err().contains("name=NAME"));
        assert!(name(&"long/".repeat(30)).is_err());
        let words = Words::parse("name=Media").unwrap().unwrap();
        assert_eq!(words.share_name("tank/m", "tank/m").unwrap(), "Media");
        let below = words.share_name("tank/m/films/new", "tank/m");
        assert_eq!(below.unwrap(), "Media_films_new");
    }
}
