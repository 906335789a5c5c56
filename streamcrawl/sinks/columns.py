"""What records look like in tables: which columns a page has, and what an item becomes that is none.

A record is a page when it has the fields of `PageRecord` and no others; then its columns are those, in that order.
Anything else is an item of somebody's handler. Pure; used by the formats that have columns.
"""

from __future__ import annotations

from hashlib import blake2b
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin

import msgspec

from streamcrawl.work.handlers import PageRecord

MORE: Final = "more_json"
"""Column with those fields of an item, as one JSON object, that have no column of their own."""
ITEM: Final = "item"
"""Field of an item that is no object but a bare value."""


class Column(NamedTuple):
    """One field of a page."""

    name: str
    kind: type
    """int, float, bool, str; list, of texts; dict, for anything that a cell can only hold as JSON."""
    is_needed: bool
    """Never null."""


def _column(field: msgspec.structs.FieldInfo) -> Column:
    members = get_args(field.type) if get_origin(field.type) in (Union, UnionType) else (field.type,)
    plain = [member for member in members if member is not NoneType]
    kind: Any = plain[0] if len(plain) == 1 else dict
    if kind not in (int, float, bool, str):
        kind = list if kind == list[str] else dict
    return Column(field.name, kind, NoneType not in members)


PAGE_COLUMNS: Final = tuple(_column(field) for field in msgspec.structs.fields(PageRecord))
TIME: Final = "fetched_at"
"""The column of a page that is a time, ISO 8601 in UTC."""
KEY: Final = "fingerprint"
"""The column by which a page is known."""
_NAMES: Final = frozenset(column.name for column in PAGE_COLUMNS)
_NEEDED: Final = frozenset(
    field.name for field in msgspec.structs.fields(PageRecord) if field.default is msgspec.NODEFAULT
)
_DECODE: Final = msgspec.json.Decoder().decode
_ENCODE: Final = msgspec.json.Encoder().encode


def fields_of(record: bytes) -> dict[str, Any]:
    """Return a record as an object."""
    value = _DECODE(record)
    return value if isinstance(value, dict) else {ITEM: value}


def is_page(fields: dict[str, Any]) -> bool:
    if not _NEEDED <= fields.keys() <= _NAMES:
        return False
    try:
        msgspec.convert(fields, PageRecord)
    except msgspec.ValidationError:
        return False
    return True


def item_id(record: bytes, fields: dict[str, Any]) -> str:
    """Return what an item is known by: its own `id`, else its `fingerprint`, else a digest of all of it."""
    for name in ("id", KEY):
        if isinstance(own := fields.get(name), str | int) and not isinstance(own, bool) and own != "":
            return str(own)
    return blake2b(record, digest_size=16).hexdigest()


def as_json(value: Any) -> str:
    return _ENCODE(value).decode()
