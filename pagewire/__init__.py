"""Pagewire's public Python API: `LLM` and `SamplingParams`. It talks to Pagewire's processes over HTTP and imports none of them."""

from pagewire.llm import LLM, Completion, PagewireError
from pagewire.sampling import SamplingParams

__all__ = ["LLM", "Completion", "PagewireError", "SamplingParams", "__version__"]
__version__ = "0.1.0"
