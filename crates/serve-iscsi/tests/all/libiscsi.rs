//! libiscsi's test suite for targets (`iscsi-test-cu`, Debian package libiscsi-bin) against a
//! unit in memory. All its tests must pass; those of commands that are not supported skip
//! (docs/iscsi.md lists them). It takes a minute, most of it waiting for answers that must not
//! come.

use serve_iscsi::{LunIdentity, MemoryUnit, Server, Target, TargetOptions, TargetSet};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::process::Command;

const IQN: &str = "iqn.2025-01.test:t";

/// Whether the suite is installed.
fn is_there() -> bool {
    let found = std::process::Command::new("iscsi-test-cu")
        .arg("--help")
        .output()
        .is_ok();
    oracles::need("iscsi-test-cu (Debian package libiscsi-bin)", found)
}

/// Runs tests, all where none are named; `(ran, failed)` of the summary. Physical blocks are as
/// large as logical ones: ALL.GetLBAStatus.UnmapSingle asks for one address and wants to hear of
/// another otherwise.
async fn run(
    block_bytes: u32,
    is_read_only: bool,
    tests: Option<&str>,
    is_multipath: bool,
) -> (u32, u32) {
    let identity = LunIdentity::new("S", [1; 16]);
    let unit = MemoryUnit::new(512 << 20, block_bytes, identity);
    let unit = unit.with_physical_block_bytes(block_bytes);
    let targets = Arc::new(TargetSet::new());
    let target = Target {
        iqn: IQN.into(),
        luns: BTreeMap::from([(0, Arc::new(unit) as Arc<_>)]),
        options: TargetOptions {
            is_read_only,
            ..TargetOptions::default()
        },
    };
    targets.add(target).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(address, targets).await.unwrap();
    let url = format!("iscsi://{}/{IQN}/0", server.local_address());
    let mut command = Command::new("iscsi-test-cu");
    // Destructive ones too; those that fail are named, and all are run.
    command.args(["-d", "-n", "-s", "-f"]);
    command.args(tests.map(|tests| format!("--test={tests}")));
    command.arg(&url);
    if is_multipath {
        command.arg(&url);
    }
    let output = command.output().await.expect("iscsi-test-cu is installed");
    server.shutdown().await;
    let text = String::from_utf8_lossy(&output.stdout);
    let summary = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("tests")).then(|| words.filter_map(|w| w.parse().ok()).collect())
    });
    let numbers: Vec<u32> = summary.unwrap_or_else(|| panic!("no summary in:\n{text}"));
    if numbers[3] > 0 {
        eprintln!("{text}");
    }
    (numbers[1], numbers[3])
}

/// All families in one run: what one test leaves behind, a unit attention after a reset say, must
/// not trip the next. With long blocks the family that has all of SCSI.
#[tokio::test(flavor = "multi_thread")]
async fn all_tests_pass_with_short_and_long_blocks() {
    if !is_there() {
        return;
    }
    let (short, long) = tokio::join!(
        run(512, false, None, false),
        run(4096, false, Some("ALL"), false)
    );
    assert_eq!((short.1, long.1), (0, 0));
    assert!(short.0 >= 600 && long.0 >= 200, "{short:?} {long:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tests_of_two_paths_and_of_write_protection_pass() {
    if !is_there() {
        return;
    }
    let (ran, failed) = run(512, false, Some("ALL.MultipathIO"), true).await;
    assert!(ran >= 4 && failed == 0, "{ran} {failed}");
    let (ran, failed) = run(512, true, Some("ALL.ReadOnly"), false).await;
    assert!(ran >= 1 && failed == 0, "{ran} {failed}");
}
