"""What an `-o` means: which format by its ending or scheme, what it needs, what is there already, and the output.

To add a format: its file, a row in `_ENDINGS` or `_SCHEMES`, and where `open_output` makes it. Start at `read_target`.
"""

from __future__ import annotations

import os
from contextlib import closing
from enum import StrEnum
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from streamcrawl.errors import ConfigError, SinkError
from streamcrawl.sinks import parquet
from streamcrawl.sinks.files import FileOutput, Format, LockedFile, Parts, Rotation, check_writable
from streamcrawl.web.exchange import ARCHIVE

if TYPE_CHECKING:
    from streamcrawl.settings import Settings
    from streamcrawl.sinks.output import Output


class Kind(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    WARC = "warc"
    SQLITE = "sqlite"
    POSTGRES = "postgresql"


_ENDINGS: Final = {".jsonl": Kind.JSONL, ".csv": Kind.CSV, ".parquet": Kind.PARQUET, ".warc.gz": Kind.WARC}
_ENDING_OF: Final = {kind: ending for ending, kind in _ENDINGS.items()}
_SCHEMES: Final = {"sqlite": Kind.SQLITE, "postgresql": Kind.POSTGRES, "postgres": Kind.POSTGRES}
_NEEDS: Final = {Kind.PARQUET: ("pyarrow", "parquet"), Kind.POSTGRES: ("asyncpg", "postgres")}
"""The module of a format, and the extra that brings it."""
DEFAULT_ENDING: Final = ".jsonl"
KINDS: Final = "FILE.jsonl, FILE.csv, FILE.parquet, FILE.warc.gz, sqlite:///FILE or postgresql://USER@HOST/DATABASE"


class Target(NamedTuple):
    """One output as it was given."""

    kind: Kind
    place: str
    """The absolute path, or the URL without a password: what is stored, shown, and what the output is known by."""
    url: str = ""
    """Of a database, with the password."""

    @property
    def name(self) -> str:
        """Its name in Redis; says whether it wants what went over the wire, or records."""
        word = ARCHIVE if self.kind is Kind.WARC else "out-"
        return f"{word}{blake2b(self.place.encode(), digest_size=4).hexdigest()}"

    @property
    def path(self) -> Path | None:
        """The file; None for a database on a server."""
        if self.kind is Kind.POSTGRES:
            return None
        return Path(self.place.removeprefix("sqlite:///"))


def read_target(given: str) -> Target:
    """Return what an `-o` means.

    Raises:
        ConfigError: no format is called so, or what it needs is not installed.
    """
    scheme, is_url, rest = given.partition("://")
    if is_url:
        kind = _SCHEMES.get(scheme.lower())
        if kind is None:
            raise ConfigError(f"-o {scheme}://…: there is no such output; give {KINDS}")
        if kind is Kind.SQLITE:
            name = unquote(rest.removeprefix("/"))
            if not rest.startswith("/") or not name:
                raise ConfigError(f"-o {given}: write sqlite:///FILE.db, or sqlite:////absolute/path/FILE.db")
            return Target(kind, f"sqlite:///{os.path.abspath(name)}")
        _check_installed(kind, f"{scheme}://…")
        from streamcrawl.sinks.postgres import without_password

        try:
            return Target(kind, without_password(given), given)
        except ValueError as error:
            raise ConfigError(f"-o {scheme}://…: that is no URL ({error})") from error
    for ending, kind in _ENDINGS.items():
        if given.endswith(ending) and os.path.basename(given) != ending:
            _check_installed(kind, given)
            return Target(kind, os.path.abspath(given))
    raise ConfigError(f"-o {given}: the format is told by the ending or the scheme; give {KINDS}")


def _check_installed(kind: Kind, given: str) -> None:
    module, extra = _NEEDS.get(kind, ("", ""))
    if module and find_spec(module) is None:
        raise ConfigError(f"-o {given} needs {module}, which is not installed: pip install 'streamcrawl[{extra}]'")


def check_target(target: Target, settings: Settings, *, is_new: bool) -> None:
    """Raise ConfigError when an output cannot be written, or a new crawl would write to what is not its own.

    Nothing is created. Databases may have what they want: their rows are known by their keys.
    """
    path = target.path
    if path is None:
        return
    check_writable(path)
    if not is_new or target.kind is Kind.SQLITE:
        return
    for found in _parts(target, settings).found():
        if found.stat().st_size:
            raise ConfigError(
                f"{found} exists and is not of this crawl: name another file with -o, or delete it, or give --fresh"
            )


async def check_database(target: Target) -> None:
    """Raise ConfigError when a database cannot be reached, or does not take us."""
    if target.kind is not Kind.POSTGRES:
        return
    from streamcrawl.sinks.postgres import PostgresOutput

    try:
        await PostgresOutput(target.url).check()
    except SinkError as error:
        raise ConfigError(f"-o {error}") from error


def open_output(target: Target, settings: Settings) -> Output:
    """Open an output for writing.

    Raises:
        SinkBusy: another process writes to its file.
        SinkError: it cannot be opened.
    """
    if target.kind is Kind.SQLITE:
        from streamcrawl.sinks.sqlite import SqliteOutput

        assert target.path is not None
        return SqliteOutput(target.path)
    if target.kind is Kind.POSTGRES:
        from streamcrawl.sinks.postgres import PostgresOutput

        return PostgresOutput(target.url)
    rotation = _rotation(settings)
    return FileOutput(_parts(target, settings), _format(target.kind), rotation, lock_wait_s=0)


def delete_files(target: Target, settings: Settings) -> list[tuple[Path, int]]:
    """Delete what an output has written, and return it with its sizes; what is in a database stays.

    Raises:
        SinkBusy: another process writes to it.
    """
    if target.kind in (Kind.SQLITE, Kind.POSTGRES):
        return []
    deleted = []
    for path in _parts(target, settings).found():
        with closing(LockedFile(path)) as file:
            deleted.append((path, file.size()))
            path.unlink()
    return deleted


def _rotation(settings: Settings) -> Rotation:
    return Rotation(settings.rotate_size_bytes, settings.rotate_every_ms)


def _parts(target: Target, settings: Settings) -> Parts:
    assert target.path is not None
    convert = parquet.convert if target.kind is Kind.PARQUET else None
    return Parts(target.path, _ENDING_OF[target.kind], is_rotated=bool(_rotation(settings)), convert=convert)


def _format(kind: Kind) -> Format:
    """Return the format of what is appended to the files of a kind."""
    if kind is Kind.CSV:
        from streamcrawl.sinks.csv_lines import CsvLines

        return CsvLines()
    if kind is Kind.WARC:
        from streamcrawl.sinks.warc import WarcRecords

        return WarcRecords()
    from streamcrawl.sinks.jsonl import JsonLines

    return JsonLines()
