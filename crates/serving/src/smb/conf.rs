//! Samba's configuration (smb.conf(5)), from nothing but what the server and the properties say:
//! neither the system's configuration nor its databases are read or touched.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::announce::MODEL;
use super::words::Words;

/// Longest NetBIOS name in characters, by which a standalone server calls itself.
const NETBIOS_LENGTH_MAX: usize = 15;
/// Modules that every share has, in the order in which they are asked: names that Windows does not
/// take are translated, Macs find what they know (fruit; vfs_fruit(8) wants the same for all
/// shares), alternate streams are kept as attributes, snapshots are previous versions.
const MODULES: &str = "catia fruit streams_xattr shadow_copy2";
/// Files of [`MODULES`].
pub(super) const MODULE_NAMES: [&str; 4] = ["catia", "fruit", "streams_xattr", "shadow_copy2"];

/// Directories of the server's, below one of its own.
pub(super) const DIRECTORIES: [&str; 7] =
    ["private", "state", "cache", "lock", "run", "log", "bind"];

/// A filesystem that is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The share's name.
    pub name: String,
    /// Where it is mounted.
    pub path: PathBuf,
    /// How it is shared.
    pub words: Words,
    /// NFS clients change it too.
    pub by_nfs: bool,
}

/// Refuses paths that Samba would read otherwise: it knows no way to quote them.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check_path(path: &Path) -> Result<(), String> {
    let text = path.to_str().filter(|text| {
        !text.contains('%')
            && !text.contains('"')
            && !text.chars().any(char::is_control)
            && !text.ends_with('\\')
            && text.trim() == *text
    });
    match text {
        Some(_) => Ok(()),
        None => Err(format!(
            "Samba cannot be told of a directory called '{}', because of a '%', quote, control \
             character, or '\\' or space at its end; set another mountpoint",
            path.display()
        )),
    }
}

/// The whole configuration. Paths have been checked ([`check_path`]).
pub(super) fn text<'a>(
    directory: &Path,
    host: &str,
    address: SocketAddr,
    has_avahi: bool,
    shares: impl Iterator<Item = &'a Share>,
) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    let mut text = String::from(
        "# Written by Millpond; changes are lost. Shares are properties: zfs set sharesmb=...\n\
         [global]\n",
    );
    let mut set = |name: &str, value: &str| {
        let _ = writeln!(text, "{name} = {value}");
    };
    set("server role", "standalone server");
    set("netbios name", &netbios_name(host));
    set("server string", "Millpond");
    // Neither browsing by NetBIOS nor SMB1.
    set("disable netbios", "yes");
    set("server min protocol", "SMB2_10");
    set("smb ports", &address.port().to_string());
    match address.ip().is_unspecified() {
        true => set("bind interfaces only", "no"),
        false => {
            set("bind interfaces only", "yes");
            set("interfaces", &address.ip().to_string());
        }
    }
    let is_announced = has_avahi && !address.ip().to_canonical().is_loopback();
    set(
        "multicast dns register",
        if is_announced { "yes" } else { "no" },
    );
    set("private dir", &at("private"));
    set(
        "passdb backend",
        &format!("tdbsam:{}", at("private/passdb.tdb")),
    );
    set("state directory", &at("state"));
    set("cache directory", &at("cache"));
    set("lock directory", &at("lock"));
    set("pid directory", &at("run"));
    set("ncalrpc dir", &at("run/ncalrpc"));
    set("binddns dir", &at("bind"));
    set("log file", &at("log/smbd.log"));
    set("max log size", "5000");
    set("log level", "1");
    // Nothing of the system's: printers, shares that users make, PAM.
    set("load printers", "no");
    set("printing", "bsd");
    set("printcap name", "/dev/null");
    set("disable spoolss", "yes");
    set("usershare max shares", "0");
    set("obey pam restrictions", "no");
    set("unix password sync", "no");
    set("invalid users", "root");
    // Only who gives a name that there is not is a guest: a wrong password is refused. Shares say
    // whether they let guests in.
    set("map to guest", "Bad User");
    set("restrict anonymous", "2");
    // Others change files as well: mounts, NFS.
    set("kernel share modes", "no");
    set("vfs objects", MODULES);
    set("fruit:aapl", "yes");
    set("fruit:model", MODEL);
    set("fruit:metadata", "stream");
    set("fruit:nfs_aces", "no");
    set("fruit:veto_appledouble", "no");
    set("fruit:posix_rename", "yes");
    set("fruit:wipe_intentionally_left_blank_rfork", "yes");
    set("fruit:delete_empty_adfiles", "yes");
    set("shadow:snapdir", ".zfs/shadow");
    set("shadow:sort", "desc");
    for share in shares {
        write_share(&mut text, share);
    }
    text
}

fn write_share(text: &mut String, share: &Share) {
    let Share {
        name,
        path,
        words,
        by_nfs,
    } = share;
    let path = path.display().to_string();
    let _ = writeln!(text, "\n[{name}]");
    let mut set = |name: &str, value: &str| {
        let _ = writeln!(text, "{name} = {value}");
    };
    let yes = |is: bool| if is { "yes" } else { "no" };
    set("path", &path);
    set("read only", yes(words.read_only));
    set("browseable", yes(!words.hide));
    set("guest ok", yes(words.guest));
    let groups = words.groups.iter().map(|group| format!("@{group}"));
    let valid: Vec<String> = words.users.iter().cloned().chain(groups).collect();
    if !valid.is_empty() {
        set("valid users", &valid.join(" "));
    }
    if words.group_write {
        // The group is the directory's, whose set-group-id bit goes on to directories in it.
        set("force create mode", "0660");
        set("force directory mode", "2770");
        // Who logs in is a guest as well: what guests made is nobody's, and its group's.
        if words.guest {
            set("guest only", "yes");
        }
    }
    if words.encrypt {
        set("server smb encrypt", "required");
    }
    if *by_nfs {
        // A client with a lease keeps what it read, and what it is to write, and Samba is not told
        // when it should take the lease back.
        set("oplocks", "no");
    }
    set("shadow:mountpoint", &path);
    if let Some(time_machine) = words.time_machine {
        set("fruit:time machine", "yes");
        if let Some(bytes) = time_machine.size_bytes {
            set("fruit:time machine max size", &bytes.to_string());
        }
    }
}

/// A name for the server by its host's.
pub(super) fn netbios_name(host: &str) -> String {
    let first = host.split('.').next().unwrap_or_default();
    let name: String = first
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .take(NETBIOS_LENGTH_MAX)
        .collect();
    match name.trim_matches('-') {
        "" => "MILLPOND".to_owned(),
        name => name.to_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(name: &str, path: &str, typed: &str) -> Share {
        Share {
            name: name.into(),
            path: path.into(),
            words: Words::parse(typed).unwrap().unwrap(),
            by_nfs: false,
        }
    }

    fn written(address: &str, shares: &[Share]) -> String {
        let address = address.parse().unwrap();
        text(
            Path::new("/state/smb"),
            "host.example",
            address,
            true,
            shares.iter(),
        )
    }

    /// The lines of a section.
    fn section<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let begin = format!("[{name}]");
        let lines = text.lines().skip_while(move |line| *line != begin).skip(1);
        lines.take_while(|line| !line.starts_with('[')).collect()
    }

    #[test]
    fn a_share_has_what_its_words_say() {
        let shares = [
            share("plain", "/tank/plain", "on"),
            share(
                "some",
                "/tank/some",
                "ro,hide,encrypt,user=ann,group=staff,groupwrite",
            ),
            share("open", "/tank/open", "guest"),
            share("all", "/tank/all", "guest,groupwrite"),
            share("macs", "/tank/my macs", "timemachine=1T,user=ann"),
        ];
        let text = written("127.0.0.1:1445", &shares);
        let has = |name: &str, line: &str| section(&text, name).contains(&line);
        assert!(has("global", "smb ports = 1445"), "{text}");
        assert!(has("global", "interfaces = 127.0.0.1"));
        assert!(has("global", "private dir = /state/smb/private"));
        assert!(has("global", "netbios name = HOST"));
        assert!(has("global", "multicast dns register = no"), "{text}");
        for line in ["path = /tank/plain", "read only = no", "guest ok = no"] {
            assert!(has("plain", line), "{line}: {text}");
        }
        assert!(
            !section(&text, "plain")
                .iter()
                .any(|line| line.starts_with("valid users"))
        );
        for line in [
            "read only = yes",
            "browseable = no",
            "server smb encrypt = required",
            "valid users = ann @staff",
            "force create mode = 0660",
            "force directory mode = 2770",
        ] {
            assert!(has("some", line), "{line}: {text}");
        }
        assert!(has("open", "guest ok = yes"));
        assert!(has("all", "guest only = yes"), "{text}");
        assert!(!has("open", "guest only = yes") && !has("some", "guest only = yes"));
        assert!(!has("plain", "force create mode = 0660"));
        assert!(has("macs", "path = /tank/my macs"));
        assert!(has("macs", "fruit:time machine = yes"));
        assert!(has("macs", "fruit:time machine max size = 1099511627776"));
        assert!(has("macs", "shadow:mountpoint = /tank/my macs"));
    }

    /// Goal: no client keeps copies of what another server changes, and all do elsewhere.
    #[test]
    fn leases_are_given_where_samba_alone_serves() {
        let mut both = share("both", "/tank/both", "on");
        both.by_nfs = true;
        let text = written(
            "127.0.0.1:1445",
            &[both, share("alone", "/tank/alone", "on")],
        );
        assert!(section(&text, "both").contains(&"oplocks = no"), "{text}");
        assert!(!section(&text, "alone").contains(&"oplocks = no"), "{text}");
    }

    #[test]
    fn every_address_means_all_interfaces() {
        let text = written("0.0.0.0:445", &[]);
        assert!(text.contains("bind interfaces only = no"), "{text}");
        assert!(text.contains("multicast dns register = yes"), "{text}");
        assert!(!text.contains("\ninterfaces ="), "{text}");
    }

    #[test]
    fn paths_that_would_be_read_otherwise_are_refused() {
        for path in [
            "/tank/%U",
            "/tank/a\nb",
            "/tank/a ",
            "/tank/\"a\"",
            "/tank/a\\",
        ] {
            let refused = check_path(Path::new(path)).unwrap_err();
            assert!(refused.contains("another mountpoint"), "{refused}");
        }
        for path in ["/tank/a b", "/tank/ä;#'", "/tank/a\\b"] {
            assert_eq!(check_path(Path::new(path)), Ok(()));
        }
    }

    #[test]
    fn hosts_of_any_name_have_one_for_netbios() {
        assert_eq!(netbios_name("nas"), "NAS");
        assert_eq!(
            netbios_name("a-long-host-name-1.example"),
            "A-LONG-HOST-NAM"
        );
        assert_eq!(netbios_name("---"), "MILLPOND");
        assert_eq!(netbios_name(""), "MILLPOND");
    }
}
