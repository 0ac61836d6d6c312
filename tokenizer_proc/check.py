"""`python -m tokenizer_proc.check PATH`: whether the vocabulary and chat template of a model can be used; exit code 1 and why not."""

import sys
from pathlib import Path

from checkpoint.errors import CheckpointError
from tokenizer_proc.errors import VocabularyError
from tokenizer_proc.templates import load_template
from tokenizer_proc.vocabulary import load_vocabulary


def main() -> int:
    try:
        vocabulary = load_vocabulary(Path(sys.argv[1]))
        load_template(vocabulary.template, None, vocabulary.names)
    except (VocabularyError, CheckpointError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
