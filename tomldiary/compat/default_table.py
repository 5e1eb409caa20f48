"""The default preference table of a diary."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tomldiary.entries.models import PreferenceItem  # noqa: TC001 - pydantic reads the annotations


class DefaultPrefTable(BaseModel):
    """What an assistant usefully remembers about a person over months.

    likes         : What the person enjoys or prefers: food, music, tools, ways of doing things
    dislikes      : What the person avoids, rejects or finds annoying
    allergies     : Allergies, intolerances and other substances or situations that do harm
    routines      : What the person regularly does, with day or time if it was said
    biography     : Lasting facts: name, home, languages, education, important dates
    relationships : People and pets in the person's life and how they are related
    goals         : What the person wants to reach, learn or change, with a deadline if there is one
    work          : Job, employer, projects, colleagues and the tools used at work
    """

    model_config = ConfigDict(defer_build=True)  # deferred, because only loaders validate the model

    likes: dict[str, PreferenceItem] = {}
    dislikes: dict[str, PreferenceItem] = {}
    allergies: dict[str, PreferenceItem] = {}
    routines: dict[str, PreferenceItem] = {}
    biography: dict[str, PreferenceItem] = {}
    relationships: dict[str, PreferenceItem] = {}
    goals: dict[str, PreferenceItem] = {}
    work: dict[str, PreferenceItem] = {}
