//! Encryption, set up in one place: one library, one provider of cryptography, TLS 1.2 and 1.3 and nothing older.
//!
//! [`Trust`] is the client's side: whose certificates are believed. [`Identity`] is the server's: what is shown to
//! clients, and which clients are believed. Both speak HTTP/1.1 unless told otherwise.

mod accept;
mod identity;
mod no_verification;
mod reloading;
mod trust;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};

pub use accept::TlsAccept;
pub use identity::{IdentityError, IdentityFiles, TlsIdentity};
pub(crate) use reloading::ReloadingIdentity;
pub use trust::{TrustError, TrustRoots};

/// What both sides agree to speak.
const HTTP_1: &[u8] = b"http/1.1";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
