"""What a writer tells OpenTelemetry, Prometheus and health checks: everything but what was said."""

from __future__ import annotations

import gc
import logging
import os
import re
import threading
import time
from contextlib import contextmanager

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan

import programs
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.errors import ExtractionError, InvalidValue
from tomldiary.writer.attempts import Metrics
from tomldiary.writer.metrics import health_of
from tomldiary.writer.queue import Admission

LONG = 120


class Span(NonRecordingSpan):
    def __init__(self, name, attributes):
        super().__init__(INVALID_SPAN_CONTEXT)
        self.name, self.attributes, self.status, self.events = (
            name,
            dict(attributes or {}),
            None,
            [],
        )

    def set_attribute(self, key, value):
        self.attributes[key] = value

    def set_status(self, status, description=None):
        self.status = (status.status_code.name, status.description)

    def add_event(self, name, attributes=None, timestamp=None):
        self.events.append(name)

    record_exception = add_event


class Tracer(trace.Tracer):
    """A tracer on the API alone that keeps its spans."""

    def __init__(self):
        self.spans = []

    def start_span(self, name, context=None, kind=None, attributes=None, *rest, **more):
        self.spans.append(Span(name, attributes))
        return self.spans[-1]

    @contextmanager
    def start_as_current_span(self, name, context=None, kind=None, attributes=None, *rest, **more):
        with trace.use_span(self.start_span(name, attributes=attributes)) as span:
            yield span


class Meter(metrics.NoOpMeter):
    def __init__(self):
        super().__init__("test")
        self.measured, self.gauges = [], {}

    def _instrument(self, name):
        measured = self.measured

        class Instrument(metrics.NoOpCounter, metrics.NoOpHistogram):
            def add(self, amount, attributes=None, context=None):
                measured.append((name, amount, dict(attributes)))

            record = add

        return Instrument(name)

    def create_counter(self, name, unit="", description=""):
        return self._instrument(name)

    def create_histogram(self, name, unit="", description="", **more):
        return self._instrument(name)

    def create_observable_gauge(self, name, callbacks=None, unit="", description=""):
        self.gauges[name] = callbacks


def remember(message, *, deps):
    if deps.user_msg.startswith("bad"):
        raise ValueError(deps.user_msg)
    deps.upsert("likes", None, deps.user_msg, ())


@pytest.fixture
def watched(tmp_path, monkeypatch):
    tracer, meter = Tracer(), Meter()
    monkeypatch.setattr(trace, "get_tracer", lambda *_names, **_more: tracer)
    monkeypatch.setattr(metrics, "get_meter", lambda *_names, **_more: meter)
    with MemoryWriter(Diary(tmp_path, agent=remember)) as writer:
        writer.submit_nowait(Turn("alice", "s", "secret tea", "ok")).wait(LONG)
        with pytest.raises(ExtractionError):
            writer.submit_nowait(Turn("alice", "s", "bad secret", "ok")).wait(LONG)
        yield writer, tracer, meter


def test_each_attempt_is_a_span_with_conventional_names(watched):
    writer, tracer, _ = watched
    good, bad = tracer.spans
    assert good.name == bad.name == "update_memory"
    assert good.attributes["gen_ai.operation.name"] == "update_memory"
    assert good.attributes["gen_ai.memory.store.id"] == repr(writer.diary.backend)
    assert re.fullmatch("[0-9a-f]{16}", good.attributes["tomldiary.user.hash"])
    assert good.attributes["tomldiary.user.hash"] == bad.attributes["tomldiary.user.hash"]
    assert (good.status, bad.status) == (None, ("ERROR", None))
    assert "error.type" not in good.attributes
    assert bad.attributes["error.type"] == "ValueError"


def test_durations_turns_and_the_queue_are_measured(watched):
    _, _, meter = watched
    names = [name for name, _, _ in meter.measured]
    assert names == ["tomldiary.write.duration", "tomldiary.turns"] * 2
    assert [more.get("error.type") for _, _, more in meter.measured] == [
        None,
        None,
        *["ValueError"] * 2,
    ]
    seen = {name: [each.value for each in call(None)] for name, [call] in meter.gauges.items()}
    assert seen["tomldiary.queue.depth"] == [0]
    assert seen["tomldiary.queue.oldest_age"] == [0.0]
    assert seen["tomldiary.dead_letters"] == [1]
    assert seen["tomldiary.last_success_unixtime"][0] > 1_700_000_000


def test_gauges_report_each_writer_of_a_process_as_long_as_it_exists(tmp_path, monkeypatch):
    reader = InMemoryMetricReader()
    monkeypatch.setattr(metrics, "get_meter", MeterProvider([reader]).get_meter)

    def reported() -> list[str]:
        found = reader.get_metrics_data()
        if found is None:
            return []
        [scope] = [each for every in found.resource_metrics for each in every.scope_metrics]
        [depth] = [each for each in scope.metrics if each.name == "tomldiary.queue.depth"]
        stores = [point.attributes["gen_ai.memory.store.id"] for point in depth.data.data_points]
        return [name for store in stores for name in ("first", "second", "third") if name in store]

    with MemoryWriter(Diary(tmp_path / "first", agent=remember)):
        assert reported() == ["first"]
        with MemoryWriter(Diary(tmp_path / "second", agent=remember)):
            assert reported() == ["first", "second"]
    gc.collect()
    with MemoryWriter(Diary(tmp_path / "third", agent=remember)):
        assert reported() == ["third"]


def test_gauges_can_be_read_while_a_writer_is_created(tmp_path, monkeypatch, caplog):
    reader = InMemoryMetricReader()
    monkeypatch.setattr(metrics, "get_meter", MeterProvider([reader]).get_meter)

    def admission(*given):
        reader.get_metrics_data()
        return Admission(*given)

    monkeypatch.setattr("tomldiary.writer.writer.Admission", admission)
    with MemoryWriter(Diary(tmp_path, agent=remember)):
        pass
    assert "failed" not in caplog.text


def test_telemetry_contains_no_text_and_no_user_id(watched):
    writer, tracer, meter = watched
    sent = repr([(span.name, span.attributes, span.status, span.events) for span in tracer.spans])
    sent += repr(meter.measured) + writer.prometheus()
    assert "secret" not in sent
    assert "alice" not in sent.replace(repr(writer.diary.backend), "")


def test_spans_of_the_extractor_are_children_of_the_turn(tmp_path, monkeypatch):
    tracer, seen = Tracer(), []
    monkeypatch.setattr(trace, "get_tracer", lambda *_names, **_more: tracer)

    def look(message, *, deps):
        seen.append(trace.get_current_span())

    with MemoryWriter(Diary(tmp_path, agent=look)) as writer:
        writer.submit_nowait(Turn("alice", "s", "tea", "ok")).wait(LONG)
        writer.submit_nowait(Turn("bob", "s", "tea", "ok")).wait(LONG)
    assert seen == tracer.spans
    assert seen[0] is not seen[1]


def test_turns_are_measured_without_a_span_recorder(tmp_path, monkeypatch):
    meter = Meter()
    monkeypatch.setattr(metrics, "get_meter", lambda *_names, **_more: meter)
    with MemoryWriter(Diary(tmp_path, agent=remember)) as writer:
        writer.submit_nowait(Turn("alice", "s", "tea", "ok")).wait(LONG)
        with pytest.raises(ExtractionError):
            writer.submit_nowait(Turn("alice", "s", "bad", "ok")).wait(LONG)
    attempts = [
        (amount, more.get("error.type"))
        for name, amount, more in meter.measured
        if name == "tomldiary.turns"
    ]
    assert attempts == [(1, None), (1, "ValueError")]


def test_a_writer_works_without_opentelemetry(tmp_path):
    code = """if True:
        import sys
        sys.modules["opentelemetry"] = None
        from tomldiary import Diary, MemoryWriter, Turn
        with MemoryWriter(Diary(sys.argv[1], agent="rules")) as writer:
            writer.submit_nowait(Turn("alice", "s", "I love tea.", "ok")).wait(30)
            print(writer.stats()["completed"])
    """
    done = programs.run("-W", "error", "-c", code, tmp_path, timeout=LONG)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_prometheus_parses_the_metrics(watched):
    writer, _, _ = watched
    text = writer.prometheus()
    samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = re.fullmatch(
                r'([a-z_]+(?:\{quantile="[0-9.]+"\})?) ([0-9.e+-]+)', line
            ).groups()
            samples[name] = float(value)
    assert samples["tomldiary_writer_submitted_total"] == 2
    assert samples["tomldiary_writer_completed_total"] == 1
    assert samples["tomldiary_writer_failed_total"] == 1
    assert samples["tomldiary_writer_dead_letters_total"] == 1
    assert samples["tomldiary_writer_latency_seconds_count"] == 1
    assert samples['tomldiary_writer_latency_seconds{quantile="0.5"}'] > 0
    assert text.count("# TYPE") == text.count("# HELP") == len({*re.findall("# TYPE (\\S+)", text)})
    # A rounded time would tell an alarm that nothing was applied for an hour.
    assert samples["tomldiary_writer_last_success"] == writer.stats()["last_success"]


def test_what_a_full_category_did_not_store_is_shown_once_and_counted(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with MemoryWriter(Diary(tmp_path, agent="rules", max_prefs_per_category=1)) as writer:
        receipts = [
            writer.submit_nowait(Turn("ann", "s", f"I love {each}.", "Noted."))
            for each in ("jazz", "chess", "maps")
        ]
        assert writer.flush(LONG)
        assert [len(each.wait().skipped) for each in receipts] == [0, 1, 1]
        assert writer.stats()["skipped"] == 2
        assert "\ntomldiary_writer_skipped_total 2\n" in writer.prometheus()
    assert capsys.readouterr().err.count("likes is full (1/1)") == 1


def test_prometheus_gets_no_time_of_a_success_before_the_first_turn(tmp_path):
    with MemoryWriter(Diary(tmp_path, agent="rules")) as writer:
        assert "last_success" not in writer.prometheus()


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({}, "healthy", None),
        ({"error_rate": 0.5}, "healthy", None),  # of an outage that is over
        (
            {"recent_error_rate": 0.06},
            "degraded",
            "6% of the turns of the last five minutes failed",
        ),
        ({"queue_utilization": 0.95}, "degraded", "the queue is 95% full"),
        ({"breaker_is_open": True}, "degraded", "the model does not answer"),
        ({"oldest_age": 400.0}, "degraded", "waiting for 400 s"),
        ({"oldest_age": 400.0, "last_success": None}, "unhealthy", "no turn was applied for 300 s"),
        ({"is_running": False}, "unhealthy", "the writer is closed"),
    ],
)
def test_health_names_its_reasons(tmp_path, change, status, reason):
    with MemoryWriter(Diary(tmp_path, agent=remember)) as writer:
        writer.submit_nowait(Turn("alice", "s", "tea", "ok")).wait(LONG)
        assert writer.health().status == "healthy"
        stats = writer.stats()
    verdict = health_of({**stats, "is_running": True, **change})
    assert verdict.status == status
    assert verdict.http_status == (503 if status == "unhealthy" else 200)
    assert reason is None or any(reason in each for each in verdict.reasons)
    assert verdict.to_dict()["status"] == status


def test_the_failures_of_an_outage_leave_the_recent_error_rate():
    metrics = Metrics()
    metrics.ended.extend([(time.monotonic() - 301, True)] * 9)
    assert metrics.recent_error_rate() == 0.0
    metrics.fail(1)
    assert metrics.recent_error_rate() == 1.0
    metrics.complete(0.1, count=3)
    assert metrics.recent_error_rate() == 0.25


@pytest.mark.parametrize("wrong", [{"longest_wait": "300"}, {"most_errors": 5}])
def test_a_health_check_with_a_wrong_limit_says_which_one(tmp_path, wrong):
    said = pytest.raises(InvalidValue, match=f"{next(iter(wrong))}: expected")
    with MemoryWriter(Diary(tmp_path, agent=remember)) as writer, said:
        writer.health(**wrong)


def test_a_turn_blocked_by_a_hanging_disk_counts_as_queued(tmp_path, monkeypatch):
    began, may_go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def hang(descriptor):
        began.set()
        assert may_go_on.wait(LONG)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", hang)
    with MemoryWriter(Diary(tmp_path, agent=remember)) as writer:
        writer.submit_nowait(Turn("alice", "s", "tea", "ok"))
        assert began.wait(LONG)
        later = writer.stats()["oldest_age"]
        assert later > 0
        assert writer.stats()["oldest_age"] > later
        assert writer.health(longest_wait=0.0).status == "unhealthy"
        assert writer.health(longest_wait=float("inf")).status == "healthy"
        may_go_on.set()
        assert writer.flush(LONG)
        assert writer.stats()["oldest_age"] == 0
