//! A client that changes files of its own by one of the ways in, and knows what they hold.
//!
//! What is on stable storage says the protocol: a write that was asked to be, and after a commit
//! what was written with the verifier that the commit answers. Other writes a crash may take, in
//! whole or in part; the client then makes them again, as clients do. Of an operation whose answer
//! never came nobody knows whether it was done.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use sim::rng::Rng;

use super::gate::Client;
use super::ways::Way;
use crate::torture::model::bytes_may_be;

/// Longest file, in bytes.
const BYTES_MAX: u64 = 200_000;

/// Files of a client.
const NAMES: u64 = 8;

/// Writes that are kept until they are committed.
const PENDING_MAX: usize = 12;

/// A write.
#[derive(Debug, Clone)]
struct Piece {
    offset: u64,
    data: Vec<u8>,
    verifier: u64,
}

impl Piece {
    fn put_into(&self, bytes: &mut Vec<u8>) {
        let (start, end) = (self.offset as usize, self.offset as usize + self.data.len());
        bytes.resize(bytes.len().max(end), 0);
        bytes[start..end].copy_from_slice(&self.data);
    }
}

/// A file: what it may hold, and what was written since it was last committed.
#[derive(Debug, Clone)]
pub struct State {
    /// The first one is on stable storage; the last one is what is read now.
    states: Vec<Vec<u8>>,
    pending: Vec<Piece>,
}

impl State {
    fn of(bytes: Vec<u8>) -> Self {
        Self {
            states: vec![bytes],
            pending: Vec::new(),
        }
    }

    fn now(&self) -> &Vec<u8> {
        self.states.last().expect("a state")
    }

    /// All that was written is on stable storage.
    fn is_durable(&mut self) {
        self.states.drain(..self.states.len() - 1);
        self.pending.clear();
    }
}

/// Files by their names.
pub type Tree = BTreeMap<String, State>;

/// An operation whose answer did not come.
#[derive(Debug, Clone)]
enum Doubt {
    Create(String),
    /// Its file may hold this.
    Change(String, Vec<u8>),
    Rename(String, String),
    Remove(String),
}

/// The client.
pub struct Files {
    what: &'static str,
    rng: Rng,
    way: Box<dyn Way>,
    tree: Tree,
    /// What there may be instead: a rollback may have happened.
    pub other: Option<Tree>,
    doubt: Option<Doubt>,
    pub story: Vec<String>,
}

impl Files {
    pub fn new(what: &'static str, rng: Rng, way: Box<dyn Way>) -> Self {
        Self {
            what,
            rng,
            way,
            tree: Tree::new(),
            other: None,
            doubt: None,
            story: Vec::new(),
        }
    }

    fn tell(&mut self, words: String) {
        self.story.push(words);
        if self.story.len() > 40 {
            self.story.remove(0);
        }
    }

    /// What there is now, as a snapshot has it.
    pub fn snapshot(&self) -> Tree {
        let files = self.tree.iter();
        files
            .map(|(name, file)| (name.clone(), State::of(file.now().clone())))
            .collect()
    }

    /// What is there has become another one.
    pub fn becomes(&mut self, tree: Tree) {
        self.tell("another state".to_owned());
        self.way.forget();
        (self.tree, self.other, self.doubt) = (tree, None, None);
    }

    /// Names and contents.
    pub fn contents(tree: &Tree) -> BTreeMap<String, Vec<u8>> {
        let files = tree.iter();
        files
            .map(|(name, file)| (name.clone(), file.now().clone()))
            .collect()
    }

    /// All files of all clients, by the way of this one.
    pub fn finds(&mut self, all: &BTreeMap<String, Vec<u8>>) -> io::Result<Result<(), String>> {
        let names = self.way.list()?;
        if !names.iter().eq(all.keys()) {
            let what = self.what;
            return Ok(Err(format!(
                "by {what} there is {names:?}, not {:?}",
                all.keys()
            )));
        }
        for (name, bytes) in all {
            let found = self.way.read(name)?;
            if found.as_ref() != Some(bytes) {
                let why = bytes_may_be(
                    std::iter::once(bytes.as_slice()),
                    &found.unwrap_or_default(),
                );
                return Ok(Err(format!(
                    "by {}, {name} is another one: {why:?}",
                    self.what
                )));
            }
        }
        Ok(Ok(()))
    }

    fn name(&mut self) -> String {
        format!("{}-{}", self.what, self.rng.below(NAMES))
    }

    fn create(&mut self, name: String) -> io::Result<()> {
        self.doubt = Some(Doubt::Create(name.clone()));
        self.way.create(&name)?;
        self.tree.insert(name, State::of(Vec::new()));
        Ok(())
    }

    fn write(&mut self, name: String) -> io::Result<()> {
        let length = self.tree[&name].now().len() as u64;
        let size = match self.rng.below(3) {
            0 => 1 + self.rng.below(300),
            1 => 1 + self.rng.below(10_000),
            _ => 1 + self.rng.below(90_000),
        };
        let offset = match self.rng.percent(30) {
            true => length,
            false => self.rng.below(length + 20_000),
        };
        if offset + size > BYTES_MAX {
            return Ok(());
        }
        let is_stable = self.rng.percent(40);
        let mut piece = Piece {
            offset,
            data: self.rng.content(size as usize),
            verifier: 0,
        };
        let file = self.tree.get_mut(&name).expect("a file");
        let mut next = file.now().clone();
        piece.put_into(&mut next);
        self.doubt = Some(Doubt::Change(name.clone(), next.clone()));
        self.tell(format!("write {name} {offset} {size}, stable: {is_stable}"));
        piece.verifier = self.way.write(&name, offset, &piece.data, is_stable)?;
        let file = self.tree.get_mut(&name).expect("a file");
        match is_stable {
            true => file
                .states
                .iter_mut()
                .for_each(|state| piece.put_into(state)),
            false => {
                file.states.push(next);
                file.pending.push(piece);
            }
        }
        Ok(())
    }

    /// Commits a file, and writes anew what the server says that it may have lost.
    fn commit(&mut self, name: &str) -> io::Result<()> {
        self.tell(format!("commit {name}"));
        let verifier = self.way.commit(name)?;
        let file = self.tree.get_mut(name).expect("a file");
        if file.pending.iter().any(|piece| piece.verifier != verifier) {
            for piece in &file.pending {
                self.way.write(name, piece.offset, &piece.data, true)?;
            }
        }
        file.is_durable();
        Ok(())
    }

    fn truncate(&mut self, name: String) -> io::Result<()> {
        self.commit(&name)?;
        let size = self.rng.below(BYTES_MAX);
        let mut next = self.tree[&name].now().clone();
        next.resize(size as usize, 0);
        self.doubt = Some(Doubt::Change(name.clone(), next.clone()));
        self.tell(format!("truncate {name} {size}"));
        self.way.truncate(&name, size)?;
        self.tree.insert(name, State::of(next));
        Ok(())
    }

    fn rename(&mut self, from: String, to: String) -> io::Result<()> {
        self.doubt = Some(Doubt::Rename(from.clone(), to.clone()));
        self.tell(format!("rename {from} {to}"));
        self.way.rename(&from, &to)?;
        renamed(&mut self.tree, &from, &to);
        Ok(())
    }

    fn remove(&mut self, name: String) -> io::Result<()> {
        self.doubt = Some(Doubt::Remove(name.clone()));
        self.tell(format!("remove {name}"));
        self.way.remove(&name)?;
        self.tree.remove(&name);
        Ok(())
    }

    fn one(&mut self) -> io::Result<Result<(), String>> {
        let name = self.name();
        let Some(file) = self.tree.get(&name) else {
            return Ok(Ok(self.create(name)?));
        };
        let is_full = file.pending.len() >= PENDING_MAX;
        match self.rng.below(100) {
            _ if is_full => self.commit(&name)?,
            0..55 => self.write(name)?,
            55..68 => self.commit(&name)?,
            68..73 => self.truncate(name)?,
            73..80 => {
                let to = self.name();
                if to != name {
                    self.rename(name, to)?;
                }
            }
            80..84 => self.remove(name)?,
            _ => {
                let found = self.way.read(&name)?;
                if found.as_ref() != Some(self.tree[&name].now()) {
                    let now = self.tree[&name].now().as_slice();
                    let why = bytes_may_be(std::iter::once(now), &found.unwrap_or_default());
                    return Ok(Err(format!("{name} is not as it was written: {why:?}")));
                }
            }
        }
        Ok(Ok(()))
    }

    /// The names that there may be: as they were, or as what is in doubt has left them.
    fn trees(&self) -> Vec<Tree> {
        let with = |tree: &Tree| {
            let mut all = vec![tree.clone()];
            let mut next = tree.clone();
            match &self.doubt {
                Some(Doubt::Create(name)) => {
                    next.insert(name.clone(), State::of(Vec::new()));
                }
                Some(Doubt::Rename(from, to)) => renamed(&mut next, from, to),
                Some(Doubt::Remove(name)) => {
                    next.remove(name);
                }
                Some(Doubt::Change(..)) | None => return all,
            }
            all.push(next);
            all
        };
        let mut all = with(&self.tree);
        all.extend(self.other.clone());
        all
    }

    /// Commits all files of a tree, and takes what they hold for the model; the error says what
    /// they should not.
    fn settle(&mut self, mut tree: Tree) -> io::Result<Result<Tree, String>> {
        let mut all = Vec::new();
        for (name, file) in &mut tree {
            let verifier = self.way.commit(name)?;
            let is_kept = file.pending.iter().all(|piece| piece.verifier == verifier);
            if is_kept {
                file.is_durable();
            }
            let mut states = file.states.clone();
            if let Some(Doubt::Change(changed, next)) = &self.doubt
                && changed == name
            {
                states.push(next.clone());
            }
            let Some(found) = self.way.read(name)? else {
                return Ok(Err(format!("{name} is not there")));
            };
            let states = states.iter().map(Vec::as_slice);
            if let Err(why) = bytes_may_be(states, &found) {
                return Ok(Err(format!("{name}: {why}, verifier kept: {is_kept}")));
            }
            all.push(found);
        }
        // It is this tree: what may have been lost is written again.
        for ((name, file), mut found) in tree.iter_mut().zip(all) {
            for piece in &file.pending {
                piece.put_into(&mut found);
                self.way.write(name, piece.offset, &piece.data, true)?;
            }
            // What was in doubt is in memory, perhaps.
            self.way.commit(name)?;
            *file = State::of(found);
        }
        Ok(Ok(tree))
    }

    /// Connects anew, and finds out which of the trees that there may be is there.
    fn reconnect(&mut self) -> io::Result<Result<(), String>> {
        self.way.connect()?;
        self.tell("connected anew".to_owned());
        let mut names = self.way.list()?;
        let own = format!("{}-", self.what);
        names.retain(|name| name.starts_with(&own));
        let mut why = String::new();
        for tree in self.trees() {
            let is_it = tree.keys().eq(names.iter());
            if !is_it {
                let expected: BTreeSet<_> = tree.keys().collect();
                why.push_str(&format!("{expected:?} expected, {names:?} found; "));
                continue;
            }
            match self.settle(tree)? {
                Ok(tree) => {
                    (self.tree, self.other, self.doubt) = (tree, None, None);
                    return Ok(Ok(()));
                }
                Err(error) => why.push_str(&format!("{error}; ")),
            }
        }
        Ok(Err(format!(
            "{why}in doubt: {:?}",
            self.doubt.as_ref().map(brief)
        )))
    }
}

fn renamed(tree: &mut Tree, from: &str, to: &str) {
    if let Some(file) = tree.remove(from) {
        tree.insert(to.to_owned(), file);
    }
}

impl Client for Files {
    fn name(&self) -> String {
        format!("the client by {}", self.what)
    }

    fn operate(&mut self) -> io::Result<Result<(), String>> {
        let result = self.one();
        match &result {
            Ok(_) => self.doubt = None,
            Err(error) => self.tell(format!("  {error}")),
        }
        result
    }

    fn recover(&mut self) -> io::Result<Result<(), String>> {
        let result = self.reconnect();
        if result.is_err() {
            self.way.forget();
        }
        result
    }

    fn check(&mut self) -> io::Result<Result<(), String>> {
        for name in self.tree.keys().cloned().collect::<Vec<_>>() {
            let found = self.way.read(&name)?;
            if found.as_ref() != Some(self.tree[&name].now()) {
                return Ok(Err(format!("{name} is not as it was written")));
            }
        }
        Ok(Ok(()))
    }
}

fn brief(doubt: &Doubt) -> String {
    match doubt {
        Doubt::Change(name, next) => format!("{name} becomes {} bytes", next.len()),
        other => format!("{other:?}"),
    }
}
