"""Who may say yes to a call that is not harmless: policies and the `Approver` protocol. Tools say what needs a word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, assert_never

from app.schema.message import JSON
from app.schema.run import RunContext
from app.tools.base import Approval

ApprovalPolicy = Literal["ask", "auto", "never"]


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """One call that waits for a word: the exact arguments it will run with, why it asks, and what to show.

    `in_doubt` says that the same call may have had its effect before; no standing yes covers that.
    """

    call: str
    name: str
    arguments: JSON
    reason: str
    preview: str = ""
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The word for one call; it covers that call alone. `reason` is told to the model when it is a no."""

    allowed: bool
    reason: str = ""


class Approver(Protocol):
    """A person, or what stands for one. Requests come one at a time."""

    async def approve(self, request: ApprovalRequest, ctx: RunContext) -> Decision: ...


def decide_without_asking(policy: ApprovalPolicy, approval: Approval, *, has_approver: bool) -> Decision | None:
    """The policy's own decision, or None when the approver has to be asked."""
    match policy:
        case "never":
            return Decision(False, "this run allows nothing that needs an approval (--approve never)")
        case "auto":
            if approval.crosses_border:
                return Decision(False, "it may reach outside the workspace, which --approve auto does not allow")
            return Decision(True)
        case "ask":
            if has_approver:
                return None
            return Decision(
                False, "no person is there to approve; the user can run again with --approve auto or at a terminal"
            )
        case _:
            assert_never(policy)
