"""The outside world: fetching by HTTP. Start at fetcher.py."""
