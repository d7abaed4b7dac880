//! The native properties of datasets: one table, in the order in which `zfs get all` shows them
//! (`zfs_prop_t`, include/sys/fs/zfs.h, and `zfs_prop_init`, module/zcommon/zfs_prop.c, as of
//! OpenZFS 2.3).

use super::indexes::{self as ix, IndexTable};

/// Kinds of datasets, as a set: which kinds a property applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// Filesystems.
    pub const FILESYSTEM: Kinds = Kinds(1);
    /// Volumes.
    pub const VOLUME: Kinds = Kinds(2);
    /// Snapshots (of either).
    pub const SNAPSHOT: Kinds = Kinds(4);
    /// All of them.
    pub const ALL: Kinds = Kinds(7);

    /// Both sets together.
    pub const fn or(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    /// Whether the two sets have a kind in common.
    pub const fn meets(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }
}

/// Who may set a property, when, and whether children inherit it (`zprop_attr_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attr {
    /// Settable; children inherit it.
    Inherit,
    /// Settable; children have the default.
    Default,
    /// Never set by a user.
    ReadOnly,
    /// Settable at creation only; children inherit it.
    OneTime,
    /// Settable at creation only; children have the default.
    OneTimeDefault,
}

/// What kind of value a property has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// An unsigned number: bytes, a count, a time in seconds, a ratio in hundredths.
    Number,
    /// Text.
    Text,
    /// One of a list of words, stored as a number.
    Index(IndexTable),
}

/// Description of one native property.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// Kind of its value.
    pub kind: ValueKind,
    /// Default of a number or index property.
    pub default_number: u64,
    /// Default of a text property; `None`: it has no value unless set.
    pub default_text: Option<&'static str>,
    /// Who may set it and whether it is inherited.
    pub attr: Attr,
    /// The kinds of datasets that have it.
    pub kinds: Kinds,
    /// The values it takes, as shown in messages.
    pub values: &'static str,
    /// Heading of its column in `zfs list`.
    pub column: &'static str,
    /// Whether its column is aligned to the right.
    pub right_aligned: bool,
    /// Whether users see it.
    pub visible: bool,
}

const F: Kinds = Kinds::FILESYSTEM;
const V: Kinds = Kinds::VOLUME;
const FV: Kinds = F.or(V);
const FS: Kinds = F.or(Kinds::SNAPSHOT);
const VS: Kinds = V.or(Kinds::SNAPSHOT);
const S: Kinds = Kinds::SNAPSHOT;
const ALL: Kinds = Kinds::ALL;

const fn number(
    name: &'static str,
    default: u64,
    attr: Attr,
    kinds: Kinds,
    values: &'static str,
    column: &'static str,
) -> Property {
    Property {
        name,
        kind: ValueKind::Number,
        default_number: default,
        default_text: None,
        attr,
        kinds,
        values,
        column,
        right_aligned: true,
        visible: true,
    }
}

const fn text(
    name: &'static str,
    default: Option<&'static str>,
    attr: Attr,
    kinds: Kinds,
    values: &'static str,
    column: &'static str,
) -> Property {
    Property {
        name,
        kind: ValueKind::Text,
        default_number: 0,
        default_text: default,
        attr,
        kinds,
        values,
        column,
        right_aligned: false,
        visible: true,
    }
}

const fn index(
    name: &'static str,
    default: u64,
    attr: Attr,
    kinds: Kinds,
    values: &'static str,
    column: &'static str,
    table: IndexTable,
) -> Property {
    Property {
        name,
        kind: ValueKind::Index(table),
        default_number: default,
        default_text: None,
        attr,
        kinds,
        values,
        column,
        right_aligned: false,
        visible: true,
    }
}

const fn boolean(name: &'static str, default: u64, kinds: Kinds, column: &'static str) -> Property {
    index(
        name,
        default,
        Attr::Inherit,
        kinds,
        "on | off",
        column,
        ix::BOOLEAN,
    )
}

const fn hidden(property: Property) -> Property {
    Property {
        visible: false,
        right_aligned: false,
        ..property
    }
}

use Attr::{Default, Inherit, OneTime, OneTimeDefault, ReadOnly};

/// Every native property.
pub static PROPERTIES: &[Property] = &[
    text(
        "type",
        None,
        ReadOnly,
        ALL,
        "filesystem | volume | snapshot | bookmark",
        "TYPE",
    ),
    Property {
        right_aligned: false,
        ..number("creation", 0, ReadOnly, ALL, "<date>", "CREATION")
    },
    number("used", 0, ReadOnly, ALL, "<size>", "USED"),
    number("available", 0, ReadOnly, FV, "<size>", "AVAIL"),
    number("referenced", 0, ReadOnly, ALL, "<size>", "REFER"),
    number(
        "compressratio",
        0,
        ReadOnly,
        ALL,
        "<1.00x or higher if compressed>",
        "RATIO",
    ),
    index("mounted", 0, ReadOnly, F, "yes | no", "MOUNTED", ix::YES_NO),
    text("origin", None, ReadOnly, FV, "<snapshot>", "ORIGIN"),
    number("quota", 0, Default, F, "<size> | none", "QUOTA"),
    number("reservation", 0, Default, FV, "<size> | none", "RESERV"),
    number("volsize", 0, Default, VS, "<size>", "VOLSIZE"),
    number(
        "volblocksize",
        16384,
        OneTime,
        V,
        "512 to 16M, power of 2",
        "VOLBLOCK",
    ),
    number(
        "recordsize",
        131_072,
        Inherit,
        F,
        "512 to 16M, power of 2",
        "RECSIZE",
    ),
    text(
        "mountpoint",
        Some("/"),
        Inherit,
        F,
        "<path> | legacy | none",
        "MOUNTPOINT",
    ),
    text(
        "sharenfs",
        Some("off"),
        Inherit,
        F,
        "on | off | NFS share options",
        "SHARENFS",
    ),
    index(
        "checksum",
        1,
        Inherit,
        FV,
        "on | off | fletcher2 | fletcher4 | sha256 | sha512 | skein | edonr | blake3",
        "CHECKSUM",
        ix::CHECKSUM,
    ),
    index(
        "compression",
        1,
        Inherit,
        FV,
        "on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | \
         zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]",
        "COMPRESS",
        ix::COMPRESSION,
    ),
    boolean("atime", 1, F, "ATIME"),
    boolean("devices", 1, FS, "DEVICES"),
    boolean("exec", 1, FS, "EXEC"),
    boolean("setuid", 1, FS, "SETUID"),
    boolean("readonly", 0, FV, "RDONLY"),
    boolean("zoned", 0, F, "ZONED"),
    index(
        "snapdir",
        0,
        Inherit,
        F,
        "disabled | hidden | visible",
        "SNAPDIR",
        ix::SNAPDIR,
    ),
    index(
        "aclmode",
        0,
        Inherit,
        F,
        "discard | groupmask | passthrough | restricted",
        "ACLMODE",
        ix::ACLMODE,
    ),
    index(
        "aclinherit",
        4,
        Inherit,
        F,
        "discard | noallow | restricted | passthrough | passthrough-x",
        "ACLINHERIT",
        ix::ACLINHERIT,
    ),
    number("createtxg", 0, ReadOnly, ALL, "<uint64>", "CREATETXG"),
    hidden(text("name", None, ReadOnly, ALL, "<name>", "NAME")),
    index(
        "canmount",
        1,
        Default,
        F,
        "on | off | noauto",
        "CANMOUNT",
        ix::CANMOUNT,
    ),
    hidden(text(
        "iscsioptions",
        None,
        Inherit,
        V,
        "<text>",
        "ISCSIOPTIONS",
    )),
    index(
        "xattr",
        2,
        Inherit,
        FS,
        "on | off | dir | sa",
        "XATTR",
        ix::XATTR,
    ),
    hidden(number("numclones", 0, ReadOnly, S, "<count>", "NUMCLONES")),
    index("copies", 1, Inherit, FV, "1 | 2 | 3", "COPIES", ix::COPIES),
    index(
        "version",
        0,
        Default,
        FS,
        "1 | 2 | 3 | 4 | 5 | current",
        "VERSION",
        ix::VERSION,
    ),
    index(
        "utf8only",
        0,
        OneTime,
        FS,
        "on | off",
        "UTF8ONLY",
        ix::BOOLEAN,
    ),
    index(
        "normalization",
        0,
        OneTime,
        FS,
        "none | formC | formD | formKC | formKD",
        "NORMALIZATION",
        ix::NORMALIZATION,
    ),
    index(
        "casesensitivity",
        0,
        OneTime,
        FS,
        "sensitive | insensitive | mixed",
        "CASE",
        ix::CASE,
    ),
    boolean("vscan", 0, F, "VSCAN"),
    boolean("nbmand", 0, FS, "NBMAND"),
    text(
        "sharesmb",
        Some("off"),
        Inherit,
        F,
        "on | off | SMB share options",
        "SHARESMB",
    ),
    number("refquota", 0, Default, F, "<size> | none", "REFQUOTA"),
    number(
        "refreservation",
        0,
        Default,
        FV,
        "<size> | none",
        "REFRESERV",
    ),
    number("guid", 0, ReadOnly, ALL, "<uint64>", "GUID"),
    index(
        "primarycache",
        2,
        Inherit,
        ALL,
        "all | none | metadata",
        "PRIMARYCACHE",
        ix::CACHE,
    ),
    index(
        "secondarycache",
        2,
        Inherit,
        ALL,
        "all | none | metadata",
        "SECONDARYCACHE",
        ix::CACHE,
    ),
    number("usedbysnapshots", 0, ReadOnly, FV, "<size>", "USEDSNAP"),
    number("usedbydataset", 0, ReadOnly, FV, "<size>", "USEDDS"),
    number("usedbychildren", 0, ReadOnly, FV, "<size>", "USEDCHILD"),
    number(
        "usedbyrefreservation",
        0,
        ReadOnly,
        FV,
        "<size>",
        "USEDREFRESERV",
    ),
    hidden(number(
        "useraccounting",
        0,
        ReadOnly,
        ALL,
        "<number>",
        "USERACCOUNTING",
    )),
    hidden(text(
        "stmf_sbd_lu",
        None,
        Inherit,
        V,
        "<text>",
        "STMF_SBD_LU",
    )),
    index(
        "defer_destroy",
        0,
        ReadOnly,
        S,
        "yes | no",
        "DEFER_DESTROY",
        ix::BOOLEAN,
    ),
    number("userrefs", 0, ReadOnly, S, "<count>", "USERREFS"),
    index(
        "logbias",
        0,
        Inherit,
        FV,
        "latency | throughput",
        "LOGBIAS",
        ix::LOGBIAS,
    ),
    hidden(number("unique", 0, ReadOnly, ALL, "<size>", "UNIQUE")),
    number("objsetid", 0, ReadOnly, ALL, "<uint64>", "OBJSETID"),
    index(
        "dedup",
        2,
        Inherit,
        FV,
        "on | off | verify | sha256[,verify] | sha512[,verify] | skein[,verify] | \
         edonr,verify | blake3[,verify]",
        "DEDUP",
        ix::DEDUP,
    ),
    text(
        "mlslabel",
        Some("none"),
        Inherit,
        ALL,
        "<sensitivity label>",
        "MLSLABEL",
    ),
    index(
        "sync",
        0,
        Inherit,
        FV,
        "standard | always | disabled",
        "SYNC",
        ix::SYNC,
    ),
    index(
        "dnodesize",
        0,
        Inherit,
        F,
        "legacy | auto | 1k | 2k | 4k | 8k | 16k",
        "DNSIZE",
        ix::DNODESIZE,
    ),
    number(
        "refcompressratio",
        0,
        ReadOnly,
        ALL,
        "<1.00x or higher if compressed>",
        "REFRATIO",
    ),
    number("written", 0, ReadOnly, ALL, "<size>", "WRITTEN"),
    text("clones", None, ReadOnly, S, "<dataset>[,...]", "CLONES"),
    number("logicalused", 0, ReadOnly, FV, "<size>", "LUSED"),
    number("logicalreferenced", 0, ReadOnly, ALL, "<size>", "LREFER"),
    hidden(number(
        "inconsistent",
        0,
        ReadOnly,
        ALL,
        "<number>",
        "INCONSISTENT",
    )),
    index(
        "volmode",
        0,
        Inherit,
        FV,
        "default | full | geom | dev | none",
        "VOLMODE",
        ix::VOLMODE,
    ),
    number(
        "filesystem_limit",
        u64::MAX,
        Default,
        F,
        "<count> | none",
        "FSLIMIT",
    ),
    number(
        "snapshot_limit",
        u64::MAX,
        Default,
        FV,
        "<count> | none",
        "SSLIMIT",
    ),
    number(
        "filesystem_count",
        u64::MAX,
        ReadOnly,
        F,
        "<count>",
        "FSCOUNT",
    ),
    number(
        "snapshot_count",
        u64::MAX,
        ReadOnly,
        FV,
        "<count>",
        "SSCOUNT",
    ),
    index(
        "snapdev",
        0,
        Inherit,
        FV,
        "hidden | visible",
        "SNAPDEV",
        ix::SNAPDEV,
    ),
    index(
        "acltype",
        0,
        Inherit,
        FS,
        "off | nfsv4 | posix",
        "ACLTYPE",
        ix::ACLTYPE,
    ),
    text(
        "context",
        Some("none"),
        Default,
        ALL,
        "<selinux context>",
        "CONTEXT",
    ),
    text(
        "fscontext",
        Some("none"),
        Default,
        ALL,
        "<selinux fscontext>",
        "FSCONTEXT",
    ),
    text(
        "defcontext",
        Some("none"),
        Default,
        ALL,
        "<selinux defcontext>",
        "DEFCONTEXT",
    ),
    text(
        "rootcontext",
        Some("none"),
        Default,
        ALL,
        "<selinux rootcontext>",
        "ROOTCONTEXT",
    ),
    boolean("relatime", 1, F, "RELATIME"),
    index(
        "redundant_metadata",
        0,
        Inherit,
        FV,
        "all | most | some | none",
        "REDUND_MD",
        ix::REDUNDANT_METADATA,
    ),
    boolean("overlay", 1, F, "OVERLAY"),
    hidden(text(
        "prevsnap",
        None,
        ReadOnly,
        FV,
        "<snapshot>",
        "PREVSNAP",
    )),
    text(
        "receive_resume_token",
        None,
        ReadOnly,
        FV,
        "<string token>",
        "RESUMETOK",
    ),
    index(
        "encryption",
        2,
        OneTime,
        ALL,
        "on | off | aes-128-ccm | aes-192-ccm | aes-256-ccm | aes-128-gcm | aes-192-gcm | \
         aes-256-gcm",
        "ENCRYPTION",
        ix::ENCRYPTION,
    ),
    text(
        "keylocation",
        Some("none"),
        Default,
        FV,
        "prompt | <file URI> | <https URL> | <http URL>",
        "KEYLOCATION",
    ),
    index(
        "keyformat",
        0,
        OneTimeDefault,
        FV,
        "none | raw | hex | passphrase",
        "KEYFORMAT",
        ix::KEYFORMAT,
    ),
    hidden(number(
        "pbkdf2salt",
        0,
        OneTimeDefault,
        FV,
        "<number>",
        "PBKDF2SALT",
    )),
    number(
        "pbkdf2iters",
        0,
        OneTimeDefault,
        FV,
        "<iters>",
        "PBKDF2ITERS",
    ),
    text(
        "encryptionroot",
        None,
        ReadOnly,
        ALL,
        "<filesystem | volume>",
        "ENCROOT",
    ),
    hidden(number("keyguid", 0, ReadOnly, ALL, "<number>", "KEYGUID")),
    index(
        "keystatus",
        0,
        ReadOnly,
        ALL,
        "none | unavailable | available",
        "KEYSTATUS",
        ix::KEYSTATUS,
    ),
    number(
        "special_small_blocks",
        0,
        Inherit,
        FV,
        "zero to 16M, power of 2",
        "SPECIAL_SMALL_BLOCKS",
    ),
    hidden(number(
        "ivsetguid",
        0,
        ReadOnly,
        ALL,
        "<number>",
        "IVSETGUID",
    )),
    hidden(number("redacted", 0, ReadOnly, ALL, "<number>", "REDACTED")),
    text(
        "redact_snaps",
        None,
        ReadOnly,
        ALL,
        "<snapshot>[,...]",
        "RSNAPS",
    ),
    Property {
        right_aligned: false,
        ..number(
            "snapshots_changed",
            0,
            ReadOnly,
            FV,
            "<date>",
            "SNAPSHOTS_CHANGED",
        )
    },
    index(
        "prefetch",
        2,
        Inherit,
        ALL,
        "none | metadata | all",
        "PREFETCH",
        ix::CACHE,
    ),
    index(
        "volthreading",
        1,
        Default,
        V,
        "on | off",
        "VOLTHREAD",
        ix::BOOLEAN,
    ),
    index(
        "direct",
        1,
        Inherit,
        F,
        "disabled | standard | always",
        "DIRECT",
        ix::DIRECT,
    ),
    boolean("longname", 0, F, "LONGNAME"),
];

/// Finds a native property by name, or by the name of its column in lower case: `compress` is
/// `compression` (`propname_match`, module/zcommon/zprop_common.c).
pub fn find(name: &str) -> Option<&'static Property> {
    let is_column = |property: &&Property| {
        let column = property
            .column
            .bytes()
            .map(|byte| byte.to_ascii_lowercase());
        column.eq(name.bytes())
    };
    let mut properties = PROPERTIES.iter();
    let named = properties.find(|property| property.name == name);
    named.or_else(|| PROPERTIES.iter().find(is_column))
}

/// The full name of a native property; any other name as it is.
pub fn full_name(name: &str) -> &str {
    find(name).map_or(name, |property| property.name)
}
