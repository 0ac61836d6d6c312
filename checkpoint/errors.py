"""What goes wrong with a model folder or file, in words for the person who started the server."""


class CheckpointError(Exception):
    """The checkpoint cannot be used. The message names the file, what is wrong with it and, where possible, what to do."""
