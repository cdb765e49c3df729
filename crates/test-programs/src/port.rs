//! Ports that a test may close and open again.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// Outside the ephemeral ports (32768 and up on Linux, 49152 and up elsewhere).
const RANGE: std::ops::Range<u16> = 20_000..30_000;
/// Attempts to listen, and the pause between two: 20 seconds in all, which only a failing test
/// waits for.
const ATTEMPTS: u32 = 2_000;
const PAUSE: Duration = Duration::from_millis(10);

/// A TCP port of the loopback address that no other test gets while this value lives.
///
/// A port chosen by the system (`:0`) is free for others once its listener closes, so a program
/// restarted on it may find it in use. The system never chooses this one.
#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    /// A UDP socket with the same number reserves it among the processes of a test run; TCP stays
    /// free.
    _claim: UdpSocket,
}

impl ReservedPort {
    /// Reserves a port.
    ///
    /// # Panics
    ///
    /// If all ports of the range are in use.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let length = RANGE.end - RANGE.start;
        // Processes start at different offsets, so that they seldom try the same port.
        let start = std::process::id().wrapping_mul(7919) % u32::from(length);
        let free = (0..length).find_map(|_| {
            let offset = (start + u32::from(NEXT.fetch_add(1, Ordering::Relaxed) % length))
                % u32::from(length);
            let number = RANGE.start + u16::try_from(offset).ok()?;
            let claim = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
            is_free(SocketAddrV4::new(Ipv4Addr::LOCALHOST, number)).ok()?;
            Some(Self {
                number,
                _claim: claim,
            })
        });
        free.unwrap_or_else(|| panic!("no port of {RANGE:?} is free on the loopback address"))
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1:NUMBER`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.number)
    }

    /// Listens on it, also right after an earlier listener of this process was closed.
    ///
    /// A child process has a copy of every descriptor until its exec. If another thread starts a
    /// child just then, the copy of the closed listener holds the port for a moment longer, so a
    /// single attempt may fail.
    ///
    /// # Panics
    ///
    /// If the port stays in use.
    #[must_use]
    pub fn listen(&self) -> TcpListener {
        for _ in 0..ATTEMPTS {
            match TcpListener::bind(self.address()) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => thread::sleep(PAUSE),
                bound => {
                    return bound.unwrap_or_else(|error| panic!("{}: {error}", self.address()));
                }
            }
        }
        panic!("{} stays in use", self.address())
    }
}

/// Checks that nobody listens on a port, with a socket that is bound and never listens.
///
/// A copy of it in a child process that another thread starts (see [`ReservedPort::listen`])
/// therefore stops no program from listening there.
fn is_free(address: SocketAddrV4) -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(bind(&socket, &address)?)
}

impl Default for ReservedPort {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_can_be_bound_repeatedly_and_is_given_out_once() {
        let ports: Vec<ReservedPort> = (0..50).map(|_| ReservedPort::new()).collect();
        let mut numbers: Vec<u16> = ports.iter().map(ReservedPort::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 50, "all are different");
        for port in &ports {
            for _ in 0..2 {
                drop(port.listen());
            }
        }
    }

    #[test]
    fn a_port_on_which_somebody_listens_is_not_free() {
        let port = ReservedPort::new();
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port.number());
        assert!(is_free(address).is_ok());
        let _listener = port.listen();
        let found = is_free(address).expect_err("it is in use");
        assert_eq!(found.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_port_can_be_listened_on_while_a_copy_of_its_closed_listener_lives_on_for_a_moment() {
        let port = ReservedPort::new();
        let listener = port.listen();
        let copy = listener.try_clone().expect("a second descriptor");
        drop(listener);
        let _ = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(PAUSE * 5);
                drop(copy);
            });
            port.listen()
        });
    }
}
