"""What may be wrong with each kind of node of a syntax tree: where in the text, and what stands there instead."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: (r"<", ("<=", ">=")), ast.LtE: (r"<=", ("<", ">")), ast.Gt: (r">", (">=", "<=")),
    ast.GtE: (r">=", (">", "<")), ast.Eq: (r"==", ("!=",)), ast.NotEq: (r"!=", ("==",)), ast.Is: (r"is", ("is not",)),
    ast.IsNot: (r"is\s+not", ("is",)), ast.In: (r"in", ("not in",)), ast.NotIn: (r"not\s+in", ("in",)),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.BitOr: ("|", "&"), ast.BitAnd: ("&", "|"),
}  # fmt: skip
IN_PLACE: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+=", ("-=", "=")), ast.Sub: ("-=", ("+=", "=")), ast.Mult: ("*=", ("/=", "=")),
    ast.Div: ("/=", ("*=", "=")), ast.BitOr: ("|=", ("=",)), ast.BitAnd: ("&=", ("=",)),
}  # fmt: skip
LOGS = ("log", "logger", "warnings")
AXIS_KEYWORDS = ("dim", "axis")
AXIS_CALLS = {
    "sum", "mean", "max", "min", "amax", "amin", "argmax", "argmin", "any", "all", "prod", "norm", "var", "std", "size",
    "softmax", "log_softmax", "logsumexp", "cumsum", "sort", "argsort", "flip", "unsqueeze", "squeeze", "stack", "cat",
    "concatenate", "index_select", "gather", "topk", "unbind", "chunk", "split", "flatten",
}  # fmt: skip
SYMMETRIC = {"max", "min", "maximum", "minimum", "equal", "allclose", "samefile", "gcd"}
PATHS = re.compile(r"path|folder|dir\b|root|file|place|Path|parent", re.IGNORECASE)


@dataclass(frozen=True)
class Change:
    """What may stand instead of a piece of the text."""

    kind: str
    start: int
    end: int
    choices: tuple[str, ...]


class Text:
    """A file's text; turns Python's positions, which count bytes of a line, into its own."""

    def __init__(self, content: str):
        self.content = content
        self._lines = content.splitlines(keepends=True)
        self._is_ascii = content.isascii()
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def _offset(self, line: int, column: int) -> int:
        if self._is_ascii:
            return self._starts[line - 1] + column
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def place(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where a node begins and ends."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.place(node)
        return self.content[start:end]

    def between(self, first: ast.expr, second: ast.expr, pattern: str) -> tuple[int, int] | None:
        """Return where a pattern stands between two nodes."""
        start, end = self.place(first)[1], self.place(second)[0]
        found = re.compile(pattern).search(self.content, start, end)
        return found.span() if found else None


def is_log_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id.strip("_").lower() in LOGS
        and node.func.attr in ("debug", "info", "warning", "warn", "error", "exception", "critical", "log")
    )


def is_exempt(node: ast.AST) -> bool:
    """Whether nothing in a node is for tests of behaviour."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(node, ast.keyword):
        # Like an assertion: it says that two things are of one length, which no input of a user decides.
        return node.arg == "strict" and isinstance(node.value, ast.Constant) and node.value.value is True
    if isinstance(node, ast.If):
        names = {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
        return bool(names & {"TYPE_CHECKING", "__name__"})
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Name) and node.value.id == "Literal"
    if isinstance(node, ast.Expr):
        call = node.value
        return isinstance(call, ast.Constant) or (
            is_log_call(call) and isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "debug"
        )
    return False


def is_negative(node: ast.AST) -> bool:
    """Whether a node is a number with a minus, which is one number."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[ast.expr]:
    """Return those that change what is done, not only how an object is laid out."""
    return [part for part in node.decorator_list if "dataclass" not in ast.dump(part)]


def changes(node: ast.AST, text: Text) -> Iterator[Change]:
    """Yield what may be wrong with a node itself."""
    match node:
        case ast.Compare():
            yield from _comparisons(node, text)
        case ast.BoolOp():
            word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for first, second in pairwise(node.values):
                if found := text.between(first, second, rf"\b{word}\b"):
                    yield Change("boolean operator", *found, (other,))
        case ast.UnaryOp(op=ast.Not()):
            start, _ = text.place(node)
            found = re.compile(r"not\s*").match(text.content, start)
            if found:
                yield Change("dropped not", start, found.end(), ("",))
        case ast.UnaryOp() if is_negative(node):
            yield from _numbers(node, text, "constant")
        case ast.UnaryOp(op=ast.USub()):
            start, _ = text.place(node)
            yield Change("arithmetic", start, start + 1, ("",))
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield Change("dropped call", *text.place(node), ("pass",))
        case ast.If() if _is_guard(node):
            # The test is replaced, not the statement: names and lines stay where they are.
            yield Change("dropped guard", *text.place(node.test), ("False",))
        case ast.Call():
            yield from _axes_of(node, text)
            yield from _swapped_arguments(node, text)
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop", "setdefault") and node.args:
                yield from _keys(node.args[0], text)
        case ast.Subscript():
            if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
                yield from _axis(node.slice, text)
            yield from _keys(node.slice, text)
        case ast.Dict():
            for key in node.keys:
                if key is not None:
                    yield from _keys(key, text)
        case ast.BinOp():
            yield from _arithmetic(node, text)
        case ast.AugAssign():
            yield from _in_place(node, text)
        case ast.Constant():
            yield from _numbers(node, text, "constant")


def defaults(node: ast.expr, text: Text) -> Iterator[Change]:
    """Yield what may be wrong with the default of a parameter."""
    yield from _numbers(node, text, "default")


def swapped_statements(first: ast.stmt, second: ast.stmt, text: Text) -> Iterator[Change]:
    """Yield what changes the order of two neighbours of which neither reads what the other binds.

    One of them is a call, since order that matters without a name being read is that of effects.
    """
    if not any(isinstance(part, ast.Expr) for part in (first, second)):
        return
    if all(_has_effect(part) for part in (first, second)) and not (
        _names(first, ast.Store) & _names(second, ast.Load, ast.Store)
        or _names(second, ast.Store) & _names(first, ast.Load)
    ):
        yield _swapped("swapped statements", first, second, text)


def _swapped(kind: str, first: ast.expr | ast.stmt, second: ast.expr | ast.stmt, text: Text) -> Change:
    (start, first_end), (second_start, end) = text.place(first), text.place(second)
    between = text.content[first_end:second_start]
    return Change(kind, start, end, (f"{text.of(second)}{between}{text.of(first)}",))


def _has_effect(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign)
        and any(isinstance(part, ast.Call) for part in ast.walk(node))
        and not (isinstance(node, ast.Expr) and (is_log_call(node.value) or ".add_argument(" in ast.unparse(node)))
    )


def _names(node: ast.AST, *contexts: type[ast.expr_context]) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, contexts)}


def _comparisons(node: ast.Compare, text: Text) -> Iterator[Change]:
    for (first, second), operator in zip(pairwise([node.left, *node.comparators]), node.ops, strict=True):
        pattern, choices = COMPARISONS[type(operator)]
        if found := text.between(first, second, rf"\b{pattern}\b" if pattern[0].isalpha() else pattern):
            yield Change("comparison", *found, choices)


def _is_guard(node: ast.If) -> bool:
    leaves = isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break) and len(node.body) <= 2
    # A name that the condition binds would be missing afterwards, which any run notices.
    return leaves and not any(isinstance(part, ast.NamedExpr) for part in ast.walk(node.test))


def _axes_of(node: ast.Call, text: Text) -> Iterator[Change]:
    for keyword in node.keywords:
        if keyword.arg in AXIS_KEYWORDS:
            yield from _axis(keyword.value, text)
    if isinstance(node.func, ast.Attribute) and node.func.attr in AXIS_CALLS:
        is_function = isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "F", "np", "numpy")
        place = 1 if is_function else 0
        if len(node.args) > place:
            yield from _axis(node.args[place], text)


def _axis(node: ast.expr, text: Text) -> Iterator[Change]:
    value = _integer(node)
    if value is not None:
        yield Change("axis", *text.place(node), (str({0: 1, 1: 0, -1: 0, -2: -1}.get(value, value - 1)),))


def _integer(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
    return None


def _numbers(node: ast.expr, text: Text, kind: str) -> Iterator[Change]:
    value = _integer(node)
    if value is not None:
        yield Change(kind, *text.place(node), ("1",) if value == 0 else (str(value + 1), str(value - 1)))
        return
    match node:
        case ast.Constant(value=bool() as value):
            yield Change(kind, *text.place(node), (str(not value),))
        case ast.Constant(value=float() as number) | ast.UnaryOp(operand=ast.Constant(value=float() as number)):
            sign = "-" if isinstance(node, ast.UnaryOp) else ""
            yield Change(kind, *text.place(node), (f"{sign}{number * 2!r}" if number else "1.0",))


def _keys(node: ast.expr, text: Text) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
        yield Change("key", *text.place(node), (repr(f"{node.value}_"),))


def _swapped_arguments(node: ast.Call, text: Text) -> Iterator[Change]:
    if isinstance(node.func, ast.Attribute | ast.Name):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        if name in SYMMETRIC:
            return
    values = [keyword.value for keyword in node.keywords if keyword.arg is not None]
    for first, second in [*pairwise(node.args), *pairwise(values)]:
        # What is of another kind is of another type mostly, which any run refuses.
        alike = type(first) is type(second) and not isinstance(first, ast.Starred | ast.GeneratorExp)
        if alike and text.of(first) != text.of(second):
            yield _swapped("swapped arguments", first, second, text)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and not isinstance(node.value, int | float)
    )


def _arithmetic(node: ast.BinOp, text: Text) -> Iterator[Change]:
    """Not of texts, paths and unions of types, which any run that meets them would refuse."""
    if type(node.op) not in ARITHMETIC or _is_text(node.left) or _is_text(node.right):
        return
    if isinstance(node.op, ast.Div) and PATHS.search(text.of(node.left)):
        return
    if isinstance(node.op, ast.BitOr) and re.match(r"[A-Z]|str\b|int\b|float\b|bool\b|bytes\b", text.of(node.right)):
        return
    written, other = ARITHMETIC[type(node.op)]
    if found := text.between(node.left, node.right, re.escape(written)):
        yield Change("arithmetic", *found, (other,))


def _in_place(node: ast.AugAssign, text: Text) -> Iterator[Change]:
    if type(node.op) in IN_PLACE:
        written, choices = IN_PLACE[type(node.op)]
        if found := text.between(node.target, node.value, re.escape(written)):
            yield Change("arithmetic", *found, choices[-1:] if _is_text(node.value) else choices)
