//! `zfs program`: scripts that look at a pool and change it within one transaction group.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Access, Call};

/// Runs a channel program: Lua, in a sandbox, on one pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZfsProgram {
    /// The pool.
    pub pool: String,
    /// The script's text.
    pub script: String,
    /// Each character of the text, none beyond U+00FF, stands for a byte of a script that is not
    /// UTF-8.
    #[serde(default)]
    pub is_bytes: bool,
    /// What the script finds in `(...)["argv"]`.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Instructions that it may run (`-t`); ten million if nothing is said.
    #[serde(default)]
    pub instructions_max: Option<u64>,
    /// Bytes of memory that it may take (`-m`); 10 MiB if nothing is said.
    #[serde(default)]
    pub memory_bytes_max: Option<u64>,
    /// It may look and try, and change nothing (`-n`).
    #[serde(default)]
    pub read_only: bool,
    /// The command as typed, for the pool's history.
    #[serde(default)]
    pub command: String,
}

/// What came of a channel program that ran to its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ZfsProgramReply {
    /// What it returned, as `return`; empty where it returned nothing.
    pub output: IndexMap<String, Value>,
}

impl Call for ZfsProgram {
    const PATH: &'static str = "/v1/zfs/program";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot run a channel program on '{}'", call.pool));
    type Reply = ZfsProgramReply;
}
