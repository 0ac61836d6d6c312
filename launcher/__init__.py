"""The command line and the supervisor of a cluster's processes. Nothing here imports torch when it is imported."""
