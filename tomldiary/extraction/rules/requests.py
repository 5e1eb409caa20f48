"""Which sentences ask for something, and which hand over a text to work on."""

from __future__ import annotations

from tomldiary.extraction.rules.phrases import FIRST_PERSON, SO, compile_phrases

__all__ = ["asks_to_forget", "hands_over", "is_request", "is_small_talk", "points_back"]

_TOLD = "(?:that|what|about|it|this|these|those|everything|all|any|anything|i|my|we|our|me|the|how|where|when)"
_KEEP = "(?:remember|store|save|keep|note|record|memori[sz]e|retain)"
_FORGETS = compile_phrases(
    f"""(?:forget|unlearn|erase|delete|scrap|disregard|never mind) (?:about )?{_TOLD}
    (?:remove|drop|wipe|clear) {_TOLD} ~(?:memory|diary|notes|profile|records?)
    (?:do not|never) (?:you )?{_KEEP} (?!to )
    stop (?:remembering|storing|saving|keeping|noting|recording)""",
    start=(
        f"{SO}(?:(?:please|kindly|now|sorry|no|wait|can|could|would|will|should|may|you|go|ahead"
        "|let us|to|and|i (?:want|need|ask|would like)) ){0,6}"
    ),
)
_FORGETS_TOO = compile_phrases(
    f"""(?:please|can you|could you|would you|will you|you can|you may|you should|and) forget {_TOLD}
    (?<! i )forget (?:about )?(?:that|it|this) $
    not (?:want|like) (?:you|this|that|it) (?:to be )?to {_KEEP}
    (?:you should|should|must|can) not (?:be )?(?:{_KEEP}|remembered|stored|saved|kept|noted|recorded)
    rather you (?:did |would |do )?not {_KEEP}"""
)
_POINTS_BACK = compile_phrases(
    r"""forget (?:about )?(?:all (?:of )?)?(?:that|it|this)(?: please| again| now)? $
    (?:forget|disregard|never mind|erase|delete|do not remember) ~i (?:have )?(?:said|told|wrote|mentioned)"""
)
_TAG = 6  # spaces in the plain form of a question that merely tags along ("isn't it great?")
_CHAT = compile_phrases("you|yours?|yourself")
_REMINDER = compile_phrases(
    "(?:remember|note|keep in mind|bear in mind|do not forget|fyi) (?:that )?(?=(?:i|my|we|our) )",
    start=SO,
)
_OPENS_QUESTION = compile_phrases(
    """(?:what|how|why|where|when|which|who|whose)(?! (?:i|my|we|our|a) )
    (?:can|could|would|will|should|shall|do|does|did|is|are|was|were|am|have|has|may|might) <asked>
    any (?:ideas?|tips|advice|suggestions?|recommendations?)""".replace(
        "<asked>",
        "(?:i|you|we|it|there|this|that|these|those|the|my|he|she|they|any|anyone|someone)",
    ),
    start=SO,
)
_ASKS = compile_phrases(
    r"""you (?:would |might |could |can )?(?:recommend|suggest|advise)
    (?:any|some|your|few|for|need|have|want|appreciate) (?:\w+ )?(?:ideas?|tips|advice|suggestions?)
    (?:any|some|your|few|for|need|have|want|appreciate) (?:\w+ )?recommendations?
    help (?:me|with)|(?:tell|give|show|send|teach|guide|walk|remind) me|(?:can|could|would|will) you
    i (?:am|was) (?:looking (?:for|to)|wondering|curious|searching|asking|in (?:need|the market))
    i would like (?:you|a|some|to know)|i would love (?:a|some|it)
    i (?:want|need|would need|expect|ask|prefer|would prefer) (?:you|your)
    i (?:want|need|would like|would love) (?:a|some|help|the|more|new|it|this|that|#)
    i (?:want|need|would like|would love) to (?:know|see|get|have|find|make|create|write|use|buy|hear)
    i (?:want|need|would like|would love) to (?:understand|ask|build|order|book|reserve|schedule)
    your (?:answers?|responses?|repl(?:y|ies)|code|output|explanations?)|as a (?:ai|language model)"""
)
_ORDERS = compile_phrases(
    """translate|rewrite|reword|rephrase|paraphrase|proofread|correct|edit|fix|improve|shorten|summari[sz]e
    classify|analy[sz]e|extract|continue|complete|review|reply|respond|answer|write|convert|explain|identify
    list|make|create|generate|describe|draft|compose|provide|compare|find|help|plan|design|add|remove|change
    act|always|give|tell|show|calculate|solve|implement|build|recommend|suggest|advise""",
    start=SO,
)
_NUDGES = compile_phrases(  # addressed to the other side as well, but no task
    r"""use|never|do not|stop|let (?:us|is|me)|check|look|say|speak|talk|think|consider|run|try|keep|remember
    note|call (?!me )\w+|wait|go|come|take|have a""",
    start=SO,
)
_ROLE_PLAY = compile_phrases(  # what follows is not the user's own speech
    """act as|you are (?:a|the|now)|pretend|role ?play|imagine|i want you to act|ignore all|assume the role
    from now on|answer as|behave as|play the role""",
    start="(?:(?:can|could|would|will) you )?",
)
_HANDLES_TEXT = compile_phrases(
    """translate|rewrite|reword|rephrase|paraphrase|proofread|correct|edit|fix|improve|shorten|summari[sz]e
    classify|analy[sz]e|extract|continue|complete|review|reply|respond|answer|write|convert|grade|explain
    identify|following|below|text|sentence|paragraph|email|message|said|says|wrote|lyrics|quote|story|poem"""
)
_POINTS_BELOW = compile_phrases(
    "following|below|this (?:text|sentence|paragraph|email|message|story|letter)"
)


def is_request(plain: str) -> bool:
    """Whether a sentence asks or orders; "remember that I ..." does not."""
    if _REMINDER.match(plain):
        return False
    searched = _ASKS.search(plain)
    return bool(searched or any(p.match(plain) for p in (_OPENS_QUESTION, _ORDERS, _NUDGES)))


def asks_to_forget(plain: str) -> bool:
    """Whether a sentence asks for something to be forgotten, or not to be remembered at all."""
    return bool(_FORGETS.match(plain) or _FORGETS_TOO.search(plain))


def points_back(plain: str) -> bool:
    """Whether a sentence that asks to forget means what was said before it."""
    return bool(_POINTS_BACK.search(plain))


def is_small_talk(plain: str) -> bool:
    """Whether a question is about the other side ("and you?") rather than a request for help."""
    if _ASKS.search(plain) or _ORDERS.match(plain):
        return False
    if _CHAT.search(plain) or _NUDGES.match(plain):
        return True
    return plain.count(" ") <= _TAG and not FIRST_PERSON.search(plain)


def hands_over(plain: str, mask: str, *, request: bool) -> bool:
    """Whether what follows is a text to work on, or a role to play, and not about the user."""
    if _ROLE_PLAY.match(plain) or (request and _POINTS_BELOW.search(plain)):
        return True
    colon = mask.endswith(":") or (request and ":" in mask)
    return colon and bool(_HANDLES_TEXT.search(plain))
