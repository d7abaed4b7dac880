//! Memory for keys: locked, so that it is never swapped out; not in core dumps, nor in child
//! processes; overwritten with zeros when it is given back.
//!
//! Pages are mapped for this alone, as locking works on whole pages, and holds nothing else back
//! there. Each is cut into slots. Where the system refuses to lock a page (`RLIMIT_MEMLOCK` of an
//! ordinary user: often 8 MiB, some thousand keys), it is used unlocked: [`is_memory_locked`]
//! tells.
//!
//! A mutex is held while slots are looked for, never while a key is used.

use std::alloc::{Layout, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use zeroize::Zeroize;

/// Bytes that are mapped and locked at once. Where the system's pages are bigger, it takes a whole
/// one for each.
const PAGE_BYTES: usize = 4096;
/// Slots of a page: as many as a word has bits.
const SLOTS: usize = u64::BITS as usize;
/// Bytes of a slot, and what it is aligned to.
const SLOT_BYTES: usize = PAGE_BYTES / SLOTS;
/// Stack that work on a key takes at most, in words.
const STACK_WORDS: usize = 2048;

struct Page {
    start: NonNull<u8>,
    /// A bit for each slot that is taken.
    taken: u64,
    is_locked: bool,
}

// SAFETY: it owns the mapping, which any thread may use.
unsafe impl Send for Page {}

static PAGES: Mutex<Vec<Page>> = Mutex::new(Vec::new());

fn pages() -> MutexGuard<'static, Vec<Page>> {
    PAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether all memory that keys are in is locked, and a key more can be.
pub fn is_memory_locked() -> bool {
    let _one_more = Locked::new(0u8);
    pages().iter().all(|page| page.is_locked)
}

/// The bits of neighbouring slots from the first one on.
const fn bits(slots: usize) -> u64 {
    u64::MAX >> (SLOTS - slots)
}

impl Page {
    fn map() -> Option<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping where the kernel likes, which touches no memory that
        // anybody has.
        let start = unsafe { mmap_anonymous(null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE) };
        let start = start.ok()?;
        for advice in [Advice::LinuxDontDump, Advice::LinuxDontFork] {
            // SAFETY: this advice leaves what is there as it is. A kernel that does not know it
            // makes no difference to who uses the memory.
            let _ = unsafe { madvise(start, PAGE_BYTES, advice) };
        }
        // SAFETY: it was mapped with this length just now.
        let is_locked = unsafe { mlock(start, PAGE_BYTES) }.is_ok();
        Some(Self {
            start: NonNull::new(start.cast())?,
            taken: 0,
            is_locked,
        })
    }

    fn take(&mut self, slots: usize) -> Option<NonNull<u8>> {
        let first = (0..=SLOTS - slots).find(|first| self.taken & (bits(slots) << first) == 0)?;
        self.taken |= bits(slots) << first;
        // SAFETY: within the page.
        Some(unsafe { self.start.add(first * SLOT_BYTES) })
    }

    /// The slot that begins there, if it is one of this page's.
    fn slot_at(&self, at: NonNull<u8>) -> Option<usize> {
        let offset = at.addr().get().checked_sub(self.start.addr().get())?;
        (offset < PAGE_BYTES).then_some(offset / SLOT_BYTES)
    }
}

/// Neighbouring slots. Their memory is zero, or has what the one before was dropped with: nothing.
fn take(slots: usize) -> NonNull<u8> {
    let mut pages = pages();
    if let Some(found) = pages.iter_mut().find_map(|page| page.take(slots)) {
        return found;
    }
    let mapped = Page::map().and_then(|mut page| Some((page.take(slots)?, page)));
    let Some((found, page)) = mapped else {
        handle_alloc_error(Layout::new::<[u8; PAGE_BYTES]>())
    };
    pages.push(page);
    found
}

/// Gives slots back, and their page where they were its last ones.
fn give_back(at: NonNull<u8>, slots: usize) {
    let mut pages = pages();
    let found = pages
        .iter_mut()
        .enumerate()
        .find_map(|(index, page)| Some((index, page.slot_at(at)?, page)));
    let Some((index, slot, page)) = found else {
        return;
    };
    page.taken &= !(bits(slots) << slot);
    if page.taken == 0 {
        let page = pages.swap_remove(index);
        // SAFETY: mapped with this length, and no slot of it is anybody's. Where unmapping fails
        // (the process has too many mappings), the memory stays lost, zero.
        let _ = unsafe { munmap(page.start.as_ptr().cast(), PAGE_BYTES) };
    }
}

/// A key, or what was made of one, in locked memory.
pub(super) struct Locked<T> {
    value: NonNull<T>,
}

// SAFETY: it owns its value as a box does.
unsafe impl<T: Send> Send for Locked<T> {}
// SAFETY: likewise.
unsafe impl<T: Sync> Sync for Locked<T> {}

impl<T> Locked<T> {
    /// Slots of a value. They fit: another type does not compile.
    const SLOTS: usize = {
        assert!(align_of::<T>() <= SLOT_BYTES);
        assert!(size_of::<T>() > 0 && size_of::<T>() <= PAGE_BYTES);
        size_of::<T>().div_ceil(SLOT_BYTES)
    };

    /// Moves a value there. What is secret of it was on the stack until then: [`clear_stack`].
    pub(super) fn new(value: T) -> Self {
        let at = take(Self::SLOTS).cast::<T>();
        // SAFETY: the slots are big enough, aligned, and nobody else's.
        unsafe { at.write(value) };
        Self { value: at }
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written by `new`, and there until it is dropped.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: likewise, and who has it alone has its value alone.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        let bytes = self.value.cast::<MaybeUninit<u8>>();
        // SAFETY: the value is dropped once, here, and not used any more. Then its slots are bytes
        // that may be anything.
        let bytes = unsafe {
            self.value.drop_in_place();
            NonNull::slice_from_raw_parts(bytes, Self::SLOTS * SLOT_BYTES).as_mut()
        };
        bytes.zeroize();
        give_back(self.value.cast(), Self::SLOTS);
    }
}

/// Overwrites the stack below the caller, where functions that have returned may have left parts of
/// keys: round keys, for one, are computed there and then moved, and the first of them are the key.
#[inline(never)]
pub(super) fn clear_stack() {
    let mut below = [0u64; STACK_WORDS];
    below.zeroize();
    std::hint::black_box(&mut below);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[test]
    fn values_are_apart_aligned_and_dropped() {
        let values: Vec<_> = (0..200u64)
            .map(|number| Locked::new([number; 5]))
            .chain((0..3).map(|number| Locked::new([number; 5])))
            .collect();
        for (number, value) in values.iter().take(200).enumerate() {
            assert_eq!(**value, [number as u64; 5]);
            assert_eq!(value.value.addr().get() % SLOT_BYTES, 0);
        }
        let counted = std::sync::Arc::new(());
        let big = Locked::new((counted.clone(), [7u8; 4000]));
        assert_eq!(big.1[3999], 7);
        assert_eq!(std::sync::Arc::strong_count(&counted), 2);
        drop(big);
        assert_eq!(std::sync::Arc::strong_count(&counted), 1);
    }

    #[test]
    fn what_was_dropped_is_zero_while_its_page_is_there() {
        let stays = Locked::new([1u8; SLOT_BYTES]);
        let mut goes = Locked::new([0u8; 2 * SLOT_BYTES]);
        goes.fill(0xa5);
        let at = goes.value.addr().get() as u64;
        let is_same_page =
            at / PAGE_BYTES as u64 == stays.value.addr().get() as u64 / PAGE_BYTES as u64;
        drop(goes);
        let mut found = [0; 2 * SLOT_BYTES];
        let memory = File::open("/proc/self/mem").unwrap();
        // Other tests may have given its page back.
        match memory.read_exact_at(&mut found, at) {
            Ok(()) => assert_ne!(found, [0xa5; 2 * SLOT_BYTES]),
            Err(error) => assert!(!is_same_page, "{error}"),
        }
    }

    #[test]
    fn pages_are_locked_and_left_out_of_dumps() {
        let key = Locked::new([3u8; 32]);
        let address = key.value.addr().get();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_inside = false;
        let flags = maps.lines().find_map(|line| {
            let range = line
                .split_whitespace()
                .next()
                .and_then(|range| range.split_once('-'));
            if let Some((begin, end)) = range
                && let (Ok(begin), Ok(end)) = (
                    usize::from_str_radix(begin, 16),
                    usize::from_str_radix(end, 16),
                )
            {
                is_inside = (begin..end).contains(&address);
            }
            line.strip_prefix("VmFlags:").filter(|_| is_inside)
        });
        let flags: Vec<&str> = flags.unwrap().split_whitespace().collect();
        assert!(flags.contains(&"dd") && flags.contains(&"dc"), "{flags:?}");
        let is_locked = pages()
            .iter()
            .any(|page| page.slot_at(key.value.cast()).is_some() && page.is_locked);
        assert_eq!(flags.contains(&"lo"), is_locked, "{flags:?}");
    }
}
