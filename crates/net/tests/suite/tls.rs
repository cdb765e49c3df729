//! Which certificates are accepted, on both sides of an encrypted connection.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use contract_id::contract;
use net::{
    ClientNames, HttpProtocols, IdentityFiles, ListenAddr, Listener, Stream, TlsIdentity,
    TrustRoots, WorkerUrl,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};
use rustls::{
    ClientConfig, HandshakeKind, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

const SOON: Duration = Duration::from_secs(60);

type TestIssuer = CertifiedIssuer<'static, KeyPair>;

fn authority() -> TestIssuer {
    CertifiedIssuer::self_signed(authority_params(), KeyPair::generate().unwrap()).unwrap()
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
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
        client_crl: None,
    };
    fs::write(&files.cert, own.pem()).unwrap();
    fs::write(&files.key, key.serialize_pem()).unwrap();
    files
}

async fn listening(files: IdentityFiles) -> (Arc<Listener>, Arc<TlsIdentity>) {
    listening_to(files, &[]).await
}

/// Listens for clients whose certificates carry one of these names.
async fn listening_to(files: IdentityFiles, names: &[&str]) -> (Arc<Listener>, Arc<TlsIdentity>) {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let names = ClientNames::parse(&names).unwrap();
    let identity = Arc::new(TlsIdentity::load(files, names, HttpProtocols::Http1).unwrap());
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
    handshake(listener, &client_config(server, shown)).await?;
    Ok(())
}

fn client_config(server: &TestIssuer, shown: Option<&IdentityFiles>) -> Arc<ClientConfig> {
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
            let chain = CertificateDer::pem_file_iter(&files.cert).unwrap();
            builder
                .with_client_auth_cert(
                    chain.map(Result::unwrap).collect(),
                    PrivateKeyDer::from_pem_file(&files.key).unwrap(),
                )
                .unwrap()
        }
    };
    Arc::new(config)
}

/// Sends bytes, and returns once they came back.
async fn handshake(listener: &Listener, config: &Arc<ClientConfig>) -> io::Result<HandshakeKind> {
    let stream = net::connect(listener.address().address(), SOON).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = TlsConnector::from(Arc::clone(config))
        .connect(name, stream)
        .await?;
    stream.write_all(b"ping").await?;
    stream.flush().await?;
    stream.read_exact(&mut [0; 4]).await?;
    Ok(stream.get_ref().1.handshake_kind().unwrap())
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
#[contract("S16")]
async fn a_client_certificate_must_carry_a_listed_name() {
    let folder = tempfile::tempdir().unwrap();
    let (server, clients) = (authority(), authority());
    let client_ca = folder.path().join("clients.pem");
    fs::write(&client_ca, clients.pem()).unwrap();
    let files = IdentityFiles {
        client_ca: Some(client_ca),
        ..issue(&server, "127.0.0.1", folder.path())
    };
    let listed = ["gateway.clients.test", "10.0.0.7"];
    let (listener, _) = listening_to(files, &listed).await;
    let cases: [(&[&str], bool); 10] = [
        (&["gateway.clients.test"], true),
        (&["GATEWAY.clients.test"], true),
        (&["other.clients.test", "gateway.clients.test"], true),
        (&["*.clients.test"], true),
        (&["10.0.0.7"], true),
        (&["other.clients.test"], false),
        (&["a.gateway.clients.test"], false),
        (&["clients.test"], false),
        (&["10.0.0.8"], false),
        (&[], false),
    ];
    for (names, let_in) in cases {
        let own = tempfile::tempdir().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let params = CertificateParams::new(names.clone()).unwrap();
        let shown = sign(&clients, params, own.path());
        echoing(&listener);
        let accepted = client(&listener, &server, Some(&shown)).await.is_ok();
        assert_eq!(accepted, let_in, "{names:?}");
    }
    for name in ["*.clients.test", "a b", ""] {
        let error = ClientNames::parse(&[name.to_owned()]).unwrap_err();
        assert!(error.to_string().contains("in full"), "{error}");
    }
}

fn authority_named(name: &str, parent: Option<&TestIssuer>) -> TestIssuer {
    let mut params = authority_params();
    params.serial_number = Some(SerialNumber::from(AUTHORITY_SERIAL));
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    match parent {
        None => CertifiedIssuer::self_signed(params, key).unwrap(),
        Some(parent) => CertifiedIssuer::signed_by(params, key, parent).unwrap(),
    }
}

const AUTHORITY_SERIAL: u64 = 1_000;
const CLIENT_SERIAL: u64 = 2_000;

/// A list of the revoked serial numbers, until the first day of a year.
fn revocation_list(issuer: &TestIssuer, revoked: &[u64], over: i32) -> String {
    let revoked_certs = revoked.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: rcgen::date_time_ymd(2019, 1, 1),
        reason_code: None,
        invalidity_date: None,
    });
    let params = CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2019, 1, 1),
        next_update: rcgen::date_time_ymd(over, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked_certs.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(issuer).unwrap().pem().unwrap()
}

#[tokio::test]
#[contract("S16")]
async fn a_client_certificate_must_be_in_the_scope_of_a_list_and_no_part_of_its_chain_revoked() {
    let [folder, own] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let server = authority();
    let root = authority_named("root", None);
    let between = authority_named("between", Some(&root));
    let stranger = authority_named("stranger", None);
    let mut params = CertificateParams::new(vec!["me".to_owned()]).unwrap();
    params.serial_number = Some(SerialNumber::from(CLIENT_SERIAL));
    let direct = sign(&root, params.clone(), own.path());
    let chained = tempfile::tempdir().unwrap();
    let chained = sign(&between, params, chained.path());
    let leaf = fs::read_to_string(&chained.cert).unwrap();
    fs::write(&chained.cert, leaf + &between.pem()).unwrap();

    let [client_ca, client_crl] = ["clients.pem", "crl.pem"].map(|name| folder.path().join(name));
    fs::write(&client_ca, root.pem()).unwrap();
    let good = |issuer: &TestIssuer| revocation_list(issuer, &[1, 2], 2090);
    let revoking = |issuer: &TestIssuer, serial| revocation_list(issuer, &[1, serial], 2090);
    let over = |issuer: &TestIssuer| revocation_list(issuer, &[], 2020);
    fs::write(&client_crl, good(&root)).unwrap();
    let files = IdentityFiles {
        client_ca: Some(client_ca),
        client_crl: Some(client_crl.clone()),
        ..issue(&server, "127.0.0.1", folder.path())
    };
    let (listener, identity) = listening(files).await;
    let by_stranger = revoking(&stranger, CLIENT_SERIAL);
    let by_namesake = good(&authority_named("root", None));
    let no_longer_between = revoking(&root, AUTHORITY_SERIAL);
    for (case, lists, shown, let_in) in [
        ("not revoked", good(&root), &direct, true),
        ("revoked", revoking(&root, CLIENT_SERIAL), &direct, false),
        (
            "revoked by another",
            good(&root) + &by_stranger,
            &direct,
            true,
        ),
        ("no list of the issuer", good(&stranger), &direct, false),
        ("an old list", over(&root), &direct, false),
        ("a list that it has not signed", by_namesake, &direct, false),
        ("a chain", good(&between), &chained, true),
        ("both lists", good(&root) + &good(&between), &chained, true),
        ("only the other list", good(&root), &chained, false),
        (
            "revoked in a chain",
            revoking(&between, CLIENT_SERIAL),
            &chained,
            false,
        ),
        (
            "issuer revoked",
            no_longer_between + &good(&between),
            &chained,
            false,
        ),
    ] {
        fs::write(&client_crl, lists).unwrap();
        identity.refresh().unwrap();
        echoing(&listener);
        let accepted = client(&listener, &server, Some(shown)).await.is_ok();
        assert_eq!(accepted, let_in, "{case}");
    }
}

#[tokio::test]
#[contract("S16")]
async fn each_connection_of_a_client_shows_its_certificate() {
    let [folder, own] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let (server, clients) = (authority(), authority());
    let client_ca = folder.path().join("clients.pem");
    fs::write(&client_ca, clients.pem()).unwrap();
    let open = issue(&server, "127.0.0.1", folder.path());
    let strict = IdentityFiles {
        client_ca: Some(client_ca),
        ..open.clone()
    };
    let known = issue(&clients, "me", own.path());
    for (files, shown, kind) in [
        (open, None, HandshakeKind::Resumed),
        (strict, Some(&known), HandshakeKind::Full),
    ] {
        let (listener, _) = listening(files).await;
        let config = client_config(&server, shown);
        echoing(&listener);
        handshake(&listener, &config).await.unwrap();
        echoing(&listener);
        assert_eq!(handshake(&listener, &config).await.unwrap(), kind);
    }
}

#[tokio::test]
async fn unusable_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let files = issue(&authority(), "127.0.0.1", folder.path());
    let refusal = |files: IdentityFiles| {
        TlsIdentity::load(files, ClientNames::default(), HttpProtocols::Http1)
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
        client_crl: None,
    };
    assert!(refusal(swapped).contains("no usable certificate"));
    let no_authority = IdentityFiles {
        client_ca: Some(files.key.clone()),
        ..files.clone()
    };
    assert!(refusal(no_authority).contains("no usable certificate of an authority"));
    let list = folder.path().join("crl.pem");
    let with_list = |text: &str| {
        fs::write(&list, text).unwrap();
        refusal(IdentityFiles {
            client_ca: Some(files.cert.clone()),
            client_crl: Some(list.clone()),
            ..files.clone()
        })
    };
    let broken = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    let large = "#".repeat((4 << 20) + 1);
    for (text, reason) in [
        ("no list", "there is none"),
        (broken, "crl.pem holds no usable revocation list"),
        (&*large, "more than 4 MiB"),
    ] {
        let refusal = with_list(text);
        assert!(refusal.contains("no usable revocation list"), "{refusal}");
        assert!(refusal.contains(reason), "{refusal}");
    }
    assert!(
        TrustRoots::with_authorities_in(Path::new("/none"))
            .unwrap_err()
            .to_string()
            .contains("/none cannot be read")
    );
}
