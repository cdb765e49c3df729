//! Texts on which the two libraries are compared when a model is loaded.
//!
//! Each probe covers a difference between current tokenizers: word ends, composed characters,
//! grouping of digits, the length of a run, the reach of a special token, and the sizes at which
//! the fast library changes its algorithm.

use super::added_token::AddedToken;

/// Combinations of words, signs and marks.
const PLAIN: [&str; 112] = [
    "",
    " ",
    "  ",
    "   a",
    "a   ",
    "a  b   c    d",
    "\t",
    "\t\tx\t y",
    "\n",
    "\n\n\n",
    "a\nb\n\nc\n\n\nd",
    "a \n b",
    "a\n  b",
    "  \n  ",
    "\r",
    "\r\n",
    "a\r\nb\r\n\r\nc",
    "a\rb",
    " \t\n \t\n",
    "trailing space ",
    "trailing newline\n",
    "\u{a0}a\u{a0}b",
    "a\u{2003}b\u{2003}",
    "a\u{3000}b\u{3000}\u{3000}c",
    "a\u{200b}b",
    "\u{feff}mark",
    "a\u{85}b\u{2028}c\u{2029}d",
    "\u{b}\u{c}\u{1c}\u{1d}",
    "a\0b",
    "\u{1}\u{7f}\u{80}\u{9f}",
    "hello world",
    "Hello, World!",
    "HELLO WORLD",
    "hELLO wORLD",
    "camelCaseWord and PascalCaseWord and HTTPServer2Go",
    "snake_case_word __init__ _x_",
    "kebab-case-word --flag -x",
    "don't I'll we've they're I'm he'd it's",
    "DON'T I'LL WE'VE THEY'RE I'M HE'D IT'S",
    "'s 't 're 've 'm 'll 'd",
    "'S'T'RE'VE",
    "rock'n'roll o'clock 'quoted' ''",
    "’s don’t ‘quoted’ “double”",
    "\u{17f}'\u{17f} \u{212a}",
    "0",
    "00",
    "007",
    "1234567890",
    "12345678901234567890123",
    "1,234,567.89",
    "3.14159e-10 0xDEADBEEF 0b1010 1_000",
    "a1b22c333d4444",
    "2026-11-20T20:15:30Z",
    "192.168.0.1:8080 ::1 fe80::1",
    "٣٤٥ १२३ ๔๕ Ⅳ ½ ² ₃ ①",
    "!",
    "!!!???...",
    "a!b?c.d,e;f:g",
    " ! \" # $ % & ' ( ) * + , - . / : ; < = > ? @ [ \\ ] ^ _ ` { | } ~",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "...\n",
    "!!!\r\n\r\n",
    ")\n\n(",
    " .\n .\n",
    "/a/b/c //x ///",
    "§ € £ ¥ © ® ™ ° ± × ÷",
    "— – ‐ … · • ‣",
    "→ ⇒ ∀x∈ℝ: ∑ √ ∞ ≠ ≤",
    "fn main() { println!(\"{}\", 1 + 2); }",
    "def f(x):\n    if x:\n        return x ** 2\n    # done\n",
    "for (int i = 0; i < n; ++i) {\n\ta[i] = b[i] & 0xff;\n}\n",
    "SELECT * FROM t WHERE a <> 'b' AND c IS NOT NULL;",
    "<div class=\"a\">&amp;<br/></div>",
    "{\"a\": [1, 2.5, null, true], \"b\\n\": \"\\u00e9\"}",
    "# Title\n\n- item\n- *item*\n  1. `code`\n\n```rust\nlet x = 1;\n```\n",
    "| a | b |\n|---|:-:|\n| 1 | 2 |",
    "https://example.org/path?q=1&r=%20#frag user@example.org",
    "key: value\nlist:\n  - a\n  - b\n",
    "$PATH ${HOME} $(ls) `pwd` && || > >> 2>&1",
    "\\frac{a}{b} $x_i^2$ \\alpha",
    "naïve café résumé Ångström",
    "nai\u{308}ve cafe\u{301} A\u{30a}ngstro\u{308}m",
    "e\u{301}\u{327} e\u{327}\u{301}",
    "\u{301}lone mark",
    "a\u{301}\u{301}\u{301}b",
    "Straße GROẞ ﬁne ﬀ ŉ ǆ",
    "İstanbul ıI",
    "Привет, как дела? ЁЖ",
    "Γειά σου Κόσμε ΣΊΣΥΦΟΣ",
    "שלום עולם שָׁלוֹם",
    "مرحبا بالعالم اَلْعَرَبِيَّة ﷺ",
    "नमस्ते दुनिया क्षत्रिय",
    "สวัสดีชาวโลก",
    "ကမ္ဘာလောက ខ្មែរ",
    "你好，世界！这是一个测试。",
    "繁體中文與简体中文",
    "日本語のテキスト、カタカナとひらがな。",
    "ｆｕｌｌ　ｗｉｄｔｈ ﾊﾝｶｸ",
    "안녕하세요 세계",
    "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}",
    "混合mixed文字text中1英2",
    "𠮷野家 𝒜𝓑𝒸 𝟘𝟙𝟚",
    "😀😃 😄text😁 a😆",
    "👨\u{200d}👩\u{200d}👧\u{200d}👦 👩🏽\u{200d}💻",
    "🇩🇪🇫🇷🇯🇵 1\u{fe0f}\u{20e3} ❤\u{fe0f}",
    "👍🏻👍🏿 🏴\u{e0067}\u{e0062}\u{e007f}",
    "\u{200d}\u{200c}\u{2060}",
    "\u{e000}\u{f8ff}\u{10ffff}\u{fffd}",
    "\u{202e}rtl\u{202c}",
    "<|nothing|> <|im_start <|im_end|",
    "▁under ▁▁ Ġword Ċ",
    "<0x0A> <unk> [UNK]",
];

/// Texts repeated at the lengths where word boundaries, stacks and tables change.
const REPEATED: [&str; 14] = [
    "a",
    "ab",
    " ",
    "\n",
    "\t",
    "\r\n",
    "1",
    "^",
    "-",
    "'s",
    "é",
    "e\u{301}",
    "日",
    "👨\u{200d}",
];
const REPEATS: [usize; 5] = [15, 17, 127, 130, 1_000];

/// Number of vocabulary tokens tried in contexts.
const ADDED: usize = 512;

/// Length of long texts: past the sizes at which the fast library uses its cache and several
/// threads.
const LONG_BYTES: usize = 9 << 10;
const SPREAD_BYTES: usize = 72 << 10;

/// Returns every probe, including those made of the model's own tokens and of `vocabulary`.
pub(super) fn all(added: &[AddedToken], vocabulary: &[String]) -> Vec<String> {
    let mut probes: Vec<String> = PLAIN.into_iter().map(str::to_owned).collect();
    probes.extend(
        REPEATED
            .iter()
            .flat_map(|text| REPEATS.map(|times| format!("x{}y", text.repeat(times)))),
    );
    probes.extend(
        added
            .iter()
            .take(ADDED)
            .map(|token| in_context(&token.content)),
    );
    probes.extend_from_slice(vocabulary);
    let prose = prose(SPREAD_BYTES);
    let head = &prose[..prose.floor_char_boundary(LONG_BYTES)];
    // Texts with a common beginning, one after the other: cached parts of the first may not leak
    // into the second.
    probes.extend(["", "s", "\n\n", "\u{301}"].map(|tail| format!("{head}{tail}")));
    if let Some(token) = added.first() {
        probes.push(head.replace(". ", &format!(".{}", token.content)));
    }
    probes.push(prose);
    probes
}

/// Returns texts in which `tokens` are next to text that could reach across them.
pub(super) fn around_cuts(tokens: &[String]) -> Vec<String> {
    let mut probes: Vec<String> = tokens.iter().map(|token| in_context(token)).collect();
    for token in tokens {
        probes.push(PLAIN.join(token));
        probes.push(tokens.concat().repeat(3) + token);
    }
    probes
}

/// Returns a text with a token between letters, spaces, marks and similar tokens, whole and broken.
fn in_context(token: &str) -> String {
    let shorter = token
        .char_indices()
        .next_back()
        .map_or("", |(last, _)| &token[..last]);
    let (lower, upper) = (token.to_lowercase(), token.to_uppercase());
    format!(
        "{token}a{token}b {token} c\n{token}\n  {token}  {token}{token}\t{token}é\u{301}{token}\u{301}{token}1{token}.{shorter} {shorter}{token} {lower} {upper} _{token}_ '{token}'s"
    )
}

/// Returns text like that of prompts, of about this many bytes: paragraphs of words of many
/// scripts, numbers, code and marks. It is equal for every caller, and no part of it repeats
/// another, so that no cache distorts a measurement.
pub fn prose(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 128);
    let mut state = 0x9e37_79b9_u32;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % below
    };
    while text.len() < bytes {
        match draw(40) {
            0 => text.push_str(PLAIN[30 + draw(PLAIN.len() - 30)]),
            1 => text.push_str(&draw(100_000).to_string()),
            // A name outside every vocabulary.
            2 => {
                (0..4 + draw(6)).for_each(|_| text.push(char::from(b"aeioubcdfglmnprst"[draw(17)])))
            }
            _ => text.push_str(WORDS[draw(WORDS.len())]),
        }
        text.push_str(match draw(24) {
            0 => ", ",
            1 => ". ",
            2 => ".\n\n",
            3 => ":\n- ",
            _ => " ",
        });
    }
    text
}

/// Common words and some that are made of several tokens.
const WORDS: [&str; 96] = [
    "the",
    "of",
    "and",
    "to",
    "a",
    "in",
    "that",
    "is",
    "was",
    "for",
    "it",
    "with",
    "as",
    "be",
    "on",
    "by",
    "not",
    "this",
    "are",
    "or",
    "from",
    "at",
    "which",
    "but",
    "have",
    "an",
    "they",
    "you",
    "were",
    "there",
    "their",
    "one",
    "all",
    "we",
    "can",
    "has",
    "more",
    "when",
    "who",
    "will",
    "no",
    "if",
    "out",
    "so",
    "what",
    "time",
    "up",
    "into",
    "than",
    "them",
    "only",
    "some",
    "could",
    "these",
    "two",
    "other",
    "then",
    "do",
    "first",
    "any",
    "its",
    "about",
    "like",
    "make",
    "answer",
    "question",
    "document",
    "customer",
    "function",
    "return",
    "network",
    "scheduler",
    "throughput",
    "latency",
    "request",
    "response",
    "worker",
    "cache",
    "memory",
    "prefix",
    "following",
    "instructions",
    "summarise",
    "carefully",
    "translate",
    "paragraph",
    "information",
    "configuration",
    "implementation",
    "Berlin",
    "Tuesday",
    "assistant",
    "getUserName()",
    "self.value",
    "x_1",
    "e.g.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_hundreds_of_different_probes() {
        let token = AddedToken {
            content: "<|x|>".into(),
            single_word: false,
            literal: true,
        };
        let probes = all(&[token], &[]);
        let distinct: std::collections::HashSet<_> = probes.iter().collect();
        assert_eq!(distinct.len(), probes.len());
        assert!(probes.len() > 180, "{}", probes.len());
    }

    #[test]
    fn prose_has_the_given_length_and_does_not_repeat() {
        let text = prose(SPREAD_BYTES);
        assert!((SPREAD_BYTES..SPREAD_BYTES + 256).contains(&text.len()));
        let lines: std::collections::HashSet<_> = text.split("\n\n").collect();
        assert!(lines.len() > 300);
        assert!(text.matches("\n\n").count() < lines.len() * 11 / 10);
    }
}
