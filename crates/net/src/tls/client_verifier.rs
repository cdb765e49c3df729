//! Which client certificates a listener accepts.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
    client::{danger::HandshakeSignatureValid, verify_server_name},
    pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime},
    server::{
        ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use super::provider;

/// Names of which a client certificate must carry one; if empty, any certificate of the authority
/// is accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientNames(Vec<ServerName<'static>>);

/// The reason why a text names no client.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is neither a DNS name nor an address: give each name in full, without `*`")]
pub struct ClientNameError(String);

impl ClientNames {
    /// Parses DNS names and addresses.
    ///
    /// # Errors
    /// One of them is neither.
    pub fn parse(names: &[String]) -> Result<Self, ClientNameError> {
        let parsed = names.iter().map(|name| {
            ServerName::try_from(name.clone()).map_err(|_| ClientNameError(name.clone()))
        });
        Ok(Self(parsed.collect::<Result<_, _>>()?))
    }

    /// Checks that one of the certificate's subject alternative names is listed; a `*` in the
    /// certificate stands for one label.
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let parsed = ParsedCertificate::try_from(certificate)?;
        let mut names = self.0.iter();
        if names.any(|name| verify_server_name(&parsed, name).is_ok()) {
            Ok(())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }
}

/// Checks a client's certificate: its chain, its revocation and its names.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    /// Checks the chain and, if there are revocation lists, the client's own certificate in them.
    /// It must be in the scope of a list.
    certificate: Arc<dyn ClientCertVerifier>,
    /// Checks the authorities between, each of which need not have a list of its issuer; `None`
    /// without lists.
    authorities: Option<Arc<dyn ClientCertVerifier>>,
    names: ClientNames,
}

impl ClientVerifier {
    /// # Errors
    /// There is no authority, or a revocation list cannot be used.
    pub(super) fn new(
        roots: RootCertStore,
        lists: Vec<CertificateRevocationListDer<'static>>,
        names: ClientNames,
    ) -> Result<Self, VerifierBuilderError> {
        let roots = Arc::new(roots);
        let has_lists = !lists.is_empty();
        let builder = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .with_crls(lists)
            .enforce_revocation_expiration();
        let authorities = has_lists.then(|| builder.clone().allow_unknown_revocation_status());
        Ok(Self {
            certificate: builder.only_check_end_entity_revocation().build()?,
            authorities: authorities.map(|builder| builder.build()).transpose()?,
            names,
        })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.certificate.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .certificate
            .verify_client_cert(end_entity, intermediates, now)?;
        let authorities = self.authorities.as_ref();
        if let Some(authorities) = authorities.filter(|_| !intermediates.is_empty()) {
            authorities.verify_client_cert(end_entity, intermediates, now)?;
        }
        self.names.check(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.certificate.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.certificate.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.certificate.supported_verify_schemes()
    }
}
