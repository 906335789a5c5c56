"""What a crawl needs to be created: an output that can be written, a scope of its first seeds, memory with a bound.

Shared by the commands that create crawls, `crawl` and `seed --create`. Nothing here asks Redis.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streamcrawl.errors import ConfigError
from streamcrawl.rules.scope import SEEDS_KEPT_MAX, Scope
from streamcrawl.sinks.jsonl import check_writable
from streamcrawl.work.seeds import seed_url
from streamcrawl.work.supervisor import SinkSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamcrawl.cli.running import Stored
    from streamcrawl.cli.store import Store
    from streamcrawl.settings import Settings
    from streamcrawl.work.seeds import SeedLine

SEEDS_FOR_SCOPE_MAX: Final = 10_000
"""Seeds read ahead to find out which hosts the crawl is about; a scope remembers 1,000 of them."""
SUFFIX: Final = ".jsonl"


def check_output(path: str | None) -> None:
    """Raise ConfigError for an output that could not be written; None is the default."""
    if path is None:
        return
    if not path.endswith(SUFFIX):
        raise ConfigError(f"-o {path}: the only format is JSON lines; name the file FILE{SUFFIX}")
    check_writable(Path(path))


def new_sink(given: str | None, name: str, *, is_new: bool) -> SinkSpec:
    """Return where the records of a crawl go: to the given file, else to NAME.jsonl in this folder.

    Raises:
        ConfigError: it cannot be written, or a new crawl would write behind what something else has written.
    """
    path = Path(os.path.abspath(given if given is not None else name + SUFFIX))
    check_writable(path)
    if is_new and path.exists() and path.stat().st_size:
        raise ConfigError(
            f"{path} exists and is not of this crawl: name another file with -o, or delete it, or give --fresh"
        )
    return SinkSpec(f"out-{blake2b(str(path).encode(), digest_size=4).hexdigest()}", str(path))


def check_memory(store: Store, settings: Settings) -> None:
    """Raise ConfigError when nothing bounds the memory of the crawl."""
    if not store.memory_max_bytes and settings.memory_max_bytes is None:
        raise ConfigError(
            "this Redis has no memory limit and --memory-max is not given; one of the two must be set "
            "(--memory-max 2GB, or redis-cli CONFIG SET maxmemory 2gb)"
        )


def merged_scope(settings: Settings, head: Sequence[SeedLine], stored: Stored | None) -> Scope:
    """Return the scope of the first seeds, with the hosts and prefixes that the crawl had before."""
    scope = Scope.from_settings(settings, (seed_url(line.text)[0] or "" for line in head))
    if stored is None:
        return scope
    now = scope.state()
    hosts, prefixes = (
        list(dict.fromkeys([*stored.scope[part], *now[part]]))[:SEEDS_KEPT_MAX] for part in ("hosts", "prefixes")
    )
    return Scope(settings, settings.scope, hosts, prefixes)
