"""A Redis Cluster of three masters on loopback: real servers that own a third of the slots each.

Start at `RedisCluster`. What it starts ends with it.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Final, Self

import redis
from redis.crc import key_slot

from tests.redis_server import FAST, RedisServer, free_port

SLOTS: Final = 16_384
NODES: Final = 3
_WAIT_S: Final = 30.0


class RedisCluster:
    """`with RedisCluster() as cluster:` runs it; `cluster.node_of(key)` is the server that owns the key's slot."""

    def __init__(self) -> None:
        self.nodes: list[RedisServer] = []
        self._ends: list[int] = []
        """The first slot after those of each node."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for number in range(NODES):
                # The default of the second port is 10000 higher than the first, which not every free port allows.
                options = FAST | {"cluster-enabled": "yes", "cluster-port": str(free_port())}
                node = stack.enter_context(RedisServer(options=options))
                first, end = number * SLOTS // NODES, (number + 1) * SLOTS // NODES
                _ask(node, "CLUSTER", "ADDSLOTSRANGE", first, end - 1)
                # Different from the start: nodes with equal epochs settle the conflict first.
                _ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                self.nodes.append(node)
                self._ends.append(end)
            for node in self.nodes[1:]:
                _ask(node, "CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, self.nodes[0].options["cluster-port"])
            for node in self.nodes:
                _wait_until_whole(node)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def node_of(self, key: str) -> RedisServer:
        """Return the node that owns the key's slot."""
        return next(node for node, end in zip(self.nodes, self._ends, strict=True) if slot_of(key) < end)


def slot_of(key: str) -> int:
    return key_slot(key.encode())


def _ask(node: RedisServer, *command: Any) -> Any:
    with redis.Redis(port=node.port, decode_responses=True, socket_timeout=5) as client:
        return client.execute_command(*command)


def _wait_until_whole(node: RedisServer) -> None:
    """Wait until the node says that all slots are owned, and knows the others."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        info = _ask(node, "CLUSTER INFO")
        if info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(NODES):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the cluster does not come about in {_WAIT_S:g} s: {info}")
        time.sleep(0.02)
