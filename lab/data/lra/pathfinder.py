"""Pathfinder images: two long contours, short distractors, two discs on one contour or on both.

Most attempts at two long contours fail, so they are made many at a time on masks alone; only what is
accepted is drawn.
"""

from dataclasses import dataclass

import numpy as np

from lab.data.lra.contours import DEGREES, SETTINGS, Ends, Field, Room, draw_disc, move, room_for

BLOCK = 200
"""Images that one seed draws."""

DISTRACTOR_TRIES = 5
BYTES_AT_ONCE = 1 << 22
"""Of masks that are worked on at the same time: those of more images do not fit a core's cache."""


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
    """Those of `attempts` pairs of contours that reach their full length."""
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
