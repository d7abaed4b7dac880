//! Calls the targets of `crates/fuzzing` by their names.

/// Runs one target.
///
/// # Panics
/// When there is none of that name, and when it finds a fault.
pub fn call(name: &str, data: &[u8]) {
    let target = fuzzing::TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target of this name").run)(data);
}
