from __future__ import annotations

import json
import os
import re
import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.upstream.options.toml_documents import Document, documents
from upstream.config import POLICIES, Config, KeyRule, QueueConfig, WindowConfig, explain
from upstream.errors import ConfigError
from upstream.options.kinds import format_size, parse_size
from upstream.options.report import dotted

DOCS = Path(__file__).parents[2] / "docs"


def load(folder: Path, text: str | bytes) -> Config:
    file = folder / "upstream.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Config.load(file)


def complaint(folder: Path, text: str | bytes) -> str:
    """What is said about a wrong file, without the folder."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return str(caught.value).replace(f"{folder}{os.sep}", "")


def option_complaint(**options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        QueueConfig.from_options(**options)
    return str(caught.value)


def test_a_file_gives_what_the_same_options_give(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [queue]
        store = "journal:/tmp/q"
        key = ["exchange", "symbol"]
        time = "ts"
        policy = "my_package.policies:Mine"
        merge = { volume = "sum", spread = "my_package.merges:widest" }
        memory_limit = "2GiB"
        compact_after_bytes = 1000
        cost_seconds = { slow = 0.5, default = 1 }
        [[queue.rules]]
        prefix = "EUR"
        weight = 3
        cost_class = "slow"
        """,
    )
    assert config.queue == QueueConfig.from_options(
        store="journal:/tmp/q",
        key=("exchange", "symbol"),
        time="ts",
        policy="my_package.policies:Mine",
        merge={"volume": "sum", "spread": "my_package.merges:widest"},
        memory_limit=2 * 1024**3,
        compact_after_bytes="1000B",
        cost_seconds={"slow": 0.5, "default": 1},
        rules=(KeyRule(prefix="EUR", weight=3, cost_class="slow"),),
    )
    assert config.queue.key_columns == ("exchange", "symbol")
    assert config.queue.rules[0].weight == 3.0


def test_one_message_lists_every_problem_with_its_line(tmp_path: Path) -> None:
    text = """\
policy = "whittle"
[queue]                       # the queue
key = "symbol"
polcy = "whittle"
selection = "scna"
policy = "Whitle"
memory_limit = "2G"
merge = { symbol = "sum", price = "maxx" }

block_timeout_seconds = "60s"
rules = [
    { prefix = "A", weight = 2 },
    # two of them
    { key = "B", prefix = "B", weight = 0 }, { kye = "C", rate = 1 },
    { key = "D" },
]
[moniter]
"""
    names = '"in-place", "linecutting", "whittle", "append", "random-drop", "window-drop"'
    assert complaint(tmp_path, text).splitlines() == [
        "12 problems in upstream.toml:",
        "  upstream.toml:1: policy: unknown option here; it belongs to [queue].",
        "  upstream.toml:4: queue.polcy: unknown option. Did you mean 'policy'?",
        '  upstream.toml:5: queue.selection: expected "classes" or "scan", got "scna". '
        'Did you mean "scan"?',
        f'  upstream.toml:6: queue.policy: expected {names} or "package.module:Class", '
        'got "Whitle". Did you mean "whittle"?',
        "  upstream.toml:7: queue.memory_limit: expected a size above 0: bytes, or text such as "
        '"512MB" or "2GiB", got "2G". Did you mean "2GB" or "2GiB"?',
        '  upstream.toml:8: queue.merge.price: expected "last", "first", "min", "max", "sum", '
        '"count" or "package.module:function", got "maxx". Did you mean "max"?',
        '  upstream.toml:10: queue.block_timeout_seconds: expected a number above 0, got "60s". '
        "Give it in seconds, as a number without a unit.",
        "  upstream.toml:14: queue.rules[1].weight: expected a number above 0, got 0.",
        "  upstream.toml:14: queue.rules[2].kye: unknown option. Did you mean 'key'?",
        "  upstream.toml:14: queue.rules[1]: expected exactly one of 'key' and 'prefix', got both.",
        "  upstream.toml:15: queue.rules[3]: the rule sets nothing; expected 'weight', 'rate' or "
        "'cost_class'.",
        "  upstream.toml:17: moniter: unknown section; known here: queue.",
    ]


def test_options_are_named_where_there_is_no_file() -> None:
    assert option_complaint(key="a", polcy=1) == (
        "option 'polcy': unknown option. Did you mean 'policy'?"
    )
    assert option_complaint(rules=[{"key": "a", "weight": -1}]).splitlines() == [
        "2 problems in the options:",
        "  option 'key': is required: non-empty text or a list of text.",
        "  option 'rules[0].weight': expected a number above 0, got -1.",
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"key": []}, "option 'key': expected at least one key column, got an empty list."),
        ({"key": ["a", "b", "a"]}, "option 'key[2]': column \"a\" is listed twice."),
        ({"key": ["a", 1]}, "option 'key[1]': expected non-empty text, got 1."),
        ({"key": ""}, "option 'key': expected non-empty text or a list of text, got \"\"."),
        ({"key": "a", "time": "a"}, "option 'time': column \"a\" is already a key column."),
        ({"merge": {"k": "sum"}}, "option 'merge.k': column \"k\" is a key column and"),
        ({"time": "t", "merge": {"t": "sum"}}, "option 'merge.t': column \"t\" is the time col"),
        ({"merge": {"odd name": "x"}}, "option 'merge.\"odd name\"': expected"),
        ({"merge": {1: "sum"}}, "option 'merge[1]': expected a name as text, got 1."),
        ({"merge": {"p": "sum"}, "policy": "append"}, "option 'merge': policy \"append\" keeps"),
        ({"merge": {"p": "sum"}, "delete_column": "p"}, "option 'delete_column': column \"p\""),
        ({"delete_value": "D"}, "option 'delete_value': needs 'delete_column'"),
        ({"weight_column": "k"}, "option 'weight_column': column \"k\" is already a key column."),
        ({"weight": 0}, "option 'weight': expected a number above 0, got 0."),
        ({"weight": float("nan")}, "option 'weight': expected a number above 0, got nan."),
        ({"weight": "2"}, 'got "2". Write the number without quotes.'),
        ({"weight": True}, "option 'weight': expected a number above 0, got true."),
        ({"batch_limit": 0}, "option 'batch_limit': expected a whole number at least 1, got 0."),
        ({"batch_limit": 2.0}, "option 'batch_limit': expected a whole number at least 1, got 2"),
        ({"rate_alpha": 1.5}, "expected a number above 0 and at most 1, got 1.5."),
        ({"drop_probability": 1}, 'expected a number at least 0 and below 1 or "auto", got 1.'),
        ({"drop_probability": "Atuo"}, 'got "Atuo". Did you mean "auto"?'),
        ({"block_timeout_seconds": 0}, "'block_timeout_seconds': expected a number above 0"),
        ({"cost_seconds": 0}, "option 'cost_seconds': expected a number above 0 or a table of"),
        ({"cost_seconds": {"default": 0}}, "option 'cost_seconds.default': expected a number ab"),
        ({"cost_seconds": {}}, "option 'cost_seconds': expected the seconds of at least one"),
        ({"cost_seconds": {"slow": 1}}, "option 'cost_seconds.slow': no rule has this cost_class"),
        ({"memory_limit": 0}, "option 'memory_limit': expected a size above 0"),
        ({"memory_limit": "-1MB"}, "option 'memory_limit': expected a size above 0"),
        ({"memory_limit": "5 parsecs"}, "Units are B, kB, MB"),
        ({"on_full": "blokc"}, 'expected "block", "shed" or "error", got "blokc". Did you mean'),
        ({"store": "jurnal:x"}, 'got "jurnal:x". Did you mean "journal:x"?'),
        ({"store": "memory"}, 'got "memory". The colon is missing.'),
        ({"store": "journal:"}, 'got "journal:". The directory is missing.'),
        ({"policy": "a.b.C"}, 'got "a.b.C". Did you mean "a.b:C", with a colon?'),
        ({"policy": "a.b:C d"}, 'or "package.module:Class", got "a.b:C d".'),
        ({"policy": None}, 'or "package.module:Class", got None.'),
        ({"rules": [1]}, "option 'rules[0]': expected a table, got 1."),
        ({"rules": {"key": "a"}}, "option 'rules': expected a list of tables, got {'key': 'a'}."),
        ({"rules": [{"prefix": "a", "rate": 1}] * 2}, "option 'rules[1]': an earlier rule is for"),
        ({"rules": [{"rate": 1}]}, "option 'rules[0]': expected exactly one of 'key' and 'prefix'"),
        ({"x" * 40: 1}, "unknown option; known here: store, key, time, policy"),
        ({"seed": "\x1b[31m" + "y" * 200}, r"got '\x1b[31myyy"),
    ],
)
def test_a_wrong_value_says_what_was_expected(options: dict[str, Any], told: str) -> None:
    message = option_complaint(**({"key": "k"} | options))
    assert told in message
    assert "\n" not in message
    assert len(message) < 700


def test_cost_classes_must_match_the_rules() -> None:
    rules = [{"prefix": "A", "cost_class": "slow"}]
    message = option_complaint(key="k", rules=rules, cost_seconds={"slwo": 1.0})
    assert (
        "option 'cost_seconds.slwo': no rule has this cost_class. Did you mean 'slow'?" in message
    )
    assert "option 'cost_seconds': says nothing of cost_class \"slow\" and has no" in message
    QueueConfig.from_options(key="k", rules=rules, cost_seconds={"default": 1.0})


def test_models_made_by_hand_are_checked_as_well() -> None:
    with pytest.raises(ValidationError, match="exactly one of 'key' and 'prefix', got neither"):
        KeyRule(weight=1)
    config = QueueConfig(key="k")
    with pytest.raises(ValidationError, match="frozen"):
        config.key = "other"  # type: ignore[misc]


def test_options_can_be_replaced() -> None:
    config = QueueConfig(key="k", policy="in-place")
    assert config.with_options(store="journal:q").policy == "in-place"
    assert config.with_options(store="journal:q").model_fields_set == {"key", "policy", "store"}
    with pytest.raises(ConfigError, match="option 'stroe'"):
        config.with_options(stroe="memory:")


def test_options_without_effect_are_noted() -> None:
    config = QueueConfig(key="k", policy="append", weight=2, seed=1, sync_interval_seconds=1)
    assert config.without_effect() == [
        'weight does not change what is handed out: policy "append" hands out updates in order '
        "of arrival.",
        'seed has no effect: only policies "random-drop" and "window-drop" drop at random.',
        'sync_interval_seconds has no effect: store "memory:" writes nothing to disk.',
    ]
    assert QueueConfig(key="k").without_effect() == []


# Files.


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[queue]\nkey = 'a'\npolicy = whittle\n", "upstream.toml:3: not valid TOML: Invalid val"),
        ("[queue]\nkey = 'a'\nkey = 'b'\n", "upstream.toml:3: not valid TOML: Cannot overwrite"),
        ("[queue]\nkey = 'a'\npolicy =\n\n", "upstream.toml:3: not valid TOML"),
        ('[queue]\nkey = """a\n', "upstream.toml:2: not valid TOML: Unterminated string"),
        (b"[queue]\n# caf\xe9\nkey = 'a'\n", "upstream.toml:2: expected text in UTF-8."),
        ("[queue]".encode("utf-16"), "It looks like UTF-16; save it as UTF-8."),
        ("x = " + "[" * 10000, "upstream.toml: lists or tables are nested too deeply."),
        ("", "upstream.toml:1: queue: is required: a table."),
        ("\n[qeue]\nkey = 'a'", "upstream.toml:2: qeue: unknown section. Did you mean 'queue'?"),
        ("\n[queue]\ntime = 'a'", "upstream.toml:2: queue.key: is required: non-empty text or a"),
        ("queue = 5", "upstream.toml:1: queue: expected a table, got 5."),
        ("[[queue]]\nkey = 'a'", "upstream.toml:1: queue: expected a table, got [{'key': 'a'}]."),
        (
            "[queue]\nkey = 'a'\n[queue.rules]\nkey = 'b'",
            "upstream.toml:3: queue.rules: expected a list of tables, got {'key': 'b'}. "
            "In a file, the header of each table of a list has double brackets.",
        ),
        ("queue.key = 1979-05-27", "upstream.toml:1: queue.key: expected non-empty text or a list"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str | bytes, told: str) -> None:
    message = complaint(tmp_path, text)
    assert told in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: there is no such file"):
        Config.load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="expected a TOML file, got a directory"):
        Config.load(str(tmp_path))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match=r"cannot be read: Too many levels of symbolic links"):
        Config.load(tmp_path / "loop")


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    assert load(tmp_path, b"\xef\xbb\xbf[queue]\r\nkey = 'a'\r\n").queue.key == "a"
    assert ":3: queue.tme" in complaint(
        tmp_path, b"\xef\xbb\xbf[queue]\r\nkey='a'\r\ntme = 'b'\r\n"
    )


# Properties.

LETTERS = string.ascii_lowercase + "_"


@st.composite
def misspellings(draw: st.DrawFn, names: list[str]) -> tuple[str, str]:
    """A name, and the same name with one letter dropped, added, changed or swapped."""
    name = draw(st.sampled_from(names))
    at = draw(st.integers(0, len(name) - 1))
    letter = draw(st.sampled_from(LETTERS))
    slip = draw(
        st.sampled_from(
            [
                name[:at] + name[at + 1 :],
                name[:at] + letter + name[at:],
                name + letter,
                name[:at] + letter + name[at + 1 :],
                name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :],
            ]
        )
    )
    assume(slip not in names)
    return name, slip


@given(misspellings(list(QueueConfig.model_fields)), misspellings(list(KeyRule.model_fields)))
def test_any_single_slip_is_recognised(option: tuple[str, str], rule: tuple[str, str]) -> None:
    message = option_complaint(**{"key": "k", option[1]: 1, "rules": [{rule[1]: 1}]})
    assert f"option '{option[1]}': unknown option. Did you mean '{option[0]}'?" in message
    assert f"option 'rules[0].{rule[1]}': unknown option. Did you mean '{rule[0]}'?" in message


@given(documents)
def test_problems_of_any_file_are_told_with_their_lines(
    tmp_path_factory: pytest.TempPathFactory, document: Document
) -> None:
    folder = tmp_path_factory.getbasetemp()
    message = complaint(folder, document.text)
    for path, line in document.lines.items():
        if len(path) == 1:  # none of the documents has a section that is known
            assert f"upstream.toml:{line}: {dotted(path)}: unknown" in message


RULE: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"prefix": st.text(min_size=1), "rate": st.floats(1e-9, 1e9)}
)
REQUIRED: dict[str, st.SearchStrategy[Any]] = {
    "key": st.text(min_size=1) | st.lists(st.text(min_size=1), min_size=1, unique=True),
}
OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "policy": st.sampled_from([*POLICIES, "append", "random-drop", "a.b:C"]),
    "batch_limit": st.integers(1, 10**12),
    "delete_column": st.text(st.characters(codec="utf-8")).map("delete\x7f".__add__),
    "weight": st.floats(1e-300, 1e300),
    "rules": st.lists(RULE, max_size=3, unique_by=lambda rule: str(rule["prefix"])),
    "memory_limit": st.integers(1, 2**50),
    "drop_probability": st.just("auto") | st.floats(0, 1, exclude_max=True),
}


@given(st.fixed_dictionaries(REQUIRED, optional=OPTIONAL))
def test_the_effective_configuration_gives_itself(values: dict[str, Any]) -> None:
    config = Config(queue=QueueConfig.from_options(**values))
    assert Config.model_validate(tomllib.loads(config.to_toml())) == config


@given(st.integers(1, 2**60) | st.integers(0, 40).map(lambda n: 1 << n))
def test_sizes_survive_being_written(size: int) -> None:
    assert parse_size(format_size(size)) == size


# The reference.


def test_the_reference_has_every_option_once_with_a_description() -> None:
    listed = json.loads(explain("json"))
    names = [(option["section"], option["name"]) for option in listed]
    assert sorted(names) == sorted(
        [("queue", name) for name in QueueConfig.model_fields if name != "window"]
        + [("queue.rules[]", name) for name in KeyRule.model_fields]
        + [("queue.window", name) for name in WindowConfig.model_fields]
    )
    assert all(option["description"].endswith(".") for option in listed)
    told = {option["name"]: option for option in listed if option["section"] == "queue"}
    assert told["memory_limit"]["default"] == "1GiB"
    assert told["on_full"]["allowed"] == ['"block"', '"shed"', '"error"']
    assert told["drop_probability"]["allowed"] == ["at least 0 and below 1", '"auto"']
    assert told["key"]["required"] is True
    text = explain()
    assert [name for name in told if not re.search(rf"^{name}  \(", text, re.MULTILINE)] == []


def test_defaults_in_the_reference_are_right_values() -> None:
    listed = json.loads(explain("json"))
    defaults = {
        option["name"]: option["default"]
        for option in listed
        if option["section"] == "queue" and option["default"] is not None
    }
    assert QueueConfig.from_options(key="k", **defaults) == QueueConfig(key="k")


def test_the_page_in_docs_is_the_reference() -> None:
    page = (DOCS / "config.md").read_text()
    assert page == explain("markdown"), "run: upstream config --explain --markdown > docs/config.md"


def test_the_example_of_the_page_is_right(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", explain("markdown"), re.DOTALL)
    assert example is not None
    assert load(tmp_path, example[1]).queue.without_effect() == []
