# SPDX-License-Identifier: Apache-2.0
"""The pieces of the module that is written for plain PyTorch: code as text, its comments in both languages."""

from __future__ import annotations

from floatwise.language import Text

__all__ = ["AUTOCAST", "AUTOCAST_OFF", "DOC", "HYSTERESIS", "MODULES", "NO_SCALER", "PREPARE", "SCALER"]

DOC = Text(
    '''"""Mixed precision by torch.amp. {formats} Needs torch 2.6 or newer and nothing else.

    model = prepare(model)  # before the optimizer is built and before DDP; the model stays in float32
    scaler = make_scaler()
    for number, (inputs, target) in enumerate(loader, start=1):
        with autocast():
            loss = criterion(model(inputs), target) / accumulate
        scaler.scale(loss).backward()  # outside autocast
        if number % accumulate == 0:
            scaler.unscale_(optimizer)  # once, after the last backward and before clipping
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

Evaluate under autocast() too. Save scaler.state_dict() beside the states of the model and the optimizer.
"""
''',
    '''"""基于 torch.amp 的混合精度。{formats}只需 torch 2.6 或更新版本。

    model = prepare(model)  # 在创建优化器和包装 DDP 之前调用；模型保持 float32
    scaler = make_scaler()
    for number, (inputs, target) in enumerate(loader, start=1):
        with autocast():
            loss = criterion(model(inputs), target) / accumulate
        scaler.scale(loss).backward()  # 在 autocast 之外
        if number % accumulate == 0:
            scaler.unscale_(optimizer)  # 只调用一次：最后一次反向之后、裁剪之前
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

评估时同样使用 autocast()。保存检查点时，将 scaler.state_dict() 与模型和优化器的状态一并保存。
"""
''',
)

AUTOCAST = Text(
    '''
def autocast(device={device}):
    """Around forward and loss: products compute in COMPUTE_DTYPE, what needs float32 stays in it."""
    return torch.autocast(device, dtype=COMPUTE_DTYPE)
''',
    '''
def autocast(device={device}):
    """包住前向与损失：矩阵乘法以 COMPUTE_DTYPE 计算，需要 float32 的算子保持 float32。"""
    return torch.autocast(device, dtype=COMPUTE_DTYPE)
''',
)

AUTOCAST_OFF = Text(
    '''
def autocast(device={device}):
    """Around forward and loss: off, because this plan computes in float32."""
    return torch.autocast(device, enabled=False)
''',
    '''
def autocast(device={device}):
    """包住前向与损失：本计划以 float32 计算，因此关闭。"""
    return torch.autocast(device, enabled=False)
''',
)

PREPARE = Text(
    '''
def prepare(model{argument}):
    """Sets float32 products{islands} and the format of the outputs; returns the model."""
    torch.set_float32_matmul_precision("high" if FLOAT32_MATMUL == "tf32" else "highest")
{calls}    return model


def _hand_on(model, inputs, outputs):
    return _cast(outputs, OUTPUT_DTYPE)


def _cast(values, dtype):
    floating = (torch.float32, torch.float16, torch.bfloat16)
    return tree_map(lambda v: v.to(dtype) if isinstance(v, torch.Tensor) and v.dtype in floating else v, values)
''',
    '''
def prepare(model{argument}):
    """设置 float32 乘法的计算方式{islands}和模型输出的格式；返回该模型。"""
    torch.set_float32_matmul_precision("high" if FLOAT32_MATMUL == "tf32" else "highest")
{calls}    return model


def _hand_on(model, inputs, outputs):
    return _cast(outputs, OUTPUT_DTYPE)


def _cast(values, dtype):
    floating = (torch.float32, torch.float16, torch.bfloat16)
    return tree_map(lambda v: v.to(dtype) if isinstance(v, torch.Tensor) and v.dtype in floating else v, values)
''',
)

_MODULES_CODE = '''
def keep_float32(model, device={device}):
    """{keep}"""
    _walk(model, "", None, None, device)


def _walk(module, path, around, given, device):
    own = next(((low, out) for glob, low, out, _ in reversed(MODULES) if _covers(glob, path)), given)
    listed = isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict))  # {listed}
    if own not in (None, around) and not listed and not isinstance(module.forward, _InFormat):
        module.forward = _InFormat(module.forward, device, *own)
    for name, child in module.named_children():
        inner = f"{{path}}.{{name}}" if path else name
        _walk(child, inner, around if listed or own is None else own, own if listed else None, device)


def _covers(glob, path):
    return _matches([] if glob in ("", "(root)") else glob.split("."), path.split(".") if path else [])


def _matches(glob, names):
    if not glob or not names:
        return not names and all(part == "**" for part in glob)
    if glob[0] == "**":
        return _matches(glob[1:], names) or _matches(glob, names[1:])
    return fnmatchcase(names[0], glob[0]) and _matches(glob[1:], names[1:])


class _InFormat:
    """{wrapper}"""

    def __init__(self, forward, device, compute, output):
        functools.update_wrapper(self, forward)
        self.forward, self.device, self.compute, self.output = forward, device, compute, output

    def __call__(self, *args, **kwargs):
        low = self.compute != torch.float32
        if not low and not torch.is_autocast_enabled(self.device):
            return self.forward(*args, **kwargs)  # {outside}
        with torch.autocast(self.device, dtype=self.compute if low else None, enabled=low):
            if not low:
                args, kwargs = _cast((args, kwargs), torch.float32)
            outputs = self.forward(*args, **kwargs)
        return _cast(outputs, self.output)
'''


def _filled(**words: str) -> str:
    """Fills the comments and leaves the device to be filled."""
    return _MODULES_CODE.format(device="{device}", **words).replace('f"{path}.{name}"', 'f"{{path}}.{{name}}"')


MODULES = Text(
    _filled(
        keep="Makes the modules that MODULES names compute in formats of their own; call it once.",
        listed="never called: its members are",
        wrapper="The forward of a module with formats of its own: autocast switched and inputs cast around it.",
        outside="not in autocast(): all is float32 anyway",
    ),
    _filled(
        keep="让 MODULES 所列的模块以各自的格式计算；只调用一次。",
        listed="容器本身不会被调用，作用于其成员",
        wrapper="格式独立的模块的 forward：在其外切换 autocast 并转换输入。",
        outside="不在 autocast() 中：本来就全是 float32",
    ),
)

NO_SCALER = Text(
    '''
def make_scaler(device={device}):
    """Returns a scaler that passes everything through: no gradient is float16, so there is nothing to scale."""
    return torch.amp.GradScaler(device, enabled=False)
''',
    '''
def make_scaler(device={device}):
    """返回一个不做任何缩放的 scaler：没有 float16 梯度，无需缩放。"""
    return torch.amp.GradScaler(device, enabled=False)
''',
)

_SCALER_CODE = '''
def make_scaler(device={device}):
    """{make}"""
    names = ("growth_factor", "backoff_factor", "growth_interval")
    return LossScaler(device, init_scale=LOSS_SCALE["initial_scale"], **{{name: LOSS_SCALE[name] for name in names}})


class LossScaler(torch.amp.GradScaler):
    """{scaler}"""
{attributes}
    def update(self, new_scale=None):
        if not self.is_enabled():
            return
{before}        super().update(new_scale)
{after}        {limits}
'''


def _scaler(make: str, scaler: str) -> str:
    keep = {name: f"{{{name}}}" for name in ("device", "attributes", "before", "after", "limits")}
    return _SCALER_CODE.format(make=make, scaler=scaler, **keep).replace(
        "**{name: LOSS_SCALE[name] for name in names}", "**{{name: LOSS_SCALE[name] for name in names}}"
    )


SCALER = Text(
    _scaler(
        make="Returns the scaler of LOSS_SCALE; it disables itself where the device is missing.",
        scaler="GradScaler within limits: PyTorch's own falls to 0 after overflows in a row and then writes NaN.",
    ),
    _scaler(
        make="返回按 LOSS_SCALE 设置的 scaler；若没有该设备则自动停用。",
        scaler="带上下限的 GradScaler：PyTorch 自带的在连续溢出后会降到 0，随后写入 NaN。",
    ),
)

HYSTERESIS = {
    "attributes": '\n    left = LOSS_SCALE["hysteresis"]\n',
    "before": "        before = self._scale.clone()\n",
    "after": """        overflowed = self._scale < before
        self.left = torch.where(overflowed, self.left - 1, LOSS_SCALE["hysteresis"])
        self._scale.copy_(torch.where(overflowed & (self.left > 0), before, self._scale))
""",
}
"""What the scaler has more where it waits for several overflows in a row before it backs off."""
