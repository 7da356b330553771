"""Self-contained HTML pages from Jinja templates: every value is escaped, and the page may load nothing."""

import base64
import hashlib
import unicodedata
from pathlib import Path
from typing import Any

import jinja2

_HERE = Path(__file__).parent
_UNSEEN = ("Cc", "Cf", "Co", "Cs")  # Unicode categories: control, format, private use, surrogate


def name_unseen(text: str) -> str:
    r"""Return `text` with invisible characters, and those that reverse the text around them, written as code points.

    >>> name_unseen("a < b\u202e")
    'a < b[U+202E]'
    """
    return "".join(
        f"[U+{ord(character):04X}]"
        if unicodedata.category(character) in _UNSEEN and character not in "\n\r\t"
        else character
        for character in text
    )


def make_environment(folder: Path) -> jinja2.Environment:
    """Return an environment for the `*.html.j2` templates of a folder, which may extend `page.html.j2` of this one.

    Every value is escaped unless it is `markupsafe.Markup`; `name_unseen` is applied first. An undefined name is an
    error. `tojson` writes compact JSON that cannot end its script element and refuses numbers that are not finite.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: name_unseen(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def render_page(template: jinja2.Template, *, style: str, script: str = "", images: str = "", **values: Any) -> str:
    """Render a template that extends `page.html.j2`: one style sheet, at most one script, nothing loaded.

    The content security policy names style and script by their SHA-256; any other, inline attributes included, is
    blocked by the browser.

    Args:
      images: further image sources for the policy, such as "'self' file:"; data URIs are always allowed.
    """
    sources = " ".join(["data:", *images.split()])
    scripts = _digest(script) if script else "'none'"
    policy = (
        f"default-src 'none'; img-src {sources}; style-src {_digest(style)}; script-src {scripts}; "
        "base-uri 'none'; form-action 'none'"
    )
    return template.render(policy=policy, style=style, script=script, **values)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
