"""streamcrawl: a distributed crawler on Redis Streams. ARCHITECTURE.md tells the life of one task.

The command is `streamcrawl` (cli/). A program of your own touches what is here: `Crawl`, `Response`, `Request`,
`Retry`, `Drop`; one with a queue and no crawl: `TaskQueue`, and what it raises.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamcrawl.crawl import Crawl, Resource
    from streamcrawl.errors import LeaseLost, QueueClosed, QueueGone
    from streamcrawl.queue.task_queue import Handle, QueueEmpty, QueueFull, TaskQueue
    from streamcrawl.response import Drop, Request, Response, Retry

__version__ = "0.1.0"
__all__ = [
    "Crawl",
    "Drop",
    "Handle",
    "LeaseLost",
    "QueueClosed",
    "QueueEmpty",
    "QueueFull",
    "QueueGone",
    "Request",
    "Resource",
    "Response",
    "Retry",
    "TaskQueue",
    "__version__",
]

_MODULES = {
    "streamcrawl.crawl": ("Crawl", "Resource"),
    "streamcrawl.response": ("Drop", "Request", "Response", "Retry"),
    "streamcrawl.queue.task_queue": ("Handle", "QueueEmpty", "QueueFull", "TaskQueue"),
    "streamcrawl.errors": ("LeaseLost", "QueueClosed", "QueueGone"),
}


def __getattr__(name: str) -> object:
    # Looked up when used: the parser behind Response would cost every `streamcrawl --help` its import.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
