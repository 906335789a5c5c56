"""End-to-end tests: the streamcrawl command itself."""
