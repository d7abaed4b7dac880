//! People and groups of shares, and whose directories are, by the API. SMB is off, so that no user
//! of this host is made.

use filesystem::{Caller, FileKind, SetAttributes};

use super::*;

impl Server {
    async fn refused(&self, path: &str, body: Value, kind: &str) -> String {
        let (_, failure) = self.post(path, body.clone()).await;
        assert_eq!(failure["kind"], kind, "{path} {body}: {failure}");
        failure["message"].as_str().unwrap().to_owned()
    }

    async fn person(&self, name: &str) -> u64 {
        let added = self.ok("/v1/people/add", json!({ "name": name })).await;
        added["uid"].as_u64().unwrap()
    }

    async fn people(&self) -> Value {
        self.ok("/v1/people/list", json!({})).await
    }
}

/// Goal: people and groups have numbers that nobody else has or gets, and are there after a
/// restart; what does not work leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn people_and_groups_have_numbers_of_their_own() {
    let server = Server::start().await;
    let none = server.people().await;
    assert_eq!((&none["people"], &none["groups"]), (&json!([]), &json!([])));
    assert!(none["no_smb"].as_str().unwrap().contains("--smb off"));
    let ann = server.person("ann-of-millpond").await;
    assert_eq!(none["free_id"], ann);
    let bob = server.person("bob-of-millpond").await;
    assert!(ann >= 3000 && bob > ann);

    // Nobody is made by halves.
    let with_password = json!({"name": "carl-of-millpond", "password": "a password"});
    let why = server
        .refused("/v1/people/add", with_password, "unsupported")
        .await;
    assert!(why.contains("--smb off"), "{why}");
    let password = json!({"name": "ann-of-millpond", "password": "a password"});
    server
        .refused("/v1/people/password", password, "unsupported")
        .await;
    for name in ["", "root", "Ann", "a b", "-rf", "a:b", "../a", "a\nb", "1"] {
        let body = json!({ "name": name });
        server.refused("/v1/people/add", body, "invalid").await;
        let body = json!({"name": name, "members": []});
        server.refused("/v1/groups/add", body, "invalid").await;
    }
    // What works for the host is nobody's to take.
    for name in ["daemon", "ann-of-millpond"] {
        let body = json!({"name": name, "members": []});
        server.refused("/v1/groups/add", body, "exists").await;
        let body = json!({ "name": name });
        server.refused("/v1/people/add", body, "exists").await;
    }
    for uid in [0, 1, 999, 65_534, u32::MAX] {
        let body = json!({"name": "dora-of-millpond", "uid": uid});
        server.refused("/v1/people/add", body, "invalid").await;
    }
    let body = json!({"name": "dora-of-millpond", "uid": ann});
    server.refused("/v1/people/add", body, "exists").await;

    let free = server.people().await["free_id"].clone();
    let names = ["bob-of-millpond", "ann-of-millpond", "ann-of-millpond"];
    let group = json!({"name": "photos", "gid": free, "members": names});
    let made = server.ok("/v1/groups/add", group.clone()).await;
    assert_eq!(made["gid"], free);
    server.refused("/v1/groups/add", group, "exists").await;
    let strangers = json!({"name": "photos", "members": ["daemon"]});
    server
        .refused("/v1/groups/change", strangers, "not-found")
        .await;
    let listed = server.people().await;
    let both = json!(["ann-of-millpond", "bob-of-millpond"]);
    assert_eq!(
        listed["groups"],
        json!([{"name": "photos", "gid": free, "members": both}])
    );

    // Who goes is in no group, and the number is not given again.
    let gone = json!({"name": "bob-of-millpond"});
    server.ok("/v1/people/remove", gone.clone()).await;
    server.refused("/v1/people/remove", gone, "not-found").await;
    let eve = server.person("eve-of-millpond").await;
    assert!(eve > free.as_u64().unwrap());
    let listed = server.people().await;
    assert_eq!(listed["groups"][0]["members"], json!(["ann-of-millpond"]));
    let people: Vec<_> = listed["people"].as_array().unwrap().clone();
    let numbers: Vec<_> = people.iter().map(|one| one["uid"].clone()).collect();
    assert_eq!(numbers, [json!(ann), json!(eve)], "{people:?}");

    let kept = serving::people::People::load(server.service.state().directory());
    assert_eq!(kept.uid_of("ann-of-millpond").map(u64::from), Some(ann));
    assert_eq!(kept.gid_of("photos").map(u64::from), free.as_u64());
    assert_eq!(kept.uid_of("bob-of-millpond"), None);
    let group = json!({"name": "photos"});
    server.ok("/v1/groups/remove", group.clone()).await;
    server
        .refused("/v1/groups/remove", group, "not-found")
        .await;
    server.stop().await;
}

/// Goal: the root directory of a filesystem, and one in it, get an owner, a group and a mode; no
/// path leads elsewhere, and nothing but directories is given away.
#[tokio::test(flavor = "multi_thread")]
async fn directories_are_given_to_people() {
    let server = Server::with_pool().await;
    server.create("tank/a").await;
    let ann = server.person("ann-of-millpond").await;
    {
        let open = server.service.serving.pools.of_dataset("tank/a").unwrap();
        let user = access::User::Command { name: "test" };
        let lease = open.access.filesystem("tank/a", user).await.unwrap();
        let of = lease.get();
        let root = Caller::ROOT;
        let sub = of.make_directory(of.root(), b"sub", 0o700, root).await;
        let inner = of.make_directory(sub.unwrap().ino, b"inner", 0o700, root);
        assert_eq!(inner.await.unwrap().kind, FileKind::Directory);
        let link = of.symlink(of.root(), b"link", b"sub", root).await;
        assert_eq!(link.unwrap().kind, FileKind::Symlink);
        let file = of.create(of.root(), b"file", 0o644, root).await.unwrap();
        let set = SetAttributes {
            uid: Some(7),
            ..SetAttributes::default()
        };
        of.set_attributes(file.ino, &set, root).await.unwrap();
    }
    let at = |path: &str| json!({"dataset": "tank/a", "path": path});
    let set = |path: &str, owner: Value, group: Value, mode: Value| {
        json!({
            "dataset": "tank/a", "path": path, "owner": owner, "group": group, "mode": mode,
        })
    };
    let access = "/v1/files/access";
    let change = "/v1/files/access-set";
    let before = server.ok(access, at("")).await;
    assert_eq!((&before["uid"], &before["gid"]), (&json!(0), &json!(0)));
    assert_eq!(before["owner"], "root");
    assert_eq!(before["mode"], 0o755);

    let to_ann = set("", json!("ann-of-millpond"), json!("54321"), json!(0o2770));
    let told = server.ok(change, to_ann).await;
    let expected = json!({
        "uid": ann, "owner": "ann-of-millpond", "gid": 54_321, "group": null, "mode": 0o2770,
        "has_list": false,
    });
    assert_eq!(told, expected);
    assert_eq!(server.ok(access, at("")).await, expected);
    // What is not said stays, and what is below as well.
    let to_other = set("", json!("12345"), Value::Null, Value::Null);
    let told = server.ok(change, to_other).await;
    assert_eq!(
        (&told["uid"], &told["gid"]),
        (&json!(12_345), &json!(54_321))
    );
    assert_eq!(told["mode"], 0o2770);
    let sub = set("sub", Value::Null, Value::Null, json!(0o1777));
    assert_eq!(server.ok(change, sub).await["mode"], 0o1777);
    let inner = server.ok(access, at("sub/inner")).await;
    assert_eq!((&inner["uid"], &inner["mode"]), (&json!(0), &json!(0o700)));

    for path in ["..", "sub/../..", "/", "sub/", "link", "link/inner", "file"] {
        let kind = "invalid";
        server.refused(access, at(path), kind).await;
        let body = set(path, json!("1"), Value::Null, Value::Null);
        server.refused(change, body, kind).await;
    }
    for mode in [0o4755, 0o10_000, u32::MAX] {
        let body = set("sub", Value::Null, Value::Null, json!(mode));
        server.refused(change, body, "invalid").await;
    }
    for who in ["nobody of this name", "", "4294967295", "-1"] {
        for (owner, group) in [(json!(who), Value::Null), (Value::Null, json!(who))] {
            let body = set("sub", owner, group, Value::Null);
            server.refused(change, body, "not-found").await;
        }
    }
    let body = set("nothing", json!("1"), Value::Null, Value::Null);
    server.refused(change, body, "not-found").await;
    let snapshot = json!({
        "names": ["tank/a@s"], "recursive": false, "properties": {}, "command": "zfs snapshot",
    });
    server.ok("/v1/zfs/snapshot", snapshot).await;
    let body = json!({"dataset": "tank/a@s", "path": "", "owner": "1"});
    server.refused(change, body, "invalid").await;
    let sub = server.ok(access, at("sub")).await;
    assert_eq!((&sub["uid"], &sub["mode"]), (&json!(0), &json!(0o1777)));
    server.stop().await;
}
