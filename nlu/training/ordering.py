"""The order of the examples of a run, and the clock that counts them."""

from nlu.config.durations import Clock
from nlu.config.errors import DataError, UserError
from nlu.config.schema import Run
from nlu.data.examples import Examples
from nlu.data.growing import GrowingExamples
from nlu.data.mixture import MixedClock, MixedOrder, MixedStore
from nlu.data.opening import Store
from nlu.data.order import Order, Whole
from nlu.data.token_order import TokenClock, TokenOrder
from nlu.tasks.composite import task_of
from nlu.tasks.task import Task
from nlu.training.ranks import Ranks

AnyOrder = Order | TokenOrder | MixedOrder


def order_of(config: Run, store: Store, task: Task, ranks: Ranks) -> AnyOrder:
    """Return the order of the examples that are trained on.

    Raises DataError for an example of more than `trainer.batch_tokens` tokens, and UserError if a loss that compares
    pairs would get single ones.
    """
    orders = {part.member: _order(config, part, ranks) for part in store.of_role("train").values()}
    for member, order in orders.items():
        if isinstance(order, TokenOrder):
            _require_pairs(config, order, task_of(task, member), ranks)
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
    if (tokens := int(part.lengths_N[longest])) > trainer.batch_tokens:
        raise DataError(
            f"{part.place(longest)}: the example has {tokens:,} tokens, more than trainer.batch_tokens, "
            f"{trainer.batch_tokens:,}; set that to >= {tokens}, or data.max_len lower"
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


def _require_pairs(config: Run, order: TokenOrder, task: Task, ranks: Ranks) -> None:
    """Raise UserError if a rank would compare a pair with no other one, besides in the rest of an epoch."""
    loss = getattr(task, "loss", None)
    least = int(order.sizes_M[:-1].min(initial=order.examples))
    if getattr(loss, "reads", None) == "similarities" and least < 2 * ranks.world_size:
        raise UserError(
            f"the loss compares a pair with the others of its micro-batch, but trainer.batch_tokens is "
            f"{config.trainer.batch_tokens:,}, into which only {least} of the longest pairs fit, over "
            f"{ranks.world_size} device(s); set trainer.batch_tokens higher, or data.max_len lower"
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
