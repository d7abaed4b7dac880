//! One certificate, from the account to the chain (RFC 8555, section 7).
//!
//! The account is made with the first order at a directory, and kept with its key in
//! `acme-account.json` before it is used. A crash before that leaves an account at the authority
//! that nobody uses. One that the authority does not know any more is made anew.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::{ACME_DIRECTORY, AcmeSettings, Secret};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount,
    NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde::{Deserialize, Serialize};

use super::answers::Answers;
use super::http::Client;

/// How long an authority may take to see the proofs, and then to sign.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long after the question it is asked the first time how far it is.
const ASKED_AFTER: Duration = Duration::from_millis(500);

/// What kind of problem it is that an authority does not know an account (RFC 8555, section 6.7).
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// A certificate as it was got, with its key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Got {
    /// URL of the directory that it is from.
    pub(super) directory: String,
    /// For what it was asked for.
    pub(super) names: Vec<String>,
    /// It, and those above it, in PEM.
    pub(super) chain: String,
    /// Its key in PEM.
    pub(super) key: Secret,
}

/// An account at an authority.
#[derive(Serialize, Deserialize)]
struct Kept {
    directory: String,
    contact: Option<String>,
    credentials: AccountCredentials,
}

/// The directory that settings name.
pub(super) fn directory(settings: &AcmeSettings) -> String {
    let directory = settings.directory.as_deref();
    directory.unwrap_or(ACME_DIRECTORY).to_owned()
}

/// An error with what is behind it, in one line.
fn told(error: &Error) -> String {
    let mut text = match error {
        // Its own words begin with what is said here anyhow.
        Error::Api(problem) => match &problem.detail {
            Some(detail) => detail.clone(),
            None => problem.r#type.clone().unwrap_or_default(),
        },
        error => error.to_string(),
    };
    if let Error::Api(problem) = error {
        for one in &problem.subproblems {
            text = format!("{text}; {one}");
        }
    }
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text.replace(['\r', '\n'], " ")
}

/// Gets certificates for one set of settings.
pub(super) struct Buyer<'a> {
    settings: &'a AcmeSettings,
    directory: String,
    account_path: PathBuf,
}

impl<'a> Buyer<'a> {
    /// One that keeps its account in this directory.
    pub(super) fn new(settings: &'a AcmeSettings, state: &Path) -> Self {
        Self {
            settings,
            directory: directory(settings),
            account_path: state.join("acme-account.json"),
        }
    }

    fn failed(&self, doing: &str, error: &Error) -> String {
        format!("{} {doing}: {}", self.directory, told(error))
    }

    async fn client(&self) -> Result<Client, String> {
        let ca_file = self.settings.ca_file.as_ref().map(PathBuf::from);
        let made = tokio::task::spawn_blocking(move || Client::new(ca_file.as_deref()));
        made.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn keep(&self, kept: &Kept) -> Result<(), String> {
        let written = device::private::write_json(&self.account_path, kept);
        let written = written.map_err(device::private::FileError::write(&self.account_path));
        written.map_err(|error| error.to_string())
    }

    async fn make_account(&self) -> Result<Account, String> {
        let contact = self.settings.contact.as_ref();
        let contact = contact.map(|address| format!("mailto:{address}"));
        let contacts: Vec<&str> = contact.iter().map(String::as_str).collect();
        let account = NewAccount {
            contact: &contacts,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let http = Box::new(self.client().await?);
        let made = Account::builder_with_http(http).create(&account, self.directory.clone(), None);
        let (account, credentials) = made
            .await
            .map_err(|error| self.failed("gives no account", &error))?;
        self.keep(&Kept {
            directory: self.directory.clone(),
            contact: self.settings.contact.clone(),
            credentials,
        })?;
        Ok(account)
    }

    async fn account(&self) -> Result<Account, String> {
        let kept = device::private::read_json::<Kept>(&self.account_path, "keys of an account");
        let kept = kept.map_err(|error| error.to_string())?;
        let Some(mut kept) = kept.filter(|kept| kept.directory == self.directory) else {
            return self.make_account().await;
        };
        let stored = serde_json::to_value(&kept.credentials);
        let http = Box::new(self.client().await?);
        let known = Account::builder_with_http(http).from_credentials(kept.credentials);
        let account = known
            .await
            .map_err(|error| self.failed("does not answer", &error))?;
        if kept.contact != self.settings.contact {
            let contact = self.settings.contact.as_ref();
            let contact = contact.map(|address| format!("mailto:{address}"));
            let contacts: Vec<&str> = contact.iter().map(String::as_str).collect();
            match account.update_contacts(&contacts).await {
                Ok(()) => {}
                Err(error) if is_no_account(&error) => return self.make_account().await,
                Err(error) => return Err(self.failed("does not take the address", &error)),
            }
            let credentials = stored.and_then(serde_json::from_value);
            kept = Kept {
                directory: self.directory.clone(),
                contact: self.settings.contact.clone(),
                credentials: credentials.map_err(|error| error.to_string())?,
            };
            self.keep(&kept)?;
        }
        Ok(account)
    }

    async fn order(&self) -> Result<Order, String> {
        let names = self.settings.names.iter();
        let identifiers: Vec<Identifier> = names
            .map(|name| match name.parse::<IpAddr>() {
                Ok(address) => Identifier::Ip(address),
                Err(_) => Identifier::Dns(name.clone()),
            })
            .collect();
        let wanted = NewOrder::new(&identifiers);
        let ordered = match self.account().await?.new_order(&wanted).await {
            Err(error) if is_no_account(&error) => {
                tracing::warn!("{} knows the account no more; one is made", self.directory);
                self.make_account().await?.new_order(&wanted).await
            }
            ordered => ordered,
        };
        ordered.map_err(|error| self.failed("takes no order", &error))
    }

    /// Gets one.
    ///
    /// # Errors
    /// What went wrong, and where there is something to do, what.
    pub(super) async fn get(&self) -> Result<Got, String> {
        let listen = self.settings.listen.as_ref();
        let listen = listen
            .map(|address| address.parse::<SocketAddr>())
            .transpose();
        let listen = listen.map_err(|error| format!("the address to listen at: {error}"))?;
        let mut order = self.order().await?;
        let answers = Answers::listen(listen).await?;
        self.prove(&mut order, &answers).await?;
        let policy = RetryPolicy::new()
            .initial_delay(ASKED_AFTER)
            .timeout(PATIENCE);
        match order.poll_ready(&policy).await {
            Ok(OrderStatus::Ready) => {}
            polled => return Err(self.refusal(&mut order, polled.err()).await),
        }
        let (request, key) = request(&self.settings.names)?;
        let finalized = order.finalize_csr(&request).await;
        finalized.map_err(|error| self.failed("does not sign", &error))?;
        let chain = order.poll_certificate(&policy).await;
        let chain = chain.map_err(|error| self.failed("does not sign", &error))?;
        Ok(Got {
            directory: self.directory.clone(),
            names: self.settings.names.clone(),
            chain,
            key,
        })
    }

    /// Has the proofs there, and says so.
    async fn prove(&self, order: &mut Order, answers: &Answers) -> Result<(), String> {
        let failed = |error: &Error| self.failed("takes no proof", error);
        let mut all = order.authorizations();
        while let Some(one) = all.next().await {
            let mut one = one.map_err(|error| failed(&error))?;
            if one.status == AuthorizationStatus::Valid {
                continue;
            }
            let name = one.identifier().to_string();
            let Some(mut challenge) = one.challenge(ChallengeType::Http01) else {
                return Err(format!(
                    "{} wants a proof for {name} that the server cannot give; it can give \
                     'http-01' alone",
                    self.directory
                ));
            };
            answers.add(&challenge.token, challenge.key_authorization().as_str());
            // One that answers quickly tells here already what it saw.
            challenge.set_ready().await.map_err(|error| match error {
                Error::Api(problem) if is_about_proof(problem.r#type.as_deref()) => {
                    let why = problem.detail.clone();
                    let why = why.unwrap_or_else(|| problem.to_string());
                    self.not_seen(&format!("{name}: {why}"))
                }
                error => failed(&error),
            })?;
        }
        Ok(())
    }

    /// Why the proofs did not do: what the authority saw.
    async fn refusal(&self, order: &mut Order, error: Option<Error>) -> String {
        let mut whys = Vec::new();
        let mut all = order.authorizations();
        while let Some(Ok(mut one)) = all.next().await {
            let Ok(state) = one.refresh().await else {
                break;
            };
            let name = state.identifier().to_string();
            let problems = state.challenges.iter().filter_map(|one| one.error.as_ref());
            whys.extend(problems.map(|problem| {
                let why = problem
                    .detail
                    .clone()
                    .unwrap_or_else(|| problem.to_string());
                format!("{name}: {why}")
            }));
        }
        if let (true, Some(error)) = (whys.is_empty(), error) {
            return self.failed("does not see the proofs", &error);
        }
        self.not_seen(&whys.join("; "))
    }

    fn not_seen(&self, why: &str) -> String {
        format!(
            "{} does not see the proofs: {why}; port 80 of each name has to lead to this server",
            self.directory
        )
    }
}

/// Whether this kind of problem is one of looking for a proof (RFC 8555 section 6.7).
fn is_about_proof(kind: Option<&str>) -> bool {
    let name = kind.and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:"));
    matches!(
        name,
        Some("connection" | "dns" | "incorrectResponse" | "tls" | "unauthorized")
    )
}

fn is_no_account(error: &Error) -> bool {
    matches!(error, Error::Api(problem) if problem.r#type.as_deref() == Some(NO_ACCOUNT))
}

/// A new key in PEM, and the request that is signed with it, in DER.
fn request(names: &[String]) -> Result<(Vec<u8>, Secret), String> {
    let failed = |error: rcgen::Error| format!("a key cannot be made: {error}");
    let key = KeyPair::generate().map_err(failed)?;
    let mut parameters = CertificateParams::new(names).map_err(failed)?;
    parameters.distinguished_name = DistinguishedName::new();
    let request = parameters.serialize_request(&key).map_err(failed)?;
    Ok((request.der().to_vec(), Secret(key.serialize_pem())))
}
