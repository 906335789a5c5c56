"""Unit tests: no Redis, no sockets, no sleep."""
