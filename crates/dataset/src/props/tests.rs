//! Values as typed, stored and shown.

use super::*;

#[test]
fn every_property_is_named_once_and_defaults_are_words_of_its_table() {
    for (index, property) in PROPERTIES.iter().enumerate() {
        assert!(
            PROPERTIES[index + 1..]
                .iter()
                .all(|other| other.name != property.name),
            "{}",
            property.name
        );
        if let ValueKind::Index(_) = property.kind
            && property.name != "version"
        {
            assert!(
                property.word(property.default_number).is_some(),
                "{}",
                property.name
            );
        }
    }
    assert_eq!(find("refer").expect("a column's name").name, "referenced");
    assert!(find("nonsense").is_none());
}

#[test]
fn sizes_are_read_as_openzfs_reads_them() {
    for (text, bytes) in [
        ("0", 0),
        ("512", 512),
        ("1k", 1024),
        ("1K", 1024),
        ("1KB", 1024),
        ("1kib", 1024),
        ("1.5G", 3 << 29),
        (".5M", 1 << 19),
        ("10b", 10),
        ("16E", 0),
    ] {
        let expected = (text != "16E").then_some(bytes);
        assert_eq!(parse_size(text).ok(), expected, "{text}");
    }
    for text in [
        "",
        "x",
        "-1",
        "1x",
        "1bb",
        "1BiB",
        "99999999999999999999",
        "1.2.3",
    ] {
        assert!(parse_size(text).is_err(), "{text}");
    }
}

#[test]
fn sizes_are_shown_in_five_characters() {
    for (bytes, text) in [
        (0, "0B"),
        (512, "512B"),
        (1024, "1K"),
        (1536, "1.50K"),
        (10239, "10.0K"),
        (30793728, "29.4M"),
        (131_072, "128K"),
        (1 << 40, "1T"),
        ((1 << 40) + 1, "1.00T"),
        (u64::MAX, "16.0E"),
    ] {
        assert_eq!(format_size(bytes), text);
    }
}

#[test]
fn values_are_checked_with_openzfs_words() {
    let parse =
        |name: &str, typed: &str| parse_value(find(name).expect(name), Kinds::FILESYSTEM, typed);
    assert_eq!(
        parse("compression", "zstd-19").ok(),
        Some(PropertyValue::Number(16 | 19 << 7))
    );
    assert_eq!(parse("quota", "none").ok(), Some(PropertyValue::Number(0)));
    assert_eq!(
        parse("snapshot_limit", "none").ok(),
        Some(PropertyValue::Number(u64::MAX))
    );
    assert_eq!(
        parse("recordsize", "1M").ok(),
        Some(PropertyValue::Number(1 << 20))
    );
    assert_eq!(
        parse("mountpoint", "/a b").ok(),
        Some(PropertyValue::from("/a b"))
    );
    for (name, typed, words) in [
        (
            "compression",
            "lz5",
            "'compression' must be one of 'on | off | lzjb",
        ),
        ("quota", "0", "use 'none' to disable quota/refquota"),
        (
            "recordsize",
            "1000",
            "'recordsize' must be power of 2 from 512B to 16M",
        ),
        (
            "mountpoint",
            "a",
            "must be an absolute path, 'none', or 'legacy'",
        ),
        ("refreservation", "auto", "only allowed on volumes"),
        ("reservation", "ten", "bad numeric value 'ten'"),
    ] {
        let error = parse(name, typed).expect_err(name).to_string();
        assert!(error.contains(words), "{name}={typed}: {error}");
    }
    assert!(is_user_property("org.example:colour"));
    assert!(!is_user_property("Org:x") && !is_user_property("plain"));
}

#[test]
fn values_are_shown_as_zfs_get_does() {
    let show = |name: &str, number: u64, exact: bool| {
        show_value(find(name), &PropertyValue::Number(number), exact)
    };
    assert_eq!(show("compressratio", 494, false), "4.94x");
    assert_eq!(show("compressratio", 494, true), "4.94");
    assert_eq!(show("quota", 0, false), "none");
    assert_eq!(show("quota", 0, true), "0");
    assert_eq!(show("compression", 10, false), "gzip");
    assert_eq!(show("mounted", 1, false), "yes");
    assert_eq!(show("snapshot_limit", u64::MAX, false), "none");
    assert_eq!(show("guid", 5000, false), "5000");
}

#[test]
fn properties_are_found_by_the_names_of_their_columns() {
    for (column, name) in [
        ("compress", "compression"),
        ("recsize", "recordsize"),
        ("rdonly", "readonly"),
        ("reserv", "reservation"),
        ("refreserv", "refreservation"),
        ("dnsize", "dnodesize"),
        ("volblock", "volblocksize"),
        ("avail", "available"),
        ("usedds", "usedbydataset"),
        ("case", "casesensitivity"),
        ("written", "written"),
    ] {
        assert_eq!(full_name(column), name);
    }
    for other in ["RECSIZE", "ALL", "org.example:recsize", "recs", ""] {
        assert_eq!(full_name(other), other);
        assert!(find(other).is_none(), "{other}");
    }
    let mut columns: Vec<String> = PROPERTIES
        .iter()
        .map(|property| property.column.to_ascii_lowercase())
        .collect();
    columns.sort_unstable();
    columns.dedup();
    assert_eq!(columns.len(), PROPERTIES.len(), "two have one column");
}

#[test]
fn sizes_too_large_for_any_number_say_so() {
    for text in ["1z", "1Z", "16E", "1.5Z", "99999999999999999999"] {
        let reason = parse_size(text).unwrap_err();
        assert_eq!(reason, "numeric value is too large", "{text}");
    }
}
