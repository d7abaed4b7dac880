//! Goal: every decoder of bytes from disks, networks and other programs is fuzzed. Method: the
//! sources are searched for functions that are named as decoders and take bytes or text. The fuzz
//! targets call each of them by its name, or it is listed here with the target that reaches it, or
//! with the reason why none has to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Crates whose input is none of that: tests and tools, a person's words, and algorithms whose
/// targets are named after them.
const LEFT_OUT: [&str; 8] = [
    "oracles",
    "workspace-hack",
    "sim",
    "fuzzing",
    "codec",
    "api",
    "console",
    "cli",
];

/// Why no target calls a decoder by its name.
enum Why {
    /// This target calls it by way of another function.
    Through(&'static str),
    /// It needs none.
    Not(&'static str),
}

use Why::{Not, Through};

const A_PERSONS_WORDS: Why = Not("an administrator types it; what is wrong is refused in words");
const THE_KERNELS: Why = Not("the kernel of this host prints it");
const OUR_FILE: Why = Not("a file of this program's figures; what is damaged is forgotten");
const OF_TWO_NUMBERS: Why = Not("two numbers with a colon between, or it is nobody's");
const OF_ONE_NUMBER: Why = Not("it takes one number out of bytes of a fixed length");

/// Decoders that no target calls by their names.
const REVIEWED: &[(&str, Why)] = &[
    ("answers/src/nut.rs parse_words", Through("ups")),
    ("serving/src/identity.rs KnownAlone::parse", OF_TWO_NUMBERS),
    ("serving/src/iscsi.rs parse_share", A_PERSONS_WORDS),
    ("telemetry/src/metrics/process.rs parse", THE_KERNELS),
    ("host/src/resident.rs ResidentMemory::parse", THE_KERNELS),
    (
        "verbs/src/owners.rs OwnedQuota::parse_name",
        A_PERSONS_WORDS,
    ),
    ("serving/src/smb/words.rs Words::parse", A_PERSONS_WORDS),
    ("plan/src/amount.rs parse_bytes", A_PERSONS_WORDS),
    ("trial/src/spec.rs Trial::parse", A_PERSONS_WORDS),
    ("trial/src/servers.rs Trials::parse", A_PERSONS_WORDS),
    ("plan/src/amount.rs parse_rate", A_PERSONS_WORDS),
    (
        "dataset/src/state/deadlist.rs decode_space",
        Through("block_lists"),
    ),
    ("dataset/src/props/parse.rs parse_size", A_PERSONS_WORDS),
    ("dataset/src/props/parse.rs parse_value", A_PERSONS_WORDS),
    ("dataset/src/set.rs parse_change", A_PERSONS_WORDS),
    ("dataset/src/check.rs parse_setting", A_PERSONS_WORDS),
    ("device/src/file/foreign.rs parse", THE_KERNELS),
    (
        "filesystem/src/znode.rs parse_time",
        Through("access_lists"),
    ),
    (
        "filesystem/src/znode.rs parse_number",
        Through("access_lists"),
    ),
    (
        "format/src/blkptr.rs CryptParams::from_bytes",
        OF_ONE_NUMBER,
    ),
    (
        "format/src/blkptr.rs BlockPointer::decode_slice",
        Through("log_block"),
    ),
    ("format/src/label.rs Eck::decode", Through("log_block")),
    (
        "format/src/nvlist/mod.rs NvList::decode",
        Through("history"),
    ),
    ("format/src/nvlist/native.rs decode", Through("nvlist")),
    ("format/src/nvlist/native.rs decode_head", Through("nvlist")),
    (
        "format/src/nvlist/native.rs decode_pairs",
        Through("nvlist"),
    ),
    (
        "format/src/nvlist/native.rs decode_value",
        Through("nvlist"),
    ),
    ("format/src/nvlist/xdr.rs decode", Through("nvlist")),
    ("format/src/nvlist/xdr.rs decode_list", Through("nvlist")),
    ("format/src/nvlist/xdr.rs decode_value", Through("nvlist")),
    ("format/src/stream/mod.rs decode_begin", Through("stream")),
    ("format/src/stream/mod.rs decode_object", Through("stream")),
    ("format/src/stream/mod.rs decode_write", Through("stream")),
    ("format/src/stream/mod.rs decode_spill", Through("stream")),
    (
        "format/src/stream/mod.rs decode_embedded",
        Through("stream"),
    ),
    (
        "format/src/words.rs decode",
        Not("the macro; each structure that it makes is asked for by its own name"),
    ),
    (
        "format/src/zil/mod.rs ZilLink::decode",
        Through("log_block"),
    ),
    (
        "object/src/zap/value.rs ZapValue::from_bytes",
        Not("it holds the bytes as they are"),
    ),
    ("spa/src/props.rs parse", A_PERSONS_WORDS),
    ("spa/src/props.rs parse_size", A_PERSONS_WORDS),
    ("spa/src/vdevprops.rs Change::parse", A_PERSONS_WORDS),
    ("spa/src/vdevprops.rs parse_value", A_PERSONS_WORDS),
    ("series/src/file.rs parse", OUR_FILE),
    ("series/src/point.rs Point::decode", OUR_FILE),
    ("serve-fuse/src/mountinfo.rs HostMount::parse", THE_KERNELS),
    ("serve-fuse/src/mountinfo.rs MountTable::parse", THE_KERNELS),
    (
        "serve-iscsi/src/scsi/copy.rs NamedUnit::decode",
        Through("iscsi"),
    ),
    ("serve-iscsi/src/scsi/inquiry.rs decode_lun", OF_ONE_NUMBER),
    (
        "serve-iscsi/src/scsi/reservation.rs TransportId::decode",
        Through("iscsi"),
    ),
    (
        "serve-iscsi/src/scsi/reservation.rs parse_isid",
        Through("iscsi"),
    ),
    (
        "serve-nfs/src/nlm/mod.rs StatusRequest::decode",
        Through("nfs_arguments"),
    ),
    ("serve-nfs/src/policy.rs Host::parse", Through("sharenfs")),
    (
        "serve-nfs/src/rpc/mod.rs decode_credential",
        Through("nfs_records"),
    ),
    (
        "serve-nfs/src/rpc/record.rs Mark::decode",
        Through("nfs_records"),
    ),
    (
        "serve-nfs/src/server/connection.rs understand",
        Through("nfs_records"),
    ),
    ("vdev/src/label.rs decode_config", Through("label")),
    ("vdev/src/label.rs decode_ring", Through("uberblock")),
    ("zil/src/walk.rs parse_records", Through("log_block")),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates")
}

/// The sources of a folder, without tests.
fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str());
        if name == Some("tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            out.push(path);
        }
    }
}

/// A source file without its tests.
fn text_of(path: &Path) -> String {
    let text = std::fs::read_to_string(path).expect("a source");
    let tests = text.find("\n#[cfg(test)]\nmod ").filter(|at| {
        let rest = &text[at + 1..];
        rest.lines().nth(1).is_some_and(|line| line.ends_with('{'))
    });
    text[..tests.unwrap_or(text.len())].to_owned()
}

/// The functions of a crate that its fuzz targets call.
fn entry_points(text: &str) -> String {
    let mut out = String::new();
    let mut is_inside = false;
    for line in text.lines() {
        is_inside |= line.contains("_for_fuzzing(") && line.contains("fn ");
        if is_inside {
            out.push_str(line);
            out.push('\n');
        }
        is_inside &= line != "}";
    }
    out
}

/// The name of the function that a line begins to define; one that waits for I/O is no decoder.
fn function(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(scope) => scope.split_once(')')?.1,
            None => after,
        };
    }
    let rest = rest.trim_start();
    let rest = rest.strip_prefix("const ").unwrap_or(rest);
    rest.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// The type that a line begins to implement something for.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = rest.trim_end_matches(['{', ' ']);
    let rest = rest.split(" where").next()?;
    let of = rest.rsplit(" for ").next()?;
    let of = match of.strip_prefix('<') {
        // Parameters of the block come before the type.
        Some(_) => of.split_once("> ")?.1,
        None => of.trim_start(),
    };
    let path = of.split('<').next()?;
    path.rsplit([':', ' ', '&']).next()
}

fn is_decoder(name: &str, signature: &str) -> bool {
    let is_named = ["decode", "parse", "understand"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    let is_named = is_named || ["from_bytes", "read_from"].contains(&name);
    let takes = signature.split("->").next().unwrap_or(signature);
    let kinds = ["[u8", "Bytes", "&str", "& str", "&'a str", "Reader"];
    is_named && !name.ends_with("_for_fuzzing") && kinds.iter().any(|kind| takes.contains(kind))
}

/// A function that decodes.
struct Decoder {
    /// The type that it belongs to, if it does.
    of: Option<String>,
    name: String,
    /// Whether other crates may call it.
    is_public: bool,
}

impl Decoder {
    fn shown(&self) -> String {
        match &self.of {
            Some(of) => format!("{of}::{}", self.name),
            None => self.name.clone(),
        }
    }

    /// Whether a text calls it: with its type, or with its module or alone.
    fn is_called(&self, module: &str, text: &str) -> bool {
        let call = format!("{}(", self.shown());
        if self.of.is_some() {
            return text.contains(&call);
        }
        text.contains(&format!("{module}::{call}"))
            || text.match_indices(&call).any(|(at, _)| {
                let before = text[..at].chars().next_back();
                before.is_some_and(|c| !c.is_alphanumeric() && c != '_' && c != ':')
            })
    }
}

/// The decoders of a source.
fn decoders(text: &str) -> Vec<Decoder> {
    let mut out = Vec::new();
    let mut of: Option<String> = None;
    let mut is_structure = false;
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        is_structure |= line.starts_with("disk_struct! {");
        if is_structure && let Some((name, _)) = line.split_once(", \"") {
            out.push(Decoder {
                of: Some(name.trim().to_owned()),
                name: "decode".to_owned(),
                is_public: true,
            });
            is_structure = false;
        }
        if let Some(name) = implemented(line) {
            of = Some(name.to_owned());
        }
        if *line == "}" {
            of = None;
        }
        let Some(name) = function(line) else { continue };
        let mut signature = String::new();
        for line in lines.iter().skip(index).take(12) {
            signature.push_str(line);
            if line.ends_with('{') || line.ends_with(';') {
                break;
            }
        }
        if is_decoder(name, &signature) {
            out.push(Decoder {
                of: of.clone(),
                name: name.to_owned(),
                is_public: line.trim_start().starts_with("pub "),
            });
        }
    }
    out
}

/// The module that a file is, by its path.
fn module_of(path: &Path) -> &str {
    let name = match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib") | None => path.parent().and_then(Path::file_name),
        Some(_) => path.file_stem(),
    };
    name.and_then(|name| name.to_str()).unwrap_or("")
}

#[test]
fn every_decoder_is_fuzzed() {
    let crates = crates();
    let targets = crates.join("fuzzing/src/targets.rs");
    let targets = std::fs::read_to_string(targets).expect("the targets");
    let (mut wrong, mut used, mut count) = (Vec::new(), BTreeSet::new(), 0);
    for entry in std::fs::read_dir(&crates).expect("crates/") {
        let name = entry.expect("a crate").file_name();
        let name = name.to_str().expect("its name");
        if LEFT_OUT.contains(&name) {
            continue;
        }
        let mut paths = Vec::new();
        sources(&crates.join(name).join("src"), &mut paths);
        let texts: Vec<_> = paths.iter().map(|path| (path, text_of(path))).collect();
        let own: String = texts.iter().map(|(_, text)| entry_points(text)).collect();
        for (path, text) in texts {
            let path = path.strip_prefix(&crates).expect("a path in crates/");
            for decoder in decoders(&text) {
                count += 1;
                let key = format!("{} {}", path.display(), decoder.shown());
                let module = module_of(path);
                let is_called = decoder.is_called(module, &own)
                    || decoder.is_public && decoder.is_called(module, &targets);
                let listed = REVIEWED.iter().find(|(listed, _)| *listed == key);
                used.extend(listed.map(|(listed, _)| *listed));
                match (listed, is_called) {
                    (Some(_), true) => wrong.push(format!(
                        "{key}: a target calls it; take it off the list here"
                    )),
                    (None, false) => wrong.push(format!(
                        "{key}: no fuzz target calls it (crates/fuzzing/src/targets.rs, or the \
                         crate's decode_for_fuzzing)"
                    )),
                    _ => {}
                }
            }
        }
    }
    assert!(count > 100, "only {count} decoders");
    for (listed, why) in REVIEWED {
        if !used.contains(listed) {
            wrong.push(format!("{listed}: there is no such decoder any more"));
        }
        match why {
            Through(target) if !targets.contains(&format!("target(\"{target}\",")) => {
                wrong.push(format!("{listed}: there is no target '{target}'"));
            }
            Not("") => wrong.push(format!("{listed}: no reason")),
            _ => {}
        }
    }
    wrong.sort();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The search finds what it is to find.
#[test]
fn decoders_are_found_in_sources() {
    let text = "\
disk_struct! {
    /// A.
    Phys, \"phys_t\", 8 {
    }
}
impl<'a> Record<'a> {
    pub fn decode(bytes: &'a [u8]) -> Self {
    }
    pub async fn decode_later(bytes: &[u8]) {
    }
    fn parse(number: u64) {
    }
}
impl From<u8> for Other {
    fn parse_it(
        text: &str,
    ) {
    }
}
pub(crate) fn understand(printed: Bytes) {
}
";
    let found: Vec<String> = decoders(text)
        .iter()
        .map(|decoder| format!("{} {}", decoder.shown(), decoder.is_public))
        .collect();
    let expected = [
        "Phys::decode true",
        "Record::decode true",
        "Other::parse_it false",
        "understand false",
    ];
    assert_eq!(found, expected);
    let decoder = &decoders("fn parse(text: &str) {\n}\n")[0];
    assert!(decoder.is_called("words", "let _ = words::parse(text);"));
    assert!(decoder.is_called("words", "let _ = parse(text);"));
    assert!(!decoder.is_called("words", "Other::parse(text)"));
}
