//! What `smartctl --json` says, understood.
//!
//! Source: smartctl(8), "EXIT STATUS" and "-n"; names of smartmontools 7.2 to 7.5 (`jglb` in
//! ataprint.cpp, scsiprint.cpp, nvmeprint.cpp). ATA attributes 5, 197, 198 and 199 mean the same
//! with all makers; those of wear go by their names in smartmontools' database.

use api::{SelfTest, SmartReport};
use serde_json::Value;

use crate::smartctl::Answer;

/// Bits of the exit status: the words were wrong, the device could not be opened or sleeps, and a
/// command failed.
const WRONG_WORDS: u64 = 1;
const NOT_OPENED: u64 = 2;

/// ATA attributes: sectors, and transfers.
const REALLOCATED: u64 = 5;
const PENDING: u64 = 197;
const UNCORRECTABLE: u64 = 198;
const CRC: u64 = 199;

/// Names of attributes whose normalized value is what is left of 100, the best first.
const LIFE_LEFT: [&str; 6] = [
    "SSD_Life_Left",
    "Percent_Lifetime_Remain",
    "Media_Wearout_Indicator",
    "Wear_Leveling_Count",
    "Remaining_Lifetime_Perc",
    "Drive_Life_Remaining%",
];

/// Bits of the raw value that are a count, with makers that put other things above.
const COUNT: u64 = 0xffff_ffff;

/// So many tests are told.
const TESTS_MAX: usize = 20;

/// `power_mode` and messages name it so.
const SLEEPS: [&str; 2] = ["STANDBY", "SLEEP"];

/// What a person reads where smartctl says nothing.
const NOT_SMART: &str = "smartctl finds nothing to ask in it";

const NOT_JSON: &str = "smartctl did not print JSON; is it older than version 7?";

/// Why a disk does not begin a test, from what smartctl printed; none if it does.
pub(crate) fn refusal(printed: &[u8]) -> Option<String> {
    let Ok(all) = serde_json::from_slice::<Value>(printed) else {
        return Some(NOT_JSON.to_owned());
    };
    // The bits above these say how the disk is: wrong words, not opened, a command that failed.
    if number(&all, "/smartctl/exit_status").unwrap_or(0) & 0b111 == 0 {
        return None;
    }
    let messages = messages(&all);
    Some(match messages.is_empty() {
        true => "the disk refuses it; it may have no tests".to_owned(),
        false => messages.join("; "),
    })
}

/// Understands what smartctl printed at this time, in seconds since 1970.
pub(crate) fn understand(printed: &[u8], time_s: u64) -> Answer {
    let Ok(all) = serde_json::from_slice::<Value>(printed) else {
        return Answer::Failed {
            why: NOT_JSON.to_owned(),
        };
    };
    let status = number(&all, "/smartctl/exit_status").unwrap_or(0);
    let messages = messages(&all);
    if status & (WRONG_WORDS | NOT_OPENED) != 0 && sleeps(&all, &messages) {
        return Answer::Standby;
    }
    let report = report(&all, time_s);
    let knows = report.passed.is_some()
        || report.temperature_c.is_some()
        || report.power_on_hours.is_some()
        || report.wear_percent.is_some();
    if knows {
        return Answer::Report(Box::new(report));
    }
    let said = match messages.is_empty() {
        true => NOT_SMART.to_owned(),
        false => messages.join("; "),
    };
    let is_denied = messages
        .iter()
        .any(|text| text.contains("Permission denied") || text.contains("Operation not permitted"));
    match status & NOT_OPENED != 0 && is_denied {
        true => Answer::Failed { why: said },
        false => Answer::Unsupported { why: said },
    }
}

/// What smartctl has to say beside its report.
fn messages(all: &Value) -> Vec<String> {
    let list = all.pointer("/smartctl/messages").and_then(Value::as_array);
    let texts = list.into_iter().flatten();
    let texts = texts.filter_map(|message| message["string"].as_str());
    texts.map(|text| text.trim().to_owned()).collect()
}

fn sleeps(all: &Value, messages: &[String]) -> bool {
    let mode = all.pointer("/power_mode/name").and_then(Value::as_str);
    // "Device is in STANDBY mode, exit(2)"
    let told = messages.iter().filter_map(|text| text.split(" in ").nth(1));
    let mut all = mode.into_iter().chain(told);
    all.any(|text| SLEEPS.iter().any(|word| text.starts_with(word)))
}

fn number(of: &Value, pointer: &str) -> Option<u64> {
    of.pointer(pointer)?.as_u64()
}

fn text(of: &Value, pointers: &[&str]) -> Option<String> {
    let mut found = pointers.iter().filter_map(|at| of.pointer(at)?.as_str());
    let found = found.find(|text| !text.trim().is_empty())?;
    Some(found.trim().to_owned())
}

fn attributes(all: &Value) -> &[Value] {
    let table = all.pointer("/ata_smart_attributes/table");
    table.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A count that is an attribute's raw value.
fn raw(all: &Value, id: u64) -> Option<u64> {
    let mut attributes = attributes(all).iter();
    let found = attributes.find(|attribute| attribute["id"].as_u64() == Some(id))?;
    Some(number(found, "/raw/value")? & COUNT)
}

/// One of the device statistics of ATA.
fn statistic(all: &Value, name: &str) -> Option<u64> {
    let pages = all.pointer("/ata_device_statistics/pages")?.as_array()?;
    let rows = pages.iter().filter_map(|page| page["table"].as_array());
    let mut rows = rows.flatten();
    let is_valid = |row: &&Value| row.pointer("/flags/valid") != Some(&Value::Bool(false));
    let found = rows.find(|row| row["name"].as_str() == Some(name));
    found.filter(is_valid)?["value"].as_u64()
}

fn wear(all: &Value) -> Option<u64> {
    let by_name = || {
        LIFE_LEFT.iter().find_map(|name| {
            let mut attributes = attributes(all).iter();
            let found = attributes.find(|attribute| attribute["name"].as_str() == Some(*name))?;
            Some(100_u64.saturating_sub(found["value"].as_u64()?))
        })
    };
    number(all, "/endurance_used/current_percent")
        .or_else(|| number(all, "/nvme_smart_health_information_log/percentage_used"))
        .or_else(|| number(all, "/scsi_percentage_used_endurance_indicator"))
        .or_else(|| statistic(all, "Percentage Used Endurance Indicator"))
        .or_else(by_name)
}

/// How warm it may be: what it says itself, of where it works, or of where it stops.
fn limit(all: &Value) -> Option<i64> {
    let limits = [
        "/temperature/op_limit_max",
        "/nvme_composite_temperature_threshold/warning",
        "/temperature/drive_trip",
        "/temperature/limit_max",
    ];
    let mut found = limits.iter().filter_map(|at| all.pointer(at)?.as_i64());
    // One that says zero says nothing.
    found.find(|celsius| (1..=200).contains(celsius))
}

/// Errors of SCSI that could not be corrected.
fn scsi_uncorrected(all: &Value) -> Option<u64> {
    let log = all.pointer("/scsi_error_counter_log")?;
    let kinds = ["read", "write", "verify"];
    let counts = kinds
        .iter()
        .filter_map(|kind| log[kind]["total_uncorrected_errors"].as_u64());
    counts.reduce(u64::saturating_add)
}

fn report(all: &Value, time_s: u64) -> SmartReport {
    let nvme = "/nvme_smart_health_information_log";
    let (test_remaining_percent, tests) = tests(all);
    SmartReport {
        time_s,
        passed: all.pointer("/smart_status/passed").and_then(Value::as_bool),
        temperature_c: all
            .pointer("/temperature/current")
            .or_else(|| all.pointer(&format!("{nvme}/temperature")))
            .and_then(Value::as_i64),
        temperature_limit_c: limit(all),
        power_on_hours: number(all, "/power_on_time/hours")
            .or_else(|| number(all, &format!("{nvme}/power_on_hours"))),
        wear_percent: wear(all),
        reallocated_sectors: raw(all, REALLOCATED)
            .or_else(|| number(all, "/scsi_grown_defect_list")),
        pending_sectors: raw(all, PENDING).or_else(|| number(all, "/scsi_pending_defects/count")),
        uncorrectable_sectors: raw(all, UNCORRECTABLE)
            .or_else(|| number(all, &format!("{nvme}/media_errors")))
            .or_else(|| scsi_uncorrected(all)),
        crc_errors: raw(all, CRC),
        test_remaining_percent,
        tests,
        model: text(all, &["/model_name", "/scsi_model_name"]),
        serial: text(all, &["/serial_number"]),
    }
}

/// How much of the test under way is left in percent, and the last tests.
fn tests(all: &Value) -> (Option<u64>, Vec<SelfTest>) {
    let mut tests = Vec::new();
    for log in ["extended", "standard"] {
        let table = all.pointer(&format!("/ata_smart_self_test_log/{log}/table"));
        let table = table.and_then(Value::as_array);
        tests.extend(table.into_iter().flatten().map(|row| SelfTest {
            kind: text(row, &["/type/string"]).unwrap_or_default(),
            result: text(row, &["/status/string"]).unwrap_or_default(),
            passed: row.pointer("/status/passed").and_then(Value::as_bool),
            at_hours: number(row, "/lifetime_hours"),
        }));
        // The same ones are in the other log.
        if !tests.is_empty() {
            break;
        }
    }
    let table = all.pointer("/nvme_self_test_log/table");
    let table = table.and_then(Value::as_array);
    tests.extend(table.into_iter().flatten().map(|row| SelfTest {
        kind: text(row, &["/self_test_code/string"]).unwrap_or_default(),
        result: text(row, &["/self_test_result/string"]).unwrap_or_default(),
        // NVMe 1.4, figure 98: zero is completed, 1 to 4 and 8 and 9 aborted, 5 to 7 failed.
        passed: match number(row, "/self_test_result/value") {
            Some(0) => Some(true),
            Some(5..=7) => Some(false),
            _ => None,
        },
        at_hours: number(row, "/power_on_hours"),
    }));
    for index in 0..TESTS_MAX {
        let Some(row) = all.get(format!("scsi_self_test_{index}")) else {
            break;
        };
        tests.push(SelfTest {
            kind: text(row, &["/code/string"]).unwrap_or_default(),
            result: text(row, &["/result/string"]).unwrap_or_default(),
            // SPC-4, 7.3.22: 3 to 7 failed, 15 is under way, others were aborted.
            passed: match number(row, "/result/value") {
                Some(0) => Some(true),
                Some(3..=7) => Some(false),
                _ => None,
            },
            at_hours: number(row, "/power_on_time/hours"),
        });
    }
    tests.truncate(TESTS_MAX);
    (remaining(all), tests)
}

/// Tests of ATA and NVMe say how far they are.
fn remaining(all: &Value) -> Option<u64> {
    let ata = number(all, "/ata_smart_data/self_test/status/remaining_percent");
    let is_nvme = number(all, "/nvme_self_test_log/current_self_test_operation/value") > Some(0);
    let nvme = number(
        all,
        "/nvme_self_test_log/current_self_test_completion_percent",
    );
    let nvme = nvme.filter(|_| is_nvme);
    ata.or_else(|| nvme.map(|done| 100_u64.saturating_sub(done)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn understood(answer: &Value) -> Answer {
        understand(answer.to_string().as_bytes(), 1_700_000_000)
    }

    fn reported(answer: &Value) -> SmartReport {
        match understood(answer) {
            Answer::Report(report) => *report,
            other => panic!("{other:?}"),
        }
    }

    fn attribute(id: u64, name: &str, value: u64, raw: u64) -> Value {
        json!({
            "id": id, "name": name, "value": value, "worst": value, "thresh": 10,
            "when_failed": "", "raw": {"value": raw, "string": raw.to_string()},
        })
    }

    fn ata_disk() -> Value {
        json!({
            "json_format_version": [1, 0],
            "smartctl": {"version": [7, 3], "exit_status": 0},
            "device": {"name": "/dev/sda", "type": "sat", "protocol": "ATA"},
            "model_name": "WDC WD40EFRX-68N32N0",
            "serial_number": "WD-WCC7K0000001",
            "rotation_rate": 5400,
            "smart_status": {"passed": true},
            "ata_smart_data": {"self_test": {
                "status": {"value": 249, "string": "in progress, 90% remaining",
                           "remaining_percent": 90},
            }},
            "ata_smart_attributes": {"revision": 16, "table": [
                attribute(5, "Reallocated_Sector_Ct", 200, 3),
                attribute(9, "Power_On_Hours", 60, 29_555),
                attribute(194, "Temperature_Celsius", 118, 32),
                attribute(197, "Current_Pending_Sector", 200, 1),
                attribute(198, "Offline_Uncorrectable", 100, 0),
                attribute(199, "UDMA_CRC_Error_Count", 200, 7),
            ]},
            "power_on_time": {"hours": 29_555},
            "temperature": {"current": 32, "op_limit_max": 65, "limit_max": 85},
            "ata_smart_self_test_log": {
                "extended": {"table": [
                    {"type": {"value": 1, "string": "Short offline"},
                     "status": {"value": 0, "string": "Completed without error", "passed": true},
                     "lifetime_hours": 29_000},
                    {"type": {"value": 2, "string": "Extended offline"},
                     "status": {"value": 121, "string": "Completed: read failure",
                                "remaining_percent": 90, "passed": false},
                     "lifetime_hours": 28_000, "lba": 12345},
                    {"type": {"value": 2, "string": "Extended offline"},
                     "status": {"value": 24, "string": "Aborted by host",
                                "remaining_percent": 80},
                     "lifetime_hours": 27_000},
                ]},
                "standard": {"table": [
                    {"type": {"value": 1, "string": "Short offline"},
                     "status": {"value": 0, "string": "Completed without error", "passed": true},
                     "lifetime_hours": 29_000},
                ]},
            },
        })
    }

    #[test]
    fn a_disk_of_ata_that_turns() {
        let report = reported(&ata_disk());
        assert_eq!(report.passed, Some(true));
        assert_eq!(
            (report.temperature_c, report.temperature_limit_c),
            (Some(32), Some(65))
        );
        assert_eq!(report.power_on_hours, Some(29_555));
        assert_eq!(report.wear_percent, None);
        assert_eq!(report.reallocated_sectors, Some(3));
        assert_eq!(report.pending_sectors, Some(1));
        assert_eq!(report.uncorrectable_sectors, Some(0));
        assert_eq!(report.crc_errors, Some(7));
        assert_eq!(report.test_remaining_percent, Some(90));
        let passed: Vec<_> = report.tests.iter().map(|test| test.passed).collect();
        assert_eq!(passed, [Some(true), Some(false), None]);
        assert_eq!(report.tests[1].result, "Completed: read failure");
        assert_eq!(report.serial.as_deref(), Some("WD-WCC7K0000001"));
    }

    #[test]
    fn one_of_ata_that_is_failing_is_understood_although_the_status_is_not_zero() {
        let mut answer = ata_disk();
        answer["smartctl"]["exit_status"] = json!(0x18);
        answer["smart_status"]["passed"] = json!(false);
        assert_eq!(reported(&answer).passed, Some(false));
    }

    #[test]
    fn wear_of_solid_state_disks_is_found_where_it_is() {
        let mut answer = ata_disk();
        answer["rotation_rate"] = json!(0);
        let table = answer["ata_smart_attributes"]["table"].as_array_mut();
        let table = table.expect("a table");
        table.push(attribute(177, "Wear_Leveling_Count", 94, 120));
        assert_eq!(reported(&answer).wear_percent, Some(6));
        let row = json!({
            "offset": 8, "name": "Percentage Used Endurance Indicator", "value": 7,
            "flags": {"value": 192, "string": "---", "valid": true},
        });
        answer["ata_device_statistics"] = json!({"pages": [
            {"number": 1, "name": "General Statistics", "table": []},
            {"number": 7, "name": "Solid State Device Statistics", "table": [row]},
        ]});
        assert_eq!(reported(&answer).wear_percent, Some(7));
        let row = "/ata_device_statistics/pages/1/table/0/flags/valid";
        *answer.pointer_mut(row).expect("the flag") = json!(false);
        assert_eq!(reported(&answer).wear_percent, Some(6));
        answer["endurance_used"] = json!({"current_percent": 8});
        assert_eq!(reported(&answer).wear_percent, Some(8));
    }

    #[test]
    fn a_disk_of_nvme() {
        let report = reported(&json!({
            "smartctl": {"version": [7, 4], "exit_status": 0},
            "device": {"name": "/dev/nvme0n1", "type": "nvme", "protocol": "NVMe"},
            "model_name": "Samsung SSD 980 PRO 1TB",
            "serial_number": "S5GX",
            "smart_status": {"passed": true, "nvme": {"value": 0}},
            "nvme_composite_temperature_threshold": {"warning": 82, "critical": 85},
            "nvme_smart_health_information_log": {
                "critical_warning": 0, "temperature": 44, "available_spare": 100,
                "available_spare_threshold": 10, "percentage_used": 93,
                "power_on_hours": 8123, "media_errors": 2, "num_err_log_entries": 5,
            },
            "temperature": {"current": 44},
            "power_on_time": {"hours": 8123},
            "nvme_self_test_log": {
                "current_self_test_operation": {"value": 2, "string": "Extended self-test"},
                "current_self_test_completion_percent": 30,
                "table": [
                    {"self_test_code": {"value": 1, "string": "Short"},
                     "self_test_result": {"value": 0, "string": "Completed without error"},
                     "power_on_hours": 8000},
                    {"self_test_code": {"value": 2, "string": "Extended"},
                     "self_test_result": {"value": 7, "string": "Completed: failed segments"},
                     "power_on_hours": 7000},
                    {"self_test_code": {"value": 2, "string": "Extended"},
                     "self_test_result": {"value": 2, "string": "Aborted: reset"},
                     "power_on_hours": 6000},
                ],
            },
        }));
        assert_eq!(
            (report.temperature_c, report.temperature_limit_c),
            (Some(44), Some(82))
        );
        assert_eq!(
            (report.wear_percent, report.power_on_hours),
            (Some(93), Some(8123))
        );
        assert_eq!(report.uncorrectable_sectors, Some(2));
        assert_eq!(
            (report.reallocated_sectors, report.crc_errors),
            (None, None)
        );
        assert_eq!(report.test_remaining_percent, Some(70));
        let passed: Vec<_> = report.tests.iter().map(|test| test.passed).collect();
        assert_eq!(passed, [Some(true), Some(false), None]);
    }

    #[test]
    fn a_disk_of_sas() {
        let report = reported(&json!({
            "smartctl": {"version": [7, 3], "exit_status": 0},
            "device": {"name": "/dev/sdc", "type": "scsi", "protocol": "SCSI"},
            "scsi_vendor": "SEAGATE", "scsi_model_name": "SEAGATE ST8000NM0075",
            "serial_number": "ZA10",
            "smart_status": {"passed": true},
            "temperature": {"current": 38, "drive_trip": 60},
            "power_on_time": {"hours": 40_000, "minutes": 12},
            "scsi_grown_defect_list": 4,
            "scsi_error_counter_log": {
                "read": {"total_uncorrected_errors": 1},
                "write": {"total_uncorrected_errors": 0},
            },
            "scsi_self_test_0": {
                "code": {"value": 1, "string": "Background short"},
                "result": {"value": 0, "string": "Completed"},
                "power_on_time": {"hours": 39_999},
            },
            "scsi_self_test_1": {
                "code": {"value": 2, "string": "Background long"},
                "result": {"value": 7, "string": "Failed in segment -->"},
                "power_on_time": {"hours": 39_000},
            },
        }));
        assert_eq!(report.temperature_limit_c, Some(60));
        assert_eq!(report.reallocated_sectors, Some(4));
        assert_eq!(
            (report.pending_sectors, report.uncorrectable_sectors),
            (None, Some(1))
        );
        assert_eq!(report.model.as_deref(), Some("SEAGATE ST8000NM0075"));
        let passed: Vec<_> = report.tests.iter().map(|test| test.passed).collect();
        assert_eq!(passed, [Some(true), Some(false)]);
    }

    #[test]
    fn a_disk_that_sleeps() {
        for (said, mode) in [
            ("Device is in STANDBY mode, exit(2)", Value::Null),
            ("Device is in STANDBY (OS) mode, exit(2)", Value::Null),
            ("Device is in SLEEP mode, exit(2)", Value::Null),
            ("exit(2)", json!({"ata_value": 0, "name": "STANDBY"})),
        ] {
            let answer = understood(&json!({
                "smartctl": {
                    "exit_status": 2,
                    "messages": [{"string": said, "severity": "information"}],
                },
                "device": {"name": "/dev/sda", "type": "sat", "protocol": "ATA"},
                "power_mode": mode,
            }));
            assert_eq!(answer, Answer::Standby, "{said}");
        }
    }

    #[test]
    fn what_has_nothing_to_tell() {
        let virtio = json!({
            "smartctl": {"exit_status": 1, "messages": [{
                "string": "/dev/vda: Unable to detect device type", "severity": "error",
            }]},
        });
        let why = "/dev/vda: Unable to detect device type".to_owned();
        assert_eq!(understood(&virtio), Answer::Unsupported { why });
        let denied = json!({
            "smartctl": {"exit_status": 2, "messages": [{
                "string": "Smartctl open device: /dev/sda failed: Permission denied",
                "severity": "error",
            }]},
        });
        assert!(matches!(understood(&denied), Answer::Failed { .. }));
        assert!(matches!(
            understand(b"smartctl 6.6", 0),
            Answer::Failed { .. }
        ));
        assert!(matches!(understand(b"{}", 0), Answer::Unsupported { .. }));
        // Shapes that it should not have do no harm.
        for odd in [
            "[]",
            "7",
            r#"{"ata_smart_attributes":{"table":{}},"smart_status":[1]}"#,
        ] {
            assert!(matches!(
                understand(odd.as_bytes(), 0),
                Answer::Unsupported { .. }
            ));
        }
    }
}
