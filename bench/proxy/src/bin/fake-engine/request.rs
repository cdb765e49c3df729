//! Requests read from a connection: Content-Length and chunked bodies.

use anyhow::{Context as _, Result, bail};
use memchr::memmem;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

const MAX_HEADERS: usize = 64;
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
    pub(crate) keeps_alive: bool,
}

#[derive(Debug)]
struct Head {
    path: String,
    bytes: usize,
    length: usize,
    chunked: bool,
    expects_continue: bool,
    keeps_alive: bool,
}

/// Reads one request and removes it from `buffer`; `None`: the client closed the connection.
pub(crate) async fn read_request(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> Result<Option<Request>> {
    let head = loop {
        if let Some(head) = parse_head(buffer)? {
            break head;
        }
        if buffer.len() > MAX_HEAD_BYTES {
            bail!("the head has more than {MAX_HEAD_BYTES} bytes");
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let mut expects_continue = head.expects_continue;
    let (end, body) = loop {
        if let Some(found) = body_of(buffer, &head)? {
            break found;
        }
        if buffer.len() > MAX_REQUEST_BYTES {
            bail!("the request has more than {MAX_REQUEST_BYTES} bytes");
        }
        if std::mem::take(&mut expects_continue) {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    buffer.drain(..end);
    Ok(Some(Request {
        path: head.path,
        body,
        keeps_alive: head.keeps_alive,
    }))
}

fn parse_head(buffer: &[u8]) -> Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(bytes) = request.parse(buffer)? else {
        return Ok(None);
    };
    let mut head = Head {
        path: request.path.unwrap_or("/").to_owned(),
        bytes,
        length: 0,
        chunked: false,
        expects_continue: false,
        keeps_alive: request.version != Some(0),
    };
    for header in request.headers.iter() {
        let name = header.name;
        if name.eq_ignore_ascii_case("content-length") {
            head.length = std::str::from_utf8(header.value)?
                .parse()
                .context("the Content-Length is not a number")?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            head.chunked = true;
        } else if name.eq_ignore_ascii_case("connection") {
            head.keeps_alive = !header.value.eq_ignore_ascii_case(b"close");
        } else if name.eq_ignore_ascii_case("expect") {
            head.expects_continue = true;
        }
    }
    Ok(Some(head))
}

/// Returns the request's end and its body, if all of it is there.
fn body_of(buffer: &[u8], head: &Head) -> Result<Option<(usize, Vec<u8>)>> {
    if head.chunked {
        return body_of_chunks(buffer, head.bytes);
    }
    let end = head.bytes.saturating_add(head.length);
    Ok(buffer.get(head.bytes..end).map(|body| (end, body.to_vec())))
}

fn body_of_chunks(buffer: &[u8], start: usize) -> Result<Option<(usize, Vec<u8>)>> {
    // Without its last chunk the body is not read again and again while it arrives.
    if !buffer.ends_with(b"0\r\n\r\n") {
        return Ok(None);
    }
    let (mut at, mut body) = (start, Vec::new());
    while let Some(length) = memmem::find(&buffer[at..], b"\r\n") {
        let digits = std::str::from_utf8(&buffer[at..at + length])?;
        let digits = digits.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(digits, 16).context("a chunk's size is not a number")?;
        let data = at + length + 2;
        let end = data.saturating_add(size).saturating_add(2);
        let Some(chunk) = buffer.get(data..end) else {
            return Ok(None);
        };
        body.extend_from_slice(&chunk[..size]);
        at = end;
        if size == 0 {
            return Ok(Some((at, body)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(request: &[u8]) -> Option<(usize, Vec<u8>)> {
        let head = parse_head(request).unwrap().expect("a whole head");
        body_of(request, &head).unwrap()
    }

    #[test]
    fn a_body_is_complete_when_its_last_byte_is_there() {
        let request = b"POST /x HTTP/1.1\r\ncontent-length: 4\r\n\r\nbody";
        assert_eq!(body(request), Some((request.len(), b"body".to_vec())));
        assert_eq!(body(&request[..request.len() - 1]), None);
    }

    #[test]
    fn chunks_are_joined() {
        let request = b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nbod\r\n1\r\ny\r\n0\r\n\r\n";
        assert_eq!(body(request), Some((request.len(), b"body".to_vec())));
        assert_eq!(body(&request[..request.len() - 5]), None);
    }

    #[test]
    fn a_chunk_that_looks_like_the_last_one_is_not_the_end() {
        let request = b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\na\r\n12340\r\n\r\n";
        assert_eq!(body(request), None);
    }
}
