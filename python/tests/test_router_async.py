"""The coroutines of a router, and their cancellation."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from warmroute import Router, TokenStream, WarmrouteError

if TYPE_CHECKING:
    from conftest import Program, Programs

PROMPT = list(range(1, 66))
OTHER = list(range(70, 103))


@pytest.fixture
def engine(programs: Programs) -> str:
    url: str = programs.start_engine("--block-size", "16")
    return url


@pytest.fixture
def router(engine: str) -> Iterator[Router]:
    with Router(workers=[f"w1={engine}"]) as router:
        yield router


def fault(engine: str, kind: str) -> None:
    """Gives the engine's next reply a fault."""
    body = json.dumps({"kind": kind, "count": 1}).encode()
    request = urllib.request.Request(f"{engine}/sim/fault", body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as reply:
        assert reply.status == 200


@contextmanager
def standing_still(program: Program) -> Iterator[None]:
    """Stops a program for a while: it answers nothing, and no connection ends."""
    program.process.send_signal(signal.SIGSTOP)
    try:
        _, status = os.waitpid(program.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield
    finally:
        program.process.send_signal(signal.SIGCONT)


def aborted(get_json: Callable[[str], Any], engine: str) -> bool | None:
    """Whether the engine's only request was aborted."""
    stats = get_json(f"{engine}/sim/stats")
    return True if (stats["aborted"], stats["running"]) == (1, 0) else None


@pytest.mark.contract("DY28", "DY30", "DY31", "DY32")
def test_each_coroutine_gives_what_its_blocking_twin_gives(router: Router) -> None:
    async def run() -> None:
        assert await router.best_worker(PROMPT) == router.best_worker_blocking(PROMPT)
        assert await router.get_potential_loads(PROMPT) == router.get_potential_loads_blocking(PROMPT)
        assert await router.find_matches_for_request(PROMPT) == router.find_matches_for_request_blocking(PROMPT)
        assert await router.dump_events() == router.dump_events_blocking()
        assert (await router.metrics()).endswith("# EOF\n")
        decision = await router.decide(PROMPT)
        assert decision.keys() == router.decide_blocking(PROMPT).keys()
        assert await router.best_worker(PROMPT, request_id="r1") == ("w1", 0, 0)
        assert await router.mark_prefill_complete("r1") is None
        assert await router.free("r1") is None
        with pytest.raises(WarmrouteError) as raised:
            await router.free("r1")
        assert raised.value.code == "reservation_not_found"

    asyncio.run(run())


@pytest.mark.contract("DY27")
def test_a_generation_is_an_asynchronous_iterator_of_token_ids(router: Router) -> None:
    async def run() -> list[int]:
        stream = await router.generate(token_ids=PROMPT, stop_conditions={"max_tokens": 4, "ignore_eos": True})
        tokens = []
        async for part in stream:
            tokens.extend(part["token_ids"])
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        return tokens

    first, second = asyncio.run(run()), asyncio.run(run())
    assert len(first) == 4
    assert first == second


def test_calls_are_coroutines_for_asyncio(router: Router) -> None:
    async def run() -> None:
        many = [router.best_worker(PROMPT) for _ in range(50)]
        assert all(isinstance(call, Coroutine) for call in many)
        assert await asyncio.gather(*many) == [("w1", 0, 0)] * 50
        assert await asyncio.create_task(router.best_worker(PROMPT)) == ("w1", 0, 0)
        assert await asyncio.wait_for(router.best_worker(PROMPT), 60) == ("w1", 0, 0)
        once = router.best_worker(PROMPT)
        await once
        with pytest.raises(RuntimeError, match="already awaited"):
            await once

    asyncio.run(run())


def test_a_call_outside_of_an_event_loop_is_an_error(router: Router) -> None:
    call = router.best_worker(PROMPT, request_id="r1")
    with pytest.raises(RuntimeError, match="no running event loop"):
        call.send(None)
    assert router.best_worker_blocking(PROMPT, request_id="r1")[0] == "w1"


@pytest.mark.contract("DY28")
def test_a_cancelled_call_leaves_no_reservation(
    router: Router, wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    before = router.get_potential_loads_blocking(OTHER)

    async def run() -> None:
        for number in range(300):
            call = router.best_worker(PROMPT, request_id=f"r{number}")
            task = asyncio.create_task(call)
            # The cancellation comes before the call, while it runs, and after its result.
            for _ in range(number % 6):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                continue
            router.free_blocking(f"r{number}")

    asyncio.run(run())

    def freed() -> bool | None:
        return True if router.get_potential_loads_blocking(OTHER) == before else None

    wait_for("state without load", freed)


@pytest.mark.contract("DY28")
def test_a_decision_that_is_thrown_away_leaves_the_next_one_under_its_id_alone(router: Router) -> None:
    # Long enough to be tokenized on another thread for a while.
    content = "hello " * 1_000

    async def run() -> None:
        for _ in range(100):
            call = router.decide(messages=[{"role": "user", "content": content}], request_id="r1")
            try:
                waiting = call.send(None)
            except StopIteration:
                # This thread stood still for so long that the decision was there first.
                router.free_blocking("r1")
                continue
            while not waiting.done():
                await asyncio.sleep(0.001)
            router.free_blocking("r1")
            assert router.best_worker_blocking(PROMPT, request_id="r1")[0] == "w1"
            call.close()
            router.free_blocking("r1")
            return
        pytest.fail("no decision was waited for")

    asyncio.run(run())


@pytest.mark.contract("DY28")
def test_a_result_that_is_thrown_away_leaves_no_generation(
    router: Router,
    programs: Programs,
    engine: str,
    get_json: Callable[[str], Any],
    wait_for: Callable[[str, Callable[[], Any]], Any],
) -> None:
    fault(engine, "stall_mid:1")

    async def run() -> None:
        call = router.generate(PROMPT, stop_conditions={"max_tokens": 50, "ignore_eos": True})
        with standing_still(programs.running[-1]):
            waiting = call.send(None)
        # The result is there: the loop would return it with the next step.
        while not waiting.done():
            await asyncio.sleep(0.001)
        call.close()

    asyncio.run(run())
    wait_for("aborted request", lambda: aborted(get_json, engine))


def test_a_cancelled_wait_for_tokens_ends_with_its_stream(
    router: Router, engine: str, get_json: Callable[[str], Any], wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    fault(engine, "stall_mid:1")

    async def run() -> None:
        stream = await router.generate(PROMPT, stop_conditions={"max_tokens": 50, "ignore_eos": True})
        assert len((await anext(stream))["token_ids"]) == 1
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await stream.aclose()
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    asyncio.run(run())
    wait_for("aborted request", lambda: aborted(get_json, engine))


def test_an_event_loop_that_is_closed_while_a_call_waits_leaves_stream_and_router_usable(
    router: Router, engine: str, get_json: Callable[[str], Any], wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    fault(engine, "stall_mid:1")
    loop = asyncio.new_event_loop()

    async def run() -> tuple[TokenStream, asyncio.Future[dict[str, Any]]]:
        stream = await router.generate(PROMPT, stop_conditions={"max_tokens": 50, "ignore_eos": True})
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        return stream, waiting

    stream, waiting = loop.run_until_complete(run())
    loop.close()
    assert not waiting.done()
    # The call has its end now, and no loop to tell.
    stream.close()
    wait_for("aborted request", lambda: aborted(get_json, engine))
    del waiting
    gc.collect()
    assert list(stream) == []

    async def decide() -> str:
        return (await router.best_worker(PROMPT))[0]

    assert asyncio.run(decide()) == "w1"


def test_a_task_lets_others_run_between_calls_whose_results_are_ready(router: Router) -> None:
    steps = 0

    async def count() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    async def run() -> None:
        other = asyncio.create_task(count())
        waited = 0
        for _ in range(100):
            before = steps
            await router.best_worker(PROMPT)
            waited += steps > before
        # Most calls do not wait for the loop, as those of asyncio's own queues and streams do not.
        assert waited < 100
        before = steps
        for _ in range(100):
            await router.best_worker(PROMPT)
            await asyncio.sleep(0)
        assert steps >= before + 100
        other.cancel()

    asyncio.run(run())


def test_a_stream_may_be_closed_while_a_thread_waits_for_it(
    router: Router, engine: str, get_json: Callable[[str], Any], wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    fault(engine, "stall_mid:1")
    stream = router.generate_blocking(PROMPT, stop_conditions={"max_tokens": 50, "ignore_eos": True})
    assert next(stream)["index"] == 0
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, stream)
        stream.close()
        assert rest.result() == []
    wait_for("aborted request", lambda: aborted(get_json, engine))


def test_a_forgotten_stream_is_cancelled(
    router: Router, engine: str, get_json: Callable[[str], Any], wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    fault(engine, "stall_mid:1")
    stream = router.generate_blocking(PROMPT, stop_conditions={"max_tokens": 50, "ignore_eos": True})
    assert next(stream)["index"] == 0
    del stream
    gc.collect()
    wait_for("aborted request", lambda: aborted(get_json, engine))


def test_a_generation_that_is_cancelled_before_its_reply_leaves_no_load(
    router: Router, engine: str, get_json: Callable[[str], Any], wait_for: Callable[[str, Callable[[], Any]], Any]
) -> None:
    # It never answers.
    fault(engine, "hang")
    before = router.get_potential_loads_blocking(OTHER)

    async def run() -> None:
        task = asyncio.create_task(router.generate(PROMPT, stop_conditions={"max_tokens": 50, "ignore_eos": True}))
        while get_json(f"{engine}/sim/stats")["requests"] == 0:
            await asyncio.sleep(0.01)
        assert router.get_potential_loads_blocking(OTHER) != before
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    wait_for("end of the request", lambda: 'outcome="client_gone"} 1' in router.metrics_blocking() or None)
    wait_for("state without load", lambda: router.get_potential_loads_blocking(OTHER) == before or None)


def test_a_part_that_is_thrown_away_is_the_next_one_again(router: Router) -> None:
    conditions = {"max_tokens": 50, "ignore_eos": True}

    async def read() -> tuple[list[int], int]:
        """Returns the tokens of a generation, and how many parts were waited for and thrown away once."""
        stream = await router.generate(PROMPT, stop_conditions=conditions)
        tokens: list[int] = []
        thrown_away = 0
        try:
            while True:
                call = anext(stream)
                try:
                    waiting = call.send(None)
                except StopIteration as ended:
                    tokens.extend(ended.value["token_ids"])
                    continue
                while not waiting.done():
                    await asyncio.sleep(0.001)
                call.close()
                thrown_away += 1
        except StopAsyncIteration:
            return tokens, thrown_away

    async def run() -> None:
        whole = [part["token_ids"] async for part in await router.generate(PROMPT, stop_conditions=conditions)]
        # On a machine that stood still, all parts may have arrived before the first one is asked for.
        for _ in range(20):
            tokens, thrown_away = await read()
            assert tokens == sum(whole, [])
            if thrown_away > 0:
                return
        raise AssertionError("no call had to wait for its part")

    asyncio.run(run())


def test_one_call_at_a_time_waits_for_the_next_part(router: Router, engine: str) -> None:
    fault(engine, "stall_mid:1")

    async def run() -> None:
        stream = await router.generate(PROMPT, stop_conditions={"max_tokens": 50, "ignore_eos": True})
        assert len((await anext(stream))["token_ids"]) == 1
        waiting = anext(stream)
        assert asyncio.isfuture(waiting.send(None))
        with pytest.raises(ValueError, match="already executing"):
            next(stream)
        waiting.close()
        await stream.aclose()
        with pytest.raises(StopIteration):
            next(stream)

    asyncio.run(run())


def test_streams_and_calls_keep_their_router_and_their_stream(engine: str) -> None:
    async def run() -> None:
        assert (await Router(workers=[f"w1={engine}"]).best_worker(PROMPT))[0] == "w1"
        conditions = {"max_tokens": 2, "ignore_eos": True}
        part = await anext(await Router(workers=[engine]).generate(PROMPT, stop_conditions=conditions))
        assert part["token_ids"]

    asyncio.run(run())


def test_a_call_that_is_never_awaited_warns(router: Router) -> None:
    with pytest.warns(RuntimeWarning, match=r"coroutine 'Router\.free' was never awaited"):
        router.free("r1")
        gc.collect()
    router.free("r1").close()


def test_a_long_prompt_does_not_hold_up_the_event_loop(router: Router) -> None:
    async def run() -> None:
        call = router.find_matches_for_request([1] * 20_000)
        assert asyncio.isfuture(call.send(None))
        call.close()

    asyncio.run(run())
