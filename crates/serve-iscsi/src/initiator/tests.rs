//! Goal: the initiator finds, logs in to, pings and reads what the server of this crate has, with
//! secrets and without, and does not follow a target that says too much.
//! Method: a server on a port of the loopback; bytes that no server of ours sends.

use super::login::{moved_to, targets_of};
use super::reads::{naa_of, words};
use super::*;
use crate::{
    Authentication, ChapCredentials, LunIdentity, MemoryUnit, Server, Target, TargetOptions,
    TargetSet,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

const IQN: &str = "iqn.2025-01.test:t";
const UNIT_BYTES: u64 = 3 << 20;

fn who(credentials: Option<ChapCredentials>) -> Identity {
    Identity {
        name: "iqn.2025-01.test:i".into(),
        random: [1, 2, 3],
        qualifier: 7,
        credentials,
    }
}

fn secret(secret: &str) -> ChapCredentials {
    ChapCredentials {
        user: "user".into(),
        secret: secret.into(),
    }
}

async fn server(authentication: Authentication, lun: u16) -> Server {
    let targets = Arc::new(TargetSet::new());
    let unit = MemoryUnit::new(UNIT_BYTES, 512, LunIdentity::new("S", [1; 16]));
    let target = Target {
        iqn: IQN.into(),
        luns: BTreeMap::from([(lun, Arc::new(unit) as Arc<_>)]),
        options: TargetOptions {
            authentication,
            ..TargetOptions::default()
        },
    };
    targets.add(target).expect("a target");
    let address = "127.0.0.1:0".parse().expect("an address");
    Server::bind(address, targets).await.expect("a server")
}

async fn socket(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.expect("a connection")
}

#[tokio::test]
async fn what_a_server_has_is_found_pinged_and_read() {
    for lun in [0, 300] {
        let server = server(Authentication::None, lun).await;
        let address = server.local_address();
        let found = Initiator::discover(socket(address).await, &who(None)).await;
        let found = found.expect("a discovery");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].iqn, IQN);
        assert_eq!(found[0].portals[0].address, address.to_string());
        let session = Initiator::log_in(socket(address).await, IQN, &who(None)).await;
        let mut session = session.expect("a login");
        for length in [0, 1, 1000, PING_BYTES_MAX] {
            session.ping(length).await.expect("a ping");
        }
        let unit = session.unit(lun).await.expect("a unit");
        assert_eq!((unit.block_bytes, unit.blocks), (512, UNIT_BYTES / 512));
        assert!(unit.naa.starts_with("naa.6"), "{unit:?}");
        assert_eq!(unit.vendor, "MILLPOND");
        let time = Duration::from_millis(20);
        let rate = session.read_for(lun, &unit, time).await.expect("reads");
        assert!(rate.bytes > 0 && rate.bytes % 512 == 0 && rate.time >= time);
        let missing = session.unit(lun + 1).await;
        assert!(missing.is_err(), "{missing:?}");
        session.log_out().await.expect("it ends");
        server.stop_listening().await;
    }
}

#[tokio::test]
async fn secrets_are_proven_where_they_are_wanted() {
    let wanted = Authentication::Chap {
        initiator: secret("correct horse"),
        target: None,
    };
    let server = server(wanted, 0).await;
    let address = server.local_address();
    let log_in =
        async |credentials| Initiator::log_in(socket(address).await, IQN, &who(credentials)).await;
    let right = Some(secret("correct horse"));
    log_in(right.clone()).await.expect("the right secret");
    for wrong in [None, Some(secret("wrong horse battery"))] {
        let refused = log_in(wrong).await;
        assert!(
            matches!(refused, Err(InitiatorError::Refused(0x0201))),
            "{refused:?}"
        );
    }
    // Who proves nothing is not shown what he cannot use.
    for (credentials, count) in [(right, 1), (None, 0)] {
        let found = Initiator::discover(socket(address).await, &who(credentials)).await;
        assert_eq!(found.expect("a discovery").len(), count);
    }
    server.stop_listening().await;
}

#[test]
fn answers_that_make_no_sense_are_not_followed() {
    let found = targets_of(
        b"TargetAddress=x\0TargetName=a\0TargetAddress=[::1]:3260,7\0\
        TargetAddress=host,nonsense\0TargetName=b\0Other=1\0",
    )
    .expect("targets");
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].portals[0].address, "[::1]:3260");
    let groups: Vec<u16> = found[0].portals.iter().map(|portal| portal.group).collect();
    assert_eq!(groups, [7, 1]);
    assert!(found[1].portals.is_empty());
    assert!(targets_of(b"TargetName\0").is_err());

    let page = [
        0, 0x83, 0, 18, 1, 0x13, 0, 2, 9, 9, 1, 3, 0, 8, 0x50, 1, 2, 3, 4, 5, 6, 7,
    ];
    assert_eq!(naa_of(&page).as_deref(), Some("naa.5001020304050607"));
    for end in 0..page.len() {
        assert_eq!(naa_of(&page[..end]), None, "{end}");
    }
}

/// Goal: what a target says of itself is nothing but names and words where people see and copy it.
/// Method: lines, escapes of terminals, quotes, and more than there may be of a name.
#[test]
fn words_of_a_hostile_target_are_only_words() {
    for name in [
        "iqn.2025-01.test:t\n# rm -rf /",
        "iqn.2025-01.test:\u{1b}[2Jt",
        "iqn.2025-01.test:\u{202e}t",
        "a b",
        "a\"",
        "$(id)",
        "",
        &"x".repeat(224),
    ] {
        let text = format!("TargetName={name}\0");
        assert!(targets_of(text.as_bytes()).is_err(), "{name:?}");
    }
    let long = "x".repeat(300);
    let text = format!(
        "TargetName=iqn.2025-01.test:ü_1\0TargetAddress=host\nls,1\0TargetAddress={long},1\0\
         TargetAddress=$(id),1\0TargetAddress=[fe80::1%eth0]:3260,1\0"
    );
    let found = targets_of(text.as_bytes()).expect("a target");
    let portals: Vec<&str> = found[0]
        .portals
        .iter()
        .map(|portal| portal.address.as_str())
        .collect();
    assert_eq!(portals, ["[fe80::1%eth0]:3260"]);
    assert_eq!(moved_to("10.0.0.1:3260,1"), "10.0.0.1:3260");
    assert_eq!(moved_to("\u{1b}[2J"), "what is no address");
    assert_eq!(words(b" A\n\x1b\xc3\xbc\0  "), "A????");
    let mut page = [0; 8 + 200];
    (page[4], page[5], page[7]) = (1, 3, 200);
    assert_eq!(naa_of(&page), None, "a name is not so long");
}

/// Goal: a target that always says something, and never the end, is given up. Method: pings of its
/// own in place of an answer, at times that are not waited for.
#[tokio::test(start_paused = true)]
async fn a_target_that_comes_to_no_end_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a listener");
    let address = listener.local_addr().expect("an address");
    let target = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("a connection");
        let mut ping = Header::new(target_opcode::NOP_IN);
        ping.set_initiator_task_tag(TAG_NONE);
        ping.set_target_tag(TAG_NONE);
        while socket.write_all(&ping.0).await.is_ok() {
            tokio::time::sleep(SILENCE / 4).await;
        }
    });
    let found = Initiator::discover(socket(address).await, &who(None)).await;
    assert!(
        matches!(found, Err(InitiatorError::Endless(_))),
        "{found:?}"
    );
    target.abort();
}
