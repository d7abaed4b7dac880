//! `millpond console`: where the console is.

use anyhow::bail;
use api::ConsoleLink;

use crate::client::Client;

/// Prints the link; while there is no user, one that makes the first.
pub fn run(client: &Client) -> anyhow::Result<()> {
    let link = client.call(&ConsoleLink {})?;
    let Some(url) = link.url else {
        bail!(
            "the server does not listen for the console; stop it with 'millpond down' and start it \
             without '--https off'"
        );
    };
    match link.setup_token {
        Some(token) => {
            println!("{url}#setup={}", token.0);
            eprintln!("Make the first user there; the link is good for once.");
        }
        None => println!("{url}"),
    }
    if let Some(fingerprint) = link.fingerprint {
        eprintln!("Its certificate is sha256:{fingerprint}.");
    }
    Ok(())
}
