//! Stored conversations that a later request may continue.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::Value;

/// Maximum number of stored conversations; the oldest go first.
const MOST_ENTRIES: usize = 1_024;
/// Maximum bytes of all of them together, as JSON.
const MOST_BYTES: usize = 64 << 20;

/// Messages by the id of the response that ended them.
#[derive(Debug, Default)]
pub(crate) struct ResponseStore(Mutex<StoredResponses>);

#[derive(Debug, Default)]
struct StoredResponses {
    by_id: HashMap<String, (Arc<[Value]>, usize)>,
    /// Oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

impl ResponseStore {
    pub(crate) fn get(&self, id: &str) -> Option<Arc<[Value]>> {
        self.0
            .lock()
            .by_id
            .get(id)
            .map(|(messages, _)| Arc::clone(messages))
    }

    pub(crate) fn put(&self, id: &str, messages: Vec<Value>) {
        let bytes = messages
            .iter()
            .map(|message| message.to_string().len())
            .sum();
        let mut state = self.0.lock();
        if let Some((_, before)) = state.by_id.insert(id.to_owned(), (messages.into(), bytes)) {
            state.bytes -= before;
        } else {
            state.order.push_back(id.to_owned());
        }
        state.bytes += bytes;
        while state.by_id.len() > MOST_ENTRIES || state.bytes > MOST_BYTES {
            let Some(oldest) = state.order.pop_front() else {
                break;
            };
            if let Some((_, bytes)) = state.by_id.remove(&oldest) {
                state.bytes -= bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_conversation_is_evicted_first() {
        let store = ResponseStore::default();
        for number in 0..=MOST_ENTRIES {
            store.put(&number.to_string(), vec![json!(number)]);
        }
        assert!(store.get("0").is_none());
        assert_eq!(store.get("1").unwrap()[0], 1);
        assert!(store.get(&MOST_ENTRIES.to_string()).is_some());
    }

    #[test]
    fn a_reused_id_refers_to_the_later_conversation() {
        let store = ResponseStore::default();
        store.put("a", vec![json!(1)]);
        store.put("a", vec![json!(2)]);
        assert_eq!(store.get("a").unwrap()[0], 2);
    }
}
