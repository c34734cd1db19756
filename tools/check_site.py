"""Check that a built site loads nothing from elsewhere: `python -m tools.check_site site`."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

_LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_HARMLESS = {"canonical", "prev", "next", "edit", "alternate"}  # links that browsers do not load


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("data-md-component") == "source":  # the theme's script asks the repository's host for its stars
            self.found.append(given.get("href") or "//")
        if given.get("rel") not in _HARMLESS and (address := given.get(_LOADING.get(tag, ""))):
            self.found.append(address)


def loads(path: Path) -> list[str]:
    """The addresses that a page or style sheet makes a browser load."""
    text = path.read_text("utf-8")
    if path.suffix == ".css":
        return re.findall(r"""(?:url\(|@import)\s*["']?([^"')]+)""", text)
    parser = _Loads()
    parser.feed(text)
    return parser.found


def main(site: Path) -> int:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    remote = [(file, address) for file in files for address in loads(file) if re.match(r"(https?:)?//", address)]
    for file, address in remote:
        print(f"{file.relative_to(site)} loads {address}")
    print(f"{len(files)} pages and style sheets, {len(remote)} loads from elsewhere")
    return 1 if remote or not files else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
