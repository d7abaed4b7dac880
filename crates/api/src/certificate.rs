//! Messages about the certificate of the console, and how it is got by ACME (RFC 8555).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, CertificateBy, Empty};

/// Directory of Let's Encrypt, whose certificates every browser takes.
pub const ACME_DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// For what, and from whom, a certificate is got. Whoever keeps this agrees to the terms of the
/// authority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AcmeSettings {
    /// Names of the host, or addresses, that the certificate is for: 1 to 100, without wildcards.
    pub names: Vec<String>,
    /// Mail address at which the authority reaches somebody.
    #[serde(default)]
    pub contact: Option<String>,
    /// URL of the authority's directory (RFC 8555, section 7.1.1); by default
    /// [`ACME_DIRECTORY`].
    #[serde(default)]
    pub directory: Option<String>,
    /// File of certificates in PEM, one of which has signed that of the directory; by default
    /// those count that the system trusts.
    #[serde(default)]
    pub ca_file: Option<String>,
    /// Where the authority finds the proof that the names are this host's: an address and a port
    /// to which port 80 of the names leads; by default port 80 of every address.
    #[serde(default)]
    pub listen: Option<String>,
}

/// A certificate that connections are answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CertificateReport {
    /// Whose business another one is.
    pub by: CertificateBy,
    /// Names and addresses that it is for.
    pub names: Vec<String>,
    /// Who signed it.
    pub issuer: String,
    /// From when on it is good, in seconds since 1970.
    pub begin_s: u64,
    /// Until when it is good, in seconds since 1970.
    pub end_s: u64,
}

/// How getting one by ACME goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AcmeProgress {
    /// One is being got.
    pub is_working: bool,
    /// How often it failed, one after the other.
    pub failures: u32,
    /// Why, the last time.
    pub problem: Option<String>,
    /// When one is got next, in seconds since 1970: as it nears its end, or to try again.
    pub next_s: Option<u64>,
}

/// Asks for the certificate.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateStatus {}

/// The certificate, and the settings.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct CertificateStatusReply {
    /// What connections are answered with; none where the console is not offered.
    pub certificate: Option<CertificateReport>,
    /// How one is to be got by ACME; none where none is.
    pub acme: Option<AcmeSettings>,
    /// How that goes.
    pub progress: AcmeProgress,
    /// The server was started with a certificate of somebody's (`--certificate`), so that none is
    /// got.
    pub is_given: bool,
}

impl Call for CertificateStatus {
    const PATH: &'static str = "/v1/certificate/status";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot look at the certificate".to_owned());
    type Reply = CertificateStatusReply;

    fn changes(&self) -> bool {
        false
    }
}

/// Has the certificate be got by ACME, or the server's own one used. It is got in the background;
/// [`CertificateRenew`] waits for it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateSet {
    /// How it is to be got; none where the server's own is to be used.
    pub acme: Option<AcmeSettings>,
}

impl Call for CertificateSet {
    const PATH: &'static str = "/v1/certificate/settings-set";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot change the certificate".to_owned());
    type Reply = Empty;
}

/// Gets a certificate by ACME, whether it is time or not, unless another request or the server
/// itself has begun to: then that is waited for. What went wrong is answered.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateRenew {
    /// Only if it is time, or the one that there is, is for other names or from somebody else.
    #[serde(default)]
    pub only_if_due: bool,
}

/// How it went.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct CertificateRenewReply {
    /// Why none was got; it is tried again later.
    pub problem: Option<String>,
}

impl Call for CertificateRenew {
    const PATH: &'static str = "/v1/certificate/renew";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot renew the certificate".to_owned());
    type Reply = CertificateRenewReply;
}
