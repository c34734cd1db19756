"""Networks that predict characters: the text and its division, the transformer, runs, and their report."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import neurogenesis as ng
from neurogenesis import report
from neurogenesis.cli import main
from neurogenesis.experiments.building import build_data, build_network, build_strategy, standard_sizes
from neurogenesis.experiments.data import Data, DataError, Text, standard_library, text_file, windows
from neurogenesis.experiments.errors import UsageError
from neurogenesis.experiments.presets import PRESETS
from neurogenesis.experiments.record import CHECKPOINT_FILE
from neurogenesis.experiments.run import run, run_epochs
from neurogenesis.experiments.run_directory import read_result
from neurogenesis.experiments.settings import Settings
from neurogenesis.experiments.sweep import sweep
from neurogenesis.experiments.training import gradient_step, start_training
from neurogenesis.report.reading import read
from neurogenesis.report.speeds import undisturbed_seconds
from tests.runs import assert_same_run, here, lines, records
from tools.compact import KEPT, compact

TEXT = "".join(f"def f{number}(x):\n    return x + {number * number}\n\n\n" for number in range(150))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return path


def tiny(text: Path, **changes: Any) -> Settings:
    """Settings of a run that takes a second."""
    small = {"length": 8, "stream": 16, "heads": 1, "neurons": 16, "strategy": "static", "epochs": 2, "batch": 12}
    small |= {"shape": "1"} if changes.get("strategy", "static") == "static" else {"initial": 1}
    return PRESETS["gpt-stdlib"](text=str(text), **{**small, **changes})


# --- text -----------------------------------------------------------------------------------------------------


def test_modules_are_divided_by_their_order(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"m{number:02}.py").write_text(f"{number};", "utf-8")
    (tmp_path / "_sysconfigdata_here.py").write_text("paths of this machine", "utf-8")
    (tmp_path / "notes.txt").write_text("no module", "utf-8")
    found = standard_library(tmp_path)
    assert (found.test, found.validation) == ("9;29;", "19;39;")
    assert found.train == "".join(f"{number};" for number in range(40) if number % 10 != 9)
    (tmp_path / "m39.py").write_text("changed", "utf-8")
    assert standard_library(tmp_path).digest != found.digest
    with pytest.raises(DataError, match=r"0 modules .* pass a text with --text"):
        standard_library(tmp_path / "elsewhere")


def test_the_standard_library_of_this_python_is_a_text() -> None:
    found = standard_library()
    assert "class" in found.train and len(found.train) > 1_000_000
    assert min(len(found.validation), len(found.test)) > 50_000
    assert found.digest == standard_library().digest


def test_targets_are_the_next_characters() -> None:
    data = windows(text := Text("abc" * 40, "ccb", "abcxab"), length=5)
    (x, y), (tested, expected) = data.train, data.test
    assert data.classes == 4 and data.digest == text.digest
    assert torch.equal(x.flatten()[1:], y.flatten()[:-1]) and x.flatten()[:6].tolist() == [0, 1, 2, 0, 1, 2]
    assert tested.tolist() == [[0, 1, 2, 3, 0]] and expected.tolist() == [[1, 2, 3, 0, 1]]
    assert windows(text, length=2, validation=True).test[0].tolist() == [[2, 2]]


def test_a_file_is_divided_into_three(text: Path) -> None:
    found = text_file(text)
    assert found.train + found.validation + found.test == TEXT
    assert len(found.validation) == pytest.approx(len(found.test), abs=1) == pytest.approx(len(TEXT) / 20, abs=1)


def test_unusable_texts_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.txt cannot be read: No such file"):
        text_file(tmp_path / "missing.txt")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match="is no text in UTF-8"):
        text_file(tmp_path / "bytes")
    (tmp_path / "program").write_bytes(b"\x7fELF\x02\x01\x00\x00" * 500)
    with pytest.raises(DataError, match="program is no text: it has NUL characters"):
        text_file(tmp_path / "program")
    with pytest.raises(DataError, match="the test part of the text has 3 characters: more than 5 are needed"):
        windows(Text("abc" * 40, "", "abc"), length=5)
    with pytest.raises(DataError, match="no character occurs 32 times in the training part of the text"):
        windows(Text("".join(map(chr, range(200, 500))), "", "abcdefgh"), length=5)


TINY = "--length 8 --stream 16 --heads 1 --neurons 16 --strategy static --shape 1 --epochs 1 --batch 12 --quiet".split()


def test_any_text_can_be_learned_and_its_digest_is_in_the_record(tmp_path: Path) -> None:
    verses = {
        "greek": "μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος\n",
        "latin": "arma virumque cano, Troiae qui primus\n",
    }
    digests = set()
    for name, verse in verses.items():
        (tmp_path / name).write_text(verse * 120, "utf-8")
        out = tmp_path / f"run-{name}"
        assert main(["run", "gpt-stdlib", "--text", str(tmp_path / name), *TINY, "--out", str(out)]) == 0
        assert json.loads((out / "result.json").read_text())["bits_per_character"] < 5
        digest = json.loads((out / "environment.json").read_text())["data"]
        assert digest == text_file(tmp_path / name).digest
        digests.add(digest)
    assert len(digests) == 2
    (tmp_path / "greek").write_text(verses["latin"] * 120, "utf-8")
    assert text_file(tmp_path / "greek").digest == digest  # of the content, whatever the file is called


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"aaaaa" * 20, "has 5 characters: more than 8 are needed"),
        (b"", "it is too short"),
        (b"\x89PNG\r\n\x1a\n" * 500, "is no text in UTF-8"),
        (b"a\0b\0" * 2000, "is no text: it has NUL characters"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_learned_is_refused_with_the_reason(
    content: bytes | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.mkdir() if content is None else path.write_bytes(content)
    out = tmp_path / "run"
    assert main(["run", "gpt-stdlib", "--text", str(path), *TINY, "--out", str(out)]) != 0
    shown = " ".join(capsys.readouterr().err.split())
    assert f"--text {path}" in shown and reason in shown
    assert not (out / "result.json").exists()


def test_holding_out_measures_on_the_validation_part(text: Path) -> None:
    parts = text_file(text)
    for holdout, expected in ((0.0, parts.test), (0.1, parts.validation)):
        data = build_data(tiny(text, holdout=holdout), None)
        assert torch.equal(data.test[0], windows(Text(parts.train, expected, expected), 8).test[0])


# --- the network ------------------------------------------------------------------------------------------------


def test_the_transformer_does_not_see_what_follows(text: Path) -> None:
    settings = tiny(text, shape="3", heads=2)
    model = build_network(settings, build_data(settings, None))
    assert len(model.blocks) == 3  # type: ignore[arg-type]
    x = torch.randint(5, (2, 8))
    changed = x.clone()
    changed[:, 5:] += 1
    before, after = model(x), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_its_neurons_and_heads_can_grow(text: Path) -> None:
    settings = tiny(text, shape="2", heads=2)
    model = build_network(settings, build_data(settings, None))
    x = torch.randint(5, (2, 8))
    found, before = ng.widths(model, x), model(x)
    assert {width.name: (width.kind, width.size) for width in found.growable if width.kind != "stream"} == {
        f"blocks.{number}.{layer}": size
        for number in range(2)
        for layer, size in (("query", ("heads", 2)), ("up", ("neurons", 16)))
    }
    for width in found.growable:
        ng.grow(model, width.name, width.size if width.copied else 2)
    torch.testing.assert_close(model(x), before)


# --- runs -------------------------------------------------------------------------------------------------------


def test_a_run_records_bits_and_operations(text: Path, tmp_path: Path) -> None:
    settings = tiny(text)
    result = run(settings, tmp_path / "run")
    data = build_data(settings, None)
    flops = ng.flops(build_network(settings, data), data.train[0][:1])
    assert result.bits_per_character is not None and result.test_loss is not None
    assert result.bits_per_character == pytest.approx(result.test_loss / math.log(2), rel=1e-6)
    assert result.bits_per_character < math.log2(data.classes) / 1.5
    samples = min(100 * 12, len(data.train[0]))
    assert (result.flops, result.training_flops) == (flops, 3 * flops * 2 * samples)
    assert [line["training_flops"] for line in lines(tmp_path / "run" / "epochs.jsonl")] == [
        3 * flops * epoch * samples for epoch in (1, 2)
    ]
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["data"] == data.digest
    assert result.widths == {"blocks": 1}


def test_an_epoch_is_a_hundred_steps_on_other_windows_each_time(text: Path, tmp_path: Path) -> None:
    settings = tiny(text, batch=4)
    assert settings.epoch_steps(10**6) == 100 and settings.epoch_steps(10) == 3
    assert run(settings, tmp_path / "run").steps == 200


def test_a_resumed_run_is_the_same_to_the_last_bit(text: Path, tmp_path: Path) -> None:
    settings = tiny(text, strategy="need", neurons=8)
    run(settings, tmp_path / "whole")
    for _ in run_epochs(settings, tmp_path / "parts", until=1):
        pass
    run(settings, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    epochs = records(tmp_path / "whole")["epochs.jsonl"]
    assert (
        epochs[-1]["flops"] > epochs[0]["flops"] - 1 and epochs[-1]["training_flops"] > epochs[0]["training_flops"] > 0
    )


def test_a_run_that_began_without_counting_goes_on_without(text: Path, tmp_path: Path) -> None:
    settings = tiny(text)
    for _ in run_epochs(settings, tmp_path / "run", until=1):
        pass
    path = tmp_path / "run" / CHECKPOINT_FILE
    checkpoint = torch.load(path, weights_only=True)
    torch.save({name: value for name, value in checkpoint.items() if name != "flops"}, path)
    result = run(settings, tmp_path / "run")
    assert result.training_flops is None and result.flops is not None


def test_the_rate_falls_in_the_last_fifth(text: Path) -> None:
    settings = tiny(text, epochs=1, batch=4)
    training = start_training(settings, build_data(settings, None), torch.device("cpu"))
    assert training.decay is not None
    rates = []
    for _ in range(100):
        rates.append(training.decay.get_last_lr()[0])
        training.optimizer.step()
        training.decay.step()
    assert rates[:81] == [3e-3] * 81
    assert rates[90] == pytest.approx(1.5e-3) and rates[99] == pytest.approx(1.5e-4)


def test_texts_with_different_names_are_different_runs(text: Path) -> None:
    assert tiny(text).label == "static-1-epochs-2-batch-12-text-text-length-8-stream-16-heads-1-neurons-16-seed1"


# --- heads and neurons ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grows", "final"),
    [
        ({"final_neurons": 32}, {"blocks.0.up": 32, "blocks.1.up": 32}),
        ({"final_heads": 4}, {"blocks.0.query": 4, "blocks.1.query": 4}),
    ],
)
def test_a_schedule_grows_the_kind_that_has_a_final_size(
    grows: dict[str, int], final: dict[str, int], text: Path, tmp_path: Path
) -> None:
    settings = tiny(text, strategy="need", schedule="batched", initial=2, heads=2, **grows)
    result = run(settings, tmp_path / "run")
    assert result.widths == final
    name, size = next(iter(grows.items()))
    of_static = replace(settings, strategy="static", shape="2", schedule="dynamic", **{name: None})
    static = build_network(replace(of_static, **{name.removeprefix("final_"): size}), build_data(settings, None))
    assert result.parameters == sum(own.numel() for own in static.parameters())


def test_the_shape_that_need_grows_is_trained_from_scratch(text: Path, tmp_path: Path) -> None:
    need = tiny(text, strategy="need", initial=2, heads=2, neurons=4)
    scratch = replace(need, strategy="static", shape_of="need")
    runs = {settings.label: settings for settings in (scratch, need)}
    assert not sweep(runs, tmp_path, here).failed
    grown, again = (read_result(tmp_path / settings.label) for settings in (need, scratch))
    assert grown is not None and again is not None
    assert (again.widths, again.parameters, again.flops) == (grown.widths, grown.parameters, grown.flops)
    assert again.initial_widths == grown.widths
    shape = json.loads((tmp_path / scratch.label / "settings.json").read_text())["shape"]
    assert shape == "-".join(
        str(grown.widths[f"blocks.{block}.{layer}"]) for block in (0, 1) for layer in ("query", "up")
    )


# --- the report ---------------------------------------------------------------------------------------------------


def test_the_report_shows_bits_against_compute(text: Path, tmp_path: Path) -> None:
    for shape in ("1", "2"):
        run(tiny(text, shape=shape), tmp_path / "runs" / shape)
    written = report.write([tmp_path / "runs"], tmp_path, ["md", "svg"])
    table = next(path for path in written if path.suffix == ".md").read_text()
    assert "| bits per character | a sample, MFLOPs | training, GFLOPs |" in table
    figure = next(path for path in written if "loss-against-compute" in path.name).read_text()
    assert "training, GFLOPs" in figure and "bits per character" in figure


def test_compact_records_make_the_same_table(text: Path, tmp_path: Path) -> None:
    run(tiny(text), tmp_path / "runs" / "one")
    (tmp_path / "runs" / "unfinished").mkdir()
    assert compact(tmp_path / "runs", tmp_path / "results") == 1
    assert {path.name for path in (tmp_path / "results").rglob("*.*")} == {*KEPT}
    tables = [report.write([tmp_path / name], tmp_path / f"of {name}", ["md"])[0] for name in ("runs", "results")]
    first, second = (path.read_text().split("### Cost")[0].strip() for path in tables)
    assert first == second and "bits per character" in first


def test_undisturbed_times_are_those_of_the_fastest_seconds_in_the_same_network(tmp_path: Path) -> None:
    def epoch(number: int, flops: int, seconds: float, step: float | None) -> dict[str, Any]:
        same = {"widths": {"blocks": 1}, "train_seconds": seconds, "fastest_seconds": step}
        return {"epoch": number, "step": 10 * number, "flops": flops, **same}

    # It has grown at the end of the third epoch.
    slow = [epoch(1, 5, 4.0, 0.4), epoch(2, 5, 2.0, 0.2), epoch(3, 7, 9.0, 0.3), epoch(4, 7, 6.0, 0.6)]
    quick = [epoch(1, 5, 1.0, 0.05), epoch(2, 5, 3.0, 0.1)]
    earlier = [epoch(1, 9, 2.0, None)]
    for name, epochs in (("slow", slow), ("quick", quick), ("earlier", earlier)):
        (tmp_path / name).mkdir()
        settings = {"preset": "gpt-stdlib", "strategy": "static", "seed": 1, "shape": name}
        (tmp_path / name / "settings.json").write_text(json.dumps(settings))
        (tmp_path / name / "epochs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in epochs))
    found = {path.name: seconds for path, seconds in undisturbed_seconds(read([tmp_path]).runs).items()}
    assert found == pytest.approx({"slow": 0.5 + 0.5 + 3 + 6, "quick": 1.0, "earlier": 2.0})


# --- depth --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["zero", "copy", "random"])
def test_blocks_are_added_on_schedule_and_resumed_to_the_last_bit(how: str, text: Path, tmp_path: Path) -> None:
    settings = tiny(text, strategy=f"deepen-{how}", medium=4, hops=2, at=0.7, epochs=4)
    result = run(settings, tmp_path / "whole")
    for epoch in (1, 3):  # before the first hop, and after the last
        for _ in run_epochs(settings, tmp_path / "parts", until=epoch):
            pass
    run(settings, tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    steps = lines(tmp_path / "whole" / "steps.jsonl")
    blocks = [step["widths"]["blocks"] for step in steps]
    first, last = round(0.35 * len(steps)), round(0.7 * len(steps))
    assert blocks == [1] * (first - 1) + [3] * (last - first) + [4] * (len(steps) - last + 1)
    data = build_data(settings, None)
    of_each = {depth: network_flops(settings, depth) for depth in (1, 3, 4)}
    samples = [min(12, len(data.train[0]) - 12 * ((step["step"] - 1) % (len(steps) // 4))) for step in steps]
    present = [1, *blocks[:-1]]  # a step runs at the depth before its hop
    assert result.training_flops == sum(3 * of_each[depth] * n for depth, n in zip(present, samples, strict=True))
    assert (result.initial_widths, result.widths, result.flops) == ({"blocks": 1}, {"blocks": 4}, of_each[4])


def network_flops(settings: Settings, depth: int) -> int:
    data = build_data(settings, None)
    static = replace(settings, strategy="static", shape=str(depth), at=0.5, hops=1)
    return ng.flops(build_network(static, data), data.train[0][:1])


def test_zero_hops_keep_the_loss(text: Path, tmp_path: Path) -> None:
    settings = tiny(text, strategy="deepen-zero", medium=3, at=0.5)
    data = build_data(settings, None)
    training = start_training(settings, data, torch.device("cpu"))
    x = data.test[0]
    before = training.model(x)
    training.step = 10**6
    training.deepen()
    assert training.widths == {"blocks": 3} and not training.hops
    torch.testing.assert_close(training.model(x), before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "deepen-zero", "at": 1.0}, "--at: expected a part of the training, less than 1, not 1.0"),
        ({"strategy": "deepen-zero", "initial": 4, "hops": 3}, "--hops 3: from 4 to 6 blocks there are fewer"),
        ({"strategy": "deepen-zero", "schedule": "linear"}, "widths of deepen-zero networks do not grow"),
        ({"strategy": "need", "schedule": "linear"}, "say what grows, with --final-heads or --final-neurons"),
        ({"strategy": "need", "final_heads": 8}, "--final-heads has no effect without --schedule"),
        ({"strategy": "need", "schedule": "batched", "final_heads": 2}, "--final-heads 2: there are 4 at the start"),
        ({"strategy": "static", "shape": "2-64-2"}, "expected the heads and the neurons of each block"),
        ({"strategy": "need", "at": 0.3}, "--at has no effect on need: remove it"),
        ({"strategy": "static", "shape": "2.5"}, "--shape: expected a number of blocks, not 2.5"),
    ],
)
def test_settings_without_a_meaning_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run(PRESETS["gpt-stdlib"](**changes), tmp_path / "run")


def test_networks_without_stacks_do_not_deepen(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown strategy"):
        run(PRESETS["digits"](strategy="deepen-zero"), tmp_path / "run")


def test_groups_of_residual_blocks_deepen_together(tmp_path: Path) -> None:
    made: Any = PRESETS["wrn28-cifar10-small"]
    settings = made(strategy="deepen-zero", initial=0.125, blocks=3, epochs=2, batch=4)
    x, y = torch.rand(8, 3, 32, 32), torch.arange(8)
    data = Data((x, y), (x, y), 10)
    training = start_training(settings, data, torch.device("cpu"))
    assert training.widths["blocks"] == 2 and [(hop.step, hop.blocks) for hop in training.hops] == [(2, 1)]
    flops = training.flops
    for _ in range(2):
        gradient_step(training, x[:4], y[:4], 1)
    assert training.training_flops == 2 * 3 * 4 * flops < 2 * 3 * 4 * training.flops
    resumed = start_training(settings, data, torch.device("cpu"))
    resumed.load(training.checkpoint())
    assert (resumed.widths, resumed.hops) == (training.widths, [])
    losses = [gradient_step(each, x[4:], y[4:], 1).loss for each in (training, resumed)]
    assert losses[0] == losses[1]
    static = start_training(replace(settings, strategy="static", shape="0.125"), data, torch.device("cpu"))
    assert (training.widths, training.parameters, training.flops) == (static.widths, static.parameters, static.flops)
    assert static.widths["blocks"] == 3 and standard_sizes(settings)["blocks"] == 4  # type: ignore[index]


def test_the_first_block_of_a_group_is_not_copied() -> None:
    with pytest.raises(UsageError, match="--initial-blocks 1: new blocks are copies, and the first block"):
        PRESETS["wrn28-cifar10"](strategy="deepen-zero", initial_blocks=1)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="--initial-blocks has no effect on need"):
        build_strategy(PRESETS["wrn28-cifar10"](initial_blocks=1), 10)  # type: ignore[call-arg]
