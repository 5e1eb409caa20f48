"""A web process of a deployment on several machines: it answers from memory, and stores turns for the workers.

Any number of web processes and of `worker.py` processes can run at the same time; see docs/scaling.md.
`TOMLDIARY_URL` is the URL of the database. `APP_TOKENS` is a JSON file that maps the SHA-256 of each access token to
its user.
Needs: pip install fastapi uvicorn
Run: uvicorn --app-dir examples/fastapi web:app --port 8000
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict

from tomldiary import BackendError, Conflict, Diary, InvalidValue, MemoryWriter, UserDiary
from tomldiary.errors import DiaryError, LockTimeout, RevisionConflict


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the memory and a writer without workers, which only stores turns."""
    async with (
        Diary(os.environ["TOMLDIARY_URL"]) as app.state.diary,
        MemoryWriter(app.state.diary, workers=0) as app.state.writer,
    ):
        yield


app = FastAPI(lifespan=lifespan)
app.state.tokens = json.loads(Path(os.environ["APP_TOKENS"]).read_text("utf-8"))


def signed_in(
    request: Request, given: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]
) -> UserDiary:
    """Return the memory of the token's user; the token is the only source of user ids."""
    user = request.app.state.tokens.get(sha256(given.credentials.encode()).hexdigest())
    if user is None:
        raise HTTPException(401, "unknown token", {"WWW-Authenticate": "Bearer"})
    return request.app.state.diary.user(user)


Memory = Annotated[UserDiary, Depends(signed_in)]


class Said(BaseModel):
    """One turn of a conversation; a field such as `user_id` is refused."""

    model_config = ConfigDict(extra="forbid")

    session_id: str
    user: str
    assistant: str


@app.post("/turns", status_code=202)
async def remember(
    said: Said,
    memory: Memory,
    request: Request,
    idempotency_key: Annotated[str, Header(min_length=1, max_length=100)],
) -> dict[str, bool]:
    """Store a turn in the database before answering; if this fails, repeat the request with the same key."""
    writer: MemoryWriter = request.app.state.writer
    await writer.submit(
        memory.user_id,
        said.session_id,
        said.user,
        said.assistant,
        operation_id=idempotency_key,
    )
    return {"stored": True}


@app.get("/memory")
def known(memory: Memory) -> dict[str, Any]:
    """Return the preferences of the user, and the number of turns of each session."""
    return {
        "preferences": {
            category: [item.text for item in items.values()]
            for category, items in memory.preferences().items()
            if items
        },
        "turns": {name: session.turns for name, session in memory.conversations().items()},
    }


@app.get("/recall")
async def recall(memory: Memory, query: str) -> list[str]:
    """Return the entries that match a question, best match first."""
    return [hit.text for hit in await memory.arecall(query, limit=5)]


@app.delete("/memory")
def forget(memory: Memory) -> dict[str, int]:
    """Erase everything about the user, including queued turns."""
    return {"epoch": memory.forget(everything=True).epoch}


@app.get("/health")
def health(request: Request) -> JSONResponse:
    """Return the health of the queue, for a load balancer."""
    verdict = request.app.state.writer.health()
    return JSONResponse({"status": verdict.status}, verdict.http_status)


@app.exception_handler(BackendError)
@app.exception_handler(LockTimeout)
@app.exception_handler(RevisionConflict)
async def unavailable(_request: Request, _error: DiaryError) -> JSONResponse:
    """Answer 503 while the database is unavailable or others change the user; the log has the reason."""
    return JSONResponse({"detail": "the memory cannot be reached"}, 503, {"Retry-After": "1"})


@app.exception_handler(InvalidValue)
async def invalid(_request: Request, error: InvalidValue) -> JSONResponse:
    """Answer 422 to a turn that no writer could apply, such as one without a session."""
    return JSONResponse({"detail": str(error)}, 422)


@app.exception_handler(Conflict)
async def conflicting(_request: Request, error: Conflict) -> JSONResponse:
    """Answer 409 to an idempotency key that was used for another turn."""
    return JSONResponse({"detail": str(error)}, 409)
