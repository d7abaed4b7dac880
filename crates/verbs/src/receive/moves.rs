//! Which dataset of a replica is renamed, set aside or destroyed next, so that in the end each has
//! the name that it has where it was sent (what `recv_incremental_replication` does pass by pass,
//! lib/libzfs/libzfs_sendrecv.c). Names only: [`super::differences`] does it.
//!
//! A dataset is renamed directly as soon as what it is to be below has its own place and the name
//! is free. Where none can be, because names were passed on or swapped, what stands in the way gets
//! a temporary name (`recv-PROCESS-NUMBER`), which frees its old one. Each gets its last name once,
//! and a temporary one at most once before, so it ends.

use std::collections::{HashMap, HashSet};

/// A dataset that is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Here {
    /// Its name.
    pub name: String,
    /// What becomes of it.
    pub fate: Fate,
    /// The dataset, by its place in the list, that it is a clone of.
    pub clone_of: Option<usize>,
    /// It could not be destroyed.
    pub stays: bool,
    /// It could not be renamed.
    pub is_fast: bool,
    /// It was given a temporary name, or could not be given one.
    pub was_aside: bool,
}

/// What becomes of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is sent, and is to have this name.
    Named(String),
    /// It was received before and is not sent any more.
    Gone,
    /// It keeps its last name, below whatever it is below now: it has no snapshots, is another copy
    /// of what is sent, is sent but has no name here, or has such a one below it; or the package is
    /// no difference.
    Kept,
}

/// What is done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// It goes. Nothing is below it.
    Destroy(usize),
    /// It gets its name.
    Rename(usize, String),
    /// It gets a temporary name.
    Aside(usize),
}

/// All that is here.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    /// What is received into. It keeps its name.
    pub base: String,
    pub all: Vec<Here>,
    /// Names of datasets that are sent and not here yet.
    pub coming: HashSet<String>,
}

fn depth(name: &str) -> usize {
    name.matches('/').count()
}

/// The name of what something is below.
pub(super) fn above(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(above, _)| above)
}

fn is_below(name: &str, above: &str) -> bool {
    let rest = name.strip_prefix(above);
    rest.is_some_and(|rest| rest.starts_with('/'))
}

impl Tree {
    fn places(&self) -> HashMap<&str, usize> {
        let all = self.all.iter().enumerate();
        all.map(|(at, one)| (one.name.as_str(), at)).collect()
    }

    /// Which of them are where they stay: none of what they are below moves any more.
    fn settled(&self) -> Vec<bool> {
        let places = self.places();
        let mut order: Vec<usize> = (0..self.all.len()).collect();
        order.sort_by_key(|at| depth(&self.all[*at].name));
        let mut settled = vec![false; self.all.len()];
        for at in order {
            let one = &self.all[at];
            let parent = places.get(above(&one.name));
            settled[at] = one.name == self.base
                || parent.is_none_or(|parent| settled[*parent])
                    && match &one.fate {
                        Fate::Kept => true,
                        Fate::Gone => false,
                        Fate::Named(wanted) => *wanted == one.name,
                    };
        }
        settled
    }

    /// The datasets that are sent and have not their names.
    pub(super) fn astray(&self) -> Vec<usize> {
        let settled = self.settled();
        let is_astray = |at: &usize| match &self.all[*at].fate {
            Fate::Named(wanted) => !settled[*at] || *wanted != self.all[*at].name,
            _ => false,
        };
        (0..self.all.len()).filter(is_astray).collect()
    }

    /// What the temporary name of one is below: what it is below now, so that it inherits what it
    /// did, or the first above that which does not go.
    pub(super) fn aside_of(&self, at: usize) -> &str {
        let places = self.places();
        let mut home = above(&self.all[at].name);
        while places.get(home).is_some_and(|place| self.goes(*place)) {
            home = above(home);
        }
        home
    }

    /// Notes a new name, which what is below has in its own.
    pub(super) fn renamed(&mut self, from: &str, to: &str) {
        for one in &mut self.all {
            if one.name == from || is_below(&one.name, from) {
                one.name = format!("{to}{}", &one.name[from.len()..]);
            }
        }
    }

    /// Notes that one is destroyed.
    pub(super) fn destroyed(&mut self, at: usize) {
        for one in &mut self.all {
            one.clone_of = match one.clone_of {
                Some(of) if of == at => None,
                Some(of) if of > at => Some(of - 1),
                other => other,
            };
        }
        self.all.remove(at);
    }

    /// What is done next; nothing where all have their names, or must wait for what is to come.
    pub(super) fn next(&self) -> Option<Step> {
        self.destroyed_next()
            .or_else(|| self.renamed_next())
            .or_else(|| self.aside_next())
    }

    fn goes(&self, at: usize) -> bool {
        self.all[at].fate == Fate::Gone && !self.all[at].stays
    }

    fn destroyed_next(&self) -> Option<Step> {
        let names = self.all.iter().map(|one| above(&one.name));
        let with_children: HashSet<&str> = names.collect();
        let going = (0..self.all.len()).filter(|at| self.goes(*at));
        let origins: HashSet<usize> = going
            .clone()
            .filter_map(|at| self.all[at].clone_of)
            .collect();
        let is_free = |at: &usize| {
            !with_children.contains(self.all[*at].name.as_str()) && !origins.contains(at)
        };
        going.clone().find(is_free).map(Step::Destroy)
    }

    fn renamed_next(&self) -> Option<Step> {
        let (places, settled) = (self.places(), self.settled());
        let can_be = |at: &usize| {
            let one = &self.all[*at];
            let Fate::Named(wanted) = &one.fate else {
                return false;
            };
            let parent = places.get(above(wanted));
            one.name != self.base
                && !one.is_fast
                && *wanted != one.name
                && !places.contains_key(wanted.as_str())
                && !is_below(wanted, &one.name)
                && (*wanted == self.base || parent.is_some_and(|parent| settled[*parent]))
        };
        let found = (0..self.all.len()).filter(can_be);
        let named = found.filter_map(|at| match &self.all[at].fate {
            Fate::Named(wanted) => Some((depth(wanted), wanted, at)),
            _ => None,
        });
        let (_, wanted, at) = named.min()?;
        Some(Step::Rename(at, wanted.clone()))
    }

    /// What stands where another one is to be, or below what goes.
    fn aside_next(&self) -> Option<Step> {
        let (places, settled) = (self.places(), self.settled());
        let mut needed: HashSet<&str> = HashSet::new();
        for (at, one) in self.all.iter().enumerate() {
            if let Fate::Named(wanted) = &one.fate
                && !settled[at]
                && !one.is_fast
                && *wanted != one.name
            {
                needed.insert(wanted);
            }
        }
        let is_below_what_goes = |name: &str| {
            let mut at = above(name);
            while !at.is_empty() {
                if places.get(at).is_some_and(|place| self.goes(*place)) {
                    return true;
                }
                at = above(at);
            }
            false
        };
        let is_in_the_way = |at: &usize| {
            let one = &self.all[*at];
            if settled[*at] || one.was_aside || one.name == self.base {
                return false;
            }
            let name = one.name.as_str();
            let is_needed = needed.contains(name) || self.coming.contains(name);
            match &one.fate {
                Fate::Kept => false,
                Fate::Gone => one.stays && is_needed,
                Fate::Named(_) => is_needed || is_below_what_goes(name),
            }
        };
        let found = (0..self.all.len()).filter(is_in_the_way);
        let first = found.min_by_key(|at| (depth(&self.all[*at].name), &self.all[*at].name))?;
        Some(Step::Aside(first))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn here(name: &str, fate: Fate) -> Here {
        Here {
            name: name.into(),
            fate,
            clone_of: None,
            stays: false,
            is_fast: false,
            was_aside: false,
        }
    }

    fn named(name: &str, wanted: &str) -> Here {
        here(name, Fate::Named(wanted.into()))
    }

    /// Does all steps, and says which they were.
    fn run(tree: &mut Tree) -> Vec<String> {
        let mut done = Vec::new();
        while let Some(step) = tree.next() {
            assert!(done.len() < 1000, "it does not end: {done:?}");
            match step {
                Step::Destroy(at) => {
                    let gone = tree.all[at].name.clone();
                    assert!(tree.all.iter().all(|one| !is_below(&one.name, &gone)));
                    tree.destroyed(at);
                    done.push(format!("-{gone}"));
                }
                Step::Rename(at, to) => {
                    let from = tree.all[at].name.clone();
                    moved(tree, &from, &to);
                    done.push(format!("{from} {to}"));
                }
                Step::Aside(at) => {
                    let from = tree.all[at].name.clone();
                    let mut free =
                        (0..).map(|number| format!("{}/recv-{number}", tree.aside_of(at)));
                    let is_free = |name: &String| tree.all.iter().all(|one| one.name != *name);
                    let to = free.find(is_free).unwrap();
                    tree.all[at].was_aside = true;
                    moved(tree, &from, &to);
                    done.push(format!("{from} {to}"));
                }
            }
        }
        done
    }

    /// What the pool would check.
    fn moved(tree: &mut Tree, from: &str, to: &str) {
        let exists = |tree: &Tree, name: &str| tree.all.iter().any(|one| one.name == name);
        assert!(!exists(tree, to), "{to} exists");
        assert!(!is_below(to, from), "{from} below itself");
        assert!(
            to == tree.base || exists(tree, above(to)),
            "{to} is nowhere"
        );
        tree.renamed(from, to);
    }

    fn tree(all: Vec<Here>, coming: &[&str]) -> Tree {
        Tree {
            base: "b".into(),
            all,
            coming: coming.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn names(tree: &Tree) -> Vec<&str> {
        tree.all.iter().map(|one| one.name.as_str()).collect()
    }

    #[test]
    fn names_are_swapped_and_passed_on() {
        let top = || named("b", "b");
        let mut swapped = tree(vec![top(), named("b/x", "b/y"), named("b/y", "b/x")], &[]);
        assert_eq!(run(&mut swapped).len(), 3);
        assert_eq!(names(&swapped), ["b", "b/y", "b/x"]);
        let mut passed = tree(
            vec![
                top(),
                named("b/1", "b/2"),
                named("b/2", "b/3"),
                named("b/3", "b/4"),
            ],
            &["b/1"],
        );
        assert_eq!(run(&mut passed), ["b/3 b/4", "b/2 b/3", "b/1 b/2"]);
        assert!(passed.astray().is_empty());
    }

    #[test]
    fn below_what_is_below_it() {
        // What was at the top of it is below its child, which has its name.
        let mut turned = tree(
            vec![
                named("b", "b"),
                named("b/a", "b/a/c"),
                named("b/a/x", "b/a"),
            ],
            &[],
        );
        run(&mut turned);
        assert_eq!(names(&turned), ["b", "b/a/c", "b/a"]);
        // Below a new one of its old name: it waits with another.
        let mut waits = tree(vec![named("b", "b"), named("b/a", "b/a/a")], &["b/a"]);
        assert_eq!(run(&mut waits), ["b/a b/recv-0"]);
        assert_eq!(waits.astray(), [1]);
        waits.all.push(named("b/a", "b/a"));
        waits.coming.clear();
        assert_eq!(run(&mut waits), ["b/recv-0 b/a/a"]);
    }

    #[test]
    fn what_moved_out_stays_when_its_parent_goes() {
        let mut gone = tree(
            vec![
                named("b", "b"),
                here("b/p", Fate::Gone),
                named("b/p/x", "b/q/x"),
            ],
            &["b/q"],
        );
        assert_eq!(run(&mut gone), ["b/p/x b/recv-0", "-b/p"]);
        // Its name is a new one's.
        let mut anew = tree(
            vec![
                named("b", "b"),
                here("b/p", Fate::Gone),
                named("b/p/x", "b/p/x"),
            ],
            &["b/p"],
        );
        assert_eq!(run(&mut anew), ["b/p/x b/recv-0", "-b/p"]);
    }

    #[test]
    fn what_cannot_go_leaves_its_name() {
        let mut all = vec![
            named("b", "b"),
            here("b/p", Fate::Gone),
            named("b/x", "b/p"),
        ];
        all[1].stays = true;
        let mut stays = tree(all, &[]);
        assert_eq!(run(&mut stays), ["b/p b/recv-0", "b/x b/p"]);
        // The receiver's own stays, and nothing else waits for it.
        let own = vec![
            named("b", "b"),
            here("b/p", Fate::Kept),
            named("b/x", "b/p"),
            named("b/y", "b/z"),
        ];
        let mut own = tree(own, &[]);
        assert_eq!(run(&mut own), ["b/y b/z"]);
        assert_eq!(own.astray(), [2]);
    }

    #[test]
    fn clones_go_before_what_they_are_clones_of() {
        let mut all = vec![
            named("b", "b"),
            here("b/a", Fate::Gone),
            here("b/c", Fate::Gone),
        ];
        all[2].clone_of = Some(1);
        assert_eq!(run(&mut tree(all, &[])), ["-b/c", "-b/a"]);
    }

    /// Names of a random tree: each is below one of those before it, by a short name.
    fn shape(choices: &[(usize, usize)]) -> Vec<String> {
        let mut names = vec!["b".to_owned()];
        for (parent, name) in choices {
            let parent = &names[parent % names.len()];
            let mut name = format!("{parent}/{}", name % 3);
            while names.contains(&name) {
                name.push('x');
            }
            names.push(name);
        }
        names
    }

    proptest! {
        /// Whatever names they had and are to have, all get theirs, and what goes is gone.
        #[test]
        fn any_tree_becomes_any_other(
            now in prop::collection::vec((0..20usize, 0..3usize), 1..14),
            then in prop::collection::vec((0..20usize, 0..3usize), 1..14),
            order in prop::collection::vec(any::<u32>(), 14),
        ) {
            let (now, then) = (shape(&now), shape(&then));
            let mut places: Vec<usize> = (1..then.len()).collect();
            places.sort_by_key(|at| order[*at - 1]);
            let mut all = vec![named("b", "b")];
            for (at, name) in now.iter().enumerate().skip(1) {
                all.push(match places.get(at - 1) {
                    Some(place) => named(name, &then[*place]),
                    None => here(name, Fate::Gone),
                });
            }
            let rest = places.get(now.len() - 1..).unwrap_or_default();
            let coming: Vec<&str> = rest.iter().map(|place| then[*place].as_str()).collect();
            let mut tree = tree(all, &coming);
            run(&mut tree);
            prop_assert!(tree.all.iter().all(|one| one.fate != Fate::Gone));
            // What comes does so from above.
            let mut coming = coming;
            coming.sort_by_key(|name| depth(name));
            for name in coming {
                let names = names(&tree);
                prop_assert!(!names.contains(&name), "{} is taken", name);
                prop_assert!(names.contains(&above(name)), "{} is nowhere", name);
                tree.all.push(named(name, name));
                tree.coming.remove(name);
                for one in &mut tree.all {
                    one.was_aside = false;
                }
                run(&mut tree);
            }
            prop_assert_eq!(tree.astray(), Vec::<usize>::new());
        }
    }
}
