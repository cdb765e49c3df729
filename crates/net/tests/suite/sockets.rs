//! Listening and connecting, over loopback and unix sockets.

use std::{io::ErrorKind, time::Duration};

use net::{Address, ListenAddr, ListenError, connect, listen};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SOON: Duration = Duration::from_secs(60);

async fn exchange(at: &ListenAddr) {
    let listener = listen(at).await.unwrap();
    let address = listener.address().address().clone();
    let (server, client) = tokio::join!(listener.accept(), connect(&address, SOON));
    let (mut server, mut client) = (server.unwrap(), client.unwrap());
    client.write_all(b"ping").await.unwrap();
    let mut got = [0; 4];
    server.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"ping");
    drop(server);
    assert_eq!(client.read(&mut got).await.unwrap(), 0);
}

#[tokio::test]
async fn bytes_pass_over_tcp_and_unix_sockets() {
    let dir = tempfile::tempdir().unwrap();
    exchange(&ListenAddr::tcp("127.0.0.1", 0)).await;
    exchange(&ListenAddr::unix(dir.path().join("a.sock"))).await;
}

#[tokio::test]
async fn a_tcp_connection_sends_at_once() {
    let listener = listen(&ListenAddr::tcp("127.0.0.1", 0)).await.unwrap();
    let address = listener.address().address().clone();
    let (server, client) = tokio::join!(listener.accept(), connect(&address, SOON));
    for stream in [server.unwrap(), client.unwrap()] {
        let net::Stream::Tcp(stream) = stream else {
            panic!("tcp expected")
        };
        assert!(stream.nodelay().unwrap());
    }
}

#[tokio::test]
async fn a_port_in_use_is_reported_with_the_flag_that_changes_it() {
    let first = listen(&ListenAddr::tcp("127.0.0.1", 0)).await.unwrap();
    let taken = first.address();
    let error = listen(&taken).await.unwrap_err();
    assert!(matches!(error, ListenError::Taken { .. }));
    assert_eq!(
        error.to_string(),
        format!(
            "{taken} is already in use: stop the other process or choose another port with --port"
        )
    );
    let error = listen(&taken.chosen_by("--admin-listen"))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("choose another port with --admin-listen")
    );
}

#[tokio::test]
async fn an_address_of_another_machine_cannot_be_listened_on() {
    let error = listen(&ListenAddr::tcp("192.0.2.1", 0)).await.unwrap_err();
    assert!(matches!(error, ListenError::Unusable { .. }), "{error}");
}

#[tokio::test]
async fn a_stale_socket_file_is_replaced_and_a_live_one_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let at = ListenAddr::unix(dir.path().join("a.sock"));
    let Address::Unix(path) = at.address() else {
        panic!("unix expected")
    };

    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    assert!(path.exists(), "the file of a dead listener stays");
    let listener = listen(&at).await.unwrap();
    assert!(matches!(
        listen(&at).await.unwrap_err(),
        ListenError::Taken { .. }
    ));
    drop(listener);
    assert!(!path.exists(), "a listener removes its own file");

    std::fs::write(path, "precious").unwrap();
    assert!(matches!(
        listen(&at).await.unwrap_err(),
        ListenError::Taken { .. }
    ));
    assert_eq!(std::fs::read_to_string(path).unwrap(), "precious");
}

#[tokio::test]
async fn a_refused_connection_is_distinguished_from_no_answer() {
    let listener = listen(&ListenAddr::tcp("127.0.0.1", 0)).await.unwrap();
    let address = listener.address().address().clone();
    drop(listener);
    assert_eq!(
        connect(&address, SOON).await.unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    let missing = Address::Unix("/nonexistent/a.sock".into());
    assert_eq!(
        connect(&missing, SOON).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[tokio::test]
async fn a_connect_ends_at_its_timeout() {
    // A listener with a full backlog does not answer further connection requests.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = Address::from(listener.local_addr().unwrap());
    let mut streams = Vec::new();
    let error = loop {
        match connect(&address, Duration::from_millis(200)).await {
            Ok(stream) => streams.push(stream),
            Err(error) => break error,
        }
        assert!(streams.len() < 100, "the backlog never filled");
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains(&address.to_string()));
}

#[tokio::test]
#[contract_id::contract("S77")]
async fn a_unix_socket_is_closed_to_other_users() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let _listener = listen(&ListenAddr::unix(path.clone())).await.unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o007, 0, "{mode:o}");
}
