#!/usr/bin/env bash
# Measures warmroute, nginx and three other routers as proxies and writes results, tables and plots (README.md).
#
#   bench/proxy/run.sh [OPTIONS] [TARGET ...]
#
# Builds warmroute, the engine and the load generator; fetches the other routers and a Python package under target/,
# and nginx from Debian. What cannot be fetched is named, and its rows are missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if ! command -v nginx >/dev/null 2>&1; then
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing nginx (apt)" >&2
    export DEBIAN_FRONTEND=noninteractive
    # Its package would start a server.
    { apt-get -qq update && apt-get -qq install --yes --no-install-recommends nginx-light; } >/dev/null \
      && { [ ! -d /run/systemd/system ] || systemctl disable --quiet --now nginx; } || true
  fi
  command -v nginx >/dev/null 2>&1 \
    || echo "there is no nginx (on Debian as root: apt-get install nginx-light): no row has a ratio to it" >&2
fi

bench/install-routers.sh target/routers
folder=target/proxy
mkdir -p "$folder"
if ! [ -e "$folder/model/tokenizer.json" ]; then
  if ! { python3 -m venv "$folder/python" \
    && "$folder/python/bin/python" -m pip install --quiet --disable-pip-version-check tokenizers==0.23.3 \
    && "$folder/python/bin/python" bench/proxy/make_tokenizer.py "$folder/model"; } >&2; then
    echo "the tokenizer could not be made: there will be no row warmroute-exact" >&2
  fi
fi

profile="${PROFILE:-dist}"
cargo build --quiet --locked --profile "$profile" -p warmroute
cargo build --quiet --locked --release --manifest-path bench/proxy/Cargo.toml --target-dir "$folder/build"
status=0
python3 bench/proxy/measure.py --warmroute "target/$profile/warmroute" --programs "$folder/build/release" \
  --routers target/routers --model "$folder/model" --out "$folder/results" "$@" || status=$?
if [ -e "$folder/results/results.json" ]; then
  python3 bench/proxy/tables.py "$folder/results/results.json" | tee "$folder/results/tables.md"
  python3 bench/proxy/plots.py "$folder/results/results.json" "$folder/results"
fi
exit "$status"
