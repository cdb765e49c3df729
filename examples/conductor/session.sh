#!/bin/sh
# A session with the Conductor API: register an engine's events, query a prompt, unregister.
#
#   warmroute engine --port 8001 --kv-events tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558 &
#   warmroute indexer &
#   examples/conductor/session.sh
#
# INDEXER, ENGINE, EVENTS and REPLAY are addresses; MODEL and BLOCK_SIZE are the engine's.
set -eu
INDEXER=${INDEXER:-http://127.0.0.1:13333}
ENGINE=${ENGINE:-http://127.0.0.1:8001}
EVENTS=${EVENTS:-tcp://127.0.0.1:5557}
REPLAY=${REPLAY:-tcp://127.0.0.1:5558}
MODEL=${MODEL:-sim}
BLOCK_SIZE=${BLOCK_SIZE:-16}

call() { # call URL BODY
    curl --silent --show-error --fail-with-body --header 'content-type: application/json' --data "$2" "$1"
    echo
}

echo '# register: consuming has begun when the answer is there'
call "$INDEXER/register" "{\"endpoint\": \"$EVENTS\", \"replay_endpoint\": \"$REPLAY\", \"type\": \"vLLM\",
    \"modelname\": \"$MODEL\", \"instance_id\": \"engine-1\", \"block_size\": $BLOCK_SIZE, \"dp_rank\": 0}"

echo '# a prompt of 64 tokens goes to the engine, which tells what it keeps'
TOKENS="[$(seq -s , 1001 1064)]"
call "$ENGINE/v1/completions" "{\"model\": \"$MODEL\", \"prompt\": $TOKENS, \"max_tokens\": 1}" > /dev/null

echo '# query: how many of its tokens each instance holds, by medium and by data-parallel rank'
QUERY="{\"model\": \"$MODEL\", \"token_ids\": $TOKENS, \"block_size\": $BLOCK_SIZE}"
tries=100
until answer=$(call "$INDEXER/query" "$QUERY") && ! echo "$answer" | grep -q '"longest_matched":0,'; do
    # Events arrive at the end of the engine's step.
    tries=$((tries - 1))
    test "$tries" -gt 0
    sleep 0.1
done
echo "$answer"

echo '# services: the streams as they are'
curl --silent --show-error --fail-with-body "$INDEXER/services"
echo
echo '# global_view: who holds how much altogether'
curl --silent --show-error --fail-with-body "$INDEXER/global_view"
echo

echo '# unregister: what the instance held is gone when the answer is there'
call "$INDEXER/unregister" '{"instance_id": "engine-1", "dp_rank": 0}'
call "$INDEXER/query" "$QUERY"
