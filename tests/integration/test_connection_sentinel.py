"""Sentinel URLs against real Sentinels: who is found, what is refused, and that nothing is written to an old master."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

import pytest
import redis.asyncio.sentinel
import redis.sentinel

from streamcrawl.errors import ConfigError, StoreIncompatible, StoreUnavailable
from streamcrawl.store import connection
from streamcrawl.store.connection import BLOCK_MS, check_server, connect, mapped_errors, redacted, wait_for_server
from tests.certificates import make_certificate
from tests.integration.drive import client_of
from tests.integration.snapshot import wait_until
from tests.redis_sentinel import MASTER, Replicated, SentinelServer
from tests.redis_server import FAST, RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redis.asyncio import Redis


def url_of(*sentinels: RedisServer, user: str = "", rest: str = f"/{MASTER}") -> str:
    places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    return f"redis+sentinel://{user}{places}{rest}"


@pytest.fixture
def master() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def sentinel(master: RedisServer) -> Iterator[SentinelServer]:
    """One Sentinel alone: it watches, and can never fail over, because that takes two."""
    with SentinelServer(master.port) as server:
        yield server


# -- URLs


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://localhost/crawls",
        "redis+sentinel://localhost/crawls/",
        "redis+sentinel://a:26379,b,[::1]:26380/crawls/3",
        f"rediss+sentinel://user:p%2Fss@a,b/crawls/0?ssl_ca_certs={__file__}&ssl_check_hostname=false",
        "redis+sentinel://:secret@a/crawls?sentinel_username=asker&sentinel_password=s%26cret&db=2",
    ],
)
async def test_sentinel_urls_are_taken(url: str) -> None:
    async with client_of(url):
        pass


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("redis+sentinel://localhost", "/MASTER/DB"),
        ("redis+sentinel://localhost/", "/MASTER/DB"),
        ("redis+sentinel://localhost/crawls/first", "/MASTER/DB"),
        ("redis+sentinel://localhost/crawls/0/1", "/MASTER/DB"),
        ("redis+sentinel:///crawls", "host or port"),
        ("redis+sentinel://a,,b/crawls", "host or port"),
        ("redis+sentinel://a:b/crawls", "host or port"),
        ("redis+sentinel://a:0/crawls", "port 0"),
        ("redis+sentinel://:secret/word@a/crawls", "host or port"),
        ("redis+sentinel://:secret@a/crawls#1", "%23"),
        ("redis+sentinel://a/crawls?db=first", "'first'"),
        ("redis+sentinel://a/crawls?sentinel_timeout=3", "'sentinel_timeout'"),
        ("redis://a/0?sentinel_password=secret", "'sentinel_password'"),
        ("redis+sentinel://" + ",".join(["a"] * 17) + "/crawls", "16 Sentinels at most"),
        ("unix+sentinel://a/crawls", "redis+sentinel://HOST"),
    ],
)
def test_other_sentinel_urls_are_refused_and_the_password_is_not_shown(url: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(url)
    assert word in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis+sentinel://u:secret@a:1,b:2/crawls/0", "redis+sentinel://u:***@a:1,b:2/crawls/0"),
        ("rediss+sentinel://:secret@a,b/crawls", "rediss+sentinel://:***@a,b/crawls"),
        (
            "redis+sentinel://a/crawls?sentinel_password=secret&sentinel_username=asker",
            "redis+sentinel://a/crawls?sentinel_password=***&sentinel_username=asker",
        ),
        ("rediss://a?ssl_password=secret&ssl_keyfile=/k", "rediss://a?ssl_password=***&ssl_keyfile=/k"),
    ],
)
def test_redacted_sentinel_url_has_no_password(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_every_error_of_the_sentinel_client_has_a_meaning() -> None:
    classes = {
        value
        for module in (redis.sentinel, redis.asyncio.sentinel)
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert {"MasterNotFoundError", "SlaveNotFoundError"} <= {error.__name__ for error in classes}
    assert [error.__name__ for error in classes if error.__name__ not in connection._MEANING] == []


# -- finding the master


async def test_clients_keep_the_promises_of_plain_ones(
    master: RedisServer, sentinel: SentinelServer, crawl_name: str
) -> None:
    async with client_of(master.url) as admin:
        await admin.execute_command(  # type: ignore[no-untyped-call]
            "ACL", "SETUSER", "crawler", "on", ">s:cr@t/", "~*", "+@all"
        )
    url = url_of(sentinel, user="crawler:s%3Acr%40t%2F@", rest=f"/{MASTER}/3")
    async with client_of(url) as client, client_of(url, blocking=True) as reader:
        await wait_for_server(client, 20)
        assert (await check_server(client)).os_pid == master.pid
        calls = [client.incr(crawl_name) for _ in range(5 * connection.CONNECTIONS_MAX)]
        assert sorted(await asyncio.gather(*calls)) == list(range(1, len(calls) + 1))
        await client.delete(crawl_name)
        await client.xgroup_create(crawl_name, "workers", mkstream=True)
        await reader.client_setname(crawl_name)
        assert await reader.xreadgroup("workers", "one", {crawl_name: ">"}, block=BLOCK_MS) == []
        entry_id = await client.xadd(crawl_name, {"host": "a"})
        reads = [reader.xreadgroup("workers", "one", {crawl_name: ">"}, block=100) for _ in range(3)]
        answers = await asyncio.gather(*reads)
        assert sorted(answers, key=len) == [[], [], [[crawl_name.encode(), [(entry_id, {b"host": b"a"})]]]]
        named = [row for row in await client.client_list() if row["name"] == crawl_name]
        assert [(row["resp"], row["db"], row["user"]) for row in named] == [("2", "3", "crawler")]


async def test_new_connections_ask_again_and_write_nothing_to_a_master_that_was_demoted(
    master: RedisServer, sentinel: SentinelServer
) -> None:
    async with client_of(url_of(sentinel)) as client, client_of(master.url) as admin:
        await client.set("a", "1")
        # A replica that takes writes, so that nothing but our own question keeps them away.
        await admin.config_set("replica-read-only", "no")
        await admin.replicaof("127.0.0.1", "1")
        await admin.client_kill_filter(_type="normal", skipme=True)
        await asyncio.gather(*(_refused(client, "no master any more") for _ in range(2)))
        async with client_of(url_of(sentinel)) as another:
            await _refused(another, "no master any more")
        assert await admin.get("a") == b"1"
        await admin.replicaof("NO", "ONE")
        await client.set("a", "3")


async def _refused(client: Redis, why: str) -> None:
    with pytest.raises(StoreUnavailable, match=why), mapped_errors():
        await client.set("a", "2")


async def test_open_connection_to_a_master_that_was_demoted_is_left(
    master: RedisServer, sentinel: SentinelServer
) -> None:
    async with client_of(url_of(sentinel)) as client, client_of(master.url) as admin:
        before = await client.client_id()
        await admin.replicaof("127.0.0.1", "1")
        await _refused(client, "replica")
        await admin.replicaof("NO", "ONE")
        await client.set("a", "3")
        assert await client.client_id() > before


async def test_newest_word_of_the_sentinels_wins(master: RedisServer, sentinel: SentinelServer) -> None:
    # Two that do not know each other: one was cut off when the others elected another master.
    with (
        RedisServer() as successor,
        SentinelServer(successor.port, [f"sentinel config-epoch {MASTER} 5"]) as newer,
    ):
        for asked in ((sentinel, newer), (newer, sentinel)):
            async with client_of(url_of(*asked)) as client:
                assert (await check_server(client)).os_pid == successor.pid


async def test_majority_of_the_sentinels_is_enough(master: RedisServer) -> None:
    with SentinelServer(master.port) as one, SentinelServer(master.port) as two, SentinelServer(master.port) as three:
        url = url_of(one, two, three)
        one.sigstop()
        async with client_of(url, timeout_ms=20_000) as client:
            await client.ping()
        two.kill9()
        # Now there is no majority: the last one's word counts after the others had their time.
        async with client_of(url) as client:
            await client.ping()
        three.kill9()
        async with client_of(url) as client:
            with pytest.raises(StoreUnavailable, match="no Sentinel answers") as caught, mapped_errors():
                await client.ping()
            for server in (one, two, three):
                assert f"127.0.0.1:{server.port}" in str(caught.value)


async def test_what_waiting_would_not_mend_is_refused(master: RedisServer, sentinel: SentinelServer) -> None:
    async def refusal(url: str) -> str:
        async with client_of(url) as client:
            with pytest.raises(StoreIncompatible) as caught:
                await wait_for_server(client, 20)
        return str(caught.value)

    assert "watch no master of that name" in await refusal(url_of(sentinel, rest="/another"))
    assert "is no Sentinel" in await refusal(url_of(master))
    async with client_of(f"redis://127.0.0.1:{sentinel.port}") as plain:
        with pytest.raises(StoreIncompatible, match=rf"redis\+sentinel://HOST:{sentinel.port}"):
            await check_server(plain)
    with sentinel.client() as admin:
        admin.execute_command("ACL", "SETUSER", "asker", "on", ">hush", "-@all", "+sentinel")
        admin.execute_command("ACL", "SETUSER", "nobody", "on", ">hush", "-@all", "+ping")
        async with client_of(url_of(sentinel, rest=f"/{MASTER}?sentinel_username=asker&sentinel_password=hush")) as one:
            await one.ping()
        for query in (
            "sentinel_username=asker&sentinel_password=wrong",
            "sentinel_username=nobody&sentinel_password=hush",
        ):
            refused = await refusal(url_of(sentinel, rest=f"/{MASTER}?{query}"))
            assert "sentinel_password=PASSWORD" in refused
            assert "hush" not in refused
            assert "wrong" not in refused
    assert "redis://USER:PASSWORD@" in await refusal(url_of(sentinel, user="nobody:wrong@"))


async def test_sentinels_and_master_by_tls(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    tls = {**certificate.options, "tls-port": str(free_port())}
    sentinel_tls = {**certificate.options, "tls-port": str(free_port()), "tls-replication": "yes"}
    with (
        RedisServer(options=FAST | tls, binary="system"),
        SentinelServer(int(tls["tls-port"]), [f"{name} {value}" for name, value in sentinel_tls.items()]) as sentinel,
    ):
        url = f"rediss+sentinel://127.0.0.1:{sentinel_tls['tls-port']}/{MASTER}"

        async def is_watched() -> bool:
            return str(sentinel.describe()["flags"]) == "master"

        await wait_until(is_watched, "the Sentinel reaches the master by TLS")
        async with client_of(f"{url}?ssl_ca_certs={certificate.path}") as client:
            assert (await check_server(client)).aof is False
        async with client_of(url) as client:
            with pytest.raises(StoreIncompatible, match="ssl_ca_certs"), mapped_errors():
                await client.ping()


# -- failover


async def test_clients_follow_a_failover_and_leave_an_old_master_that_comes_back() -> None:
    with Replicated() as servers:
        old, new = servers.servers
        async with (
            client_of(servers.url, timeout_ms=1000) as client,
            client_of(servers.url, blocking=True, timeout_ms=1000) as reader,
            client_of(old.url) as straight,
        ):
            # Several connections to the master, of which the failover will meet one.
            await asyncio.gather(*(client.set(f"before{n}", "1") for n in range(5)), reader.ping())
            assert await client.wait(1, 10_000) == 1
            old.sigstop()
            servers.until_master(new)

            async def answers() -> bool:
                try:
                    with mapped_errors():
                        await client.set("after", "1")
                except StoreUnavailable:
                    return False
                return True

            await wait_until(answers, "the client follows")
            old.sigcont()
            # Nobody has told it yet: to itself it is the master, and the other connections to it are still open.
            ports = await asyncio.gather(*(_port_of(client) for _ in range(5)), _port_of(reader))
            assert set(ports) == {new.port}
            assert await client.get("before4") == b"1"

            async def is_demoted() -> bool:
                try:
                    with mapped_errors():
                        return bool((await straight.info("replication"))["role"] == "slave")
                except StoreUnavailable:  # cut off by a Sentinel, with all its clients
                    return False

            await wait_until(is_demoted, "the Sentinels make the old master a replica", 30)
            await client.set("after", "2")


async def _port_of(client: Redis) -> int:
    with mapped_errors():
        return int((await client.info("server"))["tcp_port"])
