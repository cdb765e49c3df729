//! DNS queries that the system's resolver does not support: service records (SRV, RFC 2782), and
//! names of one particular server, such as a service catalogue's.
//!
//! Answers are untrusted: an answer counts only if it comes from the queried server with the
//! query's id, and no content can make the parser loop or read beyond its end.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

/// Longest wait for one server's answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Size limit of an answer by UDP; longer ones are requested by TCP.
const LARGEST_DATAGRAM: usize = 4096;
/// Limit of followed compression pointers per name.
const MOST_POINTERS: usize = 32;
/// Record limit of one answer.
const MOST_RECORDS: usize = 4096;

const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;

/// Resolves a service name, such as `_http._tcp.engines.example.org`, to host and port of each
/// instance. `server`: the name server; `None`: the system's servers.
///
/// # Errors
///
/// No server answered, or the answer is malformed.
pub async fn service_records(
    name: &str,
    server: Option<SocketAddr>,
) -> io::Result<Vec<(String, u16)>> {
    let mut found = Vec::new();
    for record in lookup(name, SRV, server).await? {
        if let DnsRecord::Service { host, port } = record {
            found.push((host, port));
        }
    }
    Ok(found)
}

/// Resolves a name to its addresses at `server`.
///
/// # Errors
///
/// The server did not answer, or the answer is malformed.
pub async fn host_addresses(name: &str, server: SocketAddr) -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    for kind in [A, AAAA] {
        for record in lookup(name, kind, Some(server)).await? {
            if let DnsRecord::Address(address) = record {
                found.push(address);
            }
        }
    }
    Ok(found)
}

/// Resolves a name to its addresses with the system's resolver.
///
/// # Errors
///
/// The name has no address, or no resolver answered.
pub async fn system_addresses(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((name, port)).await?.collect())
}

#[derive(Debug, PartialEq)]
enum DnsRecord {
    Address(IpAddr),
    Service { host: String, port: u16 },
}

async fn lookup(name: &str, kind: u16, server: Option<SocketAddr>) -> io::Result<Vec<DnsRecord>> {
    let servers = server.map_or_else(system_servers, |server| vec![server]);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no name server is configured");
    for server in servers {
        match timeout(PATIENCE, lookup_one(name, kind, server)).await {
            Ok(Ok(records)) => return Ok(records),
            Ok(Err(error)) => last = error,
            Err(_) => {
                last = io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("name server {server} did not answer"),
                )
            }
        }
    }
    Err(last)
}

/// Returns the system's name servers, in order.
fn system_servers() -> Vec<SocketAddr> {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let lines = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"));
    let servers = lines
        .filter_map(|server| server.trim().parse::<IpAddr>().ok())
        .take(3);
    let mut servers: Vec<SocketAddr> = servers.map(|ip| SocketAddr::new(ip, 53)).collect();
    if servers.is_empty() {
        servers.push(SocketAddr::from((Ipv4Addr::LOCALHOST, 53)));
    }
    servers
}

async fn lookup_one(name: &str, kind: u16, server: SocketAddr) -> io::Result<Vec<DnsRecord>> {
    // Not predictable from outside: an answer must match the port of the socket and this number.
    let id = (runtime::random() & 0xffff) as u16;
    let query = query(id, name, kind).ok_or_else(|| bad("the name cannot be asked for"))?;
    let own: SocketAddr = if server.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(own).await?;
    socket.connect(server).await?;
    socket.send(&query).await?;
    let mut buffer = vec![0; LARGEST_DATAGRAM];
    let answer = loop {
        let size = socket.recv(&mut buffer).await?;
        let answer = &buffer[..size];
        // Answers with another id are ignored.
        if answer.get(..2) == Some(&id.to_be_bytes()) {
            break answer;
        }
    };
    if answer.get(2).is_some_and(|flags| flags & 0x02 != 0) {
        let whole = by_tcp(&query, server).await?;
        return read(&whole, id, kind);
    }
    read(answer, id, kind)
}

async fn by_tcp(query: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(query.len()).map_err(|_| bad("the question is too long"))?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(query).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Encodes one query; `None`: a label of the name is empty or too long.
fn query(id: u16, name: &str, kind: u16) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(name.len() + 18);
    out.extend_from_slice(&id.to_be_bytes());
    // Recursion is desired; one question.
    out.extend_from_slice(&[0x01, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|length| (1..=63).contains(length))?;
        out.push(length);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&[0, 1]);
    Some(out)
}

/// Returns the records of the requested kind in an answer.
fn read(answer: &[u8], id: u16, kind: u16) -> io::Result<Vec<DnsRecord>> {
    let short = || bad("the answer ends early");
    let number = |at: usize| Some(u16::from_be_bytes([*answer.get(at)?, *answer.get(at + 1)?]));
    let flags = number(2).ok_or_else(short)?;
    if number(0) != Some(id) || flags & 0x8000 == 0 {
        return Err(bad("it is no answer to the question"));
    }
    match flags & 0x0f {
        0 => {}
        // No such name: there are no instances.
        3 => return Ok(Vec::new()),
        _ => return Err(bad("the name server could not answer")),
    }
    let question_count = number(4).ok_or_else(short)?;
    let answers = usize::from(number(6).ok_or_else(short)?).min(MOST_RECORDS);
    let mut at = 12;
    for _ in 0..question_count {
        at = name(answer, at).ok_or_else(short)?.1 + 4;
    }
    let mut records = Vec::new();
    for _ in 0..answers {
        let (_, after) = name(answer, at).ok_or_else(short)?;
        let found = number(after).ok_or_else(short)?;
        let length = usize::from(number(after + 8).ok_or_else(short)?);
        let data = after + 10;
        let bytes = answer.get(data..data + length).ok_or_else(short)?;
        if found == kind {
            records.extend(record(answer, data, bytes, kind));
        }
        at = data + length;
    }
    Ok(records)
}

fn record(answer: &[u8], data: usize, bytes: &[u8], kind: u16) -> Option<DnsRecord> {
    match kind {
        A => <[u8; 4]>::try_from(bytes)
            .ok()
            .map(|octets| DnsRecord::Address(Ipv4Addr::from(octets).into())),
        AAAA => <[u8; 16]>::try_from(bytes)
            .ok()
            .map(|octets| DnsRecord::Address(Ipv6Addr::from(octets).into())),
        _ => {
            let port = u16::from_be_bytes([*bytes.get(4)?, *bytes.get(5)?]);
            let (host, _) = name(answer, data + 6)?;
            // A root name as target means "not available here".
            // Other characters could make a path or another host of a URL.
            let is_name =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            (!host.is_empty() && host.bytes().all(is_name) && port != 0)
                .then_some(DnsRecord::Service { host, port })
        }
    }
}

/// Reads the name at this position; returns it with the position after it.
fn name(answer: &[u8], start: usize) -> Option<(String, usize)> {
    let mut text = String::new();
    let (mut at, mut after, mut pointers) = (start, None, 0);
    loop {
        let length = *answer.get(at)?;
        match length & 0xc0 {
            0 if length == 0 => return Some((text, after.unwrap_or(at + 1))),
            0 => {
                let label = answer.get(at + 1..at + 1 + usize::from(length))?;
                if text.len() + label.len() > 253 || !label.iter().all(u8::is_ascii_graphic) {
                    return None;
                }
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(std::str::from_utf8(label).ok()?);
                at += 1 + usize::from(length);
            }
            0xc0 => {
                pointers += 1;
                if pointers > MOST_POINTERS {
                    return None;
                }
                after.get_or_insert(at + 2);
                at = usize::from(u16::from_be_bytes([length & 0x3f, *answer.get(at + 1)?]));
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an answer to `query` with these records, each a kind and its data; their names
    /// point to the question's.
    fn answer(query: &[u8], records: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut out = query.to_vec();
        (out[2], out[3]) = (0x81, 0x80);
        out[7] = u8::try_from(records.len()).unwrap();
        for (kind, data) in records {
            out.extend_from_slice(&[0xc0, 12]);
            out.extend_from_slice(&kind.to_be_bytes());
            out.extend_from_slice(&[0, 1, 0, 0, 0, 9]);
            out.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
            out.extend_from_slice(data);
        }
        out
    }

    fn service(port: u16, host: &[u8]) -> Vec<u8> {
        [&[0, 1, 0, 1], &port.to_be_bytes()[..], host].concat()
    }

    #[test]
    fn services_and_addresses_parse_with_full_and_compressed_names() {
        let query = query(7, "_http._tcp.e.example", SRV).unwrap();
        // `e.example` begins behind the first two labels.
        let records = [
            (SRV, service(8000, b"\x01a\xc0\x17")),
            (SRV, service(8001, b"\x01b\x00")),
            (A, vec![1, 2, 3, 4]),
        ];
        let found = read(&answer(&query, &records), 7, SRV).unwrap();
        let at = |host: &str, port| DnsRecord::Service {
            host: host.to_owned(),
            port,
        };
        assert_eq!(found, [at("a.e.example", 8000), at("b", 8001)]);
        let found = read(&answer(&query, &records), 7, A).unwrap();
        assert_eq!(
            found,
            [DnsRecord::Address(Ipv4Addr::new(1, 2, 3, 4).into())]
        );
    }

    #[test]
    fn malformed_answers_are_errors_and_never_loop() {
        let query = query(7, "e.example", SRV).unwrap();
        let whole = answer(&query, &[(SRV, service(8000, b"\x01a\xc0\x0c"))]);
        for end in 0..whole.len() {
            assert!(read(&whole[..end], 7, SRV).is_err(), "{end}");
        }
        // A name that points to itself.
        let looped = answer(&query, &[(SRV, service(8000, &[0xc0, 45]))]);
        assert!(read(&looped, 7, SRV).is_ok_and(|found| found.is_empty()));
        assert!(read(&whole, 8, SRV).is_err(), "another question's");
        assert!(
            super::query(1, &"a".repeat(64), A).is_none() && super::query(1, "a..b", A).is_none()
        );
    }

    #[tokio::test]
    async fn the_configured_server_is_queried_and_a_foreign_answer_is_ignored() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            let mut buffer = [0; 512];
            let (size, from) = server.recv_from(&mut buffer).await.unwrap();
            let mut wrong = answer(&buffer[..size], &[(SRV, service(1, b"\x01x\x00"))]);
            wrong[0] ^= 0xff;
            server.send_to(&wrong, from).await.unwrap();
            let right = answer(&buffer[..size], &[(SRV, service(8000, b"\x01a\x00"))]);
            server.send_to(&right, from).await.unwrap();
        });
        let found = service_records("_http._tcp.engines", Some(address))
            .await
            .unwrap();
        assert_eq!(found, [("a".to_owned(), 8000)]);
        answering.await.unwrap();
    }
}
