//! The head of a worker's reply, and how its body is framed.

use std::fmt;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING},
    response,
};

use super::reply_decoder::ReplyDecoder;
use crate::headers::has_conflicting_lengths;

/// Most header fields of a reply.
const MAX_FIELDS: usize = 100;

/// The head of a reply.
#[derive(Debug)]
pub(super) struct ReplyHead {
    pub(super) parts: response::Parts,
    /// Decodes the body.
    pub(super) decoder: ReplyDecoder,
    /// Whether the worker keeps the connection open after the reply.
    pub(super) keeps_alive: bool,
}

/// The reason why an answer is not a valid reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InvalidReply {
    /// Its head is too long.
    TooLong,
    /// Its head is not one of HTTP/1.
    Syntax(httparse::Error),
    /// A header field or the status is not valid.
    Field,
    /// Its fields do not tell how the body is framed.
    Framing,
}

impl fmt::Display for InvalidReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => f.write_str("the reply's head is too long"),
            Self::Syntax(error) => write!(f, "the reply's head is not valid: {error}"),
            Self::Field => f.write_str("a header field of the reply is not valid"),
            Self::Framing => f.write_str("the reply's fields do not tell its length"),
        }
    }
}

/// Reads the head of a reply to a request of this method, and returns it with the bytes behind it;
/// `None` while it is incomplete. Interim replies are skipped.
pub(super) fn parse(
    mut bytes: Bytes,
    method: &Method,
) -> Result<Option<(ReplyHead, Bytes)>, InvalidReply> {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut reply = httparse::Response::new(&mut fields);
        let length = match reply.parse(&bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(InvalidReply::Syntax(error)),
        };
        let status = StatusCode::from_u16(reply.code.unwrap_or_default())
            .map_err(|_| InvalidReply::Field)?;
        // Behind the acceptance of another protocol there is no other reply.
        if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            bytes = bytes.slice(length..);
            continue;
        }
        let version = match reply.version {
            Some(0) => Version::HTTP_10,
            _ => Version::HTTP_11,
        };
        let headers = header_map(&bytes, reply.headers)?;
        let decoder = decoder(&headers, status, version, method)?;
        // Behind a reply whose length is told in two ways may be more of it.
        let keeps_alive = keeps_alive(&headers, version)
            && !has_conflicting_lengths(&headers)
            && decoder != ReplyDecoder::until_close()
            && status != StatusCode::SWITCHING_PROTOCOLS;
        let mut parts = Response::new(()).into_parts().0;
        (parts.status, parts.version, parts.headers) = (status, version, headers);
        let head = ReplyHead {
            parts,
            decoder,
            keeps_alive,
        };
        return Ok(Some((head, bytes.slice(length..))));
    }
}

/// Collects header fields, whose values are slices of `bytes`.
fn header_map(bytes: &Bytes, fields: &[httparse::Header<'_>]) -> Result<HeaderMap, InvalidReply> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(field.value));
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(InvalidReply::Field);
        };
        headers.append(name, value);
    }
    Ok(headers)
}

/// Chooses the framing of the body by RFC 9112, section 6.3.
fn decoder(
    headers: &HeaderMap,
    status: StatusCode,
    version: Version,
    method: &Method,
) -> Result<ReplyDecoder, InvalidReply> {
    let has_none = matches!(status.as_u16(), 101 | 204 | 304) || method == Method::HEAD;
    if has_none {
        return Ok(ReplyDecoder::length(0));
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        if version == Version::HTTP_10 {
            return Err(InvalidReply::Framing);
        }
        let last = tokens(headers, &TRANSFER_ENCODING).last();
        return Ok(
            if last.is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
                ReplyDecoder::chunked()
            } else {
                ReplyDecoder::until_close()
            },
        );
    }
    if !headers.contains_key(CONTENT_LENGTH) {
        return Ok(ReplyDecoder::until_close());
    }
    content_length(headers)
        .map(ReplyDecoder::length)
        .ok_or(InvalidReply::Framing)
}

/// Returns the announced length; `None` if it is not a number, or if several differ.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let values = headers.get_all(CONTENT_LENGTH);
    let mut lengths = values
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(|value| {
            let digits = std::str::from_utf8(value.trim_ascii()).ok()?;
            let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse::<u64>().ok().filter(|_| all_digits)
        });
    let first = lengths.next()??;
    lengths.all(|length| length == Some(first)).then_some(first)
}

/// Returns whether the connection outlives the reply.
fn keeps_alive(headers: &HeaderMap, version: Version) -> bool {
    let named =
        |option: &str| tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(option));
    !named("close") && (version == Version::HTTP_11 || named("keep-alive"))
}

/// Returns the elements of a list field.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .flat_map(|value| value.to_str().unwrap_or_default().split(','))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The framing of a reply with these fields to a request of this method.
    fn framing(method: Method, head: &str) -> Result<(ReplyDecoder, bool), InvalidReply> {
        let bytes = Bytes::from(format!("{head}\r\n\r\n"));
        let (head, rest) = parse(bytes, &method)?.expect("a whole head");
        assert_eq!(rest, "");
        Ok((head.decoder, head.keeps_alive))
    }

    #[test]
    fn the_body_is_framed_by_its_length_by_chunks_or_by_the_end_of_the_connection() {
        let (length, chunked) = (ReplyDecoder::length, ReplyDecoder::chunked);
        for (fields, decoder, keeps_alive) in [
            ("content-length: 5", length(5), true),
            ("content-length: 5, 5\r\nContent-Length: 5", length(5), true),
            ("content-length: 0\r\nconnection: Close", length(0), false),
            ("transfer-encoding: chunked", chunked(), true),
            (
                "transfer-encoding: gzip\r\nTransfer-Encoding: x, Chunked",
                chunked(),
                true,
            ),
            (
                "transfer-encoding: chunked, gzip",
                ReplyDecoder::until_close(),
                false,
            ),
            ("x: y", ReplyDecoder::until_close(), false),
        ] {
            let head = format!("HTTP/1.1 200 OK\r\n{fields}");
            assert_eq!(
                framing(Method::POST, &head),
                Ok((decoder, keeps_alive)),
                "{fields}"
            );
        }
    }

    #[test]
    fn a_reply_that_has_no_body_by_its_status_or_method_ends_with_its_head() {
        let none = ReplyDecoder::length(0);
        for status in ["204 No Content", "304 Not Modified"] {
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: 5");
            assert_eq!(framing(Method::POST, &head), Ok((none.clone(), true)));
        }
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked";
        assert_eq!(framing(Method::HEAD, head), Ok((none, true)));
    }

    #[test]
    fn a_connection_of_http_1_0_is_kept_only_if_the_worker_says_so() {
        for (fields, keeps_alive) in [
            ("x: y", false),
            ("connection: keep-alive", true),
            ("connection: keep-alive, close", false),
        ] {
            let head = format!("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n{fields}");
            let (_, kept) = framing(Method::POST, &head).expect("a reply");
            assert_eq!(kept, keeps_alive, "{fields}");
        }
    }

    #[test]
    fn a_reply_whose_length_is_unclear_is_refused() {
        for (version, fields) in [
            ("1.1", "content-length: 5\r\ncontent-length: 6"),
            ("1.1", "content-length: +5"),
            ("1.1", "content-length: "),
            ("1.1", "content-length: 99999999999999999999"),
            ("1.0", "transfer-encoding: chunked"),
        ] {
            let head = format!("HTTP/{version} 200 OK\r\n{fields}");
            assert_eq!(
                framing(Method::POST, &head),
                Err(InvalidReply::Framing),
                "{fields}"
            );
        }
    }

    #[test]
    fn interim_replies_are_skipped_and_a_change_of_protocol_is_not_one() {
        let interim = "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n";
        let whole = format!("{interim}{interim}HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx");
        let parsed = parse(Bytes::from(whole), &Method::POST);
        let (head, rest) = parsed.expect("valid").expect("complete");
        assert_eq!((head.parts.status, &*rest), (StatusCode::OK, &b"x"[..]));
        assert_eq!(head.parts.headers.len(), 1);
        assert!(parse(Bytes::from(interim), &Method::POST).is_ok_and(|head| head.is_none()));
        let upgrade = "HTTP/1.1 101 Switching Protocols";
        assert_eq!(
            framing(Method::POST, upgrade),
            Ok((ReplyDecoder::length(0), false))
        );
    }
}
