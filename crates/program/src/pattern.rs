//! Lua's patterns, as its manual describes them (5.2, section 6.4.1), with every step counted.
//!
//! A pattern can look at a text in exponentially many ways. Lua's own matcher is C that nothing can
//! stop, so scripts get this one.

use mlua::Lua;

use crate::budget::Budget;

/// Captures that a pattern may have (`LUA_MAXCAPTURES`).
const CAPTURES_MAX: usize = 32;
/// Parts of a pattern that may wait for others to match (`MAXCCALLS`, lstrlib.c).
const DEPTH_MAX: usize = 200;
/// What escapes.
const ESCAPE: u8 = b'%';

/// A capture: from where, and how far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capture {
    pub start: usize,
    pub length: Length,
}

/// How far a capture reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// It has not ended yet.
    Open,
    /// It is a place in the text, and no part of it.
    Place,
    /// So many bytes.
    Bytes(usize),
}

/// A match of a pattern in a text.
pub(crate) struct Matcher<'a> {
    pub text: &'a [u8],
    pub pattern: &'a [u8],
    pub captures: Vec<Capture>,
    depth: usize,
    lua: &'a Lua,
    budget: &'a Budget,
}

fn malformed(what: &str) -> mlua::Error {
    mlua::Error::RuntimeError(what.to_owned())
}

impl<'a> Matcher<'a> {
    pub(crate) fn new(
        text: &'a [u8],
        pattern: &'a [u8],
        lua: &'a Lua,
        budget: &'a Budget,
    ) -> Matcher<'a> {
        Matcher {
            text,
            pattern,
            captures: Vec::new(),
            depth: 0,
            lua,
            budget,
        }
    }

    /// Where a match ends that begins at `at`, if there is one.
    pub(crate) fn match_at(&mut self, at: usize) -> mlua::Result<Option<usize>> {
        self.captures.clear();
        self.depth = 0;
        self.matched(at, 0)
    }

    /// The same of the rest of the pattern, from `pattern` on.
    fn matched(&mut self, text: usize, pattern: usize) -> mlua::Result<Option<usize>> {
        if self.depth >= DEPTH_MAX {
            return Err(malformed("pattern too complex"));
        }
        self.depth += 1;
        let found = self.items(text, pattern);
        self.depth -= 1;
        found
    }

    fn items(&mut self, mut text: usize, mut pattern: usize) -> mlua::Result<Option<usize>> {
        loop {
            self.budget.step(self.lua, 1)?;
            let Some(item) = self.pattern.get(pattern).copied() else {
                return Ok(Some(text));
            };
            let next = self.pattern.get(pattern + 1).copied();
            match (item, next) {
                (b'(', Some(b')')) => return self.opened(text, pattern + 2, Length::Place),
                (b'(', _) => return self.opened(text, pattern + 1, Length::Open),
                (b')', _) => return self.closed(text, pattern + 1),
                (b'$', None) => return Ok((text == self.text.len()).then_some(text)),
                (ESCAPE, Some(b'b')) => match self.balanced(text, pattern + 2)? {
                    Some(end) => (text, pattern) = (end, pattern + 4),
                    None => return Ok(None),
                },
                (ESCAPE, Some(b'f')) => {
                    let set = pattern + 2;
                    if self.pattern.get(set) != Some(&b'[') {
                        return Err(malformed("missing '[' after '%f' in pattern"));
                    }
                    let end = self.class_end(set)?;
                    let before = text.checked_sub(1).map_or(0, |at| self.text[at]);
                    let here = self.text.get(text).copied().unwrap_or(0);
                    let begins = !self.in_set(before, set, end)? && self.in_set(here, set, end)?;
                    if !begins {
                        return Ok(None);
                    }
                    pattern = end;
                }
                (ESCAPE, Some(digit @ b'0'..=b'9')) => match self.again(text, digit)? {
                    Some(end) => (text, pattern) = (end, pattern + 2),
                    None => return Ok(None),
                },
                _ => match self.single(text, pattern)? {
                    Single::Next(at, item) => (text, pattern) = (at, item),
                    Single::Ended(found) => return Ok(found),
                },
            }
        }
    }

    /// A class of one byte, and what says how often.
    fn single(&mut self, text: usize, pattern: usize) -> mlua::Result<Single> {
        let end = self.class_end(pattern)?;
        let rest = end + 1;
        let is_one = self.is_class_at(text, pattern, end)?;
        Ok(match self.pattern.get(end) {
            Some(b'?') => {
                let with = match is_one {
                    true => self.matched(text + 1, rest)?,
                    false => None,
                };
                match with {
                    Some(found) => Single::Ended(Some(found)),
                    None => Single::Next(text, rest),
                }
            }
            Some(b'+') if !is_one => Single::Ended(None),
            Some(b'+') => Single::Ended(self.most(text, 1, pattern, end)?),
            Some(b'*') => Single::Ended(self.most(text, 0, pattern, end)?),
            Some(b'-') => Single::Ended(self.fewest(text, pattern, end)?),
            _ if is_one => Single::Next(text + 1, end),
            _ => Single::Ended(None),
        })
    }

    /// As often as it goes, at least `least` times.
    fn most(
        &mut self,
        text: usize,
        least: usize,
        pattern: usize,
        end: usize,
    ) -> mlua::Result<Option<usize>> {
        let mut count = 0;
        while self.is_class_at(text + count, pattern, end)? {
            count += 1;
        }
        loop {
            if let Some(found) = self.matched(text + count, end + 1)? {
                return Ok(Some(found));
            }
            if count <= least {
                return Ok(None);
            }
            count -= 1;
        }
    }

    /// As seldom as it goes.
    fn fewest(
        &mut self,
        mut text: usize,
        pattern: usize,
        end: usize,
    ) -> mlua::Result<Option<usize>> {
        loop {
            if let Some(found) = self.matched(text, end + 1)? {
                return Ok(Some(found));
            }
            if !self.is_class_at(text, pattern, end)? {
                return Ok(None);
            }
            text += 1;
        }
    }

    fn opened(
        &mut self,
        text: usize,
        pattern: usize,
        length: Length,
    ) -> mlua::Result<Option<usize>> {
        if self.captures.len() >= CAPTURES_MAX {
            return Err(malformed("too many captures"));
        }
        let start = text;
        self.captures.push(Capture { start, length });
        let found = self.matched(text, pattern)?;
        if found.is_none() {
            self.captures.pop();
        }
        Ok(found)
    }

    fn closed(&mut self, text: usize, pattern: usize) -> mlua::Result<Option<usize>> {
        let mut captures = self.captures.iter();
        let open = captures.rposition(|capture| capture.length == Length::Open);
        let open = open.ok_or_else(|| malformed("invalid pattern capture"))?;
        let start = self.captures[open].start;
        self.captures[open].length = Length::Bytes(text - start);
        let found = self.matched(text, pattern)?;
        if found.is_none() {
            self.captures[open].length = Length::Open;
        }
        Ok(found)
    }

    /// What a capture before has, once more.
    fn again(&mut self, text: usize, digit: u8) -> mlua::Result<Option<usize>> {
        let index = usize::from(digit - b'0');
        let capture = index.checked_sub(1).and_then(|at| self.captures.get(at));
        let Some(Capture {
            start,
            length: Length::Bytes(bytes),
        }) = capture.copied()
        else {
            return Err(malformed(&format!("invalid capture index %{index}")));
        };
        self.budget.step(self.lua, bytes as u64)?;
        let (text_rest, before) = (&self.text[text..], &self.text[start..start + bytes]);
        Ok(text_rest.starts_with(before).then_some(text + bytes))
    }

    /// From one byte to the one that ends what it begins.
    fn balanced(&mut self, text: usize, pattern: usize) -> mlua::Result<Option<usize>> {
        let (Some(opens), Some(closes)) =
            (self.pattern.get(pattern), self.pattern.get(pattern + 1))
        else {
            return Err(malformed("missing arguments to '%b'"));
        };
        if self.text.get(text) != Some(opens) {
            return Ok(None);
        }
        let mut open = 1u64;
        for (at, byte) in self.text.iter().enumerate().skip(text + 1) {
            self.budget.step(self.lua, 1)?;
            if byte == closes {
                open -= 1;
                if open == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == opens {
                open += 1;
            }
        }
        Ok(None)
    }

    /// Where the class ends that begins at `pattern`.
    fn class_end(&self, pattern: usize) -> mlua::Result<usize> {
        match self.pattern.get(pattern) {
            Some(&ESCAPE) if pattern + 1 >= self.pattern.len() => {
                Err(malformed("malformed pattern (ends with '%')"))
            }
            Some(&ESCAPE) => Ok(pattern + 2),
            Some(b'[') => {
                let mut at = pattern + 1;
                if self.pattern.get(at) == Some(&b'^') {
                    at += 1;
                }
                // A bracket that stands first is one of the set.
                let mut is_first = true;
                loop {
                    match self.pattern.get(at) {
                        None => return Err(malformed("malformed pattern (missing ']')")),
                        Some(b']') if !is_first => return Ok(at + 1),
                        Some(&ESCAPE) => at += 2,
                        Some(_) => at += 1,
                    }
                    is_first = false;
                }
            }
            _ => Ok(pattern + 1),
        }
    }

    /// Whether the byte at `text` is of the class from `pattern` to `end`.
    fn is_class_at(&self, text: usize, pattern: usize, end: usize) -> mlua::Result<bool> {
        let Some(byte) = self.text.get(text).copied() else {
            return Ok(false);
        };
        self.budget.step(self.lua, 1)?;
        Ok(match self.pattern[pattern] {
            b'.' => true,
            ESCAPE => is_of(byte, self.pattern[pattern + 1]),
            b'[' => self.in_set(byte, pattern, end)?,
            literal => literal == byte,
        })
    }

    fn in_set(&self, byte: u8, pattern: usize, end: usize) -> mlua::Result<bool> {
        self.budget.step(self.lua, (end - pattern) as u64)?;
        let set = &self.pattern[pattern + 1..end - 1];
        let (set, is_wanted) = match set.split_first() {
            Some((b'^', rest)) => (rest, false),
            _ => (set, true),
        };
        let mut at = 0;
        while at < set.len() {
            let is_range = set.get(at + 1) == Some(&b'-') && at + 2 < set.len();
            let (is_in, taken) = match set[at] {
                ESCAPE => (set.get(at + 1).is_some_and(|class| is_of(byte, *class)), 2),
                from if is_range => ((from..=set[at + 2]).contains(&byte), 3),
                literal => (literal == byte, 1),
            };
            if is_in {
                return Ok(is_wanted);
            }
            at += taken;
        }
        Ok(!is_wanted)
    }
}

enum Single {
    /// Go on from here, with this of the pattern.
    Next(usize, usize),
    Ended(Option<usize>),
}

/// Whether a byte is of the class that a letter stands for.
fn is_of(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => matches!(byte, b' ' | b'\t'..=b'\r'),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        _ => return class == byte,
    };
    is_in != class.is_ascii_uppercase()
}
