//! Entries in an S3-compatible object store: one object each, in an envelope, named `key_prefix`
//! and the hex of the key.
//!
//! The object store does not expire entries: each object carries its expiry second, and a lookup
//! removes an expired one. Expired objects without lookups stay: a lifecycle rule of the bucket
//! removes them.
//!
//! [`object_store`] builds the requests, and [`transport`] sends them. Nothing is retried here: a
//! request waits for the cache only once.

mod fault;
mod transport;

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use net::Clock;
use object_store::{
    Attribute, Attributes, BackoffConfig, ObjectStore, ObjectStoreExt, PutOptions, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path,
};
use tokio::time::timeout;

use self::{
    fault::{S3Error, classify},
    transport::Transport,
};
use super::{
    Store, StoreCapabilities, StoreFill, StoreFuture, StoreLookup, StoreStats,
    envelope::CurrentEnvelope,
};
use crate::{
    CacheKey, CacheSelection, CacheStartError, StoreFault,
    counters::{S3Code, S3Operation},
    engine::CurrentSettings,
    entry::FoundEntry,
    hmac_envelope::FRAME,
};

/// Its name in faults and log lines.
pub(crate) const NAME: &str = "s3";
/// The metadata with the expiry of an object, seconds since 1970.
const EXPIRES_AT: &str = "expires-at";
/// Timeout of one operation, its body included.
const LONGEST: Duration = Duration::from_secs(10);
/// Objects per delete request.
const BATCH: usize = 1_000;

/// The store of the second tier.
pub(crate) struct S3Store {
    objects: Arc<AmazonS3>,
    prefix: String,
    sealing: CurrentEnvelope,
    current: Arc<CurrentSettings>,
    clock: Clock,
}

impl S3Store {
    /// Reads this machine's certificate authorities if the endpoint is encrypted; opens no
    /// connection.
    pub(crate) fn new(
        sealing: CurrentEnvelope,
        in_force: Arc<CurrentSettings>,
        clock: Clock,
    ) -> Result<Self, CacheStartError> {
        let settings = in_force.load_full();
        let l2 = &settings.l2;
        let missing = |key| CacheStartError::NoStore {
            store: "an object store",
            key,
        };
        let endpoint = l2
            .endpoint
            .as_deref()
            .ok_or_else(|| missing("response_cache.l2.endpoint"))?;
        let bucket = l2
            .bucket
            .as_deref()
            .ok_or_else(|| missing("response_cache.l2.bucket"))?;
        let transport = Transport::new(endpoint, l2.tls_ca.as_deref(), Arc::clone(&in_force))?;
        let builder = AmazonS3Builder::new()
            .with_endpoint(transport.endpoint())
            .with_bucket_name(bucket)
            .with_region(&l2.region)
            .with_allow_http(true)
            .with_virtual_hosted_style_request(false)
            .with_retry(RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries: 0,
                retry_timeout: LONGEST,
            })
            .with_http_connector(transport);
        let builder = match &l2.credentials() {
            // Credentials do not come from the machine's metadata service: that would be a request
            // to an unconfigured address.
            None => builder.with_skip_signature(true),
            Some(keys) => builder
                .with_access_key_id(keys.access_key.expose())
                .with_secret_access_key(keys.secret_key.expose()),
        };
        let objects = builder.build().map_err(|error| CacheStartError::Unusable {
            key: "response_cache.l2",
            reason: error.to_string(),
        })?;
        Ok(Self {
            objects: Arc::new(objects),
            prefix: l2.key_prefix.clone(),
            sealing,
            current: in_force,
            clock,
        })
    }

    fn path(&self, key: &CacheKey) -> Path {
        Path::from(format!("{}{key}", self.prefix))
    }

    /// Returns the maximum length of an object, bytes.
    fn most(&self) -> u64 {
        let settings = self.current.load();
        let longest = settings
            .max_response_size
            .max(settings.max_stream_buffer_size);
        longest.saturating_add(FRAME) as u64
    }

    async fn find(&self, key: &CacheKey) -> Result<Option<FoundEntry>, StoreFault> {
        let path = self.path(key);
        let lookup = self.timed(S3Operation::Get, async {
            let result = self.objects.get(&path).await?;
            let ends_at = result
                .attributes
                .get(&Attribute::Metadata(EXPIRES_AT.into()))
                .and_then(|at| at.parse().ok());
            // Expired, without an expiry, or longer than any entry of this cache: the body is not
            // read.
            let expiry = match ends_at {
                Some(at) if result.meta.size <= self.most() => Ok(at),
                _ => Err(()),
            };
            match expiry {
                Ok(at) if self.left(at).is_zero() => Ok(StoredObject::Over),
                Ok(at) => result
                    .bytes()
                    .await
                    .map(|body| StoredObject::Body(body, at)),
                Err(()) => Ok(StoredObject::Foreign),
            }
        });
        let (value, ends_at) = match lookup.await {
            Ok(StoredObject::Body(value, ends_at)) => (value, ends_at),
            Ok(StoredObject::Over) => return Ok(self.forget(&path).await),
            Ok(StoredObject::Foreign) => {
                self.sealing.counters.s3_error(S3Code::Corrupt);
                return Ok(self.forget(&path).await);
            }
            Err(S3Error {
                code: S3Code::NotFound,
                ..
            }) => return Ok(None),
            // A part of the answer arrived.
            Err(S3Error {
                code: S3Code::Corrupt,
                ..
            }) => {
                self.sealing.counters.s3_error(S3Code::Corrupt);
                return Ok(self.forget(&path).await);
            }
            Err(fault) => return Err(self.failed(fault)),
        };
        match self.sealing.open(*key, value, NAME, self.now()).await {
            // The metadata beside the object is not authenticated.
            Some(opened) => Ok(Some(FoundEntry {
                left: self.left(ends_at.min(opened.ends_at)),
                entry: opened.entry,
            })),
            None => {
                self.sealing.counters.s3_error(S3Code::Corrupt);
                Ok(self.forget(&path).await)
            }
        }
    }

    async fn write(&self, fill: StoreFill) -> Result<(), StoreFault> {
        let ends_at = self.now().saturating_add(fill.ttl.as_secs().max(1));
        let value = self.sealing.close(fill.key, fill.entry, ends_at).await;
        let attributes =
            Attributes::from_iter([(Attribute::Metadata(EXPIRES_AT.into()), ends_at.to_string())]);
        let options = PutOptions {
            attributes,
            ..PutOptions::default()
        };
        let path = self.path(&fill.key);
        let put = self.timed(
            S3Operation::Put,
            self.objects.put_opts(&path, value.into(), options),
        );
        put.await.map(drop).map_err(|fault| self.failed(fault))
    }

    async fn remove(&self, path: &Path) -> Result<(), StoreFault> {
        match self
            .timed(S3Operation::Delete, self.objects.delete(path))
            .await
        {
            Ok(())
            | Err(S3Error {
                code: S3Code::NotFound,
                ..
            }) => Ok(()),
            Err(fault) => Err(self.failed(fault)),
        }
    }

    /// Removes an object. If that fails, the next lookup finds it again and ignores it.
    async fn forget(&self, path: &Path) -> Option<FoundEntry> {
        let _ = self.remove(path).await;
        None
    }

    /// Removes the selected objects page by page: names with the prefix, and only if they have the form of this cache.
    async fn remove_selected(&self, selection: CacheSelection) -> Result<u64, StoreFault> {
        // The object store lists by whole segments of names.
        let folder = self
            .prefix
            .rsplit_once('/')
            .map(|(folder, _)| Path::from(folder));
        let whole = Path::from(format!("{}x", self.prefix)).to_string();
        let prefix = whole[..whole.len() - 1].to_owned();
        let mut found = self.objects.list(folder.as_ref());
        let mut removed = 0;
        let mut batch = VecDeque::with_capacity(BATCH);
        loop {
            let next = timeout(LONGEST, found.next())
                .await
                .map_err(|_| self.failed(S3Error::timeout()))?;
            let is_last = next.is_none();
            if let Some(object) = next
                .transpose()
                .map_err(|error| self.failed(classify(&error)))?
            {
                let name = object.location.as_ref().strip_prefix(&prefix);
                if name.is_some_and(|name| selection.contains_name(name)) {
                    batch.push_back(Ok(object.location));
                }
            }
            if batch.len() == BATCH || (is_last && !batch.is_empty()) {
                let count = batch.len() as u64;
                let batch = stream::iter(std::mem::take(&mut batch)).boxed();
                let gone = self
                    .objects
                    .delete_stream(batch)
                    .try_for_each(|_| std::future::ready(Ok(())));
                self.timed(S3Operation::Delete, gone)
                    .await
                    .map_err(|fault| self.failed(fault))?;
                removed += count;
            }
            if is_last {
                return Ok(removed);
            }
        }
    }

    async fn timed<T>(
        &self,
        operation: S3Operation,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, S3Error> {
        let started = self.clock.now();
        let answer = timeout(LONGEST, request).await;
        self.sealing
            .counters
            .s3_took(operation, self.clock.now().since(started));
        match answer {
            Ok(answer) => answer.map_err(|error| classify(&error)),
            Err(_) => Err(S3Error::timeout()),
        }
    }

    fn failed(&self, fault: S3Error) -> StoreFault {
        self.sealing.counters.s3_error(fault.code);
        StoreFault {
            store: NAME,
            outage: true,
            reason: fault.reason,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.unix_s()).unwrap_or(0)
    }

    fn left(&self, ends_at: u64) -> Duration {
        Duration::from_secs(ends_at.saturating_sub(self.now()))
    }
}

/// Omits the credentials.
impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Store")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// The object under a name.
enum StoredObject {
    Body(bytes::Bytes, u64),
    /// An expired entry of this cache.
    Over,
    /// A foreign object.
    Foreign,
}

impl Store for S3Store {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { counts: false }
    }

    fn get(&self, lookup: StoreLookup) -> StoreFuture<'_, Option<FoundEntry>> {
        Box::pin(async move { self.find(&lookup.key).await })
    }

    fn set(&self, fill: StoreFill) -> StoreFuture<'_, ()> {
        Box::pin(self.write(fill))
    }

    fn delete(&self, key: CacheKey) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.remove(&self.path(&key)).await })
    }

    fn clear(&self, selection: CacheSelection) -> StoreFuture<'_, u64> {
        Box::pin(self.remove_selected(selection))
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}
