//! OpenZFS's events: its classes, and pairs of its names and types (`zpool events`).
//!
//! They are on the stream of events among the others, for those who may change something: OpenZFS
//! shows them to root alone. `zpool events` asks for those that are kept, and then follows the
//! stream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guid::decimal;
use crate::{Access, Call, Event, Role};

/// An event of OpenZFS's kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ZfsEvent {
    /// Its class: `sysevent.fs.zfs.scrub_start`.
    pub class: String,
    /// Its number among these, counted from 1 since the server started, as a string of digits.
    #[serde(with = "decimal")]
    #[schemars(with = "crate::Guid")]
    pub eid: u64,
    /// What it tells, in order; class, time and number included.
    pub pairs: Vec<Pair>,
}

impl ZfsEvent {
    /// GUID of the pool that somebody destroyed, if it tells of that.
    pub fn destroyed_pool(&self) -> Option<crate::Guid> {
        if self.class != "sysevent.fs.zfs.pool_destroy" {
            return None;
        }
        let mut pairs = self.pairs.iter();
        pairs.find_map(|pair| match &pair.value {
            PairValue::Uint64(guid) if pair.name == "pool_guid" => Some(crate::Guid(guid.0)),
            _ => None,
        })
    }

    /// Name of the pool that it is about.
    pub fn pool(&self) -> Option<&str> {
        let mut pairs = self.pairs.iter();
        pairs.find_map(|pair| match &pair.value {
            PairValue::String(pool) if pair.name == "pool" => Some(pool.as_str()),
            _ => None,
        })
    }
}

/// One of an event's pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pair {
    /// Its name.
    pub name: String,
    /// Its type and value.
    #[serde(flatten)]
    pub value: PairValue,
}

/// A 64-bit number with or without a sign, in JSON a string of digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Digits<T>(pub T)
where
    T: Copy + ToString + std::str::FromStr<Err = std::num::ParseIntError>;

impl<T> TryFrom<String> for Digits<T>
where
    T: Copy + ToString + std::str::FromStr<Err = std::num::ParseIntError>,
{
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

impl<T> From<Digits<T>> for String
where
    T: Copy + ToString + std::str::FromStr<Err = std::num::ParseIntError>,
{
    fn from(digits: Digits<T>) -> Self {
        digits.0.to_string()
    }
}

/// The value of a pair, with its type (`data_type_t`, include/sys/nvpair.h).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", content = "value", rename_all = "snake_case")]
#[allow(missing_docs, reason = "named by their types")]
pub enum PairValue {
    /// There, without a value.
    Boolean,
    BooleanValue(bool),
    Byte(u8),
    Int8(i8),
    Uint8(u8),
    Int16(i16),
    Uint16(u16),
    Int32(i32),
    Uint32(u32),
    Int64(Digits<i64>),
    Uint64(Digits<u64>),
    /// Nanoseconds.
    Hrtime(Digits<i64>),
    String(String),
    Nvlist(Vec<Pair>),
    Int8Array(Vec<i8>),
    Uint8Array(Vec<u8>),
    Int16Array(Vec<i16>),
    Uint16Array(Vec<u16>),
    Int32Array(Vec<i32>),
    Uint32Array(Vec<u32>),
    Int64Array(Vec<Digits<i64>>),
    Uint64Array(Vec<Digits<u64>>),
    StringArray(Vec<String>),
    NvlistArray(Vec<Vec<Pair>>),
    /// Of a type that is of no use in events.
    #[serde(other)]
    Unknown,
}

/// `zpool events`: those that are kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolEvents {}

/// The kept events of OpenZFS's kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolEventsReply {
    /// Oldest first.
    pub events: Vec<Event>,
    /// Number of the last event of any kind: the stream after it goes on from here.
    pub sequence: u64,
}

impl Call for ZpoolEvents {
    const PATH: &'static str = "/v1/zpool/events";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot read events".to_owned());
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZpoolEventsReply;

    fn changes(&self) -> bool {
        false
    }
}

/// `zpool events -c`: forgets the events of OpenZFS's kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZpoolEventsClear {}

/// How many there were.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZpoolEventsClearReply {
    /// Events that were kept.
    pub cleared: u64,
}

impl Call for ZpoolEventsClear {
    const PATH: &'static str = "/v1/zpool/events/clear";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot clear events".to_owned());
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = ZpoolEventsClearReply;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventKind;

    /// Goal: types and values stay what they are in JSON, big numbers too, among other events.
    #[test]
    fn pairs_keep_their_types() {
        let pair = |name: &str, value| Pair {
            name: name.to_owned(),
            value,
        };
        let pairs = vec![
            pair("version", PairValue::Uint8(0)),
            pair("pool", PairValue::String("tank".to_owned())),
            pair("pool_guid", PairValue::Uint64(Digits(u64::MAX))),
            pair("zio_level", PairValue::Int64(Digits(i64::MIN))),
            pair("by_kernel", PairValue::Boolean),
            pair("time", PairValue::Int64Array(vec![Digits(1), Digits(-2)])),
            pair(
                "detector",
                PairValue::Nvlist(vec![pair("scheme", PairValue::String("zfs".to_owned()))]),
            ),
        ];
        let zfs = ZfsEvent {
            class: "sysevent.fs.zfs.pool_create".to_owned(),
            eid: 7,
            pairs,
        };
        assert_eq!(zfs.pool(), Some("tank"));
        let event = Event {
            sequence: 9,
            time_ns: 3,
            kind: EventKind::Zfs(zfs),
        };
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["class"], "sysevent.fs.zfs.pool_create");
        assert_eq!(json["class"], event.kind.class());
        let guid = &json["pairs"][2];
        assert_eq!(
            (&guid["type"], &guid["value"]),
            (&"uint64".into(), &u64::MAX.to_string().into())
        );
        let back: Event = serde_json::from_value(json).unwrap();
        assert_eq!(back, event);
    }
}
