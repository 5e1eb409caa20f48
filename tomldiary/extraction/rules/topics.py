"""The category that a sentence goes to, by counting shared words: a guess."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from tomldiary.extraction.rules.phrases import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["choose_category"]

# Words that say what a sentence is about: those before the colon appear in the names of
# categories, those after it in sentences. All are compared without a plural "s".
_TOPICS = """
dietary diet food nutrition eating cuisine meal cooking drink: vegan vegetarian pescatarian kosher halal
    gluten dairy lactose food eat eating drink meat fish seafood nut peanut cheese spicy coffee tea wine meal
    breakfast lunch dinner restaurant dish recipe cook sugar bread vegetable fruit chocolate carb pizza diet
medical health condition medication wellness allergy: allergic allergy asthma diabetes diabetic medication
    migraine doctor diagnosed surgery injury pain pregnant celiac epilepsy insulin intolerant disability
family relationship people relation: wife husband spouse partner mother mom mum father dad brother sister
    son daughter kid child parent girlfriend boyfriend friend cousin aunt uncle married engaged divorced
work job career profession occupation employment: work job office boss manager company client colleague
    career nurse teacher engineer developer lawyer designer freelance business team promoted accountant
travel trip destination transport vehicle: travel trip flight fly hotel airport vacation hostel cruise
    train abroad car drive airline
interest hobby entertainment leisure activity media: movie film book novel read music song game guitar piano
    painting photography hiking chess concert museum play series tv dance garden camping knitting pottery
fitness sport exercise training wellness: gym run running jog yoga workout exercise marathon swim cycling
    bike football tennis hike
finance money budget shopping: budget money save saving debt invest cheap price salary
pet animal: dog cat puppy kitten pet horse rabbit parrot hamster
education learning study skill school: study learn learning course school university college degree exam
technology tech tool software device setup: python laptop linux windows mac editor computer phone software
style fashion clothing beauty appearance: wear clothes shoes dress makeup skin hair fabric
home location residence place: live house apartment flat city moved hometown born
"""
_GENERAL = """general biography bio about profile personal background identity fact info information other
    misc miscellaneous note anything everything else memory preference user"""
_UNPLEASANT = "dislike hate aversion avoid allergy peeve"
_PLEASANT = "like love favorite favourite loved liked"
_OPPOSITES = {
    "like": frozenset(_UNPLEASANT.split()),
    "dislike": frozenset(_PLEASANT.split()),
    "allergy": frozenset(_PLEASANT.split()),
}
_EMPTY = """the and for with that this thing user person people they their them what which from about has
    have are who does other any all like want use not general item my i me a an of in on to is or"""
_EMPTY_WORDS = frozenset(_EMPTY.split())
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def choose_category(kind: str, sentence: str, categories: Mapping[str, str]) -> str:
    """Return the category whose name and description share most with the kind and the sentence."""
    said = _stems(sentence)
    homes = KINDS[kind].homes.split()
    topics = [names for names, words in _topics() if words & said]
    best, best_score = "", 0
    for category, description in categories.items():
        name, about = _profile(category), _profile(description) - _EMPTY_WORDS
        if name & _OPPOSITES.get(kind, frozenset()):
            continue
        score = max((12 - rank for rank, home in enumerate(homes) if home in name), default=0)
        score += 6 * any(names & name for names in topics) + 5 * bool(name & said - _EMPTY_WORDS)
        score += 3 * any(home in about for home in homes[:3])
        score += 3 * any(names & about for names in topics) + 3 * min(2, len(about & said))
        if score > best_score:
            best, best_score = category, score
    if best:
        return best
    return next(
        (c for word in _GENERAL.split() for c in categories if word in _profile(c)),
        next(iter(categories)),
    )


@lru_cache(maxsize=1)
def _topics() -> list[tuple[frozenset[str], frozenset[str]]]:
    rows = (row.split(":") for row in re.split(r"\n(?! )", _TOPICS.strip()))
    return [(frozenset(names.split()), frozenset(words.split())) for names, words in rows]


@lru_cache(maxsize=256)
def _profile(text: str) -> frozenset[str]:
    return _stems(text)  # kept for schema texts only: nothing a user said stays in memory


def _stems(text: str) -> frozenset[str]:
    words = (part.lower() for part in _NAME_PART.findall(text))
    return frozenset(
        f"{word[:-3]}y" if word.endswith("ies") else re.sub(r"(?<=[^s])s\Z", "", word)
        for word in words
    )
