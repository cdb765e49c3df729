"""The start and the end of routers: several in one process, closed ones, forks, signals, the interpreter's end."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from warmroute import Router, WarmrouteError

if TYPE_CHECKING:
    from conftest import Programs

PROMPT = list(range(1, 66))
LONG = {"max_tokens": 50, "ignore_eos": True}


def stall(engine: str) -> None:
    """Lets the engine's next reply stop after its first token."""
    body = json.dumps({"kind": "stall_mid:1", "count": 1}).encode()
    request = urllib.request.Request(f"{engine}/sim/fault", body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as reply:
        assert reply.status == 200


def aborted(get_json: Callable[[str], Any], engine: str) -> bool | None:
    stats = get_json(f"{engine}/sim/stats")
    return True if (stats["aborted"], stats["running"]) == (1, 0) else None


def test_a_closed_router_says_so_and_may_be_closed_again(programs: Programs) -> None:
    router = Router(workers=[programs.start_engine()])
    router.best_worker_blocking(PROMPT)
    router.close_blocking()
    router.close_blocking()
    asyncio.run(router.close())
    for call in (router.best_worker, router.best_worker_blocking):
        with pytest.raises(WarmrouteError) as raised:
            call(PROMPT)
        assert raised.value.code == "draining"


def test_a_router_is_a_context_manager_of_both_kinds(programs: Programs) -> None:
    url = programs.start_engine()
    with Router(workers=[url]) as router:
        router.best_worker_blocking(PROMPT)

    async def run() -> Router:
        async with Router(workers=[url]) as other:
            await other.best_worker(PROMPT)
        return other

    for closed in (router, asyncio.run(run())):
        with pytest.raises(WarmrouteError, match="closed"):
            closed.best_worker_blocking(PROMPT)


def test_an_event_loop_runs_on_while_a_router_starts_in_it(programs: Programs) -> None:
    host, port = programs.start_engine().removeprefix("http://").split(":")
    connections = 0

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        answers, questions = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, questions), copy(answers, writer))

    async def run() -> None:
        # The engine is reached through this loop alone, so that each probe needs the loop.
        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with await Router.start(workers=[f"w1={url}"]) as router:
            assert connections > 0
            assert (await router.best_worker(PROMPT))[0] == "w1"
        server.close()
        for config in ({"routing": {"policy": "best"}}, "{}"):
            with pytest.raises(WarmrouteError) as raised:
                await Router.start(config)
            assert raised.value.code == "invalid_request"

    asyncio.run(run())


@pytest.mark.contract("DY34")
def test_several_routers_in_one_process_share_nothing(programs: Programs) -> None:
    engines = [programs.start_engine("--block-size", "16") for _ in range(2)]
    with Router(workers=[f"a={engines[0]}"]) as first, Router(workers=[f"b={engines[1]}"]) as second:
        assert list(first.generate_blocking(PROMPT, stop_conditions={"max_tokens": 1}))
        assert first.best_worker_blocking(PROMPT, request_id="r1")[0] == "a"
        assert second.best_worker_blocking(PROMPT, request_id="r1") == ("b", 0, 0)
        assert 'outcome="ok"} 1' in first.metrics_blocking()
        assert 'outcome="ok"} 1' not in second.metrics_blocking()
        first.close_blocking()
        second.free_blocking("r1")
        assert list(second.generate_blocking(PROMPT, stop_conditions={"max_tokens": 1}))


def test_a_listener_exists_only_where_the_configuration_names_it(programs: Programs) -> None:
    url = programs.start_engine()
    # Both would take the same default ports.
    with Router(workers=[url]), Router(workers=[url]):
        pass
    server = {"listen": "127.0.0.1:0"}
    with Router({"server": server, "admin": server}, workers=[url]) as router:
        assert router.best_worker_blocking(PROMPT)


@pytest.mark.parametrize("key", ["server.listen", "admin.listen", "metrics.listen"])
def test_a_taken_address_is_named_with_the_setting_that_chooses_another(programs: Programs, key: str) -> None:
    url = programs.start_engine()
    taken = url.removeprefix("http://")
    config = {key.removesuffix(".listen"): {"listen": taken}}

    async def start() -> Router:
        return await Router.start(config, workers=[url])

    for run in (lambda: Router(config, workers=[url]), lambda: asyncio.run(start())):
        with pytest.raises(WarmrouteError) as raised:
            run()
        assert raised.value.code == "conflict"
        assert raised.value.message == (
            f"{taken} is already in use: stop the other process or choose another port with {key}"
        )


def test_a_closed_router_aborts_its_requests(
    programs: Programs, get_json: Callable[[str], Any], wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    url = programs.start_engine()
    router = Router(workers=[url])
    stall(url)
    stream = router.generate_blocking(PROMPT, stop_conditions=LONG)
    assert next(stream)["index"] == 0
    router.close_blocking()
    with pytest.raises(WarmrouteError):
        list(stream)
    assert list(stream) == []
    wait_for("aborted request", lambda: aborted(get_json, url))


def test_a_worker_that_dies_ends_its_streams_with_one_error(programs: Programs) -> None:
    url = programs.start_engine()
    with Router(workers=[url]) as router:
        stall(url)
        stream = router.generate_blocking(PROMPT, stop_conditions=LONG)
        assert next(stream)["index"] == 0
        programs.running[-1].close()
        with pytest.raises(WarmrouteError) as raised:
            list(stream)
        assert raised.value.code == "stream_interrupted"
        assert list(stream) == []


FORK = """
import os, sys
from warmroute import Router, WarmrouteError

router = Router(workers=sys.argv[1:])
child = os.fork()
if child == 0:
    try:
        router.best_worker_blocking([1, 2, 3])
    except WarmrouteError as error:
        print(error.code, flush=True)
    del router
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(router.best_worker_blocking([1, 2, 3])[0])
"""


def test_a_fork_gets_a_clear_error_and_disturbs_nothing(programs: Programs) -> None:
    ended = programs.run("-W", "ignore", "-c", FORK, f"w1={programs.start_engine()}")
    assert (ended.returncode, ended.stdout.split()) == (0, ["conflict", "w1"]), ended.stderr


FORK_CLOSES = """
import asyncio, os, sys
from warmroute import Router, WarmrouteError

router = Router(workers=sys.argv[1:])
stream = router.generate_blocking([1, 2, 3], stop_conditions={"max_tokens": 20, "ignore_eos": True})
first = next(stream)
child = os.fork()
if child == 0:
    stream.close()
    asyncio.run(stream.aclose())
    router.close_blocking()
    asyncio.run(router.close())
    for call in (stream.__next__, lambda: router.best_worker_blocking([1, 2, 3])):
        try:
            call()
        except WarmrouteError as error:
            print(error.code, flush=True)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(sum(len(part["token_ids"]) for part in [first, *stream]))
print(router.best_worker_blocking([1, 2, 3])[0])
"""


def test_a_fork_that_closes_a_stream_and_its_router_closes_neither_of_the_parent(programs: Programs) -> None:
    ended = programs.run("-W", "ignore", "-c", FORK_CLOSES, f"w1={programs.start_engine()}")
    assert (ended.returncode, ended.stdout.split()) == (0, ["conflict", "conflict", "20", "w1"]), ended.stderr


FORK_FIRST = """
import os, sys
from warmroute import Router

child = os.fork()
with Router(workers=sys.argv[1:]) as router:
    print(router.best_worker_blocking([1, 2, 3])[0], flush=True)
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_process_that_forks_before_its_first_router_is_served(programs: Programs) -> None:
    ended = programs.run("-c", FORK_FIRST, f"w1={programs.start_engine()}")
    assert (ended.returncode, ended.stdout.split()) == (0, ["w1", "w1"]), ended.stderr


INTERRUPTED = """
import signal, sys, threading
from warmroute import Router

signal.signal(signal.SIGINT, signal.default_int_handler)
router = Router(workers=sys.argv[1:])
stream = router.generate_blocking([1, 2, 3], stop_conditions={"max_tokens": 50, "ignore_eos": True})
next(stream)
try:
    # By another thread, so that this one is in the call, or on its way, when the signal comes.
    threading.Timer(0.2, print, ['{"waits": true}'], {"flush": True}).start()
    next(stream)
except KeyboardInterrupt:
    pass
stream.close()
assert router.best_worker_blocking([1, 2, 3])[0] == "w1"
"""


def test_an_interrupt_ends_a_blocking_call_and_only_it(
    programs: Programs, get_json: Callable[[str], Any], wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    url = programs.start_engine()
    stall(url)
    program = programs.start("-c", INTERRUPTED, f"w1={url}")
    assert program.read_ready_line() == {"waits": True}
    assert program.end(signal.SIGINT) == 0, program.stderr()
    assert program.stderr() == ""
    wait_for("aborted request", lambda: aborted(get_json, url))


INTERRUPTED_START = """
import signal, socket, sys, time
from warmroute import Router, WarmrouteError

signal.signal(signal.SIGALRM, signal.default_int_handler)
with socket.create_server(("127.0.0.1", 0)) as free:
    config = {"admin": {"listen": "127.0.0.1:%s" % free.getsockname()[1]}}
# It accepts connections, and answers nothing.
with socket.create_server(("127.0.0.1", 0)) as silent:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        Router(config, workers=["http://127.0.0.1:%s" % silent.getsockname()[1]])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
while True:
    try:
        router = Router(config, workers=sys.argv[1:])
        break
    except WarmrouteError as error:
        # The router whose start was interrupted has not ended yet.
        assert error.code == "conflict", error
        time.sleep(0.05)
print(router.best_worker_blocking([1, 2, 3])[0])
"""


def test_an_interrupted_start_leaves_no_router(programs: Programs) -> None:
    ended = programs.run("-c", INTERRUPTED_START, f"w1={programs.start_engine()}")
    assert (ended.returncode, ended.stdout.split()) == (0, ["interrupted", "w1"]), ended.stderr


AT_EXIT = {
    "an open stream": """
stream = router.generate_blocking([1, 2, 3], stop_conditions=LONG)
next(stream)
""",
    "a waiting thread": """
import threading

stream = router.generate_blocking([1, 2, 3], stop_conditions=LONG)
next(stream)

def wait():
    try:
        next(stream)
    except WarmrouteError:
        pass

threading.Thread(target=wait, daemon=True).start()
""",
    "a task of an event loop": """
import asyncio

async def main():
    stream = await router.generate([1, 2, 3], stop_conditions=LONG)
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)

asyncio.run(main())
""",
    "an event loop of a thread": """
import asyncio, threading

begun = threading.Event()

async def main():
    stream = await router.generate([1, 2, 3], stop_conditions=LONG)
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    begun.set()
    try:
        await waiting
    except (WarmrouteError, StopAsyncIteration):
        pass

threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
begun.wait()
""",
}

PROGRAM = """
import sys
from warmroute import Router, WarmrouteError

LONG = {"max_tokens": 50, "ignore_eos": True}
router = Router(workers=sys.argv[1:])
router.best_worker_blocking([1, 2, 3], request_id="r1")
"""


@pytest.mark.parametrize("work", AT_EXIT)
def test_the_interpreter_ends_with_work_in_flight(
    programs: Programs, work: str, get_json: Callable[[str], Any], wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    url = programs.start_engine()
    stall(url)
    ended = programs.run("-c", PROGRAM + AT_EXIT[work], f"w1={url}")
    assert (ended.returncode, ended.stderr) == (0, "")
    wait_for("aborted request", lambda: aborted(get_json, url))


ABANDONED = """
import asyncio

async def main():
    stream = await router.generate([1, 2, 3], stop_conditions=LONG)
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    return waiting

loop = asyncio.new_event_loop()
waiting = loop.run_until_complete(main())
assert not waiting.done()
"""


def test_the_interpreter_ends_with_a_call_in_a_loop_that_never_runs_again(
    programs: Programs, get_json: Callable[[str], Any], wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    url = programs.start_engine()
    stall(url)
    ended = programs.run("-c", PROGRAM + ABANDONED, f"w1={url}")
    # Python itself may tell of the task.
    assert ended.returncode == 0, ended.stderr
    wait_for("aborted request", lambda: aborted(get_json, url))


EXIT_BEFORE_IMPORT = """
import asyncio, atexit, sys

@atexit.register
def finish():
    async def main():
        try:
            await router.best_worker([1, 2, 3])
        except Exception as error:
            print(error.code, flush=True)
        await router.close()
    asyncio.run(main())
    print("closed", flush=True)

from warmroute import Router

router = Router(workers=sys.argv[1:])
"""


def test_a_function_that_runs_last_at_exit_finds_a_closed_router(programs: Programs) -> None:
    ended = programs.run("-c", EXIT_BEFORE_IMPORT, programs.start_engine())
    assert (ended.returncode, ended.stdout.split()) == (0, ["draining", "closed"]), ended.stderr


CLOSED_BY_SIGNAL = """
import signal, sys, threading
from warmroute import Router

router = Router(workers=sys.argv[1:])
stream = router.generate_blocking([1, 2, 3], stop_conditions={"max_tokens": 50, "ignore_eos": True})
next(stream)

signal.signal(signal.SIGTERM, lambda *_: stream.close())
# By another thread, so that this one is in the call, or on its way, when the signal comes.
threading.Timer(0.2, print, ['{"waits": true}'], {"flush": True}).start()
assert list(stream) == []
"""


def test_the_handler_of_a_signal_may_close_the_stream_that_is_waited_for(programs: Programs) -> None:
    url = programs.start_engine()
    stall(url)
    program = programs.start("-c", CLOSED_BY_SIGNAL, url)
    assert program.read_ready_line() == {"waits": True}
    assert program.end(signal.SIGTERM) == 0, program.stderr()


FORK_IN_CONTEXT = """
import os, sys
from warmroute import Router

with Router(workers=sys.argv[1:]) as router:
    child = os.fork()
    if child == 0:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""


def test_a_fork_may_leave_the_context_of_a_router(programs: Programs) -> None:
    ended = programs.run("-W", "ignore", "-c", FORK_IN_CONTEXT, programs.start_engine())
    assert ended.returncode == 0, ended.stderr
