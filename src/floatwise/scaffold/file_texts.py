# SPDX-License-Identifier: Apache-2.0
"""What the files of a project are, for its README."""

from __future__ import annotations

from collections.abc import Mapping

from floatwise.language import Text

__all__ = ["COMMON_FILES"]

COMMON_FILES: Mapping[str, Text] = {
    "train.py": Text("trains, evaluates, saves and resumes", "训练、评估、保存和恢复"),
    "model.py": Text("the model; replace it by yours", "模型；可换成自己的"),
    "data.py": Text("reads the data and makes batches", "读取数据并组成批次"),
    "precision.toml": Text(
        "the precision plan, for people and for Floatwise", "精度计划，供人阅读，也供 Floatwise 使用"
    ),
    "precision-master.toml": Text(
        "the plan with 16-bit weights, for `floatwise run`",
        "16 位权重的计划，用于 `floatwise run`",
    ),
    "census.py": Text("counts the formats of tensors during training", "统计训练中各张量的格式"),
    "find_nan.py": Text("stops at the first module that is not finite", "在第一个出现非有限值的模块处停下"),
    "check.py": Text("tells from tensors whether the precision is active", "根据张量判断精度是否生效"),
    "test.py": Text("trains a few steps and checks everything", "训练若干步并检查一切"),
    "requirements.txt": Text("the packages, with the versions tested", "所需软件包及经过测试的版本"),
}
"""What each file is, in the order of the README."""
