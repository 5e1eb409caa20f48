"""`search`: the entries and store items that answer a question best."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tomldiary.cli.memory import known_user
from tomldiary.cli.options import AsJson, MemoryPath
from tomldiary.cli.output import print_json, print_text
from tomldiary.entries.kinds import ITEMS, entry_key
from tomldiary.entries.kinds.parts import part_of
from tomldiary.identifiers.namespaces import ROOT, kind_of, namespace_of
from tomldiary.retrieval.lexical_index import matched_words, shown_words
from tomldiary.store.operations import Item, Search
from tomldiary.store.store import ItemStore
from tomldiary.store.typed_namespaces import is_typed
from tomldiary.text.visible import one_line
from tomldiary.user.recall import Hit

if TYPE_CHECKING:
    from tomldiary.user.user import UserDiary

__all__ = ["search"]


def search(
    query: Annotated[str, typer.Argument(help="A question or words.")],
    *,
    user: Annotated[str, typer.Option(help="Whose memory.")],
    path: MemoryPath = "./memories",
    limit: Annotated[int, typer.Option(help="Most entries shown.", min=1)] = 5,
    as_json: AsJson = False,
) -> None:
    """Search entries and store items, best match first."""
    alice = known_user(path, user).user(user)
    hits = [*alice.recall(query, limit), *_items(alice, query, limit)]
    hits = sorted(hits, key=lambda hit: -hit.score)[:limit]
    if as_json:
        print_json([asdict(hit) for hit in hits])
        return
    for hit in hits:
        print_text(f"{hit.score:6.2f}  {one_line(hit.key)}  {one_line(hit.text)}")
        words = f"words: {', '.join(map(one_line, hit.reasons))}" if hit.reasons else "word forms"
        print_text(
            f"        {hit.kind}, {words}, updated {one_line(hit.updated[:10] or 'unknown')}"
        )
    if not hits:
        print_text("No entry has these words.")


def _items(alice: UserDiary, query: str, limit: int) -> list[Hit]:
    """Return the items that match, from every namespace in the user's folder."""
    name = alice.user_id

    def owner(*_: object) -> str:
        return name

    kinds = {part_of(kind)[0] for kind in alice.documents() if kind.startswith(ROOT)}
    namespaces = filter(None, (namespace_of(name, kind) for kind in sorted(kinds)))
    searches = [Search(each, query=query, limit=limit, refresh=False) for each in namespaces]
    found = ItemStore(alice.diary, user_label=owner).run(searches) if searches else []
    hits: dict[str, Hit] = {}
    for items in found:
        for item in items if isinstance(items, list) else ():
            if isinstance(item, Item) and item.score is not None and not is_typed(item.namespace):
                key = entry_key((ROOT.rstrip("/"), item.key), kind_of(name, item.namespace))
                hits[key] = _hit(key, item, item.score, query)
    return list(hits.values())


def _hit(key: str, item: Item, score: float, query: str) -> Hit:
    text = json.dumps(item.value, ensure_ascii=False, default=str)
    words = matched_words(shown_words(query), text)
    times = {"created": item.created_at.isoformat(), "updated": item.updated_at.isoformat()}
    return Hit(ITEMS.name, key, text, score, words, **times)
