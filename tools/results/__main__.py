"""Rebuild every table and figure of README and docs that comes from `results/`: `python -m tools.results`."""

from __future__ import annotations

import time

from .figures import FIGURES, write_figure
from .pages import PAGES, rebuilt


def main() -> None:
    started = time.monotonic()
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = rebuilt(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"{page.name}: tables rebuilt")
    for name in FIGURES:
        print(f"{name}: {'drawn' if write_figure(name) else 'as it was'}")
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
