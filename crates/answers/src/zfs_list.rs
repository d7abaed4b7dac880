//! What `zfs list -Hp -o` [`COLUMNS`] prints: a line for each dataset and snapshot, fields between
//! tabs.

use std::collections::BTreeMap;

/// What `zfs list` is asked for.
pub const COLUMNS: &str = "name,type,guid,createtxg,userrefs,receive_resume_token";

/// A snapshot or bookmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// What comes after the `@` or `#`.
    pub name: String,
    /// Which it is, wherever it is.
    pub guid: u64,
    /// When it was taken, as the pool that it is in counts.
    pub txg: u64,
    /// Whether holds keep it.
    pub is_held: bool,
}

/// A dataset at the target of a replication.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetSet {
    /// Oldest first.
    pub snapshots: Vec<Point>,
    /// What an interrupted receive left.
    pub token: Option<String>,
}

/// The datasets of a list, by their names; none where a line is not one of such a list.
pub fn parse(text: &str) -> Option<BTreeMap<String, TargetSet>> {
    let mut out: BTreeMap<String, TargetSet> = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, kind, guid, txg, holds, token] = fields[..] else {
            return None;
        };
        if kind != "snapshot" {
            let set = out.entry(name.to_owned()).or_default();
            set.token = Some(token.to_owned()).filter(|token| token != "-");
            continue;
        }
        let (head, short) = name.split_once('@')?;
        let point = Point {
            name: short.to_owned(),
            guid: guid.parse().ok()?,
            txg: txg.parse().ok()?,
            is_held: holds.parse::<u64>().is_ok_and(|holds| holds > 0),
        };
        out.entry(head.to_owned())
            .or_default()
            .snapshots
            .push(point);
    }
    for set in out.values_mut() {
        set.snapshots.sort_by_key(|point| point.txg);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_understood() {
        let text = "tank/a\tfilesystem\t1\t10\t-\t-\n\
                    tank/a@late\tsnapshot\t3\t30\t1\t-\n\
                    tank/a@early one\tsnapshot\t2\t20\t0\t-\n\
                    tank/a/b\tvolume\t4\t40\t-\t1-c-d-e\n";
        let found = parse(text).unwrap();
        let a = &found["tank/a"];
        let names: Vec<&str> = a.snapshots.iter().map(|point| &*point.name).collect();
        assert_eq!(names, ["early one", "late"]);
        assert!(a.snapshots[1].is_held && !a.snapshots[0].is_held);
        assert_eq!((a.token.as_deref(), a.snapshots[1].guid), (None, 3));
        assert_eq!(found["tank/a/b"].token.as_deref(), Some("1-c-d-e"));
        assert!(parse("tank/a\tfilesystem\n").is_none());
        assert!(parse("tank/a@s\tsnapshot\tx\t1\t0\t-\n").is_none());
    }
}
