"""Consumer names say on which machine they were made, whatever that machine is called."""

from __future__ import annotations

import socket

import pytest

from streamcrawl.work.supervisor import machine_of, new_consumer


@pytest.mark.parametrize("machine", ["crawler", "crawler-7.example-host.org", "a", "10-0-0-5"])
def test_machine_is_read_from_a_name(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: machine)
    names = {new_consumer(role) for role in ("sink", "fetch") for _ in range(3)}
    assert len(names) == 6
    assert {machine_of(name) for name in names} == {machine}


def test_no_name_is_of_no_machine() -> None:
    assert machine_of("") == ""
