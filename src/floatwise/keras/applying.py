# SPDX-License-Identifier: Apache-2.0
"""A plan applied to a Keras model, in place."""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

import keras

from floatwise.errors import BadInputError, nearest_names
from floatwise.keras.float32_layers import OUTPUT_REASON, float32_reason
from floatwise.keras.layer_graph import Place, places
from floatwise.keras.layer_paths import chosen_entries, layer_paths, unmatched_globs
from floatwise.keras.layer_policies import hand_on_ids, is_quantized, set_policy
from floatwise.keras.plan_support import POLICY_NAMES, as_plan
from floatwise.keras.products import set_float32_products
from floatwise.keras.report import Applied, LayerFormat
from floatwise.keras.variables import raise_variables
from floatwise.keras.wrapping import described, keep_scaling, scaled, set_optimizer
from floatwise.language import Text
from floatwise.plan import LossScale, Plan

__all__ = ["apply"]

_DEFAULT = Text("the plan's default", "计划的默认策略")
_ENTRY = Text("the plan's {glob!r}", "计划中的 {glob!r}")
_QUANTIZED = Text("quantized; left as it is", "已量化；保持不变")
_RAISED = Text(
    "{count} variables of 16 bits are float32 now: small updates were lost in them",
    "{count} 个 16 位变量已改为 float32：它们会丢失微小的更新",
)
_LOSS = Text("the loss {name} computes in float32 now, not in {dtype}", "损失 {name} 已改用 float32 计算，而非 {dtype}")
_NO_SCALE_YET = Text(
    "compile() will put the plan's loss scale around the optimizer",
    "调用 compile() 时会给优化器加上计划的损失缩放",
)
_IDS = Text(
    "{paths}: gets its inputs as they are, because an Embedding is inside: ids would be rounded to 16 bits",
    "{paths}：内部含有 Embedding，输入保持原样，否则编号会被舍入到 16 位",
)
_SUBCLASSED = Text(
    "what the outputs of a subclassed model are made by is not known: its last layer is taken for it",
    "无法得知子类模型的输出由哪一层产生：以最后一层为准",
)


def apply(model: Any, plan: Plan | str | os.PathLike[str]) -> Applied:
    """Sets a plan's policies on a model and its layers, and its loss scale around the optimizer.

    The model stays the same object with its weights and its optimizer's state; a compiled model keeps loss, metrics and
    every other argument of `compile()`. It works before and after `compile()`, again after another plan, and on a
    loaded model. The process' global dtype policy is neither read nor changed. Only products of float32 operands are
    set for the whole process, as the plan's `float32_matmul` says.

    * Policies: every layer gets `float32`, `mixed_bfloat16` or `mixed_float16`: the last entry of the plan that covers
      its path (`floatwise.keras.layer_paths`) or that of a layer around it, else the plan's default.
    * float32 stays where a lower default goes wrong: the layers that make the outputs (unless the plan's
      `output_dtype` is lower), and those of `floatwise.keras.float32_layers`.
    * Variables are float32, also where a pure 16-bit policy had made them lower.
    * Loss: with float16 anywhere, a `LossScaleOptimizer` is around the optimizer once, whatever the model's policies
      were and whatever loss-scale optimizers were there; without float16 there is none. A `compile()` later on ends the
      same way.

    Args:
      model: A functional, Sequential or subclassed model. Layers that a subclassed model makes in its first call are
        not there before: build it first, or apply again.
      plan: A plan, the name of a recipe (`fp32`, `tf32`, `bf16-mixed`, `fp16-mixed`), or the path of a plan file.

    Returns:
      Each layer's policy and why it has it.

    Warns:
      UserWarning: A glob of the plan covers no layer; the message names the nearest paths.

    Raises:
      PlanError: Keras cannot be told the plan.
      BadInputError: It is no Keras model, or `keras.config.floatx()` is not float32.
      UnknownNameError: No recipe or file has this name.
      BadFileError: The file is no plan.
    """
    plan = as_plan(plan)
    _check(model)
    paths = layer_paths(model)
    _warn_of_unmatched(plan, paths)
    rows = _decide(model, plan, paths)
    for path, layer in paths.items():
        if not is_quantized(layer):
            set_policy(layer, rows[path].policy)
    around = [path for path, layer in paths.items() if hand_on_ids(layer)]
    remarks = [_IDS.format(paths=", ".join(around))] if around and plan.compute_dtype != "float32" else []
    if _is_subclassed(model):
        model.autocast = False  # its layers cast for themselves: float32 ones get the inputs as they are
        remarks += [str(_SUBCLASSED)] if plan.compute_dtype != "float32" else []
    optimizer = getattr(model, "optimizer", None)
    if count := raise_variables(model, optimizer):
        remarks.append(_RAISED.format(count=count))
    remarks += [_LOSS.format(name=name, dtype=dtype) for name, dtype in _raise_losses(model)]
    if (remark := set_float32_products(plan)) is not None:
        remarks.append(str(remark))
    settings = _settings(plan, [row.policy for row in rows.values()])
    keep_scaling(model, settings)
    if optimizer is not None:
        set_optimizer(model, scaled(optimizer, settings))
    elif settings is not None:
        remarks.append(str(_NO_SCALE_YET))
    now = getattr(model, "optimizer", None)
    layers = tuple(
        LayerFormat(path=path, layer=type(layer).__name__, policy=layer.dtype_policy.name, reason=rows[path].reason)
        for path, layer in paths.items()
    )
    return Applied(layers=layers, optimizer="" if now is None else described(now), remarks=tuple(remarks))


class _Row(NamedTuple):
    policy: str
    reason: str


def _decide(model: Any, plan: Plan, paths: dict[str, Any]) -> dict[str, _Row]:
    """Returns the policy of each path and why; a layer with several paths is in float32 when one of them says so."""
    where = places(model)
    keeps_output = plan.policy.output_dtype == "float32"
    attention: set[str] = set()
    by_layer: dict[int, _Row] = {}
    rows: dict[str, _Row] = {}
    for path, (policy, glob) in chosen_entries(plan, paths).items():
        layer = paths[path]
        above = path.rpartition(".")[0]
        if "Attention" in type(layer).__name__ or above in attention:
            attention.add(path)
        compute = policy.compute_dtype
        why = _ENTRY.format(glob=glob) if glob else str(_DEFAULT)
        if is_quantized(layer):
            rows[path] = _Row(layer.dtype_policy.name, str(_QUANTIZED))
            continue
        if compute != "float32" and not glob and path:
            place = where.get(id(layer), Place())
            reason = float32_reason(layer, place, compute, inside_attention=above in attention)
            if reason is None and keeps_output and place.makes_output and not _holds_layers(layer):
                reason = OUTPUT_REASON
            if reason is not None:
                compute, why = "float32", str(reason)
        row = _Row(POLICY_NAMES[compute], why)
        earlier = by_layer.get(id(layer))
        rows[path] = by_layer[id(layer)] = earlier if earlier and earlier.policy == "float32" else row
    return {path: by_layer.get(id(layer), rows[path]) for path, layer in paths.items()}


def _holds_layers(layer: Any) -> bool:
    """Returns whether a layer is a model, whose own layers make its outputs."""
    return isinstance(layer, keras.Model) and bool(layer._layers)


def _settings(plan: Plan, policies: list[str]) -> LossScale | None:
    if not any(name.endswith("float16") and "bfloat16" not in name for name in policies):
        return None
    return plan.loss_scale or LossScale()


def _check(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise BadInputError(
            f"got {type(model).__module__}.{type(model).__name__}; expected a keras.Model of Keras 3 (a model of "
            "tf_keras or Keras 2 is another class)"
        )
    if keras.config.floatx() != "float32":
        raise BadInputError(
            f"got keras.config.floatx() {keras.config.floatx()!r}, in which Keras makes variables, losses and metrics; "
            "call keras.config.set_floatx('float32') before the model is made, and let the plan set the policies"
        )


def _raise_losses(model: Any) -> list[tuple[str, str]]:
    """Makes losses that were told to compute in 16 bits compute in float32."""
    raised = []
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        if isinstance(loss, keras.losses.Loss) and loss.dtype in ("float16", "bfloat16"):
            raised.append((type(loss).__name__, loss.dtype))
            loss._dtype_policy = keras.DTypePolicy("float32")
            loss._dtype = "float32"
    return raised


def _is_subclassed(model: Any) -> bool:
    return not isinstance(model, keras.Sequential) and not hasattr(model, "_nodes_by_depth")


def _warn_of_unmatched(plan: Plan, paths: dict[str, Any]) -> None:
    for glob in unmatched_globs(plan, paths):
        near = nearest_names(glob, paths) or sorted(path for path in paths if path)[:3]
        hint = f"; nearest: {', '.join(near)}" if near else ""
        warnings.warn(f"the plan's module {glob!r} covers no layer of this model{hint}", stacklevel=3)
