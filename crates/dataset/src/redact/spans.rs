//! Ranges of blocks, and what several sequences of them have in common (`perform_thread_merge`,
//! module/zfs/dmu_redact.c).

/// A block: its object and number.
pub(crate) type Place = (u64, u64);

/// Blocks from one on up to another, which may be of a later object; both belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: Place,
    pub(crate) last: Place,
}

impl Span {
    /// All blocks of some objects.
    pub(crate) fn objects(first: u64, last: u64) -> Self {
        Self {
            first: (first, 0),
            last: (last, u64::MAX),
        }
    }

    /// Some blocks of an object.
    pub(crate) fn blocks(object: u64, first: u64, last: u64) -> Self {
        Self {
            first: (object, first),
            last: (object, last),
        }
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        let (object, block) = self.last;
        match block {
            u64::MAX => object.checked_add(1).map(|object| (object, 0)) == Some(next.first),
            block => next.first == (object, block + 1),
        }
    }
}

/// Appends a range; two that meet become one.
pub(crate) fn push(spans: &mut Vec<Span>, next: Span) {
    match spans.last_mut() {
        Some(last) if last.is_followed_by(&next) => last.last = next.last,
        _ => spans.push(next),
    }
}

/// What the ranges at the heads of some sequences have in common, and which of them is done: the
/// one that ends first. `None` where one of the sequences has ended, as nothing follows then.
pub(crate) fn common(heads: &[Option<Span>]) -> Option<(Option<Span>, usize)> {
    let mut first = (0, 0);
    let mut done: Option<(usize, Place)> = None;
    for (number, head) in heads.iter().enumerate() {
        let head = (*head)?;
        first = first.max(head.first);
        if done.is_none_or(|(_, last)| head.last < last) {
            done = Some((number, head.last));
        }
    }
    let (number, last) = done?;
    Some(((first <= last).then_some(Span { first, last }), number))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Objects and blocks of the test.
    const LIMIT: u64 = 6;

    fn places(spans: &[Span]) -> BTreeSet<Place> {
        let all = (0..LIMIT).flat_map(|object| (0..LIMIT).map(move |block| (object, block)));
        all.filter(|place| {
            let mut spans = spans.iter();
            spans.any(|span| span.first <= *place && *place <= span.last)
        })
        .collect()
    }

    fn merged(sequences: &[Vec<Span>]) -> Vec<Span> {
        let mut rest: Vec<_> = sequences
            .iter()
            .map(|spans| spans.iter().copied())
            .collect();
        let mut heads: Vec<_> = rest.iter_mut().map(Iterator::next).collect();
        let mut out = Vec::new();
        while let Some((found, done)) = common(&heads) {
            if let Some(span) = found {
                push(&mut out, span);
            }
            heads[done] = rest[done].next();
        }
        out
    }

    /// Goal: what comes out is what a comparison block by block says. Method: random sequences.
    #[test]
    fn what_is_common_is_in_all() {
        let mut state = 7u64;
        let mut next = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let count = 1 + next(4) as usize;
            let sequences: Vec<Vec<Span>> = (0..count)
                .map(|_| {
                    let (mut spans, mut at) = (Vec::new(), (next(2), next(LIMIT)));
                    while at.0 < LIMIT {
                        let last = match next(3) {
                            0 => (at.0 + next(2), u64::MAX),
                            _ => (at.0, at.1 + next(3)),
                        };
                        push(&mut spans, Span { first: at, last });
                        at = match last.1 {
                            u64::MAX => (last.0 + 1, next(LIMIT)),
                            block => (last.0, block + 1 + next(3)),
                        };
                        if at.1 >= LIMIT {
                            at = (at.0 + 1, next(2));
                        }
                    }
                    spans
                })
                .collect();
            let expected = sequences
                .iter()
                .map(|spans| places(spans))
                .reduce(|a, b| &a & &b)
                .expect("one at least");
            let out = merged(&sequences);
            assert_eq!(places(&out), expected, "{sequences:?}");
            let is_sorted = out.windows(2).all(|pair| pair[0].last < pair[1].first);
            assert!(is_sorted, "{out:?}");
        }
    }

    #[test]
    fn ranges_that_meet_become_one() {
        let mut spans = Vec::new();
        for span in [
            Span::blocks(3, 0, 4),
            Span::blocks(3, 5, u64::MAX),
            Span::objects(4, 9),
            Span::blocks(10, 0, 0),
            Span::blocks(10, 2, 2),
        ] {
            push(&mut spans, span);
        }
        let whole = Span {
            first: (3, 0),
            last: (10, 0),
        };
        assert_eq!(spans, [whole, Span::blocks(10, 2, 2)]);
    }
}
