"""The planner: who gets which devices, and why the others wait. Pure: equal input, equal output.

    plan(devices, leases, line, policy, now, views=…, usage=…, records=…, closed=…) -> Plan

The caller keeps a `Line`, gives one `DeviceView` for each device, applies `Plan.grants`, asks
`Plan.reason(id)` and `Plan.explain(id)`, and charges the usage of each lease that ends and records
whether it kept to what it declared.
How decisions are made: `gpulease help planner`.
"""

from gpulease.planner.board import refusal
from gpulease.planner.decide import plan
from gpulease.planner.device_states import DeviceState, DeviceView, device_state
from gpulease.planner.fairness import Spent, Usage, charged, decayed, forget, recorded, weight_of
from gpulease.planner.holds import Hold
from gpulease.planner.limits import limits_of
from gpulease.planner.line import Line
from gpulease.planner.packing import Peak
from gpulease.planner.policy import Limit, Policy
from gpulease.planner.reasons import Reason, of_user
from gpulease.planner.result import Grant, Plan, lease_of
from gpulease.planner.why import Verdict

__all__ = [
    "DeviceState",
    "DeviceView",
    "Grant",
    "Hold",
    "Limit",
    "Line",
    "Peak",
    "Plan",
    "Policy",
    "Reason",
    "Spent",
    "Usage",
    "Verdict",
    "charged",
    "decayed",
    "device_state",
    "forget",
    "lease_of",
    "limits_of",
    "of_user",
    "plan",
    "recorded",
    "refusal",
    "weight_of",
]
