//! What there is after a kill, compared with what there may be.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::listed::{Listed, Secret};
use super::{Doubt, Known, Worker};
use crate::torture::contents::{self, Next};
use crate::torture::shell::{Result, Stop};

impl Worker {
    /// Compares all names with what they may be after a kill. What came half is destroyed.
    fn compare_names(&mut self) -> Result<()> {
        let before = std::mem::take(&mut self.listed);
        let begin = Instant::now();
        loop {
            self.listed = self.list()?;
            let strange = self.filesystems(|one| !self.known.contains_key(&one.guid));
            let Some(one) = strange.first() else {
                break;
            };
            let Some((_, secret)) = self.doubt.comes.clone() else {
                return Err(Stop::Failed(format!("{} should not be there", one.name)));
            };
            if one.is_root()
                && let Some(secret) = secret
                && !self.would_open(one, secret)?
            {
                let name = &one.name;
                return Err(Stop::Failed(format!(
                    "{name} is not opened by key {secret}"
                )));
            }
            // One that was half received may be about to be destroyed by the server.
            let _ = self.shell.ok(&format!("zfs destroy -r {}", one.name));
            if begin.elapsed() > Duration::from_secs(60) {
                return Err(Stop::Failed(format!("{} does not go", one.name)));
            }
        }
        for one in self.listed.iter().filter(|one| one.is_snapshot()) {
            if let Some((files, _)) = &self.doubt.comes {
                self.snapshots.entry(one.guid).or_insert(files.clone());
            }
        }
        let core = |one: &Listed| match self.doubt.moves {
            true => (String::new(), one.guid, None),
            false => (one.name.clone(), one.guid, one.root.clone()),
        };
        let (before, after): (Vec<_>, Vec<_>) = (
            before.iter().map(core).collect(),
            self.listed.iter().map(core).collect(),
        );
        let gone = before.iter().find(|one| !after.contains(one));
        let new = after.iter().find(|one| !before.contains(one));
        match (gone, new) {
            (Some(gone), _) if !self.doubt.goes => {
                Err(Stop::Failed(format!("{gone:?} is gone, or another one")))
            }
            (_, Some(new)) if self.doubt.comes.is_none() => {
                Err(Stop::Failed(format!("{new:?} is there, or another one")))
            }
            _ => Ok(()),
        }
    }

    /// Loads all keys: those that the model has, and no other ones.
    fn compare_keys(&mut self) -> Result<()> {
        while let Some(root) = self.pick(|one| one.is_root() && !one.is_loaded) {
            let doubt = self.doubt.secret.clone();
            let may_be = |guid: u64, known: &Known| -> BTreeSet<Secret> {
                let mut all = BTreeSet::from_iter(known.secret);
                let doubt = doubt.iter().filter(|(guids, _)| guids.contains(&guid));
                all.extend(doubt.map(|(_, secret)| *secret));
                all
            };
            let members = self.of_root(&root.name);
            let mut common: Option<BTreeSet<Secret>> = None;
            for one in &members {
                let secrets = may_be(one.guid, &self.known[&one.guid]);
                common = Some(match common {
                    None => secrets,
                    Some(common) => common.intersection(&secrets).copied().collect(),
                });
            }
            let mut right = None;
            for secret in common.unwrap_or_default() {
                if self.would_open(&root, secret)? {
                    right = Some(secret);
                }
            }
            let Some(secret) = right else {
                let known = |one: &Listed| (one.name.clone(), self.secret_of(one));
                let known: Vec<_> = members.iter().map(known).collect();
                return Err(Stop::Failed(format!(
                    "no key that opens {known:?} opens {} ({doubt:?})",
                    root.name
                )));
            };
            for one in &members {
                self.known.entry(one.guid).or_default().secret = Some(secret);
            }
            self.refuses(&root)?;
            let was = self.listed.clone();
            self.opens(&root, secret)?;
            self.listed = self.list()?;
            self.is_loaded(&root.name, true)?;
            let is_other = |one: &&Listed| one.root.as_ref() != Some(&root.name);
            let found = self.listed.iter().filter(is_other);
            let too_much = found.filter(|one| one.is_loaded && !one.is_snapshot());
            let mut too_much = too_much.filter(|one| {
                let before = was
                    .iter()
                    .find(|before| before.guid == one.guid && before.name == one.name);
                before.is_none_or(|before| !before.is_loaded)
            });
            if let Some(one) = too_much.next() {
                let (root, one) = (&root.name, &one.name);
                return Err(Stop::Failed(format!("the key of {root} opened {one}")));
            }
        }
        self.one_key_for_each_root().map_err(Stop::Failed)
    }

    /// Compares every filesystem and snapshot with what it should hold.
    fn compare_files(&mut self) -> Result<()> {
        for one in self.filesystems(|one| !one.is_mounted) {
            self.shell.ok(&format!("zfs mount {}", one.name))?;
        }
        for one in self.listed.clone() {
            let failed = |why: String| Stop::Failed(format!("{}: {why}", one.name));
            let (filesystem, snapshot) = one.parts();
            let Some(head) = self.filesystem(filesystem) else {
                return Err(failed("its filesystem is not there".to_owned()));
            };
            let at = match snapshot {
                Some(snapshot) => head.mountpoint.join(".zfs/snapshot").join(snapshot),
                None => head.mountpoint.clone(),
            };
            let found = contents::read(&at).map_err(|error| failed(error.to_string()))?;
            if one.is_snapshot() {
                let files = self.snapshots.get(&one.guid);
                let files = files.ok_or_else(|| failed("it came from nowhere".to_owned()))?;
                contents::same(files, &found).map_err(failed)?;
                continue;
            }
            let next = self.doubt.files.as_ref();
            let next = next.filter(|(guid, ..)| *guid == one.guid);
            let next = next.map(|(_, files, is_at_once)| Next {
                files,
                is_at_once: *is_at_once,
            });
            let files = &self.known[&one.guid].files;
            let files = contents::settle(&at, &found, files, next).map_err(failed)?;
            self.known.entry(one.guid).or_default().files = files;
        }
        Ok(())
    }

    /// After a kill: all of it.
    pub fn compare(&mut self) -> Result<(), String> {
        self.compare_names().map_err(Stop::text)?;
        let loaded = self.filesystems(|one| one.root.is_some() && one.is_loaded);
        if let Some(one) = loaded.first() {
            return Err(format!("the key of {} survived the kill", one.name));
        }
        if self.doubt.files.is_none() && self.doubt.secret.is_none() && self.rng.percent(60) {
            self.shell.tell("without keys:".to_owned());
            let most = 1 + self.rng.below(5);
            self.doubt = Doubt::default();
            self.work(&AtomicBool::new(false), most)?;
        }
        self.compare_keys().map_err(Stop::text)?;
        self.compare_files().map_err(Stop::text)?;
        self.doubt = Doubt::default();
        self.look().map_err(Stop::text)
    }
}
