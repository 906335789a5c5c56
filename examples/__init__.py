"""Programs to read, to run and to begin with; each is a test as well."""
