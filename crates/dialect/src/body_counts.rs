//! Per-request counts: completions, prompts, stop sequences.
//!
//! Numbers are read as leniently as the most lenient engine reads them, which takes `"12"` and
//! `12.0` for 12: otherwise a quotation mark would bypass a limit.

use crate::json::RawJson;

/// Per-request counts; 0 if the body has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyCounts {
    /// Completions of each prompt (`n`).
    pub choices: u64,
    /// The same number as engines read it; `None` if it is absent or no count.
    pub n: Option<u32>,
    /// Prompts, or texts to compute.
    pub prompts: u64,
    /// The field that has most of them.
    pub prompts_field: Option<&'static str>,
    /// Stop sequences (`stop`).
    pub stops: u64,
    /// Bytes of the prompts after the first, where the first alone is the prompt by which the
    /// request is routed.
    pub further_bytes: usize,
}

impl BodyCounts {
    /// Counts the prompts in `lists`, the fields that may contain several prompts, with their
    /// values.
    pub(crate) fn of<'a>(
        choices: Option<RawJson<'a>>,
        stop: Option<RawJson<'a>>,
        lists: impl Iterator<Item = (&'static str, RawJson<'a>)>,
    ) -> Self {
        let longest = lists
            .map(|(field, value)| (field, prompts(value)))
            .max_by_key(|(_, count)| *count);
        Self {
            choices: choices.map_or(0, number),
            n: None,
            prompts: longest.map_or(0, |(_, count)| count),
            prompts_field: longest.map(|(field, _)| field),
            stops: stop.map_or(0, texts),
            further_bytes: 0,
        }
    }
}

/// Counts the texts in a list; a single text is no list.
pub(crate) fn texts(value: RawJson<'_>) -> u64 {
    value.elements().map_or(0, |texts| texts.count() as u64)
}

/// Counts the prompts in a value: a list of numbers is one.
fn prompts(value: RawJson<'_>) -> u64 {
    let Some(mut elements) = value.elements() else {
        return 1;
    };
    match elements.next() {
        Some(first)
            if !first
                .as_str()
                .starts_with(|first: char| first == '-' || first.is_ascii_digit()) =>
        {
            1 + elements.count() as u64
        }
        _ => 1,
    }
}

/// Reads a number in any notation; one beyond all limits stays beyond them.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from float keeps to the ends"
)]
pub(crate) fn number(value: RawJson<'_>) -> u64 {
    let text = value.string();
    let text = text.as_deref().unwrap_or(value.as_str()).replace('_', "");
    text.trim().parse::<f64>().map_or(0, |number| number as u64)
}

#[cfg(test)]
mod tests {
    use crate::{Dialect, view};

    fn counts(dialect: Dialect, fields: &str) -> (u64, u64, u64) {
        let body = format!(r#"{{"model":"m",{fields}}}"#);
        let counts = view(dialect, body.as_bytes()).expect("a good body").counts;
        (counts.choices, counts.prompts, counts.stops)
    }

    #[test]
    fn a_number_is_read_in_every_form_that_an_engine_accepts() {
        for (n, read) in [
            ("12", 12),
            ("12.0", 12),
            ("1.2e1", 12),
            ("\"12\"", 12),
            ("\" 1_2 \"", 12),
            ("1e400", u64::MAX),
            ("99999999999999999999999", u64::MAX),
            ("-3", 0),
            ("true", 0),
            ("null", 0),
            ("[12]", 0),
        ] {
            assert_eq!(counts(Dialect::Chat, &format!("\"n\":{n}")).0, read, "{n}");
        }
    }

    #[test]
    fn prompts_are_counted_and_tokens_of_one_prompt_are_not() {
        for (dialect, fields, prompts) in [
            (Dialect::Completions, r#""prompt":"one""#, 1),
            (Dialect::Completions, r#""prompt":[1,2,3]"#, 1),
            (Dialect::Completions, r#""prompt":["a","b"]"#, 2),
            (Dialect::Completions, r#""prompt":[[1,2],[3],[4]]"#, 3),
            (Dialect::Embeddings, r#""input":["a","b","c","d"]"#, 4),
            (
                Dialect::Rerank,
                r#""query":"q","documents":["a",{"text":"b"},"c"]"#,
                3,
            ),
            (Dialect::Score, r#""text_1":"q","text_2":["a","b"]"#, 2),
            (Dialect::Chat, r#""messages":[{},{},{}]"#, 0),
            (Dialect::ChatBatch, r#""messages":[[{}],[{}]]"#, 2),
            (Dialect::TokenIds, r#""token_ids":[1,2,3]"#, 0),
            (Dialect::SglangGenerate, r#""text":"one""#, 1),
            (Dialect::SglangGenerate, r#""text":["a","b"]"#, 2),
            (Dialect::SglangGenerate, r#""input_ids":[[1],[2],[3]]"#, 3),
        ] {
            assert_eq!(counts(dialect, fields).1, prompts, "{fields}");
        }
    }

    #[test]
    fn counts_in_sampling_params_are_the_largest_of_all_that_stand_there() {
        for (dialect, sampling, want) in [
            (Dialect::TokenIds, r#"{"n":3,"stop":["a","b"]}"#, (3, 2)),
            (Dialect::SglangGenerate, r#"{"n":"3","stop":"a"}"#, (3, 0)),
            (Dialect::SglangGenerate, r#"[{"n":2},{"n":7}]"#, (7, 0)),
            (Dialect::TokenIds, r#"{"n":1,"n":9}"#, (9, 0)),
            (Dialect::TokenIds, r#"{"stop":["a","b"],"stop":[]}"#, (0, 2)),
            (Dialect::TokenIds, "7", (0, 0)),
            (Dialect::Completions, r#"{"n":3}"#, (0, 0)),
        ] {
            let fields = format!(r#""sampling_params":{sampling}"#);
            let (choices, _, stops) = counts(dialect, &fields);
            assert_eq!((choices, stops), want, "{sampling}");
        }
    }

    #[test]
    fn stop_strings_are_counted() {
        assert_eq!(counts(Dialect::Chat, r#""stop":"a""#).2, 0);
        assert_eq!(counts(Dialect::Chat, r#""stop":["a","b"]"#).2, 2);
    }
}
