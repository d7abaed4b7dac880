//! The people who use shares, and their groups: names, and the numbers that their files have.
//!
//! They lie in `share-people.json` of the state directory. By NFS numbers are all that is needed.
//! Samba opens files as the user who logs in, and takes users and groups from the host: whoever
//! gets a password for SMB becomes a user of the host, who can log in nowhere else, and the groups
//! that they are in become groups of it ([`making`]). What the host has lost of that, as a
//! container that is made anew has, the next start makes again, with the same numbers
//! ([`People::begin`]).
//!
//! A user of this name whom the host has already is taken as they are, and left when they are
//! removed here. So is whom `millpond user add` let in. A number that was given is given to nobody
//! else, as there may be files of it, unless somebody is added with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use api::{
    Empty, Failure, FailureKind, GroupAdd, GroupAddReply, GroupChange, GroupRemove, GroupReport,
    PeopleListReply, PersonAdd, PersonAddReply, PersonPassword, PersonRemove, PersonReport, Secret,
    SmbUserAdd, SmbUserPassword, SmbUserRemove, SmbUserReport, SpaceOwner,
};
use device::BoxFuture;
use host::table_file::{FileProblem, TableFile};
use host::{accounts, making};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Numbers that people and groups may have: those of ordinary users (UID_MIN and UID_MAX of
/// login.defs(5)). The host's own tools do not know of those that have no account of the host, and
/// may give them to others.
const NUMBERS: RangeInclusive<u32> = 1000..=60_000;
/// From which on numbers are given, beyond those that `useradd` gives first. Once accounts of ours
/// are there, it goes on after the highest of them.
const FIRST: u32 = 3000;
/// Longest name (`LOGIN_NAME_MAX` is 256; utmp(5) and shadow's programs take 32).
const NAME_LENGTH_MAX: usize = 32;
/// Groups that hosts give power to, and names that mean something to them. That the host has none
/// of them now does not mean that none of its programs looks for it.
const POWERS: [&str; 17] = [
    "root",
    "admin",
    "sudo",
    "wheel",
    "docker",
    "lxd",
    "incus",
    "libvirt",
    "adm",
    "disk",
    "shadow",
    "kvm",
    "systemd-journal",
    "lpadmin",
    "netdev",
    "nobody",
    "nogroup",
];

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Person {
    uid: u32,
    /// The host had a user of this name.
    is_of_host: bool,
    /// For SMB.
    has_password: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    gid: u32,
    members: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    people: BTreeMap<String, Person>,
    groups: BTreeMap<String, Group>,
    /// The numbers from [`FIRST`] up to this one were given, some to who is gone.
    next: u32,
    /// Numbers of who is gone, which there may be files of.
    #[serde(default)]
    gone: BTreeSet<u32>,
}

/// The host's users and groups.
struct Host {
    users: BTreeMap<u64, String>,
    groups: BTreeMap<u64, String>,
}

impl Host {
    fn now() -> Self {
        let (users, groups) = accounts::user_and_group_names();
        Self { users, groups }
    }

    fn has_number(&self, id: u32) -> bool {
        let id = u64::from(id);
        self.users.contains_key(&id) || self.groups.contains_key(&id)
    }
}

/// The number of one of the host's.
fn id_of(owner: SpaceOwner, name: &str) -> Option<u32> {
    accounts::id_of(owner, name).and_then(|id| u32::try_from(id).ok())
}

impl Table {
    fn has_number(&self, id: u32) -> bool {
        self.people.values().any(|person| person.uid == id)
            || self.groups.values().any(|group| group.gid == id)
    }

    /// A number for somebody or a group: this one, which may be that of who is gone, or one that is
    /// free.
    ///
    /// # Errors
    /// Whose the number is.
    fn number(&self, host: &Host, asked: Option<u32>) -> Result<u32, (FailureKind, String)> {
        if let Some(id) = asked {
            if !NUMBERS.contains(&id) {
                let (low, high) = (NUMBERS.start(), NUMBERS.end());
                let why = format!("a number is from {low} to {high}; leave it out to get one");
                return Err((FailureKind::Invalid, why));
            }
            if self.has_number(id) || host.has_number(id) {
                let why = format!("{id} is the number of somebody else; leave it out to get one");
                return Err((FailureKind::Exists, why));
            }
            return Ok(id);
        }
        self.free(host).ok_or_else(|| {
            let why = "there is no free number left; give one".to_owned();
            (FailureKind::Other, why)
        })
    }

    fn free(&self, host: &Host) -> Option<u32> {
        let first = self.next.max(FIRST);
        let mut all = first..=*NUMBERS.end();
        all.find(|id| !self.has_number(*id) && !self.gone.contains(id) && !host.has_number(*id))
    }

    /// Notes that a number was given.
    fn given(&mut self, id: u32, free: Option<u32>) {
        if Some(id) == free {
            self.next = id + 1;
        }
    }

    /// Refuses a name that somebody or a group has, here or on the host.
    fn check_free_name(&self, name: &str) -> Result<(), (FailureKind, String)> {
        let exists = |why: &str| Err((FailureKind::Exists, why.to_owned()));
        if self.people.contains_key(name) {
            return exists("there is somebody of this name already");
        }
        if self.groups.contains_key(name) {
            return exists("there is a group of this name already; choose another name");
        }
        Ok(())
    }
}

/// Refuses names that a program would take for something else, that are long, or that mean power.
fn check_name(name: &str) -> Result<(), (FailureKind, String)> {
    check_form(name)?;
    match POWERS.contains(&name) {
        false => Ok(()),
        true => Err((
            FailureKind::Invalid,
            format!("'{name}' means something to hosts, power over them perhaps; choose another"),
        )),
    }
}

/// Refuses names that a program would take for something else, or that are long.
fn check_form(name: &str) -> Result<(), (FailureKind, String)> {
    let mut characters = name.chars();
    let begins = characters.next();
    let is_good = begins.is_some_and(|c| c.is_ascii_lowercase() || c == '_')
        && characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c))
        && name.len() <= NAME_LENGTH_MAX
        && name != "root";
    match is_good {
        true => Ok(()),
        false => Err((
            FailureKind::Invalid,
            format!(
                "a name has 1 to {NAME_LENGTH_MAX} small letters, digits, '-' and '_', begins with \
                 a letter or '_', and is not 'root'"
            ),
        )),
    }
}

/// A failure of what is being done.
fn failed(doing: &str) -> impl Fn((FailureKind, String)) -> Failure {
    move |(kind, why)| Failure::new(kind, format!("{doing}: {why}"))
}

/// Who may log in by SMB, by whoever knows that.
pub trait Logins: Send + Sync {
    /// Why nobody can; none where they can.
    fn obstacle(&self) -> BoxFuture<'_, Option<String>>;

    /// Why not everybody can without a password; none where they can.
    fn guests_obstacle(&self) -> Option<String>;

    /// What is wrong with a password.
    ///
    /// # Errors
    /// That, in words.
    fn check_password(&self, password: &Secret) -> Result<(), String>;

    /// All.
    fn users(&self) -> BoxFuture<'_, Result<Vec<SmbUserReport>, Failure>>;

    /// Adds a user of the host.
    fn add(&self, call: SmbUserAdd) -> BoxFuture<'_, Result<Empty, Failure>>;

    /// Gives one another password.
    fn change(&self, call: SmbUserPassword) -> BoxFuture<'_, Result<Empty, Failure>>;

    /// Removes one, who is logged out.
    fn remove(&self, call: SmbUserRemove) -> BoxFuture<'_, Result<Empty, Failure>>;
}

/// People and groups.
pub struct People {
    table: Mutex<Table>,
    file: TableFile,
    path: PathBuf,
    /// What the start could not make of users and groups of the host, until all are there.
    unmade: Mutex<Option<String>>,
    /// One change at a time, with what it does to the host.
    one: tokio::sync::Mutex<()>,
}

impl People {
    /// Reads who there is.
    pub fn load(directory: &Path) -> Self {
        let path = directory.join("share-people.json");
        let (table, file) = TableFile::load(path.clone(), "people and groups of shares");
        Self {
            table: Mutex::new(table),
            file,
            path,
            unmade: Mutex::default(),
            one: tokio::sync::Mutex::default(),
        }
    }

    /// What is wrong with their file, or with what the host has of it.
    pub fn problem(&self) -> Option<FileProblem> {
        self.file.problem().or_else(|| {
            let why = self.unmade.lock().clone()?;
            Some(FileProblem {
                path: self.path.clone(),
                why: format!("not everybody can log in by SMB: {why}"),
                is_read: true,
            })
        })
    }

    /// Makes what the host lacks of users and groups.
    pub async fn begin(&self, smb: &dyn Logins) {
        let _one = self.one.lock().await;
        let has_any = {
            let table = self.table.lock();
            table.people.values().any(|person| person.has_password)
        };
        if has_any
            && smb.obstacle().await.is_none()
            && let Err(why) = self.make_all().await
        {
            tracing::error!("not everybody can log in by SMB: {why}");
            *self.unmade.lock() = Some(why);
        }
    }

    /// The number of a user by name or number: somebody here, or a user of the host.
    pub fn uid_of(&self, whose: &str) -> Option<u32> {
        let here = self.table.lock().people.get(whose).map(|one| one.uid);
        here.or_else(|| id_of(SpaceOwner::User, whose))
    }

    /// The number of a group, by name or number.
    pub fn gid_of(&self, whose: &str) -> Option<u32> {
        let here = self.table.lock().groups.get(whose).map(|one| one.gid);
        here.or_else(|| id_of(SpaceOwner::Group, whose))
    }

    /// The name of a user.
    pub fn user_name(&self, uid: u32) -> Option<String> {
        let here = {
            let table = self.table.lock();
            let mut people = table.people.iter();
            people.find_map(|(name, one)| (one.uid == uid).then(|| name.clone()))
        };
        here.or_else(|| Host::now().users.remove(&u64::from(uid)))
    }

    /// The name of a group.
    pub fn group_name(&self, gid: u32) -> Option<String> {
        let here = {
            let table = self.table.lock();
            let mut groups = table.groups.iter();
            groups.find_map(|(name, one)| (one.gid == gid).then(|| name.clone()))
        };
        here.or_else(|| Host::now().groups.remove(&u64::from(gid)))
    }

    /// Changes the table and its file.
    fn change(&self, doing: &str, change: impl FnOnce(&mut Table)) -> Result<(), Failure> {
        let mut new = self.table.lock().clone();
        change(&mut new);
        self.file.write(&new).map_err(|error| {
            let message = format!("{doing}: it could not be kept: {error}");
            Failure::new(FailureKind::Io, message)
        })?;
        *self.table.lock() = new;
        Ok(())
    }

    /// Takes in who can log in by SMB, also by `millpond user add`, where that can be known.
    async fn take_in(&self, smb: &dyn Logins, doing: &str) -> Result<(), Failure> {
        if smb.obstacle().await.is_some() {
            return Ok(());
        }
        let of_samba = smb.users().await?;
        let before = self.table.lock().clone();
        let mut new = before.clone();
        new.take_in(&of_samba);
        match new == before {
            true => Ok(()),
            false => self.change(doing, |table| *table = new),
        }
    }

    /// Who there is.
    pub async fn list(&self, smb: &dyn Logins) -> Result<PeopleListReply, Failure> {
        let no_smb = smb.obstacle().await;
        let no_guests = match no_smb {
            None => smb.guests_obstacle(),
            Some(_) => None,
        };
        let of_samba = match no_smb {
            None => smb.users().await?,
            Some(_) => Vec::new(),
        };
        let table = self.table.lock().clone();
        let known = |name: &str, uid: u32| {
            let mut all = of_samba.iter();
            all.any(|user| user.name == name && user.uid == uid)
        };
        let people = table.people.iter().map(|(name, one)| PersonReport {
            name: name.clone(),
            uid: one.uid,
            has_password: match no_smb {
                None => known(name, one.uid),
                Some(_) => one.has_password,
            },
            is_of_host: one.is_of_host,
        });
        // Made by `millpond user add`, and not taken in yet.
        let others = of_samba.iter().filter_map(|user| {
            let is_other = !table.people.contains_key(&user.name);
            is_other.then(|| PersonReport {
                name: user.name.clone(),
                uid: user.uid,
                has_password: true,
                is_of_host: true,
            })
        });
        let mut people: Vec<PersonReport> = people.chain(others).collect();
        people.sort_by(|a, b| a.name.cmp(&b.name));
        let groups = table.groups.iter().map(|(name, group)| GroupReport {
            name: name.clone(),
            gid: group.gid,
            members: group.members.iter().cloned().collect(),
        });
        Ok(PeopleListReply {
            people,
            groups: groups.collect(),
            free_id: table.free(&Host::now()).unwrap_or(0),
            no_smb,
            no_guests,
        })
    }

    /// Adds somebody.
    pub async fn add(&self, smb: &dyn Logins, call: PersonAdd) -> Result<PersonAddReply, Failure> {
        let name = call.name.as_str();
        let doing = format!("cannot add '{name}'");
        let failed = failed(&doing);
        check_form(name).map_err(&failed)?;
        if let Some(password) = &call.password {
            check_usable(smb, password).await.map_err(&failed)?;
        }
        let _one = self.one.lock().await;
        self.take_in(smb, &doing).await?;
        let table = self.table.lock().clone();
        table.check_free_name(name).map_err(&failed)?;
        let host = Host::now();
        let free = table.free(&host);
        let there = id_of(SpaceOwner::User, name);
        let uid = match there {
            Some(uid) => table.number_on_host(uid, call.uid),
            None if id_of(SpaceOwner::Group, name).is_some() => {
                let why = "the host has a group of this name; choose another name";
                Err((FailureKind::Exists, why.to_owned()))
            }
            None => check_name(name).and_then(|()| table.number(&host, call.uid)),
        };
        let uid = uid.map_err(&failed)?;
        let is_of_host = there.is_some();
        let was_known =
            call.password.is_some() && smb.users().await?.iter().any(|user| user.name == name);
        self.change(&doing, |table| {
            let person = Person {
                uid,
                is_of_host,
                has_password: false,
            };
            table.people.insert(name.to_owned(), person);
            table.given(uid, free);
        })?;
        if let Some(password) = call.password
            && let Err(failure) = self.give_password(smb, &doing, name, password).await
        {
            if !was_known && let Err(why) = forget(smb, name).await {
                tracing::error!("'{name}' can perhaps log in by SMB: {why}");
            }
            if !is_of_host && let Err(why) = remove_account(name, uid).await {
                tracing::error!("user '{name}' of the host is left behind: {why}");
            }
            self.change(&doing, |table| {
                table.people.remove(name);
            })?;
            return Err(failure);
        }
        Ok(PersonAddReply { uid })
    }

    /// Gives somebody a password.
    pub async fn password(&self, smb: &dyn Logins, call: PersonPassword) -> Result<Empty, Failure> {
        let name = call.name.as_str();
        let doing = format!("cannot give '{name}' a password");
        let failed = failed(&doing);
        check_usable(smb, &call.password).await.map_err(&failed)?;
        let _one = self.one.lock().await;
        self.take_in(smb, &doing).await?;
        let is_known = self.table.lock().people.contains_key(name);
        if !is_known {
            // One of `millpond user add` whom the table cannot have.
            let (name, password) = (call.name, call.password);
            return smb.change(SmbUserPassword { name, password }).await;
        }
        self.give_password(smb, &doing, name, call.password).await?;
        Ok(Empty {})
    }

    /// Has Samba know somebody of the table, and the host, by this password.
    async fn give_password(
        &self,
        smb: &dyn Logins,
        doing: &str,
        name: &str,
        password: Secret,
    ) -> Result<(), Failure> {
        let failed = failed(doing);
        let person = self.table.lock().people.get(name).cloned();
        let Some(person) = person else {
            let why = "there is nobody of this name".to_owned();
            return Err(failed((FailureKind::NotFound, why)));
        };
        if !person.is_of_host {
            let made = make_account(name, person.uid).await;
            made.map_err(|why| failed((FailureKind::Other, why)))?;
        }
        let known = smb.users().await?;
        let name = name.to_owned();
        match known.iter().any(|user| user.name == name) {
            true => {
                let name = name.clone();
                smb.change(SmbUserPassword { name, password }).await?;
            }
            false => {
                let name = name.clone();
                smb.add(SmbUserAdd { name, password }).await?;
            }
        }
        self.change(doing, |table| {
            if let Some(person) = table.people.get_mut(&name) {
                person.has_password = true;
            }
        })?;
        let made = self.make_all().await;
        made.map_err(|why| failed((FailureKind::Other, why)))
    }

    /// Removes somebody.
    pub async fn remove(&self, smb: &dyn Logins, call: PersonRemove) -> Result<Empty, Failure> {
        let name = call.name.as_str();
        let doing = format!("cannot remove '{name}'");
        let failed = failed(&doing);
        let _one = self.one.lock().await;
        self.take_in(smb, &doing).await?;
        let person = self.table.lock().people.get(name).cloned();
        let Some(person) = person else {
            if smb.obstacle().await.is_some() {
                let why = "there is nobody of this name".to_owned();
                return Err(failed((FailureKind::NotFound, why)));
            }
            return smb.remove(SmbUserRemove { name: call.name }).await;
        };
        // Whatever the table says: Samba may know them since.
        match smb.obstacle().await {
            None => forget(smb, name).await?,
            Some(why) if person.is_of_host && person.has_password => {
                let why = format!(
                    "they have a password for SMB, which cannot be taken away now: {why}; switch \
                     SMB on first"
                );
                return Err(failed((FailureKind::Unsupported, why)));
            }
            Some(_) => {}
        }
        if !person.is_of_host {
            let removed = remove_account(name, person.uid).await;
            removed.map_err(|why| failed((FailureKind::Busy, why)))?;
        }
        self.change(&doing, |table| {
            table.people.remove(name);
            table.gone.insert(person.uid);
            for group in table.groups.values_mut() {
                group.members.remove(name);
            }
        })?;
        self.follow(smb, &doing).await
    }

    /// Makes a group.
    pub async fn group_add(
        &self,
        smb: &dyn Logins,
        call: GroupAdd,
    ) -> Result<GroupAddReply, Failure> {
        let name = call.name.as_str();
        let doing = format!("cannot make group '{name}'");
        let failed = failed(&doing);
        check_name(name).map_err(&failed)?;
        let _one = self.one.lock().await;
        self.take_in(smb, &doing).await?;
        let table = self.table.lock().clone();
        table.check_free_name(name).map_err(&failed)?;
        let is_of_host = [SpaceOwner::User, SpaceOwner::Group]
            .into_iter()
            .any(|owner| id_of(owner, name).is_some());
        if is_of_host {
            let why = "the host has a user or group of this name; choose another name";
            return Err(failed((FailureKind::Exists, why.to_owned())));
        }
        let members = table.members(&call.members).map_err(&failed)?;
        if let Some(gid) = call.gid
            && table.gone.contains(&gid)
        {
            let why = format!(
                "{gid} was the number of somebody who is gone, and files may have it; leave it \
                 out to get one"
            );
            return Err(failed((FailureKind::Exists, why)));
        }
        let host = Host::now();
        let free = table.free(&host);
        let gid = table.number(&host, call.gid).map_err(&failed)?;
        self.change(&doing, |table| {
            table.groups.insert(name.to_owned(), Group { gid, members });
            table.given(gid, free);
        })?;
        if let Err(failure) = self.follow(smb, &doing).await {
            if id_of(SpaceOwner::Group, name) == Some(gid)
                && let Err(why) = making::remove_group(name).await
            {
                tracing::error!("group '{name}' of the host is left behind: {why}");
            }
            self.change(&doing, |table| {
                table.groups.remove(name);
            })?;
            return Err(failure);
        }
        Ok(GroupAddReply { gid })
    }

    /// Says who is in a group.
    pub async fn group_change(
        &self,
        smb: &dyn Logins,
        call: GroupChange,
    ) -> Result<Empty, Failure> {
        let doing = format!("cannot change group '{}'", call.name);
        let failed = failed(&doing);
        let _one = self.one.lock().await;
        self.take_in(smb, &doing).await?;
        let table = self.table.lock().clone();
        if !table.groups.contains_key(&call.name) {
            return Err(failed((FailureKind::NotFound, no_group())));
        }
        let members = table.members(&call.members).map_err(&failed)?;
        self.change(&doing, |table| {
            if let Some(group) = table.groups.get_mut(&call.name) {
                group.members = members;
            }
        })?;
        self.follow(smb, &doing).await
    }

    /// Removes a group.
    pub async fn group_remove(&self, call: GroupRemove) -> Result<Empty, Failure> {
        let name = call.name.as_str();
        let doing = format!("cannot remove group '{name}'");
        let failed = failed(&doing);
        let _one = self.one.lock().await;
        let gid = self.table.lock().groups.get(name).map(|one| one.gid);
        let Some(gid) = gid else {
            return Err(failed((FailureKind::NotFound, no_group())));
        };
        // None of this number was made, where nobody in it has a password.
        if id_of(SpaceOwner::Group, name) == Some(gid) {
            let removed = making::remove_group(name).await;
            removed.map_err(|why| failed((FailureKind::Other, why)))?;
        }
        self.change(&doing, |table| {
            table.groups.remove(name);
            table.gone.insert(gid);
        })?;
        Ok(Empty {})
    }

    /// Has the host's groups be as the table says.
    async fn follow(&self, smb: &dyn Logins, doing: &str) -> Result<Empty, Failure> {
        if smb.obstacle().await.is_none() {
            let made = self.make_all().await;
            made.map_err(|why| failed(doing)((FailureKind::Other, why)))?;
        }
        Ok(Empty {})
    }

    /// Makes the users and groups of the host that there have to be: each that can be, whatever is
    /// the matter with others.
    async fn make_all(&self) -> Result<(), String> {
        let table = self.table.lock().clone();
        let mut problems = Vec::new();
        for (name, person) in &table.people {
            if person.has_password
                && !person.is_of_host
                && let Err(why) = make_account(name, person.uid).await
            {
                problems.push(why);
            }
        }
        for (name, group) in &table.groups {
            let members = table.on_host(group);
            if let Err(why) = make_group(name, group.gid, &members).await {
                problems.push(why);
            }
        }
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        *self.unmade.lock() = None;
        Ok(())
    }
}

impl Table {
    /// Takes in users of Samba's: ordinary users of the host, whom nobody here is, become people.
    fn take_in(&mut self, of_samba: &[SmbUserReport]) {
        for SmbUserReport { name, uid } in of_samba {
            let uid = *uid;
            if let Some(person) = self.people.get_mut(name) {
                // Somebody else of this name, whom the host has, is not them.
                person.has_password |= person.uid == uid;
                continue;
            }
            let is_ordinary = NUMBERS.contains(&uid) && check_form(name).is_ok();
            if is_ordinary && !self.has_number(uid) && !self.groups.contains_key(name) {
                let person = Person {
                    uid,
                    is_of_host: true,
                    has_password: true,
                };
                self.people.insert(name.clone(), person);
            }
        }
    }

    /// The number of a user of the host who becomes one of ours.
    fn number_on_host(&self, uid: u32, asked: Option<u32>) -> Result<u32, (FailureKind, String)> {
        if !NUMBERS.contains(&uid) {
            let why = "the host has an account of this name for its own work; choose another name";
            return Err((FailureKind::Exists, why.to_owned()));
        }
        if asked.is_some_and(|asked| asked != uid) {
            let why = format!("the host has a user of this name, whose number is {uid}");
            return Err((FailureKind::Exists, why));
        }
        if self.has_number(uid) {
            let why = format!("{uid}, the number of the host's user, is somebody else's here");
            return Err((FailureKind::Exists, why));
        }
        Ok(uid)
    }

    /// These people, who have to be there.
    fn members(&self, names: &[String]) -> Result<BTreeSet<String>, (FailureKind, String)> {
        match names.iter().find(|name| !self.people.contains_key(*name)) {
            None => Ok(names.iter().cloned().collect()),
            Some(name) => Err((FailureKind::NotFound, nobody_called(name))),
        }
    }

    /// Those of a group who are users of the host, who is not somebody else of their name.
    fn on_host<'a>(&self, group: &'a Group) -> Vec<&'a str> {
        let is_there = |name: &str, person: &Person| {
            let there = id_of(SpaceOwner::User, name);
            there.is_some_and(|uid| person.is_of_host || uid == person.uid)
        };
        let has = |name: &&String| {
            let person = self.people.get(*name);
            person.is_some_and(|one| one.has_password && is_there(name, one))
        };
        group
            .members
            .iter()
            .filter(has)
            .map(String::as_str)
            .collect()
    }
}

fn no_group() -> String {
    "there is no group of this name".to_owned()
}

/// What to do about somebody who is to be in a group and is nobody here.
fn nobody_called(name: &str) -> String {
    let there = id_of(SpaceOwner::User, name);
    match there.is_some_and(|uid| !NUMBERS.contains(&uid) || check_form(name).is_err()) {
        true => format!(
            "'{name}' is a user of the host who cannot be in a group here: numbers are from {} to \
             {}, and names have small letters, digits, '-' and '_' alone; add somebody for them, \
             by another name",
            NUMBERS.start(),
            NUMBERS.end()
        ),
        false => format!("there is nobody called '{name}'; add them first"),
    }
}

fn other_number(what: &str, name: &str, there: u32, ours: u32) -> String {
    format!(
        "the host's {what} '{name}' has the number {there}, and here it is {ours}; rename the \
         host's"
    )
}

/// Whether a password for SMB is of use, and can be one.
async fn check_usable(smb: &dyn Logins, password: &Secret) -> Result<(), (FailureKind, String)> {
    if let Some(why) = smb.obstacle().await {
        return Err((FailureKind::Unsupported, why));
    }
    let checked = smb.check_password(password);
    checked.map_err(|why| (FailureKind::Invalid, why))
}

/// Has Samba know somebody no more.
async fn forget(smb: &dyn Logins, name: &str) -> Result<(), Failure> {
    let name = name.to_owned();
    match smb.remove(SmbUserRemove { name }).await {
        Err(failure) if failure.kind != FailureKind::NotFound => Err(failure),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes a group of the host, where somebody is in it and it is not there, and says who is in it.
async fn make_group(name: &str, gid: u32, members: &[&str]) -> Result<(), String> {
    match id_of(SpaceOwner::Group, name) {
        None if members.is_empty() => return Ok(()),
        None => making::group(name, gid).await?,
        Some(there) if there == gid => {}
        Some(there) => return Err(other_number("group", name, there, gid)),
    }
    if accounts::members_of(name) != members {
        making::members(name, members).await?;
    }
    Ok(())
}

/// Makes a user of the host, and their group, where they are not there.
async fn make_account(name: &str, uid: u32) -> Result<(), String> {
    match id_of(SpaceOwner::User, name) {
        Some(there) if there == uid => return Ok(()),
        Some(there) => return Err(other_number("user", name, there, uid)),
        None => {}
    }
    match id_of(SpaceOwner::Group, name) {
        Some(there) if there == uid => {}
        Some(there) => return Err(other_number("group", name, there, uid)),
        None => making::group(name, uid).await?,
    }
    making::user(name, uid).await
}

/// Removes a user of the host that was made, and their group.
async fn remove_account(name: &str, uid: u32) -> Result<(), String> {
    if id_of(SpaceOwner::User, name) == Some(uid) {
        making::remove_user(name).await?;
    }
    // `userdel` takes it along where login.defs(5) says so.
    if id_of(SpaceOwner::Group, name) == Some(uid) {
        making::remove_group(name).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(users: &[(u64, &str)], groups: &[(u64, &str)]) -> Host {
        let named = |list: &[(u64, &str)]| {
            let list = list.iter();
            list.map(|(id, name)| (*id, (*name).to_owned())).collect()
        };
        Host {
            users: named(users),
            groups: named(groups),
        }
    }

    #[test]
    fn names_that_a_program_would_read_otherwise_are_refused() {
        let long = "a".repeat(NAME_LENGTH_MAX + 1);
        for name in [
            "", "root", "Ann", "-x", "1000", "a b", "a:b", "a\nb", "a,b", "../a", "@a", "ä", &long,
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in POWERS {
            let (kind, why) = check_name(name).unwrap_err();
            assert_eq!(kind, FailureKind::Invalid);
            assert!(why.contains(name), "{why}");
        }
        for name in ["ann", "_a", "j-doe_2", &"a".repeat(NAME_LENGTH_MAX)] {
            assert_eq!(check_name(name), Ok(()), "{name:?}");
        }
    }

    /// Goal: who comes later never has the number of who was there before.
    #[test]
    fn a_number_is_given_once() {
        let host = host(&[(3001, "u")], &[(3002, "g")]);
        let mut table = Table::default();
        let mut give = |name: &str, asked: Option<u32>| {
            let free = table.free(&host);
            let uid = table.number(&host, asked)?;
            let person = Person {
                uid,
                is_of_host: false,
                has_password: false,
            };
            table.people.insert(name.to_owned(), person);
            table.given(uid, free);
            if name == "gone" {
                table.people.remove(name);
            }
            Ok::<u32, (FailureKind, String)>(uid)
        };
        assert_eq!(give("ann", None), Ok(3000));
        assert_eq!(give("gone", None), Ok(3003));
        assert_eq!(give("bob", None), Ok(3004));
        assert_eq!(give("carl", Some(2000)), Ok(2000));
        for (taken, kind) in [
            (2000, FailureKind::Exists),
            (3001, FailureKind::Exists),
            (3002, FailureKind::Exists),
            (0, FailureKind::Invalid),
            (999, FailureKind::Invalid),
            (65_534, FailureKind::Invalid),
        ] {
            let refused = give("dora", Some(taken)).unwrap_err();
            assert_eq!(refused.0, kind, "{taken}");
        }
        assert_eq!(give("eve", None), Ok(3005));
        // It was asked for, and is gone.
        table.gone.insert(3006);
        assert_eq!(table.free(&host), Some(3007));
        assert_eq!(table.number(&host, Some(3006)), Ok(3006));
    }

    /// Goal: whom `millpond user add` let in can be in groups, and no stranger becomes somebody.
    #[test]
    fn who_can_log_in_by_smb_is_taken_in() {
        let mut table = Table::default();
        for (name, uid) in [("ann", 3000), ("bob", 3001)] {
            let person = Person {
                uid,
                is_of_host: false,
                has_password: false,
            };
            table.people.insert(name.to_owned(), person);
        }
        let of_samba = [
            ("ann", 3000),
            ("bob", 1001),
            ("carl", 1000),
            ("daemon", 1),
            ("J.Doe", 1002),
            ("dora", 3000),
            ("eve", u32::MAX),
        ];
        let of_samba = of_samba.map(|(name, uid)| SmbUserReport {
            name: name.to_owned(),
            uid,
        });
        table.take_in(&of_samba);
        let people = table.people.iter();
        let told: Vec<_> = people
            .map(|(name, one)| (name.as_str(), one.uid, one.is_of_host, one.has_password))
            .collect();
        let expected = [
            ("ann", 3000, false, true),
            ("bob", 3001, false, false),
            ("carl", 1000, true, true),
        ];
        assert_eq!(told, expected);
        let names = ["ann".to_owned(), "carl".to_owned()];
        assert!(table.members(&names).is_ok());
    }

    #[test]
    fn who_works_for_the_host_is_nobody_here() {
        let table = Table::default();
        for uid in [0, 1, 33, 999, 65_534] {
            assert!(table.number_on_host(uid, None).is_err(), "{uid}");
        }
        assert_eq!(table.number_on_host(1000, None), Ok(1000));
        assert_eq!(table.number_on_host(1000, Some(1000)), Ok(1000));
        assert!(table.number_on_host(1000, Some(1001)).is_err());
    }
}
