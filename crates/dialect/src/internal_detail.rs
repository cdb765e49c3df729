//! Finds details of a server in the text of its error: pointers, stack traces, paths, addresses.
//!
//! The rules are few, and find what a text for a client does not contain: a text that they find is
//! withheld as a whole. A client's own text may have all of it, and an engine may repeat that text,
//! so what stands in the client's request is no detail. Nor is the name of a model, which is the
//! path of its files where an engine was given no other.
//!
//! **Invariant**: the work grows with the text and not faster, and what is searched of the client's
//! text, over all pieces, is at most [`MOST_SEARCHED`] bytes and one piece more.

use std::{
    collections::HashSet,
    net::{Ipv4Addr, Ipv6Addr},
};

use memchr::{memchr, memchr_iter, memmem};

/// The kind of a detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InternalDetail {
    /// An address in a process's memory.
    Pointer,
    /// A stack trace, or a line of one.
    StackTrace,
    /// An absolute path of a file.
    Path,
    /// An address in a private network, of this machine, or of the worker.
    Address,
}

impl InternalDetail {
    /// Returns its name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pointer => "a pointer",
            Self::StackTrace => "a stack trace",
            Self::Path => "a path",
            Self::Address => "an address",
        }
    }
}

/// Bytes of what the client knows that are searched, summed over the pieces of the text that are
/// looked up in it: some milliseconds. A message about a prompt can repeat a whole conversation
/// about files.
const MOST_SEARCHED: usize = 32 * 1024 * 1024;
/// Fewest digits of a pointer.
const POINTER_DIGITS: usize = 8;
/// Longest name of a file in a line of a stack trace.
const LONGEST_FILE_NAME: usize = 512;
/// Longest IPv4 address.
const LONGEST_IPV4: usize = 15;
/// Longest IPv6 address, with the bracket behind it.
const LONGEST_IPV6: usize = 48;

/// Text of stack traces, of Python, C++ and Rust.
const TRACE_MARKS: [&str; 4] = [
    "(most recent call last)",
    "(most recent call first)",
    "frame #0: ",
    "stack backtrace:",
];
/// Beginnings of paths that are those of a file system, and no route of an API.
const ROOTS: [&str; 17] = [
    "/dev/",
    "/etc/",
    "/home/",
    "/lib/",
    "/lib64/",
    "/mnt/",
    "/opt/",
    "/proc/",
    "/root/",
    "/srv/",
    "/sys/",
    "/tmp/",
    "/usr/",
    "/var/",
    "/workspace/",
    "/sgl-workspace/",
    "/vllm-workspace/",
];
/// Folders of Python's packages.
const PACKAGES: [&str; 2] = ["/site-packages/", "/dist-packages/"];
/// Ends of paths of programs and models.
const SUFFIXES: [&str; 8] = [
    ".py",
    ".so",
    ".cpp",
    ".cc",
    ".cu",
    ".rs",
    ".gguf",
    ".safetensors",
];
/// Beginnings of IPv4 addresses that may be private.
const PRIVATE_BEGINNINGS: [&str; 4] = ["10.", "127.", "172.", "192.168."];

/// Text that the client has: what an error repeats of it is no detail.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownText<'a> {
    /// The body of its request.
    pub request: &'a [u8],
    /// Names of models.
    pub models: &'a [&'a str],
}

/// Returns the first detail of a server in `text`, the text of its error. `server`: the host of the
/// server with its port.
///
/// ```
/// use dialect::{InternalDetail, KnownText, internal_detail};
///
/// let error = br#"{"message":"<Request object at 0x7f3a5c001240> failed"}"#;
/// let known = KnownText::default();
/// assert_eq!(internal_detail(error, known, "engine:8000"), Some(InternalDetail::Pointer));
/// let request = br#"{"prompt":"What is at 0x7f3a5c001240?"}"#;
/// let known = KnownText { request, ..known };
/// assert_eq!(internal_detail(error, known, "engine:8000"), None);
/// ```
pub fn internal_detail(text: &[u8], known: KnownText<'_>, server: &str) -> Option<InternalDetail> {
    let mut client = ClientText::of(known);
    if client.lacks_any(pointers(text)) {
        return Some(InternalDetail::Pointer);
    }
    if client.lacks_any(trace_marks(text)) || client.lacks_any(trace_lines(text)) {
        return Some(InternalDetail::StackTrace);
    }
    if client.lacks_any(paths(text)) {
        return Some(InternalDetail::Path);
    }
    let is_private = client.lacks_any(private_ipv4(text))
        || client.lacks_any(private_ipv6(text))
        || client.lacks_any(local_ports(text))
        || client.lacks_any(servers(text, server));
    is_private.then_some(InternalDetail::Address)
}

/// What the client knows, in which details are looked up.
struct ClientText<'a> {
    known: KnownText<'a>,
    /// What was found in it.
    repeated: HashSet<&'a [u8]>,
    /// Its length.
    length: usize,
    /// Bytes of it that have been searched.
    searched: usize,
}

impl<'a> ClientText<'a> {
    fn of(known: KnownText<'a>) -> Self {
        let models = known.models.iter().map(|model| model.len());
        let length = known.request.len() + models.sum::<usize>();
        Self {
            known,
            repeated: HashSet::new(),
            length,
            searched: 0,
        }
    }

    /// Returns whether one of these is not known to the client, or too many are to look.
    fn lacks_any(&mut self, mut details: impl Iterator<Item = &'a [u8]>) -> bool {
        details.any(|detail| self.lacks(detail))
    }

    fn lacks(&mut self, detail: &'a [u8]) -> bool {
        if self.repeated.contains(detail) {
            return false;
        }
        if self.searched >= MOST_SEARCHED {
            return true;
        }
        self.searched += self.length * self.known.passes(detail);
        if !self.known.has(detail) {
            return true;
        }
        self.repeated.insert(detail);
        false
    }
}

impl KnownText<'_> {
    fn has(&self, detail: &[u8]) -> bool {
        let stands_in = |text: &[u8]| memmem::find(text, detail).is_some();
        stands_in(self.request)
            || self.models.iter().any(|model| stands_in(model.as_bytes()))
            || self.has_escaped(detail)
    }

    /// Returns how often the text is searched for it at most.
    fn passes(&self, detail: &[u8]) -> usize {
        1 + usize::from(detail.contains(&b'/'))
    }

    /// Returns whether the request has it with escaped slashes, as PHP writes JSON.
    fn has_escaped(&self, detail: &[u8]) -> bool {
        let parts: Vec<&[u8]> = detail.split(|byte| *byte == b'/').collect();
        parts.len() > 1 && memmem::find(self.request, &parts.join(&br"\/"[..])).is_some()
    }
}

/// Finds `0x` with at least eight hexadecimal digits.
fn pointers(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    memmem::find_iter(text, "0x").filter_map(move |at| {
        let digits = count(&text[at + 2..], |byte| byte.is_ascii_hexdigit());
        (digits >= POINTER_DIGITS).then(|| &text[at..at + 2 + digits])
    })
}

fn trace_marks(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    TRACE_MARKS.into_iter().flat_map(move |mark| {
        memmem::find_iter(text, mark).map(move |at| &text[at..at + mark.len()])
    })
}

/// Finds `File "NAME", line N`, also with the quotation marks as JSON escapes them.
fn trace_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    memmem::find_iter(text, "File ").filter_map(move |at| {
        let rest = &text[at + "File ".len()..];
        let opening = 1 + usize::from(rest.starts_with(b"\\"));
        if rest.get(opening - 1) != Some(&b'"') {
            return None;
        }
        let name = &rest[opening..];
        let closing = memchr(b'"', &name[..name.len().min(LONGEST_FILE_NAME)])?;
        let line = name[closing + 1..].strip_prefix(b", line ")?;
        let digits = count(line, |byte| byte.is_ascii_digit());
        let end = text.len() - line.len() + digits;
        (digits > 0).then(|| &text[at..end])
    })
}

/// Finds absolute paths of files.
fn paths(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut end = 0;
    memchr_iter(b'/', text).filter_map(move |at| {
        // It is inside the last path.
        if at < end {
            return None;
        }
        end = at + count(&text[at..], is_of_path);
        path_of_file(&text[at..end], begins_word(text, at, b"_.-+@%~"))
    })
}

/// Returns the path without the end of its sentence, if it is one of a file; `begins`: nothing
/// belongs to it that stands before it.
fn path_of_file(path: &[u8], begins: bool) -> Option<&[u8]> {
    let path = without_dots(path);
    let contains = |folder: &&str| memmem::find(path, folder.as_bytes()).is_some();
    if PACKAGES.iter().any(contains) {
        return Some(path);
    }
    // An address of the web, unless its scheme is that of files.
    let local = path.strip_prefix(b"//").unwrap_or(path);
    if !begins || !local.starts_with(b"/") || local.starts_with(b"//") {
        return None;
    }
    let is_below = |root: &&str| local.len() > root.len() && local.starts_with(root.as_bytes());
    let has_suffix = |suffix: &&str| local.ends_with(suffix.as_bytes());
    let is_file = ROOTS.iter().any(is_below) || SUFFIXES.iter().any(has_suffix);
    is_file.then_some(path)
}

fn is_of_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/_.-+@".contains(&byte)
}

/// Finds IPv4 addresses of private networks and of this machine, with their ports.
fn private_ipv4(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let beginnings = PRIVATE_BEGINNINGS.into_iter();
    let found = beginnings.flat_map(move |beginning| memmem::find_iter(text, beginning));
    found.filter_map(move |at| {
        // One byte more tells whether it ends.
        let near = &text[at..text.len().min(at + LONGEST_IPV4 + 1)];
        let length = count(near, |byte| byte.is_ascii_digit() || byte == b'.');
        let address = without_dots(&near[..length]);
        let follows = text.get(at + address.len());
        if !begins_word(text, at, b".") || follows.is_some_and(u8::is_ascii_alphabetic) {
            return None;
        }
        let parsed: Ipv4Addr = std::str::from_utf8(address).ok()?.parse().ok()?;
        let is_private = parsed.is_private() || parsed.is_loopback();
        is_private.then(|| with_port(text, at, at + address.len()))
    })
}

/// Finds IPv6 addresses in brackets, of private networks, one link or this machine, with their
/// ports.
fn private_ipv6(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    memchr_iter(b'[', text).filter_map(move |at| {
        let rest = &text[at + 1..];
        let length = memchr(b']', &rest[..rest.len().min(LONGEST_IPV6)])?;
        let address: Ipv6Addr = std::str::from_utf8(&rest[..length]).ok()?.parse().ok()?;
        let is_private =
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local();
        is_private.then(|| with_port(text, at, at + length + 2))
    })
}

/// Finds ports of this machine.
fn local_ports(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    const HOST: &str = "localhost";
    memmem::find_iter(text, HOST).filter_map(move |at| {
        let found = with_port(text, at, at + HOST.len());
        (found.len() > HOST.len()).then_some(found)
    })
}

/// Finds the host of the server, where it has a port: a name alone may be that of a service.
fn servers<'a>(text: &'a [u8], server: &str) -> impl Iterator<Item = &'a [u8]> {
    let has_port = server.rsplit_once(':').is_some_and(|(host, port)| {
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        is_number && !host.is_empty()
    });
    let found = memmem::find(text, server.as_bytes()).filter(|_| has_port);
    let found = found.map(|at| &text[at..at + server.len()]);
    found.into_iter()
}

/// Returns the text from `at` to `end`, with the port behind it, if there is one.
fn with_port(text: &[u8], at: usize, end: usize) -> &[u8] {
    let port = text[end..].strip_prefix(b":");
    let digits = port.map_or(0, |port| count(port, |byte| byte.is_ascii_digit()));
    let end = if digits > 0 { end + 1 + digits } else { end };
    &text[at..end]
}

/// Returns the text without the dots at its end, which are those of a sentence.
fn without_dots(text: &[u8]) -> &[u8] {
    let last = text.iter().rposition(|byte| *byte != b'.');
    &text[..last.map_or(0, |last| last + 1)]
}

/// Returns whether a word begins here: before it is neither a letter, a digit nor one of `inner`.
/// The letter of an escape in JSON belongs to no word.
fn begins_word(text: &[u8], at: usize, inner: &[u8]) -> bool {
    match &text[..at] {
        [.., b'\\', b'n' | b'r' | b't'] | [] => true,
        [.., before] => !before.is_ascii_alphanumeric() && !inner.contains(before),
    }
}

/// Counts the first bytes that are all of a kind.
fn count(text: &[u8], is_of_kind: impl Fn(u8) -> bool) -> usize {
    let other = text.iter().position(|byte| !is_of_kind(*byte));
    other.unwrap_or(text.len())
}
