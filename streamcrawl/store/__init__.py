"""State in Redis: its keys (keys.py), its scripts (scripts.py, lua/) and what the loops call (frontier.py)."""
