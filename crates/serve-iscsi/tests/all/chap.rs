//! CHAP with libiscsi's initiator (`iscsi-ls`, `iscsi-inq`, Debian package libiscsi-bin): who is
//! let in, and who is shown what.

use serve_iscsi::{
    Authentication, ChapCredentials, LunIdentity, MemoryUnit, Server, Target, TargetOptions,
    TargetSet,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::process::Command;

const GUARDED: &str = "iqn.2025-01.test:guarded";
const MUTUAL: &str = "iqn.2025-01.test:mutual";
const OPEN: &str = "iqn.2025-01.test:open";
const BOUND: &str = "iqn.2025-01.test:bound";

fn is_there() -> bool {
    let found = std::process::Command::new("iscsi-inq")
        .arg("--help")
        .output()
        .is_ok();
    oracles::need("iscsi-inq (Debian package libiscsi-bin)", found)
}

fn credentials(user: &str, secret: &str) -> ChapCredentials {
    ChapCredentials {
        user: user.into(),
        secret: secret.into(),
    }
}

fn chap(user: &str, secret: &str, target: Option<ChapCredentials>) -> TargetOptions {
    let initiator = credentials(user, secret);
    TargetOptions {
        authentication: Authentication::Chap { initiator, target },
        ..TargetOptions::default()
    }
}

async fn server() -> (Server, Arc<TargetSet>) {
    let targets = Arc::new(TargetSet::new());
    let mutual = credentials("server", "serverssecret");
    let bound = TargetOptions {
        allowed_initiators: vec!["iqn.2025-01.test:somebody".into()],
        ..TargetOptions::default()
    };
    for (iqn, options) in [
        (GUARDED, chap("alice", "alicesecret12", None)),
        (MUTUAL, chap("bob", "bobssecret123", Some(mutual))),
        (OPEN, TargetOptions::default()),
        (BOUND, bound),
    ] {
        let unit = MemoryUnit::new(1 << 20, 512, LunIdentity::new("S", [1; 16]));
        let luns = BTreeMap::from([(0, Arc::new(unit) as Arc<_>)]);
        let iqn = iqn.into();
        targets.add(Target { iqn, luns, options }).unwrap();
    }
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(address, targets.clone()).await.unwrap();
    (server, targets)
}

/// Whether an initiator with these credentials (`USER%SECRET@`, or nothing) gets in.
async fn gets_in(server: &Server, who: &str, iqn: &str, mutual: Option<(&str, &str)>) -> bool {
    let url = format!("iscsi://{who}{}/{iqn}/0", server.local_address());
    let mut command = Command::new("iscsi-inq");
    command.arg(&url);
    if let Some((user, secret)) = mutual {
        command.env("LIBISCSI_CHAP_TARGET_USERNAME", user);
        command.env("LIBISCSI_CHAP_TARGET_PASSWORD", secret);
    }
    let output = command.output().await.expect("iscsi-inq runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.success(), text.contains("MILLPOND"), "{text}");
    output.status.success()
}

/// The targets that an initiator is shown.
async fn shown(server: &Server, who: &str) -> Vec<String> {
    let url = format!("iscsi://{who}{}", server.local_address());
    let mut command = Command::new("iscsi-ls");
    let output = command.arg(&url).output().await.expect("iscsi-ls runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| line.strip_prefix("Target:"));
    let names = lines.filter_map(|line| line.split(' ').next());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_knows_the_secret_gets_in() {
    if !is_there() {
        return;
    }
    let (server, targets) = server().await;
    for (who, iqn, mutual, expected) in [
        ("alice%alicesecret12@", GUARDED, None, true),
        ("alice%alicesecret13@", GUARDED, None, false),
        ("bob%alicesecret12@", GUARDED, None, false),
        ("", GUARDED, None, false),
        ("", OPEN, None, true),
        ("", BOUND, None, false),
        // The target proves itself to who asks, and only to who does.
        (
            "bob%bobssecret123@",
            MUTUAL,
            Some(("server", "serverssecret")),
            true,
        ),
        (
            "bob%bobssecret123@",
            MUTUAL,
            Some(("server", "somebodyelses")),
            false,
        ),
        ("bob%bobssecret123@", MUTUAL, None, true),
        // It has nothing to prove itself with here.
        (
            "alice%alicesecret12@",
            GUARDED,
            Some(("server", "serverssecret")),
            false,
        ),
    ] {
        let got_in = gets_in(&server, who, iqn, mutual).await;
        assert_eq!(got_in, expected, "{who} {iqn} {mutual:?}");
    }
    // Another secret holds for logins from now on.
    let options = chap("alice", "anothersecret", None);
    targets.set_options(GUARDED, options).unwrap();
    assert!(!gets_in(&server, "alice%alicesecret12@", GUARDED, None).await);
    assert!(gets_in(&server, "alice%anothersecret@", GUARDED, None).await);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_are_shown_to_who_could_log_in_to_them() {
    if !is_there() {
        return;
    }
    let (server, _) = server().await;
    assert_eq!(shown(&server, "").await, [OPEN]);
    assert_eq!(
        shown(&server, "alice%alicesecret12@").await,
        [GUARDED, OPEN]
    );
    assert_eq!(shown(&server, "bob%bobssecret123@").await, [MUTUAL, OPEN]);
    assert!(shown(&server, "alice%wrongsecret12@").await.is_empty());
    server.shutdown().await;
}
