"""The built-in detectors of redaction: patterns with checks.

The checks are the check digits of cards (Luhn, ISO/IEC 7812-1) and of IBANs (ISO 13616), and the words before and
after a number or a password. Existing scanners read whole files and depend on network libraries, but these detectors
read one text.
"""

from __future__ import annotations

import re
from string import ascii_letters
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What follows the prefix of a provider's keys.
_PREFIXED = (
    r"(?:AKIA|ASIA|AGPA|AIDA|AROA)[0-9A-Z]{16}\b|ABSK[\w+/]{60,}=*"  # Amazon
    r"|AIza[\w-]{35}|AQ\.[\w-]{40,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}"  # Google
    r"|\w{3}\dQ~[\w.~-]{30,}|dapi[0-9a-f]{32}\b"  # Microsoft Entra, Databricks
    # OpenAI and many others, then other hosts of models and what agents search and trace with
    r"|sk-[\w-]{20,}|sk_[0-9a-f]{40,}|(?:hf|gsk|r8)_[A-Za-z0-9]{30,}|(?:xai|pplx|csk)-[A-Za-z0-9]{30,}"
    r"|(?:nvapi|tvly(?:-[a-z]+)?)-[\w-]{20,}|(?:api_org|lsv2_[a-z]{2}|pcsk|pylf_v\d|tgp_v1)_[\w-]{24,}"
    # GitHub, GitLab, and registries of packages
    r"|gh[oprsu]_\w{26,}(?:\.[\w-]{10,})*|github_pat_\w{22,}|gl(?:pat|[drfw]t|cbt|ptt|soat)-[\w-]{20,}(?:\.[\w-]+)*"
    r"|npm_[A-Za-z0-9]{27,}|pypi-[\w-]{50,}|dckr_[op]at_[\w-]{24,}"
    # Slack, Telegram, Twilio, SendGrid, Facebook
    r"|xox[abeoprs]-[\w-]{10,}|xapp-\d-[\w-]{10,}|\d{8,10}:AA[\w-]{33}|SK[0-9a-f]{32}\b|SG\.[\w-]{16,}\.[\w-]{16,}|EAA[A-Za-z0-9]{60,}"
    r"|(?:sk|pk|rk)_(?:live|test)_\w{16,}|(?:whsec|shp(?:at|ca|pa|ss))_[\w-]{24,}=*"  # Stripe, Shopify
    # Heroku, DigitalOcean, Netlify, Vercel, Supabase
    r"|HRKU-[\w-]{20,}|do[opr]_v1_[0-9a-f]{64}|(?:nfp|vcp|sbp)_[A-Za-z0-9]{30,}|sb_secret_[\w-]{24,}"
    # Sentry, Grafana, New Relic, Linear, Figma, Atlassian, Notion
    r"|(?:sntry[su]|glsa|lin_api|figd)_[\w-]{24,}=*|NRAK-[A-Za-z0-9]{27,}|ATATT[\w-]{60,}=*|ntn_[A-Za-z0-9]{30,}"
    r"|hv[bs]\.[\w-]{24,}|dp\.[a-z]{2,5}\.\w{40,}|AGE-SECRET-KEY-[A-Z0-9-]{50,}"  # Vault, Doppler, age
)
# A name and a password in base64, but no word such as "electronics101".
_BASE64 = r"(?=[A-Za-z+/]{0,80}(?:\d{1,3}[A-Za-z+/=]|[a-z][A-Z][A-Za-z+/]*=))[A-Za-z0-9+/]{12,}=*"
_KEY = re.compile(
    # PEM, SSH and PGP
    r"----(?P<dash>[- ])BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?(?P=dash)----"
    r".*?(?:----(?P=dash)END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?(?P=dash)----|\Z)"
    rf"|(?<!\w)(?:(?=[\w.:~+/-]{{15}})(?:{_PREFIXED})"
    # What follows a name in a header, a connection string or an address.
    rf"|(?<=[ =])(?:(?<=[Bb]earer )[\w.~+/-]{{20,}}=*|(?<=[Bb]asic ){_BASE64}"
    r"|(?:(?<=AccountKey=)|(?<=AccessKey=))[\w+/]{40,}=*|(?:(?<=[?&]sig=)|(?<=-Signature=))[\w%+/-]{20,}=*)"
    # JSON Web Tokens, from the start of a run of characters, so that each run is read once.
    r"|(?<!-)(?=[\w-]{13,}+\.(?:eyJ[\w-]{10,}+\.|[\w-]*+\.[\w-]{10,}+\.))[\w-]*?\b(?P<value>eyJ[\w-]{10,}+(?:\.[\w-]*+){2}(?:\.[\w-]++){0,2}))",
    re.DOTALL,
)
# Names of secrets, which a sign and the secret follow.
_NAME = (
    r"pass ?(?:word|code|phrase)s?|passwd|pwd|secrets?|(?:api|access|secret|private)[ _-]?key|(?:auth|access|api)?[ _-]?token"
    r"|client[ _-]?secret|pin(?: code)?|passwort|kennwort|geheimzahl|contrase(?:ñ|n\u0303?)a|clave|mot de passe|senha|palavra-passe|пароль"
    r"|şifre(?:m|si|miz)?|wachtwoord|hasło|mật khẩu"
)
# Those before which other letters may be, in scripts without spaces or with prefixes.
_NAME_WITHIN = r"密[码碼]|パスワード|暗証番号|비밀번호|รหัสผ่าน|पासवर्ड|סיסמ[הא]|كلمة (?:السر|المرور)"
# What a name begins with in --db-password, DB_PASSWORD, dbPassword and X-API-Key.
_OPTION = r"(?P<flag>--)(?<!\S--)(?:[a-z]+-)*?"
_VARIABLE = (
    r"(?P<variable>(?:\w*?_|(?-i:[A-Za-z][a-z]*+(?:[A-Z][a-z]+)*?(?=[A-Z]))|x-)(?!pin|clave))"
)
# What ends a name: a quotation mark, which a bracket may follow, or the mark of bold text.
_NAME_END = r"\\*+[\"']|(?P<marked>\\*+(?:[\"']\]|`\]?)|\*\*)"
# What it is for, in one to three words, of which a colon may end the last one.
_FOR = r"\s++(?:for|to|of|für|zu|de|du|do|da|di)\s++(?:(?:\S++\s++){1,3}?|(?P<purpose>(?:\S++\s++){0,2}?[^\s:：]++(?=[:：])))"
# The last sign is none: a space after an option. A cell of a table is the last one of a line, also in JSON.
_SIGN = (
    r"[:：]\*\*|[:=：]=?|=>|(?<=\s)->|→|\|(?=[^|\n]{3,100}\|[ \t]*(?:[\n\\\"]|\Z))|>(?=[^\s<>]{4,100}</)"
    r"|\b(?:is|ist|lautet|es|est|é|è|là)\b:?|(?<=ь )—|(?<=ь)—|\bهي\b|\bהיא\b"
    r"|(?:是|は|는|은|คือ)[:：]?(?=\s*[^\s，。；、]{0,20}?[!-~]{4})|(?(flag)(?<=\s)(?!id=)|(?!))"
)
# Those after which a secret has a letter and a digit, as they are in tables and programs as well.
_VAGUE_SIGNS = ("", "|", ">", "->", "→", ":**", "：**")
# A block of YAML, or a string of several lines in Python or TOML.
_LINES = r"[|>][+-]?[^\S\n]*+\n\s*+|(?:\"{3}|'{3})\s++"
_QUOTE = r"(?P<quote>\\*(?:\"{3}|'{3}|[\"'`]))"
_QUOTED = r"(?!\s)(?:(?!(?P=quote))(?:\\.|[^\\\n])){4,100}+(?=(?P=quote))"
# Up to the end of an XML element, or up to a space or a mark, but not an apostrophe within a word.
_UNQUOTED = (
    r"(?![\"'`])(?:[^\s\"'`<]{4,1000}+(?=</)"  # a longer run would be read again from each name in it
    r"|(?:[^\s\"'`,;，。；、]|(?<![\\(\[{=])[\"'`](?=\w)){3,}[^\s\"'`,;.，。；、\\])"
)
_SECRET = re.compile(
    rf"(?:(?:{_OPTION}|(?<![\w-])(?=\w){_VARIABLE}??)(?:{_NAME})|{_NAME_WITHIN})(?:{_NAME_END})?(?:{_FOR})?\s*+"
    rf"(?P<sign>{_SIGN})\s*+(?:{_LINES})?{_QUOTE}?(?P<value>(?(quote){_QUOTED}|(?!))|{_UNQUOTED})",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"(?<=://)[^\s:/@]*:(?P<value>[^\s/@\"<>]+)(?=@)")
_PLAIN_WORDS = re.compile(r"[^\W\d_]+(?:(?:(?:[,;:]?| [–-]) |['’])[^\W\d_]+)*[.!?)]*")
_HAS_DIGIT = re.compile(r"\d")
_HAS_LETTER_AND_DIGIT = re.compile(r"(?=.*[^\W\d_]).*\d", re.DOTALL)
# Usual groups, which an expiry date or other numbers may follow. No card begins like a year.
_CARD_IN_GROUPS = re.compile(
    r"(?<![\w.+-])(?:(?:2[2-7]|35|4\d|5[0-8]|6\d)\d\d(?:[ .-]{1,3}\d{4}){3}|3\d{3}[ .-]\d{6}[ .-]\d{4,5}|(?:2[2-7]|[3-6]\d)\d{12,17})(?![\w]|[.-]\d)"
)
_CARD = re.compile(  # no order number, such as 250-1234567-1234567
    r"(?<![\w.+-])(?!\d{3}-\d{7}-\d{7}(?!\d))(?:2[ -]?[2-7]|[3-6][ -]?\d)(?:[ -]?\d){12,17}(?![\w]|[.-]\d)"
)
_IBAN = re.compile(
    r"\b[A-Za-z]{2}\d{2}(?:[\s.-]?[A-Za-z0-9]{4}){2,7}(?:[\s.-]?[A-Za-z0-9]{1,3})?\b"
)
_GAP = re.compile(r"[\s.-]")
_EMAIL = re.compile(  # no address of a repository, such as git@github.com:org/name
    r"(?<![\w.+%-])(?!git@[\w.-]+[:/])[\w.+%'-]{1,64}(?:@|%40)[\w-]+(?:\.[\w-]+)*\.[^\W\d_]{2,}"
)
_PHONE = re.compile(
    # Not the rest of one that was redacted.
    r"(?=[\d(+])(?<! phone\])(?:(?<![\w./+$€£¥-])(?<!\d[,:])|(?<![\w+])(?=\+))"
    # No date, such as 01.02.1990, also of the Thai and Persian calendars.
    r"(?![0-3]\d([ .-])[0-3]\d\1(?:(?:1[349]|2[05])\d\d(?!\d)|\d\d,? [0-2]\d[.:][0-5]\d))"
    # No coordinates, such as +48.85837 +2.29448.
    r"(?!\+\d{1,3}\.\d{3,7}(?:(?![ ./-]?\d)|[ +-]{1,2}\d{1,3}\.\d))"
    r"(?!\d\d\.\d\d-\d\d\.\d\d(?![.-]?\d))(?:"  # no opening hours, such as 09.00-17.30
    r"\+[1-9]\d{0,2}[ ()./-]{0,3}(?:\d[ ()./-]{0,2}){6,12}\d"  # +49 (0)30 1234567
    r"|00 ?[1-9]\d[ ./-]?(?:\d[ ./-]?){6,11}\d"  # 0049 30 1234567, 00 33 6 12 34 56 78
    r"|\(?0[1-9]\d{0,4}\)?[ /.-] ?\d(?:[ .-]?\d){4,9}"  # 030 1234567, (0170) 12 34 567
    r"|0[1-9](?:[ .-]\d{2}){4}"  # 06 12 34 56 78
    r"|1[3-9]\d[ -]\d{4}[ -]\d{4}"  # 138-1234-5678
    r"|8[ -]?\(?\d{3}\)?[ -]\d{3}-\d\d-\d\d"  # 8 (495) 123-45-67
    r"|(?:1[ .-])?\(?[2-9]\d{2}\)?[ .-]\d{3}[ .-]\d{4}"  # (212) 555-0123
    r"|(?<!\d{3} )[679]\d{2} (?:\d{2} \d{2} \d{2}|\d{3} \d{3})(?!,\d| \d{3}(?!\d))"  # 612 34 56 78
    r")(?![\w]|[.:/-]\d)"
)
# Words before and after a number that is none for telephones, such as "order no. 212-555-0123" and "612 345 678 euros".
_OTHER_NUMBER = re.compile(
    r"(?:[€$£¥₹₽]|\b(?:EUR|USD|GBP|CHF|JPY|CNY|INR|PLN|CZK|SEK|NOK|DKK|HUF)) ?[\d ]{0,12}\Z|\b(?:ISBN|ISSN|EAN|UPC)\b[\d :-]{0,15}\Z"
    r"|(?i:\b(?:order|invoice|ticket|tracking|serial|case|part|article|customer|bestell|auftrags|rechnungs|kunden|artikel|commande"
    r"|facture|pedido|factura)[ -]?(?:no|nr|num|number|nummer|n[°º]|id|#)\W{0,3}\Z)"
)
_IN_THREES = re.compile(r"\+?\d{1,3}(?: \d{3})+")
_UNIT = re.compile(
    r" ?(?:[€$£¥₹₽%]|(?i:eur|usd|gbp|chf|jpy|cny|inr|pln|czk|sek|nok|dkk|huf|euros?|dollars?|d[óo]lares|pounds|pesos|yen|yuan|rupees|francs"
    r"|franken|r(?:o?u)bles|rubel|руб\w*|z[łl]|kč|ft|kr|people|inhabitants|habitants|habitantes|einwohner|k?m|км|[kmg]?b|bytes|users|times)\b)"
)
_PLAIN_PHONE = re.compile(r"(?<![A-Za-z0-9_])\d{9,13}(?![A-Za-z0-9_])")
"""A number without separators, which is one for telephones only after a word for it: "Handy 01701234567"."""
_BEFORE_PHONE = 40  # characters
_PHONE_WORD = re.compile(
    r"(?:\b(?:tel|tél|phone|mobile|cell|handy|mobil|rufnummer|telefon\w{0,4}|telephone|téléphone|portable|móvil|celular"
    r"|teléfono|telefone|telefono|cellulare|whatsapp|тел|телефон|τηλ|τηλέφωνο|κινητό|gsm|sđt|điện thoại)"
    r"|电话|電話|手机|手機|携帯|전화|휴대폰|โทร|เบอร์|هاتف|جوال|موبايل|טלפון|נייד|फ़ोन|फोन|मोबाइल)"
    r"(?:\W{0,3}(?:number|no|nr|nummer|n[uú]mero|is|ist|lautet|est|es|é|è|là|是|は|号|號|码|碼|番号|번호|는|은|คือ|ي|है))"
    r"{0,3}[^\w\n]{0,6}\Z",
    re.IGNORECASE,
)
_NON_DIGIT = re.compile(r"\D")
_SHORTEST_IBAN = 15  # of Norway
_IBAN_DIGITS = {ord(letter): str(int(letter, 36)) for letter in ascii_letters}
_FEWEST, _MOST = 7, 15  # digits of a telephone number, ITU-T E.164


class Detector(NamedTuple):
    """Finds one kind of data in a text whose letters, digits and spaces are like those of ASCII."""

    kind: str
    pattern: re.Pattern[str]
    is_one: Callable[[re.Match[str]], bool]
    """Checks a match of the pattern; its group "value" is what is redacted, or all of it."""
    is_apart: bool = False
    """Whether letters of scripts without spaces separate words."""

    def matches(self, plain: str) -> Iterator[re.Match[str]]:
        """Yield the matches that pass a check. Groups of an IBAN may belong to the words beside it, such as a BIC."""
        at = 0
        while (match := self.pattern.search(plain, at)) is not None:
            at, found = match.end(), match
            gaps = _GAP.finditer(plain, *match.span())
            ends = [each.start() for each in gaps] if self.pattern is _IBAN else []
            next_group = ends[0] + 1 if ends else at
            while found is not None and not self.is_one(found):
                found = self.pattern.match(plain, found.start(), ends.pop()) if ends else None
            at = found.end() if found is not None else next_group
            if found is not None:
                yield found


def _is_card(found: re.Match[str]) -> bool:
    digits = [int(digit) for digit in _NON_DIGIT.sub("", found.group())]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2]]  # noqa: PLR2004 - Luhn
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_iban(found: re.Match[str]) -> bool:
    text = _GAP.sub("", found.group())
    # One in lower case with other letters after the bank may be a hash.
    if len(text) < _SHORTEST_IBAN or not (text.isupper() or text[8:].isdigit()):
        return False
    return int((text[4:] + text[:4]).translate(_IBAN_DIGITS)) % 97 == 1


def _is_phone(found: re.Match[str]) -> bool:
    text, at = found.string, found.start()
    if not _FEWEST <= len(_NON_DIGIT.sub("", found.group())) <= _MOST:
        return False
    if _OTHER_NUMBER.search(text, max(0, at - _BEFORE_PHONE), at) is not None:
        return False
    return not (_IN_THREES.fullmatch(found.group()) and _UNIT.match(text, found.end()))


def _follows_phone_word(found: re.Match[str]) -> bool:
    at = found.start()
    return _PHONE_WORD.search(found.string, max(0, at - _BEFORE_PHONE), at) is not None


def _is_secret(found: re.Match[str]) -> bool:
    value = found["value"]
    if value.startswith("[redacted"):
        return False
    # "max_token: 4096" and "show_password: true" are settings.
    sign = found["sign"]
    is_vague = found["variable"] or found["marked"] or sign in _VAGUE_SIGNS
    # "--password=PASS" and "--pin=<number>" are placeholders.
    is_placeholder = found["flag"] and (value.isupper() or value[0] in "<[{$")
    if (is_vague or is_placeholder) and not _HAS_LETTER_AND_DIGIT.match(value):
        return False
    # "The secret of success: patience" contains no password, but "The PIN for the door: 4711" does.
    if found["purpose"] and not _HAS_DIGIT.search(value):
        return False
    # "The password is required" contains no password, but "password: tiger" does.
    return sign[-1:] in (*"*:=：>",) or _PLAIN_WORDS.fullmatch(value) is None


def _always(_: re.Match[str]) -> bool:
    return True


# The order matters, because a key may look like a secret's value, and an address with a password like an e-mail.
DETECTORS = (
    Detector("key", _KEY, _always, is_apart=True),
    Detector("secret", _IN_ADDRESS, _always),
    Detector("secret", _SECRET, _is_secret),
    Detector("email", _EMAIL, _always, is_apart=True),
    Detector("email", _EMAIL, _always),
    Detector("iban", _IBAN, _is_iban, is_apart=True),
    Detector("card", _CARD_IN_GROUPS, _is_card, is_apart=True),
    Detector("card", _CARD, _is_card, is_apart=True),
    Detector("phone", _PHONE, _is_phone, is_apart=True),
    Detector("phone", _PLAIN_PHONE, _follows_phone_word),
)
KINDS = tuple(dict.fromkeys(each.kind for each in DETECTORS))
"""The kinds of data that the built-in detectors find."""
