"""Pictures: points that a logarithmic axis cannot show are left out; colours and names tell lines apart."""

from itertools import combinations, pairwise

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image

from lab.methods import ANALYSED, METHODS, SOFTMAX
from lab.publish.analysis import DTYPES, TITLES
from lab.publish.plots import (
    LABEL_GAP,
    PALEST,
    Curve,
    Point,
    figure_of_panels,
    label_ends,
    label_points,
    plot_curves,
    plot_points,
    readable,
    save_figure,
    tint,
)


def test_nothing_measured_is_no_point_of_a_logarithmic_axis(tmp_path):
    partly, never = Curve("partly", "k", [64, 256, 1024], [0.0, 2.0, 3.0]), Curve("never", "k", [64], [0.0])
    panels = [("both", "length", "MiB", [partly, never]), ("none", "length", "MiB", [never])]
    plot_curves(tmp_path / "all.png", panels, asks="", note="")
    kept = Curve("partly", "k", [256, 1024], [2.0, 3.0])
    plot_curves(tmp_path / "kept.png", [(*panels[0][:3], [kept]), (*panels[1][:3], [])], asks="", note="")
    assert (tmp_path / "all.png").read_bytes() == (tmp_path / "kept.png").read_bytes()


def test_dollar_signs_are_drawn_as_they_are(tmp_path):
    """As in names of folders, which matplotlib would read as formulas."""
    curves = [Curve(name, "k", [1, 2], [1.0, 2.0]) for name in ("a$_$", "b$}$")]
    panel = ("a$}$", "updates", "bits", curves)
    plot_curves(tmp_path / "a.png", [panel], asks="a$}$?", note="a$}$", log=False)
    plot_points(tmp_path / "b.png", [Point("b$}$", "k", 1, 1)], asks="", x_label="", y_label="", note="")
    assert (tmp_path / "a.png").is_file() and (tmp_path / "b.png").is_file()


def test_an_axis_of_doublings_names_each_place(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr("lab.publish.plots.save_figure", lambda figure, *others: figures.append(figure))
    panel = ("", "pairs", "%", [Curve("a", "k", [1, 2, 4, 8], [100.0, 90.0, 50.0, 0.0])])
    plot_curves(tmp_path / "a.png", [panel], asks="", note="", log=False, doublings=True)
    [axis] = figures[0].axes
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "2", "4", "8"]
    places = axis.transData.transform([(x, 0) for x in (1, 2, 4, 8)])[:, 0]
    assert np.diff(places) == pytest.approx([places[1] - places[0]] * 3)
    assert axis.get_yscale() == "linear" and len(axis.get_xticks(minor=True)) == 0
    plt.close()


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


@pytest.mark.parametrize("log", [False, True])
def test_panels_of_one_unit_share_the_range_of_their_axes(log):
    series = [[1.0, 2.0], [1.0, 50.0], [1.0, 900.0]]
    curves = [Curve("a", "k", [1, 2], values) for values in series]
    panels = [(f"{i}", "x", unit, [one]) for i, (unit, one) in enumerate(zip("aab", curves, strict=True))]
    axes = figure_of_panels(panels, 2, log=log, markers=False).axes
    assert axes[0].get_ylim() == axes[1].get_ylim() != axes[2].get_ylim()
    assert axes[2].get_position().width > 2 * axes[0].get_position().width  # it fills its row
    plt.close()


def test_a_text_is_dark_enough_to_read_and_a_dark_one_stays():
    for one in METHODS:
        text = lab(readable(tint(one.color, PALEST)))
        assert text[0] < 63, one.label  # L* of a luminance of 0.3 is 62
    assert readable(ANALYSED[SOFTMAX].color) == "#000000"


def test_the_ends_of_a_map_survive_the_palette(tmp_path):
    figure, axis = plt.subplots()
    axis.imshow(np.linspace(0, 1, 500).reshape(20, 25), cmap="cividis")
    save_figure(figure, tmp_path / "a.png", "Which?", "")
    found = {color for _, color in Image.open(tmp_path / "a.png").convert("RGB").getcolors()}
    ends = [matplotlib.colormaps["cividis"](place)[:3] for place in (0.0, 1.0)]
    assert found >= {tuple(round(255 * level) for level in end) for end in ends}


def test_a_name_covers_no_curve():
    figure, axis = plt.subplots()
    axis.plot([0, 1, 2], [0, 1, 5], color="k")
    label_points(axis, [Point("a long name", "k", 1, 1)])
    [name] = axis.texts
    box = Text.get_window_extent(name, figure.canvas.get_renderer())
    xs = np.linspace(1, 2, 200)
    assert not any(box.contains(*axis.transData.transform((x, 4 * x - 3))) for x in xs)
    plt.close()


def test_every_computed_figure_names_its_dtype():
    assert {*DTYPES, "tradeoff"} == set(TITLES)
