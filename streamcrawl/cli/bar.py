"""Work over many tasks: how far it has come, and Ctrl-C between two windows of it.

A bar on a terminal; elsewhere a line every ten seconds. On standard error, so that results can be piped.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from streamcrawl.ops.letters import Tally

LINE_S: Final = 10.0


class Bar:
    """Shows a `Tally` as it grows; `watch` is what operations call after each window.

    The first Ctrl-C lets the window that is under way end and stops there; a second one ends at once, also in the
    middle of a regular expression. Either way nothing is half done: a window is one script call.
    """

    def __init__(self, verb: str, total: int) -> None:
        """Prepare it; `verb` as in `verb 200 of 1,000`, `total` tasks to look at."""
        self._verb = verb
        self._total = total
        self._console = Console(stderr=True)
        self._progress: Progress | None = None
        self._task: Any = None
        self._told_at = time.monotonic()
        self._is_stopped = False
        self._handler_before: Any = None

    def __enter__(self) -> Self:
        # Not by the loop's own handler: it runs between two awaits only, and never within a regular expression.
        self._handler_before = signal.signal(signal.SIGINT, self._on_signal)
        if self._console.is_terminal and self._total:
            self._progress = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(), console=self._console, transient=True,
            )  # fmt: skip
            self._task = self._progress.add_task(self._verb, total=self._total, note="")
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        signal.signal(signal.SIGINT, self._handler_before)

    def _on_signal(self, *_: object) -> None:
        if self._is_stopped:
            raise KeyboardInterrupt
        self._is_stopped = True
        # Written past every buffer: it may have come in the middle of another write.
        with suppress(OSError):
            os.write(2, b"\nstopping after this window; once more to stop at once\n")

    def watch(self, tally: Tally) -> bool:
        """Show how far it is; False when it is to stop."""
        note = ", ".join(f"{word.lower()} {count:,}" for word, count in tally.words.items() if count)
        if self._progress is not None:
            self._progress.update(self._task, completed=tally.looked, note=note)
        elif time.monotonic() - self._told_at >= LINE_S:
            self._told_at = time.monotonic()
            text = f"{self._verb}: {tally.looked:,} of {self._total:,} looked at{f', {note}' if note else ''}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        return not self._is_stopped

    @property
    def is_stopped(self) -> bool:
        """Ctrl-C was pressed."""
        return self._is_stopped
