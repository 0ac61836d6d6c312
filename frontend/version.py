"""The version that is served."""

VERSION = "0.1.0"
