"""LLVM instructions as text, and values converted from one dtype to another in it.

What surrounds an expression or a body (reading words, walking strides, converting dtypes) is such
text: it costs no type inference, and it can tell LLVM what Python cannot say.
"""

from __future__ import annotations

from flowvm.ops.scalar import float8, half

# dtype name -> LLVM's type in memory
IN_MEMORY = {
    "bool": "i8",
    "uint8": "i8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint16": "i16",
    "uint32": "i32",
    "uint64": "i64",
    **half.STORED,
    **float8.STORED,
    "float32": "float",
    "float64": "double",
    "complex64": "{float, float}",
    "complex128": "{double, double}",
}
WIDENED = {  # dtype name -> how a value of it becomes float32
    **dict.fromkeys(half.STORED, half.widened_text),
    **dict.fromkeys(float8.STORED, float8.widened_text),
}
NARROWED = {  # and how a float32 becomes one
    **dict.fromkeys(half.STORED, half.narrowed_text),
    **dict.fromkeys(float8.STORED, float8.narrowed_text),
}
PARTS = {"complex64": "float32", "complex128": "float64"}  # what a complex number is two of
SIZES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8}
SIZES |= {IN_MEMORY[name]: 2 * SIZES[IN_MEMORY[part]] for name, part in PARTS.items()}
_FLOATS = ("float", "double")


class Text:
    """LLVM instructions under construction; `new` names a value."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.late: list[str] = []  # to be put where a loop ends
        self.count = 0

    def put(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def new(self, code: str) -> str:
        self.count += 1
        self.put(f"%v{self.count} = {code}")
        return f"%v{self.count}"

    def word(self, base: str, index: str | int, kind: str = "i64") -> str:
        """The value at word `index` of `base`, a double or pointer if `kind` says so."""
        place = self.new(f"getelementptr i64, ptr {base}, i64 {index}")
        return self.new(f"load {kind}, ptr {place}")

    def __str__(self) -> str:
        return "\n".join(self.lines)


def converted(text: Text, value: str, source: str, target: str) -> str:
    """`value` as stored for dtype `source`, as stored for `target`; any nonzero byte is true.

    A complex number that becomes a real one is its real part; it is true if either part is not 0.
    """
    if source == target and source != "bool":
        return value
    if source in PARTS:
        return _from_complex(text, value, source, target)
    if target in PARTS:
        part, kind = PARTS[target], IN_MEMORY[target]
        number = f"{IN_MEMORY[part]} {converted(text, value, source, part)}"
        return text.new(f"insertvalue {kind} zeroinitializer, {number}, 0")
    if source in WIDENED:
        value = WIDENED[source](text.new, value, source)
        return converted(text, value, "float32", target)
    if target in NARROWED:
        number = converted(text, value, source, "float32")
        return NARROWED[target](text.new, number, target)
    a, b = IN_MEMORY[source], IN_MEMORY[target]
    if target == "bool":
        zero, test = ("0.0", "fcmp une") if a in _FLOATS else ("0", "icmp ne")
        return text.new(f"zext i1 {text.new(f'{test} {a} {value}, {zero}')} to i8")
    if source == "bool":
        value = text.new(f"zext i1 {text.new(f'icmp ne i8 {value}, 0')} to i8")
    if a in _FLOATS and b in _FLOATS:
        wider = SIZES[b] > SIZES[a]
        return text.new(f"{'fpext' if wider else 'fptrunc'} {a} {value} to {b}")
    if a in _FLOATS:
        if target == "uint64":
            return _large(text, value, a)
        if target == "uint32":
            return text.new(f"trunc i64 {text.new(f'fptosi {a} {value} to i64')} to i32")
        if b == "i64":
            return text.new(f"fptosi {a} {value} to i64")
        whole = text.new(f"fptosi {a} {value} to i32")
        return whole if b == "i32" else text.new(f"trunc i32 {whole} to {b}")
    unsigned = source == "bool" or source.startswith("uint")
    if b in _FLOATS:
        return text.new(f"{'ui' if unsigned else 'si'}tofp {a} {value} to {b}")
    if SIZES[a] == SIZES[b]:
        return value
    if SIZES[a] > SIZES[b]:
        return text.new(f"trunc {a} {value} to {b}")
    return text.new(f"{'zext' if unsigned else 'sext'} {a} {value} to {b}")


def _large(text: Text, value: str, kind: str) -> str:
    """Convert a float to uint64.

    From 2**63 on the highest bit is set apart.  Numbers below 0 get the bits of int64, as C
    compilers do.
    """
    half = "0x43E0000000000000"  # 2**63
    above = text.new(f"fcmp oge {kind} {value}, {half}")
    rest = text.new(f"select i1 {above}, {kind} {half}, {kind} 0.0")
    low = text.new(f"fptosi {kind} {text.new(f'fsub {kind} {value}, {rest}')} to i64")
    high = text.new(f"select i1 {above}, i64 -9223372036854775808, i64 0")
    return text.new(f"xor i64 {low}, {high}")


def _from_complex(text: Text, value: str, source: str, target: str) -> str:
    kind, part = IN_MEMORY[source], PARTS[source]
    real = text.new(f"extractvalue {kind} {value}, 0")
    if target != "bool" and target not in PARTS:
        return converted(text, real, part, target)
    imaginary = text.new(f"extractvalue {kind} {value}, 1")
    if target == "bool":
        either = [converted(text, number, part, "bool") for number in (real, imaginary)]
        return text.new(f"or i8 {either[0]}, {either[1]}")
    to = IN_MEMORY[PARTS[target]]
    first = f"{to} {converted(text, real, part, PARTS[target])}"
    second = f"{to} {converted(text, imaginary, part, PARTS[target])}"
    whole = text.new(f"insertvalue {IN_MEMORY[target]} zeroinitializer, {first}, 0")
    return text.new(f"insertvalue {IN_MEMORY[target]} {whole}, {second}, 1")
