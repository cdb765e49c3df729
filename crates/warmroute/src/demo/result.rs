//! Results of a round, as a table and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::client::ClientReply;

/// `warmroute.demo/1`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DemoReport {
    pub(crate) schema: &'static str,
    pub(crate) seed: u64,
    pub(crate) workers: u32,
    /// Requests per policy; every policy gets the same ones.
    pub(crate) requests: usize,
    pub(crate) runs: Vec<PolicyRun>,
    pub(crate) ratio: Ratio,
}

/// Results of one policy over one or more rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PolicyRun {
    pub(crate) policy: &'static str,
    pub(crate) requests: usize,
    pub(crate) errors: usize,
    pub(crate) block_hit_ratio: f64,
    pub(crate) ttft_ms: Ttft,
    pub(crate) load_max_over_mean: f64,
}

/// Time to first token, ms.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Ttft {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// `warm` over `round_robin`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) block_hit: f64,
    pub(crate) ttft_mean: f64,
}

/// Totals collected while a policy runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunCounters {
    ttft_ms: Vec<f64>,
    errors: usize,
    prompt_blocks: u64,
    cached_blocks: u64,
    per_worker: BTreeMap<String, u64>,
}

impl RunCounters {
    pub(crate) fn answered(&mut self, answer: &ClientReply, block_size: u32) {
        self.ttft_ms.push(answer.ttft_ms);
        self.prompt_blocks += u64::from(answer.usage.prompt_tokens / block_size);
        self.cached_blocks += u64::from(answer.usage.cached_tokens.unwrap_or(0) / block_size);
        let worker = answer.worker.clone().unwrap_or_default();
        *self.per_worker.entry(worker).or_default() += u64::from(answer.usage.prompt_tokens);
    }

    pub(crate) fn failed(&mut self) {
        self.errors += 1;
    }

    pub(crate) fn done(&self) -> usize {
        self.ttft_ms.len() + self.errors
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.ttft_ms.extend(other.ttft_ms);
        self.errors += other.errors;
        self.prompt_blocks += other.prompt_blocks;
        self.cached_blocks += other.cached_blocks;
        for (worker, tokens) in other.per_worker {
            *self.per_worker.entry(worker).or_default() += tokens;
        }
    }

    /// Returns the share of whole prompt blocks that came from a cache.
    pub(crate) fn hit_ratio(&self) -> f64 {
        ratio(self.cached_blocks as f64, self.prompt_blocks as f64)
    }

    pub(crate) fn run(&self, policy: &'static str, workers: u32) -> PolicyRun {
        let mut sorted = self.ttft_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = sorted.len().saturating_sub(1);
            // Nearest rank; the product is within the vector by construction.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0 <= share <= 1"
            )]
            sorted
                .get((last as f64 * share).round() as usize)
                .copied()
                .unwrap_or(0.0)
        };
        let tokens: u64 = self.per_worker.values().sum();
        let most = self.per_worker.values().max().copied().unwrap_or(0);
        PolicyRun {
            policy,
            requests: self.done(),
            errors: self.errors,
            block_hit_ratio: round(self.hit_ratio(), 4),
            ttft_ms: Ttft {
                mean: round(ratio(sorted.iter().sum(), sorted.len() as f64), 2),
                p50: round(at(0.5), 2),
                p99: round(at(0.99), 2),
            },
            load_max_over_mean: round(ratio(most as f64 * f64::from(workers), tokens as f64), 3),
        }
    }
}

impl DemoReport {
    pub(crate) fn new(
        seed: u64,
        workers: u32,
        round_robin: &RunCounters,
        warm: &RunCounters,
    ) -> Self {
        let runs = vec![
            round_robin.run("round_robin", workers),
            warm.run("warm", workers),
        ];
        let ratio = Ratio {
            block_hit: round(ratio(warm.hit_ratio(), round_robin.hit_ratio()), 3),
            ttft_mean: round(ratio(runs[1].ttft_ms.mean, runs[0].ttft_ms.mean), 3),
        };
        Self {
            schema: "warmroute.demo/1",
            seed,
            workers,
            requests: warm.done(),
            runs,
            ratio,
        }
    }

    /// Returns the comparison as a table for people.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "\n{:<12} {:>9} {:>7} {:>11} {:>12} {:>11} {:>11} {:>9}\n",
            "policy",
            "requests",
            "errors",
            "block hits",
            "TTFT mean ms",
            "TTFT p50 ms",
            "TTFT p99 ms",
            "max/mean"
        );
        for run in &self.runs {
            text.push_str(&format!(
                "{:<12} {:>9} {:>7} {:>10.1}% {:>12.1} {:>11.1} {:>11.1} {:>9.2}\n",
                run.policy,
                run.requests,
                run.errors,
                run.block_hit_ratio * 100.0,
                run.ttft_ms.mean,
                run.ttft_ms.p50,
                run.ttft_ms.p99,
                run.load_max_over_mean,
            ));
        }
        text.push_str(&format!(
            "\nwarm against round_robin: {:.2} times the block hits, {:.2} times the mean time to first token",
            self.ratio.block_hit, self.ratio.ttft_mean
        ));
        text
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use dialect::Usage;

    use super::*;

    fn counters(cached: u32, ttft_ms: f64) -> RunCounters {
        let mut counters = RunCounters::default();
        for worker in ["a", "b"] {
            let usage = Usage {
                prompt_tokens: 164,
                completion_tokens: 1,
                cached_tokens: Some(cached),
            };
            let answer = ClientReply {
                ttft_ms,
                usage,
                worker: Some(worker.to_owned()),
                ..ClientReply::default()
            };
            counters.answered(&answer, 16);
        }
        counters
    }

    #[test]
    fn hits_are_counted_in_whole_blocks_and_compared() {
        let report = DemoReport::new(1, 2, &counters(32, 100.0), &counters(96, 25.0));
        assert_eq!(report.runs[0].block_hit_ratio, 0.2);
        assert_eq!(report.runs[1].block_hit_ratio, 0.6);
        assert_eq!(report.ratio.block_hit, 3.0);
        assert_eq!(report.ratio.ttft_mean, 0.25);
        assert_eq!(report.runs[1].load_max_over_mean, 1.0);
        assert!(report.table().contains("60.0%"));
    }

    #[test]
    fn an_empty_tally_divides_by_nothing() {
        let report = DemoReport::new(1, 4, &RunCounters::default(), &RunCounters::default());
        assert_eq!(report.ratio.block_hit, 0.0);
    }
}
