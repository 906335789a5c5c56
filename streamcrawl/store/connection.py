"""Clients of Redis: how we connect, which servers we refuse, and what each error of redis-py means to us.

It never retries a command: after a lost connection a write may have happened, and only its caller knows whether it may
be sent again. Start at `connect` and `map_error`. Sources: redis-py 6 to 8 (its defaults for RESP, timeouts and
retries changed at 8.0, so each of them is given here); for Sentinel, the "Guidelines for Redis clients with support
for Redis Sentinel" (redis.io).
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit
from weakref import WeakValueDictionary

from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import ChildDeadlockedError, ReadOnlyError, RedisClusterException, RedisError
from redis.exceptions import ConnectionError as UnreachableError

from streamcrawl.errors import ConfigError, StoreError, StoreFull, StoreIncompatible, StoreUnavailable
from streamcrawl.store.restarts import Restarts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from urllib.parse import SplitResult

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

SENTINEL_TIMEOUT_MS: Final = 1000
"""For each Sentinel's answer: it is asked before a connection, by callers who wait, and the others answer as well."""
SENTINEL_PORT: Final = 26379
SENTINELS_MAX: Final = 16
"""Asked at once. Three to five are usual."""

_SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
_QUERY: Final = re.compile(r"^(db|username|password|ssl_\w+)$")
_CLIENT_OPTIONS: Final = ("host", "port", "path", "db", "username", "password", "credential_provider", "masters")
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_SENTINEL_QUERY: Final = ("sentinel_username", "sentinel_password")


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


def server_ms(time: tuple[int, int]) -> int:
    """Return in ms what the command TIME answers: seconds, and the microseconds beside them."""
    seconds, micros = time
    return seconds * 1000 + micros // 1000


def connect(url: str, *, blocking: bool = False, timeout_ms: int = SOCKET_TIMEOUT_MS) -> Redis:
    """Return a client of the server at `url`; nothing is sent before the first command. Close it with `aclose()`.

    Answers are bytes. No command is ever sent twice by the client: redis-py would by default repeat one whose answer
    was lost, which doubles a write and orphans what a read was given. The protocol is RESP2 in every version of
    redis-py, because the shape of a stream read differs in RESP3. No health checks: they cost a round trip and prove
    nothing about the next command.

    With a Sentinel URL each new connection goes to the master of that moment, and a client that learns of another
    master leaves its connections to the old one. What only the old one had heard is lost with it: replication is
    asynchronous.

    Args:
        url: `redis://`, `rediss://` or `unix://`, with user, password and database as usual; `ssl_...` options as a
            query. `redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/DB` names the Sentinels and the master
            that they watch, with `sentinel_username` and `sentinel_password` as a query where the Sentinels want their
            own; `rediss+sentinel://` speaks TLS to all of them.
        blocking: For XREADGROUP: exactly one connection, so a read that waits keeps nobody else from writing. A
            second command of the same client waits for the first.
        timeout_ms: For connecting and for each answer; for a blocking read above BLOCK_MS.

    Raises:
        ConfigError: the URL has another scheme, or something in it that we do not take.
    """
    _check_url(url)
    options = _options(blocking=blocking, timeout_ms=timeout_ms)
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True  # a peer that vanished without a word is noticed in an idle connection
    if "+sentinel:" in url:
        masters = _Masters.from_url(url, min(timeout_ms, SENTINEL_TIMEOUT_MS))
        options |= {"masters": masters, "connection_class": masters.connection_class}
        url = masters.master_url
    pool = BlockingConnectionPool.from_url(url, **options)
    pool.connection_class = _CLIENT_CLASSES[pool.connection_class]  # redis-py takes its own from the URL's scheme
    return Redis.from_pool(pool)


def connect_like(client: Redis, *, blocking: bool = False, timeout_ms: int = SOCKET_TIMEOUT_MS) -> Redis:
    """Return a client of our own (see `connect`) to where a client of somebody else leads; that one stays as it is.

    Not that client itself: it may decode answers, repeat commands whose answer was lost, and share its connections.

    Raises:
        ConfigError: it is no client of one server (of a cluster, of Sentinels by redis-py's own class).
    """
    pool = getattr(client, "connection_pool", None)
    kind = getattr(pool, "connection_class", None)
    if pool is None or kind not in _CLIENT_CLASSES:
        raise ConfigError(
            f"a {type(client).__name__} of this kind will not do: give a redis.asyncio.Redis of one server, or a URL "
            "(redis+sentinel://HOST:PORT/MASTER/DB where Sentinels watch it)"
        )
    # What redis-py adds for its own pool (maintenance notifications, counters of metrics) belongs to that pool.
    options = {k: v for k, v in pool.connection_kwargs.items() if k in _CLIENT_OPTIONS or k.startswith("ssl_")}
    options |= _options(blocking=blocking, timeout_ms=timeout_ms)
    if not issubclass(kind, UnixDomainSocketConnection):
        options["socket_keepalive"] = True
    return Redis.from_pool(BlockingConnectionPool(connection_class=_CLIENT_CLASSES[kind], **options))


def _options(*, blocking: bool, timeout_ms: int) -> dict[str, Any]:
    return {
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


def _check_url(url: str) -> None:
    """Raise ConfigError for a URL that redis-py would refuse, or would take for something else without a word."""

    def refused(why: str) -> ConfigError:
        return ConfigError(f"--redis {redacted(url)!r} will not do: {why}")

    try:
        parts = urlsplit(url)
        is_sentinel = parts.scheme.endswith("+sentinel")
        ports = [port for _, port in _sentinels_of(parts)] if is_sentinel else [parts.port]
    except ValueError as error:
        raise refused(
            "its host or port cannot be read; a '/', '@' or '#' in a password is written %2F, %40, %23"
        ) from error
    if parts.scheme not in _SCHEMES:
        raise refused(
            "write redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS), unix:///PATH/TO/SOCKET or "
            "redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DB"
        )
    if parts.fragment:
        raise refused("a '#' is written %23")
    if parts.scheme == "unix":
        if not parts.path.startswith("/"):
            raise refused("the socket needs its full path: unix:///PATH/TO/SOCKET")
    elif 0 in ports:
        raise refused("port 0 cannot be connected to")
    elif is_sentinel:
        if len(ports) > SENTINELS_MAX:
            raise refused(f"{SENTINELS_MAX} Sentinels at most; three of them are enough to find the master")
        if not re.fullmatch(r"/[^/]+(/\d*)?", parts.path):
            raise refused("after the Sentinels comes the name of the master, then the database: /MASTER/DB")
    elif not re.fullmatch(r"/?\d*", parts.path):
        raise refused(f"the database is a number, not {parts.path[1:]!r}")
    for name, values in parse_qs(parts.query, keep_blank_values=True).items():
        if not (_QUERY.match(name) or (is_sentinel and name in _SENTINEL_QUERY)):
            raise refused(f"the option {name!r} is not ours to change; db, username, password and ssl_... are")
        if name in _FILES and not os.path.isfile(values[0]):
            raise refused(f"{name} names the file {values[0]!r}, which is not there")
        if name == "db" and not values[0].isdigit():
            raise refused(f"the database is a number, not {values[0]!r}")


def redacted(url: str) -> str:
    """Return `url` fit for a log: every password in it is `***`. Works on what is no valid URL too."""
    url = re.sub(r"^([A-Za-z][\w+.-]*://[^:/@?#]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&]\w*password=)[^&#]*", r"\1***", url)


# -- connections


class _Cancellable(AbstractConnection):
    """Lets no cancellation be lost in a command.

    redis-py sends by asyncio.wait_for, which before Python 3.12 drops a cancellation that comes in the turn of the
    event loop in which the command was sent (gh-86296): a loop that is ended goes on, and who waits for it does so
    for ever. Of loops that send one command after the other, about one in four was lost (redis-py 8.1, 2026-12).
    """

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        await super().send_packed_command(*args, **options)
        if task is not None and task.cancelling() > before:
            # The answer that nobody reads would be taken for that of the next command.
            await self.disconnect(nowait=True)
            raise asyncio.CancelledError


class _TcpConnection(_Cancellable, Connection):
    pass


class _TlsConnection(_Cancellable, SSLConnection):
    pass


class _SocketConnection(_Cancellable, UnixDomainSocketConnection):
    pass


# -- Sentinel

Address = tuple[str, int]


class NoSuchMaster(RedisError):
    """The Sentinels watch no master of this name."""


class SentinelRefused(RedisError):
    """A Sentinel does not let us ask: user, password or permission."""


class NoSentinel(RedisError):
    """What answers in the place of a Sentinel is none."""


def _sentinels_of(parts: SplitResult) -> list[Address]:
    """Return host and port of each Sentinel of a URL.

    Raises:
        ValueError: one of them cannot be read.
    """
    sentinels = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{text}")
        if not one.hostname:
            raise ValueError(f"no host in {text!r}")
        sentinels.append((one.hostname, SENTINEL_PORT if one.port is None else one.port))
    return sentinels


class _Word(NamedTuple):
    """What one Sentinel says of the master."""

    epoch: int
    """Grows with each failover: the highest one is the newest word."""
    is_up: bool
    address: Address


class _Known:
    """Where a master was when it was last asked for."""

    address: Address | None = None


_KNOWN: Final[WeakValueDictionary[str, _Known]] = WeakValueDictionary()
"""Shared by the clients of one URL: a reader leaves the old master when any of them learns of the new one."""


class _Masters:
    """Finds the master of one client, by asking Sentinels.

    Not by redis-py's own Sentinel client: that believes the first one who answers, and a Sentinel that was cut off from
    the others goes on naming the old master. Here the highest epoch of a majority wins.
    """

    def __init__(
        self, sentinels: Sequence[Address], name: str, master_url: str, options: dict[str, Any], *, is_tls: bool
    ) -> None:
        self.name = name
        self.master_url = master_url
        """For redis-py to read user, database and the options of TLS from; it names no host."""
        self.connection_class = _MasterTlsConnection if is_tls else _MasterConnection
        self._sentinel_class = _TlsConnection if is_tls else _TcpConnection
        self.known = _KNOWN.setdefault(f"{name} {sentinels}", _Known())
        self._sentinels = sentinels
        self._options = options
        self._finding: asyncio.Task[Address] | None = None

    @classmethod
    def from_url(cls, url: str, timeout_ms: int) -> _Masters:
        """Return the finder of a URL that `_check_url` let pass."""
        parts = urlsplit(url)
        name, _, database = parts.path[1:].partition("/")
        query = dict(parse_qsl(parts.query))
        own = {part: query.pop(f"sentinel_{part}", None) for part in ("username", "password")}
        user = "".join(parts.netloc.rpartition("@")[:2])
        # Not rediss: redis-py would put its own class in the place of ours.
        master_url = f"redis://{user}/{database}?{urlencode(query)}"
        read = BlockingConnectionPool.from_url(master_url).connection_kwargs
        tls = {option: value for option, value in read.items() if option.startswith("ssl_")}
        options = own | tls | {"protocol": 2, "decode_responses": True, "retry": Retry(NoBackoff(), 0)}
        options |= {"socket_timeout": timeout_ms / 1000, "socket_connect_timeout": timeout_ms / 1000}
        is_tls = parts.scheme == "rediss+sentinel"
        return cls(_sentinels_of(parts), unquote(name), master_url, options, is_tls=is_tls)

    async def find(self) -> Address:
        """Return where the master is now; callers at the same time share one round of questions.

        Raises:
            MasterNotFoundError: no Sentinel answers, or all say that it is down: it may pass.
            NoSuchMaster: they do not know the name.
            SentinelRefused: one does not let us ask.
        """
        if self._finding is None:
            self._finding = asyncio.create_task(self._find(), name="sentinels")
            self._finding.add_done_callback(self._found)
        # Shielded: one caller who is cancelled must not take the answer from the others.
        return await asyncio.shield(self._finding)

    def _found(self, finding: asyncio.Task[Address]) -> None:
        self._finding = None
        if not finding.cancelled() and finding.exception() is None:
            self.known.address = finding.result()

    async def _find(self) -> Address:
        asking = {asyncio.create_task(self._ask(sentinel)) for sentinel in self._sentinels}
        words: list[_Word] = []
        errors: list[RedisError | OSError] = []
        waiting = set(asking)
        try:
            # A majority is enough, as it is for a failover: one that is cut off must not cost a timeout each time.
            while waiting and 2 * len(words) <= len(asking):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        words.append(task.result())
                    except (RedisError, OSError) as error:
                        errors.append(error)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        if words:
            word = max(words)
            if word.is_up:
                return word.address
            raise MasterNotFoundError(f"the master {self.name!r} is down and has no successor yet")
        for kind in (SentinelRefused, NoSuchMaster, NoSentinel):
            refusal = next((error for error in errors if isinstance(error, kind)), None)
            if refusal is not None:
                raise refusal
        asked = ", ".join(f"{host}:{port}" for host, port in self._sentinels)
        raise MasterNotFoundError(f"no Sentinel answers: {asked}; {errors[0]}") from errors[0]

    async def _ask(self, sentinel: Address) -> _Word:
        host, port = sentinel
        # One connection for each question: it is asked seldom, and an old one could be to a Sentinel that is gone.
        connection = self._sentinel_class(host=host, port=port, **self._options)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            await connection.send_command("SENTINEL", "MASTER", self.name)
            row: Any = await connection.read_response()
            # Its own words differ while a failover is under way: the second knows the successor first.
            await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
            now: Any = await connection.read_response()
        except RedisError as error:
            place, text = f"Sentinel {host}:{port}: {error}", str(error).lower()
            if "no such master" in text:
                raise NoSuchMaster(f"{self.name!r}; {place}") from error
            if "unknown command" in text:
                raise NoSentinel(place) from error
            if issubclass(_meaning_of(error)[0], StoreIncompatible):
                raise SentinelRefused(place) from error
            raise UnreachableError(place) from error
        finally:
            await connection.disconnect(nowait=True)
        fields: dict[str, str] = dict(zip(row[::2], row[1::2], strict=True))
        address = (now[0], int(now[1]))
        is_up = address != (fields["ip"], int(fields["port"])) or "o_down" not in fields["flags"]
        return _Word(int(fields["config-epoch"]), is_up, address)


class _MasterConnection(_TcpConnection):
    """A connection to whatever server is the master when it is opened. It never stays with one that is no master."""

    def __init__(self, *, masters: _Masters, **options: Any) -> None:
        self._masters = masters
        super().__init__(**options)

    async def connect(self) -> None:
        """Connect, unless we are; the pool calls this before each command."""
        if self.is_connected and (self.host, self.port) != self._masters.known.address:
            # Another connection learned of a failover: what is written to the old master now would be lost.
            await self.disconnect()
        if self.is_connected:
            return
        self.host, self.port = await self._masters.find()
        await super().connect()  # type: ignore[no-untyped-call]
        try:
            # The Sentinels' word may be older than the server's own: one that was demoted says so itself.
            await self.send_command("INFO", "replication")
            if b"role:master" not in bytes(await self.read_response(disable_decoding=True)):
                raise ReadOnlyError(f"{self.host}:{self.port} is no master any more")
        except BaseException:
            await self.disconnect()
            raise

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)
        except ReadOnlyError:
            await self.disconnect()  # the next command asks the Sentinels again
            raise


class _MasterTlsConnection(_MasterConnection, _TlsConnection):
    pass


_CLIENT_CLASSES: Final[dict[type[AbstractConnection], type[AbstractConnection]]] = {
    Connection: _TcpConnection,
    SSLConnection: _TlsConnection,
    UnixDomainSocketConnection: _SocketConnection,
    **{kind: kind for kind in (_TcpConnection, _TlsConnection, _SocketConnection)},
    **{kind: kind for kind in (_MasterConnection, _MasterTlsConnection)},
}
"""Of clients that `connect_like` can copy, and what they become in ours."""


# -- errors

_UNAVAILABLE: Final = "Redis does not answer now"
_SAID_MAX: Final = 200
"""Characters of what Redis itself said in one of our lines: MISCONF says 400."""
_CLUSTER: Final = "this server is a node of a Redis Cluster, which is not supported: give --redis a server that is none"
_OURS: Final = "Redis was used in a wrong way"

_Meaning = tuple[type[StoreError], str]

_MEANING: Final[dict[str, _Meaning]] = {
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
    "MasterNotFoundError": (StoreUnavailable, "the Sentinels name no master now"),
    "SlaveNotFoundError": (StoreUnavailable, "the Sentinels name no replica now"),
    "NoSuchMaster": (
        StoreIncompatible,
        "the Sentinels watch no master of that name: give the one of their `sentinel monitor` lines, "
        "redis+sentinel://HOST:PORT/MASTER/DB",
    ),
    "SentinelRefused": (
        StoreIncompatible,
        "a Sentinel refused us: put its own user and password into the URL, "
        "?sentinel_username=USER&sentinel_password=PASSWORD, and let that user ask it (ACL +sentinel)",
    ),
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
    "NoSentinel": (
        StoreIncompatible,
        f"what answers is no Sentinel: redis+sentinel:// names the Sentinels (port {SENTINEL_PORT} as a rule), not the "
        "servers they watch",
    ),
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

_MEANING_BY_CODE: Final[dict[str, _Meaning]] = {
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
    kind, meaning = _meaning_of(error)
    text = _one_line(error) or type(error).__name__
    if len(text) > _SAID_MAX:
        text = text[: _SAID_MAX - 1] + "…"
    return kind(f"{meaning} ({text})")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _meaning_of(error: Exception) -> _Meaning:
    # The commands of a pipeline put theirs in front: Command # 1 (GET a) of pipeline caused error: ('BUSY ...',)
    text = _one_line(error).rpartition(" of pipeline caused error: ")[2].lstrip("('\"")
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
        if text.startswith("UNBLOCKED") and "no longer exists" in text:
            # To a reader whose stream went away, where 8.2 says NOGROUP; other words mean a server that becomes a
            # replica.
            kind, meaning = _MEANING_BY_CODE["NOGROUP"]
        if re.match(r"(ERR )?(The user executing the script|ACL failure in script)", text):  # as 7.0 and 8.2 put it
            kind, meaning = _MEANING["NoPermissionError"]
        if text.lower().startswith(("unknown command", "err unknown command")):
            kind = StoreIncompatible
            meaning = "this server lacks a command: streamcrawl needs Redis 7.0 or Valkey 7.2, or newer"
    return kind, meaning


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
        port = info.get("tcp_port", "PORT")
        return f"this server is a Sentinel: write redis+sentinel://HOST:{port}/MASTER/DB, or give the server it watches"
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
