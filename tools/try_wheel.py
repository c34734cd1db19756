"""Install a wheel alone into a fresh environment and run the README's first example there.

python -m tools.try_wheel dist
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tools.printed import differences, examples

ROOT = Path(__file__).parent.parent


def main(directory: Path) -> int:
    (wheel,) = directory.glob("*.whl")
    version = wheel.name.split("-")[1]
    page = (ROOT / "README.md").read_text("utf-8")
    code, told, varies = next(example for example in examples(page) if example.told)
    with tempfile.TemporaryDirectory() as temporary:
        venv.create(temporary, with_pip=True)
        python = Path(temporary) / "bin" / "python"

        def run(*words: str) -> str:
            # -I: neither the working directory nor the user's packages can stand in for what the wheel lacks.
            done = subprocess.run([python, "-I", *words], cwd=temporary, check=True, stdout=subprocess.PIPE, text=True)
            return done.stdout

        # What is imported is compiled then; torch alone has thousands of files.
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
        run(*install, "--constraint", str(ROOT / "constraints.txt"), str(wheel.resolve()))
        named = run("-c", "import neurogenesis; print(neurogenesis.__version__)").strip()
        assert named == version, f"the wheel is {version}, the package says {named}"
        command = "-m neurogenesis widths torch.nn:TransformerEncoderLayer 64 4 --input 1,10,64"
        listed = run(*command.split())
        assert "linear1" in listed, f"neurogenesis widths printed\n{listed}"
        printed = run("-c", code)
        assert not (found := differences(printed, told, varies)), "\n".join(["the README's first example:", *found])
    print(f"{wheel.name} works alone: the README's first example prints what it says, and so does neurogenesis widths")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
