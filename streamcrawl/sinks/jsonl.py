"""JSON lines: each record is one line, as it came. Start at files.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamcrawl.sinks.files import BATCH_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamcrawl.sinks.files import LockedFile


class JsonLines:
    """The format of `.jsonl`, and of the journals of formats that are converted."""

    batch_max = BATCH_MAX

    def missing_at(self, file: LockedFile, offset: int) -> str:
        return "" if file.read(1, offset - 1) == b"\n" else f"end of a line at byte {offset}"

    def begin(self, file: LockedFile, offset: int) -> None:
        """Lines know nothing of each other."""

    def encode(self, records: Sequence[bytes], offset: int) -> bytes:
        return b"".join([part for record in records for part in (record, b"\n")])

    def written(self) -> None:
        """See `begin`."""
