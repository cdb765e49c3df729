"""The examples of routing, in front of simulated engines: as programs, and what they do to the load."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import runpy
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from warmroute import Router

if TYPE_CHECKING:
    from conftest import Program, Programs

EXAMPLES = Path(__file__).parents[1] / "examples"
# Past any proxy of the environment.
DIRECT = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
# Four whole blocks of 16 tokens, and one token more.
PROMPT = list(range(1, 66))
OTHER = list(range(70, 103))
QUESTION = {"role": "user", "content": "What is a KV cache?"}
CHAT: dict[str, Any] = {"model": "sim", "messages": [QUESTION], "max_tokens": 8}
PATTERNS = ["route_automatic.py", "route_manually.py", "route_hierarchically.py", "route_by_load.py"]

WaitFor = Callable[[str, Callable[[], Any]], Any]
GetJson = Callable[[str], Any]


def example(name: str) -> Callable[..., Awaitable[list[int]]]:
    """Returns the function ``generate`` of an example."""
    generate: Callable[..., Awaitable[list[int]]] = runpy.run_path(str(EXAMPLES / name))["generate"]
    return generate


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as reply:
        return json.load(reply)


def requests(get_json: GetJson, engines: list[str]) -> list[int]:
    """Returns how many requests each engine has had."""
    return [get_json(f"{engine}/sim/stats")["requests"] for engine in engines]


def has_no_load(router: Router) -> bool | None:
    return "\nwarmroute_leases 0\n" in router.metrics_blocking() or None


def load(router: Router) -> tuple[int, int]:
    """Returns the prefill and the blocks of the only worker, with one more prompt."""
    (row,) = router.get_potential_loads_blocking(OTHER)
    return row["potential_prefill_tokens"], row["potential_decode_blocks"]


def test_every_example_is_tested() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    files = [path.name for path in EXAMPLES.glob("*.py")]
    assert files
    assert [name for name in files if f'{name}"' not in tests] == []


@pytest.mark.contract("DY35")
@pytest.mark.parametrize("name", PATTERNS)
def test_each_pattern_of_routing_is_a_program(name: str, programs: Programs) -> None:
    engines = [f"w{number}={programs.start_engine()}" for number in (1, 2)]
    end = programs.run(str(EXAMPLES / name), *engines, **DIRECT)
    assert end.returncode == 0, end.stderr
    assert len([int(token) for token in end.stdout.split()]) == 8


@pytest.mark.contract("DY35")
def test_automatic_routing_follows_the_request_to_its_end(
    programs: Programs, get_json: GetJson, wait_for: WaitFor
) -> None:
    engines = [programs.start_engine("--block-size", "16") for _ in range(2)]
    with Router(workers=[f"w1={engines[0]}", f"w2={engines[1]}"]) as router:
        generate = example("route_automatic.py")
        first = asyncio.run(generate(router, PROMPT))
        wait_for("match", lambda: router.find_matches_for_request_blocking(PROMPT) or None)
        assert asyncio.run(generate(router, PROMPT)) == first
        wait_for("state without load", lambda: has_no_load(router))
    # The second time the prompt was in one engine's cache.
    assert sorted(requests(get_json, engines)) == [0, 2]


@pytest.mark.contract("DY35")
def test_the_manual_lifecycle_is_load_until_the_reply_ends(
    programs: Programs, get_json: GetJson, wait_for: WaitFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in DIRECT.items():
        monkeypatch.setenv(name, value)
    engine = programs.start_engine("--block-size", "16")
    with Router(workers=[f"w1={engine}"]) as router:
        before = load(router)
        generate = example("route_manually.py")
        tokens = asyncio.run(generate(router, {"w1": engine}, PROMPT))
        assert has_no_load(router)
        assert tokens == asyncio.run(example("route_automatic.py")(router, PROMPT))
        wait_for("state without load", lambda: has_no_load(router))

        post(f"{engine}/sim/fault", {"kind": "stall_mid:1", "count": 1})

        async def cancel_behind_the_first_token() -> None:
            prompt = [token + 1000 for token in PROMPT]
            task = asyncio.ensure_future(generate(router, {"w1": engine}, prompt))
            # The prompt is computed, its blocks are load.
            while not (load(router)[0] == before[0] and load(router)[1] > before[1]):
                assert not task.done()
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancel_behind_the_first_token())
        assert has_no_load(router)
        wait_for("abort", lambda: get_json(f"{engine}/sim/stats")["aborted"] == 1 or None)


@pytest.mark.contract("DY34", "DY35")
def test_hierarchical_probing_sends_a_prompt_where_its_beginning_is(
    programs: Programs, get_json: GetJson, wait_for: WaitFor
) -> None:
    engines = [programs.start_engine("--block-size", "16") for _ in range(3)]
    with Router(workers=[f"w1={engines[0]}", f"w2={engines[1]}"]) as one, Router(workers=[f"w3={engines[2]}"]) as two:
        list(two.generate_blocking(PROMPT, stop_conditions={"max_tokens": 1}))
        wait_for("match", lambda: two.find_matches_for_request_blocking(PROMPT) or None)
        assert len(asyncio.run(example("route_hierarchically.py")([one, two], PROMPT))) == 8
        wait_for("state without load", lambda: has_no_load(one) and has_no_load(two))
    assert requests(get_json, engines) == [0, 0, 2]


@pytest.mark.contract("DY35")
def test_routing_by_load_avoids_the_worker_with_more_prefill(programs: Programs, get_json: GetJson) -> None:
    engines = [programs.start_engine("--block-size", "16") for _ in range(2)]
    with Router(workers=[f"w1={engines[0]}", f"w2={engines[1]}"]) as router:
        generate = example("route_by_load.py")
        for number, busy in enumerate(("w1", "w2")):
            prompt = [token + 1000 * number for token in PROMPT]
            router.decide_blocking(OTHER, worker=busy, request_id="r1")
            before = requests(get_json, engines)
            assert len(asyncio.run(generate(router, prompt))) == 8
            router.free_blocking("r1")
            added = [now - then for now, then in zip(requests(get_json, engines), before, strict=True)]
            assert added == ([0, 1] if busy == "w1" else [1, 0])


class RunningGateway:
    """The example of a gateway, in front of one engine."""

    def __init__(self, programs: Programs, wait_for: WaitFor) -> None:
        self.engine: str = programs.start_engine()
        program = programs.start(str(EXAMPLES / "gateway.py"), "0", f"w1={self.engine}", **DIRECT)
        self.address: str = wait_for("address", lambda: self.find_address(program))

    @staticmethod
    def find_address(program: Program) -> str | None:
        assert program.process.poll() is None, program.stderr()
        found = re.search(r"running on http://(\S+)", program.stderr())
        return found and found[1]

    def start(self, chat: dict[str, Any]) -> http.client.HTTPConnection:
        """Sends a chat, and returns the connection on which its reply comes."""
        connection = http.client.HTTPConnection(self.address)
        connection.request("POST", "/v1/chat/completions", json.dumps(chat), {"Content-Type": "application/json"})
        return connection

    def leases(self) -> int:
        connection = http.client.HTTPConnection(self.address)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found = re.search(r"^warmroute_leases (\d+)$", text, re.MULTILINE)
        assert found, text
        return int(found[1])


@pytest.fixture
def gateway(programs: Programs, wait_for: WaitFor) -> RunningGateway:
    return RunningGateway(programs, wait_for)


def test_the_gateway_gives_the_replies_of_its_workers(gateway: RunningGateway, wait_for: WaitFor) -> None:
    whole = post(f"http://{gateway.address}/v1/chat/completions", CHAT)
    direct = post(f"{gateway.engine}/v1/chat/completions", CHAT)
    assert whole["choices"][0]["message"] == direct["choices"][0]["message"]
    connection = gateway.start(CHAT | {"stream": True})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    assert reply.getheader("content-type", "").startswith("text/event-stream")
    parts = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    content = "".join(choice["delta"].get("content") or "" for part in parts for choice in part["choices"])
    assert content == whole["choices"][0]["message"]["content"]
    wait_for("state without load", lambda: gateway.leases() == 0 or None)


@pytest.mark.parametrize("fault", ["hang", "stall_mid:1"])
def test_a_client_of_the_gateway_that_hangs_up_is_no_load(
    fault: str, gateway: RunningGateway, get_json: GetJson, wait_for: WaitFor
) -> None:
    post(f"{gateway.engine}/sim/fault", {"kind": fault, "count": 1})
    connection = gateway.start(CHAT | {"stream": True})
    wait_for("request", lambda: get_json(f"{gateway.engine}/sim/stats")["requests"] == 1 or None)
    if fault != "hang":
        assert connection.getresponse().read1()
    assert gateway.leases() == 1
    connection.close()
    wait_for("state without load", lambda: gateway.leases() == 0 or None)
    if fault != "hang":
        wait_for("abort", lambda: get_json(f"{gateway.engine}/sim/stats")["aborted"] == 1 or None)


def test_the_gateway_says_what_is_wrong(gateway: RunningGateway) -> None:
    for chat, status in ((CHAT | {"model": "other"}, 404), ({"messages": 1}, 400), ([], 422)):
        with pytest.raises(urllib.error.HTTPError) as raised:
            post(f"http://{gateway.address}/v1/chat/completions", chat)
        assert raised.value.code == status
        raised.value.close()
    assert gateway.leases() == 0


@pytest.mark.parametrize(("name", "replies"), [("openai_chat.py", 1), ("langchain_chat.py", 2)])
def test_clients_talk_to_the_router_as_to_openai(
    name: str, replies: int, programs: Programs, get_json: GetJson
) -> None:
    engine = programs.start_engine()
    router = programs.start(
        *["-m", "warmroute", "serve", "-w", engine, "--listen", "127.0.0.1:0", "--print-ready"],
        WARMROUTE_ADMIN__LISTEN="127.0.0.1:0",
    )
    url = f"http://{router.read_ready_line()['data']}/v1"
    end = programs.run(str(EXAMPLES / name), url, "sim", **DIRECT)
    assert end.returncode == 0, end.stderr
    assert [len(line.split()) > 1 for line in end.stdout.splitlines()] == [True] * replies
    assert requests(get_json, [engine]) == [replies]
