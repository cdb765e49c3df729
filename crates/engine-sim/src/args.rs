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
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a flag of its own"
)]
pub struct EngineArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes any free one.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Name the model is served under.
    #[arg(long, default_value = "sim")]
    pub model: String,
    /// Directory with tokenizer.json and tokenizer_config.json; left out: the built-in tokenizer.
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// Chat template (Jinja) in place of the tokenizer's own.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Tokens per KV block.
    #[arg(long, default_value_t = 16)]
    pub block_size: u32,
    /// Device blocks of each rank.
    #[arg(long, default_value_t = 4096)]
    pub kv_blocks: u32,
    /// Host blocks of each rank that take what the device evicts; 0: no host tier.
    #[arg(long, default_value_t = 0)]
    pub host_blocks: u32,
    /// Keep no blocks for later requests: nothing is ever found in the cache, and nothing is published.
    #[arg(long)]
    pub no_prefix_caching: bool,
    /// Leave prompt_tokens_details out of usage, as vLLM does without --enable-prompt-tokens-details.
    #[arg(long)]
    pub no_usage_details: bool,
    /// Leave prompt_tokens_details out of usage where nothing was cached, as vLLM does.
    #[arg(long)]
    pub details_on_hits_only: bool,
    /// Never tell token ids in replies, as engines that do not know return_token_ids.
    #[arg(long)]
    pub no_token_ids: bool,
    /// Answer these paths with 404, as older releases and other servers do.
    #[arg(long, value_delimiter = ',', value_name = "PATH,PATH")]
    pub without: Vec<String>,
    /// Most tokens of prompt and reply together.
    #[arg(long, default_value_t = 32_768)]
    pub max_model_len: u32,
    /// Most sequences that run at once.
    #[arg(long, default_value_t = 256)]
    pub max_num_seqs: u32,
    /// Who of those that wait goes first: fcfs, or priority (by the request's `priority`, lowest first).
    #[arg(long, default_value = "fcfs", value_name = "fcfs|priority", value_parser = scheduling)]
    pub scheduling_policy: Scheduling,
    /// Most tokens in one step.
    #[arg(long, default_value_t = 8192)]
    pub max_num_batched_tokens: u32,
    /// Timing profile: toy, 8b-h200, 70b-h100x4, 70b-h100x2 or 32b-h100x2.
    #[arg(long, default_value = "toy")]
    pub profile: String,
    /// Prefill speed in tokens per second, instead of the profile's.
    #[arg(long, value_name = "TOKENS_PER_S")]
    pub prefill_tps: Option<f64>,
    /// Time between tokens in ms, instead of the profile's.
    #[arg(long, value_name = "MS")]
    pub itl_ms: Option<f64>,
    /// Fixed time before a request is considered, in ms, instead of the profile's.
    #[arg(long, value_name = "MS")]
    pub overhead_ms: Option<f64>,
    /// Divides every duration: 10 is ten times faster.
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Where rank 0 publishes KV events (tcp:// or ipc://); rank r takes port + r, port 0 any free one.
    #[arg(long, default_value = "tcp://127.0.0.1:5557")]
    pub kv_events: String,
    /// Where rank 0 answers replay requests.
    #[arg(long, default_value = "tcp://127.0.0.1:5558")]
    pub replay: String,
    /// Answer no replay requests: what a reader misses is lost.
    #[arg(long)]
    pub no_replay: bool,
    /// Topic of the published events.
    #[arg(long, default_value = "")]
    pub topic: String,
    /// Batches kept for replay.
    #[arg(long, default_value_t = 10_000)]
    pub buffer_steps: usize,
    /// Publish no events.
    #[arg(long)]
    pub no_kv_events: bool,
    /// Events as maps (vLLM 0.24 and later) or as arrays.
    #[arg(long, value_enum, default_value_t = EventFormat::Map)]
    pub event_format: EventFormat,
    /// Block hashes as integers or as 32 bytes.
    #[arg(long, value_enum, default_value_t = HashFormat::Int)]
    pub hash_format: HashFormat,
    /// Replay answers with the topic frame (vLLM 0.26 and later) or without.
    #[arg(long, value_enum, default_value_t = ReplayFormat::New)]
    pub replay_format: ReplayFormat,
    /// Data-parallel ranks, each with its own cache and publisher.
    #[arg(long, default_value_t = 1)]
    pub dp_size: u32,
    /// Which phases this engine serves: one that only prefills takes no prompt from elsewhere, one that only decodes computes
    /// none for others.
    #[arg(long, value_enum, default_value_t = WorkerRole::Unified)]
    pub role: WorkerRole,
    /// LoRA adapters, by name.
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub loras: Vec<String>,
    /// Answer /v1/messages and /v1/messages/count_tokens too, in Anthropic's shapes.
    #[arg(long)]
    pub anthropic: bool,
    /// Key that requests under /v1 must carry as a bearer token.
    #[arg(long)]
    pub api_key: Option<String>,
    /// Listen on this unix socket instead of host and port.
    #[arg(long, value_name = "PATH")]
    pub uds: Option<PathBuf>,
    /// Changes every reply.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How long /health answers 503 after the start, for example 5s or 500ms.
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    pub startup_delay: Duration,
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
