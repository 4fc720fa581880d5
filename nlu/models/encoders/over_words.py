"""What the encoders share that are trained from scratch over a table of word vectors.

Axes: T tokens of all sequences, V words of the vocabulary, D width.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from nlu.config.errors import UserError
from nlu.data.collate import Batch
from nlu.models import keys as schemas
from nlu.models.formats.pretrained import Pretrained
from nlu.models.layers.dropout import Dropout


class OverWords(nn.Module):
    """The base of such an encoder. Only former runs have weights for it."""

    def __init__(
        self,
        vocab_size: int,
        source: Pretrained | None,
        keys: schemas.OverWords,
        model_type: str,
        sizes: Sequence[str],
    ):
        """`sizes`: the keys that are sizes of the encoder.

        A derived class draws the word vectors by `draw_words` after all its other weights. Raises UserError with every
        size that differs from those of a former run.
        """
        super().__init__()
        self._settings = {"model_type": model_type, **{name: getattr(keys, name) for name in sizes}}
        require_same_sizes(self._settings, source)
        self.layout, self.has_segments = "single", True
        self.head_dropout = keys.head_dropout
        self.max_positions: int | None = None
        self.word_embeddings = nn.Embedding(vocab_size, keys.embedding_size)
        self.dropout = Dropout(keys.dropout)

    def draw_words(self) -> None:
        """Draw the word vectors from a normal distribution."""
        nn.init.normal_(self.word_embeddings.weight, std=0.1)

    def settings(self) -> dict[str, object]:
        """Return the content of a checkpoint's config.json."""
        return self._settings

    @property
    def words(self) -> nn.Embedding:
        """The table of word vectors, (V, D)."""
        return self.word_embeddings

    def embed(self, batch: Batch) -> Tensor:
        """Return the word vector of each token, before dropout; (T, D)."""
        return self.word_embeddings(batch.tokens_T)

    def depth_of(self, name: str) -> int:
        """Return the layer of a parameter: 0 = word vectors, 1 = the first layer or block, ..."""
        return 0 if name.startswith("word_embeddings") else int(name.split(".")[1]) + 1

    @property
    def depth(self) -> int:
        return max(self.depth_of(name) for name, _ in self.named_parameters()) + 1

    def checkpoint_names(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors unchanged: no other library writes these encoders."""
        return tensors


def require_same_sizes(settings: dict[str, object], source: Pretrained | None) -> None:
    """Raise UserError with every size that differs from those of the loaded run."""
    config = source.config if source else {}
    if config.get("model_type") != settings["model_type"]:
        return
    problems = [
        f"model.{key} is {value}, but the pretrained weights have {config[key]}; set model.{key}={config[key]}, "
        "or model.pretrained=null for random initialization"
        for key, value in settings.items()
        if key in config and config[key] != value
    ]
    if problems:
        raise UserError(*problems)
