"""Keeps a password that was typed in the URL of a Redis or a database out of the list of processes.

Everybody on a machine can read that.

The command starts itself once more, in the same process: with `***` for the password in its arguments, and the whole
URL in its environment, which only its own user can read, until it has read it. For the moment before that, and for the
history of the shell, STREAMCRAWL_REDIS is the better place. Start at `hide_passwords`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from typing import Final

_VARIABLE: Final = "_STREAMCRAWL_HIDDEN"
_URL: Final = re.compile(
    r"(--redis=|--output=|-o=?)?((?:rediss?(?:\+sentinel)?|unix|postgres(?:ql)?)://.*)", re.IGNORECASE | re.DOTALL
)


def hide_passwords() -> None:
    """Start the command again when an argument has such a password in it: then `sys.argv` has it, and `ps` not."""
    hidden: list[str] = json.loads(os.environ.pop(_VARIABLE, "[]"))
    suspects = [word for word in sys.argv[1:] if _URL.match(word)]
    if not suspects:
        return
    from streamcrawl.store.connection import redacted  # redis-py, which --help does not wait for

    def shown(word: str) -> str:
        match = _URL.fullmatch(word)
        return word if match is None else (match[1] or "") + redacted(match[2])

    if hidden:
        for word in hidden:
            with suppress(ValueError):
                sys.argv[sys.argv.index(shown(word))] = word
        return
    secrets = [word for word in suspects if shown(word) != word]
    if secrets and sys.executable:
        os.environ[_VARIABLE] = json.dumps(secrets)
        with suppress(OSError):  # then it stays where whoever typed it has put it
            os.execv(sys.executable, [shown(word) if word in secrets else word for word in sys.orig_argv])
        del os.environ[_VARIABLE]
