//! Sends messages: by SMTP (RFC 5321), and by HTTP POST to web hooks. Blocks, for a minute or so
//! where nobody answers.
//!
//! What a web hook gets is the JSON of a [`Message`] and the host. Where there is a key, the header
//! `X-Millpond-Signature` is `sha256=` and the HMAC of the body in hexadecimal digits, so that the
//! other side knows who it is from.

use std::time::Duration;

use api::MailTls;
use hmac::{Hmac, KeyInit, Mac};
use lettre::message::header::ContentType;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::{SmtpTransport, Transport};
use serde::Serialize;
use sha2::Sha256;
use ureq::tls::{RootCerts, TlsConfig};

use crate::outbox::{Problem, name_of};
use crate::settings::Kept;
use crate::{Message, Reason};

/// How long a mail server or a web hook may take for each step.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Sends a message by a channel ([`Kept::channels`]).
///
/// # Errors
/// What went wrong.
pub fn send(kept: &Kept, host: &str, channel: &str, message: &Message) -> Result<(), Problem> {
    match channel {
        "mail" => by_mail(kept, host, message),
        url => by_webhook(kept, host, url, message),
    }
}

fn by_mail(kept: &Kept, host: &str, message: &Message) -> Result<(), Problem> {
    let settings = kept.settings();
    let Some(server) = &settings.smtp_host else {
        return Err(lasting(
            "there is no mail server in the settings".to_owned(),
        ));
    };
    let failed =
        |error: &dyn std::error::Error| lasting(told(&format!("mail server {server}"), error));
    let from = settings.from.clone();
    let from = from.unwrap_or_else(|| format!("millpond@{host}"));
    let from = from.parse().map_err(|error| {
        lasting(format!(
            "'{from}' is not a sender ({error}); set one with 'millpond alerts set --from'"
        ))
    })?;
    let mut mail = lettre::Message::builder()
        .from(from)
        .subject(message.subject.clone())
        .header(ContentType::TEXT_PLAIN);
    for address in &settings.to {
        let address = address.parse();
        mail = mail.to(address.map_err(|error| failed(&error))?);
    }
    let mail = mail.body(message.text.clone());
    let mail = mail.map_err(|error| failed(&error))?;
    let has_user = settings.smtp_user.is_some();
    let port = settings.smtp_port.unwrap_or(match settings.smtp_tls {
        MailTls::Tls => 465,
        _ if has_user => 587,
        _ => 25,
    });
    let parameters = || TlsParameters::new(server.clone()).map_err(|error| failed(&error));
    let tls = match settings.smtp_tls {
        MailTls::None => Tls::None,
        MailTls::Tls => Tls::Wrapper(parameters()?),
        MailTls::Starttls => Tls::Required(parameters()?),
        MailTls::Auto if port == 465 => Tls::Wrapper(parameters()?),
        // A password is not sent for all to read.
        MailTls::Auto if has_user => Tls::Required(parameters()?),
        MailTls::Auto => Tls::Opportunistic(parameters()?),
    };
    let mut transport = SmtpTransport::builder_dangerous(server)
        .port(port)
        .tls(tls)
        .timeout(Some(TIMEOUT));
    if let Some(user) = &settings.smtp_user {
        let password = kept.password().unwrap_or_default().to_owned();
        transport = transport.credentials(Credentials::new(user.clone(), password));
    }
    let sent = transport.build().send(&mail);
    sent.map(|_| ()).map_err(|error| Problem {
        is_refusal: error.is_permanent(),
        ..failed(&error)
    })
}

/// What a web hook gets.
#[derive(Serialize)]
struct Body<'a> {
    host: &'a str,
    #[serde(flatten)]
    message: &'a Message,
}

fn by_webhook(kept: &Kept, host: &str, url: &str, message: &Message) -> Result<(), Problem> {
    let name = name_of(url);
    // The rest of the address may be a secret.
    let failed = |error: &dyn std::error::Error| lasting(told(&name, error).replace(url, &name));
    let body = serde_json::to_vec(&Body { host, message });
    let body = body.map_err(|error| failed(&error))?;
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .max_redirects(0)
        .tls_config(
            TlsConfig::builder()
                .root_certs(RootCerts::PlatformVerifier)
                .build(),
        )
        .http_status_as_error(false)
        .build();
    let mut request = ureq::Agent::new_with_config(agent)
        .post(url)
        .content_type("application/json");
    if let Some(key) = kept.webhook_key() {
        let mac = Hmac::<Sha256>::new_from_slice(key.as_bytes());
        let mut mac = mac.map_err(|error| failed(&error))?;
        mac.update(&body);
        let digits: String = mac
            .finalize()
            .into_bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        request = request.header("X-Millpond-Signature", format!("sha256={digits}"));
    }
    let answer = request.send(&body[..]).map_err(|error| failed(&error))?;
    let status = answer.status();
    match status.is_success() {
        true => Ok(()),
        false => Err(Problem {
            text: format!("{name}: the answer is {status}"),
            // Asked again, it might answer otherwise to these.
            is_refusal: status.is_client_error() && ![408, 429].contains(&status.as_u16()),
        }),
    }
}

/// What is to be tried again.
fn lasting(text: String) -> Problem {
    Problem {
        text,
        is_refusal: false,
    }
}

/// An error with what is behind it, in one line.
fn told(who: &str, error: &dyn std::error::Error) -> String {
    let mut text = format!("{who}: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text.replace(['\r', '\n'], " ")
}

/// A message that shows whether messages arrive.
pub fn test_message(host: &str, now_s: u64) -> Message {
    Message {
        time_s: now_s,
        reason: Reason::Test,
        severity: api::AlertSeverity::Info,
        subject: format!("[{host}] a test"),
        text: format!(
            "Millpond on {host} was asked to show that its alerts arrive here. They do.\n"
        ),
        alert: None,
    }
}
