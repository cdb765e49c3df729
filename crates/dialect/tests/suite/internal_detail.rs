//! Details of a server in the text of its error.

use contract_id::contract;
use dialect::{InternalDetail, KnownText, StreamChunk};
use proptest::prelude::*;

use InternalDetail::{Address, Path, Pointer, StackTrace};

const SERVER: &str = "engine-0.internal:8000";

/// The detail in this error for the client that sent this request.
fn internal_detail(text: &[u8], request: &[u8], server: &str) -> Option<InternalDetail> {
    let known = KnownText {
        request,
        ..KnownText::default()
    };
    dialect::internal_detail(text, known, server)
}

/// The detail in an error with this message, written as JSON.
fn found(message: &str) -> Option<InternalDetail> {
    let error = serde_json::json!({"object": "error", "message": message, "code": 400});
    internal_detail(error.to_string().as_bytes(), b"{}", SERVER)
}

#[test]
#[contract("S71")]
fn each_kind_of_detail_is_found_in_the_errors_of_engines() {
    for (message, detail) in [
        ("<vllm.Request object at 0x7f3a5c001240>", Pointer),
        ("at\n0xDEADBEEF", Pointer),
        ("block=0x00000000", Pointer),
        ("Traceback (most recent call last):\n  ...", StackTrace),
        (
            "boom\n  File \"<frozen importlib>\", line 7, in load",
            StackTrace,
        ),
        ("  File \"server.py\", line 57", StackTrace),
        ("CUDA error (most recent call first):", StackTrace),
        ("frame #0: c10::Error::Error", StackTrace),
        ("stack backtrace:\n   0: main", StackTrace),
        ("no such file: '/usr/local/lib/libc10.so'", Path),
        ("cannot open\n/home/vllm/.cache/x.", Path),
        ("cannot open\t/models/llama/model-00001.safetensors", Path),
        ("failed at (/app/csrc/ops.cu:31)", Path),
        ("in lib/python3.12/site-packages/torch/x", Path),
        ("file:///etc/passwd is not allowed", Path),
        ("path:/sgl-workspace/sglang", Path),
        ("cannot reach 10.0.0.7:29500", Address),
        ("cannot reach http://192.168.1.9/v1", Address),
        ("cannot reach 172.16.0.1.", Address),
        ("cannot reach tcp://172.31.255.255:1", Address),
        ("bound\n127.0.0.1:5557", Address),
        ("[::1]:8000 refused", Address),
        ("[fd00::7] refused", Address),
        ("[fe80::1]:80 refused", Address),
        ("[::ffff:10.0.0.7]:80 refused", Address),
        ("localhost:8000 refused", Address),
        ("engine-0.internal:8000 refused", Address),
    ] {
        assert_eq!(found(message), Some(detail), "{message}");
        // The same as plain text.
        let plain = internal_detail(message.as_bytes(), b"", SERVER);
        assert_eq!(plain, Some(detail), "{message}");
    }
}

#[test]
#[contract("S71")]
fn texts_that_are_for_clients_have_no_detail() {
    for message in [
        "",
        "max_tokens must be at least 1, got -1.",
        "This model's maximum context length is 4096 tokens. However, you requested 5000.",
        "The model `llama` does not exist.",
        "color #0x1234567, mask 0x00",
        "0x, 0xg1234567",
        "most recent call last",
        "see File \"notes\", page 4",
        "File \"x\", line x",
        "use POST /v1/chat/completions or /v1/files/a-b/content",
        "and/or, 1/2, image/png, application/json",
        "see https://docs.vllm.ai/home/usage and http://example.com/usr/lib/x.py",
        "the template ./chat/usr/a.jinja, ~/home/x",
        "/usr/",
        "/usr",
        "public 8.8.8.8:53, 172.15.0.1, 172.32.0.1, 192.169.0.1, 11.0.0.1, 110.0.0.7",
        "versions 10.0.7, v10.0.0.7, 10.0.0.7rc1, 10.0.0.7.1, 10.0.0.700, 10.0.0",
        "index [1], [::], [2001:db8::1]:80, [a], []",
        "localhost, localhost:x, engine-0.internal, engine-0.internal:800",
    ] {
        assert_eq!(found(message), None, "{message}");
    }
    for repeated in ["10.", "0x", "/", "[", "File \"", "localhost:"] {
        assert_eq!(found(&repeated.repeat(1000)), None, "{repeated}");
    }
}

#[test]
#[contract("S71")]
fn what_stands_in_the_clients_request_is_no_detail() {
    let message = "bad prompt: Traceback (most recent call last):\n  File \"/home/me/a.py\", line 3\n\
                   at 0x7f3a5c001240, 10.0.0.7:80, [::1]:80, localhost:80, /home/me/a.py.";
    let text = serde_json::json!({ "message": message }).to_string();
    let request = serde_json::json!({"messages": [{"role": "user", "content": message}]});
    let request = request.to_string();
    let detail = |request: &str| internal_detail(text.as_bytes(), request.as_bytes(), SERVER);
    assert_eq!(detail(&request), None);
    // One of them is the server's own.
    for (own, found) in [
        ("0x7f3a5c001240", Pointer),
        ("(most recent call last)", StackTrace),
        (", line 3", StackTrace),
        ("10.0.0.7:80", Address),
        ("[::1]:80", Address),
        ("localhost:80", Address),
    ] {
        assert_eq!(detail(&request.replace(own, "")), Some(found), "{own}");
    }
}

#[test]
#[contract("S71")]
fn what_stands_in_a_request_with_escaped_slashes_is_no_detail() {
    let text = br#"{"message":"bad prompt: /home/me/a.py"}"#;
    for (request, detail) in [
        (r#"{"prompt":"read \/home\/me\/a.py"}"#, None),
        (r#"{"prompt":"read \/home\/me"}"#, Some(Path)),
    ] {
        let found = internal_detail(text, request.as_bytes(), SERVER);
        assert_eq!(found, detail, "{request}");
    }
}

#[test]
#[contract("S71")]
fn the_name_of_a_model_is_no_detail_even_if_it_is_a_path() {
    let detail = |message: &str| {
        let known = KnownText {
            models: &["m", "/mnt/models/llama"],
            ..KnownText::default()
        };
        dialect::internal_detail(message.as_bytes(), known, SERVER)
    };
    assert_eq!(detail("`/mnt/models/llama` does not exist."), None);
    assert_eq!(detail("no /mnt/models/llama/config"), Some(Path));
    assert_eq!(detail("no /mnt/adapters/llama"), Some(Path));
}

#[test]
#[contract("S71")]
fn a_text_that_repeats_too_much_to_be_looked_up_has_a_detail() {
    let pointers = |count: u32| {
        let each = (0..count).map(|n| format!("0x{n:08x}"));
        each.collect::<Vec<_>>().join(" ")
    };
    let with_rest = |text: &str, rest: usize| [text, &" ".repeat(rest)].concat();
    for (count, rest, detail) in [
        (8, 4 << 20, None),
        (9, 4 << 20, Some(Pointer)),
        // There is time for more in a short request.
        (1000, 0, None),
    ] {
        let text = pointers(count);
        let request = with_rest(&text, rest);
        assert_eq!(
            internal_detail(text.as_bytes(), request.as_bytes(), SERVER),
            detail,
            "{count}"
        );
    }
    let same = "0x12345678 ".repeat(100);
    assert_eq!(
        internal_detail(same.as_bytes(), b"0x12345678", SERVER),
        None
    );
}

#[test]
#[contract("S71")]
fn a_servers_name_without_a_port_may_be_that_of_a_service() {
    for server in ["api.example.com", "", ":80", "api.example.com:"] {
        let text = b"see api.example.com: or :80";
        assert_eq!(internal_detail(text, b"", server), None, "{server}");
    }
}

#[test]
#[contract("S71")]
fn the_error_of_an_event_is_searched_and_the_text_of_its_reply_is_not() {
    let detail = |event: &str| {
        let chunk = StreamChunk::read(event.as_bytes());
        chunk.expect("an object").error_detail()
    };
    for (event, found) in [
        (
            r#"{"error":{"message":"at 0x7f3a5c001240"}}"#,
            Some(Pointer),
        ),
        (r#"{"error":"/usr/lib/x"}"#, Some(Path)),
        (
            r#"{"type":"response.failed","response":{"error":{"message":"10.0.0.7"},"output":[]}}"#,
            Some(Address),
        ),
        (
            r#"{"error":{"message":"out of memory"},"about":"/usr/lib/x"}"#,
            None,
        ),
        (r#"{"choices":[{"delta":{"content":"/usr/lib/x"}}]}"#, None),
        (r#"{"error":null,"text":"/usr/lib/x"}"#, None),
    ] {
        assert_eq!(detail(event), found, "{event}");
    }
}

/// Text of which details are made, in any order.
const PIECES: [&str; 20] = [
    "0x",
    "12345678",
    "/",
    "usr/",
    "/home/",
    ".py",
    "File ",
    "\"",
    "\\",
    ", line ",
    "7",
    "10.",
    "0.0.7",
    ".",
    ":",
    "[",
    "]",
    "::1",
    "localhost",
    "\n",
];

proptest! {
    #[test]
    fn no_text_makes_the_search_panic_and_none_has_a_detail_that_its_client_sent(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..24),
        bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let text = pieces.concat();
        let _ = internal_detail(&bytes, text.as_bytes(), SERVER);
        let _ = internal_detail(text.as_bytes(), &bytes, &text);
        prop_assert_eq!(internal_detail(text.as_bytes(), text.as_bytes(), ""), None);
    }
}
