#!/usr/bin/env bash
# Blocks decoded and hashed per second on one core: ours and Python's msgspec and xxhash, on the same bytes.
#
# Fetches the two Python packages into target/decode once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=target/decode
mkdir -p "$folder"
if ! "$folder/python/bin/python" -c 'import msgspec, xxhash' >/dev/null 2>&1; then
  python3 -m venv "$folder/python"
  "$folder/python/bin/python" -m pip install --quiet --disable-pip-version-check msgspec xxhash
fi

cargo run --quiet --release -p kv-events --example decode_speed -- "$folder/batches" | tee "$folder/ours"
"$folder/python/bin/python" bench/decode/decode.py "$folder/batches" | tee "$folder/theirs"

value() { sed -n "s/^$2 \([0-9a-f]*\).*/\1/p" "$folder/$1"; }
if [ "$(value ours checksum)" != "$(value theirs checksum)" ]; then
  echo "the two sides came to different hashes: see $folder/ours and $folder/theirs" >&2
  exit 1
fi
for what in decode decode_mean_and_hash; do
  awk -v ours="$(value ours "$what")" -v theirs="$(value theirs "$what")" -v what="$what" \
    'BEGIN { printf "%s: ours / python = %.1f\n", what, ours / theirs }'
done
awk -v decode="$(value ours decode_and_mean)" -v ingest="$(value ours ingest_decoded)" \
  'BEGIN { printf "decode_and_mean / ingest_decoded = %.1f\n", decode / ingest }'
