"""A cache-aware router in sixty lines: it asks the indexer which engine holds most of a prompt, and sends the request to it.

    python3 router.py 8080 http://127.0.0.1:13333 engine-1=http://127.0.0.1:8001 engine-2=http://127.0.0.1:8002

The names are the instance_ids under which the engines' events are registered. Takes POST /v1/completions and
/v1/chat/completions, without streaming. For production there is `warmroute serve`.
"""
import itertools
import json
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, INDEXER, *ENGINES = sys.argv[1:]
ENGINES = dict(engine.split("=", 1) for engine in ENGINES)
TURNS = itertools.count()


def call(url, body=None, timeout=600):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return json.load(reply)


def matched(body, engine):
    """Tokens of the prompt that each engine holds."""
    service = next(s for s in call(INDEXER + "/services", timeout=1)["services"] if s["instance_id"] in ENGINES)
    prompt = {key: body[key] for key in ("model", "prompt", "messages") if key in body}
    tokens = call(ENGINES[engine] + "/tokenize", prompt, timeout=5)["tokens"]
    question = {"model": service["modelname"], "block_size": service["block_size"], "token_ids": tokens}
    rows = call(INDEXER + "/query", question, timeout=1).get("default", {})
    return {name: rows.get(name, {}).get("longest_matched", 0) for name in ENGINES}


def choose(body):
    turn = next(TURNS) % len(ENGINES)
    names = [*ENGINES][turn:] + [*ENGINES][:turn]
    try:
        held = matched(body, names[0])
        return max(names, key=held.get)  # the first of equal ones, so engines rotate
    except (OSError, LookupError, StopIteration, ValueError) as error:
        print("no answer, taking turns:", error, file=sys.stderr)
        return names[0]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        name = choose(body)
        try:
            status, reply = 200, call(ENGINES[name] + self.path, body)
        except urllib.error.HTTPError as error:
            status, reply = error.code, json.load(error)
        data = json.dumps(reply).encode()
        self.send_response(status)
        for header in (("content-type", "application/json"), ("content-length", len(data)), ("x-engine", name)):
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(data)


with ThreadingHTTPServer(("127.0.0.1", int(PORT)), Handler) as server:
    print(server.server_address[1], flush=True)  # port 0 selects a free port
    server.serve_forever()
