"""The order of the examples of a run, and the clock that counts them."""

import numpy as np

from nlu.config.durations import Clock
from nlu.config.errors import DataError
from nlu.config.keys import facts_of
from nlu.config.schema import Run
from nlu.config.targets import TARGET
from nlu.data.examples import Examples
from nlu.data.growing import GrowingExamples
from nlu.data.mixture import MixedClock, MixedOrder, MixedStore
from nlu.data.opening import Store
from nlu.data.order import Manifest, Order, TokenClock, TokenOrder, Whole
from nlu.data.query_order import Queries, QueryOrder
from nlu.training.ranks import Ranks

AnyOrder = Order | TokenOrder | QueryOrder | MixedOrder


def order_of(config: Run, store: Store, ranks: Ranks) -> AnyOrder:
    """Return the order of the examples that are trained on.

    Raises DataError for an example of more than `trainer.batch_tokens` tokens.
    """
    orders = {part.member: _order(config, part, ranks) for part in store.of_role("train").values()}
    if isinstance(store, MixedStore):
        return MixedOrder(orders, seed=config.seed, alpha=config.data["alpha"])
    return orders[""]


def takes_queries(config: Run, part: Examples) -> bool:
    """Return whether micro-batches of a set have whole queries; batch sizes and the clock count queries then."""
    own = config.members[part.member] if part.member else config
    return part.is_of_queries or facts_of(own.loss[TARGET]).get("reads") == "groups"


def _order(config: Run, part: Examples, ranks: Ranks) -> Order | TokenOrder | QueryOrder:
    if takes_queries(config, part):
        queries = Queries(part)
        return QueryOrder(queries, _order_over(config, part, Whole(queries.lengths_Q), ranks, queries))
    return _order_over(config, part, part if isinstance(part, GrowingExamples) else Whole(part.lengths_N), ranks)


def _order_over(
    config: Run, part: Examples, examples: Manifest, ranks: Ranks, queries: Queries | None = None
) -> Order | TokenOrder:
    trainer = config.trainer
    if trainer.batch_tokens is None:
        return Order(
            examples,
            seed=config.seed,
            batch_size=trainer.batch_rows,
            accumulation=trainer.accumulation,
            bucket_batches=trainer.bucket_batches,
            window_rows=trainer.window_rows,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )
    longest = int(examples.lengths_N.argmax())
    first, what = (longest, "example") if queries is None else (int(queries.rows(np.array([longest]))[0]), "query")
    lower = "give shorter texts" if config.data.get("long") == "windows" else "data.max_len lower"
    if (tokens := int(examples.lengths_N[longest])) > trainer.batch_tokens:
        raise DataError(
            f"{part.place(first)}: the {what} has {tokens:,} tokens, more than trainer.batch_tokens, "
            f"{trainer.batch_tokens:,}; set that to >= {tokens}, or {lower}"
        )
    return TokenOrder(
        examples.lengths_N,
        seed=config.seed,
        batch_tokens=trainer.batch_tokens,
        accumulation=trainer.accumulation,
        bucket_batches=trainer.bucket_batches,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )


def clock_of(config: Run, store: Store, order: AnyOrder) -> Clock:
    """Return what counts the examples of an order."""
    step = config.trainer.batch_rows * config.trainer.accumulation
    orders = order.orders if isinstance(order, MixedOrder) else {"": order}
    # The number of rows that are still written is unknown, so an epoch is counted as one window of whole steps.
    window = -(-(config.trainer.window_rows or 1) // step) * step
    sizes = {part.member: window if part.is_growing else len(part) for part in store.of_role("train").values()}
    clocks: dict[str, Clock] = {}
    for name, own in orders.items():
        inner, size = (own.of_queries, len(own.queries)) if isinstance(own, QueryOrder) else (own, sizes[name])
        if isinstance(inner, TokenOrder):
            clocks[name] = TokenClock.of(inner, config.trainer.accumulation)
        else:
            clocks[name] = Clock(size, step)
    return MixedClock.of(order, clocks) if isinstance(order, MixedOrder) else clocks[""]
