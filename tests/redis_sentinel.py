"""A master, its replica and three Sentinels on loopback: real processes, and a failover within seconds.

Start at `Replicated`. What it starts ends with it. The Sentinels ping, publish and vote more often than they
usually do, so that a failover takes two seconds and not ten; how they decide is untouched.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import redis

from tests.redis_server import FAST, RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MASTER: Final = "crawls"
DOWN_AFTER_MS: Final = 1000
"""Far more than a machine under load keeps a server waiting; a failover that nobody caused would spoil a test."""
# A replica counts as a successor for five ping periods after its last INFO, which comes every second then.
_PERIODS_MS: Final = {"ping-period": 400, "publish-period": 200, "info-period": 200, "ask-period": 200}
_AT_ONCE: Final = {"repl-diskless-sync-delay": "0"}
"""A master waits 5 s for further replicas before it serves the first."""
_WAIT_S: Final = 30.0
_QUORUM: Final = 2


class SentinelServer(RedisServer):
    """One Sentinel, which watches one master."""

    INFO_END: ClassVar = b"# Sentinel"

    def __init__(self, master_port: int, lines: Sequence[str] = ()) -> None:
        """Prepare a Sentinel; nothing runs yet.

        Args:
            lines: Of its configuration, after those that name the master.
        """
        super().__init__()
        self._master_port = master_port
        self._lines = tuple(lines)

    def _command(self) -> list[str]:
        # A Sentinel keeps what it learns in its configuration, so a second start reads the same file.
        path = self.folder / "sentinel.conf"
        if not path.exists():
            lines = (
                f"port {self.port}",
                "bind 127.0.0.1",
                f"dir {self.folder}",
                f"sentinel monitor {MASTER} 127.0.0.1 {self._master_port} {_QUORUM}",
                f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}",
                f"sentinel failover-timeout {MASTER} 1500",
                *self._lines,
            )
            path.write_text("\n".join(lines) + "\n")
        return [str(self.binary), str(path), "--sentinel"]

    def start(self) -> None:
        super().start()
        with self.client() as client:
            client.execute_command("SENTINEL", "DEBUG", *(part for row in _PERIODS_MS.items() for part in row))

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=2)

    def describe(self) -> dict[str, Any]:
        """Return what it says of its master."""
        with self.client() as client:
            found: dict[str, Any] = client.sentinel_master(MASTER)
        return found


class Replicated:
    """`with Replicated() as servers:` runs all five; `servers.url` finds the master by the Sentinels."""

    def __init__(self, options: Mapping[str, str] = FAST) -> None:
        self.servers: Final = [RedisServer(options=_AT_ONCE | dict(options)) for _ in range(2)]
        """The master is the first of them, until a failover."""
        self.sentinels: list[SentinelServer] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in self.servers:
                stack.enter_context(server)
            master, replica = self.servers
            with redis.Redis(port=replica.port) as client:
                client.execute_command("REPLICAOF", "127.0.0.1", master.port)
                _until(
                    lambda: client.info("replication")["master_link_status"] == "up", "the replica follows its master"
                )
            # They read the list of replicas from the master: one that comes later is noticed later.
            self.sentinels = [stack.enter_context(SentinelServer(master.port)) for _ in range(3)]
            for sentinel in self.sentinels:
                _until(lambda sentinel=sentinel: _is_settled(sentinel), "the Sentinels know each other")  # type: ignore[misc]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{MASTER}/0"

    def cut_replica_off(self) -> None:
        """Let the replica hear nothing more: what the master acknowledges from now on is lost when it dies.

        What it acknowledged before is not. A paused replica would not do: what waits in its socket survives the master.
        """
        master, replica = self.servers
        with redis.Redis(port=replica.port) as one, redis.Redis(port=master.port) as other:
            written = other.info("replication")["master_repl_offset"]

            def has_all() -> bool:
                heard = one.info("replication")
                return bool(heard["master_link_status"] == "up" and heard["slave_repl_offset"] >= written)

            _until(has_all, "the replica has what was acknowledged")
            one.config_set("masterauth", "not the password")
            other.client_kill_filter(_type="replica")

    def until_master(self, server: RedisServer) -> None:
        """Wait until every Sentinel that runs names this server as the master."""
        for sentinel in self.sentinels:
            if sentinel.pid:
                _until(
                    lambda sentinel=sentinel: sentinel.describe()["port"] == server.port,  # type: ignore[misc]
                    f"{server.url} is the master",
                )


def _is_settled(sentinel: SentinelServer) -> bool:
    seen = sentinel.describe()
    return (seen["num-other-sentinels"], seen["num-slaves"], seen["flags"]) == (2, 1, "master")


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {_WAIT_S:g} s: {what}")
        time.sleep(0.02)
