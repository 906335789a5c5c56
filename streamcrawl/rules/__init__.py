"""Decisions, pure: no Redis, no network, no clock of their own. Start at task.py, then urls.py."""
