"""Virtual environments of their own for what is measured beside streamcrawl, made when they are first asked for.

`contestants/NAME.in` names what is wanted, `contestants/NAME.txt` pins it and all it needs (`make lock` writes it). An
environment is made again when its pins have changed. Start at `python_of`.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

CONTESTANTS: Final = Path(__file__).with_name("contestants")
VENVS: Final = Path(__file__).with_name(".venvs")
INSTALL_TIMEOUT_S: Final = 600


class NotInstallable(RuntimeError):
    """The packages cannot be had here; the message is the installer's last line."""


def add_venvs_option(parser: argparse.ArgumentParser) -> None:
    """Give a command the option that says where the environments are kept."""
    parser.add_argument(
        "--venvs",
        type=Path,
        default=VENVS,
        metavar="DIR",
        help="keep the others' environments here (benchmarks/.venvs)",
    )


def python_of(name: str, folder: Path) -> Path:
    """Return the interpreter of an environment under `folder`, with its pinned packages.

    After a crash half-way it is made again: the stamp is written last.

    Raises:
        NotInstallable: pip could not install them.
    """
    home = folder.resolve() / name
    python, stamp = home / "bin" / "python", home / "installed.txt"
    requirements = CONTESTANTS / f"{name}.txt"
    if stamp.exists() and stamp.read_bytes() == requirements.read_bytes():
        return python
    print(f"installing {name} into {home}", file=sys.stderr)
    venv.create(home, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)]
    try:
        ran = subprocess.run(pip, check=False, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise NotInstallable(f"{name}: the installation took more than {INSTALL_TIMEOUT_S} s") from error
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or ["pip said nothing"]
        raise NotInstallable(f"{name}: {said[-1]}")
    stamp.write_bytes(requirements.read_bytes())
    return python


def folder_of(python: Path, package: str) -> Path:
    """Return the folder of a package in an environment."""
    return next((python.parent.parent / "lib").glob(f"python*/site-packages/{package}"))
