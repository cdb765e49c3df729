//! The options of a publisher, and the checks of single arguments.

use kv_events::frames::ReplayForm;
use zmtp::{BatchForm, Endpoint, ReplayBuffer};

use crate::ArgumentError;

/// Longest topic, medium and name of an adapter, in bytes.
pub const LONGEST_NAME: usize = 256;
/// Largest number of batches that are kept for replay.
const MOST_STEPS: i64 = 1_000_000;
/// Largest number of bytes of these batches.
const MOST_BYTES: i64 = 1 << 40;

/// The options of a publisher: its endpoints and the bounds of its replay buffer.
#[derive(Clone, Copy, Debug)]
pub struct PublisherOptions<'a> {
    /// Endpoint of the socket for subscribers.
    pub endpoint: &'a str,
    /// Endpoint of the socket for replay requests; without it, a reader that misses a batch can only begin
    /// anew.
    pub replay_endpoint: Option<&'a str>,
    /// Text in front of each message.
    pub topic: &'a str,
    /// Most past batches that are kept for replay, 1 to 1,000,000.
    pub buffer_steps: i64,
    /// Most bytes of these batches, 1 to 2^40.
    pub buffer_bytes: i64,
}

impl<'a> PublisherOptions<'a> {
    /// Returns the defaults at this endpoint: no topic, and 10,000 batches or 64 MiB for replay.
    pub fn at(endpoint: &'a str) -> Self {
        Self {
            endpoint,
            replay_endpoint: None,
            topic: "",
            buffer_steps: 10_000,
            buffer_bytes: 64 << 20,
        }
    }

    pub(crate) fn check(&self) -> Result<CheckedOptions, ArgumentError> {
        let events = endpoint_of("endpoint", self.endpoint)?;
        let replay = self
            .replay_endpoint
            .map(|text| endpoint_of("replay_endpoint", text))
            .transpose()?;
        if self.topic.len() > LONGEST_NAME {
            return Err(ArgumentError(format!(
                "topic has {} bytes: expected at most {LONGEST_NAME}",
                self.topic.len()
            )));
        }
        Ok(CheckedOptions {
            events,
            replay,
            history: ReplayBuffer::new(
                limit_of("buffer_steps", self.buffer_steps, MOST_STEPS)?,
                limit_of("buffer_bytes", self.buffer_bytes, MOST_BYTES)?,
            ),
            form: BatchForm {
                topic: self.topic.to_owned(),
                replay: ReplayForm::New,
            },
        })
    }
}

/// The parts of a publisher before its sockets are bound.
#[derive(Debug)]
pub(crate) struct CheckedOptions {
    pub(crate) events: Endpoint,
    pub(crate) replay: Option<Endpoint>,
    pub(crate) history: ReplayBuffer,
    pub(crate) form: BatchForm,
}

/// Checks the name of a medium or an adapter, which the caller passed as `argument`.
///
/// # Errors
///
/// It is empty or longer than [`LONGEST_NAME`].
pub fn checked_name(argument: &str, name: &str) -> Result<String, ArgumentError> {
    if (1..=LONGEST_NAME).contains(&name.len()) {
        return Ok(name.to_owned());
    }
    Err(ArgumentError(format!(
        "{argument} has {} bytes: expected 1 to {LONGEST_NAME}",
        name.len()
    )))
}

fn endpoint_of(argument: &str, text: &str) -> Result<Endpoint, ArgumentError> {
    text.parse::<Endpoint>()
        .map_err(|error| ArgumentError(format!("{argument}: {error}")))
}

fn limit_of(argument: &str, value: i64, most: i64) -> Result<usize, ArgumentError> {
    usize::try_from(value)
        .ok()
        .filter(|_| (1..=most).contains(&value))
        .ok_or_else(|| ArgumentError(format!("{argument} is {value}: expected 1 to {most}")))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const FREE: PublisherOptions<'_> = PublisherOptions {
        endpoint: "tcp://127.0.0.1:0",
        replay_endpoint: None,
        topic: "",
        buffer_steps: 1,
        buffer_bytes: 1,
    };

    #[test]
    #[contract("DY37")]
    fn an_option_out_of_range_is_named_with_its_value_and_the_expected_one() {
        let long = "t".repeat(257);
        let endpoint = |endpoint| PublisherOptions { endpoint, ..FREE };
        let replay = |endpoint| PublisherOptions {
            replay_endpoint: Some(endpoint),
            ..FREE
        };
        let steps = |buffer_steps| PublisherOptions {
            buffer_steps,
            ..FREE
        };
        let bytes = |buffer_bytes| PublisherOptions {
            buffer_bytes,
            ..FREE
        };
        for (options, said) in [
            (
                endpoint("5557"),
                "endpoint: endpoint \"5557\" has no supported transport: write tcp://host:port or ipc:///path",
            ),
            (
                replay("inproc://x"),
                "replay_endpoint: endpoint \"inproc://x\" has no supported transport: write tcp://host:port or \
                 ipc:///path",
            ),
            (
                PublisherOptions {
                    topic: &long,
                    ..FREE
                },
                "topic has 257 bytes: expected at most 256",
            ),
            (steps(0), "buffer_steps is 0: expected 1 to 1000000"),
            (
                steps(1_000_001),
                "buffer_steps is 1000001: expected 1 to 1000000",
            ),
            (bytes(-1), "buffer_bytes is -1: expected 1 to 1099511627776"),
            (
                bytes((1 << 40) + 1),
                "buffer_bytes is 1099511627777: expected 1 to 1099511627776",
            ),
        ] {
            let refused = options.check().expect_err(said);
            assert_eq!(refused.to_string(), said);
        }
        for fine in [FREE, steps(1_000_000), bytes(1 << 40)] {
            assert!(fine.check().is_ok(), "{fine:?}");
        }
    }

    #[test]
    #[contract("DY37")]
    fn a_name_has_1_to_256_bytes() {
        let long = "x".repeat(257);
        assert_eq!(
            checked_name("lora", &long[..256]).as_deref(),
            Ok(&long[..256])
        );
        for (name, bytes) in [("", 0), (&*long, 257)] {
            assert_eq!(
                checked_name("lora", name),
                Err(ArgumentError(format!(
                    "lora has {bytes} bytes: expected 1 to 256"
                )))
            );
        }
    }
}
