"""The options of a queue, from a TOML file or from keyword arguments.

Each option is declared once, with its type, range, default and description. The check, the
messages about what is wrong, `upstream config --explain` and docs/config.md all come from
that declaration.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator

from upstream.errors import ConfigError
from upstream.options import explain as reference
from upstream.options.effective import as_toml
from upstream.options.kinds import (
    Fraction,
    InWords,
    Name,
    NameOrPath,
    Positive,
    Size,
    Span,
    as_list,
)
from upstream.options.problems import Problem, Wrong, nearest, one_of, quoted
from upstream.options.report import Section, in_file, in_options, problems_in
from upstream.options.toml_file import read_toml
from upstream.options.toml_lines import lines_of

__all__ = [
    "BASELINES",
    "MERGES",
    "POLICIES",
    "STORES",
    "Config",
    "KeyRule",
    "QueueConfig",
    "WindowConfig",
    "explain",
]

STORES = ("memory", "journal")
POLICIES = ("in-place", "linecutting", "whittle")
BASELINES = {
    "append": "Hand out every update in order of arrival: the plain queue to compare with.",
    "random-drop": "Drop arrivals at random until the load fits, hand out the rest in order.",
    "window-drop": "Drop whole windows at random until the load fits, hand out the rest in order.",
}
MERGES = ("last", "first", "min", "max", "sum", "count")

Store = Annotated[
    str,
    InWords(
        "text",
        ('"memory:"', '"journal:<directory>"'),
        '"memory:" or "journal:<directory>"',
    ),
]
Policy = Annotated[str, NameOrPath((*POLICIES, *BASELINES), "Class")]
Merge = Annotated[str, NameOrPath(MERGES, "function")]


class KeyRule(Section):
    """What is known about one key, or about all keys that start alike."""

    key: Name | None = Field(
        default=None,
        description="The key that the rule is for, as text; the columns of a key of several are "
        'joined by "|". A rule has either `key` or `prefix`.',
    )
    prefix: Name | None = Field(
        default=None, description="The rule is for every key that starts with this text."
    )
    weight: Positive | None = Field(
        default=None,
        description="How much the staleness of these keys counts, against 1 for a key without "
        "a rule.",
    )
    rate: Positive | None = Field(
        default=None,
        description="Known update rate in updates per second; without it the rate is estimated "
        "from the arrivals.",
    )
    cost_class: Name | None = Field(
        default=None,
        description="Name of the class whose processing cost these keys share; see `cost_seconds`.",
    )

    @classmethod
    def shape(cls, given: Iterable[str]) -> Iterator[str]:
        names = set(given)
        if len(names & {"key", "prefix"}) != 1:
            came = "both" if "key" in names else "neither"
            yield f"expected exactly one of 'key' and 'prefix', got {came}."
        if not names & {"weight", "rate", "cost_class"}:
            yield "the rule sets nothing; expected 'weight', 'rate' or 'cost_class'."


class WindowConfig(Section):
    """Windows as units of update: the table `[queue.window]`."""

    kind: Literal["sliding", "landmark", "slide-by-tuple"] = Field(
        default="sliding",
        description='"sliding" windows have a size and a slide, "landmark" ones hold all from the '
        'beginning and end every slide, "slide-by-tuple" ones span a time and end with every '
        "slide-th update of the key.",
    )
    by: Literal["count", "time"] = Field(
        default="count",
        description="What windows are cut from: the sequence of updates, or their event time.",
    )
    of: Literal["key", "stream"] = Field(
        default="key",
        description='Whose sequence is counted by "count": each key\'s own, or that of the whole '
        "stream.",
    )
    size: Span | None = Field(
        default=None,
        description="Updates in a window, or the time that it spans: text, or ticks of the time "
        "column. A landmark window has none.",
    )
    slide: Span | None = Field(
        default=None,
        description="Distance from one window start to the next, in the measure of `size`; not "
        "set means `size`: windows that tumble. For slide-by-tuple the number of updates.",
    )
    origin: int = Field(
        default=0, description="Where window 0 starts, in positions or ticks of the time column."
    )
    partial: bool = Field(
        default=False,
        description="Whether the incomplete windows before window 0 are units too.",
    )
    buffer: Literal["lazy", "eager"] = Field(
        default="lazy",
        description='"lazy" hands out the newest window that is complete, "eager" commits to the '
        "newest that has started and hands out its updates as they arrive.",
    )
    progress: Literal["stream", "key"] = Field(
        default="stream",
        description="Whose event time closes windows: that of the whole stream, or each key's own.",
    )
    disorder: Span | None = Field(
        default=None,
        description="How far behind the highest time an update may come: text, or ticks of the "
        "time column. What comes later than that is late. Not set means not at all.",
    )
    disorder_count: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="How many updates with a higher time may come before an update; instead of "
        "`disorder`.",
    )
    punctuation_column: Name | None = Field(
        default=None,
        description="Column that marks punctuation: rows that are no updates, but say that no "
        "later row of the stream has a smaller time than theirs.",
    )
    punctuation_value: str | int | bool | None = Field(
        default=None,
        description="Value of `punctuation_column` that marks punctuation; not set means true.",
    )
    idle_timeout_seconds: Positive | None = Field(
        default=None,
        description="Silence after which event time goes on with the clock, so that windows of a "
        "silent source or key close; not set means never.",
    )
    late: Literal["drop", "side"] = Field(
        default="drop",
        description='What becomes of late updates, which are counted: "side" keeps them for '
        "`late_rows()`.",
    )
    limit_by: Literal["windows", "rows"] = Field(
        default="windows", description="What the limit of `plan` counts."
    )

    @field_validator("size")
    @classmethod
    def _fitting_size(cls, size: int | str | None, info: ValidationInfo) -> int | str | None:
        kind, by = info.data.get("kind"), info.data.get("by")
        if kind == "landmark" and size is not None:
            raise Wrong("a landmark window has no size; set 'slide'.")
        return _span_by(size, by)

    @field_validator("slide")
    @classmethod
    def _fitting_slide(cls, slide: int | str | None, info: ValidationInfo) -> int | str | None:
        by = "count" if info.data.get("kind") == "slide-by-tuple" else info.data.get("by")
        return _span_by(slide, by)

    @field_validator("buffer")
    @classmethod
    def _possible_buffer(cls, buffer: str, info: ValidationInfo) -> str:
        kind = info.data.get("kind", "sliding")
        if buffer == "eager" and kind != "sliding":
            raise Wrong(f'a {kind} window is known only at its end: expected "lazy".')
        return buffer

    @classmethod
    def shape(cls, given: Iterable[str]) -> Iterator[str]:
        names = set(given)
        if not names & {"size", "slide"}:
            yield "expected 'size', and 'slide' where windows overlap."
        if {"disorder", "disorder_count"} <= names:
            yield "expected at most one of 'disorder' and 'disorder_count', got both."


def _span_by(span: int | str | None, by: object) -> int | str | None:
    if span == 0:
        raise Wrong("expected more than 0, got 0.")
    if by == "count" and isinstance(span, str):
        raise Wrong(f'expected a number of updates, got {quoted(span)}; set by = "time" for times.')
    return span


class QueueConfig(Section):
    """The options of one queue: the table `[queue]`, or the keywords of `open_queue`."""

    store: Store = Field(
        default="memory:",
        description='Where the queue lives: "memory:" in this process, or '
        '"journal:<directory>" in this process and safe on disk.',
    )
    key: Annotated[Name | list[Name], BeforeValidator(as_list)] = Field(
        description="Column, or list of columns, that identifies what an update is about. "
        "A newer update supersedes a waiting one with the same key.",
    )
    time: Name | None = Field(
        default=None,
        description="Column with the event time. An update older than the newest accepted one "
        "of its key is superseded at once. Without it updates are ordered by arrival.",
    )
    policy: Policy = Field(
        default="whittle",
        description="Which waiting key is handed out next; `upstream policies` describes them. "
        '"append", "random-drop" and "window-drop" are baselines that keep the order of arrival. '
        "A class of your own is named by its module and class.",
    )
    selection: Literal["classes", "scan"] = Field(
        default="classes",
        description='How the best keys are found: "classes" compares groups of keys with similar '
        'rates and stays fast with any number of waiting keys, "scan" scores every waiting key '
        "exactly.",
    )
    batch_limit: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Most keys in a batch when `plan()` is called without a limit; "
        "not set means all that wait.",
    )
    merge: dict[str, Merge] = Field(
        default_factory=dict,
        description="How the values of a column are combined while a key waits, for each column "
        'that should not just keep the last value, such as `{ volume = "sum" }`. A function of '
        "your own takes two Arrow arrays, held and arrived, gives one, and is associative.",
    )
    delete_column: Name | None = Field(
        default=None,
        description="Column that tells deletes from other updates. A delete travels like any "
        "update and resets what was merged.",
    )
    delete_value: str | int | bool | None = Field(
        default=None,
        description="Value of `delete_column` that marks a delete; not set means true in a "
        'boolean column and "D" in any other.',
    )
    weight: Positive = Field(
        default=1.0,
        description="How much the staleness of a key counts when neither a rule nor "
        "`weight_column` says otherwise.",
    )
    weight_column: Name | None = Field(
        default=None,
        description="Column that holds the weight of the update's key and goes before rules; a "
        "null leaves the weight as it was.",
    )
    rules: Annotated[list[KeyRule], BeforeValidator(as_list)] = Field(
        default_factory=list,
        description="Weights, known rates and cost classes of single keys or of all keys with a "
        "prefix. Where several rules fit, an exact key goes before a prefix and a longer prefix "
        "before a shorter one, for each setting by itself.",
    )
    cost_seconds: Positive | dict[str, Positive] | None = Field(
        default=None,
        description="Seconds that processing one key takes, or a table with the seconds of each "
        "cost class and of `default` for the rest; not set means learned from deliveries.",
    )
    rate_alpha: Fraction = Field(
        default=0.1,
        description="Weight of a new gap in the estimate of a key's update rate; larger follows "
        "changes faster, smaller is steadier.",
    )
    memory_limit: Size = Field(
        default=1 << 30, description="Most memory that the queue may use for keys and updates."
    )
    on_full: Literal["block", "shed", "error"] = Field(
        default="block",
        description='What happens at the memory limit: "block" lets the producer wait, "shed" '
        "gives up the least valuable waiting key (a baseline: the arriving update) and counts "
        'it, "error" refuses the update.',
    )
    block_timeout_seconds: Positive = Field(
        default=60.0,
        description="How long a blocked producer waits for room before it gets an error.",
    )
    forget_deleted_after_seconds: Annotated[float, Field(ge=0)] = Field(
        default=3600.0,
        description="How long a deleted key is remembered after its delete was committed; a late "
        "older update cannot bring it back in that time.",
    )
    window: WindowConfig | None = Field(
        default=None,
        validate_default=True,
        description="Windows as units of update: each key has at most one waiting window instead "
        "of one waiting update. Not set means that single updates are the units.",
    )
    freshness_target_seconds: Positive | None = Field(
        default=None,
        description="Staleness that keys should stay within; statistics show the share of keys "
        "that do.",
    )
    drop_probability: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = Field(
        default="auto",
        description='Share of arrivals that "random-drop" drops, or of windows that "window-drop" '
        'drops; "auto" drops as many as do not fit the measured capacity.',
    )
    seed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Start of the random numbers by which is dropped."
    )
    durability: Literal["sync", "async"] = Field(
        default="sync",
        description='When a journal acknowledges an update: "sync" once it is on disk, "async" '
        "at once, so that a power failure can lose the last `sync_interval_seconds`; the death "
        "of the process alone loses nothing.",
    )
    sync_interval_seconds: Positive = Field(
        default=0.1, description='Time between two writes to disk under "async" durability.'
    )
    compact_after_bytes: Size = Field(
        default=64 << 20,
        description="Size at which a journal is compacted, but never below twice the size of "
        "what is alive in it.",
    )

    @classmethod
    def from_options(cls, **options: object) -> Self:
        """The options of `open_queue`; a `ConfigError` lists all that is wrong with them."""
        try:
            return cls.model_validate(options)
        except ValidationError as error:
            raise ConfigError(in_options(problems_in(error, cls, options))) from None

    def with_options(self, **options: object) -> Self:
        """The same options with some of them replaced."""
        given: dict[str, object] = {name: getattr(self, name) for name in self.model_fields_set}
        return self.from_options(**(given | options))

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)

    def without_effect(self) -> list[str]:
        """Options that are set although another option makes them meaningless, and why."""
        drops = ("random-drop", "window-drop")
        in_order = f'policy "{self.policy}" hands out updates in order of arrival'
        idle: list[tuple[bool, str, tuple[str, ...]]] = [
            (
                self.policy in BASELINES,
                f"does not change what is handed out: {in_order}.",
                ("selection", "weight", "weight_column", "rules", "rate_alpha"),
            ),
            (
                self.policy not in drops,
                'has no effect: only policies "random-drop" and "window-drop" drop at random.',
                ("drop_probability", "seed"),
            ),
            (
                self.store == "memory:",
                'has no effect: store "memory:" writes nothing to disk.',
                ("durability", "sync_interval_seconds", "compact_after_bytes"),
            ),
            (
                self.store != "memory:" and self.durability == "sync",
                'has no effect: durability "sync" writes at once.',
                ("sync_interval_seconds",),
            ),
            (
                self.on_full != "block",
                f'has no effect: on_full "{self.on_full}" never waits.',
                ("block_timeout_seconds",),
            ),
        ]
        return [
            f"{name} {why}"
            for holds, why, names in idle
            for name in names
            if holds and name in self.model_fields_set
        ]

    # What single options cannot tell. A check sees the options declared before its own, as
    # far as they are right, so one message can list the problems of all options.

    @field_validator("store")
    @classmethod
    def _known_store(cls, store: str) -> str:
        expected = f'expected "memory:" or "journal:<directory>", got {quoted(store)}.'
        scheme, colon, rest = store.partition(":")
        if scheme not in STORES:
            near = nearest(scheme, STORES)
            raise Wrong(expected + (f' Did you mean "{near}:{rest}"?' if near else ""))
        if not colon:
            raise Wrong(f"{expected} The colon is missing.")
        if scheme == "memory" and rest:
            raise Wrong(f"{expected} Nothing follows the colon of a memory queue.")
        if scheme == "journal" and not rest:
            raise Wrong(f"{expected} The directory is missing.")
        return store

    @field_validator("key")
    @classmethod
    def _distinct_columns(cls, key: str | list[str]) -> str | list[str]:
        if not key:
            raise Wrong("expected at least one key column, got an empty list.")
        wrong = [
            Problem((index,), f"column {quoted(column)} is listed twice.")
            for index, column in enumerate(key)
            if isinstance(key, list) and column in key[:index]
        ]
        if wrong:
            raise Wrong(*wrong)
        return key

    @field_validator("time", "delete_column", "weight_column")
    @classmethod
    def _column_of_its_own(cls, column: str | None, info: ValidationInfo) -> str | None:
        roles = _roles(info)
        if info.field_name == "weight_column":
            roles.pop(info.data.get("delete_column"), None)
        if column in roles:
            raise Wrong(f"column {quoted(column)} is already {roles[column]}.")
        return column

    @field_validator("merge")
    @classmethod
    def _mergeable(cls, merge: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        roles = _roles(info)
        wrong = [
            Problem((column,), f"column {quoted(column)} is {roles[column]} and cannot be merged.")
            for column in merge
            if column in roles
        ]
        policy = info.data.get("policy")
        if merge and policy in BASELINES:
            wrong.append(
                Problem(
                    (),
                    f'policy "{policy}" keeps every update in order of arrival, so there is '
                    f"nothing to merge. Remove merge, or choose {one_of(POLICIES)}.",
                )
            )
        if wrong:
            raise Wrong(*wrong)
        return merge

    @field_validator("delete_value")
    @classmethod
    def _has_delete_column(
        cls, value: str | int | bool | None, info: ValidationInfo
    ) -> str | int | bool | None:
        if value is not None and info.data.get("delete_column", "") is None:
            raise Wrong("needs 'delete_column', the column that holds this value.")
        return value

    @field_validator("window")
    @classmethod
    def _possible_windows(
        cls, window: WindowConfig | None, info: ValidationInfo
    ) -> WindowConfig | None:
        if window is None:
            if info.data.get("policy") == "window-drop":
                raise Wrong('is required: policy "window-drop" drops windows.')
            return window
        wrong = []
        by_time = window.by == "time" or window.kind == "slide-by-tuple"
        if by_time and info.data.get("time", "") is None:
            wrong.append("windows by time need 'time', the column with the event time.")
        if window.kind != "landmark" and window.size is None:
            wrong.append("'size' is required.")
        if window.kind != "sliding" and window.slide is None:
            wrong.append("'slide' is required.")
        if window.kind == "slide-by-tuple" and window.by == "count":
            wrong.append('slide-by-tuple windows span a time: set by = "time".')
        counted = window.by == "count" and window.of == "stream"
        if counted and (window.disorder or window.disorder_count is not None):
            wrong.append("positions in the stream are those of arrival: 'disorder' means nothing.")
        if info.data.get("merge"):
            wrong.append("a window keeps all its updates, so there is nothing to 'merge'.")
        if info.data.get("delete_column") is not None:
            wrong.append("'delete_column' is not supported with windows.")
        if info.data.get("policy") == "random-drop":
            wrong.append('random-drop would tear windows: expected policy "window-drop".')
        if info.data.get("policy") in BASELINES and window.buffer == "eager":
            wrong.append('a baseline hands out complete windows: expected buffer "lazy".')
        if wrong:
            raise Wrong(*(Problem((), text) for text in wrong))
        return window

    @field_validator("rules")
    @classmethod
    def _distinct_rules(cls, rules: list[KeyRule]) -> list[KeyRule]:
        seen: Counter[tuple[str | None, str | None]] = Counter()
        wrong = []
        for index, rule in enumerate(rules):
            target = (rule.key, rule.prefix)
            if seen[target]:
                name = f"key {quoted(rule.key)}" if rule.key else f"prefix {quoted(rule.prefix)}"
                wrong.append(Problem((index,), f"an earlier rule is for {name} as well."))
            seen[target] += 1
        if wrong:
            raise Wrong(*wrong)
        return rules

    @field_validator("cost_seconds")
    @classmethod
    def _known_classes(
        cls, cost: float | dict[str, float] | None, info: ValidationInfo
    ) -> float | dict[str, float] | None:
        rules: list[KeyRule] | None = info.data.get("rules")
        if not isinstance(cost, dict) or rules is None:
            return cost
        if not cost:
            raise Wrong("expected the seconds of at least one cost class, got an empty table.")
        used = list(dict.fromkeys(rule.cost_class for rule in rules if rule.cost_class))
        wrong = []
        for name in cost.keys() - {"default", *used}:
            near = nearest(name, [*used, "default"])
            hint = f" Did you mean '{near}'?" if near else ""
            wrong.append(Problem((name,), f"no rule has this cost_class.{hint}"))
        if "default" not in cost:
            left = [quoted(name) for name in used if name not in cost]
            if left:
                text = f"says nothing of cost_class {one_of(left)} and has no 'default'."
                wrong.append(Problem((), text))
        if wrong:
            raise Wrong(*sorted(wrong, key=lambda problem: problem.path))
        return cost


def _roles(info: ValidationInfo) -> dict[Any, str]:
    """What the columns named by earlier options are for."""
    key = info.data.get("key", [])
    columns = [key] if isinstance(key, str) else key
    roles = {info.data.get("delete_column"): "the delete column"}
    roles |= dict.fromkeys(info.data.get("merge", {}), "merged")
    roles |= {info.data.get("time"): "the time column"}
    roles |= dict.fromkeys(columns, "a key column")
    roles.pop(None, None)
    return roles


class Config(Section):
    """A whole configuration file."""

    queue: QueueConfig = Field(description="The queue.")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a TOML file; a `ConfigError` lists all that is wrong with it, line by line."""
        file = os.fspath(path)
        text, values = read_toml(file)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = problems_in(error, cls, values)
            raise ConfigError(in_file(problems, file, lines_of(text))) from None

    def to_toml(self) -> str:
        """The file that gives this configuration, with every default written out."""
        return as_toml(self.queue, "queue")


_INTRODUCTION = """
# Configuration

A configuration is a TOML file. `open_queue` takes the options of `[queue]` as keyword
arguments with the same names. `upstream config FILE` checks a file and shows what it comes
to; an unknown option or a wrong value is reported with its line, what is allowed and the
nearest right spelling.

```toml
[queue]
store = "journal:/var/lib/quotes"
key = "symbol"
time = "ts"
merge = { volume = "sum" }
memory_limit = "2GiB"
freshness_target_seconds = 5

[[queue.rules]]
prefix = "EUR"
weight = 3
```

This page is what `upstream config --explain --markdown` prints.
"""


def explain(form: Literal["text", "markdown", "json"] = "text") -> str:
    """The reference of all options."""
    match form:
        case "text":
            return reference.as_text(Config)
        case "markdown":
            return reference.as_markdown(Config, _INTRODUCTION)
        case "json":
            return reference.as_json(Config)
