"""Workers that register themselves, and the places where an endpoint finds them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from warmroute import WarmrouteError
from warmroute.dynamo import (
    DistributedRuntime,
    Endpoint,
    KvPushRouter,
    KvRouterConfig,
    ModelInput,
    ModelType,
    Registration,
    register_llm,
)

if TYPE_CHECKING:
    from conftest import Program, Programs

WaitFor = Callable[[str, Callable[[], Any]], Any]

TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
NOBODY = "http://127.0.0.1:1"
# Registers the engine of WARMROUTE_ENGINE_URL, and then waits for its end.
WORKER = """
import asyncio, json, signal, sys
from warmroute.dynamo import DistributedRuntime, ModelInput, ModelType, register_llm

async def main():
    endpoint = DistributedRuntime.detached().namespace("dynamo").component("backend").endpoint("generate")
    registration = await register_llm(
        model_input=ModelInput.Tokens,
        model_type={model_type},
        endpoint=endpoint,
        model_name="sim",
        lease_s={lease_s},
    )
    print(json.dumps({{"worker_id": registration.worker_id}}), flush=True)
    await asyncio.Event().wait()

# The one that started this process may ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(0)
"""


@pytest.fixture(autouse=True)
def no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which an endpoint finds no engine."""
    for variable in ("WARMROUTE_WORKERS", "WARMROUTE_ENGINE_URL", "WARMROUTE_ADMIN_TOKEN", "NATS_SERVER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WARMROUTE_ADMIN_URL", NOBODY)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which registrations stay in this process."""
    monkeypatch.delenv("WARMROUTE_ADMIN_URL")


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    runtime = DistributedRuntime.detached()
    request.addfinalizer(runtime.shutdown)
    return runtime.namespace("dynamo").component("backend").endpoint("generate")


@pytest.fixture
def admin(programs: Programs) -> str:
    """The admin listener of a router without workers."""
    file = programs.folder / "router.yaml"
    file.write_text("workers: []\n")
    flags = ["--port", "0", "--admin-listen", "127.0.0.1:0", "--print-ready"]
    router = programs.start("-m", "warmroute", "serve", "-c", str(file), *flags)
    return f"http://{router.read_ready_line()['admin']}"


def name_of(url: str) -> str:
    return url.removeprefix("http://")


def new_router(endpoint: Endpoint) -> KvPushRouter:
    return KvPushRouter(endpoint=endpoint, block_size=16, kv_router_config=KvRouterConfig())


def workers_of(router: KvPushRouter) -> set[str]:
    """Returns the workers that can be used."""

    async def run() -> set[str]:
        try:
            return {row["worker_id"] for row in await router.get_potential_loads(TOKENS)}
        except WarmrouteError as error:
            assert error.code in ("no_worker", "model_not_found"), error
            return set()

    return asyncio.run(run())


def register(endpoint: Endpoint, url: str, model_type: ModelType = ModelType.Chat, **options: Any) -> Registration:
    return asyncio.run(register_llm(ModelInput.Tokens, model_type, endpoint, "sim", url=url, **options))


def start_worker(
    programs: Programs, url: str, lease_s: float, model_type: str = "ModelType.Chat | ModelType.Completions", **env: str
) -> Program:
    """Starts a process that registers an engine."""
    code = WORKER.format(lease_s=lease_s, model_type=model_type)
    worker = programs.start("-c", code, WARMROUTE_ENGINE_URL=url, **env)
    assert worker.read_ready_line() == {"worker_id": name_of(url)}
    return worker


@pytest.mark.contract("DY25", "DY38", "DY40")
def test_a_decode_and_a_prefill_worker_of_one_model_meet(
    programs: Programs, endpoint: Endpoint, alone: None, get_json: Callable[[str], Any]
) -> None:
    decode, prefill = (programs.start_engine("--role", role) for role in ("decode", "prefill"))

    async def main() -> int:
        generate_endpoint = endpoint
        await register_llm(
            model_input=ModelInput.Tokens,
            model_type=ModelType.Chat | ModelType.Completions,
            endpoint=generate_endpoint,
            model_name="sim",
            url=decode,
        )
        await register_llm(
            model_input=ModelInput.Tokens,
            model_type=ModelType.Prefill,
            endpoint=generate_endpoint,
            model_name="sim",
            url=f"{prefill}/v1",
        )
        router = new_router(endpoint)
        loads = await router.get_potential_loads(TOKENS)
        assert {row["worker_id"] for row in loads} == {name_of(decode), name_of(prefill)}
        assert (await router.best_worker(TOKENS))[0] == name_of(decode)
        stream = await router.generate(list(range(1, 500)), "sim", {"max_tokens": 4})
        return sum([len(part["token_ids"]) async for part in stream])

    assert asyncio.run(main()) == 4
    assert [get_json(f"{engine}/sim/stats")["executions"] for engine in (decode, prefill)] == [1, 1]


@pytest.mark.contract("DY38")
def test_a_router_follows_the_registrations_of_its_process(
    programs: Programs, endpoint: Endpoint, alone: None, wait_for: WaitFor
) -> None:
    first, second = programs.start_engine(), programs.start_engine()
    registration = register(endpoint, first)
    router = new_router(endpoint)
    assert workers_of(router) == {name_of(first)}
    later = register(endpoint, second)
    wait_for("second worker", lambda: workers_of(router) == {name_of(first), name_of(second)} or None)
    registration.close()
    registration.close()
    wait_for("end of the first worker", lambda: workers_of(router) == {name_of(second)} or None)
    asyncio.run(later.aclose())
    wait_for("end of the second worker", lambda: workers_of(router) == set() or None)


@pytest.mark.contract("DY38")
def test_the_end_of_a_runtime_ends_its_registrations(
    programs: Programs, endpoint: Endpoint, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(endpoint, programs.start_engine())
    endpoint.runtime.shutdown()
    monkeypatch.setenv("WARMROUTE_ADMIN_URL", NOBODY)
    with pytest.raises(WarmrouteError, match="no worker is registered in this process"):
        new_router(endpoint)


@pytest.mark.contract("DY38")
def test_a_later_registration_of_a_worker_takes_its_place(
    programs: Programs, endpoint: Endpoint, alone: None
) -> None:
    engine = programs.start_engine()
    earlier = register(endpoint, engine)
    register(endpoint, engine)
    router = new_router(endpoint)
    earlier.close()
    assert workers_of(router) == {name_of(engine)}


@pytest.mark.contract("DY38")
def test_endpoints_have_workers_of_their_own(programs: Programs, endpoint: Endpoint, alone: None) -> None:
    register(endpoint, programs.start_engine())
    component = endpoint.runtime.namespace("dynamo").component("backend")
    other = programs.start_engine()
    register(component.endpoint("other"), other)
    assert workers_of(new_router(component.endpoint("other"))) == {name_of(other)}


@pytest.mark.contract("DY38")
def test_a_worker_registers_at_an_admin_listener_and_goes_when_its_lease_ends(
    programs: Programs, admin: str, get_json: Callable[[str], Any], wait_for: WaitFor
) -> None:
    engine = programs.start_engine()

    def roles() -> dict[str, str]:
        return {row["name"]: row["role"] for row in get_json(f"{admin}/admin/workers")["workers"]}

    worker = start_worker(programs, engine, 2, "ModelType.Prefill", WARMROUTE_ADMIN_URL=admin)
    wait_for("worker", lambda: roles() == {name_of(engine): "prefill"} or None)
    worker.end(signal.SIGKILL)
    wait_for("end of the lease", lambda: roles() == {} or None)


@pytest.mark.contract("DY38")
def test_a_process_that_ends_takes_its_worker_out(
    programs: Programs, admin: str, get_json: Callable[[str], Any], wait_for: WaitFor
) -> None:
    worker = start_worker(programs, programs.start_engine(), 3600, WARMROUTE_ADMIN_URL=admin)
    assert len(get_json(f"{admin}/admin/workers")["workers"]) == 1
    assert worker.end(signal.SIGINT) == 0, worker.stderr()
    wait_for("end of the worker", lambda: get_json(f"{admin}/admin/workers")["workers"] == [] or None)


@pytest.mark.contract("DY38", "DY40")
def test_a_router_follows_the_workers_of_an_admin_listener(
    programs: Programs, endpoint: Endpoint, admin: str, monkeypatch: pytest.MonkeyPatch, wait_for: WaitFor
) -> None:
    first, second = programs.start_engine(), programs.start_engine()
    start_worker(programs, first, 3600, WARMROUTE_ADMIN_URL=admin)
    monkeypatch.setenv("WARMROUTE_ADMIN_URL", admin)
    router = new_router(endpoint)
    assert workers_of(router) == {name_of(first)}
    worker = start_worker(programs, second, 3600, WARMROUTE_ADMIN_URL=admin)
    wait_for("second worker", lambda: workers_of(router) == {name_of(first), name_of(second)} or None)
    assert worker.end(signal.SIGINT) == 0, worker.stderr()
    wait_for("end of the second worker", lambda: workers_of(router) == {name_of(first)} or None)


@pytest.mark.contract("DY38", "DY40")
def test_a_worker_registers_in_nats_and_goes_when_its_lease_ends(
    programs: Programs, endpoint: Endpoint, nats_server: str, monkeypatch: pytest.MonkeyPatch, wait_for: WaitFor
) -> None:
    engine = programs.start_engine()
    worker = start_worker(programs, engine, 3, NATS_SERVER=nats_server)
    monkeypatch.setenv("NATS_SERVER", nats_server)

    def found() -> KvPushRouter | None:
        try:
            return new_router(endpoint)
        except WarmrouteError as error:
            # The registration may still be on its way.
            assert error.code == "no_worker"
            return None

    router = wait_for("registration", found)
    wait_for("worker", lambda: workers_of(router) == {name_of(engine)} or None)
    worker.end(signal.SIGKILL)
    wait_for("end of the lease", lambda: workers_of(router) == set() or None)


@pytest.mark.contract("DY40")
def test_the_first_place_with_engines_counts(
    programs: Programs,
    endpoint: Endpoint,
    nats_server: str,
    admin: str,
    monkeypatch: pytest.MonkeyPatch,
    wait_for: WaitFor,
) -> None:
    local, variable, bus, elsewhere = (programs.start_engine() for _ in range(4))
    start_worker(programs, elsewhere, 3600, WARMROUTE_ADMIN_URL=admin)
    monkeypatch.setenv("WARMROUTE_ADMIN_URL", admin)
    assert workers_of(new_router(endpoint)) == {name_of(elsewhere)}
    start_worker(programs, bus, 3600, NATS_SERVER=nats_server)
    monkeypatch.setenv("NATS_SERVER", nats_server)
    wait_for("registration in NATS", lambda: workers_of(new_router(endpoint)) == {name_of(bus)} or None)
    monkeypatch.setenv("WARMROUTE_WORKERS", f"w1={variable}")
    assert workers_of(new_router(endpoint)) == {"w1"}
    with monkeypatch.context() as alone:
        alone.delenv("WARMROUTE_ADMIN_URL")
        alone.delenv("NATS_SERVER")
        register(endpoint, local)
    assert workers_of(new_router(endpoint)) == {name_of(local)}


@pytest.mark.contract("DY40")
def test_without_engines_one_error_names_all_places(endpoint: Endpoint) -> None:
    for use in (lambda: new_router(endpoint), endpoint.client):
        with pytest.raises(WarmrouteError) as raised:
            use()
        assert raised.value.code == "no_worker"
        for place in ("dynamo/backend/generate", "this process", "WARMROUTE_WORKERS", "NATS", "admin listener", NOBODY):
            assert place in raised.value.message


@pytest.mark.contract("DY38")
def test_a_worker_that_is_refused_is_registered_nowhere(
    programs: Programs, endpoint: Endpoint, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WarmrouteError, match="was not reached"):
        register(endpoint, programs.start_engine())
    monkeypatch.setenv("WARMROUTE_ADMIN_URL", admin)
    with pytest.raises(WarmrouteError) as raised:
        register(endpoint, "http://169.254.169.254")
    assert raised.value.code == "destination_forbidden"
    with pytest.raises(WarmrouteError, match="no worker is registered in this process"):
        new_router(endpoint)


@pytest.mark.contract("DY38")
@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"model_input": "tokens"}, TypeError, "model_input is of type str"),
        ({"model_type": 1}, TypeError, "model_type is of type int"),
        ({"model_type": ModelType.Chat | ModelType.Prefill}, ValueError, "Prefill alone"),
        ({"model_type": ModelType(0)}, ValueError, "Prefill alone"),
        ({"endpoint": None}, TypeError, "endpoint is of type NoneType"),
        ({"model_name": ""}, ValueError, "model_name is ''"),
        ({"url": None}, ValueError, "WARMROUTE_ENGINE_URL"),
        ({"url": "127.0.0.1:8000"}, ValueError, "expected http://HOST:PORT"),
        ({"url": "http://user:secret@127.0.0.1:8000"}, ValueError, "^url has a user or a password: expected"),
        ({"block_size": 0}, ValueError, "block_size is 0"),
        ({"lease_s": 0.5}, ValueError, "lease_s is 0.5: expected 1 to 86400"),
        ({"lease_s": "15"}, TypeError, "lease_s is of type str"),
    ],
)
def test_a_wrong_argument_of_a_registration_is_named(
    endpoint: Endpoint, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    usual: dict[str, Any] = {
        "model_input": ModelInput.Tokens,
        "model_type": ModelType.Chat,
        "endpoint": endpoint,
        "model_name": "sim",
        "url": NOBODY,
    }
    with pytest.raises(error, match=says):
        asyncio.run(register_llm(**(usual | arguments)))


@pytest.mark.contract("DY40")
def test_the_error_says_that_nats_was_not_reached(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER", "nats://127.0.0.1:1")
    with pytest.raises(WarmrouteError, match=r"the server \(NATS_SERVER\) was not reached"):
        new_router(endpoint)


@pytest.mark.contract("DY38", "DY40")
def test_a_password_of_nats_is_refused_and_not_shown(
    endpoint: Endpoint, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_SERVER", "nats://user:s3cr3t@127.0.0.1:1")
    for use in (lambda: register(endpoint, NOBODY), lambda: new_router(endpoint)):
        with pytest.raises(ValueError, match="^NATS_SERVER has a user or a password: expected nats://HOST:PORT$"):
            use()
