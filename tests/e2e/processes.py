"""All processes of a command, found by the folder they are in: also those whose parent was killed."""

from __future__ import annotations

from pathlib import Path

import psutil


def processes_in(folder: Path) -> dict[str, list[psutil.Process]]:
    """Return the live processes whose working directory is this folder or below it, by name."""
    inside = folder.resolve()
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter(["name"]):
        try:
            if Path(process.cwd()).is_relative_to(inside) and process.status() != psutil.STATUS_ZOMBIE:
                found.setdefault(process.info["name"], []).append(process)
        except (psutil.Error, OSError):  # ended meanwhile, or another user's
            continue
    return found
