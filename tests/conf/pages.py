"""The commands that README and docs/ show, and files of a few rows that they can run on."""

import json
import re
from itertools import cycle
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLAIN_LINE = re.compile(r"^    (?:PYTHONPATH=\S+ )?(python -m nlu\..*)$", re.MULTILINE)
ROWS = 40
WORDS = ("broken late awful", "good fast lovely")
TOPICS = ("news_agriculture", "news_car")


def commands_of(page: Path) -> list[str]:
    """Return the commands of a page's blocks for bash, continued lines joined, comments left out."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [re.split(r"\s+#\s", line)[0].strip() for line in lines]
    return [command for command in commands if "-m nlu." in command and not command.startswith("#")]


def commands_on_runs_of(page: Path) -> list[str]:
    """Return the commands of all other blocks: they name runs and folders that only their reader has."""
    return [re.split(r"\s+#\s", line)[0].strip() for line in PLAIN_LINE.findall(page.read_text(encoding="utf-8"))]


def write_files(folder: Path) -> None:
    """Write every file that a page names, and small sets in the place of the named ones, which are looked for here."""
    texts = [f"{words} {number}" for number, words in zip(range(ROWS), cycle(WORDS), strict=False)]
    numbers = [number % 2 for number in range(ROWS)]
    stars = [1 + 4 * number for number in numbers]

    def write(name: str, lines: list[str]) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def write_objects(name: str, objects: list[dict[str, object]]) -> None:
        write(name, [json.dumps(item) for item in objects])

    for name in ("shop.csv", "new.csv", "test.csv"):
        write(name, ["review,stars", *(f"{text},{star}" for text, star in zip(texts, stars, strict=True))])
    write("texts.csv", ["text", *texts])
    write("more.csv", ["text,label", *(f"{text},{star}" for text, star in zip(texts, stars, strict=True))])
    write("scores.csv", ["review,score", *(f"{text},{number / 7}" for number, text in enumerate(texts))])
    pairs = list(zip(texts, reversed(texts), numbers, strict=True))
    write(
        "reports.csv", ["text,label", *(f"{f'{text} ' * 60},{star}" for text, star in zip(texts, stars, strict=True))]
    )
    write("intents.csv", ["text,label", *(f"please {label},{label}" for label in ("book", "play", "oos") * 8)])
    write("questions.csv", ["first,second,same", *(f"{first},{second},{same}" for first, second, same in pairs)])
    ranked = [{"text_a": texts[n], "candidates": texts[n : n + 3], "label": [1, 0, 0]} for n in range(ROWS - 3)]
    write_objects("candidates.jsonl", [dict(row) for row in ranked])
    write_objects("scored.jsonl", [{"text_a": a, "text_b": b, "score": n - 0.5} for a, b, n in pairs])
    write("answers.csv", ["question,answer", *(f"{first},{second}" for first, second, _ in pairs)])
    spans = [{"text": f"Ann is {number}", "spans": {"person": {"Ann": [[0, 2]]}}} for number in range(ROWS)]
    write_objects("spans.jsonl", [dict(item) for item in spans])
    write_objects("new.jsonl", [{"text": item["text"]} for item in spans])
    taught = [[1.5 - 3 * number, 0.5] for number in numbers]
    write_objects("teacher.jsonl", [{"text": text, "logits": z} for text, z in zip(texts, taught, strict=True)])
    shop = zip(texts, stars, taught, strict=True)
    write_objects("taught.jsonl", [{"review": text, "stars": star, "logits": z} for text, star, z in shop])
    write("labels.txt", ["1", "5"])
    topics = [["money"], ["sport"], ["money", "sport"], []]
    write_objects("topics.jsonl", [{"text": text, "topics": topics[n % 4]} for n, text in enumerate(texts)])
    write("conll.txt", [line for n in range(ROWS) for line in ("Ann B-person", "is O", f"{n} O", "")])
    for name, texts_of_label in (("good.txt", texts[1::2]), ("bad.txt", texts[::2])):
        write(name, texts_of_label)
    write("corpus.txt", [line for number, text in enumerate(texts) for line in (text, *([""] * (number % 3 == 2)))])
    for name in ("law.txt", "news.txt"):
        write(name, texts[::3])
    write("vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *" ".join(WORDS).split()])
    for half in (0, 1):
        rows = list(zip(texts, numbers, strict=True))
        write(f"split{half}.tsv", [f"{text}\t{number}" for text, number in rows[10 * half :][:10]])
    write("my/data/shop.yaml", ["train: shop.csv", "fields: {text: review, label: stars}"])

    for part in ("train", "dev", "test"):
        columns = list(zip(texts, numbers, strict=True))
        write(f"TNEWS/{part}.tsv", [f"{text}\t{TOPICS[n]}" for text, n in columns])
        write(f"ChnSentiCorp/{part}.tsv", [f"{text}\t{('negative', 'positive')[n]}" for text, n in columns])
        write(f"SST-2/{part}.tsv", ["label\tsentence", *(f"{n}\t{text}" for text, n in columns)])
        same = [{"sentence1": first, "sentence2": second, "label": str(label)} for first, second, label in pairs]
        write_objects(f"AFQMC/{part}.json", [dict(item) for item in same])
        names = [{"text": f"Ann is {n}", "label": {"name": {"Ann": [[0, 2]]}}} for n in range(ROWS)]
        write_objects(f"CLUENER2020/{part}.json", [dict(item) for item in names])
