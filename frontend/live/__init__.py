"""The live page: what the cluster does now, for people who look."""
