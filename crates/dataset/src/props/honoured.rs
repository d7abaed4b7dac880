//! Values of properties that would mean nothing here: they are refused by name, with the reason,
//! when somebody sets them. A pool that brings them along is read and written all the same, and
//! keeps them.

use super::{Property, PropertyValue};

/// Why a value is refused; `None` where it takes effect (or asks for what is done anyway).
pub(crate) fn refusal(property: &Property, value: &PropertyValue) -> Option<&'static str> {
    let is_default = property.default_value().as_ref() == Some(value);
    let number = value.number().unwrap_or(0);
    match property.name {
        _ if is_default => None,
        "nbmand" => Some("Linux has no mandatory locks any more (since 5.15)"),
        "vscan" => Some("there is no virus scanner that it could call on Linux"),
        "zoned" => {
            Some("datasets are delegated to user namespaces by OpenZFS's kernel module only")
        }
        "context" | "fscontext" | "defcontext" | "rootcontext" => {
            Some("SELinux contexts of mounts are not passed through FUSE")
        }
        "volthreading" => Some("requests to volumes never wait for a thread, so nothing changes"),
        "acltype" if number == 2 => Some(
            "Linux shows no NFSv4 access control lists through FUSE; use 'posix' or 'off' (lists \
             that are stored stay)",
        ),
        _ => None,
    }
}
