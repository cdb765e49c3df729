//! Requests and the text of their prompts.
//!
//! Three quarters of a long prompt are one of 32 documents and the rest is new in each request: the repeated beginnings
//! that a router which knows caches looks for.

use crate::Load;

pub(crate) const SMALLEST_PROMPT: usize = 1_024;
pub(crate) const LARGEST_PROMPT: usize = 1024 * 1024;
const TEXT_BYTES: usize = 4 * LARGEST_PROMPT;
const DOCUMENTS: u64 = 32;
/// Bytes between the beginnings of two documents.
const DOCUMENT_STEP: usize = 40_009;

/// Numbers that are the same in every run (xorshift).
#[derive(Debug)]
pub(crate) struct RandomNumbers(u64);

impl RandomNumbers {
    pub(crate) fn of_connection(number: u32) -> Self {
        let mut random = Self(0xABC_DEF1_2345 + u64::from(number) * 7_919);
        // The first numbers of near seeds are alike.
        for _ in 0..5 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap_or(0)
    }
}

/// Words of random letters as a JSON string holds them, with an escaped line feed about every 80 bytes.
#[derive(Debug)]
pub(crate) struct PromptText(Vec<u8>);

impl PromptText {
    pub(crate) fn generate() -> Self {
        let mut random = RandomNumbers(0x9E37_79B9_7F4A_7C15);
        let mut text = Vec::with_capacity(TEXT_BYTES + 16);
        let mut line = 0;
        while text.len() < TEXT_BYTES {
            let letters = 2 + random.below(8);
            text.extend((0..letters).map(|_| b'a' + (random.next() % 26) as u8));
            line += letters + 1;
            if line > 80 {
                text.extend_from_slice(b"\\n");
                line = 0;
            } else {
                text.push(b' ');
            }
        }
        Self(text)
    }

    /// About `bytes` bytes from about `start`, from one space to another, so that no escape is cut.
    fn part(&self, start: usize, bytes: usize) -> &[u8] {
        let space_from = |at: usize| {
            let space = memchr::memchr(b' ', &self.0[at..]);
            space.map_or(self.0.len(), |distance| at + distance)
        };
        let start = space_from(start);
        let end = space_from((start + bytes).min(self.0.len()));
        &self.0[start..end]
    }
}

/// Writes a whole request, head and body.
pub(crate) fn write_request(load: &Load, random: &mut RandomNumbers, request: &mut Vec<u8>) {
    let mut body = Vec::with_capacity(load.prompt + 512);
    body.extend_from_slice(
        b"{\"model\":\"fake\",\"messages\":[{\"role\":\"system\",\"content\":\"You are helpful.\"},\
          {\"role\":\"user\",\"content\":\"",
    );
    if load.prompt == 0 {
        let number = random.next() % 100_000;
        body.extend_from_slice(format!("Say hello number {number}, please.").as_bytes());
    } else {
        write_long_prompt(load, random, &mut body);
    }
    let stream = if load.streamed {
        ",\"stream\":true"
    } else {
        ""
    };
    let end = format!(
        "\"}}],\"temperature\":0.7,\"max_tokens\":{}{stream}}}",
        load.tokens
    );
    body.extend_from_slice(end.as_bytes());
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{}\r\nuser-agent: bench-load\r\naccept: */*\r\n\
         authorization: Bearer sk-bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        load.port,
        body.len()
    );
    request.clear();
    request.extend_from_slice(head.as_bytes());
    request.extend_from_slice(&body);
}

fn write_long_prompt(load: &Load, random: &mut RandomNumbers, body: &mut Vec<u8>) {
    let shared = load.prompt * 3 / 4;
    let document = usize::try_from(random.next() % DOCUMENTS).unwrap_or(0);
    let start = document * DOCUMENT_STEP % (TEXT_BYTES / 2);
    body.extend_from_slice(load.text.part(start, shared));
    body.extend_from_slice(format!(" {:x} ", random.next()).as_bytes());
    let start = random.below(TEXT_BYTES - load.prompt - 64);
    body.extend_from_slice(load.text.part(start, load.prompt - shared - 40));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_body_is_json_of_about_the_wanted_size() {
        for prompt in [0, SMALLEST_PROMPT, 32_768, LARGEST_PROMPT] {
            let load = Load {
                port: 1,
                prompt,
                streamed: true,
                gaps: false,
                tokens: 1,
                text: PromptText::generate(),
                statistics: Default::default(),
            };
            let mut random = RandomNumbers::of_connection(3);
            let mut request = Vec::new();
            for _ in 0..20 {
                write_request(&load, &mut random, &mut request);
                let request = std::str::from_utf8(&request).unwrap();
                let (_, body) = request.split_once("\r\n\r\n").unwrap();
                let _: serde_json::Value = serde_json::from_str(body).unwrap();
                assert!(body.len().abs_diff(prompt) < 300, "{} bytes", body.len());
            }
        }
    }
}
