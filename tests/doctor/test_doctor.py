"""Health checks: each fault is found, named with its place, and left unchanged."""

from __future__ import annotations

import errno
import json
import os
import random
import shlex
import shutil
import subprocess
import tempfile
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import BaseModel

import command_line
from file_systems import WRITES
from hand_edits import age
from processes import as_user
from tomldiary import Diary, PreferenceItem
from tomldiary.backends import LocalBackend, MemoryBackend
from tomldiary.doctor.doctor import Damage, check, verify
from tomldiary.errors import BackendError
from tomldiary.history.record import parse_record, render_record
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore

ROOT = Path(__file__).parents[2]
NO_MOUNTS = "there-is-no-such-list"


@pytest.fixture
def root(tmp_path):
    """A healthy folder of two users."""
    place = tmp_path / "m"
    diary = Diary(place, agent="rules", durability="process")
    diary.user("alice").add_turn("I love tea. My sister lives in Graz.", "ok", "s1")
    diary.user("alice").add_turn("I love tea and crêpes.", "ok", "s2")
    diary.user("alice").forget_conversation("s1")
    diary.user("bob").upsert_preference("likes", "coffee")
    return place


def findings(place, users=None, **options):
    diary = place if isinstance(place, Diary) else Diary(place, agent="rules")
    return check(diary, users, **{"mounts": NO_MOUNTS, **options})


def wrong(place, users=None, **options):
    return [found for found in findings(place, users, **options) if found.level != "note"]


def state(place):
    return {
        path: (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in place.rglob("*")
    }


def segment(root, user="alice"):
    return max((root / user / "history").iterdir())


def only(found):
    assert len(found) == 1, found
    return found[0]


# Health


def test_a_healthy_folder_has_only_notes_and_names_the_last_write(root):
    found = findings(root)
    assert {one.level for one in found} == {"note"}
    told = {one.place: one.message for one in found}
    newest = Diary(root).user("alice").history(limit=1)[0]
    assert (
        told["alice"]
        == f"the last write is transaction 3, {newest.time[:19].replace('T', ' ')} UTC."
    )
    assert told["bob"].startswith("the last write is transaction 1,")
    assert "MB are free" in told[str(root)]


def test_namespaces_with_the_user_as_second_label_are_reported(root):
    store = ItemStore(Diary(root, agent="rules"))
    store.run([Put(("memories", "ann"), "k", {"text": "tea"})])
    store.run([Put(("alice", "notes"), "k", {"text": "tea"})])
    (told,) = [each for each in findings(root) if "forgetting" in each.message]
    assert (told.level, told.place) == ("warning", "memories")
    assert "('memories', 'ann')" in told.message
    assert "user_label=1" in told.remedy


def test_a_check_changes_nothing_not_even_after_a_crash(root, files):
    left = root / "alice/.staged-999999999-0-preferences.tmp"
    left.write_text("half")
    os.utime(left, (0, 0))
    with segment(root).open("ab") as file:
        file.write(b"[[tx]]\nche")
    (root / "bob/preferences.toml").write_text("[broken")
    (root / "alice/.forgetting.toml").write_text("is_staged = false\n")
    before = state(root)

    def refuse(name, path, *args):
        assert name not in WRITES, (name, path)
        assert name != "open" or not args[0] & (os.O_WRONLY | os.O_RDWR), path

    files.hook = refuse
    assert len(wrong(Diary(LocalBackend(root, files=files)))) >= 3
    assert state(root) == before


def test_a_check_of_one_user_skips_other_users(root):
    (root / "bob/preferences.toml").write_text("[broken")
    assert wrong(root, ["alice"]) == []
    assert any("bob" in found.place for found in wrong(root, ["bob"]))


def test_problems_come_before_warnings(root):
    (root / "alice/preferences.toml").write_text("[broken")
    left = root / "bob/.staged-999999999-0-preferences.tmp"
    left.touch(0o600)
    os.utime(left, (0, 0))
    levels = [found.level for found in findings(root)]
    assert levels == sorted(levels, key=["problem", "warning", "note"].index)
    assert set(levels) == {"problem", "warning", "note"}


def test_other_backends_are_checked_through_the_protocol():
    backend = MemoryBackend()
    user = Diary(backend, agent="rules").user("alice")
    user.upsert_preference("likes", "tea")
    user.upsert_preference("likes", "coffee")
    assert verify(backend, "alice") is None
    assert wrong(Diary(backend)) == []
    records = [text.replace("tea", "sea") for text in backend.records("alice")]
    backend.records = lambda _user: iter(records)
    assert verify(backend, "alice").seq == 1
    assert only(wrong(Diary(backend))).level == "problem"


# Files and folders


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_files_that_others_can_read_are_found(root):
    (root / "alice/preferences.toml").chmod(0o644)
    found = only(wrong(root))
    assert found.place == str(root / "alice/preferences.toml")
    assert "can be read by others" in found.message
    (root / "alice/conversations.toml").chmod(0o604)
    assert "like 1 more" in only(wrong(root)).message
    subprocess.run(found.remedy.removeprefix("Run: "), shell=True, check=True)  # noqa: S602 - the remedy is a command
    assert wrong(root) == []
    (root / "alice/history").chmod(0o750)
    found = only(wrong(root))
    assert found.place == str(root / "alice/history")
    assert "can be entered by others" in found.message
    subprocess.run(found.remedy.removeprefix("Run: "), shell=True, check=True)  # noqa: S602
    assert wrong(root) == []


@pytest.mark.skipif(
    not hasattr(os, "fork") or os.geteuid() != 0, reason="only root gives files away"
)
def test_files_of_another_account_are_found(root):
    for path in [root, *root.rglob("*")]:
        os.chown(path, 65534, 65534)
    Diary(root, agent="rules").user("alice").upsert_preference("likes", "tea")  # as root
    found = only(wrong(root))
    assert (found.level, found.place) == ("problem", str(root / "alice/preferences.toml"))
    assert "belongs to another account" in found.message
    subprocess.run(found.remedy.removeprefix("Run: "), shell=True, check=True)  # noqa: S602 - the remedy is a command
    assert wrong(root) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process of another user is needed")
def test_unreadable_and_unwritable_files_are_found():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "m"
        diary = Diary(root, agent="rules", durability="process")
        for name in ("alice", "bob", "carol", "dora"):
            diary.user(name).upsert_preference("likes", "tea")
        diary.user("dora").forget(session_id="none")
        other = 65534
        if os.geteuid() == 0:
            for path in [root, *root.rglob("*")]:
                os.chown(path, other, other)
        for file in ("alice/preferences.toml", ".tomldiary/epochs.key"):
            (root / file).chmod(0o000)
        (root / "bob/history").chmod(0o500)
        (root / "carol").chmod(0o000)
        found = findings_as_user(other, root)
        (root / "carol").chmod(0o700)
    told = {one["place"]: one["message"] for one in found if one["level"] == "problem"}
    assert told[str(root / "bob/history")] == "cannot be written."
    # One finding names the key, also for the document of alice and the folder of carol.
    key = str(root / ".tomldiary/epochs.key")
    assert told[key] == "cannot be read, like 2 more."
    assert [one["place"] for one in found].count(key) == 1
    assert told["carol"] == f"{root / 'carol'}: cannot be listed (Permission denied)."
    assert any(one["place"] == "dora" for one in found)  # one folder does not hide the others


def findings_as_user(number, root):
    """Check a folder in a process that may not do everything, as root may."""

    def check_folder():
        return json.dumps(
            [
                {"level": one.level, "place": one.place, "message": one.message}
                for one in findings(root)
            ]
        )

    return json.loads(as_user(number, check_folder))


def test_temporary_files_of_a_crash_are_found_not_those_of_a_write(root):
    folder = root / "alice"
    left = folder / ".staged-999999999-0-preferences.tmp"
    left.touch(0o600)
    assert wrong(root) == []  # a write may be under way
    os.utime(left, (0, 0))
    assert only(wrong(root)).place == str(left)
    Diary(root).user("alice").preferences()  # the remedy: the next read removes it
    assert wrong(root) == []


def test_a_document_with_a_suffix_in_capitals_is_named(root):
    """Such names come from a disk or an archiver that stores capitals only."""
    file = root / "bob/preferences.toml"
    file.rename(file.with_name("PREFERENCES.TOML"))
    found = only([each for each in wrong(root) if each.place.endswith("TOML")])
    assert (found.level, found.place) == ("warning", str(file.with_name("PREFERENCES.TOML")))
    assert "rename it" in found.remedy


def test_only_an_old_file_of_a_user_is_an_editors_copy(root):
    copy, folder = root / "alice/preferences.toml~", root / "alice/preferences.toml.d"
    own = root / ".tomldiary/journal/alice.toml.1"  # of the diary
    own.parent.mkdir(0o700, exist_ok=True)
    for file in (copy, own):
        file.touch(0o600)
    folder.mkdir(0o700)
    assert wrong(root) == []  # an editor may be saving
    for each in (copy, own, folder):
        os.utime(each, (0, 0))
    assert only(wrong(root)).place == str(copy)


def test_an_unfinished_forget_job_is_found(root):
    job = root / "alice/.forgetting.toml"
    job.touch(0o600)
    assert wrong(root) == []  # it may be under way
    os.utime(job, (0, 0))
    found = only(wrong(root))
    assert (found.place, "forget operation" in found.message) == (str(job), True)


def test_history_is_consistent_after_forget(root):
    user = Diary(root, agent="rules").user("alice")
    user.upsert_preference("goals", "a secret", session_id="s9")
    user.upsert_preference("goals", "rest", session_id="s8")
    user.forget(session_id="s9")
    user.upsert_preference("goals", "later")
    assert verify(LocalBackend(root), "alice") is None
    assert wrong(root) == []


def test_a_user_with_a_very_long_id_is_checked(root):
    name = "ä" * 300
    Diary(root, agent="rules", durability="process").user(name).upsert_preference("likes", "tea")
    assert any(found.place == name for found in findings(root))


@pytest.mark.parametrize(
    ("part", "is_synced"),
    [
        ("Dropbox", True),
        ("OneDrive - Some Company", True),
        ("Google Drive", True),
        ("GoogleDrive", True),
        ("iCloud Drive", True),
        ("com~apple~CloudDocs", True),
        ("my-dropbox-client", False),
        ("onedriver", False),
    ],
)
def test_a_folder_that_another_program_syncs_is_found(tmp_path, part, is_synced):
    place = tmp_path / part / "m"
    Diary(place, agent="rules", durability="process").user("alice").upsert_preference("likes", "x")
    assert [part in found.message for found in wrong(place)] == ([True] if is_synced else [])
    link = tmp_path / "linked"
    link.symlink_to(place)
    assert len(wrong(link)) == is_synced


@pytest.mark.parametrize("name", ["dave", ".tomldiary"])
def test_a_link_to_a_missing_folder_of_a_memory_is_found(root, name):
    if name == ".tomldiary":
        shutil.rmtree(root / name)
    (root / name).symlink_to("not-mounted")
    (root / ".#notes").symlink_to("ann@host.42:1")  # the lock of an open file in Emacs
    found = only(wrong(root))
    assert (found.level, found.place) == ("problem", str(root / name))
    assert "its target does not exist" in found.message


def as_listed(place):
    """Return a path as the kernel's list of file systems has it."""
    return str(place).replace(" ", r"\040")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "virtiofs"])
def test_a_network_file_system_is_found(root, tmp_path, kind):
    mounts = tmp_path / "mounts"
    place, above = (as_listed(each) for each in (root, root.parent))
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/a {place} {kind} rw 0 0\n")
    found = only(wrong(root, mounts=mounts))
    assert f"network file system ({kind})" in found.message
    mounts.write_text(f"server:/a / {kind} rw 0 0\n/dev/a {above} ext4 rw 0 0\n")
    assert wrong(root, mounts=mounts) == []  # the innermost counts
    mounts.write_text(f"/dev/a / fuseblk rw 0 0\nserver:/a {place}-other {kind} rw 0 0\n")
    assert wrong(root, mounts=mounts) == []


def test_a_mount_point_with_a_space_is_understood(tmp_path):
    place = tmp_path / "with space"
    Diary(place, agent="rules", durability="process").user("alice").upsert_preference("likes", "x")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/a {as_listed(place)} nfs rw 0 0\n")
    assert len(wrong(place, mounts=mounts)) == 1


def test_a_full_disk_is_found(root, files):
    files.free_bytes = lambda _: 2**20
    found = only(wrong(Diary(LocalBackend(root, files=files))))
    assert "are free" in found.message


def test_a_disk_without_free_inodes_is_found(root, files):
    files.free_inodes = lambda _: 0
    found = only(wrong(Diary(LocalBackend(root, files=files))))
    assert found.message == "0 inodes are free on this disk."


def test_a_file_system_without_a_limit_of_inodes_is_no_finding(root, files):
    files.free_inodes = lambda _: None
    assert wrong(Diary(LocalBackend(root, files=files))) == []


def test_a_missing_folder_is_a_problem(tmp_path):
    found = only(wrong(tmp_path / "nothing"))
    assert (found.level, found.message) == ("problem", "there is no such folder.")
    assert not (tmp_path / "nothing").exists()


def test_no_remedy_is_given_for_the_files_of_another_program(tmp_path, root):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/pyproject.toml").write_text("")
    found = only(wrong(tmp_path))
    assert (found.level, found.place) == ("warning", str(tmp_path))
    assert found.message == "nothing in this folder is from tomldiary."
    shutil.rmtree(root / ".tomldiary")  # a backup may be without this folder
    assert wrong(root) == []
    assert not (root / ".tomldiary").exists()
    for document in root.glob("*/*.toml"):
        document.unlink()
    assert "was deleted" in wrong(root)[0].message  # the history is of tomldiary, too


# Documents


def rewrite(path, change):
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


def test_a_document_that_does_not_parse_is_named_with_line_and_column(root):
    file = root / "alice/preferences.toml"
    rewrite(file, lambda text: text + "\n[preferences.likes.x\n")
    lines = file.read_text().count("\n")
    found = only(wrong(root))
    assert found.level == "problem"
    assert found.place.startswith(f"{file}:{lines}:")
    assert "Correct the line." in found.message
    assert "history" in found.remedy


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'text = "caf\xe9"\n', "0xe9 is not UTF-8"),
        (b"x = " + b"[" * 500, "nested deeper"),
        (b'[_meta]\nversion = "9.9"\n', "'9.9'"),
    ],
)
def test_other_unusable_documents_are_problems(root, data, says):
    (root / "alice/preferences.toml").write_bytes(data)
    found = only(wrong(root))
    assert found.level == "problem"
    assert says in found.message
    assert found.place.startswith(str(root / "alice/preferences.toml"))
    assert found.message.count("Upgrade") + found.remedy.count("Upgrade") == ("9.9" in says)
    assert "Correct the file" not in found.remedy


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a pipe is needed")
@pytest.mark.parametrize("make", [os.mkfifo, lambda file: file.mkdir(0o700), lambda file: file.symlink_to("nowhere")])  # fmt: skip
def test_what_is_no_file_in_place_of_a_document_is_a_problem(root, make):
    file, bob = root / "bob/preferences.toml", Diary(root, agent="rules").user("bob")
    file.unlink()
    age(file.parent)
    for text in ("tea", "coffee"):  # the first write logs the removal
        bob.upsert_preference("likes", text)
    file.unlink()
    make(file)
    found = only(wrong(root))
    assert (found.level, found.place) == ("problem", str(file))
    assert found.remedy == "Replace it with a regular file, or remove it."
    assert "regular file," not in found.message
    make(root / "bob/facts.toml")  # of which history knows nothing
    assert [each.place for each in wrong(root)] == [str(file), str(root / "bob/facts.toml")]
    ItemStore(Diary(root)).run([Put(("alice", "notes"), "k", {"n": 1})])
    item = root / "alice/items/notes.toml"
    item.unlink()
    make(item)
    assert str(item) in [each.place for each in wrong(root) if each.level == "problem"]


def test_a_damaged_key_of_the_fencing_tokens_is_a_problem(root):
    key = root / ".tomldiary/epochs.key"
    Diary(root).user("alice").forget(session_id="s1")
    assert wrong(root) == []
    key.write_bytes(b"short")
    found = only(wrong(root))
    assert (found.level, found.place) == ("problem", str(key))
    with pytest.raises(BackendError, match="no valid key, so nothing can be forgotten"):
        Diary(root).user("alice").forget(session_id="s2")
    key.unlink()
    assert wrong(root) == []


def test_a_link_in_place_of_a_document_is_a_problem(root, tmp_path):
    file = root / "bob/preferences.toml"
    file.rename(tmp_path / "elsewhere.toml")
    file.symlink_to(tmp_path / "elsewhere.toml")
    found = only(wrong(root))
    assert (found.level, found.place) == ("problem", str(file))
    assert "link" in found.message


@pytest.mark.parametrize("users", [None, ["bob", "carol"]])
def test_a_link_to_the_folder_of_another_user_is_a_problem(root, users):
    (root / "carol").symlink_to("bob")
    found = only([each for each in findings(root, users) if each.level == "problem"])
    assert (found.place, "is a link" in found.message) == ("carol", True)


def test_the_end_of_a_sentence_in_a_path_does_not_end_the_message(tmp_path):
    root = tmp_path / "Dr. B"
    Diary(root, agent="rules").user("alice").upsert_preference("likes", "tea")
    (root / ".tomldiary/dead-letters").mkdir(0o700)
    (root / ".tomldiary/dead-letters/alice.toml").mkdir(0o700)
    found = only(wrong(root))
    assert (found.level, found.place) == ("problem", "the dead letters")
    place = root / ".tomldiary/dead-letters/alice.toml"
    assert found.message == f"{place}: is not a regular file."
    assert found.remedy == "Replace it with a regular file, or remove it."


def test_a_file_system_that_is_mounted_read_only_is_named(root, monkeypatch):
    mount = os.statvfs(root)
    flags = types.SimpleNamespace(
        **{name: getattr(mount, name) for name in dir(mount) if name.startswith("f_")}
    )
    flags.f_flag |= os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda _path: flags)
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    found = only([one for one in check(Diary(root)) if one.level == "problem"])
    assert found.message.startswith("cannot be written, because the file system is read-only, like")
    assert found.remedy == "Make the file system writable, or use another folder."


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EACCES, "Check the permissions."),
        (errno.ENOSPC, "Free some space on the disk."),
        (errno.EMFILE, "Close some files, or raise the limit of open files."),
        (errno.EROFS, "Make the file system writable, or use another folder."),
        (errno.ENAMETOOLONG, "Use a shorter name, or a folder with a shorter path."),
        (errno.EBUSY, ""),
    ],
)
def test_the_remedy_fits_the_error_of_the_system(root, files, code, remedy):
    def refuse(name, path, *_):
        if name in {"open", "open_to_read"} and path.endswith("bob/preferences.toml"):
            raise OSError(code, os.strerror(code), path)

    files.hook = refuse
    found = only(wrong(Diary(LocalBackend(root, files=files))))
    assert (found.level, found.remedy) == ("problem", remedy)
    assert found.message == f"cannot be read ({os.strerror(code)})."


class Dish(PreferenceItem):
    heat: int = 0


class Food(BaseModel):
    likes: dict[str, Dish] = {}
    goals: dict[str, PreferenceItem] = {}


ENTRIES = """
[_meta]
version = "0.3"
schema_name = "Food"

[preferences]
loose = 1

[preferences.likes.pref001]
text = 7
contexts = "a"
_count = "x"
_created = "soon"

[preferences.likes.pref002]
text = "hot"
heat = "very"

[preferences.goals.pref001]
contexts = [1]

[preferences.goals.pref002]
text = " \\u200b"

[preferences.hobbies.pref001]
text = "chess"

[goals.short]
text = true
"""
WRONG = {
    "preferences.loose: expected a category, found number; it is left out",
    "preferences.likes.pref001.text: expected text, found number",
    "preferences.likes.pref001.contexts: expected a list of text, found text",
    "preferences.likes.pref001._count: expected a whole number of at least 0, found text",
    "preferences.likes.pref001._created: expected a time, found text",
    "preferences.likes.pref003: expected an entry, found text; it is left out",
    "preferences.goals.pref001.contexts.0: expected text, found number",
    "preferences.goals.pref001.text: expected text, found nothing",
    "preferences.goals.pref002.text: the text is blank, so no model is shown the entry",
    "preferences.hobbies: Food has no such category, so nothing reads it",
    "goals.short.text: expected text, found true or false",
}


def test_a_folder_is_checked_as_its_diary(tmp_path):
    alice = Diary(tmp_path / "memories").user("alice")
    alice.upsert_preference("likes", "jazz")
    path = tmp_path / "memories/alice/preferences.toml"
    path.write_text(path.read_text().replace('"jazz"', "5"))
    found = check(tmp_path / "memories", mounts=NO_MOUNTS)
    assert [(one.level, one.message) for one in found][:1] == [
        ("warning", "preferences.likes.pref001.text: expected text, found number")
    ]


def test_invalid_entries_are_named_in_toml_words(tmp_path):
    folder = tmp_path / "alice"
    folder.mkdir(0o700)
    tmp_path.chmod(0o700)
    file = folder / "preferences.toml"
    # TOML lets a table be opened in one way only: the entry that is no table needs a file of its own.
    found = set()
    for text in (
        ENTRIES,
        '[_meta]\nschema_name = "Food"\n[preferences.likes]\npref003 = "no table"\n',
    ):
        file.write_text(text)
        file.chmod(0o600)
        told = wrong(Diary(tmp_path, Food, agent="rules"))
        assert {(one.level, one.place.rpartition(":")[0]) for one in told} == {
            ("warning", str(file))
        }
        assert all(one.place.rpartition(":")[2].isdigit() for one in told)
        found |= {one.message for one in told}
    typed = {message for message in found if "pref002.heat" in message}
    assert found - typed == WRONG
    assert only(list(typed)).endswith("the entry is left out")


def test_a_table_of_another_name_reports_no_unknown_categories(tmp_path):
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice/preferences.toml").write_text(
        '[_meta]\nschema_name = "Other"\n[preferences.hobbies.pref001]\ntext = "chess"\n'
    )
    told = [found.message for found in wrong(Diary(tmp_path, Food, agent="rules"))]
    assert not any("hobbies" in message for message in told)


def test_invalid_sessions_are_named_in_toml_words(root):
    file = root / "alice/conversations.toml"
    rewrite(
        file,
        lambda text: text.replace("_turns = 1", '_turns = "one"').replace(
            'summary = ""', "summary = []"
        ),
    )
    assert {found.message for found in wrong(root)} == {
        "conversations.s2._turns: expected a whole number of at least 0, found text",
        "conversations.s2.summary: expected text, found a list",
    }


# Documents beside history


def test_a_hand_edit_is_no_finding(root):
    rewrite(root / "alice/preferences.toml", lambda text: text.replace("crêpes", "waffles"))
    assert wrong(root) == []


def test_a_document_behind_history_is_found(root):
    file = root / "alice/preferences.toml"
    before = file.read_bytes()
    Diary(root, durability="process").user("alice").upsert_preference("likes", "cake")
    Diary(root, durability="process").user("alice").upsert_preference("likes", "pie")
    file.write_bytes(before)  # as if the last renames had been lost with the power
    found = only(wrong(root))
    assert (found.level, found.place) == ("warning", str(file))
    assert found.message == "the file is older than history: it lacks transaction 5."


@pytest.mark.parametrize("is_new", [False, True])
def test_a_document_that_is_being_written_is_no_finding(root, monkeypatch, is_new):
    path = root / "alice/preferences.toml"
    before = path.read_bytes()
    Diary(root, agent="rules").user("alice").upsert_preference("likes", "chess")
    if is_new:
        path = root / "alice/blocks.toml"
        Diary(root, agent="rules").user("alice").blocks.set("persona", "Be short.")
    text = path.read_bytes()
    path.unlink() if is_new else path.write_bytes(before)  # its record is in history
    monkeypatch.setattr(time, "sleep", lambda _: path.write_bytes(text))
    assert wrong(root, ["alice"]) == []


def test_an_unpublished_document_is_found(root):
    (root / "bob/preferences.toml").rename(root / "bob/other.txt")
    found = only(wrong(root, ["bob"]))
    assert found.message == "the file is older than history: it lacks transaction 1."


def test_a_missing_document_is_found(root):
    (root / "alice/conversations.toml").unlink()
    found = only(wrong(root))
    assert found.message == "the file was deleted. History contains it up to transaction 3."


def test_many_missing_documents_cost_one_wait_and_none_if_no_write_is_recent(root, monkeypatch):
    Diary(root, agent="rules").user("alice").blocks.set("persona", "Be short.")
    for path in root.glob("*/*.toml"):
        path.unlink()
    path = segment(root, "bob")
    record = replace(parse_record(path.read_text()), time="2026-01-02T03:04:05.000000+00:00")
    path.write_text(render_record(record))
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    assert [len(wrong(root, [user])) for user in ("alice", "bob")] == [3, 1]
    assert len(waits) == 1


def test_the_command_that_shows_a_deleted_or_emptied_document_works(root):
    (root / "alice/conversations.toml").unlink()
    (root / "bob/preferences.toml").write_text("")
    for found in wrong(root):
        command = found.remedy[found.remedy.index("tomldiary ") :]
        done = command_line.call(*shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr
        assert "[_meta]" in done.stdout


# History


def test_30_flipped_bytes_in_history_are_all_found(root):
    backend = LocalBackend(root, durability="process", segment_bytes=4000)
    user = Diary(backend, agent="rules").user("alice")
    for number in range(15):
        user.upsert_preference("likes", f"thing {number} ü \ufffd")
    backend = LocalBackend(root)
    files = sorted((root / "alice/history").iterdir())
    assert len(files) > 2
    assert verify(backend, "alice") is None
    choose = random.Random(7)
    records = {path: path.read_bytes() for path in files}
    places = [(path, at) for path, data in records.items() for at in range(len(data))]
    sample = choose.sample(places, 30)
    # Bytes that a look-over could miss: the first and last ones, and those of each header.
    sample += [place for place in places if place[1] < 9]
    sample += [(path, len(data) - back) for path, data in records.items() for back in (1, 2, 3)]
    for path, at in sample:
        data = bytearray(records[path])
        data[at] ^= choose.randint(1, 255)
        path.write_bytes(data)
        damage = verify(backend, "alice")
        path.write_bytes(records[path])
        assert isinstance(damage, Damage), (path, at)
        assert not damage.is_torn  # every record was acknowledged
        assert damage.place.startswith(str(path)), (path, at)
        line = records[path].count(b"\n", 0, at) + 1
        assert int(damage.place.rpartition(":")[2]) <= line, (path, at)
    assert verify(backend, "alice") is None


def test_the_first_damaged_record_is_named(root):
    user = Diary(root, agent="rules", durability="process").user("alice")
    for number in range(5):
        user.upsert_preference("likes", f"thing {number}")
    path = segment(root)
    data = path.read_bytes()
    for seq in (5, 3):
        at = data.index(f"seq = {seq}\n".encode())
        data = data[: at + 9] + b"#" + data[at + 9 :]
        path.write_bytes(data)
        start = data.rindex(b"[[tx]]", 0, at)
        found = next(found for found in wrong(root) if found.level == "problem")
        lines_before = data.count(b"\n", 0, start)
        assert found.place == f"{path}:{lines_before + 1}"
        assert f"transaction {seq}" in found.message
        assert verify(LocalBackend(root), "alice").seq == seq


def test_a_torn_log_tail_is_distinguished_from_damage(root):
    backend = LocalBackend(root)
    path = segment(root)
    whole = path.read_bytes()
    following = (
        render_record(parse_record(whole[whole.rfind(b"[[tx]]") :].decode()))
        .replace("seq = 3", "seq = 4")
        .encode()
    )
    for cut in (*range(1, len(following) - 9, 7), *range(len(following) - 9, len(following) - 1)):
        path.write_bytes(whole + following[:cut])
        damage = verify(backend, "alice")
        assert damage.is_torn, cut
        assert damage.seq == 4
    assert only(wrong(root)).level == "warning"
    path.write_bytes(whole + following)  # complete, but not what was written
    assert not verify(backend, "alice").is_torn
    # Cut off, although the document has it: then it was acknowledged.
    path.write_bytes(whole[:-30])
    rewrite(root / "alice/preferences.toml", lambda text: text.replace("seq = 2", "seq = 3"))
    damage = verify(backend, "alice")
    assert (damage.is_torn, damage.seq) == (False, 3)
    assert only(wrong(root)).level == "problem"


def test_a_lost_log_tail_is_found_through_the_documents(root):
    path = segment(root)
    data = path.read_bytes()
    path.write_bytes(data[: data.rfind(b"[[tx]]")])
    damage = verify(LocalBackend(root), "alice")
    assert damage.seq == 3
    assert damage.place == str(root / "alice/conversations.toml")
    assert damage.message.endswith("or was typed by hand, set seq in [_meta] to 2.")
    rewrite(root / "alice/conversations.toml", lambda text: text + "[broken")
    assert verify(LocalBackend(root), "alice").seq == 3


def test_a_missing_record_is_found(root):
    path = segment(root)
    data = path.read_bytes()
    second = data.index(b"[[tx]]", 1)
    third = data.index(b"[[tx]]", second + 1)
    path.write_bytes(data[:second] + data[third:])
    damage = verify(LocalBackend(root), "alice")
    assert (damage.seq, "records are missing" in damage.message) == (2, True)


def test_a_missing_record_is_found_before_a_torn_log_tail(root):
    path = segment(root)
    first, second, third = (f"[[tx]]\n{each}" for each in path.read_text().split("[[tx]]\n")[1:])
    path.write_text(f"{first}{third}[[tx")
    damage = verify(LocalBackend(root), "alice")
    assert (damage.seq, "records are missing" in damage.message) == (2, True)
    path.write_text(f"{first}{second}{third}[[tx")
    assert verify(LocalBackend(root), "alice").is_torn


def test_the_remedy_for_damaged_history_without_a_backup_works(root, tmp_path):
    path = segment(root)
    path.write_bytes(path.read_bytes().replace(b"seq = 2", b"seq = 7", 1))
    history = root / "alice" / "history"
    assert f"move {history} away, and begin a new history" in only(wrong(root)).remedy
    documents = {*(root / "alice").glob("*.toml")}
    history.rename(tmp_path / "history")
    assert "Without a backup, begin a new history" in only(wrong(root)).remedy
    place, user, file = ["--path", str(root)], ["--user", "alice"], str(tmp_path / "alice.json")
    for line in (
        ["export", "--output", file],
        ["forget", "--everything", "--yes"],
        ["import", file],
    ):
        assert command_line.call(*line, *user, *place).returncode == 0
    assert wrong(root) == []
    assert {*(root / "alice").glob("*.toml")} == documents
    assert "crêpes" in (root / "alice/preferences.toml").read_text("utf-8")


def test_a_record_with_a_wrong_result_is_found_despite_its_checksum(root):
    path = segment(root)
    data = path.read_text(encoding="utf-8")
    second = data.index("[[tx]]", 1)
    third = data.index("[[tx]]", second + 1)
    record = parse_record(data[second:third])
    kind = next(iter(record.results))
    other = {**record.results, kind: "0" * 32}
    forged = render_record(
        type(record)(
            **{
                **{name: getattr(record, name) for name in record.__slots__},
                "results": other,
            }
        )
    )
    path.write_text(data[:second] + forged + data[third:], encoding="utf-8")
    damage = verify(LocalBackend(root), "alice")
    assert damage.seq == 2
    assert "another text than its fingerprint" in damage.message


def test_history_without_its_oldest_segment_is_no_damage(root):
    backend = LocalBackend(root, durability="process", segment_bytes=1500)
    user = Diary(backend, agent="rules").user("alice")
    for number in range(10):
        user.upsert_preference("likes", f"thing {number}")
    min((root / "alice/history").iterdir()).unlink()
    assert verify(LocalBackend(root), "alice") is None


# The command


def call(*arguments):
    return command_line.call("doctor", *arguments)


def test_the_exit_codes_are_0_healthy_1_findings_2_impossible(root, tmp_path):
    done = call("--path", root)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "0 problems, 0 warnings."
    (root / "alice/preferences.toml").write_text("[broken\x1b[2J")
    done = call("--path", root)
    assert done.returncode == 1
    assert done.stdout.startswith(f"problem  {root}/alice/preferences.toml:1:")
    assert "\x1b" not in done.stdout
    done = call("--path", root, "--user", "bob", "--json")
    assert done.returncode == 0
    assert {found["level"] for found in json.loads(done.stdout)} == {"note"}
    for arguments in (["--path", tmp_path / "nothing"], ["--path", root, "--user", "who"]):
        done = call(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1


def test_the_command_accepts_a_preference_table(tmp_path):
    (tmp_path / "food.py").write_text(
        "from pydantic import BaseModel\nfrom tomldiary import PreferenceItem\n"
        "class Food(BaseModel):\n    likes: dict[str, PreferenceItem] = {}\n"
    )
    user = Diary(tmp_path / "m", Food, agent="rules", durability="process").user("alice")
    user.upsert_preference("likes", "tea")
    file = tmp_path / "m/alice/preferences.toml"
    file.write_text(file.read_text() + '\n[preferences.hobbies.pref001]\ntext = "chess"\n')
    assert call("--path", tmp_path / "m").returncode == 0
    done = call("--path", tmp_path / "m", "--table", f"{tmp_path}/food.py:Food")
    assert done.returncode == 1
    assert "preferences.hobbies: Food has no such category" in done.stdout


# Damage at the end of history, found by a writer


def damage_the_end(root):
    """Change one letter in the last record; it stays whole to look at."""
    path = segment(root)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(bytes(data))
    age(root / "alice/preferences.toml")
    return bytes(data[data.rfind(b"[[tx]]\n") :])


def test_a_damaged_last_record_is_kept_and_reported_until_removed(root):
    record = damage_the_end(root)
    Diary(root, agent="rules").user("alice").upsert_preference("likes", "next")
    (aside,) = (root / "alice/history").glob("*.damaged-*")
    assert aside.read_bytes() == record
    assert aside.stat().st_mode & 0o777 == 0o600
    damage = verify(LocalBackend(root), "alice")
    assert damage is not None
    assert damage.place == str(aside)
    assert damage.is_set_aside
    found = only(wrong(root, ["alice"]))
    assert (found.level, found.place) == ("problem", str(aside))
    assert "remove the file" in found.remedy
    aside.unlink()
    told = [each.message for each in findings(root, ["alice"])]
    assert "records are missing" in told[0]
    assert not any("the last write" in each for each in told)  # it is after the gap
    alice = Diary(root, agent="rules").user("alice")
    for text in ("chess", "books"):
        alice.upsert_preference("likes", text)
    alice.prune_history(keep=1)
    assert wrong(root, ["alice"]) == []


def test_converted_line_ends_of_history_are_no_finding_but_a_damaged_record_is(root):
    path = segment(root)
    altered = path.read_bytes().replace(b"\n", b"\r\n")
    path.write_bytes(altered)
    assert wrong(root) == []
    altered = altered.replace(b"\nseq = 1\r\n", b"\nseq = 7\r\n")
    path.write_bytes(altered)
    Diary(root, agent="rules").user("alice").upsert_preference("likes", "next")
    assert path.read_bytes().startswith(altered)
    assert "does not match its checksum" in only(wrong(root, ["alice"])).message


def test_a_torn_log_tail_is_truncated_and_not_kept(root):
    path = segment(root)
    whole = path.read_bytes()
    last = whole.rfind(b"[[tx]]\n")
    for cut in range(last, len(whole) - 1, 29):
        path.write_bytes(whole[:cut])
        Diary(root, agent="rules").user("alice").preferences("likes")
        assert path.read_bytes() == whole[:last]
    assert not list(path.parent.glob("*.damaged-*"))


def test_forgetting_removes_damaged_records_that_were_kept(root):
    damage_the_end(root)
    alice = Diary(root, agent="rules").user("alice")
    alice.upsert_preference("likes", "next")
    assert list((root / "alice/history").glob("*.damaged-*"))
    alice.forget(session_id="a session that never was")
    assert not list((root / "alice/history").glob("*.damaged-*"))
