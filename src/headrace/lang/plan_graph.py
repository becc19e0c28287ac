"""A picture of a plan as SVG: operations from top to bottom, blocks as frames, call-outs to Python marked.

Layout: a `Box` knows its size; a region is a column of boxes, the blocks of one operation stand beside one another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from headrace.errors import truncate
from headrace.lang.plan import (
    CallOp,
    ExprOp,
    ForkOp,
    ForOp,
    GenOp,
    IfOp,
    Lit,
    NewStateOp,
    Operand,
    Plan,
    PlanOp,
    Region,
    RequireOp,
    RoleBeginOp,
    RoleEndOp,
    SelectOp,
    TextOp,
    WhileOp,
    regions,
)

__all__ = ["plan_graph"]

_LINE, _PAD, _GAP, _LETTER = 18, 10, 14, 7.2
_FILLS = {"gen": "#dbeafe", "select": "#dcfce7", "call": "#fef3c7", "fork": "#f5f3ff", "block": "#fafafa"}
_LONGEST = 60


@dataclass(slots=True)
class Box:
    title: str
    lines: list[str]
    fill: str
    parts: list[tuple[str, list[Box]]] = field(default_factory=list)
    """Blocks: a name and the boxes inside."""
    wide: float = 0
    high: float = 0

    def measure(self) -> None:
        texts = [self.title, *self.lines]
        self.wide = max(len(text) for text in texts) * _LETTER + 2 * _PAD
        self.high = len(texts) * _LINE + 2 * _PAD
        if self.parts:
            sizes = [_column(name, boxes) for name, boxes in self.parts]
            self.wide = max(self.wide, sum(wide + _PAD for wide, _ in sizes) + _PAD)
            self.high += max(high for _, high in sizes) + _PAD


def plan_graph(plan: Plan) -> str:
    """The plan as an SVG document."""
    inputs = [f"{param.name}: {param.type}" for param in plan.inputs] or ["no inputs"]
    boxes = [
        Box(f"program {plan.name}", [truncate(line, _LONGEST) for line in inputs], "#e5e7eb"),
        *_boxes(plan.body),
        Box("outputs", [truncate(name, _LONGEST) for name in plan.outputs] or ["none"], "#e5e7eb"),
    ]
    wide, high = _column("", boxes)
    out: list[str] = []
    _draw_column(boxes, _PAD, _PAD, out)
    size = f'width="{wide + 2 * _PAD:.0f}" height="{high + 2 * _PAD:.0f}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *out, "</svg>", ""])


def _boxes(region: Region) -> list[Box]:
    """Operations on messages and texts are joined to one box."""
    found: list[Box] = []
    texts: list[str] = []
    for op in region.ops:
        line = _text_line(op)
        if line is not None:
            texts += [line] if line else []
            continue
        if texts:
            found.append(Box("text", texts, "#ffffff"))
            texts = []
        found.append(_box(op))
    return [*found, Box("text", texts, "#ffffff")] if texts else found


def _text_line(op: PlanOp) -> str | None:
    """A line for what only appends text; None for other operations."""
    if isinstance(op, RoleBeginOp):
        return f"<{op.role}>"
    if isinstance(op, (RoleEndOp, NewStateOp)):
        return ""
    if isinstance(op, TextOp):
        return truncate(" ".join(_shown(part) for part in op.parts), _LONGEST)
    return None


def _shown(operand: Operand) -> str:
    if isinstance(operand, Lit):
        return truncate(repr(operand.value), 40)
    return f"[{operand.id}]"


def _box(op: PlanOp) -> Box:
    title, lines, fill = _described(op)
    parts = [(name, _boxes(region)) for name, region in regions(op).items() if region.ops]
    return Box(title, [truncate(line, _LONGEST) for line in [*lines, op.at] if line], _FILLS[fill], parts)


def _described(op: PlanOp) -> tuple[str, list[str], str]:
    if isinstance(op, GenOp):
        form = ", ".join(op.constraint) if op.constraint else "free text"
        return (
            f"gen {truncate(op.name, 40)} → [{op.out}]",
            [f"{op.type}, {form}", f"≤ {op.sampling.get('max_tokens')} tokens"],
            "gen",
        )
    if isinstance(op, SelectOp):
        return f"select {truncate(op.name, 40)} → [{op.out}]", [f"{op.method} of {_shown(op.choices)}"], "select"
    if isinstance(op, CallOp):
        given = ", ".join(f"{name}={_shown(one)}" for name, one in op.args.items())
        return f"call-out to Python: {truncate(op.tool, 40)} → [{op.out}]", [given], "call"
    return _described_control(op)


def _described_control(op: PlanOp) -> tuple[str, list[str], str]:
    if isinstance(op, ForkOp):
        return f"fork over {_shown(op.over)}{_numbers(op.outs)}", [f"≤ {op.max} branches at once"], "fork"
    if isinstance(op, ForOp):
        return f"for each of {_shown(op.over)}{_numbers(op.outs)}", [f"≤ {op.max} passes"], "block"
    if isinstance(op, WhileOp):
        return f"while{_numbers(op.outs)}", [f"≤ {op.max} passes"], "block"
    if isinstance(op, IfOp):
        return f"if {_shown(op.cond)}{_numbers(op.outs)}", [], "block"
    if isinstance(op, RequireOp):
        return f"require {_shown(op.cond)}", [op.message], "block"
    assert isinstance(op, ExprOp)
    return f"{op.fn} → [{op.out}]", [" ".join(_shown(one) for one in op.args)], "block"


def _numbers(outs: list[int]) -> str:
    """The values that an operation defines."""
    return truncate(
        "".join(f" → [{number}]" if not at else f", [{number}]" for at, number in enumerate(outs)), _LONGEST
    )


def _column(name: str, boxes: list[Box]) -> tuple[float, float]:
    for box in boxes:
        box.measure()
    wide = max([box.wide for box in boxes] + [len(name) * _LETTER + _PAD])
    return wide, sum(box.high for box in boxes) + _GAP * max(0, len(boxes) - 1) + (_LINE if name else 0)


def _draw_column(boxes: list[Box], x: float, y: float, out: list[str]) -> None:
    for index, box in enumerate(boxes):
        if index:
            middle = x + 20
            out.append(f'<line x1="{middle}" y1="{y - _GAP}" x2="{middle}" y2="{y}" stroke="#9ca3af"/>')
        _draw(box, x, y, out)
        y += box.high + _GAP


def _draw(box: Box, x: float, y: float, out: list[str]) -> None:
    out.append(
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{box.wide:.0f}" height="{box.high:.0f}" rx="4" fill="{box.fill}" '
        'stroke="#6b7280"/>'
    )
    line = y + _PAD + 12
    for index, text in enumerate([box.title, *box.lines]):
        weight = ' font-weight="bold"' if index == 0 else ""
        out.append(f'<text x="{x + _PAD:.0f}" y="{line:.0f}"{weight}>{_xml(text)}</text>')
        line += _LINE
    across = x + _PAD
    for name, boxes in box.parts:
        out.append(f'<text x="{across:.0f}" y="{line:.0f}" fill="#6b7280">{_xml(name)}</text>')
        _draw_column(boxes, across, line + _LINE - 12, out)
        across += _column(name, boxes)[0] + _PAD


def _xml(text: str) -> str:
    return escape("".join(letter if letter.isprintable() else "·" for letter in text))
