"""How streamcrawl reads the web next to other libraries: one file per question, on test data that others wrote."""
