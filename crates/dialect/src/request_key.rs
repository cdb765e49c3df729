//! The complete key of a request: two requests have the same key only if they ask for the same
//! thing (contract A6).
//!
//! This module digests the parts of a request; [`crate::RepeatabilityView`] selects the members of
//! a body that are parts. Each part of a key is preceded by its length, so two different requests
//! never have the same input.
//!
//! **Invariant**: the digested bytes decode into exactly one list of parts.

use sha2::{Digest, Sha256};

use crate::json::compact::compact;

/// The key: a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey([u8; 32]);

impl RequestKey {
    /// The digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The parts of a key, each behind its length, digested together at the end. Its size is that of
/// the input, which is the body of one request.
#[derive(Debug)]
pub(crate) struct KeyDigest(Vec<u8>);

impl KeyDigest {
    /// `bytes`: the estimated total size.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(crate) fn count(&mut self, parts: usize) {
        self.0.extend_from_slice(&(parts as u64).to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// Adds a value without insignificant space.
    pub(crate) fn json(&mut self, value: &str) {
        let length = self.0.len();
        self.count(0);
        let from = self.0.len();
        compact(value, &mut self.0);
        let bytes = (self.0.len() - from) as u64;
        self.0[length..from].copy_from_slice(&bytes.to_le_bytes());
    }

    pub(crate) fn key(&self) -> RequestKey {
        RequestKey(Sha256::digest(&self.0).into())
    }
}
