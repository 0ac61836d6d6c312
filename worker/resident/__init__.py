"""The engine whose row state lives on a GPU: plans go up as changes, sampled ids stay there for the next step, results come back on the side."""
