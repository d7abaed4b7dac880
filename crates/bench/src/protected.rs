//! Models of which is known whether they keep what was flushed when the power goes.
//!
//! Whether: OpenZFS's documentation ("Performance and Tuning", "Hardware", sections "Power Failure
//! Protection" and "Optane / 3D XPoint SSDs"), which lists models by their makers' statements, or
//! the maker's own product specification. Which series a model's number belongs to: smartmontools'
//! list of drives (`drivedb.h`).

use serde::{Deserialize, Serialize};

/// Protection against the loss of power, as the maker states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Capacitors write what is in its cache: a flush may be answered at once.
    Capacitors,
    /// There is no volatile cache for data.
    NoCache,
    /// Flushed data stays, and nothing more.
    Flushed,
    /// Tests found it to lose what was flushed.
    Missing,
}

/// A series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Series {
    /// Parts of a model's number, one of which it has.
    pub models: &'static [&'static str],
    /// Its name.
    pub name: &'static str,
    /// Its protection.
    pub protection: Protection,
    /// The document that says so.
    pub source: &'static str,
}

const OPENZFS: &str = "OpenZFS, Hardware, Power Failure Protection";
const OPTANE: &str = "OpenZFS, Hardware, Optane / 3D XPoint SSDs";

const fn protected(models: &'static [&'static str], name: &'static str) -> Series {
    Series {
        models,
        name,
        protection: Protection::Capacitors,
        source: OPENZFS,
    }
}

/// The series that are known.
pub const SERIES: &[Series] = &[
    protected(&["INTEL SSDSA2CW", "INTEL SSDSA2BW"], "Intel 320"),
    protected(&["INTEL SSDSA2BZ"], "Intel 710"),
    protected(&["INTEL SSDSC2BP"], "Intel 730"),
    protected(&["INTEL SSDPEDMW", "INTEL SSDPE2MW"], "Intel 750"),
    protected(&["INTEL SSDSC2BB"], "Intel DC S3500 and S3510"),
    Series {
        source: "Intel, SSD DC S3610 Series, Product Specification",
        ..protected(&["INTEL SSDSC2BX"], "Intel DC S3610")
    },
    Series {
        source: "Intel, SSD DC S3700 Series, Product Specification",
        ..protected(&["INTEL SSDSC2BA"], "Intel DC S3700 and S3710")
    },
    Series {
        source: "Intel, SSD DC S4500/S4600 Series, Product Specification",
        ..protected(
            &["INTEL SSDSC2KB", "INTEL SSDSC2KG"],
            "Intel DC S4500 and S4600",
        )
    },
    protected(
        &[
            "INTEL SSDPEDME",
            "INTEL SSDPE2ME",
            "INTEL SSDPEDMX",
            "INTEL SSDPE2MX",
        ],
        "Intel DC P3500 and P3600",
    ),
    Series {
        source: "Intel, SSD DC P3700 Series, Product Specification",
        ..protected(&["INTEL SSDPEDMD", "INTEL SSDPE2MD"], "Intel DC P3700")
    },
    Series {
        models: &[
            "INTEL SSDPED1K",
            "INTEL SSDPE21K",
            "INTEL SSDPEL1K",
            "INTEL SSDPEK1A",
        ],
        name: "Intel Optane P4800X, P4801X and P1600X",
        protection: Protection::NoCache,
        source: OPTANE,
    },
    protected(&["KINGSTON SEDC500"], "Kingston DC500R and DC500M"),
    protected(&["KINGSTON SEDC1000B"], "Kingston DC1000B"),
    protected(&["Micron_5210"], "Micron 5210 ION"),
    protected(
        &["Micron_7300", "Micron_7400", "Micron_7450"],
        "Micron 7300, 7400 and 7450",
    ),
    protected(&["SAMSUNG MZ7LM"], "Samsung PM863 and PM863a"),
    protected(&["SAMSUNG MZ7KM"], "Samsung SM863 and SM863a"),
    protected(&["SAMSUNG MZ7GE"], "Samsung 845DC EVO"),
    protected(&["SAMSUNG MZ7WD"], "Samsung 845DC PRO and SM843T"),
    Series {
        protection: Protection::Flushed,
        ..protected(
            &["MX100SSD", "MX200SSD", "MX300SSD", "M500SSD", "M550SSD"],
            "Crucial M500, M550, MX100, MX200 and MX300",
        )
    },
    Series {
        protection: Protection::Missing,
        ..protected(&["INTEL SSDSC2CT"], "Intel 330 and 335")
    },
];

/// The series of a model, by its number as the kernel tells it.
pub fn known(model: &str) -> Option<&'static Series> {
    let is_it = |series: &&Series| series.models.iter().any(|part| model.contains(part));
    SERIES.iter().find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_lead_to_their_series() {
        for (model, name, protection) in [
            (
                "INTEL SSDSC2BA200G3",
                "Intel DC S3700 and S3710",
                Protection::Capacitors,
            ),
            (
                "INTEL SSDPEL1K100GA",
                "Intel Optane P4800X, P4801X and P1600X",
                Protection::NoCache,
            ),
            (
                "Crucial_CT256MX100SSD1",
                "Crucial M500, M550, MX100, MX200 and MX300",
                Protection::Flushed,
            ),
            (
                "INTEL SSDSC2CT120A3",
                "Intel 330 and 335",
                Protection::Missing,
            ),
        ] {
            let series = known(model).unwrap();
            assert_eq!(
                (series.name, series.protection),
                (name, protection),
                "{model}"
            );
        }
        assert_eq!(known("Samsung SSD 980 PRO 1TB"), None);
        assert_eq!(known(""), None);
    }

    #[test]
    fn no_model_belongs_to_two_series() {
        let models: Vec<&str> = SERIES
            .iter()
            .flat_map(|series| series.models)
            .copied()
            .collect();
        for (at, model) in models.iter().enumerate() {
            let others = models.iter().enumerate().filter(|(other, _)| *other != at);
            for (_, other) in others {
                assert!(!model.contains(other), "{model} and {other}");
            }
        }
        assert!(SERIES.iter().all(|series| !series.source.is_empty()));
    }
}
