//! An HTTP/1.1 client that shows every byte of a reply's body, and how the reply ended.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

use serde_json::Value;

/// One connection.
pub struct RawClient {
    stream: BufReader<TcpStream>,
}

/// One reply.
#[derive(Debug)]
pub struct RawReply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the body ended as its framing announced.
    pub clean: bool,
}

impl RawReply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl RawClient {
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the listener accepts");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout can be set");
        Self { stream: BufReader::new(stream) }
    }

    /// Sends a POST with exactly this body.
    pub fn post(address: &str, path: &str, body: &[u8]) -> RawReply {
        let mut client = Self::connect(address);
        client.send("POST", path, &[], body);
        client.reply()
    }

    pub fn get(address: &str, path: &str) -> RawReply {
        let mut client = Self::connect(address);
        client.send("GET", path, &[], b"");
        client.reply()
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.send_bytes(&[head.as_bytes(), body].concat());
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the request can be written");
    }

    /// Reads the status line and the header fields.
    pub fn head(&mut self) -> RawReply {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a status line comes");
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not a status line: {line:?}"));
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).expect("a header comes");
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').expect("a header has a colon");
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        RawReply { status, headers, body: Vec::new(), clean: false }
    }

    /// Reads a whole reply.
    pub fn reply(&mut self) -> RawReply {
        let mut reply = self.head();
        if reply.header("transfer-encoding") == Some("chunked") {
            loop {
                match self.chunk() {
                    Some(chunk) if chunk.is_empty() => {
                        reply.clean = true;
                        break;
                    }
                    Some(chunk) => reply.body.extend(chunk),
                    None => break,
                }
            }
        } else {
            let length: usize = reply.header("content-length").map_or(0, |length| length.parse().expect("a length"));
            let mut body = Vec::new();
            let _ = (&mut self.stream).take(length as u64).read_to_end(&mut body);
            reply.clean = body.len() == length;
            reply.body = body;
        }
        reply
    }

    /// One chunk of a chunked body; empty at its end, `None` if the connection ended before that.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let size = usize::from_str_radix(line.trim_end(), 16).expect("a chunk size");
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).ok()?;
        assert_eq!(&chunk[size..], b"\r\n");
        chunk.truncate(size);
        Some(chunk)
    }

    /// Whether the other side has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.stream.read(&mut byte), Ok(0) | Err(_))
    }
}
