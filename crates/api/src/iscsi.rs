//! Messages about the secrets of iSCSI (CHAP). Secrets go to the daemon; back comes only one that
//! it has made up.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Call, Empty, Secret};

/// `millpond iscsi secret set`: makes a secret, or replaces it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IscsiSecretSet {
    /// Its name, which `millpond:iscsi=chap=NAME` mentions.
    pub name: String,
    /// The CHAP name. Where not given, the one that it has, or `name`.
    pub user: Option<String>,
    /// The secret; where not given, one is made up.
    pub secret: Option<Secret>,
}

/// What became of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct IscsiSecretSetReply {
    /// The CHAP name.
    pub user: String,
    /// The secret that was made up.
    pub generated: Option<Secret>,
    /// What the secret is not good for.
    pub warning: Option<String>,
}

impl Call for IscsiSecretSet {
    const PATH: &'static str = "/v1/iscsi/secret/set";
    type Reply = IscsiSecretSetReply;
}

/// `millpond iscsi secret list`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IscsiSecretList {}

/// All secrets, by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct IscsiSecretListReply {
    /// By name.
    pub secrets: Vec<IscsiSecretReport>,
}

/// What is told of a secret.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct IscsiSecretReport {
    /// Its name.
    pub name: String,
    /// The CHAP name.
    pub user: String,
    /// Volumes that are shared with it.
    pub used_by: Vec<String>,
}

impl Call for IscsiSecretList {
    const PATH: &'static str = "/v1/iscsi/secret/list";
    type Reply = IscsiSecretListReply;

    fn changes(&self) -> bool {
        false
    }
}

/// `millpond iscsi secret remove`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IscsiSecretRemove {
    /// Its name.
    pub name: String,
    /// Also where volumes are shared with it, which are not any more then (`-f`).
    #[serde(default)]
    pub force: bool,
}

impl Call for IscsiSecretRemove {
    const PATH: &'static str = "/v1/iscsi/secret/remove";
    type Reply = Empty;
}
