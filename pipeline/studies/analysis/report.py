"""README.md of the analyses (`analyse.sh report`)."""

from argparse import Namespace

from pipeline.errors import UserError
from pipeline.files import shown_path, write_atomically
from pipeline.outputs import begins, check_output
from pipeline.reports.analysis.document import HEAD, document


def run_report(options: Namespace) -> None:
    """Write the document from the JSON files that are there."""
    folder = options.out.absolute()
    check_output(folder / "README.md", begins(HEAD.splitlines()[0]), makes_folder=True)
    text = document(folder)
    if not text:
        raise UserError(
            f"{shown_path(folder)} holds no figure; scripts/analyse.sh theory makes the first ones"
        )
    write_atomically(folder / "README.md", text.encode())
    print(f"written: {shown_path(folder / 'README.md')}")
