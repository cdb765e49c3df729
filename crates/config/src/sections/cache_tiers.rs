//! Sections `response_cache.l1` and `response_cache.l2`: the tiers of `backend: tiered`.

use std::{path::PathBuf, time::Duration};

use settings::{Secret, ValueKind, kinds::int};

const BYTES: ValueKind = int(1, 1 << 40);

settings::section! {
    /// Section `response_cache.l1`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CacheL1 {
        /// Storage of the first tier. `redis`: the server of `response_cache.redis`.
        kind "type": L1Kind = "memory", restart;
        /// Largest reply in the first tier, in bytes.
        max_value_size: usize = "1048576" in BYTES, live;
    }
}

settings::section! {
    /// Section `response_cache.l2`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct CacheL2 {
        /// Storage of the second tier.
        kind "type": L2Kind = "s3", restart;
        /// URL of the object store; the bucket is part of the path.
        endpoint: Option<String> = "~" in ValueKind::Stream(&["https", "http"]), restart;
        /// File of certificate authorities that are trusted beside those of the system, PEM.
        tls_ca: Option<PathBuf> = "~", restart;
        /// Bucket of the object store.
        bucket: Option<String> = "~", restart;
        /// Prefix of object names.
        key_prefix: String = "response-cache/", restart;
        /// Region for which requests are signed.
        region: String = "us-east-1", restart;
        /// Access key. Unset: requests are not signed.
        access_key: Option<Secret> = "~", restart;
        /// Secret key that belongs to `access_key`.
        secret_key: Option<Secret> = "~", restart;
        /// Lifetime of a reply in the second tier. Unset: `response_cache.ttl`.
        ttl_override: Option<Duration> = "~", restart;
    }
}

settings::words! {
    /// `response_cache.l1.type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum L1Kind {
        /// Memory of this process.
        Memory = "memory",
        /// The server of `response_cache.redis`.
        Redis = "redis",
    }
}

settings::words! {
    /// `response_cache.l2.type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum L2Kind {
        /// An object store with the S3 API.
        S3 = "s3",
    }
}

/// Credentials that sign requests to an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Credentials {
    /// Access key id.
    pub access_key: Secret,
    /// Secret key.
    pub secret_key: Secret,
}

impl CacheL2 {
    /// Returns the credentials that sign requests; `None` = they are not signed.
    pub fn credentials(&self) -> Option<S3Credentials> {
        let (access_key, secret_key) = self.access_key.clone().zip(self.secret_key.clone())?;
        Some(S3Credentials {
            access_key,
            secret_key,
        })
    }
}
