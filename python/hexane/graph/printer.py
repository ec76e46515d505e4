"""Prints a graph as text that `hexane.ops.parse` reads back, and draws it as plain SVG.

graph "digits" (%image: fp32[1, 1, 8, 8])
  %0 = const @8c5f... : fp32[16, 1, 3, 3]
  %1 = conv(%image, %0, none) {pad=(1, 1, 1, 1), groups=1} : fp32[1, 16, 8, 8]  # net.py:12
  return softmax=%1
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from hexane import _core
from hexane.graph.attributes import print_attr, quote

if TYPE_CHECKING:
    from hexane.graph import Graph, Node, Port, Value
    from hexane.program import Program, Step, View

MAX_INLINE = 16  # most elements of a constant that is printed whole


_UNSAID = {"epilogue": (), "rounds": ("output",)}  # omitted attributes, which nearly every layer has


def bodies(graph: Graph) -> list[tuple[str, Graph]]:
    """Returns the graphs that are attributes of a node, by the attribute's name."""
    return [pair for node in graph.nodes for pair in _bodies(node)]


def _bodies(node: Node) -> list[tuple[str, Graph]]:
    return [(name, value) for name, value in node.attrs.items() if hasattr(value, "nodes")]


def print_graph(graph: Graph, sources: bool = True) -> str:
    """The graph as text; with `sources`, where each node comes from in the user's model. The bodies of a node are
    printed above the node, indented:

      body: graph "body" (%step: int64[], ...)
        ...
        return ...
      %3 = loop(%n, none, %x) {body=graph, ...} : fp32[8], int64[]
    """
    names = value_names(graph)
    ports = ", ".join(f"{names[v]}: {v.type}" for v in graph.inputs)
    lines = [f"graph {quote(graph.name)} ({ports})"]
    for node in graph.nodes:
        if node.op == "input":
            continue
        comment = f"  # {node.source}".replace("\n", " ") if sources and node.sources else ""
        for name, body in _bodies(node):
            first, *others = print_graph(body, sources).splitlines()
            lines += [f"  {name}: {first}", *(f"  {line}" for line in others)]
        lines.append(f"  {print_node(node, names)}{comment}")
    lines += [f"  update {names[v]}" for v in graph.updates]
    lines.append("  return " + ", ".join(print_port(p, names) for p in graph.outputs))
    return "\n".join(lines) + "\n"


def print_port(port: Port, names: dict[Value, str]) -> str:
    """y=%1, or y=%1[0: n] if the output n has the number of valid elements along axis 0."""
    length = f"[{port.axis}: {quote(port.length)}]" if port.length else ""
    return f"{quote(port.name)}={names[port.value]}{length}"


def value_names(graph: Graph) -> dict[Value, str]:
    """The name of each value in the text: %name for inputs, %number for all others."""
    names: dict[Value, str] = {}
    number = 0
    for node in graph.nodes:
        for value in node.values:
            if node.op == "input":
                names[value] = "%" + quote(str(node.attrs["name"]))
            else:
                names[value] = f"%{number}"
                number += 1
    return names


def print_node(node: Node, names: dict[Value, str]) -> str:
    outputs = [names[v] for v in node.values]
    types = ", ".join(map(str, node.types))
    if node.op == "const":
        body = f"const {print_array(node)}"
    elif node.op in ("param", "state"):
        data = "" if node.data is None else f" {print_array(node)}"
        body = f"{node.op} {quote(str(node.attrs['name']))}{data}"
    else:
        inputs = ", ".join("none" if v is None else names[v] for v in node.inputs)
        attrs = ", ".join(f"{k}={print_attr(v)}" for k, v in node.attrs.items() if v != _UNSAID.get(k))
        body = f"{node.op}({inputs})" + (f" {{{attrs}}}" if attrs else "")
    return f"{', '.join(outputs)} = {body} : {types}"


def print_array(node: Node) -> str:
    """The elements of a small array, if they can be read back exactly; for others the hash of their bytes."""
    array = node.data
    assert array is not None
    plain = array.dtype.kind in "biuf" and array.dtype.itemsize in (1, 2, 4, 8)
    if plain and array.size <= MAX_INLINE and not (array.dtype.kind == "f" and np.isnan(array).any()):
        return "[" + ", ".join(repr(v) for v in array.reshape(-1).tolist()) + "]"
    return digest(array)


def digest(array: Any) -> str:
    """The 128-bit hash of an array's bytes: `@` and 32 hex digits."""
    return "@" + _core.hash128(array).hex()


def print_program(program: Program, sources: bool = True) -> str:
    """The program as text: steps in order, then the bytes of every memory and the decisions. sources: as
    `print_graph`.

    program "digits" for host
      arena+512 fp32[1, 8, 8, 16] = conv(image+0 fp32[1, 1, 8, 8], weights+0 fp32[16, 1, 3, 3], none)  # net.py:12
      memory: arena 640 bytes (live at once: 640), weights 896 bytes
      decided: place: reshape at net.py:14: copy: reshape needs elements without gaps (hexane)
    """
    begins = {s.steps[0]: s for s in reversed(program.segments)}
    lines = [f"program {quote(program.graph.name)} for {program.target.name}"]
    for i, step in enumerate(program.steps):
        if (segment := begins.get(i)) is not None:
            device = "engine" if segment.device == "ane" else "host"
            lines.append(f"  segment {segment.index} on the {device}" + (f": {segment.why}" if segment.why else ""))
        for loop in (loop for loop in program.loops if loop.first == i):
            moves = ", ".join(map(str, loop.moves))
            lines.append(f"  {loop.trips} times the next {len(loop.moves)} steps, whose rows move by {moves}:")
        comment = f"  # {step.node.source}".replace("\n", " ") if sources and step.node.sources else ""
        lines.append(f"  {_print_step(step, program)}{comment}")
    sizes = []
    for name, extent in program.extents.items():
        live = f" (live at once: {extent.bound})" if extent.space.kind == "arena" else ""
        sizes.append(f"{name} {extent.bytes} bytes{live}")
    lines += [f"  memory: {', '.join(sizes)}"] if sizes else []
    lines += [f"  decided: {decision}".replace("\n", " ") for decision in program.decisions]
    return "\n".join(lines) + "\n"


def _print_step(step: Step, program: Program) -> str:
    outputs = ", ".join(_print_view(v, program) for v in step.outputs)
    inputs = ", ".join("none" if v is None else _print_view(v, program) for v in step.inputs)
    attrs = ", ".join(f"{k}={print_attr(v)}" for k, v in step.attrs.items() if v != () or k != "epilogue")
    cut = "" if step.cut is None else f" axis {step.cut[0]} from {step.cut[1]} to {step.cut[2]}"
    return f"{outputs} = {step.kernel}({inputs})" + (f" {{{attrs}}}" if attrs else "") + cut


def _print_view(view: View, program: Program) -> str:
    """Returns a text such as image+0 fp32[1, 1, 8, 8]: memory or leaf, offset in bytes, type, and the rows of a
    ring."""
    buffer = program.buffers[view.buffer]
    at = view.offset + (program.offsets[view.buffer] if program.offsets else 0)
    ring = f" ring of {view.ring}" if view.ring else ""
    return f"{quote(buffer.name) if buffer.name else buffer.kind}+{at} {view.type}{ring}"


def graph_svg(graph: Graph, max_nodes: int = 400) -> str:
    """The graph as one column of boxes with curves from operands to users. Constants are left out."""
    nodes = [n for n in graph.nodes if n.op != "const"]
    shown = nodes[:max_nodes]
    row = {id(node): i for i, node in enumerate(shown)}
    parts = []
    for node in shown:
        for value in node.inputs:
            if value is None or id(value.node) not in row:
                continue
            a, b = row[id(value.node)], row[id(node)]
            bend = 320 + min(14 * (b - a - 1), 160)
            color = "#bbb" if b == a + 1 else "#58a"
            y0, y1 = 26 * a + 24, 26 * b + 6
            curve = f"M160 {y0}V{y1}" if b == a + 1 else f"M310 {y0 - 9}C{bend} {y0} {bend} {y1} 310 {y1 + 9}"
            parts.append(f'<path d="{curve}" fill="none" stroke="{color}"/>')
    for node in shown:
        y = 26 * row[id(node)] + 4
        label = node.op + (f" {node.attrs['name']}" if "name" in node.attrs else "")
        title = escape(f"{node.where}: {', '.join(map(str, node.types))}")
        fill = {"input": "#e6f2e6", "state": "#f7ead0", "param": "#f7ead0"}.get(node.op, "#eef3fa")
        parts.append(
            f'<g><title>{title}</title><rect x="10" y="{y}" width="300" height="20" rx="4" fill="{fill}"'
            f' stroke="#789"/><text x="18" y="{y + 14}">{escape(label[:24])}</text><text x="302" y="{y + 14}"'
            f' text-anchor="end" fill="#567">{escape(str(node.types[0]))}</text></g>'
        )
    height = 26 * len(shown) + 30
    left = len(nodes) - len(shown)
    note = f'<text x="10" y="{height - 8}">... and {left} more nodes</text>' if left else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="500" height="{height}" font-family="monospace" font-size="11">'
        f"{''.join(parts)}{note}</svg>"
    )


def size_text(count: int) -> str:
    """A number of bytes as text: 980 B, 1.4 MiB."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{count} B" if units[0] == "B" else f"{value:.{1 if value >= 10 else 2}f} {units[0]}"


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their heads, with each column padded to one width."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], most: int = 200) -> str:
    """A table for a notebook, with at most this many rows."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    shown = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[:most])
    more = f"<p>and {len(rows) - most} more: print() shows all</p>" if len(rows) > most else ""
    return f"<table><thead><tr>{top}</tr></thead><tbody>{shown}</tbody></table>{more}"
