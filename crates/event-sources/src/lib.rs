//! event-sources
