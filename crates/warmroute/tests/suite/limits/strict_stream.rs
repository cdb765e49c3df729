//! A strict reader of request streams, written from RFC 9112 and the rules of docs/limits.md and
//! independent of the router's: what a stream contains, or where it is ambiguous.

/// One request of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StrictRequest {
    pub(super) method: Vec<u8>,
    /// Without the framing of chunks.
    pub(super) body: Vec<u8>,
    /// Whether the connection ends with it.
    pub(super) is_last: bool,
}

/// How a stream goes on behind its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// With nothing: the connection ends, or the stream does, between two requests.
    Clean,
    /// With the beginning of a request.
    Incomplete,
    /// With something that is no request.
    Invalid,
}

/// Why there is no next part.
enum Stop {
    Incomplete,
    Invalid,
}

type Part<T> = Result<T, Stop>;

/// Returns the requests of a stream, and how it goes on.
pub(super) fn read(stream: &[u8]) -> (Vec<StrictRequest>, StreamEnd) {
    let (mut rest, mut requests) = (stream, Vec::new());
    loop {
        // A server may skip an empty line before a request.
        while let Some(after) = rest.strip_prefix(b"\r\n") {
            rest = after;
        }
        if rest.is_empty() {
            return (requests, StreamEnd::Clean);
        }
        match request(&mut rest) {
            Ok(request) => {
                let is_last = request.is_last;
                requests.push(request);
                if is_last {
                    return (requests, StreamEnd::Clean);
                }
            }
            Err(Stop::Incomplete) => return (requests, StreamEnd::Incomplete),
            Err(Stop::Invalid) => return (requests, StreamEnd::Invalid),
        }
    }
}

fn request(rest: &mut &[u8]) -> Part<StrictRequest> {
    let line = line(rest)?;
    let parts: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = parts[..] else {
        return Err(Stop::Invalid);
    };
    let is_first = match version {
        b"HTTP/1.0" => true,
        b"HTTP/1.1" => false,
        _ => return Err(Stop::Invalid),
    };
    let visible = |byte: &u8| (0x21..0x7f).contains(byte) || *byte >= 0x80;
    if method.is_empty()
        || !method.iter().all(is_token)
        || target.is_empty()
        || !target.iter().all(visible)
    {
        return Err(Stop::Invalid);
    }
    let mut head = Head::default();
    loop {
        let field = self::line(rest)?;
        if field.is_empty() {
            break;
        }
        head.add(field)?;
    }
    if is_first && !head.encodings.is_empty() {
        return Err(Stop::Invalid);
    }
    let body = match (&head.lengths[..], &head.encodings[..]) {
        ([], []) => Vec::new(),
        ([length], []) => bytes(rest, *length)?.to_vec(),
        ([], [encoding]) if encoding.eq_ignore_ascii_case(b"chunked") => chunks(rest)?,
        _ => return Err(Stop::Invalid),
    };
    let is_last = head.closes || is_first && !head.keeps;
    Ok(StrictRequest {
        method: method.to_vec(),
        body,
        is_last,
    })
}

/// What of a head matters for the end of its request.
#[derive(Default)]
struct Head {
    lengths: Vec<usize>,
    encodings: Vec<Vec<u8>>,
    closes: bool,
    keeps: bool,
}

impl Head {
    fn add(&mut self, field: &[u8]) -> Part<()> {
        let (name, value) = parts(field)?;
        match &name.to_ascii_lowercase()[..] {
            b"content-length" => self.lengths.push(length(value)?),
            b"transfer-encoding" => self.encodings.push(value.to_vec()),
            b"connection" => {
                let lower = value.to_ascii_lowercase();
                for option in lower.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    self.closes |= option == b"close";
                    self.keeps |= option == b"keep-alive";
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the name and the value of a field.
fn parts(field: &[u8]) -> Part<(&[u8], &[u8])> {
    let colon = field.iter().position(|byte| *byte == b':');
    let (name, value) = field.split_at(colon.ok_or(Stop::Invalid)?);
    let allowed = |byte: &u8| matches!(byte, b'\t' | b' '..=0x7e | 0x80..);
    if name.is_empty() || !name.iter().all(is_token) || !value.iter().all(allowed) {
        return Err(Stop::Invalid);
    }
    Ok((name, value[1..].trim_ascii()))
}

fn length(value: &[u8]) -> Part<usize> {
    let digits = value.iter().all(u8::is_ascii_digit) && (1..=19).contains(&value.len());
    let number = digits
        .then(|| std::str::from_utf8(value).ok()?.parse().ok())
        .flatten();
    number.ok_or(Stop::Invalid)
}

fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// A line of a head or a trailer without its CRLF, which holds no other CR, LF or NUL.
fn line<'s>(rest: &mut &'s [u8]) -> Part<&'s [u8]> {
    let line = any_line(rest)?;
    if line.contains(&b'\0') {
        return Err(Stop::Invalid);
    }
    Ok(line)
}

/// A line without its CRLF, which holds no other CR or LF.
fn any_line<'s>(rest: &mut &'s [u8]) -> Part<&'s [u8]> {
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let end = rest.iter().position(is_end).ok_or(Stop::Incomplete)?;
    match (rest[end], rest.get(end + 1)) {
        (b'\r', Some(b'\n')) => {}
        (b'\r', None) => return Err(Stop::Incomplete),
        _ => return Err(Stop::Invalid),
    }
    let line = &rest[..end];
    *rest = &rest[end + 2..];
    Ok(line)
}

fn bytes<'s>(rest: &mut &'s [u8], count: usize) -> Part<&'s [u8]> {
    let (taken, after) = rest.split_at_checked(count).ok_or(Stop::Incomplete)?;
    *rest = after;
    Ok(taken)
}

fn chunks(rest: &mut &[u8]) -> Part<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        // What an extension holds does not change where the chunk ends.
        let line = any_line(rest)?;
        let end = line
            .iter()
            .position(|byte| !byte.is_ascii_hexdigit())
            .unwrap_or(line.len());
        let (size, extension) = line.split_at(end);
        let is_extension = extension
            .trim_ascii_start()
            .first()
            .is_none_or(|byte| *byte == b';');
        if !(1..=16).contains(&size.len()) || !is_extension {
            return Err(Stop::Invalid);
        }
        let size = std::str::from_utf8(size)
            .ok()
            .and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.ok_or(Stop::Invalid)?;
        if size == 0 {
            break;
        }
        body.extend_from_slice(bytes(rest, size)?);
        match bytes(rest, 2)? {
            b"\r\n" => {}
            _ => return Err(Stop::Invalid),
        }
    }
    // Trailers decide nothing, whatever their names.
    loop {
        let field = line(rest)?;
        if field.is_empty() {
            return Ok(body);
        }
        parts(field)?;
    }
}

#[test]
fn a_stream_is_read_up_to_the_first_thing_that_is_no_request() {
    let get = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    let post = "POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nab";
    let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;x\r\na\r\n1\r\nb\r\n0\r\nt: u\r\n\r\n";
    let last = "GET / HTTP/1.1\r\nconnection: close\r\n\r\n";
    let invalid = |request: &str, from: &str, to: &str| {
        (
            format!("{get}{}", request.replace(from, to)),
            vec![""],
            StreamEnd::Invalid,
        )
    };
    for (stream, bodies, end) in [
        (String::new(), vec![], StreamEnd::Clean),
        (
            format!("{get}{post}\r\n{chunked}"),
            vec!["", "ab", "ab"],
            StreamEnd::Clean,
        ),
        (format!("{last}anything"), vec![""], StreamEnd::Clean),
        (
            format!("{get}{}", &post[..post.len() - 1]),
            vec![""],
            StreamEnd::Incomplete,
        ),
        (
            format!("{get}POST / HTTP/1.1\r"),
            vec![""],
            StreamEnd::Incomplete,
        ),
        invalid(post, "length: ", "length: +"),
        invalid(post, "\r\n\r\n", "\n\r\n"),
        invalid(post, "content", "transfer-encoding: chunked\r\ncontent"),
        invalid(chunked, "a\r\n", "aa"),
    ] {
        let (requests, found) = read(stream.as_bytes());
        let texts = requests
            .iter()
            .map(|request| String::from_utf8_lossy(&request.body));
        let texts: Vec<String> = texts.map(std::borrow::Cow::into_owned).collect();
        assert_eq!(
            (texts, found),
            (bodies.into_iter().map(str::to_owned).collect(), end),
            "{stream:?}"
        );
    }
}
