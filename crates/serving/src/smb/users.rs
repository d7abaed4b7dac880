//! Who may log in by SMB: users of Samba's in its own database (tdbsam) in `smb/private/`, which
//! has hashes of passwords and which only root reads.
//!
//! Samba opens files as the user who logs in, so each is a user of the system; the password is one
//! of its own.

use api::{
    Empty, Failure, FailureKind, Secret, SmbUserAdd, SmbUserList, SmbUserListReply,
    SmbUserPassword, SmbUserRemove, SmbUserReport, SpaceOwner,
};
use rustix::process::{Pid, Signal, kill_process};

use super::child::{self, prepare};
use super::tools::Tools;
use super::words::is_account;
use super::{Smb, SmbListen};

/// Longest password in characters (`PASSWD` of Samba's programs ends there).
const PASSWORD_LENGTH_MAX: usize = 127;

pub(super) fn check_password(password: &Secret) -> Result<(), String> {
    let text = &password.0;
    if text.is_empty() || text.chars().count() > PASSWORD_LENGTH_MAX {
        return Err(format!(
            "a password has 1 to {PASSWORD_LENGTH_MAX} characters"
        ));
    }
    if text.chars().any(char::is_control) {
        return Err("a password has no line ends and no control characters".into());
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), String> {
    if name == "root" {
        return Err("root does not log in by SMB; use another user".into());
    }
    if !is_account(name) || name.chars().all(|c| c.is_ascii_digit()) {
        return Err(format!(
            "'{name}' is not a name for a user: it has to have 1 to 32 letters, digits, '-', '_' \
             and '.'"
        ));
    }
    Ok(())
}

/// The lines of `pdbedit -L`: name, number, full name.
fn read_list(text: &str) -> Vec<SmbUserReport> {
    let users = text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next()?, fields.next()?.parse().ok()?);
        Some(SmbUserReport {
            name: name.to_owned(),
            uid,
        })
    });
    users.collect()
}

/// Processes of the server's that serve a user, by the lines of `smbstatus -p`: number, user.
fn processes_of(text: &str, user: &str) -> Vec<Pid> {
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (pid, name) = (fields.next()?.parse().ok()?, fields.next()?);
        (name == user).then(|| Pid::from_raw(pid)).flatten()
    });
    lines.collect()
}

impl Smb {
    /// Samba's programs, with a configuration to run them with.
    async fn tools_for_users(&self) -> Result<Tools, String> {
        if !rustix::process::geteuid().is_root() {
            return Err(
                "SMB needs root, since Samba opens files as the user who logs in; run the \
                        server as root"
                    .into(),
            );
        }
        let directory = self.directory();
        let conf = directory.join("smb.conf");
        let tools = Tools::find(&conf).await?;
        let failed =
            |error: std::io::Error| format!("{} cannot be used: {error}", directory.display());
        if !conf.exists() {
            prepare(directory).map_err(failed)?;
            let address = match self.listen {
                SmbListen::At(address) | SmbListen::Near(address) => address,
                SmbListen::Off => ([127, 0, 0, 1], 445).into(),
            };
            child::write_configuration(self, address, &[]).map_err(failed)?;
        }
        Ok(tools)
    }
}

async fn list(tools: &Tools) -> Result<Vec<SmbUserReport>, String> {
    let listed = tools.run("pdbedit", &["-L"], None).await;
    listed.map(|text| read_list(&text))
}

/// Sets a password, of a new user or of one that there is.
async fn set_password(tools: &Tools, name: &str, password: &Secret) -> Result<(), String> {
    let twice = format!("{0}\n{0}\n", password.0);
    let set = tools
        .run("smbpasswd", &["-s", "-a", name], Some(&twice))
        .await;
    set.map(drop)
}

impl Smb {
    /// `millpond user add`.
    pub async fn user_add(&self, call: SmbUserAdd) -> Result<Empty, Failure> {
        let name = &call.name;
        let failed = |kind| {
            let doing = format!("cannot add user '{name}'");
            move |why: String| Failure::new(kind, format!("{doing}: {why}"))
        };
        check_name(name).map_err(failed(FailureKind::Invalid))?;
        check_password(&call.password).map_err(failed(FailureKind::Invalid))?;
        let _one = self.users.lock().await;
        let tools = self.tools_for_users().await;
        let tools = tools.map_err(failed(FailureKind::Unsupported))?;
        let known = list(&tools).await.map_err(failed(FailureKind::Other))?;
        if known.iter().any(|user| user.name == *name) {
            let why = format!(
                "there is one already; 'millpond user passwd {name}' changes the \
                               password"
            );
            return Err(failed(FailureKind::Exists)(why));
        }
        if let Err(why) = set_password(&tools, name, &call.password).await {
            if host::accounts::id_of(SpaceOwner::User, name).is_none() {
                let why = format!(
                    "the system has no user of this name, whose files the user's would be; make \
                     one with 'useradd --no-create-home --shell /usr/sbin/nologin {name}'"
                );
                return Err(failed(FailureKind::NotFound)(why));
            }
            return Err(failed(FailureKind::Other)(why));
        }
        Ok(Empty {})
    }

    /// `millpond user passwd`.
    pub async fn user_password(&self, call: SmbUserPassword) -> Result<Empty, Failure> {
        let name = &call.name;
        let failed = |kind| {
            let doing = format!("cannot change the password of '{name}'");
            move |why: String| Failure::new(kind, format!("{doing}: {why}"))
        };
        check_password(&call.password).map_err(failed(FailureKind::Invalid))?;
        let _one = self.users.lock().await;
        let tools = self.tools_for_users().await;
        let tools = tools.map_err(failed(FailureKind::Unsupported))?;
        let known = list(&tools).await.map_err(failed(FailureKind::Other))?;
        if !known.iter().any(|user| user.name == *name) {
            return Err(failed(FailureKind::NotFound)(no_such_user(name)));
        }
        let set = set_password(&tools, name, &call.password).await;
        set.map_err(failed(FailureKind::Other))?;
        Ok(Empty {})
    }

    /// `millpond user list`.
    pub async fn user_list(&self, _: &SmbUserList) -> Result<SmbUserListReply, Failure> {
        let failed =
            |kind| move |why: String| Failure::new(kind, format!("cannot list users: {why}"));
        let _one = self.users.lock().await;
        let tools = self.tools_for_users().await;
        let tools = tools.map_err(failed(FailureKind::Unsupported))?;
        let users = list(&tools).await.map_err(failed(FailureKind::Other))?;
        Ok(SmbUserListReply { users })
    }

    /// `millpond user remove`. Who is logged in as that user is not any more.
    pub async fn user_remove(&self, call: SmbUserRemove) -> Result<Empty, Failure> {
        let name = &call.name;
        let failed = |kind| {
            let doing = format!("cannot remove user '{name}'");
            move |why: String| Failure::new(kind, format!("{doing}: {why}"))
        };
        let _one = self.users.lock().await;
        let tools = self.tools_for_users().await;
        let tools = tools.map_err(failed(FailureKind::Unsupported))?;
        let known = list(&tools).await.map_err(failed(FailureKind::Other))?;
        if !known.iter().any(|user| user.name == *name) {
            return Err(failed(FailureKind::NotFound)(no_such_user(name)));
        }
        let removed = tools.run("smbpasswd", &["-x", name], None).await;
        removed.map_err(failed(FailureKind::Other))?;
        match tools.run("smbstatus", &["-p"], None).await {
            Ok(text) => {
                for pid in processes_of(&text, name) {
                    if child::is_server(pid, self.directory()) {
                        let _ = kill_process(pid, Signal::TERM);
                    }
                }
            }
            Err(why) => tracing::debug!("who is logged in by SMB cannot be told: {why}"),
        }
        Ok(Empty {})
    }
}

fn no_such_user(name: &str) -> String {
    format!("there is none; 'millpond user add {name}' makes one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_passwords_that_samba_would_read_otherwise_are_refused() {
        for name in [
            "",
            "root",
            "-x",
            "a b",
            "a\nb",
            "@wheel",
            "a%U",
            "1000",
            &"a".repeat(33),
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["ann", "_svc", "j.doe", "pc-1", "x1000"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for password in ["", "one\ntwo", "nul\0", &"x".repeat(128)] {
            assert!(check_password(&Secret(password.into())).is_err());
        }
        assert_eq!(
            check_password(&Secret("ä long one with spaces".into())),
            Ok(())
        );
    }

    #[test]
    fn what_samba_lists_is_read() {
        let users = read_list("ann:1000:Ann Other\nINFO: something\nbob:1001:\n");
        let names: Vec<_> = users
            .iter()
            .map(|user| (user.name.as_str(), user.uid))
            .collect();
        assert_eq!(names, [("ann", 1000), ("bob", 1001)]);
        let status = "\nSamba version 4.17.12-Debian\nPID     Username     Group        Machine\n\
                      ------\n4711    ann          staff        127.0.0.1 (ipv4:127.0.0.1:5000)\n\
                      4712    bob          staff        127.0.0.1\n";
        assert_eq!(processes_of(status, "ann"), [Pid::from_raw(4711).unwrap()]);
        assert_eq!(processes_of(status, "staff"), []);
    }
}
