"""Pathfinder images: two long contours, short distractors, two discs on one contour or on both.

Most attempts at two long contours fail, so many are tried at a time on masks alone; only the accepted ones
are drawn.
"""

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product

import numpy as np
from PIL import Image, ImageDraw

# The contours of Pathfinder's images: their segments, and how they grow on many images at once.
#
# After the public generator (Linsley et al. 2018, github.com/drewlinsley/pathfinder, 2019), with the
# parameters that the Long Range Arena lists. Coordinates are (y, x); angles turn from x towards y. Segments
# and discs are small pictures, drawn once. An occupancy mask has 0 to 255 a pixel, as the reduced pictures of
# segments have: two segments touch where their masks add up to 1.8 times full.

SCALE = 2
"""Segments and discs are drawn at this scale and reduced with Lanczos."""

DEGREES = 360
"""Directions 0 to 359 are those of first segments, -180 to 179 degrees; candidates' follow."""

ORIGIN = 64.0
"""Where a circle's pixels are computed, so that they are rounded as inside an image."""

FULL = 255
TOUCHING = 459
"""1.8 times FULL."""

BLOCKED = 77
"""A pixel of 0.3 times FULL or more is not a place to start."""

TRIES = 3
"""For a segment: draws of an end before the contour is given up; likewise for a start."""

LEAST_WEIGHT = 1e-4
LEAST_ROOM = 0.01
"""The share of free pixels below which no distractor is started."""

GUESSES = 64
"""Pixels tried at random for a start before all of them are looked at; they only save time."""


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
    """Constants shared by all segments with the same setting and margin.

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


def dilate(picture: np.ndarray, radius: int) -> np.ndarray:
    """The largest value in a disc around each pixel of the last two axes; beyond the border there is none."""
    rows, columns = picture.shape[-2:]
    padded = np.pad(picture, [(0, 0)] * (picture.ndim - 2) + [(radius, radius)] * 2)
    result = np.zeros_like(picture)
    for y, x in product(range(-radius, radius + 1), repeat=2):
        if y * y + x * x <= radius * radius:
            moved = padded[..., radius + y : radius + y + rows, radius + x : radius + x + columns]
            np.maximum(result, moved, out=result)
    return result


@lru_cache(maxsize=1024)
def draw_disc(setting: Setting, center: tuple[int, int]) -> np.ndarray:
    """The picture of a disc, uint8 of shape (side, side)."""
    y, x = (np.arange(setting.side * SCALE) - SCALE * place for place in center)
    inside = y[:, None] ** 2 + x[None, :] ** 2 <= (setting.radius * SCALE) ** 2
    return reduce(inside.astype(np.uint8) * 255, setting.side)


@dataclass
class Ends:
    """The ends of one contour in each of n images."""

    pivot: np.ndarray
    """(n, 2)"""
    direction: np.ndarray
    """(n,), numbers of the shapes' directions"""
    place: np.ndarray
    """(n,), the pixel that the newest segment, which is not in the mask yet, is drawn from"""
    shape: np.ndarray
    """(n,), its shape"""

    def __getitem__(self, chosen: np.ndarray) -> "Ends":
        return Ends(self.pivot[chosen], self.direction[chosen], self.place[chosen], self.shape[chosen])


class Stamps:
    """Shapes as lists of pixels: `offsets` and `values` of shape (shapes, most pixels).

    A list that is too short is filled up with its first pixel.
    """

    def __init__(self, pictures: np.ndarray, least: int, width: int) -> None:
        reach = pictures.shape[1] // 2
        offsets, values = [], []
        for picture in pictures:
            y, x = np.nonzero(picture >= least)
            offsets.append((y - reach) * width + x - reach)
            values.append(picture[y, x])
        self.offsets, self.values = _filled_up(offsets), _filled_up(values)


def _filled_up(rows: list[np.ndarray]) -> np.ndarray:
    most = max(map(len, rows))
    return np.stack([np.pad(row, (0, most - len(row)), constant_values=row[0]) for row in rows])


class Room:
    """How the images of one setting and margin are laid out: with a frame that no shape leaves."""

    def __init__(self, side: int, margin: int) -> None:
        self.shapes = Shapes(SETTINGS[side], margin)
        self.side = side
        self.frame = self.shapes.reach + margin
        self.width = side + 2 * self.frame
        frame = [(0, 0), (margin, margin), (margin, margin)]
        self.mask_stamps = Stamps(self.shapes.masks, 1, self.width)
        self.touch_stamps = Stamps(self.shapes.masks, TOUCHING - FULL, self.width)
        self.dilated_stamps = Stamps(dilate(np.pad(self.shapes.masks, frame), margin), 1, self.width)
        self.inside = np.pad(np.ones((side, side), np.uint8), self.frame).reshape(-1)
        border = np.pad(np.zeros((side - 2, side - 2), np.uint8), 1, constant_values=FULL)
        self.empty = np.pad(border, self.frame).reshape(-1)
        self.empty_dilated = np.pad(dilate(border, margin), self.frame).reshape(-1)
        full = self._footprint_pictures()
        self.footprints = Stamps(full, FULL, self.width).offsets + self.width + 1
        """What must be free around a first segment's tail: offsets of shape (360, most pixels)."""
        spans = [_span(picture) for picture in full]
        self.usable = np.array([usable for usable, _, _ in spans])
        """Directions in which a contour can start."""
        away = 2 * self.shapes.setting.start_distance
        self.first_low = away - np.stack([lowest for _, lowest, _ in spans])
        """The first row and column where the first contour may start: (360, 2)."""
        self.first_size = side - away - np.stack([highest for _, _, highest in spans]) - self.first_low
        """How many rows and columns: (360, 2); none if less than 1."""

    def index(self, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The place of a pixel in a framed image."""
        return (y + self.frame) * self.width + x + self.frame

    def contains(self, points: np.ndarray) -> np.ndarray:
        """Which points, (..., 2), lie in the image."""
        return ((points >= 0) & (points < self.side)).all(axis=-1)

    def _footprint_pictures(self) -> np.ndarray:
        """The full pixels of first segments' masks in the window that the public generator looks at."""
        full = np.where(self.shapes.masks[:DEGREES] == FULL, FULL, 0).astype(np.uint8)
        reach, window = self.shapes.reach, self.shapes.setting.segment_length + self.shapes.margin
        seen = slice(max(0, reach - window - 1), reach + window)
        pictures = np.zeros_like(full)
        pictures[:, seen, seen] = full[:, seen, seen]
        return pictures


def _span(footprint: np.ndarray) -> tuple[bool, np.ndarray, np.ndarray]:
    """Whether a contour can start, and the footprint's lowest and highest offsets from its tail, (2,) each.

    The offsets are one pixel down and to the right of the picture's, as in the public generator. Its
    dilation gives minus infinity at a pixel whose whole footprint is outside the image, which means at
    a corner first of all, and it takes that for an error: a contour then cannot start at all. Short
    segments with a margin of one pixel lose most directions in this way, longer ones almost none.
    """
    pixels = np.argwhere(footprint) - len(footprint) // 2 + 1
    corners = [(y, x) for y in (-1, 1) for x in (-1, 1)]
    usable = not any((pixels * corner > 0).any(axis=1).all() for corner in corners)
    return usable, pixels.min(axis=0), pixels.max(axis=0)


@cache
def room_for(side: int, margin: int) -> Room:
    """The room of a setting's images with a margin, whose shapes are drawn once per process."""
    return Room(side, margin)


@dataclass
class Field:
    """The occupancy of n images, as it is and dilated by the margin."""

    room: Room
    mask: np.ndarray
    dilated: np.ndarray

    @staticmethod
    def empty(room: Room, count: int) -> "Field":
        """`count` images in which all is free."""
        return Field(room, np.tile(room.empty, (count, 1)), np.tile(room.empty_dilated, (count, 1)))

    def take(self, images: np.ndarray) -> "Field":
        """A copy of some images."""
        return Field(self.room, self.mask[images], self.dilated[images])

    def put(self, images: np.ndarray, other: "Field") -> None:
        """Replace some images."""
        self.mask[images], self.dilated[images] = other.mask, other.dilated

    def occupy(self, images: np.ndarray, ends: Ends) -> None:
        """Enter the newest segments into the masks."""
        room = self.room
        for canvas, stamps in ((self.mask, room.mask_stamps), (self.dilated, room.dilated_stamps)):
            places = ends.place[:, None] + stamps.offsets[ends.shape]
            values = stamps.values[ends.shape] * room.inside[places]
            rows = images[:, None]
            canvas[rows, places] = np.maximum(canvas[rows, places], values)

    def extend(self, images: np.ndarray, ends: Ends, random: np.random.Generator) -> tuple[np.ndarray, Ends]:
        """One more segment for a contour in each of `images`.

        Returns which of them succeeded, and the new ends of those. The segment before the new one
        enters the mask.
        """
        room, shapes = self.room, self.room.shapes
        pivot = move(ends.pivot, shapes.advance[ends.direction])
        points = pivot[:, None] + shapes.candidates
        inside = room.contains(points)
        places = np.where(inside, room.index(points[..., 0], points[..., 1]), 0)
        free = np.where(inside, FULL - self.dilated[images[:, None], places], 0)
        total = np.cumsum(free * shapes.weights[ends.direction], axis=1)
        drawn = random.random((len(images), TRIES))
        chosen = np.zeros(len(images), np.int64)
        found = np.zeros(len(images), bool)
        pending = np.flatnonzero(total[:, -1] >= LEAST_WEIGHT * FULL)
        for attempt in range(TRIES):
            limits = drawn[pending, attempt] * total[pending, -1]
            chosen[pending] = (total[pending] > limits[:, None]).argmax(axis=1)
            free_room = ~self._touches(
                images[pending], places[pending, chosen[pending]], DEGREES + chosen[pending]
            )
            found[pending[free_room]] = True
            pending = pending[~free_room]
        done = np.flatnonzero(found)
        self.occupy(images[done], ends[done])
        shape = DEGREES + chosen[done]
        return found, Ends(pivot[done], shape, places[done, chosen[done]], shape)

    def _touches(self, images: np.ndarray, places: np.ndarray, shape: np.ndarray) -> np.ndarray:
        stamps = self.room.touch_stamps
        there = self.mask[images[:, None], places[:, None] + stamps.offsets[shape]]
        return (there.astype(np.int16) + stamps.values[shape] >= TOUCHING).any(axis=1)

    def start(self, images: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, Ends]:
        """A first segment of a distractor anywhere free; returns as `extend` does."""
        room, shapes = self.room, self.room.shapes
        blocked = self.mask[images] >= BLOCKED
        free = ~blocked[:, room.inside > 0]
        pending = np.flatnonzero(free.mean(axis=1) >= LEAST_ROOM)
        direction = np.zeros(len(images), np.int64)
        place = np.zeros(len(images), np.int64)
        pivot = np.zeros((len(images), 2), np.int64)
        found = np.zeros(len(images), bool)
        for _ in range(TRIES):
            direction[pending] = random.integers(DEGREES, size=len(pending))
            pending = pending[room.usable[direction[pending]]]
            place[pending] = self._free_tails(blocked, pending, direction[pending], random)
            pending = pending[place[pending] > 0]
            tail = np.stack(np.divmod(place[pending], room.width), axis=1) - room.frame
            head = move(tail, shapes.to_head[direction[pending]])
            pivot[pending] = move(head, shapes.to_pivot[direction[pending]])
            good = room.contains(head) & room.contains(pivot[pending])
            found[pending[good]] = True
            pending = pending[~good]
        done = np.flatnonzero(found)
        return found, Ends(pivot[done], direction[done], place[done], direction[done])

    def _free_tails(
        self, blocked: np.ndarray, chosen: np.ndarray, direction: np.ndarray, random: np.random.Generator
    ) -> np.ndarray:
        """A place drawn uniformly from those with room for the footprint, in each row; 0 if there is none."""
        room = self.room
        pixels = np.flatnonzero(room.inside)
        guesses = pixels[random.integers(len(pixels), size=(len(chosen), GUESSES))]
        spare = random.random(len(chosen))
        footprints = room.footprints[direction]
        hit = blocked[chosen[:, None, None], guesses[..., None] + footprints[:, None]].any(axis=2)
        result = guesses[np.arange(len(chosen)), (~hit).argmax(axis=1)]
        for row in np.flatnonzero(hit.all(axis=1)):
            taken = blocked[chosen[row]][pixels[:, None] + footprints[row]].any(axis=1)
            free = pixels[~taken]
            result[row] = free[int(spare[row] * len(free))] if len(free) else 0
        return result


BLOCK = 200
"""Images that one seed draws."""

DISTRACTOR_TRIES = 5
BYTES_AT_ONCE = 1 << 22
"""Masks that are worked on at the same time: more do not fit a core's cache."""


@dataclass
class Scenes:
    """n images to be drawn."""

    field: Field
    places: np.ndarray
    """(n, 2, segments): the pixels that the segments of the two contours are drawn from."""
    kinds: np.ndarray
    """Their shapes, likewise."""


def draw_block(side: int, seed: int, number: int) -> dict[str, np.ndarray]:
    """BLOCK images: `labels` uint8 of shape (BLOCK,), `images` uint8 of shape (BLOCK, side, side)."""
    setting = SETTINGS[side]
    random = np.random.default_rng([seed, side, number])
    labels = random.integers(2, size=BLOCK)
    margins = random.integers(len(setting.margins), size=BLOCK)
    images = np.zeros((BLOCK, side, side), np.uint8)
    for number, margin in enumerate(setting.margins):
        chosen = np.flatnonzero(margins == number)
        if len(chosen):
            images[chosen] = draw_images(room_for(side, margin), labels[chosen], random)
    return {"labels": labels.astype(np.uint8), "images": images}


def draw_images(room: Room, labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """An image for each label, uint8 of shape (labels, side, side)."""
    scenes = draw_contours(room, len(labels), random)
    distractors = draw_distractors(scenes.field, len(labels), random)
    starts = random.integers(2, size=len(labels))
    return np.stack(
        [
            _picture(room, scenes, distractors, image, int(starts[image]), bool(label))
            for image, label in enumerate(labels)
        ]
    )


def draw_contours(room: Room, count: int, random: np.random.Generator) -> Scenes:
    """`count` pairs of long contours: attempts until so many have succeeded."""
    accepted: list[Scenes] = []
    attempts = max(1, BYTES_AT_ONCE // room.width**2)
    while sum(len(scenes.places) for scenes in accepted) < count:
        accepted.append(_attempt_contours(room, attempts, random))
    arrays = [(one.field.mask, one.field.dilated, one.places, one.kinds) for one in accepted]
    mask, dilated, places, kinds = (np.concatenate(one)[:count] for one in zip(*arrays, strict=True))
    return Scenes(Field(room, mask, dilated), places, kinds)


def _attempt_contours(room: Room, attempts: int, random: np.random.Generator) -> Scenes:
    """The pairs of contours, of `attempts`, that reach their full length."""
    segments = room.shapes.setting.segments
    field = Field.empty(room, attempts)
    images, contours = _start_contours(room, attempts, random)
    places = np.zeros((attempts, 2, segments), np.int64)
    kinds = np.zeros((attempts, 2, segments), np.int64)
    for segment in range(segments):
        for contour in (0, 1):
            if segment:
                found, ends = field.extend(images, contours[contour], random)
                images, contours[1 - contour] = images[found], contours[1 - contour][found]
                contours[contour] = ends
            places[images, contour, segment] = contours[contour].place
            kinds[images, contour, segment] = contours[contour].shape
    # As in the public generator, the last segment of the first contour never enters the mask.
    field.occupy(images, contours[1])
    return Scenes(field.take(images), places[images], kinds[images])


def _start_contours(room: Room, attempts: int, random: np.random.Generator) -> tuple[np.ndarray, list[Ends]]:
    """The first segments of both contours: the images that have room for them, and the ends."""
    setting, shapes = room.shapes.setting, room.shapes
    directions = random.integers(DEGREES, size=(attempts, 2))
    towards = random.integers(DEGREES, size=attempts) * np.pi / 180
    drawn = random.random((attempts, 2))
    low, size = room.first_low[directions[:, 0]], room.first_size[directions[:, 0]]
    images = np.flatnonzero(room.usable[directions[:, 0]] & (size > 0).all(axis=1))
    first = low[images] + (drawn[images] * size[images]).astype(np.int64)
    angles = towards[images, None]
    second = first + setting.start_distance * np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    contours = []
    for contour, tail in enumerate((first, np.round(second).astype(np.int64))):
        direction = directions[images, contour]
        pivot = move(move(tail, shapes.to_head[direction]), shapes.to_pivot[direction])
        contours.append(Ends(pivot, direction, room.index(tail[:, 0], tail[:, 1]), direction))
    return images, contours


def draw_distractors(field: Field, count: int, random: np.random.Generator) -> list[list[tuple[int, int]]]:
    """Short contours where there is room: the (place, shape) of all segments, image by image."""
    setting = field.room.shapes.setting
    result: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for _ in range(setting.distractors):
        pending = np.arange(count)
        for _ in range(DISTRACTOR_TRIES):
            before = field.take(pending)
            found, segments = _attempt_distractors(field, pending, random)
            for image, *drawn in zip(pending[found], *segments, strict=True):
                result[image] += drawn
            failed = np.flatnonzero(~found)
            pending = pending[failed]
            field.put(pending, before.take(failed))
    return result


def _attempt_distractors(
    field: Field, images: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, list[list[tuple[int, int]]]]:
    """Which images have got one more distractor, and its segments: a list for each segment."""
    found, ends = field.start(images, random)
    alive = np.flatnonzero(found)
    drawn = [np.stack([ends.place, ends.shape], axis=1)]
    for _ in range(field.room.shapes.setting.distractor_segments - 1):
        extended, ends = field.extend(images[alive], ends, random)
        alive = alive[extended]
        drawn = [segment[extended] for segment in drawn]
        drawn.append(np.stack([ends.place, ends.shape], axis=1))
    field.occupy(images[alive], ends)
    success = np.zeros(len(images), bool)
    success[alive] = True
    return success, [[(int(place), int(shape)) for place, shape in segment] for segment in drawn]


def _picture(
    room: Room,
    scenes: Scenes,
    distractors: list[list[tuple[int, int]]],
    image: int,
    start: int,
    same: bool,
) -> np.ndarray:
    """One image, uint8 of shape (side, side), stretched from black to white."""
    setting = room.shapes.setting
    canvas = np.zeros((room.width, room.width))
    for contour in (0, 1):
        for segment in zip(scenes.places[image, contour], scenes.kinds[image, contour], strict=True):
            _stamp(room, canvas, segment, setting.contour_contrast)
    for segment in distractors[image]:
        _stamp(room, canvas, segment, setting.distractor_contrast)
    inner = slice(room.frame, room.frame + room.side)
    picture = canvas[inner, inner]
    end = start if same else 1 - start
    for place in (scenes.places[image, start, 0], scenes.places[image, end, -1]):
        y, x = divmod(int(place), room.width)
        np.maximum(picture, draw_disc(setting, (y - room.frame, x - room.frame)), out=picture)
    darkest = picture.min()
    return ((picture - darkest) * (255 / (picture.max() - darkest)) + 0.5).astype(np.uint8)


def _stamp(room: Room, canvas: np.ndarray, segment: tuple[int, int], contrast: float) -> None:
    place, shape = segment
    y, x = divmod(int(place), room.width)
    reach = room.shapes.reach
    window = canvas[y - reach : y + reach + 1, x - reach : x + reach + 1]
    np.maximum(window, room.shapes.lines[shape] * contrast, out=window)
