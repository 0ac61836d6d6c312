"""A tokenizer whose trials of forms may take long on a machine that stands still: `python -m tests.support.patient_tokenizer_proc`."""

import sys

from tokenizer_proc import grammar_child
from tokenizer_proc.__main__ import main

if __name__ == "__main__":
    grammar_child.PATIENCE_SECONDS = 100.0
    sys.exit(main())
