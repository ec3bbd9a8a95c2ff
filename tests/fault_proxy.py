"""A proxy in front of an API server that answers some requests with faults, cuts watches, and dawdles."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from pathlib import Path
from types import TracebackType

import aiohttp
from aiohttp import web

from waiting import PATIENCE_SECONDS


class FaultProxy:
    """Plain HTTP in, the API server's TLS out. One loop in a thread of its own."""

    def __init__(self, target: str, ca_file: Path) -> None:
        self._target = target
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self.fault: int | str | None = None
        """A status to answer with; "cut": the connection ends without an answer; "slow": the answer takes a second."""
        self.every = 3
        """Each of so many requests (watches not among them) gets the fault."""
        self.injected = self._count = 0
        self._watches: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self.url = ""
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()), daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        assert self._ready.wait(PATIENCE_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_SECONDS)

    def cut_watches(self) -> None:
        """End every watch that is open."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._watches])

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        connector = aiohttp.TCPConnector(ssl=self._context, limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            self._session = session
            application = web.Application(client_max_size=1 << 24)
            application.router.add_route("*", "/{path:.*}", self._answer)
            runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.5)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        is_watch = request.query.get("watch") in ("true", "1")
        if not is_watch and self.fault is not None:
            self._count += 1
            if self._count % self.every == 0:
                self.injected += 1
                if self.fault == "cut":
                    assert request.transport is not None
                    request.transport.abort()
                    return web.Response(status=500)
                if self.fault == "slow":
                    await asyncio.sleep(1.0)  # noqa: TID251 - the fault
                else:
                    assert isinstance(self.fault, int)
                    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.fault, "message": "by the test"}
                    headers = {"Retry-After": "1"} if self.fault == 429 else {}
                    return web.Response(status=self.fault, text=json.dumps(body), content_type="application/json", headers=headers)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ("host", "content-length")}
        url = f"{self._target}{request.raw_path}"
        data = await request.read() or None
        kind = ("Content-Type",) if data is None else ()
        async with self._session.request(request.method, url, data=data, headers=headers, skip_auto_headers=kind) as upstream:
            kept = {"Content-Type": upstream.headers.get("Content-Type", "application/json")}
            if not is_watch:
                return web.Response(status=upstream.status, body=await upstream.read(), headers=kept)
            answer = web.StreamResponse(status=upstream.status, headers=kept)
            await answer.prepare(request)
            task = asyncio.current_task()
            assert task is not None
            self._watches.add(task)
            try:
                async for chunk in upstream.content.iter_any():
                    await answer.write(chunk)
            except asyncio.CancelledError:
                if request.transport is not None:
                    request.transport.abort()
            finally:
                self._watches.discard(task)
            return answer
