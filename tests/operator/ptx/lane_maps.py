"""Which lane and register holds which number, from CUTLASS's CuTe (lane_maps.json).

The file was made from the layouts in CUTLASS's cute/atom, not from the kernels or their emulation:
mma_traits_sm80.hpp (SM80_16x8x16_F32F16F16F32_TN and its bfloat16 twin), mma_traits_sm75.hpp
(SM75_16x8x8_F32F16F16F32_TN) and copy_traits_sm75.hpp (SM75_U32x4_LDSM_N, SM75_U16x8_LDSM_T). Each map is
indexed by lane and number, two numbers to a register of 16-bit ones, and holds pairs: (m, k) of A, (k, n)
of B, (m, n) of C; for ldmatrix the lane whose address gave the row, and the column.
"""

import json
from pathlib import Path

import numpy as np

_MAPS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="ascii"))
MMA = {name: {x: np.array(_MAPS[name][x]) for x in "ABC"} for name in ("f16", "bf16", "k8")}
LDMATRIX = {name: np.array(_MAPS[name]) for name in ("ldmatrix", "ldmatrix.trans")}
