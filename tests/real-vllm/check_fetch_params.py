"""vLLM's own classes read the source of blocks that the router names (docs/fetch.md). No engine of vLLM is started: two
simulated ones let the router choose a read, and relays in front of them keep its bytes."""

import contextlib
import json
import subprocess
import threading
import time

from processes import Http, Process, Router
from recorder import Recorder

# docs/fetch.md: the port of a worker without `p2p_port`.
DEFAULT_PORT = 5710
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LIMIT_S = 60


def fetch_params(harness):
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(harness.folder())
        engines = [stack.enter_context(SimulatedEngine(harness.program, folder, f"w{n}")) for n in (1, 2)]
        settings = {"routing": {"fetch": "vllm_p2p", "tokenize_budget": "60s"}}
        router = stack.enter_context(Router(harness.program, engines, folder, settings=settings))
        named = recorded_reads(router, engines)
        source = f"127.0.0.1:{engines[0].p2p_port}"
    harness.row("bodies that name a source", len(named), "a chat and a completion", set(named) == {CHAT, COMPLETIONS})
    for path, body in named.items():
        read = vllm_reading(path, body)
        value = f"{read.peer_id} as {read.kv_request_id}, {'by a probe' if read.do_probe else 'without a probe'}"
        holds = read.peer_id == source and read.kv_request_id and read.do_probe
        harness.row(f"source that vLLM reads from the body of {path}", value, f"{source}, by a probe", holds)
    ids = {vllm_reading(path, body).kv_request_id for path, body in named.items()}
    harness.row("ids of the reads", ", ".join(sorted(ids)), "one for each", len(ids) == len(named))
    port = vllm_tier_port()
    harness.row("port of vLLM's P2P tier without a setting", port, DEFAULT_PORT, port == DEFAULT_PORT)


class SimulatedEngine:
    """`warmroute engine` behind a relay; `with` ends both."""

    def __init__(self, program, folder, name):
        self.name = name
        free = "tcp://127.0.0.1:0"
        command = [program, "engine", "--port", "0", "--print-ready", "--kv-events", free, "--replay", free]
        command += ["--prefill-tps", "2000", "--p2p-gb-s", "10"]
        self.process = Process(name, command, folder / f"{name}.log", stdout=subprocess.PIPE)
        try:
            self.ready = json.loads(self.process.child.stdout.readline())
            self.http = Http(self.ready["data"])
            self.recorder = Recorder(self.ready["data"])
        except BaseException:
            self.process.end()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.end()
        self.recorder.__exit__()

    @property
    def p2p_port(self):
        """A simulated engine answers others on the port of its API."""
        return int(self.ready["data"].rsplit(":", 1)[1])

    @property
    def worker(self):
        sockets = {"endpoint": self.ready["kv_events"][0], "replay_endpoint": self.ready["replay"][0]}
        worker = {"name": self.name, "url": self.recorder.url, "type": "vllm"}
        return {**worker, "p2p_port": self.p2p_port, "kv_events": sockets}


def recorded_reads(router, engines):
    """Lets `w1` compute a chat and a completion and keeps it busy, so that `w2` is told to read them. Returns the
    bodies that name a source, by path."""
    http = Http(router.data)
    requests = {
        CHAT: {"model": "sim", "messages": [{"role": "user", "content": words("shared", 300)}], "max_tokens": 4},
        COMPLETIONS: {"model": "sim", "prompt": words("another", 300), "max_tokens": 4},
    }
    for path, body in requests.items():
        http.json("POST", path, body, {"x-warmroute-worker": "w1"})
    wait_for("the router to know the blocks of w1", lambda: knows_all(router, engines[0]))
    busy = [threading.Thread(target=occupy, args=(router.data, n), daemon=True) for n in range(3)]
    for thread in busy:
        thread.start()
    wait_for("w1 to be busy", lambda: in_flight(router, "w1") == len(busy))
    for path, body in requests.items():
        http.json("POST", path, body)
    return {path: body for path, body in engines[1].recorder.requests if b"kv_transfer_params" in body}


def words(topic, count):
    return " ".join(f"{topic}{n}" for n in range(count))


def occupy(address, number):
    body = {"model": "sim", "messages": [{"role": "user", "content": words(f"busy{number}x", 2000)}], "max_tokens": 4}
    # It may end with the engine.
    with contextlib.suppress(OSError):
        Http(address).ask("POST", CHAT, body, {"x-warmroute-worker": "w1"})


def knows_all(router, engine):
    cached = engine.http.json("GET", "/sim/stats")["blocks_cached"]
    workers = router.admin.json("GET", "/admin/workers")["workers"]
    known = next(worker["warm_blocks"]["device"] for worker in workers if worker["name"] == engine.name)
    return cached > 0 and known == cached


def in_flight(router, name):
    lines = router.admin.ask("GET", "/metrics")[2].decode().splitlines()
    of_worker = [line for line in lines if line.startswith("warmroute_in_flight{") and f'worker="{name}"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in of_worker)


def wait_for(what, condition):
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {LIMIT_S} s for {what}")
        time.sleep(0.01)


def vllm_reading(path, body):
    """What vLLM's P2P tier makes of a body, on vLLM's own way: request model, sampling parameters, the scheduler's
    request, and the context in which the connector's tiers see that."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import _create_req_context
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.v1.kv_offload.tiering.p2p.manager import P2PSourceInfo, _annotate_req_context
    from vllm.v1.request import Request

    model = ChatCompletionRequest if path == CHAT else CompletionRequest
    parameters = model.model_validate(json.loads(body)).to_sampling_params(4, {})
    request = Request("read", prompt_token_ids=[1, 2, 3], sampling_params=parameters, pooling_params=None)
    context = _create_req_context(request)
    _annotate_req_context(context)
    read = context.get_state(P2PSourceInfo)
    if read is None:
        raise ValueError(f"vLLM finds no source in {body!r}")
    return read


def vllm_tier_port():
    """The default of vLLM's side channel, once its factory has the tier."""
    import vllm.envs
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    SecondaryTierFactory.get_tier_class({"type": "p2p"})
    return vllm.envs.VLLM_P2P_SIDE_CHANNEL_PORT
