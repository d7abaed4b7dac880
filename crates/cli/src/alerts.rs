//! `millpond alerts`: what is wrong, and who is told of it.

use ::alerts::words;
use anyhow::{anyhow, bail};
use api::{
    AlertList, AlertRule, AlertSettings, AlertSettingsGet, AlertSettingsSet, AlertSeverity,
    AlertTest, MailTls,
};
use clap::{Args, Subcommand, ValueEnum};

use crate::client::Client;
use crate::prompt;

/// What is wrong, and who is told of it.
#[derive(Debug, Args)]
pub struct Alerts {
    /// Print JSON
    #[arg(short, long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show who is told, and of what
    Settings,
    /// Change who is told, and of what; what is not given stays
    Set(Box<Set>),
    /// Send a message to see whether it arrives
    Test,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Encryption {
    Auto,
    Tls,
    Starttls,
    None,
}

#[derive(Debug, Args)]
struct Set {
    /// Mail server
    #[arg(long, value_name = "HOST[:PORT]")]
    smtp: Option<String>,
    /// How the connection to it is encrypted
    #[arg(long)]
    tls: Option<Encryption>,
    /// User to log in as; the password is asked for, or read from standard input
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Sender
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
    /// Address; may be repeated, and replaces all there were; an empty one leaves none
    #[arg(long, value_name = "ADDRESS")]
    mail: Vec<String>,
    /// Web hook; may be repeated, and replaces all there were; an empty one leaves none
    #[arg(long, value_name = "URL")]
    webhook: Vec<String>,
    /// Sign what web hooks get; the key is asked for, or read from standard input
    #[arg(long, conflicts_with = "user")]
    webhook_key: bool,
    /// Be told of this again
    #[arg(long, value_name = "RULE")]
    on: Vec<String>,
    /// Do not be told of this: pool-suspended, pool-health, data-errors, device-state,
    /// device-errors, space, disk-health, disk-sectors, disk-temperature, disk-wear, disk-test,
    /// scrub, resilver, schedule, replication, certificate, ups, report
    #[arg(long, value_name = "RULE")]
    off: Vec<String>,
    /// How full a pool is to be, in percent, for a warning and for a louder one
    #[arg(long, value_name = "LOW,HIGH")]
    space: Option<String>,
    /// From how many degrees Celsius on a disk is too warm, or 'auto': its own limit, or else 60
    /// for one that turns and 70 for another
    #[arg(long, value_name = "CELSIUS", value_parser = celsius)]
    temperature: Option<Celsius>,
    /// After how many hours what still stands is told again; 0 is never
    #[arg(long, value_name = "HOURS")]
    remind: Option<u64>,
}

/// A temperature; none where each disk has its own.
#[derive(Clone, Copy, Debug)]
struct Celsius(Option<i64>);

fn celsius(text: &str) -> Result<Celsius, String> {
    match text {
        "auto" => Ok(Celsius(None)),
        number => match number.parse() {
            Ok(number) => Ok(Celsius(Some(number))),
            Err(_) => Err("write degrees Celsius, such as 55, or 'auto'".to_owned()),
        },
    }
}

fn rule(name: &str) -> anyhow::Result<AlertRule> {
    let mut all = AlertRule::ALL.into_iter();
    all.find(|rule| rule.name() == name).ok_or_else(|| {
        let names: Vec<&str> = AlertRule::ALL.iter().map(|rule| rule.name()).collect();
        anyhow!("there is no rule '{name}', only {}", names.join(", "))
    })
}

impl Set {
    fn apply(&self, settings: &mut AlertSettings) -> anyhow::Result<()> {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let all = |texts: &[String]| texts.iter().filter_map(|text| some(text)).collect();
        if let Some(server) = &self.smtp {
            let (host, port) = match server.rsplit_once(':') {
                // An address of version 6 has colons of its own.
                Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                    let port = port.parse();
                    (
                        host,
                        Some(port.map_err(|_| anyhow!("'{server}' has no port"))?),
                    )
                }
                _ => (server.as_str(), None),
            };
            settings.smtp_host = some(host.trim_start_matches('[').trim_end_matches(']'));
            settings.smtp_port = port;
        }
        if let Some(tls) = self.tls {
            settings.smtp_tls = match tls {
                Encryption::Auto => MailTls::Auto,
                Encryption::Tls => MailTls::Tls,
                Encryption::Starttls => MailTls::Starttls,
                Encryption::None => MailTls::None,
            };
        }
        if let Some(user) = &self.user {
            settings.smtp_user = some(user);
        }
        if let Some(from) = &self.from {
            settings.from = some(from);
        }
        if !self.mail.is_empty() {
            settings.to = all(&self.mail);
        }
        if !self.webhook.is_empty() {
            settings.webhooks = all(&self.webhook);
        }
        for name in &self.on {
            settings.off.remove(&rule(name)?);
        }
        for name in &self.off {
            settings.off.insert(rule(name)?);
        }
        if let Some(space) = &self.space {
            let percent = |text: &str| text.trim().trim_end_matches('%').parse().ok();
            let both = space.split_once(',');
            let both = both.and_then(|(low, high)| Some((percent(low)?, percent(high)?)));
            settings.space_percent = both.ok_or_else(|| anyhow!("'{space}' is not as in 80,90"))?;
        }
        if let Some(Celsius(celsius)) = self.temperature {
            settings.disk_temperature_c = celsius;
        }
        if let Some(hours) = self.remind {
            settings.remind_hours = hours;
        }
        Ok(())
    }
}

impl Alerts {
    /// Does it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        match &self.command {
            None => self.list(client),
            Some(Command::Settings) => self.settings(client),
            Some(Command::Set(set)) => {
                let mut settings = client.call(&AlertSettingsGet {})?.settings;
                set.apply(&mut settings)?;
                let password = match &set.user {
                    Some(user) if user.is_empty() => Some(api::Secret::default()),
                    Some(user) => Some(prompt::chosen(&format!("Password of '{user}':"))?),
                    None => None,
                };
                let webhook_key = match set.webhook_key {
                    true => Some(prompt::chosen("Key for web hooks:")?),
                    false => None,
                };
                client.call(&AlertSettingsSet {
                    settings,
                    password,
                    webhook_key,
                })?;
                Ok(())
            }
            Some(Command::Test) => test(client),
        }
    }

    fn list(&self, client: &Client) -> anyhow::Result<()> {
        let reply = client.call(&AlertList {})?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&reply)?);
            return Ok(());
        }
        if reply.alerts.is_empty() {
            println!("nothing is wrong");
        }
        for one in &reply.alerts {
            let severity = match one.alert.severity {
                AlertSeverity::Critical => "CRITICAL",
                AlertSeverity::Warning => "warning",
                AlertSeverity::Info => "info",
            };
            let since = words::time(one.since_s);
            println!("{severity}: {}, since {since}", words::line(&one.alert));
        }
        for waiting in &reply.waiting {
            let problem = waiting.problem.as_deref().unwrap_or("not tried yet");
            let since = words::time(waiting.since_s);
            println!("not sent since {since}: {} ({problem})", waiting.subject);
        }
        Ok(())
    }

    fn settings(&self, client: &Client) -> anyhow::Result<()> {
        let reply = client.call(&AlertSettingsGet {})?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&reply)?);
            return Ok(());
        }
        let settings = &reply.settings;
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let many = |values: &[String]| match values {
            [] => "-".to_owned(),
            values => values.join(", "),
        };
        let port = settings.smtp_port.map(|port| format!(":{port}"));
        println!(
            "mail server:  {}{}",
            text(&settings.smtp_host),
            port.unwrap_or_default()
        );
        println!("user:         {}", text(&settings.smtp_user));
        println!("sender:       {}", text(&settings.from));
        println!("addresses:    {}", many(&settings.to));
        println!("web hooks:    {}", many(&settings.webhooks));
        let off: Vec<String> = settings
            .off
            .iter()
            .map(|rule| rule.name().to_owned())
            .collect();
        println!("not told of:  {}", many(&off));
        let (low, high) = settings.space_percent;
        println!("space:        {low}%, {high}%");
        match settings.disk_temperature_c {
            None => println!("temperature:  each disk's own limit"),
            Some(celsius) => println!("temperature:  {celsius} °C"),
        }
        match settings.remind_hours {
            0 => println!("told again:   never"),
            hours => println!("told again:   after {hours} hours"),
        }
        Ok(())
    }
}

fn test(client: &Client) -> anyhow::Result<()> {
    let reply = client.call(&AlertTest {})?;
    if reply.channels.is_empty() {
        bail!("nobody is told: 'millpond alerts set --smtp HOST --mail ADDRESS', or --webhook URL");
    }
    let mut failed = 0;
    for (channel, problem) in &reply.channels {
        match problem {
            None => println!("{channel}: sent"),
            Some(problem) => {
                failed += 1;
                eprintln!("{channel}: {problem}");
            }
        }
    }
    match failed {
        0 => Ok(()),
        _ => bail!("the test did not arrive everywhere"),
    }
}
