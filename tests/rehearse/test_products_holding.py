# SPDX-License-Identifier: Apache-2.0
"""What matrix units change in PyTorch while they are open, and leave behind when closed: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from floatwise.errors import BadInputError
from floatwise.rehearse.product_kernels import IN_PLACE, KEY, PRODUCTS, SOFTMAX, WRITTEN_TO
from floatwise.rehearse.products import MatrixUnits

LOW = [torch.float16, torch.bfloat16]


class TestRoundedFloat32:
    """Scripts allow it for the GPU; oneDNN then may round float32 operands to bfloat16."""

    @pytest.fixture(autouse=True)
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        """Collects the precision in force whenever a kernel hands float32 operands on to PyTorch."""
        seen: list[str] = []
        redispatch = torch._ops.OpOverload.redispatch

        def watched(op: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(matmul_precision())
            return redispatch(op, *args, **kwargs)

        monkeypatch.setattr(torch._ops.OpOverload, "redispatch", watched)
        yield seen
        torch.set_float32_matmul_precision("highest")

    def multiply(self) -> None:
        with MatrixUnits([torch.float16]):
            torch.mm(torch.ones(2, 2).half(), torch.ones(2, 2).half())

    def test_is_kept_from_float16_products(self, seen: list[str]) -> None:
        torch.set_float32_matmul_precision("medium")
        allowed = matmul_precision()
        self.multiply()
        assert len(seen) == 1
        assert seen[0] not in ("bf16", "medium")
        assert matmul_precision() == allowed

    @pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="PyTorch 2.9 has it first")
    def test_a_setting_for_everything_goes_on_to_reach_products(self, seen: list[str]) -> None:
        backends: Any = torch.backends  # the stubs lag behind
        backends.mkldnn.matmul.fp32_precision = "none"
        backends.fp32_precision = "bf16"
        self.multiply()
        assert seen == ["ieee"]
        backends.fp32_precision = "tf32"
        inherited = matmul_precision()
        backends.fp32_precision = "none"
        assert inherited == "tf32"


def matmul_precision() -> str:
    part = getattr(torch.backends.mkldnn, "matmul", None)
    return str(torch.get_float32_matmul_precision() if part is None else part.fp32_precision)


class TestHolding:
    def test_kernels_go_with_the_last_holder(self) -> None:
        def registered() -> list[str]:
            has = torch._C._dispatch_has_kernel_for_dispatch_key
            return [n for n in (*PRODUCTS, *SOFTMAX, *IN_PLACE, *WRITTEN_TO) if has(f"aten::{n}", KEY)]

        assert registered() == [], "PyTorch has kernels of its own there: they would be replaced"
        one, two = MatrixUnits(), MatrixUnits([torch.bfloat16])
        one.close()
        one.close()
        assert set(registered()) == {*PRODUCTS, *SOFTMAX, *IN_PLACE, *WRITTEN_TO}
        two.close()
        assert (registered(), two.active) == ([], False)

    def test_a_dtype_goes_with_its_last_holder(self) -> None:
        # Only PyTorch's own bfloat16 convolution may flush subnormals; which kernel ran shows in the dispatcher alone.
        from floatwise.rehearse.products import _registrations

        with MatrixUnits([torch.float16]):
            with MatrixUnits(LOW):
                assert set(_registrations._holders) == set(LOW)
            assert set(_registrations._holders) == {torch.float16}
        assert not _registrations._holders

    def test_float16_is_always_among_the_defaults(self) -> None:
        with MatrixUnits() as held:
            assert torch.float16 in held.dtypes

    def test_an_exception_gives_up_the_hold(self) -> None:
        with pytest.raises(KeyError), MatrixUnits():
            raise KeyError
        assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", KEY)

    @pytest.mark.parametrize("dtypes", [(), (torch.float32,), (torch.float16, torch.float64)])
    def test_other_formats_are_refused(self, dtypes: tuple[torch.dtype, ...]) -> None:
        with pytest.raises(BadInputError, match=r"allowed are torch\.float16 and torch\.bfloat16"):
            MatrixUnits(dtypes)

    def test_inference_mode(self) -> None:
        with MatrixUnits(), torch.inference_mode():
            a = torch.ones(3, 3, dtype=torch.float16)
            assert (a @ a).unique().tolist() == [3.0]
