//! Traces in the Mooncake layout: one JSON object a line with `timestamp` (ms), `input_length`,
//! `output_length` (tokens) and `hash_ids`, one for each block of the prompt.
//!
//! An id identifies its block and everything before it, so the ids of a prompt are sufficient: they
//! become block hashes of the simulation, and no tokens are invented.
//!
//! `session_id` (or the number `session`) says which requests belong to one session, and `delay`
//! (ms) how long after the session's reply before it a request comes. `model` names the model of a
//! request, and `served_model` the base model if that is an adapter.
//!
//! The CSV of Azure's LLM inference traces is read, too ([`azure`]).

mod azure;
mod block_size;
mod line;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use engine_model::Profile;
use kv_blocks::{BlockSize, EngineHash, PromptBlocks};
use routing::{Affinity, PromptGrowth, SessionKeys};

pub use self::block_size::block_size_of;
pub(crate) use self::line::whole_blocks;
use crate::spread::spread;

/// Most blocks of all prompts together, 16 bytes each.
const MOST_BLOCKS: usize = 1 << 26;

/// A workload, in the order of arrival; the first request comes at 0.
#[derive(Debug)]
pub struct Trace {
    /// Its requests.
    pub requests: Vec<TraceRequest>,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Requests that were left out because no engine has room for them.
    pub dropped: usize,
}

/// One request of a trace.
#[derive(Debug)]
pub struct TraceRequest {
    /// Arrival, in seconds.
    pub arrival_s: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the reply.
    pub output_tokens: u32,
    /// Names of the prompt's blocks, including the partial one at its end.
    pub names: Arc<[EngineHash]>,
    /// The whole blocks, as the router sees them.
    pub blocks: Arc<PromptBlocks>,
    /// Its position in a session, if the trace names one.
    pub turn: Option<SessionTurn>,
    /// Time from the end of the session's reply before it, if the trace tells it.
    pub pause: Option<Duration>,
    /// Number of its tenant, if the trace names one.
    pub tenant: Option<u64>,
    /// Its model, if the trace names one.
    pub model: Option<TraceModel>,
}

/// The model of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TraceModel {
    /// The name that the request has.
    pub id: Arc<str>,
    /// The name of the base model, which is the same one unless the model is an adapter.
    pub base: Arc<str>,
}

/// A position in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTurn {
    /// Number of the session.
    pub session: u64,
    /// The request's number in the session, from 0.
    pub number: u64,
}

/// Returns the keys for hashing policies of a prompt whose blocks have these names: the first block
/// represents the beginning of the prompt, and the whole prompt the session.
pub(crate) fn affinity(names: &[EngineHash]) -> Affinity {
    let prefix = names
        .first()
        .map(|first| [first.0.to_be_bytes(); 4].concat());
    Affinity {
        prefix_key: prefix.and_then(|bytes| bytes.try_into().ok()),
        session_key: names.last().map(|last| last.0),
        served_by: None,
    }
}

impl SessionTurn {
    /// Returns the keys that identify the session.
    pub(crate) fn keys(self) -> SessionKeys {
        let Self { session, number } = self;
        let turns =
            |count: u64| (0..=count).map(|turn| [session, turn].map(u64::to_le_bytes).concat());
        let turns: Vec<_> = turns(number).collect();
        let growth = PromptGrowth::of_turns(
            0,
            turns
                .iter()
                .enumerate()
                .map(|(at, turn)| (&turn[..], at > 0)),
        );
        SessionKeys { name: None, growth }
    }
}

/// Why a text is not a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A line is not a JSON object.
    #[error("line {line} is no JSON object ({problem}): expected a request in the Mooncake layout")]
    NotJson {
        /// Line number, from 1.
        line: usize,
        /// The parser's message.
        problem: String,
    },
    /// A field without a usable value.
    #[error("line {line}: {field} is {found}: expected {expected}")]
    BadField {
        /// Line number, from 1.
        line: usize,
        /// Name of the field.
        field: &'static str,
        /// The value found, shortened.
        found: String,
        /// The expected value.
        expected: &'static str,
    },
    /// The prompts have too many blocks for the memory.
    #[error(
        "line {line}: the prompts up to here have more than {MOST_BLOCKS} blocks: expected fewer, so cut the trace, or \
         give the tokens that each of its hash_ids stands for"
    )]
    TooManyBlocks {
        /// Line number, from 1.
        line: usize,
    },
    /// The text has no requests.
    #[error("there is no request in it: expected one JSON object a line")]
    Empty,
}

impl Trace {
    /// Parses `text`; empty lines are skipped. Requests that share a time stamp are spread over the
    /// time to the next one: recorded times are often rounded, and a simulation of them would
    /// measure the rounding.
    ///
    /// # Errors
    ///
    /// The first line that is not a request.
    pub fn read(text: &str, block_size: BlockSize) -> Result<Self, TraceError> {
        let converted;
        let text = if azure::is_azure(text) {
            converted = azure::json_lines(text)?;
            converted.as_str()
        } else {
            text
        };
        let mut requests = Vec::new();
        let mut free_blocks = MOST_BLOCKS;
        for (index, line) in text.lines().enumerate() {
            if !line.trim().is_empty() {
                requests.push(line::request(
                    index + 1,
                    line,
                    block_size,
                    &mut free_blocks,
                )?);
            }
        }
        if requests.is_empty() {
            return Err(TraceError::Empty);
        }
        requests.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
        let mut turns: HashMap<u64, u64> = HashMap::new();
        for turn in requests
            .iter_mut()
            .filter_map(|request| request.turn.as_mut())
        {
            let next = turns.entry(turn.session).or_default();
            turn.number = std::mem::replace(next, *next + 1);
        }
        let mut arrivals: Vec<f64> = requests.iter().map(|request| request.arrival_s).collect();
        spread(&mut arrivals);
        for (request, arrival) in requests.iter_mut().zip(&arrivals) {
            request.arrival_s = arrival - arrivals[0];
        }
        Ok(Self {
            requests,
            block_size,
            dropped: 0,
        })
    }

    /// Removes and counts the requests that do not fit the engines of `profile` with two blocks to
    /// spare.
    pub fn drop_what_exceeds(&mut self, profile: &Profile) {
        let size = self.block_size.tokens();
        let capacity = profile.kv_tokens / size;
        let before = self.requests.len();
        self.requests.retain(|request| {
            (request.prompt_tokens + request.output_tokens) / size + 2 < capacity
        });
        self.dropped += before - self.requests.len();
    }

    /// Gives the requests without a model this one.
    pub fn name_models(&mut self, name: &str) {
        let id: Arc<str> = name.into();
        for request in &mut self.requests {
            request.model.get_or_insert_with(|| TraceModel {
                id: Arc::clone(&id),
                base: Arc::clone(&id),
            });
        }
    }

    /// Returns the models that it names, each once.
    pub fn models(&self) -> HashSet<&TraceModel> {
        let named = self.requests.iter();
        named.filter_map(|request| request.model.as_ref()).collect()
    }

    /// Returns whether it says of any request which session it belongs to.
    pub fn names_sessions(&self) -> bool {
        self.requests.iter().any(|request| request.turn.is_some())
    }

    /// Returns the number of blocks of all prompts.
    pub fn blocks(&self) -> usize {
        self.requests
            .iter()
            .map(|request| request.names.len())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size() -> BlockSize {
        BlockSize::new(512).unwrap()
    }

    fn read(text: &str) -> Result<Trace, TraceError> {
        Trace::read(text, size())
    }

    fn problem_of(line: &str) -> String {
        let good = r#"{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}"#;
        read(&format!("{good}\n\n{line}\n"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn prompts_with_equal_leading_ids_share_those_blocks() {
        let trace = read(concat!(
            r#"{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}"#,
            "\r\n",
            r#"{"timestamp": 5.5, "input_length": 1536, "output_length": 5, "hash_ids": [7, 8, 10], "chat_id": 3}"#,
        ))
        .unwrap();
        let [first, second] = &trace.requests[..] else {
            panic!("two requests")
        };
        assert_eq!((first.prompt_tokens, first.output_tokens), (1100, 5));
        assert_eq!(first.names[..2], second.names[..2]);
        assert_ne!(first.names[2], second.names[2]);
        assert_eq!(
            first.blocks.chain(size()).len(),
            2,
            "the router knows whole blocks only"
        );
        assert_eq!(second.blocks.chain(size()).len(), 3);
        assert_eq!(trace.blocks(), 6);
        assert_eq!(second.arrival_s, 0.0055);
    }

    #[test]
    fn equal_ids_after_different_blocks_are_different_blocks() {
        let trace = read(concat!(
            r#"{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [1, 3]}"#,
            "\n",
            r#"{"timestamp": 1, "input_length": 1024, "output_length": 5, "hash_ids": [2, 3]}"#,
        ))
        .unwrap();
        assert_ne!(trace.requests[0].names[1], trace.requests[1].names[1]);
    }

    #[test]
    fn blocks_without_an_id_are_unshared_and_ids_without_a_block_are_ignored() {
        let trace = read(concat!(
            r#"{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1]}"#,
            "\n",
            r#"{"timestamp": 1, "input_length": 1000, "output_length": 5, "hash_ids": [1]}"#,
            "\n",
            r#"{"timestamp": 2, "input_length": 500, "output_length": 5, "hash_ids": [1, 2, 3]}"#,
        ))
        .unwrap();
        let names: Vec<_> = trace
            .requests
            .iter()
            .map(|request| &request.names)
            .collect();
        assert_eq!(names[0][0], names[1][0]);
        assert_ne!(names[0][1], names[1][1]);
        assert_eq!(names[2].len(), 1);
    }

    #[test]
    fn a_session_is_named_by_a_text_or_a_number_and_its_requests_are_counted() {
        let line = |fields: &str| {
            format!(
                r#"{{"timestamp": 0, {fields} "input_length": 1, "output_length": 1, "hash_ids": []}}"#
            )
        };
        let trace = read(
            &[
                line(r#""session_id": "a","#),
                line(r#""session_id": "b", "delay": 1500,"#),
                line(r#""session_id": "a", "delay": -1,"#),
                line(r#""session": 7, "session_id": "a","#),
                line(r#""session_id": 7,"#),
                line(""),
            ]
            .join("\n"),
        )
        .unwrap();
        let turns: Vec<_> = (trace.requests.iter())
            .map(|request| request.turn.map(|turn| (turn.session, turn.number)))
            .collect();
        let [Some((a, 0)), Some((b, 0)), Some((again, 1)), _, _, None] = turns[..] else {
            panic!("{turns:?}")
        };
        assert!(a == again && a != b, "{turns:?}");
        assert_eq!(turns[3..5], [Some((7, 0)), Some((7, 1))]);
        let pauses: Vec<_> = trace.requests.iter().map(|request| request.pause).collect();
        assert_eq!(pauses[..2], [None, Some(Duration::from_millis(1_500))]);
        assert_eq!(pauses[2], None, "not a time");
        assert!(trace.names_sessions());
        assert!(!read(&line("")).unwrap().names_sessions());
    }

    #[test]
    fn a_request_has_the_model_of_its_line_else_the_one_given_for_all() {
        let line = |fields: &str| {
            format!(
                r#"{{"timestamp": 0, {fields} "input_length": 1, "output_length": 1, "hash_ids": []}}"#
            )
        };
        let mut trace = read(
            &[
                line(r#""model": "qwen","#),
                line(r#""model": "sql", "served_model": "qwen","#),
                line(r#""model": "llama", "served_model": null,"#),
                line(r#""model": null,"#),
                line(r#""served_model": "qwen","#),
            ]
            .join("\n"),
        )
        .unwrap();
        let models = |trace: &Trace| -> Vec<Option<[String; 2]>> {
            let names = |model: &TraceModel| [model.id.to_string(), model.base.to_string()];
            (trace.requests.iter())
                .map(|request| request.model.as_ref().map(names))
                .collect()
        };
        let both = |id: &str, base: &str| Some([id.to_owned(), base.to_owned()]);
        let named = [
            both("qwen", "qwen"),
            both("sql", "qwen"),
            both("llama", "llama"),
        ];
        assert_eq!(models(&trace)[..3], named);
        assert_eq!(models(&trace)[3..], [None, None]);
        assert_eq!(trace.models().len(), 3);
        trace.name_models("other");
        assert_eq!(models(&trace)[..3], named);
        assert_eq!(
            models(&trace)[3..],
            [both("other", "other"), both("other", "other")]
        );
    }

    #[test]
    fn a_bad_line_is_reported_with_number_field_value_and_expected_form() {
        let tokens = "expected tokens, from 1 to 2^24";
        let ids = "expected an array of whole numbers, one for each block";
        for (line, problem) in [
            (
                r#"{"input_length": 1}"#,
                "timestamp is missing: expected milliseconds, from 0 to a year".to_owned(),
            ),
            (
                r#"{"timestamp": -1, "input_length": 1}"#,
                "timestamp is -1: expected milliseconds, from 0 to a year".to_owned(),
            ),
            (
                r#"{"timestamp": 0, "input_length": 0}"#,
                format!("input_length is 0: {tokens}"),
            ),
            (
                r#"{"timestamp": 0, "input_length": "9"}"#,
                format!("input_length is \"9\": {tokens}"),
            ),
            (
                r#"{"timestamp": 0, "input_length": 1, "output_length": 4294967296}"#,
                format!("output_length is 4294967296: {tokens}"),
            ),
            (
                r#"{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1, -2]}"#,
                format!("hash_ids is [1,-2]: {ids}"),
            ),
            (
                r#"{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1], "model": 7}"#,
                "model is 7: expected the name of a model".to_owned(),
            ),
            (
                r#"{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1], "model": ""}"#,
                "model is \"\": expected the name of a model".to_owned(),
            ),
        ] {
            assert_eq!(problem_of(line), format!("line 3: {problem}"));
        }
        assert!(
            problem_of("[1]").starts_with("line 3 is no JSON object ("),
            "{}",
            problem_of("[1]")
        );
        assert!(problem_of("{").starts_with("line 3 is no JSON object ("));
        assert!(
            problem_of(&format!(r#"{{"timestamp": "{}"}}"#, "x".repeat(1 << 20))).len() < 200,
            "the displayed text is short"
        );
        assert_eq!(read("\n \n").unwrap_err(), TraceError::Empty);
    }

    #[test]
    fn prompts_that_exceed_the_memory_limit_are_rejected_early() {
        let line =
            r#"{"timestamp": 0, "input_length": 16777216, "output_length": 1, "hash_ids": []}"#;
        let mut free_blocks = 1 << 14;
        let mut read = |number| {
            line::request(
                number,
                line,
                BlockSize::new(1024).unwrap(),
                &mut free_blocks,
            )
        };
        assert_eq!(read(1).unwrap().names.len(), 1 << 14);
        assert_eq!(read(2).unwrap_err(), TraceError::TooManyBlocks { line: 2 });
    }

    #[test]
    fn a_request_that_fits_no_engine_is_skipped_and_counted() {
        let line = |tokens: u32| {
            format!(
                r#"{{"timestamp": 0, "input_length": {tokens}, "output_length": 10, "hash_ids": []}}"#
            )
        };
        let mut trace = read(&[line(1000), line(4000), line(2000)].join("\n")).unwrap();
        trace.drop_what_exceeds(&Profile {
            kv_tokens: 8 * 512,
            ..Profile::ALL[0]
        });
        assert_eq!((trace.requests.len(), trace.dropped), (2, 1));
    }
}
