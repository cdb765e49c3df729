//! Names of the settings of each kind of engine, for fixes.

use config::EngineKind;

/// Flag names of one kind of engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineFlags(EngineKind);

impl EngineFlags {
    /// Returns the flags of this kind; unknown kinds use those of vLLM.
    pub(super) fn of(engine: EngineKind) -> Self {
        Self(engine)
    }

    /// Returns the flag for blocks of this many tokens.
    pub(super) fn block_size(self, tokens: u32) -> String {
        match self.0 {
            EngineKind::Sglang => format!("start the engine with --page-size {tokens}"),
            EngineKind::Trtllm => {
                format!("start the engine with tokens_per_block: {tokens} in its kv_cache_config")
            }
            _ => format!("start the engine with --block-size {tokens}"),
        }
    }

    /// Returns the flag that enables prefix caching.
    pub(super) fn prefix_caching(self) -> &'static str {
        match self.0 {
            EngineKind::Sglang => "start the engine without --disable-radix-cache",
            EngineKind::Trtllm => {
                "start the engine with enable_block_reuse: true in its kv_cache_config"
            }
            _ => {
                "start the engine with --enable-prefix-caching (without --no-enable-prefix-caching)"
            }
        }
    }

    /// Returns the flag that adds cached tokens to usage.
    pub(super) fn usage_details(self) -> &'static str {
        match self.0 {
            EngineKind::Sglang => "start the engine with --enable-cache-report",
            EngineKind::Trtllm => "use a release whose usage has prompt_tokens_details",
            _ => "start the engine with --enable-prompt-tokens-details",
        }
    }

    /// Returns the engine setting that configures events.
    pub(super) fn events_setting(self) -> &'static str {
        match self.0 {
            EngineKind::Trtllm => "the publisher of its KV events",
            _ => "the engine's --kv-events-config",
        }
    }

    /// Returns the setting that publishes events for this many ranks.
    pub(super) fn events(self, ranks: u32) -> String {
        let replay = replay_port(USUAL_PORT, ranks);
        let sockets = format!(
            "\"endpoint\": \"tcp://*:{USUAL_PORT}\", \"replay_endpoint\": \"tcp://*:{replay}\""
        );
        match self.0 {
            EngineKind::Sglang => {
                format!("start the engine with --kv-events-config '{{\"publisher\": \"zmq\", {sockets}}}'")
            }
            EngineKind::Trtllm => {
                "start the engine with event_buffer_max_size: 1024 in its kv_cache_config and a ZMQ publisher of \
                               its events"
                    .to_owned()
            }
            _ => format!(
                "start the engine with --kv-events-config '{{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \
                 {sockets}}}'"
            ),
        }
    }

    /// Returns the setting that serves an adapter.
    pub(super) fn adapter(self, name: &str) -> String {
        match self.0 {
            EngineKind::Sglang => format!("start the engine with --lora-paths {name}=DIR"),
            _ => format!("start the engine with --enable-lora --lora-modules {name}=DIR"),
        }
    }

    /// Returns the setting for this many data-parallel ranks.
    pub(super) fn ranks(self, ranks: u32) -> String {
        match self.0 {
            EngineKind::Sglang => format!("start the engine with --dp-size {ranks}"),
            _ => format!("start the engine with --data-parallel-size {ranks}"),
        }
    }
}

/// Default port of event publishers.
pub(super) const USUAL_PORT: u16 = 5557;

/// Returns the first port behind all ranks' event ports: each rank publishes on the next port, and
/// the replay ports count up likewise.
pub(super) fn replay_port(events: u16, ranks: u32) -> u16 {
    events.saturating_add(u16::try_from(ranks.max(1)).unwrap_or(u16::MAX))
}

/// Returns whether engines of this kind cache blocks and can publish events for them.
pub(super) fn keeps_blocks(engine: EngineKind) -> bool {
    matches!(
        engine,
        EngineKind::Vllm | EngineKind::Sglang | EngineKind::Trtllm
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_of_engine_has_its_own_flags() {
        let (vllm, sglang) = (
            EngineFlags::of(EngineKind::Vllm),
            EngineFlags::of(EngineKind::Sglang),
        );
        assert!(vllm.prefix_caching().contains("--enable-prefix-caching"));
        assert!(sglang.prefix_caching().contains("--disable-radix-cache"));
        assert!(sglang.usage_details().contains("--enable-cache-report"));
        assert!(sglang.block_size(64).ends_with("--page-size 64"));
        assert!(
            !sglang.events(1).contains("enable_kv_cache_events"),
            "that key is vLLM's"
        );
        assert!(
            vllm.events(1)
                .contains("\"replay_endpoint\": \"tcp://*:5558\"")
        );
        assert!(
            vllm.events(4)
                .contains("\"replay_endpoint\": \"tcp://*:5561\""),
            "5558 is the second rank's"
        );
        assert!(
            EngineFlags::of(EngineKind::Trtllm)
                .block_size(32)
                .contains("tokens_per_block: 32")
        );
    }
}
