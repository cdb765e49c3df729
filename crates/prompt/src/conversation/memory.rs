//! The conversations that are remembered, by the hashes of their beginnings.
//!
//! **Invariant**: their memory is at most [`BUDGET_BYTES`], and that of one model's
//! [`MODEL_BYTES`].

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use lru::LruCache;

use super::{Conversation, Owner, Seeds};
use crate::{
    PromptModel, SaltGroup,
    shared_text::{STRIDE, beginnings},
};

/// Memory of all conversations: some hundred of 100,000 tokens.
const BUDGET_BYTES: usize = 256 << 20;
/// Memory of one model's conversations, so that no model takes that of all others.
const MODEL_BYTES: usize = 192 << 20;
/// Memory of one conversation. A larger one is not remembered.
const CONVERSATION_BYTES: usize = 32 << 20;
/// Bytes of an unmatched rest that is not worth a conversation of its own.
const SMALL_REST: usize = 16 << 10;

/// Remembers conversations, shared by all models. The least recently used ones make room for
/// others.
#[derive(Debug)]
pub struct ConversationMemory {
    state: Mutex<MemoryState>,
    /// Whether nothing new is remembered; what there is stays.
    closed: AtomicBool,
}

#[derive(Debug)]
struct MemoryState {
    conversations: LruCache<u64, Entry>,
    /// The newest conversation that begins so.
    by_beginning: HashMap<u64, u64>,
    bytes: usize,
    bytes_by_model: HashMap<u64, usize>,
    next_id: u64,
}

#[derive(Debug)]
struct Entry {
    owner: Owner,
    bytes: usize,
    conversation: Arc<Conversation>,
}

/// A remembered conversation that a request continues.
#[derive(Clone, Debug)]
pub(super) struct ConversationMatch {
    id: u64,
    pub(super) conversation: Arc<Conversation>,
}

impl Default for ConversationMemory {
    fn default() -> Self {
        Self {
            state: Mutex::new(MemoryState {
                // Bounded by `fit` after every change.
                conversations: LruCache::unbounded(),
                by_beginning: HashMap::new(),
                bytes: 0,
                bytes_by_model: HashMap::new(),
                next_id: 0,
            }),
            closed: AtomicBool::new(false),
        }
    }
}

impl ConversationMemory {
    /// Returns whether a conversation of the model and the group begins like these messages (JSON).
    /// It costs a microsecond.
    pub fn may_know(&self, model: &PromptModel, group: SaltGroup, messages: &str) -> bool {
        let Some(first) = messages.as_bytes().get(..STRIDE) else {
            return false;
        };
        let model = model.number();
        let seeds = Seeds::of(Owner { model, group });
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(first, seeds.messages);
        self.state().by_beginning.contains_key(&hash)
    }

    /// Returns the memory in use, in bytes, about.
    pub fn bytes(&self) -> usize {
        self.state().bytes
    }

    /// Returns the number of conversations.
    pub fn conversations(&self) -> usize {
        self.state().conversations.len()
    }

    /// Sets whether new conversations are remembered; initially they are.
    pub fn set_accepts_new(&self, accepts: bool) {
        self.closed.store(!accepts, Relaxed);
    }

    /// Drops the least recently used conversations until at most half of the bound is used.
    pub fn shrink(&self) {
        let dropped = self.state().fit(BUDGET_BYTES / 2);
        // Many small pieces: after the unlock, as others wait for it.
        drop(dropped);
    }

    /// Returns the owner's conversation with the longest beginning in common, by its hashes.
    pub(super) fn find(&self, owner: Owner, seed: u64, text: &str) -> Option<ConversationMatch> {
        if text.len() < STRIDE {
            return None;
        }
        let hashes = beginnings(seed, text);
        let mut state = self.state();
        let MemoryState {
            conversations,
            by_beginning,
            ..
        } = &mut *state;
        let id = *hashes
            .iter()
            .rev()
            .find_map(|hash| by_beginning.get(hash))?;
        let entry = conversations
            .get(&id)
            .filter(|entry| entry.owner == owner)?;
        Some(ConversationMatch {
            id,
            conversation: Arc::clone(&entry.conversation),
        })
    }

    /// Remembers a conversation. `earlier` is one of which it has the first `pieces` of its text.
    pub(super) fn insert(
        &self,
        owner: Owner,
        conversation: Conversation,
        earlier: Option<(&ConversationMatch, usize)>,
    ) {
        let bytes = conversation.memory_bytes();
        let is_short = conversation.text.bytes() < STRIDE;
        if is_short || bytes > CONVERSATION_BYTES || self.closed.load(Relaxed) {
            return;
        }
        let replaced = earlier.filter(|(earlier, pieces)| {
            let text = &earlier.conversation.text;
            text.bytes() - text.bytes_of(*pieces) <= SMALL_REST
        });
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        let conversation = Arc::new(conversation);
        for hash in hashes(&conversation) {
            state.by_beginning.insert(hash, id);
        }
        state.bytes += bytes;
        *state.bytes_by_model.entry(owner.model).or_default() += bytes;
        let mut dropped = Vec::new();
        if let Some((earlier, _)) = replaced {
            dropped.extend(state.remove(earlier.id));
        }
        let entry = Entry {
            owner,
            bytes,
            conversation,
        };
        state.conversations.put(id, entry);
        dropped.extend(state.fit_model(owner.model));
        dropped.extend(state.fit(BUDGET_BYTES));
        drop(state);
        drop(dropped);
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        // Its parts are consistent between calls, also after a panic elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryState {
    /// Removes the least recently used conversations until `bytes` are used.
    fn fit(&mut self, bytes: usize) -> Vec<Entry> {
        let mut removed = Vec::new();
        while self.bytes > bytes
            && let Some((id, _)) = self.conversations.peek_lru()
        {
            let id = *id;
            removed.extend(self.remove(id));
        }
        removed
    }

    /// Removes the least recently used conversations of a model until its share is used.
    fn fit_model(&mut self, model: u64) -> Vec<Entry> {
        let mut removed = Vec::new();
        while self.bytes_by_model.get(&model) > Some(&MODEL_BYTES)
            && let Some((id, _)) = self
                .conversations
                .iter()
                .rev()
                .find(|(_, entry)| entry.owner.model == model)
        {
            let id = *id;
            removed.extend(self.remove(id));
        }
        removed
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.conversations.pop(&id)?;
        for hash in hashes(&entry.conversation) {
            if self.by_beginning.get(&hash) == Some(&id) {
                self.by_beginning.remove(&hash);
            }
        }
        self.bytes -= entry.bytes;
        if let Some(bytes) = self.bytes_by_model.get_mut(&entry.owner.model) {
            *bytes -= entry.bytes;
            if *bytes == 0 {
                self.bytes_by_model.remove(&entry.owner.model);
            }
        }
        Some(entry)
    }
}

/// Returns the hashes by which a conversation is found.
fn hashes(conversation: &Conversation) -> impl Iterator<Item = u64> {
    let messages = conversation.chat.messages.json().beginnings().iter();
    messages.chain(conversation.text.beginnings()).copied()
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use kv_blocks::{HashScheme, PromptBlocks};

    use super::*;
    use crate::{chat::ParsedChat, shared_text::SharedText};

    const MODEL: u64 = 7;

    fn owner(model: u64) -> Owner {
        let group = SaltGroup::UNSALTED;
        Owner { model, group }
    }

    /// Returns a conversation with a text of pieces of one size.
    fn conversation(owner: Owner, pieces: &[String]) -> Conversation {
        let seeds = Seeds::of(owner);
        let text = pieces.iter().map(|piece| Arc::from(piece.as_str()));
        Conversation {
            chat: ParsedChat::empty(seeds.messages),
            text: SharedText::new(seeds.text).continued(0, text),
            token_ends: (1..=pieces.len()).collect(),
            blocks: Arc::new(PromptBlocks::of_tokens(
                HashScheme::default(),
                (0..).take(pieces.len()).collect(),
            )),
            loop_record: None,
        }
    }

    /// Returns pieces that no other number has.
    fn pieces(number: usize, count: usize, bytes: usize) -> Vec<String> {
        let piece = |at: usize| format!("{number} {at} {}", "x".repeat(bytes));
        (0..count).map(piece).collect()
    }

    fn find(
        memory: &ConversationMemory,
        owner: Owner,
        pieces: &[String],
    ) -> Option<ConversationMatch> {
        memory.find(owner, Seeds::of(owner).text, &pieces.concat())
    }

    fn check_sums(memory: &ConversationMemory) {
        let state = memory.state();
        let bytes = |model: Option<u64>| -> usize {
            let entries = state.conversations.iter().map(|(_, entry)| entry);
            entries
                .filter(|entry| model.is_none_or(|model| entry.owner.model == model))
                .map(|entry| entry.bytes)
                .sum()
        };
        assert_eq!(state.bytes, bytes(None));
        assert!(state.bytes <= BUDGET_BYTES);
        for (model, sum) in &state.bytes_by_model {
            assert_eq!(*sum, bytes(Some(*model)));
            assert!(*sum <= MODEL_BYTES);
        }
        let ids: Vec<u64> = state.conversations.iter().map(|(id, _)| *id).collect();
        assert!(state.by_beginning.values().all(|id| ids.contains(id)));
    }

    #[test]
    fn the_memory_stays_within_its_bytes_and_keeps_used_conversations() {
        let memory = ConversationMemory::default();
        let used = pieces(0, 4, 3_000);
        memory.insert(owner(MODEL), conversation(owner(MODEL), &used), None);
        for number in 1..200 {
            let large = pieces(number, 4, 1 << 19);
            let other = owner(number as u64 % 3);
            memory.insert(other, conversation(other, &large), None);
            assert!(
                find(&memory, owner(MODEL), &used).is_some(),
                "forgotten at {number}"
            );
        }
        check_sums(&memory);
        assert!(memory.bytes() > BUDGET_BYTES / 2);
        assert!(find(&memory, owner(1), &pieces(1, 4, 1 << 19)).is_none());
        memory.shrink();
        check_sums(&memory);
        assert!(memory.bytes() <= BUDGET_BYTES / 2 && memory.conversations() > 1);
        for number in 0..200 {
            let large = pieces(number, 4, 1 << 19);
            memory.insert(owner(MODEL), conversation(owner(MODEL), &large), None);
        }
        check_sums(&memory);
    }

    #[test]
    #[contract("S55", "G18")]
    fn a_conversation_is_found_by_its_own_model_and_salt_only() {
        let memory = ConversationMemory::default();
        let own = pieces(0, 4, 3_000);
        memory.insert(owner(MODEL), conversation(owner(MODEL), &own), None);
        assert!(find(&memory, owner(MODEL), &own).is_some());
        let salted = Owner {
            group: SaltGroup::of(Some("b")),
            ..owner(MODEL)
        };
        let seed = Seeds::of(owner(MODEL)).text;
        for other in [owner(MODEL + 1), salted] {
            assert!(find(&memory, other, &own).is_none());
            let foreign = memory.find(other, seed, &own.concat());
            assert!(foreign.is_none(), "its hashes alone do not suffice");
        }
        memory.insert(salted, conversation(salted, &own), None);
        assert_eq!(memory.conversations(), 2);
        assert!(find(&memory, owner(MODEL), &own).is_some());
    }

    #[test]
    fn the_longest_common_beginning_decides() {
        let memory = ConversationMemory::default();
        let long = pieces(0, 9, 9_000);
        let branch = [&long[..3], &pieces(1, 9, 9_000)[3..]].concat();
        for pieces in [&long, &branch] {
            memory.insert(owner(MODEL), conversation(owner(MODEL), pieces), None);
        }
        for pieces in [&long, &branch] {
            let found = find(&memory, owner(MODEL), pieces).expect("it is remembered");
            assert_eq!(found.conversation.text.matching(&pieces.concat()), 9);
        }
    }

    #[test]
    fn a_turn_replaces_the_one_that_it_continues() {
        let memory = ConversationMemory::default();
        let all = pieces(0, 9, 9_000);
        memory.insert(owner(MODEL), conversation(owner(MODEL), &all[..8]), None);
        let earlier = find(&memory, owner(MODEL), &all).expect("it is remembered");
        memory.insert(
            owner(MODEL),
            conversation(owner(MODEL), &all),
            Some((&earlier, 8)),
        );
        assert_eq!(memory.conversations(), 1);
        check_sums(&memory);
        let latest = find(&memory, owner(MODEL), &all).expect("it is remembered");
        // One that leaves it early does not.
        let branch = [&all[..4], &pieces(1, 9, 9_000)[4..]].concat();
        memory.insert(
            owner(MODEL),
            conversation(owner(MODEL), &branch),
            Some((&latest, 4)),
        );
        assert_eq!(memory.conversations(), 2);
        check_sums(&memory);
    }

    #[test]
    fn a_closed_memory_keeps_what_it_has_and_short_or_huge_chats_are_not_kept() {
        let memory = ConversationMemory::default();
        let (kept, refused) = (pieces(0, 4, 3_000), pieces(1, 4, 3_000));
        memory.insert(owner(MODEL), conversation(owner(MODEL), &kept), None);
        memory.set_accepts_new(false);
        memory.insert(owner(MODEL), conversation(owner(MODEL), &refused), None);
        assert!(
            find(&memory, owner(MODEL), &kept).is_some()
                && find(&memory, owner(MODEL), &refused).is_none()
        );
        memory.set_accepts_new(true);
        for (count, bytes) in [(1, 100), (2, CONVERSATION_BYTES / 2)] {
            memory.insert(
                owner(MODEL),
                conversation(owner(MODEL), &pieces(2, count, bytes)),
                None,
            );
            assert_eq!(memory.conversations(), 1);
        }
    }
}
