"""The papers' measures of attention, and its explicit matrix.

TransNormer (Qin et al. 2022): local scores and gradients. LLN (Nahshan et al. 2024): temperature, entropy,
spectral gap and log-normality. Matrices and measures are float64; nothing here is part of a model.
"""

from .capture import AttentionInput, record_inputs
from .entropy import entropy, negative_share, normalized_rows, relative_entropy, zero_rows
from .forms import lln_diag_parts, toeplitz_matrices
from .gradients import relative_deviation
from .local_score import appendix_f_curve, causal_local_score, local_score, window_widths
from .lognormal import LogNormality, fenton, log_normality
from .matrix import attention_matrix
from .spectrum import linear_spectral_gap, second_eigenvalue, spectral_gap, top_singular_value
from .temperature import lln_temperature, row_temperature, temperature

__all__ = [
    "AttentionInput",
    "LogNormality",
    "appendix_f_curve",
    "attention_matrix",
    "causal_local_score",
    "entropy",
    "fenton",
    "linear_spectral_gap",
    "lln_diag_parts",
    "lln_temperature",
    "local_score",
    "log_normality",
    "negative_share",
    "normalized_rows",
    "record_inputs",
    "relative_deviation",
    "relative_entropy",
    "row_temperature",
    "second_eigenvalue",
    "spectral_gap",
    "temperature",
    "toeplitz_matrices",
    "top_singular_value",
    "window_widths",
    "zero_rows",
]
