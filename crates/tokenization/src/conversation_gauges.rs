//! What the memory of conversations holds, as metrics.

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use prompt::ConversationMemory;

/// The gauges of the memory of conversations.
#[derive(Debug)]
pub(crate) struct ConversationGauges {
    bytes: Gauge,
    conversations: Gauge,
}

impl ConversationGauges {
    pub(crate) fn registered(registry: &mut Registry) -> Self {
        let gauges = Self {
            bytes: Gauge::default(),
            conversations: Gauge::default(),
        };
        registry.register(
            "warmroute_conversation_memory_bytes",
            "Memory of the conversations whose next turn is tokenized from where it is new",
            gauges.bytes.clone(),
        );
        registry.register(
            "warmroute_conversations_remembered",
            "Conversations whose next turn is tokenized from where it is new",
            gauges.conversations.clone(),
        );
        gauges
    }

    /// Shows what the memory holds now.
    pub(crate) fn show(&self, memory: &ConversationMemory) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.bytes.set(number(memory.bytes()));
        self.conversations.set(number(memory.conversations()));
    }
}
