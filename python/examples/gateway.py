"""A gateway with the router inside: it decides here and forwards with httpx; needs fastapi >= 0.118,
httpx and uvicorn.

python gateway.py 8080 w1=http://ENGINE1:8000 w2=http://ENGINE2:8000
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import Body, Depends, FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

from warmroute import Router, WarmrouteError

WORKERS = dict(worker.split("=", 1) for worker in sys.argv[2:])


class Gateway:
    def __init__(self) -> None:
        self.router = Router(workers=[f"{name}={url}" for name, url in WORKERS.items()])
        self.client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    gateway = app.state.gateway = Gateway()
    async with gateway.router, gateway.client:
        yield


app = FastAPI(lifespan=lifespan)


class RoutedChat:
    """A chat whose worker is chosen, and counts it as load."""

    def __init__(self, request_id: str, worker: str, dp_rank: int) -> None:
        self.request_id = request_id
        self.url = f"{WORKERS[worker]}/v1/chat/completions"
        self.headers = {
            "accept-encoding": "identity",
            "content-type": "application/json",
            "x-data-parallel-rank": str(dp_rank),
        }
        self.reply: httpx.Response | None = None


async def route(request: Request, chat: Annotated[dict[str, Any], Body()]) -> AsyncIterator[RoutedChat]:
    """Chooses the worker of a chat. Its load ends with the request, also where the client hangs up."""
    router, request_id = request.app.state.gateway.router, uuid.uuid4().hex
    prompt = {field: chat[field] for field in ("messages", "tools") if field in chat}
    try:
        decision = await router.decide(model=chat.get("model"), request_id=request_id, **prompt)
    except WarmrouteError as error:
        status = {"invalid_request": 400, "model_not_found": 404}.get(error.code, 503)
        raise HTTPException(status, error.message) from error
    routed = RoutedChat(request_id, decision["winner"]["worker"], decision["winner"]["dp_rank"])
    try:
        yield routed
    finally:
        # Not awaited, so that no cancellation stops it. The router itself has forgotten a request that took longer
        # than routing.reservation_ttl.
        with suppress(WarmrouteError):
            router.free_blocking(request_id)
        if routed.reply is not None:
            await routed.reply.aclose()


async def hang_up(request: Request) -> None:
    """Returns when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def send(gateway: Gateway, request: Request, routed: RoutedChat) -> httpx.Response:
    """Returns the worker's reply, whose body is still to come; gives up when the client leaves."""
    content = await request.body()
    sent = gateway.client.build_request("POST", routed.url, headers=routed.headers, content=content)
    sending = asyncio.ensure_future(gateway.client.send(sent, stream=True))
    leaving = asyncio.ensure_future(hang_up(request))
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            raise HTTPException(499, "the client has left")
        return sending.result()
    except httpx.TransportError as error:
        raise HTTPException(502, "the worker cannot be reached") from error
    finally:
        sending.cancel()
        leaving.cancel()


@app.post("/v1/chat/completions")
async def chat_completions(request: Request, routed: Annotated[RoutedChat, Depends(route)]) -> StreamingResponse:
    gateway: Gateway = request.app.state.gateway
    reply = routed.reply = await send(gateway, request, routed)

    async def body() -> AsyncIterator[bytes]:
        is_first = True
        async for chunk in reply.aiter_raw():
            if is_first:
                is_first = False
                with suppress(WarmrouteError):
                    await gateway.router.mark_prefill_complete(routed.request_id)
            yield chunk

    headers = {"content-type": reply.headers.get("content-type", "application/json")}
    return StreamingResponse(body(), reply.status_code, headers)


@app.get("/metrics")
async def metrics(request: Request) -> PlainTextResponse:
    return PlainTextResponse(await request.app.state.gateway.router.metrics())


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]))
