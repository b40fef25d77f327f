# SPDX-License-Identifier: Apache-2.0
"""HTML and SVG elements as values: text is escaped unless it is `Markup` already."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any

#: What a page may do: run what is in it, and ask nobody for anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


class Markup(str):
    """Text that is markup, not to be escaped again."""

    __slots__ = ()


VOID = frozenset({"meta", "input", "br"})


def el(tag: str, /, *children: str | None, **attributes: object) -> Markup:
    """One element.

    Args:
        tag: Tag name.
        children: Content; a plain string is escaped, `Markup` is kept, None is left out.
        attributes: ``class_`` gives ``class``, other underscores give hyphens. None and False are left out, True gives
            a bare attribute.
    """
    opening = [tag]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        opening.append(label if value is True else f'{label}="{html.escape(str(value))}"')
    head = f"<{' '.join(opening)}>"
    return Markup(head) if tag in VOID else Markup(f"{head}{join(*children)}</{tag}>")


def join(*children: str | None) -> Markup:
    """Several pieces one after another, each escaped unless it is markup."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children if child))


def embedded_json(data: Any) -> Markup:
    """JSON for a ``<script type="application/json">``: no character in it can end the element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=str)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def document(title: str, style: Markup, body: Markup) -> str:
    """A whole page.

    Args:
        title: Its title.
        style: Its style sheet.
        body: The ``body`` element.
    """
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("style", style),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def resource(package: str, name: str) -> Markup:
    """A style sheet or a script that lies in a package's folder, as it is."""
    return Markup(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
