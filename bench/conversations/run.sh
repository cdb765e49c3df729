#!/usr/bin/env bash
# Plays the chats of recorded coding agents through warmroute and three other routers (README.md).
#
#   bench/conversations/run.sh --trace claude-code-sessions.jsonl.zst [OPTIONS] [TARGET ...]
#
# Builds warmroute and fetches each of the others once, into an environment of its own under target/routers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

bench/install-routers.sh target/routers

cargo build --quiet --profile "${PROFILE:-dist}" -p warmroute
built="${PROFILE:-dist}"
exec python3 bench/conversations/play.py --warmroute "target/$built/warmroute" --peers target/routers "$@"
