"""A kernel in C, compiled where it runs; nothing depends on it."""
