#!/usr/bin/env bash
# Plays the chats of recorded coding agents through warmroute and three other routers (README.md).
#
#   bench/conversations/run.sh --trace claude-code-sessions.jsonl.zst [OPTIONS] [TARGET ...]
#
# Builds warmroute and fetches each peer once, into an environment of its own under target/conversations.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=target/conversations
mkdir -p "$folder"
for peer in smg sglang-router vllm-router; do
  if ! [ -x "$folder/$peer/bin/$peer" ]; then
    python3 -m venv "$folder/$peer"
    "$folder/$peer/bin/python" -m pip install --quiet --disable-pip-version-check "$peer" \
      || echo "$peer could not be installed: its rows will be missing" >&2
  fi
done

cargo build --quiet --profile "${PROFILE:-dist}" -p warmroute
built="${PROFILE:-dist}"
exec python3 bench/conversations/play.py --warmroute "target/$built/warmroute" --peers "$folder" "$@"
