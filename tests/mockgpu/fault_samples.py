"""One request fault of each kind, for tests over all kinds: those of the table of effects, without place and time."""

from __future__ import annotations

from mockgpu.faults.json_form import from_json, to_json
from mockgpu.faults.kinds import KINDS, RequestFault
from tests.harness.fault_effects import sample

SAMPLES: dict[str, RequestFault] = {name: from_json(to_json(sample(kind))) for name, kind in KINDS.items()}
