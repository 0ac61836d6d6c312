"""How the names of our metrics begin."""

PREFIX = "pagewire_"
