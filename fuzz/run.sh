#!/usr/bin/env bash
# Runs fuzz targets one after the other and says what each did.
#
#   fuzz/run.sh [SECONDS] [TARGET...]     60 s each, all of them
#
# Needs a nightly compiler and cargo-fuzz: cargo install cargo-fuzz --locked
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

seconds="${1:-60}"
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  targets=(vllm_payload frames sequencer zmtp_session standard_json standard_msgpack trtllm continuum)
fi

fixtures=../tests/fixtures/kv_events
failed=0
for target in "${targets[@]}"; do
  mkdir -p "corpus/$target"
  seeds=("corpus/$target")
  if [ -d "seeds/$target" ]; then seeds+=("seeds/$target"); fi
  case "$target" in vllm_payload | standard_msgpack) seeds+=("$fixtures") ;; esac
  log="corpus/$target.log"
  # The corpus's largest files are a megabyte of nested arrays; mutations of those teach nothing new.
  if cargo +nightly fuzz run --fuzz-dir . "$target" "${seeds[@]}" -- \
    -max_total_time="$seconds" -max_len=4096 -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 >"$log" 2>&1; then
    outcome="nothing found"
  else
    outcome="FAILED, see fuzz/$log and fuzz/artifacts/$target"
    failed=1
  fi
  runs="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
  covered="$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)"
  printf '%-18s %12s runs  %6s edges  %s\n' "$target" "${runs:-?}" "${covered:-?}" "$outcome"
done
exit "$failed"
