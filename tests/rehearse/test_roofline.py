# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.utils.flop_counter import FlopCounterMode

from floatwise.errors import BadInputError
from floatwise.hardware import get_device
from floatwise.plan import recipe
from floatwise.rehearse.roofline import Operator, predict_speed, predict_step_seconds
from floatwise.rehearse.roofline_here import measured_rates
from floatwise.rehearse.roofline_rates import TYPICAL, Rates, device_rates
from floatwise.rehearse.roofline_record import OperatorRecorder
from floatwise.rehearse.roofline_step import record_step
from floatwise.rehearse.step_record import StepRecord

_FP32, _BF16, _FP16 = recipe("fp32"), recipe("bf16-mixed"), recipe("fp16-mixed")
_RATES = Rates(matrix={"float32": 1e9, "bfloat16": 4e9}, vector=1e8, bytes_per_second=1e8)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = F.mse_loss(self.layers(x).float(), torch.zeros_like(x))
        return result


def _record(name: str, width: int = 32) -> StepRecord:
    model = _Net()
    return record_step(model, torch.empty(width, 64), optim.AdamW(model.parameters(), fused=True), recipe(name))


@pytest.mark.parametrize(
    ("operator", "seconds"),
    [
        (Operator("aten.mm", "float32", True, 10**9, 10), 1.0),  # arithmetic decides
        (Operator("aten.mm", "bfloat16", True, 10**9, 10), 0.25),
        (Operator("aten.mm", "float32", True, 10, 10**8), 1.0),  # memory decides
        (Operator("aten.add", "float32", False, 10**8, 10), 1.0),  # no unit for it
        (Operator("aten.mm", "float32", True, 10**9, 10, calls=3), 3.0),
    ],
)
def test_the_slower_of_arithmetic_and_memory_decides(operator: Operator, seconds: float) -> None:
    assert predict_step_seconds([operator], _RATES, _FP32).seconds == pytest.approx(seconds)


def test_starting_operators_hides_behind_the_device_or_the_other_way_round() -> None:
    product = Operator("aten.mm", "float32", True, 10**9, 10)
    waits = Rates(_RATES.matrix, 1e8, 1e8, start_seconds=0.5)
    hides = Rates(_RATES.matrix, 1e8, 1e8, start_seconds=0.5, is_asynchronous=True)
    bound = Rates(_RATES.matrix, 1e8, 1e8, start_seconds=2.0, is_asynchronous=True)
    assert [predict_step_seconds([product], r, _FP32).seconds for r in (waits, hides, bound)] == [1.5, 1.0, 2.0]


_FP8_RATES = Rates(matrix={"bfloat16": 4e9, "float8_e4m3fn": 8e9}, vector=1e8, bytes_per_second=1e12)
_LINEAR = Operator("aten.addmm", "bfloat16", True, 8 * 10**9, 10, calls=3)
_ATTENTION = Operator("aten.bmm", "bfloat16", True, 8 * 10**9, 10)


@pytest.mark.parametrize(
    ("operators", "share", "seconds"),
    [
        ([_LINEAR], 1.0, 3.0),
        ([_LINEAR], 0.5, 1.5 + 3.0),
        ([_LINEAR], 0.0, 6.0),
        ([_LINEAR, _ATTENTION], 1.0, 3.0 + 2.0),  # float8 multiplies no batches of matrices
        ([_LINEAR, _ATTENTION], 0.75, 3.0 + 2.0),  # every linear layer
        ([_LINEAR, _ATTENTION], 0.25, 1.0 + 4.0 + 2.0),
    ],
)
def test_float8_multiplies_its_share_of_the_products(operators: list[Operator], share: float, seconds: float) -> None:
    plan = recipe("fp8-tensorwise")
    step = predict_step_seconds(operators, _FP8_RATES, plan, float8_share=share)
    assert step.seconds == pytest.approx(seconds)
    assert step.matrix_seconds == pytest.approx(seconds)
    speed = predict_speed(operators, operators, _FP8_RATES, plan, _BF16, float8_share=share)
    assert speed.ratio == pytest.approx(speed.float32.seconds / seconds)
    assert speed.float32 == predict_step_seconds(operators, _FP8_RATES, _BF16)


def test_float8_moves_operands_twice_and_starts_no_operator_twice() -> None:
    moved = Operator("aten.mm", "bfloat16", True, 10, 10**9)
    rates = Rates(_FP8_RATES.matrix, 1e8, 1e9, start_seconds=1.0)
    step = predict_step_seconds([moved], rates, recipe("fp8-rowwise"), float8_share=0.5)
    assert step.device_seconds == pytest.approx(0.5 + 1.0)
    assert step.host_seconds == 1.0


def test_one_of_three_products_may_stay_in_16_bits() -> None:
    step = predict_step_seconds([_LINEAR], _FP8_RATES, recipe("fp8-rowwise-gw-hp"))
    assert step.seconds == pytest.approx(2.0 + 2.0)


def test_without_a_unit_or_a_plan_for_it_nothing_is_float8() -> None:
    without = Rates({"bfloat16": 4e9}, 1e8, 1e12)
    for rates, plan in ((without, recipe("fp8-tensorwise")), (_FP8_RATES, _BF16)):
        assert predict_step_seconds([_LINEAR], rates, plan).seconds == pytest.approx(6.0)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_is_from_zero_to_one(share: float) -> None:
    with pytest.raises(BadInputError, match="from 0 to 1"):
        predict_step_seconds([_LINEAR], _FP8_RATES, recipe("fp8-tensorwise"), float8_share=share)
    with pytest.raises(BadInputError, match="from 0 to 1"):
        predict_speed([], [], _FP8_RATES, recipe("fp8-tensorwise"), _FP32, float8_share=share)


def test_rows_give_the_rate_of_the_plans_format() -> None:
    t4, a100 = device_rates(get_device("T4")), device_rates(get_device("A100"))
    share = 1e12 * TYPICAL.matrix
    assert t4.flops_per_second("aten.mm", "float16", True, "ieee") == 65 * share
    assert t4.flops_per_second("aten.mm", "bfloat16", True, "ieee") == 8.1 * share  # emulated
    assert a100.flops_per_second("aten.mm", "bfloat16", True, "ieee") == 312 * share
    assert a100.flops_per_second("aten.mm", "float32", True, "ieee") == 19.5 * share
    assert a100.flops_per_second("aten.mm", "float32", True, "tf32") == 156 * share
    assert a100.flops_per_second("aten.exp", "bfloat16", False, "ieee") == 19.5 * share


def test_a_row_without_rates_is_refused() -> None:
    with pytest.raises(BadInputError, match="no peak rate"):
        device_rates(get_device("cpu"))


def test_flops_are_those_of_pytorchs_counter() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 6 * 6, 5))
    x = torch.randn(4, 3, 8, 8)
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    recorder = OperatorRecorder()
    with recorder:
        model(x).sum().backward()
    assert sum(o.calls * o.flops for o in recorder.operators if o.matrix) == counter.get_total_flops()


def test_attention_and_recurrent_layers_count_as_products() -> None:
    query = torch.randn(2, 4, 16, 8, requires_grad=True)
    recorder = OperatorRecorder()
    with recorder:
        F.scaled_dot_product_attention(query, query, query).sum().backward()
    flops = {o.name: o.flops for o in recorder.operators if o.matrix}
    forward = 2 * 2 * 4 * 16 * 16 * 8 * 2
    assert sorted(flops.values()) == [forward, forward * 5 // 2]
    recorder = OperatorRecorder()
    with recorder:
        nn.LSTM(8, 16)(torch.randn(5, 2, 8))
    products = [o for o in recorder.operators if o.matrix]
    assert sum(o.calls * o.flops for o in products) >= 2 * 5 * 2 * 4 * 16 * (8 + 16)


def test_views_move_nothing_and_writing_in_place_counts_twice() -> None:
    x = torch.zeros(1000)
    recorder = OperatorRecorder()
    with recorder:
        x.view(10, 100).t()
        x.add_(1.0)
        x.unsqueeze(0).expand(50, 1000) + 1.0
    in_place, expanded = recorder.operators
    assert (in_place.name, in_place.bytes) == ("aten.add_", 8000)
    assert (expanded.name, expanded.bytes) == ("aten.add", 4000 + 50 * 4000)


def test_the_plan_decides_the_operands_format() -> None:
    formats = {name: {o.format for o in _record(name).operators if o.matrix} for name in ("fp32", "bf16-mixed")}
    assert formats == {"fp32": {"float32"}, "bf16-mixed": {"bfloat16"}}


def test_16_bit_weights_move_less() -> None:
    moved = {n: sum(o.calls * o.bytes for o in _record(n).operators) for n in ("bf16-mixed", "bf16-master")}
    assert moved["bf16-master"] < moved["bf16-mixed"]


def test_large_models_gain_by_the_unit_and_tiny_ones_by_nothing() -> None:
    large, small = 2**16, 32
    for width, name, plan, device, low, high in (
        (large, "bf16-mixed", _BF16, "A100", 1.2, 16.0),
        (small, "bf16-mixed", _BF16, "A100", 0.5, 1.0),  # more operators to start, for the casts
        (large, "fp16-mixed", _FP16, "T4", 1.2, 8.1),
    ):
        speed = predict_speed(
            _record(name, width).operators, _record("fp32", width).operators, get_device(device), plan, _FP32
        )
        assert low < speed.ratio <= high, (device, width)
        assert speed.low <= speed.ratio <= speed.high
        assert speed.to_json()["predicted"] is True


def test_a_record_can_be_written_and_read() -> None:
    record = _record("bf16-master")
    assert StepRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_rates_of_this_machine_are_plausible() -> None:
    rates = measured_rates(("float32",))
    assert rates.matrix["float32"] > 1e8
    assert 1e8 < rates.bytes_per_second < 1e13
    assert 0 < rates.start_seconds < 1e-2
