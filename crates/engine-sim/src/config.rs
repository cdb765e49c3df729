//! The checked settings of one simulated engine.

use std::{path::PathBuf, sync::Arc, time::Duration};

use engine_model::{EngineTiming, Profile, Scheduling};
use kv_blocks::BlockSize;
use net::ListenAddr;
use zmtp::Endpoint;

use crate::{EngineArgs, EventFormat, HashFormat, ReplayFormat, WorkerRole};

/// The settings of one engine: [`EngineArgs`], checked.
///
/// ```
/// use clap::Parser;
/// use engine_sim::{EngineArgs, EngineConfig};
///
/// #[derive(Parser)]
/// struct Cli {
///     #[command(flatten)]
///     engine: EngineArgs,
/// }
///
/// let cli = Cli::parse_from(["engine", "--block-size", "32", "--no-kv-events"]);
/// assert!(EngineConfig::try_from(cli.engine).is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct EngineConfig {
    pub(crate) listen: ListenAddr,
    pub(crate) model: String,
    pub(crate) tokenizer: TokenizerFiles,
    pub(crate) cache: CacheConfig,
    pub(crate) batch: BatchConfig,
    /// Maximum tokens of a sequence; at most the capacity of the blocks.
    pub(crate) max_model_len: u32,
    pub(crate) events: Option<EventSettings>,
    pub(crate) dp_size: u32,
    pub(crate) role: WorkerRole,
    pub(crate) loras: Vec<Arc<str>>,
    pub(crate) api: ApiConfig,
    pub(crate) seed: u64,
    pub(crate) startup_delay: Duration,
}

/// The files of the tokenizer.
#[derive(Clone, Debug)]
pub(crate) struct TokenizerFiles {
    pub(crate) folder: Option<PathBuf>,
    /// Replaces the tokenizer's own template.
    pub(crate) chat_template: Option<PathBuf>,
}

/// The size and use of the KV cache.
#[derive(Clone, Debug)]
pub(crate) struct CacheConfig {
    pub(crate) block_size: BlockSize,
    pub(crate) kv_blocks: u32,
    pub(crate) host_blocks: u32,
    pub(crate) prefix_caching: bool,
}

/// The limits, order and speed of a step.
#[derive(Clone, Debug)]
pub(crate) struct BatchConfig {
    pub(crate) max_num_seqs: u32,
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) scheduling: Scheduling,
    pub(crate) timing: EngineTiming,
}

/// What the HTTP API offers and reports.
#[derive(Clone, Debug)]
pub(crate) struct ApiConfig {
    /// When the usage reports cached tokens.
    pub(crate) usage_details: UsageDetails,
    /// Whether replies report token ids on request.
    pub(crate) token_ids: bool,
    /// Paths answered with 404.
    pub(crate) without: Vec<String>,
    /// Whether the engine serves Anthropic's routes.
    pub(crate) anthropic: bool,
    pub(crate) api_key: Option<String>,
}

/// When the usage reports cached tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageDetails {
    Always,
    /// Only if there were any.
    OnHits,
    Never,
}

/// The settings of event publishing.
#[derive(Clone, Debug)]
pub(crate) struct EventSettings {
    pub(crate) events: Endpoint,
    /// `None`: a reader cannot recover missed batches.
    pub(crate) replay: Option<Endpoint>,
    pub(crate) topic: String,
    pub(crate) buffer_steps: usize,
    pub(crate) event_format: EventFormat,
    pub(crate) hash_format: HashFormat,
    pub(crate) replay_format: ReplayFormat,
}

/// The reason why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A flag has an invalid value.
    #[error("--{flag} {value}: expected {expected}")]
    Flag {
        /// The flag, without dashes.
        flag: &'static str,
        /// The given value.
        value: String,
        /// The expected form.
        expected: String,
    },
    /// The address is not available.
    #[error(transparent)]
    Listen(#[from] net::ListenError),
    /// A tokenizer or template file is not readable.
    #[error(
        "{path} cannot be read ({source}): --tokenizer takes a directory with tokenizer.json and tokenizer_config.json, \
         --chat-template a file"
    )]
    TokenizerFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The tokenizer's files are invalid.
    #[error("the tokenizer cannot be used: {0}")]
    Tokenizer(String),
}

impl EngineError {
    /// Returns `true` if another flag value would help (exit code 2), `false` for a port in use and
    /// the like.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Flag { .. })
    }
}

impl TryFrom<EngineArgs> for EngineConfig {
    type Error = EngineError;

    fn try_from(args: EngineArgs) -> Result<Self, EngineError> {
        let block_size = BlockSize::new(u64::from(args.block_size))
            .map_err(|error| flag("block-size", args.block_size, error.to_string()))?;
        at_least_one("kv-blocks", args.kv_blocks)?;
        at_least_one("max-model-len", args.max_model_len)?;
        at_least_one("max-num-seqs", args.max_num_seqs)?;
        at_least_one("max-num-batched-tokens", args.max_num_batched_tokens)?;
        at_least_one("dp-size", args.dp_size)?;
        let capacity = u64::from(args.kv_blocks) * u64::from(block_size.tokens());
        let listen = match &args.uds {
            Some(path) => ListenAddr::unix(path).chosen_by("--uds"),
            None => ListenAddr::tcp(&args.host, args.port),
        };
        let batch = BatchConfig {
            max_num_seqs: args.max_num_seqs,
            max_num_batched_tokens: args.max_num_batched_tokens,
            scheduling: args.scheduling_policy,
            timing: timing(&args)?,
        };
        let usage_details = usage_details(&args);
        Ok(Self {
            listen,
            batch,
            events: if args.no_kv_events {
                None
            } else {
                Some(event_settings(&args)?)
            },
            // A real engine refuses to start; a test with a small cache means the cache.
            max_model_len: args
                .max_model_len
                .min(u32::try_from(capacity).unwrap_or(u32::MAX)),
            model: args.model,
            tokenizer: TokenizerFiles {
                folder: args.tokenizer,
                chat_template: args.chat_template,
            },
            cache: CacheConfig {
                block_size,
                kv_blocks: args.kv_blocks,
                host_blocks: args.host_blocks,
                prefix_caching: !args.no_prefix_caching,
            },
            api: ApiConfig {
                usage_details,
                token_ids: !args.no_token_ids,
                without: args.without,
                anthropic: args.anthropic,
                api_key: args.api_key,
            },
            dp_size: args.dp_size,
            role: args.role,
            loras: adapters(&args.loras),
            seed: args.seed,
            startup_delay: args.startup_delay,
        })
    }
}

fn usage_details(args: &EngineArgs) -> UsageDetails {
    match (args.no_usage_details, args.details_on_hits_only) {
        (true, _) => UsageDetails::Never,
        (false, true) => UsageDetails::OnHits,
        (false, false) => UsageDetails::Always,
    }
}

fn adapters(names: &[String]) -> Vec<Arc<str>> {
    let names = names.iter().filter(|name| !name.is_empty());
    names.map(|name| Arc::from(name.as_str())).collect()
}

fn flag(flag: &'static str, value: impl ToString, expected: impl Into<String>) -> EngineError {
    EngineError::Flag {
        flag,
        value: value.to_string(),
        expected: expected.into(),
    }
}

fn at_least_one(name: &'static str, value: u32) -> Result<(), EngineError> {
    if value == 0 {
        Err(flag(name, value, "at least 1"))
    } else {
        Ok(())
    }
}

fn timing(args: &EngineArgs) -> Result<EngineTiming, EngineError> {
    let unknown = || {
        flag(
            "profile",
            &args.profile,
            format!("one of {}", Profile::names()),
        )
    };
    let profile = Profile::named(&args.profile).ok_or_else(unknown)?;
    let mut timing = EngineTiming::new(profile).speed(positive("speed", args.speed)?);
    if let Some(rate) = args.prefill_tps {
        timing = timing.prefill_tokens_per_s(positive("prefill-tps", rate)?);
    }
    if let Some(ms) = args.itl_ms {
        timing = timing.inter_token_ms(not_negative("itl-ms", ms)?);
    }
    if let Some(ms) = args.overhead_ms {
        timing = timing.overhead_ms(not_negative("overhead-ms", ms)?);
    }
    Ok(timing)
}

fn positive(name: &'static str, value: f64) -> Result<f64, EngineError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(flag(name, value, "a number above 0"))
    }
}

fn not_negative(name: &'static str, value: f64) -> Result<f64, EngineError> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(flag(name, value, "a number, 0 or above"))
    }
}

fn event_settings(args: &EngineArgs) -> Result<EventSettings, EngineError> {
    let endpoint = |name, text: &str| {
        text.parse::<Endpoint>()
            .map_err(|_| flag(name, text, "tcp://host:port or ipc:///path"))
    };
    let events = endpoint("kv-events", &args.kv_events)?;
    let replay = if args.no_replay {
        None
    } else {
        Some(endpoint("replay", &args.replay)?)
    };
    let last = args.dp_size - 1;
    for (name, place) in
        std::iter::once(("kv-events", &events)).chain(replay.iter().map(|place| ("replay", place)))
    {
        let fits = place
            .port()
            .is_none_or(|port| port == 0 || u32::from(port) + last <= u32::from(u16::MAX));
        if !fits {
            return Err(flag(
                name,
                place,
                format!("a port that leaves room for {} ranks", args.dp_size),
            ));
        }
    }
    if let Some(replay) = &replay
        && let (Some(first), Some(second)) = (events.port(), replay.port())
        && first != 0
        && second != 0
        && u32::from(first.abs_diff(second)) <= last
    {
        // Each rank takes the next port of both, as in the real engine, where this mistake is
        // common.
        return Err(flag(
            "replay",
            replay,
            format!("a port at least {} away from --kv-events", args.dp_size),
        ));
    }
    if args.buffer_steps == 0 {
        return Err(flag("buffer-steps", 0, "at least 1"));
    }
    Ok(EventSettings {
        events,
        replay,
        topic: args.topic.clone(),
        buffer_steps: args.buffer_steps,
        event_format: args.event_format,
        hash_format: args.hash_format,
        replay_format: args.replay_format,
    })
}

/// Returns the endpoint of a data-parallel rank: the next ports, port 0 unchanged, and a suffix for
/// unix sockets.
pub(crate) fn endpoint_of_rank(endpoint: &Endpoint, rank: u32) -> Endpoint {
    let mut endpoint = endpoint.clone();
    match &mut endpoint {
        Endpoint::Tcp { port, .. } if *port != 0 => {
            // The configuration check ensured that the last rank's port exists.
            *port = u16::try_from(u32::from(*port) + rank).unwrap_or(u16::MAX);
        }
        Endpoint::Ipc(path) if rank > 0 => {
            let mut name = path.clone().into_os_string();
            name.push(format!("_dp{rank}"));
            *path = name.into();
        }
        Endpoint::Tcp { .. } | Endpoint::Ipc(_) => {}
    }
    endpoint
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestCli {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn config(flags: &str) -> Result<EngineConfig, String> {
        let words = std::iter::once("engine").chain(flags.split_whitespace());
        EngineConfig::try_from(TestCli::try_parse_from(words).unwrap().engine)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let config = config("").unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8000");
        assert_eq!(
            (
                config.cache.block_size.tokens(),
                config.cache.kv_blocks,
                config.cache.host_blocks
            ),
            (16, 4096, 0)
        );
        assert_eq!(
            (
                config.max_model_len,
                config.batch.max_num_seqs,
                config.batch.max_num_batched_tokens
            ),
            (32_768, 256, 8192)
        );
        assert_eq!(config.batch.timing.profile().name, "toy");
        let events = config.events.unwrap();
        assert_eq!(events.events.to_string(), "tcp://127.0.0.1:5557");
        assert_eq!(events.replay.unwrap().to_string(), "tcp://127.0.0.1:5558");
        assert_eq!(events.buffer_steps, 10_000);
    }

    #[test]
    fn a_small_cache_bounds_the_model_length() {
        assert_eq!(config("--kv-blocks 8").unwrap().max_model_len, 128);
    }

    #[test]
    fn an_error_names_the_flag_the_value_and_the_expected_form() {
        let complaint = |flags| config(flags).unwrap_err();
        assert!(complaint("--block-size 0").starts_with("--block-size 0: expected"));
        assert!(complaint("--profile h900").contains("8b-h200"));
        assert!(complaint("--speed 0").contains("above 0"));
        assert!(complaint("--kv-events nats://x").contains("tcp://host:port"));
        assert!(
            complaint("--dp-size 2").contains("--kv-events"),
            "rank 1 would publish where rank 0 replays"
        );
        assert!(config("--dp-size 2 --replay tcp://127.0.0.1:6000").is_ok());
        assert!(
            config("--dp-size 2 --no-replay").is_ok(),
            "then there is nothing to collide with"
        );
    }
}
