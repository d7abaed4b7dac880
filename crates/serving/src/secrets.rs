//! The secrets that iSCSI initiators and targets prove who they are with (CHAP, RFC 7143 section
//! 12.1.3), by name.
//!
//! They lie in `iscsi-secrets.json` of the state directory, which only its owner reads
//! ([`device::private`]). Where the file is not used there are no secrets: what needs one is not
//! shared, and none can be set.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use api::{Failure, FailureKind, Secret};
use device::Random;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use host::table_file::FileProblem;

/// Shortest secret in characters: RFC 7143 section 9.2.1 asks for 96 bits.
const SECRET_LENGTH_MIN: usize = 12;
/// Longest secret in characters.
const SECRET_LENGTH_MAX: usize = 64;
/// Longest secret that every initiator takes (Windows takes 12 to 16), in characters.
const SECRET_LENGTH_COMMON: usize = 16;
/// Longest name of a secret in characters.
const NAME_LENGTH_MAX: usize = 64;
/// Longest CHAP name in bytes (RFC 7143 section 12.1.3).
const USER_BYTES_MAX: usize = 255;
/// What secrets are made of: 64 characters, so that each has six bits, and none that a shell, a
/// URL or JSON would take for something else.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._";

/// A secret, and the name that it is given with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Credentials {
    /// The CHAP name.
    pub user: String,
    /// The secret.
    pub secret: Secret,
}

type ByName = BTreeMap<String, Credentials>;

/// All secrets, and their file.
pub struct Secrets {
    path: PathBuf,
    /// The secrets, or why there are none.
    by_name: Mutex<Result<ByName, String>>,
}

impl Secrets {
    /// Reads the secrets of a state directory.
    pub fn load(directory: &Path) -> Self {
        let path = directory.join("iscsi-secrets.json");
        let by_name = read(&path);
        if let Err(problem) = &by_name {
            tracing::error!("{problem}");
        }
        Self {
            path,
            by_name: Mutex::new(by_name),
        }
    }

    /// What is wrong with their file.
    pub fn problem(&self) -> Option<FileProblem> {
        let by_name = self.by_name.lock();
        let why = by_name.as_ref().err()?;
        Some(FileProblem::unread(&self.path, why))
    }

    /// Where they are kept.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The secret of this name.
    ///
    /// # Errors
    /// Where there is none; says how one is made.
    pub fn get(&self, name: &str) -> Result<Credentials, String> {
        let by_name = self.by_name.lock();
        let found = by_name.as_ref().map_err(Clone::clone)?.get(name);
        found.cloned().ok_or_else(|| {
            format!(
                "there is no secret '{name}'; make it with 'millpond iscsi secret set {name}' (add \
                 --generate to have one made up)"
            )
        })
    }

    /// Whether there is a secret of this name, as far as can be told.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_ok()
    }

    /// Names and users.
    pub fn list(&self) -> Result<Vec<(String, String)>, Failure> {
        let by_name = self.by_name.lock();
        let by_name = by_name.as_ref().map_err(|problem| unusable(problem))?;
        let pairs = by_name.iter();
        Ok(pairs
            .map(|(n, known)| (n.clone(), known.user.clone()))
            .collect())
    }

    /// Sets a secret; answers a warning about it, if there is something to warn of.
    pub fn set(&self, name: &str, credentials: Credentials) -> Result<Option<String>, Failure> {
        let invalid = |why: String| Failure::new(FailureKind::Invalid, why);
        check_name(name).map_err(invalid)?;
        check_user(&credentials.user).map_err(invalid)?;
        check_secret(&credentials.secret.0).map_err(invalid)?;
        let length = credentials.secret.0.len();
        let mut by_name = self.by_name.lock();
        let old = by_name.as_ref().map_err(|problem| unusable(problem))?;
        // One secret in two places would let who knows it as one pass for the other
        // (RFC 7143 section 9.2.1).
        let mut others = old.iter().filter(|(other, _)| *other != name);
        if let Some((other, _)) = others.find(|(_, known)| known.secret.0 == credentials.secret.0) {
            return Err(invalid(format!(
                "secret '{other}' is the same already; choose another one"
            )));
        }
        let mut new = old.clone();
        new.insert(name.to_owned(), credentials);
        self.keep(&new)?;
        *by_name = Ok(new);
        Ok((length > SECRET_LENGTH_COMMON).then(|| {
            format!(
                "the secret has {length} characters; Windows takes {SECRET_LENGTH_MIN} to \
                 {SECRET_LENGTH_COMMON}"
            )
        }))
    }

    /// Removes a secret.
    pub fn remove(&self, name: &str) -> Result<(), Failure> {
        self.get(name)
            .map_err(|why| Failure::new(FailureKind::NotFound, why))?;
        let mut by_name = self.by_name.lock();
        let mut new = by_name
            .as_ref()
            .map_err(|problem| unusable(problem))?
            .clone();
        new.remove(name);
        self.keep(&new)?;
        *by_name = Ok(new);
        Ok(())
    }

    fn keep(&self, by_name: &ByName) -> Result<(), Failure> {
        write(&self.path, by_name).map_err(|error| {
            let message = format!(
                "the secret could not be kept in {}: {error}; look at the directory's space and \
                 permissions",
                self.path.display()
            );
            Failure::new(FailureKind::Io, message)
        })
    }
}

fn unusable(problem: &str) -> Failure {
    Failure::new(FailureKind::Io, problem)
}

/// Makes a secret up.
pub fn generate(random: &dyn Random) -> Secret {
    let mut bytes = [0; SECRET_LENGTH_COMMON];
    random.fill(&mut bytes);
    let characters = bytes.map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]));
    Secret(characters.iter().collect())
}

/// Names are words of `millpond:iscsi`.
fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.chars().all(is_allowed) {
        return Ok(());
    }
    Err(format!(
        "'{name}' is not a name for a secret: it has to have 1 to {NAME_LENGTH_MAX} letters, \
         digits, '-', '_' and '.'"
    ))
}

fn check_user(user: &str) -> Result<(), String> {
    let is_allowed = (1..=USER_BYTES_MAX).contains(&user.len());
    if is_allowed && user.chars().all(|c| c.is_ascii_graphic()) {
        return Ok(());
    }
    Err(format!(
        "'{user}' is not a name for CHAP: it has to have 1 to {USER_BYTES_MAX} letters, digits and \
         signs, and no spaces"
    ))
}

fn check_secret(secret: &str) -> Result<(), String> {
    let length = secret.chars().count();
    if !(SECRET_LENGTH_MIN..=SECRET_LENGTH_MAX).contains(&length) {
        return Err(format!(
            "a secret has {SECRET_LENGTH_MIN} to {SECRET_LENGTH_MAX} characters, this one has \
             {length}; choose another one, or have one made up with --generate"
        ));
    }
    if !secret.chars().all(|c| c.is_ascii_graphic()) {
        return Err(
            "a secret has ASCII letters, digits and signs only, and no spaces: initiators \
             understand others differently; choose another one"
                .into(),
        );
    }
    Ok(())
}

/// Reads the file; nothing where there is none.
fn read(path: &Path) -> Result<ByName, String> {
    let read = device::private::read_json(path, "iSCSI secrets");
    read.map(Option::unwrap_or_default)
        .map_err(|error| error.to_string())
}

/// Replaces the file.
fn write(path: &Path, by_name: &ByName) -> io::Result<()> {
    device::private::write_json(path, by_name)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn credentials(user: &str, secret: &str) -> Credentials {
        Credentials {
            user: user.into(),
            secret: Secret(secret.into()),
        }
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn secrets_are_kept_for_their_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let secrets = Secrets::load(directory.path());
        assert_eq!(secrets.list().unwrap(), []);
        let given = credentials("alice", "alicesecret12");
        assert_eq!(secrets.set("a", given).unwrap(), None);
        assert_eq!(mode(secrets.path()), 0o600);
        let again = Secrets::load(directory.path());
        assert_eq!(again.get("a").unwrap().secret.0, "alicesecret12");
        assert_eq!(again.list().unwrap(), [("a".into(), "alice".into())]);
        assert!(!format!("{:?}", again.get("a")).contains("alicesecret12"));
        again.remove("a").unwrap();
        assert!(!Secrets::load(directory.path()).has("a"));
        let missing = again.remove("a").unwrap_err();
        assert!(missing.message.contains("secret set a"), "{missing}");
    }

    /// A file that others may read is made private, also where a crash left one beside it.
    #[test]
    fn wider_rights_are_mended() {
        let directory = tempfile::tempdir().unwrap();
        let secrets = Secrets::load(directory.path());
        let widen = |path: &Path| {
            std::fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
        };
        secrets.set("a", credentials("a", "alicesecret12")).unwrap();
        widen(secrets.path());
        assert!(Secrets::load(directory.path()).has("a"));
        assert_eq!(mode(secrets.path()), 0o600);
        let beside = directory.path().join("iscsi-secrets.json.new");
        std::fs::write(&beside, "").unwrap();
        widen(&beside);
        secrets.set("b", credentials("b", "otherssecret1")).unwrap();
        assert_eq!(mode(secrets.path()), 0o600);
    }

    #[test]
    fn a_file_that_is_not_understood_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("iscsi-secrets.json");
        std::fs::write(&path, "{\"a\":").unwrap();
        let secrets = Secrets::load(directory.path());
        assert!(secrets.get("a").unwrap_err().contains("mend or remove"));
        let refused = secrets.set("a", credentials("a", "alicesecret12"));
        assert!(refused.unwrap_err().message.contains("mend or remove"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"a\":");
        // A link might lead anywhere.
        std::fs::remove_file(&path).unwrap();
        let elsewhere = directory.path().join("elsewhere");
        std::fs::write(&elsewhere, "{}").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(Secrets::load(directory.path()).list().is_err());
    }

    #[test]
    fn what_initiators_could_not_use_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let secrets = Secrets::load(directory.path());
        let set = |name: &str, user: &str, secret: &str| {
            secrets
                .set(name, credentials(user, secret))
                .map_err(|failure| failure.message)
        };
        let long = "x".repeat(65);
        for (name, user, secret, why) in [
            ("a,b", "a", "alicesecret12", "name for a secret"),
            ("", "a", "alicesecret12", "name for a secret"),
            ("a", "a b", "alicesecret12", "name for CHAP"),
            ("a", "a", "elevenchars", "this one has 11"),
            ("a", "a", &long, "this one has 65"),
            ("a", "a", "alice secret12", "no spaces"),
        ] {
            let refused = set(name, user, secret).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        assert_eq!(set("a", "a", "alicesecret12"), Ok(None));
        assert!(
            set("b", "b", "alicesecret12")
                .unwrap_err()
                .contains("'a' is the same")
        );
        // The same name may be set to the same again.
        assert_eq!(set("a", "c", "alicesecret12"), Ok(None));
        let warned = set("w", "w", "seventeen-letters").unwrap();
        assert!(warned.unwrap().contains("Windows takes 12 to 16"));
    }

    /// 16 characters of six bits each are the 96 bits that RFC 7143 asks for.
    #[test]
    fn generated_secrets_are_all_of_the_alphabet_and_taken_everywhere() {
        let mut characters: Vec<u8> = ALPHABET.to_vec();
        characters.sort_unstable();
        characters.dedup();
        assert_eq!(characters.len(), 64);
        let world = device::World::system(1);
        let (one, other) = (generate(&*world.random), generate(&*world.random));
        assert_ne!(one.0, other.0);
        assert_eq!(one.0.len(), SECRET_LENGTH_COMMON);
        check_secret(&one.0).unwrap();
    }
}
