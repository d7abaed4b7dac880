//! Removed vdevs, and one that is being removed: where their blocks are.

use crate::verify::Walk;

impl Walk<'_> {
    /// What is on a removed vdev is on others, and what was copied of one that is being removed is
    /// there as well: takes these places.
    pub(crate) fn follow_mappings(&mut self) {
        let (tree, dvas) = (self.pool.tree().clone(), self.pool.dvas());
        let mut problems = Vec::new();
        for (used, is_certain) in [(&mut self.claimed, true), (&mut self.uncertain, false)] {
            // What was moved before may lie on the one that is being removed now.
            for is_removing in [false, true] {
                let mut copies = Vec::new();
                for top in tree.tops() {
                    let vdev = top.vdev_id();
                    let is_it = match is_removing {
                        true => top.config_u64("removing") == Some(1),
                        false => top.kind().is_indirect(),
                    };
                    if !is_it {
                        continue;
                    }
                    let own = match is_removing {
                        true => used.get(&vdev).cloned().unwrap_or_default(),
                        false => used.remove(&vdev).unwrap_or_default(),
                    };
                    for (offset, length) in own.iter() {
                        let places = match is_removing {
                            true => dvas.with_removal(|map| {
                                let copied = map.end_bytes().saturating_sub(offset).min(length);
                                map.places(offset, copied)
                            }),
                            false => match tree.topology().remap(vdev, offset, length) {
                                Ok(Some(remapped)) => Some(Some(remapped.places)),
                                _ => Some(None),
                            },
                        };
                        match places {
                            Some(Some(places)) => copies.extend(places),
                            Some(None) if is_certain => problems
                                .push(format!("not mapped: vdev {vdev} {offset:#x}+{length:#x}")),
                            Some(None) | None => {}
                        }
                    }
                }
                for (vdev, offset, length) in copies {
                    let is_new = used.entry(vdev).or_default().add(offset, length) == length;
                    if is_certain && !is_new {
                        let place = format!("vdev {vdev} {offset:#x}+{length:#x}");
                        problems.push(format!("used twice, by a mapping: {place}"));
                    }
                }
            }
        }
        problems.into_iter().for_each(|text| self.problem(text));
    }
}
