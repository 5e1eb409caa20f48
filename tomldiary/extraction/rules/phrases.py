"""The phrases of statements that users make about themselves, by kind, and their patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ALLERGY",
    "FIRST_PERSON",
    "KINDS",
    "LASTING",
    "PASSING",
    "SO",
    "Kind",
    "compile_phrases",
]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of statement: its categories, and its phrases.

    `homes` are words of category names, best first. `lasting` phrases count in any message, `passing` ones only in
    messages without a request: "I am going to Rome" is a plan in a story, but background in a question.
    """

    homes: str
    lasting: str = ""
    passing: str = ""


# Phrases, one on each line, are matched against the plain form that `plain_form` makes: lower case,
# contractions written out, "an" as "a", intensifiers dropped, every number as "#".
# "~" matches up to four words, "<name>" a row of this table.
_WORDS = {
    "relative": """wife|husband|spouse|partner|fiancee?|girlfriend|boyfriend|ex|mom|mum|mother|dad|father
        parents?|brothers?|sisters?|siblings?|twins?|sons?|daughters?|kids?|child|children|baby|toddler
        family|grandm(?:a|other)|grandpa|grandfather|grandparents|aunt|uncle|cousins?|niece|nephew
        friends?|roommate|neighbou?rs?|boss|manager|colleagues?|coworkers?|mentor""",
    "belonging": """dogs?|cats?|pupp(?:y|ies)|kittens?|pets?|horses?|rabbits?|birds?|parrots?|hamsters?
        fish|turtles?|snakes?|chickens?|car|truck|van|bike|bicycle|motorcycle|scooter|boat|house|home
        apartment|flat|garden|guitar|piano|violin|camera|wheelchair|collection|tattoos?|business|farm""",
    "number": "#|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve",
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
KINDS = {
    "allergy": Kind(
        "allergy allergen intolerance medical health dietary diet restriction constraint dislike",
        r"""(?:am|is|are|highly) (?:no longer |\w+ )?(?:allergic|intolerant)
        (?:i|my <relative>) (?:have|has|had|suffer|suffers) ~<illness>
        i (?:was|am|have been) diagnosed
        (?:my|due to|because of) (?:\w+ )?<illness>
        i (?:take|am on) ~medications?""",
    ),
    "dislike": Kind(
        "dislike aversion hate avoid peeve negative boundary restriction constraint preference",
        r"""(?:i|and) (?:dislike|hate|detest|despise|loathe|avoid|refuse|abhor|resent|reject|shun) (?!<pointer> )
        i (?:steer clear|stay away|shy away|get bored|struggle (?:with|to))
        i (?:(?:do|would|can|could|will) not|no longer) (?:like|love|enjoy|care for|stand|tolerate|bear|abide) (?!<pointer> )
        i (?:do|would|can|could|will) not (?:trust|appreciate|support|celebrate|stomach) (?!<pointer> )
        i (?:(?:do|would|will) not|no longer) (?:eat|drink|wear|watch|read|play|drive|own|cook|smoke|fly) (?!<pointer> )
        i (?:would )?(?:prefer|rather|try|choose) (?:not|to not|to avoid|to skip|avoid|avoiding|skip)
        i (?:do not think|would not say|doubt) (?:that )?i (?:would )?(?:like|love|enjoy) (?!<pointer> )
        i (?:have|had|feel) (?:a |some )?~<aversion>
        i am (?:not (?:into|a fan|fond|comfortable|interested|keen|willing|crazy)|against|opposed|averse)
        i am (?:(?:afraid|scared|terrified|sick|tired) of (?!<pointer> )|uncomfortable|turned off|put off|bored by)
        (?:makes?|making|made) me (?:feel )?(?:uncomfortable|sick|anxious|nauseous|nervous|ill|dizzy)
        not (?:for me|my (?:thing|style|cup|taste)|appeal|interest me|enjoy)
        no go for me
        (?:bores?|annoys?|irritates?|bothers?|scares?|frightens?|upsets?) me
        my (?:least|pet peeve|aversion|dislike|fear|disdain)""",
        r"i do not (?!<reporting> )(?!<request> )\w+",
    ),
    "like": Kind(
        "like preference favorite favourite love positive taste interest hobby",
        r"""(?:i|and|but|we) (?:do )?(?:like|love|enjoy|adore|prefer|favou?r|value|cherish) (?!<pointer> )
        i (?:appreciate|gravitate|lean) (?!<pointer> )
        i have (?:always|long) (?:liked|loved|enjoyed|preferred|been)
        i have (?!no )~<fondness>
        i am (?:into|fond of|keen on|passionate|crazy about|obsessed with|drawn to|partial to|happiest)
        i am a ~(?:fan|lover|enthusiast|believer|fanatic) (?!of (?:<pointer>|yours) )
        my (?:all time )?(?:favou?rites?|preference|preferred|hobby|hobbies|passion|style|go to|interests?)
        i would (?:rather|prefer)
        i (?:find|consider) ~(?:more|most|better|best)
        (?:appeals? to|matters? to|suits|works? (?:best|better|well) for|relaxes|calms) me""",
        r"""i am interested in
        i (?:find |feel (?!that |like |this |it ))\w+
        (?:important to|helps|makes|keeps|gives|brings|reminds|motivates) me
        (?:means?|special) ~to me""",
    ),
    "goal": Kind(
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
    "routine": Kind(
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
        r"""i (?:go|work|write|help|use|make|keep) (?!(?:it|that|this|those|these) )
        i am (?:reading|watching|writing|building|hosting|moving|teaching|volunteering|organi[sz]ing)
        (?:we|i) (?:like to (?!<request> )|go|often|always|usually)""",
    ),
    "constraint": Kind(
        "constraint restriction requirement limit rule boundary budget dietary diet medical need dislike",
        r"""my (?:\w+ )?(?:budget|diet|religion|faith|beliefs?|values|ethics|disability|condition|health)
        i am (?:on|following) a ~(?:budget|diet)
        i (?:must|need to|have to|should) (?:avoid|limit|not|stay|follow|watch my)
        i can (?:not|only) (?:eat|drink|have|do|afford|tolerate|digest|wear|use|swim|drive|walk|handle)
        i require
        i am (?:unable|restricted|limited|sensitive|prone|committed|conscious|strict)
        (?:religious|ethical|health|medical|personal|environmental) (?:reasons|beliefs|concerns)""",
    ),
    "work": Kind(
        "work job career profession occupation employment biography bio background about profile",
        r"""i (?:no longer )?(?:work|worked|am working|have worked) (?:as|at|for|in|with|from|remotely|part|full|night)
        i (?:run|own|manage|started|founded|opened) (?:a|my) ~(?:company|business|shop|store|studio)
        i (?:teach|am employed|was promoted)
        my (?:job|profession|career|occupation|employer|company|business|commute)""",
        r"""i (?:lost|quit|left|started|got) (?:a |my )?~(?:job|internship|position)
        my (?:own )?(?:store|studio|shop|work|team)""",
    ),
    "family": Kind(
        "family relationship people relation friend contact social biography bio about profile",
        r"""(?:i|we) have (?:a|<number>|no|several) ~<relative>
        my (?:\w+ )?<relative> (?:is|are|has|have|lives?|loves?|likes?|hates?|works?|does|eats?)
        my <relative> and i
        i am (?:a|the) ~<relative>""",
        r"(?:my|our) (?:\w+ )?<relative>",
    ),
    "possession": Kind(
        "possession belonging item gear equipment vehicle pet home biography bio about profile",
        r"""(?:i|we) (?:own|drive|adopted)
        (?:i|we) have (?:got )?(?:a|no|<number>|my|some|several) ~<belonging>""",
        r"""(?:my|our) (?:\w+ )?<belonging>
        i ~(?:bought|got) (?:a|my|some|the)""",
    ),
    "biography": Kind(
        "biography bio about background profile personal identity demographic fact",
        r"""(?:i|we) (?:no longer )?(?:live|lived|moved|grew up)
        i (?:was (?:born|raised)|come from|reside|speak|majored|graduated|immigrated|identify|studied)
        i (?:used to|served|am (?:from|based|originally|living))
        i am (?:not |no longer )?a (?!(?:bit|little|lot|few|couple|tad|fan|idiot|<relative>) )\w+
        i am (?:not |no longer )?<trait>
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


def compile_phrases(phrases: str | Mapping[str, str], *, start: str = "") -> re.Pattern[str]:
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


ALLERGY = compile_phrases({"allergy": KINDS["allergy"].lasting})
LASTING = compile_phrases({name: kind.lasting for name, kind in KINDS.items()})
PASSING = compile_phrases({name: kind.passing for name, kind in KINDS.items()})
FIRST_PERSON = compile_phrases("i|my|mine|me|we|our")
SO = r"(?:(?:and|but|so|well|ok|okay|hi|hey|hello|also|now|then|btw|by the way) )?"
