"""Programs to read and to begin with; each runs against a site of its own with one command."""
