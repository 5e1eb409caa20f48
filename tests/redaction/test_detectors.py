"""The built-in detectors, measured on a corpus: what they find, and what they leave."""

from __future__ import annotations

import gc
import json
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tomldiary.errors import InvalidValue
from tomldiary.text.redaction import KINDS, Redactor, redactor_of

ROWS = [
    tuple(line.replace("~", "").split(" | ", 1))
    for line in (Path(__file__).parent / "corpus.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
MARK = re.compile(r"\[redacted: (\w+)\]")


def figures():
    """Return for each kind how many were to be found, were found, and were found where none is."""
    wanted, found, wrong = Counter(), Counter(), Counter()
    for kind, line in ROWS:
        hidden = re.findall("«(.*?)»", line)
        redacted = Redactor()(line.replace("«", "").replace("»", ""))
        kinds = MARK.findall(redacted)
        wanted[kind] += len(hidden)
        found[kind] += sum(text not in redacted for text in hidden) if kind in kinds else 0
        wrong.update(each for each in kinds if each != kind)
        if kinds.count(kind) > len(hidden):
            wrong[kind] += kinds.count(kind) - len(hidden)
    return wanted, found, wrong


@pytest.mark.parametrize("kind", KINDS)
def test_recall_and_precision_of_a_kind(kind):
    wanted, found, wrong = figures()
    assert wanted[kind] >= 5
    assert found[kind] / wanted[kind] >= 0.95
    assert found[kind] / (found[kind] + wrong[kind]) >= 0.95


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("é\xa0: 4111\xa01111\u202f1111\u20091111.", "é\xa0: [redacted: card]."),
        ("4111\u20111111\u20111111\u20111111", "[redacted: card]"),
        ("ＤＥ８９\u30003704\xa00044\xa00532\xa00130\xa000", "[redacted: iban]"),
        ("电话：+49\xa030\xa01234567，谢谢", "电话：[redacted: phone]，谢谢"),
        ("ａｎｎａ＠ｅｘａｍｐｌｅ.ｏｒｇ！", "[redacted: email]！"),
        ("Ａ. Ｐａｓｓｗｏｒｄ: ｈｕｎｔｅｒ２", "Ａ. Ｐａｓｓｗｏｒｄ: [redacted: secret]"),
    ],
)
def test_other_forms_of_letters_digits_and_spaces_are_read(text, kept):
    assert Redactor()(text) == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("4111 1111 1111 1111 12/27 123", "[redacted: card] 12/27 123"),
        ("12/27 4111111111111111 123", "12/27 [redacted: card] 123"),
        ("3782 822463 10005 5555-5555-5555-4444", "[redacted: card] [redacted: card]"),
        ("3056 930902 5904 12/27", "[redacted: card] 12/27"),
        ("ES91 2100 0418 4502 0005 1332 BIC CAIXESBB", "[redacted: iban] BIC CAIXESBB"),
        ("AT611904300234573201 BKAUATWW", "[redacted: iban] BKAUATWW"),
        ("01.02.1990, on:03-04-2026 030 1234567", "01.02.1990, on:03-04-2026 [redacted: phone]"),
        ("RE24 1234 DE89 3704 0044 0532 0130 00", "RE24 1234 [redacted: iban]"),
        ("–030 1234567, –PIN: 4711", "–[redacted: phone], –PIN: [redacted: secret]"),
        ("00 33 6 12 34 56 78 or 00 49 (0)", "[redacted: phone] or 00 49 (0)"),
        ("tvly-abcdefghijklmnopqrstuvwxyz012345 7", "[redacted: key] 7"),
        ("Basic dXNlcjpwYXNzd29yZA==", "Basic [redacted: key]"),
        ("Basic dXNlcjpzZWNyZXQ=", "Basic [redacted: key]"),  # without a digit
        ("Basic aGVsbG8+d29ybGQ=", "Basic [redacted: key]"),
        ("--password=tiger --pin=4711", "--password=[redacted: secret] --pin=[redacted: secret]"),
        (
            "PIN is: 4711; das Passwort ist: tiger",
            "PIN is: [redacted: secret]; das Passwort ist: [redacted: secret]",
        ),
        (
            r'"| PIN | Tiger47 |\n| PIN | Tiger48 |"',
            r'"| PIN | [redacted: secret] |\n| PIN | [redacted: secret] |"',
        ),
        ("The PIN for the door: 4711", "The PIN for the door: [redacted: secret]"),
        ('token = state.push("a1", "b")', 'token = [redacted: secret]"a1", "b")'),
        ("(212)–555–0123", "[redacted: phone]"),
        ("gb82 west 1234 5698 7654 32, ok", "[redacted: iban], ok"),
        ('{"phone": "2125550123"}', '{"phone": "[redacted: phone]"}'),
        ("tel:+49301234567, Tel.:030 1234567", "tel:[redacted: phone], Tel.:[redacted: phone]"),
    ],
)
def test_a_number_is_found_beside_other_numbers_and_words(text, kept):
    assert Redactor()(text) == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("カード番号は4111111111111111です", "カード番号は[redacted: card]です"),
        ("คาร์ด๔๑๑๑ ๑๑๑๑ ๑๑๑๑ ๑๑๑๑ค่ะ", "คาร์ด[redacted: card]ค่ะ"),
        ("कार्ड ४१११-११११-११११-११११", "कार्ड [redacted: card]"),
        ("카드는 4111–1111–1111–1111입니다", "카드는 [redacted: card]입니다"),
        ("آيبان SA٠٣ ٨٠٠٠ ٠٠٠٠ ٦٠٨٠ ١٠١٦ ٧٥١٩", "آيبان [redacted: iban]"),
        ("口座はde89370400440532013000です", "口座は[redacted: iban]です"),
        ("رقمي ٠٥٠ ١٢٣ ٤٥٦٧", "رقمي [redacted: phone]"),
        ("電話は０３－１２３４－５６７８です", "電話は[redacted: phone]です"),
        ("手机138-1234-5678，房号12", "手机[redacted: phone]，房号12"),
        ("телефон 8 (495) 123-45-67", "телефон [redacted: phone]"),
        ("我的电话号码是13812345678。", "我的电话号码是[redacted: phone]。"),
        ("携帯は09012345678です", "携帯は[redacted: phone]です"),
        ("Handy 01701234567, tél : 0612345678", "Handy [redacted: phone], tél : [redacted: phone]"),
        ("My phone number is 2125550123.", "My phone number is [redacted: phone]."),
        ("telefonum 05321234567", "telefonum [redacted: phone]"),
        ("جوالي ٠٥٠١٢٣٤٥٦٧", "جوالي [redacted: phone]"),
        ("התקשרו ל-050-1234567", "התקשרו ל-[redacted: phone]"),
        (
            f"{'我' * 70}anna@example.com和bob@example.com",
            f"{'我' * 70}[redacted: email]和[redacted: email]",
        ),
        ("메일은 anna@example.com입니다", "메일은 [redacted: email]입니다"),
        ("用户@例子.广告", "[redacted: email]"),
        ("我的密钥是sk-proj-abcdEFGH1234ijklMNOP", "我的密钥是[redacted: key]"),
        ("我的密码是：Tiger12，谢谢", "我的密码是：[redacted: secret]，谢谢"),
        ("密码是小猫2020，谢谢", "密码是[redacted: secret]，谢谢"),
        ("パスワードは「Tiger 12」です", "パスワードは「[redacted: secret]」です"),
        ("비밀번호는 Tiger12!", "비밀번호는 [redacted: secret]"),
        ("كلمة السر: tiger12", "كلمة السر: [redacted: secret]"),
        ("كلمة المرور هي tiger12", "كلمة المرور هي [redacted: secret]"),
        ("הסיסמה היא tiger12", "הסיסמה היא [redacted: secret]"),
        ("мой пароль — tiger12", "мой пароль — [redacted: secret]"),
        ("şifrem: tiger12", "şifrem: [redacted: secret]"),
        ("mật khẩu là tiger12", "mật khẩu là [redacted: secret]"),
        ("contrasen\u0303a: tiger12", "contrasen\u0303a: [redacted: secret]"),
    ],
)
def test_numbers_and_secrets_are_found_in_all_scripts_beside_letters(text, kept):
    assert Redactor()(text) == kept


@pytest.mark.parametrize("hidden", ["\u200b", "\u00ad", "\ufe0f", "\u2060", "\u202a"])
def test_hidden_characters_hide_nothing(hidden):
    text = "Card 4111~ 1111~11~11~1111, ann~a~@exam~ple.org, DE89 3704~ 0044 ~0532 0130 00, pass~word: hun~ter2 ~+49 30~ 1234567~"
    kept = "Card [redacted: card], [redacted: email], [redacted: iban], pass~word: [redacted: secret] ~[redacted: phone]~"
    assert Redactor()(text.replace("~", hidden)) == kept.replace("~", hidden)
    assert Redactor()(f"Nr{hidden}4111111111111111") == f"Nr{hidden}[redacted: card]"
    assert Redactor()(f"A co{hidden}py") == f"A co{hidden}py"


@pytest.mark.parametrize("escapes", [True, False])
@pytest.mark.parametrize("levels", [1, 2])
def test_numbers_and_addresses_in_escaped_text_are_found_and_it_stays_escaped(escapes, levels):
    said = '电话13812345678\n4111111111111111\tanna@example.org\u200b@example.org\nDE89370400440532013000\n"password: hunter2" {}'
    kept = '电话[redacted: phone]\n[redacted: card]\t[redacted: email]\u200b@example.org\n[redacted: iban]\n"password: [redacted: secret]" {}'
    written = {"said": said, "secret": "tiger 4711"}
    for _ in range(levels):
        written = json.dumps(written, ensure_ascii=escapes)
    read = Redactor()(written)
    for _ in range(levels):
        read = json.loads(read)
    assert read == {"said": kept, "secret": "[redacted: secret]"}
    address = '{"url":"http://localhost:8080","mail":"anna@example.org"}'
    assert json.loads(Redactor()(address))["mail"] == "[redacted: email]"


@pytest.mark.parametrize(
    "text",
    [
        'password = """hunter2x"""',
        "password = '''\nhunter2x\n'''",
        "password: |\n  hunter2x\n",
        'os.environ["PASSWORD"] = "hunter2x"',
        "my --api-token hunter2x",
        "password -> hunter2x",
        "`password`: `hunter2x`",
        'SharedAccessKey="hunter2x"',
        json.dumps(json.dumps(json.dumps({"password": "hunter2x"}))),
        "password: hunter'2x",
    ],
)
def test_a_secret_is_found_as_languages_and_tools_write_it(text):
    redacted = Redactor()(text)
    assert "2x" not in redacted
    assert redacted.count("[redacted: secret]") == 1


def test_a_quoted_secret_is_redacted_up_to_the_closing_quote():
    redacted = '{"password": "[redacted: secret]", "user": "bob"}'
    assert Redactor()('{"password": "correct horse battery", "user": "bob"}') == redacted
    inner = """password = "it's 9 o'clock", secret: 'say "7"', token: "ab\\"c99" """
    kept = """password = "[redacted: secret]", secret: '[redacted: secret]', token: "[redacted: secret]" """
    assert Redactor()(inner) == kept
    rest = f"{' and so on' * 10} at Anna's"
    assert Redactor()(f"password: 'tiger{rest}") == f"password: '[redacted: secret]{rest}"
    nested = r'{"body": "{\"password\": \"hunter2, too\", \"n\": 1}"}'
    kept = r'{"body": "{\"password\": \"[redacted: secret]\", \"n\": 1}"}'
    assert Redactor()(nested) == kept
    key = "-----BEGIN PGP PRIVATE KEY BLOCK-----\nabc\n-----END PGP PRIVATE KEY BLOCK-----"
    assert Redactor()(f"Mine: {key}, yours?") == "Mine: [redacted: key], yours?"


@pytest.mark.parametrize(
    "name", ["DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "export my_token", "X-API-Key"]
)
def test_the_last_word_of_a_variable_announces_a_secret(name):
    assert Redactor()(f"{name}=hunter2x") == f"{name}=[redacted: secret]"
    assert Redactor()("an open-secret: they know") == "an open-secret: they know"
    assert Redactor()("access_token=horses") == "access_token=[redacted: secret]"


@pytest.mark.parametrize(
    "text",
    [
        "max_token: 4096",
        "show_password = true",
        'pad_token="[PAD]"',
        'db_password = os.environ["DB_PASSWORD"]',
        "led_pin = GPIO17",
        "palabra_clave: años80",
        'set "api_key =" and the like, or "token"',
        "The password is 'the usual one'.",
        'Our secret is "practice, rest - and more practice."',
        'The secret is "don\'t stop, ever"',
        "Open 09.00-17.30, in winter:08.00-16.00.",
        "612\u202f345\u202f678 €",
        "2\xa0639\xa0000\xa0000\xa0000 habitants",
        "le 01 02 2026 à 14 h, วันที่ 03-04-2569, تاریخ ۰۳-۰۴-۱۴۰۴",
        "Order 250-1234567-1234567",
        "ſs89 3704 0044 0532",
        "パスワードは8文字以上です",
        "密码是六位数字，不要告诉别人",
        "Пароль — это важно.",
        "The token — short-lived, as of 2026-11-05 — is new; the secret — non-trivial — too.",
        'etag = "ca042d6b81a106b849675d3fce2c58e3"',
        "phone case, order 123456789012; hotel 123456789; mobile 20261130",
        "id,mobile,phone\n1700000000,x,y",
        "The password is “the usual one”.",
        "Use --password to set it; the token | the 4096th; | token | 4096 |",
        "nextToken: string, IfPasswordSet: yes",
        "- `token`: string; **Password:** always long; `api_key`: Your key.",
        'params["api_key"] = "test" if oauth["access_token"] == wanted else None',
        '<label for="password">Password</label> <th title="token">Tokens</th>',
        "| token | int64 | yes |\n| password | varchar(64) | no |",
        "echo $TOKEN | base64 -d; docker build --secret id=aws1,src=a",
        "--password=PASS sets it, --private-key=FILE reads it; --pin <number>; --token=$TOKEN",
        "The secret of success: patience",
        "$token->is_start2(); dpkg -L xapp-thumbnailers-common",
        "Basic electronics101, basic programming102",
        json.dumps("612\u202f345\u202f678 spectateurs, 612\xa0345\xa0678 личных"),
    ],
)
def test_a_setting_or_an_amount_is_kept(text):
    assert Redactor()(text) == text


def test_a_redacted_text_is_not_redacted_again():
    for _, line in ROWS:
        once = Redactor()(line)
        assert Redactor()(once) == once


def test_kinds_are_counted_and_texts_are_not_kept():
    redactor = Redactor()
    assert redactor("a@example.org, b@example.org") == "[redacted: email], [redacted: email]"
    assert redactor.stats() == {"email": 2}
    assert "example" not in repr(vars(redactor)["_counts"]) + repr(redactor)


@pytest.mark.parametrize("prefix", ["hf_", "gsk_", "r8_", "xai-", "pplx-"])
def test_a_key_with_the_prefix_of_a_provider_is_redacted(prefix):
    assert Redactor()(f"Use {prefix}{'a1B2' * 10}.") == "Use [redacted: key]."
    assert Redactor()(f"{prefix}{'a1' * 9}") == f"{prefix}{'a1' * 9}"


def test_two_threads_redact_at_the_same_time():
    both = threading.Barrier(2, timeout=10)

    def slow(text):
        both.wait()
        return text

    redactor = Redactor((), slow)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(redactor.uncounted, ["a", "b"])) == ["a", "b"]


def test_text_before_a_web_token_stays():
    token = ".".join(("eyJ" + "h" * 20, "eyJ" + "z" * 20, "c" * 30))
    assert Redactor()(f"-{token}, my-{token}.") == "-[redacted: key], my-[redacted: key]."


def test_only_the_kinds_that_are_asked_for_go():
    assert Redactor(["card"])("a@example.org") == "a@example.org"
    with pytest.raises(InvalidValue, match="expected some of key"):
        Redactor(["names"])


def test_an_option_may_be_true_a_kind_kinds_or_a_function():
    assert redactor_of(None) is redactor_of(False) is None
    assert redactor_of(True).kinds == KINDS
    assert redactor_of("email").kinds == ("email",)
    assert redactor_of(["email", "card"]).kinds == ("email", "card")
    own = redactor_of(lambda text: text.replace("Anna", "[name]"))
    assert own("Anna, a@example.org") == "[name], a@example.org"
    assert own.stats() == {"other": 1}
    assert redactor_of(own) is own


def test_values_are_redacted_at_any_depth_and_equal_elsewhere():
    redactor = Redactor()
    clean = {"a": ["x", 1], "b": {"c": "y"}}
    assert redactor.values(clean) == clean
    assert redactor.values({"a": ["x@y.org", 1], "b": ("z",)}) == {
        "a": ["[redacted: email]", 1],
        "b": ("z",),
    }
    assert redactor.entry({"_created_by": "x@y.org", "text": "x@y.org"}) == {
        "_created_by": "x@y.org",
        "text": "[redacted: email]",
    }


@pytest.mark.parametrize(
    "text",
    [
        "@" * 20000,
        "1 " * 20000,
        "+1" * 9000,
        "a." * 20000,
        "password " * 4000,
        "x" * 50000,
        "AT61 ABCD " * 5000,
        "password:'\\" * 5000,
        "123456789é" * 5000,
        "1\u200b" * 20000,
        "\\u0031" * 9000,
        " --a-" * 9000,
        "aA" * 20000,
        "a." * 20 + "eyJ" * 9000,
    ],
)
def test_long_texts_take_linear_time(text):
    Redactor()(text)


def test_a_collected_object_may_redact_while_texts_are_counted():
    redactor = Redactor()
    left, collected = [True], []

    class Abandoned:
        def __init__(self):
            self.itself = self  # a cycle, which only the collector ends

        def __del__(self):
            collected.append(redactor("I am x@y.org."))
            if left:
                Abandoned()

    def run():
        Abandoned()
        for _ in range(1000):
            redactor("I am z@y.org.")
        left.clear()

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        runner = threading.Thread(target=run, daemon=True)
        runner.start()
        runner.join(30)
        assert not runner.is_alive(), "a thread waits for itself"
    finally:
        gc.set_threshold(*before)
    assert set(collected) == {"I am [redacted: email]."}
