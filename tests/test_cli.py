"""The command, called as from a shell."""

from __future__ import annotations

import pytest

from neurogenesis.cli import main


def test_widths_of_a_model_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "tests.cases:mlp", "--input", "5,6"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["0", "8", "0", "2", "yes"]


def test_arguments_reach_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "torch.nn:Linear", "6", "5", "--input", "2,6"]) == 0
    assert "no: a size of the model's output" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        ("tests.cases", "5,6", "write package.module:callable"),
        ("tests.nothing:mlp", "5,6", "No module named 'tests.nothing'"),
        ("tests.cases:nothing", "5,6", "no attribute 'nothing'"),
        ("tests.cases:randn", "5,6", "not a torch.nn.Module"),
        ("tests.cases:mlp", "5,7", "the model rejects the example"),
    ],
)
def test_mistakes_are_named(model: str, shape: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", model, "--input", shape]) == 1
    assert message in capsys.readouterr().err


def test_a_bad_shape_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "tests.cases:mlp", "--input", "5,x"]) == 2
    assert "--input: expected sizes such as 1,3,224,224, not '5,x'" in " ".join(capsys.readouterr().err.split())
