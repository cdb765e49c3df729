//! An HTTP/1.1 client that exposes every byte of a reply's body and how the reply ended.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
};

use serde_json::Value;

use super::{LONGEST_WAIT, known_secrets};

/// One connection. Dropping it closes it.
pub struct RawClient {
    stream: BufReader<TcpStream>,
}

/// One reply.
#[derive(Debug)]
pub struct RawReply {
    pub status: u16,
    /// In the received order; values as bytes, since they need not be text.
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    /// Whether the body ended as its framing announced.
    pub clean: bool,
}

impl RawReply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let value = self
            .headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        value.and_then(|(_, value)| std::str::from_utf8(value).ok())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// `error.code` of a router error, after checking the documented shape of the rest.
    pub fn error_code(&self) -> String {
        let body = self.json();
        let error = &body["error"];
        let keys: Vec<_> = error
            .as_object()
            .expect("an error object")
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(keys, ["message", "type", "param", "code", "request_id"]);
        assert_eq!(
            error["request_id"],
            self.header("x-request-id")
                .expect("every reply has a request id")
        );
        assert_eq!(self.header("content-type"), Some("application/json"));
        error["code"].as_str().expect("a code is text").to_owned()
    }
}

impl RawClient {
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the listener accepts");
        stream
            .set_read_timeout(Some(LONGEST_WAIT))
            .expect("a timeout can be set");
        stream
            .set_write_timeout(Some(LONGEST_WAIT))
            .expect("a timeout can be set");
        stream
            .set_nodelay(true)
            .expect("delays can be switched off");
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Sends a POST with exactly this body.
    pub fn post(address: &str, path: &str, body: &[u8]) -> RawReply {
        Self::post_with(address, path, &[], body)
    }

    pub fn post_with(address: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> RawReply {
        let mut client = Self::connect(address);
        client.send("POST", path, headers, body);
        client.reply()
    }

    pub fn get(address: &str, path: &str) -> RawReply {
        let mut client = Self::connect(address);
        client.send("GET", path, &[], b"");
        client.reply()
    }

    /// Sends a chat without waiting for its reply.
    pub fn chat(address: &str, body: &Value) -> Self {
        let mut client = Self::connect(address);
        client.send(
            "POST",
            "/v1/chat/completions",
            &[],
            body.to_string().as_bytes(),
        );
        client
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            known_secrets::learn_from_header(name, value);
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.send_bytes(&[head.as_bytes(), body].concat());
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream
            .get_mut()
            .write_all(bytes)
            .expect("the request can be written");
    }

    /// Sends as much as the other side accepts; false if it closed.
    pub fn offer_bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.get_mut().write_all(bytes).is_ok()
    }

    /// Closes the sending side and keeps reading.
    pub fn half_close(&mut self) {
        self.stream
            .get_mut()
            .shutdown(Shutdown::Write)
            .expect("the connection is open");
    }

    /// Reads the next reply's head; `None`: the other side closed before it.
    pub fn head_or_end(&mut self) -> Option<RawReply> {
        let has_more = self.stream.fill_buf().is_ok_and(|bytes| !bytes.is_empty());
        has_more.then(|| self.head())
    }

    /// Reads the status line and the header fields.
    pub fn head(&mut self) -> RawReply {
        let line = String::from_utf8(self.line()).expect("a status line is text");
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not a status line: {line:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            let colon = line
                .iter()
                .position(|byte| *byte == b':')
                .expect("a header has a colon");
            let name = String::from_utf8(line[..colon].to_vec())
                .expect("a name is text")
                .to_ascii_lowercase();
            headers.push((name, line[colon + 1..].trim_ascii().to_vec()));
        }
        RawReply {
            status,
            headers,
            body: Vec::new(),
            clean: false,
        }
    }

    fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.stream
            .read_until(b'\n', &mut line)
            .expect("a line comes");
        assert!(
            line.ends_with(b"\r\n"),
            "the connection ended in a head: {:?}",
            String::from_utf8_lossy(&line)
        );
        line.truncate(line.len() - 2);
        line
    }

    /// Reads a complete reply.
    pub fn reply(&mut self) -> RawReply {
        let head = self.head();
        self.body(head)
    }

    /// Reads the rest of a reply whose head was read.
    pub fn body(&mut self, mut reply: RawReply) -> RawReply {
        if reply.header("transfer-encoding") == Some("chunked") {
            assert_eq!(
                reply.header("content-length"),
                None,
                "a chunked body announces no length"
            );
            while let Some(chunk) = self.chunk() {
                reply.clean = chunk.is_empty();
                reply.body.extend(chunk);
                if reply.clean {
                    break;
                }
            }
        } else if let Some(length) = reply.header("content-length") {
            let length: usize = length.parse().expect("a length");
            let _ = (&mut self.stream)
                .take(length as u64)
                .read_to_end(&mut reply.body);
            reply.clean = reply.body.len() == length;
        } else if !matches!(reply.status, 204 | 304) {
            reply.clean = self.stream.read_to_end(&mut reply.body).is_ok();
        } else {
            reply.clean = true;
        }
        known_secrets::assert_none_in("a reply", &reply.body);
        reply
    }

    /// Reads this many bytes; `None`: the connection ended before.
    pub fn bytes(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Reads and discards this many bytes; returns how many arrived before the connection ended.
    pub fn skip(&mut self, bytes: u64) -> u64 {
        std::io::copy(&mut (&mut self.stream).take(bytes), &mut std::io::sink()).unwrap_or(0)
    }

    /// One chunk of a chunked body; empty at its end, `None` if the connection ended earlier.
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

    /// Reads until the body read so far contains `text`.
    pub fn read_until(&mut self, text: &str) -> RawReply {
        let mut reply = self.head();
        while !reply.text().contains(text) {
            let chunk = self.chunk().filter(|chunk| !chunk.is_empty());
            reply
                .body
                .extend(chunk.unwrap_or_else(|| panic!("no {text:?} in {}", reply.text())));
        }
        reply
    }

    /// Whether the other side closes the connection without another byte.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.stream.read(&mut byte), Ok(0) | Err(_))
    }
}
