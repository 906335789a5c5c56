"""Where items go. A sink writes each item exactly once. Start at output.py; targets.py says what `-o` means."""
