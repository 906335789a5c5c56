"""Parquet, made from a journal of JSON lines when a part is finished: such a file cannot be appended to, nor cut.

Pages have typed columns. Of anything else the columns are those that occur: a first walk over the journal finds them
and their types, a second one writes. A column whose values are of several types, or lists and objects, holds JSON.
Memory is bounded by the row groups. Nothing here is the only copy of anything: killed half-way it is done again.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.errors import SinkError
from streamcrawl.sinks.columns import MORE, PAGE_COLUMNS, TIME, as_json, fields_of, is_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GROUP_RECORDS: Final = 50_000
GROUP_BYTES: Final = 16_000_000
"""Of JSON in one row group: what is in memory at a time is some ten times that."""
COLUMNS_MAX: Final = 1000
"""Beyond these the fields of items share one column: names that are made up would otherwise be columns without end."""
_INT64: Final = 2**63
_EXACT: Final = 2**53
"""Up to here a float holds every whole number."""


def convert(journal: Path, target: Path) -> None:
    """Make a Parquet file of a journal.

    Raises:
        SinkError: it cannot be made of what is there.
        OSError: of the disk.
    """
    import pyarrow as pa
    from pyarrow import parquet

    columns = _page_columns(pa) if _are_pages(journal) else _item_columns(pa, journal)
    schema = pa.schema([column.field for column in columns])
    try:
        with parquet.ParquetWriter(str(target), schema, compression="zstd") as writer:
            for group in _groups(journal):
                arrays = [pa.array(column.values(group), column.field.type) for column in columns]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=len(group))
    except pa.ArrowException as error:
        raise SinkError(f"{journal} cannot be made into Parquet: {error}", stage="sink") from error


class _Column:
    """One column: its field of the schema, and how its values come out of records."""

    def __init__(self, field: Any, read: Callable[[dict[str, Any]], Any]) -> None:
        self.field = field
        self._read = read

    def values(self, group: list[dict[str, Any]]) -> list[Any]:
        return [self._read(fields) for fields in group]


def _groups(journal: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of a journal, as many as a row group takes."""
    group: list[dict[str, Any]] = []
    size = 0
    for fields, length in _records(journal):
        group.append(fields)
        size += length
        if len(group) >= GROUP_RECORDS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _records(journal: Path) -> Iterator[tuple[dict[str, Any], int]]:
    with open(journal, "rb") as lines:
        for line in lines:
            yield fields_of(line), len(line)


def _are_pages(journal: Path) -> bool:
    return all(is_page(fields) for fields, _ in _records(journal))


def _page_columns(pa: Any) -> list[_Column]:
    types = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string(), list: pa.list_(pa.string())}
    found = []
    for name, kind, is_needed in PAGE_COLUMNS:
        read = _getter(name)
        type_ = types.get(kind, pa.string())
        if kind is dict:
            read = _json_getter(name)
        if name == TIME:
            read, type_ = _time, pa.timestamp("ms", tz="UTC")
        found.append(_Column(pa.field(name, type_, nullable=not is_needed), read))
    return found


def _item_columns(pa: Any, journal: Path) -> list[_Column]:
    kinds: dict[str, str] = {}
    has_more = False
    for fields, _ in _records(journal):
        for name, value in fields.items():
            if name == MORE or (name not in kinds and len(kinds) == COLUMNS_MAX):
                has_more = True
            else:
                kinds[name] = _merged(kinds.get(name, ""), _kind(value))
    types = {"int": pa.int64(), "large": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    columns = [
        _Column(pa.field(name, types.get(kind, pa.string())), _json_getter(name) if kind == "json" else _getter(name))
        for name, kind in kinds.items()
    ]
    if has_more:

        def more(fields: dict[str, Any]) -> str | None:
            rest = {name: value for name, value in fields.items() if name not in kinds}
            return as_json(rest) if rest else None

        columns.append(_Column(pa.field(MORE, pa.string()), more))
    return columns


def _kind(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if -_EXACT <= value <= _EXACT:
            return "int"
        return "large" if -_INT64 <= value < _INT64 else "json"
    return {float: "float", str: "text"}.get(type(value), "json")


def _merged(one: str, other: str) -> str:
    """Return the kind of a column that has values of both; '' is that of nulls."""
    if one == other or not other:
        return one
    if not one:
        return other
    if {one, other} == {"int", "large"}:
        return "large"
    # Not of a large one: pyarrow refuses it as a float, and the part could never be finished.
    return "float" if {one, other} == {"int", "float"} else "json"


def _getter(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda fields: fields.get(name)


def _json_getter(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda fields: None if fields.get(name) is None else as_json(fields[name])


def _time(fields: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(fields[TIME])
