//! Mutated request streams: what the router makes of one is what a strict reader makes of it, or it
//! refuses the rest of the stream.
//!
//! `MUTATED_STREAMS` sets their number (docs/reliability.md).

use contract_id::contract;

use super::strict_stream::{self, StreamEnd, StrictRequest};
use crate::{
    faults::fleet::{CHAT, ScriptedFleet, fine},
    harness::{RawClient, ScriptedReply, SeenRequest, chat},
};

const STREAMS: u64 = 3_000;
/// Pairs of a router and an engine, where there are many streams.
const PAIRS: u64 = 2;

/// Pieces that a mutation inserts or replaces others with.
const PIECES: [&str; 40] = [
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    "\n\n",
    "\0",
    " ",
    "\t",
    ":",
    ";",
    ",",
    "+",
    "-",
    "0",
    "1",
    "00",
    "0x",
    "f",
    "\"",
    "\x0b",
    "\u{e9}",
    "content-length: 0\r\n",
    "Content-Length: 5\r\n",
    "content-length: 99\r\n",
    "content-length : 3\r\n",
    "transfer-encoding: chunked\r\n",
    "Transfer-Encoding: identity\r\n",
    "transfer-encoding:\r\n chunked\r\n",
    "TRANSFER-ENCODING: xchunked\r\n",
    "connection: close\r\n",
    "connection: keep-alive\r\n",
    "0\r\n\r\n",
    "5\r\nhello\r\n",
    "a;b=c\r\n",
    "x: y\r\n",
    " x: y\r\n",
    "HTTP/1.0",
    "HTTP/1.1",
    "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n",
    "{}",
];

/// Repeatable draws (SplitMix64).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("it is below the bound")
    }
}

/// One valid request with a body of its own.
fn request(draws: &mut Draws, number: u64) -> Vec<u8> {
    let body = chat(
        "m",
        &format!("of stream {number}, {}", draws.below(1_000)),
        1,
    )
    .to_string();
    let line = format!("POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\n");
    match draws.below(5) {
        0 => b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".to_vec(),
        1 | 2 => format!("{line}content-length: {}\r\n\r\n{body}", body.len()).into_bytes(),
        3 => format!(
            "{line}transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        )
        .into_bytes(),
        _ => {
            let (first, second) = body.split_at(body.len() / 2);
            let (a, b) = (first.len(), second.len());
            format!("{line}transfer-encoding: chunked\r\n\r\n{a:X};x=y\r\n{first}\r\n{b:x}\r\n{second}\r\n0\r\nt: u\r\n\r\n")
                .into_bytes()
        }
    }
}

/// Two or three requests with up to three mutations, and a request that ends the connection.
fn stream(number: u64) -> Vec<u8> {
    let mut draws = Draws(number);
    let mut stream: Vec<u8> = (0..2 + draws.below(2))
        .flat_map(|_| request(&mut draws, number))
        .collect();
    for _ in 0..=draws.below(3) {
        mutate(&mut draws, &mut stream);
    }
    stream
        .extend_from_slice(b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
    stream
}

fn mutate(draws: &mut Draws, stream: &mut Vec<u8>) {
    let at = place(draws, stream);
    let length = (1 + draws.below(4)).min(stream.len() - at);
    let piece = PIECES[draws.below(PIECES.len())].as_bytes();
    match draws.below(7) {
        0 => drop(stream.drain(at..at + length)),
        1 => drop(stream.splice(at..at, stream[at..at + length].to_vec())),
        2 => stream[at] ^= 1 << draws.below(8),
        3 => stream[at] = stream[at].to_ascii_uppercase(),
        4 => drop(stream.splice(at..at + length, piece.iter().copied())),
        _ => drop(stream.splice(at..at, piece.iter().copied())),
    }
}

/// A place in the stream: mostly at or beside the end of a line, where framing is decided.
fn place(draws: &mut Draws, stream: &[u8]) -> usize {
    let any = draws.below(stream.len());
    if draws.below(4) == 0 {
        return any;
    }
    let behind = stream[any..].windows(2).position(|pair| pair == b"\r\n");
    let line = any + behind.unwrap_or(0);
    (line + draws.below(4)).min(stream.len() - 1)
}

/// How the router took a stream.
#[derive(Default)]
struct Tally {
    streams: u64,
    requests: u64,
    /// Refused at the place where the strict reader refuses it.
    refused: u64,
    /// Refused before.
    stricter: u64,
    /// Cut off in a request.
    incomplete: u64,
}

/// The statuses of the replies, until the connection ends or there are as many as `most`.
fn replies(client: &mut RawClient, requests: &[StrictRequest], most: usize) -> Vec<(u16, bool)> {
    let mut seen = Vec::new();
    while seen.len() < most {
        let Some(head) = client.head_or_end() else {
            break;
        };
        let closes = head.header("connection") == Some("close");
        seen.push((head.status, closes));
        if requests
            .get(seen.len() - 1)
            .is_some_and(|request| request.method == b"HEAD")
        {
            continue;
        }
        client.body(head);
    }
    seen
}

fn check(fleet: &ScriptedFleet, data: &str, number: u64, tally: &mut Tally) {
    let stream = stream(number);
    let (requests, end) = strict_stream::read(&stream);
    let shown = || format!("stream {number}: {:?}", String::from_utf8_lossy(&stream));
    let mut client = RawClient::connect(data);
    // The router may close before it has read all.
    let _ = client.offer_bytes(&stream);
    let most = if end == StreamEnd::Incomplete {
        requests.len()
    } else {
        usize::MAX
    };
    let statuses = replies(&mut client, &requests, most);
    // What reached the engine are bodies of the stream's own requests, in their order.
    let engine = &fleet.engines[0];
    let mut own = requests.iter();
    for SeenRequest { body, .. } in engine.seen() {
        assert!(own.any(|request| request.body == body), "{}", shown());
    }
    let answered = statuses.len();
    let refusal = usize::from(end == StreamEnd::Invalid);
    assert!(
        answered <= requests.len() + refusal,
        "{answered} replies: {}",
        shown()
    );
    if answered < requests.len() {
        let stopped = statuses
            .last()
            .is_none_or(|(status, closes)| *status >= 400 || *closes);
        assert!(stopped, "{statuses:?} of {}: {}", requests.len(), shown());
        tally.stricter += 1;
    }
    tally.streams += 1;
    tally.requests += requests.len() as u64;
    tally.refused += u64::from(end == StreamEnd::Invalid);
    tally.incomplete += u64::from(end == StreamEnd::Incomplete);
}

fn run(numbers: impl Iterator<Item = u64>) -> Tally {
    let fleet = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let data = fleet.router.data();
    let mut tally = Tally::default();
    for number in numbers {
        check(&fleet, &data, number, &mut tally);
    }
    tally
}

#[test]
#[contract("G15", "S24")]
fn mutated_streams_are_read_as_a_strict_reader_reads_them() {
    let wanted = std::env::var("MUTATED_STREAMS")
        .ok()
        .map(|text| text.parse().expect("a number"));
    let streams = wanted.unwrap_or(STREAMS);
    let pairs = if wanted.is_some() { PAIRS } else { 1 };
    let threads: Vec<_> = (0..pairs)
        .map(|pair| {
            let numbers = (0..streams).filter(move |number| number % pairs == pair);
            std::thread::spawn(move || run(numbers))
        })
        .collect();
    for thread in threads {
        let tally = thread.join().expect("no disagreement");
        let Tally {
            streams,
            requests,
            refused,
            stricter,
            incomplete,
        } = tally;
        println!(
            "{streams} streams with {requests} requests: {refused} with something that is no request, {incomplete} cut off, \
             {stricter} that the router refuses earlier"
        );
        // The mutations reach both sides of the rules.
        assert!(
            refused > streams / 5 && requests > streams,
            "{refused} of {streams}, {requests}"
        );
    }
}
