//! A TLS front for a plain server, and a client for TLS listeners.

use std::{path::Path, sync::Arc, time::Duration};

use http::HeaderMap;
use net::{
    Address, ClientNames, HttpProtocols, IdentityFiles, ListenAddr, TlsIdentity, TrustRoots,
    WorkerUrl,
    fetch::{self, FetchError, FetchedReply},
};
use tokio::{io::copy_bidirectional, runtime::Runtime};

const SOON: Duration = Duration::from_secs(60);

/// Forwards decrypted connections to a plain server while it lives.
pub struct TlsFront {
    pub port: u16,
    _runtime: Runtime,
}

impl TlsFront {
    /// Uses the certificate in `folder`.
    pub fn before(server: &str, folder: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let files = IdentityFiles {
            cert: folder.join("cert.pem"),
            key: folder.join("key.pem"),
            client_ca: None,
            client_crl: None,
        };
        let identity = TlsIdentity::load(files, ClientNames::default(), HttpProtocols::Http1);
        let identity = Arc::new(identity.unwrap());
        let listener = runtime.block_on(async {
            net::listen(&ListenAddr::tcp("127.0.0.1", 0))
                .await
                .unwrap()
                .encrypted(identity)
        });
        let port = listener.address().port().unwrap();
        let (host, server_port) = server.rsplit_once(':').unwrap();
        let server = Address::Tcp {
            host: host.to_owned(),
            port: server_port.parse().unwrap(),
        };
        runtime.spawn(async move {
            loop {
                let mut client = listener.accept().await.unwrap();
                let server = server.clone();
                tokio::spawn(async move {
                    let mut upstream = net::connect(&server, SOON).await.unwrap();
                    // Any end of the copy ends the connection.
                    let _ = copy_bidirectional(&mut client, &mut upstream).await;
                });
            }
        });
        Self {
            port,
            _runtime: runtime,
        }
    }
}

/// The trust roots of a client that trusts `authority`.
pub fn trust_roots(authority: &str) -> TrustRoots {
    TrustRoots::with_authorities(authority.as_bytes()).unwrap()
}

/// Fetches `path` from a TLS listener.
pub fn get(address: &str, path: &str, trust: &TrustRoots) -> Result<FetchedReply, FetchError> {
    let url: WorkerUrl = format!("https://{address}").parse().unwrap();
    let url = url.with_trust(trust.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(fetch::get(&url, path, &HeaderMap::new(), SOON, 1 << 20))
}
