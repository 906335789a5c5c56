"""What a crawl needs to be created: an output that can be written, a scope of its first seeds, memory with a bound.

Shared by the commands that create crawls, `crawl` and `seed --create`. Nothing here asks Redis; name servers are asked
where the seeds may lie inside a network of one's own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.errors import ConfigError
from streamcrawl.rules.addresses import Inside, Network, network_of
from streamcrawl.rules.proxies import parse_proxies
from streamcrawl.rules.scope import SEEDS_KEPT_MAX, Scope
from streamcrawl.rules.urls import hostname_of
from streamcrawl.settings import CLASSES, Given, SettingClass
from streamcrawl.sinks.files import check_writable
from streamcrawl.sinks.targets import DEFAULT_ENDING, check_database, check_target, read_target
from streamcrawl.web.address_guard import AddressGuard
from streamcrawl.work.seeds import seed_url
from streamcrawl.work.supervisor import SinkSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamcrawl.cli.store import Store
    from streamcrawl.cli.stored import Stored
    from streamcrawl.settings import Settings
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.program import Program
    from streamcrawl.work.seeds import SeedLine

SEEDS_FOR_SCOPE_MAX: Final = 10_000
"""Seeds read ahead to find out which hosts the crawl is about; a scope remembers 1,000 of them."""
DURABLE_WAIT_MS: Final = 2000
"""A disk that takes longer is not waited for: it is the server that dies just then which matters."""
LOOKUP_S: Final = 3.0
"""For the names of seeds, all at once: who does not answer in that time counts as public."""


def settings_of_new_crawl(given: Mapping[str, Given]) -> dict[str, Given]:
    """Return what of the given settings is to be the crawl's own: without those of this machine, of whose proxies it
    keeps that there were some."""
    own = {field: one for field, one in given.items() if CLASSES[field][0] is not SettingClass.LOCAL}
    proxies = given.get("proxies")
    if proxies is not None and proxies.value:
        own.setdefault("proxied", Given(True, proxies.source))
    return own


def check_outputs(given: Sequence[str]) -> None:
    """Raise ConfigError for outputs that could not be written; none is the default."""
    targets = [read_target(one) for one in given]
    for target in targets:
        if target.path is not None:
            check_writable(target.path)
        if [other.place for other in targets].count(target.place) > 1:
            raise ConfigError(f"-o {target.place} is given twice")


def new_sinks(given: Sequence[str], name: str, settings: Settings, *, is_new: bool) -> list[SinkSpec]:
    """Return where the records of a crawl go: to what is given, else to NAME.jsonl in this folder.

    Raises:
        ConfigError: it cannot be written, or a new crawl would write behind what something else has written.
    """
    targets = [read_target(one) for one in given or [name + DEFAULT_ENDING]]
    for target in targets:
        check_target(target, settings, is_new=is_new)
    return [SinkSpec(target.name, target.place, target.url) for target in targets]


async def check_databases(sinks: Sequence[SinkSpec]) -> None:
    """Raise ConfigError when a database among the outputs does not take us."""
    for sink in sinks:
        if sink.url:
            await check_database(read_target(sink.url))


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


async def seeds_state(scope: Scope, settings: Settings, stored: Stored | None) -> dict[str, Any]:
    """Return the state of a crawl's scope, with the addresses of its seeds where all of them are inside a network.

    A name is looked up once, when it is first given as a seed. One that was public then stays so for the crawl: else
    whoever owns the name could open this network by moving it there before a resume.
    """
    state = scope.state()
    known: dict[str, list[str]] = dict(stored.scope.get("resolved", {})) if stored is not None else {}
    names = Inside.names_of(state["hosts"])
    before = {hostname_of(host) for host in stored.scope["hosts"]} if stored is not None else set()
    asked = [name for name in names if name not in before]
    # Proxies that resolve names are asked for no address either, so nothing is decided by what this machine finds.
    if asked and not settings.allow_private and not parse_proxies(settings.proxies).resolve_names:
        from streamcrawl.web.dns import Resolver  # brings aiohttp with it: 0.1 s that only seeds with a name need

        resolver = Resolver(AddressGuard(settings, Inside()), settings.nameservers)
        try:
            async with asyncio.timeout(LOOKUP_S):
                found = await asyncio.gather(*map(resolver.lookup, asked), return_exceptions=True)
        except TimeoutError:
            found = []
        finally:
            await resolver.close()
        for name, addresses in zip(asked, found, strict=False):
            if not isinstance(addresses, BaseException):
                known[name] = list(addresses)
    inside = {
        name: known[name]
        for name in names
        if name in known and Network.PUBLIC not in {network_of(address) for address in known[name]}
    }
    return {**state, "resolved": inside} if inside else state


def check_program(name: str, stored: Stored, *, is_program: bool) -> None:
    """Raise ConfigError when a crawl was begun by a program and is now worked at without, or the other way round."""
    if stored.app and not is_program:
        raise ConfigError(
            f"crawl {name!r} is of a program, without which its pages would go nowhere: streamcrawl run {stored.app}, "
            f"or streamcrawl worker {stored.app}"
        )
    if is_program and not stored.app:
        raise ConfigError(f"crawl {name!r} was begun without a program: give another --name, or --fresh to delete it")


def check_keep_bodies(settings: Mapping[str, Given], program: Program | None) -> None:
    """Raise ConfigError when pages are to be kept that nothing could parse again."""
    one = settings.get("keep_bodies_ms")
    if one is None or one.value is None or (program is not None and any(stage.is_page for stage in program.stages)):
        return
    raise ConfigError(
        f"{one.source}: fetched pages are kept for a stage that parses them, and "
        + ("this program has none: " if program is not None else "a crawl without a program has none: ")
        + "declare one with @crawl.page(own_stage=True), or leave it out"
    )


async def tell_flow(crawl: Shards, program: Program, outputs: Sequence[str]) -> None:
    """Tell a crawl of the stages of a program; those it has already stay.

    Raises:
        ConfigError: items wait for a stage that the program has no more, in no version, so nobody would read them.
    """
    lines = [stage.line for stage in program.stages]
    logs = program.logs()
    names = {stage.name for stage in program.stages}
    is_changed = False
    for frontier in crawl:
        known = await frontier.flow([], b"{}")
        is_new = not set(lines) <= set(known) or not logs.keys() <= await frontier.logs()
        is_changed = is_changed or (bool(known) and is_new)
        for line in known:
            if line.partition("@")[0] in names:
                continue
            waiting = await frontier.items_left(line)
            if waiting:
                raise ConfigError(
                    f"{waiting} items are left for stage {line!r}, which this program does not have: run the program "
                    f"that has it until they are done (streamcrawl worker MODULE:ATTRIBUTE --stage {line}), or drop "
                    f"them: streamcrawl queue drop {frontier.keys.crawl} --stage {line}"
                )
    flow = program.flow(outputs)
    for frontier in crawl:
        await frontier.flow(lines, flow, logs)
    if is_changed:
        # A crawl that is under way has pages to lose: a server that forgot the new stages would take nothing for them,
        # and what brings them would be buried as malformed. A new crawl is lost whole, or with its first pages.
        for frontier in crawl:
            await frontier.wait_durable(DURABLE_WAIT_MS)
