//! Goal: what a UPS tells becomes what is to be done, no sooner and no later. Method: readings and
//! times for [`Watch`]; a small `upsd` for the client.

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::*;

fn reading(status: &str) -> Reading {
    Reading {
        status: status.split_whitespace().map(str::to_owned).collect(),
        ..Reading::default()
    }
}

/// What is heard at these seconds: what is done, and how it is then. No status is no answer.
fn told(watch: &mut Watch, at_s: u64, status: &str) -> (Option<Act>, UpsCondition) {
    let now = Duration::from_secs(at_s);
    let told = match status {
        "" => Err("no connection".to_owned()),
        status => Ok(reading(status)),
    };
    (watch.hear(now, told), watch.condition(now))
}

#[test]
fn pools_rest_when_the_battery_is_nearly_empty_and_return_with_power() {
    use UpsCondition::{LowBattery, OnBattery, Online};
    let mut watch = Watch::default();
    assert_eq!(told(&mut watch, 5, "OL CHRG"), (None, Online));
    assert_eq!(told(&mut watch, 10, "OB DISCHRG"), (None, OnBattery));
    // Once may be a moment of switching.
    assert_eq!(told(&mut watch, 15, "OB LB"), (None, OnBattery));
    assert_eq!(told(&mut watch, 20, "OB"), (None, OnBattery));
    assert_eq!(told(&mut watch, 25, "OB LB"), (None, OnBattery));
    assert_eq!(told(&mut watch, 30, "OB LB"), (Some(Act::Rest), LowBattery));
    assert_eq!(told(&mut watch, 35, "OB LB"), (None, LowBattery));
    // Power comes, goes and comes again; for a minute it has to stay.
    assert_eq!(told(&mut watch, 40, "OL"), (None, LowBattery));
    assert_eq!(told(&mut watch, 95, "OL LB"), (None, LowBattery));
    assert_eq!(told(&mut watch, 100, "OL"), (None, LowBattery));
    assert_eq!(told(&mut watch, 130, ""), (None, LowBattery));
    assert_eq!(told(&mut watch, 135, "OL"), (None, LowBattery));
    assert_eq!(told(&mut watch, 194, "OL"), (None, LowBattery));
    assert_eq!(told(&mut watch, 195, "OL"), (Some(Act::Return), Online));
    assert_eq!(told(&mut watch, 200, "OL"), (None, Online));
}

#[test]
fn a_shutdown_that_is_announced_is_not_waited_for() {
    let mut watch = Watch::default();
    let (act, _) = told(&mut watch, 5, "FSD OL");
    assert_eq!(act, Some(Act::Rest));
    // It stays so until upsd starts anew.
    assert_eq!(told(&mut watch, 500, "FSD OL").0, None);
    assert!(watch.is_resting);
}

#[test]
fn one_that_is_measured_is_not_empty() {
    let mut watch = Watch::default();
    for at_s in 0..20 {
        let (act, _) = told(&mut watch, at_s * 5, "OB LB CAL");
        assert_eq!(act, None);
    }
}

#[test]
fn silence_is_bad_on_battery_alone() {
    use UpsCondition::{LowBattery, NoAnswer, OnBattery, Online, Unknown};
    let mut watch = Watch::default();
    assert_eq!(told(&mut watch, 5, ""), (None, Unknown));
    assert_eq!(told(&mut watch, 120, ""), (None, NoAnswer));
    assert_eq!(told(&mut watch, 125, "OL"), (None, Online));
    assert_eq!(told(&mut watch, 244, ""), (None, Online));
    assert_eq!(told(&mut watch, 245, ""), (None, NoAnswer));
    assert_eq!(told(&mut watch, 100_000, ""), (None, NoAnswer));
    assert_eq!(told(&mut watch, 100_005, "OB"), (None, OnBattery));
    assert_eq!(told(&mut watch, 100_010, ""), (None, OnBattery));
    assert_eq!(told(&mut watch, 100_020, ""), (Some(Act::Rest), LowBattery));
    // The battery is replaced some time.
    let mut watch = Watch::default();
    let (act, condition) = told(&mut watch, 5, "OL RB");
    assert_eq!((act, condition), (None, UpsCondition::ReplaceBattery));
}

/// An `upsd` that answers lines with these texts, in any order; nothing is a connection that ends.
async fn upsd(answers: &'static [(&'static str, &'static str)]) -> UpsAddress {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                    break;
                }
                let found = answers.iter().find(|(asked, _)| *asked == line.trim_end());
                let answer = found.map_or("ERR UNKNOWN-COMMAND\n", |(_, answer)| *answer);
                if answer.is_empty() || stream.write_all(answer.as_bytes()).await.is_err() {
                    break;
                }
            }
        }
    });
    format!("ups@{address}").parse().unwrap()
}

#[tokio::test]
async fn it_is_asked_as_nut_asks() {
    let address = upsd(&[
        (
            "GET VAR ups ups.status",
            "VAR ups ups.status \"OB DISCHRG\"\n",
        ),
        (
            "GET VAR ups battery.charge",
            "VAR ups battery.charge \"87.5\"\n",
        ),
        ("GET VAR ups battery.runtime", "ERR VAR-NOT-SUPPORTED\n"),
    ])
    .await;
    let mut client = None;
    let mut wanted = reading("OB DISCHRG");
    wanted.charge_percent = Some(87);
    for _ in 0..2 {
        assert_eq!(ask(&address, &mut client).await, Ok(wanted.clone()));
        assert!(client.is_some(), "the connection is used again");
    }
}

#[tokio::test]
async fn what_is_wrong_is_told() {
    let address = upsd(&[
        ("GET VAR ups ups.status", "ERR UNKNOWN-UPS\n"),
        (
            "LIST UPS",
            "BEGIN LIST UPS\nUPS eaton \"in the \\\"cellar\\\"\"\nUPS apc \"\"\nEND LIST UPS\n",
        ),
    ])
    .await;
    let mut client = None;
    let said = ask(&address, &mut client).await.unwrap_err();
    assert_eq!(said, "upsd knows no UPS 'ups', only eaton, apc");
    let address = upsd(&[("GET VAR ups ups.status", "ERR DATA-STALE\n")]).await;
    let said = ask(&address, &mut None).await.unwrap_err();
    assert_eq!(said, "upsd says DATA-STALE");
    for answer in [
        "",
        "220 smtp\n",
        "VAR other ups.status \"OL\"\n",
        "VAR ups ups.status \"OL\n",
    ] {
        let answers: &'static [(&str, &str)] =
            Box::leak(Box::new([("GET VAR ups ups.status", answer)]));
        let address = upsd(answers).await;
        let mut client = None;
        assert!(ask(&address, &mut client).await.is_err(), "{answer}");
        assert!(client.is_none(), "a new connection comes next: {answer}");
    }
    // A line without an end.
    let long: &'static str = Box::leak("x".repeat(10_000).into_boxed_str());
    let answers: &'static [(&str, &str)] = Box::leak(Box::new([("GET VAR ups ups.status", long)]));
    let address = upsd(answers).await;
    assert!(ask(&address, &mut None).await.is_err());
}

#[tokio::test]
async fn at_the_start_an_empty_battery_is_noticed_before_pools_come() {
    let low = upsd(&[("GET VAR ups ups.status", "VAR ups ups.status \"OB LB\"\n")]).await;
    let ups = Ups::new(Some(low));
    assert!(is_empty_at_start(&ups).await && ups.is_resting());
    let alert = ups.alert().unwrap();
    assert_eq!(
        (alert.rule, alert.severity),
        (AlertRule::Ups, AlertSeverity::Critical)
    );
    let fine = upsd(&[("GET VAR ups ups.status", "VAR ups ups.status \"OL\"\n")]).await;
    let ups = Ups::new(Some(fine));
    assert!(!is_empty_at_start(&ups).await && ups.alert().is_none());
    let nobody: UpsAddress = "ups@127.0.0.1:1".parse().unwrap();
    assert!(!is_empty_at_start(&Ups::new(Some(nobody))).await);
    assert!(!is_empty_at_start(&Ups::new(None)).await);
}
