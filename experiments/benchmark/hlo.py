"""What an optimized TPU program does, from its text.

XLA's TPU compiler schedules every operation for its target and writes the result into
the program: `estimated_cycles` of each operation, and the layout of each array, with
the tiles that its last axes are padded to. Both are available without hardware.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)
# Kinds of operations; a fusion has the first kind that one of its operations has.
KINDS = {
    "convolution, dot": ("convolution", "dot"),
    "sort": ("sort",),
    "gather, scatter": ("gather", "scatter"),
    "random": ("rng", "rng-bit-generator"),
    "reduce": ("reduce", "reduce-window", "select-and-scatter"),
    "slice, pad": ("dynamic-slice", "dynamic-update-slice", "slice", "pad"),
    "broadcast": ("broadcast",),
    "copy, reshape": ("copy", "transpose", "reshape", "concatenate", "bitcast-convert"),
}
COLLECTIVE, ELEMENTWISE = "collective", "elementwise"
# Operations whose cycles are those of the computations that they call.
_CALLS = ("while", "conditional", "call")
_TYPES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
_TYPES |= {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8}

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*->.*\{\s*$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|\s)([a-z][a-z0-9\-]*)\(")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_TILE = re.compile(r"T\((\d+),(\d+)\)")
_NAMES = re.compile(
    r"\b(calls|body|condition|to_apply|true_computation|false_computation"
    r"|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)


class Operation(NamedTuple):
    """One line of a program.

    Attributes:
      name: unique name.
      opcode: such as `fusion`.
      result: type and layout, as text.
      cycles: estimated by the compiler; 0 for operations that it does not schedule.
      calls: names of the computations that it calls, by attribute.
      source: name of the operation in JAX.
      line: everything.
    """

    name: str
    opcode: str
    result: str
    cycles: int
    calls: dict[str, list[str]]
    source: str
    line: str


class Summary(NamedTuple):
    """What a program does in one pass of its outermost loop, which is one step.

    Inner loops of known length count fully, others once. Of a conditional the mean of
    the branches counts.

    Attributes:
      cycles: by kind of operation.
      per_call: cycles outside of the outermost loop, once per call.
      collectives: `(number, bytes)` per step by kind, of conditionals the mean.
      open_loops: number of loops of unknown length, without the outermost.
      without_estimate: number of sorts and of fusions (mostly gathers) for which the
        compiler gives no cycles.
      grouped: number of convolutions with groups.
      padding: bytes of all results as they are stored, divided by those of their
        elements.
      worst: the costliest operations: `(share of the cycles, kind, result, source)`.
    """

    cycles: dict[str, float]
    per_call: float
    collectives: dict[str, tuple[float, float]]
    open_loops: int
    without_estimate: dict[str, int]
    grouped: int
    padding: float
    worst: list[tuple[float, str, str, str]]

    @property
    def total(self) -> float:
        """Cycles of a step."""
        return sum(self.cycles.values())


def parse(program: str) -> tuple[dict[str, list[Operation]], str]:
    """Return the operations of each computation, and the name of the entry."""
    computations: dict[str, list[Operation]] = {}
    entry = current = ""
    for line in program.splitlines():
        if line and not line[0].isspace():
            if found := _COMPUTATION.match(line):
                current = found[2]
                computations[current] = []
                entry = current if found[1] else entry
            continue
        found = _OPERATION.match(line)
        opcode = _OPCODE.search(found[2]) if found else None
        if found is None or opcode is None:
            continue
        text = found[2]
        calls = {
            attribute: re.findall(r"[\w.\-]+", names)
            for attribute, names in _NAMES.findall(text)
        }
        cycles = re.search(r'"estimated_cycles":"(\d+)"', text)
        source = re.search(r'op_name="([^"]*)"', text)
        computations[current].append(
            Operation(
                found[1],
                opcode[1],
                text[: opcode.start()],
                int(cycles[1]) if cycles else 0,
                calls,
                source[1] if source else "",
                text,
            )
        )
    return computations, entry


def summarize(program: str, worst: int = 5) -> Summary:
    """Summarize an optimized program.

    Args:
      program: `Compiled.as_text()`.
      worst: number of operations in `Summary.worst`.
    """
    computations, entry = parse(program)
    steps = _body_of_steps(computations, entry)
    cycles: Counter[str] = Counter()
    costly: list[tuple[float, str, str, str]] = []
    collectives: dict[str, tuple[float, float]] = {}
    without_estimate: Counter[str] = Counter()
    stored = elements = 0
    open_loops = 0
    for operation, weight in _executed(computations, steps, 1.0):
        if operation.opcode == "while" and _trips(computations, operation) is None:
            open_loops += 1
        if operation.opcode in _CALLS:
            continue
        kind = kind_of(operation, computations)
        cycles[kind] += weight * operation.cycles
        costly.append(
            (weight * operation.cycles, kind, operation.result, operation.source)
        )
        if not operation.cycles and operation.opcode in ("sort", "fusion"):
            without_estimate[operation.opcode] += 1
        if operation.cycles:
            sizes = array_bytes(operation.result)
            elements, stored = elements + sizes[0], stored + sizes[1]
        name = _collective(operation)
        if name:
            number, size = collectives.get(name, (0, 0))
            size += weight * array_bytes(operation.result)[0]
            collectives[name] = (number + weight, size)
    total = max(sum(cycles.values()), 1.0)
    costly.sort(key=lambda each: -each[0])
    groups = re.findall(r"(?:feature|batch)_group_count=(\d+)", program)
    return Summary(
        cycles={kind: n for kind, n in cycles.most_common() if n},
        per_call=sum(operation.cycles for operation in computations[entry]),
        collectives=collectives,
        open_loops=open_loops,
        without_estimate=dict(without_estimate),
        grouped=sum(int(number) > 1 for number in groups),
        padding=stored / max(elements, 1),
        worst=[(n / total, *rest) for n, *rest in costly[:worst]],
    )


def _executed(
    computations: dict[str, list[Operation]], name: str, weight: float
) -> Iterator[tuple[Operation, float]]:
    """Yield the operations that run, and how often."""
    for operation in computations.get(name, ()):
        yield operation, weight
        if operation.opcode not in _CALLS:
            continue
        often = weight
        if operation.opcode == "while":
            often *= _trips(computations, operation) or 1
        called = [each for names in operation.calls.values() for each in names]
        if operation.opcode == "conditional":
            often /= max(len(called), 1)
        for each in called:
            yield from _executed(computations, each, often)


def _body_of_steps(computations: dict[str, list[Operation]], entry: str) -> str:
    """Return the body of the outermost loop of unknown length; else the entry."""
    for operation in computations[entry]:
        if operation.opcode == "while" and _trips(computations, operation) is None:
            return operation.calls["body"][0]
    return entry


def _trips(
    computations: dict[str, list[Operation]], operation: Operation
) -> int | None:
    """Return the number of iterations of a loop that counts to a constant, else None.

    JAX's loops of known length count from 0, in steps of 1.
    """
    condition = computations.get(operation.calls["condition"][0], [])
    if not condition or condition[-1].opcode != "compare":
        return None
    bound = re.search(r"compare\(%?[\w.\-]+, %?([\w.\-]+)\)", condition[-1].line)
    if bound is None or "direction=LT" not in condition[-1].line:
        return None
    for each in condition:
        if each.name == bound[1] and each.opcode == "constant":
            return int(re.search(r"constant\((-?\d+)\)", each.line)[1])
    return None


def kind_of(operation: Operation, computations: dict[str, list[Operation]]) -> str:
    """Return the kind of an operation; that of a fusion is what dominates it."""
    if _collective(operation):
        return COLLECTIVE
    opcodes = {operation.opcode}
    for names in operation.calls.values():
        for name in names:
            opcodes |= _opcodes(computations, name)
    for kind, members in KINDS.items():
        if not opcodes.isdisjoint(members):
            return kind
    if operation.opcode in ("fusion", "custom-call") or operation.cycles:
        return ELEMENTWISE
    return operation.opcode


def _opcodes(computations: dict[str, list[Operation]], name: str) -> set[str]:
    found = set()
    for operation in computations.get(name, ()):
        found.add(operation.opcode)
        for names in operation.calls.values():
            for each in names:
                found |= _opcodes(computations, each)
    return found


def _collective(operation: Operation) -> str | None:
    """Return the kind of a collective; the end of an asynchronous one is not one."""
    opcode = operation.opcode.removesuffix("-start")
    return opcode if opcode in COLLECTIVES else None


def array_bytes(result: str) -> tuple[int, int]:
    """Return the bytes of the elements of a result, and of their tiles.

    Args:
      result: type and layout, such as `f32[40,32]{1,0:T(8,128)}`; a tuple has several.
    """
    elements = stored = 0
    for dtype, sizes, order, layout in _ARRAY.findall(result):
        shape = [int(size) for size in sizes.split(",") if size]
        width = _TYPES.get(dtype, 4)
        elements += width * math.prod(shape)
        tile = _TILE.search(layout)
        if tile and order:
            minor, *others = (int(axis) for axis in order.split(","))
            shape[minor] = _round_up(shape[minor], int(tile[2]))
            if others:
                shape[others[0]] = _round_up(shape[others[0]], int(tile[1]))
        stored += width * math.prod(shape)
    return elements, stored


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
