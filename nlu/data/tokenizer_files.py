"""The tokenizer of a folder of weights, read from the files in which the Hugging Face hub has it.

The package tokenizers reads tokenizer.json, and BERT's vocab.txt is built here. transformers converts other files, once
on each machine, because importing it takes seconds. Keys of tokenizer_config.json are followed, or refused by name.
"""

import json
import logging
import re
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordPiece

from nlu.config.addresses import Reference
from nlu.config.errors import DataError, UserError
from nlu.config.resolving import first_line
from nlu.config.types import ConfigLike
from nlu.storage.cache import Entry, file_digest

log = logging.getLogger(__name__)

SETTINGS = "tokenizer_config.json"
VOCABULARIES = ("vocab.txt", "vocab.json", "*.model", "*.spm")
"""files of which one is enough to have a tokenizer"""
BESIDE = ("merges.txt", SETTINGS, "special_tokens_map.json", "added_tokens.json", "config.json")
BERT = re.compile(r"((\w*Bert|Electra|Ernie|Nezha|LayoutLM|PreTrained)Tokenizer|TokenizersBackend)?")
"""classes whose vocab.txt is one of BERT, without the ending Fast"""
NOT_BERT = ("bert-japanese", "esm", "funnel", "herbert", "mpnet", "prophetnet", "roformer")
"""architectures whose vocab.txt is read in another way, also where no class is named"""
NORMALIZER = {
    "do_lower_case": "lowercase", "strip_accents": "strip_accents", "tokenize_chinese_chars": "handle_chinese_chars",
}  # fmt: skip
"""keys of BERT's normalizer, and their names in the package tokenizers"""
AROUND = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
ROLES = (*AROUND, "pad_token", "mask_token")
LISTS = ("additional_special_tokens", "extra_special_tokens")
USUAL = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece", "do_basic_tokenize": True}
"""keys that are refused with another value"""
HARMLESS = frozenset(
    "added_tokens_decoder auto_map backend bos_token clean_up_tokenization_spaces eos_token errors init_inputs is_local"
    " local_files_only max_len max_length model_input_names model_max_length model_type name_or_path never_split"
    " pad_to_multiple_of pad_token_type_id padding padding_side processor_class special special_tokens_map_file"
    " split_special_tokens stride tokenizer_class tokenizer_file trim_offsets truncation truncation_side"
    " truncation_strategy use_fast vocab_file".split()
)
"""further keys beside BERT's vocab.txt: they change no token, or other lines here read them"""


def backend_at(folder: Path, lowercase: bool | None) -> Backend | None:
    """Return the tokenizer of a folder, None if it has none. `lowercase`: None follows the folder.

    Raises DataError for files that cannot be read and settings that cannot be followed, UserError without transformers
    where it is needed.
    """
    path, vocab, settings = folder / "tokenizer.json", folder / "vocab.txt", settings_of(folder)
    if not path.is_file() and not _found(folder, VOCABULARIES):
        return None
    is_bert = bool(BERT.fullmatch(settings["tokenizer_class"])) and settings["model_type"] not in NOT_BERT
    is_built = is_bert and vocab.is_file() and not path.is_file()
    _require_followed(folder / SETTINGS, settings, is_built)
    if path.is_file():
        backend = _following(backend_of_file(path), settings, folder)
    elif is_built:
        names = {role: settings.get(role) or usual for role, usual in AROUND.items()}
        numbers = numbers_of(read_vocab(vocab), str(vocab), names.values())
        backend = _following(bert(numbers, True, **names), settings, folder)
    else:
        backend = backend_of_file(_converted(folder))
    if settings.get("split_special_tokens"):
        backend = _reading_specials_as_text(backend)
    if lowercase is not None:
        set_case(backend, lowercase, folder)
    return backend


def settings_of(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json and special_tokens_map.json, tokens as texts; `special`: those without a role."""
    config, found = _json_at(folder / "config.json"), _json_at(folder / SETTINGS)
    if "added_tokens_decoder" not in found:
        found |= _json_at(folder / "special_tokens_map.json")
    lists = [found.pop(key, None) or [] for key in LISTS]
    special = [_text(token) for own in lists for token in (own.values() if isinstance(own, dict) else own)]
    name = str(found.get("tokenizer_class") or config.get("tokenizer_class") or "").removesuffix("Fast")
    own = {"tokenizer_class": name, "model_type": config.get("model_type"), "special": special}
    return {key: _text(value) for key, value in found.items()} | own


def set_case(backend: Backend, lowercase: bool, source: Path) -> None:
    """Let BERT's tokenizer lowercase or not. Raises DataError, with the `source`, for another one."""
    if not isinstance(backend.normalizer, normalizers.BertNormalizer):
        raise DataError(f"{source}: its normalizer determines the case; set tokenizer.lowercase=null")
    backend.normalizer.lowercase = lowercase


def backend_of_file(path: Path) -> Backend:
    """Return the tokenizer of a tokenizer.json. Raises DataError for a damaged file."""
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise DataError(f"{path}: not a tokenizer.json ({error}); give an undamaged file") from None


def read_vocab(path: Path) -> list[str]:
    """Return the tokens of a vocab.txt. Only a line feed ends a line, because tokens may be other line separators."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8 ({error.reason}); give a BERT vocab.txt") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def numbers_of(vocab: list[str], source: str, special: Collection[str] = ("[UNK]", "[CLS]", "[SEP]")) -> dict[str, int]:
    """Return the number of each token, given in the order of numbers. Raises DataError without the `special` ones.

    The last of equal tokens has the text, as in transformers; a warning names them. The rows of the others get names
    that no text has, so that every row keeps its number.
    """
    numbers = {token: number for number, token in enumerate(vocab)}
    if absent := [token for token in special if token not in numbers]:
        raise DataError(f"{source}: the vocabulary lacks {', '.join(absent)}; give a BERT vocab.txt")
    again = [number for number, token in enumerate(vocab) if numbers[token] != number]
    if again:
        shown = ", ".join(f"{vocab[n]!r} in lines {n + 1} and {numbers[vocab[n]] + 1}" for n in again[:3])
        more = ", ..." if len(again) > 3 else ""
        _say_once(f"{source}: {shown}{more}: the last of equal lines has the word, and all rows keep their numbers")
    return numbers | {f"[unused {number}]": number for number in again}


def bert(
    numbers: Mapping[str, int],
    lowercase: bool,
    *,
    unk_token: str = "[UNK]",
    cls_token: str = "[CLS]",
    sep_token: str = "[SEP]",
) -> Backend:
    """Return BERT's tokenizer, whose special tokens may have other names."""
    backend = Backend(WordPiece(dict(numbers), unk_token=unk_token, max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if (cls_token, sep_token) != ("[CLS]", "[SEP]"):
        around = [(token, numbers[token]) for token in (sep_token, cls_token)]
        backend.post_processor = processors.BertProcessing(*around)
    return backend


def with_tokens(backend: Backend, tokens: Mapping[int, AddedToken], source: str) -> Backend:
    """Return a tokenizer that finds `tokens`, by their numbers, in a text before it splits the text.

    Raises DataError, with the `source` of the tokens, for a number that a token cannot have.
    """
    new = {token.content: number for number, token in tokens.items() if backend.token_to_id(token.content) is None}
    document = json.loads(backend.to_str()) if new else {"model": {}}
    if isinstance(vocab := document["model"].get("vocab"), dict):
        # The package would count the tokens for the next number, and a vocabulary may lack some.
        vocab |= new
        backend = Backend.from_str(json.dumps(document))
    backend.add_tokens([token for _, token in sorted(tokens.items())])
    if wrong := [token.content for number, token in tokens.items() if backend.token_to_id(token.content) != number]:
        raise DataError(f"{source}: the added token {wrong[0]!r} has another number in the vocabulary; correct one")
    return backend


def _following(backend: Backend, settings: ConfigLike, folder: Path) -> Backend:
    """Return the tokenizer of a file with the settings beside it."""
    if isinstance(backend.normalizer, normalizers.BertNormalizer):
        for key in NORMALIZER.keys() & settings.keys():
            setattr(backend.normalizer, NORMALIZER[key], settings[key])
    # A class without a name of its own takes all from tokenizer.json.
    has_class = not BERT.fullmatch(settings["tokenizer_class"])
    if has_class and isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel) and "add_prefix_space" in settings:
        backend.pre_tokenizer.add_prefix_space = bool(settings["add_prefix_space"])
    states = {token.content: token.__getstate__() for token in backend.get_added_tokens_decoder().values()}
    tokens = _added_tokens(folder, settings, backend)
    new = {n: token for n, token in tokens.items() if states.get(token.content) != token.__getstate__()}
    return with_tokens(backend, new, str(folder)) if new else backend


def _added_tokens(folder: Path, settings: ConfigLike, backend: Backend) -> dict[int, AddedToken]:
    """Return the tokens, by number, that settings and added_tokens.json add to a tokenizer."""
    special = {*settings["special"], *map(settings.get, ROLES)}
    if isinstance(decoder := settings.get("added_tokens_decoder"), dict):
        found = {int(number): AddedToken(**token) for number, token in decoder.items()}
    else:
        listed = _json_at(folder / "added_tokens.json").items()
        found = {n: AddedToken(token, special=token in special, normalized=token not in special) for token, n in listed}
    for name in dict.fromkeys(settings["special"]):
        if name not in {token.content for token in found.values()}:
            if (number := backend.token_to_id(name)) is None:
                number = 1 + max([*backend.get_vocab(with_added_tokens=True).values(), *found])
            found[number] = AddedToken(name, special=True, normalized=False)
    return found


def _reading_specials_as_text(backend: Backend) -> Backend:
    document = json.loads(backend.to_str())
    vocab = document["model"]["vocab"]
    known = set(vocab) if isinstance(vocab, dict) else {piece for piece, _ in vocab}
    kept = [token for token in document["added_tokens"] if not (token["special"] and token["content"] in known)]
    return Backend.from_str(json.dumps({**document, "added_tokens": kept}))


def _require_followed(path: Path, settings: ConfigLike, is_built: bool) -> None:
    """Raise DataError for keys that ask for what is not done here; `is_built`: nothing but them shapes a vocabulary."""
    others = {key: value for key, usual in USUAL.items() if (value := settings.get(key)) not in (None, usual)}
    if kept := set(settings.get("never_split") or ()) - {settings.get(role) for role in ROLES}:
        others["never_split"] = sorted(kept)
    if not is_built:
        # tokenizer.json holds what these keys are about.
        others = {key: others[key] for key in others.keys() - {"do_basic_tokenize", "never_split"}}
    if settings["tokenizer_class"] == "BertJapaneseTokenizer":
        others["tokenizer_class"] = "BertJapaneseTokenizer"
    if others:
        said = ", ".join(f"{key} is {value}" for key, value in sorted(others.items()))
        raise DataError(
            f"{path}: {said}, which nlu does not follow; set tokenizer.vocab to a tokenizer.json for your texts "
            "(docs/models.md, Tokenizers of weights), or choose other weights"
        )
    if settings.get("truncation_side") == "left":
        _say_once(f"{path}: truncation_side is left, but a text that is longer than data.max_len loses its end")
    if is_built and (unknown := sorted(settings.keys() - {*HARMLESS, *ROLES, *NORMALIZER, *USUAL})):
        _say_once(f"{path}: {', '.join(unknown)}: unknown to nlu, and not followed")


def _converted(folder: Path) -> Path:
    """Return the tokenizer.json that transformers makes of a folder's files, from the cache if it was made before."""
    named = ", ".join(path.name for path in _found(folder, VOCABULARIES))
    try:
        versions = [version(package) for package in ("transformers", "tokenizers")]
    except PackageNotFoundError:
        raise UserError(
            f"{folder} has its tokenizer in {named}, which transformers converts; pip install 'nlu[hf]'"
        ) from None
    files = (f"{path.name} {file_digest(path)}" for path in _found(folder, (*VOCABULARIES, *BESIDE)))
    entry = Entry.of("tokenizers", *versions, *files)

    def write(into: Path) -> Path:
        from transformers import AutoTokenizer

        try:
            found = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            backend, reason = getattr(found, "backend_tokenizer", None), f"{type(found).__name__} is Python code"
        except Exception as error:  # whatever the code of an architecture raises
            backend, reason = None, first_line(error).rstrip(":. ")
        if backend is None:
            raise DataError(
                f"{folder}: transformers makes no tokenizer.json of {named}: {reason}; put a tokenizer.json there, or "
                f"name the right tokenizer_class in {SETTINGS}"
            )
        backend.no_truncation()
        backend.no_padding()
        backend.save(str(into / "tokenizer.json"), pretty=False)
        return into / "tokenizer.json"

    return entry.computed(Reference(str(folder), "", None, "the tokenizer of"), write)


def _found(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def _text(token: Any) -> Any:
    """Return the text of a token that has options, and anything else as it is."""
    return token["content"] if isinstance(token, dict) and "content" in token else token


def _json_at(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} if there is none. Raises DataError for damaged JSON."""
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); give an undamaged file") from None
    return found


@cache
def _say_once(message: str) -> None:
    """Warn once, and not for every fold of a run."""
    log.warning("%s", message)
