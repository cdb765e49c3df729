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
        let snapshot = self.fleet.snapshot();
        let prompts = snapshot.models.values().filter_map(|model| model.artefacts.prompt.as_ref());
        for prompt in prompts {
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
