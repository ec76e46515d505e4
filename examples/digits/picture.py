"""Small grey pictures side by side in the terminal: one character is two pixels, one above the other."""

import numpy as np
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

HALF_BLOCKS = " ▀▄█"  # for no lit pixel, the upper pixel, the lower pixel, both pixels


def picture(image: np.ndarray, colour: bool) -> Text:
    """An (h, w) image in 0..1, h even, as h/2 lines: grey levels with colour, else black and white."""
    lines = []
    for upper, lower in zip(image[0::2], image[1::2], strict=True):
        if colour:
            lines.append(Text.assemble(*(("▀", grey(u, v)) for u, v in zip(upper, lower, strict=True))))
        else:
            lit = (upper >= 0.5) + 2 * (lower >= 0.5)
            lines.append(Text("".join(HALF_BLOCKS[i] for i in lit)))
    return Text("\n").join(lines)


def grey(upper: float, lower: float) -> Style:
    u, v = int(255 * upper), int(255 * lower)
    return Style(color=f"rgb({u},{u},{u})", bgcolor=f"rgb({v},{v},{v})")


def show(images: np.ndarray, captions: dict[str, np.ndarray]) -> None:
    """Prints (n, h, w) images in 0..1 in a row, and under each its entry of every caption."""
    console = Console(highlight=False)
    colour = console.color_system is not None and not console.no_color
    table = Table.grid(padding=(0, 2))
    table.add_row("", *(picture(image, colour) for image in images))
    for name, values in captions.items():
        table.add_row(name, *(Text(str(value), justify="center") for value in values))
    console.print(table)
