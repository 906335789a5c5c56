"""Loads the `.lua` files and runs them by EVALSHA.

A script's name on the server is the hash of its content, so two versions of streamcrawl can work side by side during a
deploy. `-- include _name` lines are replaced by the fragment of that name; what reaches the server is one text.

What follows `_state` becomes a function of its own. Lua looks for each variable that a new function uses among all of
the function around it, one by one, but takes directly what that one has from outside itself. Without this a third of
an empty commit went by in looking, for a hundred functions, for what `_state` keeps (instructions, 2026-12-01).
"""

from __future__ import annotations

import hashlib
import re
import time
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError, ResponseError

from streamcrawl.errors import CrawlGone
from streamcrawl.store.connection import map_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

_INCLUDE: Final = re.compile(r"^-- include (_\w+)$", re.MULTILINE)
_LUA: Final = resources.files("streamcrawl.store") / "lua"


def _read(name: str) -> str:
    return (_LUA / f"{name}.lua").read_text("utf-8")


@cache
def source(name: str) -> str:
    """Return the text of `lua/<name>.lua` with its fragments in place, and theirs."""
    head, state, rest = _read(name).partition("-- include _state\n")
    if state:
        return f"{_with_fragments(head + state)}return (function()\n{_with_fragments(rest)}end)()\n"
    return _with_fragments(head)


def _with_fragments(text: str) -> str:
    return _INCLUDE.sub(lambda match: source(match[1]), text)


@cache
def digest(name: str) -> str:
    """Return the SHA-1 by which the server knows the script."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


def script_names(*, of_queues: bool = False) -> list[str]:
    """Return the names of all scripts of crawls, or of queues by themselves; sorted, fragments left out."""
    names = (entry.name.removesuffix(".lua") for entry in _LUA.iterdir() if entry.name.endswith(".lua"))
    return sorted(name for name in names if name[0] != "_" and name.startswith("queue_") == of_queues)


class Scripts:
    """Runs scripts on one shard's `state` key."""

    def __init__(self, client: Redis, state_key: str) -> None:
        self._client: Any = client  # redis-py leaves execute_command untyped
        self._key = state_key
        self.observe: Callable[[str, float], None] | None = None
        """Called with the name of a script that was answered, and the seconds that it took; None: nobody counts."""

    async def run(self, name: str, *args: Any) -> list[Any]:
        """Run a script and return its answer, a list whose first element is a word (bytes).

        Raises:
            CrawlGone: the script answered GONE.
            StoreError: whatever redis-py raised, mapped. After StoreUnavailable the script may have run; each is safe
                to repeat.
        """
        asked = time.monotonic()
        try:
            answer = await self._client.execute_command("EVALSHA", digest(name), 1, self._key, *args)
        except ResponseError as error:
            if not _is_noscript(error):
                raise map_error(error) from error
            # A restarted or failed-over server knows no scripts; EVAL runs it and loads it in one step.
            try:
                answer = await self._client.execute_command("EVAL", source(name), 1, self._key, *args)
            except (RedisError, OSError) as again:
                raise map_error(again) from again
        except (RedisError, OSError) as error:
            raise map_error(error) from error
        if self.observe is not None:
            self.observe(name, time.monotonic() - asked)
        if answer[0] == b"GONE":
            raise CrawlGone("this crawl was deleted or begun afresh by someone else; this worker ends")
        return list(answer)


def _is_noscript(error: ResponseError) -> bool:
    # redis-py strips the code from the message of the errors it knows, so look at both.
    return type(error).__name__ == "NoScriptError" or str(error).startswith("NOSCRIPT")
