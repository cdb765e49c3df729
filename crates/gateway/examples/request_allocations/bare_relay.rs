//! What hyper alone needs: a server that passes each request on over one connection of its client.

use std::error::Error;

use http::Request;
use hyper::{
    body::Incoming, client::conn::http1 as client, server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Mutex,
};

use crate::counted_server::CountedServer;

/// Starts it in front of an engine.
pub(crate) fn start(engine: u16) -> Result<CountedServer, Box<dyn Error>> {
    CountedServer::start(move || async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(relay(stream, engine));
            }
        });
        port
    })
}

/// Serves one connection.
async fn relay(stream: TcpStream, engine: u16) {
    let upstream = TcpStream::connect(("127.0.0.1", engine)).await;
    let upstream = TokioIo::new(upstream.expect("the engine listens"));
    let (sender, connection) = client::handshake(upstream).await.expect("it is open");
    tokio::spawn(connection);
    let sender = Mutex::new(sender);
    let service = service_fn(|request: Request<Incoming>| async {
        let mut sender = sender.lock().await;
        sender.ready().await?;
        sender.send_request(request).await
    });
    // Its client ends it.
    let _ = server::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
