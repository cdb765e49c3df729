//! Applies memory pressure to the caches.

use response_cache::Relief;

use crate::{Gateway, memory::MemoryStage};

impl Gateway {
    /// Brings the caches of the request path in line with the stage. Idempotent.
    pub(crate) fn relieve(&self) {
        let stage = self.edge.admission.memory.stage();
        let (small, takes_new) = (
            stage >= MemoryStage::SmallCaches,
            stage < MemoryStage::SmallBodies,
        );
        self.generation.tokenization.set_accepts_new(takes_new);
        self.reply_cache.store.relieve(match (small, takes_new) {
            (false, _) => Relief::Nothing,
            (true, true) => Relief::Shrink,
            (true, false) => Relief::StopWrites,
        });
        // Includes models that are not listed now: a tokenizer that was closed earlier would stay
        // closed.
        for prompt in self.fleet().tokenizers() {
            prompt.take_new(takes_new);
            if small {
                prompt.shrink();
            }
        }
        if let Some(prefixes) = &self.generation.affinity().shared_prefixes {
            prefixes.set_accepts_new(takes_new);
            if small {
                prefixes.shrink();
            }
        }
        if small {
            self.generation.tokenization.shrink();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use kv_blocks::{Moment, WorkerId};
    use routing::SharedPrefixRouting;

    use crate::{request::test_gateway::TestGateway, shared_prefixes::SharedPrefixes};

    #[tokio::test]
    async fn under_pressure_the_prefix_memory_takes_nothing_new_and_takes_again_after_it() {
        let mut test = TestGateway::new();
        let prefixes = Arc::new(SharedPrefixes::new(SharedPrefixRouting {
            prefix_chars: 10,
            max_entries: 100,
            ttl: Duration::from_secs(60),
            ..SharedPrefixRouting::default()
        }));
        test.delivery_mut().affinity.shared_prefixes = Some(Arc::clone(&prefixes));
        let memory = &test.gateway.edge.admission.memory;
        for (key, used, takes) in [(1, 10, true), (2, 85, true), (3, 92, false), (4, 10, true)] {
            memory.observe(Some(used), Some(100));
            test.gateway.relieve();
            prefixes.record_served(Moment::START, key, WorkerId(1), 0);
            assert_eq!(
                prefixes.find(Moment::START, key).is_some(),
                takes,
                "{used} %"
            );
        }
    }
}
