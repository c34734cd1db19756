"""Install a wheel alone into a fresh environment and run the README's first example there.

python -m tools.try_wheel dist
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def first_example() -> tuple[str, str]:
    """The README's first example, and what it says it prints."""
    found = EXAMPLE.search((ROOT / "README.md").read_text("utf-8"))
    assert found is not None, "README.md has no example with its output"
    return found[1], found[2]


def main(directory: Path) -> int:
    (wheel,) = directory.glob("*.whl")
    version = wheel.name.split("-")[1]
    code, expected = first_example()
    with tempfile.TemporaryDirectory() as temporary:
        venv.create(temporary, with_pip=True)
        python = Path(temporary) / "bin" / "python"

        def run(*words: str) -> str:
            # -I: neither the working directory nor the user's packages can stand in for what the wheel lacks.
            done = subprocess.run([python, "-I", *words], cwd=temporary, check=True, stdout=subprocess.PIPE, text=True)
            return done.stdout

        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*install, "--constraint", str(ROOT / "constraints.txt"), str(wheel.resolve()))
        told = run("-c", "import neurogenesis; print(neurogenesis.__version__)").strip()
        assert told == version, f"the wheel is {version}, the package says {told}"
        printed = run("-c", code)
        assert printed.rstrip() == expected.rstrip(), f"the README's first example printed\n{printed}"
    print(f"{wheel.name} works alone: the README's first example prints what it says")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
