//! Which certificates are accepted, on both sides of an encrypted connection.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use contract_id::contract;
use net::{
    HttpProtocols, IdentityFiles, ListenAddr, Listener, Stream, TlsIdentity, TrustRoots, WorkerUrl,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

const SOON: Duration = Duration::from_secs(10);

type TestIssuer = CertifiedIssuer<'static, KeyPair>;

fn authority() -> TestIssuer {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes a certificate for `name` with its key.
fn issue(authority: &TestIssuer, name: &str, folder: &Path) -> IdentityFiles {
    sign(
        authority,
        CertificateParams::new(vec![name.to_owned()]).unwrap(),
        folder,
    )
}

fn sign(authority: &TestIssuer, params: CertificateParams, folder: &Path) -> IdentityFiles {
    let key = KeyPair::generate().unwrap();
    let own = params.signed_by(&key, authority).unwrap();
    let files = IdentityFiles {
        cert: folder.join("cert.pem"),
        key: folder.join("key.pem"),
        client_ca: None,
    };
    fs::write(&files.cert, own.pem()).unwrap();
    fs::write(&files.key, key.serialize_pem()).unwrap();
    files
}

async fn listening(files: IdentityFiles) -> (Arc<Listener>, Arc<TlsIdentity>) {
    let identity = Arc::new(TlsIdentity::load(files, HttpProtocols::Http1).unwrap());
    let listener = net::listen(&ListenAddr::tcp("127.0.0.1", 0)).await.unwrap();
    (
        Arc::new(listener.encrypted(Arc::clone(&identity))),
        identity,
    )
}

/// Accepts one connection and echoes its bytes.
fn echoing(listener: &Arc<Listener>) -> tokio::task::JoinHandle<io::Result<()>> {
    let listener = Arc::clone(listener);
    tokio::spawn(async move {
        let mut stream = listener.accept().await?;
        let mut bytes = [0; 4];
        loop {
            stream.read_exact(&mut bytes).await?;
            stream.write_all(&bytes).await?;
            stream.flush().await?;
        }
    })
}

async fn dial(listener: &Listener, trust: TrustRoots) -> io::Result<Stream> {
    let url: WorkerUrl = format!("https://{}", listener.address()).parse().unwrap();
    net::dial(&url.with_trust(trust), SOON).await
}

async fn exchange(stream: &mut Stream, text: &[u8; 4]) {
    stream.write_all(text).await.unwrap();
    stream.flush().await.unwrap();
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, text);
}

#[tokio::test]
#[contract("S78")]
async fn a_server_is_verified_by_authority_and_name_unless_verification_is_off() {
    let folder = tempfile::tempdir().unwrap();
    let (mine, other) = (authority(), authority());
    let trust =
        |authority: &TestIssuer| TrustRoots::with_authorities(authority.pem().as_bytes()).unwrap();
    let (listener, _) = listening(issue(&mine, "127.0.0.1", folder.path())).await;
    for roots in [trust(&mine), TrustRoots::blind().unwrap()] {
        echoing(&listener);
        let mut stream = dial(&listener, roots).await.unwrap();
        assert_eq!(
            stream.peer_addr().map(|address| address.port()),
            listener.address().port()
        );
        exchange(&mut stream, b"ping").await;
    }
    echoing(&listener);
    assert_eq!(
        dial(&listener, trust(&other)).await.unwrap_err().kind(),
        io::ErrorKind::InvalidData
    );
    let elsewhere = CertificateParams::new(vec!["10.0.0.1".to_owned()]).unwrap();
    let mut outlived = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    outlived.not_after = rcgen::date_time_ymd(2020, 1, 1);
    for params in [elsewhere, outlived] {
        let (listener, _) = listening(sign(&mine, params, folder.path())).await;
        echoing(&listener);
        assert_eq!(
            dial(&listener, trust(&mine)).await.unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}

#[tokio::test]
#[contract("S78")]
async fn a_changed_certificate_is_used_by_new_connections_only() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (authority(), authority());
    let trust =
        |authority: &TestIssuer| TrustRoots::with_authorities(authority.pem().as_bytes()).unwrap();
    let (listener, identity) = listening(issue(&first, "127.0.0.1", folder.path())).await;
    echoing(&listener);
    let mut open = dial(&listener, trust(&first)).await.unwrap();
    exchange(&mut open, b"one.").await;
    assert!(!identity.refresh().unwrap(), "nothing changed");

    let files = issue(&second, "127.0.0.1", folder.path());
    assert!(identity.refresh().unwrap());
    echoing(&listener);
    exchange(&mut dial(&listener, trust(&second)).await.unwrap(), b"new.").await;
    exchange(&mut open, b"two.").await;

    fs::write(&files.key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(
        identity
            .refresh()
            .unwrap_err()
            .to_string()
            .contains("do not go together")
    );
    assert!(
        !identity.refresh().unwrap(),
        "the same error is reported once"
    );
    echoing(&listener);
    exchange(&mut dial(&listener, trust(&second)).await.unwrap(), b"same").await;
}

/// Connects a client with this certificate, or with none.
async fn client(
    listener: &Listener,
    server: &TestIssuer,
    shown: Option<&IdentityFiles>,
) -> io::Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add(server.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match shown {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let cert = rustls::pki_types::CertificateDer::from_pem_file(&files.cert).unwrap();
            builder
                .with_client_auth_cert(
                    vec![cert],
                    PrivateKeyDer::from_pem_file(&files.key).unwrap(),
                )
                .unwrap()
        }
    };
    let stream = net::connect(listener.address().address(), SOON).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    stream.write_all(b"ping").await?;
    stream.flush().await?;
    stream.read_exact(&mut [0; 4]).await?;
    Ok(())
}

#[tokio::test]
#[contract("S16")]
async fn a_client_needs_a_valid_certificate_of_the_right_authority() {
    let [folder, own, strange, old] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let (server, clients) = (authority(), authority());
    let client_ca = folder.path().join("clients.pem");
    fs::write(&client_ca, clients.pem()).unwrap();
    let files = IdentityFiles {
        client_ca: Some(client_ca),
        ..issue(&server, "127.0.0.1", folder.path())
    };
    let (listener, _) = listening(files).await;
    let (known, stranger) = (
        issue(&clients, "me", own.path()),
        issue(&authority(), "me", strange.path()),
    );
    let mut past = CertificateParams::new(vec!["me".to_owned()]).unwrap();
    past.not_before = rcgen::date_time_ymd(2001, 1, 1);
    past.not_after = rcgen::date_time_ymd(2001, 1, 2);
    let expired = sign(&clients, past, old.path());
    for (shown, let_in) in [
        (Some(&known), true),
        (Some(&stranger), false),
        (Some(&expired), false),
        (None, false),
    ] {
        let serving = echoing(&listener);
        assert_eq!(client(&listener, &server, shown).await.is_ok(), let_in);
        assert!(
            serving.await.unwrap().is_err(),
            "every connection has ended"
        );
    }
}

#[tokio::test]
async fn unusable_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let files = issue(&authority(), "127.0.0.1", folder.path());
    let refusal = |files: IdentityFiles| {
        TlsIdentity::load(files, HttpProtocols::Http1)
            .unwrap_err()
            .to_string()
    };
    let missing = IdentityFiles {
        cert: folder.path().join("none.pem"),
        ..files.clone()
    };
    assert!(refusal(missing).contains("none.pem cannot be read"));
    let swapped = IdentityFiles {
        cert: files.key.clone(),
        key: files.cert.clone(),
        client_ca: None,
    };
    assert!(refusal(swapped).contains("no usable certificate"));
    let no_authority = IdentityFiles {
        client_ca: Some(files.key.clone()),
        ..files
    };
    assert!(refusal(no_authority).contains("no usable certificate of an authority"));
    assert!(
        TrustRoots::with_authorities_in(Path::new("/none"))
            .unwrap_err()
            .to_string()
            .contains("/none cannot be read")
    );
}
