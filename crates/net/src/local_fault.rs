//! Connect errors that are faults of this process or its machine, and no evidence about the other
//! side.

use std::io;

use crate::resolver::ResolveError;

const ENOMEM: i32 = 12;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const EADDRNOTAVAIL: i32 = 99;
const ENOBUFS: i32 = 105;

/// A resource that this process or its machine has run out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalFault {
    /// File descriptors: the limit of the process or of the machine.
    Descriptors,
    /// Local ports.
    Ports,
    /// Kernel memory for sockets.
    Memory,
    /// The resolver: names cannot be resolved, and no cached address exists.
    Resolver,
}

impl LocalFault {
    /// Returns the local fault behind a connect error, if it is one.
    ///
    /// ```
    /// use net::LocalFault;
    ///
    /// let out_of_descriptors = std::io::Error::from_raw_os_error(24);
    /// assert_eq!(LocalFault::of(&out_of_descriptors), Some(LocalFault::Descriptors));
    /// assert_eq!(LocalFault::of(&std::io::ErrorKind::ConnectionRefused.into()), None);
    /// ```
    pub fn of(error: &io::Error) -> Option<Self> {
        match error.raw_os_error() {
            Some(EMFILE | ENFILE) => Some(Self::Descriptors),
            Some(EADDRNOTAVAIL) => Some(Self::Ports),
            Some(ENOBUFS | ENOMEM) => Some(Self::Memory),
            Some(_) => None,
            None => error
                .get_ref()
                .is_some_and(|inner| inner.is::<ResolveError>())
                .then_some(Self::Resolver),
        }
    }

    /// Returns whether a resource of this process or machine is exhausted. An unresolvable name may
    /// be a removed one instead.
    pub fn is_exhaustion(self) -> bool {
        self != Self::Resolver
    }

    /// Describes the fault and its remedy.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Descriptors => {
                "no file descriptor is left: raise the limit of open files (ulimit -n)"
            }
            Self::Ports => {
                "no local port is left: widen net.ipv4.ip_local_port_range, or spread the load over addresses"
            }
            Self::Memory => {
                "the kernel has no memory for sockets: raise the limits of the machine or its container"
            }
            Self::Resolver => {
                "the names of workers cannot be resolved: see to the resolver, or configure addresses"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_errors_are_distinguished_from_remote_ones() {
        let of = |code| LocalFault::of(&io::Error::from_raw_os_error(code));
        for (code, fault) in [
            (24, LocalFault::Descriptors),
            (23, LocalFault::Descriptors),
            (99, LocalFault::Ports),
            (105, LocalFault::Memory),
            (12, LocalFault::Memory),
        ] {
            assert_eq!(of(code), Some(fault));
            assert!(fault.is_exhaustion() && !fault.remedy().is_empty());
        }
        // Refused, reset, timed out, no route, no network, no such socket, full backlog of a unix
        // socket.
        for code in [111, 104, 110, 113, 101, 2, 11] {
            assert_eq!(of(code), None, "{code}");
        }
        assert_eq!(LocalFault::of(&io::ErrorKind::TimedOut.into()), None);
    }
}
