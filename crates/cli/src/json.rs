//! JSON as `-j` of OpenZFS 2.3 prints it.
//!
//! Shape: an `output_version` object naming the command, then `pools` or `datasets` by name
//! (`zpool_json_schema`, cmd/zpool/zpool_main.c; `zfs_json_schema`, cmd/zfs/zfs_main.c). Numbers
//! are strings unless `--json-int`.

use api::{Guid, Source};
use serde_json::{Map, Value, json};

/// The document around everything: version information and room for more.
pub fn document(command: &str) -> Map<String, Value> {
    let mut document = Map::new();
    document.insert(
        "output_version".into(),
        json!({"command": command, "vers_major": 0, "vers_minor": 1}),
    );
    document
}

/// What is told of a pool itself (`fill_pool_info`, cmd/zpool/zpool_main.c).
pub fn pool(
    name: &str,
    state: &str,
    guid: Guid,
    txg: u64,
    kind: Option<&str>,
    as_int: bool,
) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("name".into(), json!(name));
    if let Some(kind) = kind {
        entry.insert("type".into(), json!(kind));
    }
    entry.insert("state".into(), json!(state));
    entry.insert("pool_guid".into(), value(&guid.to_string(), as_int));
    entry.insert("txg".into(), value(&txg.to_string(), as_int));
    entry.insert("spa_version".into(), value("5000", as_int));
    entry.insert("zpl_version".into(), value("5", as_int));
    entry
}

/// A property with its source.
pub fn property(text: &str, of: &Source, as_int: bool) -> Value {
    json!({"value": value(text, as_int), "source": source(of)})
}

/// A property's source.
pub fn source(source: &Source) -> Value {
    let (kind, data) = match source {
        Source::None => ("NONE", "-"),
        Source::Default => ("DEFAULT", "-"),
        Source::Local => ("LOCAL", "-"),
        Source::Temporary => ("TEMPORARY", "-"),
        Source::Received => ("RECEIVED", "-"),
        Source::Inherited(from) => ("INHERITED", from.as_str()),
    };
    json!({"type": kind, "data": data})
}

/// A value: a string, or with `as_int` a number where it is one.
pub fn value(text: &str, as_int: bool) -> Value {
    match text.parse::<u64>() {
        Ok(number) if as_int => json!(number),
        _ => json!(text),
    }
}

/// Prints a document as OpenZFS does: on one line.
pub fn print(document: Map<String, Value>) -> anyhow::Result<()> {
    println!("{}", Value::Object(document));
    Ok(())
}
