//! What caches give up.

use response_cache::Relief;

use super::Stage;
use crate::Gateway;

impl Gateway {
    /// Brings the caches of the request path in line with the stage. Doing it again changes nothing.
    pub(crate) fn relieve(&self) {
        let stage = self.memory.stage();
        let (small, takes_new) = (stage >= Stage::SmallCaches, stage < Stage::SmallBodies);
        self.identify.take_new(takes_new);
        self.cache.relieve(match (small, takes_new) {
            (false, _) => Relief::Nothing,
            (true, true) => Relief::Shrink,
            (true, false) => Relief::StopWrites,
        });
        // Not only of models that are listed now: one that was closed and comes back after this would stay so.
        for prompt in self.fleet.tokenizers() {
            prompt.take_new(takes_new);
            if small {
                prompt.shrink();
            }
        }
        if let Some(prefixes) = &self.shared_prefixes {
            prefixes.take_new(takes_new);
            if small {
                prefixes.shrink();
            }
        }
        if small {
            self.identify.shrink();
        }
    }
}
