"""The application that the commands are added to."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, get_args

from cyclopts import App, ArgumentCollection, CoercionError, Group, Parameter
from cyclopts.exceptions import CycloptsError

from ..experiments.errors import UsageError
from ..experiments.settings import Settings

__all__ = ["App", "CycloptsError", "DataDirectory", "Flag", "Group", "Parameter", "Quiet", "app", "reject_unused_data"]

DataDirectory = Annotated[
    Path | None,
    Parameter(
        help="Directory of data sets; missing files are downloaded into it. By default $NEUROGENESIS_DATA, else the "
        "user's cache."
    ),
]
Flag = Annotated[bool, Parameter(negative="")]
Quiet = Annotated[bool, Parameter(negative="", help="Show no progress.")]


def _reject_fractions(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Reject fractions for integer options, which cyclopts would round."""
    for argument in arguments:
        if _contains(argument.hint, int) and not _contains(argument.hint, float):
            for token in argument.tokens:
                if "." in token.value:
                    raise CoercionError(token=token, argument=argument, target_type=int)


def _contains(hint: Any, kind: type) -> bool:
    """Whether a type is or contains another."""
    return hint is kind or any(_contains(part, kind) for part in get_args(hint))


app = App(
    name="neurogenesis",
    config=_reject_fractions,
    help="Grow neural networks while they train.",
    version=lambda: f"neurogenesis {version('torch-neurogenesis')}",
    suppress_keyboard_interrupt=False,
)


def reject_unused_data(data: Path | None, runs: Sequence[Settings]) -> None:
    """Raise UsageError if --data is given and no run reads files."""
    if data is not None and not any(settings.needs_files for settings in runs):
        raise UsageError(f"--data has no effect on {runs[0].name}, which needs no files: remove it")
