"""CSV as RFC 4180 has it: CRLF, quotes where they are needed, one header in each file. UTF-8, without a mark.

The header is that of the first record of a file: the columns of a page, or the fields of an item and `more_json` for
those that later items have besides. Null and missing are an empty cell, true and false are words, lists and objects are
JSON.

A cell that a spreadsheet would take for a formula gets an apostrophe in front: titles and URLs come from strangers, and
`=HYPERLINK(…)` in a file that somebody opens would act in their name. One that begins with an apostrophe gets another,
so that taking the first one away always gives the text as it was. Numbers are not touched. Sources: RFC 4180; OWASP,
"CSV Injection".
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.errors import SinkError
from streamcrawl.sinks.columns import MORE, PAGE_COLUMNS, as_json, fields_of, is_page
from streamcrawl.sinks.files import BATCH_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamcrawl.sinks.files import LockedFile

HEADER_MAX_BYTES: Final = 1_000_000
_PAGE: Final = [column.name for column in PAGE_COLUMNS]
_GUARDED: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The last four are the wide forms of the first four, which some spreadsheets take for the same."""


class CsvLines:
    """The format of `.csv`."""

    batch_max = BATCH_MAX

    def __init__(self) -> None:
        self._columns: list[str] = []
        """Of the file that is written; empty before its first record."""

    def missing_at(self, file: LockedFile, offset: int) -> str:
        return "" if file.read(2, max(0, offset - 2)) == b"\r\n" else f"end of a line at byte {offset}"

    def begin(self, file: LockedFile, offset: int) -> None:
        self._columns = []
        if offset:
            head = file.read(min(offset, HEADER_MAX_BYTES), 0).decode("utf-8", "replace")
            names = next(csv.reader(io.StringIO(head, newline="")), [])
            self._columns = [name.removeprefix("'") for name in names]

    def encode(self, records: Sequence[bytes], offset: int) -> bytes:
        text = io.StringIO(newline="")
        write = csv.writer(text, lineterminator="\r\n").writerow
        for number, record in enumerate(records):
            fields = fields_of(record)
            if offset == 0 and number == 0:
                self._columns = _PAGE if is_page(fields) else [*(name for name in fields if name != MORE), MORE]
                write(map(_guarded, self._columns))
            write(self._row(fields))
        return text.getvalue().encode()

    def written(self) -> None:
        """The columns are those of the file from its first line on."""

    def _row(self, fields: dict[str, Any]) -> list[str]:
        has_more = self._columns[-1] == MORE
        names = self._columns[:-1] if has_more else self._columns
        row = [_cell(fields.pop(name, None)) for name in names]
        if has_more:
            row.append(_cell(fields) if fields else "")
        elif fields:
            raise SinkError(
                f"an item with the field {next(iter(fields))!r} has no place in a CSV file of pages: the handler was "
                "changed; change it back, or begin another crawl for it",
                stage="sink",
            )
        return row


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _guarded(value)
    # Numbers, true and false as JSON has them; lists and objects begin with a bracket, which is no formula.
    return as_json(value)


def _guarded(text: str) -> str:
    return "'" + text if text.startswith(_GUARDED) else text
