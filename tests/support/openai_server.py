"""A server on loopback that speaks OpenAI's chat completions, well or badly, as a test tells it to.

    with OpenAIServer([status(429, retry_after=0), calls("list_categories"), says("done")]) as server:
        model = OpenAIChatModel("any", provider=OpenAIProvider(base_url=server.url, api_key="k"))

Steps are answered in order; the last one is repeated. A step may also be a function of the request's body
that returns a step. `server.requests` holds the bodies in the order in which they came.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "OpenAIServer", "Step", "broken", "calls", "closed_url", "resets", "says", "slow", "status",
]  # fmt: skip


@dataclass(frozen=True)
class Step:
    """How one request is answered."""

    message: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    until: threading.Event | None = None
    is_reset: bool = False


def says(text: str) -> Step:
    """Answer with text; an empty one is an empty message."""
    return Step({"role": "assistant", "content": text})


def calls(*named: str | tuple[str, dict[str, Any]]) -> Step:
    """Answer with calls of tools: names, or names with arguments."""
    pairs = [(each, {}) if isinstance(each, str) else each for each in named]
    listed = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(pairs)
    ]
    return Step({"role": "assistant", "content": None, "tool_calls": listed})


def status(code: int, *, retry_after: float | None = None, message: str = "no") -> Step:
    """Answer with an error."""
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    body = json.dumps({"error": {"message": message, "type": "error", "code": str(code)}})
    return Step(status=code, headers=headers, body=body.encode())


def broken() -> Step:
    """Answer with JSON that is cut short."""
    return Step(body=b'{"id": "x", "choices": [{"mess')


def slow(until: threading.Event, then: Step | None = None) -> Step:
    """Answer no earlier than an event is set; the server sets it when it is closed."""
    step = then or says("done")
    return Step(step.message, step.status, step.headers, step.body, until)


def resets() -> Step:
    """Reset the connection instead of an answer."""
    return Step(is_reset=True)


def closed_url() -> str:
    """Return the URL of a port at which nothing listens."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


class OpenAIServer:
    """Answers requests step by step, each in a thread of its own."""

    def __init__(self, steps: Sequence[Step | Callable[[dict[str, Any]], Step]] = ()) -> None:
        self.requests: list[dict[str, Any]] = []
        self.connections = 0
        self._steps = list(steps) or [says("done")]
        self._guard = threading.Lock()
        self._events = {each.until for each in self._steps if isinstance(each, Step) and each.until}
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        """The base URL, as providers take it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for event in self._events:
            event.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def next(self, body: dict[str, Any]) -> Step:
        """Record a request and return how it is answered."""
        with self._guard:
            self.requests.append(body)
            step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        return step if isinstance(step, Step) else step(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that was made to give up has closed the connection."""


def _handler(owner: OpenAIServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            owner.connections += 1

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            step = owner.next(body)
            if step.until is not None:
                step.until.wait(60)
            if step.is_reset:
                linger = struct.pack("ii", 1, 0)  # closing resets, as nothing is sent any more
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.close_connection = True
                return
            data = step.body if step.body is not None else _completion(step.message, body)
            self.send_response(step.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            for name, value in step.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _completion(message: dict[str, Any], body: dict[str, Any]) -> bytes:
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body.get("model", ""),
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    ).encode()
