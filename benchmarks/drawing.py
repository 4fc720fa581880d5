"""Mistakes of one place in a file, found in its syntax tree and drawn with a seed.

Not changed is what no test of behaviour should see: docstrings, annotations, errors' and logs' texts, assertions, of
which zip's strict=True is one, and f-strings, whose positions Python 3.11 does not know.
"""

import ast
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
EXEMPT = ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr
TEXTS = ast.JoinedStr | ast.List | ast.Tuple
LOGS = ("log", "logger", "warnings")
SYMMETRIC = ("max", "min", "maximum", "minimum", "equal", "allclose", "samefile", "gcd")
NOT_NUMBERS = re.compile(r".*(path|folder|dir\b|root|file|place|parent).* / |.* \| ([A-Z]|(str|int|float|bool)\b)")
"""paths that are joined, and unions of types"""
Change = tuple[str, ast.AST, ast.AST, str | None]
"""the kind, the first and last node of a place, and what stands there instead; None: the two change places"""
Span = tuple[int, int]


@dataclass(frozen=True)
class Mistake:
    """A place in a file, and what stands there instead."""

    file: str
    kind: str
    text: bytes
    start: int
    end: int
    instead: bytes
    span: Span
    """the first and last of the lines that a test must run to meet it"""

    @property
    def content(self) -> str:
        """The whole file with the mistake."""
        return (self.text[: self.start] + self.instead + self.text[self.end :]).decode()

    @property
    def line(self) -> int:
        return self.text.count(b"\n", 0, self.start) + 1

    @property
    def lines(self) -> tuple[str, str]:
        """The lines that it touches, each time as one line: before and after."""
        head, tail = self.text.rfind(b"\n", 0, self.start) + 1, (self.text + b"\n").find(b"\n", self.end)
        changed = self.text[head : self.start] + self.instead + self.text[self.end : tail]
        before, after = (" ".join(each.decode().split()) for each in (self.text[head:tail], changed))
        return before, after

    @property
    def key(self) -> str:
        return f"{self.file}:{self.line}: {' -> '.join(self.lines)}"


def package_of(file: str) -> str:
    """Return what a file is counted with: a folder of nlu/, the files directly in it, or all launchers."""
    top, *others = file.split("/")
    return others[0] if top == "nlu" and len(others) > 1 else top


def mistakes_in(file: str, content: str) -> list[list[Mistake]]:
    """Return what may be wrong in a file: a list for each place, in the order of the text."""
    text = content.encode()
    starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))]

    def place(node: ast.AST) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    found: dict[tuple[int, int], list[Mistake]] = {}
    for (kind, first, last, new), span in changes_below(ast.parse(content), (1, 1)):
        (start, first_end), (second, end) = place(first), place(last)
        instead = text[second:end] + text[first_end:second] + text[start:first_end] if new is None else new.encode()
        found.setdefault((start, end), []).append(Mistake(file, kind, text, start, end, instead, span))
    return [found[each] for each in sorted(found)]


def draw(sources: Mapping[str, str], count: int, seed: int) -> list[Mistake]:
    """Return that many mistakes, at different places: a function of the seed and the files.

    A package is drawn by its number of lines, then a place in it, then what is wrong there.
    """
    pools: dict[str, list[list[Mistake]]] = {}
    lines: dict[str, int] = {}
    for file in sorted(sources):
        pools.setdefault(package_of(file), []).extend(mistakes_in(file, sources[file]))
        lines[package_of(file)] = lines.get(package_of(file), 0) + sources[file].count("\n")
    generator, drawn = random.Random(seed), []
    while len(drawn) < count and any(pools.values()):
        left = [package for package in pools if pools[package]]
        (package,) = generator.choices(left, [lines[name] for name in left])
        mistake = generator.choice(pools[package].pop(generator.randrange(len(pools[package]))))
        # A mistake that is a syntax error would be found by any import, so it says nothing of the tests.
        if is_another_program(mistake.content, sources[mistake.file]):
            drawn.append(mistake)
    return drawn


def is_another_program(content: str, right: str) -> bool:
    try:
        return ast.dump(ast.parse(content)) != ast.dump(ast.parse(right))
    except SyntaxError:
        return False


def changes_below(node: ast.AST, span: Span) -> Iterator[tuple[Change, Span]]:
    """Yield what may be wrong with a node and all in it, with the lines that must run."""
    if is_exempt(node) or is_log(node):
        return
    body = getattr(node, "body", None)
    if isinstance(node, ast.stmt):
        span = node.lineno, max(node.lineno, body[0].lineno - 1 if body else node.end_lineno or 0)
    yield from ((change, span) for change in changes(node))
    for first, second in pairwise(body if isinstance(body, list) else []):
        if is_effect(first) and is_effect(second):
            yield ("swapped statements", first, second, None), (first.lineno, second.end_lineno or 0)
    if number_of(node) is not None:
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        # A default is met by those who run the function.
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            yield from changes_below(default, (node.body[0].lineno, node.end_lineno or 0))
    is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    annotation = getattr(node, "annotation", None)
    for each in node.body if is_named else ast.iter_child_nodes(node):
        if each is not annotation:
            yield from changes_below(each, span)


def is_exempt(node: ast.AST) -> bool:
    match node:
        case ast.keyword(arg="strict", value=ast.Constant(value=True)) | ast.Expr(value=ast.Constant()):
            return True
        case ast.Subscript(value=ast.Name(id="Literal")):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="debug"))):
            return is_log(node.value)
        case ast.If():
            return "TYPE_CHECKING" in ast.dump(node.test) or "__name__" in ast.dump(node.test)
    return isinstance(node, EXEMPT)


def is_log(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name.strip("_").lower() in LOGS
    return False


def is_effect(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not is_log(node.value)


def changes(node: ast.AST) -> Iterator[Change]:
    """Yield what may be wrong with a node itself."""

    def becomes(kind: str, new: ast.AST) -> Change:
        return kind, node, node, f"({ast.unparse(new)})"

    match node:
        case ast.Compare(left=left, ops=operators, comparators=others):
            for place, operator in enumerate(operators):
                for other in COMPARISONS[type(operator)]:
                    changed = [*operators[:place], other(), *operators[place + 1 :]]
                    yield becomes("comparison", ast.Compare(left, changed, others))
        case ast.BoolOp(op=operator, values=values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield becomes("boolean operator", ast.BoolOp(other, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield becomes("dropped not", operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand) if number_of(node) is None:
            yield becomes("arithmetic", operand)
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "dropped call", node, node, "pass"
        case ast.If(test=test, body=[*_, ast.Raise() | ast.Return() | ast.Continue() | ast.Break()]):
            # A name that the condition binds would be missing afterwards, which any run notices.
            if ":=" not in ast.unparse(test):
                yield "dropped guard", test, test, "False"
        case ast.Call(func=function, args=arguments, keywords=keywords):
            name = ast.unparse(function).rpartition(".")[2]
            named = [each.value for each in keywords if each.arg]
            for one, two in [*pairwise(arguments), *pairwise(named)] if name not in SYMMETRIC else []:
                # What is of another kind is of another type mostly, which any run refuses.
                if type(one) is type(two):
                    yield "swapped arguments", one, two, None
            if name in ("get", "pop", "setdefault"):
                yield from keys(arguments[:1])
        case ast.Subscript(slice=key):
            yield from keys([key])
        case ast.Dict(keys=names):
            yield from keys(names)
        case ast.BinOp(left=left, op=operator, right=right) if is_arithmetic(node):
            yield becomes("arithmetic", ast.BinOp(left, ARITHMETIC[type(operator)](), right))
        case ast.AugAssign(target=target, op=operator, value=value) if type(operator) in ARITHMETIC:
            other = ast.AugAssign(target, ARITHMETIC[type(operator)](), value)
            yield "arithmetic", node, node, ast.unparse(other)
            yield "arithmetic", node, node, f"{ast.unparse(target)} = {ast.unparse(value)}"
        case ast.Constant() | ast.UnaryOp():
            for other in other_numbers(number_of(node)):
                yield "constant", node, node, repr(other)


def number_of(node: ast.AST) -> float | None:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    return None


def other_numbers(number: float | None) -> list[float]:
    match number:
        case bool():
            return [not number]
        case int():
            return [number + 1, number - 1] if number else [1]
        case float():
            return [number * 2 or 1.0]
    return []


def keys(nodes: list[ast.expr | None]) -> Iterator[Change]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "key", node, node, repr(f"{node.value}_")


def is_arithmetic(node: ast.BinOp) -> bool:
    """Not of texts, paths and unions of types, which any run that meets them would refuse."""
    for each in (node.left, node.right):
        if isinstance(each, TEXTS) or isinstance(getattr(each, "value", None), str):
            return False
    return type(node.op) in ARITHMETIC and not NOT_NUMBERS.match(ast.unparse(node))
