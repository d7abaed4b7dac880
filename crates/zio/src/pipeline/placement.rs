//! Where blocks go, and writing them there (`zio_dva_allocate`, module/zfs/zio.c).

use device::BoxFuture;
use std::sync::Arc;

use bytes::Bytes;
use format::{BlockPointer, Dva, Txg};
use futures::future::join_all;
use vdev::{AllocClass, IoContext, VdevTree, WriteFailure};

use super::WritePolicy;
use super::gang_write::{GangPlanner, Piece, Places};
use super::suspension::Suspension;
use super::turns::Turn;
use crate::alloc::{Allocator, Request};
use crate::error::ZioError;

/// How often a block that cannot be written goes elsewhere before the pool is suspended.
const ELSEWHERE_MAX: usize = 2;

/// Where a block goes.
struct Choice {
    places: Places,
    /// What is still to be written.
    pieces: Vec<Piece>,
    /// What was.
    written: Vec<Dva>,
    /// It was allocated for this, and nobody else knows of it.
    is_new: bool,
}

impl Choice {
    /// Whether the devices work to which something could not be written.
    fn is_on_usable(&self, placement: &Placement) -> bool {
        self.pieces.iter().all(|piece| {
            let top = placement.tree.top(piece.dva.vdev());
            top.is_some_and(|top| top.state().0.is_usable())
        })
    }

    /// Frees what was allocated.
    fn give_back(self, placement: &Placement, txg: Txg) {
        if self.is_new {
            let pieces = self.pieces.iter().map(|piece| piece.dva);
            for dva in pieces.chain(self.written) {
                placement.allocator.unallocate(txg, &dva);
            }
        }
    }
}

/// Allocates space for blocks and writes them, until every copy is written.
pub(super) struct Placement {
    pub(super) tree: Arc<VdevTree>,
    pub(super) allocator: Arc<Allocator>,
    pub(super) suspension: Arc<Suspension>,
    pub(super) gangs: GangPlanner,
}

impl Placement {
    /// The class that a block of `stored_bytes` prefers (`spa_preferred_class`,
    /// module/zfs/spa_misc.c): small ones the special class, of which they leave a part to
    /// metadata.
    fn class_of(&self, stored_bytes: usize, policy: &WritePolicy) -> AllocClass {
        let small = policy.class == AllocClass::Normal
            && policy.special_small_bytes > 0
            && stored_bytes <= policy.special_small_bytes as usize;
        if small && self.allocator.has_special_room() {
            AllocClass::Special
        } else {
            policy.class
        }
    }

    /// Where a block goes: `old`'s places if they suit, else new ones, in pieces if need be.
    fn choose<'a>(
        &'a self,
        txg: Txg,
        old: Option<&'a BlockPointer>,
        stored: &'a Bytes,
        policy: &'a WritePolicy,
        gang: bool,
    ) -> BoxFuture<'a, Result<Choice, ZioError>> {
        Box::pin(async move {
            let copies = usize::from(policy.copies.clamp(1, 3));
            let in_place = old.filter(|old| {
                !old.is_hole()
                    && !old.is_embedded()
                    && old.logical_birth() == txg
                    && old.physical_birth() == txg
                    && !old.is_dedup()
                    && old.psize_bytes() == stored.len() as u64
                    && (old.is_gang() || old.copies() == copies)
            });
            if let Some(old) = in_place.filter(|old| old.is_gang()) {
                let (places, pieces) = self.gangs.plan_rewrite(txg, old, stored, policy).await?;
                return Ok(Choice {
                    places,
                    pieces,
                    written: Vec::new(),
                    is_new: false,
                });
            }
            let places = match in_place {
                Some(old) => [old.dva(0), old.dva(1), old.dva(2)],
                None => {
                    let request = Request {
                        txg,
                        psize_bytes: stored.len() as u64,
                        copies,
                        class: self.class_of(stored.len(), policy),
                        fallback: true,
                        gang: false,
                    };
                    match self.allocator.allocate(&request).await {
                        Ok(places) => places,
                        Err(ZioError::NoSpace { .. }) if gang => {
                            let (places, pieces) = self.gangs.plan(txg, stored, policy).await?;
                            return Ok(Choice {
                                places,
                                pieces,
                                written: Vec::new(),
                                is_new: true,
                            });
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            let pieces = places
                .iter()
                .flatten()
                .map(|dva| Piece {
                    dva: *dva,
                    data: stored.clone(),
                })
                .collect();
            Ok(Choice {
                places,
                pieces,
                written: Vec::new(),
                is_new: in_place.is_none(),
            })
        })
    }

    /// Writes a block where it should go. Where that fails though its device works it goes
    /// elsewhere; then the pool is suspended, and what is left is written when it resumes
    /// (`zio_done`: `ZIO_REEXECUTE_NOW`). In pieces only with `gang`. It is chosen in its turn.
    pub(super) async fn write(
        &self,
        txg: Txg,
        old: Option<&BlockPointer>,
        stored: &Bytes,
        policy: &WritePolicy,
        gang: bool,
        mut turn: Option<Turn>,
    ) -> Result<Places, ZioError> {
        if let Some(turn) = &mut turn {
            turn.come().await;
        }
        let io = IoContext {
            bookmark: policy.bookmark,
            priority: policy.priority,
            birth: txg,
            ..IoContext::default()
        };
        let mut is_retried = false;
        let mut choice = loop {
            match self.choose(txg, old, stored, policy, gang).await {
                // A metaslab whose space map could not be read once is set aside. Before anything
                // is said to be full, and before the pool waits, it is tried again.
                Err(ZioError::NoSpace { .. })
                    if gang && !is_retried && self.allocator.has_broken() =>
                {
                    is_retried = true;
                    self.allocator.retry_broken();
                }
                // There may be space on what does not work, such as a device that was cleared too
                // soon.
                Err(ZioError::NoSpace { .. }) if self.tree.topology().lacks_tops() => {
                    let reason = "devices that new blocks need do not work".to_owned();
                    self.suspension
                        .suspend_and_wait(ZioError::Suspended { reason })
                        .await?;
                }
                // Or in metaslabs that could not be loaded, of a device whose reads failed for a
                // while. The txg cannot be given up.
                Err(ZioError::NoSpace { .. }) if gang && self.allocator.has_broken() => {
                    let reason = "there is room only where space maps cannot be read".to_owned();
                    self.suspension
                        .suspend_and_wait(ZioError::Suspended { reason })
                        .await?;
                    self.allocator.retry_broken();
                }
                chosen => break chosen?,
            }
        };
        drop(turn);
        // Places that were given up stay taken meanwhile, so that none is chosen again.
        let mut bad = Vec::new();
        let result = loop {
            let Err(failure) = self.write_pieces(&mut choice, &io).await else {
                break Ok(choice.places);
            };
            if failure.halted {
                match self.suspension.wait_resumed().await {
                    Ok(()) => continue,
                    Err(error) => break Err(error),
                }
            }
            let reason = failure.cause;
            if bad.len() < ELSEWHERE_MAX && choice.is_on_usable(self) {
                match self.choose(txg, None, stored, policy, gang).await {
                    Ok(other) => {
                        tracing::warn!(
                            reason,
                            "a block cannot be written there; it goes elsewhere"
                        );
                        bad.push(std::mem::replace(&mut choice, other));
                        continue;
                    }
                    // Nowhere else.
                    Err(ZioError::NoSpace { .. }) => {}
                    Err(error) => break Err(error),
                }
            }
            bad.drain(..).for_each(|choice| choice.give_back(self, txg));
            self.suspension.suspend(ZioError::Suspended { reason });
            if let Err(error) = self.suspension.wait_resumed().await {
                break Err(error);
            }
        };
        bad.drain(..).for_each(|choice| choice.give_back(self, txg));
        result
    }

    /// Writes all pieces that are left. Tells why, if some fail.
    async fn write_pieces(&self, choice: &mut Choice, io: &IoContext) -> Result<(), WriteFailure> {
        let pieces = std::mem::take(&mut choice.pieces);
        let results = join_all(pieces.iter().map(|piece| self.write_piece(piece, io))).await;
        let mut failure: Option<WriteFailure> = None;
        for (piece, result) in pieces.into_iter().zip(results) {
            match result {
                Ok(()) => choice.written.push(piece.dva),
                Err(error) => {
                    failure = Some(WriteFailure {
                        halted: error.halted || failure.is_some_and(|failure| failure.halted),
                        cause: format!("{}: {}", piece.dva, error.cause),
                    });
                    choice.pieces.push(piece);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn write_piece(&self, piece: &Piece, io: &IoContext) -> Result<(), WriteFailure> {
        let dva = &piece.dva;
        self.tree
            .write_block(dva.vdev(), dva.offset_bytes(), piece.data.clone(), io)
            .await
    }
}
