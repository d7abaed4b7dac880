//! What options say of properties: `-o PROPERTY=VALUE` and `-x PROPERTY` (`zfs_receive_checkprops`
//! and `zfs_setup_cmdline_props`, lib/libzfs/libzfs_sendrecv.c).

use api::{Failure, FailureKind, ZfsReceive};
use dataset::props::{Property, find, full_name, is_user_property};
use dataset::{DatasetKind, PropertyChange, PropertySource};
use format::ObjsetKind;
use format::stream::Begin;

use super::{LOCATION, OF_KEYS, Place, Run};
use service::error::from_dataset;

/// A request with properties by their full names, if all of them may be given.
///
/// # Errors
/// Of what is no property, and of what no option changes: what is read-only or chosen once, and
/// versions and sizes, which come with the contents.
pub(super) fn checked(mut call: ZfsReceive) -> Result<ZfsReceive, Failure> {
    let set = std::mem::take(&mut call.set).into_iter();
    call.set = set
        .map(|(name, typed)| (full_name(&name).to_owned(), typed))
        .collect();
    for name in &mut call.exclude {
        *name = full_name(name).to_owned();
    }
    for name in call.set.keys().chain(&call.exclude) {
        let can_be_given = match find(name) {
            // Keys are looked at where it is known what is received.
            Some(native) if OF_KEYS.contains(&native.name) || native.name == "origin" => true,
            Some(native) => is_changed(native),
            None => is_user_property(name),
        };
        if !can_be_given {
            let message = format!(
                "cannot receive: cannot receive: invalid property '{name}'\nthe stream brings it, \
                 or it is none: leave the option out"
            );
            return Err(Failure::new(FailureKind::Invalid, message));
        }
    }
    Ok(call)
}

fn is_changed(property: &Property) -> bool {
    !property.is_read_only() && !matches!(property.name, "version" | "volsize")
}

impl Run<'_> {
    /// Whether a property that was sent is not even kept as received: what who sends it may not
    /// choose, and of what is excluded, that which could not be inherited in spite of it.
    pub(super) fn leaves_out(&self, name: &str) -> bool {
        if self.call.guard.leaves_out(name) {
            return true;
        }
        let is_excluded = self.call.exclude.iter().any(|other| other == name);
        is_excluded && find(name).is_some_and(|native| !native.is_inheritable())
    }
}

/// What options change at the dataset of a stream. What is set is of the dataset that was asked
/// for; those below it inherit it. What is excluded is inherited, unless it was set here: that
/// counts for more than what is received anyway. `-x` of what a dataset does not have is a warning;
/// `-o` of it is refused, unless datasets of several kinds may come.
///
/// # Errors
/// Of what cannot be set.
pub(super) async fn changes(
    run: &mut Run<'_>,
    begin: &Begin,
    place: &Place,
) -> Result<Vec<(String, PropertyChange)>, Failure> {
    let kind = match begin.kind() {
        Some(ObjsetKind::Volume) => DatasetKind::Volume,
        _ => DatasetKind::Filesystem,
    };
    let applies = |name: &str| find(name).is_none_or(|native| native.kinds.meets(kind.kinds()));
    let is_inherited = |name: &str| find(name).is_none_or(Property::is_inheritable);
    let packed = run.package.as_ref();
    let is_recursive = packed.is_some_and(|packed| !packed.package.is_not_recursive);
    let is_top = run.is_top(begin);
    let mut out = Vec::new();
    for (name, typed) in &run.call.set {
        if OF_KEYS.contains(&name.as_str()) && name != LOCATION {
            continue;
        }
        if !applies(name) && is_recursive {
            continue;
        }
        if is_top {
            let checked = dataset::check_setting(kind, name, typed);
            let doing = match begin.from_guid.get() == 0 {
                true => "cannot receive new filesystem stream",
                false => "cannot receive incremental stream",
            };
            checked.map_err(|error| from_dataset(doing, &error))?;
            out.push((name.clone(), PropertyChange::Set(typed.clone())));
        } else if is_inherited(name) {
            out.push((name.clone(), PropertyChange::Inherit));
        }
    }
    let properties = run.open.pool.dsl().properties();
    for name in &run.call.exclude {
        if OF_KEYS.contains(&name.as_str()) || find(name).is_some_and(|one| !is_changed(one)) {
            continue;
        }
        if !applies(name) {
            run.reply.warnings.push(format!(
                "{}: property '{name}' does not apply to datasets of this type",
                place.head
            ));
            continue;
        }
        let is_set = match place.existing {
            None => false,
            Some(_) => {
                let setting = properties.get(&place.head, name).await;
                setting.is_ok_and(|setting| setting.source == PropertySource::Local)
            }
        };
        if is_inherited(name) && !is_set {
            out.push((name.clone(), PropertyChange::Inherit));
        }
    }
    Ok(out)
}
