# SPDX-License-Identifier: Apache-2.0
"""From a recorded step to the predicted peak of tensor memory. No framework is imported."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from floatwise.plan import Plan
from floatwise.rehearse.memory_curve import MemoryRecord, Moment, Phase
from floatwise.rehearse.memory_states import Sharding, state_bytes

__all__ = ["KNOWN_ERROR", "MemoryPrediction", "peak_memory"]

#: Largest relative error against the measured peak of tensor memory that is allowed. `benchmarks/memory_prediction.py`
#: shows 0.035 for four models under three recipes on a CPU, and examples/text_gpt.py and digits_cnn.py, unmodified,
#: are within 0.04. On GPUs it is not established, and with FSDP of two processes on a CPU it was up to 0.12.
KNOWN_ERROR = 0.10


@dataclass(frozen=True)
class MemoryPrediction:
    """The predicted peak of tensor memory of one process, and what it consists of; a prediction, never a measurement.

    The kinds are those alive at the peak, and add up to it. Left out: what operators take for themselves while they
    run, the allocator's rounding and fragmentation, and on a GPU the context of some 500 MB and the libraries' own
    working memory.

    Attributes:
      weights_bytes: Parameters as stored, and buffers.
      masters_bytes: What stands beside 16-bit weights.
      gradients_bytes: Gradients of parameters alive at the peak.
      optimizer_bytes: The optimizer's states.
      casts_bytes: 16-bit copies of weights.
      activations_bytes: Tensors that the passes made.
      inputs_bytes: The batch.
      update_bytes: What the optimizer takes for itself in a step, when the peak is there.
      exchange_bytes: What DDP or FSDP keeps for the exchange between processes.
      peak_bytes: The sum.
      phase: Where in the step the peak is.
      known_error: Relative error that is allowed for where both were measured, on a CPU.
    """

    weights_bytes: int
    masters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    casts_bytes: int
    activations_bytes: int
    inputs_bytes: int
    update_bytes: int
    exchange_bytes: int
    peak_bytes: int
    phase: Phase
    known_error: float = KNOWN_ERROR

    def to_json(self) -> dict[str, Any]:
        """Returns plain values, marked as predicted."""
        return {"predicted": True, **asdict(self)}


def peak_memory(record: MemoryRecord, plan: Plan, *, sharding: Sharding | None = None) -> MemoryPrediction:
    """Predicts the peak from the second training step on.

    Args:
      record: A step recorded under this plan.
      plan: The plan.
      sharding: By default one process.
    """
    sharding = sharding or Sharding()
    states = state_bytes(record.weights, plan, record.slots, sharding)
    update = Moment("update", 0, 0, states.gradients_bytes)
    is_sharded = sharding.kind == "fsdp" and sharding.world_size > 1
    predictions = []
    for moment in (*record.moments, update):
        gradients = moment.gradients_bytes if moment.phase == "update" else sharding.share(moment.gradients_bytes)
        if record.old_gradients == "kept":
            gradients = states.gradients_bytes
        elif record.old_gradients == "in_forward" and moment.phase == "forward":
            gradients += states.gradients_bytes
        kinds = {
            "weights_bytes": states.weights_bytes,
            "masters_bytes": states.masters_bytes,
            "gradients_bytes": gradients,
            "optimizer_bytes": states.optimizer_bytes,
            "casts_bytes": 0 if is_sharded else moment.casts_bytes,  # FSDP gathers them: among what is exchanged
            "activations_bytes": moment.activations_bytes,
            "inputs_bytes": record.inputs_bytes,
            "update_bytes": sharding.share(record.update_bytes) if moment.phase == "update" else 0,
            "exchange_bytes": 0 if is_sharded and moment.phase == "update" else states.exchange_bytes,
        }
        predictions.append(MemoryPrediction(**kinds, peak_bytes=sum(kinds.values()), phase=moment.phase))
    return max(predictions, key=lambda prediction: prediction.peak_bytes)
