//! The flash translation layer: where pages are, which blocks are erased when.
//!
//! Page-mapped, with greedy garbage collection: each die collects the block of its own that has the
//! fewest valid pages, step by step as the host writes, into a block apart from what the host
//! writes. Free blocks are used by how seldom they were erased. Data that never moves is not moved
//! to level wear.

use std::collections::BTreeSet;

/// No page.
const NONE: u32 = u32::MAX;
/// Pages of the map that are allocated together.
const CHUNK_PAGES: usize = 1024;
/// A die collects while it has fewer free blocks than this.
const FREE_BLOCKS_LOW: usize = 3;
/// Blocks of a die that never hold its share of the data: free, open, being collected.
pub(super) const WORKING_BLOCKS: u64 = 6;

/// What the flash did for one page of the host's, or for a step of collection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) die: usize,
    /// Pages that were moved, each read and programmed.
    pub(super) moved: u64,
    pub(super) erased: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    Open,
    /// All its pages are programmed.
    Closed,
    /// Its valid pages are being moved.
    Victim,
}

#[derive(Debug, Clone)]
struct Block {
    /// The page of the host's that each programmed page holds, or held.
    holds: Vec<u32>,
    valid: u32,
    erases: u32,
    use_: Use,
}

#[derive(Debug, Clone, Default)]
struct Die {
    blocks: Vec<Block>,
    /// Blocks that were erased, by how often.
    erased: BTreeSet<(u32, u32)>,
    /// Closed blocks by how much is valid in them.
    closed: BTreeSet<(u32, u32)>,
    open: Option<u32>,
    open_for_moves: Option<u32>,
    victim: Option<Victim>,
    valid: u64,
}

#[derive(Debug, Clone)]
struct Victim {
    block: u32,
    next_page: u32,
    /// Pages to look at for each page that the host writes.
    step: u32,
}

/// Map and blocks of all dies.
#[derive(Debug, Clone)]
pub(super) struct Ftl {
    /// Physical page of each of the host's, in chunks that were ever written.
    map: Vec<Option<Box<[u32]>>>,
    dies: Vec<Die>,
    pages_per_block: u32,
    blocks_per_die: u32,
    next_die: usize,
    pub(super) erases: u64,
    pub(super) moves: u64,
}

impl Ftl {
    pub(super) fn new(pages: u64, dies: usize, blocks_per_die: u32, pages_per_block: u32) -> Self {
        let physical = dies as u64 * u64::from(blocks_per_die) * u64::from(pages_per_block);
        assert!(physical < u64::from(NONE), "the model is for up to 16 TiB");
        Ftl {
            map: vec![None; pages.div_ceil(CHUNK_PAGES as u64) as usize],
            dies: vec![Die::default(); dies],
            pages_per_block,
            blocks_per_die,
            next_die: 0,
            erases: 0,
            moves: 0,
        }
    }

    fn physical(&self, die: usize, block: u32, page: u32) -> u32 {
        (die as u32 * self.blocks_per_die + block) * self.pages_per_block + page
    }

    fn split(&self, physical: u32) -> (usize, u32) {
        let block = physical / self.pages_per_block;
        let die = block / self.blocks_per_die;
        (die as usize, block % self.blocks_per_die)
    }

    fn mapped(&self, page: u32) -> u32 {
        let chunk = self.map[page as usize / CHUNK_PAGES].as_ref();
        chunk.map_or(NONE, |chunk| chunk[page as usize % CHUNK_PAGES])
    }

    fn set(&mut self, page: u32, physical: u32) {
        let chunk = &mut self.map[page as usize / CHUNK_PAGES];
        if chunk.is_none() && physical == NONE {
            return;
        }
        let chunk = chunk.get_or_insert_with(|| vec![NONE; CHUNK_PAGES].into());
        chunk[page as usize % CHUNK_PAGES] = physical;
    }

    /// The die that has a page, if it was ever written.
    pub(super) fn die_of(&self, page: u64) -> Option<usize> {
        match self.mapped(page as u32) {
            NONE => None,
            physical => Some(self.split(physical).0),
        }
    }

    /// Makes what a page held worthless.
    pub(super) fn unmap(&mut self, page: u64) {
        let page = page as u32;
        let physical = self.mapped(page);
        if physical == NONE {
            return;
        }
        self.set(page, NONE);
        let (die, block_index) = self.split(physical);
        let die = &mut self.dies[die];
        let block = &mut die.blocks[block_index as usize];
        if block.use_ == Use::Closed {
            die.closed.remove(&(block.valid, block_index));
            die.closed.insert((block.valid - 1, block_index));
        }
        block.valid -= 1;
        die.valid -= 1;
    }

    /// The same for a range of pages.
    pub(super) fn unmap_all(&mut self, pages: std::ops::Range<u64>) {
        let mut page = pages.start;
        while page < pages.end {
            let chunk = page as usize / CHUNK_PAGES;
            if self.map[chunk].is_some() {
                self.unmap(page);
                page += 1;
            } else {
                page = (chunk as u64 + 1) * CHUNK_PAGES as u64;
            }
        }
    }

    /// Bytes of memory that the maps take.
    pub(super) fn map_bytes(&self) -> u64 {
        let chunks = self.map.iter().flatten().count() * CHUNK_PAGES;
        let blocks = self.dies.iter().flat_map(|die| &die.blocks);
        let held: usize = blocks.map(|block| block.holds.capacity()).sum();
        (self.map.len() * 16 + (chunks + held) * 4) as u64
    }

    pub(super) fn most_erases(&self) -> u32 {
        let blocks = self.dies.iter().flat_map(|die| &die.blocks);
        blocks.map(|block| block.erases).max().unwrap_or(0)
    }

    /// Pages that hold something.
    #[cfg(test)]
    pub(super) fn valid(&self) -> u64 {
        self.dies.iter().map(|die| die.valid).sum()
    }

    /// Whether a page that was written is where the map says.
    #[cfg(test)]
    pub(super) fn is_consistent(&self, page: u64) -> bool {
        let physical = self.mapped(page as u32);
        if physical == NONE {
            return true;
        }
        let (die, block) = self.split(physical);
        let at = physical % self.pages_per_block;
        let holds = &self.dies[die].blocks[block as usize].holds;
        holds.get(at as usize) == Some(&(page as u32))
    }

    /// Programs a page of the host's, on the next die that has room for it.
    pub(super) fn write(&mut self, page: u64) -> Work {
        self.unmap(page);
        let room = u64::from(self.blocks_per_die) - WORKING_BLOCKS + 1;
        let room = room * u64::from(self.pages_per_block);
        let count = self.dies.len();
        let next = (0..count).map(|step| (self.next_die + step) % count);
        // The disk as a whole has room, so that one of its dies has.
        let die = { next }
            .find(|die| self.dies[*die].valid < room)
            .unwrap_or(self.next_die);
        self.next_die = (die + 1) % count;
        let mut work = Work {
            die,
            ..Work::default()
        };
        if self.free_blocks(die) < FREE_BLOCKS_LOW || self.dies[die].victim.is_some() {
            self.collect(&mut work);
        }
        while self.dies[die].open.is_none() && self.free_blocks(die) < 2 {
            // The last free block is for moves: without it nothing is ever freed.
            if !self.collect(&mut work) {
                break;
            }
        }
        self.program(die, page as u32, false);
        work
    }

    fn free_blocks(&self, die: usize) -> usize {
        let die = &self.dies[die];
        let fresh = self.blocks_per_die as usize - die.blocks.len();
        fresh + die.erased.len()
    }

    fn program(&mut self, die_index: usize, page: u32, is_move: bool) {
        let pages_per_block = self.pages_per_block;
        let die = &mut self.dies[die_index];
        let open = if is_move {
            die.open_for_moves
        } else {
            die.open
        };
        let block_index = match open {
            Some(block) => block,
            None => die.take_block(self.blocks_per_die, pages_per_block),
        };
        let block = &mut die.blocks[block_index as usize];
        let at = block.holds.len() as u32;
        block.holds.push(page);
        block.valid += 1;
        die.valid += 1;
        let mut open = Some(block_index);
        if at + 1 == pages_per_block {
            block.use_ = Use::Closed;
            die.closed.insert((block.valid, block_index));
            open = None;
        }
        if is_move {
            die.open_for_moves = open;
        } else {
            die.open = open;
        }
        let physical = self.physical(die_index, block_index, at);
        self.set(page, physical);
    }

    /// A step of garbage collection on a die. False when there is nothing to collect.
    fn collect(&mut self, work: &mut Work) -> bool {
        let die = &mut self.dies[work.die];
        let pages = self.pages_per_block;
        if die.victim.is_none() {
            let Some(&(valid, block)) = die.closed.first() else {
                return false;
            };
            if valid >= pages {
                return false;
            }
            die.closed.remove(&(valid, block));
            die.blocks[block as usize].use_ = Use::Victim;
            die.victim = Some(Victim {
                block,
                next_page: 0,
                // The host gains what is not valid, so that this much has to be looked at for each
                // page of its.
                step: pages.div_ceil(pages - valid),
            });
        }
        let Some(mut victim) = die.victim.take() else {
            return false;
        };
        let end = (victim.next_page + victim.step).min(pages);
        for at in victim.next_page..end {
            let page = self.dies[work.die].blocks[victim.block as usize].holds[at as usize];
            if self.mapped(page) == self.physical(work.die, victim.block, at) {
                self.unmap(u64::from(page));
                self.program(work.die, page, true);
                work.moved += 1;
                self.moves += 1;
            }
        }
        let die = &mut self.dies[work.die];
        victim.next_page = end;
        if end < pages {
            die.victim = Some(victim);
            return true;
        }
        let block = &mut die.blocks[victim.block as usize];
        block.holds.clear();
        block.erases += 1;
        block.use_ = Use::Free;
        die.erased.insert((block.erases, victim.block));
        self.erases += 1;
        work.erased += 1;
        true
    }
}

impl Die {
    /// A block to write to: one that was never used, or the one that was erased least often.
    fn take_block(&mut self, blocks_per_die: u32, pages_per_block: u32) -> u32 {
        if self.blocks.len() < blocks_per_die as usize {
            self.blocks.push(Block {
                holds: Vec::with_capacity(pages_per_block as usize),
                valid: 0,
                erases: 0,
                use_: Use::Open,
            });
            return self.blocks.len() as u32 - 1;
        }
        let (_, block) = (self.erased.pop_first()).expect("collection keeps a block free");
        self.blocks[block as usize].use_ = Use::Open;
        block
    }
}
