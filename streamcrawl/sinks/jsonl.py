"""The file side of "exactly once": one writer, whole batches, and a length that the store decides.

A batch counts once the store has its end offset (`sink_commit`); whatever lies behind that offset was written by a
process that died before its commit, and `resume` cuts it off. This module never talks to Redis and knows nothing of
records but that each is one line. Start at `JsonlFile`; the loop that joins both sides is sinks/loop.py.

Methods block on the disk: call them in a thread. Sources: flock(2), fsync(2), open(2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from streamcrawl.errors import ConfigError, SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a disk that somebody may mend while the crawl waits: no space, quota, size limit, a device that is away."""
_MENDED_BY: Final = "Put it back, or start over with --fresh"
LOCK_WAIT_S: Final = 5.0
"""For the lock: a writer whose crawl was killed notices it within about a second, perhaps in the middle of a write."""
_LOCK_POLL_S: Final = 0.05


class SinkDiskFull(SinkError):
    """The disk refused a batch. The file is as it was before; the same batch may be tried again later."""


class SinkBusy(SinkError):
    """Another process has the file open for writing."""


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


class JsonlFile:
    """One output file, locked for as long as it is open: by `close()`, or by the death of the process.

    After a crash the file holds all committed batches, then perhaps a part of one more, which `resume` removes.
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
        """Length of what is written and durable; moved by `resume` and `append` only."""
        self._is_dirty = False
        try:
            self._fd, self._is_new = _open(self.path)
        except OSError as error:
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

    def close(self) -> None:
        """Close the file and so give its lock up; may be called again."""
        if self._fd != -1:
            os.close(self._fd)
            self._fd = -1

    def resume(self, offset: int) -> None:
        """Go on from the offset that the store has: what lies behind it is cut off.

        After a store was restored from a backup that is the tail which the store no longer knows of.

        Raises:
            SinkError: it is not the file that was written, or not all of it: committed records are missing.
        """
        length = os.fstat(self._fd).st_size
        if length < offset and self._is_new:
            self._unmake()
            raise self._error(f"is not there, but {offset} bytes of it were written and confirmed. {_MENDED_BY}")
        if length < offset:
            raise self._error(
                f"is {length} bytes long, but {offset} were written and confirmed: it was cut or replaced. {_MENDED_BY}"
            )
        if offset and os.pread(self._fd, 1, offset - 1) != b"\n":
            # Cut there, a line that somebody else wrote would be broken in two.
            raise self._error(
                f"has no end of a line at byte {offset}, up to which it was written and confirmed: it is another file. "
                f"{_MENDED_BY}"
            )
        try:
            self._cut(offset)
        except OSError as error:
            raise self._error(f"cannot be cut to {offset} bytes: {error.strerror}") from error
        self.offset = offset

    def append(self, records: Sequence[bytes]) -> int:
        """Write records, one line each, make them durable, and return the new offset; all of them or none.

        A crash leaves a part of the batch behind the old offset, which the next `resume` cuts off.

        Raises:
            SinkDiskFull: no space or a failing device; the file is cut back and the batch may be tried again.
            SinkError: any other failure, or the file was deleted.
        """
        data = b"".join([part for record in records for part in (record, b"\n")])
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
            if error.errno in _FULL:
                raise SinkDiskFull(f"{self.path}: {error.strerror}", stage="sink") from error
            raise self._error(f"cannot be written: {error.strerror}") from error
        self._is_dirty = False
        self.offset += len(data)
        return self.offset

    def _unmake(self) -> None:
        """Delete the file that `_open` made, unless its place was taken: an empty one would look like a result."""
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino == os.fstat(self._fd).st_ino:
                os.unlink(self.path)

    def _cut(self, offset: int) -> None:
        os.ftruncate(self._fd, offset)
        os.fsync(self._fd)
        self._is_dirty = False

    def _error(self, what: str) -> SinkError:
        return SinkError(f"{self.path} {what}", stage="sink")


def _open(path: Path) -> tuple[int, bool]:
    """Return a descriptor of the file, and whether it was made by this call."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), False
    # A file is durable only with its name: without this a power failure could leave confirmed records without one.
    folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return fd, True


def _write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data`: one call may write less than it was given (a signal, a disk that is nearly full)."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
