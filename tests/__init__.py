"""The tests of streamcrawl."""
