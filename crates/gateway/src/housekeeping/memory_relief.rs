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
