//! People and groups of shares: what the console's wizard asks for ends with a share that clients
//! write to, by SMB and by NFS. The server has an `/etc` of its own, in which it makes users.

use std::process::Output;

use serde_json::{Value, json};

use crate::harness::{Server, can_mount, finds, need, text_of};
use crate::nfs::libnfs;
use crate::smb::{has_samba, smbclient};

/// What is asked, and has to work.
fn ask(server: &Server, path: &str, body: Value) -> Value {
    let answer = server.ask(path, &body);
    assert!(
        answer.get("kind").is_none(),
        "{path} {body}: {answer}\n{}",
        server.log()
    );
    answer
}

/// A filesystem of pool `tank` as the wizard makes it.
fn share(server: &Server, name: &str, nfs: &str, smb: Option<&str>) {
    let mut properties = json!({ "sharenfs": nfs });
    if let Some(smb) = smb {
        properties["sharesmb"] = json!(smb);
    }
    let body = json!({
        "name": format!("tank/{name}"), "properties": properties, "volume_size_bytes": null,
        "sparse": false, "parents": false, "no_mount": false, "command": "zfs create",
    });
    ask(server, "/v1/zfs/create", body);
}

/// Gives the root directory of a filesystem to somebody.
fn give(server: &Server, name: &str, owner: Value, group: Value, mode: u32) {
    let body = json!({
        "dataset": format!("tank/{name}"), "path": "", "owner": owner, "group": group,
        "mode": mode,
    });
    ask(server, "/v1/files/access-set", body);
}

/// What is said of a file in a filesystem: owner, group, mode.
fn file(server: &Server, dataset: &str, name: &str) -> (u64, u64, u64) {
    let body = json!({"dataset": dataset, "path": ""});
    let listed = ask(server, "/v1/files/list", body);
    let mut entries = listed["entries"].as_array().expect("a list").iter();
    let entry = entries.find(|entry| entry["name"] == name);
    let file = &entry.unwrap_or_else(|| panic!("no {name} in {listed}"))["file"];
    let number = |what: &str| file[what].as_u64().expect("a number");
    (number("uid"), number("gid"), number("mode"))
}

/// Writes a file by NFS, and reads it.
fn write_by_nfs(server: &Server, path: &str, text: &str) {
    let from = server.text("from");
    std::fs::write(&from, text).expect("a file");
    let copied = libnfs(server, "nfs-cp", &[&from], path);
    assert!(copied.status.success(), "{}", text_of(&copied));
    let read = libnfs(server, "nfs-cat", &[], path);
    assert_eq!(text_of(&read), text);
}

fn has_nfs_client() -> bool {
    need(
        "nfs-cp and nfs-cat of libnfs",
        finds("nfs-cp") && finds("nfs-cat"),
    )
}

/// A server with pool `tank`, and where that is mounted.
fn start(words: &[&str]) -> (Server, String) {
    let mut server = Server::prepare();
    server.keep_etc();
    // Users pass through it to what is mounted there.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(server.directory.path(), mode).expect("a mode");
    server.launch(words);
    let disks = server.disks(1, 1 << 30);
    let at = server.text("tank");
    server.ok(&format!("zpool create -m {at} tank {}", disks[0]));
    (server, at)
}

/// Goal: a share for people is written to by each of them by SMB and by every host that is named by
/// NFS, and by nobody else; a host that has lost its users gets them again with the next start; who
/// is removed gets in no more.
#[test]
fn a_share_of_the_wizard_is_written_to_by_its_people() {
    if !has_samba() || !has_nfs_client() || !need("useradd", finds("useradd")) {
        return;
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port();
    let listen = format!("--smb=127.0.0.1:{port}");
    let (mut server, at) = start(&["daemon", &listen]);
    let text = server.text("text");
    std::fs::write(&text, "by SMB").expect("a file");
    let client = |share: &str, user: Option<&str>, commands: &str| -> Output {
        let who = user.map(|user| format!("{user}%{user}'s password"));
        smbclient(port, share, who.as_deref(), commands)
    };
    let works = |server: &Server, share: &str, user: Option<&str>, commands: &str| {
        let output = client(share, user, commands);
        let told = text_of(&output);
        assert!(
            output.status.success() && !told.contains("NT_STATUS"),
            "{share} {user:?} {commands}: {told}\n{}",
            server.log()
        );
    };
    let is_refused = |share: &str, user: Option<&str>, commands: &str| {
        let told = text_of(&client(share, user, commands));
        assert!(told.contains("NT_STATUS"), "{share} {user:?}: {told}");
    };

    let add = |server: &Server, name: &str| {
        let body = json!({"name": name, "password": format!("{name}'s password")});
        let added = ask(server, "/v1/people/add", body);
        added["uid"].as_u64().expect("a number")
    };
    let ann = add(&server, "mp-ann");
    let bob = add(&server, "mp-bob");
    assert_ne!(ann, bob);
    add(&server, "mp-carl");
    let listed = ask(&server, "/v1/people/list", json!({}));
    assert_eq!(
        (&listed["no_smb"], &listed["no_guests"]),
        (&Value::Null, &Value::Null)
    );
    let gid = listed["free_id"].as_u64().expect("a number");
    let group = json!({"name": "tank-photos", "gid": gid, "members": ["mp-ann", "mp-bob"]});
    ask(&server, "/v1/groups/add", group);
    let nfs = format!("rw=127.0.0.1,all_squash,anonuid={ann},anongid={gid}");
    share(
        &server,
        "photos",
        &nfs,
        Some("group=tank-photos,groupwrite"),
    );
    give(
        &server,
        "photos",
        json!("mp-ann"),
        json!("tank-photos"),
        0o2770,
    );
    server.wait_until("Samba shares it", || {
        server.ok("info").contains("tank_photos")
    });

    // Each of them changes what the other has made.
    let photos = "tank_photos";
    works(
        &server,
        photos,
        Some("mp-ann"),
        &format!("put {text} a.txt; mkdir dir"),
    );
    works(
        &server,
        photos,
        Some("mp-bob"),
        &format!("put {text} a.txt; put {text} b.txt"),
    );
    works(
        &server,
        photos,
        Some("mp-bob"),
        &format!("cd dir; put {text} inner"),
    );
    works(
        &server,
        photos,
        Some("mp-ann"),
        "del b.txt; cd dir; del inner",
    );
    write_by_nfs(&server, &format!("{at}/photos/n.txt"), "by NFS");
    let back = server.text("back");
    works(
        &server,
        photos,
        Some("mp-bob"),
        &format!("get n.txt {back}"),
    );
    assert_eq!(std::fs::read_to_string(&back).expect("it"), "by NFS");
    let (uid, group, mode) = file(&server, "tank/photos", "a.txt");
    assert_eq!((uid, group, mode & 0o660), (ann, gid, 0o660));
    let (_, group, mode) = file(&server, "tank/photos", "dir");
    assert_eq!((group, mode & 0o2770), (gid, 0o2770));
    let (uid, group, _) = file(&server, "tank/photos", "n.txt");
    assert_eq!((uid, group), (ann, gid));
    for stranger in [Some("mp-carl"), Some("nobody-of-this-name"), None] {
        is_refused(photos, stranger, "ls");
    }

    // For everybody, by both.
    share(
        &server,
        "open",
        "rw=127.0.0.1,all_squash",
        Some("guest,groupwrite"),
    );
    give(&server, "open", json!("65534"), json!("65534"), 0o2777);
    server.wait_until("Samba shares it", || {
        server.ok("info").contains("tank_open")
    });
    works(&server, "tank_open", None, &format!("put {text} a.txt"));
    write_by_nfs(&server, &format!("{at}/open/n.txt"), "by NFS");
    works(
        &server,
        "tank_open",
        None,
        &format!("put {text} n.txt; del a.txt"),
    );
    works(
        &server,
        "tank_open",
        Some("mp-carl"),
        &format!("put {text} c.txt"),
    );
    works(&server, "tank_open", None, "del c.txt");

    // As a container that is made anew: of the host's users none is left.
    server.stop();
    server.launch(&["daemon", &listen]);
    server.wait_until("Samba shares it", || {
        server.ok("info").contains("tank_photos")
    });
    works(
        &server,
        photos,
        Some("mp-bob"),
        &format!("put {text} a.txt; put {text} after"),
    );
    let (uid, group, _) = file(&server, "tank/photos", "after");
    assert_eq!((uid, group), (bob, gid));

    ask(&server, "/v1/people/remove", json!({"name": "mp-bob"}));
    is_refused(photos, Some("mp-bob"), "ls");
    works(&server, photos, Some("mp-ann"), "del after");
    let members = json!({"name": "tank-photos", "members": ["mp-ann", "mp-carl"]});
    ask(&server, "/v1/groups/change", members);
    works(
        &server,
        photos,
        Some("mp-carl"),
        &format!("put {text} a.txt"),
    );
    let passwd = std::fs::read_to_string("/etc/passwd").expect("users");
    assert!(!passwd.contains("mp-ann"), "a user of this host was made");
    server.ok("zpool export tank");
    server.stop();
}

/// Goal: without SMB, people are numbers: nobody becomes a user of the host, and a share for them
/// is written to by NFS.
#[test]
fn without_smb_a_share_of_the_wizard_is_written_to_by_nfs() {
    if !can_mount() || !has_nfs_client() {
        return;
    }
    let (mut server, at) = start(&["daemon", "--smb=off"]);
    let added = ask(&server, "/v1/people/add", json!({"name": "mp-ann"}));
    let listed = ask(&server, "/v1/people/list", json!({}));
    assert!(listed["no_smb"].is_string(), "{listed}");
    let gid = listed["free_id"].as_u64().expect("a number");
    let group = json!({"name": "tank-photos", "gid": gid, "members": ["mp-ann"]});
    ask(&server, "/v1/groups/add", group);
    let ann = added["uid"].as_u64().expect("a number");
    let nfs = format!("rw=127.0.0.1,all_squash,anonuid={ann},anongid={gid}");
    share(&server, "photos", &nfs, None);
    // As it was before anything was given: root's, who is nobody here.
    let from = server.text("from");
    std::fs::write(&from, "text").expect("a file");
    let path = format!("{at}/photos/n.txt");
    let refused = libnfs(&server, "nfs-cp", &[&from], &path);
    assert!(!refused.status.success(), "{}", text_of(&refused));
    give(
        &server,
        "photos",
        json!("mp-ann"),
        json!("tank-photos"),
        0o2770,
    );
    write_by_nfs(&server, &path, "by NFS");
    let (uid, group, _) = file(&server, "tank/photos", "n.txt");
    assert_eq!((uid, group), (ann, gid));
    server.ok("zpool export tank");
    server.stop();
}
