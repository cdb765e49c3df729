//! The one line that reports a worker's state.

use std::{fmt, sync::Arc};

use crate::{EngineKind, WorkerState};

/// The findings about one worker; its `Display` is the verdict line of `serve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerVerdict {
    /// The worker's name.
    pub worker: Arc<str>,
    /// Its address, without secrets.
    pub url: String,
    /// Its state.
    pub state: WorkerState,
    /// The detected engine kind.
    pub engine: EngineKind,
    /// The engine's version.
    pub version: Option<Arc<str>>,
    /// Base models it serves.
    pub models: Vec<Arc<str>>,
    /// Tokens in a block.
    pub block_size: u32,
    /// False when neither engine nor configuration gives the block size and the default is assumed.
    pub block_size_known: bool,
    /// The state of its event stream, or `none` / `off`.
    pub events: &'static str,
    /// Whether the stream can be replayed.
    pub replay: bool,
    /// How its prompts become tokens: `exact`, `engine` or `none`.
    pub tokenizer: &'static str,
    /// The problem and its remedy, when the worker is not ready.
    pub problem: Option<Arc<str>>,
}

impl fmt::Display for WorkerVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.worker, self.url, self.state.as_str())?;
        if self.state != WorkerState::Ready {
            return match &self.problem {
                Some(problem) => write!(f, " {problem}"),
                None => Ok(()),
            };
        }
        write!(f, " {}", self.engine.as_str())?;
        if let Some(version) = &self.version {
            write!(f, " {version}")?;
        }
        write!(f, " model={}", self.models.first().map_or("none", |id| id))?;
        for id in self.models.iter().skip(1) {
            write!(f, ",{id}")?;
        }
        write!(f, " block={}", self.block_size)?;
        if !self.block_size_known {
            f.write_str("(assumed)")?;
        }
        let replay = if self.replay { "yes" } else { "no" };
        write!(
            f,
            " events={} replay={replay} tokenizer={}",
            self.events, self.tokenizer
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> WorkerVerdict {
        WorkerVerdict {
            worker: "w1".into(),
            url: "http://127.0.0.1:8101".into(),
            state: WorkerState::Ready,
            engine: EngineKind::Vllm,
            version: Some("0.32.0".into()),
            models: vec!["qwen".into()],
            block_size: 32,
            block_size_known: true,
            events: "live",
            replay: true,
            tokenizer: "exact",
            problem: None,
        }
    }

    #[test]
    fn a_ready_worker_is_one_line_of_findings() {
        assert_eq!(
            ready().to_string(),
            "w1 http://127.0.0.1:8101 ready vllm 0.32.0 model=qwen block=32 events=live replay=yes tokenizer=exact"
        );
    }

    #[test]
    fn an_assumed_block_size_is_marked() {
        let guessed = WorkerVerdict {
            block_size: 16,
            block_size_known: false,
            ..ready()
        };
        assert!(
            guessed.to_string().contains(" block=16(assumed) "),
            "{guessed}"
        );
    }

    #[test]
    fn the_verdict_of_a_down_worker_names_the_fix() {
        let down = WorkerVerdict {
            state: WorkerState::Down,
            problem: Some("connection refused: start the engine or check the url".into()),
            ..ready()
        };
        assert_eq!(
            down.to_string(),
            "w1 http://127.0.0.1:8101 down connection refused: start the engine or check the url"
        );
    }
}
