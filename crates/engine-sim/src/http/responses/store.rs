//! Stored responses, which later requests may read, continue or delete.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::Value;

/// Maximum number of stored responses; the oldest go first.
const MOST_ENTRIES: usize = 1_024;
/// Maximum bytes of all of them together, as JSON.
const MOST_BYTES: usize = 64 << 20;

/// One response.
#[derive(Debug)]
pub(crate) struct StoredResponse {
    /// The response as its creator got it.
    pub(super) whole: Value,
    /// The input of its request.
    pub(super) input: Value,
    /// The conversation up to its end, as chat messages.
    pub(super) messages: Vec<Value>,
}

impl StoredResponse {
    fn bytes(&self) -> usize {
        let fixed = [&self.whole, &self.input];
        let values = fixed.into_iter().chain(&self.messages);
        values.map(|value| value.to_string().len()).sum()
    }
}

/// Responses by their ids.
#[derive(Debug, Default)]
pub(crate) struct ResponseStore(Mutex<StoredResponses>);

#[derive(Debug, Default)]
struct StoredResponses {
    by_id: HashMap<String, (Arc<StoredResponse>, usize)>,
    /// Oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

impl ResponseStore {
    pub(crate) fn get(&self, id: &str) -> Option<Arc<StoredResponse>> {
        let state = self.0.lock();
        state.by_id.get(id).map(|(stored, _)| Arc::clone(stored))
    }

    pub(crate) fn put(&self, id: &str, response: StoredResponse) {
        let bytes = response.bytes();
        let mut state = self.0.lock();
        if let Some((_, before)) = state
            .by_id
            .insert(id.to_owned(), (Arc::new(response), bytes))
        {
            state.bytes -= before;
        } else {
            state.order.push_back(id.to_owned());
        }
        state.bytes += bytes;
        while state.by_id.len() > MOST_ENTRIES || state.bytes > MOST_BYTES {
            let Some(oldest) = state.order.pop_front() else {
                break;
            };
            state.forget(&oldest);
        }
    }

    /// Deletes a response; returns whether there was one.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let mut state = self.0.lock();
        state.order.retain(|known| known != id);
        state.forget(id)
    }
}

impl StoredResponses {
    fn forget(&mut self, id: &str) -> bool {
        let Some((_, bytes)) = self.by_id.remove(id) else {
            return false;
        };
        self.bytes -= bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn response(number: usize) -> StoredResponse {
        StoredResponse {
            whole: json!({}),
            input: json!([]),
            messages: vec![json!(number)],
        }
    }

    #[test]
    fn the_oldest_response_is_evicted_first() {
        let store = ResponseStore::default();
        for number in 0..=MOST_ENTRIES {
            store.put(&number.to_string(), response(number));
        }
        assert!(store.get("0").is_none());
        assert_eq!(store.get("1").unwrap().messages[0], 1);
        assert!(store.get(&MOST_ENTRIES.to_string()).is_some());
    }

    #[test]
    fn a_reused_id_refers_to_the_later_response() {
        let store = ResponseStore::default();
        store.put("a", response(1));
        store.put("a", response(2));
        assert_eq!(store.get("a").unwrap().messages[0], 2);
    }

    #[test]
    fn a_deleted_response_is_gone_with_its_bytes() {
        let store = ResponseStore::default();
        store.put("a", response(1));
        assert!(store.remove("a") && !store.remove("a"));
        assert!(store.get("a").is_none());
        let state = store.0.lock();
        assert_eq!((state.bytes, state.order.len()), (0, 0));
    }
}
