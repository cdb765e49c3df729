//! Streams by their names.

use std::sync::Arc;

use kv_blocks::Tier;

/// Kind of publisher. A target has one engine and one store at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publisher {
    /// The engine.
    Engine,
    /// A store beside it, which describes its blocks itself.
    Store,
    /// A store beside it whose master only names blocks, as the engine does.
    StoreMaster,
}

/// The stream of a change, outside the device. Source: contract MC8.
#[derive(Clone, Copy, Debug)]
pub struct MediumStream<'a> {
    /// Whose event it is.
    pub publisher: Publisher,
    /// Owner of the blocks, as sent; empty if the publisher names none.
    pub backend: &'a str,
    /// Name of the medium as sent, whose case does not matter. Empty: all known names of the tier are
    /// one medium.
    pub medium: &'a str,
    /// Tier of the medium.
    pub tier: Tier,
    /// Whether the name is unknown.
    pub unlisted: bool,
}

impl MediumStream<'_> {
    /// Returns a publisher's only stream in a tier.
    pub fn of_tier(publisher: Publisher, tier: Tier) -> Self {
        Self {
            publisher,
            backend: "",
            medium: "",
            tier,
            unlisted: false,
        }
    }

    /// Returns whether it is an engine's only one in its tier.
    pub(super) fn is_engine_tier(&self) -> bool {
        self.publisher == Publisher::Engine && self.backend.is_empty() && self.medium.is_empty()
    }
}

/// The name of a stream in its tier.
#[derive(Clone, Debug)]
pub(crate) struct StreamName {
    publisher: Publisher,
    backend: Arc<str>,
    pub(super) medium: Arc<str>,
    pub(super) unlisted: bool,
    /// Whether it is a store with names of its own for blocks, from a hasher of its own.
    pub(super) has_names: bool,
}

impl StreamName {
    pub(super) fn of(stream: &MediumStream<'_>) -> Self {
        Self {
            publisher: stream.publisher,
            backend: stream.backend.into(),
            medium: stream.medium.into(),
            unlisted: stream.unlisted,
            has_names: false,
        }
    }

    /// Returns the stream with this name.
    pub(crate) fn in_tier(&self, tier: Tier) -> MediumStream<'_> {
        MediumStream {
            publisher: self.publisher,
            backend: &self.backend,
            medium: &self.medium,
            tier,
            unlisted: self.unlisted,
        }
    }

    /// Returns whether its blocks go by names, which end with a life of the engine.
    pub(crate) fn ends_with_engine(&self) -> bool {
        self.publisher != Publisher::Store || self.has_names
    }

    /// Returns whether it may store chunks.
    pub(super) fn has_chunks(&self) -> bool {
        self.publisher == Publisher::Engine || self.has_names
    }

    /// Returns whether the publisher and the backend are those of this stream.
    pub(crate) fn is_of_backend(&self, stream: &MediumStream<'_>) -> bool {
        self.publisher == stream.publisher && *self.backend == *stream.backend
    }

    pub(super) fn is(&self, stream: &MediumStream<'_>) -> bool {
        self.is_of_backend(stream) && self.medium.eq_ignore_ascii_case(stream.medium)
    }
}

/// A stream's part in its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRole {
    /// All blocks of the tier are its own, or whose they are is unknown.
    Alone,
    /// The first one, beside others.
    First,
    /// Another one.
    Further,
}
