//! SIMD.
use super::Kernels;
pub(super) fn available() -> Vec<Kernels> {
    Vec::new()
}
