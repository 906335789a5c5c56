"""What streamcrawl costs: one file per question, one JSON line per answer. Start at README.md."""
