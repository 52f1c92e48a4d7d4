"""Pictures: what a logarithmic axis cannot show is left out."""

from lab.publish.plots import Curve, plot_curves


def test_nothing_measured_is_no_point_of_a_logarithmic_axis(tmp_path):
    partly, never = Curve("partly", "k", [64, 256, 1024], [0.0, 2.0, 3.0]), Curve("never", "k", [64], [0.0])
    panels = [("both", "length", "MiB", [partly, never]), ("none", "length", "MiB", [never])]
    plot_curves(tmp_path / "all.png", panels, note="")
    kept = Curve("partly", "k", [256, 1024], [2.0, 3.0])
    plot_curves(tmp_path / "kept.png", [(*panels[0][:3], [kept]), (*panels[1][:3], [])], note="")
    assert (tmp_path / "all.png").read_bytes() == (tmp_path / "kept.png").read_bytes()
