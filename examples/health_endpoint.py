"""A health endpoint for the background writer, and its metrics for Prometheus.

Serves `/health/memory` (200 or 503, JSON) and `/metrics`. For handlers of FastAPI, see docs/writer.md. With
`opentelemetry-api` installed, the writer also emits spans and metrics. Call `logfire.configure()` before you create
the writer to send them to Logfire. Runs offline. Run: python examples/health_endpoint.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from tomldiary import Diary, MemoryWriter, Turn


def endpoint(writer: MemoryWriter) -> type[BaseHTTPRequestHandler]:
    """Return the request handler for `writer`."""

    class Endpoint(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health/memory":
                verdict = writer.health(longest_wait=60)
                answer, kind = json.dumps(verdict.to_dict()), "application/json"
                self.send_response(verdict.http_status)
            elif self.path == "/metrics":
                answer, kind = writer.prometheus(), "text/plain; version=0.0.4"
                self.send_response(200)
            else:
                self.send_error(404)
                return
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_arguments: object) -> None:
            """Log nothing."""

    return Endpoint


def get(port: int, path: str) -> tuple[int, str]:
    """Send a request to the endpoint, as a load balancer does."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def main(folder: Path) -> None:
    """Start the server, write some turns, and print the answers before and after the writer is closed."""
    writer = MemoryWriter(Diary(folder, agent="rules"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), endpoint(writer))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    for guest in ("ann", "bo", "cy"):
        writer.submit_nowait(Turn(guest, "lunch", "I love soup.", "Noted."))
    writer.flush(30)
    status, body = get(port, "/health/memory")
    print(f"GET /health/memory: {status} {json.loads(body)['status']}")
    print(*get(port, "/metrics")[1].splitlines()[3:6], sep="\n")
    writer.close_sync()
    status, body = get(port, "/health/memory")
    print(f"GET /health/memory: {status} {json.loads(body)['reasons']}")
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
