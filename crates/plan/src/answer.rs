//! The answer to a question: every layout, the best of them, and what to say.

use crate::ask::{Answer, Cost, Model, Planned, Question};
use crate::capacity::Capacity;
use crate::choose::{self, Purpose, Reason, Recommended, helper};
use crate::full::{Limit, LimitedBy, Load, Path, Rates};
use crate::look::{look_at_cache, small_blocks};
use crate::risk::{Assumptions, Risk};
use crate::scan::{Passes, used_of_disk};
use crate::simple::Simple;
use crate::sizes::{LOG_SECONDS, log_size};
use crate::{Disks, Layout, Note, PlanError};

/// A pool should not be lost more often than this in a year.
const LOSS_MAX: f64 = 1e-3;
/// Nor should blocks be.
const DAMAGE_MAX: f64 = 1e-2;

/// Answers a question.
///
/// # Errors
/// No disks, figures out of bounds, or a layout that cannot be on these disks.
pub fn answer(question: &Question) -> Result<Answer, PlanError> {
    let question = &question.or_usual();
    question.check()?;
    let disks = question.data_disks()?.clone();
    let count = disks.count.saturating_sub(question.spares);
    let layouts = match question.layouts.as_slice() {
        [] => choose::layouts(count),
        given => given.to_vec(),
    };
    if layouts.is_empty() {
        return Err(PlanError::TooFewDisks {
            layout: "a pool".to_owned(),
            needed: question.spares.saturating_add(1),
            count: disks.count,
        });
    }
    for layout in &layouts {
        layout.check()?;
        if layout.disks() > count {
            return Err(PlanError::TooFewDisks {
                layout: layout.to_string(),
                needed: layout.disks(),
                count,
            });
        }
    }
    let purposes = match question.purposes.as_slice() {
        [] => &[Purpose::Random],
        purposes => purposes,
    };
    let load_of = |purpose: Purpose| question.load.unwrap_or_else(|| purpose.usual_load());
    let load = load_of(purposes[0]);
    let plan = Plan {
        question,
        disks: &disks,
        assumed: question
            .assumed
            .unwrap_or_else(|| Assumptions::usual(disks.kind)),
    };
    let mut planned = Vec::new();
    for layout in &layouts {
        match plan.layout(*layout, &load) {
            Ok(one) => planned.push(one),
            // Of many, those that need bigger disks are left out.
            Err(PlanError::TooSmall { .. }) if question.layouts.is_empty() => {}
            Err(error) => return Err(error),
        }
    }
    if planned.is_empty() {
        return Err(PlanError::TooSmall {
            layout: "every layout".to_owned(),
            size_bytes: disks.size_bytes,
        });
    }
    let mut recommended = Vec::new();
    for purpose in purposes {
        let load = load_of(*purpose);
        let rates: Vec<Rates> = planned
            .iter()
            .map(|planned| plan.rates(planned.layout, &load))
            .collect();
        recommended.extend(recommend(*purpose, &load, &planned, &rates));
    }
    let notes = plan.notes(&load, &planned, &recommended, purposes[0]);
    Ok(Answer {
        disks,
        load,
        layouts: planned,
        recommended,
        notes,
    })
}

/// Which of the layouts is the best, with the rates that each has under the purpose's load; `None`
/// without layouts.
///
/// Of those that lose data rarely enough, the one with the biggest product of rate and usable
/// bytes, each to the power of its weight: so twice the rate is worth the same wherever it begins.
/// If none is safe, the safest.
fn recommend(
    purpose: Purpose,
    load: &Load,
    planned: &[Planned],
    rates: &[Rates],
) -> Option<Recommended> {
    let is_safe = |planned: &Planned| {
        planned.risk.may_fail > 0
            && planned.risk.loss_per_year <= LOSS_MAX
            && planned.risk.damage_per_year <= DAMAGE_MAX
    };
    let weight = purpose.weight_of_rates();
    let value = |index: usize| {
        let rate = purpose.rate(&rates[index], load).max(1e-9);
        let bytes = planned[index].usable_for(load.block_bytes).max(1) as f64;
        weight * rate.ln() + (1.0 - weight) * bytes.ln()
    };
    let all = 0..planned.len().min(rates.len());
    let best = all
        .clone()
        .filter(|index| is_safe(&planned[*index]))
        .max_by(|one, other| value(*one).total_cmp(&value(*other)));
    let (index, reason) = match best {
        _ if all.len() == 1 => (0, Reason::Only),
        Some(index) => (index, Reason::Best),
        None => {
            let damage = |index: &usize| planned[*index].risk.damage_per_year;
            let safest = all.min_by(|one, other| damage(one).total_cmp(&damage(other)))?;
            (safest, Reason::Safest)
        }
    };
    Some(Recommended {
        purpose,
        layout: planned[index].layout,
        reason,
    })
}

struct Plan<'a> {
    question: &'a Question,
    disks: &'a Disks,
    assumed: Assumptions,
}

impl Plan<'_> {
    fn layout(&self, layout: Layout, load: &Load) -> Result<Planned, PlanError> {
        let (question, disks) = (self.question, self.disks);
        let capacity = Capacity::of(layout, disks.size_bytes, question.ashift)?;
        let passes = Passes::of(
            layout,
            disks,
            &capacity,
            &question.buses,
            self.assumed.filled,
        );
        let used_bytes = used_of_disk(layout, &capacity, self.assumed.filled);
        let spares = disks.count - layout.disks();
        let risk = Risk::of(
            layout,
            spares,
            passes.rebuild_seconds,
            used_bytes,
            &self.assumed,
        );
        let rates = self.rates(layout, load);
        let simple =
            (question.model == Model::Simple).then(|| Simple::of(layout, disks.size_bytes));
        let total = disks.price * disks.count as f64;
        let cost = (total > 0.0).then(|| Cost {
            total,
            per_terabyte: total / (capacity.usable_bytes as f64 / 1e12),
            per_read_iops: total / rates.read_iops,
        });
        Ok(Planned {
            layout,
            spares,
            usable_bytes: capacity.usable_bytes,
            loss_per_year: risk.loss_per_year,
            read_iops: rates.read_iops,
            write_iops: rates.write_iops,
            read_rate: rates.read_rate,
            write_rate: rates.write_rate,
            limited_by: rates.limited_by,
            streams_max: rates.streams_max,
            scrub_seconds: passes.scrub_seconds,
            rebuild_seconds: passes.rebuild_seconds,
            cost,
            simple,
            capacity,
            risk,
        })
    }

    fn rates(&self, layout: Layout, load: &Load) -> Rates {
        let question = self.question;
        let path = Path {
            buses: &question.buses,
            network_rate: question.network_rate,
        };
        let full = Rates::of(layout, self.disks, question.ashift, load, path);
        if question.model == Model::Full {
            return full;
        }
        let simple = Simple::of(layout, self.disks.size_bytes);
        let (y, z) = (self.disks.accesses_per_second, self.disks.rate as f64);
        let (read_iops, write_iops) = (simple.iops_read * y, simple.iops_write * y);
        let share = load.read_share.clamp(0.0, 1.0);
        Rates {
            read_iops,
            write_iops,
            mixed_iops: 1.0 / (share / read_iops + (1.0 - share) / write_iops),
            read_rate: simple.rate_read * z,
            write_rate: simple.rate_write * z,
            limited_by: LimitedBy {
                read_iops: Limit::Seeks,
                write_iops: Limit::Seeks,
                read_rate: Limit::Disks,
                write_rate: Limit::Disks,
            },
            ..full
        }
    }

    fn notes(
        &self,
        load: &Load,
        planned: &[Planned],
        recommended: &[Recommended],
        purpose: Purpose,
    ) -> Vec<Note> {
        let mut notes = Vec::new();
        for one in recommended {
            let of = planned.iter().find(|planned| planned.layout == one.layout);
            notes.extend(of.map(|best| Note::Recommended {
                purpose: one.purpose,
                layout: one.layout,
                reason: one.reason,
                usable_bytes: best.usable_for(load.block_bytes),
                loss_per_year: best.loss_per_year,
            }));
        }
        // All that can be said of every layout is too much: of those that were asked for or are
        // recommended.
        let is_asked = !self.question.layouts.is_empty();
        for one in planned {
            let is_recommended = recommended.iter().any(|best| best.layout == one.layout);
            if is_asked || is_recommended {
                notes.extend(self.notes_of(one, load));
            }
        }
        self.add_notes_of_others(load, purpose, &mut notes);
        notes.push(Note::Assumed {
            assumed: self.assumed,
        });
        notes
    }

    fn notes_of(&self, one: &Planned, load: &Load) -> Vec<Note> {
        /// From so many data disks on a vdev of RAID-Z is wide.
        const WIDE: f64 = 12.0;
        /// Chance of lost blocks in a year that is told of.
        const DAMAGE: f64 = 1e-3;
        let layout = one.layout;
        let mut notes = vec![Note::Fixed { layout }];
        if layout.may_fail() == 0 {
            notes.push(Note::NoRedundancy { layout });
        }
        notes.extend(small_blocks(layout, self.question.ashift, load.block_bytes));
        if layout.may_fail() > 0 && one.risk.damage_per_year > DAMAGE {
            notes.push(Note::Unreadable {
                layout,
                damage_per_year: one.risk.damage_per_year,
            });
        }
        if let (Layout::Raidz { .. }, Some(rebuild_seconds)) = (layout, one.rebuild_seconds)
            && layout.data_disks_of_vdev() > WIDE
        {
            notes.push(Note::Wide {
                layout,
                rebuild_seconds,
            });
        }
        if one.spares > self.question.spares {
            notes.push(Note::Spare {
                layout,
                count: one.spares,
            });
        }
        if let Some(streams_max) = one.streams_max
            && load.streams > streams_max
        {
            notes.push(Note::Streams {
                layout,
                streams: load.streams,
                streams_max,
            });
        }
        notes
    }

    /// About disks that do not hold the data, and the sizes of what they may be.
    fn add_notes_of_others(&self, load: &Load, purpose: Purpose, notes: &mut Vec<Note>) {
        let question = self.question;
        for others in question.disks.iter().filter(|other| *other != self.disks) {
            let what = helper(self.disks.kind, others.kind, others.count, purpose);
            notes.push(Note::Helper {
                count: others.count,
                kind: others.kind,
                helper: what,
            });
            let device_bytes = others.count.saturating_mul(others.size_bytes);
            if let (choose::Helper::Cache, Some(memory_bytes)) = (what, question.memory_bytes) {
                notes.extend(look_at_cache(device_bytes, load.block_bytes, memory_bytes));
            }
            let size = log_size(question.network_rate, LOG_SECONDS, question.log_seen_bytes);
            if let (choose::Helper::Log, Some(size)) = (what, size) {
                notes.push(Note::Log { bytes: size.bytes });
            }
        }
    }
}
