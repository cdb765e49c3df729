//! How much one request may ask for beside its size: completions of a prompt, prompts, texts to stop at.
//!
//! Each of them multiplies what the engine does for one short body.

use dialect::{ApiError, Dialect, ErrorCode, RequestView};

use crate::CountLimits;

/// Whether the request asks for no more than it may. `dialect`: as the client wrote it.
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
