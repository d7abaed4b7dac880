//! What `zinject` prints of handlers.

use api::{InjectCommand, InjectFault, InjectList, InjectRecord};
use format::ObjectType;

use super::{ERRORS, IOS, MOS, word};
use crate::client::Client;

/// The GUID of a device, as it is printed.
fn guid(device: &str) -> u64 {
    device.parse().unwrap_or_default()
}

/// What is printed of a handler that was added (`register_handler`).
pub fn added(record: &InjectRecord) -> String {
    let mut out = format!(
        "Added handler {} with the following properties:\n  pool: {}\n",
        record.id, record.pool
    );
    match &record.fault {
        InjectFault::Device { device, io, .. } | InjectFault::Delay { device, io, .. } => {
            out += &format!("  vdev: {:x}\niotype: {}\n", guid(device), word(&IOS, io));
        }
        InjectFault::Label { device, .. } => {
            out += &format!("  vdev: {:x}\niotype: all\n", guid(device));
        }
        InjectFault::PoolDelay { seconds, .. } => out += &format!(" time: {seconds} seconds\n"),
        InjectFault::Block {
            objset,
            object,
            object_type,
            level,
            first,
            last,
            copies,
            ..
        } => {
            let range = match (first, last) {
                (0, None) => "all".to_owned(),
                _ => format!("[{first}, {})", last.unwrap_or(u64::MAX)),
            };
            out += &format!(
                "objset: {objset}\nobject: {object}\n  type: {}\n level: {level}\n range: \
                 {range}\n  dvas: 0x{copies:x}\n",
                object_type.unwrap_or(0)
            );
        }
        InjectFault::State { .. } => {}
    }
    out
}

/// Prints the handlers, a table for each kind (`print_all_handlers`).
pub fn list(client: &Client) -> anyhow::Result<()> {
    let records = client.call(&InjectList {})?.records;
    if records.is_empty() {
        println!("No handlers registered.\nRun 'zinject -h' for usage information.");
        return Ok(());
    }
    print!("{}", tables(&records));
    Ok(())
}

// The headings of the tables.
const DEVICES: &str = concat!(
    " ID  POOL             GUID              TYPE   ERROR       FREQ       MATCH   INJECT\n",
    "---  ---------------  ----------------  -----  ----------  ---------  ------  ------\n",
);
const DELAYS: &str = concat!(
    " ID  POOL             GUID              DELAY (ms)  LANES  FREQ       MATCH   INJECT\n",
    "---  ---------------  ----------------  ----------  -----  ---------  ------  ------\n",
);
const BLOCKS: &str = concat!(
    " ID  POOL             OBJSET  OBJECT  TYPE      LVL  DVAs  RANGE            MATCH   ",
    "INJECT         \n",
    "---  ---------------  ------  ------  --------  ---  ----  ---------------  ------  ",
    "------\n",
);
const COMMANDS: &str = concat!(
    " ID  POOL                 DELAY (sec)  COMMAND\n",
    "---  -------------------  -----------  -------\n",
);

fn tables(records: &[InjectRecord]) -> String {
    let percent = |record: &InjectRecord| format!("{:8.4}%", record.percent.unwrap_or(100.0));
    let (mut devices, mut delays) = (String::new(), String::new());
    let (mut blocks, mut commands) = (String::new(), String::new());
    for record in records {
        let (id, pool) = (record.id, &record.pool);
        let counts = format!("{:>6}  {:>6}", record.matched, record.injected);
        match &record.fault {
            InjectFault::Device { device, error, io } => {
                devices += &format!(
                    "{id:>3}  {pool:<15}  {:x}  {:<5}  {:<10}  {}  {counts}\n",
                    guid(device),
                    word(&IOS, io),
                    word(&ERRORS, error),
                    percent(record),
                );
            }
            InjectFault::Label { device, error, .. } => {
                devices += &format!(
                    "{id:>3}  {pool:<15}  {:x}  {:<5}  {:<10}  {}  {counts}\n",
                    guid(device),
                    "all",
                    word(&ERRORS, error),
                    percent(record),
                );
            }
            InjectFault::Delay {
                device,
                delay_ms,
                lanes,
                ..
            } => {
                delays += &format!(
                    "{id:>3}  {pool:<15}  {:x}  {delay_ms:>10}  {lanes:>5}  {}  {counts}\n",
                    guid(device),
                    percent(record),
                );
            }
            InjectFault::Block {
                objset,
                object,
                object_type,
                level,
                first,
                last,
                copies,
                ..
            } => {
                let range = match (first, last) {
                    (0, None) => "all".to_owned(),
                    _ => format!("[{first}, {}]", last.unwrap_or(u64::MAX)),
                };
                let kind = MOS.iter().find(|(_, known)| {
                    known.is_some() && known.map(ObjectType::code) == *object_type
                });
                let kind = kind.map_or("-", |(word, _)| word);
                blocks += &format!(
                    "{id:>3}  {pool:<15}  {objset:<6}  {object:<6}  {kind:<8}  {level:<3}  \
                     0x{copies:02x}  {range:<15}  {counts}\n"
                );
            }
            InjectFault::PoolDelay { command, seconds } => {
                let command = match command {
                    InjectCommand::Import => "import",
                    InjectCommand::Export => "export",
                };
                commands += &format!("{id:>3}  {pool:<19}  {seconds:<11}  {command}\n");
            }
            InjectFault::State { .. } => {}
        }
    }
    let tables = [
        (DEVICES, devices),
        (DELAYS, delays),
        (BLOCKS, blocks),
        (COMMANDS, commands),
    ];
    let mut out = String::new();
    for (heading, rows) in tables.iter().filter(|(_, rows)| !rows.is_empty()) {
        out += heading;
        out += rows;
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use api::{InjectError, InjectIo};

    use super::*;

    #[test]
    fn tables_are_those_of_openzfs() {
        let record = |id, percent, fault| InjectRecord {
            id,
            pool: "tank".to_owned(),
            fault,
            percent,
            matched: 12,
            injected: 3,
        };
        let io = InjectIo::Read;
        let device = "18364758544493064720".to_owned();
        let records = [
            record(
                1,
                Some(20.0),
                InjectFault::Device {
                    device: device.clone(),
                    error: InjectError::Io,
                    io,
                },
            ),
            record(
                2,
                None,
                InjectFault::Delay {
                    device,
                    delay_ms: 10,
                    lanes: 2,
                    io,
                },
            ),
            record(
                3,
                None,
                InjectFault::Block {
                    objset: 54,
                    object: 2,
                    object_type: None,
                    level: 0,
                    first: 0,
                    last: None,
                    bytes: false,
                    copies: 3,
                    error: InjectError::Checksum,
                },
            ),
            record(
                4,
                None,
                InjectFault::PoolDelay {
                    command: InjectCommand::Import,
                    seconds: 9,
                },
            ),
        ];
        let rows = [
            "  1  tank             fedcba9876543210  read   io           20.0000%      12       3",
            "  2  tank             fedcba9876543210          10      2  100.0000%      12       3",
            concat!(
                "  3  tank             54      2       -         0    0x03  all            ",
                "      12       3"
            ),
            "  4  tank                 9            import",
        ];
        let all = [DEVICES, DELAYS, BLOCKS, COMMANDS];
        assert!(all.iter().all(|heading| heading.starts_with(" ID  POOL  ")));
        let headings = all.into_iter();
        let both = headings.zip(rows);
        let expected: String = both
            .map(|(heading, row)| format!("{heading}{row}\n\n"))
            .collect();
        assert_eq!(tables(&records), expected);
        let printed = added(&records[2]);
        assert!(printed.contains("range: all\n  dvas: 0x3\n"), "{printed}");
    }
}
