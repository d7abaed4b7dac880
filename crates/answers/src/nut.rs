//! Lines of NUT's server `upsd` (RFC 9271).
//!
//! Words with blanks in them are in quotation marks, where a backslash takes the meaning from what
//! follows it (section 4.1).

use std::collections::BTreeSet;

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// These words.
    Words(Vec<String>),
    /// No, with this code (section 4.3).
    Refused(String),
}

/// Takes a line apart; none where quotation marks are not closed.
pub fn parse_line(line: &str) -> Option<Answer> {
    let words = parse_words(line)?;
    Some(match &words[..] {
        [kind, code, ..] if kind == "ERR" => Answer::Refused(code.clone()),
        _ => Answer::Words(words),
    })
}

fn parse_words(line: &str) -> Option<Vec<String>> {
    let mut out = Vec::new();
    let mut chars = line.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
        if chars.peek().is_none() {
            return Some(out);
        }
        let is_quoted = chars.next_if_eq(&'"').is_some();
        let mut word = String::new();
        loop {
            match chars.next() {
                Some('\\') => word.push(chars.next()?),
                Some('"') if is_quoted => break,
                Some(c) if !is_quoted && c.is_ascii_whitespace() => break,
                Some(c) => word.push(c),
                None if is_quoted => return None,
                None => break,
            }
        }
        out.push(word);
    }
}

/// The words of `ups.status`: `OL`, `OB`, `LB`, ...
pub fn parse_status(value: &str) -> BTreeSet<String> {
    value.split_whitespace().map(str::to_owned).collect()
}

/// The whole part of a number: fractions as in "87.5" do not matter.
pub fn parse_number(value: &str) -> Option<u64> {
    value.split('.').next().and_then(|whole| whole.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_words() {
        let of = |line: &str| parse_words(line).map(|words| words.join("|"));
        assert_eq!(
            of(r#"VAR a ups.status "OL CHRG""#).as_deref(),
            Some("VAR|a|ups.status|OL CHRG")
        );
        assert_eq!(
            of(r#"UPS a "say \"hi\" \\""#).as_deref(),
            Some(r#"UPS|a|say "hi" \"#)
        );
        assert_eq!(of("  END   LIST UPS ").as_deref(), Some("END|LIST|UPS"));
        assert_eq!(of("").as_deref(), Some(""));
        assert_eq!(of(r#"VAR a b """#).as_deref(), Some("VAR|a|b|"));
        for wrong in [r#"VAR "a"#, r"a\", r#"""#] {
            assert_eq!(parse_line(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn refusals_and_values_are_told_apart() {
        let refused = parse_line("ERR UNKNOWN-UPS extra");
        assert_eq!(refused, Some(Answer::Refused("UNKNOWN-UPS".to_owned())));
        let alone = parse_line("ERR");
        assert_eq!(alone, Some(Answer::Words(vec!["ERR".to_owned()])));
        assert_eq!(parse_number("87.5"), Some(87));
        assert_eq!(parse_number("-3"), None);
        assert_eq!(parse_status(" OB  LB ").len(), 2);
    }
}
