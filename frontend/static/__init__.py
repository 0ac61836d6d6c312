"""The files of the live page, as they are sent: no build step."""
