//! All that a device's four labels say, with what is wrong of it: for people, not for imports.
//!
//! Nothing here is believed: every structure is decoded behind its checks, and what fails is reported
//! as such. Source: cmd/zdb/zdb.c (`dump_label`).

use codec::checksum::{label_verifier, verify_embedded};
use device::Device;
use format::{
    Checksum, LABEL_BYTES, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET, LABEL_COUNT,
    LABEL_UBERBLOCK_OFFSET, LABEL_UBERBLOCK_RING_BYTES, NvList, Uberblock, decode_label_config,
    label_offset, uberblock_shift,
};

use crate::error::VdevError;

/// What was found where a label should be.
#[derive(Debug, Clone, Default)]
pub struct LabelSurvey {
    /// Where it begins on the device, in bytes.
    pub offset_bytes: u64,
    /// The configuration, also when its checksum is wrong.
    pub config: Option<NvList>,
    /// Whether the configuration's checksum is right.
    pub is_valid: bool,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// The slots of the ring that hold the magic of an uberblock.
    pub slots: Vec<SlotSurvey>,
}

/// One slot of a ring that holds an uberblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSurvey {
    /// Index in the ring.
    pub slot: u64,
    /// The uberblock.
    pub uberblock: Uberblock,
    /// Whether the slot's checksum is right.
    pub is_valid: bool,
}

/// Reads all four labels of a device.
///
/// # Errors
/// [`VdevError::TooSmall`] when the device has no room for labels.
pub async fn survey_labels(device: &dyn Device) -> Result<Vec<LabelSurvey>, VdevError> {
    let size = device.size_bytes();
    let mut labels = Vec::with_capacity(LABEL_COUNT);
    let mut raw = Vec::with_capacity(LABEL_COUNT);
    for index in 0..LABEL_COUNT {
        let Some(start) = label_offset(size, index) else {
            return Err(VdevError::TooSmall {
                path: device.path().to_owned(),
                size_bytes: size,
                needed_bytes: LABEL_COUNT as u64 * LABEL_BYTES,
            });
        };
        let mut label = LabelSurvey {
            offset_bytes: start,
            ..LabelSurvey::default()
        };
        match device.read(start, LABEL_BYTES as usize).await {
            Ok(data) => {
                survey_config(&mut label, &data);
                raw.push(Some(data));
            }
            Err(error) => {
                label.problem = Some(error.to_string());
                raw.push(None);
            }
        }
        labels.push(label);
    }
    let ashift = labels
        .iter()
        .filter(|label| label.is_valid)
        .find_map(|label| label.config.as_ref()?.list("vdev_tree")?.u64("ashift"));
    for (label, data) in labels.iter_mut().zip(raw) {
        if let Some(data) = data {
            label.slots = survey_ring(label.offset_bytes, &data, ashift);
        }
    }
    Ok(labels)
}

fn survey_config(label: &mut LabelSurvey, data: &[u8]) {
    let from = LABEL_CONFIG_OFFSET as usize;
    let Some(bytes) = data.get(from..from + LABEL_CONFIG_BYTES) else {
        label.problem = Some("it could not be read whole".into());
        return;
    };
    let verifier = label_verifier(label.offset_bytes + LABEL_CONFIG_OFFSET);
    label.is_valid = verify_embedded(Checksum::Label, &verifier, bytes).is_ok();
    match decode_label_config(bytes) {
        Ok(config) => {
            if !label.is_valid {
                label.problem = Some("its checksum is wrong".into());
            }
            label.config = Some(config);
        }
        Err(error) => {
            label.is_valid = false;
            label.problem = Some(error.to_string());
        }
    }
}

fn survey_ring(start: u64, data: &[u8], ashift: Option<u64>) -> Vec<SlotSurvey> {
    // Without a configuration the smallest slots: every uberblock begins at such a place, and one
    // whose checksum holds for a longer slot counts as valid too.
    let known = ashift.map(|ashift| uberblock_shift(ashift.min(63) as u32));
    let shift = known.unwrap_or(10);
    let slot_bytes = 1usize << shift;
    let ring = LABEL_UBERBLOCK_OFFSET as usize;
    let mut out = Vec::new();
    for (slot, at) in (ring..ring + LABEL_UBERBLOCK_RING_BYTES as usize)
        .step_by(slot_bytes)
        .enumerate()
    {
        let Some(Ok(uberblock)) = data.get(at..at + slot_bytes).map(Uberblock::decode) else {
            continue;
        };
        let verifier = label_verifier(start + at as u64);
        let holds = |shift: u32| {
            data.get(at..at + (1usize << shift))
                .is_some_and(|bytes| verify_embedded(Checksum::Label, &verifier, bytes).is_ok())
        };
        out.push(SlotSurvey {
            slot: slot as u64,
            uberblock,
            is_valid: match known {
                Some(shift) => holds(shift),
                None => (10..=13).any(holds),
            },
        });
    }
    out
}
