//! Ports that a test may close and open again.

use std::{
    net::{Ipv4Addr, TcpListener, UdpSocket},
    sync::atomic::{AtomicU16, Ordering},
};

/// Outside the ephemeral ports (32768 and up on Linux, 49152 and up elsewhere).
const RANGE: std::ops::Range<u16> = 20_000..30_000;

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
            TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
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
                TcpListener::bind(port.address()).expect("the port is free");
            }
        }
    }
}
