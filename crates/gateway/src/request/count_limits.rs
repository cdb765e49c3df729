//! Per-request count limits: completions of a prompt, prompts, stop sequences.
//!
//! Each of these counts multiplies the engine's work for one short body.

use config::ServerSection;
use dialect::{ApiError, Dialect, ErrorCode, RequestView};

/// Checks the counts of a request. `dialect`: that of the client's body.
pub(super) fn check_counts(
    limits: &ServerSection,
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
            limits.max_choices,
            "server.max_choices",
        ),
        (
            prompts,
            view.counts.prompts,
            limits.max_prompts,
            "server.max_prompts",
        ),
        (stop, view.counts.stops, limits.max_stop, "server.max_stop"),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(each: u64) -> ServerSection {
        ServerSection {
            max_choices: each,
            max_prompts: each,
            max_stop: each,
            ..ServerSection::default()
        }
    }

    /// The field that is refused with limits of 2 each.
    fn refused(dialect: Dialect, body: &str) -> Option<String> {
        let limits = limits(2);
        let view = dialect::view(dialect, body.as_bytes()).expect("a good body");
        let error = check_counts(&limits, dialect, &view).err()?;
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        let message = error.message;
        Some(message.split(' ').next().unwrap_or_default().to_owned())
    }

    #[test]
    fn a_count_above_its_limit_is_refused_by_the_name_of_its_field() {
        for (dialect, fields, field) in [
            (Dialect::Chat, r#""messages":[],"n":3"#, "n"),
            (
                Dialect::Chat,
                r#""messages":[],"stop":["a","b","c"]"#,
                "stop",
            ),
            (Dialect::Completions, r#""prompt":["a","b","c"]"#, "prompt"),
            (Dialect::Embeddings, r#""input":["a","b","c"]"#, "input"),
            (
                Dialect::Completions,
                r#""prompt":"a","n":3,"stop":["a","b","c"]"#,
                "n",
            ),
        ] {
            let body = format!(r#"{{"model":"m",{fields}}}"#);
            assert_eq!(refused(dialect, &body).as_deref(), Some(field), "{body}");
        }
    }

    #[test]
    fn a_count_at_its_limit_is_accepted() {
        for (dialect, fields) in [
            (Dialect::Chat, r#""messages":[],"n":2,"stop":["a","b"]"#),
            (Dialect::Chat, r#""messages":[],"stop":"abc""#),
            (Dialect::Completions, r#""prompt":["a","b"]"#),
            (Dialect::Completions, r#""prompt":[1,2,3,4]"#),
        ] {
            let body = format!(r#"{{"model":"m",{fields}}}"#);
            assert_eq!(refused(dialect, &body), None, "{body}");
        }
    }

    #[test]
    fn a_message_names_its_stop_sequences_otherwise() {
        let body = br#"{"model":"m","messages":[],"stop":["a","b","c"]}"#;
        let view = dialect::view(Dialect::Chat, body).expect("a good body");
        let error = check_counts(&limits(1), Dialect::Messages, &view).expect_err("too many");
        assert!(
            error.message.starts_with("stop_sequences "),
            "{}",
            error.message
        );
    }

    #[test]
    fn zero_is_no_limit() {
        let body = br#"{"model":"m","messages":[],"n":1000000,"stop":["a","b","c"]}"#;
        let view = dialect::view(Dialect::Chat, body).expect("a good body");
        assert!(check_counts(&limits(0), Dialect::Chat, &view).is_ok());
    }
}
