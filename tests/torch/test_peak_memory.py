# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from floatwise.torch.script.peak_memory import PeakMemoryMeter

_MEGABYTE = 2**20


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _peak() -> int:
    meter = PeakMemoryMeter()
    meter.begin()
    meter.mark()
    meter.end()
    assert meter.peak_bytes is not None
    return meter.peak_bytes


def test_sharded_tensors_count_by_what_this_process_holds(one_process: None) -> None:
    before = _peak()
    mesh = init_device_mesh("cpu", (1,))
    sharded = distribute_tensor(torch.zeros(_MEGABYTE), mesh, [Shard(0)])
    assert 4 * _MEGABYTE <= _peak() - before < 5 * _MEGABYTE
    assert sharded.shape == (_MEGABYTE,)


def test_fake_tensors_take_no_memory() -> None:
    before = _peak()
    with FakeTensorMode():
        fake = torch.zeros(64 * _MEGABYTE)
    assert _peak() - before < _MEGABYTE
    assert fake.numel() == 64 * _MEGABYTE
