"""A local HTTP server that speaks OpenAI's and Anthropic's chat APIs and sometimes resets connections.

It answers a host's request with a sentence, and an extractor's with one `upsert_preference` call for the
sentence "I like …" of the turn, then with "done".
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import struct
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module

_LIKING = re.compile(r"I like (?:drink|dish) \d+")
_RESET = struct.pack("ii", 1, 0)


class ProviderServer(ThreadingHTTPServer):
    """Serves both APIs; keeps what it was asked and how often it reset a connection.

    Args:
        reset_each: Reset the connection of each request with such a number, instead of answering.
        drop_each: Reset the idle connection behind each answer with such a number.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, reset_each: int = 0, drop_each: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reset_each, self.drop_each = reset_each, drop_each
        self.counts: Counter[str] = Counter()
        self.requests: list[dict] = []
        self._numbers, self._guard = itertools.count(1), threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        """Say nothing about connections that a client closed."""

    def fate(self, asked: dict) -> tuple[bool, bool]:
        """Count a request; return whether to reset before an answer, and behind it."""
        with self._guard:
            number = next(self._numbers)
            self.requests.append(asked)
            is_reset = bool(self.reset_each) and number % self.reset_each == 0
            is_dropped = bool(self.drop_each) and number % self.drop_each == 0
            self.counts["reset"] += is_reset
            self.counts["dropped"] += is_dropped and not is_reset
            return is_reset, is_dropped


@contextmanager
def provider_server(**options):
    server = ProviderServer(**options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_reset, is_dropped = self.server.fate(asked)
        if is_reset:
            self._reset()
            return
        is_anthropic = self.path.partition("?")[0].endswith("/messages")
        answer = _anthropic(asked) if is_anthropic else _openai(asked)
        text, kind = json.dumps(answer), "application/json"
        if asked.get("stream"):
            text = _anthropic_events(answer) if is_anthropic else _openai_events(answer)
            kind = "text/event-stream"
        body = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if is_dropped:
            self._reset()

    def _reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.connection.shutdown(socket.SHUT_RD)  # ends the handler's loop; the close is a reset
        self.close_connection = True


def _decide(asked: dict, told: bool) -> tuple[str, dict | None]:
    """Return the words of an answer, and the arguments of a tool call if it makes one."""
    tools = json.dumps(asked.get("tools", []))
    if "upsert_preference" not in tools:
        return "noted", None
    likings = _LIKING.findall(json.dumps(asked["messages"]))
    if told or not likings:
        return "done", None
    # The turn stands behind what is stored.
    return "", {"category": "likes", "id": "new", "text": likings[-1], "contexts": []}


def _openai(asked: dict) -> dict:
    text, call = _decide(asked, any(one["role"] == "tool" for one in asked["messages"]))
    message: dict = {"role": "assistant", "content": text or None}
    if call is not None:
        function = {"name": "upsert_preference", "arguments": json.dumps(call)}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    finish = "tool_calls" if call is not None else "stop"
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": asked["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }  # fmt: skip


def _anthropic(asked: dict) -> dict:
    told = any(
        isinstance(one["content"], list) and any(b["type"] == "tool_result" for b in one["content"])
        for one in asked["messages"]
    )
    text, call = _decide(asked, told)
    content: list[dict] = [{"type": "text", "text": text}] if text else []
    if call is not None:
        content.append({"type": "tool_use", "id": "toolu_1", "name": "upsert_preference", "input": call})  # fmt: skip
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"],
        "content": content, "stop_reason": "tool_use" if call is not None else "end_turn",
        "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip


def _anthropic_events(answer: dict) -> str:
    """Return an answer as the events of a stream."""
    events: list[dict] = [{"type": "message_start", "message": {**answer, "content": []}}]
    for index, block in enumerate(answer["content"]):
        if block["type"] == "text":
            start = {**block, "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": start},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    ending = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)


def _openai_events(answer: dict) -> str:
    """Return an answer as the chunks of a stream."""
    choice = answer["choices"][0]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": 0, **delta["tool_calls"][0]}]
    head = {**answer, "object": "chat.completion.chunk"}
    chunks = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
    ]
    return "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"


def retry_soon(monkeypatch):
    """Shorten the pause before the second attempt of the clients of both providers."""
    for name in ("openai", "anthropic"):
        client = import_module(f"{name}._base_client")
        monkeypatch.setattr(client, "INITIAL_RETRY_DELAY", 0.01)  # seconds
