//! Converts that router's modes and their lists of workers.

use settings::{CheckUrl, Value, ValueError, ValueKind, ValueNode, kinds::PORT, word, word_or};

use super::{
    Conversion,
    urls::{any_url, pool_url},
};
use crate::{
    converted_config::ConvertedWorker,
    source_config::{SourceField, UnreadFields},
};

/// Values of `mode.type`; each mode has its lists of URLs.
const MODE: ValueKind = ValueKind::Word(&[
    word("regular"),
    word("openai"),
    word_or("vllm_prefill_decode", &["vllm_pd"]),
    word_or("prefill_decode", &["pd_disaggregation"]),
]);

const PAIR: &str = "[URL, bootstrap port or null], or a URL";

impl Conversion {
    pub(super) fn workers(&mut self, mode: &mut UnreadFields<'_>) {
        let Some(word) = self.given.required(mode, "type", &MODE.expected()) else {
            return;
        };
        match self.given.value(&word, &MODE) {
            Some(Value::Word("regular")) => self.pool(mode, "worker_urls", None, any_url),
            Some(Value::Word("openai")) => {
                self.pool(mode, "worker_urls", Some(("type", "openai")), any_url)
            }
            Some(theirs) => {
                if theirs == Value::Word("prefill_decode") {
                    // The mode of SGLang's engines.
                    self.set(
                        "disaggregation.connector",
                        "sglang".to_owned(),
                        &mode.place("type", Some(&word)),
                    );
                }
                self.prefill_pool(mode);
                self.pool(mode, "decode_urls", Some(("role", "decode")), pool_url);
            }
            None => {}
        }
    }

    fn pool(
        &mut self,
        mode: &mut UnreadFields<'_>,
        key: &str,
        word: Option<(&'static str, &'static str)>,
        check: CheckUrl,
    ) {
        let Some(urls) = self.given.required(mode, key, "a list of URLs") else {
            return;
        };
        for entry in self.given.items(&urls) {
            if let Some(url) = self.given.url(&entry, check) {
                self.ours.workers.push(ConvertedWorker {
                    url,
                    word,
                    ..ConvertedWorker::default()
                });
            }
        }
    }

    fn prefill_pool(&mut self, mode: &mut UnreadFields<'_>) {
        let Some(urls) = self
            .given
            .required(mode, "prefill_urls", &format!("a list of {PAIR}"))
        else {
            return;
        };
        for entry in self.given.items(&urls) {
            self.prefill_worker(&entry);
        }
    }

    fn prefill_worker(&mut self, entry: &SourceField<'_>) {
        let (url, port) = match &entry.value.node {
            ValueNode::Text(_) => (self.given.url(entry, pool_url), None),
            ValueNode::List(pair) if pair.len() == 2 => {
                let (url, port) = (entry.item(0, &pair[0]), entry.item(1, &pair[1]));
                let filled = !matches!(port.value.node, ValueNode::Null);
                let port = if filled {
                    self.given.value(&port, &PORT)
                } else {
                    None
                };
                (self.given.url(&url, pool_url), port)
            }
            _ => {
                let fault = ValueError::unusable(entry.value, &ValueKind::Free);
                self.given.refuse(entry, fault.expected(PAIR));
                (None, None)
            }
        };
        let bootstrap_port = match port {
            Some(Value::Int(port)) => Some(port),
            _ => None,
        };
        if let Some(url) = url {
            self.ours.workers.push(ConvertedWorker {
                url,
                word: Some(("role", "prefill")),
                bootstrap_port,
                ..ConvertedWorker::default()
            });
        }
    }
}
