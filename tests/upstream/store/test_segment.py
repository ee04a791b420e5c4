"""Framing: whatever happens to a file, what is read from it is a beginning of what was written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upstream.errors import StoreCorrupt, StoreError
from upstream.store.disk import Disk
from upstream.store.segment import (
    ALIGN,
    Entry,
    FileKind,
    Kind,
    Record,
    Segment,
    SegmentReader,
)

Content = tuple[Kind, Any, list[bytes]]


def write(
    path: Path,
    entries: Sequence[Entry],
    *,
    first: int = 1,
    reuse: bool = False,
    disk: Disk | None = None,
) -> list[int]:
    """Write each entry as a call of its own; return where each record begins, and the end."""
    segment = Segment.create(
        disk or Disk(), path, FileKind.SEGMENT, number=1, sequence=first, reuse=reuse
    )
    starts = []
    for entry in entries:
        starts.append(segment.position)
        segment.append([entry], durable=segment.sequence - 1)
    segment.close()
    return [*starts, segment.position]


def read(path: Path) -> tuple[list[Content], SegmentReader]:
    with SegmentReader(path, FileKind.SEGMENT) as reader:
        return [content(record) for record in reader], reader


def content(record: Record) -> Content:
    return record.kind, record.meta, [bytes(buffer) for buffer in record.buffers]


def expected(entries: Sequence[Entry]) -> list[Content]:
    return [
        (entry.kind, entry.meta, [b"".join(map(bytes, pieces)) for pieces in entry.buffers])
        for entry in entries
    ]


def some_entries(count: int = 6) -> list[Entry]:
    """Records with no, with empty, small and large buffers, whole and in pieces."""
    buffers: list[list[list[bytes]]] = [
        [],
        [[b""]],
        [[b"a" * 64], [b"b"]],
        [[b"c" * 100, b"d" * 20_000], []],
        [[bytes(200)]],
        [[b"e" * 30]],
    ]
    return [Entry(Kind.PUT, {"n": n}, buffers[n % len(buffers)]) for n in range(count)]


pieces = st.lists(st.binary(max_size=200), max_size=3)
entries_lists = st.lists(
    st.builds(
        Entry,
        st.sampled_from(Kind),
        st.none()
        | st.integers()
        | st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False)),
        st.lists(pieces, max_size=3),
    ),
    min_size=1,
    max_size=5,
)


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    entries = some_entries()
    starts = write(tmp_path / "s", entries, first=41)
    found, reader = read(tmp_path / "s")
    assert found == expected(entries)
    assert reader.flaw is None
    assert (reader.position, reader.sequence) == (starts[-1], 41 + len(entries))
    assert all(start % ALIGN == 0 for start in starts)


def test_buffers_begin_where_vector_instructions_like_them(tmp_path: Path) -> None:
    write(tmp_path / "s", [Entry(Kind.DUMP, "x" * 77, [[b"a" * 65], [b"b"], [b"c" * 3]])])
    data = (tmp_path / "s").read_bytes()
    assert [data.index(mark) % ALIGN for mark in (b"a" * 65, b"b" + bytes(63), b"ccc")] == [0, 0, 0]


def test_mapped_buffers_equal_read_ones(tmp_path: Path) -> None:
    write(tmp_path / "s", some_entries())
    with SegmentReader(tmp_path / "s", FileKind.SEGMENT, mapped=True) as mapped:
        assert [content(record) for record in mapped] == read(tmp_path / "s")[0]


@settings(deadline=None, max_examples=60)
@given(entries=entries_lists, data=st.data())
def test_any_truncation_leaves_a_beginning(
    entries: list[Entry], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "s"
    starts = write(path, entries)
    size = path.stat().st_size
    cut = data.draw(st.integers(ALIGN, size))
    path.write_bytes(path.read_bytes()[:cut])
    found, reader = read(path)
    whole = len(list(takewhile(lambda end: end <= cut, starts[1:])))
    assert found == expected(entries)[:whole]
    assert reader.position == starts[whole]
    assert (reader.flaw is None) == (cut in (*starts, size))


@settings(deadline=None, max_examples=100)
@given(entries=entries_lists, data=st.data())
def test_any_changed_byte_leaves_a_beginning(
    entries: list[Entry], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("flip") / "s"
    starts = write(path, entries)
    image = bytearray(path.read_bytes())
    offset = data.draw(st.integers(ALIGN, len(image) - 1))
    image[offset] ^= data.draw(st.integers(1, 255))
    path.write_bytes(image)
    found, reader = read(path)
    hit = len([end for end in starts[1:] if end <= offset])
    assert found == expected(entries)[:hit]
    assert reader.flaw is not None
    # Those behind the damage are found, and testify that what is broken had been on the disk.
    with SegmentReader(path, FileKind.SEGMENT) as reader:
        list(reader)
        later = list(reader.later())
    assert [content(record) for record in later] == expected(entries)[hit + 1 :]
    assert all(record.durable > hit for record in later)


def test_every_byte_counts(tmp_path: Path) -> None:
    entries = some_entries(3)
    path = tmp_path / "s"
    starts = write(path, entries)
    image = path.read_bytes()
    for offset in range(len(image)):
        broken = bytearray(image)
        broken[offset] ^= 0x10
        path.write_bytes(broken)
        if offset < ALIGN:
            with pytest.raises(StoreError):
                read(path)
        else:
            hit = len([end for end in starts[1:] if end <= offset])
            assert read(path)[0] == expected(entries)[:hit], f"byte {offset}"


def test_a_second_life_never_shows_the_first(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first_life = [Entry(Kind.PUT, ["old", n], [[b"old" * 20]]) for n in range(50)]
    write(path, first_life)
    size = path.stat().st_size
    for count in range(50):
        second_life = [Entry(Kind.PUT, ["new", n], [[b"new" * 20]]) for n in range(count)]
        write(path, second_life, reuse=True)
        found, reader = read(path)
        assert found == expected(second_life)
        assert reader.flaw is None
        assert path.stat().st_size == size
        with SegmentReader(path, FileKind.SEGMENT) as reader:
            list(reader)
            assert list(reader.later()) == []


def test_a_record_out_of_turn_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "s"
    starts = write(path, [Entry(Kind.PUT, n) for n in range(4)])
    image = path.read_bytes()
    one, two, three = (image[starts[n] : starts[n + 1]] for n in (1, 2, 3))
    path.write_bytes(image[: starts[1]] + two + one + three + bytes(ALIGN))
    found, reader = read(path)
    assert found == [(Kind.PUT, 0, [])]
    assert reader.flaw == "the record there has number 3, its turn is 2"


def test_cut_forgets_what_a_failed_write_left(tmp_path: Path) -> None:
    path = tmp_path / "s"
    disk = ShortDisk(stop_after=3_000)
    segment = Segment.create(disk, path, FileKind.SEGMENT, number=1, sequence=1)
    segment.append([Entry(Kind.PUT, "kept", [[b"x" * 500]])], durable=0)
    with pytest.raises(OSError, match="No space left"):
        segment.append([Entry(Kind.PUT, "lost", [[b"y" * 50_000]])], durable=0)
    assert path.stat().st_size == 3_000
    segment.cut()
    disk.stop_after = None
    segment.append([Entry(Kind.PUT, "next", [[b"z" * 100]])], durable=0)
    segment.close()
    assert [meta for _, meta, _ in read(path)[0]] == ["kept", "next"]


@pytest.mark.parametrize("step", [1, 63, 1000])
def test_writes_that_stop_early_go_on(tmp_path: Path, step: int) -> None:
    entries = some_entries()
    write(tmp_path / "s", entries, disk=ShortDisk(step=step))
    assert read(tmp_path / "s")[0] == expected(entries)


def test_more_pieces_than_one_call_takes(tmp_path: Path) -> None:
    many = [b"%d" % n * 20 for n in range(3_000)]
    write(tmp_path / "s", [Entry(Kind.DUMP, None, [many])])
    assert read(tmp_path / "s")[0] == [(Kind.DUMP, None, [b"".join(many)])]


class ShortDisk(Disk):
    """Takes at most `step` bytes per call, and none beyond `stop_after`."""

    def __init__(self, step: int = 1 << 30, stop_after: int | None = None) -> None:
        self.step = step
        self.stop_after = stop_after

    def write_some(self, fd: int, pieces: Sequence[Any], offset: int) -> int:
        data = b"".join(bytes(memoryview(piece)) for piece in pieces)[: self.step]
        if self.stop_after is not None:
            data = data[: max(self.stop_after - offset, 0)]
            if not data:
                raise OSError(28, "No space left on device")
        return super().write_some(fd, [data], offset)


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"PAR1" + bytes(200))
    with pytest.raises(StoreCorrupt, match="not a file of Upstream: it begins with b'PAR1"):
        read(path)


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    with pytest.raises(StoreCorrupt, match="not a file of Upstream"):
        read(tmp_path / "s")


def test_a_newer_format_is_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("upstream.store.segment.FORMAT", 2)
    write(tmp_path / "s", some_entries())
    monkeypatch.undo()
    with pytest.raises(StoreError, match="has format 2; this version of Upstream reads format 1"):
        read(tmp_path / "s")


def test_a_segment_is_no_snapshot(tmp_path: Path) -> None:
    write(tmp_path / "s", some_entries())
    with pytest.raises(StoreCorrupt, match="says that it is a segment, its name says snapshot"):
        SegmentReader(tmp_path / "s", FileKind.SNAPSHOT)
