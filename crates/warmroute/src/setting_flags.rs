//! Flags of `serve` that set one key of the configuration each.

use clap::Args;
use config::Override;

/// Declares a group of flags, each with the key that it sets and, for a flag without a value, the
/// value that it gives the key.
macro_rules! setting_flags {
    (
        $(#[$meta:meta])*
        struct $Flags:ident {
            $(
                $(#[$flag_meta:meta])*
                $flag:ident: $type:ty => $path:literal $(= $value:literal)?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Args, Debug)]
        pub(crate) struct $Flags {
            $(
                $(#[$flag_meta])*
                pub(crate) $flag: $type,
            )*
        }

        impl $Flags {
            /// Returns the keys that the given flags set.
            pub(crate) fn overrides(&self) -> Vec<Override> {
                let set = [
                    $(($path, flag_value!(self.$flag $(, $value)?), stringify!($flag)),)*
                ];
                set.into_iter()
                    .filter_map(|(path, value, flag)| {
                        Some(Override {
                            path: path.to_owned(),
                            value: value?,
                            flag: format!("--{}", flag.replace('_', "-")),
                        })
                    })
                    .collect()
            }
        }
    };
}

/// Value that a flag gives to its key, if it is set.
macro_rules! flag_value {
    ($flag:expr) => {
        $flag.as_ref().map(ToString::to_string)
    };
    ($flag:expr, $value:literal) => {
        $flag.then(|| $value.to_owned())
    };
}

setting_flags! {
    /// Flags of the addresses.
    struct ListenerArgs {
        /// Where clients connect [default: 127.0.0.1:8080].
        #[arg(long, value_name = "ADDR")]
        listen: Option<String> => "server.listen";
        /// Port of the data listener; 0 takes any free one.
        #[arg(long)]
        port: Option<u16> => "server.port";
        /// Where operators connect [default: 127.0.0.1:9191].
        #[arg(long, value_name = "ADDR")]
        admin_listen: Option<String> => "admin.listen";
        /// Where scrapers connect for /metrics, beside the admin listener [default: nowhere].
        #[arg(long, value_name = "ADDR")]
        metrics_listen: Option<String> => "metrics.listen";
    }
}

setting_flags! {
    /// Flags of the decision.
    struct RoutingArgs {
        /// How a worker is chosen: warm, kv_aware, dynamo_cost (or kv), least_loaded, round_robin, random [default: warm].
        #[arg(long, visible_alias = "router-mode", value_name = "NAME")]
        policy: Option<String> => "routing.policy";
        /// Weight of cached prefixes, 0 to 100; 0 ignores caches and follows no KV events [default: 1.0].
        #[arg(long, value_name = "WEIGHT")]
        kv_overlap_score_weight: Option<f64> => "routing.overlap_weight";
        /// Randomness of the choice, 0 to 10; 0 always takes the lowest cost [default: 0.0].
        #[arg(long, value_name = "T")]
        router_temperature: Option<f64> => "routing.temperature";
        /// Follow no KV events; predict caches from the router's own decisions.
        #[arg(long)]
        no_kv_events: bool => "kv_events.enabled" = "false";
        /// Lifetime of a predicted block, for workers without events [default: 120s].
        #[arg(long, value_name = "DURATION")]
        router_ttl: Option<String> => "kv_events.prediction.ttl";
        /// Maximum number of predicted blocks, for workers without events [default: 1048576].
        #[arg(long, value_name = "BLOCKS")]
        router_max_tree_size: Option<u64> => "kv_events.prediction.max_blocks";
        /// Share of the maximum that remains when predicted blocks are removed [default: 0.8].
        #[arg(long, value_name = "RATIO")]
        router_prune_target_ratio: Option<f64> => "kv_events.prediction.prune_target_ratio";
        /// Do not count blocks of running requests.
        #[arg(long)]
        no_track_active_blocks: bool => "routing.track_active_blocks" = "false";
        /// Share of its KV cache in use, 0.0 to 1.0, above which a worker gets no new requests [default: off].
        #[arg(long, value_name = "RATIO")]
        busy_threshold: Option<f64> => "routing.busy_threshold";
        /// Weight of a cached block in GPU memory under kv_aware, 0.0 to 1.0 [default: 1.0].
        #[arg(long, value_name = "WEIGHT")]
        kv_medium_gpu_weight: Option<f64> => "routing.medium_weights.gpu";
        /// Weight of a cached block in host memory under kv_aware [default: 0.3].
        #[arg(long, value_name = "WEIGHT")]
        kv_medium_cpu_weight: Option<f64> => "routing.medium_weights.cpu";
        /// Weight of a cached block on disk or in remote storage under kv_aware [default: 0.05].
        #[arg(long, value_name = "WEIGHT")]
        kv_medium_disk_weight: Option<f64> => "routing.medium_weights.disk";
        /// Longest wait while no worker is usable, in seconds; 0 refuses at once [default: 0].
        #[arg(long, value_name = "SECONDS")]
        engine_wait_timeout_secs: Option<u64> => "queue.engine_wait_timeout_secs";
    }
}

setting_flags! {
    /// Flags of what routers of one fleet share.
    struct ReplicaArgs {
        /// Share the load of running requests with the other routers of the fleet; without
        /// `replicas.mode`, over NATS.
        #[arg(long)]
        router_replica_sync: bool => "replicas.load_sync" = "true";
        /// Start without what earlier runs left in the routers' stream and snapshot.
        #[arg(long)]
        router_reset_states: bool => "replicas.reset_states" = "true";
        /// Messages in the routers' stream at which a snapshot takes their place [default: 1000000].
        #[arg(long, value_name = "MESSAGES")]
        router_snapshot_threshold: Option<u64> => "replicas.nats.snapshot_threshold";
    }
}

setting_flags! {
    /// Flags of the log.
    struct LoggingArgs {
        /// trace, debug, info, warn or error.
        #[arg(long, value_name = "LEVEL")]
        log_level: Option<String> => "logging.level";
        /// json, pretty or auto.
        #[arg(long, value_name = "FORMAT")]
        log_format: Option<String> => "logging.format";
    }
}
