//! Random streams, between two pools or within one: whole, differences, raw, interrupted, resumed.

use std::io::Cursor;

use dataset::{ReceiveTarget, ResumeToken};
use format::stream::StreamFeatures;
use stream::{Progress, SendOptions, Start, StreamError, StreamReader};

use super::model::{Sent, SentKey};
use super::steps::SETS_MAX;
use super::{Rest, Run};
use crate::verify::Failure;

/// A stream, and what it is to do.
struct Stream {
    source: usize,
    target: String,
    sent: Sent,
    bytes: Vec<u8>,
}

/// What a stream is the difference to.
#[derive(Clone)]
struct Base {
    full_name: String,
    /// As [`super::model::Snap::id`].
    id: u64,
    /// As [`super::model::Snap::ivs`].
    ivs: u64,
    /// Whether nothing was changed since.
    is_same: bool,
}

/// What a stream may be.
#[derive(Clone)]
struct Choice {
    /// What it is the difference to.
    from: Option<Base>,
    target: String,
    /// Of a new target, the number of the snapshot there that it is a clone of.
    origin: Option<u64>,
}

impl Run {
    /// Makes a stream of one pool and has it received by the other, or by the same.
    pub(super) async fn receive(&mut self, side: usize) -> Result<(), Failure> {
        let source = match self.rng.percent(80) {
            true => 1 - side,
            false => side,
        };
        let there = self.sides[source].model().clone();
        let here = self.sides[side].model().clone();
        let with_snaps = there.sets.iter().filter(|(_, set)| !set.snaps.is_empty());
        let names: Vec<String> = with_snaps.map(|(name, _)| name.clone()).collect();
        let Some(name) = self.rng.pick(&names) else {
            return Ok(());
        };
        let set = &there.sets[&name];
        let at = self.rng.below(set.snaps.len() as u64) as usize;
        let to = &set.snaps[at];
        // What there is to be a difference to.
        let mut bases: Vec<Base> = set.snaps[..at]
            .iter()
            .map(|snap| Base {
                full_name: format!("{name}@{}", snap.name),
                id: snap.id,
                ivs: snap.ivs,
                is_same: snap.state == to.state,
            })
            .collect();
        let marks = set.marks.iter().filter(|(_, mark)| mark.number < to.number);
        bases.extend(marks.map(|(short, mark)| Base {
            full_name: format!("{name}#{short}"),
            id: mark.id,
            ivs: mark.ivs,
            is_same: mark.state == to.state,
        }));
        let mut choices: Vec<Choice> = Vec::new();
        for base in bases {
            for (target, other) in &here.sets {
                let has_it = other.snaps.iter().any(|snap| snap.id == base.id);
                let is_itself = source == side && *target == name;
                if has_it && !is_itself {
                    choices.push(Choice {
                        from: Some(base.clone()),
                        target: target.clone(),
                        origin: None,
                    });
                }
            }
        }
        if here.sets.len() < SETS_MAX && (choices.is_empty() || self.rng.percent(30)) {
            let target = self.new_name(side)?;
            choices.clear();
            let origin = set.origin.and_then(|number| {
                let (_, snap) = there.find(number)?;
                Some(Base {
                    full_name: there.full_name(number)?,
                    id: snap.id,
                    ivs: snap.ivs,
                    is_same: snap.state == to.state,
                })
            });
            let all = here.sets.values().flat_map(|set| &set.snaps);
            for snap in all {
                if let Some(origin) = &origin
                    && snap.id == origin.id
                    && !snap.is_doomed
                {
                    choices.push(Choice {
                        from: Some(origin.clone()),
                        target: target.clone(),
                        origin: Some(snap.number),
                    });
                }
            }
            if choices.is_empty() || self.rng.percent(20) {
                choices = vec![Choice {
                    from: None,
                    target,
                    origin: None,
                }];
            }
        }
        let Some(choice) = self.rng.pick(&choices) else {
            return Ok(());
        };
        let Choice {
            from,
            target,
            origin,
        } = choice;
        self.abandon(side, &target).await?;
        let is_raw = set.key.is_some() && self.rng.percent(60);
        let from_ivs = from.as_ref().map_or(0, |from| from.ivs);
        let raw = is_raw.then(|| there.key(&name)).flatten();
        let sent = Sent {
            name: match self.rng.percent(80) {
                true => to.name.clone(),
                false => self.name("x"),
            },
            id: to.id,
            is_volume: set.is_volume,
            files: to.files.clone(),
            from: from.as_ref().map(|from| from.id),
            is_empty: from.as_ref().is_some_and(|from| from.is_same),
            force: self.rng.percent(40),
            origin,
            raw: raw.map(|key| SentKey {
                id: key.id,
                user: key.user,
                ivs: to.ivs,
                from_ivs,
            }),
            own: self.fresh(),
        };
        if sent.force {
            self.abandon_all(side).await?;
        }
        let as_stored = self.rng.percent(50);
        // What is encrypted has no embedded blocks.
        let cloned = origin.and_then(|number| here.find(number));
        let is_encrypted = match cloned {
            Some((of, _)) => here.key(of).is_some(),
            None if here.sets.contains_key(&target) => here.key(&target).is_some(),
            None => here.key_above(&target).is_some(),
        };
        let options = SendOptions {
            large_blocks: as_stored,
            embedded: as_stored && !is_encrypted,
            compressed: as_stored,
            raw: is_raw,
            ..SendOptions::default()
        };
        let from = from.map(|from| from.full_name);
        let to = format!("{name}@{}", to.name);
        let bytes = self.send(source, &to, from.as_deref(), &options).await?;
        let stream = Stream {
            source,
            target,
            sent,
            bytes,
        };
        self.take(side, stream, "receive").await
    }

    async fn send(
        &mut self,
        source: usize,
        to: &str,
        from: Option<&str>,
        options: &SendOptions,
    ) -> Result<Vec<u8>, Failure> {
        let dsl = self.sides[source].pool().dsl().clone();
        let sending = async {
            let made = match options.raw {
                true => dsl.sends().raw_source(to, from).await?,
                false => dsl.sends().source(to, from).await?,
            };
            let mut bytes = Vec::new();
            stream::send(&made, options, &mut bytes, &Progress::default()).await?;
            Ok::<_, StreamError>(bytes)
        };
        let sent = sending.await;
        sent.map_err(|error| format!("pool {source}: send {to} from {from:?}: {error}").into())
    }

    /// Goes on with an interrupted receive.
    pub(super) async fn resume(&mut self, side: usize) -> Result<(), Failure> {
        let names: Vec<String> = self.sides[side].rests.keys().cloned().collect();
        let target = self.rng.pick(&names).ok_or("no rests")?;
        let mut rest = self.sides[side].rests[&target].clone();
        let token = ResumeToken::decode(&rest.token).ok_or("a token that is none")?;
        if self.guids.get(&rest.sent.id) != Some(&token.to_guid.get()) {
            return Err(format!("pool {side}: {target} has another token: {token:?}").into());
        }
        let there = self.sides[rest.source].model().clone();
        // Both may be somewhere else by now, or gone.
        let mut found = None;
        for (name, set) in &there.sets {
            // A copy that was received otherwise has another key, or none.
            let key = there.key(name).map(|key| key.id);
            if rest
                .sent
                .raw
                .as_ref()
                .is_some_and(|raw| key != Some(raw.id))
            {
                continue;
            }
            for (at, snap) in set.snaps.iter().enumerate() {
                if snap.id != rest.sent.id {
                    continue;
                }
                let to = format!("{name}@{}", snap.name);
                let Some(from) = rest.sent.from else {
                    found = Some((to, None));
                    continue;
                };
                let earlier = set.snaps[..at].iter().find(|snap| snap.id == from);
                let earlier = earlier.map(|snap| format!("{name}@{}", snap.name));
                let mut marks = set.marks.iter();
                let mark = marks.find(|(_, mark)| mark.id == from && mark.number < snap.number);
                let mark = mark.map(|(short, _)| format!("{name}#{short}"));
                let is_clone = rest.sent.origin.is_some();
                let origin = set.origin.and_then(|number| there.find(number));
                let origin = origin.filter(|(_, snap)| snap.id == from);
                let origin = origin.map(|(set, snap)| format!("{set}@{}", snap.name));
                let base = match is_clone {
                    true => origin,
                    false => earlier.or(mark),
                };
                if let Some(base) = base {
                    found = Some((to, Some(base)));
                }
            }
        }
        let Some((to, from)) = found else {
            return self.abandon(side, &target).await;
        };
        if let Some(raw) = &mut rest.sent.raw {
            // The user's key may be another one by now.
            let (set, _) = to.split_once('@').ok_or("a snapshot")?;
            let key = there.key(set).filter(|key| key.id == raw.id);
            raw.user = key.ok_or("a raw stream of what is not encrypted")?.user;
        }
        let options = SendOptions {
            large_blocks: token.large_blocks,
            embedded: token.embedded,
            compressed: token.compressed,
            raw: token.raw,
            resume_at: Some((token.object, token.offset_bytes)),
        };
        let bytes = self
            .send(rest.source, &to, from.as_deref(), &options)
            .await?;
        let stream = Stream {
            source: rest.source,
            target,
            sent: rest.sent,
            bytes,
        };
        self.take(side, stream, "resume").await
    }

    /// Receives a stream, or a part of it.
    async fn take(&mut self, side: usize, stream: Stream, op: &'static str) -> Result<(), Failure> {
        let Stream {
            source,
            target,
            sent,
            bytes,
        } = stream;
        let op = match sent.raw.is_some() {
            true if op == "resume" => "resume raw",
            true => "receive raw",
            false => op,
        };
        let cut = self.rng.percent(35);
        let length = match cut {
            true => self.rng.below(bytes.len() as u64) as usize,
            false => bytes.len(),
        };
        let what = format!(
            "{target}@{} from {:?} force {} ({length} of {} bytes)",
            sent.name,
            sent.from,
            sent.force,
            bytes.len()
        );
        let mut model = self.next(side);
        let told = model.receive(&target, &sent);
        let mut reader = StreamReader::new(Cursor::new(bytes[..length].to_vec()));
        let (begin, list) = match reader.start().await {
            Ok(Start::Begin(begin, list)) => (*begin, list),
            _ if cut => return Ok(()),
            _ => return Err(format!("pool {side}: {op} {what}: no beginning").into()),
        };
        let resumes = begin.features.contains(StreamFeatures::RESUMING);
        let origin = sent.origin.filter(|_| !resumes);
        let origin = origin.and_then(|number| self.sides[side].model().full_name(number));
        let resumable = cut || resumes || self.rng.percent(50);
        let wanted = ReceiveTarget {
            name: target.clone(),
            snapshot: sent.name.clone(),
            begin,
            origin,
            force: sent.force,
            resumable,
            properties: Vec::new(),
            new_key: None,
            key_data: list.list("crypt_keydata").cloned(),
            redaction: dataset::Redaction::of(&list),
        };
        if resumable {
            let rest = Rest {
                source,
                sent: sent.clone(),
                token: String::new(),
            };
            self.sides[side].receiving = Some((target.clone(), rest));
        }
        let dsl = self.sides[side].pool().dsl().clone();
        let receiving = match dsl.receives().begin(wanted).await {
            Ok(receiving) => receiving,
            Err(error) => {
                let refused = async { Err::<(), _>(error) };
                self.agree(side, op, &what, (model, told), refused).await?;
                // What could not be gone on with is given up.
                return self.abandon(side, &target).await;
            }
        };
        let progress = Progress::default();
        let received = stream::receive(&mut reader, &list, &receiving, &progress).await;
        match received {
            Ok(_) if cut => {
                return Err(format!("pool {side}: {op} {what}: whole, though it was cut").into());
            }
            Err(error) if !cut || !error.is_of_stream() => {
                return Err(format!("pool {side}: {op} {what}: {error}").into());
            }
            Err(_) => {
                dsl.receives().give_up(receiving, true).await?;
                let token = dsl
                    .properties()
                    .get(&target, "receive_resume_token")
                    .await?;
                let dataset::PropertyValue::Text(token) = token.value else {
                    return Err(format!("pool {side}: {op} {what}: no token").into());
                };
                if ResumeToken::decode(&token).is_none() {
                    return Err(format!("pool {side}: {op} {what}: no token: {token}").into());
                }
                let rest = Rest {
                    source,
                    sent,
                    token,
                };
                self.sides[side].rests.insert(target, rest);
                *self.outcome.done.entry("interrupted receive").or_default() += 1;
                return Ok(());
            }
            Ok(_) => {}
        }
        self.sides[side].close(&target).await?;
        let ended = async { dsl.receives().finish(&receiving).await };
        let is_done = self.agree(side, op, &what, (model, told), ended).await?;
        if is_done {
            self.sides[side].load_key(&target).await?;
            self.sides[side].rests.remove(&target);
            return Ok(());
        }
        dsl.receives().give_up(receiving, false).await?;
        self.abandon(side, &target).await
    }
}
