"""Embedders from several frameworks, and the vectors of a diary's users.

An embedder is "local", a function, LangChain's `Embeddings` or pydantic-ai's `Embedder`. If it is missing or
fails, search uses only words, and one warning is logged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from hashlib import blake2b
from math import inf
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tomldiary.errors import (
    DiaryError,
    Forgotten,
    InvalidValue,
    LockTimeout,
    MissingExtra,
    NestedTransaction,
    wrong_type,
)
from tomldiary.logging import get_logger, tell
from tomldiary.retrieval.vector_index import Embedding, VectorIndex
from tomldiary.runtime.async_bridge import run_coroutine
from tomldiary.runtime.callables import refuse_misfit
from tomldiary.runtime.installation import optional
from tomldiary.runtime.lru import PerUser
from tomldiary.storage.protocol import LocalFolder
from tomldiary.toml.values import check_instance

if TYPE_CHECKING:
    from tomldiary.engine.engine import Engine
    from tomldiary.retrieval.collection import Collection
    from tomldiary.retrieval.vector_index import QueryVector
    from tomldiary.text.redaction import Redactor

    _Stored = Callable[[str], Iterable[Collection[Any]]]

LOCAL_DIMS = 256
"""The number of dimensions of a vector of `local_embedder`."""
_PATIENCE = 1.0  # how long a search waits for the user's lock, in seconds
_BATCH = 256  # the maximum number of texts in one call of the embedder
_PLAIN = (str, bytes, int, float)
_logger = get_logger(__name__)


class Vectors:
    """The vectors of the users of a diary. Thread-safe.

    Args:
        engine: The engine; vectors are stored next to its documents.
        embedding: The embedding of texts.
        stored: Returns all collections of a user, whose texts keep their vectors.

    Raises:
        MissingExtra: numpy is not installed.
    """

    def __init__(self, engine: Engine, embedding: Embedding, stored: _Stored) -> None:
        self.embedding = embedding
        self._engine = engine
        self._stored = stored
        backend = engine.backend
        self._folder = backend if isinstance(backend, LocalFolder) else None
        self._known = PerUser(self._made)
        VectorIndex(embedding, None)  # raises MissingExtra early

    def of(self, user: str) -> VectorIndex:
        """Return the vectors of a user, without those from before an erasure."""
        return self._known.of(user, self._engine.backend.epoch(user))

    def _made(self, user: str) -> VectorIndex:
        place = self._folder
        return VectorIndex(
            self.embedding, place and place.index_folder(user), place and place.files
        )

    def add(
        self,
        user: str,
        texts: Sequence[str],
        vectors: Sequence[Sequence[float]],
        epoch: int,
        timeout: float = inf,
    ) -> None:
        """Store vectors of texts that were read before any later erasure.

        Raises:
            Forgotten: Content of the user was erased since.
            LockTimeout: Another writer kept the user's lock for `timeout` seconds.
            NestedTransaction: A transaction of another user is open here.
        """
        with self._engine.locked(user, timeout):
            if self._engine.backend.epoch(user) != epoch:
                raise Forgotten.meanwhile()
            is_due = self.of(user).add(texts, vectors)
        if is_due:
            with suppress(DiaryError):  # the vectors of an unreadable document stay
                self._drop_others(user, texts, timeout)

    def add_searched(
        self, user: str, texts: Sequence[str], vectors: Sequence[Sequence[float]], epoch: int
    ) -> bool:
        """Store vectors of texts that a search met, unless it would wait for long; return whether they are stored.

        `epoch` is -1 if a forget job was under way when the texts were read.
        """
        if epoch < 0:
            return False
        try:
            self.add(user, texts, vectors, epoch, _PATIENCE)
        except (Forgotten, LockTimeout, NestedTransaction):
            return False
        return True

    def _drop_others(self, user: str, added: Sequence[str], timeout: float) -> None:
        """Drop the vectors of texts that are neither stored nor about to be, if these are the majority."""
        parts = (part for each in self._stored(user) for part in each.searched.values())
        entries = (entry for part in parts for entry in part.entries.values())
        kept = [*added, *(text for entry in entries for text in self.embedding.texts_of(entry))]
        with self._engine.locked(user, timeout):
            self.of(user).keep(kept)


class DiaryEmbedder:
    """Embeds questions, and stored texts when they are first searched.

    Args:
        engine: The engine.
        given: "local", a function of a list of texts, LangChain's `Embeddings` or pydantic-ai's `Embedder`.
        stored: Returns all collections of a user that `prepared` may get.
        redactor: What questions are redacted by, as stored texts were; None if they are not.

    Raises:
        InvalidValue: `given` has an unsupported type, or is a function with other parameters.
    """

    def __init__(
        self, engine: Engine, given: Any, stored: _Stored, redactor: Redactor | None
    ) -> None:
        self._engine = engine
        self._stored = stored
        self._redactor = redactor
        self._given = given
        self.embed, self._ask = _functions(given)
        self._embedding: Embedding | None = None
        self._vectors: Vectors | None = None
        self._has_warned = False

    def prepared(
        self, user: str, collections: Sequence[Collection[Any]], query: str, epoch: int
    ) -> QueryVector | None:
        """Embed a question and all texts without a vector. Return None on failure, which is logged once.

        Return None also for a vector of zeros, which is like no text.

        Return None also if vectors cannot be stored now: the user's fencing token is no longer `epoch`, as it was before
        any text was embedded, or another writer keeps the user's lock.
        """
        if not query.strip():
            return None
        try:
            return self._prepared(user, collections, query, epoch)
        except Exception as error:  # noqa: BLE001 - search must work without the embedder
            if not self._has_warned:
                self._has_warned = True
                is_ours = isinstance(error, MissingExtra | InvalidValue)  # quotes no stored text
                name = f"{self._embedding.title}: " if self._embedding is not None else ""
                said = str(error) if is_ours else f"{name}{type(error).__name__}"
                tell(_logger, f"the embedder failed ({said}); searches use only words")
            return None

    def _prepared(
        self, user: str, collections: Sequence[Collection[Any]], query: str, epoch: int
    ) -> QueryVector | None:
        if self._embedding is None:
            self._embedding = Embedding(0, self.embed, (), name_of(self._given), option="embedder")
        embedding = self._embedding
        if self._redactor is not None:
            query = self._redactor.uncounted(query)
        [vector] = embedding.checked(self._ask([query]), 1)
        if self._vectors is None:
            self._vectors = Vectors(
                self._engine, replace(embedding, dims=len(vector)), self._stored
            )
        missing = self._vectors.of(user).missing_below(collections)
        for start in range(0, len(missing), _BATCH):
            texts = missing[start : start + _BATCH]
            found = embedding.checked(embedding.embed(texts), len(texts))
            if not self._vectors.add_searched(user, texts, found, epoch):
                return None
        asked = self._vectors.of(user).asked(vector)
        return asked if asked.vector.any() else None


_Embed = Callable[[list[str]], Sequence[Sequence[float]]]


def _functions(given: Any) -> tuple[_Embed, _Embed]:
    """Return functions that embed a list of texts and a list of questions, which some models embed differently."""
    if given == "local":
        load = cache(local_embedder)

        def local(texts: list[str]) -> Sequence[Sequence[float]]:
            return load()(texts)  # loaded at the first call

        return local, local
    check_instance(given, "embedder")
    if hasattr(given, "embed_documents_sync"):  # pydantic-ai's
        return (
            lambda texts: run_coroutine(given.embed_documents(texts)).embeddings,
            lambda texts: run_coroutine(given.embed_query(texts)).embeddings,
        )
    if hasattr(given, "embed_documents"):  # LangChain's
        return given.embed_documents, lambda texts: [given.embed_query(text) for text in texts]
    if not callable(given):
        raise wrong_type(given, '"local", a function, Embeddings or an Embedder', "embedder")
    check_takes_texts(given, "embedder")

    def embed(texts: list[str]) -> Sequence[Sequence[float]]:
        found: Any = given(texts)
        return run_coroutine(found) if inspect.iscoroutine(found) else found

    return embed, embed


def check_takes_texts(function: Callable[..., Any], where: str) -> None:
    """Check that a function can be called with a list of texts.

    Raises:
        InvalidValue: It has other parameters.
    """
    refuse_misfit(function, "texts", where, [""])


def name_of(embedder: Any) -> str:
    """Return a name that identifies a model or a function: the given text, or the object's class and model.

    A function without a name is identified by its code and the values that it closes over, a `functools.partial` by
    its function and arguments.
    """
    if isinstance(embedder, str):
        return embedder
    if isinstance(embedder, partial):
        function: Any = embedder.func
        arguments = [*enumerate(embedder.args), *sorted(embedder.keywords.items())]
        return f"{name_of(function)} {_hash(_told(arguments))}"
    given = (getattr(embedder, name, None) for name in ("model", "model_name", "model_id"))
    named = (getattr(each, "model_name", each) for each in given)
    model = next((each for each in named if isinstance(each, str) and each), None)
    kind = getattr(embedder, "__qualname__", None) or type(embedder).__qualname__
    if model is None and isinstance(embedder, FunctionType) and "<" in kind:
        model = _code_hash(embedder)
    return str(kind) if model is None else f"{kind} {model}"


def _kind(value: Any) -> str:
    return value.__qualname__ if isinstance(value, FunctionType) else name_of(value)


def _code_hash(function: FunctionType) -> str:
    """Return a hash of a function's code and of the values that it closes over."""
    code, used = function.__code__, inspect.getclosurevars(function)
    known = [
        *used.nonlocals.items(),
        *used.globals.items(),
        *enumerate(function.__defaults__ or ()),
    ]
    constants = [each for each in code.co_consts if isinstance(each, _PLAIN)]
    return _hash((code.co_code, code.co_names, constants, _told(known)))


def _told(values: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return named values, with the names of those that are not plain."""
    return [(name, each if isinstance(each, _PLAIN) else _kind(each)) for name, each in values]


def _hash(value: object) -> str:
    return blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def local_embedder() -> Callable[[Sequence[str]], list[list[float]]]:
    """Return a function that embeds texts offline, in less than a millisecond each.

    Raises:
        MissingExtra: wordllama is not installed; the message has the install command.
    """
    module = optional("wordllama", "The local embedder", "embeddings")
    # The folder is passed, so that nothing is downloaded.
    folder = Path(module.__file__).parent
    model = module.WordLlama.load(cache_dir=folder, disable_download=True)
    # A vector is the mean of the tokens' vectors. wordllama's `embed` pads all texts to the longest one.
    model.tokenizer.no_padding()
    tokens, most = model.embedding, len(model.embedding) - 1

    def embed(texts: Sequence[str]) -> list[list[float]]:
        found = model.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        numbers = ([min(number, most) for number in each.ids] for each in found)
        return [
            tokens[each].mean(axis=0).tolist() if each else [0.0] * LOCAL_DIMS for each in numbers
        ]

    return embed
