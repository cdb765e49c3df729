//! Authenticates values in a shared store: a value was written by this fleet, and for its key.
//!
//! A value is `version (1) | HMAC-SHA-256 (32) | label (1) | stored at (8) | ends at (8) | body`;
//! the MAC covers the version, the key and, with its length before it, everything after the MAC.
//! Pure.
//!
//! **Invariant**: no part of a value is used before its MAC is verified, in constant time with
//! respect to the position of a difference.

use aws_lc_rs::hmac;
use bytes::{BufMut, Bytes, BytesMut};

use crate::{CacheEntry, CacheKey};

const VERSION: u8 = 1;
const TAG: usize = 32;
const HEAD: usize = 1 + 8 + 8;
/// Bytes of the envelope beside the body.
pub(crate) const FRAME: usize = 1 + TAG + HEAD;
/// The default key if none is set: it is public, so it detects damage but no forgery.
const PUBLIC: &[u8] = b"warmroute response cache, no mac_key set";

/// A MAC key.
#[derive(Clone)]
pub(crate) struct HmacEnvelope(hmac::Key);

/// A value with a verified MAC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedValue {
    pub(crate) entry: CacheEntry,
    /// Seconds since 1970.
    pub(crate) ends_at: u64,
}

/// The value is damaged, or has the MAC of another key or of a foreign writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EnvelopeError;

impl HmacEnvelope {
    /// `None` selects the public key.
    pub(crate) fn new(secret: Option<&str>) -> Self {
        Self(hmac::Key::new(
            hmac::HMAC_SHA256,
            secret.map_or(PUBLIC, str::as_bytes),
        ))
    }

    pub(crate) fn close(&self, key: &CacheKey, entry: &CacheEntry, ends_at: u64) -> Bytes {
        let mut value = BytesMut::with_capacity(FRAME + entry.body.len());
        value.put_u8(VERSION);
        value.put_bytes(0, TAG);
        value.put_u8(entry.label);
        value.put_u64(entry.stored_at);
        value.put_u64(ends_at);
        value.put_slice(&entry.body);
        let tag = self
            .context(key, value.len() - 1 - TAG, &value[1 + TAG..])
            .sign();
        value[1..=TAG].copy_from_slice(tag.as_ref());
        value.freeze()
    }

    pub(crate) fn open(
        &self,
        key: &CacheKey,
        value: &Bytes,
    ) -> Result<VerifiedValue, EnvelopeError> {
        if value.len() < FRAME || value[0] != VERSION {
            return Err(EnvelopeError);
        }
        let (received, covered) = (&value[1..=TAG], &value[1 + TAG..]);
        let right = self.context(key, covered.len(), covered).sign();
        aws_lc_rs::constant_time::verify_slices_are_equal(right.as_ref(), received)
            .map_err(|_| EnvelopeError)?;
        Ok(VerifiedValue {
            entry: CacheEntry {
                label: covered[0],
                stored_at: number(&covered[1..9]),
                body: value.slice(FRAME..),
            },
            ends_at: number(&covered[9..HEAD]),
        })
    }

    fn context(&self, key: &CacheKey, length: usize, covered: &[u8]) -> hmac::Context {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&[VERSION]);
        for part in key.parts() {
            context.update(part);
        }
        context.update(&(length as u64).to_be_bytes());
        context.update(covered);
        context
    }
}

impl std::fmt::Debug for HmacEnvelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use contract_id::contract;
    use proptest::prelude::*;

    use super::*;
    use crate::CacheScope;

    static KEY: LazyLock<CacheKey> = LazyLock::new(|| key(1));

    fn key(number: u8) -> CacheKey {
        CacheKey::new(CacheScope::of("default", "m"), [number; 32])
    }

    fn entry(body: &[u8]) -> CacheEntry {
        CacheEntry {
            label: 3,
            stored_at: 1_700_000_000,
            body: Bytes::copy_from_slice(body),
        }
    }

    #[test]
    #[contract("S46")]
    fn a_value_opens_only_with_its_own_key_and_name() {
        let seal = HmacEnvelope::new(Some("secret"));
        let value = seal.close(&KEY, &entry(b"answer"), 1_700_000_300);
        assert_eq!(value.len(), FRAME + 6);
        assert_eq!(
            seal.open(&KEY, &value),
            Ok(VerifiedValue {
                entry: entry(b"answer"),
                ends_at: 1_700_000_300
            })
        );
        assert_eq!(
            seal.open(&key(2), &value),
            Err(EnvelopeError),
            "moved to another key"
        );
        assert_eq!(
            HmacEnvelope::new(Some("other")).open(&KEY, &value),
            Err(EnvelopeError)
        );
        assert_eq!(
            HmacEnvelope::new(None).open(&KEY, &value),
            Err(EnvelopeError)
        );
        let public = HmacEnvelope::new(None).close(&KEY, &entry(b""), 1);
        assert_eq!(
            HmacEnvelope::new(None)
                .open(&KEY, &public)
                .map(|opened| opened.entry),
            Ok(entry(b""))
        );
    }

    #[test]
    #[contract("S46")]
    fn every_flipped_bit_and_every_other_length_is_detected() {
        let seal = HmacEnvelope::new(Some("secret"));
        let value = seal.close(&KEY, &entry(b"answer"), 9);
        for bit in 0..value.len() * 8 {
            let mut bent = value.to_vec();
            bent[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                seal.open(&KEY, &bent.into()),
                Err(EnvelopeError),
                "bit {bit}"
            );
        }
        for length in 0..value.len() {
            assert_eq!(
                seal.open(&KEY, &value.slice(..length)),
                Err(EnvelopeError),
                "{length} bytes"
            );
        }
        assert_eq!(
            seal.open(&KEY, &[&value[..], b"x"].concat().into()),
            Err(EnvelopeError)
        );
    }

    proptest! {
        #[test]
        #[contract("S46")]
        fn no_forged_value_opens_or_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(HmacEnvelope::new(Some("secret")).open(&KEY, &bytes.into()), Err(EnvelopeError));
        }
    }
}
