//! The demo's workload: multi-turn chats that share system prompts.
//!
//! Every number comes from the seed, and both policies get the same workload.

/// One chat.
#[derive(Clone, Debug)]
pub(crate) struct ChatSession {
    /// The shared system prompt.
    pub(crate) system: String,
    /// The user's turns.
    pub(crate) turns: Vec<ChatTurn>,
    /// Start of the chat, ms after the start of the round.
    pub(crate) starts_ms: u64,
}

/// One turn of a chat.
#[derive(Clone, Debug)]
pub(crate) struct ChatTurn {
    /// The user's message.
    pub(crate) message: String,
    /// Time before the user sends it, ms.
    pub(crate) thinks_ms: u64,
    /// Length of the reply, tokens.
    pub(crate) reply_tokens: u32,
}

/// Number of system prompts, one per agent.
const AGENTS: usize = 8;
const TURNS: usize = 6;
/// Chats per engine: their contexts together fill most of the fleet's cache, and far more than one
/// engine's.
const SESSIONS_PER_WORKER: usize = 10;
/// Time over which new chats begin, ms.
const BEGIN_WITHIN: usize = 6_000;

/// Returns the chats of one round for a fleet of `workers` engines.
pub(crate) fn sessions(seed: u64, workers: usize) -> Vec<ChatSession> {
    let mut random = SplitMix64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
    let agents: Vec<String> = (0..AGENTS)
        .map(|agent| system_prompt(agent, &mut random))
        .collect();
    (0..SESSIONS_PER_WORKER * workers)
        .map(|_| {
            let system = agents[random.below(agents.len())].clone();
            let turns = (0..TURNS)
                .map(|_| {
                    let words = 120 + random.below(80);
                    ChatTurn {
                        message: sentence(words, &mut random),
                        thinks_ms: 150 + random.below(500) as u64,
                        reply_tokens: 24 + u32::try_from(random.below(24)).unwrap_or(0),
                    }
                })
                .collect();
            ChatSession {
                system,
                turns,
                starts_ms: random.below(BEGIN_WITHIN) as u64,
            }
        })
        .collect()
}

fn system_prompt(agent: usize, random: &mut SplitMix64) -> String {
    format!(
        "You are assistant number {agent} of a support desk. Follow these rules: {}",
        sentence(260, random)
    )
}

fn sentence(words: usize, random: &mut SplitMix64) -> String {
    let mut text = String::with_capacity(words * 8);
    for n in 0..words {
        if n > 0 {
            text.push(if n % 13 == 0 { '\n' } else { ' ' });
        }
        text.push_str(WORDS[random.below(WORDS.len())]);
    }
    text.push('.');
    text
}

/// SplitMix64 generator: small, and the same on every platform.
#[derive(Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap_or(0)
    }
}

const WORDS: &[&str] = &[
    "account", "answer", "before", "billing", "cache", "change", "check", "client", "contract",
    "customer", "data", "delay", "delivery", "engine", "error", "every", "explain", "first",
    "follow", "found", "help", "however", "invoice", "issue", "keep", "later", "limit", "line",
    "long", "message", "model", "never", "number", "offer", "order", "other", "please", "policy",
    "prefix", "price", "problem", "prompt", "question", "queue", "reason", "record", "refund",
    "repeat", "reply", "report", "request", "return", "router", "second", "service", "short",
    "should", "status", "support", "system", "table", "ticket", "token", "update", "value", "wait",
    "warm", "which", "window", "worker",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_workload_and_another_seed_another() {
        let (one, same, other) = (sessions(1, 4), sessions(1, 4), sessions(2, 4));
        assert_eq!(one.len(), 40);
        assert_eq!(format!("{one:?}"), format!("{same:?}"));
        assert_ne!(one[0].turns[0].message, other[0].turns[0].message);
    }

    #[test]
    fn chats_share_a_handful_of_system_prompts() {
        let mut systems: Vec<String> = sessions(3, 4)
            .into_iter()
            .map(|session| session.system)
            .collect();
        systems.sort();
        systems.dedup();
        assert!((2..=AGENTS).contains(&systems.len()));
    }
}
