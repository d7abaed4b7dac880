//! Goal: the browser console does what it should, in the system's Chromium against a real server,
//! and its sources are in order. Method: `console/tests` and `npm test`, whose output is shown when
//! they fail.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::disks::Fake;
use crate::harness::{Server, can_mount, finds, need, text_of};
use crate::ups::upsd;

/// Size of a disk, which `console/tests` knows too.
const DISK_BYTES: u64 = 512 << 20;

fn console() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../console")
}

/// Whether what is needed to check the console is there.
fn has_tools() -> bool {
    let packages = console().join("node_modules/@playwright/test");
    need(
        "npm with the console's packages (scripts/console test)",
        finds("npm") && packages.is_dir(),
    )
}

fn npm(words: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new("npm")
        .args(words)
        .current_dir(console())
        .envs(environment.iter().copied())
        .env("NO_COLOR", "1")
        .output()
        .expect("npm starts")
}

#[test]
fn sources_of_the_console_pass_their_tests() {
    if !has_tools() {
        return;
    }
    let output = npm(&["test"], &[]);
    assert!(output.status.success(), "{}", text_of(&output));
}

/// What the console takes the API for is what this server says that it is.
#[test]
fn types_of_the_console_are_those_of_the_api() {
    if !has_tools() {
        return;
    }
    let server = Server::prepare();
    let description = server.text("openapi.json");
    std::fs::write(&description, server.ok("openapi")).expect("a description");
    let output = npm(&["run", "contract"], &[("MILLPOND_OPENAPI", &description)]);
    assert!(output.status.success(), "{}", text_of(&output));
}

#[test]
fn people_use_the_console_in_a_browser() {
    use_it(
        "console",
        5,
        &[],
        &["console.spec", "memory.spec", "server.spec"],
    );
}

/// From an empty server to a pool that is measured, and what people do with it then.
#[test]
fn newcomers_plan_make_and_measure_a_pool_in_a_browser() {
    use_it(
        "newcomer",
        4,
        &["--smb", "off"],
        &["newcomer.spec", "storage.spec", "tour.spec"],
    );
}

/// Runs files of `console/tests`, in the order of their names, with a new server that has these
/// options.
fn use_it(name: &str, count: usize, options: &[&str], files: &[&str]) {
    let is_built = console().join("dist/index.html").is_file();
    if !can_mount()
        || !has_tools()
        || !need("chromium", finds("chromium"))
        || !need("nfs-cat (package libnfs-utils)", finds("nfs-cat"))
        || !need("nfs-cp (package libnfs-utils)", finds("nfs-cp"))
        || !need("fio", finds("fio"))
        || !need("the console in the binary (scripts/console)", is_built)
    {
        return;
    }
    let mut server = Server::prepare();
    server.https = None;
    let disks = server.disks(count, DISK_BYTES);
    let disks = server.attach(&disks);
    let fake = Fake::of(&mut server, &disks);
    let (port, _status) = upsd("OL CHRG");
    let ups = format!("cellar@127.0.0.1:{port}");
    server.launch(&[&["up", "--size", "1G", "--ups", ups.as_str()], options].concat());
    server.wait_until("up says what runs", || server.log().contains("stop:"));
    let link = server.ok("console");
    let (url, token) = link.trim().split_once("#setup=").expect("no user yet");

    let pool = format!("{name}{}", std::process::id());
    let chromium = ["/usr/bin/chromium", "/usr/local/bin/chromium"];
    let chromium = chromium.into_iter().find(|path| Path::new(path).exists());
    let output = npm(
        &[&["run", "browser", "--"], files].concat(),
        &[
            ("MILLPOND_URL", url),
            ("MILLPOND_TOKEN", token),
            ("MILLPOND_DISKS", &disks.join(",")),
            ("MILLPOND_NFS_PORT", &server.nfs_port.to_string()),
            ("MILLPOND_SYSFS", &fake.root()),
            ("MILLPOND_POOL", &pool),
            ("MILLPOND_RESULTS", &server.text("results")),
            ("MILLPOND_CHROMIUM", chromium.unwrap_or("chromium")),
        ],
    );
    let log = server.log();
    server.command(&["zpool", "export", "-f", &pool]);
    let _ = std::fs::remove_dir(Path::new("/").join(&pool));
    assert!(output.status.success(), "{}\n{log}", text_of(&output));
}
