//! Reads certificates before anything is started, so that their faults are problems of the
//! configuration.

use std::{path::Path, sync::Arc};

use config::{ListenerTls, Problem, Settings};
use fleet::TrustCache;
use net::{
    ClientNameError, ClientNames, HttpProtocols, IdentityError, IdentityFiles, Listener,
    TlsIdentity, WorkerUrl,
};

/// The reason why a listener cannot be encrypted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EncryptionError {
    /// A certificate file cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A name in the list of clients cannot be used.
    #[error(transparent)]
    ClientName(#[from] ClientNameError),
}

/// Returns the problems of the certificate files that the settings name.
pub(crate) fn problems(settings: &Settings) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut bad = |key: &str, value: &str, message: &str| {
        problems.push(settings.locate(Problem::bad_value(key, value, message)));
    };
    for (section, tls) in [
        ("server", &settings.server.tls),
        ("admin", &settings.admin.tls),
    ] {
        let Some(tls) = tls else { continue };
        let Err(error) = load(tls, HttpProtocols::Http1) else {
            continue;
        };
        let (key, value) = match &error {
            EncryptionError::Identity(error) => {
                let path = error.path();
                (key_of(tls, path), path.display().to_string())
            }
            EncryptionError::ClientName(_) => ("client_names", tls.client_names.join(", ")),
        };
        let path = format!("{section}.tls.{key}");
        bad(&path, &value, &error.to_string());
    }
    let mut trusts = TrustCache::default();
    for (at, worker) in settings.workers.iter().enumerate() {
        let Ok(url) = worker.url.parse::<WorkerUrl>() else {
            continue;
        };
        if let Err(error) = trusts.attach(url, &worker.tls) {
            let ca = worker.tls.ca.as_ref();
            let key = if ca.is_some() { "tls.ca" } else { "url" };
            let value = ca.map_or_else(|| worker.url.clone(), |path| path.display().to_string());
            bad(&format!("workers[{at}].{key}"), &value, &error.to_string());
        }
    }
    problems
}

/// Returns the key that names this file.
fn key_of(tls: &ListenerTls, file: &Path) -> &'static str {
    let keys = [
        ("cert", Some(&tls.cert)),
        ("client_ca", tls.client_ca.as_ref()),
        ("client_crl", tls.client_crl.as_ref()),
    ];
    let key = keys
        .iter()
        .find(|(_, path)| path.is_some_and(|path| path == file));
    key.map_or("key", |(key, _)| *key)
}

/// Wraps the listener in TLS if it has an identity.
pub(crate) fn encrypted(listener: Listener, tls: Option<&Arc<TlsIdentity>>) -> Listener {
    match tls {
        Some(identity) => listener.encrypted(Arc::clone(identity)),
        None => listener,
    }
}

/// Returns the certificate of a listener, if it has one.
pub(crate) fn identity(
    tls: Option<&ListenerTls>,
    protocols: HttpProtocols,
) -> Result<Option<Arc<TlsIdentity>>, EncryptionError> {
    let Some(tls) = tls else { return Ok(None) };
    let identity = load(tls, protocols)?;
    if let Some(mode) = identity.exposed_key_mode() {
        tracing::warn!(
            key = %tls.key.display(),
            mode = %format!("{mode:o}"),
            "others than its owner can read this private key: chmod 600 it"
        );
    }
    Ok(Some(Arc::new(identity)))
}

fn load(tls: &ListenerTls, protocols: HttpProtocols) -> Result<TlsIdentity, EncryptionError> {
    let files = IdentityFiles {
        cert: tls.cert.clone(),
        key: tls.key.clone(),
        client_ca: tls.client_ca.clone(),
        client_crl: tls.client_crl.clone(),
    };
    let names = ClientNames::parse(&tls.client_names)?;
    Ok(TlsIdentity::load(files, names, protocols)?)
}
