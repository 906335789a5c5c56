"""An SQLite database: a transaction for each batch, durable before it is acknowledged (WAL, synchronous=FULL).

Killed at any line, the file holds whole batches; one whose acknowledgement was lost is written again, over itself.
Others may read the file meanwhile. Sources: sqlite.org, "UPSERT", "Write-Ahead Logging", "Result and Error Codes".
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.errors import SinkError
from streamcrawl.sinks.columns import as_json
from streamcrawl.sinks.databases import Batch, tables
from streamcrawl.sinks.files import BATCH_MAX
from streamcrawl.sinks.output import Mark, SinkDiskFull, SinkWaits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BUSY_S: Final = 5.0
"""How long a lock of another process is waited for; then the batch is tried again later."""
_TABLES: Final = tables(
    {int: "INTEGER", float: "REAL", bool: "INTEGER", str: "TEXT", list: "TEXT", dict: "TEXT"},
    time="TEXT",
    json="TEXT",
    text="TEXT",
)
_FULL: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class SqliteOutput:
    """One database file."""

    def __init__(self, path: Path) -> None:
        """Prepare the output; `resume` opens it."""
        self.target = f"sqlite:///{path}"
        self.batch_max = BATCH_MAX
        self._path = path
        self.database: sqlite3.Connection | None = None
        self._mark = Mark()
        self._file: os.stat_result | None = None

    async def resume(self, mark: Mark) -> None:
        await asyncio.to_thread(self._resume, mark)

    async def append(self, records: Sequence[bytes]) -> Mark:
        await asyncio.to_thread(self._append, records)
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
        if self.database is not None:
            # The last one to close it puts what the log has into the file, and removes the log.
            await asyncio.to_thread(self.database.close)
            self.database = None

    def _resume(self, mark: Mark) -> None:
        if mark.offset and not self._path.exists():
            raise SinkError(
                f"{self._path} is not there, but {mark.offset} records were written to it and confirmed. Put it back, "
                "or start over with --fresh",
                stage="sink",
            )
        try:
            if self.database is None:
                self.database = _open(self._path)
                self._file = os.stat(self._path)
            for table in _TABLES.values():
                self.database.execute(table.create())
                have = {row[1] for row in self.database.execute(f'PRAGMA table_info("{table.name}")')}
                # A column that a newer version has; those of older rows are null.
                for name in table.columns.keys() - have:
                    kind = table.columns[name].removesuffix(" NOT NULL")
                    self.database.execute(f'ALTER TABLE "{table.name}" ADD COLUMN "{name}" {kind}')
        except sqlite3.Error as error:
            raise self._error(error) from error
        self._mark = mark

    def _append(self, records: Sequence[bytes]) -> None:
        database = self.database
        assert database is not None, "resume comes first"
        if not self._is_in_place():
            raise SinkError(
                f"{self._path} was deleted or replaced while the crawl wrote to it: put it back, or start over with "
                "--fresh",
                stage="sink",
            )
        try:
            database.execute("BEGIN IMMEDIATE")
            try:
                for name, rows in Batch.of(records).rows():
                    table = _TABLES[name]
                    places = ", ".join("?" * len(table.columns))
                    database.executemany(
                        f'INSERT INTO "{name}" ({table.names()}) VALUES ({places}) {table.on_conflict()}',
                        ([_cell(value) for value in row] for row in rows),
                    )
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _is_in_place(self) -> bool:
        try:
            return self._file is not None and os.path.samestat(self._file, os.stat(self._path))
        except OSError:
            return False

    def _error(self, error: sqlite3.Error) -> SinkError:
        # The lower byte is the code, the others say more of it.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _FULL:
            return SinkDiskFull(f"{self._path}: {error}", stage="sink")
        if code in _BUSY:
            return SinkWaits(f"{self._path}: {error}", stage="sink")
        return SinkError(f"{self._path} cannot be written: {error}", stage="sink")


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        # FULL: in WAL mode NORMAL would lose the last commits with the machine, after they were acknowledged.
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            with closing(database.execute(f"PRAGMA {pragma}")):
                pass
    except BaseException:
        database.close()
        raise
    return database


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return as_json(value) if isinstance(value, list | dict) else value
