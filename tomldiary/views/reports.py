"""The views of reports: statistics, health, receipts and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.runtime.views import counted
from tomldiary.text.visible import one_line
from tomldiary.views.sheet import (
    Badge,
    Key,
    Listing,
    Sheet,
    Table,
    Text,
    Tone,
    card,
    cut,
    minute,
    quiet,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tomldiary.doctor.files import Finding
    from tomldiary.evaluation.measure import Run
    from tomldiary.evaluation.report import Report
    from tomldiary.extraction.consolidation import Consolidated
    from tomldiary.extraction.operations import Applied
    from tomldiary.forgetting.selection import ForgetReceipt
    from tomldiary.importers.importer import Import
    from tomldiary.ingest.runner import IngestReport
    from tomldiary.past.retention import KeptHistory
    from tomldiary.past.rollback import Rollback
    from tomldiary.writer.metrics import Health
    from tomldiary.writer.receipts import Receipt
    from tomldiary.writer.writer import MemoryWriter

_MOST_KEYS = 20
_TONES: Mapping[str, Tone] = {"healthy": "good", "degraded": "warn", "unhealthy": "bad"}


def _figures(values: Mapping[str, Any]) -> Table:
    return card(
        (quiet(name.replace("_", " ")), _shown(name, each)) for name, each in values.items()
    )


def _shown(name: str, value: Any) -> Text:
    if value is None or value in ({}, [], ""):
        return quiet("none")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if name.startswith(("latency", "oldest", "seconds")):
        return Text(f"{value:.3g} s")
    if name in {"error_rate", "recent_error_rate", "queue_utilization"}:
        return Text(f"{value:.0%}")
    return Text(f"{value:,}" if isinstance(value, int) else value)


def _keys(found: Sequence[str]) -> str:
    rest = len(found) - _MOST_KEYS
    return ", ".join(found[:_MOST_KEYS]) + (f" and {rest} more" if rest > 0 else "")


# Statistics


def view_storage_stats(stats: Mapping[str, Any]) -> Sheet:
    """Return the view of a storage's guarantees."""
    documents = stats.get("documents", ())
    kept = "any" if documents is None else ", ".join(map(str, documents))
    return Sheet("Storage", [_figures({**stats, "documents": kept})])


_FIRST = ("submitted", "completed", "failed", "pending", "dead_letters", "retries")
_THEN = ("latency_p50", "latency_p95", "oldest_age", "error_rate", "durability", "loss_window")


def view_writer_stats(stats: Mapping[str, Any]) -> Sheet:
    """Return the view of a writer's counters."""
    is_running = bool(stats.get("is_running"))
    shown = {name: stats[name] for name in (*_FIRST, *_THEN) if name in stats}
    workers = f"{stats.get('active_workers', 0)} of {stats.get('total_workers', 0)} busy"
    badge = Badge("running", "good") if is_running else Badge("closed")
    notes = [f"last failure: {stats['last_failure']}"] if stats.get("last_failure") else []
    return Sheet("Writer", [_figures({**shown, "workers": workers})], notes, badges=[badge])


def view_memory_writer(shown: MemoryWriter) -> Sheet:
    """Return the view of a writer: its counters."""
    return view_writer_stats(shown.stats())


def view_health(found: Health) -> Sheet:
    """Return the view of a health report."""
    badge = Badge(found.status, _TONES.get(found.status, ""))
    reasons = Table(("",), ([reason] for reason in found.reasons))
    tables = [reasons, *view_writer_stats(found.stats).tables]
    why = f": {'; '.join(found.reasons)}" if found.reasons else ""
    return Sheet("Health", tables, line=f"{found.status}{one_line(why)}", badges=[badge])


# Receipts


def view_receipt(shown: Receipt) -> Sheet:
    """Return the view of a submitted turn and its result."""
    result = shown.result
    turn = shown.turn
    if isinstance(result, BaseException):
        state, badge = f"failed: {type(result).__name__}", Badge("failed", "bad")
    elif shown.is_done:
        state, badge = "done", Badge("done", "good")
    elif shown.is_stored:
        state, badge = "stored", Badge("stored, not applied yet", "warn")
    else:
        state, badge = "pending", Badge("pending", "warn")
    values: list[tuple[str, object]] = [
        ("user", Key(turn.user_id)),
        ("session", Key(turn.session_id)),
        ("said", turn.user_msg),
        ("answered", turn.assistant_msg),
    ]
    if isinstance(result, BaseException):
        values.append(("error", f"{type(result).__name__}: {result}"))
    elif result is not None:
        values.append(("effect", _effect(result)))
    return Sheet("Turn", [card(values)], line=state, badges=[badge])


def _effect(done: Applied) -> str:
    if done.is_repeated:
        return f"none: already applied in transaction {done.transaction}"
    where = f" in transaction {done.transaction}" if done.transaction else ""
    return f"{counted(done.applied, 'change')}{where}"


def view_applied(done: Applied) -> Sheet:
    """Return the view of the result of a turn's operations."""
    rows = [(Badge("skipped", "warn"), each) for each in done.skipped]
    skipped = f", {len(done.skipped)} skipped" if done.skipped else ""
    line = f"{_effect(done)}{skipped}"
    return Sheet("Turn applied", [Table(("", ""), rows)], [line], line=line)


def view_forget_receipt(found: ForgetReceipt) -> Sheet:
    """Return the view of an erasure, or of its dry run; it contains no erased content."""
    counts = {
        "entries erased": found.entries,
        "conversations erased": found.conversations,
        "transactions redacted": found.records,
        "fencing token": found.epoch,
    }
    files = ((Key(name), Key(digest[:16])) for name, digest in sorted(found.files.items()))
    tables = [
        _figures(counts),
        Table(("key",), ([Key(key)] for key in found.keys), "Entries"),
        Table(("file now", "SHA-256"), files),
    ]
    title = "Forgotten" if found.is_done else "Would be forgotten"
    return Sheet(title, tables, [found.hint], line=one_line(found))


def view_rollback(done: Rollback) -> Sheet:
    """Return the view of a rollback or of its dry run."""
    undone = [str(seq) for seq in done.undone]
    word = "undone" if done.is_done else "would be undone"
    values = {
        f"transactions {word}": _keys(undone),
        "entries": _keys(done.keys),
        "changed since": _keys(done.conflicts) or None,
        "forbidden": _keys(done.forbidden) or None,
    }
    line = f"{counted(len(undone), 'transaction')} {word}, {counted(len(done.keys), 'entry', 'entries')}"
    if done.conflicts:
        line += f", {len(done.conflicts)} changed since"
    title = "Rollback" if done.is_done else "Rollback, dry run"
    return Sheet(title, [_figures(values)], line=line)


def view_kept_history(kept: KeptHistory) -> Sheet:
    """Return the view of the range of kept transactions."""
    if not kept.last:
        return Sheet("History", line="empty", empty="No transactions.")
    line = f"transactions {kept.first} to {kept.last}, since {minute(kept.since)}"
    note = ""
    if kept.is_pruned:  # of the first one, only the result is known
        since = minute(kept.since)
        line = f"transactions {kept.first + 1} to {kept.last}, and the state after {kept.first} ({since})"
        note = "Older transactions were dropped."
    return Sheet("History", notes=[line, note], line=line)


def view_import(found: Import) -> Sheet:
    """Return the view of an import from another program."""
    groups: tuple[tuple[str, Tone, Sequence[str]], ...] = (
        ("added" if found.is_done else "would be added", "good", found.added),
        ("exists, unchanged", "", found.present),
        ("exists with other content, kept", "warn", found.kept),
    )
    rows = [(Badge(word, tone), Key(key)) for word, tone, keys in groups for key in keys]
    records = ", ".join(f"{number} {kind}" for kind, number in found.found.items())
    counts = ", ".join(f"{len(keys)} {word}" for word, _, keys in groups)
    notes = [f"records: {records}", counts, *(cut(each) for each in found.left_out)]
    title = f"Import from {found.source}"
    table = Table(("", "key"), rows)
    return Sheet(title, [table], notes, line=f"{found.source}: {counts}")


def view_consolidated(found: Consolidated) -> Sheet:
    """Return the view of the result of a consolidation."""
    skipped = [(Badge("skipped", "warn"), each) for each in found.skipped]
    failed = [(Badge("failed", "bad"), Key(each)) for each in found.failed]
    line = f"{counted(found.read, 'episode')} read, {counted(found.applied, 'change')}"
    line += f", {len(found.failed)} failed" if found.failed else ""
    return Sheet("Consolidation", [Table(("", ""), [*skipped, *failed])], [line], line=line)


_LEVELS: Mapping[str, Tone] = {"warning": "warn", "problem": "bad"}


def _finding_row(one: Finding) -> Sequence[object]:
    level = Badge(one.level, _LEVELS.get(one.level, ""))
    return level, Key(one.place), one.message, one.remedy


_FINDINGS = Listing(
    "finding",
    ("", "where", "what", "remedy"),
    _finding_row,
    lambda one: f"{one.level} {one.place}: {one.message}",
    "No findings.",
)
view_finding, view_findings = _FINDINGS.one, _FINDINGS.all


def view_report(found: Report) -> Sheet:
    """Return the view of runs over the same questions."""
    head, *rows = found.rows()
    questions = counted(len(found.runs[0].answers), "question")
    title = f"{counted(len(found.runs), 'run')} over {questions}"
    return Sheet(title, [Table(head, rows)], line=title)


def view_run(found: Run) -> Sheet:
    """Return the view of one run."""
    from tomldiary.evaluation.report import Report  # noqa: PLC0415 - only evaluations need it

    return view_report(Report([found]))


def view_ingest_report(found: IngestReport) -> Sheet:
    """Return the view of an ingest."""
    values = {
        "turns in the log": found.turns,
        "applied": found.applied,
        "already applied": found.skipped,
        "seconds": found.seconds,
        "entries": found.entries,
        "size": f"{found.bytes / 1024:.1f} KB",
    }
    line = f"{found.applied} of {counted(found.turns, 'turn')} applied, {counted(found.entries, 'entry', 'entries')}"
    return Sheet("Ingest", [_figures(values)], [cut(note) for note in found.notes], line=line)
