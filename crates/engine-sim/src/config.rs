//! The checked settings of one simulated engine.

mod api;
mod batch;
mod error;
mod events;
mod vllm_events;

use std::{path::PathBuf, sync::Arc, time::Duration};

use kv_blocks::BlockSize;
use net::ListenAddr;

pub use self::error::EngineError;
use self::{api::ApiConfig, batch::BatchConfig, error::at_least_one};
pub(crate) use self::{
    api::UsageDetails,
    events::{EventSettings, endpoint_of_rank},
};
use crate::{
    EngineArgs, WorkerRole,
    args::{CacheArgs, ListenArgs},
};

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
    pub(crate) honours_salts: bool,
}

impl TryFrom<EngineArgs> for EngineConfig {
    type Error = EngineError;

    fn try_from(args: EngineArgs) -> Result<Self, EngineError> {
        let cache = CacheConfig::try_from(&args.cache)?;
        let model = args.model;
        at_least_one("max-model-len", model.max_model_len)?;
        at_least_one("dp-size", args.dp_size)?;
        let capacity = u64::from(cache.kv_blocks) * u64::from(cache.block_size.tokens());
        Ok(Self {
            listen: listen_address(&args.listen),
            batch: BatchConfig::new(&args.batch, &args.timing)?,
            events: EventSettings::new(args.events, args.dp_size)?,
            // A real engine refuses to start; a test with a small cache means the cache.
            max_model_len: model
                .max_model_len
                .min(u32::try_from(capacity).unwrap_or(u32::MAX)),
            model: model.model,
            tokenizer: TokenizerFiles {
                folder: model.tokenizer,
                chat_template: model.chat_template,
            },
            cache,
            api: args.api.into(),
            dp_size: args.dp_size,
            role: args.role,
            loras: adapters(&model.loras),
            seed: args.seed,
            startup_delay: args.startup_delay,
        })
    }
}

impl TryFrom<&CacheArgs> for CacheConfig {
    type Error = EngineError;

    fn try_from(args: &CacheArgs) -> Result<Self, EngineError> {
        let block_size = BlockSize::new(u64::from(args.block_size))
            .map_err(|error| EngineError::flag("block-size", args.block_size, error.to_string()))?;
        at_least_one("kv-blocks", args.kv_blocks)?;
        Ok(Self {
            block_size,
            kv_blocks: args.kv_blocks,
            host_blocks: args.host_blocks,
            prefix_caching: !args.no_prefix_caching,
            honours_salts: !args.ignore_salt,
        })
    }
}

fn listen_address(args: &ListenArgs) -> ListenAddr {
    match &args.uds {
        Some(path) => ListenAddr::unix(path).chosen_by("--uds"),
        None => ListenAddr::tcp(&args.host, args.port),
    }
}

fn adapters(names: &[String]) -> Vec<Arc<str>> {
    let names = names.iter().filter(|name| !name.is_empty());
    names.map(|name| Arc::from(name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use contract_id::contract;

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
    #[contract("V18")]
    fn the_flag_of_vllm_sets_the_events_with_its_defaults() {
        let events = |json: &str| {
            config(&format!("--kv-events-config {json}"))
                .unwrap()
                .events
        };
        let enabled = events(r#"{"enable_kv_cache_events":true}"#).unwrap();
        assert_eq!(enabled.events.to_string(), "tcp://*:5557");
        assert!(enabled.replay.is_none());
        assert_eq!((enabled.buffer_steps, enabled.topic.as_str()), (10_000, ""));
        assert!(events("{}").is_none(), "off by default");
        assert!(events(r#"{"enable_kv_cache_events":true,"publisher":"null"}"#).is_none());
        let all = events(
            r#"{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:7000","replay_endpoint":"tcp://127.0.0.1:7100","buffer_steps":5,"hwm":1,"max_queue_size":2,"topic":"kv@a"}"#,
        )
        .unwrap();
        assert_eq!(
            (all.events.to_string(), all.replay.unwrap().to_string()),
            (
                "tcp://127.0.0.1:7000".to_owned(),
                "tcp://127.0.0.1:7100".to_owned()
            )
        );
        assert_eq!((all.buffer_steps, all.topic.as_str()), (5, "kv@a"));
        for wrong in ["x", "{\"enable\":true}", "{\"publisher\":\"nats\"}"] {
            let error = config(&format!("--kv-events-config {wrong}")).unwrap_err();
            assert!(error.starts_with("--kv-events-config"), "{error}");
        }
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
        assert!(complaint("--p2p-gb-s 0").contains("above 0"));
        assert!(complaint("--p2p-floor-ms=-1").contains("0 or above"));
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
