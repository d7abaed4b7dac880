//! Makes disks fail and come back, and does what people do about it.

use std::sync::Arc;
use std::time::Duration;

use device::sim::{Fault, FaultEffect, SimOp, SimWorld};
use format::LABEL_START_BYTES;
use parking_lot::Mutex;
use pool::{
    AddSpec, AttachSpec, DeadmanLimits, LeafSpec, OfflineSpec, Pool, PoolError, ScrubCommand,
    VdevClass, VdevLayout, VdevSpec,
};

use super::disks::{Condition, Disks, Trouble, leaves};
use super::plan::Plan;
use crate::rng::Rng;
use crate::verify::Failure;

/// Where labels are in front of and behind a disk's blocks, at most.
const LABELS_BYTES: u64 = LABEL_START_BYTES;
/// Faulty disks answer after this time at the latest.
const DELAY_S_MAX: u64 = 25;
/// Those that do not answer are given up after this time: longer, as a disk that is not faulty any
/// more may still be at what it was asked before.
const GIVE_UP_S: u32 = 30;

/// A command that runs.
struct Command {
    what: String,
    /// Whose errors it clears.
    clears: Vec<(String, u64)>,
    result: Arc<Mutex<Option<Result<(), PoolError>>>>,
}

/// Somebody with a pool and bad disks.
pub struct Operator<'a> {
    sim: &'a SimWorld,
    pool: &'a Arc<Pool>,
    disks: &'a mut Disks,
    rng: Rng,
    plan: &'a Plan,
    command: Option<Command>,
    /// Nothing is done for so many seconds.
    pause_s: u64,
}

/// A new device, which takes another one's place or is attached to it.
pub fn spec(path: &str, replace: bool) -> AttachSpec {
    AttachSpec {
        device: LeafSpec {
            path: path.to_owned(),
            is_file: false,
        },
        ashift: None,
        force: true,
        replace,
        sequential: false,
        untouched: false,
    }
}

/// A new spare.
pub fn spare(path: &str) -> AddSpec {
    AddSpec {
        vdevs: vec![VdevSpec {
            layout: VdevLayout::Leaf(LeafSpec {
                path: path.to_owned(),
                is_file: false,
            }),
            class: VdevClass::Spare,
        }],
        ashift: None,
        force: true,
        allow_ashift_mismatch: false,
    }
}

impl<'a> Operator<'a> {
    /// Begins with the disks as they are.
    pub fn new(
        sim: &'a SimWorld,
        pool: &'a Arc<Pool>,
        disks: &'a mut Disks,
        rng: Rng,
        plan: &'a Plan,
    ) -> Self {
        pool.scans().set_queue(plan.scan_queue);
        pool.set_deadman_limits(DeadmanLimits {
            lag_s: plan.lag_s,
            give_up_s: GIVE_UP_S,
            ..DeadmanLimits::default()
        });
        Operator {
            sim,
            pool,
            disks,
            rng,
            plan,
            command: None,
            pause_s: 0,
        }
    }

    /// Does so many things.
    ///
    /// # Errors
    /// When the pool is not as it has to be.
    pub async fn run(mut self, steps: u32) -> Result<(), Failure> {
        for _ in 0..steps {
            let pause = 20 + self.rng.below(self.plan.pause_ms_max);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            self.look()?;
            self.step().await?;
            for _ in 0..std::mem::take(&mut self.pause_s) {
                tokio::time::sleep(Duration::from_secs(1)).await;
                self.look()?;
            }
        }
        while self.command.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            self.look()?;
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), Failure> {
        self.disks.observe(self.pool)?;
        let ended = self.command.as_ref();
        let Some(result) = ended.and_then(|command| command.result.lock().take()) else {
            return Ok(());
        };
        let Some(Command { what, clears, .. }) = self.command.take() else {
            return Ok(());
        };
        self.disks.is_changing = false;
        match result {
            Ok(()) => {
                for (name, mended) in clears {
                    self.disks.cleared(&name, mended);
                }
                self.disks.tell(format_args!("{what}: done"));
            }
            Err(error) => {
                self.disks.count("refused");
                self.disks.tell(format_args!("{what}: {error}"));
            }
        }
        Ok(())
    }

    /// Starts a command, unless another one runs.
    fn start<F>(&mut self, what: String, command: impl FnOnce(Arc<Pool>) -> F)
    where
        F: Future<Output = Result<(), PoolError>> + Send + 'static,
    {
        self.disks.tell(format_args!("{what}"));
        let result = Arc::new(Mutex::new(None));
        let (own, work) = (result.clone(), command(self.pool.clone()));
        self.sim.world().spawn.spawn(Box::pin(async move {
            let done = work.await;
            *own.lock() = Some(done);
        }));
        self.command = Some(Command {
            what,
            clears: Vec::new(),
            result,
        });
    }

    async fn step(&mut self) -> Result<(), Failure> {
        match self.rng.below(100) {
            0..40 => self.fail(),
            40..58 => self.mend(),
            58..74 => self.care(),
            74..82 => self.replace(),
            82..87 => self.widen(),
            87..96 => self.scrub(),
            96..98 => self.stranger(),
            _ => self.pool.sync_config().await?,
        }
        Ok(())
    }

    fn blocks(&self) -> std::ops::Range<u64> {
        LABELS_BYTES..(self.plan.disk_mib << 20) - LABELS_BYTES
    }

    /// Silently spoils what is on a disk: much of it or all.
    fn spoil(&mut self, name: &str, unreadable: bool) {
        let Some(disk) = self.disks.disk(name) else {
            return;
        };
        let blocks = self.blocks();
        if !unreadable && self.rng.percent(40) {
            // All of it, labels left aside.
            disk.corrupt_written(blocks);
            return;
        }
        for _ in 0..1 + self.rng.below(60) {
            // Most of what is written is in front.
            let span = [1 << 20, 8 << 20, blocks.end - blocks.start][self.rng.below(3) as usize];
            let at = blocks.start + self.rng.below(span);
            let length = (1 + self.rng.below(64 << 10)).min(blocks.end - at);
            match unreadable {
                true => disk.make_unreadable(at, length),
                false => disk.corrupt(at, length as usize),
            }
        }
    }

    fn fail(&mut self) {
        let Some(name) = self.rng.pick(&self.disks.victims()) else {
            return;
        };
        let Some(disk) = self.disks.disk(&name) else {
            return;
        };
        let roll = self.rng.below(14);
        let what = match roll {
            0..3 => "gone",
            3 if !self.disks.is_spare(&name) => "dead",
            4 => "spoiled",
            5 if self.plan.read_faults => "unreadable",
            7 if self.plan.read_faults => "read errors",
            5..8 => "write errors",
            8 => "flush errors",
            9 => "lost or misdirected writes",
            10 => "slow",
            11 => "hung",
            12 if !self.disks.is_spare(&name) => "hung for ever",
            3 | 12 => "gone",
            _ => "offline",
        };
        if what == "offline" && self.command.is_some() {
            return;
        }
        let is_silent = matches!(
            what,
            "spoiled" | "unreadable" | "lost or misdirected writes"
        );
        if is_silent && !self.disks.may_lie(&name) {
            return;
        }
        self.disks.tell(format_args!("{name}: {what}"));
        self.disks.count(what);
        let mut trouble = Trouble::Faulty;
        let times = 1 + self.rng.below(40);
        match what {
            "gone" | "dead" => {
                disk.set_gone(true);
                trouble = if what == "dead" {
                    Trouble::Dead
                } else {
                    Trouble::Gone
                };
            }
            "spoiled" | "unreadable" => {
                self.spoil(&name, what == "unreadable");
                self.disks.suspect(&name);
                // It goes on working.
                self.disks.mends(&name);
                return;
            }
            "write errors" => {
                let effect = match self.rng.below(3) {
                    0 => FaultEffect::Short,
                    1 => FaultEffect::NoSpace,
                    _ => FaultEffect::Error,
                };
                let mut fault = Fault::new(SimOp::Write, effect).times(times);
                if self.rng.percent(50) {
                    // The device is probed in its labels.
                    fault = fault.within(self.blocks());
                }
                disk.inject(fault);
            }
            "read errors" => {
                let effect = match self.rng.below(3) {
                    0 => FaultEffect::Corrupt,
                    1 => FaultEffect::Short,
                    _ => FaultEffect::Error,
                };
                disk.inject(Fault::new(SimOp::Read, effect).chance(400).times(times));
            }
            "flush errors" => {
                disk.inject(Fault::new(SimOp::Flush, FaultEffect::Error).times(1 + times / 10));
            }
            "lost or misdirected writes" => {
                let effect = match self.rng.below(2) {
                    0 => FaultEffect::Lost,
                    _ => FaultEffect::Misdirected(4096 * (1 + self.rng.below(100))),
                };
                let blocks = self.blocks();
                // A write that goes elsewhere must not go into a label.
                let fault = Fault::new(SimOp::Write, effect).within(blocks.start..blocks.end / 2);
                disk.inject(fault.chance(300).times(times));
                self.disks.suspect(&name);
            }
            "slow" => {
                let longer = Duration::from_millis(self.rng.below(DELAY_S_MAX * 1000));
                for op in [SimOp::Read, SimOp::Write, SimOp::Flush] {
                    let fault = Fault::new(op, FaultEffect::Delay(longer));
                    disk.inject(fault.chance(300).times(times));
                }
            }
            "hung" | "hung for ever" => {
                // Some hang as a whole, others over some of what they are asked.
                let times = match self.rng.percent(70) || what != "hung" {
                    true => u64::MAX,
                    false => times,
                };
                for op in [SimOp::Read, SimOp::Write, SimOp::Flush] {
                    disk.inject(Fault::new(op, FaultEffect::Stall).times(times));
                }
                if what != "hung" {
                    trouble = Trouble::Dead;
                }
                if self.rng.percent(50) {
                    self.pause_s = self.rng.below(2 * u64::from(GIVE_UP_S));
                }
            }
            _ => {
                trouble = Trouble::Offline;
                let temporary = self.rng.percent(50);
                let target = name.clone();
                self.start(format!("offline {name}"), |pool| async move {
                    let spec = OfflineSpec {
                        temporary,
                        fault: false,
                    };
                    pool.offline(&target, spec).await
                });
            }
        }
        self.disks.fails(&name, trouble);
    }

    fn mend(&mut self) {
        let is_curable = |condition| {
            matches!(
                condition,
                Condition::Failed(Trouble::Gone | Trouble::Faulty)
            )
        };
        let Some(name) = self.rng.pick(&self.disks.which(is_curable)) else {
            return;
        };
        let Some(disk) = self.disks.disk(&name) else {
            return;
        };
        self.disks.tell(format_args!("{name} works again"));
        disk.clear_faults();
        disk.release();
        let is_gone = self.disks.condition(&name) == Condition::Failed(Trouble::Gone);
        // Nobody could notice that a disk which is in use forgets something.
        if is_gone && !self.is_in_use(&name) && self.rng.percent(50) {
            self.disks.tell(format_args!("{name} lost its cache"));
            self.disks.lose_cache(&name);
        }
        disk.set_gone(false);
        self.disks.mends(&name);
    }

    fn is_in_use(&self, name: &str) -> bool {
        let all = self.disks.tops().iter().flat_map(leaves);
        let mut own = all.filter(|leaf| leaf.path.as_deref() == Some(name));
        own.any(|leaf| leaf.state >= pool::VdevState::Degraded)
    }

    /// Tells the pool of disks that work again.
    fn care(&mut self) {
        if self.command.is_some() {
            return;
        }
        let is_back = |condition| {
            matches!(
                condition,
                Condition::Mending { .. } | Condition::Failed(Trouble::Offline)
            )
        };
        let mut back = self.disks.which(is_back);
        back.retain(|name| !self.is_in_use(name));
        let clears = self.disks.to_clear();
        if let Some((name, mended)) = self.rng.pick(&clears)
            && (back.is_empty() || self.rng.percent(50))
        {
            let device = name.clone();
            self.start(format!("clear {name}"), |pool| async move {
                pool.clear(Some(&device)).await
            });
            if let Some(command) = &mut self.command {
                command.clears.push((name, mended));
            }
            return;
        }
        let Some(name) = self.rng.pick(&back) else {
            return;
        };
        let is_offline = self.disks.condition(&name) == Condition::Failed(Trouble::Offline);
        if is_offline {
            self.disks.mends(&name);
        }
        let how = self.rng.below(3);
        if is_offline || how == 0 {
            self.start(format!("online {name}"), |pool| async move {
                pool.online(&name, false).await.map(|_| ())
            });
        } else {
            self.start(format!("clear {name}"), |pool| async move {
                let device = (how == 1).then_some(name.as_str());
                pool.clear(device).await
            });
        }
    }

    /// Replaces a dead disk, or just any.
    fn replace(&mut self) {
        if self.command.is_some() {
            return;
        }
        let mut targets = self.disks.to_replace();
        if targets.is_empty() || self.rng.percent(20) {
            targets = self.disks.which(|_| true);
        }
        targets.retain(|name| !self.disks.is_spare(name));
        let Some(target) = self.rng.pick(&targets) else {
            return;
        };
        let new = self.disks.add();
        self.disks.count("replace");
        self.start(format!("replace {target} by {new}"), |pool| async move {
            pool.attach(&target, &spec(&new, true)).await
        });
    }

    /// Makes a mirror wider or narrower.
    fn widen(&mut self) {
        if self.command.is_some() {
            return;
        }
        let mirrors = self.disks.tops().iter().filter(|top| top.kind == "mirror");
        let mirrors: Vec<_> = mirrors.cloned().collect();
        let Some(mirror) = self.rng.pick(&mirrors) else {
            return;
        };
        let plain: Vec<String> = mirror
            .children
            .iter()
            .filter(|child| child.children.is_empty())
            .filter_map(|child| child.path.clone())
            .collect();
        let Some(target) = self.rng.pick(&plain) else {
            return;
        };
        if mirror.children.len() < 4 && self.rng.percent(60) {
            let new = self.disks.add();
            self.disks.count("attach");
            self.start(format!("attach {new} to {target}"), |pool| async move {
                pool.attach(&target, &spec(&new, false)).await
            });
        } else if mirror.children.len() > 2 && self.disks.may_fail(&target) {
            self.disks.is_changing = true;
            self.disks.count("detach");
            self.start(format!("detach {target}"), |pool| async move {
                pool.detach(&target).await
            });
        }
    }

    fn scrub(&mut self) {
        if self.command.is_some() {
            return;
        }
        let command = match self.rng.below(8) {
            0 => ScrubCommand::Pause,
            1 => ScrubCommand::Stop,
            _ => ScrubCommand::Start,
        };
        self.disks.count("scrub");
        self.start(format!("scrub {command:?}"), |pool| async move {
            pool.scans().scrub(command).await
        });
    }

    /// A disk that was replaced is plugged in again.
    fn stranger(&mut self) {
        let used = self.disks.which(|_| true);
        let mut strangers = self.sim.disk_names();
        strangers.retain(|name| !used.contains(name));
        if let Some(name) = self.rng.pick(&strangers)
            && let Some(disk) = self.disks.disk(&name)
            && self.command.is_none()
        {
            disk.clear_faults();
            disk.release();
            disk.set_gone(false);
            self.disks.tell(format_args!("{name} is plugged in again"));
        }
    }
}
