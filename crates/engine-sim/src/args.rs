//! The flags of one simulated engine.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use engine_model::Scheduling;

use crate::duration::parse_duration;

/// Reads `--scheduling-policy`.
fn scheduling(text: &str) -> Result<Scheduling, &'static str> {
    match text {
        "fcfs" => Ok(Scheduling::Arrival),
        "priority" => Ok(Scheduling::Priority),
        _ => Err("expected fcfs or priority"),
    }
}

/// Flags of `warmroute engine`; [`crate::EngineConfig`] is the checked form.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    #[command(flatten)]
    pub(crate) listen: ListenArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) batch: BatchArgs,
    #[command(flatten)]
    pub(crate) timing: TimingArgs,
    #[command(flatten)]
    pub(crate) events: EventArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    /// Data-parallel ranks, each with its own cache and publisher.
    #[arg(long, default_value_t = 1)]
    pub(crate) dp_size: u32,
    /// Which phases this engine serves: one that only prefills takes no prompt from elsewhere, one that only decodes computes
    /// none for others.
    #[arg(long, value_enum, default_value_t = WorkerRole::Unified)]
    pub(crate) role: WorkerRole,
    /// Changes every reply.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// How long /health answers 503 after the start, for example 5s or 500ms.
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    pub(crate) startup_delay: Duration,
}

/// The address.
#[derive(Args, Clone, Debug)]
pub(crate) struct ListenArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes any free one.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// Listen on this unix socket instead of host and port.
    #[arg(long, value_name = "PATH")]
    pub(crate) uds: Option<PathBuf>,
}

/// The model.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArgs {
    /// Name the model is served under.
    #[arg(long, default_value = "sim")]
    pub(crate) model: String,
    /// Directory with tokenizer.json and tokenizer_config.json; left out: the built-in tokenizer.
    #[arg(long, value_name = "DIR")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Chat template (Jinja) in place of the tokenizer's own.
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// LoRA adapters, by name.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub(crate) loras: Vec<String>,
    /// Most tokens of prompt and reply together.
    #[arg(long, default_value_t = 32_768)]
    pub(crate) max_model_len: u32,
}

/// The KV cache.
#[derive(Args, Clone, Debug)]
pub(crate) struct CacheArgs {
    /// Tokens per KV block.
    #[arg(long, default_value_t = 16)]
    pub(crate) block_size: u32,
    /// Device blocks of each rank.
    #[arg(long, default_value_t = 4096)]
    pub(crate) kv_blocks: u32,
    /// Host blocks of each rank that take what the device evicts; 0: no host tier.
    #[arg(long, default_value_t = 0)]
    pub(crate) host_blocks: u32,
    /// Keep no blocks for later requests: nothing is ever found in the cache, and nothing is published.
    #[arg(long)]
    pub(crate) no_prefix_caching: bool,
    /// Keep one cache for all salts, as engines that do not know cache_salt.
    #[arg(long)]
    pub(crate) ignore_salt: bool,
}

/// Limits and order of a step.
#[derive(Args, Clone, Debug)]
pub(crate) struct BatchArgs {
    /// Most sequences that run at once.
    #[arg(long, default_value_t = 256)]
    pub(crate) max_num_seqs: u32,
    /// Who of those that wait goes first: fcfs, or priority (by the request's `priority`, lowest first).
    #[arg(long, default_value = "fcfs", value_name = "fcfs|priority", value_parser = scheduling)]
    pub(crate) scheduling_policy: Scheduling,
    /// Most tokens in one step.
    #[arg(long, default_value_t = 8192)]
    pub(crate) max_num_batched_tokens: u32,
}

/// Speed.
#[derive(Args, Clone, Debug)]
pub(crate) struct TimingArgs {
    /// Timing profile: toy, 8b-h200, 70b-h100x4, 70b-h100x2 or 32b-h100x2.
    #[arg(long, default_value = "toy")]
    pub(crate) profile: String,
    /// Prefill speed in tokens per second, instead of the profile's.
    #[arg(long, value_name = "TOKENS_PER_S")]
    pub(crate) prefill_tps: Option<f64>,
    /// Time between tokens in ms, instead of the profile's.
    #[arg(long, value_name = "MS")]
    pub(crate) itl_ms: Option<f64>,
    /// Fixed time before a request is considered, in ms, instead of the profile's.
    #[arg(long, value_name = "MS")]
    pub(crate) overhead_ms: Option<f64>,
    /// Read blocks that another simulated engine holds, where a request names it as kv_transfer_params.remote_kv_source:
    /// at so many 10^9 bytes per second, 131,072 bytes for each token. Left out: such a source is ignored, as without
    /// the P2P tier.
    #[arg(long, value_name = "GB/S")]
    pub(crate) p2p_gb_s: Option<f64>,
    /// Time of such a read that does not depend on its length, in ms.
    #[arg(long, value_name = "MS", default_value_t = 5.0)]
    pub(crate) p2p_floor_ms: f64,
    /// Divides every duration: 10 is ten times faster.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) speed: f64,
}

/// KV events.
#[derive(Args, Clone, Debug)]
pub(crate) struct EventArgs {
    /// Where rank 0 publishes KV events (tcp:// or ipc://); rank r takes port + r, port 0 any free one.
    #[arg(long, default_value = "tcp://127.0.0.1:5557")]
    pub(crate) kv_events: String,
    /// Where rank 0 answers replay requests.
    #[arg(long, default_value = "tcp://127.0.0.1:5558")]
    pub(crate) replay: String,
    /// Answer no replay requests: what a reader misses is lost.
    #[arg(long)]
    pub(crate) no_replay: bool,
    /// Topic of the published events.
    #[arg(long, default_value = "")]
    pub(crate) topic: String,
    /// Batches kept for replay.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) buffer_steps: usize,
    /// Publish no events.
    #[arg(long)]
    pub(crate) no_kv_events: bool,
    /// vLLM's flag, with its fields and defaults; replaces the flags above.
    #[arg(long, value_name = "JSON")]
    pub(crate) kv_events_config: Option<String>,
    /// Events as maps (vLLM 0.24 and later) or as arrays.
    #[arg(long, value_enum, default_value_t = EventFormat::Map)]
    pub(crate) event_format: EventFormat,
    /// Block hashes as integers or as 32 bytes.
    #[arg(long, value_enum, default_value_t = HashFormat::Int)]
    pub(crate) hash_format: HashFormat,
    /// Replay answers with the topic frame (vLLM 0.26 and later) or without.
    #[arg(long, value_enum, default_value_t = ReplayFormat::New)]
    pub(crate) replay_format: ReplayFormat,
}

/// The HTTP API.
#[derive(Args, Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a flag of its own"
)]
pub(crate) struct ApiArgs {
    /// Leave prompt_tokens_details out of usage, as vLLM does without --enable-prompt-tokens-details.
    #[arg(long)]
    pub(crate) no_usage_details: bool,
    /// Leave prompt_tokens_details out of usage where nothing was cached, as vLLM does.
    #[arg(long)]
    pub(crate) details_on_hits_only: bool,
    /// Never tell token ids in replies, as engines that do not know return_token_ids.
    #[arg(long)]
    pub(crate) no_token_ids: bool,
    /// Answer these paths with 404, as older releases and other servers do.
    #[arg(long, value_delimiter = ',', value_name = "PATH,PATH")]
    pub(crate) without: Vec<String>,
    /// Answer /v1/messages and /v1/messages/count_tokens too, in Anthropic's shapes.
    #[arg(long)]
    pub(crate) anthropic: bool,
    /// Key that requests under /v1 must carry as a bearer token.
    #[arg(long)]
    pub(crate) api_key: Option<String>,
}

/// How events are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EventFormat {
    /// A map with the tag under `type`.
    #[default]
    Map,
    /// A positional array.
    Array,
}

/// How block hashes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum HashFormat {
    /// Unsigned 64-bit integers.
    #[default]
    Int,
    /// 32 bytes, the integer being the last eight.
    Bytes,
}

/// How replay answers are framed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReplayFormat {
    /// Without the topic frame.
    Old,
    /// With the topic frame.
    #[default]
    New,
}

/// Which phases an engine is meant for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WorkerRole {
    /// Both phases.
    #[default]
    Unified,
    /// Prefill only.
    Prefill,
    /// Decode only.
    Decode,
}
