"""The fifty schemas compile, and their masks lead to what is valid."""

import json
import random

import jsonschema
import pytest

from grammar.program import program_of
from grammar.trial import try_out
from messages.constraint import Constraint
from tests.support.schemas import SCHEMAS, check
from tests.support.vocabularies import library
from tests.unit.test_grammar_matcher import say


def test_there_are_fifty() -> None:
    assert len(SCHEMAS) == 50


@pytest.mark.parametrize("name", SCHEMAS)
def test_masks_lead_to_what_is_valid(name: str) -> None:
    schema = SCHEMAS[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    try_out(library(), program_of(Constraint("json_schema", json.dumps(schema))))
    for seed in range(3):
        said = say(schema, random.Random(seed))
        if said is not None:
            check(said, name)
