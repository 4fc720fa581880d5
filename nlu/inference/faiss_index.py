"""Near vectors by faiss, in less time than all comparisons take, and not always the nearest.

Axes: Q queries, N vectors of the corpus, D width, k results.
"""

from collections.abc import Callable

import numpy as np

from nlu.config.errors import UserError
from nlu.inference.nearest import Nearest

LISTS_SEARCHED = 32


def approximate(corpus_ND: np.ndarray) -> Callable[[np.ndarray, np.ndarray, int], Nearest]:
    """Return a search as `nearest`, of this corpus, which is in memory then.

    Its vectors are in lists around the centres of k-means; of a query the nearest LISTS_SEARCHED lists are compared. A
    place that is not found is -1. Raises UserError if faiss is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise UserError(
            "index is faiss, which is not installed here; pip install 'nlu[faiss]', or set index=exact"
        ) from None
    lists = max(1, int(len(corpus_ND) ** 0.5))
    index = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(corpus_ND.shape[1]), corpus_ND.shape[1], lists, faiss.METRIC_INNER_PRODUCT
    )
    index.nprobe = min(lists, LISTS_SEARCHED)
    whole_ND = np.ascontiguousarray(corpus_ND)
    index.train(whole_ND)
    index.add(whole_ND)

    def search(queries_QD: np.ndarray, corpus_ND: np.ndarray, k: int) -> Nearest:
        scores_Qk, places_Qk = index.search(queries_QD, min(k, len(corpus_ND)))
        return Nearest(places_Qk, scores_Qk)

    return search
