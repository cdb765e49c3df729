//! A client as the SDK of OpenAI, on one connection.

use std::{
    io::{self, BufRead, BufReader, Read as _, Write as _},
    net::TcpStream,
};

use crate::engine::Engine;

/// The reply that a request asks for.
#[derive(Clone, Copy)]
pub(crate) enum ReplyKind {
    Whole,
    /// A stream of so many events.
    Events(u32),
}

/// One connection.
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
}

/// A request or a reply.
pub(crate) struct Message {
    /// The first line.
    pub(crate) start: String,
    /// The body, by the length that its head announces.
    pub(crate) body: String,
}

impl Client {
    pub(crate) fn connect(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    /// Sends request number `n` and reads its whole reply.
    pub(crate) fn ask(&mut self, n: u32, kind: ReplyKind, engine: &Engine) -> io::Result<()> {
        let Some(left) = self.begin(n, kind)? else {
            return Ok(());
        };
        for _ in 0..left {
            engine.allow_event();
            self.read_event()?;
        }
        // The last chunk.
        self.read_line()?;
        self.read_line().map(drop)
    }

    /// Sends request number `n` and reads its whole reply, or the first event of a stream: then it
    /// returns how many are left, the end marker among them.
    pub(crate) fn begin(&mut self, n: u32, kind: ReplyKind) -> io::Result<Option<u32>> {
        self.reader
            .get_mut()
            .write_all(request(n, kind).as_bytes())?;
        let reply = read_message(&mut self.reader)?;
        if !reply.start.starts_with("HTTP/1.1 200 ") {
            let Message { start, body } = reply;
            return Err(io::Error::other(format!("refused: {start} {body}")));
        }
        match kind {
            ReplyKind::Whole => Ok(None),
            ReplyKind::Events(events) => {
                self.read_event()?;
                Ok(Some(events))
            }
        }
    }

    /// Reads one chunk, which holds one event.
    fn read_event(&mut self) -> io::Result<()> {
        let line = self.read_line()?;
        let size = usize::from_str_radix(line.trim_end(), 16).map_err(io::Error::other)?;
        self.reader.read_exact(&mut vec![0; size + 2])
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        Ok(line)
    }
}

/// Reads a head, and the body whose length it announces.
pub(crate) fn read_message(reader: &mut BufReader<TcpStream>) -> io::Result<Message> {
    let mut start = String::new();
    if reader.read_line(&mut start)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line)?;
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Message {
        start,
        body: String::from_utf8(body).map_err(io::Error::other)?,
    })
}

/// A request with the header fields of the SDK, and a question that no other number has.
fn request(n: u32, kind: ReplyKind) -> String {
    let (stream, events) = match kind {
        ReplyKind::Whole => (false, 16),
        ReplyKind::Events(events) => (true, events),
    };
    let system = "You are a careful assistant. Answer in one sentence. ".repeat(8);
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"Which worker holds block {n:06} of this prompt?"}}],"max_tokens":{events},"stream":{stream}}}"#
    );
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\n\
         host: 127.0.0.1:8080\r\n\
         accept: application/json\r\n\
         content-type: application/json\r\n\
         user-agent: OpenAI/Python 2.8.0\r\n\
         x-stainless-lang: python\r\n\
         x-stainless-package-version: 2.8.0\r\n\
         x-stainless-os: Linux\r\n\
         x-stainless-arch: x64\r\n\
         x-stainless-runtime: CPython\r\n\
         x-stainless-runtime-version: 3.12.3\r\n\
         x-stainless-async: false\r\n\
         x-stainless-retry-count: 0\r\n\
         authorization: Bearer sk-none\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}
