"""PostgreSQL: each batch is copied into a staging table and from there put into its table, in one transaction.

COPY is the fast way in, but it knows no conflicts; so the rows go into a table of this session and from there over
those that have their key. A server that is away is waited for. Killed at any line, or the server killed, a batch is
there whole or not at all; one whose acknowledgement was lost is written again, over itself. Sources: PostgreSQL
documentation, COPY, INSERT (ON CONFLICT), appendix A (error codes); asyncpg, `copy_records_to_table`.
"""

from __future__ import annotations

import contextlib
import ssl
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from streamcrawl.errors import SinkError
from streamcrawl.sinks.columns import PAGE_COLUMNS, TIME, as_json
from streamcrawl.sinks.databases import PAGES, Batch, Table, tables
from streamcrawl.sinks.files import BATCH_MAX
from streamcrawl.sinks.output import Mark, SinkWaits

if TYPE_CHECKING:
    from collections.abc import Sequence

CONNECT_S: Final = 10.0
COMMAND_S: Final = 60.0
"""For one batch; a server that takes longer counts as away."""
_PASSWORD_HINT: Final = "; a password is not kept: give the same -o again with it, or PGPASSWORD, or ~/.pgpass"
STAGING: Final = "streamcrawl_staging_"
_TABLES: Final = tables(
    {int: "bigint", float: "double precision", bool: "boolean", str: "text", list: "text[]", dict: "jsonb"},
    time="timestamptz",
    json="jsonb",
    text="text",
)
_MENDS: Final = ("08", "40", "53", "55", "57", "58")
"""Classes of errors that pass, or that somebody mends while the crawl waits: connection, rollback, resources (a full
disk is 53100), locks, operator intervention (a server that stops or starts), system."""


class PostgresOutput:
    """One database, over one connection."""

    def __init__(self, url: str) -> None:
        """Prepare the output; `resume` connects.

        Args:
            url: As asyncpg takes it. What it leaves out comes from PGHOST, PGPASSWORD and so on, or ~/.pgpass.
        """
        self.target = without_password(url)
        self.batch_max = BATCH_MAX
        self._url = url
        self.connection: Any = None
        self._mark = Mark()

    async def check(self) -> None:
        """Connect once, and see whether the tables can be there.

        Raises:
            SinkError: one line that says why not.
        """
        try:
            await self.resume(Mark())
        finally:
            await self.close()

    async def resume(self, mark: Mark) -> None:
        await self._guarded(self._open(is_begun=mark.offset > 0))
        self._mark = mark

    async def append(self, records: Sequence[bytes]) -> Mark:
        await self._guarded(self._write(Batch.of(records)))
        self._mark = Mark(self._mark.offset + len(records))
        return self._mark

    def is_due(self) -> bool:
        return False

    async def seal(self) -> Mark | None:
        """There is nothing to finish: each batch is there."""
        return None

    async def finish(self, mark: Mark) -> None:
        """See `seal`."""

    async def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            # No farewell: a server that is away would be waited for, and what is committed is committed.
            connection.terminate()

    async def _guarded(self, work: Any) -> None:
        """Await it, with errors that say what becomes of the batch; the connection is given up after each."""
        import asyncpg

        try:
            await work
        except SinkError:
            await self.close()
            raise
        except asyncpg.PostgresError as error:
            await self.close()
            kind = SinkWaits if str(error.sqlstate).startswith(_MENDS) else SinkError
            hint = _PASSWORD_HINT if str(error.sqlstate).startswith("28") else ""
            raise kind(f"{self.target}: {_one_line(error)}{hint}", stage="sink") from error
        except (OSError, asyncpg.InterfaceError, TimeoutError) as error:
            await self.close()
            raise SinkWaits(f"{self.target}: {_one_line(error)}", stage="sink") from error
        except BaseException:
            await self.close()
            raise

    async def _open(self, *, is_begun: bool) -> None:
        import asyncpg

        if self.connection is not None and not self.connection.is_closed():
            return
        try:
            self.connection = await asyncpg.connect(self._url, timeout=CONNECT_S, command_timeout=COMMAND_S)
        except (ValueError, ssl.SSLError) as error:
            raise SinkError(f"{self.target} will not do: {_one_line(error)}", stage="sink") from error
        await self._make_tables(is_begun=is_begun)

    async def _make_tables(self, *, is_begun: bool) -> None:
        connection = self.connection
        # A server that commits before its disk has it would acknowledge what a failure then loses.
        await connection.execute("SET synchronous_commit = on")
        if is_begun:
            have = await connection.fetchval(f"SELECT to_regclass('{PAGES}') IS NOT NULL")
            if not have:
                raise SinkError(
                    f"{self.target} has no table {PAGES!r} any more, but records were written to it and confirmed. "
                    "Restore it, or start over with --fresh",
                    stage="sink",
                )
        for table in _TABLES.values():
            # Looked up first: a role that may only write would be refused a table that is there already.
            if not await connection.fetchval(f"SELECT to_regclass('{table.name}') IS NOT NULL"):
                await self._create(table)
            have = {
                row[0]
                for row in await connection.fetch(
                    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0", table.name
                )
            }
            for name in [name for name in table.columns if name not in have]:
                kind = table.columns[name].removesuffix(" NOT NULL")
                await connection.execute(f'ALTER TABLE "{table.name}" ADD COLUMN IF NOT EXISTS "{name}" {kind}')
            columns = ", ".join(f'"{name}" {kind}' for name, kind in table.columns.items())
            await connection.execute(
                f'CREATE TEMPORARY TABLE IF NOT EXISTS "{STAGING}{table.name}" ({columns}) ON COMMIT DELETE ROWS'
            )

    async def _create(self, table: Table) -> None:
        import asyncpg

        # Two crawls that begin at once: PostgreSQL tells the second one in either way.
        with contextlib.suppress(asyncpg.DuplicateTableError, asyncpg.UniqueViolationError):
            await self.connection.execute(table.create())

    async def _write(self, batch: Batch) -> None:
        if self.connection is None:
            await self._open(is_begun=True)
        connection = self.connection
        async with connection.transaction():
            for name, rows in batch.rows():
                table = _TABLES[name]
                cell = _page_cells if name == PAGES else _item_cells
                await connection.copy_records_to_table(
                    f"{STAGING}{name}",
                    records=[cell(row) for row in rows],
                    columns=list(table.columns),
                    schema_name="pg_temp",
                )
                # In the order of the keys: two writers that meet in other orders would wait for each other.
                await connection.execute(
                    f'INSERT INTO "{name}" ({table.names()}) SELECT {table.names()} FROM "{STAGING}{name}" '
                    f'ORDER BY "{table.key}" {table.on_conflict()}'
                )


def _page_cells(row: Sequence[Any]) -> list[Any]:
    cells: list[Any] = []
    for column, value in zip(PAGE_COLUMNS, row, strict=True):
        if column.name == TIME:
            cells.append(datetime.fromisoformat(value))
        elif column.kind is dict:
            cells.append(None if value is None else as_json(_clean(value)))
        else:
            cells.append(_clean(value))
    return cells


def _item_cells(row: Sequence[Any]) -> list[Any]:
    key, item = row
    # Only where there may be one: most items are passed on as they came.
    text = as_json(_clean(msgspec.json.decode(item))) if b"\\u0000" in item else item.decode()
    return [_clean(key), text]


def _clean(value: Any) -> Any:
    """Return a value without the character NUL, which PostgreSQL keeps in no text: a title of a page may have it."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if isinstance(value, dict):
        return {_clean(name): _clean(one) for name, one in value.items()}
    return value


def without_password(url: str) -> str:
    """Return the URL of a database as it may be stored and shown.

    Raises:
        ValueError: part of a password may stand where no password is expected.
    """
    parts = urlsplit(url)
    if "#" in url or "@" in parts.path:
        raise ValueError("write / ? # and @ of a user name or password as %2F %3F %23 and %40")
    user, at, place = parts.netloc.rpartition("@")
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] not in ("password", "sslpassword")])
    name = quote(unquote(user.partition(":")[0]), safe="")
    return f"{parts.scheme}://{name}{at}{place}{parts.path}" + f"?{query}" * bool(query)


def _one_line(error: BaseException) -> str:
    text = str(error) or ("it did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
    return " ".join(text.split())[:300]
