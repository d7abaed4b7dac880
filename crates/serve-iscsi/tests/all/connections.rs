//! Several connections to one session, and several portals, over real sockets.

use crate::common::{Client, IQN, Login};
use serve_iscsi::{Limits, LunIdentity, MemoryUnit, Server, Target, TargetOptions, TargetSet};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

async fn server(limits: Limits) -> (Server, Arc<TargetSet>) {
    let targets = Arc::new(TargetSet::with_limits(limits));
    let unit = MemoryUnit::new(16 << 20, 512, LunIdentity::new("S", [1; 16]));
    let target = Target {
        iqn: IQN.into(),
        luns: BTreeMap::from([(0, Arc::new(unit) as Arc<_>)]),
        options: TargetOptions::default(),
    };
    targets.add(target).unwrap();
    let server = bind(&targets).await;
    (server, targets)
}

async fn bind(targets: &Arc<TargetSet>) -> Server {
    let address = "127.0.0.1:0".parse().unwrap();
    Server::bind(address, targets.clone()).await.unwrap()
}

const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 9, 0, 0, 1, 0];
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 9, 0, 0, 1, 0];

/// A session with two connections, the second by another portal.
async fn pair(first: SocketAddr, second: SocketAddr) -> (Client, Client) {
    let leading = Login {
        connections: Some(2),
        ..Login::default()
    };
    let mut one = leading.done(first).await.unwrap();
    one.ready().await;
    let joining = Login {
        tsih: one.tsih,
        connection_id: 1,
        cmd_sn: one.cmd_sn,
        ..Login::default()
    };
    let two = joining.done(second).await.unwrap();
    assert_eq!(two.tsih, one.tsih);
    (one, two)
}

#[tokio::test]
async fn commands_of_one_session_go_over_two_portals() {
    let (server, targets) = server(Limits::default()).await;
    let other = bind(&targets).await;
    let (mut one, mut two) = pair(server.local_address(), other.local_address()).await;
    assert_eq!(targets.sessions().len(), 1);
    for round in 0..50u8 {
        two.cmd_sn = one.cmd_sn;
        let (reply, _) = two.command(0x20, 512, &WRITE, &[round; 512]).await;
        assert_eq!((reply[0], reply[3]), (0x21, 0));
        one.cmd_sn = two.cmd_sn;
        let (reply, data) = one.command(0x40, 512, &READ, &[]).await;
        assert_eq!((reply[0], data), (0x25, vec![round; 512]));
    }
    let traffic = &targets.traffic()[0];
    assert_eq!((traffic.total.reads, traffic.total.writes), (50, 50));
    // A connection that is lost takes the session with it (ErrorRecoveryLevel 0).
    drop(two);
    assert!(one.receive().await.is_none());
    other.stop_listening().await;
    server.shutdown().await;
}

#[tokio::test]
async fn a_connection_takes_the_place_of_one_with_its_id() {
    let (server, _targets) = server(Limits::default()).await;
    let address = server.local_address();
    let (mut one, mut two) = pair(address, address).await;
    let again = Login {
        tsih: one.tsih,
        connection_id: 1,
        cmd_sn: one.cmd_sn,
        ..Login::default()
    };
    let mut three = again.done(address).await.unwrap();
    // The one before is gone, the other is not.
    assert!(two.receive().await.is_none());
    three.cmd_sn = one.cmd_sn;
    assert_eq!(three.command(0x40, 512, &READ, &[]).await.0[0], 0x25);
    one.cmd_sn = three.cmd_sn;
    assert_eq!(one.command(0x40, 512, &READ, &[]).await.0[0], 0x25);
    // So it is with the only one.
    drop(three);
    assert!(one.receive().await.is_none());
    let mut alone = Client::log_in(address, 3).await;
    let again = Login {
        isid: 3,
        tsih: alone.tsih,
        ..Login::default()
    };
    let mut instead = again.done(address).await.unwrap();
    assert!(alone.receive().await.is_none());
    instead.ready().await;
    server.shutdown().await;
}

#[tokio::test]
async fn who_may_not_join_is_refused() {
    let (server, _targets) = server(Limits {
        connections_of_session: 2,
        ..Limits::default()
    })
    .await;
    let address = server.local_address();
    let (one, _two) = pair(address, address).await;
    let joining = |initiator, isid, tsih| Login {
        initiator,
        isid,
        tsih,
        connection_id: 7,
        ..Login::default()
    };
    const TOO_MANY_CONNECTIONS: u16 = 0x0206;
    const NO_SUCH_SESSION: u16 = 0x020a;
    for (login, status) in [
        (joining("iqn.i", 1, one.tsih), TOO_MANY_CONNECTIONS),
        (joining("iqn.other", 1, one.tsih), NO_SUCH_SESSION),
        (joining("iqn.i", 2, one.tsih), NO_SUCH_SESSION),
        (
            joining("iqn.i", 1, one.tsih.wrapping_add(1)),
            NO_SUCH_SESSION,
        ),
    ] {
        assert_eq!(login.done(address).await.err(), Some(status));
    }
    // Who has not asked for several has one.
    let alone = Client::log_in(address, 5).await;
    let second = joining("iqn.i", 5, alone.tsih).done(address).await;
    assert_eq!(second.err(), Some(TOO_MANY_CONNECTIONS));
    server.shutdown().await;
}

#[tokio::test]
async fn all_portals_are_named_the_one_that_was_used_first() {
    let (server, targets) = server(Limits::default()).await;
    let other = bind(&targets).await;
    let (here, there) = (server.local_address(), other.local_address());
    for (used, also) in [(here, there), (there, here)] {
        let mut client = Client::log_in(used, 1).await;
        let mut text = [0; 48];
        text[0] = 0x44;
        text[1] = 0x80;
        text[20..24].fill(0xff);
        client.send(text, b"SendTargets=\0").await;
        let (_, data) = client.receive().await.unwrap();
        let expected =
            format!("TargetName={IQN}\0TargetAddress={used},1\0TargetAddress={also},1\0");
        assert_eq!(String::from_utf8(data).unwrap(), expected);
    }
    // One that is no portal any more is not named.
    other.stop_listening().await;
    let output = tokio::process::Command::new("iscsi-ls")
        .arg(format!("iscsi://{here}"))
        .output()
        .await;
    if let Ok(output) = output {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&format!("Portal:{here},1")), "{text}");
        assert!(!text.contains(&there.to_string()), "{text}");
    }
    server.shutdown().await;
}
