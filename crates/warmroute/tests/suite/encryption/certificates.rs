//! Certificate authorities and the certificates that they sign, as files.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// A certificate authority.
pub struct TestAuthority(CertifiedIssuer<'static, KeyPair>);

impl TestAuthority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// The certificate of the authority.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes a certificate for the loopback address and its key to `cert.pem` and `key.pem`.
    pub fn write_certificate(&self, folder: &Path) {
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(vec!["127.0.0.1".to_owned()])
            .unwrap()
            .signed_by(&key, &self.0)
            .unwrap();
        // A reader that polls every two seconds sees both change at once.
        fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
        fs::write(folder.join("cert.pem"), own.pem()).unwrap();
        fs::set_permissions(folder.join("key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    }
}
