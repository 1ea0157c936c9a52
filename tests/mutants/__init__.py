"""Balancers with one planted fault each. The judge runs them as `python:` targets, like any user's code.

Class attributes hold property names: `kills` must fail on the mutant. `vacuous` cannot be tested because of the fault.
`undetermined` may have any outcome: the fault puts a share between the conforming and the violating one (.474 between
.455 and .5), or leaves hardly anything to judge. All other properties that the claims allow must pass.
"""
