"""Integration tests: real Redis servers, real sockets."""
