"""Where items go. A sink writes each item exactly once. Start at jsonl.py."""
