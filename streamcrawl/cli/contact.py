"""Whom can the owner of a site write to who minds the crawl? Asked for when the User-Agent does not say, before a crawl
that may fetch more than some hundred pages of other people's sites.

On a terminal it is asked, and Enter is an answer; elsewhere one line says what to give. Nothing waits for it: a crawler
that refuses to start would be taught to lie. A crawl that stays inside a network of one's own (rules/addresses.py) is
nobody else's business, and is never asked. Start at `is_missing`.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.errors import ConfigError
from streamcrawl.rules.addresses import Inside
from streamcrawl.settings import Settings, make_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PAGES_MIN: Final = 300
"""A crawl of fewer pages is soon over: it is not worth a question."""
ANSWER_S: Final = 60.0
"""Nobody is there: the crawl begins without."""
TRIES_MAX: Final = 3
MISSING: Final = (
    "the User-Agent of this crawl names nobody to write to: give --contact you@example.org, or the address of a page "
    "about it, so that who minds can say so rather than block it"
)
_QUESTION: Final = (
    "Whom can the owners of these sites write to? It is sent with the User-Agent: you@example.org, or a page about the "
    "crawl; Enter for nobody: "
)
_REACHABLE: Final = re.compile(r"@|https?://|www\.", re.IGNORECASE)


def is_missing(settings: Settings, scope: Mapping[str, Any]) -> bool:
    """Return whether a crawl with this state of its scope should name a contact and does not."""
    if settings.contact is not None or _REACHABLE.search(settings.user_agent):
        return False
    if settings.pages_max is not None and settings.pages_max <= PAGES_MIN:
        return False
    return not Inside.of_state(scope).networks


def can_ask() -> bool:
    """Return whether somebody sits at this command: a background job that reads its terminal would be stopped."""
    try:
        return sys.stderr.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # closed, or no terminal of ours
        return False


async def ask(log: Callable[[str], None]) -> str | None:
    """Ask on the terminal; None when nobody is to be named, or nobody answers."""
    for _ in range(TRIES_MAX):
        sys.stderr.write(_QUESTION)
        sys.stderr.flush()
        try:
            async with asyncio.timeout(ANSWER_S):
                text = await _line()
        except TimeoutError:
            text = ""
            log("")
        if not text:
            return None
        try:
            return make_settings("any", {"contact": text}).contact
        except ConfigError as error:
            log(str(error))
    return None


async def _line() -> str:
    # Not in a thread: one that waits for a line cannot be cancelled, so Ctrl-C would have to wait for Enter.
    loop, there = asyncio.get_running_loop(), asyncio.Event()
    descriptor = sys.stdin.fileno()
    loop.add_reader(descriptor, there.set)
    try:
        await there.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, 1024).decode("utf-8", "replace").strip()  # a terminal hands over whole lines
