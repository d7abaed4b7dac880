//! `millpond certificate`: the certificate of the console, and how it is got.

use ::alerts::words::time;
use anyhow::bail;
use api::{
    ACME_DIRECTORY, AcmeSettings, CertificateBy, CertificateRenew, CertificateSet,
    CertificateStatus,
};
use clap::{Args, Subcommand};

use crate::client::Client;

/// The certificate of the console, and how it is got.
#[derive(Debug, Args)]
pub struct Certificate {
    /// Print JSON
    #[arg(short, long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Get it from an authority by ACME, and renew it; this agrees to the authority's terms
    Acme(Acme),
    /// Use one that the server makes and signs itself
    Own,
    /// Renew it now
    Renew,
}

#[derive(Debug, Args)]
struct Acme {
    /// Names of this host, or addresses, that the certificate is for
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Mail address at which the authority reaches you
    #[arg(long, value_name = "ADDRESS")]
    contact: Option<String>,
    /// URL of the authority's directory (default: that of Let's Encrypt)
    #[arg(long, value_name = "URL")]
    directory: Option<String>,
    /// File of certificates in PEM that the directory's own is checked with (default: those that
    /// the system trusts)
    #[arg(long, value_name = "FILE")]
    ca_file: Option<std::path::PathBuf>,
    /// Where the authority finds the proof that the names are this host's; port 80 of each name
    /// has to lead there (default: port 80 of every address)
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<std::net::SocketAddr>,
}

impl Acme {
    fn settings(self) -> anyhow::Result<AcmeSettings> {
        let ca_file = self.ca_file.map(std::path::absolute).transpose()?;
        Ok(AcmeSettings {
            names: self.names,
            contact: self.contact,
            directory: self.directory,
            ca_file: ca_file.map(|file| file.display().to_string()),
            listen: self.listen.map(|address| address.to_string()),
        })
    }
}

impl Certificate {
    /// Does it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        match self.command {
            None => return show(client, self.json),
            Some(Command::Acme(acme)) => {
                let acme = Some(acme.settings()?);
                client.call(&CertificateSet { acme })?;
                renew(client, true)?;
            }
            Some(Command::Own) => {
                client.call(&CertificateSet { acme: None })?;
                return Ok(());
            }
            Some(Command::Renew) => {
                renew(client, false)?;
            }
        }
        show(client, self.json)
    }
}

fn renew(client: &Client, only_if_due: bool) -> anyhow::Result<()> {
    let reply = client.call(&CertificateRenew { only_if_due })?;
    match reply.problem {
        None => Ok(()),
        Some(problem) => bail!("no certificate was got: {problem}\nIt is tried again by itself."),
    }
}

fn show(client: &Client, json: bool) -> anyhow::Result<()> {
    let reply = client.call(&CertificateStatus {})?;
    if json {
        println!("{}", serde_json::to_string_pretty(&reply)?);
        return Ok(());
    }
    match &reply.certificate {
        None => println!("the console is not offered; the server's option --https does that"),
        Some(one) => {
            let by = match one.by {
                CertificateBy::Server => "made by the server itself",
                CertificateBy::Person => "given by --certificate",
                CertificateBy::Acme => "got by ACME",
            };
            println!("names:      {}", one.names.join(", "));
            println!("issuer:     {} ({by})", one.issuer);
            println!("good until: {}", time(one.end_s));
        }
    }
    let Some(acme) = &reply.acme else {
        return Ok(());
    };
    let directory = acme.directory.as_deref().unwrap_or(ACME_DIRECTORY);
    println!("authority:  {directory}");
    println!("for:        {}", acme.names.join(", "));
    if let Some(contact) = &acme.contact {
        println!("contact:    {contact}");
    }
    let listen = acme.listen.as_deref().unwrap_or("port 80 of every address");
    println!("proofs at:  {listen}");
    if reply.is_given {
        println!("None is got: the server was started with another one (--certificate).");
        return Ok(());
    }
    if let Some(problem) = &reply.progress.problem {
        println!("problem:    {problem}");
    }
    match (reply.progress.is_working, reply.progress.next_s) {
        (true, _) => println!("One is being got now."),
        (false, Some(next_s)) if next_s > 0 => println!("next:       {}", time(next_s)),
        _ => {}
    }
    Ok(())
}
