from __future__ import annotations

import tomllib

import pytest
from hypothesis import given

from tests.upstream.options.toml_documents import Document, documents, paths
from upstream.options.toml_lines import lines_of


@given(documents)
def test_every_path_of_a_document_has_its_line(document: Document) -> None:
    values = tomllib.loads(document.text)
    found = lines_of(document.text)
    assert found == document.lines
    assert set(found) == set(paths(values))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[queue.rules]\n[queue]\nkey = 1", 2),  # the table itself beats a table inside it
        ("queue.key = 1\nqueue.time = 2", 1),
        ("\n[queue . rules]", 2),
        ("queue = { key = 1 }", 1),
    ],
)
def test_line_of_a_table_that_is_opened_in_several_ways(text: str, line: int) -> None:
    assert lines_of(text)["queue",] == line
