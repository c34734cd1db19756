"""The command, as called from a shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from neurogenesis.cli import main
from neurogenesis.cli.widths import python_value
from neurogenesis.experiments.data import SOURCES
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.strategies import STRATEGIES
from tests import fake_runs as fake
from tests.runs import assert_same_run, command, lines

OPTIONAL = ["altair", "cyclopts", "pandas", "pooch", "rich", "sklearn", "tensorboard", "torchvision", "vl_convert"]


def test_widths_of_a_model_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "tests.cases:mlp", "--input", "5,6"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["0", "8", "0", "2", "yes"]


@pytest.mark.parametrize("model", ["torchvision.models:resnet18", "timm.models.resnet:resnet18"])
def test_models_of_other_packages_are_found(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", model, "--input", "1,3,64,64"]) == 0
    assert "layer4.1.conv1" in capsys.readouterr().out


def test_arguments_reach_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "torch.nn:Linear", "6", "5", "False", "--input", "2,6"]) == 0
    assert "no: a size of the model's output" in " ".join(capsys.readouterr().out.split())
    assert main(["widths", "torch.nn:Linear", "6", "out_features=5", "bias=False", "--input", "2,6"]) == 0
    assert "no: a size of the model's output" in " ".join(capsys.readouterr().out.split())


def test_a_model_without_widths_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "torch.nn:Identity", "--input", "2,6"]) == 0
    assert "torch.nn:Identity has no widths" in capsys.readouterr().out


class Pairs(nn.Module):
    """Tokens with a mask, and numbers."""

    def __init__(self, vocabulary: int = 2) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(vocabulary, 4), nn.Linear(9, 6), nn.Linear(6, 3)

    def forward(self, tokens: Tensor, numbers: Tensor, *, mask: Tensor) -> Tensor:
        assert mask.dtype is torch.bool
        return self.head(
            self.hidden(torch.cat([self.embed(tokens)[mask].view(len(tokens), -1)[:, :4], numbers], 1)).tanh()
        )


@pytest.mark.parametrize(
    "inputs",
    [
        ["2,3:int", "2,5", "mask=2,3:bool"],
        ["mask=2,3:bool", "2,3:int", "2,5:float32"],
        ["tokens=2,3:int64", "mask=2,3:bool", "numbers=2,5"],
    ],
)
def test_several_inputs_of_several_kinds_are_given(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for text in inputs for word in ("--input", text)]
    assert main(["widths", "tests.experiments.test_cli:Pairs", "2", *words]) == 0
    assert re.search(r"^hidden +6 +hidden +head +yes$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("text", ["2,0", "2,3:", "=2,3", "2;3", "tokens=int"])
def test_inputs_that_cannot_be_read_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "tests.cases:mlp", "--input", text]) == 2
    assert "--input: expected sizes such as 1,3,224,224" in capsys.readouterr().err
    assert main(["widths", "tests.cases:mlp", "--input", "2,3:inf"]) == 1
    assert "--input: unknown kind 'inf'" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("0.5", 0.5), ("False", False), ("[1, 2]", [1, 2]), ("a", "a")])
def test_arguments_are_python_values(text: str, value: object) -> None:
    assert python_value(text) == value


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        ("tests.cases", "5,6", "write package.module:name"),
        ("tests.nothing:mlp", "5,6", "No module named 'tests.nothing'"),
        ("tests.cases:nothing", "5,6", "no attribute 'nothing'"),
        ("tests.cases:randn", "5,6", "not a torch.nn.Module"),
        ("tests.cases:mlp", "5,7", "the model rejects the example"),
        ("torch.nn:Linear", "5,7", "cannot make torch.nn:Linear: TypeError"),
        ("other_model:fail", "5,7", "cannot make other_model:fail: RuntimeError: it failed"),
    ],
)
def test_models_that_cannot_be_made_are_named(
    model: str,
    shape: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "other_model.py").write_text("def fail(): raise RuntimeError('it failed')")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["widths", model, "--input", shape]) == 1
    assert message in capsys.readouterr().err


def test_a_wrong_shape_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "tests.cases:mlp", "--input", "5,x"]) == 2
    assert re.search(r"--input: expected sizes such as 1,3,224,224, .* not '5,x'", capsys.readouterr().err)


# --- the whole command --------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs the times of processes")
def test_help_is_quick() -> None:
    def seconds(*words: str) -> float:
        """Processor time, which does not depend on other processes."""
        before = os.times()
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    shown = command("--help").stdout
    assert all(word in shown for word in ("run", "sweep", "report", "widths"))
    helping = min(seconds("-m", "neurogenesis", "--help") for _ in range(3))
    assert helping < min(1.5, seconds("-c", "import torch") / 3)


@pytest.mark.parametrize(
    ("names", "absent"),
    [
        ("neurogenesis", ["torch", *OPTIONAL]),
        ("neurogenesis.cli.main", ["torch", "neurogenesis.report", *set(OPTIONAL) - {"cyclopts", "rich"}]),
        ("neurogenesis.Grower neurogenesis.experiments.run.run", ["neurogenesis.report", *OPTIONAL]),
        ("neurogenesis.report.write", ["torch"]),
    ],
)
def test_importing_takes_only_what_is_needed(names: str, absent: list[str]) -> None:
    taken = f"[pkgutil.resolve_name(name) for name in {names.split()}]"
    code = f"import pkgutil, sys; {taken}; print([m for m in {absent} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def without_the_extra(*words: str) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({[*OPTIONAL, 'filelock']}))\n"
        f"from neurogenesis.cli import main; sys.exit(main({words}))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [("run", "digits"), ("--help",), ()])
def test_without_the_extra_the_command_says_what_to_install(words: tuple[str, ...]) -> None:
    done = without_the_extra(*words)
    assert done.returncode == 1
    assert "all commands but widths need" in done.stderr
    assert "pip install 'torch-neurogenesis[experiments]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_widths_need_torch_alone() -> None:
    done = without_the_extra("widths", "tests.cases:mlp", "--input", "5,6")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2].split() == ["0", "8", "0", "2", "yes"]


@pytest.mark.parametrize("preset", PRESETS)
def test_help_explains_every_setting_of_a_preset(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", preset, "--help"])
    shown = capsys.readouterr().out
    for field in fields(PRESETS[preset]):
        option = "--" + field.name.replace("_", "-")
        assert f" {option} " in shown, option
    explained = [line for line in shown.splitlines() if " --" in line]
    assert all(re.search(r"--\S+( \S+)*  +\S", line) or "--no-least" in line for line in explained), shown


def test_help_names_every_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "digits", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(name in shown for name in STRATEGIES if name != "static")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "mnits"], 'Did you mean "mnist"'),
        (["run", "digits", "--learning-rat", "1"], "Did you mean --learning-rate?"),
        (["run", "digits", "--lr", "1"], "All options: neurogenesis run digits --help"),
        (["run", "digits", "--epochs", "1.5"], '--epochs: unable to convert "1.5" into int'),
        (["run", "digits", "--initial", "4.6"], '--initial: unable to convert "4.6" into int'),
        (["sweep", "digits", "--dry-run", "--seeds"], "--seeds requires at least 1 element"),
        (["sweep", "digits", "--seeds", "--dry-run"], "--seeds requires at least 1 element"),
        (["sweep", "digits", "--dry-run", "--only"], "--only requires at least 1 element"),
        (["report", "nowhere", "--format"], "--format requires an argument"),
        (["sweep", "digits", "--seeds", "1", "1.5"], '--seeds: unable to convert "1.5" into int'),
        (["run", "digits", "--data", "somewhere"], "--data has no effect on digits"),
        (["sweep", "digits", "--data", "somewhere"], "--data has no effect on digits"),
        (["sweep", "digits", "--dry-run", "--device", "gpu"], "--device gpu"),
        (["run", "digits", "--strategy", "gradmaks"], "Did you mean 'gradmax'?"),
        (["run", "digits", "--schedule", "liner"], 'Did you mean "linear"?'),
        (["run", "digits", "--epochs", "many"], "--epochs"),
        (["run", "digits", "--device", "gpu"], "--device gpu"),
        (["run", "digits", "--device", "meta"], "--device meta"),
        (["run", "digits", "--threads", "0"], "--threads: expected a positive number"),
        (["sweep", "digits", "--threads", "0"], "--workers and --threads: expected positive numbers"),
        (["run", "wrn28-cifar10", "--initial", "0.001", "--strategy", "small"], "a layer would have no channels"),
        (["run", "digits", "--resume", "--out", "nowhere"], "there is no run in nowhere"),
        (["sweep", "mnist-dynamik"], "Did you mean 'mnist-dynamic'?"),
        (["sweep", "digits", "--wokers", "1"], "Did you mean --workers?"),
        (["rnu"], 'Did you mean "run"'),
        (["report", "nowhere"], "nowhere"),
        (["report", "nowhere", "--format", "pgn"], 'Did you mean "png"'),
    ],
)
def test_wrong_options_are_named_with_the_closest_match(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) in (1, 2)
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert message in said
    assert not list(tmp_path.iterdir())


def test_a_run_and_its_report_from_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "digits", "--epochs", "2", "--strategy", "north-random", "--seed", "3")
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "runs" / "digits-north-random-epochs-2-seed3"
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["digits", "epoch", "1", "2", "test"]
    assert done.stdout.splitlines()[-1].endswith(f"; {out.relative_to(tmp_path)}")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    assert capsys.readouterr().out == "already finished: " + done.stdout.splitlines()[-1] + "\n"
    assert main([*words, "--resume", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["report", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(out / "report.html")]
    assert "NORTH-Random" in (out / "report.html").read_text("utf-8")


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    words = ("run", "digits", "--out", str(tmp_path / "cut"), "--epochs", "30", "--strategy", "north-random", "--quiet")
    process = subprocess.Popen(
        [sys.executable, "-m", "neurogenesis", *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (tmp_path / "cut" / "epochs.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert f"{tmp_path / 'cut'} is saved. The same command resumes it." in said
    assert not (tmp_path / "cut" / "result.json").exists()
    assert main(words) == 0
    assert main([*words[:3], str(tmp_path / "whole"), *words[4:]]) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("words", [("run", "digits"), ("sweep", "digits")])
def test_ctrl_c_works_while_torch_is_imported(words: tuple[str, ...], tmp_path: Path) -> None:
    code = (  # Ctrl-C arrives in the middle of the import of torch
        "import os, signal, sys\n"
        "class Press:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch.nn': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press())\n"
        "from neurogenesis.cli import main\n"
        f"sys.exit(main([*{words!r}, '--out', {str(tmp_path / 'run')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "neurogenesis: interrupted; the same command resumes from what is saved\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (("run", "digits", "--epochs", "3", "--strategy", "small"), "result.json"),
        (
            ("sweep", "digits", "--epochs", "1", "--only", "small-*", "--seeds", "1", "2"),
            "small-epochs-1-seed2/result.json",
        ),
    ],
)
def test_a_closed_pipe_does_not_stop_the_command(words: tuple[str, ...], result: str, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "neurogenesis", *words, "--out", str(tmp_path)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, "")
    assert (tmp_path / result).exists() and not list(tmp_path.rglob("failure.txt"))


def test_a_closed_standard_error_does_not_stop_the_command() -> None:
    code = "from neurogenesis.experiments.messages import echo_error as e; input(); e(1); e(2); print('still running')"
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", code], text=True, **streams) as process:  # type: ignore[call-overload]
        process.stderr.close()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.read() == "still running\n"
    assert process.returncode == 0


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Larger files cannot be written inside, as on a full disk."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
def test_a_full_disk_is_named_and_the_record_stays_intact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("run", "digits", "--epochs", "2", "--out", str(tmp_path / "run"), "--quiet")
    with files_of_at_most(100_000):
        assert main(words) == 1
    said = capsys.readouterr().err
    assert f"cannot write to {tmp_path / 'run'}: File too large" in said
    assert "Traceback" not in said
    assert not list((tmp_path / "run").glob("*.part"))
    assert main(words) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
@pytest.mark.parametrize("form", ["html", "svg", "png", "pdf"])
def test_a_full_disk_leaves_the_previous_report_intact(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.write_run(tmp_path, fake.settings(epochs=2))
    assert main(["report", str(tmp_path), "--format", form]) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert f".{form}" in {path.suffix for path in tmp_path.iterdir()}
    with files_of_at_most(1000):
        assert main(["report", str(tmp_path), "--format", form]) == 1
    assert f"cannot write to {tmp_path}: File too large" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_truncated_data_file_is_named_with_its_checksum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mnist").mkdir()
    for name in SOURCES["mnist"].files:
        (tmp_path / "mnist" / name.name).write_bytes(b"\x1f\x8b truncated")
    assert main(["run", "mnist", "--data", str(tmp_path), "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert "train-images-idx3-ubyte.gz" in said and "f68b3c2dcbeaaa9fbdd348bbdeb94873" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("words", [("run", "mnist"), ("sweep", "mnist-lr")])
def test_without_network_the_message_says_which_files_are_needed(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = replace(SOURCES["mnist"], mirrors=("http://127.0.0.1:9/",))
    monkeypatch.setitem(SOURCES, "mnist", nowhere)
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--data", "data"]) == 1
    said = capsys.readouterr().err
    assert said.count("mnist is not in data/mnist (data does not exist) and cannot be downloaded") == 1
    assert all(file.name in said for file in nowhere.files)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "workers"), [(("trigger-cost-small",), 1), (("digits", "--device", "cpu:0"), 1), (("digits",), 4)]
)
def test_timed_runs_and_runs_on_a_shared_device_are_done_one_at_a_time(
    words: tuple[str, ...], workers: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neurogenesis.experiments.engines.pool.cores", lambda: 4)
    monkeypatch.setattr("neurogenesis.experiments.estimates.startup_seconds", lambda: 5.0)
    assert main(["sweep", *words, "--only", "small*", "--seeds", "1", "--dry-run"]) == 0
    assert f"1 of 1 runs to do, {workers} at a time" in capsys.readouterr().out


def test_a_report_is_written_next_to_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.write_run(tmp_path / "run", fake.settings(epochs=2))
    assert (
        main(["report", str(tmp_path / "nowhere"), str(tmp_path / "run"), "--format", "html", "--format", "svg"]) == 0
    )
    printed = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.parent for path in printed} == {tmp_path / "run"}
    assert {path.suffix for path in printed} == {".html", ".svg"}
    assert not (tmp_path / "nowhere").exists()


def test_a_report_without_steps_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.write_json(tmp_path / "settings.json", fake.settings(epochs=2))
    assert main(["report", str(tmp_path), "--format", "svg"]) == 1
    assert "nothing to draw" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_gets_a_progress_bar(tmp_path: Path) -> None:
    import pty

    shown = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        shown.extend(data)
        return b" "  # nothing of it reaches the tests' own output

    words = ["run", "digits", "--epochs", "3", "--out", str(tmp_path)]
    code = pty.spawn([sys.executable, "-m", "neurogenesis", *words], read, lambda _: b"")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert os.waitstatus_to_exitcode(code) == 0
    last = lines(tmp_path / "epochs.jsonl")[-1]
    ended = f"accuracy {last['accuracy']:.2%} " + "-".join(map(str, last["widths"].values()))
    assert re.search(r"66/66 00:00 loss \d\.\d+ +" + re.escape(ended), text)


def test_tensorboard_gets_the_scalars_of_the_records(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["run", "digits", "--epochs", "2", "--out", str(tmp_path), "--tensorboard", "--quiet"]) == 0
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    steps, epochs = lines(tmp_path / "steps.jsonl"), lines(tmp_path / "epochs.jsonl")
    assert [event.step for event in events.Scalars("loss")] == [line["step"] for line in steps]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx([line["loss"] for line in steps])
    assert [event.value for event in events.Scalars("accuracy")] == pytest.approx([line["accuracy"] for line in epochs])
    assert {"widths/hidden1", "metric/hidden1", "threshold/hidden1"} <= set(events.Tags()["scalars"])
