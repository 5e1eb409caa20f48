"""Find what users say about themselves, offline, by phrase tables alone.

This understands nothing. It looks for English first-person phrases such as "I am allergic to" or
"my favourite", and keeps the whole sentence exactly as the user typed it. It therefore

* misses everything in other languages, without an "I" or a "my", or phrased in a way that the
  tables do not list;
* never rewrites or combines sentences, and does not resolve "it", "she" or "there"; the one cut it
  makes is in front of a question ("I am vegan, what can I cook?");
* does not notice irony, later corrections or somebody else's words pasted without quotation marks;
* picks the category by counting shared words, which is a guess.

What it returns should be stored as unverified. It is what works without a network or a key, and
not a substitute for a model.

The work is linear in the text considered. The few patterns that see a whole message never scan a
stretch of it twice; phrases are only looked for in sentences of bounded length, and look at most a
few words ahead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["MAX_CHARACTERS", "MAX_SENTENCE", "MAX_STATEMENTS", "Statement", "find_statements"]

MAX_CHARACTERS = 20_000  # of a message; what follows is not looked at
MAX_SENTENCE = 600  # characters; anything longer is a pasted text, not a statement
MAX_STATEMENTS = 20  # of a turn
_TAG = 6  # spaces in the plain form of a question that merely tags along ("isn't it great?")


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence of the user, verbatim, and the category it seems to belong to."""

    text: str
    category: str


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of statement: where it belongs, and the phrases that give it away.

    `homes` are words of category names, best first. `lasting` phrases count in any message,
    `passing` ones only where the user does not ask for something: "I am going to Rome" is a plan
    in a story and mere background in a question.
    """

    homes: str
    lasting: str = ""
    passing: str = ""


# Phrases, one a line, are matched against the plain form that _plain() makes: lower case,
# contractions written out, "an" as "a", intensifiers dropped, every number as "#".
# "~" stands for up to four words in between, "<name>" for a row of this table.
_WORDS = {
    "relative": """wife|husband|spouse|partner|fiancee?|girlfriend|boyfriend|ex|mom|mum|mother|dad|father
        parents?|brothers?|sisters?|siblings?|twins?|sons?|daughters?|kids?|child|children|baby|toddler
        family|grandm(?:a|other)|grandpa|grandfather|grandparents|aunt|uncle|cousins?|niece|nephew
        friends?|roommate|neighbou?rs?|boss|manager|colleagues?|coworkers?|mentor""",
    "belonging": """dogs?|cats?|pupp(?:y|ies)|kittens?|pets?|horses?|rabbits?|birds?|parrots?|hamsters?
        fish|turtles?|snakes?|chickens?|car|truck|van|bike|bicycle|motorcycle|scooter|boat|house|home
        apartment|flat|garden|guitar|piano|violin|camera|wheelchair|collection|tattoos?|business|farm""",
    "illness": """allerg(?:y|ies)|intolerances?|asthma|diabetes|celiac|coeliac|migraines?|arthritis|dyslexia
        adhd|autism|anxiety|depression|epilepsy|insomnia|eczema|vertigo|injur(?:y|ies)|disability
        sensitivit(?:y|ies)|motion sickness|phobia|<organ> (?:issues?|problems?|pain|condition|disease)""",
    "organ": """joint|back|knee|skin|heart|eye|stomach|sensory|respiratory|digestive|mobility|balance
        breathing|sleep|hearing|vision|health|medical|mental""",
    "aversion": """aversion|dislike|distaste|hatred|fear|objection|disdain|trouble|difficult(?:y|ies)
        hard time|no (?:interest|desire|time)|low tolerance""",
    "fondness": """preference|passion|love|fondness|interest|obsession|weakness for|soft spot|appreciation
        enthusiasm|affinity|favou?rites?|habit|routine|policy|rule|need for""",
    "trait": """vegan|vegetarian|pescatarian|diabetic|celiac|coeliac|pregnant|married|divorced|single|engaged
        widowed|retired|unemployed|self employed|disabled|deaf|blind|colou?r ?blind|dyslexic|autistic
        left handed|bilingual|claustrophobic|introverted|extroverted|religious|jewish|muslim|christian
        catholic|hindu|buddhist|atheist|gay|lesbian|bisexual|trans(?:gender)?|queer|adopted|frugal""",
    "pointer": """it|this|that|your?|those|these|how|what you|when you|if you|to (?:know|ask|see|hear|thank)
        the (?:first|second|third|last|other|one|idea|answer|way)""",
    "task": """the (?:commands?|code|script|program|role|part|docs|documentation|manual|steps|instructions)
        the (?:following|error|file|article|video|logs?|tests?|tutorial)""",
    "reporting": """sa(?:y|id)|see|saw|get|got|ha(?:ve|d)|want(?:ed)?|need(?:ed)?|kn[eo]w|ask(?:ed)?|mean(?:t)?
        hear(?:d)?|think|thought|found|did|tried|noticed|received|underst(?:and|ood)|reali[sz]ed|remember
        agree|wonder|guess|believe|care|mind|recall|worry|seem|feel|mention""",
    "request": """know|ask|see|hear|find|get|have|make|create|write|use|discuss|understand|buy|book|reserve
        schedule|cancel|return|generate|build|check|thank|say|tell|add|change|show|talk|try|explore|order
        plan|go with""",
}
_KINDS = {
    "allergy": _Kind(
        "allergy allergen intolerance medical health dietary diet restriction constraint dislike",
        r"""(?:am|is|are|highly) (?:\w+ )?(?:allergic|intolerant)
        (?:i|my <relative>) (?:have|has|had|suffer|suffers) ~<illness>
        i (?:was|am|have been) diagnosed
        (?:my|due to|because of) (?:\w+ )?<illness>
        i (?:take|am on) ~medications?""",
    ),
    "dislike": _Kind(
        "dislike aversion hate avoid peeve negative boundary restriction constraint preference",
        r"""(?:i|and) (?:dislike|hate|detest|despise|loathe|avoid|refuse|abhor|resent|reject|shun) (?!<pointer> )
        i (?:steer clear|stay away|shy away|get bored|struggle (?:with|to))
        i (?:do|would|can|could|will) not (?:like|love|enjoy|care for|stand|tolerate|bear|abide) (?!<pointer> )
        i (?:do|would|can|could|will) not (?:trust|appreciate|support|celebrate|stomach) (?!<pointer> )
        i (?:do|would|will) not (?:eat|drink|wear|watch|read|play|drive|own|cook|smoke|fly) (?!<pointer> )
        i (?:prefer|try|choose) (?:not|to avoid|to skip|avoiding)
        i (?:have|had|feel) (?:a |some )?~<aversion>
        i am (?:not (?:into|a fan|fond|comfortable|interested|keen|willing|crazy)|against|opposed|averse)
        i am (?:(?:afraid|scared|terrified|sick|tired) of|uncomfortable|turned off|put off|bored by)
        (?:makes?|making|made) me (?:feel )?(?:uncomfortable|sick|anxious|nauseous|nervous|ill|dizzy)
        not (?:for me|my (?:thing|style|cup|taste)|appeal|interest me|enjoy)
        no go for me
        (?:bores?|annoys?|irritates?|bothers?|scares?|frightens?|upsets?) me
        my (?:least|pet peeve|aversion|dislike|fear|disdain)""",
        r"i do not (?!<reporting> )(?!<request> )\w+",
    ),
    "like": _Kind(
        "like preference favorite favourite love positive taste interest hobby",
        r"""(?:i|and|but|we) (?:do )?(?:like|love|enjoy|adore|prefer|favou?r|value|cherish) (?!<pointer> )
        i (?:appreciate|gravitate|lean) (?!<pointer> )
        i have (?:always|long) (?:liked|loved|enjoyed|preferred|been)
        i have (?!no )~<fondness>
        i am (?:into|fond of|keen on|passionate|crazy about|obsessed with|drawn to|partial to|happiest)
        i am a ~(?:fan|lover|enthusiast|believer|fanatic)
        my (?:all time )?(?:favou?rites?|preference|preferred|hobby|hobbies|passion|style|go to|interests?)
        i would (?:rather|prefer)
        i (?:find|consider) ~(?:more|most|better|best)
        (?:appeals? to|matters? to|suits|works? (?:best|better|well) for|relaxes|calms) me""",
        r"""i am interested in
        i (?:find |feel (?!that |like |this |it ))\w+
        (?:important to|helps|makes|keeps|gives|brings|reminds|motivates) me
        (?:means?|special) ~to me""",
    ),
    "goal": _Kind(
        "goal plan aspiration objective ambition dream aim intention project todo",
        r"""my (?:\w+ )?(?:goals?|dream|ambition|resolution|aim)
        i (?:dream of|aspire)""",
        r"""i (?:am|was|have been) (?:planning|hoping|aiming|training|saving|going to|preparing|determined)
        i (?:am|was|have been) (?:thinking (?:of|about)|looking (?:into|forward)|excited (?:to|about))
        i (?:am|was|have been) (?:starting|taking|learning|studying|working (?:on|towards?))
        i (?:am|was|have been) (?:considering (?:a|moving|going)|trying to (?!<request> )\w+)
        i (?:plan|hope|aim|intend|wish) to
        i want to (?:be|become|learn|start|stop|quit|lose|improve|visit|travel|move|live|study|work|open)
        i want to (?:own|run|retire|save|keep|help|grow|master|continue|raise|eat|reduce|cut)
        i would (?:love|like) to (?!<request> )\w+
        (?:i|we) will (?:be|have|start|keep|continue|go|take|move|join|visit|try)
        (?:i|we) have (?:got )?~plans?
        going to ~my""",
    ),
    "routine": _Kind(
        "routine habit practice schedule lifestyle daily behavior behaviour constraint preference",
        r"""i (?:always|never|usually|often|rarely|seldom|typically|normally|regularly) (?!<reporting> )\w+
        i (?:only|exclusively|strictly|mainly|primarily|frequently|mostly|sometimes) (?!<reporting> )\w+
        i (?:tend to|stick (?:to|with)|adhere|abstain|abide|observe|opt for|seek|prioriti[sz]e|insist|limit)
        i (?:rely on|choose to|learn best|am used to|practi[sc]e|keep (?:kosher|halal)|maintain|refrain)
        i (?:restrict|focus on|boycott|believe in|take care|work out|meditate|commute|wake up|get up|volunteer)
        i (?:follow|exercise|run|jog|cycle|collect|coach|eat|drink|wear|watch|cook|bake) (?!<pointer> |<task> )
        i (?:paint|garden|read|play|listen to|smoke|travel|swim|hike|sing|dance|shop) (?!<pointer> |<task> )
        i (?:support|learn) (?!<pointer> |<task> )
        i ~every (?:day|morning|evening|night|week|weekend|month|year|\w+day)
        i try to (?:keep|stay|eat|live|limit|minimi[sz]e|be|only|buy|get)""",
        r"""i (?:go|work|write|help|use|make|keep)
        i am (?:reading|watching|writing|building|hosting|moving|teaching|volunteering|organi[sz]ing)
        (?:we|i) (?:like to (?!<request> )|go|often|always|usually)""",
    ),
    "constraint": _Kind(
        "constraint restriction requirement limit rule boundary budget dietary diet medical need dislike",
        r"""my (?:\w+ )?(?:budget|diet|religion|faith|beliefs?|values|ethics|disability|condition|health)
        i am (?:on|following) a ~(?:budget|diet)
        i (?:must|need to|have to|should) (?:avoid|limit|not|stay|follow|watch my)
        i can (?:not|only) (?:eat|drink|have|do|afford|tolerate|digest|wear|use|swim|drive|walk|handle)
        i require
        i am (?:unable|restricted|limited|sensitive|prone|committed|conscious|strict)
        (?:religious|ethical|health|medical|personal|environmental) (?:reasons|beliefs|concerns)""",
    ),
    "work": _Kind(
        "work job career profession occupation employment biography bio background about profile",
        r"""i (?:work|worked|am working|have worked) (?:as|at|for|in|with|from|remotely|part|full|night)
        i (?:run|own|manage|started|founded|opened) (?:a|my) ~(?:company|business|shop|store|studio)
        i (?:teach|am employed|was promoted)
        my (?:job|profession|career|occupation|employer|company|business|commute)""",
        r"""i (?:lost|quit|left|started|got) (?:a |my )?~(?:job|internship|position)
        my (?:own )?(?:store|studio|shop|work|team)""",
    ),
    "family": _Kind(
        "family relationship people relation friend contact social biography bio about profile",
        r"""(?:i|we) have (?:a|#|two|three|four|five|six|no|several) ~<relative>
        my (?:\w+ )?<relative> (?:is|are|has|have|lives?|loves?|likes?|hates?|works?|does|eats?)
        my <relative> and i
        i am (?:a|the) ~<relative>""",
        r"(?:my|our) (?:\w+ )?<relative>",
    ),
    "possession": _Kind(
        "possession belonging item gear equipment vehicle pet home biography bio about profile",
        r"""(?:i|we) (?:own|drive|adopted)
        (?:i|we) have (?:got )?(?:a|#|two|three|four|five|my|some|several) ~<belonging>""",
        r"""(?:my|our) (?:\w+ )?<belonging>
        i ~(?:bought|got) (?:a|my|some|the)""",
    ),
    "biography": _Kind(
        "biography bio about background profile personal identity demographic fact",
        r"""(?:i|we) (?:live|lived|moved|grew up)
        i (?:was (?:born|raised)|come from|reside|speak|majored|graduated|immigrated|identify|studied)
        i (?:used to|served|am (?:from|based|originally|living))
        i am (?:not )?a (?!(?:bit|little|lot|few|couple|tad|fan|idiot|<relative>) )\w+
        i am (?:not )?<trait>
        i am (?:# years|in my (?:\w+ )?(?:\w*ties|teens))
        (?:my name is|call me)
        my (?:\w+ )?(?:birthday|hometown|home country|degree|background|native language|nationality|age)
        as a ~i""",
        r"""(?:i|we) (?:went|visited|started|joined|signed up|finished|attended|met|took|won|lost|made|painted)
        (?:i|we) (?:wrote|ran|learned|had|created|volunteered|organi[sz]ed|helped|spent|discovered|decided)
        (?:i|we) (?:completed|read|watched|found|gave|put|began|applied|saw|tried)
        (?:i|we) have (?:been|had|started|made|joined|done|gone|got|found|learned|met|taken|\w+ed)
        i was (?!(?:wondering|thinking|hoping|asking|looking) )\w+
        (?:i am|i feel) (?:proud|grateful|lucky|part of|involved|thankful|blessed|inspired)""",
    ),
}

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
_INTENSIFIERS = """really absolutely truly strongly totally deeply particularly especially actually honestly
    personally generally definitely simply just also still kinda very quite so pretty greatly intensely
    extremely currently now completely genuinely firmly thoroughly utterly fully both big huge strong deep
    intense severe serious real mild slight major lifelong certain profound great acute chronic extreme total
    much please even already recently finally"""
_FILLERS = frozenset(_INTENSIFIERS.split())
_CONTRACTIONS = {
    "an": "a",
    "im": "i am",
    "ive": "i have",
    "dont": "do not",
    "doesnt": "does not",
    "cant": "can not",
    "can't": "can not",
    "cannot": "can not",
    "won't": "will not",
    "gonna": "going to",
    "wanna": "want to",
}
_ENDINGS = {
    "n't": "not",
    "'m": "am",
    "'ve": "have",
    "'ll": "will",
    "'d": "would",
    "'re": "are",
    "'s": "is",
}
_SHORT_FORMS = "dr mr mrs ms prof st vs e.g i.e eg ie approx no inc jr sr u.s u.k a.m p.m"
_ABBREVIATIONS = frozenset(_SHORT_FORMS.split())
_INITIALS = "abcdefghjklmnopqrstuvwxyz"  # without "i", which ends sentences


def _compile(phrases: str | Mapping[str, str], *, start: str = "") -> re.Pattern[str]:
    """One pattern of many phrases, kinds as named groups: the leftmost wins, then table order."""
    kinds = {"any": phrases} if isinstance(phrases, str) else phrases
    source = "|".join(f"(?P<{kind}>{_either(text)})" for kind, text in kinds.items() if text)
    while names := set(re.findall(r"(?<!\?P)<(\w+)>", source)):
        for name in names:
            source = re.sub(
                rf"(?<!\?P)<{name}>", f"(?:{_either(_WORDS[name])})".replace("\\", r"\\"), source
            )
    source = source.replace("~", r"(?:\S+ ){0,4}?")
    return re.compile(rf" {start}(?:{source})(?: |(?<= ))")


def _either(lines: str) -> str:
    return "|".join(line.strip() for line in lines.split("\n"))


_ALLERGY = _compile({"allergy": _KINDS["allergy"].lasting})
_LASTING = _compile({name: kind.lasting for name, kind in _KINDS.items()})
_PASSING = _compile({name: kind.passing for name, kind in _KINDS.items()})
_FIRST_PERSON = _compile("i|my|mine|me|we|our")
_CHAT = _compile("you|yours?|yourself")

_SO = r"(?:(?:and|but|so|well|ok|okay|hi|hey|hello|also|now|then|btw|by the way) )?"
_REMINDER = _compile(
    "(?:remember|note|keep in mind|bear in mind|do not forget|fyi) (?:that )?(?=(?:i|my|we|our) )",
    start=_SO,
)
_HYPOTHETICAL = _compile(
    "if|suppose|supposing|imagine|pretend|assume|assuming|what if|say|unless|whether", start=_SO
)
_AT_HAND = _compile(  # makes a passing remark part of the work in front of the assistant
    """errors?|code|bugs?|scripts?|function|files?|command|api|install(?:ed|ing)?|regex|query|compile|prompt
    output|dataframes?|docs|documentation|server|database|following|essay|assignment|homework|report|paper
    question|problem|spreadsheet|pdf|email|as if|if i (?:were|was|had)"""
)
_OPENS_QUESTION = _compile(
    """(?:what|how|why|where|when|which|who|whose)(?! (?:i|my|we|our|a) )
    (?:can|could|would|will|should|shall|do|does|did|is|are|was|were|am|have|has|may|might) <asked>
    any (?:ideas?|tips|advice|suggestions?|recommendations?)""".replace(
        "<asked>",
        "(?:i|you|we|it|there|this|that|these|those|the|my|he|she|they|any|anyone|someone)",
    ),
    start=_SO,
)
_ASKS = _compile(
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
_ORDERS = _compile(
    """translate|rewrite|reword|rephrase|paraphrase|proofread|correct|edit|fix|improve|shorten|summari[sz]e
    classify|analy[sz]e|extract|continue|complete|review|reply|respond|answer|write|convert|explain|identify
    list|make|create|generate|describe|draft|compose|provide|compare|find|help|plan|design|add|remove|change
    act|always|give|tell|show|calculate|solve|implement|build|recommend|suggest|advise""",
    start=_SO,
)
_NUDGES = _compile(  # addressed to the other side as well, but no task
    r"""use|never|do not|stop|let (?:us|is|me)|check|look|say|speak|talk|think|consider|run|try|keep|remember
    note|call (?!me )\w+|wait|go|come|take|have a""",
    start=_SO,
)
_ROLE_PLAY = _compile(  # what follows is not the user's own speech
    """act as|you are (?:a|the|now)|pretend|role ?play|imagine|i want you to act|ignore all|assume the role
    from now on|answer as|behave as|play the role""",
    start="(?:(?:can|could|would|will) you )?",
)
_HANDLES_TEXT = _compile(
    """translate|rewrite|reword|rephrase|paraphrase|proofread|correct|edit|fix|improve|shorten|summari[sz]e
    classify|analy[sz]e|extract|continue|complete|review|reply|respond|answer|write|convert|grade|explain
    identify|following|below|text|sentence|paragraph|email|message|said|says|wrote|lyrics|quote|story|poem"""
)
_POINTS_BELOW = _compile(
    "following|below|this (?:text|sentence|paragraph|email|message|story|letter)"
)
_SPEAKS = _compile("said|says|say|told|wrote|writes|asked|replied|goes|shouted|called")

_SPLICE = re.compile(
    r",\s(?:so\s|and\s|but\s)?(?=(?:can|could|would|will|what|which|how|where|do|does|is|are|should|any)\s)",
    re.IGNORECASE,
)
_QUOTE_MARKS = str.maketrans("\u2018\u2019\u02bc\u201c\u201d\u201e\u00ab\u00bb", "'" * 3 + '"' * 5)
_HIDDEN = re.compile(  # each branch stops at the next mark of its own kind, so no scan is repeated
    r"`[^`\n]*`|(?<!\w)\"[^\"\n]*\"|(?<![\w'])'(?:[^'\n]|(?<=\w)'(?=\w))*+'(?!\w)|(?:https?://|www\.)\S+"
)
_SOFT_WRAP = re.compile(r"(?<![.!?:;\n])\n(?=[a-z])(?!(?:i|i'm|im|i've|my|we|our)\b)")
_BOUNDARY = re.compile(r"\n|(?<![.!?\u2026])[.!?\u2026]++[^\w\s]{0,8}+(?=\s|\Z)|\Z")
_BULLETS = "-*\u2022\u2013 \t"
_PLAIN_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|\d+")
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def find_statements(user_msg: str, categories: Mapping[str, str]) -> list[Statement]:
    """Return the user's own lasting first-person sentences, verbatim, in the order they were said.

    Of "I am vegan, what can I cook?" the part before the question is a sentence of its own.

    Args:
        user_msg: What the user typed. Only the first `MAX_CHARACTERS` characters are considered.
        categories: Category names and their descriptions, which may be empty. Without any there
            is nowhere to put a statement, so nothing is returned.

    Returns:
        At most `MAX_STATEMENTS` statements, no sentence twice. Questions, requests, quotations,
        code and text handed over for translation or the like are left out.
    """
    found: dict[str, Statement] = {}
    if not categories:
        return []
    for sentence, kind in _lasting_sentences(user_msg):
        if len(found) == MAX_STATEMENTS:
            break
        key = " ".join(sentence.casefold().split())
        if key not in found:
            found[key] = Statement(sentence, _choose(kind, sentence, categories))
    return list(found.values())


def _lasting_sentences(message: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence worth keeping with the name of its kind."""
    sentences, asked = _own_sentences(message)
    for text, plain, alone in sentences:
        if not _FIRST_PERSON.search(plain) or _HYPOTHETICAL.match(plain):
            continue
        match = _ALLERGY.search(plain) or _LASTING.search(plain)
        if match is None and alone and not asked and not _AT_HAND.search(plain):
            match = _PASSING.search(plain)
        if match is not None and match.lastgroup is not None:
            yield text, match.lastgroup


def _own_sentences(message: str) -> tuple[list[tuple[str, str, bool]], bool]:
    """The sentences that are no request, and whether the message asks for anything.

    Each comes with its plain form and whether it stands alone or was cut off a question.
    """
    sentences: list[tuple[str, str, bool]] = []
    asked = False
    for text, mask in _sentences(message):
        plain = _plain(mask)
        request = "?" in mask[-4:] or _is_request(plain)
        if _hands_over(plain, mask, request=request):
            return sentences, True
        if request:
            asked = asked or not _is_small_talk(plain)
            splice = _SPLICE.search(mask)
            plain = _plain(mask[: splice.start()]) if splice else ""
            if splice and not _is_request(plain):
                sentences.append((text[: splice.start()], plain, False))
        elif not (("__" in mask or ":" in mask) and _SPEAKS.search(plain)):
            sentences.append((text, plain, True))
    return sentences, asked


def _sentences(message: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence as typed, and with code, quotations and addresses blanked out."""
    cut, message = len(message) > MAX_CHARACTERS, message[:MAX_CHARACTERS]
    mask = _mask(message)
    start = 0
    for boundary in _BOUNDARY.finditer(mask):
        end = boundary.end()
        if boundary.group() == "." and _is_abbreviation(mask[max(start, end - 8) : end - 1]):
            continue
        if cut and not boundary.group():
            return  # what the cap cuts off is not verbatim
        text = message[start:end].lstrip().lstrip(_BULLETS)
        if 0 < len(text) <= MAX_SENTENCE:
            yield text.rstrip(), mask[end - len(text) : end].rstrip()
        start = end


def _mask(message: str) -> str:
    """Blank out what is not the user's own speech; every offset stays where it was."""
    lines: list[str] = []
    fence = ""
    for line in message.translate(_QUOTE_MARKS).split("\n"):
        mark = line.lstrip()[:3]
        hidden = bool(fence) or mark in {"```", "~~~"} or mark.startswith(">")
        if mark in {"```", "~~~"} and fence in {"", mark}:
            fence = "" if fence else mark
        lines.append("\n" * len(line) if hidden else line)
    text = _HIDDEN.sub(lambda hit: "_" * len(hit.group()), "\n".join(lines))
    return _SOFT_WRAP.sub(" ", text)


def _is_abbreviation(before: str) -> bool:
    word = before.lower().split()[-1:]
    return bool(word) and (
        word[0] in _ABBREVIATIONS or (len(word[0]) == 1 and word[0] in _INITIALS)
    )


def _plain(sentence: str) -> str:
    """The form that phrases are matched against: one space around each word, see _WORDS."""
    words: list[str] = [""]
    for match in _PLAIN_WORD.finditer(sentence.lower()):
        token = match.group()
        word = "#" if token.isdigit() else _CONTRACTIONS.get(token, token)
        if "'" in word:
            ending = next((ending for ending in _ENDINGS if word.endswith(ending)), "")
            word = f"{word.removesuffix(ending)} {_ENDINGS[ending]}" if ending else word
        if word not in _FILLERS:
            words.append(word)
    return " ".join([*words, ""])


def _is_request(plain: str) -> bool:
    if _REMINDER.match(plain):
        return False
    searched = _ASKS.search(plain)
    return bool(searched or any(p.match(plain) for p in (_OPENS_QUESTION, _ORDERS, _NUDGES)))


def _is_small_talk(plain: str) -> bool:
    """Whether a question is about the other side ("and you?") rather than a request for help."""
    if _ASKS.search(plain) or _ORDERS.match(plain):
        return False
    if _CHAT.search(plain) or _NUDGES.match(plain):
        return True
    return plain.count(" ") <= _TAG and not _FIRST_PERSON.search(plain)


def _hands_over(plain: str, mask: str, *, request: bool) -> bool:
    """Whether what follows is a text to work on, or a role to play, and not about the user."""
    if _ROLE_PLAY.match(plain) or (request and _POINTS_BELOW.search(plain)):
        return True
    colon = mask.endswith(":") or (request and ":" in mask)
    return colon and bool(_HANDLES_TEXT.search(plain))


def _choose(kind: str, sentence: str, categories: Mapping[str, str]) -> str:
    """Return the category whose name and description share most with the kind and the sentence."""
    said = _stems(sentence)
    homes = _KINDS[kind].homes.split()
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
