//! Goal: the options of the inspecting commands do what OpenZFS's do, and `-j` has the structure of
//! OpenZFS 2.3. Method: golden pools, imported read-only without mounts; figures are those of their
//! manifests. Keys and nesting are those of `zpool_do_list`, `status_callback_json`, `get_callback`
//! (cmd/zpool/zpool_main.c) and `fill_dataset_info` (cmd/zfs/zfs_main.c).

use serde_json::Value;

use crate::golden::Golden;

fn open(name: &str) -> Option<Golden> {
    let golden = Golden::unpack(name)?;
    golden.import();
    Some(golden)
}

fn json(golden: &Golden, words: &str) -> Value {
    let text = golden.text(words);
    assert_eq!(text.trim_end().lines().count(), 1, "{words}: one line");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let command: Vec<&str> = words.split(' ').take(2).collect();
    assert_eq!(document["output_version"]["command"], command.join(" "));
    assert_eq!(document["output_version"]["vers_major"], 0);
    assert_eq!(document["output_version"]["vers_minor"], 1);
    document
}

fn lines(golden: &Golden, words: &str) -> Vec<String> {
    golden.text(words).lines().map(str::to_owned).collect()
}

#[test]
fn pools_in_json_have_the_structure_of_openzfs() {
    let Some(golden) = open("special") else {
        return;
    };
    let guid = golden.manifest["pool_props"]["guid"]
        .as_str()
        .expect("guid");
    let size = golden.manifest["pool_props"]["size"]
        .as_str()
        .expect("size");
    let leaf = |name: &str| format!("{}/{name}.img", golden.directory);

    let pool = &json(&golden, "zpool list -j -v -p")["pools"]["special"];
    assert_eq!(
        (&pool["type"], &pool["state"]),
        (&"POOL".into(), &"ONLINE".into())
    );
    assert_eq!(
        (&pool["pool_guid"], &pool["spa_version"]),
        (&guid.into(), &"5000".into())
    );
    let property = &pool["properties"]["size"];
    assert_eq!(property["value"], size);
    assert_eq!(
        property["source"],
        serde_json::json!({"type": "NONE", "data": "-"})
    );
    let mirror = &pool["vdevs"]["mirror-0"];
    assert_eq!(
        (&mirror["vdev_type"], &mirror["class"]),
        (&"mirror".into(), &"normal".into())
    );
    assert_eq!(mirror["vdevs"][leaf("d0")]["path"], leaf("d0"));
    assert_eq!(
        mirror["vdevs"][leaf("d0")]["properties"]["size"]["value"],
        "67108864"
    );
    let special = &pool["vdevs"]["special"]["mirror-1"];
    assert_eq!(special["class"], "special");
    assert_eq!(special["vdevs"][leaf("s0")]["class"], "special");

    let document = json(&golden, "zpool list -j --json-int --json-pool-key-guid");
    let pool = &document["pools"][guid];
    assert_eq!(pool["pool_guid"].as_u64(), guid.parse().ok());
    assert_eq!(
        pool["properties"]["size"]["value"].as_u64(),
        size.parse().ok()
    );

    let pool = &json(&golden, "zpool status -j")["pools"]["special"];
    assert!(pool["type"].is_null() && pool["error_count"] == "0");
    let root = &pool["vdevs"]["special"];
    assert_eq!(
        (&root["vdev_type"], &root["state"]),
        (&"root".into(), &"ONLINE".into())
    );
    let disk = &root["vdevs"]["mirror-0"]["vdevs"][leaf("d1")];
    for key in ["read_errors", "write_errors", "checksum_errors", "slow_ios"] {
        assert_eq!(disk[key], "0", "{key}");
    }
    assert_eq!(disk["phys_space"], "64M");
    assert_eq!(
        pool["special"]["mirror-1"]["vdevs"][leaf("s1")]["state"],
        "ONLINE"
    );
    let flat = json(&golden, "zpool status -j --json-flat-vdevs --json-int");
    let vdevs = &flat["pools"]["special"]["vdevs"];
    assert_eq!(vdevs[leaf("d0")]["parent"], "mirror-0");
    assert_eq!(vdevs[leaf("d0")]["read_errors"], 0);
    assert!(vdevs["mirror-1"].is_object() && flat["pools"]["special"]["special"].is_null());

    let document = json(&golden, "zpool get -j -p size,health special");
    let properties = &document["pools"]["special"]["properties"];
    assert_eq!(properties["size"]["value"], size);
    assert_eq!(properties["health"]["value"], "ONLINE");
    let document = json(&golden, "zpool get -j state,parent special mirror-1");
    assert_eq!(document["pool"]["name"], "special");
    let mirror = &document["vdevs"]["mirror-1"];
    assert_eq!(
        (&mirror["type"], &mirror["class"]),
        (&"VDEV".into(), &"special".into())
    );
    assert_eq!(mirror["properties"]["state"]["value"], "ONLINE");
    assert_eq!(mirror["properties"]["parent"]["value"], "root-0");
    for words in ["zpool list --json-int", "zpool status --json-flat-vdevs"] {
        golden.server.fails(words);
    }
}

#[test]
fn datasets_in_json_have_the_structure_of_openzfs() {
    let Some(golden) = open("plain") else {
        return;
    };
    let document = json(
        &golden,
        "zfs list -j -p -t all -o name,used,creation -r plain/data",
    );
    let datasets = document["datasets"].as_object().expect("datasets");
    for recorded in golden.manifest["datasets"].as_array().expect("datasets") {
        let name = recorded["name"].as_str().expect("a name");
        if !(name == "plain/data"
            || name.starts_with("plain/data@")
            || name.starts_with("plain/data#"))
        {
            continue;
        }
        let ours = &datasets[name];
        let kind = recorded["type"].as_str().expect("a type").to_uppercase();
        assert_eq!(
            (&ours["type"], &ours["pool"]),
            (&kind.into(), &"plain".into())
        );
        let props = &recorded["props"];
        assert_eq!(ours["createtxg"], props["createtxg"], "{name}");
        assert_eq!(ours["properties"]["creation"]["value"], props["creation"]);
        if let Some((dataset, snapshot)) = name.split_once('@') {
            assert_eq!(
                (&ours["dataset"], &ours["snapshot_name"]),
                (&dataset.into(), &snapshot.into())
            );
        }
    }
    let document = json(&golden, "zfs get -j -s local all plain plain/comp/lz4");
    let properties = document["datasets"]["plain/comp/lz4"]["properties"]
        .as_object()
        .expect("properties");
    assert_eq!(properties["compression"]["value"], "lz4");
    assert!(
        properties
            .values()
            .all(|property| property["source"]["type"] == "LOCAL")
    );
    let document = json(&golden, "zfs get -j org.example:colour plain/comp/lz4");
    let colour = &document["datasets"]["plain/comp/lz4"]["properties"]["org.example:colour"];
    assert_eq!(
        colour["source"],
        serde_json::json!({"type": "INHERITED", "data": "plain"})
    );
    let document = json(&golden, "zfs get -j --json-int used plain");
    assert!(document["datasets"]["plain"]["properties"]["used"]["value"].is_u64());
    assert_eq!(
        json(&golden, "zfs mount -j")["datasets"],
        serde_json::json!({})
    );
}

#[test]
fn datasets_are_chosen_and_sorted_as_asked() {
    let Some(golden) = open("plain") else {
        return;
    };
    let bookmarks: Vec<&str> = golden.manifest["datasets"]
        .as_array()
        .expect("datasets")
        .iter()
        .filter(|dataset| dataset["type"] == "bookmark")
        .filter_map(|dataset| dataset["name"].as_str())
        .collect();
    assert!(!bookmarks.is_empty());
    let mut expected = bookmarks.clone();
    expected.sort_unstable();
    assert_eq!(lines(&golden, "zfs list -H -o name -t bookmark"), expected);
    assert_eq!(
        lines(&golden, "zfs list -H -o name -t bookmark plain/data"),
        expected
    );
    assert_eq!(
        lines(&golden, &format!("zfs list -H -o name {}", expected[0])),
        expected[..1]
    );
    let snapshots = lines(&golden, "zfs list -H -o name -t snapshot plain/data");
    assert_eq!(
        snapshots,
        ["plain/data@s1", "plain/data@s2", "plain/data@third"]
    );
    let reversed = lines(
        &golden,
        "zfs list -H -o name -t snap -S creation plain/data",
    );
    assert_eq!(
        reversed,
        ["plain/data@third", "plain/data@s2", "plain/data@s1"]
    );
    let one_deep = lines(&golden, "zfs list -H -o name -d 1 plain/comp");
    assert!(one_deep.len() > 5 && one_deep.iter().all(|name| name.starts_with("plain/comp")));
    assert_eq!(
        lines(&golden, "zfs list -H -o name -d 0 plain/comp"),
        ["plain/comp"]
    );
    let used = lines(
        &golden,
        "zfs list -Hp -o used,name -S used -s name -r plain/comp",
    );
    let sizes: Vec<u64> = used
        .iter()
        .map(|row| {
            row.split('\t')
                .next()
                .and_then(|size| size.parse().ok())
                .expect("a size")
        })
        .collect();
    assert!(sizes.is_sorted_by(|a, b| a >= b), "{used:?}");
    let text = golden.text("zfs list -o space plain");
    let headings: Vec<&str> = text
        .lines()
        .next()
        .expect("headings")
        .split_whitespace()
        .collect();
    let expected = [
        "NAME",
        "AVAIL",
        "USED",
        "USEDSNAP",
        "USEDDS",
        "USEDREFRESERV",
        "USEDCHILD",
    ];
    assert_eq!(headings, expected);
    // The order of `zfs get all` is that of the properties' numbers.
    let all = lines(&golden, "zfs get -H -o property all plain/comp");
    let first = [
        "type",
        "creation",
        "used",
        "available",
        "referenced",
        "compressratio",
        "mounted",
    ];
    assert_eq!(all[..first.len()], first);
    let sources = lines(
        &golden,
        "zfs get -H -o source -s inherited all plain/comp/lz4",
    );
    assert!(
        !sources.is_empty()
            && sources
                .iter()
                .all(|source| source.starts_with("inherited from "))
    );
    for (words, reason) in [
        ("zfs list -o nothing", "invalid property 'nothing'"),
        ("zfs list -t volume plain/comp", "operation not applicable"),
        ("zfs list plain/none", "does not exist"),
        ("zfs get -s here all plain", "invalid source 'here'"),
    ] {
        let error = golden.server.fails(words);
        assert!(error.contains(reason), "{words}: {error}");
    }
    assert_eq!(
        lines(
            &golden,
            "zfs get -Hp -o value written@s1,userused@0 plain/data"
        )
        .len(),
        2
    );
    let used = lines(&golden, "zfs get -Hp -o value userused@0 plain/data");
    assert_eq!(used, ["981504"]);
    let holds = golden.text("zfs holds -H plain/data@s2");
    assert!(holds.starts_with("plain/data@s2\talso\t"), "{holds}");
    let groups = golden.text("zfs groupspace -n plain/quota");
    let headings: Vec<&str> = groups
        .lines()
        .next()
        .expect("headings")
        .split_whitespace()
        .collect();
    assert_eq!(
        headings,
        ["TYPE", "NAME", "USED", "QUOTA", "OBJUSED", "OBJQUOTA"]
    );
    let row = groups
        .lines()
        .find(|line| line.contains(" 1001 "))
        .expect("group 1001");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["POSIX", "Group", "1001", "30K", "2M", "5", "none"]);
}

#[test]
fn reports_repeat_and_pools_are_told_apart() {
    let Some(golden) = open("plain") else {
        return;
    };
    assert_eq!(
        lines(&golden, "zpool list -H -o name plain 0.1 2"),
        ["plain", "plain"]
    );
    let text = golden.text("zpool list -o name,health -T u 0.1 2");
    let expected = text.lines().filter(|line| line.starts_with("NAME")).count();
    assert_eq!(expected, 1, "{text}");
    assert!(
        text.lines()
            .next()
            .is_some_and(|time| time.parse::<u64>().is_ok()),
        "{text}"
    );
    assert_eq!(golden.text("zpool status -x"), "all pools are healthy\n");
    assert_eq!(
        golden.text("zpool status -x plain"),
        "pool 'plain' is healthy\n"
    );
    let text = golden.text("zpool status -s -i -t plain");
    assert!(
        text.contains("CKSUM  SLOW") && text.contains("  (uninitialized)  (untrimmed)"),
        "{text}"
    );
    let history = golden.text("zpool history -il plain");
    let made = history
        .lines()
        .find(|line| line.contains("zpool create"))
        .expect("its making");
    assert!(made.contains(" [user 0 (root) on "), "{made}");
    assert!(history.contains(" [txg:") && history.len() > golden.text("zpool history plain").len());
    let vdevs = lines(&golden, "zpool get -H -o name,value guid plain all-vdevs");
    assert_eq!(vdevs.len(), 2, "{vdevs:?}");
    assert!(vdevs[0].starts_with("root-0\t"));
    let leaf = format!("{}/d0.img", golden.directory);
    let rows = lines(
        &golden,
        &format!("zpool get -Hp -o property,value all plain {leaf}"),
    );
    assert!(rows.contains(&"parent\troot-0".to_owned()) && rows.contains(&format!("path\t{leaf}")));
    let error = golden.server.fails("zpool get all plain nothing");
    assert!(
        error.contains("Expected a list of vdevs in \"plain\""),
        "{error}"
    );
    assert!(golden.text("zfs version").starts_with("millpond-"));
}
