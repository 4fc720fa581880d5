"""The order of the examples of a run, and the clock that counts them."""

from nlu.config.durations import Clock
from nlu.config.errors import DataError
from nlu.config.schema import Run
from nlu.data.examples import Examples
from nlu.data.growing import GrowingExamples
from nlu.data.mixture import MixedClock, MixedOrder, MixedStore
from nlu.data.opening import Store
from nlu.data.order import Order, TokenClock, TokenOrder, Whole
from nlu.training.ranks import Ranks

AnyOrder = Order | TokenOrder | MixedOrder


def order_of(config: Run, store: Store, ranks: Ranks) -> AnyOrder:
    """Return the order of the examples that are trained on.

    Raises DataError for an example of more than `trainer.batch_tokens` tokens.
    """
    orders = {part.member: _order(config, part, ranks) for part in store.of_role("train").values()}
    if isinstance(store, MixedStore):
        return MixedOrder(orders, seed=config.seed, alpha=config.data["alpha"])
    return orders[""]


def _order(config: Run, part: Examples, ranks: Ranks) -> Order | TokenOrder:
    trainer = config.trainer
    if trainer.batch_tokens is None:
        return Order(
            part if isinstance(part, GrowingExamples) else Whole(part.lengths_N),
            seed=config.seed,
            batch_size=trainer.batch_rows,
            accumulation=trainer.accumulation,
            bucket_batches=trainer.bucket_batches,
            window_rows=trainer.window_rows,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )
    longest = int(part.lengths_N.argmax())
    lower = "give shorter texts" if config.data.get("long") == "windows" else "data.max_len lower"
    if (tokens := int(part.lengths_N[longest])) > trainer.batch_tokens:
        raise DataError(
            f"{part.place(longest)}: the example has {tokens:,} tokens, more than trainer.batch_tokens, "
            f"{trainer.batch_tokens:,}; set that to >= {tokens}, or {lower}"
        )
    return TokenOrder(
        part.lengths_N,
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
    clocks = {
        name: TokenClock.of(own, config.trainer.accumulation)
        if isinstance(own, TokenOrder)
        else Clock(sizes[name], step)
        for name, own in orders.items()
    }
    return MixedClock.of(order, clocks) if isinstance(order, MixedOrder) else clocks[""]
