"""The online measurement against the definitions, event by event."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upstream.errors import InputError
from upstream.staleness import (
    Arrival,
    Delivery,
    Floats,
    KeyEvents,
    StalenessTracker,
    key_average,
    latency_of_result,
    per_output_mean,
    staleness_at,
    stream_at,
    stream_average,
    waits,
)

KEYS = ["EUR", ("USD", 1), 3, None]
WEIGHTS: dict[Hashable, float] = {"EUR": 4.0, ("USD", 1): 0.0, 3: 0.5}


def variance(staleness: Floats, weights: Floats) -> float:
    return float(staleness.var())


@dataclass
class Life:
    """One key from its first arrival until it is forgotten, as lists of events."""

    key: Hashable
    arrivals: list[Arrival] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    dequeues: list[Delivery] = field(default_factory=list)
    in_flight: list[tuple[int, int]] = field(default_factory=list)  # sequences: before it, its last
    taken: int = -1  # sequence of the newest update that left the queue
    forgotten: float = math.inf

    def application(self) -> KeyEvents:
        return KeyEvents(self.arrivals, self.deliveries, self.forgotten)

    def queue(self) -> KeyEvents:
        return KeyEvents(self.arrivals, self.dequeues, self.forgotten)


class History:
    def __init__(self, started: float) -> None:
        self.tracker = StalenessTracker[Hashable](started, WEIGHTS, freshness_target=2.0)
        self.started = self.now = started
        self.lives: list[Life] = []
        self.living: dict[Hashable, Life] = {}

    def step(self, event: str, key: Hashable, wait: float) -> None:
        """Let the event happen where it can; pass over it otherwise."""
        self.now = at = self.now + wait
        life = self.living.get(key)
        if event == "arrived":
            if life is None:
                life = self.living[key] = Life(key)
                self.lives.append(life)
            life.arrivals.append(Arrival(at, len(life.arrivals)))
            self.tracker.arrived(key, at)
        elif life is None:
            return
        elif event == "dequeued" and life.arrivals[-1].sequence > life.taken:
            life.in_flight.append((life.taken, life.arrivals[-1].sequence))
            life.taken = life.arrivals[-1].sequence
            life.dequeues.append(Delivery(at, life.taken))
            self.tracker.dequeued(key, at)
        elif event == "delivered" and life.in_flight:
            life.deliveries.append(Delivery(at, life.in_flight.pop(0)[1]))
            self.tracker.delivered(key, at)
        elif event == "gave back" and life.in_flight:
            life.taken = life.in_flight.pop()[0]
            life.dequeues.append(Delivery(at, life.taken))
            self.tracker.gave_back(key, at)
        elif event == "forgot":
            del self.living[key]
            life.forgotten = at
            self.tracker.forget(key, at)

    def check(self, later: float) -> None:
        """All that the tracker says of the instant `later` from now follows from the lists."""
        t = self.now + later
        view = self.tracker.view(t)
        application = {n: life.application() for n, life in enumerate(self.lives)}
        queue = {n: life.queue() for n, life in enumerate(self.lives)}
        weights = {n: WEIGHTS.get(life.key, 1.0) for n, life in enumerate(self.lives)}

        assert dict(zip(view.keys(), view.staleness, strict=True)) == {
            key: close(staleness_at(life.application(), t)) for key, life in self.living.items()
        }
        assert view.averages == pytest.approx(
            [key_average(one.application(), one.arrivals[0].at, t) for one in self.living.values()],
            rel=1e-9,
            abs=1e-9,
        )
        for key, life in self.living.items():
            one = self.tracker.of(key, t)
            assert one.staleness == close(staleness_at(life.application(), t))
            assert one.average == close(key_average(life.application(), life.arrivals[0].at, t))
            assert one.queue_staleness == close(staleness_at(life.queue(), t))
        for function in ("mean", "max", "weighted_mean", "p50", "p95", "p33.3", variance):
            assert view.stream(function) == close(stream_at(application, t, function, weights))
            assert view.queue_stream(function) == close(stream_at(queue, t, function, weights))
        assert view.totals["total"] == close(view.staleness.sum())
        assert view.average == close(stream_average(application, self.started, t))
        assert view.queue_average == close(stream_average(queue, self.started, t))

        latencies = [
            latency_of_result(life.application(), result)
            for life in self.lives
            for result in life.deliveries
        ]
        arrived = sum(len(life.arrivals) for life in self.lives)
        if latencies:
            assert view.latency_mean == close(sum(latencies) / len(latencies))
            assert view.latency_max == close(max(latencies))
            assert view.load_factor == close(arrived / len(latencies))


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


EVENTS = st.sampled_from(
    ["arrived", "arrived", "arrived", "dequeued", "dequeued", "delivered", "gave back", "forgot"]
)
WAITS = st.sampled_from([0.0, 0.0, 0.125, 1.0, 7.0]) | st.floats(0.0, 50.0)
STEP = st.tuples(EVENTS, st.sampled_from(["EUR", "EUR", *KEYS]), WAITS)
STEPS = st.lists(STEP, max_size=8) | st.lists(STEP, min_size=25, max_size=60)


@given(STEPS, st.sampled_from([0.0, 1.7e9]), WAITS, st.data())
@settings(max_examples=120, deadline=None)
def test_tracker_agrees_with_the_definitions_at_every_moment(
    steps: list[tuple[str, Hashable, float]], started: float, later: float, data: st.DataObject
) -> None:
    history = History(started)
    asked = data.draw(st.integers(0, len(steps)), label="also asked after step")
    for number, step in enumerate(steps):
        if number == asked:
            history.check(later)
        history.step(*step)
    history.check(0.0)
    history.check(later)


def one_key(cost: int, services: int) -> tuple[StalenessTracker[str], KeyEvents, KeyEvents]:
    """An update per time unit, each result takes `cost`; per instant delivery, arrival, dequeue."""
    tracker = StalenessTracker[str]()
    arrivals, deliveries, dequeues = [], [], []
    for t in range(services * cost + 1):
        served = t % cost == 0
        if served and t > 0:
            tracker.delivered("k", t)
            deliveries.append(Delivery(t, t - cost))
        tracker.arrived("k", t)
        arrivals.append(Arrival(t, t))
        if served:
            tracker.dequeued("k", t)
            dequeues.append(Delivery(t, t))
    return tracker, KeyEvents(arrivals, deliveries), KeyEvents(arrivals, dequeues)


@pytest.mark.parametrize("cost", [1, 2, 3, 5, 10, 25])
def test_single_key_values_in_steady_state(cost: int) -> None:
    services = 12
    tracker, application, queue = one_key(cost, services)
    first, last = 2 * cost, services * cost
    assert key_average(application, first, last) == pytest.approx(1.5 * cost - 1)
    assert key_average(queue, first, last) == pytest.approx((cost - 1) ** 2 / (2 * cost))
    # the first service finds only one update: its line starts at 0 and not at C - 1
    start_up = cost * (cost - 1)
    view = tracker.view()
    assert view.average == pytest.approx(1.5 * cost - 1 - start_up / last)
    assert view.queue_average == pytest.approx((cost - 1) ** 2 / (2 * cost))
    assert view.load_factor == pytest.approx((last + 1) / services)
    assert view.latency_mean == view.latency_max == cost
    # each dequeue but the first takes a key that waits since the instant after the last one
    assert waits(queue) == [0.0] + [cost - 1.0] * services
    assert per_output_mean({"k": queue}) == pytest.approx((cost - 1) * services / (services + 1))


def test_figure_2_online() -> None:
    tracker = StalenessTracker[str]()
    happens = {"+": tracker.arrived, "-": tracker.dequeued, "!": tracker.delivered}
    story = [(0, "+-"), (2, "+"), (3, "!-"), (4, "+"), (6, "+!-"), (8, "+"), (9, "!-"), (10, "+")]
    for at, events in [*story, (12, "+!")]:
        for event in events:
            happens[event]("k", at)
    assert tracker.of("k") == (2.0, 2.5, 2.0)
    assert tracker.view().latency_mean == 3.5


def test_late_and_forgotten_keys() -> None:
    tracker = StalenessTracker[str]()
    tracker.arrived("old", 0.0)
    tracker.arrived("late", 8.0)
    view = tracker.view(10.0)
    assert view.averages.tolist() == [5.0, 1.0]  # each over its own life
    assert view.average_over_keys("mean") == 3.0
    assert view.average == (32.0 + (18.0 + 2.0) / 2) / 10.0  # each moment over its own keys
    tracker.forget("old", 10.0)
    assert "old" not in tracker
    assert view.keys() == ["old", "late"]  # what was seen stays seen
    tracker.arrived("new", 10.0)  # takes the place of "old"
    assert view.stalest(2) == [("old", 10.0), ("late", 2.0)]
    assert tracker.view(11.0).stalest(9) == [("late", 3.0), ("new", 1.0)]
    tracker.arrived("old", 12.0)
    assert tracker.of("old", 14.0) == (2.0, 1.0, 2.0)


def test_weights_by_key_or_by_rule_weigh_the_averages() -> None:
    for weights in ({"a": 3.0}, lambda key: 3.0 if key == "a" else 1.0):
        tracker = StalenessTracker[str](weights=weights)
        tracker.arrived("a", 0.0)
        tracker.arrived("b", 0.0)
        tracker.dequeued("b", 0.0)
        tracker.delivered("b", 2.0)
        view = tracker.view(4.0)
        assert view.stream("weighted_mean") == 3.0
        assert view.average_over_keys() == (3 * 2.0 + 0.5) / 4
        assert view.average_over_keys("mean") == view.average == 1.25


def test_time_never_runs_backward() -> None:
    tracker = StalenessTracker[str](started=10.0)
    tracker.arrived("k", 3.0)  # before the start: counts as 10
    tracker.arrived("k", 12.0)
    tracker.dequeued("k", 11.0)  # counts as 12
    assert tracker.of("k", 5.0) == (2.0, 1.0, 0.0)
    tracker.delivered("k", 11.5)
    view = tracker.view(14.0)
    assert (view.latency_max, view.average, view.queue_average) == (0.0, 0.5, 0.5)


def test_give_back_restores_the_wait_and_leaves_staleness_alone() -> None:
    tracker = StalenessTracker[str]()
    tracker.arrived("k", 1.0)
    tracker.dequeued("k", 3.0)
    assert tracker.of("k", 4.0).queue_staleness == 0.0
    tracker.arrived("k", 4.0)
    tracker.gave_back("k", 5.0)
    assert tracker.of("k") == (4.0, 2.0, 4.0)
    tracker.dequeued("k", 6.0)  # one unit again: one delivery answers both updates
    tracker.delivered("k", 8.0)
    assert tracker.of("k").staleness == 0.0
    assert tracker.view().latency_max == 4.0


def unanswered() -> StalenessTracker[str]:
    tracker = StalenessTracker[str]()
    tracker.arrived("EUR", 1.0)
    return tracker


def answered() -> StalenessTracker[str]:
    tracker = unanswered()
    tracker.dequeued("EUR", 2.0)
    tracker.delivered("EUR", 3.0)
    return tracker


BAD: dict[str, Callable[[], object]] = {
    r"delivery of 'USD' at 5\.0: .* is not known": lambda: unanswered().delivered("USD", 5.0),
    r"dequeue of 'USD' at 5\.0: .* is not known": lambda: unanswered().dequeued("USD", 5.0),
    r"forgetting of 'USD'": lambda: unanswered().forget("USD", 5.0),
    r"question of 'USD'": lambda: unanswered().of("USD"),
    r"delivery of 'EUR' at 5\.0: .* in flight": lambda: unanswered().delivered("EUR", 5.0),
    r"delivery of 'EUR' at 6\.0: .* in flight": lambda: answered().delivered("EUR", 6.0),
    r"give-back of 'EUR' at 5\.0: .* in flight": lambda: answered().gave_back("EUR", 5.0),
    r"dequeue of 'EUR' at 5\.0: .* must be waiting": lambda: answered().dequeued("EUR", 5.0),
    r"at must be a time in seconds, but nan": lambda: unanswered().arrived("EUR", math.nan),
    r"started must be .* inf": lambda: StalenessTracker[str](math.inf),
    r"weight of 'a' must be .* -1": lambda: StalenessTracker[str](weights={"a": -1}).arrived(
        "a", 0.0
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_says_what_was_needed_and_what_came(message: str) -> None:
    with pytest.raises(InputError, match=message):
        BAD[message]()


def test_a_refused_event_changes_nothing() -> None:
    tracker = unanswered()
    before = tracker.view(9.0)
    for refused in (tracker.delivered, tracker.gave_back):
        with pytest.raises(InputError):
            refused("EUR", 8.0)
    with pytest.raises(InputError):
        tracker.dequeued("USD", 8.0)
    tracker.dequeued("EUR", 2.0)
    tracker.delivered("EUR", 3.0)
    assert tracker.view(9.0).average == 2.0 / 9.0
    assert before.average == 32.0 / 9.0
