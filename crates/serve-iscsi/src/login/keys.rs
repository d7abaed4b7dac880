//! Operational keys and their negotiation (RFC 7143 section 13, rules in section 6.2).

use crate::text::number;

/// Longest data segment that we take in full feature phase, in bytes (our
/// MaxRecvDataSegmentLength).
pub(crate) const RECEIVE_DATA_BYTES_MAX: u32 = 256 * 1024;
/// Longest data segment of login PDUs (RFC 7143 section 13.12: the default holds until full
/// feature phase), in bytes.
pub(crate) const LOGIN_DATA_BYTES_MAX: u32 = 8192;
/// Longest burst that we agree to, in bytes.
pub(crate) const BURST_BYTES_MAX: u32 = 1024 * 1024;
/// Longest unsolicited burst that we agree to, in bytes.
pub(crate) const FIRST_BURST_BYTES_MAX: u32 = 128 * 1024;
/// Most R2Ts in flight for one command that we agree to.
pub(crate) const OUTSTANDING_R2T_MAX: u32 = 8;
/// Highest value of the 24-bit lengths.
const LENGTH_24_MAX: u32 = (1 << 24) - 1;

/// What a connection has agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) has_header_digest: bool,
    pub(crate) has_data_digest: bool,
    /// Longest data segment that the initiator takes, in bytes.
    pub(crate) send_data_bytes_max: u32,
    /// Longest run of Data-In or solicited Data-Out PDUs, in bytes.
    pub(crate) burst_bytes_max: u32,
    /// Longest run of unsolicited data, immediate data included, in bytes.
    pub(crate) first_burst_bytes_max: u32,
    /// Unsolicited Data-Out PDUs are not allowed.
    pub(crate) initial_r2t: bool,
    pub(crate) immediate_data: bool,
    pub(crate) outstanding_r2t_max: u32,
    /// Connections that the session may have, and that we agree to.
    pub(crate) connections_max: u32,
    pub(crate) connections_limit: u32,
}

impl Default for Parameters {
    /// The values before any negotiation (RFC 7143 section 13).
    fn default() -> Self {
        Self {
            has_header_digest: false,
            has_data_digest: false,
            send_data_bytes_max: 8192,
            burst_bytes_max: 262_144,
            first_burst_bytes_max: 65_536,
            initial_r2t: true,
            immediate_data: true,
            outstanding_r2t_max: 1,
            connections_max: 1,
            connections_limit: 1,
        }
    }
}

/// What a login is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Login {
    /// It begins a session with a target.
    Leading,
    /// It begins a discovery session.
    Discovery,
    /// It adds a connection to a session, or puts one in the place of another.
    Joining,
}

/// What becomes of one offered key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Say this.
    Value(String),
    /// A declaration: nothing is said.
    Nothing,
    /// The offer is against the rules of the key; login fails.
    Violation,
}

fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

fn yes_no(value: bool) -> Answer {
    Answer::Value(if value { "Yes" } else { "No" }.into())
}

fn reject() -> Answer {
    Answer::Value("Reject".into())
}

/// The first of the values offered that we have (RFC 7143 section 6.2.1).
fn select<'a>(offered: &'a str, ours: &[&str]) -> Option<&'a str> {
    offered.split(',').find(|value| ours.contains(value))
}

/// The smaller (`min`) of an offer in range and our limit, stored in `slot`.
fn minimum(value: &str, range: std::ops::RangeInclusive<u32>, ours: u32, slot: &mut u32) -> Answer {
    match number(value) {
        Some(offer) if range.contains(&offer) => {
            *slot = offer.min(ours);
            Answer::Value(slot.to_string())
        }
        _ => reject(),
    }
}

impl Parameters {
    /// Takes one offered operational key. `None` if we know no such key.
    pub(crate) fn offer(&mut self, key: &str, value: &str, offered_in: Login) -> Option<Answer> {
        // RFC 7143 section 13: some keys are of no use in discovery sessions, and those that are
        // about the whole session are agreed on in its leading login only.
        let is_discovery = offered_in != Login::Leading;
        let connections_limit = self.connections_limit;
        let irrelevant = || Answer::Value("Irrelevant".into());
        let mut scratch = 0;
        Some(match key {
            "HeaderDigest" => match select(value, &["CRC32C", "None"]) {
                Some(choice) => {
                    self.has_header_digest = choice == "CRC32C";
                    Answer::Value(choice.into())
                }
                None => reject(),
            },
            "DataDigest" => match select(value, &["CRC32C", "None"]) {
                Some(choice) => {
                    self.has_data_digest = choice == "CRC32C";
                    Answer::Value(choice.into())
                }
                None => reject(),
            },
            "MaxRecvDataSegmentLength" => match number(value) {
                Some(length @ 512..=LENGTH_24_MAX) => {
                    self.send_data_bytes_max = length;
                    Answer::Nothing
                }
                _ => Answer::Violation,
            },
            "MaxConnections" if is_discovery => irrelevant(),
            "MaxConnections" => minimum(
                value,
                1..=65535,
                connections_limit,
                &mut self.connections_max,
            ),
            "InitialR2T" if is_discovery => irrelevant(),
            "InitialR2T" => match boolean(value) {
                // The result is "or"; we do not insist.
                Some(offer) => {
                    self.initial_r2t = offer;
                    yes_no(offer)
                }
                None => reject(),
            },
            "ImmediateData" if is_discovery => irrelevant(),
            "ImmediateData" => match boolean(value) {
                // The result is "and"; we want it.
                Some(offer) => {
                    self.immediate_data = offer;
                    yes_no(offer)
                }
                None => reject(),
            },
            "MaxBurstLength" if is_discovery => irrelevant(),
            "MaxBurstLength" => minimum(
                value,
                512..=LENGTH_24_MAX,
                BURST_BYTES_MAX,
                &mut self.burst_bytes_max,
            ),
            "FirstBurstLength" if is_discovery => irrelevant(),
            "FirstBurstLength" => minimum(
                value,
                512..=LENGTH_24_MAX,
                FIRST_BURST_BYTES_MAX,
                &mut self.first_burst_bytes_max,
            ),
            "MaxOutstandingR2T" if is_discovery => irrelevant(),
            "MaxOutstandingR2T" => minimum(
                value,
                1..=65535,
                OUTSTANDING_R2T_MAX,
                &mut self.outstanding_r2t_max,
            ),
            "DataPDUInOrder" | "DataSequenceInOrder" if is_discovery => irrelevant(),
            // The result is "or"; we insist on order.
            "DataPDUInOrder" | "DataSequenceInOrder" => match boolean(value) {
                Some(_) => yes_no(true),
                None => reject(),
            },
            "DefaultTime2Wait" | "DefaultTime2Retain" | "ErrorRecoveryLevel"
                if offered_in == Login::Joining =>
            {
                irrelevant()
            }
            // The result is the larger; we ask for none.
            "DefaultTime2Wait" => match number(value) {
                Some(seconds @ 0..=3600) => Answer::Value(seconds.to_string()),
                _ => reject(),
            },
            // The result is the smaller: a session does not outlive its connection here.
            "DefaultTime2Retain" => minimum(value, 0..=3600, 0, &mut scratch),
            "ErrorRecoveryLevel" => minimum(value, 0..=2, 0, &mut scratch),
            "iSCSIProtocolLevel" => minimum(value, 0..=31, 1, &mut scratch),
            "TaskReporting" if is_discovery => irrelevant(),
            "TaskReporting" => match select(value, &["RFC3720"]) {
                Some(choice) => Answer::Value(choice.into()),
                None => reject(),
            },
            // Obsolete, but older initiators still offer markers (RFC 7143 section 13.25).
            "IFMarker" | "OFMarker" => Answer::Value("No".into()),
            "IFMarkInt" | "OFMarkInt" => reject(),
            _ => return None,
        })
    }

    /// Checks what only shows when all keys are in: FirstBurstLength is within MaxBurstLength.
    pub(crate) fn settle(&mut self) {
        self.first_burst_bytes_max = self.first_burst_bytes_max.min(self.burst_bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<Answer> {
        Some(Answer::Value(text.into()))
    }

    /// Every key of RFC 7143 section 13 that is negotiated, with offers and what we say.
    #[test]
    fn keys_are_answered_as_the_table_says() {
        let table = [
            ("HeaderDigest", "CRC32C,None", "CRC32C"),
            ("HeaderDigest", "None,CRC32C", "None"),
            ("DataDigest", "X-other,CRC32C", "CRC32C"),
            ("DataDigest", "X-other", "Reject"),
            ("MaxConnections", "8", "1"),
            ("MaxConnections", "0", "Reject"),
            ("InitialR2T", "Yes", "Yes"),
            ("InitialR2T", "No", "No"),
            ("InitialR2T", "maybe", "Reject"),
            ("ImmediateData", "No", "No"),
            ("ImmediateData", "Yes", "Yes"),
            ("MaxBurstLength", "16776192", "1048576"),
            ("MaxBurstLength", "65536", "65536"),
            ("MaxBurstLength", "511", "Reject"),
            ("FirstBurstLength", "0x10000", "65536"),
            ("MaxOutstandingR2T", "1", "1"),
            ("MaxOutstandingR2T", "64", "8"),
            ("DataPDUInOrder", "No", "Yes"),
            ("DataSequenceInOrder", "Yes", "Yes"),
            ("DefaultTime2Wait", "2", "2"),
            ("DefaultTime2Retain", "20", "0"),
            ("ErrorRecoveryLevel", "2", "0"),
            ("ErrorRecoveryLevel", "3", "Reject"),
            ("iSCSIProtocolLevel", "2", "1"),
            ("TaskReporting", "FastAbort,RFC3720", "RFC3720"),
            ("IFMarker", "Yes", "No"),
            ("OFMarkInt", "1", "Reject"),
        ];
        for (key, offer, answer) in table {
            let mut parameters = Parameters::default();
            assert_eq!(
                parameters.offer(key, offer, Login::Leading),
                value(answer),
                "{key}={offer}"
            );
        }
        let mut parameters = Parameters::default();
        assert_eq!(parameters.offer("X-unknown", "1", Login::Leading), None);
        assert_eq!(
            parameters.offer("MaxRecvDataSegmentLength", "262144", Login::Leading),
            Some(Answer::Nothing)
        );
        assert_eq!(parameters.send_data_bytes_max, 262_144);
        assert_eq!(
            parameters.offer("MaxRecvDataSegmentLength", "16777216", Login::Leading),
            Some(Answer::Violation)
        );
        assert_eq!(
            parameters.offer("MaxBurstLength", "65536", Login::Discovery),
            value("Irrelevant")
        );
        for (key, answer) in [
            ("MaxConnections", "Irrelevant"),
            ("ErrorRecoveryLevel", "Irrelevant"),
            ("HeaderDigest", "Reject"),
        ] {
            let found = parameters.offer(key, "4", Login::Joining);
            assert_eq!(found, value(answer), "{key}");
        }
        parameters.connections_limit = 3;
        let found = parameters.offer("MaxConnections", "4", Login::Leading);
        assert_eq!((found, parameters.connections_max), (value("3"), 3));
    }
}
