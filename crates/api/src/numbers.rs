//! Numbers as the replies write them.

use serde::Serializer;

/// Largest whole number that every JSON reader takes exactly.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Writes seconds, whole ones without a decimal point.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
pub(crate) fn seconds<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.fract() == 0.0 && (0.0..EXACT).contains(value) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole and in range"
        )]
        serializer.serialize_u64(*value as u64)
    } else {
        serializer.serialize_f64(*value)
    }
}
