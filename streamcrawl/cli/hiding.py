"""Keeps a password that was typed in the URL of a Redis, a database or a proxy out of the list of processes, which
everybody on a machine can read.

The command starts itself once more, in the same process: with `***` for the password in its arguments, and the whole
URL in its environment, which only its own user can read, until it has read it. For the moment before that, and for the
history of the shell, STREAMCRAWL_REDIS and STREAMCRAWL_PROXIES are the better places. Start at `hide_passwords`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from typing import Final

_VARIABLE: Final = "_STREAMCRAWL_HIDDEN"
_STORE: Final = re.compile(r"(--redis=|--output=|-o=?)?(rediss?(\+sentinel)?|unix|postgres(ql)?)://", re.IGNORECASE)
_PROXY: Final = re.compile(r"(--proxy=)?(https?|socks5h?)://\S*@", re.IGNORECASE)


def hide_passwords() -> None:
    """Start the command again when an argument has a password in it: then `sys.argv` has it, and `ps` not."""
    hidden: list[str] = json.loads(os.environ.pop(_VARIABLE, "[]"))
    suspects = {
        place: word
        for place, word in enumerate(sys.argv)
        # A URL to crawl may look like a proxy; it is one where its option says so.
        if place and (_STORE.match(word) or (_PROXY.match(word) and _is_of_proxy(place)))
    }
    if not suspects:
        return
    if hidden:
        for word in hidden:
            with suppress(ValueError):
                sys.argv[sys.argv.index(_shown(word))] = word
        return
    secrets = [word for word in suspects.values() if _shown(word) != word]
    if secrets and sys.executable:
        os.environ[_VARIABLE] = json.dumps(secrets)
        with suppress(OSError):  # then it stays where whoever typed it has put it
            os.execv(sys.executable, [_shown(word) if word in secrets else word for word in sys.orig_argv])
        del os.environ[_VARIABLE]


def _is_of_proxy(place: int) -> bool:
    return sys.argv[place].startswith("--proxy=") or sys.argv[place - 1] == "--proxy"


def _shown(word: str) -> str:
    option, url = re.fullmatch(r"(--redis=|--proxy=|--output=|-o=?)?(.*)", word, re.DOTALL).groups("")  # type: ignore[union-attr]
    if _STORE.match(url):
        from streamcrawl.store.connection import redacted  # redis-py, which --help does not wait for

        return option + redacted(url)
    from streamcrawl.rules.proxies import without_password

    return option + without_password(url)
