"""Base of the tasks of images: their configuration, and their shape in checkpoints."""

from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from omegaconf import MISSING

from .image_data import ImageShape
from .whole_rows import WholeRowsTask

FROM_DATA = {"help": "of the images; default: as in the data folder"}


@dataclass
class ImageTaskConfig(FairseqDataclass):
    """Configuration of a task of images."""

    data: str = field(default=MISSING, metadata={"help": "folder that data-prep/images.sh wrote"})
    levels: Optional[int] = field(default=None, metadata=FROM_DATA)
    height: Optional[int] = field(default=None, metadata=FROM_DATA)
    width: Optional[int] = field(default=None, metadata=FROM_DATA)
    channels: Optional[int] = field(default=None, metadata=FROM_DATA)


class ImageTask(WholeRowsTask):
    """A task of images of one shape."""

    def __init__(self, cfg: Any, shape: ImageShape) -> None:
        super().__init__(cfg)
        self.shape = shape

    def note_data(self, cfg: Any) -> None:
        """Write the images' shape into the configuration that checkpoints hold (ours is a copy)."""
        for name, value in asdict(self.shape).items():
            setattr(cfg, name, value)
