# Copyright 2026 the authors of this model zoo.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""torch's switch for faster float32 products on the CPU, used where it costs no precision."""

import functools

import torch
import torch.nn as nn


def enable_fast_cpu_matmul() -> bool:
    """Lets torch multiply float32 matrices on the CPU by oneDNN, unless that would round them; whether it does now.

    By default, torch uses MKL, which reaches only half of the speed of some processors that are not made by Intel. Its
    public switch for oneDNN, `torch.set_float32_matmul_precision("medium")`, permits oneDNN to round factors to
    bfloat16, which processors with AMX do and others do not. So the switch is set only where a product tells that the
    processor does not round, and only if the program has not chosen a precision itself.

    The switch holds for the whole process and all models in it. On a GPU it would round to TF32: call this in programs
    that compute on the CPU alone. The scripts do so.
    """
    before = torch.get_float32_matmul_precision()
    if before != "highest" or rounds_on_cpu():
        return before == "medium"
    torch.set_float32_matmul_precision("medium")
    return True


@functools.cache
def rounds_on_cpu() -> bool:
    """Whether float32 products on the CPU are rounded after `torch.set_float32_matmul_precision("medium")`."""
    before = torch.get_float32_matmul_precision()
    ones = torch.ones(64, 64, device="cpu")
    inputs = ones + 2**-12  # which bfloat16 takes for 1
    torch.set_float32_matmul_precision("medium")
    try:
        product = nn.functional.linear(inputs, ones, ones[0])
    finally:
        torch.set_float32_matmul_precision(before)
    return not torch.allclose(product, torch.full_like(product, 65 + 64 * 2**-12), rtol=1e-6, atol=0)
