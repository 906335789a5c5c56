"""streamcrawl: a distributed crawler on Redis Streams. ARCHITECTURE.md tells the life of one task.

The command is `streamcrawl` (cli/). A program of your own touches what is here: `Crawl`, `Response`, `Request`,
`Retry`, `Drop`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamcrawl.crawl import Crawl, Resource
    from streamcrawl.response import Drop, Request, Response, Retry

__version__ = "0.1.0"
__all__ = ["Crawl", "Drop", "Request", "Resource", "Response", "Retry", "__version__"]


def __getattr__(name: str) -> object:
    # Looked up when used: the parser behind Response would cost every `streamcrawl --help` its import.
    if name in ("Crawl", "Resource"):
        from streamcrawl import crawl

        return getattr(crawl, name)
    if name in __all__:
        from streamcrawl import response

        return getattr(response, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
