# SPDX-License-Identifier: Apache-2.0
"""Keras' arguments that have to do with precision, with the versions that have them."""

from __future__ import annotations

from typing import Any

from floatwise.exporters.knob import Kind, Knob, knob_table
from floatwise.language import Text

__all__ = ["CONFIG_SINCE", "DEFAULT_GROWTH_STEPS", "DEFAULT_SCALE", "FULLMATCH_SINCE", "KERAS_3", "KNOBS", "MAP_SINCE"]

KERAS_3 = "3.0"
"""First version of Keras on several backends; older ones are TensorFlow's `tf.keras`."""

CONFIG_SINCE = "3.1"
"""First version with `keras.config.set_dtype_policy` (keras/dtype_policies/dtype_policy.py, tags v3.0.0 and v3.1.0)."""

MAP_SINCE = "3.4"
"""First version with `DTypePolicyMap` (tags v3.3.3 and v3.4.0)."""

FULLMATCH_SINCE = "3.12"
"""First version whose map matches whole paths; before, a key anywhere in a path matched (tags v3.11.0 and v3.12.0)."""

DEFAULT_SCALE = 2.0**15
"""`initial_scale` of a LossScaleOptimizer that is given none, in Keras 2 and 3."""

DEFAULT_GROWTH_STEPS = 2000
"""`dynamic_growth_steps` of a LossScaleOptimizer that is given none, in Keras 2 and 3."""

_LSO = "keras/src/optimizers/loss_scale_optimizer.py, 3.15.1; keras/mixed_precision, tag v2.15.0"


def _row(key: str, kind: Kind, en: str, zh: str, source: str = _LSO, **more: Any) -> Knob:
    return Knob(key=key, kind=kind, meaning=Text(en, zh), source=source, **more)


KNOBS = knob_table(
    _row("LossScaleOptimizer.inner_optimizer", "any", "The optimizer to wrap.", "被包装的优化器。"),
    _row(
        "LossScaleOptimizer.initial_scale",
        "float",
        "The loss scale of the first step.",
        "第一步的损失缩放系数。",
        default=DEFAULT_SCALE,
        none=True,
        above=0,
        maximum=2.0**127,
    ),
    _row(
        "LossScaleOptimizer.dynamic_growth_steps",
        "int",
        "Good steps in a row before the scale doubles.",
        "缩放系数翻倍前需要连续正常的步数。",
        default=DEFAULT_GROWTH_STEPS,
        none=True,
        minimum=1,
        below=2**31,
    ),
    _row(
        "LossScaleOptimizer.dynamic",
        "bool",
        "False: the scale stays as it is.",
        "False 表示缩放系数保持不变。",
        default=True,
        until=KERAS_3,
        instead="set loss_scale_factor on the inner optimizer for a scale that stays as it is",
    ),
    _row("LossScaleOptimizer.name", "any", "A name.", "名称。", since=KERAS_3, none=True),
    _row(
        "compile.auto_scale_loss",
        "bool",
        "Whether compile() wraps the optimizer where the model's policy is named mixed_float16.",
        "当模型策略名为 mixed_float16 时，compile() 是否包装优化器。",
        "keras/src/trainers/trainer.py, 3.15.1",
        default=True,
        since=KERAS_3,
    ),
    *(
        _row(
            f"DTypePolicyMap.{name}",
            "any",
            "Policies by layer path.",
            "按层路径设置的策略。",
            "keras/src/dtype_policies/dtype_policy_map.py, 3.15.1",
            since=MAP_SINCE,
            none=True,
            instead="give each layer its own dtype=",
        )
        for name in ("default_policy", "policy_map")
    ),
)
