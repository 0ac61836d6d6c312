"""How models write tool calls and reasoning in their text: which dialect a chat template teaches, and incremental parsers of each."""
