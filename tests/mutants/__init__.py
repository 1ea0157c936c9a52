"""Balancers with one planted fault each, and the properties that must fail on them.

They reach the judge as `python:` targets, like a stranger's code; nothing outside tests/ knows them.
"""
