"""Words for properties with one value at a time, and values that exclude each other, by language.

Each row has values of one kind; words joined by "/" have the same meaning.
"""

from __future__ import annotations

from typing import NamedTuple

from tomldiary.text.statement_words import fold

__all__ = [
    "COPULAS",
    "DEFINITE",
    "EXCLUDING",
    "FAVOURITES",
    "INDEFINITE",
    "LINKING",
    "ORIGINS",
    "PLACES",
    "PLACES_IN",
    "RELATIVES",
    "SINGLE",
    "TRADES",
    "Value",
]


class Value(NamedTuple):
    """One word of a row."""

    row: int
    place: int
    """The position in the row; equal for words with the same meaning."""
    kind: str
    """The kind of difference between two words of the row."""


_VALUES = {
    "time": """
monday/mondays/mon tuesday/tuesdays/tue wednesday/wednesdays/wed thursday/thursdays/thu friday/fridays/fri saturday/saturdays sunday/sundays
montag/montags dienstag/dienstags mittwoch/mittwochs donnerstag/donnerstags freitag/freitags samstag/samstags/sonnabend sonntag/sonntags
lunes martes miércoles jueves viernes sábado/sábados domingo/domingos
lundi mardi mercredi jeudi vendredi samedi dimanche
segunda/segundas/segunda-feira terça/terças/terça-feira quarta/quartas/quarta-feira quinta/quintas/quinta-feira sexta/sextas/sexta-feira sábado/sábados domingo/domingos
lunedì martedì mercoledì giovedì venerdì sabato domenica
понедельник/понедельникам вторник/вторникам среда/среду/средам четверг/четвергам пятница/пятницу/пятницам суббота/субботу/субботам воскресенье
january/jan february/feb march april may june july august september/sept october/oct november/nov december/dec
januar februar märz april mai juni juli august september oktober november dezember
enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
janvier février mars avril mai juin juillet août septembre octobre novembre décembre
janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro
gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre
spring summer/summers fall/autumn winter/winters
frühling sommer herbst winter
primavera verano otoño invierno
printemps été automne hiver
primavera verão outono inverno
primavera estate autunno inverno
morning/mornings noon/midday afternoon/afternoons evening/evenings night/nights
morgen/morgens vormittag/vormittags mittag/mittags nachmittag/nachmittags abend/abends nacht/nachts
mañana/mañanas tarde/tardes noche/noches
matin/matins midi après-midi soir/soirs nuit/nuits
manhã/manhãs tarde/tardes noite/noites
mattina/mattine pomeriggio/pomeriggi sera/sere notte/notti
weekday/weekdays weekend/weekends
daily/everyday weekly monthly/month yearly/annually
yesterday today tomorrow
breakfast lunch dinner/supper
""",
    "amount": """
always usually/often/frequently/normally/typically/regularly/generally sometimes/occasionally rarely/seldom/hardly/barely never
immer meistens/oft/häufig/normalerweise manchmal/gelegentlich selten/kaum nie/niemals
siempre normalmente/frecuentemente raramente nunca/jamás
toujours souvent/généralement/habituellement parfois/quelquefois rarement jamais
sempre normalmente/frequentemente raramente nunca/jamais
sempre spesso/solitamente talvolta raramente mai
всегда обычно/часто иногда редко никогда
all/every/everyone/everybody only half most some/several few none/nobody
alle manche/einige keine
todos algunos ningún/ninguno
tous certains aucun
tutti alcuni nessuno
many/lots few
first/1st second/2nd third/3rd fourth/4th fifth/5th sixth/6th seventh/7th eighth/8th ninth/9th tenth/10th
single/unmarried married engaged divorced widowed
ledig verheiratet geschieden verwitwet verlobt
blue red green yellow purple/violet orange pink black white brown gray/grey silver gold beige turquoise blonde/blond
blau rot grün gelb lila/violett rosa schwarz weiß braun grau blond
azul rojo/roja verde amarillo/amarilla morado/morada rosa negro/negra blanco/blanca marrón gris
bleu/bleue rouge vert/verte jaune violet/violette rose noir/noire blanc/blanche marron gris/grise
azul vermelho/vermelha verde amarelo/amarela roxo/roxa rosa preto/preta branco/branca marrom cinza
blu/azzurro rosso/rossa verde giallo/gialla viola rosa nero/nera bianco/bianca marrone grigio/grigia
""",
    "subject": """
man/men/boy/boys/male/guy woman/women/girl/girls/female/lady
he/his/him she/her/hers
mann junge frau mädchen
hombre/chico/niño mujer/chica/niña
homme/garçon femme/fille
homem/menino mulher/menina
uomo/ragazzo donna/ragazza
""",
}
_RELATIVES = """
mother/mom/mum/mommy/mama father/dad/daddy/papa brother/brothers sister/sisters son/sons daughter/daughters wife husband grandmother/grandma grandfather/grandpa aunt uncle nephew niece cousin/cousins boss neighbor/neighbour roommate
mutter/mama vater/papa bruder/brüder schwester/schwestern sohn/söhne tochter/töchter ehefrau ehemann oma/großmutter opa/großvater tante onkel neffe nichte chef/chefin nachbar/nachbarin
madre/mamá padre/papá hermano hermana hijo hija esposa/mujer esposo/marido abuela abuelo tía tío sobrino sobrina jefe/jefa
mère/maman père/papa frère/frères sœur/soeur/sœurs/soeurs fils fille épouse mari grand-mère grand-père tante oncle neveu nièce patron
mãe pai irmão irmã filho filha esposa/mulher marido/esposo avó avô tia tio sobrinho sobrinha chefe
madre/mamma padre/papà fratello/fratelli sorella/sorelle figlio figlia moglie marito nonna nonno zia zio capo
мать/мама отец/папа брат сестра сын дочь жена муж бабушка дедушка тётя дядя
"""


def _values(table: str, kind: str, first: int) -> dict[str, list[Value]]:
    found: dict[str, list[Value]] = {}
    for row, line in enumerate(table.strip().splitlines(), first):
        for place, words in enumerate(fold(line)):
            for word in words.split("/"):
                found.setdefault(word, []).append(Value(row, place, kind))
    return found


def _excluding() -> dict[str, list[Value]]:
    found: dict[str, list[Value]] = {}
    for number, (kind, table) in enumerate(_VALUES.items()):
        for word, values in _values(table, f"different {kind}", 1000 * number).items():
            found.setdefault(word, []).extend(values)
    return found


EXCLUDING = _excluding()
"""The rows of each word, whose values exclude each other in otherwise equal statements."""
RELATIVES = _values(_RELATIVES, "different subject", 9000)
"""Words for the subject of a statement."""
FAVOURITES = ("favorit", "favourit", "lieblings", "preferid", "préféré", "preferit", "любим")
"""The first letters of words for favourites."""
SINGLE = frozenset(
    fold("""
    live lives living lived reside resides born raised grew work works working worked employed drive drives
    called named moved relocated majoring majored prefer prefers come comes degree graduated meet meets studying studies study major engaged belongs
    studiere studiert estudio estudia étudie estudo estuda studio studia
    wohne wohnt wohnen lebe lebt geboren heiße heißt arbeite arbeitet komme kommt stamme stammt fahre fährt
    bevorzuge bevorzugt zog gezogen umgezogen aufgewachsen
    vivo vive vivimos nací nació trabajo trabaja llamo llama conduzco conduce prefiero prefiere vengo mudé mudó
    habite habitons vis vit né née travaille appelle conduis conduit préfère viens vient
    moro mora nasci nasceu trabalho trabalha chamo chama dirijo dirige prefiro prefere venho mudei mudou
    abito abita nato nata nacque lavoro lavora chiamo chiama guido guida preferisco preferisce vengo viene
    живу живёт живет родился родилась работаю работает зовут вожу предпочитаю предпочитает
    """)
)
"""Words for properties of a person with one value at a time: "lives in", "works as", "is called"."""
TRADES = frozenset(
    fold("""
    accountant actor actress architect artist baker banker barber bartender biologist builder carpenter cashier
    chef chemist cook dancer dentist designer developer doctor driver economist editor electrician engineer
    farmer firefighter fisherman gardener hairdresser janitor journalist judge lawyer librarian lifeguard
    manager mechanic miner model musician nurse painter paramedic pharmacist photographer physicist pilot
    plumber policeman politician principal professor programmer psychologist realtor receptionist salesman
    scientist secretary singer soldier student surgeon tailor teacher technician therapist translator
    veterinarian vet waiter waitress writer
    arzt ärztin lehrer lehrerin krankenschwester ingenieur ingenieurin anwalt anwältin koch köchin student studentin
    bäcker bäckerin polizist polizistin verkäufer verkäuferin pilot pilotin journalist journalistin rentner rentnerin
    médico médica profesor profesora enfermero enfermera abogado abogada ingeniero ingeniera cocinero cocinera
    estudiante arquitecto arquitecta periodista camarero camarera policía bombero
    médecin professeur infirmier infirmière avocat avocate ingénieur cuisinier cuisinière étudiant étudiante
    architecte journaliste serveur serveuse policier pompier boulanger boulangère
    professor professora enfermeiro enfermeira advogado advogada engenheiro engenheira cozinheiro cozinheira
    estudante arquiteto arquiteta jornalista garçom policial bombeiro
    medico insegnante infermiere infermiera avvocato avvocata ingegnere cuoco cuoca studente studentessa
    architetto giornalista cameriere cameriera poliziotto
    """)
)
"""Words for occupations."""
COPULAS = frozenset(
    fold("""am is are was were im hes shes its bin ist sind war waren soy es son era
    está están estoy suis est sont était étaient sou é são está sono è""")
)
DEFINITE = frozenset(
    fold("the der die das dem den el la le il lo o os as the im am al au aux no na nel nella")
)
ORIGINS = frozenset(fold("from aus de del du di do da из"))
"""Words before the origin of a person."""
PLACES = frozenset(
    fold("""in at on to under behind beside above near inside outside im am auf unter hinter neben en sobre dans sur
    sous em no na sob sotto su nel nella a à au в на под""")
)
"""Words before the place of a thing."""
INDEFINITE = frozenset(
    fold("a an ein eine einen einem einer un una uno une um uma some any another")
)
PLACES_IN = frozenset(
    fold(
        "in at on by near im em no na nos nas en a à au aux ad в во на near nach to from aus de von da do of"
    )
)
"""Words before a place, a school or an employer."""
LINKING = (
    COPULAS
    | INDEFINITE
    | PLACES_IN
    | frozenset(
        fold("""the my your our their his her its user users as for by on under behind beside above near inside outside with up also just currently now still every each
        der die das den dem des mein meine meinen meinem meiner als bei für am mit zur zum ich er sie wir
        el la los las mi mis su sus como para con por del al yo me se él ella
        le les l mon ma mes son sa ses comme pour avec chez dans du je j m s il elle
        o os meu minha meus minhas seu sua que com por eu ele ela ao
        il lo gli i mio mia miei mie suo sua con per nel nella al alla come io mi si ed e di
        мой моя моё мои у меня как он она я""")
    )
)
"""Words between the parts of a statement, which have little meaning alone."""
