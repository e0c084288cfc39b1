"""Tables for people, as aligned text that is Markdown too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | None


@dataclass(slots=True)
class Table:
    """`notes` stand below it."""

    title: str
    columns: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """All of it, ending without a line break."""
        cells = [list(self.columns), *([show(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(self.columns))]
        lines = [self.title, ""]
        for number, row in enumerate(cells):
            padded = [
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("| " + " | ".join(padded) + " |")
            if number == 0:
                marks = [
                    "-" * width if place == 0 else "-" * (width - 1) + ":"
                    for place, width in enumerate(widths)
                ]
                lines.append("| " + " | ".join(marks) + " |")
        lines += [line for note in self.notes for line in ("", note)]
        return "\n".join(lines)

    def plain(self) -> dict[str, Any]:
        """For JSON: each row by its columns."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows, "notes": self.notes}


def show(cell: Cell) -> str:
    """Numbers to three places that tell something."""
    match cell:
        case None:
            return "-"
        case bool() | str():
            return str(cell)
        case int():
            return f"{cell:,}"
        case float() if cell == 0:
            return "0"
        case float() if abs(cell) >= 100:
            return f"{cell:,.0f}"
        case _:
            return f"{cell:#.3g}" if abs(cell) >= 1e-3 else f"{cell:.2g}"
