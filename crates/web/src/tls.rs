//! The server's certificate: one that it makes and signs itself, one that somebody has given, taken
//! up anew when its files change, or one that [`super::acme`] got. Whoever is to be told of its end
//! looks at [`Validity`].

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::{Alert, AlertFact, AlertRule, AlertSeverity, CertificateBy, CertificateReport};
use parking_lot::RwLock;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring::{default_provider, sign::any_supported_type};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::tokens::fingerprint;

/// How long a certificate of our own is good; browsers take none that is longer.
const OWN_VALID: Duration = Duration::from_secs(825 * 24 * 3600);
/// Age at which another one is made.
const OWN_AGE_MAX: Duration = Duration::from_secs(730 * 24 * 3600);
/// How long before its end a certificate is told of, in seconds; or a quarter of the time that it
/// is good for, where that is shorter: some are good for days only.
const NEAR_END_S: u64 = 21 * 24 * 3600;
const NEAR_END_PART: u64 = 4;
/// How connections by HTTP/2 are agreed upon (RFC 9113, section 3.2).
pub(super) const HTTP2: &[u8] = b"h2";
/// How often files are looked at.
const LOOKS: Duration = Duration::from_secs(10);

/// Where the certificate is.
#[derive(Clone, Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    /// It is ours to make.
    is_own: bool,
}

/// The certificate that connections are answered with.
#[derive(Debug)]
pub(super) struct Certificate {
    files: Files,
    names: Vec<String>,
    current: RwLock<Current>,
}

/// What new connections get.
#[derive(Clone, Debug)]
struct Current {
    key: Arc<CertifiedKey>,
    /// Got by ACME: what becomes of the files does not matter then.
    is_got: bool,
}

/// From when to when a certificate is good, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) begin_s: u64,
    pub(super) end_s: u64,
}

impl Validity {
    /// That of a certificate (RFC 5280, section 4.1.2.5); none where it is not understood.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let validity = certificate.validity();
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        Some(Self {
            begin_s: seconds(validity.not_before.timestamp()),
            end_s: seconds(validity.not_after.timestamp()),
        })
    }

    /// For how long it is good, in seconds.
    pub(super) fn good_s(self) -> u64 {
        self.end_s.saturating_sub(self.begin_s)
    }

    /// How long before the end it is told of.
    fn near_s(self) -> u64 {
        NEAR_END_S.min(self.good_s() / NEAR_END_PART)
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().key))
    }
}

/// When files were changed last, and their sizes.
type Stamp = [Option<(SystemTime, u64)>; 2];

impl Files {
    fn stamp(&self) -> Stamp {
        [&self.certificate, &self.key].map(|path| {
            let found = path.metadata().ok()?;
            Some((found.modified().ok()?, found.len()))
        })
    }

    /// Whether one of our own has to be made.
    fn is_due(&self) -> bool {
        let [certificate, key] = self.stamp();
        let is_old = |(changed, _): (SystemTime, u64)| {
            let age = SystemTime::now().duration_since(changed);
            age.is_ok_and(|age| age > OWN_AGE_MAX)
        };
        self.is_own && (key.is_none() || certificate.is_none_or(is_old))
    }

    /// Makes one of our own for these names and addresses.
    fn make(&self, names: &[String]) -> Result<(), String> {
        let failed = |error: rcgen::Error| format!("a certificate cannot be made: {error}");
        let key = KeyPair::generate().map_err(failed)?;
        let mut parameters = CertificateParams::new(names).map_err(failed)?;
        let name = format!("Millpond on {}", names.first().map_or("", String::as_str));
        parameters.distinguished_name.push(DnType::CommonName, name);
        let now = SystemTime::now();
        // A browser's clock may be behind.
        parameters.not_before = (now - Duration::from_secs(24 * 3600)).into();
        parameters.not_after = (now + OWN_VALID).into();
        let certificate = parameters.self_signed(&key).map_err(failed)?;
        let write = |path: &Path, text: String| {
            let written = device::private::write(path, text.as_bytes());
            written.map_err(|error| format!("{} cannot be written: {error}", path.display()))
        };
        // The key first: a crash in between leaves no certificate that has another key, as the
        // one before is taken away.
        let _ = std::fs::remove_file(&self.certificate);
        write(&self.key, key.serialize_pem())?;
        write(&self.certificate, certificate.pem())
    }

    /// One of our own that is good.
    fn load_or_make(&self, names: &[String]) -> Result<CertifiedKey, String> {
        if !self.is_due()
            && let Ok(certified) = self.load()
        {
            return Ok(certified);
        }
        self.make(names)?;
        self.load()
    }

    fn load(&self) -> Result<CertifiedKey, String> {
        let failed = |path: &Path, why: &dyn std::fmt::Display| {
            format!("the certificate in {} is not used: {why}", path.display())
        };
        let read = |path: &Path| std::fs::read(path).map_err(|error| failed(path, &error));
        let (chain, key) = (read(&self.certificate)?, read(&self.key)?);
        certified(&chain, &key).map_err(|(is_key, why)| match is_key {
            true => failed(&self.key, &why),
            false => failed(&self.certificate, &why),
        })
    }
}

/// A chain and the key of its first certificate, both in PEM; what is wrong with them, and whether
/// that is with the key.
pub(super) fn certified(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, (bool, String)> {
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.map_err(|error| (false, error.to_string()))?;
    if chain.is_empty() {
        return Err((false, "it has none in PEM".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| (true, error.to_string()))?;
    let key = any_supported_type(&key).map_err(|error| (true, error.to_string()))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(certified)
        }
        Err(error) => Err((false, error.to_string())),
    }
}

/// What is told of a certificate; none where it is not understood.
fn report(certificate: &CertificateDer<'_>, by: CertificateBy) -> Option<CertificateReport> {
    let validity = Validity::of(certificate)?;
    let (_, read) = X509Certificate::from_der(certificate).ok()?;
    let alternative = read.subject_alternative_name().ok().flatten();
    let names = alternative
        .iter()
        .flat_map(|names| &names.value.general_names);
    let names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(four) => Some(IpAddr::from(four).to_string()),
            Err(_) => {
                let sixteen = <[u8; 16]>::try_from(*bytes).ok()?;
                Some(IpAddr::from(sixteen).to_string())
            }
        },
        _ => None,
    });
    Some(CertificateReport {
        by,
        names: names.collect(),
        issuer: read.issuer().to_string(),
        begin_s: validity.begin_s,
        end_s: validity.end_s,
    })
}

impl Certificate {
    /// Loads what was given, or one of our own from the state directory, made where it is missing
    /// or old. One that was given and is not good is said to be, and one of our own stands in for
    /// it until its files are put right: pools are served whatever becomes of it.
    ///
    /// # Errors
    /// Why there is none of our own either.
    pub(super) fn load(
        directory: &Path,
        given: Option<&(PathBuf, PathBuf)>,
        hostname: &str,
        address: IpAddr,
    ) -> Result<Arc<Self>, String> {
        let own = Files {
            certificate: directory.join("https-certificate.pem"),
            key: directory.join("https-key.pem"),
            is_own: true,
        };
        let mut names = Vec::new();
        // One that no certificate can have is left out.
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        if !hostname.is_empty() && hostname.chars().all(is_name) {
            names.push(hostname.to_owned());
        }
        names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
        if !address.is_unspecified() && !address.is_loopback() {
            names.push(address.to_string());
        }
        let (files, current) = match given {
            Some((certificate, key)) => {
                let given = Files {
                    certificate: certificate.clone(),
                    key: key.clone(),
                    is_own: false,
                };
                let current = match given.load() {
                    Ok(certified) => certified,
                    Err(problem) => {
                        tracing::error!("{problem}; one of the server's own is used instead");
                        own.load_or_make(&names)?
                    }
                };
                (given, current)
            }
            None => {
                let current = own.load_or_make(&names)?;
                (own, current)
            }
        };
        let current = RwLock::new(Current {
            key: Arc::new(current),
            is_got: false,
        });
        Ok(Arc::new(Self {
            files,
            names,
            current,
        }))
    }

    /// SHA-256 of what connections are answered with, in hexadecimal digits.
    pub(super) fn fingerprint(&self) -> Option<String> {
        let (certificate, _) = self.shown()?;
        Some(fingerprint(&certificate))
    }

    /// Whether somebody gave it, so that none of the server's stands in its place.
    pub(super) fn is_given(&self) -> bool {
        !self.files.is_own
    }

    /// Answers connections with one that was got by ACME from now on. Those that there are, stay.
    pub(super) fn take(&self, key: CertifiedKey) {
        *self.current.write() = Current {
            key: Arc::new(key),
            is_got: true,
        };
    }

    /// Answers connections with what the files have instead of one that was got by ACME.
    ///
    /// # Errors
    /// What is wrong with the files: then the one that there is stays.
    pub(super) fn take_own(&self) -> Result<(), String> {
        if !self.current.read().is_got {
            return Ok(());
        }
        let key = Arc::new(self.files.load_or_make(&self.names)?);
        *self.current.write() = Current { key, is_got: false };
        Ok(())
    }

    /// The first of the chain, and whose business another one is.
    fn shown(&self) -> Option<(CertificateDer<'static>, CertificateBy)> {
        let current = self.current.read();
        let by = match (current.is_got, self.files.is_own) {
            (true, _) => CertificateBy::Acme,
            (false, true) => CertificateBy::Server,
            (false, false) => CertificateBy::Person,
        };
        Some((current.key.cert.first()?.clone(), by))
    }

    /// What is told of it; none where it is not understood.
    pub(super) fn report(&self) -> Option<CertificateReport> {
        let (certificate, by) = self.shown()?;
        report(&certificate, by)
    }

    /// What is to be told of its end; `problem` is why the last try to get another one failed.
    pub(super) fn alert(&self, now_s: u64, problem: Option<String>) -> Option<Alert> {
        let (certificate, by) = self.shown()?;
        let validity = Validity::of(&certificate)?;
        if now_s.saturating_add(validity.near_s()) < validity.end_s {
            return None;
        }
        let is_over = now_s > validity.end_s;
        Some(Alert {
            rule: AlertRule::Certificate,
            severity: match is_over {
                true => AlertSeverity::Critical,
                false => AlertSeverity::Warning,
            },
            pool: String::new(),
            pool_guid: api::Guid(0),
            disk: None,
            device_guid: None,
            fact: AlertFact::Certificate {
                path: self.files.certificate.display().to_string(),
                why: problem.filter(|_| by == CertificateBy::Acme),
                by,
                end_s: validity.end_s,
                is_over,
            },
        })
    }

    /// Takes up what changes, for ever.
    pub(super) async fn follow(self: Arc<Self>) {
        let mut before = self.files.stamp();
        loop {
            tokio::time::sleep(LOOKS).await;
            let this = Arc::clone(&self);
            let looked = tokio::task::spawn_blocking(move || this.look(before)).await;
            before = looked.unwrap_or(before);
        }
    }

    fn look(&self, before: Stamp) -> Stamp {
        if self.files.is_due()
            && let Err(problem) = self.files.make(&self.names)
        {
            tracing::error!("{problem}");
        }
        let now = self.files.stamp();
        if now == before {
            return before;
        }
        match self.files.load() {
            Ok(certified) => {
                let mut current = self.current.write();
                if current.is_got {
                    return now;
                }
                current.key = Arc::new(certified);
                tracing::info!("the certificate was taken up anew");
            }
            // Perhaps only one of the two files is there yet.
            Err(problem) => tracing::warn!("{problem}; the one before is used"),
        }
        now
    }
}

/// How connections are encrypted: TLS 1.2 and 1.3, HTTP/1.1.
pub(super) fn configuration(certificate: Arc<Certificate>) -> Result<ServerConfig, String> {
    let provider = Arc::new(default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let mut configuration = builder
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    configuration.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    Ok(configuration)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn own(directory: &Path) -> Arc<Certificate> {
        let address = [192, 0, 2, 1].into();
        Certificate::load(directory, None, "host", address).unwrap()
    }

    fn chain_of(certificate: &Certificate) -> Vec<CertificateDer<'static>> {
        certificate.current.read().key.cert.clone()
    }

    #[test]
    fn one_of_our_own_is_made_once_and_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let first = own(directory.path());
        let chain = chain_of(&first);
        for file in ["https-certificate.pem", "https-key.pem"] {
            let found = directory.path().join(file).metadata().unwrap();
            assert_eq!(found.permissions().mode() & 0o777, 0o600, "{file}");
        }
        assert_eq!(chain_of(&own(directory.path())), chain);
        // One that was damaged, or lost its key, is made anew.
        std::fs::remove_file(directory.path().join("https-key.pem")).unwrap();
        let other = chain_of(&own(directory.path()));
        assert_ne!(other, chain);
        std::fs::write(directory.path().join("https-certificate.pem"), "").unwrap();
        assert_ne!(chain_of(&own(directory.path())), other);
    }

    #[test]
    fn another_one_is_taken_up_and_a_wrong_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let (made, new) = (own(directory.path()), own(other.path()));
        let given = |directory: &Path| {
            let file = |name: &str| directory.join(name);
            (file("https-certificate.pem"), file("https-key.pem"))
        };
        let (certificate, key) = given(directory.path());
        let load = |pair: &(PathBuf, PathBuf)| {
            Certificate::load(directory.path(), Some(pair), "host", [127, 0, 0, 1].into())
        };
        let followed = load(&(certificate.clone(), key.clone())).unwrap();
        let current = chain_of;
        assert_eq!(current(&followed), current(&made));
        let stamp = followed.files.stamp();
        let (new_certificate, new_key) = given(other.path());
        // Half of it is not used.
        std::fs::write(&certificate, std::fs::read(&new_certificate).unwrap()).unwrap();
        let stamp = followed.look(stamp);
        assert_eq!(current(&followed), current(&made));
        std::fs::write(&key, std::fs::read(&new_key).unwrap()).unwrap();
        followed.look(stamp);
        assert_eq!(current(&followed), current(&new));
    }

    /// It is told some time before its end, more loudly after it, and not at all for long before.
    #[test]
    fn its_end_is_told_in_time() {
        const DAY_S: u64 = 24 * 3600;
        let directory = tempfile::tempdir().unwrap();
        let made = own(directory.path());
        let validity = Validity::of(&chain_of(&made)[0]).unwrap();
        let good_s = validity.end_s - validity.begin_s;
        assert_eq!(good_s, OWN_VALID.as_secs() + DAY_S);
        let at = |now_s| {
            let alert = made.alert(now_s, None)?;
            let AlertFact::Certificate {
                end_s, is_over, by, ..
            } = alert.fact
            else {
                panic!("{alert:?}");
            };
            assert_eq!((end_s, by), (validity.end_s, CertificateBy::Server));
            Some((alert.severity, is_over))
        };
        let told_s = validity.end_s - 21 * DAY_S;
        assert_eq!(at(told_s - 1), None);
        assert_eq!(at(told_s), Some((AlertSeverity::Warning, false)));
        assert_eq!(
            at(validity.end_s + 1),
            Some((AlertSeverity::Critical, true))
        );
        let short = Validity {
            begin_s: 0,
            end_s: 6 * DAY_S,
        };
        assert_eq!(short.near_s(), 6 * DAY_S / 4);
        assert_eq!(Validity::of(&CertificateDer::from(vec![0x30, 0])), None);
    }

    /// A certificate that is not good keeps no server from starting, and is used once it is good.
    #[test]
    fn one_of_our_own_stands_in_for_a_wrong_one() {
        let directory = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let (own, new) = (own(directory.path()), own(other.path()));
        let pair = (other.path().join("given.pem"), other.path().join("key.pem"));
        std::fs::write(&pair.0, "nothing").unwrap();
        let address = [127, 0, 0, 1].into();
        let given = Certificate::load(directory.path(), Some(&pair), "host", address).unwrap();
        let current = chain_of;
        assert_eq!(current(&given), current(&own));
        let stamp = given.files.stamp();
        std::fs::copy(other.path().join("https-certificate.pem"), &pair.0).unwrap();
        std::fs::copy(other.path().join("https-key.pem"), &pair.1).unwrap();
        given.look(stamp);
        assert_eq!(current(&given), current(&new));
    }

    /// One that was got stays whatever becomes of the files, until it is given up.
    #[test]
    fn one_that_was_got_goes_before_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let (own, got) = (own(directory.path()), own(other.path()));
        let before = chain_of(&own);
        let read = |name| std::fs::read(other.path().join(name)).unwrap();
        let (chain, key) = (read("https-certificate.pem"), read("https-key.pem"));
        own.take(certified(&chain, &key).unwrap());
        assert_eq!(chain_of(&own), chain_of(&got));
        let report = own.report().unwrap();
        assert_eq!(report.by, CertificateBy::Acme);
        assert_eq!(
            report.names,
            ["host", "localhost", "127.0.0.1", "::1", "192.0.2.1"]
        );
        assert!(report.issuer.contains("Millpond on host"), "{report:?}");
        let stamp = own.files.stamp();
        std::fs::remove_file(directory.path().join("https-key.pem")).unwrap();
        own.look(stamp);
        assert_eq!(chain_of(&own), chain_of(&got));
        own.take_own().unwrap();
        assert_ne!(chain_of(&own), chain_of(&got));
        assert_ne!(chain_of(&own), before, "its key was lost");
        assert_eq!(own.report().unwrap().by, CertificateBy::Server);
        // Halves of two are no certificate.
        let (is_key, why) = certified(b"", &key).unwrap_err();
        assert!(!is_key && why.contains("none in PEM"), "{why}");
        let key = std::fs::read(directory.path().join("https-key.pem")).unwrap();
        assert!(!certified(&chain, &key).unwrap_err().0);
        assert!(certified(&chain, b"nothing").unwrap_err().0);
    }
}
