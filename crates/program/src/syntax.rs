//! From the Lua of OpenZFS to the Lua that runs scripts here.
//!
//! Numbers of scripts are whole ones of 64 bits. In Lua 5.3 there are others as well, and `/` makes
//! them; so it becomes `//`, which divides whole numbers. Numbers with a point or an exponent are
//! refused with the words that OpenZFS has for them, numbers that are too big wrap around as there,
//! a metatable's `__div` is called `__idiv`, and what came into the language after 5.2 (`//`,
//! operators on bits) is no part of it. Nothing else is changed, and lines stay where they are.

/// What metatables call `/`, and what they call `//`.
const DIVISION: &[u8] = b"__div";
const WHOLE_DIVISION: &[u8] = b"__idiv";

/// The script as it is run.
///
/// # Errors
/// What is wrong with it, in Lua's words.
pub(crate) fn translate(script: &[u8]) -> Result<Vec<u8>, String> {
    let mut reader = Reader {
        script,
        at: 0,
        line: 1,
        out: Vec::with_capacity(script.len()),
    };
    while let Some(byte) = reader.peek(0) {
        reader.token(byte)?;
    }
    Ok(reader.out)
}

struct Reader<'a> {
    script: &'a [u8],
    at: usize,
    line: usize,
    out: Vec<u8>,
}

impl Reader<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.script.get(self.at + ahead).copied()
    }

    /// Takes so many bytes over as they are.
    fn copy(&mut self, count: usize) {
        let until = (self.at + count).min(self.script.len());
        let bytes = &self.script[self.at..until];
        self.line += bytes.iter().filter(|byte| **byte == b'\n').count();
        self.out.extend_from_slice(bytes);
        self.at = until;
    }

    /// How many of the next bytes are of a kind.
    fn run(&self, is: impl Fn(u8) -> bool) -> usize {
        let rest = &self.script[self.at..];
        rest.iter().take_while(|byte| is(**byte)).count()
    }

    fn error(&self, what: &str) -> String {
        format!("[string \"channel program\"]:{}: {what}", self.line)
    }

    fn token(&mut self, byte: u8) -> Result<(), String> {
        let next = self.peek(1);
        match (byte, next) {
            (b'a'..=b'z' | b'A'..=b'Z' | b'_', _) => {
                let name = self.run(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                let start = self.out.len();
                self.copy(name);
                self.rename_division(start);
            }
            // What stands behind two points is no number with one.
            (b'.', Some(b'.')) => {
                let points = self.run(|byte| byte == b'.');
                self.copy(points.min(3));
            }
            (b'0'..=b'9', _) | (b'.', Some(b'0'..=b'9')) => self.number()?,
            (b'"' | b'\'', _) => self.quoted(byte),
            (b'-', Some(b'-')) => self.comment(),
            (b'[', Some(b'[' | b'=')) => {
                let long = self.long_bracket();
                self.copy(long.unwrap_or(1));
            }
            (b'~', Some(b'=')) => self.copy(2),
            (b'/', Some(b'/'))
            | (b'<', Some(b'<'))
            | (b'>', Some(b'>'))
            | (b'&' | b'|' | b'~', _) => {
                let what = format!("unexpected symbol near '{}'", char::from(byte));
                return Err(self.error(&what));
            }
            (b'/', _) => {
                self.copy(1);
                self.out.push(b'/');
            }
            _ => self.copy(1),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), String> {
        let rest = &self.script[self.at..];
        let is_hex = rest.len() > 1 && rest[0] == b'0' && rest[1].eq_ignore_ascii_case(&b'x');
        let exponent = if is_hex { b'p' } else { b'e' };
        // As far as Lua takes it for one number (`read_numeral`, llex.c).
        let mut length = if is_hex { 2 } else { 0 };
        while let Some(byte) = rest.get(length) {
            if byte.eq_ignore_ascii_case(&exponent) {
                let sign = rest.get(length + 1);
                length += 1 + usize::from(matches!(sign, Some(b'+' | b'-')));
            } else if byte.is_ascii_hexdigit() || *byte == b'.' {
                length += 1;
            } else {
                break;
            }
        }
        let digits = &rest[if is_hex { 2 } else { 0 }..length];
        let is_whole = !digits.is_empty()
            && match is_hex {
                true => digits.iter().all(u8::is_ascii_hexdigit),
                false => digits.iter().all(u8::is_ascii_digit),
            };
        if !is_whole {
            let text = String::from_utf8_lossy(&rest[..length]);
            return Err(self.error(&format!("malformed number near '{text}'")));
        }
        let wrapped = digits.iter().fold(0u64, |sum, digit| {
            sum.wrapping_mul(10)
                .wrapping_add(u64::from(digit.wrapping_sub(b'0')))
        });
        let is_small = digits.len() < 19;
        if is_hex || is_small {
            self.copy(length);
        } else {
            // In hexadecimal, numbers wrap around by themselves.
            self.out
                .extend_from_slice(format!("{wrapped:#x}").as_bytes());
            self.at += length;
        }
        Ok(())
    }

    /// A metatable's entry for `/` is one for `//` here.
    fn rename_division(&mut self, start: usize) {
        if &self.out[start..] == DIVISION {
            self.out.truncate(start);
            self.out.extend_from_slice(WHOLE_DIVISION);
        }
    }

    /// A text in quotes; one that does not end is Lua's to refuse.
    fn quoted(&mut self, quote: u8) {
        self.copy(1);
        let start = self.out.len();
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\\' if self.peek(1) == Some(b'z') => {
                    self.copy(2);
                    let blanks = self.run(|byte| byte.is_ascii_whitespace());
                    self.copy(blanks);
                }
                b'\\' => {
                    let is_pair = matches!(
                        (self.peek(1), self.peek(2)),
                        (Some(b'\r'), Some(b'\n')) | (Some(b'\n'), Some(b'\r'))
                    );
                    self.copy(2 + usize::from(is_pair));
                }
                b'\n' | b'\r' => return,
                _ if byte == quote => {
                    self.rename_division(start);
                    return self.copy(1);
                }
                _ => self.copy(1),
            }
        }
    }

    fn comment(&mut self) {
        self.copy(2);
        if self.peek(0) == Some(b'[')
            && let Some(long) = self.long_bracket()
        {
            return self.copy(long);
        }
        let line = self.run(|byte| byte != b'\n' && byte != b'\r');
        self.copy(line);
    }

    /// The length of a text in long brackets that begins here, if one does: up to the end of the
    /// script if it has no end.
    fn long_bracket(&self) -> Option<usize> {
        let rest = &self.script[self.at..];
        let level = rest[1..].iter().take_while(|byte| **byte == b'=').count();
        if rest.get(1 + level) != Some(&b'[') {
            return None;
        }
        let mut end = vec![b'='; level + 2];
        end[0] = b']';
        end[level + 1] = b']';
        let inside = 2 + level;
        let found = rest[inside..]
            .windows(end.len())
            .position(|window| window == end);
        Some(found.map_or(rest.len(), |at| inside + at + end.len()))
    }
}
