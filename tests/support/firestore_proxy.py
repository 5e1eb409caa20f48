"""A server in front of the Firestore emulator, which answers some requests with errors."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

_STREAMS = ("RunQuery", "BatchGetDocuments")


class FirestoreProxy(grpc.GenericRpcHandler):
    """Passes requests on; `faults` names what to answer instead.

    Args:
        emulator: The address of the emulator.
    """

    def __init__(self, emulator: str) -> None:
        self.faults: list[tuple[str, str]] = []
        """Methods with a code each, used up in this order.

        The code `HANG` never answers, and `BROKEN` breaks a stream after its first message. `LOST` with a code applies
        the request before it answers with that code.
        """
        self.always: tuple[str, str] = ("", "")
        """A method, or "*", and its code."""
        self.calls: list[str] = []
        self._channel = grpc.insecure_channel(emulator)
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, handler_call_details: Any) -> Any:
        """Return how a request is answered."""
        path: str = handler_call_details.method
        method = path.rpartition("/")[2]
        self.calls.append(method)
        code = self._code(method)
        if method in _STREAMS:
            ask = self._channel.unary_stream(path)
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._stream(ask, request, context, code)
            )
        ask = self._channel.unary_unary(path)
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(ask, request, context, code)
        )

    def _code(self, method: str) -> str:
        if self.always[0] in (method, "*"):
            return self.always[1]
        if self.faults and self.faults[0][0] == method:
            return self.faults.pop(0)[1]
        return ""

    @staticmethod
    def _refuse(context: Any, code: str) -> None:
        if code == "HANG":
            while context.is_active():
                time.sleep(0.01)
        elif code:
            context.abort(getattr(grpc.StatusCode, code), "said the test")

    def _answer(self, ask: Any, request: bytes, context: Any, code: str) -> Any:
        if code.startswith("LOST "):
            ask(request, metadata=_headers(context))
            code = code.removeprefix("LOST ")
        self._refuse(context, code)
        return self._passed(lambda: ask(request, metadata=_headers(context)), context)

    def _stream(self, ask: Any, request: bytes, context: Any, code: str) -> Any:
        if code != "BROKEN":
            self._refuse(context, code)
        answers = self._passed(lambda: [*ask(request, metadata=_headers(context))], context)
        if code == "BROKEN":
            yield answers[0]
            self._refuse(context, "UNAVAILABLE")
        yield from answers

    @staticmethod
    def _passed(ask: Any, context: Any) -> Any:
        try:
            return ask()
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def close(self) -> None:
        """Stop the server."""
        self._server.stop(0).wait()
        self._channel.close()


def _headers(context: Any) -> Any:
    return [pair for pair in context.invocation_metadata() if pair[0].startswith(("x-", "google-"))]
