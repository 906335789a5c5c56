"""Clients of Redis: how we connect, which servers we refuse, and what each error of redis-py means to us.

It never retries a command: after a lost connection a write may have happened, and only its caller knows whether it may
be sent again. Start at `connect` and `map_error`. Sources: redis-py 6 to 8 (its defaults for RESP, timeouts and
retries changed at 8.0, so each of them is given here).
"""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ChildDeadlockedError, RedisClusterException, RedisError

from streamcrawl.errors import ConfigError, StoreError, StoreFull, StoreIncompatible, StoreUnavailable
from streamcrawl.store.restarts import Restarts

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_MS: Final = 1000
"""How long a blocking read waits in the server. A reader is stopped by a flag between two reads and never cancelled:
cancelling one that raced an XADD left the entry pending and unseen in 126 of 200 tries (redis-py 8.1, Redis 8.2.3)."""
SOCKET_TIMEOUT_MS: Final = 4000
"""For any answer. BLOCK_MS and 3 s: a read whose BLOCK reaches the socket's timeout fails although all is well."""
CONNECTIONS_MAX: Final = 16
"""Of one client that does not block. Who finds none free waits for one, instead of failing."""

Version = tuple[int, int, int]

REDIS_LEAST: Final[Version] = (7, 0, 0)
"""The first with script flags (allow-oom) and an XAUTOCLAIM that skips deleted entries."""
VALKEY_LEAST: Final[Version] = (7, 2, 0)
"""The first there is."""

_SCHEMES: Final = ("redis", "rediss", "unix")
_QUERY: Final = re.compile(r"^(db|username|password|ssl_\w+)$")


class NoScript(StoreError):
    """The server does not know the script's digest (a restart, SCRIPT FLUSH): load it and call again. Nothing ran."""


class NoGroup(StoreError):
    """The stream or its consumer group does not exist (a flush, a failover): create it and read again."""


class ServerInfo(NamedTuple):
    """What one server says of itself."""

    version: Version
    flavour: str
    """`redis` or `valkey`."""
    maxmemory: int
    """Bytes; 0 when it has no limit."""
    policy: str
    aof: bool
    """Whether it keeps an append-only file: without one a restart of the server loses the crawl."""
    os_pid: int
    """0 when the server hides it."""
    run_id: str
    """Another one after every restart."""


def connect(url: str, *, blocking: bool = False, timeout_ms: int = SOCKET_TIMEOUT_MS) -> Redis:
    """Return a client of the server at `url`; nothing is sent before the first command. Close it with `aclose()`.

    Answers are bytes. No command is ever sent twice by the client: redis-py would by default repeat one whose answer
    was lost, which doubles a write and orphans what a read was given. The protocol is RESP2 in every version of
    redis-py, because the shape of a stream read differs in RESP3. No health checks: they cost a round trip and prove
    nothing about the next command.

    Args:
        url: `redis://`, `rediss://` or `unix://`, with user, password and database as usual; `ssl_...` options as a
            query.
        blocking: For XREADGROUP: exactly one connection, so a read that waits keeps nobody else from writing. A
            second command of the same client waits for the first.
        timeout_ms: For connecting and for each answer; for a blocking read above BLOCK_MS.

    Raises:
        ConfigError: the URL has another scheme, or something in it that we do not take.
    """
    _check_url(url)
    options: dict[str, Any] = {
        "protocol": 2,
        "decode_responses": False,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout_ms / 1000,
        "socket_connect_timeout": timeout_ms / 1000,
        "health_check_interval": 0,
        "max_connections": 1 if blocking else CONNECTIONS_MAX,
        "redis_connect_func": Restarts().on_connect,
        # Of the pool: how long to wait for a free connection. Each one is free again after its own socket timeout.
        "timeout": 2 * timeout_ms / 1000,
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True  # a peer that vanished without a word is noticed in an idle connection
    return Redis.from_pool(BlockingConnectionPool.from_url(url, **options))


def _check_url(url: str) -> None:
    """Raise ConfigError for a URL that redis-py would refuse, or would take for something else without a word."""

    def refused(why: str) -> ConfigError:
        return ConfigError(f"--redis {redacted(url)!r} will not do: {why}")

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise refused(
            "its host or port cannot be read; a '/', '@' or '#' in a password is written %2F, %40, %23"
        ) from error
    if parts.scheme not in _SCHEMES:
        raise refused("write redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix:///PATH/TO/SOCKET")
    if parts.fragment:
        raise refused("a '#' is written %23")
    if parts.scheme == "unix":
        if not parts.path.startswith("/"):
            raise refused("the socket needs its full path: unix:///PATH/TO/SOCKET")
    elif port == 0:
        raise refused("port 0 cannot be connected to")
    elif not re.fullmatch(r"/?\d*", parts.path):
        raise refused(f"the database is a number, not {parts.path[1:]!r}")
    for name, values in parse_qs(parts.query, keep_blank_values=True).items():
        if not _QUERY.match(name):
            raise refused(f"the option {name!r} is not ours to change; db, username, password and ssl_... are")
        if name == "db" and not values[0].isdigit():
            raise refused(f"the database is a number, not {values[0]!r}")


def redacted(url: str) -> str:
    """Return `url` fit for a log: every password in it is `***`. Works on what is no valid URL too."""
    url = re.sub(r"^([A-Za-z][\w+.-]*://[^:/@?#]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&]password=)[^&#]*", r"\1***", url)


# -- errors

_UNAVAILABLE: Final = "Redis does not answer now"
_CLUSTER: Final = "this server is a node of a Redis Cluster, which is not supported: give --redis a server that is none"
_OURS: Final = "Redis was used in a wrong way"

_MEANING: Final[dict[str, tuple[type[StoreError], str]]] = {
    # By the class's name, so that one table serves redis-py 6 to 8 and Python's own errors of the same names.
    "ConnectionError": (StoreUnavailable, _UNAVAILABLE),
    "TimeoutError": (StoreUnavailable, _UNAVAILABLE),
    "OSError": (StoreUnavailable, _UNAVAILABLE),
    "MaxConnectionsError": (StoreUnavailable, "all connections to Redis are in use"),
    "BusyLoadingError": (StoreUnavailable, "Redis is loading its data"),
    "ReadOnlyError": (StoreUnavailable, "Redis is a replica now (failover)"),
    "TryAgainError": (StoreUnavailable, _UNAVAILABLE),
    "ClusterDownError": (StoreUnavailable, _UNAVAILABLE),
    "MasterDownError": (StoreUnavailable, _UNAVAILABLE),
    "ClusterError": (StoreUnavailable, _UNAVAILABLE),
    "SlotNotCoveredError": (StoreUnavailable, _UNAVAILABLE),
    "ExternalAuthProviderError": (StoreUnavailable, "the authentication provider of Redis failed"),
    "OutOfMemoryError": (StoreFull, "Redis is full: raise its maxmemory (--memory-max of an embedded one) and resume"),
    "AuthenticationError": (
        StoreIncompatible,
        "Redis refused the user or the password: put both into the URL, redis://USER:PASSWORD@HOST:PORT",
    ),
    "AuthenticationWrongNumberOfArgsError": (
        StoreIncompatible,
        "Redis takes a password without a user: leave the user out of the URL, redis://:PASSWORD@HOST:PORT",
    ),
    "AuthorizationError": (StoreIncompatible, "the user of the URL has no access to this Redis"),
    "NoPermissionError": (
        StoreIncompatible,
        "the Redis user may not do this: grant it the command and the keys (ACL SETUSER USER ~streamcrawl:* +@all)",
    ),
    "InvalidResponse": (
        StoreIncompatible,
        "what answers does not speak the protocol of Redis: check host, port and redis:// or rediss:// of the URL",
    ),
    "MovedError": (StoreIncompatible, _CLUSTER),
    "AskError": (StoreIncompatible, _CLUSTER),
    "ClusterCrossSlotError": (StoreIncompatible, _CLUSTER),
    "RedisClusterException": (StoreIncompatible, _CLUSTER),
    "CrossSlotTransactionError": (StoreIncompatible, _CLUSTER),
    "NoScriptError": (NoScript, "Redis does not have the script"),
    # What is left cannot come from the commands we send, or is a mistake of ours: nobody can act on it but a developer.
    "RedisError": (StoreError, _OURS),
    "ResponseError": (StoreError, "Redis answered with an error"),
    "DataError": (StoreError, _OURS),
    "ExecAbortError": (StoreError, _OURS),
    "PubSubError": (StoreError, _OURS),
    "WatchError": (StoreError, _OURS),
    "LockError": (StoreError, _OURS),
    "LockNotOwnedError": (StoreError, _OURS),
    "ModuleError": (StoreError, _OURS),
    "NoSuchFieldsetError": (StoreError, _OURS),
    "InvalidPipelineStack": (StoreError, _OURS),
    "IncorrectPolicyType": (StoreError, _OURS),
    "ChildDeadlockedError": (StoreError, _OURS),
}

_MEANING_BY_CODE: Final[dict[str, tuple[type[StoreError], str]]] = {
    # The first word of an answer for which redis-py has no class.
    "BUSY": (StoreUnavailable, "Redis is busy with a script"),
    "MISCONF": (StoreUnavailable, "Redis cannot write to its disk: make room there, it goes on by itself"),
    "NOREPLICAS": (StoreUnavailable, "Redis waits for its replicas (min-replicas-to-write)"),
    "UNBLOCKED": (StoreUnavailable, "Redis gave a blocking read up"),
    "NOGROUP": (NoGroup, "the stream or its group does not exist"),
    "WRONGTYPE": (StoreIncompatible, "a key of ours has another type: something else writes to this database"),
}

_REDIS_ERRORS: Final = (RedisError, RedisClusterException, ChildDeadlockedError, OSError)
"""What a call of redis-py can raise, but for cancellation."""


def map_error(error: Exception) -> StoreError:
    """Return what an error of redis-py means to us; the caller raises it `from` the error.

    StoreUnavailable: back off and go on (the command may have been executed). StoreFull: writes that need memory are
    refused. StoreIncompatible: an operator must do something, and the message says what. NoScript and NoGroup: the
    caller repairs and repeats. A plain StoreError: a mistake of ours.
    """
    if isinstance(error, StoreError):
        return error
    text = " ".join(str(error).split())
    kind, meaning = next(
        (_MEANING[base.__name__] for base in type(error).__mro__ if base.__name__ in _MEANING), (StoreError, _OURS)
    )
    if "[SSL" in text:
        kind = StoreIncompatible
        meaning = (
            "no TLS with this server: check rediss://, the port, and ?ssl_ca_certs=FILE for an authority of your own"
        )
    elif kind is StoreError:
        kind, meaning = _MEANING_BY_CODE.get(text.split(" ", 1)[0], (kind, meaning))
        if text.lower().startswith(("unknown command", "err unknown command")):
            kind = StoreIncompatible
            meaning = "this server lacks a command: streamcrawl needs Redis 7.0 or Valkey 7.2, or newer"
    return kind(f"{meaning} ({text or type(error).__name__})")


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Raise what `map_error` says in place of any error of redis-py inside the block."""
    try:
        yield
    except _REDIS_ERRORS as error:
        raise map_error(error) from error


# -- servers


def version_refusal(flavour: str, version: Version) -> str | None:
    """Return why a server of this version is refused, with what mends it; None when it is not."""
    name = f"{flavour.capitalize()} {'.'.join(map(str, version))}"
    least = VALKEY_LEAST if flavour == "valkey" else REDIS_LEAST
    if version < least:
        return f"{name} is too old: streamcrawl needs Redis 7.0 or Valkey 7.2, or newer"
    if flavour == "redis" and (8, 2, 0) <= version <= (8, 2, 2):
        return f"{name} lets a client overflow its stack (CVE-2025-62507): install 8.2.3 or newer"
    return None


def parse_version(text: str) -> Version:
    """Return `7.0.15` as three numbers; what is missing or no number is 0 (`8.0.0-rc1`, `255.255.255`)."""
    major, minor, patch, *_ = [*map(int, re.findall(r"\d+", text)[:3]), 0, 0, 0]
    return major, minor, patch


async def check_server(client: Redis) -> ServerInfo:
    """Return what the server says of itself, once it is one that we can trust a crawl to.

    Raises:
        StoreIncompatible: too old, a version with a known hole, an eviction policy that drops keys, a replica, a
            Sentinel or a cluster node; one sentence says what mends it.
        StoreUnavailable: it does not answer.
    """
    with mapped_errors():
        info: dict[str, Any] = await client.info()
    why = server_refusal(info)
    if why is not None:
        raise StoreIncompatible(why)
    return server_info(info)


def server_refusal(info: dict[str, Any]) -> str | None:
    """Return why a server that answers this to INFO is refused, with what mends it; None when it is not."""
    server = server_info(info)
    mode = info.get("redis_mode") or info.get("server_mode")
    if (why := version_refusal(server.flavour, server.version)) is not None:
        return why
    if mode == "sentinel":
        return "this server is a Sentinel: give --redis the server that it watches"
    if mode == "cluster" or info.get("cluster_enabled"):
        return _CLUSTER
    if info.get("role") == "slave":
        return (
            f"this server is a replica: give --redis its primary, {info.get('master_host')}:{info.get('master_port')}"
        )
    if server.policy != "noeviction":
        return (
            f"maxmemory-policy {server.policy} lets Redis drop parts of a crawl without a word: "
            "redis-cli CONFIG SET maxmemory-policy noeviction"
        )
    return None


def server_info(info: dict[str, Any]) -> ServerInfo:
    """Return the ServerInfo of an answer to INFO."""
    # Valkey calls itself redis_version 7.2.4 for the sake of old clients, whatever its own version.
    flavour = "valkey" if "valkey_version" in info or info.get("server_name") == "valkey" else "redis"
    version = info.get("valkey_version") or info.get("redis_version") or ""
    return ServerInfo(
        version=parse_version(str(version)),
        flavour=flavour,
        maxmemory=int(info.get("maxmemory") or 0),
        policy=str(info.get("maxmemory_policy") or "noeviction"),
        aof=bool(info.get("aof_enabled")),
        os_pid=int(info.get("process_id") or 0),
        run_id=str(info.get("run_id") or ""),
    )


async def wait_for_server(client: Redis, timeout_s: float) -> None:
    """Return once the server answers PING, which it does not before its data is loaded.

    Raises:
        StoreUnavailable: `timeout_s` passed; the last reason is in it.
        StoreIncompatible: it answers, and refuses us: waiting would not mend that.
    """
    pause_s = 0.05
    last: StoreError | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    with mapped_errors():
                        await client.ping()
                    return
                except StoreUnavailable as error:
                    last = error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 1.0)
    except TimeoutError as error:
        raise StoreUnavailable(f"waited {timeout_s:g} s for Redis: {last or 'no answer'}") from (last or error)


async def memory_usage(client: Redis) -> tuple[int, int]:
    """Return (bytes in use, maxmemory in bytes; 0 when the server has no limit)."""
    with mapped_errors():
        info: dict[str, Any] = await client.info("memory")
    return int(info["used_memory"]), int(info["maxmemory"])
