//! Trust roots of each worker, read once however many workers share them.

use std::{collections::HashMap, path::PathBuf};

use config::WorkerTls;
use net::{TrustError, TrustRoots, WorkerUrl};

/// The trust roots read so far.
#[derive(Debug, Default)]
pub struct TrustCache {
    by_ca: HashMap<Option<PathBuf>, TrustRoots>,
    blind: Option<TrustRoots>,
}

impl TrustCache {
    /// Returns the URL with its trust roots, where it is encrypted.
    pub fn attach(&mut self, url: WorkerUrl, tls: &WorkerTls) -> Result<WorkerUrl, TrustError> {
        if !url.is_tls() {
            return Ok(url);
        }
        let trust = if tls.insecure_skip_verify {
            match &self.blind {
                Some(trust) => trust.clone(),
                None => self.blind.insert(TrustRoots::blind()?).clone(),
            }
        } else {
            match self.by_ca.get(&tls.ca) {
                Some(trust) => trust.clone(),
                None => {
                    let read = tls
                        .ca
                        .as_deref()
                        .map_or_else(TrustRoots::system, TrustRoots::with_authorities_in)?;
                    self.by_ca.insert(tls.ca.clone(), read.clone());
                    read
                }
            }
        };
        Ok(url.with_trust(trust))
    }
}
