"""Shows the doctests of docstrings as code in the site's Python reference (an extension of griffe, see mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
DIRECTIVE = re.compile(r" +# doctest:.*$", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts each doctest into a fenced block."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(lambda match: f"```pycon\n{DIRECTIVE.sub('', match[0])}\n```", obj.docstring.value)
