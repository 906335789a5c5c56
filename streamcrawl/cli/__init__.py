"""The streamcrawl command: one file per group of commands."""
