//! Hands listening sockets from one process to another: a bound socket stays bound, and no
//! connection is refused while one process ends and the next begins.
//!
//! Only a process of the same user gets them: the kernel identifies the peer.

use std::{
    io::{self, IoSlice, IoSliceMut, Read},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt::socket_peercred,
};

/// Limit of sockets per handover.
const MOST_SOCKETS: usize = 32;
/// Size limit of the note that goes with them, in bytes.
const LONGEST_NOTE: usize = 16 * 1024;

/// Listens for the process that gives its sockets.
///
/// # Errors
///
/// The path exists, or its folder cannot be written.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    UnixListener::bind(path)
}

/// Connects to the process that takes the sockets.
///
/// # Errors
///
/// No process listens there.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path)
}

/// Sends `sockets` to the peer of `to`, with a note that identifies each. They stay open here, too.
///
/// # Errors
///
/// The peer is another user's process, or the sockets could not be sent.
pub fn give(to: &UnixStream, sockets: &[BorrowedFd<'_>], note: &[u8]) -> io::Result<()> {
    if socket_peercred(to)?.uid != rustix::process::geteuid() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the other process is another user's",
        ));
    }
    let length = u32::try_from(note.len())
        .ok()
        .filter(|_| note.len() <= LONGEST_NOTE);
    let length = length
        .ok_or_else(|| io::Error::other("the text that goes with the sockets is too long"))?;
    if sockets.len() > MOST_SOCKETS {
        return Err(io::Error::other("too many sockets to give at once"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !rights.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Err(io::Error::other("too many sockets to give at once"));
    }
    // The sockets go with the first bytes; the rest is ordinary text.
    sendmsg(
        to,
        &[IoSlice::new(&length.to_be_bytes())],
        &mut rights,
        SendFlags::NOSIGNAL,
    )?;
    io::Write::write_all(&mut &*to, note)
}

/// Receives the peer's sockets and its note.
///
/// # Errors
///
/// The peer sent no sockets, or a malformed note.
pub fn take(from: &UnixStream) -> io::Result<(Vec<OwnedFd>, Vec<u8>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 4];
    let received = recvmsg(
        from,
        &mut [IoSliceMut::new(&mut length)],
        &mut rights,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.bytes != length.len() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the other process gave no sockets",
        ));
    }
    let mut sockets = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(given) = message {
            sockets.extend(given);
        }
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > LONGEST_NOTE {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "what the other process says is too long",
        ));
    }
    let mut note = vec![0; length];
    io::Read::read_exact(&mut &*from, &mut note)?;
    Ok((sockets, note))
}

/// Waits for one byte; `false`: the peer closed the connection instead.
///
/// # Errors
///
/// The connection failed.
pub fn wait_for_byte(from: &UnixStream) -> io::Result<bool> {
    let mut byte = [0];
    Ok((&mut &*from).read(&mut byte)? == 1)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
    };

    use super::*;

    #[test]
    fn a_passed_socket_accepts_connections_after_its_first_owner_is_gone() {
        let (here, there) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        give(&here, &[listener.as_fd()], b"which").unwrap();
        drop(listener);
        let mut waiting = TcpStream::connect(address).expect("no connection is refused meanwhile");
        waiting.write_all(b"x").unwrap();
        let (mut sockets, note) = take(&there).unwrap();
        assert_eq!((sockets.len(), note.as_slice()), (1, b"which".as_slice()));
        let taken = TcpListener::from(sockets.remove(0));
        let (mut accepted, _) = taken.accept().unwrap();
        let mut byte = [0];
        accepted.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn a_closed_peer_is_an_error_and_its_end_is_detected() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(here);
        assert!(take(&there).is_err());
        assert!(!wait_for_byte(&there).unwrap());
    }
}
