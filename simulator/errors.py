"""What a person who simulates can do something about."""


class SimulatorError(Exception):
    """Says what is wrong and what to do."""
