"""The description of the API: whole, true to what the handlers take, and a page that fetches nothing."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from frontend import bodies, docs_page, refusals
from frontend.errors import ApiError
from frontend.openapi import document
from frontend.operations import OPERATIONS, Operation
from frontend.schema import ChatRequest, CompletionRequest
from frontend.service import make_app

DOCUMENT = document()
POSTS = [operation for operation in OPERATIONS if operation.body is not None]


def test_every_route_is_described_and_nothing_else() -> None:
    core: Any = SimpleNamespace(args=SimpleNamespace(body_limit=1))
    routes = {f"{route.method} {route.resource.canonical}" for route in make_app(core).router.routes() if route.resource is not None}
    described = {f"{method.upper()} {path}" for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {route for route in routes if not route.startswith("HEAD ")}
    names = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)


LEAST: dict[str, Any] = {"prompt": "A", "messages": [{"role": "user", "content": "A"}], "input": "A", "tokens": [1], "max_tokens": 5}


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*(references(item) for item in value.values()))
    return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()


def test_every_reference_leads_somewhere() -> None:
    named = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert references(DOCUMENT) <= named
    assert msgspec.json.decode(msgspec.json.encode(DOCUMENT)) == DOCUMENT


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
def test_the_fields_are_those_that_are_known(operation: Operation) -> None:
    """Every field with null, and each neutral value, is taken; what is described as a default is what one gets."""
    assert operation.body is not None
    schema = DOCUMENT["components"]["schemas"][operation.body.__name__]
    assert set(schema["properties"]) == {*operation.body.__struct_fields__, *operation.neutral}
    assert schema["additionalProperties"] is False
    least = {name: LEAST[name] for name in schema["required"]}
    plain = bodies.decode(msgspec.json.encode(least), operation.body, operation.neutral)
    for name, field in schema["properties"].items():
        if name not in least:
            assert field.get("type") == "null" or {"type": "null"} in field["anyOf"]
            assert bodies.decode(msgspec.json.encode(least | {name: None}), operation.body, operation.neutral) == plain
        for choice in field.get("anyOf", []):
            for value in choice.get("enum", []) if name in operation.neutral else []:
                assert bodies.decode(msgspec.json.encode(least | {name: value}), operation.body, operation.neutral) == plain
        if "default" in field:
            assert bodies.decode(msgspec.json.encode(least | {name: field["default"]}), operation.body, operation.neutral) == plain


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
def test_what_is_not_honoured_is_refused_by_name(operation: Operation) -> None:
    """Fields that are known at other values only, and fields of other routes and of none."""
    assert operation.body is not None
    least = {name: LEAST[name] for name in DOCUMENT["components"]["schemas"][operation.body.__name__]["required"]}
    known = {*operation.neutral, *operation.body.__struct_fields__}
    everywhere = {name for other in POSTS if other.body for name in (*other.neutral, *other.body.__struct_fields__)}
    for name in (everywhere | {"surprise"}) - set(operation.body.__struct_fields__):
        with pytest.raises(ApiError) as caught:
            bodies.decode(msgspec.json.encode(least | {name: {"no": ["such"]}}), operation.body, operation.neutral)
        assert (caught.value.status, caught.value.param) == (400, name)
        assert caught.value.code == ("unsupported_parameter" if name in known else "unknown_parameter")


def test_bounds_are_those_of_the_handlers() -> None:
    """Of every number: its limits are taken, what is beyond is not."""
    least = {"prompt": "A"}
    for name, field in DOCUMENT["components"]["schemas"]["CompletionRequest"]["properties"].items():
        for choice in field.get("anyOf", [field]):
            step = 1 if choice.get("type") == "integer" else 0.5
            for bound, beyond in ((choice.get("minimum"), -step), (choice.get("maximum"), step)):
                if bound is None or name == "prompt":
                    continue
                body = msgspec.json.encode(least | {name: bound})
                bodies.decode(body, CompletionRequest, refusals.COMPLETION)
                with pytest.raises(ApiError) as caught:
                    bodies.decode(msgspec.json.encode(least | {name: bound + beyond}), CompletionRequest, refusals.COMPLETION)
                assert caught.value.param == name
    assert "maximum" not in str(DOCUMENT["components"]["schemas"]["ChatRequest"]["properties"]["max_completion_tokens"])
    assert bodies.decode(b'{"messages": [{}], "max_tokens": 99999999999999999999}', ChatRequest, refusals.CHAT).max_tokens == 2**31 - 1


class Page(HTMLParser):
    """Every tag with its attributes, and whether all that were opened were closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_fetches_nothing_and_has_no_script() -> None:
    text = docs_page.page(DOCUMENT, "<b>model & co</b>")
    page = Page(text)
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "b"} & {tag for tag, _ in page.tags}
    links = [attributes["href"] or "" for tag, attributes in page.tags if tag == "a"]
    anchors = {attributes["id"] for tag, attributes in page.tags if tag == "h2"}
    assert all(link == "openapi.json" or link.removeprefix("#") in anchors for link in links)
    assert not re.search(r"https?://|//|url\(|@import|\bon\w+=|style=", text)
    assert all(path in text for path in DOCUMENT["paths"])
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = docs_page.HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy
