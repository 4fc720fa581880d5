"""A prompt in the terminal that predicts each text that is typed."""

# Imported for its effect: arrow keys recall earlier lines.
import readline  # noqa: F401
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from nlu.config.command_keys import Serve
from nlu.config.errors import UserError
from nlu.config.sentences import counted
from nlu.inference.cells import text_of
from nlu.inference.input_rows import alternatives_of
from nlu.inference.loaded import Loaded
from nlu.metrics.kinds import SIMILARITY, Cell, SpanCell, SpanKind
from nlu.runs import logs
from nlu.serving.named import named

BAR_CELLS = 30
SHOWN_LABELS = 10
SPAN_STYLES = (
    "black on cyan",
    "black on yellow",
    "black on green",
    "black on magenta",
    "white on blue",
    "white on red",
)


def run_prompt(config: Serve) -> int:
    """Read rows until the input ends; returns the exit status."""
    logs.set_up(None, 0)
    (run,) = named(config).values()
    loaded = Loaded.of(run, checkpoint=config.checkpoint, device=config.device, batch_size=config.batch_size)
    console = Console(highlight=False, markup=False, emoji=False)
    # A typed line is a text; a list of tokens cannot be typed.
    roles = next(roles for roles in alternatives_of(loaded.trained) if roles != ("tokens",))
    if sys.stdin.isatty():
        run_dir = loaded.trained.located.run_dir
        console.print(f"{run_dir}: type {' and '.join(roles)}; arrow keys recall earlier lines, Ctrl-D ends")
    has_scores = loaded.trained.kind.has_probabilities
    for row in _rows(roles):
        try:
            (found,) = loaded.predict([row], scores=has_scores)
        except UserError as error:
            console.print(" ".join(error.problems), style="red")
            continue
        for line in _shown(loaded, row, found):
            console.print(line)
    return 0


def _rows(roles: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield rows, typed field by field; an empty line starts the row again."""
    is_asked = sys.stdin.isatty()
    row: dict[str, str] = {}
    try:
        while True:
            row = {}
            for role in roles:
                line = _line(f"{role}> " if is_asked else "")
                if not line.strip():
                    break
                row[role] = line
            if len(row) == len(roles):
                yield row
    except EOFError:
        # End the line of the prompt.
        print(end="\n" if is_asked else "")
        if row and len(row) < len(roles):
            print(f"the last row lacks {roles[len(row)]}, and is skipped", file=sys.stderr)


def _line(prompt: str) -> str:
    """Return a typed line; "" for a line that is not UTF-8. Raises EOFError at the end."""
    try:
        line = input(prompt)
        # Python may decode invalid bytes as halves of surrogate pairs.
        line.encode()
    except UnicodeError:
        print("a line that is not UTF-8 is skipped", file=sys.stderr)
        return ""
    return line


def _shown(loaded: Loaded, row: dict[str, str], found: dict[str, Cell]) -> Iterator[Text]:
    """Yield the lines that show a prediction."""
    prediction = found[next(iter(loaded.trained.kind.columns))]
    if isinstance(loaded.trained.kind, SpanKind):
        assert isinstance(prediction, list), "a list of spans"
        yield _coloured(row["text"], prediction, [tag[2:] for tag in loaded.labels if tag.startswith("B-")])
        for span in prediction:
            yield Text(f"  {span['type']:<16}{span['text']}")
        if not prediction:
            yield Text("  no span", style="dim")
        return
    shown = text_of(prediction, "|", "texts") or "no label"
    similarity = f"  cosine {found[SIMILARITY]:.4f}" if SIMILARITY in found else ""
    yield Text(f"{shown}{similarity}", style="bold")
    columns = {label: found.get(f"probability_{label}") for label in loaded.labels}
    scores = {label: value for label, value in columns.items() if isinstance(value, float)}
    ranked = sorted(scores.items(), key=lambda pair: -pair[1])
    for label, probability in ranked[:SHOWN_LABELS]:
        bar = "█" * round(probability * BAR_CELLS)
        yield Text(f"  {bar:<{BAR_CELLS}} {probability:.4f} {label}", style="" if label == ranked[0][0] else "dim")
    if len(ranked) > SHOWN_LABELS:
        yield Text(f"  and {counted(len(ranked) - SHOWN_LABELS, 'more label')}", style="dim")


def _coloured(text: str, spans: list[SpanCell], types: list[str]) -> Text:
    shown = Text(text)
    for span in spans:
        style = SPAN_STYLES[types.index(span["type"]) % len(SPAN_STYLES)]
        shown.stylize(style, span["first"], span["last"] + 1)
    return shown
