//! Certificate authorities and the certificates that they sign, as files.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
    KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};

/// What the certificate of a client says.
pub struct TestClient {
    pub name: &'static str,
    pub serial: u64,
    /// The year in which it is no longer valid.
    pub over: i32,
}

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
        self.write(
            CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap(),
            folder,
        );
    }

    /// Writes a client's certificate and its key to `cert.pem` and `key.pem`.
    pub fn write_client(&self, client: &TestClient, folder: &Path) {
        let mut params = CertificateParams::new(vec![client.name.to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from(client.serial));
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(client.over, 1, 1);
        self.write(params, folder);
    }

    /// A list of the certificates that this authority has revoked, as PEM text.
    pub fn revocation_list(&self, serials: &[u64]) -> String {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2019, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2019, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).unwrap().pem().unwrap()
    }

    fn write(&self, params: CertificateParams, folder: &Path) {
        let key = KeyPair::generate().unwrap();
        let own = params.signed_by(&key, &self.0).unwrap();
        // A reader that polls every two seconds sees both change at once.
        fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
        fs::write(folder.join("cert.pem"), own.pem()).unwrap();
        fs::set_permissions(folder.join("key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    }
}
