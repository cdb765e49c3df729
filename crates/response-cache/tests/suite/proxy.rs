//! A proxy that delays or cuts the connection between a client and a server.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Forwards bytes unchanged unless configured otherwise. Its threads end with their connections.
pub(crate) struct DelayProxy {
    port: u16,
    way: Arc<ProxySettings>,
}

#[derive(Default)]
struct ProxySettings {
    /// Delay before each piece from the server, milliseconds.
    delay: AtomicU64,
    /// The number of bytes forwarded of each piece from the server, and nothing after it; 0 = all.
    cut: AtomicU64,
}

impl DelayProxy {
    /// Starts a proxy in front of a local port.
    pub(crate) fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let way = Arc::new(ProxySettings::default());
        let shared = Arc::clone(&way);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", server)) else {
                    continue;
                };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || carry(from, to, &ProxySettings::default()));
                let way = Arc::clone(&shared);
                std::thread::spawn(move || carry(far, near, &way));
            }
        });
        Self { port, way }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn delay(&self, delay: Duration) {
        self.way
            .delay
            .store(u64::try_from(delay.as_millis()).unwrap(), Ordering::Relaxed);
    }

    pub(crate) fn cut_after(&self, bytes: u64) {
        self.way.cut.store(bytes, Ordering::Relaxed);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, way: &ProxySettings) {
    let mut piece = vec![0; 1 << 16];
    while let Ok(count) = from.read(&mut piece)
        && count > 0
    {
        std::thread::sleep(Duration::from_millis(way.delay.load(Ordering::Relaxed)));
        let most = usize::try_from(way.cut.load(Ordering::Relaxed)).unwrap();
        let is_cut = most > 0 && most < count;
        if to
            .write_all(&piece[..if is_cut { most } else { count }])
            .is_err()
            || is_cut
        {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
