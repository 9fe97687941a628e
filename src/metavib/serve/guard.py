"""What every request passes before a model sees it, and every answer before it leaves.

A request is refused, with a sentence, where its size, its number, its token or the page it comes from is not what this
server allows; it is given up after a while; and it is counted and logged. What goes wrong inside is logged with an id,
and the client is told the id and nothing else.
"""

import asyncio
import hmac
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from secrets import token_hex
from typing import Any, final

from metavib.serve.metrics import Metrics
from metavib.serve.service import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

LOG = logging.getLogger("metavib.serve")
HERE = ("localhost", "127.0.0.1", "::1")
BODIES = 8  # times the largest body: what all requests together may hold
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


class Stop(Exception):
    """A request that is refused here."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers


@final
class Guard:
    """The outermost part of the server.

    Args:
        app: what it guards.
        limits: of a request.
        metrics: where requests are counted.
        token: what clients must show; without one, only addresses of this machine are served.
    """

    def __init__(self, app: App, limits: Limits, metrics: Metrics, *, token: str | None) -> None:
        self.app, self.limits, self.metrics, self._token = app, limits, metrics, token
        self.running = self.held = 0
        metrics.gauge("metavib_requests_running", "Requests that are being answered.", lambda: self.running)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return
        request = _Request(self, scope, receive, send)
        scope["metavib"] = request.id
        self.running += 1
        try:
            self._check(scope)
            async with asyncio.timeout(self.limits.seconds):
                await self.app(scope, request.receive, request.send)
        except Stop as stop:
            await request.problem(stop.status, stop.reason, **stop.headers)
        except TimeoutError:
            reason = "the request did not arrive in time" if not request.complete else "the answer took too long"
            status = 408 if not request.complete else 503
            await request.problem(status, f"{reason}; ask again, with the same key if it was a change.")
        except Exception:
            request.trace = traceback.format_exc()
            await request.problem(500, unforeseen(request.id))
        finally:
            self.running -= 1
            self.held -= request.size
            self._note(scope, request)

    def _check(self, scope: Message) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"]
        if path == "/healthz":
            return
        if self.running > self.limits.waiting:
            raise Stop(503, "the server has its hands full; ask again in a moment.", **{"retry-after": "1"})
        host = headers.get("host", "")
        if self._token is None and _name(host) not in HERE:
            # A page elsewhere may give its own name this machine's address, and would then pass for us.
            raise Stop(403, "without a token this server answers to localhost alone.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise Stop(403, "pages of other servers may not use this one.")
        if self._token is not None and path.startswith(("/v1", "/metrics")):
            kind, _, given = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode("latin-1"), self._token.encode())
            if kind.lower() != "bearer" or not same:
                reason = "this server asks for its token: send the header Authorization: Bearer TOKEN."
                raise Stop(401, reason, **{"www-authenticate": "Bearer"})
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self.limits.body:
            raise _too_large(self.limits.body)

    def _note(self, scope: Message, request: "_Request") -> None:
        route = getattr(scope.get("route"), "path", "other")
        seconds = time.perf_counter() - request.begun
        labels: dict[str, Any] = {"route": route, "method": scope["method"] if route != "other" else "other"}
        self.metrics.count("metavib_requests_total", "Requests by status.", status=str(request.status), **labels)
        self.metrics.observe("metavib_request_seconds", "Time to answer a request.", seconds, **labels)
        level = logging.ERROR if request.status >= 500 else logging.INFO
        about = {"id": request.id, **labels, "status": request.status, "ms": round(1000 * seconds, 2)}
        LOG.log(level, "request", extra={"fields": about | ({"trace": request.trace} if request.trace else {})})


@final
class _Request:
    """One request on its way through."""

    def __init__(self, guard: Guard, scope: Message, receive: Receive, send: Send) -> None:
        self.guard, self._receive, self._send = guard, receive, send
        self.id, self.begun = token_hex(6), time.perf_counter()
        self.size, self.status, self.complete, self.trace = 0, 0, False, ""
        self.static = not scope["path"].startswith("/v1")

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            length = len(message.get("body", b""))
            self.size += length
            self.guard.held += length
            if self.size > self.guard.limits.body:
                raise _too_large(self.guard.limits.body)
            if self.guard.held > BODIES * self.guard.limits.body:
                raise Stop(503, "the server has its hands full; ask again in a moment.", **{"retry-after": "1"})
            self.complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            more = {"x-request-id": self.id, **HEADERS}
            headers = [*message.get("headers", []), *((k.encode(), v.encode()) for k, v in more.items())]
            message = {**message, "headers": headers}
        await self._send(message)

    async def problem(self, status: int, reason: str, **headers: str) -> None:
        if self.status:  # an answer is already on its way, and this one would not be understood
            return
        body = json.dumps({"error": reason}).encode()
        found = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        if not self.complete:
            found["connection"] = "close"  # what is left of the body is not waited for
        start = {"type": "http.response.start", "status": status}
        await self.send({**start, "headers": [(k.encode(), v.encode()) for k, v in found.items()]})
        await self.send({"type": "http.response.body", "body": body})


def unforeseen(id_: str) -> str:
    """All that a client is told of what should not have happened."""
    return f"something went wrong here; the log has it under the id {id_}."


def _too_large(limit: int) -> Stop:
    return Stop(413, f"a request may have {limit} bytes here.")


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    host = host.lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


@final
class JsonLines(logging.Formatter):
    """Log records as lines of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": at, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
