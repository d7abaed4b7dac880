//! `millpond ups`: the UPS, and how it is.

use api::{UpsCondition, UpsStatus};
use clap::Args;

use crate::client::Client;

/// The UPS, and how it is.
#[derive(Debug, Args)]
pub struct Ups {
    /// Print JSON
    #[arg(short, long)]
    json: bool,
}

impl Ups {
    /// Does it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let reply = client.call(&UpsStatus {})?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&reply)?);
            return Ok(());
        }
        let Some(ups) = reply.ups else {
            println!("the server was given no UPS; its option --ups NAME@HOST does that");
            return Ok(());
        };
        println!("{}: {}", ups.name, condition(ups.condition));
        if !ups.status.is_empty() {
            println!("status:   {}", ups.status.join(" "));
        }
        if let Some(percent) = ups.charge_percent {
            println!("charge:   {percent}%");
        }
        if let Some(seconds) = ups.runtime_s {
            println!("lasts:    {} min", seconds / 60);
        }
        if let Some(problem) = &ups.problem {
            println!("problem:  {problem}");
        }
        if !ups.not_exported.is_empty() {
            let names = ups.not_exported.join(", ");
            println!("not exported yet: {names}; it is tried again");
        }
        if ups.are_pools_exported {
            println!("All pools are exported until there has been power for a minute.");
        }
        Ok(())
    }
}

fn condition(condition: UpsCondition) -> &'static str {
    match condition {
        UpsCondition::Unknown => "nothing is known yet",
        UpsCondition::Online => "there is power",
        UpsCondition::ReplaceBattery => "its battery is to be replaced",
        UpsCondition::NoAnswer => "it does not answer",
        UpsCondition::OnBattery => "it runs on its battery",
        UpsCondition::LowBattery => "its battery is nearly empty",
    }
}
