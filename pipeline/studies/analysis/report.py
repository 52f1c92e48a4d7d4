"""README.md of the analyses (`analyse.sh report`)."""

from argparse import Namespace

from pipeline.errors import UserError
from pipeline.files import shown_path, write_atomically
from pipeline.reports.analysis.document import document


def run_report(options: Namespace) -> None:
    """Write the document from the JSON files that are there."""
    folder = options.out.absolute()
    text = document(folder)
    if not text:
        raise UserError(
            f"{shown_path(folder)} holds no figure; scripts/analyse.sh theory makes the first ones"
        )
    write_atomically(folder / "README.md", text.encode())
    print(f"written: {shown_path(folder / 'README.md')}")
