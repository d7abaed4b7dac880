//! `zpool iostat -j`, which OpenZFS has not: the columns of the table as JSON, what stands below a
//! label together under its name. A document on a line for each report.

use std::collections::BTreeMap;

use api::{Guid, PoolReport, VdevClass, VdevKind, VdevReport};
use serde_json::{Map, Value, json};

use super::super::scripts::Told;
use super::super::words;
use super::{Before, Iostat, Round, Seen};
use crate::json;

impl Iostat {
    /// The document of one report.
    pub(super) fn json(
        &self,
        pools: &[PoolReport],
        vdevs: &[String],
        before: &BTreeMap<Guid, Before>,
        told: &Told,
        time: Option<String>,
    ) -> Map<String, Value> {
        let mut by_name = Map::new();
        for pool in pools {
            let before = before.get(&pool.guid);
            let round = Round {
                cache: &pool.cache,
                before,
                scale: self.scale(pool, before),
                width: 0,
                vdevs,
                told,
            };
            let entry = match vdevs.is_empty() {
                true => self.json_vdev(&pool.tree, &round),
                false => {
                    let mut chosen = Map::new();
                    self.add_chosen(&pool.tree, &round, &mut chosen);
                    let mut entry = Map::new();
                    entry.insert("name".into(), json!(pool.name));
                    entry.insert("vdevs".into(), Value::Object(chosen));
                    entry
                }
            };
            by_name.insert(pool.name.clone(), Value::Object(entry));
        }
        let mut document = json::document("zpool iostat");
        document.insert("pools".into(), Value::Object(by_name));
        if let Some(time) = time {
            document.insert("time".into(), json::value(&time, self.json_int));
        }
        document
    }

    fn json_vdev(&self, vdev: &VdevReport, round: &Round) -> Map<String, Value> {
        let nothing = Seen::default();
        let old = round.before.and_then(|before| before.vdevs.get(&vdev.guid));
        let groups = self.fields(vdev, old.unwrap_or(&nothing), round);
        let mut entry = Map::new();
        entry.insert("name".into(), json!(self.name(vdev)));
        entry.insert("vdev_type".into(), json!(words::kind(&vdev.kind)));
        for (fields, (group, _)) in groups.iter().zip(self.groups()) {
            let mut fields = group.bottom.iter().zip(fields);
            for (top, count) in group.top {
                let below = fields
                    .by_ref()
                    .take(*count)
                    .map(|(label, text)| ((*label).to_owned(), json::value(text, self.json_int)));
                entry.insert((*top).into(), Value::Object(below.collect()));
            }
        }
        for (column, value) in round.told.json(vdev) {
            entry.entry(column).or_insert(json!(value));
        }
        if !self.verbose {
            return entry;
        }
        // As in the table.
        let shown = vdev
            .children
            .iter()
            .filter(|child| child.kind != VdevKind::Indirect && child.class != VdevClass::Spare);
        let below: Map<String, Value> = shown
            .map(|child| {
                (
                    self.name(child),
                    Value::Object(self.json_vdev(child, round)),
                )
            })
            .collect();
        if !below.is_empty() {
            entry.insert("vdevs".into(), Value::Object(below));
        }
        entry
    }

    fn add_chosen(&self, vdev: &VdevReport, round: &Round, out: &mut Map<String, Value>) {
        if round.vdevs.iter().any(|word| self.is_called(vdev, word)) {
            let entry = self.json_vdev(vdev, round);
            out.insert(self.name(vdev), Value::Object(entry));
        }
        for child in &vdev.children {
            self.add_chosen(child, round, out);
        }
    }
}
