"""A user's files and options -> `Environment`."""
