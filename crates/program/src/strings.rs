//! Functions of the library of strings that loop as long as their arguments say: patterns, and
//! `string.rep`. The others are Lua's own, whose work is bounded by the strings.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{IntoLua, Lua, LuaString, MultiValue, Table, Value};

use crate::budget::{Budget, Held};
use crate::pattern::{Capture, Length, Matcher};

/// Bytes that make a text a pattern.
const SPECIAL: &[u8] = b"^$*+?.([%-";

/// Puts them into the library, and takes away what OpenZFS has not.
pub(crate) fn install(lua: &Lua, budget: &Rc<Budget>) -> mlua::Result<()> {
    let library: Table = lua.globals().raw_get("string")?;
    for name in ["dump", "pack", "packsize", "unpack"] {
        library.raw_set(name, Value::Nil)?;
    }
    let of = budget.clone();
    library.raw_set(
        "find",
        lua.create_function(move |lua, arguments| find(lua, &of, arguments, true))?,
    )?;
    let of = budget.clone();
    library.raw_set(
        "match",
        lua.create_function(move |lua, arguments| find(lua, &of, arguments, false))?,
    )?;
    let of = budget.clone();
    library.raw_set(
        "gmatch",
        lua.create_function(move |lua, (text, pattern)| gmatch(lua, &of, text, pattern))?,
    )?;
    let of = budget.clone();
    library.raw_set(
        "gsub",
        lua.create_function(move |lua, arguments| gsub(lua, &of, arguments))?,
    )?;
    let of = budget.clone();
    library.raw_set(
        "rep",
        lua.create_function(move |lua, arguments| rep(lua, &of, arguments))?,
    )
}

type Found = (LuaString, LuaString, Option<i64>, Option<Value>);

/// `string.find` and `string.match`.
fn find(
    lua: &Lua,
    budget: &Budget,
    (text, pattern, from, plain): Found,
    is_find: bool,
) -> mlua::Result<MultiValue> {
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let (text, pattern): (&[u8], &[u8]) = (&text, &pattern);
    let nothing = || Ok(MultiValue::from_vec(vec![Value::Nil]));
    let Some(from) = start(from.unwrap_or(1), text.len()) else {
        return nothing();
    };
    let is_plain = plain.is_some_and(|plain| plain.as_boolean() != Some(false) && !plain.is_nil());
    if is_find && (is_plain || !pattern.iter().any(|byte| SPECIAL.contains(byte))) {
        return match find_plain(lua, budget, &text[from..], pattern)? {
            Some(at) => pair(from + at + 1, from + at + pattern.len()),
            None => nothing(),
        };
    }
    let (pattern, is_anchored) = match pattern.split_first() {
        Some((b'^', rest)) => (rest, true),
        _ => (pattern, false),
    };
    let mut matcher = Matcher::new(text, pattern, lua, budget);
    let last = if is_anchored { from } else { text.len() };
    for at in from..=last {
        let Some(end) = matcher.match_at(at)? else {
            continue;
        };
        let mut out = match is_find {
            true => pair(at + 1, end)?,
            false => MultiValue::new(),
        };
        if !is_find || !matcher.captures.is_empty() {
            for value in captured(lua, &matcher, at, end)? {
                out.push_back(value);
            }
        }
        return Ok(out);
    }
    nothing()
}

fn pair(first: usize, last: usize) -> mlua::Result<MultiValue> {
    let number = |number: usize| Value::Integer(number as i64);
    Ok(MultiValue::from_vec(vec![number(first), number(last)]))
}

/// Where a function begins to look: places count from 1, and from the end if they are negative.
/// `None` where that is behind the text.
fn start(place: i64, length: usize) -> Option<usize> {
    let at = match place {
        1.. => usize::try_from(place - 1).ok()?,
        0 => 0,
        _ => {
            let back = usize::try_from(place.unsigned_abs()).unwrap_or(usize::MAX);
            length.saturating_sub(back)
        }
    };
    (at <= length).then_some(at)
}

fn find_plain(
    lua: &Lua,
    budget: &Budget,
    text: &[u8],
    wanted: &[u8],
) -> mlua::Result<Option<usize>> {
    let Some(first) = wanted.first() else {
        return Ok(Some(0));
    };
    for (at, byte) in text.iter().enumerate() {
        if text.len() - at < wanted.len() {
            break;
        }
        budget.step(lua, 1)?;
        if byte == first {
            budget.step(lua, wanted.len() as u64 / 8)?;
            if text[at..].starts_with(wanted) {
                return Ok(Some(at));
            }
        }
    }
    Ok(None)
}

/// What was captured; of a pattern without captures the whole match.
fn captured(
    lua: &Lua,
    matcher: &Matcher<'_>,
    start: usize,
    end: usize,
) -> mlua::Result<Vec<Value>> {
    if matcher.captures.is_empty() {
        let whole = lua.create_string(&matcher.text[start..end])?;
        return Ok(vec![Value::String(whole)]);
    }
    let captures = matcher.captures.iter();
    captures
        .map(|capture| value_of(lua, matcher.text, *capture))
        .collect()
}

fn value_of(lua: &Lua, text: &[u8], capture: Capture) -> mlua::Result<Value> {
    match capture.length {
        Length::Open => Err(mlua::Error::RuntimeError("unfinished capture".to_owned())),
        Length::Place => Ok(Value::Integer(capture.start as i64 + 1)),
        Length::Bytes(bytes) => {
            let part = lua.create_string(&text[capture.start..capture.start + bytes])?;
            Ok(Value::String(part))
        }
    }
}

fn gmatch(
    lua: &Lua,
    budget: &Rc<Budget>,
    text: LuaString,
    pattern: LuaString,
) -> mlua::Result<mlua::Function> {
    let (next, budget) = (Cell::new(0), budget.clone());
    lua.create_function(move |lua, ()| {
        let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
        let mut matcher = Matcher::new(&text, &pattern, lua, &budget);
        for at in next.get()..=text.len() {
            if let Some(end) = matcher.match_at(at)? {
                // A match of nothing does not come again.
                next.set(if end == at { end + 1 } else { end });
                return Ok(MultiValue::from_vec(captured(lua, &matcher, at, end)?));
            }
        }
        next.set(text.len() + 1);
        Ok(MultiValue::from_vec(vec![Value::Nil]))
    })
}

/// A text that is put together, each part of it as far as memory and the script's work allow.
struct Text<'a> {
    lua: &'a Lua,
    budget: &'a Budget,
    held: Held<'a>,
}

impl Text<'_> {
    fn add(&mut self, part: &[u8]) -> mlua::Result<()> {
        // One for a part that is empty: there may be many of them.
        self.budget.step(self.lua, 1 + part.len() as u64 / 8)?;
        self.held.add(part)
    }

    /// Appends a value's text.
    fn add_value(&mut self, value: Value) -> mlua::Result<()> {
        match self.lua.coerce_string(value)? {
            Some(text) => self.add(&text.as_bytes()),
            None => Ok(()),
        }
    }
}

type Replaced = (LuaString, LuaString, Value, Option<i64>);

fn gsub(
    lua: &Lua,
    budget: &Budget,
    (text, pattern, by, most): Replaced,
) -> mlua::Result<(LuaString, i64)> {
    let text = text.as_bytes();
    let pattern = pattern.as_bytes();
    let (pattern, is_anchored): (&[u8], bool) = match pattern.split_first() {
        Some((b'^', rest)) => (rest, true),
        _ => (&pattern, false),
    };
    let by = match by {
        Value::Integer(_) | Value::Number(_) => match lua.coerce_string(by)? {
            Some(text) => Value::String(text),
            None => Value::Nil,
        },
        by => by,
    };
    if !matches!(by, Value::String(_) | Value::Table(_) | Value::Function(_)) {
        let what = "bad argument #3 to 'gsub' (string/function/table expected)";
        return Err(mlua::Error::RuntimeError(what.to_owned()));
    }
    let most = most.unwrap_or(i64::MAX);
    let mut matcher = Matcher::new(&text, pattern, lua, budget);
    let (mut at, mut count) = (0, 0);
    let mut out = Text {
        lua,
        budget,
        held: Held::new(budget),
    };
    while count < most {
        let found = matcher.match_at(at)?;
        if let Some(end) = found {
            count += 1;
            replace(lua, &matcher, at, end, &by, &mut out)?;
        }
        match found {
            Some(end) if end > at => at = end,
            _ if at < text.len() => {
                out.add(&text[at..=at])?;
                at += 1;
            }
            _ => break,
        }
        if is_anchored {
            break;
        }
    }
    if at < text.len() {
        out.add(&text[at..])?;
    }
    Ok((lua.create_string(out.held.bytes())?, count))
}

/// Appends what stands in for a match.
fn replace(
    lua: &Lua,
    matcher: &Matcher<'_>,
    start: usize,
    end: usize,
    by: &Value,
    out: &mut Text<'_>,
) -> mlua::Result<()> {
    let whole = &matcher.text[start..end];
    let value = match by {
        Value::String(template) => {
            return expand(lua, matcher, start, end, &template.as_bytes(), out);
        }
        Value::Table(table) => {
            let first = captured(lua, matcher, start, end)?.into_iter().next();
            out.budget.called(lua, table.get::<Value>(first))?
        }
        Value::Function(function) => {
            let values = captured(lua, matcher, start, end)?;
            let made = function.call::<Value>(MultiValue::from_vec(values));
            out.budget.called(lua, made)?
        }
        _ => Value::Nil,
    };
    match value {
        Value::Nil | Value::Boolean(false) => out.add(whole),
        Value::String(text) => out.add(&text.as_bytes()),
        number @ (Value::Integer(_) | Value::Number(_)) => out.add_value(number),
        other => {
            let of = crate::value::type_name(&other);
            let what = format!("invalid replacement value (a {of})");
            Err(mlua::Error::RuntimeError(what))
        }
    }
}

/// Appends a text in which `%1` stands for the first capture, and so on.
fn expand(
    lua: &Lua,
    matcher: &Matcher<'_>,
    start: usize,
    end: usize,
    template: &[u8],
    out: &mut Text<'_>,
) -> mlua::Result<()> {
    let mut rest = template.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            out.add(&[*byte])?;
            continue;
        }
        match rest.next() {
            Some(b'0') => out.add(&matcher.text[start..end])?,
            Some(digit @ b'1'..=b'9') => {
                let index = usize::from(digit - b'1');
                match matcher.captures.get(index) {
                    Some(capture) => out.add_value(value_of(lua, matcher.text, *capture)?)?,
                    None if index == 0 => out.add(&matcher.text[start..end])?,
                    None => {
                        let what = format!("invalid capture index %{}", index + 1);
                        return Err(mlua::Error::RuntimeError(what));
                    }
                }
            }
            Some(b'%') => out.add(b"%")?,
            _ => {
                let what = "invalid use of '%' in replacement string";
                return Err(mlua::Error::RuntimeError(what.to_owned()));
            }
        }
    }
    Ok(())
}

fn rep(
    lua: &Lua,
    budget: &Budget,
    (text, count, between): (LuaString, i64, Option<LuaString>),
) -> mlua::Result<Value> {
    let text = text.as_bytes();
    let between = between.as_ref().map(LuaString::as_bytes);
    let between: &[u8] = between.as_deref().unwrap_or_default();
    let count = usize::try_from(count).unwrap_or(0);
    let each = text.len() + between.len();
    if count == 0 || each == 0 {
        return "".into_lua(lua);
    }
    let length = each.saturating_mul(count).saturating_sub(between.len());
    let mut out = Held::new(budget);
    out.reserve(length)?;
    for at in 0..count {
        if at > 0 {
            out.add(between)?;
        }
        out.add(&text)?;
        budget.step(lua, 1)?;
    }
    lua.create_string(out.bytes())?.into_lua(lua)
}
