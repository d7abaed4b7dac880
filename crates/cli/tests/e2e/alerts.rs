//! Alerts: mails and web hooks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::harness::{MILLPOND, Server, text_of};

const LONG: Duration = Duration::from_secs(90);

/// A mail server that takes everything, at a port; mails as they came.
fn mail_server(port: u16) -> (u16, Receiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
            let mut say = |line: &str| stream.write_all(format!("{line}\r\n").as_bytes());
            let _ = say("220 test");
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|length| length > 0) {
                let word = line.split_whitespace().next().unwrap_or("").to_uppercase();
                let answered = match word.as_str() {
                    "DATA" => {
                        let _ = say("354 go on");
                        let mut mail = String::new();
                        let mut part = String::new();
                        while reader.read_line(&mut part).is_ok() && part != ".\r\n" {
                            mail += &std::mem::take(&mut part);
                        }
                        // Long lines are broken, with a sign for that (RFC 2045, section 6.7).
                        let _ = tell.send(mail.replace("=\r\n", ""));
                        say("250 taken")
                    }
                    "QUIT" => {
                        let _ = say("221 bye");
                        break;
                    }
                    _ => say("250 fine"),
                };
                if answered.is_err() {
                    break;
                }
                line.clear();
            }
        }
    });
    (port, told)
}

/// A web hook; heads and bodies of requests.
fn webhook() -> (u16, Receiver<(String, serde_json::Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
                    break;
                }
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a number");
                }
                head += &line;
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("all of it");
            let _ = tell.send((head, serde_json::from_slice(&body).expect("JSON")));
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
        }
    });
    (port, told)
}

/// Sets the key that web hooks know the server by.
fn set_key(server: &Server, key: &str) {
    let mut child = Command::new(MILLPOND)
        .args(["alerts", "set", "--webhook-key"])
        .env("MILLPOND_STATE", server.state())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("its input");
    writeln!(stdin, "{key}").expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text_of(&output));
}

/// Goal: who asked for it is told when a device is gone and when it is back, once each, by mail and
/// by web hook; also when the server was killed, or the mail server away.
#[test]
fn a_device_that_goes_is_told_of_and_that_it_is_back() {
    let mut server = Server::start();
    let disks = server.disks(2, 128 << 20);
    server.ok(&format!(
        "zpool create -m none tank mirror {}",
        disks.join(" ")
    ));
    assert_eq!(server.ok("alerts"), "nothing is wrong\n");
    let refused = server.fails("alerts test");
    assert!(refused.contains("nobody is told"), "{refused}");
    let refused = server.fails("alerts set --mail nobody --smtp localhost");
    assert!(refused.contains("not a mail address"), "{refused}");

    let (smtp, mails) = mail_server(0);
    let (hook, calls) = webhook();
    server.ok(&format!(
        "alerts set --smtp 127.0.0.1:{smtp} --mail ann@example.org --from nas@example.org \
         --webhook http://127.0.0.1:{hook}/told --off report"
    ));
    set_key(&server, "hush");
    assert!(!server.ok("alerts settings --json").contains("hush"));
    let sent = server.ok("alerts test");
    assert!(sent.contains("mail: sent"), "{sent}");
    let mail = mails.recv_timeout(LONG).expect("a mail");
    assert!(
        mail.contains("To: ann@example.org") && mail.contains("a test"),
        "{mail}"
    );
    let (head, call) = calls.recv_timeout(LONG).expect("a call");
    assert!(
        head.to_lowercase()
            .contains("x-millpond-signature: sha256="),
        "{head}"
    );
    assert_eq!(call["reason"], "test");

    // A device goes: both are told, once, in the words that everybody gets who asks.
    std::fs::rename(&disks[1], format!("{}.away", disks[1])).expect("moved");
    server.ok("zpool reopen tank");
    let mail = mails.recv_timeout(LONG).expect("a mail");
    assert!(mail.contains("zpool replace tank"), "{mail}");
    let (_, call) = calls.recv_timeout(LONG).expect("a call");
    assert_eq!(call["reason"], "raised");
    assert_eq!(call["alert"]["rule"], "device-state");
    let listed = server.ok("alerts");
    assert!(
        listed.starts_with("CRITICAL: device ")
            && listed.contains("of pool tank cannot be opened; the pool survives no further")
            && listed.lines().count() == 1,
        "{listed}"
    );
    let json: serde_json::Value = serde_json::from_str(&server.ok("alerts --json")).expect("JSON");
    let says = json["alerts"][0]["says"].as_str().expect("a sentence");
    let sentence = says.trim_end_matches('.').to_lowercase();
    let told = call["text"].as_str().expect("a text").to_lowercase();
    assert!(told.contains(&sentence), "{told}\n{says}");
    assert!(
        listed.to_lowercase().contains(&sentence),
        "{listed}\n{says}"
    );

    // A restart tells nothing again.
    server.kill();
    server.launch(&["daemon"]);
    assert_eq!(server.ok("alerts"), listed);
    // What has happened is known, in the same words.
    let history = server.ask("/v1/events/history", &serde_json::json!({}));
    let all = history["events"].as_array().expect("events").iter();
    let raised = all.filter(|one| one["event"]["class"] == "alert.raised");
    let raised: Vec<_> = raised.map(|one| &one["event"]["says"]).collect();
    assert_eq!(raised, [says], "{history}");

    // What happens while the mail server is away waits, also through a restart.
    server.ok("alerts set --smtp 127.0.0.1:1");
    server.ok("zpool scrub -w tank");
    let waits = || server.ok("alerts").contains("scrub of pool tank is done");
    let begin = std::time::Instant::now();
    while !waits() {
        assert!(begin.elapsed() < LONG, "{}", server.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    let (_, call) = calls.recv_timeout(LONG).expect("a call");
    assert_eq!(
        (&call["reason"], &call["alert"]["rule"]),
        (&"notice".into(), &"scrub".into())
    );
    server.kill();
    server.launch(&["daemon"]);
    assert!(mails.try_recv().is_err());
    server.ok(&format!("alerts set --smtp 127.0.0.1:{smtp}"));
    let mail = mails.recv_timeout(LONG).expect("the mail that waited");
    assert!(mail.contains("scrub of pool tank is done"), "{mail}");

    // A pool that does not come back is one to hear of. Known to be sent, nothing is sent again.
    let is_sent = || !server.ok("alerts").contains("not sent");
    server.wait_until("the mail is known to be sent", is_sent);
    server.kill();
    std::fs::rename(&disks[0], format!("{}.away", disks[0])).expect("moved");
    server.launch(&["daemon"]);
    let mail = mails.recv_timeout(LONG).expect("a mail");
    assert!(mail.contains("pool tank could not be imported"), "{mail}");
}
