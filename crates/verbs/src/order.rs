//! Putting things behind those that they need.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The numbers of things in an order in which each comes behind those that it needs (`needs`, by
/// number), and otherwise as early as its number lets it. Where some need each other in a circle,
/// the first of them comes all the same.
pub fn behind_what_they_need(needs: &[Vec<usize>]) -> Vec<usize> {
    let mut needed_by: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
    let mut lacks: Vec<usize> = Vec::with_capacity(needs.len());
    for (at, needs) in needs.iter().enumerate() {
        for need in needs {
            needed_by[*need].push(at);
        }
        lacks.push(needs.len());
    }
    let is_ready = |at: &usize| needs[*at].is_empty();
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..needs.len()).filter(is_ready).map(Reverse).collect();
    let mut is_out = vec![false; needs.len()];
    let mut out = Vec::with_capacity(needs.len());
    let mut first = 0;
    loop {
        let at = match ready.pop() {
            Some(Reverse(at)) => at,
            None => {
                while is_out.get(first) == Some(&true) {
                    first += 1;
                }
                if first == needs.len() {
                    return out;
                }
                first
            }
        };
        if std::mem::replace(&mut is_out[at], true) {
            continue;
        }
        out.push(at);
        for other in &needed_by[at] {
            lacks[*other] -= 1;
            if lacks[*other] == 0 && !is_out[*other] {
                ready.push(Reverse(*other));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_needs_nothing_keeps_its_place() {
        assert_eq!(behind_what_they_need(&[]), [0; 0]);
        let none = vec![Vec::new(); 5];
        assert_eq!(behind_what_they_need(&none), [0, 1, 2, 3, 4]);
        let some = [vec![3], vec![], vec![0], vec![4], vec![]];
        assert_eq!(behind_what_they_need(&some), [1, 4, 3, 0, 2]);
    }

    #[test]
    fn a_circle_is_cut_at_its_first() {
        let circle = [vec![], vec![3], vec![1], vec![2], vec![3]];
        assert_eq!(behind_what_they_need(&circle), [0, 1, 2, 3, 4]);
        assert_eq!(behind_what_they_need(&[vec![0], vec![0, 0]]), [0, 1]);
    }

    proptest! {
        #[test]
        fn each_comes_once_and_behind_what_it_needs(
            count in 1..60usize,
            pairs in prop::collection::vec((0..60usize, 0..60usize), 0..150),
            order in prop::collection::vec(any::<u32>(), 60),
        ) {
            // Needs go up by `order`, so that there is no circle.
            let mut needs = vec![Vec::new(); count];
            for (one, other) in pairs {
                let (one, other) = (one % count, other % count);
                if (order[other], other) < (order[one], one) {
                    needs[one].push(other);
                }
            }
            let out = behind_what_they_need(&needs);
            let mut place = vec![usize::MAX; count];
            for (at, one) in out.iter().enumerate() {
                prop_assert_eq!(place[*one], usize::MAX);
                place[*one] = at;
            }
            prop_assert_eq!(out.len(), count);
            for (one, needs) in needs.iter().enumerate() {
                prop_assert!(needs.iter().all(|need| place[*need] < place[one]));
            }
        }
    }
}
