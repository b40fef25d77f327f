# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import clients
from ..exporters.auto import formats

FORMAT_HELP = f"Export format: {', '.join(formats())}."

CLIENT_HELP = f"Also lay the folder out for a client: {', '.join(clients.names())}. Repeatable."

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show the libraries' own output, and the traceback of an error.")
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write the report as one HTML page to FILE.")
]
Artifact = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `transporters export` wrote.")]
