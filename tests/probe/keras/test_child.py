# SPDX-License-Identifier: Apache-2.0
"""What the recording child says of scripts that it cannot record."""

from __future__ import annotations

from pathlib import Path

import pytest

from floatwise.errors import ScriptError
from floatwise.planner.record import record

#: Stands for Keras 2, which is an add-on of its own.
KERAS_2 = """
class Model:
    def make_train_function(self):
        return print

class optimizers:
    class Optimizer:
        def apply_gradients(self, pairs):
            pass
"""


def refusal(folder: Path, script: str) -> str:
    (folder / "train.py").write_text(script)
    with pytest.raises(ScriptError) as caught:
        record(str(folder / "train.py"), (), 2, str(folder / "out.rec"), lambda *_: None, framework="keras")
    return str(caught.value)


@pytest.mark.parametrize("call", ["Model().make_train_function()", "optimizers.Optimizer().apply_gradients([])"])
def test_keras_2_is_named_when_it_trains(tmp_path: Path, call: str) -> None:
    (tmp_path / "tf_keras.py").write_text(KERAS_2)
    said = refusal(tmp_path, f"import tf_keras\ntf_keras.{call}\n")
    assert "this script trains with Keras 2" in said
    assert "Keras 3 on TensorFlow, JAX and PyTorch" in said


def test_script_without_keras_is_told_so(tmp_path: Path) -> None:
    assert "ended without importing Keras" in refusal(tmp_path, "print(1)\n")
