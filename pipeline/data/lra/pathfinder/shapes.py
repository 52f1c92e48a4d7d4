"""Pathfinder's parameters, and its segments and discs as small pictures, drawn once.

After the public generator (Linsley et al. 2018, github.com/drewlinsley/pathfinder, 2019), with the
parameters that the Long Range Arena lists. Coordinates are (y, x); angles turn from x towards y.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw

SCALE = 2
"""Segments and discs are drawn at this scale and reduced with Lanczos."""

DEGREES = 360
"""Directions 0 to 359 are those of first segments, -180 to 179 degrees; candidates' follow."""

ORIGIN = 64.0
"""Where a circle's pixels are computed, so that they are rounded as inside an image."""


@dataclass(frozen=True)
class Setting:
    """The parameters of a data set; lengths in pixels."""

    side: int
    segment_length: int
    thickness: float
    margins: tuple[int, ...]
    start_distance: int
    continuity: float
    distractors: int
    radius: float
    contour_contrast: float
    distractor_contrast: float
    segments: int = 14
    distractor_segments: int = 4


SETTINGS = {
    setting.side: setting
    for setting in (
        Setting(32, 2, 0.5, (1,), 7, 1.0, 5, 1.5, 1.5, 2.0),
        Setting(128, 5, 1.5, (2, 3), 20, 1.8, 8, 3.0, 0.9, 0.9),
    )
}


def offsets(angles: np.ndarray, distance: float) -> np.ndarray:
    """The way to points at a distance in some directions: float of shape (angles, 2)."""
    return distance * np.stack([np.sin(angles), np.cos(angles)], axis=1)


def move(points: np.ndarray, way: np.ndarray) -> np.ndarray:
    """Where points (..., 2) get to, rounded up: int64.

    The rounding errors of sines and cosines near 0 are the generator's own: along the left border they
    push contours one pixel inwards.
    """
    return np.ceil(points + way).astype(np.int64)


def flip(angles: np.ndarray) -> np.ndarray:
    """The opposite directions, in -pi to pi."""
    return np.where(angles < 0, angles + np.pi, angles - np.pi)


class Shapes:
    """What all segments of a setting with one margin have in common.

    A shape is a segment seen from the pixel it is drawn from: shapes 0 to 359 from the tail of a first
    segment along a direction, shape 360 + c from the c-th candidate for a new end back to the contour.
    """

    def __init__(self, setting: Setting, margin: int) -> None:
        self.setting = setting
        self.margin = margin
        step = setting.segment_length + margin
        degrees = np.arange(-180, 180) * np.pi / 180
        self.candidates = _circle(step)
        angles = np.arctan2(self.candidates[:, 0], self.candidates[:, 1])
        directions = np.concatenate([degrees, angles])
        self.advance = offsets(directions, step + margin)
        """The way from a pivot along a direction to the next: float of shape (directions, 2)."""
        self.to_head = offsets(degrees, setting.segment_length)
        """The way from the tail of a first segment to its head, float of shape (360, 2)."""
        self.to_pivot = offsets(flip(degrees), step)
        """The way from there to its pivot, float of shape (360, 2)."""
        turn = np.abs(angles - directions[:, None])
        turn = np.minimum(np.minimum(turn, 2 * np.pi - turn) * setting.continuity, np.pi / 2)
        self.weights = np.cos(turn) ** 2
        """How likely a candidate is after a direction: shape (directions, candidates)."""
        self.reach = step + math.ceil(setting.thickness)
        """Pixels from the centre of a picture to its border."""
        pictures = [self._segment(angle) for angle in np.concatenate([degrees, flip(angles)])]
        self.lines = np.stack([line for line, _ in pictures])
        """Grey of each shape, uint8 of shape (shapes, 2 reach + 1, 2 reach + 1)."""
        self.masks = np.stack([mask for _, mask in pictures])
        """The room each shape takes, dilated by the margin; as `lines`."""

    def _segment(self, angle: float) -> tuple[np.ndarray, np.ndarray]:
        """Picture and mask of the segment from the centre along `angle`."""
        center = self.reach * SCALE
        end = move(center, offsets(np.array([angle]), self.setting.segment_length * SCALE))[0]
        size = 2 * center + 1
        picture = Image.new("L", (size, size))
        width = round(self.setting.thickness * SCALE)
        ImageDraw.Draw(picture).line([(center, center), (int(end[1]), int(end[0]))], fill=255, width=width)
        drawn = np.asarray(picture)
        size = 2 * self.reach + 1
        return reduce(drawn, size), reduce(dilate(drawn, self.margin * SCALE), size)


def _circle(radius: int) -> np.ndarray:
    """The pixels of a circle, one for each pixel of arc: int64 of shape (pixels, 2), sorted."""
    angles = np.arange(0, 360, 360 / (2 * radius * np.pi)) * np.pi / 180
    points = ORIGIN + offsets(angles, radius)
    return np.unique(points.astype(np.int64) - int(ORIGIN), axis=0)


def reduce(picture: np.ndarray, size: int) -> np.ndarray:
    """A picture of uint8 at `size` x `size` pixels."""
    return np.asarray(Image.fromarray(picture).resize((size, size), Image.Resampling.LANCZOS))


def disc_offsets(radius: int) -> list[tuple[int, int]]:
    """The pixels of a disc around the origin."""
    around = range(-radius, radius + 1)
    return [(y, x) for y in around for x in around if y * y + x * x <= radius * radius]


def dilate(picture: np.ndarray, radius: int) -> np.ndarray:
    """The largest value in a disc around each pixel of the last two axes; beyond the border there is none."""
    rows, columns = picture.shape[-2:]
    padded = np.pad(picture, [(0, 0)] * (picture.ndim - 2) + [(radius, radius)] * 2)
    result = np.zeros_like(picture)
    for y, x in disc_offsets(radius):
        moved = padded[..., radius + y : radius + y + rows, radius + x : radius + x + columns]
        np.maximum(result, moved, out=result)
    return result


def draw_disc(setting: Setting, center: tuple[int, int]) -> np.ndarray:
    """The picture of a disc, uint8 of shape (side, side)."""
    y, x = (np.arange(setting.side * SCALE) - SCALE * int(place) for place in center)
    inside = y[:, None] ** 2 + x[None, :] ** 2 <= (setting.radius * SCALE) ** 2
    return reduce(inside.astype(np.uint8) * 255, setting.side)


@cache
def shapes(side: int, margin: int) -> Shapes:
    """The shapes of a data set with a margin, drawn once per process."""
    return Shapes(SETTINGS[side], margin)
