//! How to have initiators send every request by the next path, instead of a thousand by one.
//!
//! Sources: multipath.conf(5) (`path_selector`, `rr_min_io`, which counts 1,000 for maps of bios,
//! `rr_min_io_rq`, which is for those of requests); VMware's `esxcli storage nmp psp roundrobin
//! deviceconfig`, whose policy VMW_PSP_RR counts 1,000 too.

use serde::Serialize;

/// Whose units are meant: those of others may have paths that are not alike, and lines for all of
/// a vendor's disks are not for guesses.
const VENDOR: &str = "MILLPOND";

/// Lines for a system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The system, and where the lines go.
    pub of: &'static str,
    pub lines: Vec<String>,
}

/// Lines for units of a vendor and product; `name` is one of them (`naa.…`), or empty. None for
/// units of others, nor where a word would be read as more than a word where it is copied to.
pub fn of(vendor: &str, product: &str, name: &str) -> Vec<Advice> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if vendor != VENDOR
        || ![product, name]
            .iter()
            .all(|word| word.chars().all(is_plain))
    {
        return Vec::new();
    }
    let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
    let mut linux: Vec<String> = owned(&["devices {", "    device {"]);
    linux.push(format!("        vendor \"{vendor}\""));
    linux.push(format!("        product \"{product}\""));
    let rest: Vec<String> = owned(&[
        "        path_grouping_policy multibus",
        "        path_selector \"round-robin 0\"",
        "        rr_min_io_rq 1",
        "        rr_min_io 1",
        "    }",
        "}",
    ]);
    linux.extend(rest);
    let device = match name {
        "" => "naa.NAME",
        name => name,
    };
    let esxi = vec![
        format!("esxcli storage nmp device set --device={device} --psp=VMW_PSP_RR"),
        format!(
            "esxcli storage nmp psp roundrobin deviceconfig set --device={device} --type=iops \
             --iops=1"
        ),
    ];
    let esxi_rule = vec![format!(
        "esxcli storage nmp satp rule add --satp=VMW_SATP_ALUA --vendor=\"{vendor}\" \
         --model=\"{product}\" --psp=VMW_PSP_RR --psp-option=iops=1"
    )];
    vec![
        Advice {
            of: "Linux takes the next path at every request with this in /etc/multipath.conf \
                 (then: multipathd reconfigure)",
            lines: linux,
        },
        Advice {
            of: "ESXi takes the next path at every request, instead of every 1,000, with",
            lines: esxi,
        },
        Advice {
            of: "and so for every such disk that it finds from then on",
            lines: esxi_rule,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_the_unit() {
        let all = of("MILLPOND", "VOLUME", "naa.6001");
        assert!(
            all[0]
                .lines
                .contains(&"        vendor \"MILLPOND\"".to_owned())
        );
        assert!(all[0].lines.contains(&"        rr_min_io_rq 1".to_owned()));
        assert!(
            all[1]
                .lines
                .iter()
                .all(|line| line.contains("--device=naa.6001"))
        );
        assert!(all[1].lines[1].ends_with("--type=iops --iops=1"));
        assert!(of(VENDOR, "B", "")[1].lines[0].contains("naa.NAME"));
    }

    /// Whoever calls himself so may still have written the rest.
    #[test]
    fn nothing_is_told_of_others_and_of_what_is_no_word() {
        assert!(of("A", "VOLUME", "naa.6001").is_empty());
        for word in ["A\"", "A B", "$(id)", "A\nB", "A;B", "`id`"] {
            assert!(of(VENDOR, word, "naa.6001").is_empty(), "{word}");
            assert!(of(VENDOR, "VOLUME", word).is_empty(), "{word}");
        }
    }
}
