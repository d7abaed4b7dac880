//! Files are looked at and restored by the API. Method: a filesystem that is not mounted, which the
//! test changes through `access` as servers do.

use ::bytes::Bytes;
use filesystem::{
    Attributes, Caller, FileKind, Filesystem, SeekTo, SetAttributes, SetTime, Time, XattrMode,
};

use super::*;

const ROOT: Caller = Caller::ROOT;

impl Server {
    async fn filesystem(&self, name: &str) -> access::Lease<Filesystem> {
        let open = self.service.serving.pools.of_dataset(name).unwrap();
        let user = access::User::Command { name: "test" };
        open.access.filesystem(name, user).await.unwrap()
    }

    async fn snapshot(&self, name: &str) {
        let call = json!({
            "names": [name], "recursive": false, "properties": {}, "command": "zfs snapshot",
        });
        self.ok("/v1/zfs/snapshot", call).await;
    }

    async fn names_in(&self, dataset: &str, path: &str) -> Vec<String> {
        let call = json!({"dataset": dataset, "path": path});
        let answer = self.ok("/v1/files/list", call).await;
        let entries = answer["entries"].as_array().unwrap().iter();
        let mut names: Vec<String> = entries
            .map(|entry| entry["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    async fn restore(&self, path: &str, in_place: bool) -> (u16, Value) {
        let call = json!({"snapshot": "tank/a@s", "path": path, "in_place": in_place});
        self.post("/v1/files/restore", call).await
    }
}

async fn file(of: &Filesystem, parent: u64, name: &[u8], text: &[u8]) -> Attributes {
    let made = of.create(parent, name, 0o644, ROOT).await.unwrap();
    write(of, made.ino, 0, text).await;
    made
}

async fn write(of: &Filesystem, ino: u64, at: u64, text: &[u8]) {
    let text = Bytes::copy_from_slice(text);
    of.write(ino, at, text, false, ROOT).await.unwrap();
}

async fn at(of: &Filesystem, path: &str) -> Attributes {
    let mut at = of.attributes(of.root()).await.unwrap();
    for name in path.split('/') {
        at = of.lookup(at.ino, name.as_bytes()).await.unwrap();
    }
    at
}

async fn text(of: &Filesystem, path: &str) -> Vec<u8> {
    let found = at(of, path).await;
    let parts = of.peek(found.ino, 0, 1 << 20).await.unwrap();
    parts.concat()
}

/// Goal: a directory is listed in parts, whatever the names, and nothing leads out of it.
#[tokio::test(flavor = "multi_thread")]
async fn directories_are_listed_in_parts_and_nothing_leads_out() {
    let server = Server::with_pool().await;
    server.create("tank/a").await;
    {
        let lease = server.filesystem("tank/a").await;
        let of = lease.get();
        for number in 0..25 {
            file(&of, of.root(), format!("f{number}").as_bytes(), b"x").await;
        }
        file(&of, of.root(), b"\xff\\\n", b"odd").await;
        let sub = of.make_directory(of.root(), b"sub", 0o700, ROOT).await;
        let sub = sub.unwrap().ino;
        file(&of, sub, b"inner", b"inner").await;
        let link = of.symlink(of.root(), b"link", b"sub", ROOT).await.unwrap();
        assert_eq!(link.kind, FileKind::Symlink);
    }
    server.snapshot("tank/a@s").await;
    let mut after = Value::Null;
    let mut names = Vec::new();
    let mut parts = 0;
    loop {
        let call = json!({"dataset": "tank/a@s", "path": "", "after": after, "limit": 10});
        let answer = server.ok("/v1/files/list", call).await;
        let entries = answer["entries"].as_array().unwrap();
        assert!(entries.len() <= 10);
        names.extend(
            entries
                .iter()
                .map(|entry| entry["name"].as_str().unwrap().to_owned()),
        );
        parts += 1;
        after = answer["next"].clone();
        if after.is_null() {
            break;
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 28, "{names:?}");
    assert!(parts >= 3 && names.contains(&"\\xff\\\\\n".to_owned()));
    assert_eq!(server.names_in("tank/a@s", "sub").await, ["inner"]);
    let call = json!({"dataset": "tank/a@s", "path": "", "limit": 1000});
    let answer = server.ok("/v1/files/list", call).await;
    let entries = answer["entries"].as_array().unwrap();
    let link = entries
        .iter()
        .find(|entry| entry["name"] == "link")
        .unwrap();
    assert_eq!(
        (&link["file"]["type"], &link["file"]["target"]),
        (&json!("link"), &json!("sub"))
    );

    for (path, status) in [
        ("..", 400),
        ("sub/../sub", 400),
        ("/etc", 400),
        (r"sub\x2finner", 400),
        ("link/inner", 400),
        ("sub/inner", 400),
        ("nothing", 404),
    ] {
        let call = json!({"dataset": "tank/a@s", "path": path});
        let (got, answer) = server.post("/v1/files/list", call).await;
        assert_eq!(got, status, "{path}: {answer}");
    }
    let call = json!({"dataset": "tank/a@s", "path": "", "after": "x"});
    assert_eq!(server.post("/v1/files/list", call).await.0, 400);
    server.stop().await;
}

/// Goal: a restored tree is what it was: content, holes, owners, modes, times, attributes, names.
/// Nothing that is there is touched, in its place it is kept.
#[tokio::test(flavor = "multi_thread")]
async fn trees_are_restored_as_they_were_and_nothing_is_lost() {
    let server = Server::with_pool().await;
    server.create("tank/a").await;
    let stamp = Time {
        seconds: 1_000_000_000,
        nanoseconds: 123_456_789,
    };
    {
        let lease = server.filesystem("tank/a").await;
        let of = lease.get();
        let top = of.make_directory(of.root(), b"docs", 0o750, ROOT).await;
        let top = top.unwrap().ino;
        let sub = of
            .make_directory(top, b"sub", 0o711, ROOT)
            .await
            .unwrap()
            .ino;
        let one = file(&of, top, b"one", b"first").await.ino;
        of.link(one, sub, b"also").await.unwrap();
        of.symlink(sub, b"out", b"/etc/passwd", ROOT).await.unwrap();
        let sparse = file(&of, sub, b"sparse", b"head").await.ino;
        write(&of, sparse, 8 << 20, b"tail").await;
        let cut = SetAttributes {
            size_bytes: Some(16 << 20),
            ..SetAttributes::default()
        };
        of.set_attributes(sparse, &cut, ROOT).await.unwrap();
        let fifo = FileKind::Fifo;
        of.make_node(sub, b"pipe", fifo, 0o600, (0, 0), ROOT)
            .await
            .unwrap();
        of.xattrs()
            .set(one, b"user.note", b"kept", XattrMode::Any, ROOT)
            .await
            .unwrap();
        for (ino, mode) in [(one, 0o4751), (sparse, 0o600), (sub, 0o711), (top, 0o750)] {
            let set = SetAttributes {
                mode: Some(mode),
                uid: Some(1234),
                gid: Some(4321),
                atime: Some(SetTime::At(stamp)),
                mtime: Some(SetTime::At(stamp)),
                ..SetAttributes::default()
            };
            of.set_attributes(ino, &set, ROOT).await.unwrap();
        }
        of.sync_all().await.unwrap();
    }
    server.snapshot("tank/a@s").await;
    {
        let lease = server.filesystem("tank/a").await;
        let of = lease.get();
        let one = at(&of, "docs/one").await.ino;
        write(&of, one, 0, b"spoilt").await;
        let top = at(&of, "docs").await.ino;
        file(&of, top, b"newer", b"only here").await;
    }

    // Beside what is there.
    let (status, answer) = server.restore("docs", false).await;
    assert_eq!(status, 200, "{answer}");
    let beside = answer["path"].as_str().unwrap().to_owned();
    assert!(beside.starts_with("docs.restored-"), "{answer}");
    assert_eq!(
        (&answer["files"], &answer["missing_count"]),
        (&json!(7), &json!(0))
    );
    assert_eq!(answer["lacking_count"], 0, "{answer}");
    let check = async |path: &str| {
        let lease = server.filesystem("tank/a").await;
        let of = lease.get();
        assert_eq!(text(&of, &format!("{path}/one")).await, b"first");
        for (name, mode) in [
            ("", 0o750),
            ("/one", 0o4751),
            ("/sub", 0o711),
            ("/sub/sparse", 0o600),
        ] {
            let found = at(&of, &format!("{path}{name}")).await;
            assert_eq!(
                (found.uid, found.gid, found.mode),
                (1234, 4321, mode),
                "{name}"
            );
            assert_eq!((found.mtime, found.atime), (stamp, stamp), "{name}");
        }
        let one = at(&of, &format!("{path}/one")).await;
        assert_eq!(at(&of, &format!("{path}/sub/also")).await.ino, one.ino);
        assert_eq!(
            &of.xattrs().get(one.ino, b"user.note").await.unwrap()[..],
            b"kept"
        );
        let sparse = at(&of, &format!("{path}/sub/sparse")).await;
        assert_eq!(sparse.size_bytes, 16 << 20);
        let hole = of.seek(sparse.ino, 0, SeekTo::Hole).await.unwrap();
        assert!(hole <= 1 << 20, "{hole}");
        let tail = of.seek(sparse.ino, 2 << 20, SeekTo::Data).await.unwrap();
        assert!(tail > 4 << 20, "{tail}");
        let end = of.peek(sparse.ino, 8 << 20, 4).await.unwrap();
        assert_eq!(end.concat(), b"tail");
        let link = at(&of, &format!("{path}/sub/out")).await;
        assert_eq!(&of.read_link(link.ino).await.unwrap()[..], b"/etc/passwd");
        assert_eq!(
            at(&of, &format!("{path}/sub/pipe")).await.kind,
            FileKind::Fifo
        );
    };
    check(&beside).await;
    {
        let lease = server.filesystem("tank/a").await;
        assert_eq!(text(&lease.get(), "docs/one").await, b"spoilt");
    }

    // In its place: what was there stays, by another name.
    let (status, answer) = server.restore("docs", true).await;
    assert_eq!((status, &answer["path"]), (200, &json!("docs")), "{answer}");
    let replaced = answer["replaced"].as_str().unwrap().to_owned();
    assert!(replaced.starts_with("docs.replaced-"), "{answer}");
    check("docs").await;
    {
        let lease = server.filesystem("tank/a").await;
        let of = lease.get();
        assert_eq!(text(&of, &format!("{replaced}/one")).await, b"spoilt");
        assert_eq!(text(&of, &format!("{replaced}/newer")).await, b"only here");
        let docs = at(&of, "docs").await.ino;
        let found = of.lookup(docs, b"newer").await;
        assert!(found.is_err());
        // One that is gone comes back by its name.
        of.unlink(docs, b"one").await.unwrap();
    }
    let (status, answer) = server.restore("docs/one", true).await;
    assert_eq!(
        (status, &answer["path"]),
        (200, &json!("docs/one")),
        "{answer}"
    );
    assert_eq!(answer["replaced"], Value::Null);
    // There may be many of them.
    for _ in 0..3 {
        let (status, answer) = server.restore("docs/one", false).await;
        assert_eq!(status, 200, "{answer}");
    }
    let names = server.names_in("tank/a", "docs").await;
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(
        !names.iter().any(|name| name.ends_with(".partial")),
        "{names:?}"
    );

    // What cannot be, and why.
    {
        let lease = server.filesystem("tank/a").await;
        let of = lease.get();
        let sub = at(&of, "docs/sub").await;
        let docs = at(&of, "docs").await;
        of.rename(docs.ino, b"sub", of.root(), b"sub", Default::default())
            .await
            .unwrap();
        of.symlink(docs.ino, b"sub", b"../sub", ROOT).await.unwrap();
        assert_eq!(at(&of, "sub").await.ino, sub.ino);
    }
    for (path, status) in [
        ("", 400),
        ("../docs", 400),
        ("none", 404),
        ("docs/sub/pipe", 400),
    ] {
        let (got, answer) = server.restore(path, false).await;
        assert_eq!(got, status, "{path}: {answer}");
    }
    let call = json!({"snapshot": "tank/a", "path": "docs", "in_place": false});
    assert_eq!(server.post("/v1/files/restore", call).await.0, 400);
    let records = server.ok("/v1/audit/list", json!({})).await;
    let first = records["entries"].as_array().unwrap().iter();
    let restored = first.filter(|entry| entry["path"] == "/v1/files/restore");
    assert!(
        restored
            .clone()
            .any(|entry| entry["about"] == json!(["tank/a@s", "docs"])),
        "{records}"
    );
    let jobs = server.ok("/v1/jobs/list", json!({})).await;
    let mut jobs = jobs["jobs"].as_array().unwrap().iter();
    assert!(jobs.any(|job| job["kind"] == "restore" && job["pool"] == "tank"));
    server.stop().await;
}

/// Goal: a file is given as it is, in parts, and that is put on record.
#[tokio::test(flavor = "multi_thread")]
async fn files_are_given_to_who_may_have_them() {
    let server = Server::with_pool().await;
    server.create("tank/a").await;
    let content: Vec<u8> = (0..5_000_000_u32).map(|at| (at / 7) as u8).collect();
    {
        let lease = server.filesystem("tank/a").await;
        let of = lease.get();
        let made = of.create(of.root(), b"big", 0o600, ROOT).await.unwrap();
        write(&of, made.ino, 0, &content).await;
    }
    server.snapshot("tank/a@s").await;
    let get = async |query: &str| {
        let mut stream = UnixStream::connect(&server.listening.path).await.unwrap();
        let request = format!(
            "GET /v1/files/download?{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let end = answer
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        (head, answer[end + 4..].to_vec())
    };
    let (head, body) = get("dataset=tank/a%40s&path=big").await;
    assert!(head.contains(" 200 "), "{head}");
    assert!(head.contains("attachment; filename*=UTF-8''big"), "{head}");
    assert!(body == content);
    for (query, status) in [
        ("", " 400 "),
        ("dataset=tank/a%40s&path=..%2Fbig", " 400 "),
        ("dataset=tank/a%40s&path=none", " 404 "),
        ("dataset=tank/none%40s&path=big", " 404 "),
    ] {
        let (head, _) = get(query).await;
        assert!(head.contains(status), "{query}: {head}");
    }
    let records = server.ok("/v1/audit/list", json!({})).await;
    let entries = records["entries"].as_array().unwrap();
    let is_there = |entry: &Value| {
        entry["path"] == "/v1/files/download" && entry["about"] == json!(["tank/a@s", "big"])
    };
    assert!(entries.iter().any(is_there), "{records}");
    server.stop().await;
}
