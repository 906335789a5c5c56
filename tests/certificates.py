"""Certificates of servers on loopback that the tests make for themselves, with the openssl command."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Certificate(NamedTuple):
    """A certificate that is its own authority, and its key."""

    path: Path
    key: Path

    @property
    def options(self) -> dict[str, str]:
        """Options of a redis-server that shows it to everybody who asks, and asks nobody for one."""
        return {
            "tls-cert-file": str(self.path),
            "tls-key-file": str(self.key),
            "tls-ca-cert-file": str(self.path),
            "tls-auth-clients": "no",
        }


def make_certificate(folder: Path, *, address: str = "127.0.0.1") -> Certificate:
    """Make a certificate for a server at `address`, good for two days."""
    made = Certificate(folder / f"{address}.crt", folder / f"{address}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={address}", "-addext", f"subjectAltName=IP:{address}"]
    command += ["-keyout", str(made.key), "-out", str(made.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl makes no certificate:\n{done.stderr}")
    return made
