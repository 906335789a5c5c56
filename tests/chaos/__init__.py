"""Chaos tests: kills, pauses, restarts, cut connections."""
