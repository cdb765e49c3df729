//! The codec alone: recorded bytes, any split, any garbage.

use bytes::{Bytes, BytesMut};
use proptest::{collection::vec, prelude::*};
use zmtp::{
    Limits,
    codec::{Incoming, ProtocolError, SocketType, ZmtpSession, encode_message},
};

/// Bytes written by libzmq 4.3.5, as hex.
mod recorded {
    /// A bound PUB: greeting, READY, PONG with context `abc`, message `["kv", 7, 'x' * 300]`.
    pub(crate) const PUB: &str = concat!(
        "ff00000000000000017f03014e554c4c0000000000000000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000004190552454144590b536f636b65742d547970650000000350554204080450",
        "4f4e4761626301026b760108000000000000000702000000000000012c"
    );
    /// A connecting SUB: greeting, READY, SUBSCRIBE and CANCEL of `kv`.
    pub(crate) const SUB: &str = concat!(
        "ff00000000000000017f03014e554c4c0000000000000000000000000000000000000000000000000000000000000000000000000000",
        "000000000000000000000419055245414459",
        "0b536f636b65742d5479706500000003535542040c095355425343524942456b7604090643414e43454c6b76"
    );
    /// The same for a peer of version 3.0: subscriptions are messages.
    pub(crate) const SUB_TO_3_0: &str = concat!(
        "ff00000000000000017f03014e554c4c0000000000000000000000000000000000000000000000000000000000000000000000000000",
        "000000000000000000000419055245414459",
        "0b536f636b65742d54797065000000035355420003016b760003006b76"
    );
    /// A bound ROUTER: greeting, READY, message `["", ff * 8, ""]`.
    pub(crate) const ROUTER: &str = concat!(
        "ff00000000000000017f03014e554c4c0000000000000000000000000000000000000000000000000000000000000000000000000000",
        "000000000000000000000429055245414459",
        "0b536f636b65742d5479706500000006524f55544552084964656e746974790000000001000108ffffffffffffffff0000"
    );
    /// A connecting DEALER: greeting, READY, message `["", 5]`.
    pub(crate) const DEALER: &str = concat!(
        "ff00000000000000017f03014e554c4c0000000000000000000000000000000000000000000000000000000000000000000000000000",
        "000000000000000000000429055245414459",
        "0b536f636b65742d54797065000000064445414c4552084964656e7469747900000000010000080000000000000005"
    );
}

fn unhex(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn session(socket: SocketType) -> ZmtpSession {
    ZmtpSession::new(
        socket,
        &[],
        &Limits {
            max_message: 4096,
            max_frames: 4,
            ..Limits::default()
        },
    )
}

/// Feeds `pieces` and collects the incoming items, up to the first error.
fn feed<'a>(
    session: &mut ZmtpSession,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Incoming>, Option<ProtocolError>) {
    let (mut buffer, mut record_incoming) = (BytesMut::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match session.receive(&mut buffer) {
                Ok(Some(incoming)) => record_incoming.push(incoming),
                Ok(None) => break,
                Err(error) => return (record_incoming, Some(error)),
            }
        }
    }
    (record_incoming, None)
}

fn feed_all(socket: SocketType, bytes: &[u8]) -> (Vec<Incoming>, Option<ProtocolError>) {
    feed(&mut session(socket), [bytes])
}

fn ready() -> Incoming {
    Incoming::Ready {
        identity: Bytes::new(),
    }
}

fn message(frames: &[&[u8]]) -> Incoming {
    Incoming::Message(
        frames
            .iter()
            .map(|frame| Bytes::copy_from_slice(frame))
            .collect(),
    )
}

/// Returns the greeting and READY of a peer.
fn hello(socket: &str) -> Vec<u8> {
    let mut bytes = unhex(recorded::PUB)[..64].to_vec();
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend_from_slice(&u32::try_from(socket.len()).unwrap().to_be_bytes());
    body.extend_from_slice(socket.as_bytes());
    bytes.extend_from_slice(&[4, u8::try_from(body.len()).unwrap()]);
    bytes.extend_from_slice(&body);
    bytes
}

fn after_hello(socket: &str, more: &[u8]) -> Vec<u8> {
    [&hello(socket), more].concat()
}

#[test]
fn recorded_publisher_bytes_are_decoded() {
    let mut bytes = unhex(recorded::PUB);
    bytes.extend_from_slice(&[b'x'; 300]);
    let (record_incoming, error) = feed_all(SocketType::Sub, &bytes);
    assert_eq!(error, None);
    assert_eq!(
        record_incoming,
        [
            ready(),
            message(&[b"kv", &7_u64.to_be_bytes(), &[b'x'; 300]])
        ]
    );
}

#[test]
fn recorded_subscriptions_are_decoded_in_both_forms() {
    for hex in [recorded::SUB, recorded::SUB_TO_3_0] {
        let (record_incoming, error) = feed_all(SocketType::Pub, &unhex(hex));
        let topic = Bytes::from_static(b"kv");
        assert_eq!(error, None);
        assert_eq!(
            record_incoming,
            [
                ready(),
                Incoming::Subscribe(topic.clone()),
                Incoming::Cancel(topic)
            ]
        );
    }
}

#[test]
fn recorded_dealer_and_router_bytes_are_decoded() {
    let (record_incoming, error) = feed_all(SocketType::Dealer, &unhex(recorded::ROUTER));
    assert_eq!(
        (record_incoming, error),
        (vec![ready(), message(&[b"", &[0xff; 8], b""])], None)
    );
    let (record_incoming, error) = feed_all(SocketType::Router, &unhex(recorded::DEALER));
    assert_eq!(
        (record_incoming, error),
        (vec![ready(), message(&[b"", &5_u64.to_be_bytes()])], None)
    );
}

#[test]
fn sent_bytes_equal_those_of_libzmq() {
    for (ours, peer, recorded) in [
        (SocketType::Sub, "PUB", recorded::SUB),
        (SocketType::Dealer, "ROUTER", recorded::DEALER),
    ] {
        let mut session = session(ours);
        assert_eq!(
            session.outgoing().len(),
            64,
            "READY waits for the peer's greeting"
        );
        feed(&mut session, [&hello(peer)[..]]);
        if ours == SocketType::Sub {
            session.subscribe(b"kv");
        } else {
            encode_message(&[&b""[..], &5_u64.to_be_bytes()], session.outgoing());
        }
        let sent = session.outgoing().to_vec();
        assert!(unhex(recorded).starts_with(&sent), "{ours:?}: {sent:02x?}");
    }
}

#[test]
fn an_older_peer_gets_subscriptions_as_messages_and_no_pings() {
    let mut bytes = hello("PUB");
    bytes[11] = 0;
    let mut session = session(SocketType::Sub);
    feed(&mut session, [&bytes[..]]);
    let before = session.outgoing().len();
    session.subscribe(b"kv");
    session.ping();
    assert_eq!(&session.outgoing()[before..], b"\x00\x03\x01kv");
    assert!(!session.can_ping());
}

#[test]
fn a_ping_is_answered_with_its_context() {
    let mut session = session(SocketType::Sub);
    let (record_incoming, error) = feed(
        &mut session,
        [&after_hello("PUB", b"\x04\x0a\x04PING\x00\x1eabc")[..]],
    );
    assert_eq!((record_incoming, error), (vec![ready()], None));
    assert!(session.outgoing().ends_with(b"\x04\x08\x04PONGabc"));
    assert_eq!(session.peer_ttl(), Some(std::time::Duration::from_secs(3)));
    session.ping();
    assert!(session.outgoing().ends_with(b"\x04\x07\x04PING\x00\x00"));
}

#[test]
fn incompatible_peers_are_refused_by_their_first_bytes() {
    let error = |bytes: &[u8]| feed_all(SocketType::Sub, bytes).1;
    assert_eq!(error(b"H"), Some(ProtocolError::NotZmtp));
    assert_eq!(
        error(b"\xff\0\0\0\0\0\0\0\0\0"),
        Some(ProtocolError::NotZmtp)
    );
    assert_eq!(
        error(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01"),
        Some(ProtocolError::Version { major: 1 })
    );
    let mut curve = hello("PUB");
    curve[12..17].copy_from_slice(b"CURVE");
    assert_eq!(
        error(&curve),
        Some(ProtocolError::Mechanism {
            name: "CURVE".into()
        })
    );
    let swapped = error(&hello("ROUTER")).unwrap().to_string();
    assert!(
        swapped.contains("our SUB talks to PUB or XPUB, check that the endpoints are not swapped"),
        "{swapped}"
    );
    let mut refusal = hello("PUB")[..64].to_vec();
    refusal.extend_from_slice(b"\x04\x0a\x05ERROR\x03no!");
    assert_eq!(
        error(&refusal),
        Some(ProtocolError::Refused {
            reason: "no!".into()
        })
    );
}

#[test]
fn a_length_over_the_limit_is_refused_at_the_header() {
    let huge = [&[0b010][..], &(1_u64 << 62).to_be_bytes()].concat();
    assert_eq!(
        feed_all(SocketType::Sub, &after_hello("PUB", &huge)).1,
        Some(ProtocolError::MessageTooLong {
            announced: 1 << 62,
            limit: 4096
        })
    );
    let huge = [&[0b010][..], &u64::MAX.to_be_bytes()].concat();
    assert!(matches!(
        feed_all(SocketType::Sub, &after_hello("PUB", &huge)).1,
        Some(ProtocolError::MessageTooLong {
            announced: u64::MAX,
            ..
        })
    ));
    let command = [&[0b110][..], &8193_u64.to_be_bytes()].concat();
    assert_eq!(
        feed_all(SocketType::Sub, &after_hello("PUB", &command)).1,
        Some(ProtocolError::CommandTooLong { announced: 8193 })
    );
}

#[test]
fn the_limit_covers_all_frames_of_a_message_and_their_number() {
    let frames = |sizes: &[usize]| {
        let mut bytes = BytesMut::new();
        let bodies: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
        encode_message(&bodies, &mut bytes);
        feed_all(SocketType::Sub, &after_hello("PUB", &bytes)).1
    };
    assert_eq!(frames(&[2048, 2048]), None);
    assert_eq!(
        frames(&[2048, 2049]),
        Some(ProtocolError::MessageTooLong {
            announced: 4097,
            limit: 4096
        })
    );
    assert_eq!(frames(&[0, 0, 0, 0]), None);
    assert_eq!(
        frames(&[0, 0, 0, 0, 0]),
        Some(ProtocolError::TooManyFrames { limit: 4 })
    );
}

#[test]
fn limits_restart_with_each_message() {
    let mut bytes = BytesMut::new();
    for _ in 0..10 {
        encode_message(&[vec![0; 2000], vec![0; 2000], vec![], vec![]], &mut bytes);
    }
    let (record_incoming, error) = feed_all(SocketType::Sub, &after_hello("PUB", &bytes));
    assert_eq!((record_incoming.len(), error), (11, None));
}

#[test]
fn malformed_traffic_is_refused() {
    for (bytes, expected) in [
        (&b"\x08\x00"[..], ProtocolError::Flags { flags: 8 }),
        (b"\x05\x00", ProtocolError::Flags { flags: 5 }),
        (b"\x04\x00", ProtocolError::Command),
        (b"\x04\x02\x09S", ProtocolError::Command),
        (b"\x04\x06\x05READY", ProtocolError::Command),
        (b"\x04\x06\x04PING\x00", ProtocolError::Command),
        (
            b"\x04\x18\x04PING\x00\x0012345678901234567",
            ProtocolError::Command,
        ),
        (b"\x01\x01a\x04\x05\x04PONG", ProtocolError::Command),
    ] {
        assert_eq!(
            feed_all(SocketType::Sub, &after_hello("PUB", bytes)).1,
            Some(expected),
            "{bytes:02x?}"
        );
    }
    let early = [&hello("PUB")[..64], b"\x00\x01a"].concat();
    assert_eq!(
        feed_all(SocketType::Sub, &early).1,
        Some(ProtocolError::Early)
    );
    let zero_id = b"\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x01\x00";
    let mut bytes = hello("PUB")[..64].to_vec();
    bytes.extend_from_slice(&[4, u8::try_from(zero_id.len() + 6).unwrap(), 5]);
    bytes.extend_from_slice(b"READY");
    bytes.extend_from_slice(zero_id);
    assert_eq!(
        feed_all(SocketType::Router, &bytes).1,
        Some(ProtocolError::Command)
    );
}

#[test]
fn unused_commands_and_frames_are_skipped() {
    let (record_incoming, error) = feed_all(
        SocketType::Sub,
        &after_hello("XPUB", b"\x04\x06\x05LATER\x04\x0c\x09SUBSCRIBEkv"),
    );
    assert_eq!((record_incoming, error), (vec![ready()], None));
    let (record_incoming, error) = feed_all(
        SocketType::Pub,
        &after_hello("XSUB", b"\x00\x02hi\x01\x01\x01\x00\x01\x01\x00\x00"),
    );
    assert_eq!((record_incoming, error), (vec![ready()], None));
}

fn traffic() -> impl Strategy<Value = (Vec<Vec<Vec<u8>>>, Vec<u8>)> {
    vec(vec(vec(any::<u8>(), 0..400), 1..5), 0..8).prop_map(|messages| {
        let mut bytes = BytesMut::from(&hello("PUB")[..]);
        for frames in &messages {
            encode_message(frames, &mut bytes);
        }
        (messages, bytes.to_vec())
    })
}

proptest! {
    #[test]
    fn any_split_of_the_bytes_gives_the_same_messages((messages, bytes) in traffic(), cuts in vec(any::<usize>(), 0..40)) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
        let (record_incoming, error) = feed(&mut session(SocketType::Sub), pieces);
        prop_assert_eq!(error, None);
        let expected: Vec<Incoming> = std::iter::once(ready())
            .chain(messages.iter().map(|frames| Incoming::Message(frames.iter().cloned().map(Bytes::from).collect())))
            .collect();
        prop_assert_eq!(record_incoming, expected);
    }

    #[test]
    fn garbage_never_panics_and_never_gets_an_answer_longer_than_itself(
        random_bytes in vec(any::<u8>(), 0..600),
        after_handshake in any::<bool>(),
        socket in prop::sample::select(vec![SocketType::Sub, SocketType::Pub, SocketType::Dealer, SocketType::Router]),
    ) {
        let peer = match socket {
            SocketType::Sub => "PUB",
            SocketType::Pub => "SUB",
            SocketType::Dealer => "ROUTER",
            SocketType::Router => "DEALER",
        };
        let bytes = if after_handshake { after_hello(peer, &random_bytes) } else { random_bytes };
        let mut session = session(socket);
        feed(&mut session, [&bytes[..]]);
        prop_assert!(session.outgoing().len() <= 64 + 60 + bytes.len());
    }

    #[test]
    fn damaged_traffic_never_panics((_, mut bytes) in traffic(), hits in vec((any::<usize>(), any::<u8>()), 1..6)) {
        for (at, value) in hits {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let cut = bytes.len() / 2;
        feed(&mut session(SocketType::Sub), [&bytes[..cut], &bytes[cut..]]);
    }
}
