"""Rows on their way into a file and back: Arrow's own message format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["RowFormat", "decode_schema", "encode_schema"]

# Up to this size one call that copies is faster than many that do not.
_COPY_BELOW = 128 * 1024


class RowFormat:
    """Batches of one schema as Arrow messages.

    A message holds no schema and no dictionaries. If there are dictionaries, each batch
    becomes an Arrow stream of its own, which repeats them and the schema.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._self_contained = any(_has_dictionary(field.type) for field in schema)
        self._pieces = _Pieces()
        self._writer: Any = None

    def encode(self, rows: pa.RecordBatch) -> list[Buffer]:
        """The bytes of a batch in pieces; large ones are the batch's own memory."""
        if self._self_contained:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self.schema) as writer:
                writer.write_batch(rows)
            return [sink.getvalue()]
        if rows.nbytes < _COPY_BELOW:
            return [rows.serialize()]
        if self._writer is None:
            sink = pa.PythonFile(self._pieces, mode="w")
            self._writer = pa.ipc.new_stream(sink, self.schema)
            # The schema goes out with the first batch; it has a record of its own.
            self._writer.write_batch(rows.slice(0, 0))
        self._pieces.taken = []
        self._writer.write_batch(rows)
        pieces, self._pieces.taken = self._pieces.taken, []
        return pieces

    def decode(self, data: memoryview) -> pa.RecordBatch:
        buffer = pa.py_buffer(data)
        if self._self_contained:
            return pa.ipc.open_stream(buffer).read_next_batch()
        return pa.ipc.read_record_batch(buffer, self.schema)


def encode_schema(schema: pa.Schema) -> Buffer:
    serialized: Buffer = schema.serialize()
    return serialized


def decode_schema(data: memoryview) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


class _Pieces:
    """A file that keeps what is written to it, without copying what lies in Arrow's memory."""

    closed = False

    def __init__(self) -> None:
        self.taken: list[Buffer] = []

    def write(self, piece: Buffer) -> None:
        self.taken.append(piece)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))
