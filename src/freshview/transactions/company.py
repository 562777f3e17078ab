"""What a transaction asks of the views that it has read or that its commit maintains; `views/commits.py` answers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from freshview.catalog.frontiers import ViewChange
from freshview.catalog.records import Relation, RelationState


class Company(Protocol):
    """The views that a transaction's commit maintains, or whose rows the transaction has computed."""

    seen: dict[int, int]  # what deferred views showed when the transaction first read them: view id → CSN

    def state(self, view: Relation) -> RelationState | None:
        """A view's stored rows with the transaction's own writes; None if only the definition has them."""
        ...

    def changes(self) -> tuple[ViewChange, ...]:
        """The changes of views that the commit is to publish, lower views first."""
        ...

    def renew(self, eager: Collection[int]) -> None:
        """Note that the commit has to maintain these views, on top of the newest commit, before it is tried again;
        raise WriteConflict if it was tried often enough."""
        ...

    def published(self, views: Collection[ViewChange]) -> None:
        """Note that the commit has published these changes."""
        ...

    def end(self) -> None:
        """Remove files of changes that were not committed, when the transaction is over."""
        ...
