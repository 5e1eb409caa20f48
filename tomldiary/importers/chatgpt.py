"""ChatGPT: the memories in the `conversations.json` of an export, which are messages to the tool `bio`."""

from __future__ import annotations

from tomldiary.importers.files import json_records, listed
from tomldiary.importers.records import Found, Note
from tomldiary.ingest.messages import message_text, messages_of
from tomldiary.ingest.source import as_text, json_time

__all__ = ["read"]

_TOOL = "bio"


def read(place: str, user: str) -> Found:  # noqa: ARG001 - an export contains one user
    """Read the memories of ChatGPT, in the order of the export."""
    found = Found()
    for conversation in listed(json_records(place)):
        found.leave_out("record that is not a conversation", "mapping" not in conversation)
        turns = 0
        for message in messages_of(conversation):
            if as_text(message.get("recipient")) == _TOOL:
                text = message_text(message).strip()
                if text:
                    moment = json_time(message.get("create_time"))
                    found.records.append(Note(as_text(message.get("id")), text, when=moment))
            else:
                turns += 1
        found.leave_out('message of a conversation, which "tomldiary ingest" reads', turns)
    return found
