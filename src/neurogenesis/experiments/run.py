"""One run: settings in, a directory with its record out."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from .building import build_data, build_strategy, initial_widths
from .environment import current_environment, select_device
from .errors import UsageError, one_line
from .progress import Display
from .record import RESULT_FILE, SETTINGS_FILE, Epoch, Result
from .run_directory import RunDirectory, read_result
from .settings import Convolutional, Settings
from .signals import Interrupted
from .training import start_training, torch_threads, train


def run(
    settings: Settings,
    out: Path,
    *,
    root: Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    displays: Sequence[Display] = (),
) -> Result:
    """Train with these settings and record it in a directory.

    A run that was interrupted is resumed; the result of a finished run is returned without training.

    Args:
        settings: an instance of a preset.
        out: the run's directory.
        root: the directory of data sets, as in `neurogenesis.experiments.data.load`.
        device: the device to train on.
        threads: number of torch's threads; by default 1 for small networks, and all cores for convolutional ones.
        displays: show the progress.

    Raises:
        UsageError: a setting is wrong or has no effect, data is missing, or the directory cannot be used.
        Interrupted: the run was stopped by a signal, and is saved.
    """
    for _ in run_epochs(settings, out, root=root, device=device, threads=threads, displays=displays):
        pass
    result = read_result(out)
    assert result is not None
    return result


def run_epochs(
    settings: Settings,
    out: Path,
    *,
    root: Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    displays: Sequence[Display] = (),
    until: int | None = None,
) -> Iterator[Epoch]:
    """Do what `run` does, epoch by epoch: each one is yielded when it is saved.

    Args:
        settings, out, root, device, threads, displays: as of `run`.
        until: the epoch to stop after, from which the run can be resumed; by default the last one.
    """
    # All of this before anything is written.
    torch_device = select_device(device)
    build_strategy(settings, 1)
    initial_widths(settings)
    if threads is not None and threads < 1:
        raise UsageError(f"--threads: expected a positive number, not {threads}")
    if _finished(settings, out):
        return
    with torch_threads(1 if threads is None and not isinstance(settings, Convolutional) else threads):
        data = build_data(settings, root)
        training = start_training(settings, data, torch_device)
        directory = RunDirectory(out)
        with directory.locked(settings.record()):
            directory.start(current_environment(torch_device, data.digest))
            try:
                result = yield from train(settings, training, data, torch_device, directory, displays, until)
            except (KeyboardInterrupt, Interrupted):
                raise
            except UsageError as error:
                directory.fail(one_line(error) + "\n")
                raise
            except Exception:
                directory.fail(traceback.format_exc())
                raise
            finally:
                for display in displays:
                    display.close()
            if result is not None:
                directory.finish(result)


def _finished(settings: Settings, out: Path) -> Result | None:
    if not (out / RESULT_FILE).exists():
        return None
    if not RunDirectory(out).has_settings(settings.record()):
        raise UsageError(f"{out} is not a run (it has {RESULT_FILE} and no {SETTINGS_FILE}): choose another --out")
    return read_result(out)
