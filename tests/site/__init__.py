"""The misbehaving web server that all tests crawl: model.py says what it serves, server.py runs it."""
