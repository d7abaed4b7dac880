//! 64-bit identities as JSON carries them: in digits, as a string. JavaScript and others hold
//! numbers as doubles, which are wrong above 2^53.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A GUID of a pool or vdev. In JSON it is a string of decimal digits, never a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl JsonSchema for Guid {
    fn schema_name() -> Cow<'static, str> {
        "Guid".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[0-9]{1,20}$",
            "description": "A 64-bit number in decimal digits.",
        })
    }
}

impl FromStr for Guid {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Serialize for Guid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Guid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        decimal::deserialize(deserializer).map(Self)
    }
}

/// Other numbers that use all of their 64 bits, for `#[serde(with)]`.
pub(crate) mod decimal {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(number)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        // `parse` would take a sign.
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        number.ok_or_else(|| {
            D::Error::invalid_value(Unexpected::Str(&text), &"a 64-bit number in decimal digits")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_strings_of_digits() {
        let text = serde_json::to_string(&Guid(u64::MAX)).unwrap();
        assert_eq!(text, r#""18446744073709551615""#);
        assert_eq!(serde_json::from_str::<Guid>(&text).unwrap(), Guid(u64::MAX));
        for wrong in [
            "18446744073709551615",
            "1",
            "null",
            r#""""#,
            r#""+1""#,
            r#""-1""#,
            r#""0x1""#,
            r#"" 1""#,
            r#""18446744073709551616""#,
        ] {
            assert!(serde_json::from_str::<Guid>(wrong).is_err(), "{wrong}");
        }
    }
}
