//! Whose certificates are believed, for each worker; read once however many workers share them.

use std::{collections::HashMap, path::PathBuf};

use config::WorkerTls;
use net::{Trust, TrustError, WorkerUrl};

/// What was read so far.
#[derive(Debug, Default)]
pub struct Trusts {
    by_ca: HashMap<Option<PathBuf>, Trust>,
    blind: Option<Trust>,
}

impl Trusts {
    /// The URL with whom it believes, where it is encrypted.
    pub fn attach(&mut self, url: WorkerUrl, tls: &WorkerTls) -> Result<WorkerUrl, TrustError> {
        if !url.is_tls() {
            return Ok(url);
        }
        let trust = if tls.insecure_skip_verify {
            match &self.blind {
                Some(trust) => trust.clone(),
                None => self.blind.insert(Trust::blind()?).clone(),
            }
        } else {
            match self.by_ca.get(&tls.ca) {
                Some(trust) => trust.clone(),
                None => {
                    let read = tls
                        .ca
                        .as_deref()
                        .map_or_else(Trust::system, Trust::with_authorities_in)?;
                    self.by_ca.insert(tls.ca.clone(), read.clone());
                    read
                }
            }
        };
        Ok(url.believing(trust))
    }
}
