"""The description of the API as one page: no script, nothing fetched from anywhere."""

import base64
import hashlib
from collections.abc import Iterator
from html import escape
from typing import Any

Schema = dict[str, Any]
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1rem; margin: 1.5rem 0 .3rem; } code, .method { font-family: ui-monospace, monospace; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 600; text-transform: uppercase; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
td, th { border: 1px solid #ddd; padding: .25rem .5rem; text-align: left; vertical-align: top; }
summary { cursor: pointer; } nav a { margin-right: 1rem; }
@media (prefers-color-scheme: dark) { body { color: #e6e6e6; background: #16181b; } td, th, h2 { border-color: #3a3d42; } a { color: #8ab4f8; } }
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def page(document: Schema, model: str) -> str:
    """The page for an OpenAPI `document` of a server of `model`."""
    operations = [(path, method, described) for path, methods in document["paths"].items() for method, described in methods.items()]
    tags = list(dict.fromkeys(described["tags"][0] for _, _, described in operations))
    links = "".join(f"<a href=#{escape(tag)}>{escape(tag)}</a>" for tag in tags)
    parts = [f'<nav>{links}<a href="openapi.json">openapi.json</a></nav>']
    for tag in tags:
        parts.append(f"<h2 id={escape(tag)}>{escape(tag)}</h2>")
        parts += [_operation(document, path, method, described) for path, method, described in operations if described["tags"] == [tag]]
    title = f"Pagewire {escape(document['info']['version'])}"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title><style>{STYLE}</style>'
    body = f"<h1>{title}</h1><p>This server has the model <code>{escape(model)}</code>.</p>{''.join(parts)}"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def _operation(document: Schema, path: str, method: str, described: Schema) -> str:
    rows = ""
    if "requestBody" in described:
        name = described["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        rows = _fields(document["components"]["schemas"][name])
    answers = ", ".join(f"{status} {escape(answer['description'].lower())}" for status, answer in described["responses"].items())
    return (
        f"<h3><span class=method>{escape(method)}</span> <code>{escape(path)}</code></h3><p>{escape(described['summary'])}.</p>{rows}"
        f"<details><summary>Answers</summary><p>{answers}.</p></details>"
    )


def _fields(schema: Schema) -> str:
    required = schema.get("required", [])
    known = [(name, field) for name, field in schema["properties"].items() if "description" not in field]
    others = [name for name, field in schema["properties"].items() if "description" in field]
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(', '.join(_kinds(field)))}</td>"
        f"<td>{'required' if name in required else escape(_default(field))}</td></tr>"
        for name, field in known
    )
    rest = f"<p>Accepted where they change nothing: {', '.join(f'<code>{escape(name)}</code>' for name in others)}.</p>" if others else ""
    return f"<details><summary>Fields</summary><table><tr><th>Field</th><th>Values</th><th>Default</th></tr>{rows}</table>{rest}</details>"


def _default(field: Schema) -> str:
    value = field.get("default")
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _kinds(field: Schema) -> Iterator[str]:
    for choice in field.get("anyOf", [field]):
        if choice.get("type") != "null":
            yield _kind(choice)


def _kind(choice: Schema) -> str:
    if "$ref" in choice:
        return str(choice["$ref"].rpartition("/")[2])
    if "enum" in choice:
        return " or ".join(str(value) for value in choice["enum"])
    low, high = choice.get("minimum", choice.get("exclusiveMinimum")), choice.get("maximum")
    bounds = "" if low is None else f" from {low:g}" if high is None or high > 1e9 else f" {low:g} to {high:g}"
    items = f" of {_kind(choice['items'])}" if choice.get("items") else ""
    return f"{choice.get('type', 'any')}{bounds}{items}"
