"""The file side of "exactly once": one writer, whole batches, and a length that the store decides.

A batch counts once the store has its end offset (`sink_commit`); whatever lies behind that offset was written by a
process that died before its commit, and `resume` cuts it off. `LockedFile` is one file of bytes. `FileOutput` makes it
an output of a `Format`, in one part or in several:

    one part            pages.jsonl, written in place
    --rotate-...        pages-00001.jsonl, pages-00002.jsonl, …; what is written now is pages-00003.jsonl.part
    a format that has   pages.parquet.part is its journal, of JSON lines; made into pages.parquet when it is finished
    to be converted     (with --rotate-...: pages-00001.parquet, …)

A part is finished in three steps: the next one is committed to the store (`seal`), the store is durable, and the file
gets its name (`finish`). After a crash between the last two `resume` finds a part that is older than the mark, and
finishes it. This module never talks to Redis and knows nothing of records but what a format says.

Methods of `LockedFile` block on the disk. Sources: flock(2), fsync(2), open(2), rename(2).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from streamcrawl.errors import ConfigError, SinkError
from streamcrawl.sinks.output import Mark, SinkBusy, SinkDiskFull

if TYPE_CHECKING:
    from collections.abc import Sequence

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a disk that somebody may mend while the crawl waits: no space, quota, size limit, a device that is away."""
_MENDED_BY: Final = "Put it back, or start over with --fresh"
LOCK_WAIT_S: Final = 5.0
"""For the lock: a writer whose crawl was killed notices it within about a second, perhaps in the middle of a write."""
_LOCK_POLL_S: Final = 0.05
PART: Final = ".part"
"""At the end of the name of a part that is not finished."""
BATCH_MAX: Final = 500
"""Records in one write: one fsync for each would be the slowest part of a crawl. sink_commit takes 1,000."""


def check_writable(path: Path) -> None:
    """Raise ConfigError, in one line, when no output file can be written at `path`; nothing is created."""
    parent = path.absolute().parent
    try:
        if path.is_dir():
            raise ConfigError(f"-o {path} is a folder: name a file in it")
        if not parent.is_dir():
            raise ConfigError(f"-o {path}: the folder {parent} does not exist; make it first")
        if path.exists():
            if not stat.S_ISREG(path.stat().st_mode):
                raise ConfigError(
                    f"-o {path} is not an ordinary file: output has to be cut and resumed, which that cannot"
                )
            if not os.access(path, os.W_OK):
                raise ConfigError(f"-o {path} cannot be written to: no permission")
        elif not os.access(parent, os.W_OK | os.X_OK):
            raise ConfigError(f"-o {path} cannot be made: no permission to write in {parent}")
    except OSError as error:
        raise ConfigError(f"-o {path} cannot be used: {error.strerror}") from error


Converter = Callable[[Path, Path], None]
"""Makes a finished part (the second path, a new file) from its journal. May be killed at any line, and is repeated."""


class Format(Protocol):
    """How records become bytes. An object of it belongs to one output."""

    batch_max: int

    def missing_at(self, file: LockedFile, offset: int) -> str:
        """Return '' when a record can end at `offset` of the file, else what would have to be there."""

    def begin(self, file: LockedFile, offset: int) -> None:
        """The file was cut there, and goes on there: forget what was known of anything behind it.

        Not called between two parts of which the first was written by this object.
        """

    def encode(self, records: Sequence[bytes], offset: int) -> bytes:
        """Return what records become at that offset of the part; SinkError when they cannot be written at all."""

    def written(self) -> None:
        """What `encode` gave last is in the file."""


class LockedFile:
    """One file, locked for as long as it is open: by `close()`, or by the death of the process.

    After a crash it holds all committed batches, then perhaps a part of one more, which `resume` removes.
    """

    def __init__(self, path: Path | str, *, lock_wait_s: float = LOCK_WAIT_S) -> None:
        """Open the file, made when missing, and lock it.

        Args:
            path: Of the file.
            lock_wait_s: How long another writer may still hold it.

        Raises:
            SinkBusy: another process writes to it.
            SinkError: it cannot be opened.
        """
        self.path: Final = Path(path)
        self.offset = 0
        """Length of what is written and durable; moved by `resume` and `write` only."""
        self._is_dirty = False
        try:
            self._fd, self.is_new = _open(self.path)
        except OSError as error:
            if error.errno in _FULL:
                raise disk_error(error, self.path) from error
            raise self._error(f"cannot be opened: {error.strerror}") from error
        try:
            self._lock(lock_wait_s)
        except BaseException:
            self.close()
            raise

    def _lock(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise SinkBusy(
                        f"{self.path} is being written by another process: stop that one, or give another -o",
                        stage="sink",
                    ) from error
            except OSError as error:
                raise self._error(f"cannot be locked: {error.strerror}") from error
            else:
                return
            time.sleep(_LOCK_POLL_S)  # a flock that waits in the kernel has no time limit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd

    def is_in_place(self) -> bool:
        """Return whether its name still leads to this file."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except OSError:
            return False

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, size: int, offset: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def close(self) -> None:
        """Close the file and so give its lock up; may be called again."""
        if self._fd != -1:
            os.close(self._fd)
            self._fd = -1

    def resume(self, offset: int, form: Format) -> None:
        """Go on from the offset that the store has: what lies behind it is cut off.

        After a store was restored from a backup that is the tail which the store no longer knows of.

        Raises:
            SinkError: it is not the file that was written, or not all of it: committed records are missing.
        """
        length = self.size()
        if length < offset and self.is_new:
            self.unmake()
            raise self._error(f"is not there, but {offset} bytes of it were written and confirmed. {_MENDED_BY}")
        if length < offset:
            raise self._error(
                f"is {length} bytes long, but {offset} were written and confirmed: it was cut or replaced. {_MENDED_BY}"
            )
        if offset and (missing := form.missing_at(self, offset)):
            # Cut there, a record that somebody else wrote would be broken in two.
            raise self._error(
                f"has no {missing}, up to which it was written and confirmed: it is another file. {_MENDED_BY}"
            )
        try:
            self._cut(offset)
        except OSError as error:
            raise self._error(f"cannot be cut to {offset} bytes: {error.strerror}") from error
        self.offset = offset

    def write(self, data: bytes) -> int:
        """Write bytes behind what is there, make them durable, and return the new offset; all of them or none.

        A crash leaves a part of them behind the old offset, which the next `resume` cuts off.

        Raises:
            SinkDiskFull: no space or a failing device; the file is cut back and the same may be tried again.
            SinkError: any other failure, or the file was deleted.
        """
        try:
            if os.fstat(self._fd).st_nlink == 0:
                # Records written to a deleted file would be confirmed, and gone with the process.
                raise self._error("was deleted while the crawl wrote to it: put it back, or start over with --fresh")
            if self._is_dirty:
                self._cut(self.offset)
            self._is_dirty = True
            _write_at(self._fd, data, self.offset)
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):  # tried again before the next write
                self._cut(self.offset)
            raise disk_error(error, self.path) from error
        self._is_dirty = False
        self.offset += len(data)
        return self.offset

    def unmake(self) -> None:
        """Delete the file that `_open` made, unless its place was taken: an empty one would look like a result."""
        if self.is_in_place():
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    def _cut(self, offset: int) -> None:
        os.ftruncate(self._fd, offset)
        os.fsync(self._fd)
        self._is_dirty = False

    def _error(self, what: str) -> SinkError:
        return SinkError(f"{self.path} {what}", stage="sink")


def disk_error(error: OSError, path: Path) -> SinkError:
    """Return what an error of a write means: wait for room, or end."""
    if error.errno in _FULL:
        return SinkDiskFull(f"{path}: {error.strerror}", stage="sink")
    return SinkError(f"{path} cannot be written: {error.strerror}", stage="sink")


class FileOutput:
    """An output of one format in files, of which this process writes one at a time."""

    def __init__(self, parts: Parts, form: Format, rotation: Rotation, *, lock_wait_s: float = LOCK_WAIT_S) -> None:
        """Prepare the output. Written in place, its file is opened and locked at once; else a part is, by `resume`.

        Raises:
            SinkBusy: another process writes to it.
            SinkError: it cannot be opened.
        """
        self.target = str(parts.path)
        self.batch_max = form.batch_max
        self._parts: Final = parts
        self._form: Final = form
        self._rotation = rotation
        self._lock_wait_s = lock_wait_s
        self._part = 0
        self._start = 0
        self.began_at: float | None = None
        """When this part got its first record, by time.monotonic(); after a restart, when it was resumed."""
        self._file: LockedFile | None = None
        if parts.is_in_place:
            # Locked before the store is asked: a writer that was replaced may still be in the middle of a write.
            self._file = LockedFile(parts.path, lock_wait_s=lock_wait_s)

    @property
    def file(self) -> LockedFile:
        """The part that is written now."""
        assert self._file is not None, "resume comes first"
        return self._file

    @property
    def mark(self) -> Mark:
        return Mark(self._start + self.file.offset, self._part, self._start)

    async def resume(self, mark: Mark) -> None:
        await asyncio.to_thread(self._resume, mark)

    async def append(self, records: Sequence[bytes]) -> Mark:
        return await asyncio.to_thread(self._append, records)

    def is_due(self) -> bool:
        if self.began_at is None:
            return False
        age_ms = (time.monotonic() - self.began_at) * 1000
        size_max, age_max_ms = self._rotation
        return (size_max is not None and self.file.offset >= size_max) or (
            age_max_ms is not None and age_ms >= age_max_ms
        )

    async def seal(self) -> Mark | None:
        if self._parts.is_in_place or not self.file.offset:
            return None
        offset = self.mark.offset
        return Mark(offset, self._part + 1, offset)

    async def finish(self, mark: Mark) -> None:
        await asyncio.to_thread(self._go_to, mark)

    async def close(self) -> None:
        if self._file is None:
            return
        if not self._parts.is_in_place and not self._file.size():
            # Beside the finished parts it would look as if something were missing.
            self._file.unmake()
        self._file.close()

    def _resume(self, mark: Mark) -> None:
        self._go_to(mark)
        self._form.begin(self.file, self.file.offset)

    def _go_to(self, mark: Mark) -> None:
        if self._file is None or (self._part, self._start) != (mark.part, mark.start):
            self._take_part(mark)
        self.file.resume(mark.offset - mark.start, self._form)
        self.began_at = time.monotonic() if self.file.offset else None

    def _take_part(self, mark: Mark) -> None:
        """Open the part of a mark, finish those before it, and take back those behind it."""
        if not self._parts.is_in_place:
            if self._file is not None:
                self._file.close()
                self._file = None
            self._parts.reopen(mark.part, mark.offset - mark.start)
            file = LockedFile(self._parts.active(mark.part), lock_wait_s=self._lock_wait_s)
            if not file.is_in_place():
                # Whoever held it has finished it, and it has its name by now: the store has to be asked again.
                file.close()
                raise SinkBusy(f"{file.path} was finished by another process just now", stage="sink")
            self._file = file
            # While this part is locked, nobody else is at the others.
            self._parts.settle(mark.part)
        self._part, self._start = mark.part, mark.start

    def _append(self, records: Sequence[bytes]) -> Mark:
        self.file.write(self._form.encode(records, self.file.offset))
        self._form.written()
        if self.began_at is None and self.file.offset:
            self.began_at = time.monotonic()
        return self.mark


class Rotation(NamedTuple):
    """When a part is full, and the next one begins; None: never."""

    size_max: int | None = None
    """Bytes of one part; it may pass them by one batch."""
    age_max_ms: int | None = None
    """From its first record."""

    def __bool__(self) -> bool:
        return self.size_max is not None or self.age_max_ms is not None


class Parts:
    """The names of an output's files, and how a part comes to its own."""

    def __init__(self, path: Path, ending: str, *, is_rotated: bool = False, convert: Converter | None = None) -> None:
        """Prepare the names.

        Args:
            path: As it was given with -o.
            ending: Of the format, which `path` ends with: the number of a part stands before it.
            is_rotated: Whether there are several parts.
            convert: For a format that cannot be appended to.
        """
        self.path: Final = path
        self._convert = convert
        self._is_rotated = is_rotated
        self._ending = ending
        self._stem = path.name.removesuffix(ending)
        self.is_in_place: Final = not is_rotated and convert is None
        """Whether there is one file, and it has its name from the beginning."""

    def final(self, part: int) -> Path:
        """Return the name of a part that is finished."""
        if self._is_rotated or part:
            return self.path.with_name(f"{self._stem}-{part + 1:05d}{self._ending}")
        return self.path

    def active(self, part: int) -> Path:
        """Return the name of a part that is written."""
        final = self.final(part)
        return final if self.is_in_place else final.with_name(final.name + PART)

    def found(self) -> list[Path]:
        """Return every file of this output that is there, finished or not."""
        return sorted(path for paths in self._found().values() for path in paths)

    def _found(self) -> dict[int, list[Path]]:
        """Return the files that are there by the number of their part."""
        if self.is_in_place:
            return {0: [self.path]} if self.path.exists() else {}
        stem, ending = re.escape(self._stem), re.escape(self._ending)
        pattern = re.compile(rf"{stem}(?:-(\d{{5,}}))?{ending}({re.escape(PART)})?")
        found: dict[int, list[Path]] = {}
        for name in os.listdir(self.path.absolute().parent):
            match = pattern.fullmatch(name)
            if match is not None and not (self._is_rotated and match[1] is None):
                found.setdefault(int(match[1] or 1) - 1, []).append(self.path.with_name(name))
        return found

    def reopen(self, part: int, length: int) -> None:
        """Make a part that was finished one that is written, when the store says that it is not finished.

        Only a store that was restored from a backup says so. What was made from a journal cannot be reopened: then the
        part is missing, and `LockedFile.resume` says so.
        """
        active, final = self.active(part), self.final(part)
        if self._convert is None and length and final.exists() and not active.exists():
            try:
                os.rename(final, active)
                _sync_folder(final.absolute().parent)
            except OSError as error:
                raise disk_error(error, final) from error

    def settle(self, part: int) -> None:
        """Give every part before `part` its name, and remove those behind it, of which the store does not know.

        After a crash there may be one that has no name yet; after the restore of a backup, parts of what then came.

        Raises:
            SinkError: a file cannot be made or moved.
        """
        for number, paths in sorted(self._found().items()):
            for path in paths:
                try:
                    if number > part:
                        path.unlink()
                    elif number < part and path == self.active(number):
                        self._finish(path, self.final(number))
                except OSError as error:
                    raise disk_error(error, path) from error

    def _finish(self, active: Path, final: Path) -> None:
        """Put one part in place. Killed at any line it is done again, with the same result."""
        folder = final.absolute().parent
        if self._convert is None:
            os.rename(active, final)
            _sync_folder(folder)
            return
        made = final.with_name(f".{final.name}.making")
        made.unlink(missing_ok=True)
        try:
            self._convert(active, made)
            with open(made, "rb+") as file:
                os.fsync(file.fileno())
            os.rename(made, final)
        except BaseException:
            made.unlink(missing_ok=True)
            raise
        _sync_folder(folder)
        # Last: until the file is there whole, its journal is all there is.
        active.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open(path: Path) -> tuple[int, bool]:
    """Return a descriptor of the file, and whether it was made by this call."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), False
    # A file is durable only with its name: without this a power failure could leave confirmed records without one.
    _sync_folder(path.absolute().parent)
    return fd, True


def _write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data`: one call may write less than it was given (a signal, a disk that is nearly full)."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
