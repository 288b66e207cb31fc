# SPDX-License-Identifier: Apache-2.0
"""What DeepSpeed makes of a configuration: its mode, stage, formats of sums and loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatwise.exporters.deepspeed.knobs import dtype_of
from floatwise.exporters.deepspeed.modes import BUFFERS_KEPT_SINCE, FP16_STAGE_0_BROKEN_SINCE, Mode, sums_in
from floatwise.exporters.nearest import NO_CEILING, NO_FLOOR
from floatwise.exporters.settings import Settings, SettingsProblems
from floatwise.exporters.version import Version
from floatwise.plan.model import LossScale
from floatwise.plan.problems import Loc, PlanProblems, Problem

__all__ = ["Facts", "facts_of"]

# The default of gradient_clipping: 0 before, 1.0 from here on (runtime/constants.py, tags v0.19.2 and v0.19.3).
_CLIPPED_SINCE = "0.19.3"
# From here torch_autocast scales the loss without ZeRO, too (runtime/engine.py, tags v0.17.6 and v0.18.0).
_STAGE_0_SCALED_SINCE = "0.18.0"
# Since the loss is no longer scaled by the optimizer that divides, and until it stopped dividing bfloat16 gradients
# (runtime/engine.py, tags v0.18.2, v0.18.3 and v0.18.6).
_BF16_DIVIDED = ("0.18.3", "0.18.6")
# The default of check_grad_overflow: false before, true from here on (runtime/precision_config.py).
_CHECKED_SINCE = "0.19.3"


@dataclass(frozen=True)
class Facts:
    """A configuration understood.

    Attributes:
      settings: As read.
      version: DeepSpeed's version.
      stage: The ZeRO stage.
      mode: How the model trains.
      bf16: The name of the bfloat16 table that counts.
      autocast: Whether torch_autocast is on.
    """

    settings: Settings
    version: Version
    stage: int
    mode: Mode
    bf16: str
    autocast: bool

    def get(self, *keys: str, default: Any = None) -> Any:
        """Returns a value; `default` where it is absent, null or left to another system."""
        value = self.settings.get(*keys)
        return default if value is None or value == "auto" else value

    @property
    def loc(self) -> Loc:
        """The setting that decides the mode."""
        if self.mode.kind == "stored":
            return ("fp16" if self.mode.dtype == "float16" else self.bf16, "enabled")
        return ("torch_autocast", "enabled") if self.autocast else ()

    @property
    def pure(self) -> bool:
        """Whether the optimizer updates 16-bit weights without a float32 copy."""
        if self.mode == Mode("stored", "float16"):
            return self.get("fp16", "fp16_master_weights_and_grads") is True
        asked = self.get(self.bf16, "bf16_master_weights_and_grads") is True
        return self.mode.kind == "stored" and asked and not self.bf16_optimizer

    @property
    def offloads(self) -> bool:
        """Whether optimizer states are kept on the CPU or on disk, as far as this file says."""
        zero = self.settings.get("zero_optimization", "offload_optimizer", "device")
        return zero in ("cpu", "nvme", "auto") or self.settings.get("zero_optimization", "cpu_offload") is True

    @property
    def bf16_optimizer(self) -> bool:
        """Whether BF16_Optimizer takes the place of ZeRO's: it has float32 master weights whatever the keys say."""
        return (
            self.mode == Mode("stored", "bfloat16")
            and self.stage == 1
            and self.sums_in == "float32"
            and not self.offloads
        )

    @property
    def reduces_in(self) -> str:
        """The format gradients are summed over processes in; under autocast that of Linear and Conv layers."""
        if self.autocast and self.stage:
            none = self.get("torch_autocast", "lower_precision_safe_modules") == []
            return self.mode.weights if none else self.mode.dtype
        return dtype_of(self.get("communication_data_type")) or self.mode.weights

    @property
    def sums_in(self) -> str:
        """The format gradients are summed over micro-batches in."""
        wanted = dtype_of(self.get("data_types", "grad_accum_dtype"))
        return sums_in(self.mode, self.stage, self.version, wanted)

    @property
    def buffers_in(self) -> str:
        """The format of buffers that the model makes in float32."""
        if self.mode.kind != "stored":
            return "float32"
        if self.version < Version.of(BUFFERS_KEPT_SINCE):
            return self.mode.dtype
        return dtype_of(self.get("data_types", "buffer_dtype")) or "float32"

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped."""
        default = 1.0 if self.version >= Version.of(_CLIPPED_SINCE) else 0.0
        limit = self.settings.get("gradient_clipping", default=default)
        return not isinstance(limit, int | float) or limit > 0

    @property
    def checks_overflow(self) -> bool:
        """Whether steps with infinite or NaN gradients are skipped."""
        if self.mode != Mode("stored", "bfloat16") or self.stage not in (1, 2):
            return True
        if self.bf16_optimizer:
            return True  # it looks at the norm itself
        default = self.version >= Version.of(_CHECKED_SINCE) or self.version < Version.of("0.17.1")
        return self.get(self.bf16, "check_grad_overflow", default=default) is not False

    @property
    def bf16_divided(self) -> bool:
        """Whether bfloat16 gradients are divided by a float16 loss scale (deepspeedai/DeepSpeed#7837)."""
        bf16 = self.mode == Mode("stored", "bfloat16") and self.stage == 0 and self.sums_in == "bfloat16"
        return bf16 and self.version.within(*_BF16_DIVIDED)

    @property
    def fp16_without_scale(self) -> bool:
        """Whether float16 gradients are divided by a scale that the loss was never multiplied with."""
        fp16 = self.mode == Mode("stored", "float16") and self.stage == 0
        return fp16 and self.version >= Version.of(FP16_STAGE_0_BROKEN_SINCE)

    def loss_scale(self) -> LossScale | None:
        """Returns what the loss is scaled with; None where it is not.

        Raises:
          SettingsProblems: No loss scale has these values.
        """
        try:
            return self._loss_scale()
        except PlanProblems as error:
            raise SettingsProblems([Problem(("fp16",), p.text) for p in error.problems]) from None

    def _loss_scale(self) -> LossScale | None:
        if self.mode.dtype != "float16":
            return None
        if self.mode.kind == "autocast":
            dtype = self.get("torch_autocast", "dtype")
            scaled = self.stage or self.version >= Version.of(_STAGE_0_SCALED_SINCE)
            scaler = LossScale(growth="fixed", floor=NO_FLOOR, ceiling=NO_CEILING)
            return scaler if dtype and scaled else None
        static = self.get("fp16", "loss_scale", default=0)
        if static:
            return LossScale(mode="static", initial_scale=float(static))
        return LossScale(
            initial_scale=2.0 ** self.get("fp16", "initial_scale_power", default=16),
            growth_interval=self.get("fp16", "loss_scale_window", default=1000),
            growth="fixed",
            # Without ZeRO every overflow halves the scale (fp16/unfused_optimizer.py).
            hysteresis=self.get("fp16", "hysteresis", default=2) if self.stage else 1,
            floor=float(self.get("fp16", "min_loss_scale", default=1)),
            ceiling=NO_CEILING,
        )


def facts_of(settings: Settings, version: Version) -> Facts:
    """Returns what DeepSpeed makes of settings whose single values are right."""
    # runtime/precision_config.py, `get_bfloat16_config`: the older name counts where the newer is absent.
    bf16 = "bf16" if settings.get("bf16") is not None else "bfloat16"
    autocast = settings.get("torch_autocast", "enabled") is True
    if settings.get("fp16", "enabled") is True:
        mode = Mode("stored", "float16")
    elif settings.get(bf16, "enabled") is True:
        mode = Mode("stored", "bfloat16")
    elif autocast:
        # torch.autocast's own default on a GPU is float16.
        mode = Mode("autocast", dtype_of(settings.get("torch_autocast", "dtype")) or "float16")
    else:
        mode = Mode("float32", "float32")
    return Facts(settings, version, _stage(settings.get("zero_optimization")), mode, bf16, autocast)


def _stage(table: object) -> int:
    if isinstance(table, bool):
        return int(table)  # an old form of stage 1 (runtime/zero/config.py, `read_zero_config_deprecated`)
    stage = table.get("stage", 0) if isinstance(table, Mapping) else 0
    return stage if isinstance(stage, int) else 1  # "auto": ZeRO, as Accelerate's own default is
