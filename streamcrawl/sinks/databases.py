"""What outputs in databases have in common: their tables, and rows made of records.

Pages have the table `pages`, a column for each field, and `fingerprint` as key; items of handlers the table `items`,
with their id and the whole item as JSON. A row that is there already is written over, unless it is a newer fetch of its
page: so a batch that is written twice is there once, whoever writes it, and in whatever order. There is nothing to cut:
the offset that the store has counts records. Start at `Batch.of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamcrawl.sinks.columns import KEY, PAGE_COLUMNS, TIME, fields_of, is_page, item_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PAGES: Final = "pages"
ITEMS: Final = "items"


class Table(NamedTuple):
    """A table by its columns, and what a column is declared as."""

    name: str
    columns: dict[str, str]
    key: str

    def create(self) -> str:
        columns = ", ".join(f'"{name}" {kind}' for name, kind in self.columns.items())
        return f'CREATE TABLE IF NOT EXISTS "{self.name}" ({columns}, PRIMARY KEY ("{self.key}"))'

    def on_conflict(self) -> str:
        """Return how a row is written over."""
        others = [name for name in self.columns if name != self.key]
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in others)
        newer = f' WHERE "{self.name}"."{TIME}" <= excluded."{TIME}"' if TIME in self.columns else ""
        return f'ON CONFLICT ("{self.key}") DO UPDATE SET {changes}{newer}'

    def names(self) -> str:
        return ", ".join(f'"{name}"' for name in self.columns)


def tables(kinds: Mapping[type, str], *, time: str, json: str, text: str) -> dict[str, Table]:
    """Return the tables of a database by name; the arguments are the types that it has for each kind of column."""
    pages = {
        column.name: (time if column.name == TIME else kinds[column.kind]) + " NOT NULL" * column.is_needed
        for column in PAGE_COLUMNS
    }
    items = {"id": f"{text} NOT NULL", "item": f"{json} NOT NULL"}
    return {PAGES: Table(PAGES, pages, KEY), ITEMS: Table(ITEMS, items, "id")}


class Batch(NamedTuple):
    """Records by the table they belong to; of several with one key the last."""

    pages: dict[str, dict[str, Any]]
    items: dict[str, bytes]

    @classmethod
    def of(cls, records: Iterable[bytes]) -> Batch:
        batch = cls({}, {})
        for record in records:
            fields = fields_of(record)
            if is_page(fields):
                before = batch.pages.get(fields[KEY])
                if before is None or before[TIME] <= fields[TIME]:
                    batch.pages[fields[KEY]] = fields
            else:
                batch.items[item_id(record, fields)] = record
        return batch

    def rows(self) -> Iterable[tuple[str, Sequence[Sequence[Any]]]]:
        """Yield the rows of each table that has some, values in the order of its columns."""
        if self.pages:
            names = [column.name for column in PAGE_COLUMNS]
            yield PAGES, [[fields.get(name) for name in names] for fields in self.pages.values()]
        if self.items:
            yield ITEMS, list(self.items.items())
