"""A third party's backend: the six methods of TOMLDiary 0.9, which list no documents."""

from __future__ import annotations

__all__ = ["SixVerbs"]


class SixVerbs:
    """Keeps texts by user and kind."""

    def __init__(self):
        self.texts = {}

    async def load(self, user_id, kind):
        return self.texts.get((user_id, kind))

    async def save(self, user_id, kind, content):
        self.texts[user_id, kind] = content

    async def exists(self, user_id, kind):
        return (user_id, kind) in self.texts

    async def delete(self, user_id, kind):
        self.texts.pop((user_id, kind), None)

    async def delete_user(self, user_id):
        self.texts = {place: text for place, text in self.texts.items() if place[0] != user_id}

    async def list_users(self):
        return sorted({user for user, _ in self.texts})
