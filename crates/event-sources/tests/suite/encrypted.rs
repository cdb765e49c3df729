//! Encrypted streams: which certificates a source accepts.

use std::sync::Arc;

use contract_id::contract;
use futures_util::SinkExt;
use net::TrustRoots;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ServerConfig, crypto::aws_lc_rs};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_tungstenite::{accept_async, tungstenite::Message};

use crate::stream_server::{HEAD, StreamServer, Watcher, event, hash, soon};

/// A server's TLS configuration and the authority that signed its certificate.
struct TestIdentity {
    acceptor: TlsAcceptor,
    authority: String,
}

/// Returns the identity of a server with this name.
fn identity(name: &str) -> TestIdentity {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec![name.to_owned()])
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.der().clone()], key.into())
        .unwrap();
    TestIdentity {
        acceptor: TlsAcceptor::from(Arc::new(config)),
        authority: authority.pem(),
    }
}

async fn accept(server: &StreamServer, identity: &TestIdentity) -> TlsStream<TcpStream> {
    soon(identity.acceptor.accept(server.accept().await))
        .await
        .unwrap()
}

#[tokio::test]
#[contract("CK42")]
async fn an_encrypted_stream_is_read_if_its_authority_is_trusted() {
    let server = StreamServer::bind().await;
    let identity = identity("127.0.0.1");
    let url = server.url().replace("http", "https");
    let trust = TrustRoots::with_authorities(identity.authority.as_bytes()).unwrap();
    let watcher = Watcher::with(&url, |spec| spec.trust = Some(trust));
    let mut stream = accept(&server, &identity).await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.unwrap());
    }
    stream.write_all(HEAD).await.unwrap();
    stream
        .write_all(event("cache_created", 1, 64).as_bytes())
        .await
        .unwrap();
    stream.flush().await.unwrap();
    let report = watcher.until_resident(&[(1, 64)]).await;
    assert_eq!((&*report.source, report.endpoint), ("sse", url));
    watcher.source.stop().await;
}

#[tokio::test]
#[contract("CK42")]
async fn an_encrypted_web_socket_is_read() {
    let server = StreamServer::bind().await;
    let identity = identity("127.0.0.1");
    let trust = TrustRoots::with_authorities(identity.authority.as_bytes()).unwrap();
    let url = format!("wss://127.0.0.1:{}/v1/kv_events", server.port);
    let watcher = Watcher::with(&url, |spec| spec.trust = Some(trust));
    let stream = Box::new(accept(&server, &identity).await);
    let mut socket = soon(accept_async(stream)).await.unwrap();
    let created = format!(
        "{{\"event\": \"cache_created\", \"prefix_hash\": \"{}\", \"token_count\": 8}}",
        hash(1)
    );
    soon(socket.send(Message::text(created))).await.unwrap();
    watcher.until_resident(&[(1, 8)]).await;
    watcher.source.stop().await;
}

#[tokio::test]
async fn an_unverified_server_gets_no_request() {
    let (mine, strangers) = (identity("127.0.0.1"), identity("127.0.0.1"));
    let elsewhere = identity("10.0.0.1");
    for (shown, believed) in [(&strangers, &mine), (&elsewhere, &elsewhere)] {
        let server = StreamServer::bind().await;
        let url = server.url().replace("http", "https");
        let trust = TrustRoots::with_authorities(believed.authority.as_bytes()).unwrap();
        let watcher = Watcher::with(&url, |spec| spec.trust = Some(trust));
        assert!(
            soon(shown.acceptor.accept(server.accept().await))
                .await
                .is_err()
        );
        let report = watcher
            .until("the refusal", |report, _| report.last_error.is_some())
            .await;
        let error = report.last_error.unwrap();
        assert!(
            error.contains("could not prove who it is") && error.contains("check its certificate"),
            "{error}"
        );
        watcher.source.stop().await;
    }
}

#[test]
fn authorities_are_read_from_pem_text_only() {
    for text in [
        "",
        "no certificate",
        "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n",
    ] {
        let error = TrustRoots::with_authorities(text.as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains("PEM"), "{error}");
    }
}
