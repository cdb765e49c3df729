//! The same engines, once modelled and once over sockets.

use engine_model::{Allocation, Profile};
use routing::{Policy, RoutingSettings};
use simulate::{Cell, RequestReport, Trace, TracePace, run_in_detail};

use super::workload::BLOCK;
use crate::harness::{RoutedFleet, SimControls};

pub(crate) const ENGINES: usize = 4;
/// Steps are long, so the delay that a busy machine adds is small in comparison.
const STEP_MS: f64 = 40.0;
const PREFILL_TOKENS_PER_S: f64 = 4000.0;
const OVERHEAD_MS: f64 = 15.0;

/// Engines whose caches hold `blocks` blocks.
#[derive(Clone, Copy)]
pub(crate) struct AgreementFleet {
    pub(crate) policy: Policy,
    pub(crate) blocks: u32,
}

impl AgreementFleet {
    /// Reports each request of the trace in virtual time.
    pub(crate) fn simulated(self, trace: &Trace) -> Vec<RequestReport> {
        let routing = RoutingSettings {
            policy: self.policy,
            ..RoutingSettings::default()
        };
        let workers = u32::try_from(ENGINES).unwrap();
        let cell = Cell {
            allocation: Allocation::Growing,
            event_delay: std::time::Duration::from_millis(1),
            ..Cell::new(routing, workers, TracePace::faster(1.0), self.profile())
        };
        run_in_detail(trace, &cell).1
    }

    /// The profile of the engines.
    pub(crate) fn profile(self) -> Profile {
        Profile {
            name: "slow",
            kv_tokens: self.blocks * BLOCK,
            overhead_ms: OVERHEAD_MS,
            prefill_ms: 1e3 / PREFILL_TOKENS_PER_S,
            attention_ms: 0.0,
            step_ms: STEP_MS,
            sequence_ms: 0.0,
            kv_token_ms: 0.0,
            reload_ms: 0.0,
        }
    }

    /// Starts the real router, with more sections of configuration, before engines that run at
    /// `speed`.
    pub(crate) fn started(self, speed: &str, config: &str) -> RoutedFleet {
        let flags = [
            ("--block-size", BLOCK.to_string()),
            ("--kv-blocks", self.blocks.to_string()),
            ("--itl-ms", STEP_MS.to_string()),
            ("--prefill-tps", PREFILL_TOKENS_PER_S.to_string()),
            ("--overhead-ms", OVERHEAD_MS.to_string()),
            ("--speed", speed.to_owned()),
        ];
        let flags: Vec<&str> = flags
            .iter()
            .flat_map(|(flag, value)| [*flag, value.as_str()])
            .collect();
        RoutedFleet::with(
            &[&flags[..]; ENGINES],
            config,
            &["--policy", self.policy.as_str()],
        )
    }
}

/// The engines' totals: cached tokens, prompt tokens and requests.
pub(crate) fn seen(routed: &RoutedFleet) -> EngineTotals {
    let mut seen = EngineTotals::default();
    for engine in &routed.engines {
        let stats = engine.stats();
        let figure = |name: &str| stats[name].as_u64().unwrap();
        seen.cached_tokens += figure("cached_tokens");
        seen.prompt_tokens += figure("prompt_tokens");
        seen.executions += figure("executions");
    }
    seen
}

#[derive(Debug, Default)]
pub(crate) struct EngineTotals {
    pub(crate) cached_tokens: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) executions: u64,
}
