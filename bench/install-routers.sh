#!/usr/bin/env bash
# Fetches the other routers that benchmarks compare warmroute with, each into an environment of its own.
#
#   bench/install-routers.sh FOLDER        FOLDER/smg/bin/smg, FOLDER/sglang-router/bin/sglang-router, ...
#
# The versions are those of the figures in docs/benchmarks.
set -euo pipefail
folder="${1:?usage: bench/install-routers.sh FOLDER}"
mkdir -p "$folder"
for release in smg==1.13.0 sglang-router==0.3.2 vllm-router==0.1.17; do
  router="${release%%==*}"
  [ -x "$folder/$router/bin/$router" ] && continue
  echo "installing $release" >&2
  if ! { python3 -m venv "$folder/$router" \
    && "$folder/$router/bin/python" -m pip install --quiet --disable-pip-version-check "$release"; } >&2; then
    echo "$release could not be installed: its rows will be missing" >&2
  fi
done
