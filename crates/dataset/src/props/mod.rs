//! Properties: the native table, user properties, values as stored, as typed and as shown.
//!
//! A native property is stored in the ZAP of its directory (`dd_props_zapobj`) or, for a snapshot,
//! of the snapshot (`ds_props_obj`): numbers and index words as one `u64`, text as bytes that end
//! in a zero. What is not stored is inherited from the nearest ancestor that has it, where the
//! property is inheritable, or else is the default. Beside `name` the ZAP may hold `name$recvd`
//! (the value that a receive brought) and `name$inherit` (explicitly inherited in spite of a
//! received value): module/zfs/dsl_prop.c.

mod honoured;
mod indexes;
mod parse;
mod table;

#[cfg(test)]
mod tests;

pub(crate) use honoured::refusal;
pub use indexes::IndexTable;
pub(crate) use parse::fits_a_value;
pub use parse::{format_size, is_user_property, parse_size, parse_value, show_value};
pub use table::{Attr, Kinds, PROPERTIES, Property, ValueKind, find, full_name};

use crate::DatasetError;

/// A property's value, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PropertyValue {
    /// A number, or an index property's number.
    Number(u64),
    /// Text.
    Text(String),
}

impl PropertyValue {
    /// The number, if it is one.
    pub fn number(&self) -> Option<u64> {
        match self {
            PropertyValue::Number(number) => Some(*number),
            PropertyValue::Text(_) => None,
        }
    }

    /// The text, if it is text.
    pub fn text(&self) -> Option<&str> {
        match self {
            PropertyValue::Number(_) => None,
            PropertyValue::Text(text) => Some(text),
        }
    }
}

impl From<u64> for PropertyValue {
    fn from(number: u64) -> Self {
        PropertyValue::Number(number)
    }
}

impl From<&str> for PropertyValue {
    fn from(text: &str) -> Self {
        PropertyValue::Text(text.to_owned())
    }
}

/// Where a value comes from: the SOURCE column of `zfs get`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PropertySource {
    /// Set on the dataset.
    Local,
    /// Nobody set it.
    Default,
    /// Set on this ancestor.
    Inherited(String),
    /// Came with a received stream.
    Received,
    /// Set for the time of a mount only.
    Temporary,
    /// It is not a setting: shown as `-`.
    None,
}

/// One property of one dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertySetting {
    /// Name, native or a user property's (`module:name`).
    pub name: String,
    /// Its value.
    pub value: PropertyValue,
    /// Where the value comes from.
    pub source: PropertySource,
}

impl Property {
    /// Whether children inherit it (`zfs_prop_inheritable`).
    pub const fn is_inheritable(&self) -> bool {
        matches!(self.attr, Attr::Inherit | Attr::OneTime)
    }

    /// Whether a user can never set it after creation (`zfs_prop_readonly`).
    pub const fn is_read_only(&self) -> bool {
        matches!(
            self.attr,
            Attr::ReadOnly | Attr::OneTime | Attr::OneTimeDefault
        )
    }

    /// Whether it can be set at creation only (`zfs_prop_setonce`).
    pub const fn is_set_once(&self) -> bool {
        matches!(self.attr, Attr::OneTime | Attr::OneTimeDefault)
    }

    /// Its default value.
    pub fn default_value(&self) -> Option<PropertyValue> {
        match self.kind {
            ValueKind::Text => self.default_text.map(PropertyValue::from),
            ValueKind::Number | ValueKind::Index(_) => {
                Some(PropertyValue::Number(self.default_number))
            }
        }
    }

    /// The word that an index property shows for a stored number.
    pub fn word(&self, number: u64) -> Option<&'static str> {
        match self.kind {
            ValueKind::Index(table) => table
                .iter()
                .find(|(_, stored)| *stored == number)
                .map(|(word, _)| *word),
            ValueKind::Number | ValueKind::Text => None,
        }
    }

    /// The error of a value that the property does not take.
    pub(crate) fn invalid(&self, reason: impl Into<String>) -> DatasetError {
        DatasetError::InvalidProperty {
            property: self.name.to_owned(),
            reason: reason.into(),
        }
    }
}
