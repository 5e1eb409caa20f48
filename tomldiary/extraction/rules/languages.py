"""Phrase tables for German, Spanish, French, Portuguese and Italian, one for each language.

A table has the phrases of each kind of statement, phrases of requests, and words that identify the language. English
has separate tables in `phrases` and `sentences`. Some languages are only recognised, so that the extractor can report
that it does not support them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from tomldiary.extraction.rules.phrases import compile_phrases

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LANGUAGES", "WORD", "Language"]

WORD = re.compile(r"[^\W\d_]+|\d+")
_OPENING = r"(?:(?:und|aber|also|hallo|danke|y|pero|hola|gracias|et|mais|bonjour|merci|e|mas|olá|obrigad[oa]|ma|ciao|grazie) )?"


@dataclass(frozen=True, slots=True)
class Patterns:
    """The phrases of a language, compiled."""

    first_person: re.Pattern[str]
    allergy: re.Pattern[str]
    lasting: re.Pattern[str]
    passing: re.Pattern[str]
    asks: re.Pattern[str]
    opens: re.Pattern[str]
    forgets: re.Pattern[str]
    keeps: re.Pattern[str]
    supposes: re.Pattern[str]
    hands_over: re.Pattern[str]
    splice: re.Pattern[str]
    """Matches the beginning of a question after a statement."""


@dataclass(frozen=True)
class Language:
    """The table of one language.

    Phrases, one on each line, are matched against the plain form: lower case, apostrophes as spaces ("j aime"), each
    number as "#". "~" matches up to four words.
    """

    name: str
    common: str
    """Frequent words, which identify the language."""
    first_person: str = ""
    fillers: str = ""
    lasting: Mapping[str, str] = field(default_factory=dict[str, str])
    """Phrases of each kind of `KINDS` that count in any message."""
    passing: Mapping[str, str] = field(default_factory=dict[str, str])
    """Phrases that count in messages without a request."""
    asks: str = ""
    """Phrases of a request."""
    opens: str = ""
    """Words that begin a question or an order."""
    forgets: str = ""
    """Phrases that ask for something to be forgotten."""
    keeps: str = ""
    """The beginning of a question that asks for a statement to be remembered."""
    supposes: str = ""
    """Words at the beginning of a negation."""
    hands_over: str = ""
    """Words of a request that is followed by a text to work on."""

    @cached_property
    def words(self) -> frozenset[str]:
        """The common words."""
        return frozenset(self.common.split())

    @cached_property
    def dropped(self) -> frozenset[str]:
        """The words that the plain form leaves out."""
        return frozenset(self.fillers.split())

    def plain_form(self, sentence: str) -> str:
        """Return the form for matching phrases: one space around each word."""
        words = ("#" if word.isdigit() else word for word in WORD.findall(sentence.lower()))
        return " ".join(["", *(word for word in words if word not in self.dropped), ""])

    @cached_property
    def patterns(self) -> Patterns:
        """The phrases as patterns; compiled when a message is in the language."""
        return Patterns(
            compile_phrases(self.first_person),
            compile_phrases({"allergy": self.lasting["allergy"]}),
            compile_phrases(dict(self.lasting)),
            compile_phrases(dict(self.passing)),
            compile_phrases(self.asks),
            compile_phrases(self.opens, start=_OPENING),
            compile_phrases(self.forgets),
            compile_phrases(self.keeps),
            compile_phrases(self.supposes),
            compile_phrases(self.hands_over),
            re.compile(rf",\s*(?=(?:{self.opens})\s)|\s*¿", re.IGNORECASE),
        )


LANGUAGES: dict[str, Language] = {
    "de": Language(
        "German",
        """der die das und ich ist nicht ein eine einen ich mir mich mein meine wir du sie er es zu mit auf für
        von im in den dem des bin habe hat sind auch wie was aber oder kann kein keine gern gerne als bei am
        nach nur noch wenn dass sehr seit jeden immer nie bitte""",
        first_person="ich|mein|meine|meinen|meinem|meiner|meines|mir|mich|wir|unser|unsere|unseren|uns",
        fillers="""sehr wirklich absolut total ziemlich besonders eigentlich einfach halt ja auch schon noch so
        überhaupt gar echt richtig wahnsinnig unglaublich extrem momentan derzeit doch wohl""",
        lasting={
            "allergy": r"""(?:ich|bin) ~allergisch|allergiker(?:in)?|allergien? gegen|ich vertrage ~(?:kein\w*|nicht)
                ich (?:habe|leide) ~(?:\w*allergie\w*|asthma|diabetes|zöliakie|migräne|\w*unverträglichkeit|\w*intoleranz|neurodermitis)
                \w*intolerant|ich bin (?:diabetiker|asthmatiker)\w*|ich nehme ~(?:medikamente?|tabletten)""",
            "dislike": r"""ich (?:hasse|verabscheue|meide|vermeide|verzichte|verachte)|ich mag ~(?:nicht|kein\w*|nie)
                ich (?:esse|trinke|rauche|trage|fahre|schaue|lese|kaufe|fliege|benutze|besitze|höre|will|brauche) ~(?:nicht|kein\w*|nie|niemals)
                (?:esse|trinke|rauche|trage|schaue|kaufe|fliege|mag|will) ich ~(?:nicht|kein\w*|nie|niemals)
                (?:ich kann|kann ich) ~(?:nicht|kein\w*) (?:\w+ )?(?:leiden|ausstehen|ertragen|ab|riechen)|ich bin kein\w* ~(?:fan|freund|typ|mensch)
                ich habe ~(?:abneigung|angst|abscheu|ekel)|(?:gefällt|gefallen|schmeckt|schmecken|liegt|behagt) mir ~nicht|nicht mein (?:ding|fall)
                (?:nervt|nerven|stört|stören|ekelt|langweilt|ärgert) mich|ich lehne ~ab|ich halte nichts|ich ~ungern""",
            "like": r"""ich (?:liebe|mag|bevorzuge|genieße|schätze|schwärme|verehre|sammle|interessiere mich|begeistere mich)
                (?:ich|wir) ~(?:gern|gerne|lieber|am liebsten|am meisten)|am liebsten|lieblings\w+|mein(?:e|er)? ~(?:hobby|hobbys|leidenschaft|favorit\w*|vorliebe)
                ich bin ~(?:fan|liebhaber\w*|begeistert\w*)|ich stehe auf|ich lege ~wert|ich habe ~(?:vorliebe|schwäche für|faible)
                (?:gefällt|gefallen|schmeckt|schmecken) mir|mir (?:gefällt|schmeckt|ist ~wichtig|liegt)|(?:interessiert|fasziniert|begeistert|entspannt) mich""",
            "goal": r"""mein(?:e|er)? (?:\w+ )?(?:ziel|traum|vorsatz|wunsch|lebenstraum)|ich (?:träume|strebe|nehme mir vor)|ich habe ~vor""",
            "routine": r"""ich ~(?:immer|nie|niemals|jeden|jede|jedes|meistens|normalerweise|gewöhnlich|täglich|regelmäßig|oft|selten|meist|ausschließlich|wöchentlich)
                ich (?:jogge|meditiere|trainiere|koche|backe|schwimme|wandere|faste|gärtnere|stricke|male|tanze|singe|zelte)
                ich (?:spiele|lerne|lese|höre|trinke|esse|rauche|schaue|stehe ~auf|gehe ~(?:joggen|laufen|schwimmen|wandern|ins bett|schlafen))
                ich (?:versuche|bemühe mich|achte darauf|achte auf)|(?:#|ein|zwei|drei)mal (?:pro|die|in der|am) (?:woche|tag|monat)""",
            "constraint": r"""mein(?:e|er)? (?:\w+ )?(?:budget|diät|religion|glaube|gesundheit|ernährung)|ich ernähre mich
                (?:darf|kann) ich ~(?:nicht|kein\w*|nur)
                ich (?:darf|kann|muss|soll|möchte|sollte) ~(?:nicht|kein\w*|nur|höchstens|verzichten|vermeiden|achten)
                ich (?:benötige|brauche) ~(?:rollstuhl|barriere\w*|glutenfrei\w*|laktosefrei\w*|ruhe)|ich bin ~(?:auf diät|empfindlich|eingeschränkt)""",
            "work": r"""ich arbeite|ich bin ~(?:von beruf|angestellt|selbstständig|beamt\w+|in rente|arbeitslos|freiberuf\w+)|ich (?:studiere|unterrichte|leite|promoviere)
                mein(?:e|er|en|em)? (?:\w+ )?(?:job|beruf|chef\w*|arbeit|firma|arbeitgeber|stelle|kolleg\w+|ausbildung|studium|unternehmen)""",
            "family": r"""(?:mein|unser)(?:e|en|em|er)? (?:\w+ )?(?:frau|mann|freund\w*|partner\w*|mutter|vater|eltern|bruder|schwester|geschwister|sohn|tochter|kind|kinder|söhne|töchter|oma|opa|großmutter|großvater|tante|onkel|nichte|neffe|familie|verlobte\w*|zwillinge)
                (?:ich|wir) (?:habe|haben) ~(?:kind|kinder|sohn|söhne|tochter|töchter|bruder|brüder|schwester|schwestern|geschwister|enkel\w*|zwillinge)
                ich bin ~(?:mutter|vater|verheiratet|ledig|geschieden|verlobt|single|verwitwet|schwanger)""",
            "possession": r"""(?:ich|wir) (?:besitze|besitzen|fahre|habe|haben) ~(?:hund\w*|katze\w*|kater|pferd\w*|kaninchen|vogel|vögel|fische?|hamster|schildkröten?|auto|wagen|fahrrad|motorrad|haus|wohnung|garten|gitarre|klavier|geige|boot)
                mein(?:e|en|em|er)? (?:\w+ )?(?:hund\w*|katze\w*|kater|pferd|kaninchen|vogel|auto|fahrrad|motorrad|haus|wohnung|garten|gitarre|klavier|boot)""",
            "biography": r"""ich (?:wohne|lebe|komme (?:aus|ursprünglich)|heiße|spreche|stamme|bin ~(?:geboren|aufgewachsen|gezogen)|wurde ~geboren)
                mein (?:\w+ )?(?:name|geburtstag|alter)|meine (?:\w+ )?(?:muttersprache|heimat\w*)|nenn mich
                ich bin (?:#|ein|eine|seit|vegan\w*|vegetarier\w*|veganer\w*|linkshänder\w*|rechtshänder\w*|jüdisch|muslim\w*|katholisch|evangelisch|atheist\w*|introvertiert|frühaufsteher\w*|nachteule|farbenblind|schwerhörig|rentner\w*|lehrer\w*|arzt|ärztin|student\w*|\w+(?:er|erin|ist|istin|eur|or|orin))""",
        },
        passing={
            "goal": r"""ich (?:plane|möchte|will|hoffe|werde|würde|überlege|freue mich)|wir (?:planen|wollen|werden)""",
            "biography": r"""(?:ich|wir) (?:habe|haben|bin|sind|war|waren|hatte) ~\w+(?:t|en)""",
        },
        asks=r"""(?:kannst|könntest|könnten|können|würdest|würden|hast|weißt|wissen|magst) (?:du|sie|ihr)|(?:hilf|helfen sie|zeig|zeige|gib|sag|sage|erkläre?|schick|nenn|nenne|empfiehl) mir
            ich (?:suche|frage mich|brauche ~(?:hilfe|tipps?|rat|vorschl\w+|empfehlung\w*|einen?|ein))|ich (?:möchte|will|würde gerne|würde gern) ~(?:wissen|buchen|bestellen|reservieren|erfahren|verstehen)
            (?:irgendwelche|hast du|gibt es|haben sie) ~(?:tipps?|ideen|vorschläge|empfehlungen)|empfehlen|vorschlagen""",
        opens="""was|wie|warum|wo|wann|wer|welche[rsnm]?|wieso|weshalb|soll|sollte|kann|darf|gibt|ist|sind|schreib\\w*|übersetz\\w*|erstell\\w*|erklär\\w*|fass\\w*
            such\\w*|mach\\w*|nenn|nenne|plane|korrigier\\w*|verbesser\\w*|vergleiche?|berechne|liste|schlag\\w*|empfiehl|bitte|stell|antworte|spiel|tu so""",
        forgets=r"""vergiss|vergessen sie|lösch\w*|merk\w* dir ~nicht|speicher\w* ~nicht|nicht (?:merken|speichern|aufschreiben)|streich\w*""",
        keeps="(?:kannst|könntest|können|könnten|würdest|würden) (?:du|sie) ~(?:merken|notieren|speichern|aufschreiben) dass",
        supposes="wenn|falls|angenommen|stell dir vor|nehmen wir an|ob",
        hands_over="übersetz\\w*|korrigier\\w*|folgende\\w*|text|satz|sätze|umschreib\\w*|formulier\\w*|fass\\w*|zusammen\\w*|spiel|rolle|als ob",
    ),
    "es": Language(
        "Spanish",
        """el la los las de que y en un una es no me mi mis por con para su se lo al del como más pero muy soy
        tengo estoy yo nos nuestro nuestra gusta gustan hay qué este esta también cuando siempre nunca sin desde
        todos todas años porque hola encanta prefiero odio detesto adoro puedo vivo""",
        first_person="yo|me|mi|mis|mí|conmigo|nos|nuestro|nuestra|nuestros|nuestras|soy|tengo|estoy|\\w{3,}o|vivo|voy|doy|fui|he|\\w+mos|\\w{2,}é|\\w{2,}í|nací",
        fillers="muy realmente bastante mucho muchísimo totalmente absolutamente especialmente también además tan tanto",
        lasting={
            "allergy": r"""(?:soy|somos|es) ~(?:alérgic[oa]s?|intolerante|celíac[oa]|diabétic[oa]|asmátic[oa])|alergias? al?|(?:tengo|padezco|sufro) ~(?:alergia\w*|intolerancia\w*|asma|diabetes|migrañas?|celiaquía)
                me (?:sienta|sientan|cae|caen) mal|me diagnosticaron""",
            "dislike": r"""(?:odio|detesto|aborrezco|evito|rechazo|desprecio)|no (?:me|nos) (?:gusta|gustan|interesa|interesan|apetece|agrada|agradan|convence|llama|encanta)
                no (?:soporto|aguanto|como|bebo|tomo|fumo|uso|veo|leo|llevo|conduzco|compro|quiero|tolero|vuelo|puedo ver)|nunca (?:como|bebo|tomo|fumo|uso|veo|compro)
                no soy ~(?:fan|aficionad[oa]|amig[oa])|me (?:da|dan) ~(?:miedo|asco|pánico|alergia|vergüenza)|me (?:molesta|molestan|aburre|aburren|irrita|disgusta|desagrada|desagradan|pone nervios[oa])|tengo ~(?:miedo|fobia|pánico)|prefiero (?:no|evitar)""",
            "like": r"""(?:me|nos) (?:gusta|gustan|encanta|encantan|interesa|interesan|apasiona|apasionan|fascina|fascinan|relaja|entusiasma|chifla)|(?:amo|adoro|prefiero|disfruto|valoro|aprecio|colecciono)
                mi ~(?:favorit[oa]s?|preferid[oa]s?|afición|pasión|hobby)|mis ~(?:favorit[oa]s|preferid[oa]s|aficiones|hobbies)|soy ~(?:fan|fanátic[oa]|amante|aficionad[oa]|aficionado|apasionad[oa])|tengo ~(?:debilidad|preferencia|pasión)""",
            "goal": r"""mi (?:\w+ )?(?:meta|objetivo|sueño|propósito|ambición)|sueño con|aspiro a|me he propuesto""",
            "routine": r"""(?:suelo|acostumbro|procuro|intento)|(?:yo )?(?:siempre|nunca|normalmente|generalmente|habitualmente|a menudo|solamente|solo|sólo|rara vez) \w+o|cada (?:día|mañana|tarde|noche|semana|mes|año|lunes|martes|miércoles|jueves|viernes|sábado|domingo)
                todos los ~(?:días|lunes|martes|miércoles|jueves|viernes|sábados|domingos|meses|años)|todas las (?:mañanas|tardes|noches|semanas)|(?:una|dos|tres|#|cuatro) veces? (?:por|a la|al)|los (?:lunes|martes|miércoles|jueves|viernes|sábados|domingos)
                me (?:levanto|acuesto|despierto)|(?:corro|nado|medito|cocino|entreno|juego|toco|leo|camino|bailo|pinto|escribo|practico|hago (?:yoga|ejercicio|deporte))""",
            "constraint": r"""mi (?:\w+ )?(?:presupuesto|dieta|religión|fe|salud|discapacidad)|sigo una ~dieta|(?:solo|sólo|solamente) (?:puedo|como|bebo|uso)|no puedo (?:comer|beber|tomar|gastar|conducir|caminar|usar|hacer|correr|nadar|dormir|viajar|trabajar|ver|oír)
                (?:debo|tengo que|necesito) (?:evitar|limitar|cuidar|controlar)|por (?:motivos|razones) (?:de salud|religios\w+|étic\w+|médic\w+)""",
            "work": r"""(?:trabajo|trabajé|trabajamos) (?:de|como|en|para|con|desde|por|a)|soy ~(?:autónom[oa]|jubilad[oa]|funcionari[oa]|estudiante|emplead[oa])|estudio|enseño|dirijo
                mi (?:\w+ )?(?:trabajo|empleo|jef[ea]|empresa|profesión|carrera|oficina|negocio)|doy clases?|me jubilé""",
            "family": r"""(?:mi|mis|nuestr[oa]s?) (?:\w+ )?(?:mujer|esposa|marido|esposo|novi[oa]s?|pareja|madre|padre|padres|herman[oa]s?|hij[oa]s?|abuel[oa]s?|tí[oa]s?|prim[oa]s?|sobrin[oa]s?|familia|amig[oa]s?|gemel[oa]s?)
                (?:tengo|tenemos) ~(?:hij[oa]s?|herman[oa]s?|niet[oa]s?|gemel[oa]s?|novi[oa]|pareja|sobrin[oa]s?)|(?:estoy|soy) (?:casad[oa]|solter[oa]|divorciad[oa]|embarazada|viud[oa]|madre|padre|abuel[oa])""",
            "possession": r"""(?:tengo|tenemos) ~(?:perr[oa]s?|gat[oa]s?|caballo|conejos?|pájaros?|peces|tortugas?|coche|carro|auto|moto|bici\w*|casa|piso|apartamento|jardín|guitarra|piano|violín|barco)
                mi (?:\w+ )?(?:perr[oa]|gat[oa]|caballo|conejo|coche|carro|moto|bici\w*|casa|piso|jardín|guitarra|piano)|conduzco un""",
            "biography": r"""(?:vivo|vivimos|resido|nací|crecí|me mudé|me llamo|me crié|hablo|vengo de|provengo)|mi (?:\w+ )?(?:nombre|cumpleaños|edad|lengua materna|ciudad natal)
                tengo # años|tengo \w+ años|llámame|soy (?:de|un|una|zurd[oa]|diestr[oa]|judí[oa]|musulm\w+|católic[oa]|ate[oa]|tímid[oa]|introvertid[oa]|veg\w+|daltónic[oa]|sord[oa]|cieg[oa]|profesor\w*|maestr[oa]|médic[oa]|enfermer[oa]|ingenier[oa]|abogad[oa]|\w+ist[ao]|\w+(?:or|ora|er[oa]))""",
        },
        passing={
            "goal": r"""(?:quiero|quisiera|planeo|espero|pienso|estoy (?:pensando|planeando|aprendiendo|ahorrando)|voy a|vamos a|me gustaría|tengo planes)""",
            "biography": r"""(?:fui|fuimos|visité|empecé|compré|terminé|conocí|gané|perdí|he \w+[aei]do|hemos \w+[aei]do|\w{3,}é)""",
        },
        asks=r"""(?:puedes|podrías|puede|podría|pueden|sabes|tienes|podemos) ~(?:ayudar\w*|decir\w*|recomendar\w*|explicar\w*|dar\w*|mostrar\w*|sugerir\w*|hacer\w*)|(?:ayúdame|dime|dame|muéstrame|explícame|recomiéndame|enséñame|cuéntame|búscame)
            (?:busco|estoy buscando|necesito (?:ayuda|un|una|consejos?|ideas|recomendaciones|saber|que))|(?:quiero|quisiera|me gustaría) (?:saber|que|reservar|comprar|pedir|conocer|entender)|recomiendas|recomendarías|sugieres""",
        opens="""qué|cómo|por qué|dónde|cuándo|quién|cuál|cuáles|cuánto|debería|puedo|hay|es|son|escribe|traduce|crea|haz|explica|resume|busca|planifica|corrige|mejora|compara|calcula|enumera|recomienda|actúa|sugiere|por favor""",
        forgets=r"""olvida|olvide|olvídate|borra|elimina|no (?:recuerdes|guardes|memorices|anotes|lo guardes|lo recuerdes)""",
        keeps="(?:puedes?|podrías?) (?:recordar|anotar|apuntar|guardar) que",
        supposes="si|supongamos|imagina|suponiendo",
        hands_over="traduce|corrige|siguiente|texto|frase|reescribe|resume|actúa|párrafo",
    ),
    "fr": Language(
        "French",
        """le la les de des et en un une est je j ne pas me m mon ma mes que qui dans pour sur avec nous ce il elle
        du au aux suis ai c n d l plus mais très j ou notre depuis toujours jamais sans chez tous vous bonjour""",
        first_person="je|j|me|m|mon|ma|mes|moi|nous|notre|nos",
        fillers="très vraiment beaucoup totalement absolument particulièrement aussi bien tellement assez plutôt surtout actuellement",
        lasting={
            "allergy": r"""(?:suis|est) ~(?:allergique|intolérante?|cœliaque|coeliaque|diabétique|asthmatique)|allergies? (?:à|au|aux)|j ai ~(?:allergies?|intolérances?|asthme|diabète|migraines?|maladie)|je souffre|je ne (?:supporte|digère|tolère)""",
            "dislike": r"""je (?:déteste|hais|évite|refuse|méprise|fuis)|j (?:évite|abhorre)|je n (?:aime|apprécie|achète|utilise|écoute|ai jamais aimé) ~(?:pas|plus|jamais|guère|aucun\w*)
                je ne (?:mange|bois|fume|porte|regarde|lis|conduis|supporte|veux|peux|prends|suis|mets|consomme|vole|raffole) ~(?:pas|plus|jamais|rien)|je ne supporte|(?:ne|n) (?:me|m) \w+ (?:pas|plus|jamais)|pas mon truc
                j ai ~(?:peur|horreur|phobie|aversion)|(?:m|me) (?:ennuie|ennuient|agace|énerve|dérange|dégoûte|dégoute|angoisse)|je préfère (?:ne pas|éviter)""",
            "like": r"""j (?:aime|adore|apprécie)|je (?:préfère|raffole|collectionne|savoure|chéris|suis passionné\w*|m intéresse)|(?:mon|ma|mes) ~(?:préféré\w*|favori\w*|passion|hobby|loisirs?|passe temps)
                je suis ~(?:fan|amateur|amatrice|passionné\w*|accro|friand\w*)|(?:me|m) (?:plaît|plaisent|passionne|fascine|intéresse|détend|enchante)|j ai ~(?:faible|préférence|passion)|nous aimons""",
            "goal": r"""(?:mon|ma) (?:\w+ )?(?:but|objectif|rêve|ambition|résolution)|je (?:rêve|aspire)""",
            "routine": r"""(?:je|j) ~(?:toujours|jamais|souvent|rarement|habituellement|généralement|normalement|régulièrement|uniquement|seulement)|(?:chaque|tous les|toutes les) (?:\w+ )?(?:jours?|matins?|soirs?|semaines?|mois|années?|nuits?|lundis?|mardis?|mercredis?|jeudis?|vendredis?|samedis?|dimanches?|week)
                (?:une|deux|trois|#|quatre) fois par|je (?:cours|nage|médite|cuisine|m entraîne|joue|lis|marche|danse|peins|me lève|me couche|me réveille|fais (?:du|de la|de l)|pratique|bois|mange|chante|tricote|jardine)|le (?:lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche)|j (?:ai l habitude|essaie de|écoute)""",
            "constraint": r"""(?:mon|ma) (?:\w+ )?(?:budget|régime|religion|foi|santé|handicap)|je suis ~(?:au régime|un régime|à mobilité réduite)|je (?:suis|fais) un régime|je (?:ne )?(?:peux|dois) ~(?:pas|que|plus|éviter|limiter|surveiller)|pour des raisons|je ne \w+ que""",
            "work": r"""je (?:travaille|travaillais|bosse|dirige|gère|enseigne)|j (?:enseigne|étudie)|je suis ~(?:retraitée?|étudiante?|indépendante?|salariée?|fonctionnaire|au chômage)|(?:mon|ma|mes) (?:\w+ )?(?:travail|emploi|métier|patronn?e?|chef\w*|entreprise|boulot|bureau|collègues?|profession|études)|je fais des études""",
            "family": r"""(?:mon|ma|mes|notre|nos) (?:\w+ )?(?:femme|mari|épouse|époux|copine|copain|compagn\w+|conjointe?|mère|père|parents|frères?|sœurs?|soeurs?|fils|filles?|enfants?|grands? mère|grands? père|tante|oncle|cousine?s?|neveux?|nièces?|famille|amie?s?|jumeaux|bébé|partenaire)
                (?:j ai|nous avons) ~(?:enfants?|fils|filles?|frères?|sœurs?|soeurs?|jumeaux|jumelles|petits enfants)|je suis ~(?:mariée?|célibataire|divorcée?|fiancée?|enceinte|veuve|veuf|maman|papa|mère|père|grand mère|grand père)""",
            "possession": r"""(?:j ai|nous avons|je possède) ~(?:chiens?|chiennes?|chats?|chattes?|cheval|chevaux|lapins?|oiseaux?|poissons?|tortues?|voiture|moto|vélo|maison|appartement|jardin|guitare|piano|violon|bateau)
                (?:mon|ma|mes) (?:\w+ )?(?:chiens?|chiennes?|chats?|chattes?|cheval|lapins?|voiture|moto|vélo|maison|appartement|jardin|guitare|piano)|je conduis une""",
            "biography": r"""(?:j habite|je vis|nous vivons|nous habitons|je viens de|je suis née?|j ai grandi|je m appelle|je parle|j ai déménagé|je suis originaire|je réside)|mon (?:\w+ )?(?:nom|prénom|anniversaire|âge)|ma (?:\w+ )?(?:langue maternelle|ville natale)|j ai (?:#|\w+) ans|appelle moi
                je suis (?:une?|de|végan\w*|végétari\w+|gauch\w+|droit\w+|juive?|musulman\w*|catholique|athée|timide|introvertie?|daltonien\w*|sourde?|aveugle|professeure?|médecin|infirmi\w+|ingénieure?|avocate?|\w+(?:eur|euse|ienne?|iste|trice|ière?))""",
        },
        passing={
            "goal": r"""(?:je veux|je voudrais|j aimerais|j espère|je pense|je compte|je vais|nous allons|je prévois|j apprends|j économise|j ai l intention|j ai hâte)""",
            "biography": r"""(?:j ai|nous avons|je suis|nous sommes) (?:\w+ )?\w+(?:é|ée|és|ées|i|is|it|u|us|ue)""",
        },
        asks=r"""(?:peux|pourrais|peut|pourriez|pouvez|sais|as|avez|veux|voudrais) (?:tu|vous|on)|(?:aide|dis|donne|montre|explique|recommande|conseille|propose|suggère) moi|(?:tu|vous) (?:me )?(?:recommand\w+|conseill\w+|sugg\w+|propos\w+)
            (?:je cherche|je recherche|j ai besoin (?:d aide|d une?|de conseils|d idées|que|de savoir))|(?:je voudrais|j aimerais|je veux) (?:savoir|que|réserver|acheter|commander|connaître|comprendre)|je me demande|est ce que|des (?:idées|conseils|suggestions|recommandations)""",
        opens="""que|quel|quelle|quels|quelles|comment|pourquoi|où|quand|qui|combien|est ce|qu|dois je|puis je|y a|écris|traduis|crée|fais|explique|résume|cherche|planifie|corrige|améliore|compare|calcule|liste|recommande|agis|suggère|donne|rédige|imagine que tu""",
        forgets=r"""oublie|oubliez|efface|supprime|ne (?:retiens|garde|mémorise|note|te souviens) ~pas""",
        keeps="(?:peux|pourrais|pouvez|pourriez) (?:tu|vous) ~(?:retenir|noter|souvenir|rappeler) que",
        supposes="si|supposons|imagine|imaginons",
        hands_over="traduis|corrige|suivante?|texte|phrase|réécris|reformule|résume|agis|paragraphe",
    ),
    "pt": Language(
        "Portuguese",
        """o a os as de que e em um uma é não me meu minha meus minhas por com para se do da dos das no na ao como
        mais mas muito sou tenho estou eu nós nosso nossa gosto há também quando sempre nunca sem desde todos
        todas anos porque olá você adoro prefiro odeio detesto faz posso moro""",
        first_person="eu|me|meu|minha|meus|minhas|mim|comigo|nós|nosso|nossa|nossos|nossas|sou|tenho|estou|\\w{3,}o|vivo|vou|fui|sei|\\w+mos|\\w{2,}ei|nasci|cresci",
        fillers="muito realmente bastante totalmente absolutamente especialmente também além mesmo tão demais",
        lasting={
            "allergy": r"""(?:sou|é) ~(?:alérgic[oa]|intolerante|celíac[oa]|diabétic[oa]|asmátic[oa])|alergias? (?:a|ao|à|aos|às)|(?:tenho|sofro) ~(?:alergias?|intolerâncias?|asma|diabetes|enxaquecas?|doença)|fui diagnosticad[oa]|(?:me faz|me fazem|faz me) mal""",
            "dislike": r"""(?:odeio|detesto|evito|abomino|rejeito|desprezo)|não (?:gosto|suporto|aguento|como|bebo|fumo|uso|vejo|assisto|leio|visto|dirijo|conduzo|compro|quero|tolero|consigo|curto|me interesso|voo)
                nunca (?:como|bebo|fumo|uso|vejo|compro)|não sou ~(?:fã|adept[oa]|chegad[oa])|(?:tenho|morro de) ~(?:medo|nojo|fobia|pavor|aversão)|me (?:incomoda|incomodam|irrita|entedia|aborrece|enoja|assusta)|prefiro (?:não|evitar)""",
            "like": r"""(?:gosto|adoro|amo|prefiro|curto|aprecio|valorizo|coleciono|gostamos|adoramos)|(?:meu|minha|meus|minhas) ~(?:favorit[oa]s?|preferid[oa]s?|hobby|hobbies|paixão|passatempo\w*)|sou ~(?:fã|apaixonad[oa]|amante|viciad[oa])|me (?:encanta|encantam|fascina|interessa|interessam|agrada|relaxa)|me interesso|tenho ~(?:fraqueza|preferência|paixão)""",
            "goal": r"""(?:meu|minha) (?:\w+ )?(?:meta|objetivo|sonho|propósito|ambição)|sonho em|sonho com|aspiro""",
            "routine": r"""(?:costumo|procuro|tento|acostumei)|(?:eu )?(?:sempre|nunca|normalmente|geralmente|habitualmente|raramente|só|somente|apenas) \w+o|(?:todos os|toda a|todo|toda|todas as|cada) (?:\w+ )?(?:dias?|manhãs?|noites?|semanas?|mês|meses|anos?|segunda\w*|terça\w*|quarta\w*|quinta\w*|sexta\w*|sábados?|domingos?|tardes?)
                (?:uma|duas|três|#|quatro) vez(?:es)? (?:por|ao|à)|(?:aos|às) (?:segundas?|terças?|quartas?|quintas?|sextas?|sábados?|domingos?)|(?:corro|nado|medito|cozinho|treino|jogo|toco|leio|caminho|danço|pinto|escrevo|pratico|faço (?:yoga|ioga|exercício|esporte|desporto))|(?:acordo|levanto me|me levanto|me deito|durmo)""",
            "constraint": r"""(?:meu|minha) (?:\w+ )?(?:orçamento|dieta|religião|fé|saúde|deficiência)|sigo uma ~dieta|(?:só|apenas|somente) (?:posso|como|bebo|uso)|não posso (?:comer|beber|tomar|gastar|dirigir|conduzir|andar|usar|fazer|correr|nadar|dormir|viajar|trabalhar|ver|ouvir)|(?:devo|tenho que|tenho de|preciso) (?:evitar|limitar|cuidar|controlar)|por (?:motivos|razões)""",
            "work": r"""(?:trabalho|trabalhei|trabalhamos) (?:como|em|na|no|para|com|de|desde|num|numa)|sou ~(?:autônom[oa]|autónom[oa]|aposentad[oa]|reformad[oa]|funcionári[oa]|estudante|empregad[oa])|estudo|ensino|dou aulas|(?:meu|minha|meus) (?:\w+ )?(?:trabalho|emprego|chefe|empresa|profissão|carreira|escritório|negócio|colegas?)""",
            "family": r"""(?:meu|minha|meus|minhas|noss[oa]s?) (?:\w+ )?(?:mulher|esposa|marido|esposo|namorad[oa]|companheir[oa]|mãe|pai|pais|irmãos?|irmãs?|irmão|filh[oa]s?|avós?|avó|avô|ti[oa]s?|prim[oa]s?|sobrinh[oa]s?|família|amig[oa]s?|gêmeos|gémeos)
                (?:tenho|temos) ~(?:filh[oa]s?|irmãos?|irmão|irmãs?|net[oa]s?|gêmeos|namorad[oa])|sou ~(?:casad[oa]|solteir[oa]|divorciad[oa]|viúv[oa]|mãe|pai|avó|avô)|estou grávida""",
            "possession": r"""(?:tenho|temos) ~(?:cães|cão|cachorr[oa]s?|gat[oa]s?|cavalo|coelhos?|pássaros?|peixes?|tartarugas?|carro|moto|bicicleta|casa|apartamento|jardim|violão|guitarra|piano|barco)
                (?:meu|minha) (?:\w+ )?(?:cão|cachorr[oa]|gat[oa]|cavalo|coelho|carro|moto|bicicleta|casa|apartamento|jardim|violão|guitarra|piano)""",
            "biography": r"""(?:moro|vivo|moramos|vivemos|resido|nasci|cresci|mudei|me mudei|mudei me|chamo me|me chamo|falo|venho de)|(?:meu|minha) (?:\w+ )?(?:nome|aniversário|idade|língua materna|cidade natal)|tenho (?:#|\w+) anos
                sou (?:de|do|da|um|uma|canhot[oa]|destr[oa]|judeu|judia|muçulman[oa]|católic[oa]|ateu|ateia|tímid[oa]|introvertid[oa]|veg\w+|daltônic[oa]|surd[oa]|ceg[oa]|professor\w*|médic[oa]|enfermeir[oa]|engenheir[oa]|advogad[oa]|\w+ist[ao]|\w+(?:or|ora|eir[oa]))""",
        },
        passing={
            "goal": r"""(?:quero|gostaria|planejo|planeio|espero|penso em|pretendo|estou (?:pensando|planejando|aprendendo|a aprender|economizando)|vou|vamos)""",
            "biography": r"""(?:fui|fomos|visitei|comecei|comprei|terminei|conheci|ganhei|perdi|\w{3,}ei)""",
        },
        asks=r"""(?:pode|poderia|podes|podia|consegue|você sabe|você pode) ~(?:ajudar|dizer|recomendar|explicar|dar|mostrar|sugerir|fazer|me)|(?:me ajude|me ajuda|ajuda me|ajude me|me diga|diz me|me dê|dá me|me mostre|me explique|me recomende|me conte)
            (?:procuro|estou procurando|estou à procura|preciso (?:de ajuda|de um|de uma|de dicas|de ideias|saber|que))|(?:quero|gostaria de|queria) (?:saber|que|reservar|comprar|pedir|conhecer|entender)|recomenda|sugere|alguma (?:dica|sugestão|ideia)""",
        opens="""que|o que|como|por que|porque|porquê|onde|quando|quem|qual|quais|quanto|devo|posso|há|é|são|escreva|escreve|traduza|traduz|crie|cria|faça|faz|explique|explica|resuma|busque|planeje|corrija|melhore|compare|calcule|liste|recomende|atue|sugira|por favor""",
        forgets=r"""esqueça|esquece|apague|apaga|delete|remova|não (?:lembre|guarde|guardes|memorize|anote|se lembre)""",
        keeps="(?:podes?|poderias?) (?:se )?(?:lembrar|anotar|guardar|memorizar) (?:de )?que",
        supposes="se|suponha|imagine|supondo",
        hands_over="traduza|traduz|corrija|seguinte|texto|frase|reescreva|resuma|atue|parágrafo",
    ),
    "it": Language(
        "Italian",
        """il lo la i gli le di che e in un una è non mi mio mia miei mie per con si del della dei al alla come più
        ma molto sono ho io noi nostro nostra piace piacciono anche quando sempre mai senza da nel nella tutti
        tutte anni perché ciao questo i adoro odio preferisco posso vorrei detesto amo mentre abito l vivo a""",
        first_person="io|mi|mio|mia|miei|mie|me|ci|noi|nostro|nostra|nostri|nostre|ho|sono|\\w{3,}o|\\w+iamo|m",
        fillers="molto davvero veramente abbastanza proprio totalmente assolutamente particolarmente anche tanto troppo così",
        lasting={
            "allergy": r"""(?:sono|è) ~(?:allergic[oa]|intollerante|celiac[oa]|diabetic[oa]|asmatic[oa])|allergi[ae] (?:a|al|alla|alle|ai|agli)|(?:ho|soffro) ~(?:allergi[ae]|intolleranz[ae]|asma|diabete|emicrania|malattia)|(?:mi fa|mi fanno) male""",
            "dislike": r"""(?:odio|detesto|evito|rifiuto|disprezzo)|non (?:mi|ci) (?:piace|piacciono|interessa|interessano|va|vanno|attira|convince|entusiasma)|non (?:sopporto|mangio|bevo|fumo|uso|guardo|leggo|porto|guido|compro|voglio|tollero|amo|gradisco|indosso|prendo|volo|reggo)
                non sono ~(?:fan|amante|appassionat[oa]|tipo)|(?:ho|mi fa|mi fanno) ~(?:paura|schifo|fobia|orrore|avversione)|mi (?:infastidisce|annoia|annoiano|irrita|disgusta|disgustano|spaventa|disturba)|preferisco (?:non|evitare)""",
            "like": r"""(?:mi|ci) (?:piace|piacciono|interessa|interessano|appassiona|affascina|affascinano|rilassa|entusiasma)|(?:amo|adoro|preferisco|apprezzo|colleziono|amiamo)|(?:mio|mia|miei|mie) ~(?:preferit[oaie]|passione|hobby|passatempo)|sono ~(?:fan|appassionat[oa]|amante|tifos[oa])|ho ~(?:debole|preferenza|passione)""",
            "goal": r"""(?:mio|mia) (?:\w+ )?(?:obiettivo|sogno|scopo|proposito|ambizione)|sogno di|aspiro""",
            "routine": r"""(?:sono solit[oa]|cerco di|tendo a)|(?:\w+o )?(?:sempre|di solito|solitamente|normalmente|generalmente|spesso|raramente|solo|soltanto|non \w+ mai) ~\w+o|(?:ogni|tutti i|tutte le) (?:\w+ )?(?:giorn[oi]|mattin[ae]|ser[ae]|settiman[ae]|mes[ei]|ann[oi]|nott[ei]|lunedì|martedì|mercoledì|giovedì|venerdì|sabato|domenic[ae])
                (?:una volta|due|tre|#|quattro) (?:volte )?(?:a|al|alla) (?:settimana|giorno|mese|anno)|\w+o (?:sempre|spesso|raramente|solo|soltanto)|(?:corro|nuoto|medito|cucino|mi alleno|gioco|suono|leggo|cammino|ballo|dipingo|scrivo|pratico|faccio (?:yoga|sport|ginnastica))|mi (?:alzo|sveglio|corico)|vado ~(?:palestra|letto|correre|piscina)|(?:il|la) (?:lunedì|martedì|mercoledì|giovedì|venerdì|sabato|domenica)""",
            "constraint": r"""(?:mio|mia) (?:\w+ )?(?:budget|dieta|religione|fede|salute|disabilità)|(?:seguo una|sono a) ~dieta|(?:posso|mangio|bevo|uso) (?:solo|soltanto)|non posso (?:mangiare|bere|prendere|spendere|guidare|camminare|usare|fare|correre|nuotare|dormire|viaggiare|lavorare)|(?:devo|ho bisogno di) (?:evitare|limitare|controllare)|per motivi""",
            "work": r"""(?:lavoro|lavoravo|lavoriamo) (?:come|in|per|da|con|al|alla|nel|nella|a|presso)|sono ~(?:pensionat[oa]|student\w+|impiegat[oa]|libero professionista|disoccupat[oa])|studio|insegno|dirigo|faccio (?:il|la|l) \w+|(?:mio|mia|miei) (?:\w+ )?(?:lavoro|impiego|capo|azienda|professione|carriera|ufficio|colleg\w+|ditta)""",
            "family": r"""(?:mio|mia|miei|mie|nostr[oaie]) (?:\w+ )?(?:moglie|marito|fidanzat[oa]|ragazz[oa]|compagn[oa]|madre|padre|mamma|papà|genitori|fratell[oi]|sorell[ae]|figl[ioae]+|nonn[oaie]|zi[oaie]|cugin[oaie]|nipot[ei]|famiglia|amic[oaihe]+|gemell[ioae])
                (?:ho|abbiamo) ~(?:figl[ioae]+|fratell[oi]|sorell[ae]|nipot[ei]|gemell[ioae]|bambin[ioae])|sono ~(?:sposat[oa]|single|divorziat[oa]|incinta|vedov[oa]|fidanzat[oa]|mamma|padre|madre|nonn[oa])""",
            "possession": r"""(?:ho|abbiamo|possiedo) ~(?:can[ei]|gatt[oaie]|cavallo|conigli[o]?|uccell[oi]|pesc[ei]|tartarug[ae]|macchina|auto|moto|bici\w*|casa|appartamento|giardino|chitarra|pianoforte|violino|barca)
                (?:mio|mia) (?:\w+ )?(?:cane|gatt[oa]|cavallo|coniglio|macchina|auto|moto|bici\w*|casa|appartamento|giardino|chitarra|pianoforte)|guido una""",
            "biography": r"""(?:vivo|abito|viviamo|abitiamo|risiedo|sono nat[oa]|sono cresciut[oa]|mi sono trasferit[oa]|mi chiamo|parlo|vengo da|provengo)|(?:mio|mia) (?:\w+ )?(?:nome|compleanno|età|lingua madre|città natale)|ho (?:#|\w+) anni|chiamami
                sono (?:un|una|di|mancin[oa]|destrors[oa]|ebre[oa]|musulman[oa]|cattolic[oa]|ate[oa]|timid[oa]|introvers[oa]|veg\w+|daltonic[oa]|sord[oa]|ciec[oa]|insegnante|medico|infermier[ea]|ingegnere|avvocat[oa]|\w+ista|\w+(?:ore|rice|iere|iera))""",
        },
        passing={
            "goal": r"""(?:voglio|vorrei|spero|penso di|intendo|ho intenzione|sto (?:pensando|imparando|pianificando|risparmiando)|andrò|andremo|non vedo l ora)""",
            "biography": r"""(?:ho|abbiamo|sono|siamo) (?:\w+ )?\w+(?:at|it|ut)[oaie]""",
        },
        asks=r"""(?:puoi|potresti|può|potrebbe|sai|hai) ~(?:aiutar\w*|dir\w*|consigliar\w*|spiegar\w*|dar\w*|mostrar\w*|suggerir\w*|far\w*)|(?:aiutami|dimmi|dammi|mostrami|spiegami|consigliami|raccontami|trovami|suggeriscimi)
            (?:cerco|sto cercando|ho bisogno (?:di aiuto|d aiuto|di un|di una|di consigli|di idee|di sapere|che))|mi serv\w+|(?:voglio|vorrei|mi piacerebbe) (?:sapere|che|prenotare|comprare|ordinare|conoscere|capire)|mi chiedo|consigli|suggerisci|qualche (?:idea|consiglio|suggerimento)""",
        opens="""che|cosa|come|perché|dove|quando|chi|quale|quali|quanto|dovrei|posso|c è|è|sono i|scrivi|traduci|crea|fai|spiega|riassumi|cerca|pianifica|correggi|migliora|confronta|calcola|elenca|consiglia|agisci|suggerisci|per favore""",
        forgets=r"""dimentica|dimenticati|cancella|elimina|rimuovi|non (?:ricordare|salvare|memorizzare|annotare)""",
        keeps="(?:puoi|può|potresti|potrebbe) (?:ricordar\\w*|annotare|segnare|memorizzare) che",
        supposes="se|supponiamo|immagina|supponendo",
        hands_over="traduci|correggi|seguente|testo|frase|riscrivi|riassumi|agisci|paragrafo",
    ),
    # Recognised, but without phrases.
    "nl": Language("Dutch", "ik het een van niet mijn ben heb wij zijn voor met maar ook graag geen nooit altijd de en je dat"),
    "sv": Language("Swedish", "jag och att inte är min mitt mina på med för har ett vi gillar tycker om aldrig alltid"),
    "da": Language("Danish or Norwegian", "jeg og ikke er min mit på med har ikke liker elsker vi aldri aldrig altid at det kan"),
    "pl": Language("Polish", "nie jest się mam mnie moja mój lubię jestem na do że jak i w z ale bardzo nigdy zawsze"),
    "cs": Language("Czech", "jsem je se na že mám můj moje rád ráda nemám ale jako v a z jak nikdy vždy mě"),
    "ro": Language("Romanian", "nu este sunt îmi mea meu și în cu la pe pentru din că am eu mereu niciodată plac place"),
    "hu": Language("Hungarian", "nem az és egy vagyok van szeretem hogy mert nekem én a is soha mindig nagyon"),
    "fi": Language("Finnish", "minä olen en ei ja on minun pidän että mutta rakastan aina koskaan vihaan asun"),
    "tr": Language("Turkish", "ben bir ve için çok değil benim bu da de ile seviyorum var yok her hiç ama gibi daha"),
    "id": Language("Indonesian", "saya aku tidak dan yang di suka untuk dengan ini itu dari adalah selalu tidak pernah"),
    "vi": Language("Vietnamese", "tôi không và là có của thích một những cho với được trong rất mình bị"),
}  # fmt: skip
