"""Words that decide whether two statements contradict each other, by language.

Each language is a `Language`. `conflict` uses all of them together, because the language of a text is unknown.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

__all__ = [
    "AND",
    "ARTICLES",
    "AVERSIONS",
    "CURRENCIES",
    "LANGUAGES",
    "LESS",
    "MORE",
    "NUMBERS",
    "ONE_NO",
    "OPPOSITES",
    "PARITY_NO",
    "PART_STARTS",
    "UNITS",
    "UNSPACED_NO",
    "Language",
    "fold",
]


@dataclass(frozen=True, slots=True)
class Language:
    """The words of one language without apostrophes, separated by spaces.

    `numbers` has the words for 0, 1, 2 … with "-" for an omitted number; words for the same number are joined by "/".
    A `concord` language repeats negative words in one negation ("no come nada").
    """

    no: str = ""
    aversions: str = ""
    numbers: str = ""
    more: str = ""
    less: str = ""
    concord: bool = False


LANGUAGES = {
    "en": Language(
        """no not never none neither nor without cannot cant dont doesnt didnt isnt arent wasnt werent wont
        wouldnt shouldnt couldnt hasnt havent hadnt aint stopped quit cancelled canceled abandoned nobody hardly barely rarely seldom""",
        """dislike dislikes disliked hate hates hated avoid avoids avoided detest detests loathe loathes
        allergic allergy intolerant refuse refuses""",
        "zero one/once two/twice three four five six seven eight nine ten eleven twelve",
        "more over above after later exceeds exceeding minimum min upwards plus longer higher greater older",
        "less fewer under below before earlier maximum max within shorter lower smaller younger until",
    ),
    "de": Language(
        """nicht nie niemals kein keine keinen keinem keiner keines ohne weder nichts niemand nirgends kaum selten""",
        """hasst hasse hassen verabscheut verabscheue meidet meide meiden vermeidet vermeide verweigert
        ablehnt lehnt allergisch""",
        "null - zwei/zweimal drei/dreimal vier fünf sechs sieben acht neun zehn elf zwölf",
        "mehr über oberhalb nach später mindestens länger höher größer älter ab",
        "weniger unter unterhalb vor früher höchstens kürzer niedriger kleiner jünger bis",
    ),
    "fr": Language(
        "non pas jamais sans aucun aucune rien ni nulle rarement",
        "déteste détestent hait hais évite évitent refuse refusent allergique",
        "zéro - deux trois quatre cinq six sept huit neuf dix onze douze",
        "plus après supérieur supérieure minimum dessus",
        "moins avant inférieur inférieure maximum dessous",
        concord=True,
    ),
    "es": Language(
        "no nunca jamás sin ningún ninguno ninguna nadie tampoco ni raramente",
        "odia odio odian detesta detesto evita evito evitan rechaza alérgico alérgica",
        "cero - dos tres cuatro cinco seis siete ocho nueve diez once doce",
        "más mayor después superior mínimo encima",
        "menos menor antes inferior máximo debajo",
        concord=True,
    ),
    "pt": Language(
        "não nunca jamais sem nenhum nenhuma ninguém tampouco nem raramente",
        "odeia odeio odeiam detesta detesto evita evito evitam recusa alérgico alérgica",
        "zero - dois/duas três quatro cinco seis sete oito nove dez onze doze",
        "mais maior depois superior mínimo acima",
        "menos menor antes inferior máximo abaixo",
        concord=True,
    ),
    "it": Language(
        "non mai senza nessun nessuno nessuna neanche nemmeno neppure né raramente",
        "odia odio odiano detesta detesto evita evito evitano rifiuta allergico allergica",
        "zero - due tre quattro cinque sei sette otto nove dieci undici dodici",
        "più maggiore dopo superiore minimo oltre sopra",
        "meno minore prima inferiore massimo entro sotto",
        concord=True,
    ),
    "nl": Language(
        "niet nooit geen zonder niets niemand", "haat vermijdt allergisch weigert",
        "nul - twee drie vier vijf zes zeven acht negen tien", "meer boven na minstens", "minder onder voor hoogstens",
    ),
    "sv": Language(
        "inte aldrig ingen inget inga utan ikke aldri uten ej", "hatar undviker ogillar allergisk hader",
        "noll - två/to tre fyra/fire fem sex/seks sju åtta nio/ni tio/ti", "mer över efter minst", "mindre under före högst",
    ),
    "pl": Language(
        "nie nigdy bez żaden żadna żadnych nikt nic ne není nikdy žádný", "nienawidzi unika nesnáší",
        "zero - dwa/dwie/dva trzy/tři cztery/čtyři pięć/pět sześć/šest siedem/sedm", "więcej ponad po více", "mniej poniżej przed méně",
        concord=True,
    ),
    "ru": Language(
        "не нет никогда без ни нельзя никто ничего ні немає ніколи", "ненавидит ненавижу избегает избегаю аллергия",
        "ноль один/одна два/две/двое три/трое четыре пять шесть семь восемь девять десять",
        "более больше свыше после старше выше позже", "менее меньше ниже до младше раньше перед",
        concord=True,
    ),
    "el": Language("δεν δε μη μην χωρίς ποτέ όχι", "μισεί αποφεύγει", concord=True),
    "tr": Language(
        "değil yok hiç asla", "nefret",
        "sıfır - iki üç dört beş altı yedi sekiz dokuz on", "fazla çok sonra", "az önce",
        concord=True,
    ),
    "ar": Language(
        "لا لم لن ليس ليست بدون غير أبدا", "يكره تكره أكره يتجنب",
        "صفر - اثنان/اثنين ثلاثة/ثلاث أربعة/أربع خمسة/خمس ستة/ست سبعة/سبع ثمانية تسعة عشرة",
        "أكثر فوق بعد", "أقل تحت قبل", concord=True,
    ),
    "he": Language("לא אין בלי", "שונא שונאת", concord=True),
    "hi": Language(
        "नहीं न मत बिना", "नफरत नफ़रत",
        "शून्य - दो तीन चार पाँच/पांच छह सात आठ नौ दस", "ज्यादा ज़्यादा अधिक बाद", "कम पहले", concord=True,
    ),
    "id": Language("tidak bukan tanpa jangan", "membenci", "nol - dua tiga empat lima", "lebih setelah", "kurang sebelum"),
    "vi": Language("không chưa chẳng đừng", "ghét", "- - hai ba bốn năm sáu", "hơn sau", "ít trước"),
    "fi": Language("ei eivät nem soha nincs ilman", "vihaa", "- - kaksi kolme neljä viisi", "yli enemmän", "alle vähemmän"),
}  # fmt: skip
UNSPACED_NO = (
    r"不(?!错|錯|同|仅|僅|断|斷|少|到)|没(?!收)|沒|無|无|别(?!人|的)|別(?!人|的)|勿|讨厌|討厭|痛恨|嫌い|嫌う|"
    r"(?<!少)(?<!危)ない|なく|ません|せず|ずに|なし|ไม่|เกลียด|안 |못 |없|않|싫"
)
"""A regular expression for negations in scripts without spaces."""

# Each row has words that exclude each other in otherwise equal statements.
_OPPOSITES = """
rise/rises/rose/risen/increase/increases/increased/gain/gains/gained fall/falls/fell/fallen/decrease/decreases/decreased/lose/loses/lost
before after
above below
inside outside
indoor/indoors outdoor/outdoors
morning/mornings evening/evenings
tall short
rich/wealthy poor
young old
light/bright dark
big/large/huge small/little/tiny
good/great/excellent bad/poor/terrible/awful
happy sad
positive negative
optimist/optimistic pessimist/pessimistic
strong weak
well badly/poorly
long short
early late
full-time/fulltime part-time/parttime
public private
liberal conservative
urban rural
improve/improves/improved worsen/worsens/worsened
alive dead/deceased
day/daytime night/nighttime
weekday/weekdays weekend/weekends
east/eastern west/western
north/northern south/southern
left/left-handed right/right-handed
open/opens closed/closes
own/owns/owned rent/rents/rented
older/elder younger
taller shorter
bigger/larger smaller
faster slower
support/supports/supported oppose/opposes/opposed
start/starts/started/begin/begins/began stop/stops/stopped/end/ends/ended/finish/finishes/finished
buy/buys/bought sell/sells/sold
hot cold
cheap expensive
single married
employed unemployed
first last
always never/rarely
introvert/introverted extrovert/extroverted
vor nach
morgens/vormittags abends/nachts
gewonnen verloren
kauft/kaufte verkauft/verkaufte
ledig verheiratet
heiß kalt
avant après
matin soir
marié/mariée célibataire
antes después/depois
mañana tarde/noche
casado/casada soltero/soltera solteiro/solteira
prima dopo
mattina sera
sposato/sposata celibe/nubile
до после
утром вечером
"""

# Each row has the spellings of one unit. Spellings of one or two letters are units only after a number.
_UNITS = """
percent % prozent pourcent porciento procent процентов процента
km kilometre kilometres kilometer kilometers kilometros kilómetros quilômetros quilómetros chilometri kilomètre kilomètres км километров километра 公里 千米 キロ
mi mile miles meile meilen milla millas milha milhas miglio miglia миль мили 英里 マイル
m metre metres meter meters metros metri mètre mètres метров метра 米 メートル
cm centimetre centimetres centimeter centimeters zentimeter centímetros centimetri 厘米 センチ
mm millimetre millimetres millimeter millimeters
ft foot feet fuß pies pés piedi pieds
in inch inches zoll pulgadas polegadas pollici pouces
yd yard yards
kg kilogram kilograms kilo kilos kilogramm kilogramme chili кг килограмм 公斤 千克
g gram grams gramm gramo gramos grammes grammi gramas грамм 克
mg milligram milligrams milligramm miligramos
mcg µg μg microgram micrograms mikrogramm
t tonne tonnes tonnen toneladas tonnellate
lb lbs pound pounds pfund libra libras livre livres libbre фунтов
oz ounce ounces unze unzen onzas
st stone stones
l litre litres liter liters litros litri литра литров 升 リットル
ml millilitre millilitres milliliter milliliters mililitros
cl dl
gal gallon gallons gallonen galones galões
pt pint pints
cup cups tasse tassen tasses taza tazas xícara xícaras tazza tazze чашек чашки 杯
tbsp tablespoon tablespoons esslöffel
tsp teaspoon teaspoons teelöffel
glass glasses glas gläser verres vasos copos bicchieri
bottle bottles flasche flaschen bouteilles botellas garrafas bottiglie
s sec secs second seconds sekunde sekunden segundo segundos secondes secondi 秒
min mins minute minutes minuten minuto minutos minuti минут минуты 分钟 分鐘 dakika मिनट دقائق
h hr hrs hour hours stunde stunden hora horas heure heures ora ore час часа часов 小时 小時 時間 saat घंटे ساعات
d day days tag tage tagen día días dia dias jour jours giorno giorni день дня дней 天 日間 gün दिन أيام
week weeks woche wochen semana semanas semaine semaines settimana settimane неделя недели недель неделю 周 週 週間 星期 hafta
month months monat monate monaten mes meses mês mois mese mesi месяц месяца месяцев 月 か月 个月 ay
year years jahr jahre jahren año años ano anos an ans année années anno anni год года лет 年 yıl
°c celsius centigrade
°f fahrenheit
k kelvin
kb kilobyte kilobytes
mb megabyte megabytes
gb gigabyte gigabytes
tb terabyte terabytes
hz hertz
khz
mhz
ghz
w watt watts
kw kilowatt kilowatts
kwh
v volt volts
mph
kph km/h kmh
kcal calorie calories kalorien calorías calorias
am a.m
pm p.m
"""
_CURRENCIES = """
$ us$ usd dollar dollars dólar dólares dollari доллар доллара долларов 美元 ドル dolar دولار डॉलर
€ eur euro euros евро 欧元 歐元 ユーロ avro يورو यूरो
£ gbp sterling 英镑 ポンド
¥ jpy yen 円 日元
cny rmb yuan 人民币 元
₹ inr rupee rupees रुपये रुपए
₽ rub ruble rubles rouble roubles рубль рубля рублей
₩ krw won 원
₺ tl lira
r$ brl real reais
chf franken francs franchi
pln złoty złotych
sek kronor nok kroner dkk
mxn peso pesos
cad
aud
btc ₿ bitcoin bitcoins
cent cents
"""


def _rows(table: str) -> dict[str, str]:
    rows = (line.split() for line in table.strip().split("\n"))
    return {unicodedata.normalize("NFKC", word).lower(): row[0] for row in rows for word in row}


def fold(words: str) -> list[str]:
    """Return the words of a table in the Unicode form NFKC."""
    return unicodedata.normalize("NFKC", words).split()


def _union(*fields: str) -> frozenset[str]:
    return frozenset(word for field in fields for word in fold(field))


_AMBIGUOUS_NUMBERS = frozenset(["on", "ni", "sex", "to", "ti", "dos", "sei", "na", "elf"])


_TENS = (
    "twenty thirty forty fifty sixty seventy eighty ninety",
    "twenties thirties forties fifties sixties seventies eighties nineties",
    "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa",
    "vingt trente quarante cinquante soixante",
    "vinte trinta quarenta cinquenta sessenta setenta oitenta noventa",
    "venti trenta quaranta cinquanta sessanta settanta ottanta novanta",
    "двадцать тридцать сорок пятьдесят шестьдесят семьдесят восемьдесят девяносто",
)


def _numbers() -> dict[str, str]:
    found = {"hundred": "100", "thousand": "1000", "hundert": "100", "tausend": "1000"}
    for tens in _TENS:
        for number, words in enumerate(fold(tens), 2):
            found |= dict.fromkeys(words.split("/"), f"{number}0")
    for language in LANGUAGES.values():
        for number, words in enumerate(fold(language.numbers)):
            found |= dict.fromkeys(words.split("/"), str(number))
    found.pop("-", None)
    found["once"] = "1"  # English; the Spanish word for 11 is rarer
    # Words such as "on" and "ni" are common words of other languages.
    return {word: number for word, number in found.items() if word not in _AMBIGUOUS_NUMBERS}


def _opposites() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for row in _OPPOSITES.strip().splitlines():
        sides = [frozenset(side.split("/")) for side in fold(row)]
        for side in sides:
            for word in side:
                others = frozenset[str]().union(*(each for each in sides if each is not side))
                found[word] = found.get(word, frozenset()) | others
    return found


OPPOSITES = _opposites()
"""The words that a word excludes in otherwise equal statements."""
AND = frozenset("and or & und oder et ou y e o ed ve veya и или och eller".split())  # noqa: SIM905 - as above
"""Words that join two words whose order does not matter."""
ARTICLES = _union(
    "a an the der die das den dem ein eine einen el la los las un una le les une il lo gli uno o os as um uma"
)
"""Words that are ignored in comparisons of word order."""
PART_STARTS = _union(
    """in on at with without for by from to into of over than before after since until during every each about under
    through near because while when if instead rather""",
    "im am mit ohne für bei von zu nach vor seit während jeden jede als statt",
    "en con sin para por desde hasta de a al del antes después cada que durante",
    "dans avec sans pour par chez depuis avant après chaque au aux du à pendant",
    "em no na com sem até antes depois do da ao às",
    "da di nel nella per fino prima dopo ogni che",
    "в на с без для из к до после у перед чем вместо",
)
"""Words that begin a part of a sentence; the order of such parts does not matter."""
NUMBERS = _numbers()
"""The digits of each number word."""
UNITS = _rows(_UNITS)
"""The first spelling of a unit by each of its spellings."""
CURRENCIES = _rows(_CURRENCIES)
"""The first spelling of a currency by each of its spellings."""
_ALL = LANGUAGES.values()
AVERSIONS = _union(*(each.aversions for each in _ALL))
"""Words for dislike and avoidance."""
PARITY_NO = _union(*(each.no for each in _ALL if not each.concord))
"""Negative words of which two in one text cancel out."""
ONE_NO = _union(*(each.no for each in _ALL if each.concord)) - PARITY_NO
"""Negative words of which any number is one negation."""
MORE = _union(*(each.more for each in _ALL))
"""Words for a lower bound of a number."""
LESS = _union(*(each.less for each in _ALL))
"""Words for an upper bound of a number."""
