"""The words for how far a response, or an item of one, has come."""

QUEUED, IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED, CANCELLED = "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
UNFINISHED = (QUEUED, IN_PROGRESS)
