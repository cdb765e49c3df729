//! Per-request count limits: completions of a prompt, prompts, stop sequences.
//!
//! Each of these counts multiplies the engine's work for one short body.

use dialect::{ApiError, Dialect, ErrorCode, RequestView};

use crate::CountLimits;

/// Checks the counts of a request. `dialect`: that of the client's body.
pub(super) fn check_counts(
    limits: &CountLimits,
    dialect: Dialect,
    view: &RequestView<'_>,
) -> Result<(), ApiError> {
    let stop = if dialect == Dialect::Messages {
        "stop_sequences"
    } else {
        "stop"
    };
    let prompts = view.counts.prompts_field.unwrap_or("prompt");
    for (field, asked, most, key) in [
        (
            "n",
            view.counts.choices,
            limits.choices,
            "server.max_choices",
        ),
        (
            prompts,
            view.counts.prompts,
            limits.prompts,
            "server.max_prompts",
        ),
        (stop, view.counts.stops, limits.stops, "server.max_stop"),
    ] {
        if most > 0 && asked > most {
            let what = if field == "n" {
                "is"
            } else {
                "has this many entries:"
            };
            let message = format!(
                "{field} {what} {asked}, at most {most} are accepted ({key}): ask for less"
            );
            return Err(ApiError::new(ErrorCode::InvalidRequest, message).param(field));
        }
    }
    Ok(())
}
