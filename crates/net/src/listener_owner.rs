//! Whose process listens at an address of this machine, by the kernel's table of sockets.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};

use crate::Address;

/// The user whose process would accept a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerOwner {
    /// Nobody listens.
    Nobody,
    /// A process of this process's user.
    ThisUser,
    /// A process of another user, by number.
    Other(u32),
}

/// State of a listening socket in the kernel's table.
const LISTEN: &str = "0A";

/// Returns the owner of the listener at `address`. Blocks for a moment.
///
/// # Errors
///
/// The kernel's table cannot be read (only Linux has it), or the host is no IP address.
pub fn listener_owner(address: &Address) -> io::Result<ListenerOwner> {
    let own = rustix::process::geteuid().as_raw();
    let owners = match address {
        Address::Unix(path) => socket_file_owner(path)?,
        Address::Tcp { host, port } => {
            let ip: IpAddr = host.parse().map_err(io::Error::other)?;
            let wanted = SocketAddr::new(ip.to_canonical(), *port);
            let mut owners = owners(&std::fs::read_to_string("/proc/net/tcp")?, wanted);
            // A machine without IPv6 has no such table.
            if let Ok(table) = std::fs::read_to_string("/proc/net/tcp6") {
                owners.extend(self::owners(&table, wanted));
            }
            owners
        }
    };
    Ok(match owners.iter().find(|owner| **owner != own) {
        Some(other) => ListenerOwner::Other(*other),
        None if owners.is_empty() => ListenerOwner::Nobody,
        None => ListenerOwner::ThisUser,
    })
}

fn socket_file_owner(path: &Path) -> io::Result<Vec<u32>> {
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => Ok(vec![file.uid()]),
        Ok(_) => Err(io::Error::other("the file is no socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the owners of the sockets in a table that may accept connections to `wanted`.
fn owners(table: &str, wanted: SocketAddr) -> Vec<u32> {
    let owner = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let local = socket_address(fields.nth(1)?)?;
        let is_listening = fields.nth(1)? == LISTEN;
        let owner = fields.nth(3)?.parse().ok()?;
        let accepts = local.port() == wanted.port()
            && (local.ip() == wanted.ip()
                || local.ip().is_unspecified()
                || wanted.ip().is_unspecified());
        (is_listening && accepts).then_some(owner)
    };
    table.lines().skip(1).filter_map(owner).collect()
}

/// Parses `0100007F:1F90`: words of the address in the machine's byte order, and the port.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = address.get(8 * at..8 * at + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut octets = [0; 16];
            for at in 0..4 {
                octets[4 * at..4 * at + 4].copy_from_slice(&word(at)?);
            }
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    /// Listeners of users 0, 1000 and 65534, and connections of user 7.
    const V4: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:23E7 00000000:0000 0A 00000000:00000000 00:00000000 00000000 65534        0 1 1 0 100 0 0 10 0
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 2 1 0 100 0 0 10 0
   2: 0200007F:23E7 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
   3: 0100007F:23E7 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     7        0 4 1 0 100 0 0 10 0
";
    const V6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000001000000:23E8 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
   1: 00000000000000000000000000000000:23E9 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 1 1 0 100 0 0 10 0
   2: 0000000000000000FFFF00000100007F:23EA 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1002        0 1 1 0 100 0 0 10 0
";

    #[test]
    fn the_owner_is_that_of_each_socket_that_may_accept() {
        for (table, wanted, expected) in [
            (V4, "127.0.0.1:9191", &[65_534][..]),
            (V4, "127.0.0.2:9191", &[0]),
            (V4, "0.0.0.0:9191", &[65_534, 0]),
            (V4, "10.0.0.1:8080", &[1000]),
            (V4, "127.0.0.1:9192", &[]),
            (V6, "[::1]:9192", &[1000]),
            (V6, "127.0.0.1:9193", &[1001]),
            (V6, "127.0.0.1:9194", &[1002]),
            ("", "127.0.0.1:1", &[]),
            (
                "head\n 0: nonsense\n 1: 0100007F:23E7 x 0A\n",
                "127.0.0.1:9191",
                &[],
            ),
        ] {
            assert_eq!(owners(table, wanted.parse().unwrap()), expected, "{wanted}");
        }
    }

    #[tokio::test]
    async fn a_listener_of_this_process_is_this_user_s() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let unix = Address::Unix(path.clone());
        assert_eq!(listener_owner(&unix).unwrap(), ListenerOwner::Nobody);
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(listener_owner(&unix).unwrap(), ListenerOwner::ThisUser);

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = Address::Tcp {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
        };
        assert_eq!(listener_owner(&tcp).unwrap(), ListenerOwner::ThisUser);
    }
}
