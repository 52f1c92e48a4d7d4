"""Pictures: points that a logarithmic axis cannot show are left out; colours and names tell lines apart."""

from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from lab.methods import ANALYSED, METHODS, SOFTMAX
from lab.publish.plots import LABEL_GAP, Curve, label_ends, plot_curves, tint


def test_nothing_measured_is_no_point_of_a_logarithmic_axis(tmp_path):
    partly, never = Curve("partly", "k", [64, 256, 1024], [0.0, 2.0, 3.0]), Curve("never", "k", [64], [0.0])
    panels = [("both", "length", "MiB", [partly, never]), ("none", "length", "MiB", [never])]
    plot_curves(tmp_path / "all.png", panels, asks="", note="")
    kept = Curve("partly", "k", [256, 1024], [2.0, 3.0])
    plot_curves(tmp_path / "kept.png", [(*panels[0][:3], [kept]), (*panels[1][:3], [])], asks="", note="")
    assert (tmp_path / "all.png").read_bytes() == (tmp_path / "kept.png").read_bytes()


def lab(color):
    """The colour in CIELAB, where 2.3 is a difference that is just seen."""
    level = np.array(to_rgb(color))
    linear = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(matrix @ linear / [0.9505, 1, 1.0888])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_no_two_methods_look_alike():
    looks = {one.label: one.color for one in (*METHODS, *ANALYSED.values())}
    assert looks.pop("vanilla") == ANALYSED[SOFTMAX].color  # which is softmax in fairseq's own body
    for (one, color), (other, second) in combinations(looks.items(), 2):
        assert np.linalg.norm(lab(color) - lab(second)) > 18, (one, other)


def test_the_colour_of_a_line_survives_the_palette(tmp_path):
    colors = [one.color for one in METHODS]
    curves = [Curve(f"{i}", color, [0, 1], [i, i]) for i, color in enumerate(colors)]
    plot_curves(tmp_path / "a.png", [("", "x", "y", curves)], asks="Which?", note="", log=False)
    found = {color for _, color in Image.open(tmp_path / "a.png").convert("RGB").getcolors()}
    assert found >= {tuple(round(255 * level) for level in to_rgb(color)) for color in [*colors, "w"]}


@pytest.mark.parametrize("ends", [[0.0, 0.01, 0.02, 1.0], [0.5, 0.5, 0.5, 0.5], [0.0, 0.3, 0.6, 1.0]])
def test_names_stand_at_their_lines_in_the_order_of_the_ends(ends):
    _, axis = plt.subplots()
    axis.set_ylim(-0.1, 1.1)
    label_ends(axis, [Curve(f"{i}", "k", [0, 1], [0, end]) for i, end in enumerate(ends)], log=False)
    heights = [text.xyann[1] for text in sorted(axis.texts, key=lambda text: text.xyann[1])]
    places = [(end + 0.1) / 1.2 for end in ends]
    assert all(high - low > LABEL_GAP - 1e-9 for low, high in pairwise(heights))
    # A name moves by no more than the names it would overlap need, and alone it does not move.
    assert max(abs(a - b) for a, b in zip(heights, places, strict=True)) <= 1.5 * LABEL_GAP + 1e-9
    assert heights[-1] == pytest.approx(places[-1]) or ends[-2:] == [0.5, 0.5]
    plt.close()


def test_a_tint_is_between_the_colour_and_white():
    assert [tint("#0072B2", share) for share in (0, 1)] == ["#0072b2", "#ffffff"]
