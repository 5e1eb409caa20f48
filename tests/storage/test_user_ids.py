"""Any string is a user id, and none leaves the root or shares a folder with another."""

from __future__ import annotations

import errno
import logging
import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from file_systems import HookedFiles
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.doctor.doctor import check
from tomldiary.errors import BackendError, IdentifierError
from tomldiary.identifiers.user_ids import (
    decode_folder,
    encode_folder,
    is_canonical,
    validate_identifier,
)

_PIECES = [
    "..", ".", "/", "\\", "a/../b", "\x00", "CON", "con", "nul.txt", "LPT1", "a.", "a ", " a", "A", "a",
    "é", "e\u0301", "%2e", "%2E", "%", "~", "😀", "日本", "\u202e", "\ufeff", "-", "_meta", ".tomldiary",
    "alice", "Alice", "ALICE", "\n", "\t", "\x7f", "ß", "ss", "ı", "I", "K", "\u212a", "\ud800", "C:", "*", "?",
]  # fmt: skip


def hostile_ids(count):
    choose = random.Random(7)
    ids = set(_PIECES) | {"x" * 4096, "😀" * 1024, "a" * 180, "a" * 181, "A" * 60, "A" * 61}
    while len(ids) < count:
        ids.add("".join(choose.choices(_PIECES, k=choose.randint(1, 8))))
    return sorted(ids, key=lambda text: text.encode("utf-8", "surrogatepass"))


def test_two_thousand_hostile_ids_have_separate_folders_inside(tmp_path):
    ids = hostile_ids(2_000)
    root = tmp_path / "root"
    backend = LocalBackend(root)
    seen = {}
    for user in ids:
        folder = backend.folder(user)
        assert folder.parent == root
        assert folder.name not in {"", ".", "..", ".tomldiary"}
        assert folder.name.isascii()
        assert len(folder.name) <= 200
        assert not set(folder.name) & set('/\\:*?"<>| \x00')
        # A file system may ignore case, or fold Unicode forms: the names differ all the same.
        folded = unicodedata.normalize("NFKC", folder.name).casefold()
        assert seen.setdefault(folded, user) == user
    assert len(seen) == len(ids)


def test_hostile_ids_keep_their_own_memory_on_disk(tmp_path):
    root = tmp_path / "deep" / "root"
    diary = Diary(LocalBackend(root, durability="process"), agent="rules")
    ids = [user for user in hostile_ids(60) if "\ud800" not in user]
    for user in ids:
        diary.user(user).upsert_preference("likes", repr(user))
    again = Diary(LocalBackend(root), agent="rules")
    for user in ids:
        items = again.user(user).preferences("likes")
        assert [item.text for item in items.values()] == [repr(user).strip()]
    assert again.users() == sorted(ids)
    outside = [
        p for p in tmp_path.rglob("*") if root not in p.parents and p not in (root, root.parent)
    ]
    assert outside == []


@given(st.text(st.characters(), min_size=1, max_size=40))
def test_a_folder_name_leads_back_to_the_id(user):
    name = encode_folder(user)
    if name.startswith("~"):  # too long for a name: a file inside the folder holds the id
        assert len(user.encode("utf-8", "surrogatepass")) * 3 > 180
        assert decode_folder(name) is None
    else:
        assert is_canonical(name)
        assert decode_folder(name) == user


def test_an_empty_id_is_refused(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    with pytest.raises(IdentifierError, match="empty"):
        diary.user("").upsert_preference("likes", "x")
    with pytest.raises(IdentifierError, match="must be a string"):
        encode_folder(None)


def test_a_folder_of_0_9_named_by_the_plain_id_is_used(tmp_path):
    (tmp_path / "Alice B").mkdir()
    (tmp_path / "Alice B" / "preferences.toml").write_text(
        '[preferences.likes.pref001]\ntext = "tea"\n'
    )
    diary = Diary(tmp_path, agent="rules")
    diary.user("Alice B").upsert_preference("likes", "coffee")
    assert [p.name for p in tmp_path.iterdir() if p.name != ".tomldiary"] == ["Alice B"]
    assert diary.users() == ["Alice B"]
    diary.user("alice b").upsert_preference("likes", "other")
    assert len(diary.user("Alice B").preferences("likes")) == 2


@pytest.mark.parametrize("is_reading", [True, False])
def test_after_an_erasure_all_processes_use_the_same_folder(tmp_path, is_reading):
    (tmp_path / "Alice").mkdir()
    (tmp_path / "Alice/preferences.toml").write_text('[preferences.likes.pref001]\ntext = "tea"\n')
    backend = LocalBackend(tmp_path)
    one, other = (Diary(each, agent="rules").user("Alice") for each in (tmp_path, backend))
    assert other.preferences() if is_reading else backend.kinds("Alice")
    one.forget(everything=True)
    one.upsert_preference("likes", "jazz")
    if is_reading:
        assert [item.text for item in other.preferences("likes").values()] == ["jazz"]
    other.upsert_preference("likes", "milk")
    assert [item.text for item in one.preferences("likes").values()] == ["jazz", "milk"]
    assert not (tmp_path / "Alice").exists()


@pytest.mark.parametrize("user", ["%ff", "Alice%20B", "a" * 181, "A" * 255])
def test_an_odd_or_long_folder_name_of_0_9_is_the_plain_id(tmp_path, user):
    (tmp_path / user).mkdir()
    (tmp_path / user / "preferences.toml").write_text('[preferences.likes.pref001]\ntext = "tea"\n')
    diary = Diary(tmp_path, agent="rules")
    assert diary.users() == [user]
    assert len(diary.user(user).preferences("likes")) == 1


@pytest.mark.parametrize("bad", ["", "  ", ".hid", "a..b", "..", "a/b", "a\\b", "a\x00", "a\n"])
def test_names_that_0_9_refuses_are_refused(bad):
    with pytest.raises(ValueError, match="must"):
        validate_identifier(bad, "user_id")


def test_names_that_0_9_accepts_are_accepted():
    assert validate_identifier("alice@example.org") == "alice@example.org"


@pytest.mark.parametrize("kind", ["", "../x", "a/../b", "/etc/passwd", "a\x00", ".hidden", "A"])
def test_a_document_name_cannot_leave_the_users_folder(tmp_path, kind):
    with pytest.raises(IdentifierError):
        LocalBackend(tmp_path).read("alice", kind)


def test_a_read_of_an_unknown_user_creates_no_file(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.user("alice").upsert_preference("likes", "tea")
    before = {*tmp_path.rglob("*")}
    for user in map(str, range(20)):
        assert diary.user(user).preferences("likes") == {}
        assert diary.user(user).history() == []
    assert {*tmp_path.rglob("*")} == before


def test_a_folder_of_a_long_id_that_is_not_named_inside_is_no_users(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.user("alice").upsert_preference("likes", "tea")
    unnamed = tmp_path / f"~{'a' * 64}"
    unnamed.mkdir()
    (unnamed / "preferences.toml").touch()
    assert diary.users() == ["alice"]


def test_a_user_whose_folder_cannot_be_read_is_named_on_stderr(tmp_path, capsys):
    def unreadable(_name, path, *_):
        if path.startswith(f"{tmp_path}/bob/"):
            raise PermissionError(errno.EACCES, "Permission denied", path)

    for name in "alice", "bob":
        Diary(tmp_path, agent="rules").user(name).upsert_preference("likes", "tea")
    diary = Diary(LocalBackend(tmp_path, files=HookedFiles(unreadable)), agent="rules")
    log = logging.getLogger("tomldiary")
    log.propagate = False  # pytest's handlers
    try:
        assert diary.users() == ["alice"]
    finally:
        log.propagate = True
    assert f"{tmp_path}/bob" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["alice", ".tomldiary", "alice/history"])
def test_a_folder_that_is_a_link_into_the_memory_is_refused(tmp_path, target):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.set_block("persona", "calm")
    alice.upsert_preference("likes", "tea")
    (tmp_path / "bob").symlink_to(target)
    diary = Diary(tmp_path, agent="rules")
    assert diary.users() == ["alice"]
    bob = diary.user("bob")
    for use in (bob.preferences, bob.history, bob.export, lambda: bob.set_block("plan", "x")):
        with pytest.raises(BackendError, match="bob: is a link to a folder of this memory"):
            use()
    assert [*diary.user("alice").blocks()] == ["persona"]
    [found] = [each for each in check(diary) if each.level == "problem"]
    assert (found.place, "is a link" in found.message) == ("bob", True)


def test_a_folder_that_is_a_link_elsewhere_is_used_and_named(tmp_path):
    Diary(tmp_path / "m", agent="rules").user("bob").set_block("persona", "calm")
    (tmp_path / "m/bob").rename(tmp_path / "other")
    (tmp_path / "m/bob").symlink_to(tmp_path / "other")
    diary = Diary(tmp_path / "m", agent="rules")
    diary.user("bob").set_block("plan", "x")
    assert [*diary.user("bob").blocks()] == ["persona", "plan"]
    [found] = [each for each in check(diary) if each.level != "note"]
    assert (found.place, found.level) == (str(tmp_path / "m/bob"), "warning")
    assert "link" in found.message


def test_a_write_to_a_link_to_a_missing_folder_says_what_is_missing(tmp_path):
    bob = Diary(tmp_path / "m", agent="rules").user("bob")
    (tmp_path / "m").mkdir()
    (tmp_path / "m/bob").symlink_to("../not-mounted")
    with pytest.raises(BackendError, match=r"bob: cannot be written .* mount its disk\."):
        bob.upsert_preference("likes", "tea")


def test_a_link_to_itself_hides_no_user(tmp_path):
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", "tea")
    (tmp_path / "bob").symlink_to("bob")
    diary = Diary(tmp_path, agent="rules")
    assert diary.users() == ["alice"]
    (tmp_path / "dave").symlink_to("not-mounted")
    problems = [found for found in check(diary) if found.level == "problem"]
    assert [found.place for found in problems] == [str(tmp_path / "dave"), "bob"]
    assert all("is a link" in found.message for found in problems)


def test_a_skipped_user_is_named_once_until_the_problem_has_ended(tmp_path, caplog):
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", "tea")
    link = tmp_path / "bob"
    link.symlink_to("bob")
    backend = LocalBackend(tmp_path)
    assert [backend.users() for _ in range(3)] == [["alice"]] * 3
    (told,) = caplog.messages
    assert told.startswith(f"a user is skipped: {link}: ")
    link.unlink()
    backend.users()
    link.symlink_to("bob")
    backend.users()
    assert len(caplog.messages) == 2


def test_a_memory_at_the_root_of_a_volume_has_no_user_lost_and_found(tmp_path):
    (tmp_path / "lost+found").mkdir()
    diary = Diary(tmp_path, agent="rules")
    diary.user("alice").upsert_preference("likes", "tea")
    assert diary.engine.backend.known_users() == ["alice"]
    diary.user("lost+found").upsert_preference("likes", "tea")
    assert diary.users() == ["alice", "lost+found"]
    assert not list((tmp_path / "lost+found").iterdir())


def test_a_torn_owner_file_is_written_again(tmp_path):
    def write(text):
        Diary(tmp_path, agent="rules").user("x" * 300).upsert_preference("likes", text)

    write("tea")
    (owner,) = tmp_path.glob("*/owner.toml")
    whole = owner.read_text()
    owner.write_text(whole[:-9])
    write("rum")
    assert owner.read_text() == whole
