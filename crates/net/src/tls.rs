//! Encryption, set up in one place: one library, one provider of cryptography, TLS 1.2 and 1.3 and
//! nothing older.
//!
//! [`TrustRoots`] is the client's side: the trusted certificates. [`TlsIdentity`] is the server's:
//! its own certificate, the trusted clients, and the versions of HTTP that it offers. A client
//! negotiates HTTP/1.1 by default.

mod accept;
mod client_verifier;
mod identity;
mod no_verification;
mod reloading;
mod trust;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};

pub use accept::TlsAccept;
pub use client_verifier::{ClientNameError, ClientNames};
pub use identity::{HttpProtocols, IdentityError, IdentityFiles, TlsIdentity};
pub(crate) use reloading::ReloadingIdentity;
pub use trust::{TrustError, TrustRoots};

/// ALPN names.
const HTTP_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
