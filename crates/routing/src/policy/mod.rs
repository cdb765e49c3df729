//! Policies: the rules that compute the candidates' costs. One file per policy.
//!
//! A policy only gives each candidate a cost; the lowest wins. Ties, temperatures, reservations and
//! receipts are common to all policies and implemented elsewhere, so a new policy is one file with
//! its rule and its definition, and a line in the table below.

mod cache_aware;
pub(crate) mod composite;
mod consistent_hash;
mod continuum;
pub(crate) mod cost;
mod dualmap;
mod dynamo_cost;
mod kv_aware;
mod least_latency;
mod least_loaded;
pub(crate) mod lmcache_aware;
mod lmetric;
mod load_factor;
pub(crate) mod name;
mod power_of_two;
mod prefix_hash;
mod prefix_memory_hint;
mod random;
mod rendezvous_hash;
mod ring;
mod round_robin;
pub(crate) mod rule;
mod sticky;
mod warm;
mod weighted_round_robin;

// In the order of the documentation; the numbers are the order of error messages.
rule::policies! {
    /// The target with the lowest estimated cost in time.
    Warm = 4 in warm;
    /// The target with the longest cached prefix.
    KvAware = 3 in kv_aware;
    /// The target with the fewest requests in flight.
    LeastLoaded = 2 in least_loaded;
    /// Each target in turn.
    RoundRobin = 0 in round_robin;
    /// Any target.
    Random = 1 in random;
    /// Each target in turn, in proportion to its weight.
    WeightedRoundRobin = 10 in weighted_round_robin;
    /// The target with the shortest recent time to first token.
    LeastLatency = 11 in least_latency;
    /// The less loaded of two random targets.
    PowerOfTwo = 9 in power_of_two;
    /// The owner of the session on a ring.
    ConsistentHash = 8 in consistent_hash;
    /// The target with the highest hash score for the session.
    RendezvousHash = 7 in rendezvous_hash;
    /// The owner of the prompt's beginning, or the next target below its limit.
    PrefixHash = 6 in prefix_hash;
    /// The longest cached prefix where it is long and load is even, else the least loaded.
    CacheAware = 12 in cache_aware;
    /// The target with the best figures of an LMCache controller.
    LmcacheAware = 13 in lmcache_aware;
    /// The target with the fewest blocks to compute and to hold.
    DynamoCost = 5 in dynamo_cost;
    /// The best score of cache, load and health.
    Composite = 14 in composite;
    /// As `Composite` where enough is cached, else the owner of the prompt's beginning.
    Continuum = 15 in continuum;
    /// The lowest product of new prefill tokens and batch size.
    Lmetric = 16 in lmetric;
    /// One of two targets of the session, by cache and predicted time.
    Dualmap = 17 in dualmap;
    /// The least to compute among targets that hold most of the prompt, until they are saturated.
    Sticky = 18 in sticky;
}
