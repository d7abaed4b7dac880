//! Every copy of every block against its checksum: what a pool relies on when a device is let go.
//!
//! [`crate::verify`] reads each copy once, from some device that has it. Here all that devices have
//! of it are read, parity included, by a scrub that changes nothing.

use pool::{Pool, ScrubCommand};

use crate::torture::{errors_of, patiently};
use crate::verify::Failure;

/// Reads everything that devices have which lack nothing of it.
///
/// # Errors
/// When a copy, or parity, is not what it must be, or nobody has a block; `pool` is imported
/// read-only, and `when` says what was before.
pub async fn every_copy(pool: &Pool, when: &str) -> Result<(), Failure> {
    pool.scans().scrub(ScrubCommand::Start).await?;
    patiently("a scrub", pool.scans().wait_for_scrub(true)).await?;
    let numbers = pool.scans().scrub_numbers().unwrap_or_default();
    let status = pool.status();
    if numbers.errors > 0 {
        let lost = numbers.errors;
        return Err(format!("{when}: {lost} blocks are lost: {:?}", pool.damaged().await).into());
    }
    match errors_of(&status.root) {
        0 => Ok(()),
        errors => {
            let root = status.root;
            Err(
                format!("{when}: devices lack what they are to have, {errors} times: {root:?}")
                    .into(),
            )
        }
    }
}
