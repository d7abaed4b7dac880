//! Turns: who has answered much in a row lets others go on.

/// What a connection may do before others get their turn.
///
/// A connection whose requests are all answered where they are read, and which has the next one
/// there each time, would never wait: other tasks of its thread would wait for it, sockets too.
#[derive(Debug)]
pub struct Turn {
    count: u32,
    most: u32,
}

impl Turn {
    /// Turns of `most` requests, or whatever is counted.
    pub fn of(most: u32) -> Self {
        Self { count: 0, most }
    }

    /// Counts one more. True when that was the turn's last one: others are to have theirs now, and
    /// the next one begins.
    pub fn is_over(&mut self) -> bool {
        self.count += 1;
        if self.count < self.most {
            return false;
        }
        self.count = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_and_the_next_one_begins() {
        let mut turn = Turn::of(3);
        let ends: Vec<bool> = (0..7).map(|_| turn.is_over()).collect();
        assert_eq!(ends, [false, false, true, false, false, true, false]);
    }
}
